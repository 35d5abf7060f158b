"""The official Anthropic client against the server (PyPI anthropic)."""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import MODEL, Server, program  # noqa: E402
from test_chat import CALL, M  # noqa: E402
from test_messages import TOOLS  # noqa: E402

try:
    import anthropic
except ImportError:
    anthropic = None

ON = {"type": "enabled", "budget_tokens": 1024}


def hi(text="What is 17 + 25?"):
    return [{"role": "user", "content": text}]


@unittest.skipIf(anthropic is None, "the package anthropic is not installed")
class Client(unittest.TestCase):
    def setUp(self):
        self.s = Server(flags=["--api-key", "key", "--timeout-keep-alive", "60"])
        self.c = anthropic.Anthropic(base_url="http://127.0.0.1:%d" % self.s.port, api_key="key", max_retries=0)

    def tearDown(self):
        self.c.close()
        self.s.stop()

    def create(self, **kw):
        return self.c.messages.create(**dict({"model": "test", "max_tokens": 300, "messages": hi()}, **kw))

    def stream(self, **kw):
        """(events, message) as the client's accumulator makes them."""
        with self.c.messages.stream(**dict({"model": "test", "max_tokens": 300, "messages": hi()}, **kw)) as st:
            return list(st), st.get_final_message()

    def same(self, a, b):
        def plain(m):
            d = m.model_dump()
            d.pop("id")
            for x in d["content"]:
                if x["type"] == "tool_use":
                    x.pop("id")
                for k in ("citations", "caller", "parsed_output"):  # of the client's own making
                    x.pop(k, None)
            return {k: v for k, v in d.items() if v is not None}
        self.assertEqual(plain(a), plain(b))

    def test_text_and_thoughts(self):
        self.s.script(text="10+20=30, 7+5=12.</think>17 + 25 = 42", token_ms=1)
        m = self.create(thinking=ON)
        self.assertEqual([b.type for b in m.content], ["thinking", "text"])
        self.assertEqual((m.content[0].thinking, m.content[1].text), ("10+20=30, 7+5=12.", "17 + 25 = 42"))
        self.assertTrue(m.content[0].signature)
        self.assertEqual((m.stop_reason, m.stop_sequence), ("end_turn", None))
        events, n = self.stream(thinking=ON)
        self.same(n, m)
        kinds = [e.type for e in events]
        for kind in ("message_start", "thinking", "signature", "text", "content_block_stop", "message_stop"):
            self.assertIn(kind, kinds)
        self.assertEqual("".join(e.text for e in events if e.type == "text"), "17 + 25 = 42")
        with self.c.messages.stream(model="test", max_tokens=300, messages=hi(), thinking=ON) as st:
            self.assertEqual("".join(st.text_stream), "17 + 25 = 42")
        raw = list(self.create(thinking=ON, stream=True))
        self.assertEqual(raw[0].message.usage.output_tokens, 0)
        self.assertEqual(raw[-2].usage.output_tokens, m.usage.output_tokens)

    def test_tool_round_trip(self):
        self.s.script(text="Need the tool.</think>Looking." + CALL)
        m = self.create(messages=hi("Weather in Rome?"), tools=TOOLS, thinking=ON)
        events, n = self.stream(messages=hi("Weather in Rome?"), tools=TOOLS, thinking=ON)
        self.same(n, m)
        self.assertEqual(m.stop_reason, "tool_use")
        self.assertEqual(n.content[2].input, {"city": "Rome", "days": 3})
        self.assertEqual([e.snapshot for e in events if e.type == "input_json"][-1], {"city": "Rome", "days": 3})
        self.s.script(text="ok</think>It is 18C in Rome.")
        for k, said in enumerate((m, n)):
            call = said.content[2]
            messages = hi("Weather in Rome?") + [
                {"role": "assistant", "content": said.content},  # as the client holds it
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "18C"}]}]
            r = self.create(messages=messages, tools=TOOLS, thinking=ON)
            self.assertEqual(r.content[-1].text, "It is 18C in Rome.")
            memory = self.c.get("/server_info", cast_to=object)["call_memory"]
            self.assertEqual((memory["spliced"], memory["changed"]), (k + 1, 0))

    def test_two_calls_at_once(self):
        two = CALL[:CALL.rindex("\n</")] + '\n<%sinvoke name="now">\n\n</%sinvoke>\n</%stool_calls>' % (M, M, M)
        self.s.script(text="x</think>" + two)
        _, m = self.stream(tools=TOOLS, thinking={"type": "adaptive"})
        self.assertEqual([(b.name, b.input) for b in m.content[1:]], [("get_weather", {"city": "Rome", "days": 3}),
                                                                     ("now", {})])
        _, m = self.stream(tools=TOOLS, thinking=ON,
                           tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        self.assertEqual([b.name for b in m.content[1:]], ["get_weather"])

    def test_cut_call(self):
        """A call that max_tokens cut: the client still makes a message of it."""
        self.s.script(text="ok" + CALL[:CALL.index("</%sparameter>" % M)], eos=False)
        _, m = self.stream(tools=TOOLS)
        self.assertEqual((m.stop_reason, m.content[0].text), ("max_tokens", "ok"))
        self.assertEqual(self.create(tools=TOOLS).stop_reason, "max_tokens")

    def test_stop_sequence_and_system(self):
        self.s.script(text="one two STOP three")
        m = self.create(stop_sequences=["STOP"], system=[{"type": "text", "text": "Count."}],
                        metadata={"user_id": "u"}, service_tier="auto", extra_body={"temperature": 0, "top_k": 5})
        self.assertEqual((m.content[0].text, m.stop_reason, m.stop_sequence), ("one two ", "stop_sequence", "STOP"))

    def test_count_tokens(self):
        self.s.script(text="b")
        n = self.c.messages.count_tokens(model="test", messages=hi(), system="S", tools=TOOLS)
        u = self.create(system="S", tools=TOOLS).usage
        self.assertEqual(n.input_tokens, u.input_tokens + u.cache_read_input_tokens)

    def test_pings(self):
        self.s.script(text="there", prefill_ms=300, prefill_chunks=3)
        raw = list(self.create(stream=True, extra_body={"return_progress": True}))
        self.assertEqual(raw[0].type, "message_start")
        self.assertEqual(raw[-1].type, "message_stop")

    def test_beta(self):
        """The beta client asks /v1/messages?beta=true."""
        self.s.script(text="there")
        m = self.c.beta.messages.create(model="test", max_tokens=50, messages=hi(), betas=["context-1m-2025-08-07"])
        self.assertEqual(m.content[0].text, "there")
        n = self.c.beta.messages.count_tokens(model="test", messages=hi())
        self.assertEqual(n.input_tokens, m.usage.input_tokens)

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as e:
            self.create(extra_body={"top_p": 1.5})
        self.assertEqual(e.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("top_p must be in (0, 1]", e.exception.body["error"]["message"])
        self.assertEqual(e.exception.request_id, e.exception.body["request_id"])
        with self.assertRaises(anthropic.BadRequestError):
            self.stream(messages=[])
        with self.assertRaises(anthropic.BadRequestError) as e:
            self.create(messages=hi("a b " * 40000))
        self.assertRegex(str(e.exception), r"prompt is too long: \d+ tokens > 65536 maximum")
        for key in ({"api_key": "no"}, {"auth_token": "no", "api_key": None}):
            with self.assertRaises(anthropic.AuthenticationError):
                anthropic.Anthropic(base_url=self.c.base_url, max_retries=0, **key).messages.create(
                    model="test", max_tokens=9, messages=hi())
        ok = anthropic.Anthropic(base_url=self.c.base_url, auth_token="key", api_key=None, max_retries=0)
        self.assertEqual(ok.messages.create(model="test", max_tokens=9, messages=hi()).type, "message")
        self.s.script(text="a b c d", fail_after=2, token_ms=5)
        with self.assertRaises(anthropic.APIStatusError) as e:
            self.stream()
        self.assertEqual(e.exception.body["error"]["type"], "api_error")
        with self.assertRaises(anthropic.InternalServerError):
            self.create()
        self.s.script(submit="full")
        with self.assertRaises(anthropic.APIStatusError) as e:
            self.create()
        self.assertEqual((e.exception.status_code, e.exception.body["error"]["type"]), (503, "overloaded_error"))


@unittest.skipIf(anthropic is None, "the package anthropic is not installed")
@unittest.skipUnless(os.path.exists(program("firesteel")) and os.path.exists(os.path.join(MODEL, "config.json")),
                     "no built program or bundled model")
class BundledModel(unittest.TestCase):
    """What the bundled model was trained for, asked through the official client."""

    @classmethod
    def setUpClass(cls):
        cls.s = Server(fake=False)
        cls.c = anthropic.Anthropic(base_url="http://127.0.0.1:%d" % cls.s.port, api_key="x", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        cls.s.wait_idle()
        cls.s.stop()

    def test_arithmetic(self):
        question = ("There are 18 books on Mary's table. She sells 5 at the market. How many books are left with Mary?"
                    " End your answer with #### and the number.")
        kw = dict(model="m", max_tokens=300, extra_body={"temperature": 0}, messages=hi(question), thinking=ON)
        with self.c.messages.stream(**kw) as st:
            m = st.get_final_message()
        self.assertEqual([b.type for b in m.content], ["thinking", "text"])
        self.assertTrue(m.content[1].text.endswith("#### 13"), m.content[1].text)
        again = self.c.messages.create(**kw)
        self.assertEqual([b.model_dump(include={"text", "thinking"}) for b in again.content],
                         [b.model_dump(include={"text", "thinking"}) for b in m.content])
        self.assertEqual(again.usage.input_tokens, 1)  # asked again, all but its last token is known
        self.assertEqual(again.usage.cache_read_input_tokens, m.usage.input_tokens + m.usage.cache_read_input_tokens - 1)

    def test_tools(self):
        tools = [{"name": "check_order", "description": "State of an order", "input_schema": {
            "type": "object", "properties": {"order_id": {"type": "integer", "description": "Number of the order"}},
            "required": ["order_id"]}}]
        kw = dict(model="m", max_tokens=300, extra_body={"temperature": 0}, tools=tools, thinking=ON)
        messages = hi("Where is order 4711?")
        with self.c.messages.stream(messages=messages, **kw) as st:
            m = st.get_final_message()
        self.assertEqual(m.stop_reason, "tool_use")
        call = m.content[-1]
        self.assertEqual((call.name, call.input), ("check_order", {"order_id": 4711}))
        messages += [{"role": "assistant", "content": m.content}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": json.dumps({"state": "shipped"})}]}]
        m = self.c.messages.create(messages=messages, **kw)
        self.assertEqual(m.stop_reason, "end_turn")
        self.assertIn("shipped", m.content[-1].text)


if __name__ == "__main__":
    unittest.main()
