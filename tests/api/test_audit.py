"""Debug hooks, audit and records over HTTP: what is not the model's result says so everywhere."""

import json
import os
import shutil
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Server  # noqa: E402
from test_commands import run, run_json  # noqa: E402

CHAT = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "max_tokens": 12, "temperature": 0}


class Labels(unittest.TestCase):
    def test_every_answer(self):
        with Server(fake=False, flags=("--debug-hooks", "--simulate-acc-len", "3")) as s:
            want = "debug-hooks simulate-acc-len=3 method=match-expected"
            for path in ("/health", "/v1/models", "/server_info", "/metrics", "/nowhere"):
                self.assertEqual(s.get(path).headers["x-firesteel-debug"], want, path)
            info = s.get("/server_info").json()
            self.assertEqual(info["debug_hooks"], want)
            self.assertEqual(info["verify_mode"], "static")
            r = s.post("/v1/chat/completions", CHAT)
            self.assertEqual(r.headers["x-firesteel-debug"], want)
            self.assertEqual(r.json()["firesteel"]["debug_hooks"], want)
            self.assertTrue(r.json()["system_fingerprint"].endswith("-debug"))
            r = s.post("/v1/completions", {"prompt": "One, two", "max_tokens": 5})
            self.assertEqual(r.json()["firesteel"]["debug_hooks"], want)
            r = s.post("/generate", {"text": "One, two", "sampling_params": {"max_new_tokens": 5}})
            self.assertEqual(r.json()["meta_info"]["firesteel"]["debug_hooks"], want)
            r = s.post("/v1/chat/completions", dict(CHAT, stream=True))
            self.assertEqual(r.headers["x-firesteel-debug"], want)
            events = [e[6:] for e in r.text.split("\n\n") if e.startswith("data: {")]
            self.assertEqual(json.loads(events[-1])["firesteel"]["debug_hooks"], want)
            self.assertIn("debug_hooks=1", s.output())

    def test_none_without(self):
        with Server(fake=False) as s:
            r = s.post("/v1/chat/completions", CHAT)
            self.assertNotIn("x-firesteel-debug", r.headers)
            self.assertNotIn("firesteel", r.json())
            self.assertIsNone(s.get("/server_info").json()["debug_hooks"])

    def test_command(self):
        out = run_json("generate", "-n", "5", "One", "--debug-hooks", "--debug-reject-at", "1")
        self.assertEqual(out["debug_hooks"], "debug-hooks reject-at=1")
        self.assertEqual(out["spec"]["accepted"], 0)
        self.assertNotIn("debug_hooks", run_json("generate", "-n", "5", "One"))


def sample(s, name, label=""):
    for line in s.get("/metrics").text.splitlines():
        if line.startswith("sglang:" + name + "{") and label in line:
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError("no " + name)


class Audit(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="firesteel-test-")

    def tearDown(self):
        shutil.rmtree(self.dir)

    def wait(self, s, what, n):
        for _ in range(600):
            audit = s.state()["audit"]
            if audit[what] >= n:
                return audit
            time.sleep(0.05)
        raise AssertionError(audit)

    def test_equal(self):
        flags = ("--audit-share", "1", "--audit-time", "1", "--crash-dump-folder", self.dir)
        with Server(fake=False, flags=flags) as s:
            for t in (0, 0.7, 1):
                self.assertEqual(s.post("/v1/chat/completions", dict(CHAT, temperature=t)).status, 200)
            audit = self.wait(s, "equal", 3)
            self.assertEqual(audit["mismatches"], 0)
            self.assertFalse(audit["drafting_off"])
            self.assertEqual(sample(s, "audit_requests_total", 'result="mismatch"'), 0)
            self.assertGreater(sample(s, "audit_tokens_total"), 30)
        self.assertEqual(os.listdir(self.dir), [])

    def test_mismatch(self):
        flags = ("--audit-share", "1", "--audit-time", "1", "--crash-dump-folder", self.dir, "--debug-hooks",
                 "--debug-spoil", "logits@30", "--verify-mode", "static")
        with Server(fake=False, flags=flags) as s:
            body = {"text": "One, two, three", "sampling_params": {"max_new_tokens": 50, "ignore_eos": True}}
            r = s.post("/generate", body).json()["meta_info"]
            self.assertGreater(r["spec_verify_ct"], 0)
            self.assertTrue(self.wait(s, "mismatches", 1)["drafting_off"])
            self.assertEqual(sample(s, "audit_requests_total", 'result="mismatch"'), 1)
            self.assertEqual(sample(s, "spec_drafting_off"), 1)
            self.assertEqual(sample(s, "crash_dumps_total"), 1)
            self.assertNotIn("spec_verify_ct", s.post("/generate", body).json()["meta_info"])
            self.assertIn("audit mismatch", s.output())
        name = sorted(os.listdir(self.dir))[0]
        path = os.path.join(self.dir, name)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        out = json.loads(run("replay", path, "--json", expect=1).stdout)
        self.assertFalse(out["equal"])
        self.assertEqual(out["reason"], "audit")
        self.assertIn("spoil=logits@30", out["debug_hooks"])
        self.assertIn("hash of the logits", out["first_difference"])
        self.assertEqual(out["audited"]["requests"], 1)
        self.assertIn("token 30", out["audited"]["first_difference"])
        self.assertIn(b"differs", run("replay", path, expect=1).stdout)

    def test_replay_usage(self):
        self.assertIn(b"expected one FILE", run("replay", expect=2).stderr)
        self.assertIn(b"/nowhere", run("replay", "/nowhere/x", expect=3).stderr)
        path = os.path.join(self.dir, "x")
        with open(path, "w") as f:
            f.write("{}\n")
        self.assertIn(b"line 1", run("replay", path, expect=None).stderr)


class Refused(unittest.TestCase):
    def test_without_hooks(self):
        for flags in (("--debug-drafter", "x"), ("--debug-reject-at", "1"), ("--simulate-acc-len", "2"),
                      ("--debug-spoil", "kv@1")):
            for command in (("generate", "x"), ("serve", "--port", "0")):
                p = run(*command, *flags, expect=2)
                self.assertIn(flags[0].encode(), p.stderr)
                self.assertIn(b"--debug-hooks", p.stderr)

    def test_variable(self):
        env = {"SGLANG_SIMULATE_ACC_LEN": "3.5"}
        self.assertIn(b"--debug-hooks", run("generate", "x", expect=2, env=env).stderr)
        run("generate", "x", "-n", "2", env={"SGLANG_SIMULATE_ACC_LEN": "-1"})

    def test_accept_rule(self):
        with Server(fake=False, flags=("--speculative-accept", "rejection")) as s:
            self.assertEqual(s.get("/server_info").json()["speculative_accept"], "rejection")
            self.assertEqual(s.post("/v1/chat/completions", dict(CHAT, temperature=1)).status, 200)
        p = run("generate", "x", "--speculative-accept", "never", expect=2)
        self.assertIn(b"coupled", p.stderr)

    def test_thresholds(self):
        for name in ("single", "acc"):
            flag = "--speculative-accept-threshold-" + name
            p = run("generate", "x", flag, "0.9", expect=None)
            self.assertNotEqual(p.returncode, 0)
            self.assertIn(flag.encode(), p.stderr)
            run("generate", "x", "-n", "2", flag, "1.0")


if __name__ == "__main__":
    unittest.main()
