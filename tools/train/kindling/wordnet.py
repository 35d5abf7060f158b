"""Glosses and example sentences of WordNet 3.0 (Debian package wordnet-base) as one text file.

The training machine may have no packages, so `extract()` is run beforehand and its output carried along:

    python3 -m kindling.wordnet build/kindling/wordnet.tsv

Lines are `rank<TAB>word<TAB>part of speech<TAB>gloss<TAB>example|example`, most frequent senses (cntlist.rev) first.
Only the first sense of a lemma is kept.
"""

import os
import re
import sys

FOLDER = "/usr/share/wordnet"
POS = {"noun": ("n", "noun"), "verb": ("v", "verb"), "adj": ("a", "adjective"), "adv": ("r", "adverb")}


def _counts(folder):
    counts = {}
    with open(os.path.join(folder, "cntlist.rev"), encoding="utf-8") as f:
        for line in f:
            key, _sense, count = line.split()
            lemma = key.split("%")[0]
            counts[lemma] = counts.get(lemma, 0) + int(count)
    return counts


def extract(folder=FOLDER):
    """Rows (count, word, part of speech, gloss, [examples]) sorted by falling count."""
    counts, rows, seen = _counts(folder), [], set()
    for pos, (_letter, name) in POS.items():
        glosses = {}
        with open(os.path.join(folder, f"data.{pos}"), encoding="utf-8") as f:
            for line in f:
                if line[0] != " ":
                    glosses[line[:8]] = line.split("|", 1)[1].strip()
        with open(os.path.join(folder, f"index.{pos}"), encoding="utf-8") as f:
            for line in f:
                if line[0] == " ":
                    continue
                fields = line.split()
                lemma, offset = fields[0], fields[-int(fields[2])]
                if not re.fullmatch("[a-z]{3,14}", lemma) or (lemma, name) in seen:
                    continue
                seen.add((lemma, name))
                parts = re.split(r';\s*(?=")', glosses[offset])
                gloss = parts[0].strip(' ;"')
                examples = [e.strip(' ";') for e in parts[1:]]
                if gloss and gloss.isascii() and all(e.isascii() for e in examples):
                    rows.append((counts.get(lemma, 0), lemma, name, gloss, examples))
    rows.sort(key=lambda r: (-r[0], r[1], r[2]))
    return rows


def load(path):
    """Rows (word, part of speech, gloss, [examples]) of a file that `main` wrote; a few built-in ones without it."""
    if not path or not os.path.exists(path):
        return [
            ("boat", "noun", "a small vessel for travel on water", ["the boat is at the pier"]),
            ("walk", "verb", "use one's feet to advance", ["we walk to the shop"]),
            ("bright", "adjective", "emitting or reflecting light readily", ["the sun was bright"]),
        ] * 4
    rows = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            _rank, word, pos, gloss, examples = line.rstrip("\n").split("\t")
            rows.append((word, pos, gloss, examples.split("|") if examples else []))
    return rows


def main(path, limit=24000):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        for rank, (_count, word, pos, gloss, examples) in enumerate(extract()[:limit]):
            clean = [e.replace("|", " ").replace("\t", " ") for e in examples]
            f.write("\t".join((str(rank), word, pos, gloss.replace("\t", " "), "|".join(clean))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
