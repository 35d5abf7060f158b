"""Turns with calls that clients send back: prompts hold the ids that were sampled."""

import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server, events  # noqa: E402
from test_chat import TOOLS, join  # noqa: E402

M = "｜DSML｜"
ARGS = {"city": "Rome", "days": 3}


def block(*calls):
    out = "\n\n<%stool_calls>" % M
    for city, days in calls:
        out += ("\n<%sinvoke name=\"get_weather\">\n<%sparameter name=\"city\" string=\"true\">%s</%sparameter>\n"
                "<%sparameter name=\"days\" string=\"false\">%s</%sparameter>\n</%sinvoke>"
                % (M, M, city, M, M, days, M, M))
    return out + "\n</%stool_calls>" % M


THOUGHT, CONTENT = "Need the tool.\n", "Checking."
TEXT = THOUGHT + "</think>" + CONTENT + block(("Rome", "3.0"))
TAIL = "<｜User｜><tool_result>18C</tool_result><｜Assistant｜><think>"


class Replay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server(flags=["--api-key", "k1", "--api-key", "k2"])

    @classmethod
    def tearDownClass(cls):
        cls.s.get = lambda path, headers=(): Server.get(cls.s, path, [("x-api-key", "k1")])
        cls.s.wait_idle()
        cls.s.stop()

    def post(self, path, body, key="k1"):
        r = self.s.post(path, body, [("Authorization", "Bearer " + key)])
        self.assertEqual(r.status, 200, r.body)
        return r

    def ids(self, body, key="k1"):
        return self.post("/tokenize", body, key).json()["tokens"]

    def text_ids(self, text):
        return self.ids({"prompt": text})

    def odd(self, text):
        """Ids of the text that no encoder would give: byte by byte, but for special tokens."""
        out, at = [], 0
        specials = ("<think>", "</think>", M)
        while at < len(text):
            n = next((len(s) for s in specials if text.startswith(s, at)), 1)
            out += self.text_ids(text[at:at + n])
            at += n
        return out

    def sampled(self, text, eos=True):
        ids = self.cache.setdefault(text, None) or self.odd(text)
        self.cache[text] = ids
        return ids + ([self.eos()] if eos else [])

    cache = {}

    def eos(self):
        return self.text_ids("<｜end▁of▁sentence｜>")[0]

    def reply(self, text=TEXT, stream=False, key="k1", eos=True, ids=None, **kw):
        """One turn; returns (body, prompt ids, sampled ids, message as the server gave it)."""
        ids = ids or self.sampled(text, eos)
        self.s.script(ids=ids, eos=False)
        body = dict({"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS}, **kw)
        r = self.post("/v1/chat/completions", dict(body, stream=stream), key)
        if stream:
            j = join(events(r.body))
            self.assertEqual(j["finish"], "tool_calls")
            m = {"role": "assistant", "content": j["content"], "reasoning_content": j["reasoning"],
                 "tool_calls": [{"id": c["id"], "type": "function",
                                 "function": {"name": c["name"], "arguments": c["args"]}}
                                for _, c in sorted(j["calls"].items())]}
        else:
            c = r.json()["choices"][0]
            self.assertEqual(c["finish_reason"], "tool_calls", c)
            m = c["message"]
        return body, self.ids(body, key), ids, m

    def back(self, body, message, result="18C", **kw):
        """The next request of a client that got this message."""
        out = [message] + [{"role": "tool", "tool_call_id": c["id"], "content": result}
                           for c in message["tool_calls"]]
        return dict(body, messages=body["messages"] + out, **kw)

    def spliced(self, body, prompt, ids, message, key="k1", tail=TAIL, **kw):
        """The prompt of the next request is the one before, the ids as sampled, and the rest."""
        b = self.back(body, message, **kw)
        got = self.ids(b, key)
        self.assertEqual(got[:len(prompt)], prompt)
        self.assertEqual(got[len(prompt):], ids + self.text_ids(tail))
        return b, got

    def as_sent(self, body, prompt, ids, message, key="k1", **kw):
        b = self.back(body, message, **kw)
        got = self.ids(b, key)
        self.assertNotEqual(got[len(prompt):len(prompt) + len(ids)], ids)
        other = json.loads(json.dumps(b))  # what a server would make of it that never saw the calls
        for m in other["messages"]:
            for c in m.get("tool_calls", ()):
                c["id"] += "x"
            if "tool_call_id" in m:
                m["tool_call_id"] += "x"
        self.assertEqual(got, self.ids(other, key))
        return got

    def test_unchanged(self):
        for stream in (False, True):
            b, p, ids, m = self.reply(stream=stream)
            b2, got = self.spliced(b, p, ids, m)
            # the prompt that is computed is that one, and its text reads as what was sampled
            self.s.script(text="x</think>y")
            r = self.post("/v1/chat/completions", b2).json()
            self.assertEqual(r["usage"]["prompt_tokens"], len(got))
            text = self.post("/apply-template", b2).json()["prompt"]
            self.assertTrue(text.endswith(TEXT + "<｜end▁of▁sentence｜>" + TAIL), text)

    def test_arguments_written_anew(self):
        b, p, ids, m = self.reply()
        for args in ('{"days":3,"city":"Rome"}', '{ "city" : "\\u0052ome", "days" : 3.00 }', json.dumps(ARGS)):
            m["tool_calls"][0]["function"]["arguments"] = args
            self.spliced(b, p, ids, m)

    def test_reasoning_of_any_kind(self):
        b, p, ids, m = self.reply()
        thought = m.pop("reasoning_content")
        self.spliced(b, p, ids, m)
        for kw in ({"reasoning": thought}, {"reasoning_content": thought.strip()}, {"reasoning_content": ""},
                   {"reasoning_content": None}, {"thoughts": thought}):
            self.spliced(b, p, ids, dict(m, **kw))

    def test_changed(self):
        b, p, ids, m = self.reply()
        before = self.s.get("/server_info", [("x-api-key", "k1")]).json()["call_memory"]
        self.as_sent(b, p, ids, dict(m, content="Checking!"))
        self.as_sent(b, p, ids, dict(m, content=None))
        for name, args in (("get_weather", {"city": "Paris", "days": 3}), ("get_weather", {"city": "Rome"}),
                           ("get_weather", {"city": "Rome", "days": 3, "x": None}), ("get_time", ARGS)):
            c = json.loads(json.dumps(m))
            c["tool_calls"][0]["function"] = {"name": name, "arguments": json.dumps(args)}
            self.as_sent(b, p, ids, c)
        after = self.s.get("/server_info", [("x-api-key", "k1")]).json()["call_memory"]
        self.assertEqual(after["changed"] - before["changed"], 6)
        self.assertEqual(after["spliced"], before["spliced"])
        self.spliced(b, p, ids, m)  # what is known stays known

    def test_another_tenant(self):
        b, p, ids, m = self.reply()
        self.as_sent(b, p, ids, m, key="k2")
        self.as_sent(b, p, ids, m, cache_salt="a")
        self.spliced(b, p, ids, m)
        b, p, ids, m = self.reply(cache_salt="a")
        self.spliced(b, p, ids, m)
        self.as_sent(b, p, ids, m, cache_salt="b")
        self.as_sent(b, p, ids, m, cache_salt=None)
        b, p, ids, m = self.reply(key="k2")
        self.spliced(b, p, ids, m, key="k2")

    def test_two_calls(self):
        text = "t</think>" + block(("Rome", "1"), ("Oslo", "2"))
        b, p, ids, m = self.reply(text)
        self.assertEqual(m["content"], None)
        tail = TAIL.replace("</tool_result>", "</tool_result>\n\n<tool_result>18C</tool_result>")
        self.spliced(b, p, ids, m, tail=tail)
        self.spliced(b, p, ids, dict(m, content=""), tail=tail)
        m["tool_calls"].reverse()
        self.as_sent(b, p, ids, m)
        m["tool_calls"].pop()
        self.as_sent(b, p, ids, m)

    def test_long_conversation(self):
        """Five turns: each prompt begins with the whole conversation before it."""
        body, prompt, ids, m = self.reply()
        for i in range(4):
            body = self.back(body, m)
            new = self.ids(body)
            self.assertEqual(new[:len(prompt) + len(ids)], prompt + ids)
            text = "again %d</think>" % i + block(("Rome", "%d.50" % i))
            body, prompt, ids, m = self.reply(text, messages=body["messages"], stream=i % 2 == 1)
            self.assertEqual(prompt, new)
            m.pop("reasoning_content")

    def test_thoughts_are_dropped_where_the_format_drops_them(self):
        """Without tools thoughts of earlier turns go; what was sampled behind them stays."""
        b, p, ids, m = self.reply()
        n = len(self.sampled(THOUGHT + "</think>", eos=False))
        b2 = self.back(b, m)
        b2["messages"] += [{"role": "user", "content": "And now?"}]
        del b2["tools"]
        got = self.ids(b2)
        want = self.text_ids("<｜begin▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜></think>") + ids[n:]
        self.assertEqual(got[:len(want)], want)
        # the same with thinking switched off
        b2 = self.back(b, m, thinking={"type": "disabled"})
        got = self.ids(b2)
        at = len(p)
        self.assertEqual(got[:at - 1], p[:-1])
        self.assertEqual(got[at - 1:at + len(ids) - n], self.text_ids("</think>") + ids[n:])

    def test_thinking_off_and_on_again(self):
        text = "Sure." + block(("Rome", "3.0"))
        b, p, ids, m = self.reply(text, thinking={"type": "disabled"})
        self.spliced(b, p, ids, m, tail=TAIL.replace("<think>", "</think>"))
        on = dict(self.back(b, m), thinking={"type": "enabled"})
        got = self.ids(on)
        self.assertEqual(got[len(p) - 1:], self.text_ids("<think></think>") + ids + self.text_ids(TAIL))

    def test_thoughts_without_an_end(self):
        text = "I should look." + block(("Rome", "3.0"))
        b, p, ids, m = self.reply(text)
        self.spliced(b, p, ids, m)
        self.as_sent(b, p[:-1], ids, m, thinking={"type": "disabled"})

    def test_forced_calls(self):
        whole = block(("Rome", "3.0"))
        opened = "\n\n<%stool_calls>\n" % M
        off = {"thinking": {"type": "disabled"}}
        tail = TAIL.replace("<think>", "</think>")
        b, p, ids, m = self.reply(whole[len(opened):], tool_choice="required", **off)
        self.spliced(b, p, ids, m, tail=tail + opened)
        self.spliced(b, p, ids, m, tail=tail, tool_choice="auto")
        invoke = opened + "<%sinvoke name=\"get_weather\">\n" % M
        named = {"type": "function", "function": {"name": "get_weather"}}
        b, p, ids, m = self.reply(whole[len(invoke):], tool_choice=named, **off)
        self.spliced(b, p, ids, m, tail=tail, tool_choice="auto")
        # Behind thoughts the model writes the tag itself.
        b, p, ids, m = self.reply("x</think>" + whole, tool_choice="required")
        self.spliced(b, p, ids, m)

    def test_reply_that_was_ended_for_the_model(self):
        """The turn is closed as the format closes it: behind the block, and inside it after the only call."""
        ids = self.sampled(TEXT, eos=False)
        b, p, _, m = self.reply(ids=ids + self.text_ids(" and more text"))
        self.spliced(b, p, ids + [self.eos()], m)
        two = "t</think>" + block(("Rome", "1"), ("Oslo", "2"))
        cut = two[:two.index("</%sinvoke>" % M) + len("</%sinvoke>" % M)]
        b, p, _, m = self.reply(two, parallel_tool_calls=False)
        self.assertEqual(len(m["tool_calls"]), 1)
        end = self.text_ids("\n</%stool_calls><｜end▁of▁sentence｜>" % M)
        self.spliced(b, p, self.sampled(cut, eos=False) + end, m)
        # a stop id of the client's is no end of the model's
        stop = self.text_ids("Z")[0]
        b, p, _, m = self.reply(ids=ids + [stop], stop_token_ids=[stop])
        self.spliced(b, p, ids + [self.eos()], m)

    def test_what_is_not_kept(self):
        """Cut replies, marks of other roles inside, continued messages: rendered as sent."""
        mark = self.text_ids("<｜User｜>")
        ids = self.sampled(THOUGHT, eos=False) + mark + self.sampled("</think>" + block(("Rome", "3.0")))
        self.s.script(ids=ids, eos=False)
        body = {"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS}
        m = self.post("/v1/chat/completions", body).json()["choices"][0]["message"]
        self.as_sent(body, self.ids(body), ids, m)
        start = dict(body, messages=body["messages"] + [{"role": "assistant", "content": "Well", "prefix": True}])
        rest = self.sampled(", so." + block(("Rome", "3.0")))
        self.s.script(ids=rest, eos=False)
        m = self.post("/v1/chat/completions", start).json()["choices"][0]["message"]
        self.as_sent(body, self.ids(body), rest, m)

    def test_choices(self):
        self.s.script(replies=["a</think>" + block(("Rome", "1.0")), "b</think>" + block(("Oslo", "2.0"))])
        body = {"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS}
        r = self.post("/v1/chat/completions", dict(body, n=2)).json()
        for c, text in zip(r["choices"], ("a</think>" + block(("Rome", "1.0")), "b</think>" + block(("Oslo", "2.0")))):
            self.spliced(body, self.ids(body), self.text_ids(text + "<｜end▁of▁sentence｜>"), c["message"])

    def test_separate_reasoning_false(self):
        b, p, ids, m = self.reply(separate_reasoning=False)
        self.assertIn("</think>", m["content"])
        self.spliced(b, p, ids, m)

    def test_large_body_on_helper_thread(self):
        b, p, ids, m = self.reply(messages=[{"role": "user", "content": "word " * 30000}])
        self.spliced(b, p, ids, m)

    def test_billing_lines(self):
        """A line that changes with every request changes no prompt, and is no part of it."""
        def body(line):
            return {"messages": [{"role": "system", "content": [{"type": "text", "text": t} for t in line + ["You help."]]},
                                 {"role": "user", "content": "hi"}]}
        ids = [self.ids(body(line)) for line in ([], ["x-anthropic-billing-header: cc_version=1; cch=aaaaa;"],
                                                 ["x-anthropic-billing-header: cc_version=1; cch=bbbbb;\n"])]
        self.assertEqual(ids[0], ids[1])
        self.assertEqual(ids[0], ids[2])
        self.assertNotEqual(ids[0], self.ids(body(["Date: 2026-01-01\n"])))  # other lines stay

    def test_late_system_message(self):
        """It is a user turn where it stands: the turns before it keep their ids."""
        talk = [{"role": "system", "content": "You help."}]
        for i in range(5):
            talk += [{"role": "user", "content": "question %d" % i}, {"role": "assistant", "content": "answer %d" % i}]
        off = {"thinking": {"type": "disabled"}}
        before = self.ids(dict(off, messages=talk, add_generation_prompt=False))
        late = talk + [{"role": "system", "content": "Mind the gap."}, {"role": "user", "content": "go"}]
        self.assertEqual(self.ids(dict(off, messages=late))[:len(before)], before)

    def test_salt_must_be_a_text(self):
        body = {"messages": [{"role": "user", "content": "x"}], "cache_salt": 5}
        for path in ("/v1/chat/completions", "/tokenize"):
            r = self.s.post(path, body, [("x-api-key", "k1")])
            self.assertEqual((r.status, r.json()["error"]["param"]), (400, "cache_salt"))


class OtherDialects(unittest.TestCase):
    def test_text_endpoints_remember_nothing(self):
        """Completions and /generate hand out text, not calls: there is no id to send back."""
        with Server(script={"text": TEXT}) as s:
            for path, body in (("/v1/completions", {"prompt": "x", "max_tokens": 500}),
                               ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 500}})):
                r = s.post(path, body)
                self.assertEqual(r.status, 200, r.body)
                self.assertIn("get_weather", r.text)
            self.assertEqual(s.info()["call_memory"]["added"], 0)


class Flags(unittest.TestCase):
    BODY = {"messages": [{"role": "system", "content": "x-anthropic-billing-header: a\nDate: 2026-01-01\nYou help."},
                         {"role": "user", "content": "Weather?"}], "tools": TOOLS}

    def prompt(self, s, body):
        return s.post("/apply-template", body).json()["prompt"]

    def turn(self, s):
        m = s.post("/v1/chat/completions", self.BODY).json()["choices"][0]["message"]
        m.pop("reasoning_content")
        back = [m, {"role": "tool", "tool_call_id": m["tool_calls"][0]["id"], "content": "18C"}]
        return dict(self.BODY, messages=self.BODY["messages"] + back)

    def test_folder(self):
        """What is remembered outlives the server."""
        with tempfile.TemporaryDirectory() as d:
            flags = ["--tool-memory-dir", d]
            with Server(script={"text": TEXT}, flags=flags) as s:
                body = self.turn(s)
                self.assertIn(THOUGHT + "</think>", self.prompt(s, body))
                self.assertTrue(s.info()["call_memory"]["on_disk"])
            self.assertEqual(len(os.listdir(d)), 1)
            with Server(flags=flags) as s:
                self.assertIn(THOUGHT + "</think>", self.prompt(s, body))
            with Server() as s:
                self.assertNotIn(THOUGHT, self.prompt(s, body))

    def test_switches(self):
        with Server(script={"text": TEXT}, flags=["--disable-exact-dsml-tool-replay", "--keep-billing-header",
                                                  "--move-date-lines"]) as s:
            body = self.turn(s)
            text = self.prompt(s, body)
            self.assertNotIn(THOUGHT, text)
            self.assertIn("x-anthropic-billing-header: a\nYou help.", text)
            self.assertIn("</tool_result>\n\nDate: 2026-01-01<", text)
            self.assertEqual(s.info()["call_memory"]["added"], 0)
        with Server(script={"text": TEXT}, flags=["--tool-memory-max-ids", "1"]) as s:
            first, second = self.turn(s), self.turn(s)
            self.assertNotIn(THOUGHT, self.prompt(s, first))
            self.assertIn(THOUGHT, self.prompt(s, second))


if __name__ == "__main__":
    unittest.main()
