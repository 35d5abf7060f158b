"""Makes tests/data/tiny-tokenizer.json: byte-level BPE of DeepSeek-V4's kind with 700 ordinary
tokens and the special tokens that a chat needs.  Needs PyPI tokenizers; run once, result committed.

    python3 tests/data/make_tiny_tokenizer.py > tests/data/tiny-tokenizer.json
"""

import glob
import os
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

BAR, BLANK = "\uff5c", "\u2581"
DIGITS = r"\p{N}{1,3}"
CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
WORDS = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
SAMPLES = [
    "日本語カタカナ漢字 你好，世界。今天天气很好。 한국어 텍스트 שלום עולם",
    "Привет, мир! Γειά σου Κόσμε नमस्ते दुनिया élève été naïve Straße 👩🏽‍🚀😀👍🏽",
]


def tag(s):
    return f"<{BAR}{s}{BAR}>"


def main():
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Sequence([])
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r), "isolated") for r in (DIGITS, CJK, WORDS)]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    first = [tag(f"begin{BLANK}of{BLANK}sentence"), tag(f"end{BLANK}of{BLANK}sentence"),
             tag(f"{BLANK}pad{BLANK}")]
    trainer = trainers.BpeTrainer(
        vocab_size=703,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in first],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lib = os.path.dirname(os.__file__)
    texts = [open(p, encoding="utf-8").read() for p in sorted(glob.glob(lib + "/json/*.py"))]
    tok.train_from_iterator(texts + SAMPLES * 20, trainer)
    tok.add_tokens(
        [AddedToken(t, special=False, normalized=False) for t in
         [tag("User"), tag("Assistant"), "<think>", "</think>", f"{BAR}DSML{BAR}",
          tag("latest_reminder"), tag("action"), tag("query"), tag("authority"), tag("domain"),
          tag("title"), tag("read_url"), "<|EOT|>", tag(f"place{BLANK}holder{BLANK}no{BLANK}7")]]
    )
    sys.stdout.write(tok.to_str(pretty=False))


if __name__ == "__main__":
    main()
