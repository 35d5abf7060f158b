"""Replies that must be something: every spelling, with thoughts and without, streamed and whole, on the bundled model."""

import json
import os
import re
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server, events, in_threads  # noqa: E402

ANSWER = {"type": "object", "properties": {
    "answer": {"type": "string", "maxLength": 24}, "count": {"type": "integer", "minimum": 0, "maximum": 99999},
    "valid": {"type": "boolean"}}, "required": ["answer", "count", "valid"], "additionalProperties": False}
SCHEMAS = [
    ANSWER,
    {"type": "array", "items": {"enum": ["red", "green", 7, None]}, "minItems": 1, "maxItems": 4},
    {"type": "string", "pattern": "^[A-Z][a-z]{2,6}$"},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {
        "v": {"type": "integer", "minimum": -9, "maximum": 9}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
        "required": ["v", "next"], "additionalProperties": False}}},
    {"anyOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer", "maximum": 9, "minimum": 0}},
                "required": ["kind", "n"], "additionalProperties": False}, {"type": "boolean"}]},
]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12},
                                     "days": {"type": "integer", "minimum": 1, "maximum": 9},
                                     "unit": {"enum": ["C", "F"]}}, "required": ["city", "unit"]}}}
PING = {"type": "function", "function": {"name": "ping"}}


def valid(v, s, root=None):
    """The part of JSON Schema that the schemas above use."""
    root = root or s
    if "$ref" in s:
        return valid(v, root["$defs"][s["$ref"].split("/")[-1]], root)
    if "anyOf" in s and not any(valid(v, a, root) for a in s["anyOf"]):
        return False
    if "enum" in s and not any(v == e and type(v) is type(e) for e in s["enum"]):
        return False
    if "const" in s and v != s["const"]:
        return False
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    if "type" in s and type(v) is not kinds[s["type"]]:
        return False
    if type(v) is int and not s.get("minimum", v) <= v <= s.get("maximum", v):
        return False
    if type(v) is str and (len(v) > s.get("maxLength", len(v)) or not re.search(s.get("pattern", ""), v)):
        return False
    if type(v) is list:
        return s.get("minItems", 0) <= len(v) <= s.get("maxItems", len(v)) and all(valid(x, s["items"], root) for x in v)
    if type(v) is dict:
        p = s.get("properties", {})
        return (all(k in v for k in s.get("required", [])) and all(valid(x, p[k], root) for k, x in v.items() if k in p)
                and (s.get("additionalProperties", True) or all(k in p for k in v)))
    return True


def format_of(schema, **more):
    return {"type": "json_schema", "json_schema": dict({"name": "x", "schema": schema}, **more)}


class Grammar(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server(fake=False, flags=["--context-length", "2048", "--max-running-requests", "8"])

    @classmethod
    def tearDownClass(cls):
        cls.s.wait_idle()
        cls.s.stop()

    def ask(self, text="Paris 3 true", **body):
        """The choices of a whole answer; a stream of the same request gives the same."""
        body = dict({"messages": [{"role": "user", "content": text}], "max_tokens": 400, "seed": 5}, **body)
        r = self.s.post("/v1/chat/completions", body)
        self.assertEqual(r.status, 200, r.body)
        choices = r.json()["choices"]
        parts = [{"content": "", "reasoning": "", "calls": [], "finish": None} for _ in choices]
        for e in events(self.s.post("/v1/chat/completions", dict(body, stream=True)).body):
            for c in e["choices"] if isinstance(e, dict) else []:
                p, d = parts[c["index"]], c["delta"]
                p["content"] += d.get("content") or ""
                p["reasoning"] += d.get("reasoning_content") or ""
                for t in d.get("tool_calls", []):
                    if t.get("id"):
                        p["calls"].append([t["function"]["name"], ""])
                    p["calls"][t["index"]][1] += t["function"]["arguments"]
                p["finish"] = c["finish_reason"] or p["finish"]
        for c, p in zip(choices, parts):
            m = c["message"]
            self.assertEqual((m["content"] or "", m["reasoning_content"] or "", c["finish_reason"]),
                             (p["content"], p["reasoning"], p["finish"]))
            if c["finish_reason"] == "tool_calls":
                self.assertEqual([[t["function"]["name"], t["function"]["arguments"]] for t in m["tool_calls"]], p["calls"])
        return choices

    def one(self, *args, **body):
        return self.ask(*args, **body)[0]

    def test_schemas(self):
        """Five schemas by five seeds, behind thoughts and without: all are documents."""
        for i, schema in enumerate(SCHEMAS):
            for seed in range(5):
                c = self.one(response_format=format_of(schema, strict=bool(seed % 2)), seed=seed, think=seed % 2 == 0,
                             temperature=1.0 if seed else 0)
                self.assertEqual(c["finish_reason"], "stop", c)
                self.assertTrue(valid(json.loads(c["message"]["content"]), schema), c)
                self.assertEqual(bool(c["message"]["reasoning_content"]), seed % 2 == 0)

    def test_spellings(self):
        for think in (True, False):
            content = lambda **b: self.one(think=think, **b)["message"]["content"]  # noqa: E731
            self.assertIs(type(json.loads(content(response_format={"type": "json_object"}, max_tokens=150))), dict)
            for name in ("json_schema", "guided_json"):
                for value in (ANSWER, json.dumps(ANSWER)):
                    self.assertTrue(valid(json.loads(content(**{name: value})), ANSWER))
            for name in ("regex", "guided_regex"):
                self.assertRegex(content(**{name: "(yes|no), [0-9]{2,4}!"}), r"\A(yes|no), [0-9]{2,4}!\Z")
            for name in ("ebnf", "guided_grammar"):
                self.assertRegex(content(**{name: 'root ::= "<" x ">"\nx ::= [ab] | [ab] x'}, max_tokens=60), r"\A<[ab]+>\Z")
            self.assertIn(content(guided_choice=["red", 'gr"een\n\\', "blüe"]), ["red", 'gr"een\n\\', "blüe"])
        for body in ({"json_schema": ANSWER}, {"guided_json": json.dumps(ANSWER)}):
            r = self.s.post("/v1/completions", dict({"prompt": "Answer:", "max_tokens": 80}, **body)).json()
            self.assertTrue(valid(json.loads(r["choices"][0]["text"]), ANSWER))
        sp = {"max_new_tokens": 80, "json_schema": json.dumps(ANSWER)}
        r = self.s.post("/generate", {"text": ["a", "b"], "sampling_params": [sp, {"regex": "[0-9]{3}"}]}).json()
        self.assertTrue(valid(json.loads(r[0]["text"]), ANSWER))
        self.assertRegex(r[1]["text"], r"\A[0-9]{3}\Z")
        sp = {"max_new_tokens": 80, "ebnf": 'root ::= "a" | "b"', "n": 2}
        self.assertTrue(all(x["text"] in "ab" for x in self.s.post("/generate", {"text": "a", "sampling_params": sp}).json()))

    def test_room(self):
        """The shortest document fits, so it comes; it ends with stop though no end id fits.  With less it is cut."""
        fmt = format_of({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}},
                         "required": ["a"], "additionalProperties": False})
        for think in (True, False):
            finish = [self.one(response_format=fmt, think=think, max_tokens=n, temperature=1.0)["finish_reason"]
                      for n in range(1, 24)]
            first = finish.index("stop")
            self.assertEqual(set(finish[:first]), {"length"})
            self.assertEqual(set(finish[first:]), {"stop"})
            c = self.one(response_format=fmt, think=think, max_tokens=first + 1, temperature=1.0)
            self.assertIs(type(json.loads(c["message"]["content"])["a"]), list)

    def test_choices_and_neighbours(self):
        """n choices are documents, and what a request gives does not depend on those beside it."""
        body = {"response_format": format_of(ANSWER), "temperature": 1.0, "n": 3, "frequency_penalty": 0}
        alone = self.ask(**body)
        self.assertEqual(len(alone), 3)
        for c in alone:
            self.assertTrue(valid(json.loads(c["message"]["content"]), ANSWER))
        bodies = [body, {"regex": "[a-z]{5}", "temperature": 1.0}, {"guided_choice": ["x", "y"]}, body, {}]
        got = [None] * len(bodies)

        def run(i):
            got[i] = self.ask(**bodies[i])
        in_threads(len(bodies), run)
        self.assertEqual(got[0], alone)
        self.assertEqual(got[3], alone)

    def calls(self, c):
        self.assertEqual(c["finish_reason"], "tool_calls", c)
        return [(t["function"]["name"], json.loads(t["function"]["arguments"])) for t in c["message"]["tool_calls"]]

    def test_forced_calls(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        schema = TOOL["function"]["parameters"]
        for think in (True, False):
            for choice in ("required", named):
                for temperature in (0, 1.0):
                    c = self.one(tools=[TOOL, PING], tool_choice=choice, think=think, temperature=temperature)
                    self.assertEqual(bool(c["message"]["reasoning_content"]), think)
                    for name, args in self.calls(c):
                        self.assertIn(name, ("get_weather",) if choice is named else ("get_weather", "ping"))
                        self.assertTrue(valid(args, schema) if name == "get_weather" else args == {}, args)
                    c = self.one(tools=[TOOL, PING], tool_choice=choice, think=think, temperature=temperature,
                                 parallel_tool_calls=False)
                    self.assertEqual(len(self.calls(c)), 1)
            c = self.one(tools=[TOOL], tool_choice="none", think=think, max_tokens=60)
            self.assertNotIn("tool_calls", c["message"])

    def test_parameters_that_cannot_be_written(self):
        """A quote would end the name: the one is left out, the others are as declared."""
        kind = {"type": "object", "properties": {'a"b': {"type": "integer"}, "n": {"type": "integer"}},
                "required": ['a"b', "n"], "additionalProperties": False}
        r = self.s.chat("x", tools=[{"type": "function", "function": {"name": "f", "parameters": kind}}],
                        tool_choice="required", thinking={"type": "disabled"}, max_tokens=80, seed=1)
        self.assertEqual(r.status, 200, r.body)
        for call in r.json()["choices"][0]["message"]["tool_calls"]:
            self.assertEqual(list(json.loads(call["function"]["arguments"])), ["n"])

    def test_calls_of_the_models_own(self):
        """Strict tools keep their schema; others the names and the tags."""
        ask = "What is the weather in Oslo Town?"
        strict = dict(TOOL, function=dict(TOOL["function"], strict=True))
        n = 0
        for seed in range(6):
            for think in (True, False):
                c = self.one(ask, tools=[strict], think=think, seed=seed, temperature=1.0, max_tokens=300)
                for name, args in self.calls(c) if c["finish_reason"] == "tool_calls" else []:
                    self.assertEqual(name, "get_weather")
                    self.assertTrue(valid(args, TOOL["function"]["parameters"]), args)
                    n += 1
                c = self.one(ask, tools=[TOOL], think=think, seed=seed, temperature=1.0, max_tokens=300)
                if c["finish_reason"] == "tool_calls":
                    self.assertEqual({name for name, _ in self.calls(c)}, {"get_weather"})
        self.assertGreater(n, 3)

    def test_calls_or_a_format(self):
        """With tools and a format the reply is a call or a document."""
        n = {"tool_calls": 0, "stop": 0}
        for seed in range(12):
            c = self.one("What is the weather?" if seed % 2 else "Hello!", tools=[TOOL], response_format=format_of(ANSWER),
                         seed=seed, think=False, temperature=1.2)
            n[c["finish_reason"]] += 1
            if c["finish_reason"] == "stop":
                self.assertTrue(valid(json.loads(c["message"]["content"]), ANSWER))
            else:
                self.assertTrue(self.calls(c))
        self.assertGreater(n["tool_calls"] + n["stop"], 11)

    def test_ends(self):
        """ignore_eos and min_tokens do not outlast a document; stop strings and ids still end it."""
        for more in ({"ignore_eos": True}, {"min_tokens": 90}):
            c = self.one(response_format=format_of(ANSWER), think=False, **more)
            self.assertEqual(c["finish_reason"], "stop")
            self.assertTrue(valid(json.loads(c["message"]["content"]), ANSWER))
        c = self.one(response_format=format_of(ANSWER), think=False, stop=["count"])
        self.assertEqual((c["finish_reason"], c["matched_stop"]), ("stop", "count"))

    def test_what_repeats(self):
        """A document may go round; the loop guard is for texts that nobody asked for."""
        ones = {"type": "array", "items": {"const": 1}, "minItems": 420, "maxItems": 420}
        body = {"messages": [{"role": "user", "content": "a"}], "think": False, "max_tokens": 1000}
        c = self.s.post("/v1/chat/completions", dict(body, json_schema=ones)).json()["choices"][0]
        self.assertEqual((c["finish_reason"], len(json.loads(c["message"]["content"]))), ("stop", 420))
        c = self.s.post("/v1/chat/completions", dict(body, regex="(ab){450}")).json()["choices"][0]
        self.assertEqual(c["message"]["content"], 450 * "ab")

    def test_penalties_and_bias(self):
        quote = self.s.post("/tokenize", {"content": "}"}).json()["tokens"][0]
        for more in ({"top_k": 1}, {"top_p": 0.3}, {"min_p": 0.5}, {"logprobs": True, "top_logprobs": 2},
                     {"stop_token_ids": [quote], "min_tokens": 50}):
            c = self.one(response_format=format_of(ANSWER), think=False, temperature=1.0, **more)
            text = c["message"]["content"] + ("}" if "stop_token_ids" in more else "")  # which is not shown
            self.assertTrue(valid(json.loads(text), ANSWER), more)

    def test_kept(self):
        def count(name):
            return float(re.search(r"^sglang:%s\{[^}]*\} (\S+)$" % name, self.s.get("/metrics").text, re.M).group(1))
        hits, made = count("num_grammar_cache_hit_total"), count("grammar_compilation_time_seconds_count")
        failed = count("num_grammar_aborted_total")
        body = {"messages": [{"role": "user", "content": "a"}], "regex": "kept|and found", "max_tokens": 4}
        for _ in range(3):
            self.s.post("/v1/chat/completions", body)
        self.assertEqual(count("num_grammar_cache_hit_total"), hits + 2)
        self.assertEqual(count("grammar_compilation_time_seconds_count"), made + 1)
        self.s.post("/v1/chat/completions", dict(body, regex="a("))
        self.assertEqual(count("num_grammar_aborted_total"), failed + 1)
        self.assertEqual(count("num_grammar_queue_reqs"), 0)
        self.assertGreater(count("grammars_bytes"), 0)
        # A body that is read on a helper thread compiles there.
        big = dict(body, regex="for a long body", messages=[{"role": "user", "content": "a"}], user="x" * 70000)
        r = self.s.post("/v1/chat/completions", dict(big, max_tokens=60, think=False))
        self.assertEqual(r.json()["choices"][0]["message"]["content"], "for a long body")

    def test_input_ids(self):
        r = self.s.post("/v1/chat/completions", {"input_ids": [5, 6, 7], "max_tokens": 80,
                                                 "response_format": format_of(ANSWER)}).json()
        self.assertTrue(valid(json.loads(r["choices"][0]["message"]["content"]), ANSWER))


class Flags(unittest.TestCase):
    def test_blanks(self):
        """At a temperature at which blanks come where they may."""
        texts = []
        for flags in ((), ("--constrained-json-disable-any-whitespace",),
                      ("--constrained-json-whitespace-pattern", r"[\n\t ]*")):
            s = Server(fake=False, flags=["--context-length", "1024", "--max-running-requests", "4"] + list(flags))
            try:
                r = s.post("/v1/completions", {
                    "prompt": "a", "max_tokens": 200, "temperature": 2.0, "seed": 3, "n": 4, "json_schema": {
                        "type": "array", "items": {"enum": [1, 2]}, "minItems": 20, "maxItems": 20}}).json()
                texts.append(" | ".join(c["text"] for c in r["choices"]))
                for c in r["choices"]:
                    self.assertEqual(len(json.loads(c["text"])), 20)
            finally:
                s.stop()
        one, none, any_ = texts
        self.assertRegex(none, r"\A[][12,|]+( \| [][12,]+)*\Z")
        self.assertIn(", ", one)
        self.assertNotRegex(one, r"  |[\n\t]")
        self.assertRegex(any_, r"  |[\n\t]")

    def test_bad_pattern(self):
        s = Server(fake=False, flags=["--constrained-json-whitespace-pattern", "x+"], wait=False)
        self.assertEqual(s.proc.wait(60), 2)
        self.assertIn("--constrained-json-whitespace-pattern x+: known are", s.output())

    def test_audit(self):
        """What is computed again is masked again."""
        s = Server(fake=False, flags=["--context-length", "1024", "--max-running-requests", "2", "--audit-share", "1",
                                      "--audit-time", "1"])
        try:
            for i in range(8):
                r = s.post("/v1/chat/completions", {
                    "messages": [{"role": "user", "content": "Paris 3 true"}], "think": i % 2 == 0, "seed": i, "top_p": 1 - i % 3 / 9,
                    "temperature": 1.0, "max_tokens": 200, "response_format": format_of(SCHEMAS[i % 4])}).json()
                self.assertEqual(r["choices"][0]["finish_reason"], "stop")
            end = time.time() + 60
            done = {}
            while done.get("equal", 0) < 8 and time.time() < end:
                done = {k: float(v) for k, v in re.findall(r'^sglang:audit_requests_total\{.*result="(\w+)"\} (\S+)$',
                                                           s.get("/metrics").text, re.M)}
                self.assertEqual(done["mismatch"], 0, s.output()[-2000:])
                time.sleep(0.2)
            self.assertGreaterEqual(done["equal"], 6, done)
        finally:
            s.stop()

    def test_tool_grammar(self):
        """off: no mask for tools that are not strict; strict: schemas of all."""
        for word in ("off", "strict"):
            s = Server(fake=False, flags=["--context-length", "1024", "--max-running-requests", "2", "--tool-grammar", word])
            try:
                n = 0
                for seed in range(10):
                    r = s.post("/v1/chat/completions", {
                        "messages": [{"role": "user", "content": "What is the weather in Oslo Town?"}], "tools": [TOOL],
                        "think": False, "seed": seed, "temperature": 1.0, "max_tokens": 300}).json()["choices"][0]
                    for t in r["message"].get("tool_calls") or []:
                        n += 1
                        ok = valid(json.loads(t["function"]["arguments"]), TOOL["function"]["parameters"])
                        if word == "strict":
                            self.assertTrue(ok, t)
                self.assertGreater(n, 2)
                kept = float(re.search(r"^sglang:grammars_kept\{[^}]*\} (\S+)$", s.get("/metrics").text, re.M).group(1))
                self.assertEqual(kept, 0 if word == "off" else 1)
            finally:
                s.stop()


if __name__ == "__main__":
    unittest.main()
