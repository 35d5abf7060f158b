"""An agent's conversation over the bundled model: a turn computes its new tokens, and the answer is the cold one."""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import MODEL, Server, in_threads  # noqa: E402

SIZE = os.environ.get("FST_TEST_SIZE", "ci")
TURNS = 20 if SIZE == "long" else 8
RESTARTS = 20 if SIZE == "long" else 4
AGENTS, AGENT_TURNS = 8, 4 if SIZE == "long" else 2


def tool(name, about, **fields):
    return {"type": "function", "function": {
        "name": name, "description": about,
        "parameters": {"type": "object", "required": list(fields), "properties": {
            k: {"type": v, "description": "The %s." % k} for k, v in fields.items()}}}}


TOOLS = [tool("get_weather", "Get the weather of a city.", city="string", days="integer"),
         tool("read_file", "Read a file.", path="string"),
         tool("add", "Add two numbers.", a="integer", b="integer")]
SYSTEM = "You are a helpful agent. Call a tool when one is needed, and answer in a few words.\n" + "".join(
    "Rule %d: an answer to question %d is short and says what the tool said.\n" % (i, i) for i in range(12))
ASKS = ("What is the weather in Rome for 3 days?", "Read the file notes.txt.", "Add 17 and 25.",
        "What is the weather in Oslo for 2 days?", "Read the file plan.md.")
RESULTS = ("18C and sun", "The code is 4711.", "42", "nothing found")


class Talk:
    """One conversation with some servers, of which each is told the same and has to say the same."""

    def __init__(self, test, servers, first, **kw):
        self.test, self.servers = test, servers
        self.kw = dict({"tools": TOOLS, "temperature": 0, "max_tokens": 120}, **kw)
        self.messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": first}]
        self.known = 0  # tokens that the next turn must not compute
        self.computed = []
        self.calls = self.whole = 0

    def turn(self, i):
        got = [s.chat(messages=self.messages, **self.kw) for s in self.servers]
        for r in got:
            self.test.assertEqual(r.status, 200, r.body)
        got = [r.json() for r in got]
        m = got[0]["choices"][0]["message"]
        for other in got[1:]:
            self.same(got[0], other)
        u = got[0]["usage"]
        cached = u["prompt_tokens_details"]["cached_tokens"]
        self.test.assertGreaterEqual(cached, self.known, "turn %d of %d tokens" % (i, u["prompt_tokens"]))
        self.computed.append(u["prompt_tokens"] - cached)
        # what was cut off is not followed by what ends a whole answer; what holds a role's mark is sent as text
        whole = got[0]["choices"][0]["finish_reason"] != "length" and "<｜" not in json.dumps(m, ensure_ascii=False)
        self.whole += whole
        self.known = (u["total_tokens"] if whole else u["prompt_tokens"]) - 1
        self.answer(m, i)
        return cached, u

    def same(self, a, b):
        """Messages and log-probabilities, but for the names of calls, which are drawn."""
        def plain(r):
            c = json.loads(json.dumps(r["choices"]))
            for x in c:
                for call in x["message"].get("tool_calls") or ():
                    call.pop("id")
            return c, r["usage"]["prompt_tokens"], r["usage"]["completion_tokens"]
        self.test.assertEqual(plain(a), plain(b))

    def answer(self, m, i):
        """The client's next message.  Thoughts are sent back or not, arguments are written anew."""
        m = json.loads(json.dumps(m))
        calls = m.get("tool_calls") or []
        if i % 2 and calls:  # an answer in words has no name by which its thoughts could be found
            m.pop("reasoning_content", None)
        for c in calls:
            c["function"]["arguments"] = json.dumps(json.loads(c["function"]["arguments"]), indent=1, sort_keys=True)
        self.calls += len(calls)
        self.messages.append(m)
        self.messages += [{"role": "tool", "tool_call_id": c["id"], "content": RESULTS[i % len(RESULTS)]}
                          for c in calls] or [{"role": "user", "content": ASKS[i % len(ASKS)]}]


class Keyed:
    """A server as the holder of a key sees it."""

    def __init__(self, server, key):
        self.server, self.headers = server, [("Authorization", "Bearer " + key)]

    def get(self, path):
        return self.server.get(path, self.headers)

    def post(self, path, body):
        return self.server.post(path, body, self.headers)

    def chat(self, **body):
        return self.post("/v1/chat/completions", body)


class Agent(unittest.TestCase):
    def test_conversation(self):
        """Cached is at least the prompt and the answer before, less one.  The cold server gets the prompt that the
        warm one computed, id by id: it never saw the calls that come back."""
        with Server(fake=False, flags=["--verify-mode", "static"]) as s:
            t = Talk(self, [s], ASKS[0])
            prompts = []
            for i in range(TURNS):
                body = dict(t.kw, messages=json.loads(json.dumps(t.messages)))
                prompts.append(s.post("/tokenize", body).json()["tokens"])
                cached, u = t.turn(i)
                self.assertEqual(u["prompt_tokens"], len(prompts[-1]))
                if i:
                    self.assertLessEqual(t.computed[-1], u["prompt_tokens"] - before + 1)
                before = t.known + 1
            self.assertGreater(t.calls, TURNS // 4)
            self.assertGreater(t.whole, TURNS * 3 // 4)
            self.assertGreater(s.state()["avg_spec_accept_length"], 1.5)
            warm = [self.generate(s, p) for p in prompts]
        with Server(fake=False, flags=["--disable-radix-cache"]) as cold:
            for p, w in zip(prompts, warm):
                c = self.generate(cold, p)
                self.assertEqual(c["meta_info"]["cached_tokens"], 0)
                self.assertGreater(w["meta_info"]["cached_tokens"], 0)
                self.assertEqual(c["output_ids"], w["output_ids"])
                self.assertEqual(c["meta_info"]["output_token_logprobs"], w["meta_info"]["output_token_logprobs"])

    def generate(self, s, ids):
        r = s.post("/generate", {"input_ids": ids, "return_logprob": True, "sampling_params": {
            "max_new_tokens": 120, "temperature": 0}})
        self.assertEqual(r.status, 200, r.body)
        return r.json()

    def test_sub_agents(self):
        """Eight agents with the preamble of the conversation that started them take turns with it: none computes
        the preamble, not the first either, and the conversation computes what is new in it."""
        with Server(fake=False) as s:
            main = Talk(self, [s], ASKS[0])
            main.turn(0)
            preamble = self.shared(s)
            agents = [Talk(self, [s], "You are helper %d. %s" % (k, ASKS[k % len(ASKS)])) for k in range(AGENTS)]
            first = [None] * AGENTS

            def start(k):
                first[k] = agents[k].turn(0)[0]
            in_threads(AGENTS, start)
            for k in range(AGENTS):
                self.assertGreaterEqual(first[k], preamble, "helper %d" % k)
            for i in range(1, AGENT_TURNS):
                in_threads(AGENTS, lambda k: agents[k].turn(i))
                main.turn(i)

    def shared(self, s):
        """Tokens of the system text and the tools: two have them and the user's mark in common."""
        def ids(text):
            return s.post("/tokenize", {"messages": [{"role": "system", "content": SYSTEM},
                                                     {"role": "user", "content": text}], "tools": TOOLS}).json()["tokens"]
        a, b = ids("You are helper 1."), ids("What?")
        return next(i for i, (x, y) in enumerate(zip(a, b)) if x != y) - 1

    def test_restart(self):
        """Killed between turns, a server goes on where it was: cached as much, ids and log-probabilities the cold ones."""
        with tempfile.TemporaryDirectory() as d, Server(fake=False, flags=["--disable-radix-cache"]) as cold:
            flags = ["--kv-disk-dir", os.path.join(d, "kv"), "--tool-memory-dir", os.path.join(d, "calls"),
                     "--api-key", "one", "--api-key", "two"]
            t = Talk(self, [], ASKS[0])
            for i in range(RESTARTS):
                s = Server(fake=False, flags=flags)
                try:
                    t.servers = [Keyed(s, "one")]
                    body = dict(t.kw, messages=json.loads(json.dumps(t.messages)))
                    ids = t.servers[0].post("/tokenize", body).json()["tokens"]
                    if i == 1:  # what is somebody's is nobody else's, on disk neither
                        r = self.generate(Keyed(s, "two"), ids)
                        self.assertEqual(r["meta_info"]["cached_tokens"], 0)
                    t.turn(i)
                    w, c = self.generate(t.servers[0], ids), self.generate(cold, ids)
                    self.assertEqual(c["output_ids"], w["output_ids"])
                    self.assertEqual(c["meta_info"]["output_token_logprobs"], w["meta_info"]["output_token_logprobs"])
                    end = time.time() + 30
                    while t.servers[0].get("/server_info").json()["internal_states"][0]["tier_queue"]:
                        self.assertLess(time.time(), end)
                        time.sleep(0.05)
                finally:
                    s.stop(signal.SIGKILL, -signal.SIGKILL)
            self.assertGreater(t.known, 700)

    def test_read_only_folder(self):
        """What is kept in a folder that cannot be written is given out."""
        ids = [0] + [10 + 7 * i % 3000 for i in range(599)]
        with tempfile.TemporaryDirectory() as d:
            kv = os.path.join(d, "kv")
            with Server(fake=False, flags=["--kv-disk-dir", kv]) as s:
                w = self.generate(s, ids)
            os.chmod(d, 0o755)
            for path, _, files in list(os.walk(kv)):
                os.chmod(path, 0o555)
                for f in files:
                    os.chmod(os.path.join(path, f), 0o444)
            try:
                with Server(fake=False, flags=["--kv-disk-dir", kv], user=None if os.getuid() else 65534) as s:
                    g = self.generate(s, ids)
                    self.assertIn("disk read-only", s.output())
                    self.assertEqual(g["meta_info"]["cached_tokens"], 599)
                    self.assertEqual(g["output_ids"], w["output_ids"])
            finally:
                for path, _, _ in os.walk(kv):
                    os.chmod(path, 0o700)

    def test_another_checkpoint_or_secret(self):
        """Rows of weights that were changed in place are nobody's; a secret that is none is made anew, once."""
        ids = [0] + [10 + 7 * i % 3000 for i in range(399)]
        with tempfile.TemporaryDirectory() as d:
            kv, model = os.path.join(d, "kv"), os.path.join(d, "model")
            shutil.copytree(MODEL, model)
            shard = os.path.join(model, sorted(f for f in os.listdir(model) if f.endswith(".safetensors"))[0])
            then = os.stat(shard).st_mtime_ns

            def cached():
                with Server(fake=False, model=model, flags=["--kv-disk-dir", kv]) as s:
                    return self.generate(s, ids)["meta_info"]["cached_tokens"], s.output()
            self.assertEqual(cached()[0], 0)
            self.assertEqual(cached()[0], 399)
            os.utime(shard, ns=(then, then + 1))
            self.assertEqual(cached()[0], 0)
            os.utime(shard, ns=(then, then))
            self.assertEqual(cached()[0], 399)
            for junk in (b"short", b"x" * 5000):
                with open(os.path.join(kv, "secret"), "wb") as f:
                    f.write(junk)
                n, log = cached()
                self.assertEqual(n, 0)
                self.assertIn("made anew", log)
                n, log = cached()
                self.assertEqual(n, 399)
                self.assertNotIn("made anew", log)
            self.assertEqual(os.stat(os.path.join(kv, "secret")).st_mode & 0o777, 0o600)

    ASK = {"firesteel": {"cache": True}, "max_tokens": 4, "temperature": 0}

    def test_report(self):
        """Why a prompt was not reused: clients that rewrite old messages see which token did it."""
        def talk(time):
            return [{"role": "system", "content": SYSTEM},
                    {"role": "user", "content": "<env>time=%s</env> What is the weather in Rome?" % time},
                    {"role": "assistant", "content": "Sunny. " * 90}, {"role": "user", "content": "And in Oslo?"}]

        with Server(fake=False) as s:
            def ask(messages, **kw):
                r = s.post("/v1/chat/completions", dict(self.ASK, messages=messages, **kw))
                self.assertEqual(r.status, 200, r.body)
                r = r.json()
                c = r["firesteel"]["cache"]
                self.assertEqual(c["cached"], r["usage"]["prompt_tokens_details"]["cached_tokens"])
                ids = s.post("/tokenize", {"messages": messages}).json()["tokens"]
                return c, ids
            c, old = ask(talk("10:00"))
            self.assertEqual(c, {"cached": 0, "boundary": 0, "same": 0, "first_differing_token": None, "reason": "new"})
            c, ids = ask(talk("10:00"))
            self.assertEqual((c["reason"], c["cached"], c["first_differing_token"]), ("whole", len(ids) - 1, None))
            c, ids = ask(talk("10:07"))
            at = next(i for i, (a, b) in enumerate(zip(old, ids)) if a != b)
            self.assertEqual((c["reason"], c["same"]), ("differs", at))
            self.assertLessEqual(c["boundary"], at)
            self.assertEqual(c["first_differing_token"], {"index": at, "id": ids[at], "text": "7"})
            c, ids = ask(talk("10:07") + [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}])
            self.assertIn(c["reason"], ("differs", "ends"))
            self.assertGreater(c["cached"], at)
            c, _ = ask(talk("10:07"), cache_salt="other")
            self.assertEqual(c["reason"], "new")
            # other endpoints, streams, and what was not asked for
            for path, body in (("/v1/completions", {"prompt": ids}), ("/generate", {"input_ids": ids})):
                r = s.post(path, dict({k: self.ASK[k] for k in ("firesteel",)}, **body)).json()
                c = (r.get("meta_info") or r)["firesteel"]["cache"]
                self.assertEqual((c["reason"], c["cached"]), ("whole", len(ids) - 1))
            last = [e for e in s.stream(messages=talk("10:00"), **self.ASK) if isinstance(e, dict) and "firesteel" in e]
            self.assertEqual([e["firesteel"]["cache"]["reason"] for e in last], ["whole"])
            self.assertNotIn("firesteel", s.chat("hi", max_tokens=1).json())
            for bad in (1, {"cash": True}, {"cache": 2}):
                r = s.chat("hi", firesteel=bad)
                self.assertEqual(r.status, 400)
                self.assertTrue(r.json()["error"]["param"].startswith("firesteel"), r.body)
        with Server(fake=False, flags=["--disable-radix-cache"]) as s:
            self.assertEqual(s.chat("hi", **self.ASK).json()["firesteel"]["cache"]["reason"], "off")

    def test_endpoints_share(self):
        """The same ids are the same prompt, whichever way they came; salts divide it everywhere."""
        with Server(fake=False) as s:
            ids = s.post("/tokenize", {"messages": [{"role": "user", "content": "Hello there"}]}).json()["tokens"]

            def hit(path, **kw):
                r = s.post(path, dict({"temperature": 0, "max_tokens": 2} if path[1] == "v" else {}, **kw))
                self.assertEqual(r.status, 200, r.body)
                r = r.json()
                return (r["meta_info"]["cached_tokens"] if "meta_info" in r else r["usage"]["prompt_cache_hit_tokens"]) > 0
            self.assertFalse(hit("/v1/chat/completions", messages=[{"role": "user", "content": "Hello there"}]))
            self.assertTrue(hit("/v1/completions", prompt=ids))
            self.assertTrue(hit("/generate", input_ids=ids))
            for path, kw in (("/v1/completions", {"prompt": ids}), ("/generate", {"input_ids": ids})):
                salt = path[1:]
                self.assertEqual([hit(path, cache_salt=x, **kw) for x in (salt, salt, "", None)], [False, True, True, True])
                r = s.post(path, dict(kw, cache_salt=3))
                self.assertEqual((r.status, r.json()["error"].get("param")), (400, "cache_salt"))


if __name__ == "__main__":
    unittest.main()
