"""Kindling: the small DeepSeek-V4 with a DSpark drafter that is bundled with firesteel.

Reading order: config, chat, words, tasks_*, data (what it learns from); numerics, sinkhorn, attention, model, drafter
(what it is); optim, decode, evaluate, checkpoint, export (how it is trained, measured and written out).
"""
