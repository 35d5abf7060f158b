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


def spent(usage):
    """Usage without what depends on who asked before."""
    return {k: v for k, v in usage.items() if "cache" not in k and k != "prompt_tokens_details"}


class Real(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Whole blocks in every round: what auto leaves out depends on the machine.
        cls.s = Server(fake=False, flags=["--random-seed", "1", "--verify-mode", "static"])

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
            self.assertEqual(spent(evs[-2]["usage"]), spent(plain["usage"]))
            if "logprobs" in kw:
                got = [t for e in evs if isinstance(e, dict) for ch in e["choices"] if ch["logprobs"]
                       for t in ch["logprobs"]["content"]]
                self.assertEqual(got, c["logprobs"]["content"])

    def test_known_prompts(self):
        """A turn computes what is new; the text is that of a server that keeps nothing."""
        with Server(fake=False) as s, Server(fake=False, flags=["--disable-radix-cache"]) as cold:
            messages, known = [], 0
            for turn in range(5):
                messages.append({"role": "user", "content": "Count from %d to %d." % (turn, turn + 4)})
                kw = {"temperature": 0, "max_tokens": 30, "thinking": {"type": "disabled"}}
                got, want = (x.chat(messages=messages, **kw).json() for x in (s, cold))
                self.assertEqual(got["choices"], want["choices"])
                self.assertEqual(spent(got["usage"]), spent(want["usage"]))
                self.assertEqual(want["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
                self.assertGreaterEqual(got["usage"]["prompt_tokens_details"]["cached_tokens"], known)
                # an answer that was cut off is not followed by what ends a whole one
                whole = got["choices"][0]["finish_reason"] == "stop"
                known = got["usage"]["total_tokens" if whole else "prompt_tokens"] - 1
                messages.append({"role": "assistant", "content": got["choices"][0]["message"]["content"]})
            self.assertGreater(known, 100)
            self.assertFalse(s.get("/get_server_info").json()["disable_radix_cache"])
            self.assertTrue(cold.get("/get_server_info").json()["disable_radix_cache"])
            same = {"max_tokens": 4, "temperature": 0}
            hits = [s.chat("Say it again.", **same).json()["usage"]["prompt_cache_hit_tokens"] for _ in (0, 1)]
            self.assertEqual(s.post("/flush_cache", {}).status, 200)
            hits.append(s.chat("Say it again.", **same).json()["usage"]["prompt_cache_hit_tokens"])
            self.assertGreater(hits[1], hits[0])
            self.assertEqual(hits[2], 0)

    def test_tiers(self):
        """With room for one conversation two that take turns find themselves in host memory."""
        flags = ["--max-total-tokens", "512", "--context-length", "512", "--prefix-cache-mb", "3"]
        with Server(fake=False, flags=flags + ["--kv-host-mb", "64"]) as s:
            talks, known = [[], []], [0, 0]
            for turn in range(6):
                k = turn % 2
                text = "Talk %d. " % k + "Repeat: one two three four five six seven. " * (12 if turn < 2 else 1)
                talks[k].append({"role": "user", "content": text})
                r = s.chat(messages=talks[k], temperature=0, max_tokens=8, thinking={"type": "disabled"}).json()
                self.assertGreaterEqual(r["usage"]["prompt_tokens_details"]["cached_tokens"], known[k])
                known[k] = r["usage"]["prompt_tokens"] - 1
                talks[k].append({"role": "assistant", "content": r["choices"][0]["message"]["content"]})
            state = s.get("/get_server_info").json()
            self.assertEqual(state["kv_host_bytes"], 64 << 20)
            state = state["internal_states"][0]
            self.assertGreater(state["loaded_tokens"], 0)
            self.assertEqual([t["name"] for t in state["tiers"]], ["host"])
            self.assertGreater(state["tiers"][0]["read_bytes"], 0)
            metrics = s.get("/metrics").text
            self.assertIn('tier="host"', metrics)
            self.assertIn("sglang:tier_loaded_tokens_total{", metrics)

    def test_tenants(self):
        """Another key, and in chat another salt, finds nothing of what was asked before."""
        for more in ([], ["--disable-exact-dsml-tool-replay"]):
            self.tenants(["--api-key", "one", "--api-key", "two"] + more)

    def tenants(self, flags):
        with Server(fake=False, flags=flags) as s:
            def hits(key, **kw):
                r = s.post("/v1/chat/completions", dict({
                    "messages": [{"role": "user", "content": "What is 17 + 25?"}], "max_tokens": 4}, **kw),
                    headers=[("Authorization", "Bearer " + key)])
                self.assertEqual(r.status, 200, r.body)
                return r.json()["usage"]["prompt_cache_hit_tokens"]
            self.assertEqual([hits(k) > 0 for k in ("one", "two", "two", "one")], [False, False, True, True])
            self.assertEqual([hits("one", cache_salt=x) > 0 for x in ("a", "b", "b", "a")],
                             [False, False, True, True])

    def test_background_begins_queued(self):
        """However quick the engine is."""
        for _ in range(30):
            r = self.s.post("/v1/responses", {"input": "Hi", "background": True, "max_output_tokens": 1}).json()
            self.assertEqual((r["status"], r["output"]), ("queued", []))

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

    def test_what_drafting_did(self):
        """By position, by temperature and by reason, each adds up; the same numbers in both places."""
        from test_info import parse
        self.s.post("/set_internal_state", {"reset_spec_stats": True})
        time.sleep(0.2)
        self.assertIsNone(self.s.state()["avg_spec_accept_length_window"])
        mine = {}
        for band, t in (("0", 0), ("0.45-0.8", 0.6), ("0.8-1.2", 1), ("1.2-", 1.5)):
            m = self.generate(text="count to ten", n=40, temperature=t, sampling_seed=4)["meta_info"]
            mine[band] = (m["spec_verify_ct"], m["spec_accept_length"])
        st = self.s.state()
        by = st["spec_by_temperature"]
        for band, (n, length) in mine.items():
            self.assertEqual(by[band]["spec_verify_steps"], n)
            self.assertAlmostEqual(by[band]["avg_spec_accept_length"], length, places=5)
        self.assertIsNone(by["0-0.45"]["avg_spec_accept_length"])
        self.assertEqual(sum(b["spec_verify_steps"] for b in by.values()), st["spec_verify_steps"])
        self.assertEqual(sum(st["spec_accepted_by_position"]), st["spec_accepted"])
        self.assertEqual(st["spec_drafted"], 5 * st["spec_verify_steps"])
        self.assertAlmostEqual(st["avg_spec_accept_length_window"], st["avg_spec_accept_length"], places=9)
        self.assertTrue(0 < st["spec_draft_share"] < 1)
        self.assertEqual(st["spec_skipped"], dict.fromkeys(
            ("cost", "confidence", "measure", "window", "pages", "context", "request", "audit"), 0))
        v, _ = parse(self.s.get("/metrics").text)

        def metric(name, **labels):
            return [x for k, x in v["sglang:" + name].items() if labels.items() <= dict(k).items()]
        self.assertEqual(metric("spec_verify_calls_total"), [st["spec_verify_steps"]])
        self.assertEqual(metric("spec_verified_tokens_total"), [st["spec_drafted"]])
        self.assertEqual(metric("spec_drafted_tokens_total"), [st["spec_drafted"]])
        self.assertEqual(metric("spec_accepted_by_position_total"), st["spec_accepted_by_position"])
        self.assertEqual(metric("spec_verify_calls_by_temperature_total", temperature="0.8-1.2"), [mine["0.8-1.2"][0]])
        self.assertEqual(metric("spec_skipped_total"), [0] * 8)
        self.assertEqual(metric("spec_verify_length"), [6])
        self.assertAlmostEqual(metric("spec_accept_length_window")[0], st["avg_spec_accept_length"], places=9)

    def test_random_cancels(self):
        n = 1000 if os.environ.get("FST_TEST_SIZE") != "san" else 200
        want = self.generate(n=16)["output_ids"]

        def clients(k):
            r = random.Random(k)
            for _ in range(n // 20):
                c = self.s.connect()
                c.send(request_bytes("POST", "/v1/chat/completions", {
                    "messages": [{"role": "user", "content": "word " * r.choice([1, 20, 200])}],
                    "stream": r.random() < 0.5, "max_tokens": 300, "n": r.choice([1, 2])}))
                time.sleep(r.random() ** 3 * 0.8)
                if r.random() < 0.5:
                    c.reset()
                else:
                    c.close()
        in_threads(20, clients)
        st = self.s.wait_idle(20)
        self.assertEqual((st["slots_used"], st["kv_tokens_used"], st["num_waiting"]), (0, 0, 0))
        self.assertEqual(self.generate(n=16)["output_ids"], want)

    def test_drafting_changes_nothing(self):
        """The same answers to the last figure with drafting and without: stop strings, log-probabilities, seeds."""
        chat, comp, gen = "/v1/chat/completions", "/v1/completions", "/generate"
        ask = {"messages": [{"role": "user", "content": "Tom has 12 pens. He finds 15 more in the garden. How many pens "
                                                        "does Tom have in the end?"}], "max_tokens": 80}
        text = {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True}
        raw = {"text": "Once upon a time", "return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": 0}

        def cases():
            for pick in ({"temperature": 0, "seed": 1}, {"seed": 11}, {"seed": 2 ** 64 - 1, "top_p": 0.9}, {"seed": 5, "top_k": 7}):
                for stop in (None, ["pens"], ["\n", " 2"], ["####"]):
                    yield chat, dict(ask, stop=stop, logprobs=True, top_logprobs=2, **pick)
                yield chat, dict(ask, n=3, **pick)
                for stop in (None, ["the"], ["e ", "."], ["zzz"]):
                    yield comp, dict(text, stop=stop, logprobs=3, return_token_ids=True, **pick)
                    g = {k.replace("seed", "sampling_seed"): v for k, v in pick.items()}
                    yield gen, dict(raw, sampling_params=dict(g, stop=stop, max_new_tokens=40))
                yield comp, dict(text, echo=True, logprobs=2, stop_token_ids=list(range(300, 340)), **pick)

        def strip(v):
            """What may differ: names, clocks, and what is said of the drafting itself."""
            if isinstance(v, dict):
                return {k: strip(x) for k, x in v.items() if k not in ("id", "created", "e2e_latency", "timings") and
                        not k.startswith("spec_")}
            return [strip(x) for x in v] if isinstance(v, list) else v

        ended, n = set(), 0
        with Server(fake=False, flags=["--speculative-algorithm", "none"]) as plain, Server(fake=False) as auto:
            self.assertIsNone(plain.state()["avg_spec_accept_length"])
            for path, body in cases():
                a, b, c = self.s.post(path, body), plain.post(path, body), auto.post(path, body)
                self.assertEqual((a.status, b.status, c.status), (200, 200, 200), (a.body, body))
                self.assertEqual(strip(a.json()), strip(b.json()), body)
                self.assertEqual(strip(a.json()), strip(c.json()), body)
                n += 1
                for c in a.json().get("choices", [a.json()]):
                    m = c.get("meta_info", {}).get("finish_reason") or {}
                    ended.add((c.get("finish_reason") or m.get("type"),
                               type(c.get("matched_stop", m.get("matched"))).__name__))
        self.assertGreater(n, 50)
        self.assertLessEqual({("stop", "str"), ("stop", "int"), ("length", "NoneType")}, ended)

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
        # Long enough for all twelve to come while one runs; three in turn within the client's 30 s
        # also where a sanitizer makes a token take 150 ms.
        n = 200 if os.environ.get("FST_TEST_SIZE") != "san" else 40
        with Server(fake=False, flags=["--max-running-requests", "1", "--max-queued-requests", "2"]) as s:
            codes = []

            def one():
                codes.append(s.post("/generate", {"text": "a", "sampling_params": {
                    "max_new_tokens": n, "ignore_eos": True}}).status)
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
