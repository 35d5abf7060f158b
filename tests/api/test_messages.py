"""The Messages API over scripted replies: streams to the line, blocks, usage, errors, what comes back."""

import json
import os
import random
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import MODEL, ROOT, Server, request_bytes  # noqa: E402
from test_chat import CALL, M  # noqa: E402
from test_lifetime import LONG, PREFILL, wait_running  # noqa: E402

PATH = "/v1/messages?beta=true"  # as Claude Code asks
ON = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
TOOLS = [{"name": "get_weather", "description": "Get weather", "cache_control": {"type": "ephemeral"}, "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}]
HI = [{"role": "user", "content": "hi"}]


def block(name, *params):
    """The model's own spelling of one call."""
    inner = "\n".join('<%sparameter name="%s" string="%s">%s</%sparameter>' % (M, k, kind, v, M) for k, kind, v in params)
    return "\n\n<%stool_calls>\n<%sinvoke name=\"%s\">\n%s\n</%sinvoke>\n</%stool_calls>" % (M, M, name, inner, M, M)


def events(body):
    """[(name, data)] of a stream, whose every event is two lines and an empty one."""
    out = []
    for piece in body.decode("utf-8").split("\n\n")[:-1]:
        first, _, second = piece.partition("\n")
        assert first.startswith("event: ") and second.startswith("data: ") and "\n" not in second, piece
        data = json.loads(second[6:])
        assert data["type"] == first[7:], piece
        out.append((first[7:], data))
    return out


def assemble(evs):
    """The message a client makes of a stream, with the order of events checked."""
    evs = [(n, d) for n, d in evs if n != "ping"]
    assert [n for n, _ in evs].count("message_start") == 1 and evs[0][0] == "message_start", evs[0]
    assert [n for n, _ in evs[-2:]] == ["message_delta", "message_stop"], evs[-2:]
    message, is_open = evs[0][1]["message"], False
    assert message["content"] == [] and message["stop_reason"] is None and message["usage"]["output_tokens"] == 0
    for name, d in evs[1:-2]:
        blocks = message["content"]
        if name == "content_block_start":
            assert not is_open and d["index"] == len(blocks)
            b = d["content_block"]
            assert b in ({"type": "thinking", "thinking": "", "signature": ""}, {"type": "text", "text": ""}) or (
                b["type"] == "tool_use" and b["input"] == {} and set(b) == {"type", "id", "name", "input"}), b
            blocks.append(dict(b))
            is_open, partial = True, ""
            continue
        assert is_open and d["index"] == len(blocks) - 1, (name, d)
        b = blocks[-1]
        if name == "content_block_stop":
            is_open = False
            if b["type"] == "tool_use":
                try:
                    b["input"] = json.loads(partial or "{}")
                except ValueError:
                    b["partial"] = partial
            continue
        assert name == "content_block_delta"
        delta = d["delta"]
        kind, key = {"thinking": ("thinking_delta", "thinking"), "text": ("text_delta", "text"),
                     "tool_use": ("input_json_delta", "partial_json")}[b["type"]]
        if delta["type"] == "signature_delta":
            assert b["type"] == "thinking" and not b["signature"] and delta["signature"]
            b["signature"] = delta["signature"]
            continue
        assert delta["type"] == kind and delta[key], delta
        if b["type"] == "tool_use":
            partial += delta[key]
        else:
            b[key] += delta[key]
    assert not is_open
    message.update(evs[-2][1]["delta"])
    message["usage"] = evs[-2][1]["usage"]
    return message


def plain(message):
    """Without what is drawn anew for each answer."""
    m = json.loads(json.dumps(message))
    m.pop("id")
    for b in m["content"]:
        b.pop("id", None)
    return m


class Case(unittest.TestCase):
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.s = Server(flags=cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        cls.s.wait_idle()
        cls.s.stop()

    def ask(self, status=200, **kw):
        r = self.s.post(PATH, dict({"model": "m", "max_tokens": 4000, "messages": HI}, **kw))
        self.assertEqual(r.status, status, r.body)
        return r

    def both(self, text, script=None, **kw):
        """The same with and without stream, as one message."""
        self.s.script(**dict({"text": text}, **(script or {})))
        m = self.ask(**kw).json()
        self.assertEqual(plain(assemble(events(self.ask(stream=True, **kw).body))), plain(m))
        return m

    def texts(self, m):
        return [(b["type"], b.get("text", b.get("thinking", b.get("input")))) for b in m["content"]]


class Answers(Case):
    def test_transcript(self):
        """Event by event what the protocol says."""
        self.s.script(text="Need the tool.</think>" + block("get_weather", ("city", "true", "Rome")), chunk=99)
        r = self.ask(stream=True, tools=TOOLS, **ON)
        self.assertEqual(r.headers["content-type"], "text/event-stream; charset=utf-8")
        self.assertEqual(r.headers["cache-control"], "no-cache")
        start = events(r.body)[0][1]["message"]
        call = next(d["content_block"]["id"] for n, d in events(r.body)
                    if n == "content_block_start" and d["content_block"]["type"] == "tool_use")
        self.assertRegex(start["id"], "^msg_[a-z0-9]{24}$")
        self.assertRegex(call, "^toolu_[a-z0-9]{24}$")
        args = [d["delta"]["partial_json"] for n, d in events(r.body)
                if n == "content_block_delta" and d["delta"]["type"] == "input_json_delta"]
        self.assertEqual("".join(args), '{"city": "Rome"}')
        n_out = events(r.body)[-2][1]["usage"]["output_tokens"]
        usage = '"input_tokens":%d,"cache_read_input_tokens":0,"cache_creation_input_tokens":0,"output_tokens":' % (
            start["usage"]["input_tokens"])
        want = [
            ("message_start", '"message":{"id":"%s","type":"message","role":"assistant","model":"m","content":[],'
             '"stop_reason":null,"stop_sequence":null,"usage":{%s0}}' % (start["id"], usage)),
            ("ping", ""),
            ("content_block_start", '"index":0,"content_block":{"type":"thinking","thinking":"","signature":""}'),
            ("content_block_delta", '"index":0,"delta":{"type":"thinking_delta","thinking":"Need the tool."}'),
            ("content_block_delta", '"index":0,"delta":{"type":"signature_delta","signature":"ZmlyZXN0ZWVs"}'),
            ("content_block_stop", '"index":0'),
            ("content_block_start", '"index":1,"content_block":{"type":"tool_use","id":"%s","name":"get_weather",'
             '"input":{}}' % call)]
        want += [("content_block_delta", '"index":1,"delta":{"type":"input_json_delta","partial_json":%s}' % json.dumps(a))
                 for a in args]
        want += [("content_block_stop", '"index":1'),
                 ("message_delta", '"delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{%s%d}' % (
                     usage, n_out)),
                 ("message_stop", "")]
        self.assertEqual(r.text, "".join('event: %s\ndata: {"type":"%s"%s}\n\n' % (n, n, d and "," + d)
                                         for n, d in want))

    def test_blocks(self):
        """Thoughts, text, calls, each or none of them; an answer is never without text and calls."""
        for thought in ("", "I think."):
            for text in ("", "Some text."):
                for call in ("", CALL):
                    if call and not text:
                        call = call.lstrip("\n")
                    m = self.both(thought + "</think>" + text + call, tools=TOOLS, **ON)
                    want = [("thinking", thought)] if thought else []
                    want += [("text", text)] if text or not call else []
                    want += [("tool_use", {"city": "Rome", "days": 3})] if call else []
                    self.assertEqual(self.texts(m), want)
                    self.assertEqual(m["stop_reason"], "tool_use" if call else "end_turn")
                    self.assertEqual((m["type"], m["role"], m["model"], m["stop_sequence"]),
                                     ("message", "assistant", "m", None))
                    for b in m["content"]:
                        if b["type"] == "thinking":
                            self.assertTrue(b["signature"])

    def test_several_calls(self):
        two = CALL[:CALL.rindex("\n</")] + '\n<%sinvoke name="now">\n\n</%sinvoke>\n</%stool_calls>' % (M, M, M)
        m = self.both("x</think>" + two, tools=TOOLS, **ON)
        self.assertEqual([(b["name"], b["input"]) for b in m["content"][1:]],
                         [("get_weather", {"city": "Rome", "days": 3}), ("now", {})])
        m = self.both("x</think>" + two, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True},
                      **ON)
        self.assertEqual([b["name"] for b in m["content"][1:]], ["get_weather"])
        self.s.wait_idle()

    def test_thinking_is_asked_for(self):
        """Off unless the body says so, whatever the model's name and the server's default."""
        for kw in ({}, {"thinking": {"type": "disabled"}}, {"thinking": None}, {"model": "deepseek-reasoner"},
                   {"output_config": {"effort": "high"}}):
            m = self.both("Good morning", **kw)
            self.assertEqual(self.texts(m), [("text", "Good morning")])
        for kw in (ON, {"thinking": {"type": "adaptive"}}, {"thinking": {"type": "enabled"}},
                   {"thinking": {"type": "between_tools"}}):
            m = self.both("hm</think>Good morning", **kw)
            self.assertEqual(self.texts(m), [("thinking", "hm"), ("text", "Good morning")])

    def test_call_without_end_of_thought(self):
        m = self.both("I should look." + CALL, tools=TOOLS, **ON)
        self.assertEqual([b["type"] for b in m["content"]], ["thinking", "tool_use"])
        self.assertNotIn("DSML", json.dumps(m, ensure_ascii=False))
        self.assertEqual(m["stop_reason"], "tool_use")

    def test_stray_end_of_thought(self):
        self.assertEqual(self.texts(self.both("Hello </think>world")), [("text", "Hello world")])

    def test_cut(self):
        """By max_tokens: in a thought, in text, in a call that nobody may take for whole."""
        m = self.both("thinking and thinking", script={"eos": False}, **ON)
        self.assertEqual((self.texts(m), m["stop_reason"]), ([("thinking", "thinking and thinking"), ("text", "")],
                                                             "max_tokens"))
        m = self.both("x</think>one two three", max_tokens=2, **ON)
        self.assertEqual((m["stop_reason"], m["usage"]["output_tokens"]), ("max_tokens", 2))
        cut = "ok" + CALL[:CALL.index("</%sparameter>" % M)]
        self.s.script(text=cut, eos=False)
        m = self.ask(tools=TOOLS).json()
        self.assertEqual((self.texts(m), m["stop_reason"]), ([("text", "ok")], "max_tokens"))
        m = assemble(events(self.ask(tools=TOOLS, stream=True).body))
        self.assertEqual((m["content"][1].get("partial"), m["stop_reason"]), ('{"city": "Rome', "max_tokens"))
        # and what a client made of it is taken back
        back = HI + [{"role": "assistant", "content": [m["content"][0], dict(
            type="tool_use", id=m["content"][1]["id"], name="get_weather", input={})]}, {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": m["content"][1]["id"], "content": "cut", "is_error": True}]}]
        self.assertEqual(self.texts(self.both("fine", messages=back, tools=TOOLS)), [("text", "fine")])

    def test_block_that_the_model_left_open(self):
        """Whole in the message as text; a stream has announced the call."""
        self.s.script(text="ok" + CALL[:CALL.index("</%sparameter>" % M)])
        m = self.ask(tools=TOOLS).json()
        self.assertEqual([b["type"] for b in m["content"]], ["text"])
        self.assertIn("get_weather", m["content"][0]["text"])
        self.assertEqual(m["stop_reason"], "end_turn")
        m = assemble(events(self.ask(tools=TOOLS, stream=True).body))
        self.assertEqual([b["type"] for b in m["content"]], ["text", "tool_use"])
        self.assertEqual((m["content"][0]["text"], m["stop_reason"]), ("ok", "end_turn"))

    def test_stop_sequences(self):
        m = self.both("STOP here</think>one two STOP three", stop_sequences=["zzz", "STOP"], **ON)
        self.assertEqual(self.texts(m), [("thinking", "STOP here"), ("text", "one two ")])
        self.assertEqual((m["stop_reason"], m["stop_sequence"]), ("stop_sequence", "STOP"))
        m = self.both("one two", stop_sequences=[])
        self.assertEqual((m["stop_reason"], m["stop_sequence"]), ("end_turn", None))
        self.s.wait_idle()

    def test_tool_choice(self):
        inside = CALL.split("tool_calls>\n", 1)[1]
        named = {"type": "tool", "name": "get_weather"}
        want = [("tool_use", {"city": "Rome", "days": 3})]
        self.assertEqual(self.texts(self.both(inside, tools=TOOLS, tool_choice={"type": "any"})), want)
        self.assertEqual(self.texts(self.both(inside.split(">\n", 1)[1], tools=TOOLS, tool_choice=named)), want)
        for choice in ({"type": "any"}, named):  # thoughts come first, and the block is the model's own
            m = self.both("x</think>" + CALL, tools=TOOLS, tool_choice=choice, **ON)
            self.assertEqual(self.texts(m), [("thinking", "x")] + want)
        for thinking in ({}, ON):
            m = self.both("x</think>plain" if thinking else "plain", tools=TOOLS, tool_choice={"type": "none"}, **thinking)
            self.assertEqual(self.texts(m)[-1], ("text", "plain"))

    def test_tools_of_others(self):
        """What runs on Anthropic's servers is not declared; without any other tool there is none."""
        search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
        a, b = (self.count(tools=t) for t in (TOOLS, TOOLS + [search]))
        self.assertEqual(a, b)
        self.assertEqual(self.count(tools=[search]), self.count())
        m = self.both("a" + CALL, tools=[search])
        self.assertEqual([b["type"] for b in m["content"]], ["text"])

    def count(self, status=200, **kw):
        r = self.s.post("/v1/messages/count_tokens?beta=true", dict({"model": "m", "messages": HI}, **kw))
        self.assertEqual(r.status, status, r.body)
        return r.json()["input_tokens"]

    def test_any_cut_of_the_text(self):
        """The same message however many tokens come at once."""
        text = "Let me see.</think>Looking <now>.\n\n" + CALL.lstrip("\n")
        want = None
        for chunk in list(range(1, 12)) + [200]:
            m = plain(self.both(text, script={"chunk": chunk}, tools=TOOLS, **ON))
            want = want or m
            self.assertEqual(m, want)

    def test_argument_wrappers(self):
        """One extra layer around the arguments goes; a parameter that is declared under that name stays."""
        args = '{"city": "Rome", "days": 3}'
        for inner in (block("get_weather", ("arguments", "false", args)), block("get_weather", ("input", "false", args)),
                      block("get_weather", ("city", "true", "Rome"), ("days", "true", "3"))):
            m = self.both("x</think>" + inner, tools=TOOLS, **ON)
            self.assertEqual(m["content"][-1]["input"], {"city": "Rome", "days": 3})
        own = [{"name": "run", "input_schema": {"type": "object", "properties": {"arguments": {"type": "object"}}}}]
        m = self.both("x</think>" + block("run", ("arguments", "false", args)), tools=own, **ON)
        self.assertEqual(m["content"][-1]["input"], {"arguments": {"city": "Rome", "days": 3}})

    def test_streamed_arguments(self):
        """A long argument comes in many pieces, as it is, whatever looks like markup in it."""
        body = ('line "one"\n\tback\\slash é 👩🏽‍🚀 </｜DSML｜para </parameter> ]]> <| &amp; 2>&1 \r\n\u2028 ' * 40)
        self.s.script(text="x</think>" + block("get_weather", ("city", "true", body)))
        evs = events(self.ask(tools=TOOLS, stream=True, **ON).body)
        self.assertEqual(assemble(evs)["content"][-1]["input"], {"city": body})
        pieces = [d["delta"]["partial_json"] for n, d in evs
                  if n == "content_block_delta" and d["delta"]["type"] == "input_json_delta"]
        self.assertGreater(len(pieces), 50)
        for p in pieces:  # no escape is cut
            self.assertEqual(len(p) - len(p.rstrip("\\")), (len(p) - len(p.rstrip("\\"))) // 2 * 2, p)
        self.assertEqual(self.ask(tools=TOOLS, **ON).json()["content"][-1]["input"], {"city": body})

    def test_utf8(self):
        text = "é 👩🏽‍🚀 赴 ñ नमस्ते 🇮🇹 ﷽ \u2028 \u2029 \u0085 end"
        m = self.both(text + "</think>" + text, **ON)
        self.assertEqual(self.texts(m), [("thinking", text), ("text", text)])
        body = self.ask(stream=True, **ON).body
        for c in ("\u2028", "\u2029", "\u0085"):
            self.assertNotIn(c.encode(), body)

    def test_continued(self):
        """A last message of the assistant is gone on with; the answer is what is new."""
        prefix = HI + [{"role": "assistant", "content": "Once upon"}]
        self.assertEqual(self.texts(self.both(" a time", messages=prefix)), [("text", " a time")])
        for said in ("</think>The answer is", [{"type": "thinking", "thinking": "so", "signature": "s"},
                                               {"type": "text", "text": "The answer is"}]):
            m = self.both(" 42", messages=HI + [{"role": "assistant", "content": said}], **ON)
            self.assertEqual(self.texts(m), [("text", " 42")])
        self.assertEqual(self.count(messages=prefix), self.count() + self.n_tokens("Once upon"))

    def n_tokens(self, text):
        return self.s.post("/tokenize", {"prompt": text}).json()["count"]

    def test_usage(self):
        for kw in ({}, ON, {"tools": TOOLS}, {"system": "S", **ON}, {"system": [{"type": "text", "text": "S"}]}):
            m = self.both("a</think>b" if "thinking" in kw else "b", **kw)
            u = m["usage"]
            self.assertEqual(set(u), {"input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens",
                                      "output_tokens"})
            self.assertEqual(u["input_tokens"] + u["cache_read_input_tokens"], self.count(**kw))
            self.assertEqual(u["output_tokens"], self.n_tokens("a</think>b" if "thinking" in kw else "b") + 1)

    def test_count_tokens(self):
        """As many as the answer says; no engine, no limit, the same refusals."""
        self.assertGreater(self.count(messages=[{"role": "user", "content": "a b " * 40000}]), 70000)
        for path in ("/v1/messages/count_tokens", "/anthropic/v1/messages/count_tokens"):
            self.assertGreater(self.s.post(path, {"messages": HI, "max_tokens": "any"}).json()["input_tokens"], 3)
            r = self.s.post(path, {"messages": [{"role": "user", "content": 5}]})
            self.assertEqual((r.status, r.json()["error"]["type"]), (400, "invalid_request_error"))
            self.assertIn("messages[0].content", r.json()["error"]["message"])
            self.assertEqual(self.s.post(path, {"messages": HI, "output_format": {"type": "json_schema"}}).status, 400)
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        for fmt in ({"output_format": {"type": "json_schema", "schema": schema}},
                    {"output_config": {"format": {"type": "json_schema", "schema": schema}}}):
            u = self.ask(**fmt).json()["usage"]
            self.assertEqual(self.count(**fmt), u["input_tokens"] + u["cache_read_input_tokens"])
            self.assertGreater(self.count(**fmt), self.count() + 20)

    def test_other_path(self):
        self.s.script(text="there")
        r = self.s.post("/anthropic/v1/messages", {"messages": HI})
        self.assertEqual(self.texts(r.json()), [("text", "there")])

    def test_limit(self):
        for n, status in ((1, 200), (10 ** 9, 200), (None, 200), (0, 400), (-1, 400), (2.5, 400), ("10", 400)):
            r = self.ask(status=status, max_tokens=n)
            if n == 1:
                self.assertEqual(r.json()["usage"]["output_tokens"], 1)
            if n == 10 ** 9:
                self.assertLess(int(r.headers["x-max-tokens"]), 65536)

    def test_fields_of_claude_code(self):
        """Everything it sends is taken, and what says nothing to a model changes nothing."""
        self.s.script(text="a</think>b")
        r = self.s.post(PATH, {
            "model": "claude-sonnet-4-5-20250929", "max_tokens": 32000, "stream": True, "temperature": 1,
            "metadata": {"user_id": "user_0f_account__session_1b"}, "thinking": {"budget_tokens": 31999, "type": "enabled"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "service_tier": "auto", "cache_control": {"type": "ephemeral"}, "tools": TOOLS,
            "output_config": {"effort": "high"}, "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=4c1f2;"},
                {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            "messages": [{"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>\nplan\n</system-reminder>"},
                {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}]},
            [("anthropic-version", "2023-06-01"), ("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14"),
             ("x-app", "cli"), ("Authorization", "Bearer any"), ("x-stainless-timeout", "600")])
        self.assertEqual(r.status, 200, r.body)
        m = assemble(events(r.body))
        self.assertEqual(self.texts(m), [("thinking", "a"), ("text", "b")])
        self.assertEqual(m["model"], "claude-sonnet-4-5-20250929")
        counts = {self.count(system=[{"type": "text", "text": "x-anthropic-billing-header: cch=%s;" % k},
                                     {"type": "text", "text": "S"}]) for k in ("a", "bb cc dd", "e" * 50)}
        self.assertEqual(counts, {self.count(system="S")})

    def test_seed_and_cache_report(self):
        self.s.script(text="b")
        r = self.ask(seed=5, firesteel={"cache": True}).json()
        self.assertEqual(r["firesteel"]["cache"]["cached"], 0)
        evs = events(self.ask(seed=5, firesteel={"cache": True}, stream=True).body)
        self.assertEqual(evs[-2][1]["firesteel"]["cache"]["cached"], 0)


class Replies(Case):
    """The stored replies, in both dialects, by tokens and byte by byte, are what is stored of them."""

    def byte_ids(self):
        """Ids of the 256 single bytes: the tokenizer writes them as characters of its own (GPT-2's map)."""
        with open(os.path.join(MODEL, "tokenizer.json"), encoding="utf-8") as f:
            vocab = json.load(f)["model"]["vocab"]
        own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
        names = {b: chr(b) for b in own}
        names.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in own)})
        return [vocab[names[b]] for b in range(256)]

    def test_stored_replies(self):
        with open(os.path.join(ROOT, "tests", "data", "chat-vectors.jsonl"), encoding="utf-8") as f:
            vectors = [v for v in map(json.loads, f) if v["kind"] == "parse"]
        self.assertGreater(len(vectors), 15)
        ids = self.byte_ids()
        for v in vectors:
            eos = {"eos": v["end"] == "stop"}
            for script in (dict(eos, text=v["text"]), dict(eos, text=v["text"], chunk=3),
                           dict(eos, ids=[ids[b] for b in v["text"].encode()])):
                with self.subTest(id=v["id"], script=sorted(script)):
                    self.one(v, script)

    def one(self, v, script):
        self.s.script(**script)
        want = v["message"]
        calls = [(c["name"], json.loads(c["arguments"])) for c in want["tool_calls"] or ()]
        schema = {"type": "object"}
        on = v["tools_on"]
        m = self.ask(tools=[{"name": "f", "input_schema": schema}] if on else [], **(ON if v["start"] == "reason" else {}))
        m = m.json()
        st = assemble(events(self.ask(tools=[{"name": "f", "input_schema": schema}] if on else [], stream=True,
                                      **(ON if v["start"] == "reason" else {})).body))
        chat = self.s.chat("hi", tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}] if on else [],
                           thinking={"type": "enabled" if v["start"] == "reason" else "disabled"}).json()["choices"][0]
        said = chat["message"]
        self.assertEqual((said["reasoning_content"] or None, said["content"] or None, chat["finish_reason"]),
                         (want["reasoning_content"] or None, want["content"] or None, want["finish_reason"]))
        self.assertEqual([(c["function"]["name"], json.loads(c["function"]["arguments"]))
                          for c in said.get("tool_calls") or ()], calls)
        for message in (m, st):
            blocks = [b for b in message["content"] if "partial" not in b]
            self.assertEqual("".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
                             want["reasoning_content"] or "")
            text = "".join(b["text"] for b in blocks if b["type"] == "text")
            if len(blocks) == len(message["content"]):
                self.assertEqual(text, want["content"] or "")
            else:  # the stream has announced the call that the text ended in
                self.assertTrue((want["content"] or "").startswith(text))
            self.assertEqual([(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"], calls)
            self.assertEqual(message["stop_reason"], {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[
                want["finish_reason"]])


class Odd(Case):
    def test_mutated_bodies(self):
        """A body with something else in any place of it: an answer, or a refusal in the protocol's form."""
        rng = random.Random(7)
        whole = {"model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "S"}], "stop_sequences": ["zz"],
                 "thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "low"}, "temperature": 1,
                 "tool_choice": {"type": "auto"}, "tools": TOOLS, "metadata": {"user_id": "u"}, "messages": [
                     {"role": "user", "content": "a"}, {"role": "assistant", "content": [
                         {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "b"},
                         {"type": "tool_use", "id": "c", "name": "get_weather", "input": {"city": "Rome"}}]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": False, "content": [
                         {"type": "text", "text": "r"}]}, {"type": "text", "text": "d"}]}]}
        odd = [None, True, 0, -1, 2.5, 1e300, 2 ** 70, "", "x", "\u0000<｜User｜>", [], {}, [[]], {"type": "text"}, [{"type": "x"}],
               {"": None}, "tool_use", "user", "assistant"]
        self.s.script(text="x</think>y")
        seen = {200: 0, 400: 0}
        with self.s.connect() as c:
            for i in range(20000 if os.environ.get("FST_TEST_SIZE") == "long" else 1500):
                body = json.loads(json.dumps(whole))
                for _ in range(rng.randint(1, 3)):
                    at = body
                    while True:
                        key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
                        if not isinstance(at[key], (dict, list)) or not at[key] or rng.random() < 0.2:
                            break
                        at = at[key]
                    if rng.random() < 0.2:
                        del at[key]
                    else:
                        at[key] = json.loads(json.dumps(rng.choice(odd)))
                    if not body:
                        break
                path = rng.choice((PATH, PATH, "/v1/messages/count_tokens"))
                c.send(request_bytes("POST", path, dict(body, **({"stream": True} if i % 3 == 0 else {}))))
                r = c.response()
                with self.subTest(i=i, body=body):
                    self.assertIn(r.status, seen)
                    seen[r.status] += 1
                    if r.status == 400:
                        self.assertEqual(r.json()["error"]["type"], "invalid_request_error")
                        self.assertTrue(r.json()["error"]["message"])
                    elif r.headers["content-type"] != "application/json":
                        assemble(events(r.body))
        self.assertGreater(min(seen.values()), 300)


class Remembered(Case):
    """Calls that come back under their names are the ids that were sampled."""

    def turn(self, answer, **change):
        back = []
        for b in answer["content"]:
            if b["type"] != "thinking" or change.get("thoughts", True):
                b = dict(b, **({"input": change.get("input", b["input"])} if b["type"] == "tool_use" else {}))
                back.append(dict(b, cache_control={"type": "ephemeral"}) if b["type"] == "tool_use" else b)
        result = {"type": "tool_result", "tool_use_id": answer["content"][-1]["id"], "content": [
            {"type": "text", "text": "18C"}]}
        return HI + [{"role": "assistant", "content": back}, {"role": "user", "content": [result]}]

    def spliced(self):
        m = self.s.info()["call_memory"]
        return m["spliced"], m["changed"]

    def test_round_trip(self):
        """Spelled otherwise, without its thoughts, in several messages: as sampled.  Changed: as sent."""
        text = "Need  it.</think>" + block("get_weather", ("days", "false", "1.50"), ("city", "true", "Rome"))
        for stream in (False, True):
            self.s.script(text=text)
            r = self.ask(tools=TOOLS, stream=stream, **ON)
            m = assemble(events(r.body)) if stream else r.json()
            self.assertEqual(m["content"][-1]["input"], {"days": 1.5, "city": "Rome"})
            sampled = m["usage"]["output_tokens"]
            prompt = m["usage"]["input_tokens"]
            self.s.script(text="It is 18C.</think>warm")
            rest = self.tokens("<｜User｜><tool_result>18C</tool_result><｜Assistant｜><think>")
            for change, hit in (({}, True), ({"thoughts": False}, True), ({"input": {"city": "Rome", "days": 1.5}}, True),
                                ({"input": {"city": "Oslo", "days": 1.5}}, False)):
                before = self.spliced()
                u = self.ask(tools=TOOLS, messages=self.turn(m, **change), **ON).json()["usage"]
                after = self.spliced()
                self.assertEqual((after[0] - before[0], after[1] - before[1]), (int(hit), int(not hit)), change)
                if hit:
                    self.assertEqual(u["input_tokens"] + u["cache_read_input_tokens"], prompt + sampled + rest)
            messages = self.turn(m)
            apart = messages[:1] + [{"role": "assistant", "content": [b]} for b in messages[1]["content"]] + messages[2:]
            before = self.spliced()
            self.ask(tools=TOOLS, messages=apart, **ON)
            self.assertEqual(self.spliced()[0], before[0] + 1)
            # counted alike, and known to the other dialects
            self.assertEqual(self.s.post("/v1/messages/count_tokens", dict(
                ON, tools=TOOLS, messages=messages)).json()["input_tokens"], prompt + sampled + rest)
            chat = [HI[0], {"role": "assistant", "content": None, "tool_calls": [{
                "id": m["content"][-1]["id"], "type": "function", "function": {
                    "name": "get_weather", "arguments": '{"city":"Rome","days":1.5}'}}]},
                {"role": "tool", "tool_call_id": m["content"][-1]["id"], "content": "18C"}]
            tools = [{"type": "function", "function": {"name": "get_weather", "description": "Get weather",
                                                       "parameters": TOOLS[0]["input_schema"]}}]
            self.assertEqual(self.s.post("/tokenize", {"messages": chat, "tools": tools}).json()["count"],
                             prompt + sampled + rest)

    def tokens(self, text):
        return self.s.post("/tokenize", {"prompt": text}).json()["count"]

    def test_salt(self):
        self.s.script(text="x</think>" + CALL)
        m = self.ask(tools=TOOLS, cache_salt="a", **ON).json()
        self.s.script(text="x</think>y")
        for salt, n in (("a", 1), ("b", 0), (None, 0)):
            before = self.spliced()[0]
            self.ask(tools=TOOLS, messages=self.turn(m), cache_salt=salt, **ON)
            self.assertEqual(self.spliced()[0] - before, n, salt)

    def test_thoughts_come_back_in_any_form(self):
        self.s.script(text="x</think>y")
        for block in ({"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "thinking", "thinking": "t"},
                      {"type": "redacted_thinking", "data": "abc"}, None):
            content = [b for b in (block, {"type": "text", "text": "a"}) if b]
            self.ask(messages=HI + [{"role": "assistant", "content": content}] + HI, **ON)


class Refusals(Case):
    FLAGS = ("--context-length", "2048")

    def check(self, r, status, kind, words=""):
        self.assertEqual(r.status, status, r.body)
        j = r.json()
        self.assertEqual((j["type"], set(j), set(j["error"])), ("error", {"type", "error", "request_id"}, {"type", "message"}))
        self.assertEqual(j["error"]["type"], kind)
        self.assertIn(words, j["error"]["message"])
        self.assertEqual(j["request_id"], r.headers["x-request-id"])
        self.assertEqual(j["request_id"], r.headers.get("request-id", j["request_id"]))

    def test_bodies(self):
        for stream in (False, True):
            for extra, words in (
                    ({"messages": None}, "Messages cannot be empty."), ({"messages": []}, "Messages cannot be empty."),
                    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
                    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64"}}]}]},
                     "messages[0].content[0]: This model does not support image input"),
                    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
                     "messages[0].content[0]: This model does not support document input"),
                    ({"temperature": -0.1}, "temperature"), ({"temperature": 2.5}, "2.5"), ({"temperature": "x"}, "number"),
                    ({"top_p": 1.5}, "top_p must be in (0, 1], got 1.5"), ({"top_k": 0}, "top_k"), ({"top_k": 1.5}, "top_k"),
                    ({"max_tokens": 0}, "max_tokens must be positive, got 0"), ({"max_tokens": "9"}, "max_tokens"),
                    ({"n": 2}, "n is not supported"), ({"stream": "yes"}, "stream"),
                    ({"stop_sequences": "a" * 2000}, "stop_sequences"), ({"stop_sequences": [""]}, "stop_sequences[0]"),
                    ({"stop_sequences": ["a"] * 65}, "64"), ({"stop_sequences": 5}, "stop_sequences: expected"),
                    ({"stop_sequences": ["a"] * 40, "stop": ["b"] * 40}, "64"),
                    ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
                    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
                    ({"thinking": {"type": "on"}}, "thinking.type"), ({"output_config": {"effort": "odd"}}, "odd"),
                    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
                    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
                    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "odd"}}}},
                     "output_config.format.schema: #: type must be"),
                    ({"output_format": {"type": "json_schema", "schema": 5}}, "output_format.schema"),
                    ({"loop_guard": 3}, "loop_guard"),
                    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"), ({"model": 5}, "model"),
                    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
                    ({"tools": [{"name": 'a"b', "input_schema": {}}]}, "tools[0].name: a name has no quotes"),
                    ({"tools": [{"type": "web_search_20250305", "name": "w"},
                                {"name": "f", "strict": True, "input_schema": {"type": "array"}}]},
                     "tools[1].input_schema: its parameters allow no object"),
                    ({"tool_choice": {"type": "any"}}, "Tools cannot be empty if tool choice is set to required."),
                    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "g"}}, "Tool 'g' not found in tools list."),
                    ({"system": 7}, "system"), ({"cache_salt": 5}, "cache_salt"), ({"rid": 5}, "rid"),
                    ({"regex": "(a"}, "regex"), ({"json_schema": "{"}, "json_schema"),
                    ({"regex": "a", "output_format": {"type": "json_schema", "schema": {}}}, "exclude each other")):
                with self.subTest(extra=str(extra)[:60], stream=stream):
                    r = self.s.post(PATH, dict({"messages": HI, "stream": stream}, **extra))
                    self.check(r, 400, "invalid_request_error", words)

    def test_no_body(self):
        for body in (b"", b"{", b"[1]", b"\xff", b'{"messages":"\\ud800"}', b"[" * 100000, b'{"a":' * 100000):
            for path in (PATH, "/v1/messages/count_tokens"):
                self.check(self.s.post(path, body), 400, "invalid_request_error")
        r = self.s.post(PATH, b'\xef\xbb\xbf{"messages":[{"role":"user","content":"x"}],"unknown":[1],"top_p":null}',
                        [("Content-Type", "text/plain")])
        self.assertEqual(r.status, 200, r.body)

    def test_too_long(self):
        """The words that Claude Code takes for a sign to compact, with the numbers in them."""
        for stream in (False, True):
            r = self.s.post(PATH, {"messages": [{"role": "user", "content": "a b " * 2000}], "stream": stream})
            n = self.s.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a b " * 2000}]})
            self.check(r, 400, "invalid_request_error",
                       "prompt is too long: %d tokens > 2048 maximum" % n.json()["input_tokens"])

    def test_just_short_enough(self):
        def body(n):
            return {"messages": [{"role": "user", "content": "a " * n}], "max_tokens": 1}
        n = 2000
        more = 2047 - self.s.post("/v1/messages/count_tokens", body(n)).json()["input_tokens"]
        self.assertEqual(self.s.post("/v1/messages/count_tokens", body(n + more)).json()["input_tokens"], 2047)
        self.assertEqual(self.s.post(PATH, body(n + more)).json()["stop_reason"], "max_tokens")
        self.check(self.s.post(PATH, body(n + more + 1)), 400, "invalid_request_error", "2048 tokens > 2048 maximum")

    def test_paths_and_methods(self):
        self.check(self.s.get("/v1/messages"), 405, "not_found_error", "GET")
        self.check(self.s.post("/v1/messages/batches", {}), 404, "not_found_error", "/v1/messages/batches")
        self.check(self.s.get("/anthropic/v1/other"), 404, "not_found_error")
        self.assertEqual(self.s.post("/v1/messages/", {"messages": HI}).status, 200)
        self.assertEqual(self.s.get("/v1/other").json()["object"], "error")

    def test_images_that_are_named(self):
        """An agent that has read one goes on."""
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        body = {"messages": HI + [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
                                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c",
                                                                "content": [image]}, image]}]}
        self.check(self.s.post(PATH, body), 400, "invalid_request_error",
                   "messages[2].content[0].content[0]: This model does not support image input")
        with Server(flags=["--unsupported-content", "placeholder"]) as s:
            self.assertEqual(s.post(PATH, body).status, 200)

    def test_names_and_keys(self):
        with Server(flags=["--strict-model-name", "--api-key", "key", "--max-body-mb", "1"]) as s:
            for headers in ([], [("x-api-key", "no")], [("Authorization", "Bearer no")]):
                self.check(s.post(PATH, {"messages": HI}, headers), 401, "authentication_error", "API key")
            for headers in ([("x-api-key", "key")], [("Authorization", "Bearer key")]):
                self.assertEqual(s.post(PATH, {"model": "test", "messages": HI}, headers).status, 200)
                self.check(s.post(PATH, {"model": "x", "messages": HI}, headers), 404, "not_found_error", "'x'")
            with s.connect() as c:
                c.send(request_bytes("POST", PATH, headers=[("Content-Length", str(2 << 20)), ("X-Request-Id", "big")]))
                self.check(c.response(), 413, "request_too_large", "too large")

    def test_engine(self):
        for status, kind in ((503, "overloaded_error"), (429, "rate_limit_error")):
            with Server(script={"submit": "full"}, flags=["--skip-server-warmup", "--queue-full-status", str(status)]) as s:
                for stream in (False, True):
                    r = s.post(PATH, {"messages": HI, "stream": stream})
                    self.check(r, status, kind, "The request queue is full.")
                    self.assertEqual(r.headers["retry-after"], "1")
        with Server() as s:
            s.script(text="a b c d e f g h", fail_after=0)
            for stream in (False, True):
                self.check(s.post(PATH, {"messages": HI, "stream": stream}), 500, "api_error", "not numbers")
            s.script(text="a b c d e f g h", fail_after=4, token_ms=5)
            with s.connect() as c:
                c.send(request_bytes("POST", PATH, {"messages": HI, "stream": True}, [("X-Request-Id", "mine")]))
                self.assertEqual(c.head()[0], 200)
                body = b""
                with self.assertRaises((EOFError, ValueError)):  # no last chunk
                    while True:
                        body += c.chunk()
            name, last = events(body)[-1]
            self.assertEqual(name, "error")
            self.assertEqual((last["error"]["type"], last["request_id"]), ("api_error", "mine"))
            self.assertNotIn(b"message_stop", body)
            s.wait_idle()
        with Server(env={"FST_FAKE_OPEN_MS": "1500"}, wait=False) as s:
            for _ in range(200):
                try:
                    r = s.post(PATH, {"messages": HI})
                    break
                except OSError:
                    time.sleep(0.01)
            self.check(r, 503, "overloaded_error", "Loading model")
            s.wait_ready()


class LongWaits(unittest.TestCase):
    def read(self, s, **kw):
        """[(seconds, name, data)] of a stream, and when its head came."""
        with s.connect() as c:
            start, out = time.time(), []
            c.send(request_bytes("POST", PATH, dict({"messages": HI, "stream": True}, **kw)))
            self.assertEqual(c.head()[0], 200)
            head = time.time() - start
            while True:
                piece = c.chunk()
                if not piece:
                    return head, out
                for name, data in events(piece):
                    out.append((time.time() - start, name, data))

    def test_pings_by_the_clock(self):
        """message_start comes with the first sign of life, and signs of life are events, not comments."""
        with Server(script={"text": "there", "prefill_ms": 1600},
                    flags=["--sse-keepalive-interval", "0.4", "--skip-server-warmup"]) as s:
            head, evs = self.read(s)
            self.assertGreater(head, 0.35)
            self.assertLess(head, 0.9)
            self.assertEqual([n for _, n, _ in evs[:2]], ["message_start", "ping"])
            waits = [t for t, n, d in evs if d == {"type": "ping"}]
            self.assertGreaterEqual(len(waits), 3)
            for a, b in zip(waits, waits[1:]):
                self.assertLess(b - a, 0.9)
            m = assemble([(n, d) for _, n, d in evs])
            self.assertEqual(m["content"], [{"type": "text", "text": "there"}])
            # an engine that stands still is no reason to be silent
            s.script(text="a b c d", hang=True)
            with s.connect() as c:
                c.send(request_bytes("POST", PATH, {"messages": HI, "stream": True}))
                c.head()
                seen = b""
                while seen.count(b"event: ping") < 4:
                    seen += c.chunk()
            s.wait_idle()
            s.script(text="there", prefill_ms=700)
            self.assertTrue(s.post(PATH, {"messages": HI}).body.startswith(b"{"))

    def test_none_before_due_and_none_when_off(self):
        for flags, prefill in ((["--sse-keepalive-interval", "0"], 1200), ([], 600)):
            with Server(script={"text": "y", "prefill_ms": prefill}, flags=flags + ["--skip-server-warmup"]) as s:
                head, evs = self.read(s)
                self.assertGreater(head, prefill / 1000 - 0.05)
                self.assertEqual([n for _, n, _ in evs].count("ping"), 1)

    def test_progress(self):
        with Server(script={"text": "there", "prefill_ms": 800, "prefill_chunks": 4}) as s:
            _, evs = self.read(s, return_progress=True, messages=[{"role": "user", "content": "word " * 100}])
            seen = [d["prompt_progress"] for _, n, d in evs if n == "ping" and "prompt_progress" in d]
            self.assertGreaterEqual(len(seen), 3)
            self.assertEqual([p["processed"] for p in seen], sorted(p["processed"] for p in seen))
            for p in seen:
                self.assertLessEqual(p["processed"], p["total"])
                self.assertEqual(p["cache"], 0)
            start = evs[0][2]["message"]["usage"]
            self.assertEqual(start["input_tokens"], seen[0]["total"])
            assemble([(n, d) for _, n, d in evs])
            _, evs = self.read(s)
            self.assertNotIn("prompt_progress", json.dumps([d for _, _, d in evs]))

    def test_hang_up_and_abort(self):
        with Server() as s:
            for script in (LONG, PREFILL):
                for stream in (False, True):
                    s.script(**script)
                    before = s.state()["aborted"]
                    c = s.connect()
                    c.send(request_bytes("POST", PATH, {"messages": HI, "stream": stream}))
                    wait_running(s)
                    c.reset()
                    s.wait_idle(1)
                    self.assertEqual(s.state()["aborted"], before + 1)
            s.script(**LONG)
            for stream in (False, True):
                with s.connect() as c:
                    c.send(request_bytes("POST", PATH, {"messages": HI, "stream": stream, "rid": "mine"}))
                    wait_running(s)
                    self.assertEqual(s.post("/abort_request", {"rid": "mine"}).json()["aborted"], 1)
                    r = c.response()
                    m = assemble(events(r.body)) if stream else r.json()
                    self.assertEqual(m["stop_reason"], "abort")


if __name__ == "__main__":
    unittest.main()
