"""The Responses API over scripted replies: items in, items and events out, the store, cancelling."""

import json
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server, frames, in_threads, request_bytes  # noqa: E402
from test_chat import CALL, M  # noqa: E402

TOOL = {"type": "function", "name": "get_weather", "description": "Get weather", "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"*** Begin Patch\""}}
PATCH_TEXT = "*** Begin Patch\n+a \"b\" \\ 2>&1\t☃\n*** End Patch\n"
PATCH_CALL = ("\n\n<%stool_calls>\n<%sinvoke name=\"apply_patch\">\n<%sparameter name=\"input\" string=\"true\">%s"
              "</%sparameter>\n</%sinvoke>\n</%stool_calls>" % (M, M, M, PATCH_TEXT, M, M, M))
SUMMARY = {"reasoning": {"summary": "auto"}}
SLOW = {"token_ms": 2}  # so that each token comes by itself
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


def user(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def call(city="Rome", call_id="call_1"):
    return {"type": "function_call", "call_id": call_id, "name": "get_weather",
            "arguments": json.dumps({"city": city, "days": 3})}


def result(text="18C", call_id="call_1"):
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def assemble(evs):
    """The output as a client builds it from events, each checked against what came before it."""
    items = []
    for n, (_, name, e) in enumerate(evs):
        assert name == e["type"], (name, e)
        assert e["sequence_number"] == n, (n, e)
        t = e["type"].split(".", 1)[1]
        if t in ("created", "in_progress", "completed", "incomplete", "failed"):
            assert (n == 0) == (t == "created"), e
            assert (n == len(evs) - 1) == (e["type"] in TERMINAL), e
            continue
        if t == "output_item.added":
            assert e["output_index"] == len(items) and e["item"]["status"] == "in_progress", e
            assert not e["item"].get("arguments") and not e["item"].get("input"), e
            items.append({"item": e["item"], "text": "", "done": None, "part": None})
            continue
        it = items[-1]
        assert e["output_index"] == len(items) - 1, e
        if t == "output_item.done":
            assert it["done"] is None and e["item"]["id"] == it["item"]["id"], e
            it["done"] = e["item"]
            continue
        assert e["item_id"] == it["item"]["id"], e
        kind = it["item"]["type"]
        stem = {"reasoning": "reasoning_summary_text", "message": "output_text",
                "function_call": "function_call_arguments", "custom_tool_call": "custom_tool_call_input"}[kind]
        whole = {"function_call": "arguments", "custom_tool_call": "input"}.get(kind, "text")
        if t == stem + ".delta":
            it["text"] += e["delta"]
        elif t == stem + ".done":
            assert e[whole] == it["text"], e
        elif t.endswith("_part.added"):
            assert it["part"] is None and e["part"]["text"] == "", e
            it["part"] = t.split(".")[0]
        else:
            assert t == it["part"] + ".done" and e["part"]["text"] == it["text"], e
    return [i["done"] for i in items]


def plain(output):
    """Items without what is drawn."""
    return [{k: v for k, v in i.items() if k not in ("id", "call_id")} for i in output]


class Responses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server()

    @classmethod
    def tearDownClass(cls):
        cls.s.wait_idle()
        cls.s.stop()

    def post(self, **body):
        return self.s.post("/v1/responses", dict({"input": "hi"}, **body))

    def answer(self, **body):
        r = self.post(**body)
        self.assertEqual(r.status, 200, r.body)
        return r.json()

    def both(self, reply, script=None, **body):
        """The answer and the events of the same request, which must say the same."""
        self.s.script(**dict({"text": reply}, **(script or {})))
        a = self.answer(**body)
        r = self.post(stream=True, **body)
        self.assertEqual(r.status, 200, r.body)
        self.assertEqual(r.headers["content-type"], "text/event-stream; charset=utf-8")
        evs = frames(r.body)
        last = evs[-1][2]
        self.assertEqual(last["type"], {"completed": TERMINAL[0], "incomplete": TERMINAL[1]}[a["status"]])
        self.assertEqual([e[0] for e in evs], [None] * len(evs))
        items = assemble(evs)
        # a call that was cut is announced and never done
        self.assertEqual([i for i in items if i], last["response"]["output"])
        self.assertEqual(plain(last["response"]["output"]), plain(a["output"]))
        for k in a:
            if k not in ("id", "created_at", "output", "seed"):
                self.assertEqual(last["response"][k], a[k], k)
        return a, evs

    def refused(self, param, code, words="", **body):
        for stream in (False, True):
            r = self.post(stream=stream, **body)
            self.assertEqual(r.status, 400, r.body)
            e = r.json()["error"]
            self.assertEqual((e["param"], e["code"]), (param, code), e)
            self.assertIn(words, e["message"])

    def prompt(self, **body):
        """The text that this request is rendered to, as chat would."""
        self.s.script(text="a</think>b")
        n = self.answer(**body)["usage"]["input_tokens"]
        return n

    def same_prompt(self, body, chat):
        """The two bodies make prompts of the same length, by the same renderer."""
        self.s.script(text="a</think>b")
        n = self.answer(**body)["usage"]["input_tokens"]
        t = self.s.post("/tokenize", chat)
        self.assertEqual(t.status, 200, t.body)
        self.assertEqual(n, t.json()["count"], self.s.post("/apply-template", chat).json()["prompt"])

    # ---- answers

    def test_message(self):
        a, evs = self.both("Let me see.</think>Hello.", SLOW, metadata={"k": "v"}, instructions="Be brief.")
        self.assertEqual((a["object"], a["status"], a["model"]), ("response", "completed", "test"))
        self.assertTrue(a["id"].startswith("resp_"))
        self.assertEqual((a["error"], a["incomplete_details"]), (None, None))
        self.assertEqual((a["metadata"], a["instructions"], a["tool_choice"]), ({"k": "v"}, "Be brief.", "auto"))
        (m,) = a["output"]
        self.assertTrue(m["id"].startswith("msg_"))
        self.assertEqual((m["type"], m["role"], m["status"]), ("message", "assistant", "completed"))
        self.assertEqual(m["content"], [{"type": "output_text", "text": "Hello.", "annotations": []}])
        u = a["usage"]
        self.assertEqual(u["total_tokens"], u["input_tokens"] + u["output_tokens"])
        self.assertGreater(u["output_tokens_details"]["reasoning_tokens"], 2)
        self.assertEqual(u["input_tokens_details"]["cached_tokens"], 0)
        types = [e[1] for e in evs]
        deltas = types.count("response.output_text.delta")
        self.assertGreater(deltas, 1)
        self.assertEqual(types, ["response.created", "response.in_progress", "response.output_item.added",
                                 "response.content_part.added"] + deltas * ["response.output_text.delta"] +
                         ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                          "response.completed"])

    def test_thoughts_are_items_when_asked_for(self):
        a, evs = self.both("Hm, so\nso.</think>Yes.", **SUMMARY)
        self.assertEqual([i["type"] for i in a["output"]], ["reasoning", "message"])
        self.assertEqual(a["output"][0]["summary"], [{"type": "summary_text", "text": "Hm, so\nso."}])
        self.assertEqual(a["output"][0]["status"], "completed")
        types = [e[1] for e in evs if not e[1].endswith(".delta")]
        self.assertEqual(types[2:7], ["response.output_item.added", "response.reasoning_summary_part.added",
                                      "response.reasoning_summary_text.done",
                                      "response.reasoning_summary_part.done", "response.output_item.done"])
        for body in ({}, {"reasoning": {"effort": "high"}}, {"reasoning": {"summary": None}}):
            a, _ = self.both("Hm.</think>Yes.", **body)
            self.assertEqual([i["type"] for i in a["output"]], ["message"])
        a, _ = self.both("Yes.", reasoning={"effort": "none", "summary": "auto"})
        self.assertEqual([i["type"] for i in a["output"]], ["message"])

    def test_calls(self):
        a, evs = self.both("Need it.</think>Checking." + CALL, tools=[TOOL], **SUMMARY)
        self.assertEqual([i["type"] for i in a["output"]], ["reasoning", "message", "function_call"])
        c = a["output"][2]
        self.assertEqual((c["name"], c["status"], json.loads(c["arguments"])),
                         ("get_weather", "completed", {"city": "Rome", "days": 3}))
        self.assertTrue(c["id"].startswith("fc_") and c["call_id"].startswith("call_"))
        self.assertEqual(a["status"], "completed")
        types = [e[1] for e in evs]
        i = types.index("response.function_call_arguments.delta")
        self.assertEqual(types[i - 1], "response.output_item.added")
        self.assertEqual(types[-3:], ["response.function_call_arguments.done", "response.output_item.done",
                                      "response.completed"])
        two = CALL.replace("</%stool_calls>" % M, "<%sinvoke name=\"f\">\n\n</%sinvoke>\n</%stool_calls>" % (M, M, M))
        a, _ = self.both("x</think>" + two, tools=[TOOL])
        self.assertEqual([i["type"] for i in a["output"]], ["function_call"] * 2)
        self.assertEqual(a["output"][1]["arguments"], "{}")

    def test_markup_is_never_text(self):
        """Also without the end of the thought, and for calls of tools that were not declared."""
        for text in ("I should look." + CALL, "x</think>" + CALL.replace("get_weather", "other")):
            a, evs = self.both(text, tools=[TOOL], **SUMMARY)
            self.assertEqual(a["output"][-1]["type"], "function_call")
            self.assertNotIn("DSML", json.dumps([e[2] for e in evs], ensure_ascii=False))

    def test_long_arguments_come_as_they_are_made(self):
        body = "line of text \\ \"q\" </parameter> ☃\n" * 60
        text = "x</think>" + CALL.replace("Rome", body)
        a, evs = self.both(text, SLOW, tools=[TOOL])
        self.assertEqual(json.loads(a["output"][0]["arguments"])["city"], body)
        self.assertGreater([e[1] for e in evs].count("response.function_call_arguments.delta"), 50)

    def test_custom_tool(self):
        a, evs = self.both("x</think>" + PATCH_CALL, SLOW, tools=[PATCH])
        (c,) = a["output"]
        self.assertEqual((c["type"], c["name"], c["input"]), ("custom_tool_call", "apply_patch", PATCH_TEXT))
        types = [e[1] for e in evs]
        self.assertGreater(types.count("response.custom_tool_call_input.delta"), 10)
        self.assertEqual(types[-3:-1], ["response.custom_tool_call_input.done", "response.output_item.done"])
        # what the model wraps otherwise is given out whole at the end, and says the same in both ways
        for args in ('{"input": 5}', '{"text": "a"}', '{}'):
            body = "".join("<%sparameter name=\"%s\" string=\"%s\">%s</%sparameter>\n" % (
                M, k, str(isinstance(v, str)).lower(), v if isinstance(v, str) else json.dumps(v), M)
                for k, v in json.loads(args).items())
            text = "x</think>\n\n<%stool_calls>\n<%sinvoke name=\"apply_patch\">\n%s</%sinvoke>\n</%stool_calls>"
            self.s.script(text=text % (M, M, body, M, M))
            r = self.answer(tools=[PATCH])["output"][0]
            evs = frames(self.post(tools=[PATCH], stream=True).body)
            self.assertEqual(evs[-1][2]["response"]["output"][0]["input"], r["input"])
            self.assertEqual(json.loads(r["input"]), json.loads(args))
        self.assertGreater(self.prompt(tools=[PATCH]), self.prompt(tools=[dict(PATCH, format=None)]) + 5)

    def test_tool_choice(self):
        self.s.script(text="x</think>hello")
        for choice in ("none", "auto"):
            self.assertEqual(self.answer(tools=[TOOL], tool_choice=choice)["output"][0]["type"], "message")
        inner = CALL.split("\">\n", 1)[1].split("\n</%stool" % M)[0]
        self.s.script(text=inner + "\n</%stool_calls>" % M)
        for name in ({"type": "function", "name": "get_weather"},):
            a = self.answer(tools=[TOOL, PATCH], tool_choice=name, think=False)
            self.assertEqual([i["type"] for i in a["output"]], ["function_call"])
        self.refused("tool_choice", "invalid_value", "Tools cannot be empty", tool_choice="required")
        self.refused("tool_choice", "invalid_value", "'x' not found", tools=[TOOL],
                     tool_choice={"type": "function", "name": "x"})
        self.refused("tool_choice", "invalid_value", "web_search", tool_choice={"type": "web_search"})

    def test_tools_of_a_service_are_ignored(self):
        extra = [{"type": t} for t in ("web_search", "local_shell", "tool_search", "namespace", "image_generation")]
        self.assertEqual(self.prompt(tools=[TOOL]), self.prompt(tools=[TOOL] + extra))
        self.assertEqual(self.prompt(), self.prompt(tools=extra))
        chat = {"type": "function", "function": {k: TOOL[k] for k in ("name", "description", "parameters")}}
        self.assertEqual(self.prompt(tools=[TOOL]), self.prompt(tools=[chat]))

    def test_incomplete(self):
        cut = {"eos": False}
        a, evs = self.both("thinking and", script=cut, **SUMMARY)
        self.assertEqual((a["status"], a["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
        self.assertEqual([(i["type"], i["status"]) for i in a["output"]], [("reasoning", "incomplete")])
        a, _ = self.both("thinking and", script=cut)
        self.assertEqual(a["output"], [])
        a, _ = self.both("x</think>an answer that", script=cut, **SUMMARY)
        self.assertEqual([(i["type"], i["status"]) for i in a["output"]],
                         [("reasoning", "completed"), ("message", "incomplete")])
        a, evs = self.both("x</think>" + CALL[:-60], script=cut, tools=[TOOL])
        self.assertEqual((a["status"], a["output"]), ("incomplete", []))
        self.assertNotIn("response.output_item.done", [e[1] for e in evs])
        for n in (1, 3):
            a = self.answer(max_output_tokens=n)
            self.assertEqual((a["status"], a["usage"]["output_tokens"]), ("incomplete", n))

    def test_empty_answer_has_a_message(self):
        for text, status in (("x</think>", "completed"), ("never closed", "incomplete")):
            a, _ = self.both(text, **SUMMARY)
            self.assertEqual(a["output"][0]["status"], status)
            self.assertEqual([i["type"] for i in a["output"]], ["reasoning", "message"])
            self.assertEqual(a["output"][1]["content"][0]["text"], "")

    def test_stop_strings_and_seed(self):
        a, _ = self.both("x</think>one two three", stop="two", seed=7)
        self.assertEqual(a["output"][0]["content"][0]["text"], "one ")
        self.assertEqual((a["seed"], a["status"]), (7, "completed"))

    def test_json_object(self):
        a, _ = self.both('x</think>{"a": [1, 2]}', text={"format": {"type": "json_object"}})
        self.assertEqual(a["output"][0]["content"][0]["text"], '{"a": [1, 2]}')
        self.assertGreater(self.prompt(text={"format": {"type": "json_object"}}), self.prompt())
        self.assertEqual(self.prompt(text={"format": {"type": "text"}, "verbosity": "low"}), self.prompt())

    def test_failures(self):
        self.s.script(text="x</think>a b c d e", fail_after=6, token_ms=5)
        r = self.post()
        self.assertEqual((r.status, r.json()["error"]["type"]), (500, "server_error"))
        r = self.post(stream=True)
        evs = frames(r.body)
        self.assertEqual(evs[-1][1], "response.failed")
        self.assertEqual(evs[-1][2]["response"]["status"], "failed")
        self.assertEqual(evs[-1][2]["response"]["error"]["code"], "server_error")
        self.assertIn("not numbers", evs[-1][2]["response"]["error"]["message"])
        self.s.script(submit="full")
        for stream in (False, True):
            r = self.post(stream=stream)
            self.assertEqual((r.status, r.json()["error"]["code"]), (503, "queue_full"))
        self.s.wait_idle()

    def test_keep_alive_and_progress(self):
        with Server(script={"text": "a</think>b", "prefill_ms": 900, "prefill_chunks": 3},
                    flags=["--sse-keepalive-interval", "0.3"]) as s:
            r = s.post("/v1/responses", {"input": "word " * 300, "stream": True})
            self.assertGreaterEqual(r.body.count(b": keep-alive\n\n"), 2)
            self.assertEqual(len(assemble(frames(r.body))), 1)
            r = s.post("/v1/responses", {"input": "word " * 300, "stream": True, "return_progress": True})
            evs = frames(r.body)
            assemble(evs)
            seen = [e["prompt_progress"] for _, name, e in evs[2:] if name == "response.in_progress"]
            self.assertGreaterEqual(len(seen), 2)
            done = [p["processed"] for p in seen]
            self.assertEqual(done, sorted(done))
            self.assertTrue(all(p["queue_position"] == 0 for p in seen))
            for p in seen:
                left = (p["total"] - p["processed"]) * p["time_ms"] / p["processed"]
                self.assertAlmostEqual(p["eta_ms"], left, delta=2 + left / 50)

    # ---- conversations

    def test_input_as_chat(self):
        """Each item stands in the prompt as the chat message that says the same."""
        tools = [TOOL]
        chat_tools = [{"type": "function", "function": {k: TOOL[k] for k in ("name", "description", "parameters")}}]
        u = {"role": "user", "content": "Weather?"}
        chat_call = {"id": "call_1", "type": "function", "function": {
            "name": "get_weather", "arguments": '{"city": "Rome", "days": 3}'}}
        second = dict(chat_call, id="call_2")
        thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Need the tool."}]}
        raw = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Need the tool."}],
               "encrypted_content": None}
        said = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                "content": [{"type": "output_text", "text": "Checking.", "annotations": []}]}
        turn = {"role": "assistant", "content": "Checking.", "reasoning_content": "Need the tool.",
                "tool_calls": [chat_call]}
        got = {"role": "tool", "tool_call_id": "call_1", "content": "18C"}
        cases = [
            (["Weather?"], [u]),
            ([[user("Weather?")]], [u]),
            ([[{"role": "user", "content": "Weather?"}]], [u]),
            ([[{"role": "developer", "content": "Be brief."}, user("Weather?")]],
             [{"role": "system", "content": "Be brief."}, u]),
            ([[{"role": "developer", "content": []}, user("Weather?")]], [u]),
            ([[user("Weather?"), thought, said, call(), result()]], [u, turn, got]),
            ([[user("Weather?"), raw, said, call(), result()]], [u, turn, got]),
            ([[user("Weather?"), said, call(), result()]], [u, dict(turn, reasoning_content=None), got]),
            ([[user("Weather?"), call(), call(call_id="call_2"), result(call_id="call_2"), result()]],
             [u, {"role": "assistant", "content": None, "tool_calls": [chat_call, second]},
              dict(got, tool_call_id="call_2"), got]),
            ([[user("Weather?"), call(), result([{"type": "input_text", "text": "18C"}]), user("And?")]],
             [u, dict(turn, content=None, reasoning_content=None), got, {"role": "user", "content": "And?"}]),
            ([[user("Weather?"), thought, call(), result(), raw, said, user("And?")]],
             [u, dict(turn, content=None), got, {"role": "assistant", "content": "Checking.",
                                                 "reasoning_content": "Need the tool."},
              {"role": "user", "content": "And?"}]),
            # thoughts behind a call are the next turn's
            ([[user("Weather?"), call(), raw, call(call_id="call_2"), result(), result(call_id="call_2")]],
             [u, dict(turn, content=None, reasoning_content=None),
              {"role": "assistant", "content": None, "reasoning_content": "Need the tool.", "tool_calls": [second]},
              got, dict(got, tool_call_id="call_2")]),
        ]
        for body, messages in cases:
            with self.subTest(body=body):
                self.same_prompt({"input": body[0], "tools": tools}, {"messages": messages, "tools": chat_tools})
        self.same_prompt({"input": "Weather?", "instructions": "Be brief."},
                         {"messages": [{"role": "system", "content": "Be brief."}, u]})
        for effort in ("none", "low", "max"):
            self.same_prompt({"input": "Weather?", "reasoning": {"effort": effort}},
                             {"messages": [u], "reasoning_effort": effort})

    def test_calls_of_other_kinds(self):
        """Tools that clients have built in are calls of that name; plain text is the parameter "input"."""
        def as_chat(name, args, out):
            return {"messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}]},
                {"role": "tool", "tool_call_id": "c", "content": out}]}
        action = {"type": "exec", "command": ["ls", "-l"], "env": {}}
        for item, out, chat in (
                ({"type": "local_shell_call", "action": action, "status": "completed"},
                 {"type": "local_shell_call_output"}, as_chat("local_shell", action, "done")),
                ({"type": "tool_search_call", "arguments": {"query": "x"}, "execution": "client"},
                 {"type": "tool_search_output"}, as_chat("tool_search", {"query": "x"}, "done")),
                ({"type": "custom_tool_call", "name": "apply_patch", "input": PATCH_TEXT},
                 {"type": "custom_tool_call_output"}, as_chat("apply_patch", {"input": PATCH_TEXT}, "done"))):
            with self.subTest(type=item["type"]):
                self.same_prompt({"input": [user("go"), dict(item, call_id="c"),
                                            dict(out, call_id="c", output="done")]}, chat)
        self.same_prompt({"input": [user("go"), {"type": "web_search_call", "id": "ws_1", "status": "completed",
                                                 "action": {"type": "search", "query": "q"}}]},
                         {"messages": [{"role": "user", "content": "go"}]})

    def test_refusals(self):
        self.refused("input", "invalid_value", "empty", input=[])
        self.refused("input", "invalid_value", "empty", input="")
        self.refused("input", "invalid_value", "empty", input=None)
        self.refused("input", "invalid_type", "expected string or array", input=5)
        self.refused("input[0]", "invalid_type", "expected object", input=["x"])
        self.refused("input[1].role", "invalid_value", "Unknown role: boss", input=[user("a"), {"role": "boss"}])
        self.refused("input[0].type", "invalid_value", "'odd'", input=[{"type": "odd"}])
        self.refused("input[0].type", "unsupported_content", "replay the item",
                     input=[{"type": "item_reference", "id": "x"}])
        self.refused("input[0].content[0]", "unsupported_content", "image input",
                     input=[{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}])
        self.refused("input[1].call_id", "unknown_call_id", "replay the full input",
                     input=[user("a"), result(call_id="call_9")])
        self.refused("input[1].name", "invalid_type", "expected string",
                     input=[user("a"), {"type": "function_call", "call_id": "c", "arguments": "{}"}])
        self.refused("input[0].call_id", "invalid_type", "expected string", input=[{"type": "function_call"}])
        self.refused("instructions", "invalid_type", "expected string", instructions=[1])
        self.refused("tools", "invalid_type", "expected array", tools={})
        self.refused("tools[0].type", "invalid_type", "expected string", tools=[{}])
        self.refused("tools[0].name", "invalid_type", "expected string", tools=[{"type": "function"}])
        self.refused("tools[0].parameters", "invalid_type", "object",
                     tools=[{"type": "function", "name": "f", "parameters": 3}])
        self.refused("tools[1].parameters", "invalid_grammar", "tools[1].parameters: its parameters allow no object",
                     tools=[{"type": "web_search"}, {"type": "function", "name": "f", "strict": True,
                                                     "parameters": {"not": {}}}])
        self.refused("tools[0].name", "invalid_value", "0x00 at byte 1", tools=[{"type": "function", "name": "a\0b"}])
        self.refused("reasoning", "invalid_type", "an object", reasoning="high")
        self.refused("reasoning.effort", "invalid_value", "'huge'", reasoning={"effort": "huge"})
        self.refused("reasoning.summary", "invalid_value", "'long'", reasoning={"summary": "long"})
        self.refused("text.format.type", "invalid_value", "'xml'", text={"format": {"type": "xml"}})
        self.refused("text.format.schema", "invalid_grammar", "type must be", text={"format": {
            "type": "json_schema", "name": "x", "strict": True, "schema": {"type": "odd"}}})
        self.refused("max_output_tokens", "invalid_value", "must be positive", max_output_tokens=0)
        self.refused("top_p", "invalid_value", "(0, 1]", top_p=1.5)
        self.refused("background", "invalid_type", "a boolean", background="yes")
        self.refused("previous_response_id", "previous_response_not_found", "replay the full input",
                     previous_response_id="resp_x")
        self.refused("conversation", "unsupported_parameter", "conversation", conversation={"id": "conv_1"})
        self.refused("input", "context_length_exceeded", "maximum context length", input="word " * 70000)

    def test_turns_come_back_as_sampled(self):
        """A client's own spelling of a call, with its thoughts left out, is the sampled turn again."""
        self.s.script(text="Need it. \n</think>Checking." + CALL.replace(">3<", ">3.0<"))
        before = self.s.info()["call_memory"]["spliced"]
        a = self.answer(input="Weather?", tools=[TOOL])
        (said, made) = a["output"]
        self.assertEqual(said["type"], "message")
        made = dict(made, arguments=json.dumps({"days": 3, "city": "Rome"}, indent=2))
        turns = [[said, made], [{"role": "assistant", "content": "Checking."}, made],
                 [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "other"}]}, said, made]]
        for turn in turns:
            b = self.answer(input=[user("Weather?")] + turn + [result(call_id=made["call_id"])], tools=[TOOL])
            n = a["usage"]["input_tokens"] + a["usage"]["output_tokens"]
            self.assertGreater(b["usage"]["input_tokens"], n)
            self.assertLess(b["usage"]["input_tokens"], n + 20)
        self.assertEqual(self.s.info()["call_memory"]["spliced"], before + len(turns))
        self.s.script(text="x</think>" + PATCH_CALL)
        (c,) = self.answer(input="go", tools=[PATCH])["output"]
        self.answer(input=[user("go"), c, {"type": "custom_tool_call_output", "call_id": c["call_id"],
                                           "output": "ok"}], tools=[PATCH])
        self.assertEqual(self.s.info()["call_memory"]["spliced"], before + len(turns) + 1)

    # ---- by id

    def test_unknown_ids(self):
        for method, path in (("GET", "/v1/responses/resp_x"), ("POST", "/v1/responses/resp_x/cancel"),
                             ("GET", "/v1/responses/" + "x" * 200),
                             ("POST", "/v1/responses/" + "x" * 200 + "/cancel")):
            r = self.s.call(method, path)
            self.assertEqual((r.status, r.json()["error"]["code"]), (404, "response_not_found"), path)
        self.assertEqual(self.s.get("/v1/responses").status, 405)
        self.assertEqual(self.s.get("/v1/responses/x/cancel").status, 405)
        self.assertEqual(self.s.post("/v1/responses/x", {}).status, 405)

    def test_running_response(self):
        self.s.script(text="a</think>" + "word " * 5, repeat=True, eos=False, token_ms=5)
        with self.s.connect() as c:
            c.send(request_bytes("POST", "/v1/responses", {"input": "x", "stream": True}))
            c.head()
            rid = frames(c.chunk())[0][2]["response"]["id"]
            r = self.s.get("/v1/responses/" + rid).json()
            self.assertEqual((r["id"], r["status"], r["output"], r["usage"]), (rid, "in_progress", [], None))
            r = self.s.post("/v1/responses/%s/cancel" % rid, {}).json()
            self.assertEqual((r["id"], r["status"]), (rid, "cancelled"))
            body = b""
            while True:
                piece = c.chunk()
                if not piece:
                    break
                body += piece
            last = frames(body)[-1]
            self.assertEqual((last[1], last[2]["response"]["status"]), ("response.incomplete", "cancelled"))
        self.s.wait_idle()
        self.assertEqual(self.s.get("/v1/responses/" + rid).status, 404)


class Store(unittest.TestCase):
    def test_chain(self):
        with Server(flags=["--response-store", "4", "--api-key", "k1", "--api-key", "k2"],
                    script={"text": "x</think>y"}) as s:
            k1, k2 = [("x-api-key", "k1")], [("x-api-key", "k2")]
            s.wait_ready = None

            def post(headers=k1, **body):
                return s.post("/v1/responses", body, headers)

            s.script(text="Thought A.</think>Checking." + CALL)
            first = post(input="Weather?", tools=[TOOL]).json()
            made = first["output"][-1]
            s.script(text="ok</think>18C.")
            n = [first["usage"]["input_tokens"]]
            last, chain = first, [first]
            items = [user("Weather?")] + first["output"]
            for i, more in enumerate(([result(call_id=made["call_id"])], "And now?", [user("And then?")], "Bye.")):
                stream = i % 2 == 1
                r = post(input=more, previous_response_id=last["id"], tools=[TOOL], stream=stream)
                self.assertEqual(r.status, 200, r.body)
                got = frames(r.body)[-1][2]["response"] if stream else r.json()
                self.assertEqual(got["previous_response_id"], last["id"])
                # the same conversation sent whole, with the thoughts that only the server knows
                items += [user(more)] if isinstance(more, str) else more
                whole = post(input=items, tools=[TOOL], store=False).json()
                self.assertEqual(got["usage"]["input_tokens"], whole["usage"]["input_tokens"])
                items += [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "ok"}]}]
                items += got["output"]
                n.append(got["usage"]["input_tokens"])
                last = got
                chain.append(got)
            self.assertEqual(n, sorted(n))
            # a fork of an older one, by another key, after it went
            self.assertEqual(post(input="x", previous_response_id=chain[2]["id"]).status, 200)
            for bad in (post(k2, input="x", previous_response_id=chain[4]["id"]),
                        post(input="x", previous_response_id=chain[0]["id"])):
                self.assertEqual((bad.status, bad.json()["error"]["code"]), (400, "previous_response_not_found"))
            self.assertEqual(s.get("/v1/responses/" + chain[4]["id"], k1).json(), chain[4])
            self.assertEqual(s.get("/v1/responses/" + chain[4]["id"], k2).status, 404)
            self.assertEqual(s.post("/v1/responses/%s/cancel" % chain[4]["id"], {}, k1).json(), chain[4])
            r = post(input="x", store=False).json()
            self.assertEqual(s.get("/v1/responses/" + r["id"], k1).status, 404)
            self.assertIs(r["store"], False)

    def test_instructions_are_not_inherited(self):
        with Server(flags=["--response-store", "2"], script={"text": "x</think>y"}) as s:
            a = s.post("/v1/responses", {"input": "a", "instructions": "Speak like a pirate. " * 20}).json()
            b = s.post("/v1/responses", {"input": "b", "previous_response_id": a["id"]}).json()
            self.assertLess(b["usage"]["input_tokens"], a["usage"]["input_tokens"])
            self.assertIsNone(b["instructions"])


class Clients(unittest.TestCase):
    """Conversations as agents have them."""

    def codex_turn(self, s, items, key):
        body = {"model": "test", "stream": True, "store": False, "include": ["reasoning.encrypted_content"],
                "input": items, "tool_choice": "auto", "parallel_tool_calls": True,
                "reasoning": {"summary": "auto"}, "prompt_cache_key": key, "client_metadata": {"session_id": key},
                "tools": [{"type": "function", "name": "exec_command", "description": "Runs a command.",
                           "strict": False, "parameters": {
                               "type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}},
                          {"type": "namespace", "name": "agents", "description": "d", "tools": [TOOL]},
                          PATCH, {"type": "web_search", "external_web_access": True}]}
        r = s.post("/v1/responses", body, [("accept", "text/event-stream"), ("originator", "codex_exec")])
        self.assertEqual(r.status, 200, r.body)
        evs = frames(r.body)
        assemble(evs)
        self.assertEqual(evs[-1][1], "response.completed")
        done = [e[2]["item"] for e in evs if e[1] == "response.output_item.done"]
        return done, evs[-1][2]["response"]["usage"]

    def test_codex(self):
        """Codex sends everything again each turn, and takes items from output_item.done."""
        def tool(name, key, value):
            return ("\n\n<%stool_calls>\n<%sinvoke name=\"%s\">\n<%sparameter name=\"%s\" string=\"true\">%s"
                    "</%sparameter>\n</%sinvoke>\n</%stool_calls>" % (M, M, name, M, key, value, M, M, M))
        script = [("Look first.</think>I look at the file." + tool("exec_command", "cmd", "cat a.py"), "function_call"),
                  ("Now edit.</think>" + tool("apply_patch", "input", PATCH_TEXT), "custom_tool_call"),
                  ("Run it.</think>" + tool("exec_command", "cmd", "python a.py 2>&1 | tail -n 3"), "function_call"),
                  ("Good.</think>Done: **a.py** works.", "message")]
        with Server() as s:
            items = [{"type": "message", "role": "developer", "content": [
                {"type": "input_text", "text": "You are a coding agent."}]},
                     {"type": "message", "role": "developer", "content": [
                         {"type": "input_text", "text": "<permissions>all</permissions>"}]},
                     user("<environment_context><cwd>/x</cwd></environment_context>"), user("Fix a.py")]
            known = 0
            for text, last in script:
                s.script(text=text)
                done, u = self.codex_turn(s, items, "session-1")
                self.assertEqual(done[0]["type"], "reasoning")
                self.assertEqual(done[-1]["type"], last)
                self.assertGreater(u["input_tokens"], known)  # nothing of the turns before is lost
                known = u["input_tokens"] + u["output_tokens"] - 1
                for i in done:
                    sent = {k: v for k, v in i.items() if k not in ("status",)}
                    items.append(dict(sent, encrypted_content=None) if i["type"] == "reasoning" else sent)
                    if i["type"].endswith("_call"):
                        kind = "custom_tool_call_output" if i["type"][0] == "c" else "function_call_output"
                        items.append({"type": kind, "call_id": i["call_id"], "output": "Exit code: 0\nok"})
            m = s.info()["call_memory"]
            self.assertEqual((m["spliced"], m["changed"]), (1 + 2 + 3, 0))

    def test_pi(self):
        """pi asks for summaries, sends ids of items back, effort xhigh, and thoughts between calls."""
        with Server() as s:
            items = [{"role": "developer", "content": "You are pi."},
                     {"role": "user", "content": [{"type": "input_text", "text": "go"}]}]
            for i in range(3):
                s.script(text="Step %d.</think>" % i + CALL)
                r = s.post("/v1/responses", {
                    "model": "test", "input": items, "stream": True, "store": False, "tools": [dict(TOOL, strict=None)],
                    "reasoning": {"effort": "xhigh", "summary": "auto"}, "max_output_tokens": 384000,
                    "include": ["reasoning.encrypted_content"], "prompt_cache_key": "p"})
                self.assertEqual(r.status, 200, r.body)
                self.assertIn("x-max-tokens", r.headers)
                out = frames(r.body)[-1][2]["response"]["output"]
                self.assertEqual([o["type"] for o in out], ["reasoning", "function_call"])
                items += out + [result(call_id=out[1]["call_id"])]
            m = s.info()["call_memory"]
            self.assertEqual((m["spliced"], m["changed"]), (0 + 1 + 2, 0))


class Bundled(unittest.TestCase):
    def test_schema(self):
        """A document of the schema, with thoughts before it, streamed or not, strict or not."""
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20},
                                                   "days": {"type": "integer", "minimum": 1, "maximum": 99}},
                  "required": ["city", "days"], "additionalProperties": False}
        with Server(fake=False) as s:
            for i in range(6):
                body = {"input": "Weather in Rome for 3 days?", "seed": i, "stream": i % 2 == 1, **SUMMARY,
                        "max_output_tokens": 300, "thinking_budget": 40,
                        "text": {"format": {"type": "json_schema", "name": "w", "schema": schema, "strict": i < 3}}}
                r = s.post("/v1/responses", body)
                self.assertEqual(r.status, 200, r.body)
                a = frames(r.body)[-1][2]["response"] if i % 2 else r.json()
                self.assertEqual(a["status"], "completed")
                doc = json.loads(a["output"][-1]["content"][0]["text"])
                self.assertEqual(set(doc), {"city", "days"})
                self.assertTrue(isinstance(doc["city"], str) and 1 <= doc["days"] <= 99)

    def test_same_as_chat(self):
        """The bundled model says the same on both endpoints, streamed or not, many at a time."""
        with Server(fake=False) as s:
            q = "What is 17 + 25?"
            kw = {"temperature": 0, "max_tokens": 60}
            m = s.chat(q, **kw).json()
            want = m["choices"][0]["message"]["content"]
            got = {}

            def ask(i):
                r = s.post("/v1/responses", dict(kw, input=q, stream=i % 2 == 1, **SUMMARY))
                self.assertEqual(r.status, 200, r.body)
                got[i] = frames(r.body)[-1][2]["response"] if i % 2 else r.json()
            in_threads(8, ask)
            for a in got.values():
                text = "".join(p["text"] for o in a["output"] if o["type"] == "message" for p in o["content"])
                self.assertEqual(text, want)
                self.assertEqual(a["usage"]["output_tokens"], m["usage"]["completion_tokens"])
            s.wait_idle()


if __name__ == "__main__":
    unittest.main()
