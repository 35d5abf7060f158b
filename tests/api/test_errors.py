"""Every refusal: status, shape, named field; with and without stream; before any head went out."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server, events  # noqa: E402

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

# field values that /v1/chat/completions refuses: (body, param, words of the message)
CHAT = [
    ({"messages": []}, "messages", "Messages cannot be empty."),
    ({"messages": None}, "messages", "Messages cannot be empty."),
    ({"messages": "hi"}, "messages", ""),
    ({"messages": [{"role": "alien", "content": "x"}]}, "messages[0].role", "alien"),
    ({"messages": HI + [{"role": "user", "content": 5}]}, "messages[1].content", "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     None, "image"),
    ({"n": 0}, "n", "n must be"), ({"n": 129}, "n", "129"), ({"n": "2"}, "n", "integer"),
    ({"temperature": -0.1}, "temperature", "-0.1"), ({"temperature": 2.5}, "temperature", "2.5"),
    ({"temperature": "hot"}, "temperature", "number"), ({"temperature": 1e999}, None, ""),
    ({"top_p": 0}, "top_p", "top_p must be in (0, 1], got 0"),
    ({"top_p": 1.5}, "top_p", "top_p must be in (0, 1], got 1.5"),
    ({"min_p": -0.5}, "min_p", ""), ({"min_p": 1.01}, "min_p", ""),
    ({"top_k": 0}, "top_k", ""), ({"top_k": -2}, "top_k", ""), ({"top_k": 1.5}, "top_k", "integer"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens must be positive"),
    ({"max_tokens": -1}, "max_tokens", "positive"), ({"max_tokens": 2.5}, "max_tokens", "integer"),
    ({"max_tokens": "10"}, "max_tokens", "integer"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "positive"),
    ({"max_completion_tokens": 5, "max_tokens": -3}, "max_tokens", "positive"),
    ({"min_tokens": -1}, "min_tokens", ""), ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "3"),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"logprobs": 1}, "logprobs", "boolean"),
    ({"stop": ""}, "stop", ""), ({"stop": ["a"] * 65}, "stop", "64"), ({"stop": 7}, "stop", ""),
    ({"stop": ["a", ""]}, "stop", ""), ({"stop": "x" * 1025}, "stop", "1024"), ({"stop": [1]}, "stop", ""),
    ({"stop_token_ids": [-1]}, "stop_token_ids", ""), ({"stop_token_ids": [10 ** 9]}, "stop_token_ids", ""),
    ({"stop_token_ids": 3}, "stop_token_ids", ""), ({"stop_token_ids": list(range(65))}, "stop_token_ids", ""),
    ({"frequency_penalty": 2.1}, "frequency_penalty", "frequency_penalty must be in [-2, 2], got 2.1"),
    ({"frequency_penalty": "1"}, "frequency_penalty", "number"),
    ({"presence_penalty": -2.5}, "presence_penalty", "presence_penalty must be in [-2, 2], got -2.5"),
    ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty must be in (0, 2], got 0"),
    ({"repetition_penalty": 2.01}, "repetition_penalty", "(0, 2]"),
    ({"logit_bias": [1]}, "logit_bias", "object"), ({"logit_bias": {"x": 1}}, "logit_bias", '"x"'),
    ({"logit_bias": {"4096": 1}}, "logit_bias", "[0, 4095]"), ({"logit_bias": {"-1": 1}}, "logit_bias", '"-1"'),
    ({"logit_bias": {"99999999999999999999": 1}}, "logit_bias", "[0, 4095]"),
    ({"logit_bias": {"5": 100.5}}, "logit_bias", "logit_bias.5 must be in [-100, 100], got 100.5"),
    ({"logit_bias": {"5": "1"}}, "logit_bias", "logit_bias.5: expected a number"),
    ({"thinking_budget": -1}, "thinking_budget", "thinking_budget must be at least 0, got -1"),
    ({"thinking_token_budget": 1.5}, "thinking_token_budget", "integer"),
    ({"max_reasoning_tokens": "9"}, "max_reasoning_tokens", "integer"),
    ({"thinking": {"type": "enabled", "budget_tokens": -5}}, "thinking.budget_tokens", "at least 0, got -5"),
    ({"reasoning": {"max_tokens": True}}, "reasoning.max_tokens", "integer"),
    ({"loop_guard": 1}, "loop_guard", "boolean"), ({"debug": {"force_ids": [5]}}, "debug", "--debug-hooks"),
    ({"regex": "a("}, "regex", "regex: at byte 2"), ({"regex": 5}, "regex", "string"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "guided_regex: at byte 1: look-around"),
    ({"ebnf": "a"}, "ebnf", "ebnf: line 1"), ({"guided_grammar": "root ::= x"}, "guided_grammar", "rule x is not defined"),
    ({"json_schema": "{"}, "json_schema", "json_schema: Invalid JSON at byte 1"), ({"json_schema": 5}, "json_schema", "schema"),
    ({"json_schema": {"type": "strin"}}, "json_schema", "json_schema: #: type must be"),
    ({"json_schema": {"properties": {"a": {"type": "array", "uniqueItems": True}}}}, "json_schema", "#/properties/a"),
    ({"guided_json": False}, "guided_json", "schema"), ({"guided_choice": []}, "guided_choice", ""),
    ({"guided_choice": "a"}, "guided_choice", "array"), ({"guided_choice": ["a", 1]}, "guided_choice", "array"),
    ({"regex": "a", "json_schema": "{}"}, "regex", "json_schema and regex exclude each other"),
    ({"ebnf": "root ::= \"a\"", "guided_choice": ["a"]}, "guided_choice", "exclude each other"),
    ({"regex": "a", "response_format": {"type": "json_object"}}, "response_format", "exclude each other"),
    ({"regex": "a", "tools": [TOOL]}, "regex", "tools"),
    ({"regex": "a", "tools": [TOOL], "tool_choice": "required"}, "regex", "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}}]},
     "tools[0].function.parameters", "Tool 0 function has invalid 'parameters' schema: #/properties/a"),
    *(({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {name: {"type": "integer"}}}}}]}, "tools[0].function.parameters",
       "schema: #: properties cannot be kept: a parameter's name") for name in ('a"b', "a\nb", "x" * 257)),
    ({"tools": [TOOL, {"type": "function", "function": {"name": "h", "parameters": {"type": "array"}}}],
      "tool_choice": "required"}, "tools[1].function.parameters", "Tool 1 function has invalid 'parameters' schema"),
    *(({"tools": [{"type": "function", "function": {"name": name}}]}, "tools[0].function.name", words) for name, words in (
        ("", "a tool must have a name"), ("a\0b", "0x00 at byte 1"), ("\n", "0x0a at byte 0"), ('say "x"', "0x22 at byte 4"),
        ("x" * 257, "at most 256 bytes, got 257"))),
    # a schema's text is one document, also where it goes into a greater one
    *(({"json_schema": text, "tools": [TOOL]}, "json_schema", "json_schema: Invalid JSON at byte %d" % at)
      for text, at in (('true,"one":true', 4), ("{}\0", 2), ('{"type":', 8), ("", 0), ("true}", 4))),
    ({"structural_tag": "{}"}, "structural_tag", ""), ({"stop_regex": "a"}, "stop_regex", 'got "a", only null or "" or [] is allowed'),
    ({"return_hidden_states": True}, "return_hidden_states", ""), ({"lora_path": "x"}, "lora_path", ""),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema",
     "schema_ is required for json_schema response format request."),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strin"}}}},
     "response_format.json_schema.schema", "#: type must be"),
    ({"response_format": {"type": "json_schema", "json_schema": {"strict": True, "schema": {
        "type": "array", "uniqueItems": True}}}}, "response_format.json_schema.schema", "uniqueItems"),
    ({"response_format": {"type": "json_schema", "json_schema": {"strict": 1, "schema": {}}}},
     "response_format.json_schema.strict", "boolean"),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "structural_tag"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "yaml"),
    ({"response_format": "json"}, "response_format", ""),
    ({"tool_choice": "required"}, None, "Tools cannot be empty if tool choice is set to required."),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, None,
     "Tool 'g' not found in tools list."),
    ({"reasoning_effort": "enormous"}, None, "enormous"),
    ({"stream_options": 5}, "stream_options", ""), ({"stream": "yes"}, "stream", "boolean"),
    ({"seed": 1.5}, "seed", "integer"), ({"seed": 2 ** 64}, "seed", "an integer in"),
    ({"seed": -2 ** 63 - 1}, "seed", "an integer in"), ({"seed": "5"}, "seed", "integer"),
    ({"seed": 1e30}, "seed", "integer"),
    ({"input_ids": [10 ** 6], "messages": None}, "input_ids", "out of range"),
    ({"ignore_eos": 3}, "ignore_eos", "boolean"), ({"rid": 5}, "rid", "string"),
]
COMPLETIONS = [
    ({"prompt": None}, "prompt", ""), ({"prompt": 5}, "prompt", ""), ({"prompt": []}, "prompt", ""),
    ({"prompt": ""}, "prompt", ""), ({"prompt": [10 ** 9]}, "prompt", "out of range"),
    ({"prompt": [[1], "x"]}, "prompt[1]", ""), ({"prompt": "a", "max_tokens": 0}, "max_tokens", ""),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens", ""), ({"prompt": "a", "logprobs": 21}, "logprobs", ""),
    ({"prompt": "a", "suffix": "b"}, "suffix", ""), ({"prompt": "a", "n": 3, "best_of": 2}, "best_of", "[3, 128]"),
    ({"prompt": "a", "best_of": 129}, "best_of", "129"), ({"prompt": "a", "presence_penalty": 3}, "presence_penalty", ""),
    ({"prompt": "a", "logit_bias": {"a": 3}}, "logit_bias", ""), ({"prompt": "a", "debug": {}}, "debug", "--debug-hooks"),
    ({"prompt": "a", "temperature": 3}, "temperature", ""), ({"prompt": "a", "n": 0}, "n", ""),
    ({"prompt": "a", "regex": "a("}, "regex", "at byte 2"), ({"prompt": "a", "guided_json": "{"}, "guided_json", "Invalid JSON"),
]
GENERATE = [
    ({}, "text", "exactly one"), ({"text": "a", "input_ids": [1]}, "input_ids", "exactly one"),
    ({"text": 5}, "text", ""), ({"text": []}, "text", ""), ({"text": ["a", 5]}, "text[1]", ""),
    ({"input_ids": [10 ** 9]}, "input_ids", "out of range"), ({"input_ids": [[1], [-1]]}, "input_ids[1]", ""),
    ({"text": "a", "sampling_params": 5}, "sampling_params", ""),
    ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params", ""),
    ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens", ""),
    ({"text": "a", "sampling_params": {"top_p": 0}}, "sampling_params.top_p", ""),
    ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature", ""),
    ({"text": "a", "sampling_params": {"frequency_penalty": 3}}, "sampling_params.frequency_penalty", ""),
    ({"text": "a", "sampling_params": {"repetition_penalty": -1}}, "sampling_params.repetition_penalty", ""),
    ({"text": "a", "sampling_params": {"logit_bias": {"7": 101}}}, "sampling_params.logit_bias",
     "sampling_params.logit_bias.7"),
    ({"text": "a", "debug": {"force_ids": []}}, "debug", "--debug-hooks"),
    ({"text": "a", "sampling_params": {"regex": "a("}}, "sampling_params.regex", "sampling_params.regex: at byte 2"),
    ({"text": "a", "sampling_params": {"json_schema": "{}", "ebnf": "a"}}, "sampling_params.ebnf", "exclude each other"),
    ({"text": ["a", "b"], "sampling_params": [{"regex": "a"}, {"ebnf": "x"}]}, "sampling_params[1].ebnf", "line 1"),
    ({"text": "a", "lora_path": "x"}, "lora_path", ""), ({"text": "a", "image_data": "x"}, "image_data", ""),
    ({"text": "a", "return_hidden_states": True}, "return_hidden_states", ""),
    ({"text": "a", "return_logprob": True, "logprob_start_len": 99}, "logprob_start_len", ""),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num", ""),
]


class Refusals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server(flags=["--context-length", "2048"])

    @classmethod
    def tearDownClass(cls):
        cls.s.wait_idle()
        cls.s.stop()

    def check(self, r, param, words, status=400):
        self.assertEqual(r.status, status, r.body)
        self.assertEqual(r.headers["content-type"], "application/json")
        j = r.json()
        e = j["error"]
        self.assertEqual(j["object"], "error")
        self.assertEqual(j["message"], e["message"])
        self.assertEqual(set(e) - {"n_prompt_tokens", "n_ctx"}, {"message", "type", "param", "code"})
        self.assertIn(words, e["message"])
        if status == 400:
            self.assertEqual(e["type"], "invalid_request_error")
        if param:
            self.assertEqual(e["param"], param)
        if param and not words:
            self.assertIn(param.split(".")[-1].split("[")[0], e["message"].lower())

    def test_chat(self):
        for stream in (False, True):
            for extra, param, words in CHAT:
                with self.subTest(extra=str(extra)[:80], stream=stream):
                    body = dict({"messages": HI, "stream": stream}, **extra)
                    self.check(self.s.post("/v1/chat/completions", body), param, words)

    def test_completions(self):
        for stream in (False, True):
            for body, param, words in COMPLETIONS:
                with self.subTest(body=body, stream=stream):
                    self.check(self.s.post("/v1/completions", dict({"stream": stream}, **body)), param, words)

    def test_generate(self):
        for stream in (False, True):
            for body, param, words in GENERATE:
                with self.subTest(body=body, stream=stream):
                    r = self.s.post("/generate", dict({"stream": stream}, **body))
                    self.assertEqual(r.status, 400, r.body)
                    e = r.json()["error"]
                    self.assertEqual(e["code"], 400)
                    self.assertEqual(e["type"], "invalid_request_error")
                    self.assertEqual(e["param"], param)
                    self.assertIn(words, e["message"])

    def test_bodies(self):
        for body, code in ((b"", "invalid_json"), (b"{", "invalid_json"), (b"{\"a\":1}x", "invalid_json"),
                           (b"[1]", "invalid_type"), (b"5", "invalid_type"), (b"\xff\xfe", "invalid_json"),
                           (b'{"messages":"\\ud800"}', "invalid_json"), (b"\xef\xbb\xbf", "invalid_json")):
            for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
                r = self.s.post(path, body)
                self.check(r, None, "", 400)
                self.assertEqual(r.json()["error"]["code"], code, body)
        self.assertIn("Invalid JSON at byte 1", self.s.post("/v1/completions", b"{").json()["message"])

    def test_lenient_json(self):
        """A BOM, unknown keys, null values, duplicate keys, any content type are fine."""
        body = b'\xef\xbb\xbf{"prompt":"x","unknown":{"a":[1]},"temperature":null,"stop":null,' \
               b'"max_tokens":5,"prompt":"hi","logit_bias":{},"frequency_penalty":0.0,"n":null}'
        r = self.s.post("/v1/completions", body, [("Content-Type", "text/plain")])
        self.assertEqual(r.status, 200, r.body)

    def test_context_overflow(self):
        for path, body, param in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b " * 2000}]},
                                   "messages"),
                                  ("/v1/completions", {"prompt": "a b " * 2000}, "prompt")):
            for stream in (False, True):
                r = self.s.post(path, dict(body, stream=stream))
                self.check(r, param, "This model's maximum context length is 2048 tokens.")
                e = r.json()["error"]
                self.assertEqual(e["code"], "context_length_exceeded")
                self.assertEqual(e["n_ctx"], 2048)
                self.assertGreater(e["n_prompt_tokens"], 2048)
                self.assertIn("The input (%d tokens) is longer than the model's context length (2048 tokens)."
                              % e["n_prompt_tokens"], e["message"])
        r = self.s.post("/generate", {"input_ids": [5] * 2048})
        self.assertEqual(r.json()["error"]["n_prompt_tokens"], 2048)
        r = self.s.post("/generate", {"input_ids": [5] * 2047, "sampling_params": {"max_new_tokens": 1}})
        self.assertEqual(r.status, 200)

    def test_large_max_tokens_is_clamped(self):
        for n in (384000, 10 ** 9, 2 ** 62):
            r = self.s.chat(max_tokens=n)
            self.assertEqual(r.status, 200)
            self.assertLess(int(r.headers["x-max-tokens"]), 2048)
        self.assertEqual(self.s.chat(max_tokens=None).status, 200)
        self.assertEqual(self.s.chat(max_tokens=1).json()["usage"]["completion_tokens"], 1)

    def test_model_names(self):
        self.assertEqual(self.s.chat(model="anything").json()["model"], "anything")
        with Server(flags=["--strict-model-name"]) as s:
            r = s.chat(model="anything")
            self.check(r, "model", "anything", 404)
            self.assertEqual(r.json()["error"]["code"], "model_not_found")
            self.assertEqual(s.chat(model="test").status, 200)
        self.assertEqual(self.s.get("/v1/models/anything").status, 404)
        self.assertEqual(self.s.get("/v1/models/test").json()["id"], "test")

    def test_strict_max_tokens(self):
        with Server(flags=["--strict-max-tokens", "--context-length", "1024"]) as s:
            self.check(s.chat(max_completion_tokens=5000), "max_completion_tokens", "too large")


class EngineFailures(unittest.TestCase):
    def test_queue_full(self):
        for status in (503, 429):
            with Server(script={"submit": "full"}, flags=["--skip-server-warmup", "--queue-full-status",
                                                          str(status)]) as s:
                for stream in (False, True):
                    r = s.chat(stream=stream)
                    self.assertEqual(r.status, status)
                    self.assertEqual(r.headers["retry-after"], "1")
                    e = r.json()["error"]
                    self.assertEqual((e["type"], e["code"], e["message"]),
                                     ("overloaded_error", "queue_full", "The request queue is full."))
                r = s.post("/generate", {"text": "a", "stream": True})
                self.assertEqual(r.status, status)
                self.assertEqual(r.json()["error"]["code"], status)
                s.wait_idle()

    def test_failure_before_and_within_a_stream(self):
        with Server() as s:
            s.script(text="a b c d e f g h", fail_after=0)
            for stream in (False, True):
                r = s.chat(stream=stream)
                self.assertEqual(r.status, 500)
                self.assertEqual(r.json()["error"]["type"], "server_error")
                self.assertIn("not numbers", r.json()["error"]["message"])
            s.script(text="a b c d e f g h", fail_after=4, token_ms=5)
            self.assertEqual(s.chat().status, 500)
            for path, body in (("/v1/chat/completions", {"messages": HI}), ("/v1/completions", {"prompt": "a"}),
                               ("/generate", {"text": "a"})):
                with s.connect() as c:
                    from harness import request_bytes
                    c.send(request_bytes("POST", path, dict(body, stream=True)))
                    self.assertEqual(c.head()[0], 200)
                    body = b""
                    with self.assertRaises((EOFError, ValueError)):  # no last chunk
                        while True:
                            body += c.chunk()
                    last = events(body)[-1]
                    self.assertEqual(last["error"]["code"], 500)
                    self.assertEqual(last["error"]["type"], "server_error")
                    self.assertNotIn(b"[DONE]", body)
            s.wait_idle()

    def test_request_timeout(self):
        with Server(script={"text": "a b c", "prefill_ms": 5000}, flags=["--request-timeout", "0.3",
                                                                         "--skip-server-warmup"]) as s:
            r = s.chat()
            self.assertEqual(r.status, 503)
            self.assertEqual(r.json()["error"]["code"], "timeout")
            s.wait_idle()

    def test_starting(self):
        with Server(env={"FST_FAKE_OPEN_MS": "1500"}, wait=False) as s:
            import time
            for _ in range(200):
                try:
                    r = s.get("/health")
                    break
                except OSError:
                    time.sleep(0.01)
            self.assertEqual((r.status, r.json()["status"]), (503, "starting"))
            r = s.chat()
            self.assertEqual((r.status, r.json()["error"]["message"]), (503, "Loading model"))
            self.assertEqual(r.json()["error"]["type"], "unavailable_error")
            self.assertEqual(s.get("/metrics").status, 200)
            self.assertEqual(s.get("/server_info").status, 200)
            s.wait_ready()

    def test_open_failure(self):
        s = Server(env={"FST_FAKE_OPEN_FAIL": "1"}, wait=False)
        text = s.stop(signum=0, expect=1)
        self.assertIn("embed.weight is missing", text)


if __name__ == "__main__":
    unittest.main()
