"""A session in the habits of Claude Code over the bundled model: a turn computes its new tokens, as a cold server would.

What it does: posts to /v1/messages?beta=true as a stream; a system text in blocks, the first of which changes with every
request; marks for caching that move to the last block; reminders as blocks before the user's text; results of several calls in
one message; small requests of other kinds between the turns; a count before each; a summary at the end."""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server  # noqa: E402
from test_agent import ASKS, RESULTS, SYSTEM, TOOLS  # noqa: E402
from test_messages import PATH, assemble, events, plain  # noqa: E402

SIZE = os.environ.get("FST_TEST_SIZE", "ci")
TURNS = 20 if SIZE == "long" else 8
MARK = {"type": "ephemeral"}


def declared():
    out = [{"name": t["function"]["name"], "description": t["function"]["description"],
            "input_schema": dict(t["function"]["parameters"], **{"$schema": "http://json-schema.org/draft-07/schema#",
                                                                 "additionalProperties": False})} for t in TOOLS]
    out[-1]["cache_control"] = MARK
    return out


def marked(messages):
    """The last block of the last two messages is marked, and no other."""
    out = json.loads(json.dumps(messages))
    for m in out[-2:]:
        if isinstance(m["content"], str):
            m["content"] = [{"type": "text", "text": m["content"]}]
        if m["content"] and m["content"][-1]["type"] not in ("thinking", "redacted_thinking"):
            m["content"][-1]["cache_control"] = MARK
    return out


class Session:
    """One conversation with one server."""

    def __init__(self, test, server, thinking):
        self.test, self.s, self.n = test, server, 0
        self.thinking = {"thinking": {"type": "enabled", "budget_tokens": 2048}} if thinking else {}
        self.messages = [{"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>\nThe plan is empty.\n</system-reminder>\n"},
            {"type": "text", "text": ASKS[0]}]}]
        self.total = None  # tokens of the prompt and the answer before, if that was whole
        self.calls = self.whole = 0

    def body(self, **kw):
        self.n += 1
        return dict({
            "model": "kindling", "max_tokens": 160, "stream": True, "temperature": 0, "tools": declared(),
            "metadata": {"user_id": "user_1_account__session_2"}, "messages": marked(self.messages), "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.%d; cch=%05x;" % (self.n, self.n * 7919)},
                {"type": "text", "text": "You are Claude Code.\n", "cache_control": MARK},
                {"type": "text", "text": SYSTEM, "cache_control": MARK}]}, **dict(self.thinking, **kw))

    def post(self, path, body):
        r = self.s.post(path, body)
        self.test.assertEqual(r.status, 200, r.body)
        return r

    def turn(self, i):
        # the bundled model calls nothing by itself without thoughts
        choice = {"tool_choice": {"type": "any"}} if not self.thinking and i % 2 == 0 else {}
        body = self.body(**choice)
        count = {k: body[k] for k in ("model", "messages", "system", "tools", "thinking", "tool_choice") if k in body}
        n_prompt = self.post("/v1/messages/count_tokens?beta=true", count).json()["input_tokens"]
        m = assemble(events(self.post(PATH, body).body))
        u = m["usage"]
        self.test.assertEqual(u["input_tokens"] + u["cache_read_input_tokens"], n_prompt)
        self.new = n_prompt - self.total if self.total else None
        text = json.dumps(m, ensure_ascii=False)
        whole = m["stop_reason"] != "max_tokens" and "<｜" not in text
        self.whole += whole
        self.total = n_prompt + u["output_tokens"] if whole else None
        self.answer(m, i)
        return m

    def answer(self, m, i):
        """The client's next message: blocks as the SDK made them, its own JSON for inputs."""
        calls = [b for b in m["content"] if b["type"] == "tool_use"]
        self.calls += len(calls)
        said = [b for b in m["content"] if b["type"] != "text" or b["text"]]
        if said:
            self.messages.append({"role": "assistant", "content": [
                {"type": "tool_use", "id": b["id"], "name": b["name"], "input": dict(sorted(b["input"].items()))}
                if b["type"] == "tool_use" else b for b in said]})
        if not calls or not said:
            self.messages.append({"role": "user", "content": ASKS[i % len(ASKS)]})
            return
        results = [{"type": "tool_result", "tool_use_id": b["id"], "content": RESULTS[i % len(RESULTS)] if i % 2 else [
            {"type": "text", "text": RESULTS[i % len(RESULTS)]}]} for b in calls]
        if i % 3 == 2:
            results[-1]["is_error"] = True
        if i % 4 == 3:
            results.append({"type": "text", "text": "<system-reminder>\nBe short.\n</system-reminder>"})
        self.messages.append({"role": "user", "content": results})

    def aside(self):
        """Small requests of other kinds: a title with the first brace given, a look at the quota."""
        r = self.post(PATH, {"model": "kindling-small", "max_tokens": 12, "temperature": 0, "system": "Write a title as JSON.",
                             "messages": [{"role": "user", "content": "Weather and sums"},
                                          {"role": "assistant", "content": "{"}]})
        self.test.assertIn(r.json()["stop_reason"], ("end_turn", "max_tokens"))
        r = self.post(PATH, {"model": "kindling-small", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]})
        self.test.assertEqual(r.json()["usage"]["output_tokens"], 1)


class ClaudeCode(unittest.TestCase):
    def session(self, thinking):
        with Server(fake=False) as warm, Server(fake=False, flags=["--disable-radix-cache"]) as cold:
            w, c = Session(self, warm, thinking), Session(self, cold, thinking)
            for i in range(TURNS):
                got, want = w.turn(i), c.turn(i)
                u = got["usage"]
                if w.new is not None:
                    self.assertLessEqual(u["input_tokens"], w.new + 1, "turn %d" % i)
                self.assertEqual(want["usage"]["cache_read_input_tokens"], 0)
                got, want = plain(got), plain(want)
                self.assertEqual(got.pop("usage")["output_tokens"], want.pop("usage")["output_tokens"])
                self.assertEqual(got, want)
                if not thinking:
                    self.assertNotIn("thinking", [b["type"] for b in got["content"]])
                w.aside()
            self.assertGreater(w.calls, TURNS // 4)
            self.assertGreater(w.whole, TURNS * 3 // 4)
            # the summary: the whole conversation, one more text, no tool is called
            w.messages.append({"role": "user", "content": "Summarize the conversation."})
            m = w.post(PATH, w.body(stream=False, max_tokens=8)).json()
            if w.total:
                self.assertLess(m["usage"]["input_tokens"], 100)
                self.assertGreater(m["usage"]["cache_read_input_tokens"], w.total - 2)
            memory = warm.info()["call_memory"]
            self.assertEqual(memory["changed"], 0)
            self.assertGreater(memory["spliced"], w.calls)

    def test_with_thoughts(self):
        self.session(True)

    def test_without_thoughts(self):
        self.session(False)

    def test_stream_equals_plain(self):
        """Greedy and drawn, alone and asked again, the message is one."""
        with Server(fake=False, flags=["--verify-mode", "static"]) as s:
            for kw in ({"temperature": 0}, {"seed": 3}, {"seed": 3, "thinking": {"type": "enabled", "budget_tokens": 1024}},
                       {"temperature": 0, "thinking": {"type": "adaptive"}, "stop_sequences": ["4"]}):
                body = dict({"max_tokens": 40, "messages": [{"role": "user", "content": "What is 17 + 25?"}]}, **kw)
                m = plain(s.post(PATH, body).json())
                for _ in range(2):
                    n = plain(assemble(events(s.post(PATH, dict(body, stream=True)).body)))
                    self.assertEqual(n["usage"]["output_tokens"], m["usage"]["output_tokens"])
                    self.assertEqual(dict(n, usage=0), dict(m, usage=0))
                self.assertGreater(n["usage"]["cache_read_input_tokens"], 0)


SCHEMA = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 20}, "n": {"enum": [1, 2, 3]}},
          "required": ["title", "n"], "additionalProperties": False}


class Asked(unittest.TestCase):
    """What a body asks the answer to be, of the bundled model."""

    @classmethod
    def setUpClass(cls):
        cls.s = Server(fake=False)

    @classmethod
    def tearDownClass(cls):
        cls.s.wait_idle()
        cls.s.stop()

    def ask(self, text="What is 17 + 25?", **kw):
        body = dict({"max_tokens": 300, "messages": [{"role": "user", "content": text}]}, **kw)
        m = plain(self.s.post(PATH, body).json())
        n = plain(assemble(events(self.s.post(PATH, dict(body, stream=True)).body)))
        m.pop("usage"), n.pop("usage")
        self.assertEqual(m, n)
        return m

    def test_budget(self):
        """Thoughts end where the budget does, and there is an answer."""
        for budget in (0, 5, 64):
            for kw in ({"temperature": 0}, {"seed": 5}):
                m = self.ask(thinking={"type": "enabled", "budget_tokens": budget}, **kw)
                thought = [b["thinking"] for b in m["content"] if b["type"] == "thinking"]
                n = self.s.post("/tokenize", {"prompt": "".join(thought)}).json()["count"] if thought else 0
                self.assertLessEqual(n, budget + 1)
                self.assertTrue(m["content"][-1]["text"])

    def test_document(self):
        for thinking in ({}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}):
            for seed in range(6):
                fmt = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}} if seed % 2 else {
                    "output_format": {"type": "json_schema", "schema": SCHEMA}}
                m = self.ask("Write a title as JSON.", seed=seed, **fmt, **thinking)
                self.assertEqual(m["stop_reason"], "end_turn")
                got = json.loads(m["content"][-1]["text"])
                self.assertEqual(list(got), ["title", "n"])
                self.assertIn(got["n"], (1, 2, 3))
                self.assertLessEqual(len(got["title"]), 20)

    def test_forced_call(self):
        for thinking in ({}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}):
            for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
                for seed in range(3):
                    m = self.ask(tools=declared(), tool_choice=dict(choice, disable_parallel_tool_use=True), seed=seed,
                                 **thinking)
                    calls = [b for b in m["content"] if b["type"] == "tool_use"]
                    self.assertEqual((len(calls), m["stop_reason"]), (1, "tool_use"))
                    if choice["type"] == "tool":
                        self.assertEqual(calls[0]["name"], "add")
                        self.assertEqual(sorted(calls[0]["input"]), ["a", "b"])
                        for v in calls[0]["input"].values():
                            self.assertIsInstance(v, int)

    def test_loop(self):
        """The guard ends what goes round in circles, and says so beside the protocol."""
        with Server(fake=False, flags=["--debug-hooks"]) as s:
            ids = s.post("/tokenize", {"prompt": "again and again " * 80}).json()["tokens"]
            body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2000, "debug": {"force_ids": ids}}
            m = s.post(PATH, body).json()
            self.assertEqual((m["stop_reason"], m["finish_details"]), ("end_turn", {"type": "loop_guard", "repeats": "text"}))
            self.assertLess(len(m["content"][0]["text"]), 1100)
            evs = events(s.post(PATH, dict(body, stream=True)).body)
            self.assertEqual(assemble(evs)["content"], m["content"])
            self.assertEqual(evs[-2][1]["finish_details"], m["finish_details"])
            off = s.post(PATH, dict(body, loop_guard=False)).json()
            self.assertGreater(len(off["content"][0]["text"]), 1100)


if __name__ == "__main__":
    unittest.main()
