"""The server over the real engine and the bundled model."""

import os
import random
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server, in_threads, request_bytes  # noqa: E402
from test_chat import join  # noqa: E402


class Real(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server(fake=False, flags=["--random-seed", "1"])

    @classmethod
    def tearDownClass(cls):
        cls.s.wait_idle()
        cls.s.stop()

    def generate(self, s=None, text="Hello there", n=24, **kw):
        r = (s or self.s).post("/generate", {"text": text, "sampling_params": dict({
            "max_new_tokens": n, "ignore_eos": True, "temperature": 0}, **kw)})
        self.assertEqual(r.status, 200, r.body)
        return r.json()

    def test_stream_equals_plain(self):
        for kw in ({"temperature": 0}, {"seed": 3}, {"seed": 3, "thinking": {"type": "disabled"}},
                   {"temperature": 0, "logprobs": True, "top_logprobs": 3}):
            plain = self.s.chat("What is 17 + 25?", max_tokens=40, **kw).json()
            evs = self.s.stream("What is 17 + 25?", max_tokens=40, stream_options={"include_usage": True}, **kw)
            j, c = join(evs), plain["choices"][0]
            self.assertEqual(j["content"], c["message"]["content"] or "")
            self.assertEqual(j["reasoning"], c["message"]["reasoning_content"] or "")
            self.assertEqual(j["finish"], c["finish_reason"])
            self.assertEqual(evs[-2]["usage"], plain["usage"])
            if "logprobs" in kw:
                got = [t for e in evs if isinstance(e, dict) for ch in e["choices"] if ch["logprobs"]
                       for t in ch["logprobs"]["content"]]
                self.assertEqual(got, c["logprobs"]["content"])

    def test_alone_or_in_company(self):
        """Seeded text does not depend on neighbours, drafting or the KV layout."""
        alone = [self.generate(text="prompt %d" % i, temperature=1, sampling_seed=i)["output_ids"]
                 for i in range(8)]
        together = [None] * 8

        def one(i):
            together[i] = self.generate(text="prompt %d" % i, temperature=1, sampling_seed=i)["output_ids"]
        in_threads(8, one)
        self.assertEqual(alone, together)
        with Server(fake=False, flags=["--speculative-algorithm", "none", "--kv-layout", "unified-bf16",
                                       "--threads", "1"]) as s:
            self.assertIsNone(s.state()["avg_spec_accept_length"])
            self.assertEqual([self.generate(s, text="prompt %d" % i, temperature=1,
                                            sampling_seed=i)["output_ids"] for i in range(8)], alone)

    def test_n_choices_differ(self):
        r = self.s.post("/v1/completions", {"prompt": "Hello", "n": 3, "seed": 5, "max_tokens": 12,
                                            "ignore_eos": True}).json()
        self.assertEqual(len({c["text"] for c in r["choices"]}), 3)
        again = self.s.post("/v1/completions", {"prompt": "Hello", "n": 3, "seed": 5, "max_tokens": 12,
                                                "ignore_eos": True}).json()
        self.assertEqual([c["text"] for c in r["choices"]], [c["text"] for c in again["choices"]])

    def test_decode_and_prefill_logprobs_agree(self):
        """What decoding reports is what scoring the same ids reports, bit for bit."""
        prompt = self.s.post("/tokenize", {"prompt": "Hello there"}).json()["tokens"]
        r = self.s.post("/generate", {"input_ids": prompt, "return_logprob": True, "sampling_params": {
            "max_new_tokens": 32, "ignore_eos": True, "sampling_seed": 1}}).json()
        dec = [e[0] for e in r["meta_info"]["output_token_logprobs"]]
        s = self.s.post("/generate", {"input_ids": prompt + r["output_ids"], "return_logprob": True,
                                      "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}}).json()
        self.assertEqual([e[0] for e in s["meta_info"]["input_token_logprobs"]][len(prompt):], dec)

    def test_echo_scoring(self):
        r = self.s.post("/v1/completions", {"prompt": "Hello there", "echo": True, "logprobs": 2,
                                            "max_tokens": 0}).json()["choices"][0]
        self.assertEqual(len(r["logprobs"]["tokens"]), len(r["logprobs"]["token_logprobs"]))
        self.assertTrue(all(x < 0 for x in r["logprobs"]["token_logprobs"][1:]))
        for top in r["logprobs"]["top_logprobs"][1:]:
            self.assertLessEqual(len(top), 2)

    def test_accept_length(self):
        self.assertEqual(self.s.post("/set_internal_state", {"reset_spec_stats": True}).status, 200)
        time.sleep(0.2)
        done = verify = 0
        for i in range(4):
            m = self.generate(text="count %d" % i, n=40)["meta_info"]
            done += m["completion_tokens"]
            verify += m["spec_verify_ct"]
        st = self.s.state()
        self.assertEqual(st["spec_verify_steps"], verify)
        self.assertAlmostEqual(st["avg_spec_accept_length"],
                               (st["spec_accepted"] + verify) / verify, places=6)
        self.assertGreaterEqual(st["avg_spec_accept_length"], 1)
        self.assertLessEqual(done, st["spec_accepted"] + verify + 4)

    def test_random_cancels(self):
        n = 200 if os.environ.get("FST_TEST_SIZE") != "long" else 1000
        want = self.generate(n=16)["output_ids"]

        def clients(k):
            r = random.Random(k)
            for _ in range(n // 10):
                c = self.s.connect()
                c.send(request_bytes("POST", "/v1/chat/completions", {
                    "messages": [{"role": "user", "content": "word " * r.choice([1, 50, 600])}],
                    "stream": r.random() < 0.5, "max_tokens": 300, "n": r.choice([1, 2])}))
                time.sleep(r.random() * 0.4)
                if r.random() < 0.5:
                    c.reset()
                else:
                    c.close()
        in_threads(10, clients)
        st = self.s.wait_idle(20)
        self.assertEqual((st["slots_used"], st["kv_tokens_used"], st["num_waiting"]), (0, 0, 0))
        self.assertEqual(self.generate(n=16)["output_ids"], want)

    def test_metrics_count_tokens(self):
        from test_info import parse
        def get():
            v, _ = parse(self.s.get("/metrics").text)
            return [list(v["sglang:" + k].values())[0] for k in ("prompt_tokens_total", "generation_tokens_total",
                                                                 "spec_verify_calls_total")]
        before = get()
        m = self.generate(n=30)["meta_info"]
        self.assertEqual([a - b for a, b in zip(get(), before)],
                         [m["prompt_tokens"], m["completion_tokens"], m["spec_verify_ct"]])

    def test_full_queue(self):
        with Server(fake=False, flags=["--max-running-requests", "1", "--max-queued-requests", "2"]) as s:
            codes = []

            def one():
                codes.append(s.post("/generate", {"text": "a", "sampling_params": {
                    "max_new_tokens": 200, "ignore_eos": True}}).status)
            threads = [threading.Thread(target=one) for _ in range(12)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(set(codes), {200, 503})
            self.assertGreaterEqual(codes.count(200), 3)
            s.wait_idle()

    def test_context_edge(self):
        with Server(fake=False, flags=["--context-length", "512"]) as s:
            for n, status in ((511, 200), (512, 400)):
                r = s.post("/generate", {"input_ids": [5] * n, "sampling_params": {"max_new_tokens": 50,
                                                                                   "ignore_eos": True}})
                self.assertEqual(r.status, status)
                if status == 200:
                    self.assertEqual(r.json()["meta_info"]["finish_reason"], {"type": "length", "length": 1})


if __name__ == "__main__":
    unittest.main()
