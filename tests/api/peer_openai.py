"""The official OpenAI client against the server (PyPI openai)."""

import json
import os
import sys
import unittest
from typing import Literal, Optional

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import MODEL, Server, program  # noqa: E402
from test_chat import CALL, TOOLS  # noqa: E402

try:
    import openai
    import pydantic
except ImportError:
    openai = None


@unittest.skipIf(openai is None, "the package openai is not installed")
class Client(unittest.TestCase):
    def setUp(self):
        self.s = Server(flags=["--api-key", "key", "--timeout-keep-alive", "60"])
        self.c = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % self.s.port, api_key="key", max_retries=0)

    def tearDown(self):
        self.c.close()
        self.s.stop()

    def test_arithmetic_with_reasoning(self):
        self.s.script(text="17+25: 10+20=30, 7+5=12, so 42.</think>17 + 25 = 42", token_ms=1)
        r = self.c.chat.completions.create(model="test", messages=[{"role": "user", "content": "What is 17 + 25?"}])
        self.assertEqual(r.choices[0].message.content, "17 + 25 = 42")
        self.assertIn("10+20=30", r.choices[0].message.reasoning_content)
        content, reasoning, usage = "", "", None
        with self.c.chat.completions.create(model="test", stream=True, stream_options={"include_usage": True},
                                            messages=[{"role": "user", "content": "What is 17 + 25?"}]) as st:
            for chunk in st:
                usage = chunk.usage or usage
                if chunk.choices:
                    d = chunk.choices[0].delta
                    content += d.content or ""
                    reasoning += getattr(d, "reasoning_content", None) or ""
        self.assertEqual((content, reasoning), (r.choices[0].message.content, r.choices[0].message.reasoning_content))
        self.assertEqual(usage.total_tokens, r.usage.total_tokens)
        self.assertEqual(usage.completion_tokens_details.reasoning_tokens,
                         r.usage.completion_tokens_details.reasoning_tokens)

    def test_tool_round_trip(self):
        messages = [{"role": "user", "content": "Weather in Rome?"}]
        self.s.script(text="Need the tool.</think>" + CALL)
        r = self.c.chat.completions.create(model="test", messages=messages, tools=TOOLS)
        self.assertEqual(r.choices[0].finish_reason, "tool_calls")
        call = r.choices[0].message.tool_calls[0]
        messages += [r.choices[0].message.model_dump(exclude_none=True),
                     {"role": "tool", "tool_call_id": call.id, "content": "18C"}]
        self.s.script(text="ok</think>It is 18C in Rome.")
        r = self.c.chat.completions.create(model="test", messages=messages, tools=TOOLS)
        self.assertEqual(r.choices[0].message.content, "It is 18C in Rome.")

    def test_choices_and_logprobs(self):
        self.s.script(replies=["a</think>x", "b</think>y", "c</think>z"])
        r = self.c.chat.completions.create(model="test", messages=[{"role": "user", "content": "x"}], n=3,
                                           logprobs=True, top_logprobs=2, seed=5)
        self.assertEqual([c.message.content for c in r.choices], ["x", "y", "z"])
        self.assertEqual(len(r.choices[0].logprobs.content[0].top_logprobs), 2)

    def test_completions_and_models(self):
        self.s.script(text=" there")
        r = self.c.completions.create(model="test", prompt="hi", max_tokens=5, logprobs=1)
        self.assertEqual(r.choices[0].text, " there")
        self.assertEqual([m.id for m in self.c.models.list()], ["test"])
        self.assertEqual(self.c.models.retrieve("test").id, "test")

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as e:
            self.c.chat.completions.create(model="test", messages=[{"role": "user", "content": "x"}], top_p=1.5)
        self.assertEqual((e.exception.param, e.exception.code), ("top_p", "invalid_value"))
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.c.base_url, api_key="no", max_retries=0).models.list()
        with self.assertRaises(openai.NotFoundError):
            self.c.models.retrieve("other")
        self.s.script(text="a b c d", fail_after=2, token_ms=5)
        with self.assertRaises(openai.APIError):
            for _ in self.c.chat.completions.create(model="test", stream=True,
                                                    messages=[{"role": "user", "content": "x"}]):
                pass
        self.s.script(submit="full")
        with self.assertRaises(openai.InternalServerError) as e:
            self.c.chat.completions.create(model="test", messages=[{"role": "user", "content": "x"}])
        self.assertEqual(e.exception.status_code, 503)


@unittest.skipIf(openai is None, "the package openai is not installed")
class Responses(unittest.TestCase):
    """The client's Responses API: what it assembles from a stream is what it gets in one piece."""

    def setUp(self):
        self.s = Server(flags=["--api-key", "key", "--timeout-keep-alive", "60", "--response-store", "8"])
        self.c = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % self.s.port, api_key="key", max_retries=0)

    def tearDown(self):
        self.c.close()
        self.s.stop()

    def streamed(self, **kw):
        with self.c.responses.stream(model="test", **kw) as st:
            for e in st:
                self.last = e
            return st.get_final_response() if self.last.type == "response.completed" else self.last.response

    def test_text_and_thoughts(self):
        self.s.script(text="17+25: 42.</think>17 + 25 = 42", token_ms=1)
        kw = {"input": "What is 17 + 25?", "instructions": "Be brief.", "reasoning": {"summary": "auto"},
              "metadata": {"k": "v"}}
        for r in (self.c.responses.create(model="test", **kw), self.streamed(**kw)):
            self.assertEqual((r.output_text, r.status, r.metadata), ("17 + 25 = 42", "completed", {"k": "v"}))
            self.assertEqual(r.output[0].summary[0].text, "17+25: 42.")
            self.assertEqual(r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens)
            self.assertGreater(r.usage.output_tokens_details.reasoning_tokens, 3)
            self.assertEqual(self.c.responses.retrieve(r.id).output_text, r.output_text)
        self.s.script(text="x</think>a b c d", eos=False)
        r = self.streamed(input="x", max_output_tokens=4)
        self.assertEqual((r.status, r.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        self.assertEqual(self.last.type, "response.incomplete")

    def test_tool_round_trip(self):
        tool = {"type": "function", "name": "get_weather", "description": "w", "strict": False,
                "parameters": TOOLS[0]["function"]["parameters"]}
        for stateful in (False, True):
            items = [{"role": "user", "content": "Weather in Rome?"}]
            self.s.script(text="Need the tool.</think>" + CALL)
            r = self.streamed(input=items, tools=[tool])
            call = r.output[-1]
            self.assertEqual((call.type, json.loads(call.arguments)), ("function_call", {"city": "Rome", "days": 3}))
            out = {"type": "function_call_output", "call_id": call.call_id, "output": "18C"}
            self.s.script(text="ok</think>It is 18C in Rome.")
            if stateful:
                r = self.c.responses.create(model="test", previous_response_id=r.id, input=[out], tools=[tool])
            else:
                r = self.c.responses.create(model="test", input=items + [o.to_dict() for o in r.output] + [out],
                                            tools=[tool])
            self.assertEqual(r.output_text, "It is 18C in Rome.")

    def test_background(self):
        self.s.script(text="x</think>" + "word " * 40, token_ms=5)
        r = self.c.responses.create(model="test", input="x", background=True)
        self.assertEqual(r.status, "queued")
        while r.status in ("queued", "in_progress"):
            r = self.c.responses.retrieve(r.id)
        self.assertEqual(r.output_text, "word " * 40)
        seen = []
        with self.c.responses.create(model="test", input="x", background=True, stream=True) as st:
            for e in st:
                seen.append(e)
                if len(seen) == 9:
                    break
        for e in self.c.responses.retrieve(seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number):
            seen.append(e)
        self.assertEqual([e.sequence_number for e in seen], list(range(len(seen))))
        self.assertEqual(seen[-1].response.output_text, "word " * 40)
        self.s.script(text="x</think>" + "word " * 40, token_ms=50)
        r = self.c.responses.create(model="test", input="x", background=True)
        self.assertEqual(self.c.responses.cancel(r.id).status, "cancelled")

    def test_errors(self):
        for kw, param, code in (({"top_p": 1.5}, "top_p", "invalid_value"),
                                ({"previous_response_id": "resp_x"}, "previous_response_id",
                                 "previous_response_not_found")):
            with self.assertRaises(openai.BadRequestError) as e:
                self.c.responses.create(model="test", input="x", **kw)
            self.assertEqual((e.exception.param, e.exception.code), (param, code))
        with self.assertRaises(openai.NotFoundError):
            self.c.responses.retrieve("resp_x")
        self.s.script(text="a b c d", fail_after=2, token_ms=5)
        types = [e.type for e in self.c.responses.create(model="test", input="x", stream=True)]
        self.assertEqual(types[-1], "response.failed")


WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}},
        "required": ["city"]}}}]
ORDER = [{"type": "function", "function": {
    "name": "check_order", "description": "State of an order", "parameters": {
        "type": "object", "properties": {"order_id": {"type": "integer", "description": "Number of the order"}},
        "required": ["order_id"]}}}]
SUFFIX = " End your answer with #### and the number."
SUMS = (("Anna has 23 apples. She buys 14 more. Then she gives 9 to Ben. How many apples does Anna have now?", 28),
        ("Tom has 12 pens. He finds 15 more in the garden. How many pens does Tom have in the end?", 27),
        ("There are 18 books on Mary's table. She sells 5 at the market. How many books are left with Mary?", 13))


@unittest.skipIf(openai is None, "the package openai is not installed")
@unittest.skipUnless(os.path.exists(program("firesteel")) and os.path.exists(os.path.join(MODEL, "config.json")),
                     "no built program or bundled model")
class BundledModel(unittest.TestCase):
    """What the bundled model was trained for, asked through the official client."""

    @classmethod
    def setUpClass(cls):
        cls.s = Server(fake=False)
        cls.c = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % cls.s.port, api_key="x", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        cls.s.wait_idle()
        cls.s.stop()

    def ask(self, **kw):
        return self.c.chat.completions.create(**dict(dict(model="m", temperature=0, max_tokens=300), **kw))

    def test_arithmetic(self):
        for question, answer in SUMS:
            kw = dict(messages=[{"role": "user", "content": question + SUFFIX}])
            text, reasoning, finish, usage, chunks = "", "", None, None, 0
            for chunk in self.ask(stream=True, stream_options={"include_usage": True}, **kw):
                usage = chunk.usage or usage
                chunks += 1
                for c in chunk.choices:
                    text += c.delta.content or ""
                    reasoning += getattr(c.delta, "reasoning_content", None) or ""
                    finish = c.finish_reason or finish
            self.assertTrue(text.endswith("#### %d" % answer), text)
            self.assertIn(str(answer), reasoning)
            self.assertEqual(finish, "stop")
            self.assertGreater(chunks, 5)
            ids = self.s.post("/tokenize", {"prompt": reasoning + text}).json()["count"]
            self.assertLess(abs(usage.completion_tokens - ids), 5)  # and the marks between and after them
            self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
            self.assertGreater(usage.completion_tokens_details.reasoning_tokens, 5)
            self.assertLess(usage.completion_tokens_details.reasoning_tokens, usage.completion_tokens)
            plain = self.ask(**kw)
            m = plain.choices[0].message
            self.assertEqual((text, reasoning), (m.content, m.reasoning_content))
            first, again = ((u.prompt_tokens, u.completion_tokens, u.total_tokens, u.completion_tokens_details)
                            for u in (usage, plain.usage))
            self.assertEqual(first, again)
            # asked again, all but its last token is known
            self.assertEqual(plain.usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens - 1)

    def test_tool_round_trip(self):
        for tools, question, name, args, result, words in (
                (WEATHER, "What is the weather in Rome?", "get_weather", {"city": "Rome"},
                 {"temperature": 18, "sky": "sunny"}, ("18", "sunny")),
                (ORDER, "Where is order 4711?", "check_order", {"order_id": 4711}, {"state": "shipped"},
                 ("4711", "shipped"))):
            messages = [{"role": "user", "content": question}]
            r = self.ask(messages=messages, tools=tools).choices[0]
            self.assertEqual(r.finish_reason, "tool_calls")
            call = r.message.tool_calls[0].function
            self.assertEqual((call.name, json.loads(call.arguments)), (name, args))
            streamed = ["", ""]
            for chunk in self.ask(messages=messages, tools=tools, stream=True):
                for t in chunk.choices[0].delta.tool_calls or ():
                    streamed[0] += t.function.name or ""
                    streamed[1] += t.function.arguments or ""
            self.assertEqual(streamed, [call.name, call.arguments])
            messages += [r.message.model_dump(exclude_none=True),
                         {"role": "tool", "tool_call_id": r.message.tool_calls[0].id, "content": json.dumps(result)}]
            last = self.ask(messages=messages, tools=tools).choices[0]
            self.assertEqual(last.finish_reason, "stop")
            for w in words:
                self.assertIn(w, last.message.content)

    def test_parse(self):
        """Models of pydantic as the format of a reply and as the arguments of a tool."""
        class Step(pydantic.BaseModel):
            text: str = pydantic.Field(max_length=30)
            number: int = pydantic.Field(ge=0, le=999)

        class Answer(pydantic.BaseModel):
            steps: list[Step] = pydantic.Field(min_length=1, max_length=3)
            sure: bool
            kind: Literal["sum", "product"]
            note: Optional[str]

        class Weather(pydantic.BaseModel):
            city: str = pydantic.Field(max_length=20)
            unit: Literal["C", "F"]

        for thinking in (True, False):
            kw = dict(model="m", max_tokens=500, messages=[{"role": "user", "content": "What is 17 + 25?"}],
                      extra_body={"think": thinking})
            for temperature in (0, 1):
                m = self.c.chat.completions.parse(response_format=Answer, temperature=temperature, **kw).choices[0].message
                self.assertIsInstance(m.parsed, Answer)
                self.assertEqual(bool(m.reasoning_content), thinking)
                with self.c.chat.completions.stream(response_format=Answer, temperature=temperature, **kw) as st:
                    for _ in st:
                        pass
                    self.assertIsInstance(st.get_final_completion().choices[0].message.parsed, Answer)
                m = self.c.chat.completions.parse(tools=[openai.pydantic_function_tool(Weather)], tool_choice="required",
                                                  temperature=temperature, parallel_tool_calls=False, **kw).choices[0].message
                self.assertIsInstance(m.tool_calls[0].function.parsed_arguments, Weather)
        with self.assertRaises(openai.LengthFinishReasonError):
            self.c.chat.completions.parse(response_format=Answer, **dict(kw, max_tokens=5))
        with self.assertRaises(openai.BadRequestError) as e:
            self.ask(messages=kw["messages"], response_format={"type": "json_schema", "json_schema": {
                "name": "x", "strict": True, "schema": {"type": "array", "uniqueItems": True}}})
        self.assertEqual((e.exception.code, e.exception.param), ("invalid_grammar", "response_format.json_schema.schema"))


if __name__ == "__main__":
    unittest.main()
