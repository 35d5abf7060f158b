"""The commands on the bundled model: what they print, their JSON, their exit status."""

import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import MODEL, ROOT, Server, free_port, program  # noqa: E402


def run(*args, stdin="", expect=0, env=None, exe="firesteel"):
    p = subprocess.run([program(exe)] + list(args), input=stdin if isinstance(stdin, bytes) else stdin.encode(),
                       capture_output=True, cwd=ROOT, timeout=300, env=dict(os.environ, **(env or {})))
    assert p.returncode == expect, (args, p.returncode, p.stdout[-500:], p.stderr[-1500:])
    return p


def run_json(*args, **kw):
    out = run(*args, "--json", **kw).stdout.decode()
    assert out.endswith("\n") and out.count("\n") == 1, out
    return json.loads(out)


class Folder(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="firesteel-test-")

    def tearDown(self):
        shutil.rmtree(self.dir)

    def file(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text if isinstance(text, str) else json.dumps(text))
        return path


class Usage(Folder):
    def test_help(self):
        text = run("help").stdout.decode()
        for c in ("serve chat generate score tokenize detokenize render inspect doctor bench version "
                  "help").split():
            self.assertIn("\n  " + c + " ", text)
            if c not in ("help", "version"):
                help_text = run(c, "--help").stdout.decode()
                self.assertIn("--", help_text)
                self.assertEqual(help_text, run("help", c).stdout.decode())
        self.assertIn("firesteel", run("version").stdout.decode())
        self.assertIn("version", run_json("version"))
        self.assertIn(b"usage", run(expect=2).stderr)

    def test_wrong_usage(self):
        self.assertIn(b"did you mean --port", run("serve", "--prot", "5", expect=2).stderr)
        self.assertIn(b"did you mean tokenize", run("tokenise", expect=2).stderr)
        run("generate", expect=2)
        run("generate", "--prompt", "a", "--ids", "b", expect=2)
        run("generate", "--prompt", "a", "--max-tokens", "many", expect=2)
        run("generate", "--prompt", "a", "--kernels", "magic", expect=2)
        run("score", expect=2)
        run("bench", "nothing", expect=2)
        run("inspect", "a", "b", expect=2)
        run("render", expect=2)

    def test_missing_things(self):
        self.assertIn(b"no such folder", run("generate", "-p", "a", "--model", "/nowhere", expect=3).stderr)
        run("tokenize", "a", "--model", "/nowhere", expect=3)
        run("tokenize", "a", env={"FIRESTEEL_MODEL": "/nowhere"}, expect=3)
        run("score", "--ids", self.file("bad.json", "[1, 2"), expect=1)
        run("render", "--messages", self.file("m.json", [{"role": "alien", "content": "x"}]), expect=1)
        run("inspect", self.dir, expect=3)
        run("inspect", "--preset", "v9", expect=2)
        for args in (("score", "--ids", "/none"), ("generate", "--prompt-file", "/none"),
                     ("render", "--messages", "/none"), ("tokenize", "x", "--tokenizer", "/none")):
            self.assertIn(b"/none", run(*args, expect=3).stderr)


class Text(Folder):
    def test_round_trip(self):
        for text in ("hello world", "é 🚀\nनमस्ते", "", "<think>a</think>"):
            ids = run_json("tokenize", stdin=text)["ids"]
            self.assertEqual(json.loads(run("tokenize", stdin=text).stdout), ids)
            if text:
                self.assertEqual(run_json("tokenize", text)["ids"], ids)
            self.assertEqual(run("detokenize", stdin=json.dumps(ids)).stdout.decode(), text)
            self.assertEqual(run_json("detokenize", json.dumps(ids))["text"], text)
        tok = os.path.join(MODEL, "tokenizer.json")
        self.assertEqual(run_json("tokenize", "abc", "--tokenizer", tok)["ids"], run_json("tokenize", "abc")["ids"])

    def test_render(self):
        m = self.file("m.json", [{"role": "user", "content": "hi"}])
        on = run("render", "--messages", m).stdout.decode()
        self.assertEqual(on, "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜><think>")
        self.assertEqual(run("render", "--messages", m, "--thinking", "off").stdout.decode(),
                         on.replace("<think>", "</think>"))
        self.assertEqual(run_json("render", "--messages", m)["text"], on)
        a = self.file("a.json", [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}])
        closed = run("render", "--messages", a, "--thinking", "off").stdout.decode()
        self.assertTrue(closed.endswith("yes<｜end▁of▁sentence｜>"))
        self.assertEqual(run("render", "--messages", a, "--thinking", "off", "--server").stdout.decode(),
                         closed + "<｜Assistant｜></think>")
        o = self.file("o.json", {"messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "disabled"}})
        self.assertTrue(run("render", "--messages", o).stdout.decode().endswith("</think>"))
        self.assertEqual(run("render", "--messages", "-", stdin=json.dumps([{"role": "user", "content": "hi"}]))
                         .stdout.decode(), on)

    def test_official_fixtures(self):
        data = os.environ.get("FST_TEST_DATA")
        if not data:
            self.skipTest("FST_TEST_DATA is not set")
        for i in (1, 2):
            base = os.path.join(data, "encoding")
            with open(os.path.join(base, "test_output_%d.txt" % i), encoding="utf-8") as f:
                want = f.read()
            got = run("render", "--messages", os.path.join(base, "test_input_%d.json" % i), "--thinking",
                      "on").stdout.decode()
            self.assertEqual(got, want)


class Model(Folder):
    def test_generate(self):
        a = run_json("generate", "--prompt", "Hello", "--max-tokens", "24", "--temperature", "0", "--ignore-eos")
        self.assertEqual(set(a), {"text", "ids", "finish_reason", "usage", "seed", "spec", "timing"})
        self.assertEqual((len(a["ids"]), a["finish_reason"], a["usage"]["completion_tokens"]), (24, "length", 24))
        self.assertEqual(set(a["timing"]), {"load_s", "prefill_s", "decode_s", "prefill_tok_s", "decode_tok_s"})
        b = run_json("generate", "--prompt", "Hello", "--max-tokens", "24", "--temperature", "0", "--ignore-eos",
                     "--speculative-algorithm", "none")
        self.assertEqual(a["ids"], b["ids"])
        self.assertEqual(b["spec"]["algorithm"], "none")
        prompt_ids = run_json("tokenize", "Hello")["ids"]
        c = run_json("generate", "--ids", self.file("i.json", prompt_ids), "--max-tokens", "24", "--temperature", "0",
                     "--ignore-eos", "--threads", "1")
        self.assertEqual(a["ids"], c["ids"])
        d = run_json("generate", "--prompt-file", self.file("p.txt", "Hello"), "--max-tokens", "24", "--seed", "5",
                     "--ignore-eos")
        e = run_json("generate", "Hello", "--max-tokens", "24", "--seed", "5", "--ignore-eos",
                     "--speculative-algorithm", "none")
        self.assertEqual((d["ids"], d["text"], d["seed"]), (e["ids"], e["text"], 5))
        m = self.file("m.json", [{"role": "user", "content": "Hello"}])
        f = run_json("generate", "--messages", m, "--max-tokens", "4", "--temperature", "0")
        self.assertEqual(f["usage"]["prompt_tokens"], 5 if len(prompt_ids) == 1 else f["usage"]["prompt_tokens"])
        text = run("generate", "--prompt", "Hello", "--max-tokens", "24", "--temperature", "0",
                   "--ignore-eos").stdout.decode()
        self.assertEqual(text, a["text"] + "\n")

    def test_score(self):
        ids = [0, 5, 6, 7, 100, 200]
        path = self.file("i.json", ids)
        raw = os.path.join(self.dir, "raw.f32")
        r = run_json("score", "--ids", path, "--top-k", "3", "--raw-logits", raw)
        self.assertEqual((r["n"], len(r["logprobs"]), len(r["top"])), (6, 6, 6))
        self.assertIsNone(r["logprobs"][0])
        with open(raw, "rb") as f:
            data = f.read()
        vocab = len(data) // 4 // len(ids)
        rows = [struct.unpack("<%df" % vocab, data[i * vocab * 4:(i + 1) * vocab * 4]) for i in range(len(ids))]
        for i in range(1, len(ids)):
            top = max(rows[i - 1])
            lse = top + math.log(sum(math.exp(x - top) for x in rows[i - 1]))
            self.assertAlmostEqual(rows[i - 1][ids[i]] - lse, r["logprobs"][i], places=4)
            best = max(range(vocab), key=lambda v: (rows[i - 1][v], -v))
            self.assertEqual(r["top"][i][0][0], best)
        mean = sum(r["logprobs"][1:]) / (len(ids) - 1)
        self.assertAlmostEqual(r["perplexity"] / math.exp(-mean), 1, places=5)
        ref = run_json("score", "--ids", path, "--precision", "reference", "--kernels", "ref")
        self.assertAlmostEqual(ref["logprobs"][3], r["logprobs"][3], delta=0.5)
        text = run_json("score", "--text-file", self.file("t.txt", "some words"))
        self.assertEqual(text["n"], len(run_json("tokenize", "some words")["ids"]))

    def test_score_without_tokenizer(self):
        bare = os.path.join(self.dir, "bare")
        os.mkdir(bare)
        for name in os.listdir(MODEL):
            if "tokenizer" not in name:
                os.symlink(os.path.join(MODEL, name), os.path.join(bare, name))
        ids = self.file("i.json", [0, 5, 6])
        self.assertEqual(run_json("score", "--ids", ids, "--model", bare)["n"], 3)
        self.assertEqual(len(run_json("generate", "--ids", ids, "--model", bare, "--max-tokens", "3",
                                      "--ignore-eos")["ids"]), 3)

    def test_inspect(self):
        r = run_json("inspect")
        self.assertEqual((r["missing"], r["unknown"], r["whole"]), ([], [], True))
        self.assertEqual(sum(c["tensors"] for c in r["by_class"].values()), r["tensors"])
        self.assertEqual(sum(c["bytes"] for c in r["by_class"].values()), r["bytes"])
        self.assertEqual(run_json("inspect", MODEL), r)
        self.assertGreater(run_json("inspect", "--preset", "v4-flash")["bytes"], 100e9)

    def test_doctor(self):
        r = run_json("doctor", "--seconds", "0.2", "--port", str(free_port()))
        self.assertTrue(r["ok"])
        self.assertEqual({c["name"] for c in r["checks"]},
                         {"cpu", "model", "tokenizer", "memory", "kernels", "port"})
        for c in r["checks"]:
            self.assertEqual(set(c), {"name", "ok", "detail"})
        with Server() as s:
            r = run_json("doctor", "--seconds", "0.1", "--port", str(s.port), expect=1)
            self.assertEqual([c["name"] for c in r["checks"] if not c["ok"]], ["port"])

    def test_bench(self):
        out = os.path.join(self.dir, "r.json")
        r = run_json("bench", "step", "--steps", "6", "--context", "32", "--out", out)
        with open(out) as f:
            self.assertEqual(json.load(f), r)
        self.assertEqual(set(r) & {"card", "driver", "date", "build", "command", "rows"},
                         {"card", "driver", "date", "build", "command", "rows"})
        kinds = {(x["name"], x["kind"]) for x in r["rows"]}
        self.assertTrue({("step", k) for k in ("prefill", "decode", "verify", "draft")} <= kinds)
        for x in r["rows"]:
            self.assertGreater(x["time_us"], 0)
            self.assertAlmostEqual(x["fraction_of_floor"], x["floor_us"] / x["time_us"], delta=2e-3)

    def test_chat_from_a_pipe(self):
        p = run("chat", "--max-tokens", "8", "--temperature", "0",
                stdin="Hello\n/stats\n/nothink\nAgain\n/new\n/help\n/bogus\n/quit\nnot read\n")
        out = p.stdout.decode("utf-8", "replace")
        for words in ("1 answers", "thinking is off", "a new conversation begins", "/quit", "unknown command /bogus"):
            self.assertIn(words, out)
        self.assertEqual(p.stderr.count(b"tok/s"), 2)


class ChatTerminal(Folder):
    def test_terminal(self):
        """On a terminal: editing, Ctrl-C stops the answer alone, Ctrl-D ends, history is kept."""
        import pty
        import select
        import time
        shutil.copy(os.path.join(MODEL, "tokenizer.json"), self.dir)
        self.file("script.json", {"text": "thought</think>" + "word " * 2000, "token_ms": 10})
        pid, fd = pty.fork()
        if pid == 0:
            os.environ.update(HOME=self.dir, TERM="xterm")
            os.execv(program("firesteel-fake"), ["firesteel", "chat", "--model", self.dir])
        seen = b""

        def until(words, seconds=20):
            nonlocal seen
            end = time.time() + seconds
            while words not in seen:
                self.assertLess(time.time(), end, seen[-500:])
                if select.select([fd], [], [], 0.2)[0]:
                    seen += os.read(fd, 65536)
            seen = seen[seen.index(words) + len(words):]
        try:
            until(b"> ")
            time.sleep(0.3)  # the prompt is written before the terminal is switched
            os.write(fd, b"helxlo\x1b[D\x1b[D\x7f\n")  # left, left, backspace: "hello"
            until(b"\x1b[2m")                           # thoughts are dimmed
            until(b"word word")
            os.write(fd, b"\x03")
            until(b"stopped")
            until(b"> ")
            time.sleep(0.3)
            os.write(fd, b"/stats\n")
            until(b"1 answers")
            time.sleep(0.3)
            os.write(fd, b"\x04")
            end = time.time() + 10
            done, status = 0, 0
            while not done and time.time() < end:
                if select.select([fd], [], [], 0.05)[0]:
                    try:
                        os.read(fd, 65536)
                    except OSError:
                        pass
                done, status = os.waitpid(pid, os.WNOHANG)
            self.assertEqual((done, status), (pid, 0))
        finally:
            os.close(fd)
        with open(os.path.join(self.dir, ".firesteel_history")) as f:
            self.assertIn("hello", f.read().replace("\\040", " "))


class ChatText(Folder):
    def test_thoughts_and_answers(self):
        """Over the scripted engine: thoughts first, then the answer; history goes on."""
        shutil.copy(os.path.join(MODEL, "tokenizer.json"), self.dir)
        self.file("script.json", {"text": "my thought</think>my answer"})
        p = run("chat", "--model", self.dir, "--no-stats", stdin="Hello\n", exe="firesteel-fake")
        self.assertEqual(p.stdout.decode(), "my thought\n\nmy answer\n")
        p = run("chat", "--model", self.dir, "--no-stats", "--prompt", "x", exe="firesteel-fake")
        self.assertEqual(p.stdout.decode(), "my thought\n\nmy answer\n")


if __name__ == "__main__":
    unittest.main()
