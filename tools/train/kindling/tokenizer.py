"""Byte-level BPE of Kindling: trained on the generators' own text, laid out like DeepSeek-V4's tokenizer.json.

    python3 -m kindling.tokenizer models/kindling build/kindling/wordnet.tsv

The pre-tokeniser, the decoder and the added tokens (texts and flags) are those of the published file; the vocabulary is
256 bytes and merges of ours. Digits never merge, so that every number is a sequence of digits: arithmetic and copying
are then the same small tables everywhere. Added tokens of the chat format stand at the end of the vocabulary.
"""

import json
import os
import re
import sys

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from . import wordnet
from .chat import ASSISTANT, BOS, DSML, END_THINK, EOS, PAD, REMINDER, TASK_TOKENS, THINK, USER
from .data import Sampler

SIZE = 4096
NOISE = "<｜place▁holder▁no▁0｜>"  # fed into the draft block's open slots, never in text
ADDED = [
    NOISE,
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
    USER,
    ASSISTANT,
    THINK,
    END_THINK,
    DSML,
    REMINDER,
] + [TASK_TOKENS[t] for t in ("action", "query", "authority", "domain", "title", "read_url")]
LOW = [BOS, EOS, PAD]
SPECIAL = {NOISE, *LOW}
SPLITS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
TEXT_MIX = {"math": 3, "tools": 3, "recall": 3, "text": 4, "count": 0.1}


def _pre_tokenizer():
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(s), "isolated") for s in SPLITS]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def corpus(glosses, documents=16000, seed=11):
    """Training text without digits and added tokens, plus every gloss once."""
    cut = re.compile("|".join(re.escape(t) for t in LOW + ADDED))
    sampler = Sampler(seed, TEXT_MIX, glosses)
    for _ in range(documents):
        yield from cut.split(re.sub(r"\d", "", sampler.document()))
    held = Sampler(seed + 1, TEXT_MIX, glosses, held_out=True)  # names that are only held out need pieces as well
    for _ in range(documents // 10):
        yield from cut.split(re.sub(r"\d", "", held.document()))
    for word, _pos, gloss, examples in glosses:
        yield f" {word} {re.sub(r'[0-9]', '', gloss)} " + re.sub(r"\d", "", " ".join(examples))


def build(glosses):
    """The contents of tokenizer.json as a dict."""
    tk = Tokenizer(models.BPE())
    tk.pre_tokenizer = _pre_tokenizer()
    size = SIZE - len(LOW) - len(ADDED)
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tk.train_from_iterator(corpus(glosses), trainer)
    learnt = json.loads(tk.to_str())["model"]
    pieces = sorted(learnt["vocab"], key=learnt["vocab"].get)
    assert len(pieces) == size and pieces[:256] == sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {t: i for i, t in enumerate(LOW + pieces)}
    merges = [m if isinstance(m, str) else " ".join(m) for m in learnt["merges"]]
    added = [(t, i) for i, t in enumerate(LOW)] + [(t, len(vocab) + i) for i, t in enumerate(ADDED)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": t,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": t not in SPECIAL,
                "special": t in SPECIAL,
            }
            for t, i in added
        ],
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": s}, "behavior": "Isolated", "invert": False} for s in SPLITS
            ]
            + [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}],
        },
        "post_processor": {**byte_level, "trim_offsets": False},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def write(folder, glosses):
    os.makedirs(folder, exist_ok=True)

    def dump(name, value):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False, indent=1 if name != "tokenizer.json" else 0)
            f.write("\n")

    dump("tokenizer.json", build(glosses))
    token = lambda t: {
        "__type": "AddedToken",
        "content": t,
        "lstrip": False,
        "normalized": True,
        "rstrip": False,
        "single_word": False,
    }
    dump(
        "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_eos_token": False,
            "bos_token": token(BOS),
            "clean_up_tokenization_spaces": False,
            "eos_token": token(EOS),
            "legacy": True,
            "model_max_length": 65536,
            "pad_token": token(EOS),
            "sp_model_kwargs": {},
            "unk_token": None,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    dump(
        "generation_config.json",
        {
            "_from_model_config": True,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "do_sample": True,
            "temperature": 1.0,
            "top_p": 1.0,
        },
    )


if __name__ == "__main__":
    write(sys.argv[1], wordnet.load(sys.argv[2]))
