"""Chat over scripted replies: streams, thoughts, tools, choices, log-probabilities, UTF-8."""

import json
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server, events, request_bytes  # noqa: E402

M = "｜DSML｜"
CALL = ("\n\n<%stool_calls>\n<%sinvoke name=\"get_weather\">\n<%sparameter name=\"city\" string=\"true\">Rome"
        "</%sparameter>\n<%sparameter name=\"days\" string=\"false\">3</%sparameter>\n</%sinvoke>\n</%stool_calls>"
        % ((M,) * 8))
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]


def join(evs, index=0):
    """What a client assembles from chunks of one choice."""
    out = {"content": "", "reasoning": "", "calls": {}, "finish": None, "matched": None, "chunks": 0}
    for e in evs:
        if not isinstance(e, dict):
            continue
        for c in e["choices"]:
            if c["index"] != index:
                continue
            out["chunks"] += 1
            d = c["delta"]
            out["content"] += d.get("content") or ""
            out["reasoning"] += d.get("reasoning_content") or ""
            for t in d.get("tool_calls", ()):
                k = out["calls"].setdefault(t["index"], {"name": "", "args": "", "id": None})
                k["id"] = t.get("id", k["id"])
                k["name"] += t["function"].get("name", "")
                k["args"] += t["function"].get("arguments", "")
            if c["finish_reason"]:
                assert out["finish"] is None
                out["finish"], out["matched"] = c["finish_reason"], c["matched_stop"]
    return out


class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server()

    @classmethod
    def tearDownClass(cls):
        cls.s.wait_idle()
        cls.s.stop()

    def both(self, text, content, reasoning, finish="stop", script=None, **kw):
        """The same request with and without stream must give the same."""
        self.s.script(**dict({"text": text}, **(script or {})))
        r = self.s.chat(**kw)
        self.assertEqual(r.status, 200, r.body)
        ch = r.json()["choices"][0]
        self.assertEqual(ch["message"]["content"], content)
        self.assertEqual(ch["message"]["reasoning_content"], reasoning)
        self.assertEqual(ch["finish_reason"], finish)
        j = join(self.s.stream(**kw))
        self.assertEqual((j["content"], j["reasoning"], j["finish"]), (content or "", reasoning or "", finish))
        return r.json(), j

    def test_reasoning_and_content(self):
        r, _ = self.both("17+25=42.</think>The answer is **42**.", "The answer is **42**.", "17+25=42.")
        u = r["usage"]
        self.assertEqual(u["total_tokens"], u["prompt_tokens"] + u["completion_tokens"])
        self.assertEqual(u["prompt_cache_hit_tokens"] + u["prompt_cache_miss_tokens"], u["prompt_tokens"])
        self.assertEqual(u["completion_tokens_details"]["reasoning_tokens"], u["reasoning_tokens"])
        self.assertGreater(u["reasoning_tokens"], 5)
        self.assertEqual(r["choices"][0]["matched_stop"], 1)

    def test_thinking_off(self):
        for kw in ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"thinking": False}},
                   {"reasoning_effort": "none"}, {"model": "deepseek-chat"}, {"enable_thinking": False}):
            self.both("Good morning", "Good morning", None, **kw)

    def test_cut_in_thought(self):
        self.both("thinking and thinking", "", "thinking and thinking", "length", script={"eos": False})
        self.both("thinking and thinking", "", "thinking and thinking", "length", script={"eos": False},
                  max_tokens=1000)

    def test_separate_reasoning_false(self):
        self.s.script(text="hm</think>yes")
        m = self.s.chat(separate_reasoning=False).json()["choices"][0]["message"]
        self.assertIn("hm", m["content"] + (m["reasoning_content"] or ""))
        self.assertIn("</think>", m["content"] + (m["reasoning_content"] or ""))

    def test_stream_shape(self):
        self.s.script(text="a thought</think>an answer")
        evs = self.s.stream(stream_options={"include_usage": True})
        self.assertEqual(evs[-1], "[DONE]")
        self.assertEqual(evs[-2]["choices"], [])
        usage = evs[-2]["usage"]
        self.assertEqual(usage["completion_tokens"], self.s.chat().json()["usage"]["completion_tokens"])
        self.assertEqual(evs[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        for e in evs[:-2]:
            self.assertEqual(e["object"], "chat.completion.chunk")
            self.assertEqual((e["id"], e["model"], e["created"]), (evs[0]["id"], "test", evs[0]["created"]))
            self.assertIsNone(e["usage"])
        for e in evs[1:-3]:
            self.assertTrue(e["choices"][0]["delta"], "empty delta")
            if "reasoning_content" in e["choices"][0]["delta"]:
                self.assertIsNone(e["choices"][0]["delta"]["content"])
        self.assertEqual(evs[-3]["choices"][0]["delta"], {})
        self.assertEqual(evs[-3]["choices"][0]["finish_reason"], "stop")
        for e in self.s.stream()[:-1]:
            self.assertNotIn("usage", e)
        cont = self.s.stream(stream_options={"continuous_usage_stats": True})
        counts = [e["usage"]["completion_tokens"] for e in cont if isinstance(e, dict)]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], usage["completion_tokens"])

    def test_stream_headers(self):
        r = self.s.chat(stream=True)
        self.assertEqual(r.headers["content-type"], "text/event-stream; charset=utf-8")
        self.assertEqual(r.headers["cache-control"], "no-cache")
        self.assertEqual(r.headers["x-accel-buffering"], "no")
        self.assertEqual(r.headers["transfer-encoding"], "chunked")

    def test_one_event_per_chunk(self):
        self.s.script(text="x</think>one two three four five", token_ms=2)
        with self.s.connect() as c:
            c.send(request_bytes("POST", "/v1/chat/completions",
                                 {"messages": [{"role": "user", "content": "a"}], "stream": True}))
            c.head()
            while True:
                piece = c.chunk()
                if not piece:
                    break
                self.assertTrue(piece.startswith(b"data: ") and piece.endswith(b"\n\n"))
                self.assertEqual(piece.count(b"\n\n"), 1)

    def test_tool_call(self):
        r, j = self.both("Need the tool.</think>Checking." + CALL, "Checking.", "Need the tool.", "tool_calls",
                         tools=TOOLS)
        call = r["choices"][0]["message"]["tool_calls"][0]
        self.assertEqual(call["function"]["name"], "get_weather")
        self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Rome", "days": 3})
        self.assertTrue(call["id"].startswith("call_"))
        self.assertEqual((j["calls"][0]["name"], json.loads(j["calls"][0]["args"])),
                         ("get_weather", {"city": "Rome", "days": 3}))
        self.both("x</think>" + CALL, None, "x", "tool_calls", tools=TOOLS)

    def test_tool_call_without_end_of_thought(self):
        r, j = self.both("I should look." + CALL, None, "I should look.", "tool_calls", tools=TOOLS)
        self.assertNotIn("DSML", json.dumps(r, ensure_ascii=False))
        self.assertEqual(len(j["calls"]), 1)

    def test_tool_choice(self):
        self.s.script(text='<%sinvoke name="get_weather">\n<%sparameter name="city" string="true">Rome'
                           '</%sparameter>\n</%sinvoke>\n</%stool_calls>' % ((M,) * 5))
        r = self.s.chat(tools=TOOLS, tool_choice="required", think=False).json()["choices"][0]
        self.assertEqual((r["finish_reason"], json.loads(r["message"]["tool_calls"][0]["function"]["arguments"])),
                         ("tool_calls", {"city": "Rome"}))
        self.s.script(text='<%sparameter name="city" string="true">Rome</%sparameter>\n</%sinvoke>\n'
                           '</%stool_calls>' % ((M,) * 4))
        named = {"type": "function", "function": {"name": "get_weather"}}
        j = join(self.s.stream(tools=TOOLS, tool_choice=named, think=False))
        self.assertEqual((j["finish"], j["calls"][0]["name"], json.loads(j["calls"][0]["args"])),
                         ("tool_calls", "get_weather", {"city": "Rome"}))
        self.both("x</think>plain", "plain", "x", tools=TOOLS, tool_choice="none")
        self.both("x" + CALL, None, "x", "tool_calls", tools=TOOLS, tool_choice="required")

    def test_cut_tool_call(self):
        cut = "x</think>ok" + CALL[:CALL.index("</%sparameter>" % M)]
        r, j = self.both(cut, "ok", "x", "length", script={"eos": False}, tools=TOOLS)
        self.assertNotIn("tool_calls", r["choices"][0]["message"])

    def test_streamed_arguments(self):
        body = 'line "one"\n\tback\\slash é 👩🏽‍🚀 </ <| ]]> &amp; 2>&1 ' * 20
        text = ("x</think>\n\n<%stool_calls>\n<%sinvoke name=\"get_weather\">\n<%sparameter name=\"city\" "
                "string=\"true\">%s</%sparameter>\n</%sinvoke>\n</%stool_calls>" % (M, M, M, body, M, M, M))
        self.s.script(text=text)
        evs = self.s.stream(tools=TOOLS)
        j = join(evs)
        self.assertEqual(json.loads(j["calls"][0]["args"])["city"], body)
        n = sum(1 for e in evs if isinstance(e, dict) and e["choices"] and
                e["choices"][0]["delta"].get("tool_calls"))
        self.assertGreater(n, 50)

    def test_stop_strings(self):
        r, j = self.both("STOP here</think>one two STOP three", "one two ", "STOP here", stop=["STOP", "zzz"])
        self.assertEqual((r["choices"][0]["matched_stop"], j["matched"]), ("STOP", "STOP"))
        self.both("x</think>one two STOP three", "one two STOP", "x", stop="STOP", no_stop_trim=True)
        self.s.wait_idle()

    def test_n_choices(self):
        self.s.script(replies=["a</think>first", "b</think>second one", "c</think>third"], token_ms=15)
        r = self.s.chat(n=3).json()
        self.assertEqual([c["message"]["content"] for c in r["choices"]], ["first", "second one", "third"])
        self.assertEqual([c["index"] for c in r["choices"]], [0, 1, 2])
        evs = self.s.stream(n=3, stream_options={"include_usage": True})
        self.assertEqual([join(evs, i)["content"] for i in range(3)], ["first", "second one", "third"])
        self.assertEqual([join(evs, i)["finish"] for i in range(3)], ["stop"] * 3)
        self.assertEqual(evs[-2]["usage"], r["usage"])
        order = [e["choices"][0]["index"] for e in evs if isinstance(e, dict) and e["choices"]]
        self.assertNotEqual(order, sorted(order), "choices interleave")

    def test_seeds(self):
        """The full range of 64 bits by its spelling; without one, all choices have the one in the answer."""
        self.s.script(text="a</think>b")
        for seed, value in ((2 ** 64 - 1, 2 ** 64 - 1), (2 ** 63, 2 ** 63), (2 ** 53 + 1, 2 ** 53 + 1), (-1, 2 ** 64 - 1),
                            (-2 ** 63, 2 ** 63), (0, 0)):
            self.assertEqual(self.s.chat(seed=seed).json()["seed"], value)
        seen = {self.s.chat(n=2).json()["seed"] for _ in range(4)}
        self.assertEqual(len(seen), 4)
        self.assertLess(max(seen), 2 ** 53)
        r = self.s.post("/generate", {"text": ["a", "b"], "sampling_params": {"n": 3, "max_new_tokens": 2}}).json()
        seeds = [c["meta_info"]["seed"] for c in r]
        self.assertEqual(seeds, [seeds[0]] * 3 + [seeds[3]] * 3)
        self.assertNotEqual(seeds[0], seeds[3])
        r = self.s.post("/generate", {"text": "a", "sampling_params": {"sampling_seed": 2 ** 64 - 1}}).json()
        self.assertEqual(r["meta_info"]["seed"], 2 ** 64 - 1)

    def test_wrapped_arguments_are_logged(self):
        self.s.script(text="a</think>b")
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1, 2]"}}
        r = self.s.post("/v1/chat/completions", {"messages": [
            {"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "y"}], "tools": TOOLS})
        self.assertEqual(r.status, 200, r.body)
        end = time.time() + 5
        while "calls=1 no JSON object" not in self.s.output() and time.time() < end:
            time.sleep(0.05)
        self.assertIn("calls=1 no JSON object", self.s.output())

    def test_announced_call_is_not_given_twice(self):
        """A block that the end cuts: whole in the message, but a stream has announced the call."""
        cut = CALL[:CALL.index("</%sparameter>" % M)]
        self.s.script(text="x</think>ok" + cut)
        m = self.s.chat(tools=TOOLS).json()["choices"][0]["message"]
        self.assertNotIn("tool_calls", m)
        self.assertTrue(m["content"].startswith("ok") and "get_weather" in m["content"], m)
        j = join(self.s.stream(tools=TOOLS))
        self.assertEqual((j["content"], j["calls"][0]["name"]), ("ok", "get_weather"))

    def test_logprobs(self):
        self.s.script(text="hm</think>yes é 🚀")
        r = self.s.chat(logprobs=True, top_logprobs=2).json()
        lp = r["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(lp), r["usage"]["completion_tokens"])
        self.assertEqual(len(r["choices"][0]["logprobs"]["reasoning_content"]), r["usage"]["reasoning_tokens"])
        for e in lp:
            self.assertEqual(len(e["top_logprobs"]), 2)
            self.assertLess(e["logprob"], 0)
        text = b"".join(bytes(e["bytes"]) for e in lp).decode()
        self.assertIn("</think>yes é 🚀", text)
        evs = self.s.stream(logprobs=True, top_logprobs=2)
        got = [t for e in evs if isinstance(e, dict) for c in e["choices"] if c["logprobs"]
               for t in c["logprobs"]["content"]]
        self.assertEqual(got, lp)
        # tokens after a stop string are no part of the reply
        self.s.script(text="hm</think>yes STOP no no no")
        r = self.s.chat(logprobs=True, stop="STOP").json()
        self.assertEqual(len(r["choices"][0]["logprobs"]["content"]), r["usage"]["completion_tokens"])
        evs = self.s.stream(logprobs=True, stop="STOP")
        got = [t for e in evs if isinstance(e, dict) for c in e["choices"] if c["logprobs"]
               for t in c["logprobs"]["content"]]
        self.assertEqual(got, r["choices"][0]["logprobs"]["content"])

    def test_utf8_in_streams(self):
        text = "é 👩🏽‍🚀 赴 ñ नमस्ते 🇮🇹 ﷽ \u2028 \u2029 \u0085 end"
        self.s.script(text=text + "</think>" + text)
        r = self.s.chat(stream=True)
        r.body.decode("utf-8")  # each chunk was valid, so the whole is
        for c in ("\u2028", "\u2029", "\u0085"):
            self.assertNotIn(c.encode(), r.body)
        j = join(events(r.body))
        self.assertEqual((j["content"], j["reasoning"]), (text, text))
        for piece in r.body.split(b"\n\n"):
            piece.decode("utf-8")

    def test_broken_bytes(self):
        """Tokens of single bytes that form no character become U+FFFD, once, and nothing crashes."""
        ids = self.s.post("/tokenize", {"prompt": "x</think>a🚀b"}).json()["tokens"]
        rocket = [i for i in self.s.post("/tokenize", {"prompt": "🚀"}).json()["tokens"]]
        if len(rocket) < 2:
            self.skipTest("the rocket is one token here")
        cut = [i for i in ids if i != rocket[-1]]
        self.s.script(ids=cut)
        self.assertEqual(self.s.chat().json()["choices"][0]["message"]["content"], "a\ufffdb")
        r = self.s.chat(stream=True)
        self.assertEqual(join(events(r.body))["content"], "a\ufffdb")
        # max_tokens in the middle of a character
        n = len(ids) - 2
        self.s.script(ids=ids)
        self.assertEqual(self.s.chat(max_tokens=n).json()["choices"][0]["message"]["content"], "a\ufffd")

    def test_json_object(self):
        """JSON mode is asked for in the prompt too."""
        fmt = {"response_format": {"type": "json_object"}}
        self.both('x</think>{"a": 1}', '{"a": 1}', "x", **fmt)
        prompt = self.s.post("/apply-template", dict({"messages": [{"role": "user", "content": "a"}]}, **fmt))
        self.assertIn("json_object", prompt.json()["prompt"])

    def test_input_ids(self):
        self.s.script(text="x</think>y")
        r = self.s.post("/v1/chat/completions", {"input_ids": [5, 6, 7]}).json()
        self.assertEqual(r["usage"]["prompt_tokens"], 3)

    def test_timings_and_progress(self):
        self.s.script(text="a</think>b", prefill_ms=200, prefill_chunks=4)
        evs = self.s.stream("some words " * 50, return_progress=True)
        seen = [e["prompt_progress"] for e in evs if isinstance(e, dict) and "prompt_progress" in e]
        self.assertGreaterEqual(len(seen), 2)
        self.assertEqual([p["processed"] for p in seen], sorted(p["processed"] for p in seen))
        self.assertLessEqual(seen[-1]["processed"], seen[-1]["total"])
        t = [e["timings"] for e in evs if isinstance(e, dict) and "timings" in e]
        self.assertEqual(len(t), 1)
        self.assertEqual(t[0]["prompt_n"] + t[0]["cache_n"], seen[-1]["total"])
        self.assertIn("timings", self.s.chat(timings_per_token=True).json())
        self.assertNotIn("timings", self.s.chat().json())

    def test_whole_reasoning(self):
        self.s.script(text="one two three four</think>five six")
        evs = self.s.stream(stream_reasoning=False)
        parts = [e["choices"][0]["delta"]["reasoning_content"] for e in evs
                 if isinstance(e, dict) and e["choices"][0]["delta"].get("reasoning_content")]
        self.assertEqual(parts, ["one two three four"])

    def test_large_body_on_helper_thread(self):
        self.s.script(text="a</think>b")
        big = "word " * 30000
        r = self.s.chat(big)
        self.assertEqual(r.status, 200, r.body)
        small = self.s.post("/tokenize", {"messages": [{"role": "user", "content": big}]}).json()
        self.assertEqual(r.json()["usage"]["prompt_tokens"], small["count"])

    def test_stream_interval(self):
        with Server(script={"text": "x</think>" + "word " * 40, "token_ms": 1},
                    flags=["--stream-interval", "10"]) as s:
            evs = s.stream()
            self.assertEqual(join(evs)["content"], "word " * 40)
            self.assertLess(len(evs), 16)


if __name__ == "__main__":
    unittest.main()
