"""What may be sampled, over HTTP and the bundled model: penalties, bias, budgets of thoughts, loops, stops inside
blocks, forced ids, lost places, choices of one prompt."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server  # noqa: E402
from test_chat import CALL, TOOLS, join  # noqa: E402

ASK = "What is 17 + 25?"
FLAGS = ["--random-seed", "1", "--debug-hooks", "--max-running-requests", "4"]


def told(r):
    """A plain answer without what depends on who asked before."""
    drop = ("id", "created", "timings", "firesteel")
    j = {k: v for k, v in r.json().items() if k not in drop}
    if "usage" in j:
        j["usage"] = {k: v for k, v in j["usage"].items() if "cache" not in k and k != "prompt_tokens_details"}
    for c in j.get("choices", ()):
        for call in c.get("message", {}).get("tool_calls", ()):
            call["id"] = ""
    return j


class Rules(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = [Server(fake=False, flags=FLAGS + ["--speculative-algorithm", "none"]),
                       Server(fake=False, flags=FLAGS + ["--verify-mode", "static"])]
        cls.s = cls.servers[1]

    @classmethod
    def tearDownClass(cls):
        for s in cls.servers:
            s.wait_idle()
            s.stop()

    def ids(self, text):
        return self.s.post("/tokenize", {"prompt": text, "add_special": False, "parse_special": True}).json()["tokens"]

    def same(self, content=ASK, **kw):
        """The answer of both servers, which is one, and the same streamed."""
        kw.setdefault("seed", 11)
        plain = [s.chat(content, **kw) for s in self.servers]
        for r in plain:
            self.assertEqual(r.status, 200, r.body)
        a, b = (told(r) for r in plain)
        self.assertEqual(a, b)
        c = a["choices"][0]
        for s in self.servers:
            j = join(s.stream(content, **kw))
            self.assertEqual((j["content"], j["reasoning"], j["finish"]),
                             (c["message"]["content"] or "", c["message"]["reasoning_content"] or "", c["finish_reason"]))
        return a

    # ---------------------------------------------------------------- penalties, bias

    def test_each_has_its_effect(self):
        kw = {"max_tokens": 40, "temperature": 0, "thinking": {"type": "disabled"}, "logprobs": True,
              "ignore_eos": True}
        base = self.same(**kw)
        first = base["choices"][0]["logprobs"]["content"]
        for extra in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 2},
                      {"logit_bias": {str(i): -100 for i in self.ids(first[0]["token"])}}):
            with self.subTest(extra=extra):
                got = self.same(**dict(kw, **extra))["choices"][0]
                self.assertNotEqual(got["message"]["content"], base["choices"][0]["message"]["content"])
                entries, same = got["logprobs"]["content"], 0
                while entries[same]["token"] == first[same]["token"]:
                    self.assertEqual(entries[same], first[same])  # reported of the raw logits
                    same += 1
        # -2 and 0.5 pull the other way: what was said is said again.
        often = self.same(**dict(kw, presence_penalty=-2, frequency_penalty=-2))["choices"][0]["logprobs"]["content"]
        self.assertLess(len({t["token"] for t in often}), len({t["token"] for t in first}))

    def test_other_endpoints(self):
        the = self.ids(" the")[0]
        sampling = {"frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.2,
                    "logit_bias": {str(the): -100}}
        text = self.s.post("/v1/completions", dict({"prompt": "In the year", "max_tokens": 60, "temperature": 0.8,
                                                    "seed": 3, "ignore_eos": True, "return_token_ids": True}, **sampling))
        native = self.s.post("/generate", {"text": "In the year", "sampling_params": dict(
            {"max_new_tokens": 60, "temperature": 0.8, "sampling_seed": 3, "ignore_eos": True}, **sampling)})
        ids = text.json()["choices"][0]["token_ids"]
        self.assertEqual(native.json()["output_ids"], ids)
        self.assertNotIn(the, ids)

    def test_neutral_values(self):
        kw = {"max_tokens": 20, "temperature": 0}
        self.assertEqual(self.same(**kw), self.same(presence_penalty=0, frequency_penalty=-0.0, repetition_penalty=1.0,
                                                    logit_bias={}, **kw))

    # ---------------------------------------------------------------- thoughts

    def test_budgets(self):
        kw = {"max_tokens": 120, "temperature": 0, "min_tokens": 12}
        free = self.same(**kw)
        thought = free["usage"]["reasoning_tokens"]
        self.assertGreater(thought, 4)
        for n in (0, 1, 3):
            spellings = [{"thinking": {"type": "enabled", "budget_tokens": n}}, {"reasoning": {"max_tokens": n}},
                         {"thinking_budget": n}, {"thinking_token_budget": n}, {"max_reasoning_tokens": n}]
            answers = [self.same(**dict(kw, **s)) for s in spellings]
            for a in answers:
                self.assertEqual(a, answers[0])
                self.assertEqual(a["usage"]["reasoning_tokens"], n + 1)  # with </think>
                self.assertTrue(a["choices"][0]["message"]["content"])
        # The first spelling that is given counts; one beyond what is thought changes nothing.
        both = self.same(thinking_budget=50, reasoning={"max_tokens": 1}, **kw)
        self.assertEqual(both["usage"]["reasoning_tokens"], 2)
        self.assertEqual(self.same(thinking_budget=90, **kw), free)
        # Whoever does not think has nothing to spend.
        off = {"thinking": {"type": "disabled", "budget_tokens": 0}}
        self.assertEqual(self.same(**dict(kw, **off)), self.same(thinking={"type": "disabled"}, **kw))

    def test_budget_leaves_room(self):
        """Thoughts that would go on for ever: forced, and banned from ending."""
        close = str(self.ids("</think>")[0])
        for max_tokens, least in ((512, 128), (100, 64), (60, 60), (1, 1)):
            a = self.same(max_tokens=max_tokens, thinking_budget=10 ** 6, logit_bias={close: -100}, temperature=0,
                          ignore_eos=True, loop_guard=False)
            u = a["usage"]
            self.assertEqual(u["completion_tokens"], max_tokens)
            self.assertEqual(u["completion_tokens"] - u["reasoning_tokens"], least - 1)
            self.assertIsNotNone(a["choices"][0]["message"]["content"])
        with Server(fake=False, flags=FLAGS + ["--thinking-budget", "auto"]) as s:
            u = s.chat(ASK, max_tokens=512, logit_bias={close: -100}, ignore_eos=True, temperature=0).json()["usage"]
            self.assertEqual(u["reasoning_tokens"], 512 - 128 + 1)
        with Server(fake=False, flags=FLAGS + ["--thinking-budget", "5"]) as s:
            u = s.chat(ASK, max_tokens=512, temperature=0).json()["usage"]
            self.assertEqual(u["reasoning_tokens"], 6)
            u = s.chat(ASK, max_tokens=512, temperature=0, thinking_budget=2).json()["usage"]
            self.assertEqual(u["reasoning_tokens"], 3)
            self.assertEqual(s.info()["thinking_budget"], "5")

    # ---------------------------------------------------------------- loops

    def test_loops(self):
        circle, eos = " characteristic information" * 34, self.ids("<｜end▁of▁sentence｜>")
        call = CALL.split("\n")
        block = "\n".join(call[:3] + call[3:-1] * 5 + call[-1:])
        cases = [({"debug": {"force_ids": self.ids(circle)}, "thinking": {"type": "disabled"}}, "text"),
                 ({"debug": {"force_ids": self.ids("so</think>" + circle)}}, "text"),
                 ({"debug": {"force_ids": self.ids("\n\n" + block.strip("\n"))}, "tools": TOOLS,
                   "thinking": {"type": "disabled"}}, "tool_call")]
        for kw, what in cases:
            with self.subTest(what=what):
                kw["debug"]["force_ids"] += eos
                a = self.same(max_tokens=700, temperature=0, **kw)
                c = a["choices"][0]
                self.assertEqual(c["finish_reason"], "stop")
                self.assertEqual(c["finish_details"], {"type": "loop_guard", "repeats": what})
                self.assertLess(a["usage"]["completion_tokens"], len(kw["debug"]["force_ids"]))
                last = [e for e in self.s.stream(ASK, max_tokens=700, temperature=0, **kw) if isinstance(e, dict)
                        and e["choices"] and e["choices"][0]["finish_reason"]]
                self.assertEqual(last[0]["choices"][0]["finish_details"], c["finish_details"])
                for off in ({"loop_guard": False}, {"ignore_eos": True}):
                    n = self.s.chat(ASK, **dict(kw, max_tokens=len(kw["debug"]["force_ids"]), **off)).json()
                    self.assertNotIn("finish_details", n["choices"][0])
                    self.assertEqual(n["usage"]["completion_tokens"], len(kw["debug"]["force_ids"]))
        # Thoughts are closed, and the answer comes.
        a = self.same(max_tokens=700, temperature=0, debug={"force_ids": self.ids(circle)})
        self.assertLess(a["usage"]["reasoning_tokens"], len(self.ids(circle)))
        self.assertIn("</think>", self.s.chat(ASK, max_tokens=700, temperature=0, separate_reasoning=False, debug={
            "force_ids": self.ids(circle)}).json()["choices"][0]["message"]["content"])
        text = self.s.post("/v1/completions", {"prompt": "a", "max_tokens": 250, "ignore_eos": True,
                                              "debug": {"force_ids": self.ids(circle)}})
        self.assertEqual(text.json()["choices"][0]["finish_reason"], "length")

    # ---------------------------------------------------------------- ends

    def test_stop_inside_a_block(self):
        """Forced ids that the drafter follows: text, ids, log-probabilities and count end at the same token, and a
        next turn finds nothing behind it."""
        ids = self.ids("</think>ha ha ha ha ha ha ha ha")
        for stop, text in ((" ha ha", "ha"), (["ha ha ha", " ha"], "ha"), ([" ha", "ha ha ha"], "ha")):
            a = self.same(max_tokens=40, temperature=0, stop=stop, debug={"force_ids": ids}, logprobs=True)
            c = a["choices"][0]
            self.assertEqual(c["message"]["content"], text)
            self.assertEqual(len(c["logprobs"]["content"]), a["usage"]["completion_tokens"])
        for s in self.servers:
            prompt = self.ids("The words are these and no others:")
            body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "stop": "ha ha ha",
                    "debug": {"force_ids": ids[1:]}, "return_token_ids": True}
            got = s.post("/v1/completions", body).json()["choices"][0]["token_ids"]
            again = s.post("/v1/completions", {"prompt": prompt + ids[1:], "max_tokens": 1}).json()["usage"]
            self.assertLessEqual(again["prompt_tokens_details"]["cached_tokens"], len(prompt) + len(got))

    def test_forced_replies(self):
        """Any reply can be had: the parser and the stream see it as if it had been sampled."""
        eos = self.ids("<｜end▁of▁sentence｜>")
        a = self.same(tools=TOOLS, debug={"force_ids": self.ids("hm</think>Let me see." + CALL) + eos}, max_tokens=200)
        c = a["choices"][0]
        self.assertEqual(c["finish_reason"], "tool_calls")
        self.assertEqual(c["message"]["reasoning_content"], "hm")
        self.assertEqual(c["message"]["content"], "Let me see.")
        self.assertEqual(c["message"]["tool_calls"][0]["function"],
                         {"name": "get_weather", "arguments": '{"city": "Rome", "days": 3}'})
        r = self.s.post("/generate", {"text": "x", "debug": {"force_ids": [100, 101, 102]},
                                      "sampling_params": {"max_new_tokens": 3}}).json()
        self.assertEqual(r["output_ids"], [100, 101, 102])
        self.assertIn("debug_hooks", r["meta_info"]["firesteel"])
        bad = self.s.chat("x", debug={"force_ids": [10 ** 6]})
        self.assertEqual((bad.status, bad.json()["error"]["param"]), (400, "debug.force_ids"))
        bad = self.s.chat("x", debug={"retract_at": -1})
        self.assertEqual((bad.status, bad.json()["error"]["param"]), (400, "debug.retract_at"))

    def test_lost_places(self):
        """A request that loses its place behind any token gives what it would have given."""
        kinds = [{"presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.3, "logprobs": True},
                 {"stop": ["4", " 7"], "logprobs": True, "top_logprobs": 2},
                 {"thinking_budget": 5, "seed": 9}, {"n": 3, "seed": 4},
                 {"tools": TOOLS, "debug": {"force_ids": self.ids("hm</think>See." + CALL)}},
                 {"logit_bias": {"16": 5}, "min_tokens": 20}]
        every = {"long": 1, "san": 16}.get(os.environ.get("FST_TEST_SIZE"), 6)
        before = self.s.get("/metrics").text
        for kw in kinds:
            kw = dict(kw, max_tokens=48)
            debug = kw.pop("debug", {})
            want = told(self.s.chat(ASK, debug=debug, **dict(kw, seed=kw.get("seed", 2))))
            n = want["usage"]["completion_tokens"]
            for at in range(1, n, every):
                got = self.s.chat(ASK, debug=dict(debug, retract_at=at), cache_salt=str(at % 2),
                                  **dict(kw, seed=kw.get("seed", 2)))
                self.assertEqual(told(got), want, (kw, at))
        count = [float(line.split()[-1]) for text in (before, self.s.get("/metrics").text)
                 for line in text.split("\n") if line.startswith("sglang:num_retracted_requests_total")]
        self.assertGreater(count[1], count[0] + 10)

    # ---------------------------------------------------------------- choices

    def test_choices_share_their_prompt(self):
        """More choices than places: one computes the prompt, the others wait and go on from it."""
        text = "A long prompt that is read once. " * 30
        for s in self.servers:
            r = s.post("/generate", {"text": text, "cache_salt": "choices", "sampling_params": {
                "n": 9, "max_new_tokens": 6, "sampling_seed": 5, "temperature": 1, "ignore_eos": True}}).json()
            cached = [c["meta_info"]["cached_tokens"] for c in r]
            prompt = r[0]["meta_info"]["prompt_tokens"]
            self.assertEqual(cached, [0] + 8 * [prompt - 1])
            self.assertGreater(len({c["text"] for c in r}), 3)
            for k in (0, 8):  # each is what it is alone, by its index
                self.assertEqual(len(r[k]["output_ids"]), 6)
        both = [[c["output_ids"] for c in s.post("/generate", {"text": text, "sampling_params": {
            "n": 9, "max_new_tokens": 6, "sampling_seed": 5, "temperature": 1}}).json()] for s in self.servers]
        self.assertEqual(both[0], both[1])

    def test_best_of(self):
        body = {"prompt": "What is", "max_tokens": 8, "temperature": 1, "seed": 4, "logprobs": 0}
        all5 = self.s.post("/v1/completions", dict(body, n=5)).json()

        def mean(c):
            lp = c["logprobs"]["token_logprobs"]
            return sum(lp) / len(lp)
        want = sorted(all5["choices"], key=mean, reverse=True)[:2]
        got = self.s.post("/v1/completions", dict(body, n=2, best_of=5)).json()
        self.assertEqual([c["text"] for c in got["choices"]], [c["text"] for c in want])
        self.assertEqual([c["index"] for c in got["choices"]], [0, 1])
        self.assertEqual(got["usage"]["completion_tokens"], all5["usage"]["completion_tokens"])
        two = self.s.post("/v1/completions", dict(body, prompt=["What is", "Hello"], n=1, best_of=3, logprobs=None)).json()
        self.assertEqual([c["index"] for c in two["choices"]], [0, 1])
        self.assertIsNone(two["choices"][0]["logprobs"])
        r = self.s.post("/v1/completions", dict(body, n=1, best_of=2, stream=True))
        self.assertEqual((r.status, r.json()["error"]["param"]), (400, "best_of"))
        self.assertEqual(self.s.post("/v1/completions", dict(body, n=2, best_of=2, stream=True)).status, 200)


if __name__ == "__main__":
    unittest.main()
