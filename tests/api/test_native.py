"""/v1/completions and /generate over scripted replies; /tokenize and /detokenize."""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server, events  # noqa: E402


class Completions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server()

    @classmethod
    def tearDownClass(cls):
        cls.s.wait_idle()
        cls.s.stop()

    def post(self, **kw):
        r = self.s.post("/v1/completions", kw)
        self.assertEqual(r.status, 200, r.body)
        return r.json() if not kw.get("stream") else events(r.body)

    def ids(self, text):
        return self.s.post("/tokenize", {"prompt": text}).json()["tokens"]

    def test_plain(self):
        self.s.script(text=" 18. Done</think>")
        r = self.post(prompt="abc")
        self.assertEqual(r["object"], "text_completion")
        self.assertEqual(r["choices"][0]["text"], " 18. Done</think>")
        self.assertEqual(r["usage"]["prompt_tokens"], len(self.ids("abc")))
        self.assertTrue(r["id"].startswith("cmpl-"))
        self.assertEqual(r["usage"]["reasoning_tokens"], 0)
        evs = self.post(prompt="abc", stream=True, stream_options={"include_usage": True})
        self.assertEqual("".join(e["choices"][0]["text"] for e in evs[:-2]), " 18. Done</think>")
        self.assertEqual(evs[-2]["usage"], r["usage"])
        self.assertEqual(evs[-1], "[DONE]")

    def test_default_max_tokens(self):
        self.s.script(text="word " * 50)
        r = self.post(prompt="abc")
        self.assertEqual((r["usage"]["completion_tokens"], r["choices"][0]["finish_reason"]), (16, "length"))

    def test_prompts_and_n(self):
        self.s.script(replies=["one", "two"])
        r = self.post(prompt=["a b", "c d e"], n=2)
        self.assertEqual([(c["index"], c["text"]) for c in r["choices"]],
                         [(0, "one"), (1, "two"), (2, "one"), (3, "two")])
        self.assertEqual(r["usage"]["prompt_tokens"], len(self.ids("a b")) + len(self.ids("c d e")))
        r = self.post(prompt=[self.ids("a b"), [7]])
        self.assertEqual(r["usage"]["prompt_tokens"], len(self.ids("a b")) + 1)
        self.assertEqual(self.post(prompt=[5, 6, 7])["usage"]["prompt_tokens"], 3)
        evs = self.post(prompt=["a b", "c"], n=2, stream=True)
        for i, want in enumerate(["one", "two", "one", "two"]):
            self.assertEqual("".join(e["choices"][0]["text"] for e in evs[:-1]
                                     if e["choices"][0]["index"] == i), want)

    def test_echo_and_logprobs(self):
        self.s.script(text=" yes no")
        r = self.post(prompt="ab cd", echo=True, logprobs=2, max_tokens=2)
        c = r["choices"][0]
        self.assertTrue(c["text"].startswith("ab cd yes"))
        n = len(self.ids("ab cd"))
        lp = c["logprobs"]
        for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(len(lp[k]), n + 2, k)
        self.assertEqual("".join(lp["tokens"]), c["text"])
        self.assertEqual(lp["text_offset"][0], 0)
        for i, at in enumerate(lp["text_offset"]):
            self.assertEqual(c["text"][at:at + len(lp["tokens"][i])], lp["tokens"][i])
        self.assertIsNone(lp["token_logprobs"][0])
        self.assertTrue(all(isinstance(x, float) for x in lp["token_logprobs"][1:]))
        # scoring alone
        r = self.post(prompt="ab cd", echo=True, logprobs=0, max_tokens=0)
        self.assertEqual((r["choices"][0]["text"], r["usage"]["completion_tokens"]), ("ab cd", 0))
        self.assertEqual(len(r["choices"][0]["logprobs"]["tokens"]), n)
        # the pieces of a stream put together are the same
        evs = self.post(prompt="ab cd", echo=True, logprobs=2, max_tokens=2, stream=True)
        got = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for e in evs[:-1]:
            if e["choices"][0]["logprobs"]:
                for k in got:
                    got[k] += e["choices"][0]["logprobs"][k]
        self.assertEqual(got, lp)

    def test_prompt_logprobs_are_shared(self):
        """Computed once, by the first choice; the same in all of them, streamed or not."""
        self.s.script(replies=[" yes no", " or", " so"], prefill_ms=30)
        kw = dict(prompt=["ab cd", "e"], n=3, echo=True, logprobs=2, max_tokens=2)
        r = self.post(**kw)["choices"]
        for i, prompt in enumerate(["ab cd"] * 3 + ["e"] * 3):
            n = len(self.ids(prompt))
            for k in ("tokens", "token_logprobs", "top_logprobs"):
                self.assertEqual(r[i]["logprobs"][k][:n], r[i // 3 * 3]["logprobs"][k][:n])
            self.assertTrue(all(isinstance(x, float) for x in r[i]["logprobs"]["token_logprobs"][1:n]))
        evs = self.post(stream=True, **kw)
        for i in range(6):
            got = [x for e in evs[:-1] if e["choices"][0]["index"] == i and e["choices"][0]["logprobs"]
                   for x in e["choices"][0]["logprobs"]["token_logprobs"]]
            self.assertEqual(got, r[i]["logprobs"]["token_logprobs"])
        g = self.s.post("/generate", {"text": "ab cd", "return_logprob": True, "logprob_start_len": 0,
                                      "top_logprobs_num": 2, "sampling_params": {"n": 3}}).json()
        for c in g[1:]:
            for k in ("input_token_logprobs", "input_top_logprobs"):
                self.assertEqual(c["meta_info"][k], g[0]["meta_info"][k])
        self.assertIsNotNone(g[2]["meta_info"]["input_token_logprobs"][-1][0])

    def test_long_names_stay_apart(self):
        rid = "r" * 300
        r = self.s.post("/generate", {"text": "abc", "rid": rid, "sampling_params": {"n": 2}}).json()
        self.assertEqual([c["meta_info"]["id"] for c in r], [rid + "_0", rid + "_1"])

    def test_prompts_are_counted_before_they_are_read(self):
        """A million prompts must not first become a million token lists and parameter sets."""
        many = b",".join([b'"a"'] * 1000000)
        with Server(flags=["--skip-server-warmup"]) as s:
            for path, body in (("/v1/completions", b'{"prompt":[%s]}' % many),
                               ("/generate", b'{"text":[%s],"sampling_params":[%s]}' %
                                (many, b",".join([b"{}"] * 1000000)))):
                r = s.post(path, body)
                self.assertEqual((r.status, r.json()["error"]["param"]), (400, "n"))
                self.assertIn("at most 4096, got 1000000", r.json()["error"]["message"])
            with open("/proc/%d/status" % s.proc.pid) as f:
                peak = [int(line.split()[1]) for line in f if line.startswith("VmHWM")][0]
            if "asan" not in os.environ.get("FST_BUILD", "") and "tsan" not in os.environ.get("FST_BUILD", ""):
                self.assertLess(peak, 512 << 10)

    def test_copies_of_prompts_are_bounded(self):
        prompts = [[5] * 60000] * 20
        for path, body in (("/v1/completions", {"prompt": prompts, "n": 128}),
                           ("/v1/completions", {"prompt": [[5] * 60000] * 60, "n": 1, "echo": True, "logprobs": 20}),
                           ("/generate", {"input_ids": prompts, "sampling_params": {"n": 128}})):
            r = self.s.post(path, body)
            self.assertEqual(r.status, 400)
            self.assertIn("256 MiB", r.text)
            self.assertEqual(r.json()["error"]["param"], "n")

    def test_stop_and_token_ids(self):
        self.s.script(text="one two END three")
        r = self.post(prompt="x", stop=["END"], return_token_ids=True)
        c = r["choices"][0]
        self.assertEqual((c["text"], c["finish_reason"], c["matched_stop"]), ("one two ", "stop", "END"))
        self.assertEqual(len(c["token_ids"]), r["usage"]["completion_tokens"])
        self.assertEqual(c["prompt_token_ids"], self.ids("x"))
        stop_id = self.ids(" two")[0]
        c = self.post(prompt="x", stop_token_ids=[stop_id])["choices"][0]
        self.assertEqual((c["finish_reason"], c["matched_stop"]), ("stop", stop_id))
        c = self.post(prompt="x", ignore_eos=True, max_tokens=30)["choices"][0]
        self.assertEqual(c["finish_reason"], "length")


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server(script={"text": " 18. Question: more"})

    @classmethod
    def tearDownClass(cls):
        cls.s.wait_idle()
        cls.s.stop()

    def setUp(self):
        self.s.script(text=" 18. Question: more")

    def post(self, **kw):
        r = self.s.post("/generate", kw)
        self.assertEqual(r.status, 200, r.body)
        return r.json() if not kw.get("stream") else events(r.body)

    def test_plain(self):
        r = self.post(text="abc", sampling_params={"stop": ["Question"], "max_new_tokens": 512}, rid="r1")
        self.assertEqual(r["text"], " 18. ")
        m = r["meta_info"]
        self.assertEqual((m["id"], m["finish_reason"]), ("r1", {"type": "stop", "matched": "Question"}))
        self.assertEqual(m["completion_tokens"], len(r["output_ids"]))
        self.assertEqual(m["cached_tokens"], 0)
        self.assertEqual(m["weight_version"], "default")
        self.assertIn("e2e_latency", m)
        self.assertIn("spec_accept_length", m)
        r = self.post(input_ids=[5, 6], sampling_params={"max_new_tokens": 3})
        self.assertEqual(r["meta_info"]["finish_reason"], {"type": "length", "length": 3})
        self.assertEqual(r["meta_info"]["prompt_tokens"], 2)
        r = self.post(text="abc", sampling_params={"max_new_tokens": 0})
        self.assertEqual((r["text"], r["output_ids"]), ("", []))

    def test_lists(self):
        r = self.post(text=["a", "b c"], sampling_params={"max_new_tokens": 2})
        self.assertEqual([x["text"] for x in r], [" 18", " 18"][:2] if r[0]["text"] == " 18" else
                         [r[0]["text"]] * 2)
        self.assertEqual(len(r), 2)
        r = self.post(input_ids=[[5], [6]], sampling_params=[{"max_new_tokens": 1}, {"max_new_tokens": 2}])
        self.assertEqual([len(x["output_ids"]) for x in r], [1, 2])
        self.assertEqual(len(self.post(text="a", sampling_params={"n": 3, "max_new_tokens": 1})), 3)
        self.assertIsInstance(self.post(text=["a"]), list)

    def test_stream_is_cumulative(self):
        evs = self.post(text="abc", stream=True)
        self.assertEqual(evs[-1], "[DONE]")
        texts = [e["text"] for e in evs[:-1]]
        for a, b in zip(texts, texts[1:]):
            self.assertTrue(b.startswith(a))
        self.assertEqual(texts[-1], " 18. Question: more")
        self.assertEqual([e["meta_info"]["finish_reason"] for e in evs[:-2]], [None] * (len(evs) - 2))
        self.assertEqual(evs[-2]["meta_info"]["finish_reason"]["type"], "stop")
        evs = self.post(text=["a", "b"], stream=True)
        self.assertEqual({e["index"] for e in evs[:-1]}, {0, 1})

    def test_incremental(self):
        with Server(script={"text": " 18. Question: more"}, flags=["--incremental-streaming-output"]) as s:
            evs = events(s.post("/generate", {"text": "a", "stream": True}).body)
            self.assertEqual("".join(e["text"] for e in evs[:-1]), " 18. Question: more")
            self.assertEqual(sum(len(e["output_ids"]) for e in evs[:-1]),
                             evs[-2]["meta_info"]["completion_tokens"])

    def test_logprobs(self):
        r = self.post(text="ab cd ef", return_logprob=True, logprob_start_len=0, top_logprobs_num=2,
                      return_text_in_logprobs=True)
        m = r["meta_info"]
        self.assertEqual(len(m["input_token_logprobs"]), m["prompt_tokens"])
        self.assertIsNone(m["input_token_logprobs"][0][0])
        self.assertEqual(len(m["output_token_logprobs"]), m["completion_tokens"])
        self.assertEqual([e[1] for e in m["output_token_logprobs"]], r["output_ids"])
        self.assertEqual(len(m["output_top_logprobs"][0]), 2)
        self.assertEqual("".join(e[2] for e in m["input_token_logprobs"]), "ab cd ef")
        m = self.post(text="ab cd ef", return_logprob=True)["meta_info"]
        self.assertEqual(len(m["input_token_logprobs"]), 1)
        self.assertIsNone(m["output_token_logprobs"][0][2])
        self.assertNotIn("output_top_logprobs", m)

    def test_no_comments_ever(self):
        with Server(script={"text": "a b c", "prefill_ms": 900, "token_ms": 300},
                    flags=["--sse-keepalive-interval", "0.1"]) as s:
            body = s.post("/generate", {"text": "a", "stream": True}).body
            for line in body.split(b"\n"):
                self.assertTrue(not line or line.startswith(b"data: "), line)


class Text(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server()

    @classmethod
    def tearDownClass(cls):
        cls.s.stop()

    def test_round_trip(self):
        for text in ("", "hello world", "é 🚀 नमस्ते\n\t", "<think>x</think>"):
            r = self.s.post("/tokenize", {"prompt": text}).json()
            self.assertEqual(r["count"], len(r["tokens"]))
            self.assertEqual(r["max_model_len"], 65536)
            self.assertEqual(self.s.post("/detokenize", {"tokens": r["tokens"]}).json()["text"], text)
            self.assertEqual(self.s.post("/v1/tokenize", {"content": text}).json()["tokens"], r["tokens"])
        r = self.s.post("/tokenize", {"prompt": ["a b", "c"]}).json()
        self.assertEqual(r["count"], [len(t) for t in r["tokens"]])
        r = self.s.post("/tokenize", {"content": "a b", "with_pieces": True}).json()
        self.assertEqual("".join(t["piece"] for t in r["tokens"]), "a b")
        special = self.s.post("/tokenize", {"content": "<think>"}).json()["count"]
        plain = self.s.post("/tokenize", {"content": "<think>", "parse_special": False}).json()["count"]
        self.assertEqual(special, 1)
        self.assertGreater(plain, 1)
        r = self.s.post("/v1/detokenize", {"tokens": [[72], []]}).json()
        self.assertEqual(len(r["text"]), 2)

    def test_template(self):
        body = {"messages": [{"role": "user", "content": "hi"}]}
        prompt = self.s.post("/apply-template", body).json()["prompt"]
        self.assertTrue(prompt.endswith("<think>"))
        count = self.s.post("/tokenize", body).json()["count"]
        self.assertEqual(count, self.s.post("/tokenize", {"prompt": prompt}).json()["count"])
        self.assertEqual(count, self.s.chat().json()["usage"]["prompt_tokens"])

    def test_refusals(self):
        for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": 5}), ("/tokenize", {"prompt": "a", "content": "b"}),
                           ("/detokenize", {}), ("/detokenize", {"tokens": "a"}), ("/detokenize", {"tokens": [-1]}),
                           ("/detokenize", {"tokens": [10 ** 9]}), ("/tokenize", {"messages": 5})):
            self.assertEqual(self.s.post(path, body).status, 400, (path, body))

    def test_parse_calls(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"n": {"type": "integer"}}}}}]
        def call(name, params):
            return ("<｜DSML｜invoke name=\"%s\">\n%s\n</｜DSML｜invoke>" % (name, "\n".join(
                "<｜DSML｜parameter name=\"%s\" string=\"%s\">%s</｜DSML｜parameter>" % p for p in params)))
        block = "\n\n<｜DSML｜tool_calls>\n%s\n</｜DSML｜tool_calls>"
        two = block % (call("f", [("n", "false", "3")]) + "\n" + call("g", [("s", "true", "a \"b\"")]))
        r = self.s.post("/parse_function_call", {"text": "Let me see." + two, "tools": tools}).json()
        self.assertEqual(r["normal_text"], "Let me see.")
        self.assertEqual([(c["tool_index"], c["name"], json.loads(c["parameters"])) for c in r["calls"]],
                         [(0, "f", {"n": 3}), (1, "g", {"s": "a \"b\""})])
        # The tool's types guide repairs: a number that was sent as text.
        r = self.s.post("/parse_function_call", {"text": block % call("f", [("n", "true", "3")]), "tools": tools}).json()
        self.assertEqual(json.loads(r["calls"][0]["parameters"]), {"n": 3})
        r = self.s.post("/parse_function_call", {"text": "no call", "tool_call_parser": "deepseekv4"}).json()
        self.assertEqual(r, {"normal_text": "no call", "calls": []})
        for body, param in (({}, "text"), ({"text": 5}, "text"), ({"text": "", "tools": 5}, "tools"),
                            ({"text": "", "tools": [{"function": {}}]}, "tools[0].function.name"),
                            ({"text": "", "tool_call_parser": "qwen"}, "tool_call_parser")):
            r = self.s.post("/parse_function_call", body)
            self.assertEqual((r.status, r.json()["error"]["param"]), (400, param), body)

    def test_separate_reasoning(self):
        for text, reasoning, rest in (("<think>why</think>because", "why", "because"), ("why</think>\n\nbecause", "why", "because"),
                                      ("<think>unclosed", "unclosed", ""), ("plain <think> text", "", "plain <think> text"),
                                      ("", "", "")):
            r = self.s.post("/separate_reasoning", {"text": text, "reasoning_parser": "deepseek-v4"}).json()
            self.assertEqual(r, {"reasoning_text": reasoning, "text": rest}, text)
        for body, param in (({}, "text"), ({"text": "", "reasoning_parser": 1}, "reasoning_parser"),
                            ({"text": "", "reasoning_parser": "other"}, "reasoning_parser")):
            r = self.s.post("/separate_reasoning", body)
            self.assertEqual((r.status, r.json()["error"]["param"]), (400, param), body)

    def test_large(self):
        r = self.s.post("/tokenize", {"prompt": "word " * 50000}).json()
        self.assertEqual(self.s.post("/detokenize", {"tokens": r["tokens"]}).json()["text"], "word " * 50000)


if __name__ == "__main__":
    unittest.main()
