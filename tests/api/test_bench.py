"""`firesteel bench serve` on three servers: ours with the bundled model; one of the standard library alone, that speaks
OpenAI's routes and whose times are known; one that only streams events, for what the client costs."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import ROOT, Server, free_port, program  # noqa: E402


def bench(*args, expect=0, env=None):
    p = subprocess.run([program("firesteel"), "bench"] + [str(a) for a in args], capture_output=True, cwd=ROOT,
                       timeout=300, env=dict(os.environ, **(env or {})))
    assert p.returncode == expect, (args, p.returncode, p.stdout[-1500:], p.stderr[-1500:])
    return p


def read(path):
    with open(path) as f:
        return f.read()


def bench_json(*args, **kw):
    out = bench(*args, "--json", **kw).stdout.decode()
    assert out.endswith("\n") and out.count("\n") == 1, out[-2000:]
    return json.loads(out)


class Peer(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible server of the test's own.  Times in seconds: first token, gap, of each reply."""
    protocol_version = "HTTP/1.1"
    first, gap, chunk = 0.08, 0.02, 1
    usage, comments, status, n_tokens = True, False, 200, None
    lock = threading.Lock()
    now = most = 0
    seen, heads, starts = [], [], []

    def log_message(self, *a):
        pass

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": "peer"}]})
        else:
            self.reply(404, {"error": {"message": "no such page"}})

    def event(self, text):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.wfile.flush()

    def do_POST(self):
        cls = type(self)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with cls.lock:
            cls.now += 1
            cls.most = max(cls.most, cls.now)
            cls.seen.append(body)
            cls.heads.append(dict(self.headers))
            cls.starts.append(time.monotonic())
        try:
            self.stream(body)
        finally:
            with cls.lock:
                cls.now -= 1

    def stream(self, body):
        cls = type(self)
        chat = self.path.endswith("chat/completions")
        n = cls.n_tokens or body["max_tokens"]
        if cls.status != 200:
            self.reply(cls.status, {"error": {"message": "the peer is out of order"}})
            return
        if not body["stream"]:
            time.sleep(cls.first + cls.gap * (n - 1))
            self.reply(200, {"choices": [{"text": "x" * n, "finish_reason": "length"}],
                             "usage": {"prompt_tokens": 9, "completion_tokens": n}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        due = time.monotonic() + cls.first
        while sent < n:
            time.sleep(max(0, due - time.monotonic()))
            due += cls.gap
            k = min(cls.chunk, n - sent)
            sent += k
            text = "ab " * k
            choice = {"index": 0, "finish_reason": "length" if sent == n else None}
            choice.update({"delta": {"content": text}} if chat else {"text": text})
            if cls.comments:
                self.event(b": keep-alive\n\n")
            self.event(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        if cls.usage and (body.get("stream_options") or {}).get("include_usage"):
            self.event(b"data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": n}}).encode()
                       + b"\n\n")
        self.event(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")


class PeerServer:
    def __init__(self, **kw):
        self.handler = type("Handler", (Peer,), dict(kw, seen=[], heads=[], starts=[], lock=threading.Lock(), now=0, most=0))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *a):
        self.server.shutdown()
        self.server.server_close()

    def run(self, *args, **kw):
        return bench_json("serve", "--port", self.port, "--random-input", 20, "--random-range", 1, "--output-file", "none",
                          *args, **kw)["rows"]


class AgainstPeer(unittest.TestCase):
    def test_figures(self):
        """Times are those that the server keeps; sleeps of a busy machine may only lengthen them."""
        for backend, chunk in (("openai", 1), ("openai-chat", 1), ("vllm", 4)):
            with PeerServer(chunk=chunk, comments=backend == "vllm") as s:
                row, = s.run("--backend", backend, "--num-prompts", 6, "--max-concurrency", 3, "--random-output", 12)
                self.assertEqual(row["completed"], 6)
                self.assertEqual(row["total_output_tokens"], 72)
                self.assertEqual(row["total_input_tokens"], 120)
                self.assertEqual(row["prompt_tokens"], 54)
                gaps = 12 // chunk - 1
                self.assertGreaterEqual(row["mean_ttft_ms"], 79)
                self.assertLess(row["mean_ttft_ms"], 2000)  # test_client_figures has the exact ones
                self.assertGreaterEqual(row["mean_e2e_latency_ms"], 79 + 20 * gaps)
                self.assertAlmostEqual(row["mean_tpot_ms"], (row["mean_e2e_latency_ms"] - row["mean_ttft_ms"]) / 11, 5)
                self.assertAlmostEqual(row["concurrency"] * row["duration"], 6 * row["mean_e2e_latency_ms"] / 1e3, 5)
                self.assertGreaterEqual(row["median_itl_ms"], 15)
                self.assertEqual(row["total_output_tokens_retokenized"] > 0, True)
                # warm-up one by one, then three at a time
                self.assertEqual(s.handler.most, 3)
                self.assertEqual(len(s.handler.seen), 7)
                self.assertEqual([c["server"] for c in row["checks"].values()], [None] * 3)

    def test_bodies(self):
        with PeerServer(first=0, gap=0) as s:
            s.run("--backend", "openai", "--num-prompts", 1, "--random-output", 5, "--warmup-requests", 0, "--tokenize-prompt",
                  "--extra-request-body", '{"temperature": 0.7, "extra": [1]}', "--cold",
                  env={"OPENAI_API_KEY": "sesame", "API_KEY": "other"})
            s.run("--backend", "openai-chat", "--num-prompts", 1, "--random-output", 5, "--warmup-requests", 0, "--model", "m")
            text, chat = s.handler.seen
        self.assertEqual(s.handler.heads[0]["Authorization"], "Bearer sesame")
        self.assertEqual(len(text["prompt"]), 20)
        self.assertTrue(text.pop("cache_salt").startswith("bench-"))
        text.pop("prompt")
        self.assertEqual(text, {"model": "peer", "temperature": 0.7, "best_of": 1, "max_tokens": 5, "stream": True,
                                "stream_options": {"include_usage": True}, "ignore_eos": True, "extra": [1]})
        self.assertEqual(chat["messages"][0]["role"], "user")
        chat.pop("messages")
        self.assertEqual(chat, {"model": "m", "temperature": 0.0, "max_tokens": 5, "stream": True,
                                "stream_options": {"include_usage": True}})

    def test_arrivals(self):
        """Poisson: the waits are numpy's draws (seed 42, behind the lengths, of which ratio 1 draws none)."""
        waits = json.loads(read(os.path.join(ROOT, "tests/data/numpy-random.json")))["dataset"][1]
        self.assertEqual(waits["ratio"], 1.0)
        late = []
        for _ in range(8):  # a busy machine may start a thread of the peer late
            with PeerServer(first=0, gap=0) as s:
                s.run("--backend", "openai", "--num-prompts", 5, "--random-output", 2, "--warmup-requests", 0, "--request-rate", 8)
                got = [b - a for a, b in zip(s.handler.starts, s.handler.starts[1:])]
            late.append(max(abs(a - b) for a, b in zip(got, waits["waits"])))
            if late[-1] < 0.05:
                return
        self.fail("arrivals are off by %s s" % late)

    def test_without_usage_and_stream(self):
        with PeerServer(usage=False, first=0.01, gap=0.001) as s:
            row, = s.run("--backend", "openai", "--num-prompts", 2, "--random-output", 7)
            self.assertEqual(row["total_output_tokens"], 14)  # what was asked for
        with PeerServer(first=0.05, gap=0.01) as s:
            row, = s.run("--backend", "openai", "--num-prompts", 2, "--random-output", 6, "--disable-stream")
            self.assertEqual(row["total_output_tokens"], 12)
            self.assertAlmostEqual(row["mean_ttft_ms"], row["mean_e2e_latency_ms"], 5)
            self.assertGreaterEqual(row["mean_ttft_ms"], 99)

    def test_failures(self):
        with PeerServer(status=500) as s:
            e = bench("serve", "--port", s.port, "--backend", "openai", "--num-prompts", 2, "--output-file", "none", expect=1)
            self.assertIn(b"warm-up failed: status 500", e.stderr)
            self.assertIn(b"the peer is out of order", e.stderr)
            e = bench("serve", "--port", s.port, "--backend", "openai", "--num-prompts", 2, "--output-file", "none",
                      "--warmup-requests", 0, expect=1)
            self.assertIn(b"all 2 requests failed", e.stderr)
        e = bench("serve", "--port", free_port(), "--ready-check-timeout-sec", 0.2, expect=3)
        self.assertIn(b"Connection refused", e.stderr)

    def test_wrong_usage(self):
        for args, word in ((("--num-prompts", "x"), b"--num-prompts"), (("--num-prompts", "4c"), b"needs --max-concurrency"),
                           (("--max-concurrency", "1,,2"), b"--max-concurrency"), (("--request-rate", "-1"), b"--request-rate"),
                           (("--extra-request-body", "[1]"), b"expected an object"),
                           (("--dataset-name", "sharegpt"), b"--dataset-path"),
                           (("--backend", "openai-chat", "--tokenize-prompt"), b"--tokenize-prompt"),
                           (("--backend", "nobody",), b"--backend"), (("--base-url", "https://x"), b"https")):
            with PeerServer(first=0, gap=0) as s:
                self.assertIn(word, bench("serve", "--port", s.port, "--output-file", "none", *args, expect=2).stderr, args)


class AgainstOurs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(fake=False)
        cls.dir = tempfile.mkdtemp(prefix="firesteel-test-")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir)
        cls.server.stop()

    def run_bench(self, *args, **kw):
        return bench_json("serve", "--port", self.server.port, "--random-input", 48, "--random-output", 16,
                          "--output-file", kw.pop("file", "none"), *args, **kw)

    def test_backends_agree_with_the_server(self):
        for backend in ("sglang", "openai", "openai-chat"):
            file = self.run_bench("--backend", backend, "--num-prompts", "4c", "--warmup-requests", "2c",
                                  "--max-concurrency", "1,4", "--cold")
            self.assertEqual([r["max_concurrency"] for r in file["rows"]], [1, 4])
            self.assertNotEqual(file["card"], "")
            for row in file["rows"]:
                n = 4 * row["max_concurrency"]
                self.assertEqual((row["name"], row["completed"], row["failed"]), ("serve", n, 0))
                self.assertEqual(row["warmup_requests"], n // 2)
                self.assertTrue(row["checks"]["completion tokens"]["ok"], row["checks"])
                self.assertTrue(row["checks"]["requests"]["ok"], row["checks"])
                self.assertEqual(row["cached_tokens"], 0)
                self.assertAlmostEqual(row["concurrency"] * row["duration"], n * row["mean_e2e_latency_ms"] / 1e3, 4)
                if backend == "sglang":  # replies have just the drawn lengths
                    self.assertEqual(row["total_input_tokens"] - row["prompt_tokens"] <= n, True)
                self.assertIn("--max-concurrency %d" % row["max_concurrency"], row["command"])
                self.assertNotIn("1,4", row["command"])

    def test_ttft_is_the_servers(self):
        """Within 2 ms of the server's histogram; a busy machine may need more than one run to show it."""
        best = 1
        for _ in range(5):
            ttft = self.run_bench("--num-prompts", 8, "--max-concurrency", 1, "--cold")["rows"][0]["checks"]["mean TTFT (s)"]
            best = min(best, abs(ttft["client"] - ttft["server"]))
            if best < 0.002:
                return
        self.fail("mean TTFT differs by %.1f ms from the server's" % (1e3 * best))

    def test_command_reproduces(self):
        one = self.run_bench("--num-prompts", 5, "--max-concurrency", 2)["rows"][0]
        words = one["command"].split()
        self.assertEqual(words[:3], ["firesteel", "bench", "serve"])
        again = json.loads(subprocess.run([program("firesteel")] + words[1:] + ["--output-file", "none"], capture_output=True,
                                          cwd=self.dir, check=True).stdout)["rows"][0]
        for key in ("total_input_tokens", "total_output_tokens", "total_output_tokens_retokenized", "num_prompts"):
            self.assertEqual(one[key], again[key], key)

    def test_lines_and_compare(self):
        path = os.path.join(self.dir, "lines.jsonl")
        args = ["--num-prompts", 3, "--max-concurrency", 1]
        self.run_bench(*args, "--output-details", "--tag", "first", file=path)
        line, = [json.loads(x) for x in read(path).splitlines()]
        self.assertEqual(line["tag"], "first")
        self.assertEqual(line["server_info"]["version"], self.server.info()["version"])
        for key in ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"):
            self.assertEqual(len(line[key]), 3, key)
        self.assertEqual(sum(line["output_lens"]), line["total_output_tokens"])
        for gaps, n in zip(line["itls"], line["output_lens"]):  # a sample a token behind the first event's, which may have several
            self.assertLess(len(gaps), n)
        for key in ("mean", "median", "std", "p90", "p95", "p99"):
            for what in ("e2e_latency", "ttft", "tpot", "itl"):
                self.assertIsInstance(line["%s_%s_ms" % (key, what)], float)
        text = bench("serve", "--port", self.server.port, "--random-input", 48, "--random-output", 16, *args, "--output-file",
                     path, "--compare", path, "--against", "published").stdout.decode()
        self.assertEqual(len(read(path).splitlines()), 2)  # appended
        self.assertRegex(text, r"Output token throughput \(tok/s\) +\d+\.\d+ +\d+\.\d+ +[+-]\d+\.\d%")
        self.assertIn("never a like-for-like", text)
        self.assertIn("8 x AMD Instinct MI355X", text)
        self.assertIn("command: firesteel bench serve", text)
        e = bench("serve", "--port", self.server.port, "--random-input", 50, "--random-output", 16, *args, "--output-file",
                  "none", "--compare", path, expect=2)
        self.assertIn(b"random_input_len was 48 and is 50", e.stderr)

    def test_prefixes(self):
        """A shared beginning is taken from the cache, unless a run is cold and its warm-up does not count."""
        args = ["--dataset-name", "generated-shared-prefix", "--gsp-num-groups", 2, "--gsp-prompts-per-group", 3,
                "--gsp-system-prompt-len", 300, "--gsp-question-len", 16, "--gsp-output-len", 4, "--max-concurrency", 1]
        row = self.run_bench(*args, "--cold")["rows"][0]
        self.assertEqual(row["completed"], 6)
        self.assertGreaterEqual(row["cached_tokens"], 256)
        self.assertLess(row["cached_tokens"], row["prompt_tokens"] * 0.7)  # the first of a group finds nothing
        row = self.run_bench("--num-prompts", 3, "--random-input", 400, "--random-range", 1, "--flush-cache")["rows"][0]
        self.assertEqual(row["cached_tokens"], 0)


class OtherBenches(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(fake=False)
        cls.dir = tempfile.mkdtemp(prefix="firesteel-test-")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir)
        cls.server.stop()

    def test_decode(self):
        file = bench_json("decode", "--port", self.server.port, "--input-len", 300, "--output-len", 400, "--runs", 3)
        row, = file["rows"]
        self.assertEqual((row["name"], row["prompt_tokens"], row["output_tokens"], row["runs"]), ("decode", 300, 400, 3))
        rates = sorted(row["rates_tok_s"])
        self.assertEqual([row["min_tok_s"], row["median_tok_s"], row["max_tok_s"]], rates)
        self.assertAlmostEqual(row["time_us"] * row["median_tok_s"], 1e6, delta=100)
        self.assertFalse(row["simulated_acceptance"])
        text = bench("decode", "--port", self.server.port, "--input-len", 30, "--output-len", 400, "--runs", 1, "--against",
                     "published").stdout.decode()
        self.assertIn("GB300", text)
        self.assertIn("command: firesteel bench decode", text)

    def test_ids_file(self):
        path = os.path.join(self.dir, "ids.json")
        with open(path, "w") as f:
            json.dump([5, 6, 7, 8], f)
        row, = bench_json("decode", "--port", self.server.port, "--ids", path, "--output-len", 400, "--runs", 1)["rows"]
        self.assertEqual(row["prompt_tokens"], 4)

    def test_simulated_is_labelled(self):
        flags = ["--debug-hooks", "--simulate-acc-len", "3"]
        with Server(fake=False, flags=flags) as s:
            file = bench_json("decode", "--port", s.port, "--input-len", 30, "--output-len", 60, "--runs", 2)
            self.assertTrue(file["rows"][0]["simulated_acceptance"])
            self.assertAlmostEqual(file["rows"][0]["accept_length"], 3, delta=0.2)
            text = bench("serve", "--port", s.port, "--num-prompts", 2, "--random-input", 16, "--random-output", 8,
                         "--output-file", "none").stdout.decode()
            self.assertIn("SIMULATED ACCEPTANCE", text)

    def test_frontier(self):
        csv = os.path.join(self.dir, "f.csv")
        rows = bench_json("frontier", "--port", self.server.port, "--start", 256, "--max", 900, "--gen-tokens", 16, "--csv",
                          csv)["rows"]
        self.assertEqual([r["ctx"] for r in rows], [256, 512, 900])
        self.assertEqual(rows[0]["cached_tokens"], 0)
        for a, b in zip(rows, rows[1:]):  # only the new interval is read, and what its boundary needs
            self.assertGreaterEqual(b["cached_tokens"], a["ctx"] - 128)
        for r in rows:
            self.assertGreater(r["kv_bytes"], 100 * r["ctx"])
            self.assertGreater(r["prefill_tok_s"], 0)
            self.assertGreater(r["decode_tok_s"], 0)
        lines = read(csv).split()
        self.assertEqual(lines[0], "ctx,prefill_tok_s,decode_tok_s,kv_bytes,accept_len,ttft_ms")
        self.assertEqual(len(lines), 4)
        for r, line in zip(rows, lines[1:]):  # what there was not is no figure
            self.assertEqual(line.split(",")[4], "" if r["accept_length"] is None else "%.3f" % r["accept_length"])
        self.assertIn(b"takes 65536", bench("frontier", "--port", self.server.port, "--max", 70000, expect=2).stderr)

    def test_agent(self):
        rows = bench_json("agent", "--port", self.server.port, "--turns", 6, "--thinking", "off", "--system-tokens", 50,
                          "--tool-tokens", 150)["rows"]
        self.assertEqual([r["turn"] for r in rows], list(range(1, 7)))
        self.assertGreater(sum(r["calls"] for r in rows), 0)  # the bundled model calls tools
        for a, b in zip(rows, rows[1:]):
            self.assertEqual(b["new_tokens"], b["prompt_tokens"] - a["prompt_tokens"] - a["completion_tokens"])
            self.assertEqual(b["recomputed_tokens"], b["prompt_tokens"] - b["cached_tokens"])
            self.assertTrue(b["within"], b)
            if a["calls"]:
                self.assertGreater(b["new_tokens"], 140)
            self.assertLess(b["server_prefill_ms"], b["ttft_ms"])
        # a server that keeps nothing computes all again, and the bench says so
        with Server(fake=False, flags=["--disable-radix-cache"]) as s:
            rows = bench_json("agent", "--port", s.port, "--turns", 3, "--thinking", "off", "--system-tokens", 200)["rows"]
        self.assertEqual([r["within"] for r in rows], [True, False, False])

    def test_http(self):
        rows = bench_json("http", "--max-concurrency", "1,8", "--output-len", 64)["rows"]
        self.assertEqual([(r["route"], r["max_concurrency"]) for r in rows],
                         [(r, c) for r in ("completions", "chat", "generate") for c in (1, 8)])
        for r in rows:
            self.assertEqual(r["output_tokens"], 2 * 64 * r["max_concurrency"])
            self.assertAlmostEqual(r["time_us"], r["server_thread_us_per_token"] + r["engine_us_per_token"], delta=0.01)
            self.assertGreater(r["server_thread_us_per_token"], 0.5)
            self.assertLess(r["time_us"], 5000)
        self.assertIn(b"takes no --port", bench("http", "--port", 5, expect=2).stderr)


def luminance(color):
    part = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    part = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in part]
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2]


def contrast(a, b):
    a, b = sorted((luminance(a), luminance(b)))
    return (b + 0.05) / (a + 0.05)


class Plots(unittest.TestCase):
    """Charts of result files, recorded and made up: well-formed, inside their frame, readable on both pages."""
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="firesteel-test-")

    def tearDown(self):
        shutil.rmtree(self.dir)

    def file(self, rows, **more):
        path = os.path.join(self.dir, "rows.json")
        with open(path, "w") as f:
            json.dump(dict({"card": "a card", "date": "2026-11-30", "command": "firesteel bench x --y 'a < b'", "rows": rows}, **more), f)
        return path

    def plot(self, *args, expect=0):
        p = subprocess.run([program("firesteel"), "plot"] + list(args), capture_output=True, cwd=ROOT, timeout=60)
        self.assertEqual(p.returncode, expect, p.stderr)
        return p.stderr if expect else p.stdout.decode()

    def check(self, svg, *texts):
        root = xml.etree.ElementTree.fromstring(svg)
        width, height = (float(root.get(k)) for k in ("width", "height"))
        style = root.find("{http://www.w3.org/2000/svg}style").text
        light, dark = style.split("@media (prefers-color-scheme:dark)")
        for page in (light, dark):
            ground = re.search(r"\.ground\{fill:(#\w+)\}", page).group(1)
            colors = re.findall(r"(?:text|caption|\.s\d)\{[^}]*?(?:fill|stroke):(#\w{6})", page)
            self.assertEqual(len(colors), 10)
            for c in colors:
                self.assertGreaterEqual(contrast(c, ground), 4.5, (c, ground))
        for e in root.iter():
            for key, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
                if e.get(key):
                    self.assertTrue(-1 <= float(e.get(key)) <= most, (e.tag, e.attrib))
        words = " ".join(e.text or "" for e in root.iter() if e.tag.endswith("text"))
        for t in texts:
            self.assertIn(t, words)
        self.assertNotIn("nan", svg)

    def test_recorded_files(self):
        for name, unit in (("cpu-step.json", "percent"), ("h200-kernels.json", "percent"), ("cpu-kv.json", "percent")):
            with open(os.path.join(ROOT, "bench", "results", name)) as f:
                command = json.load(f)["command"]
            self.check(self.plot("bench/results/" + name), unit, command[:40])

    def test_kinds(self):
        serve = [{"name": "serve", "backend": "sglang", "max_concurrency": c, "output_throughput": 100.0 * c, "total_throughput": 300.0 * c,
                  "accepted_by_position": [0.9, 0.7, 0.4],
                  **{"%s_%s_ms" % (p, m): 3.0 * c * (i + 1) for p in ("median", "p90", "p95", "p99")
                     for i, m in enumerate(("ttft", "tpot", "itl", "e2e_latency"))}} for c in (1, 4, 16)]
        command = "$ firesteel bench x --y 'a < b'"
        self.check(self.plot(self.file(serve)), "tokens per second", "requests under way", "a card", command)
        self.check(self.plot(self.file(serve), "--kind", "latency"), "milliseconds", "TTFT P99", command)
        self.check(self.plot(self.file(serve[:1])), "milliseconds", "P95", "E2E")
        self.check(self.plot(self.file(serve), "--kind", "accept"), "share of rounds", "concurrency 16")
        self.check(self.plot(self.file([{"name": "frontier", "ctx": c, "prefill_tok_s": 1e5 / c, "decode_tok_s": 50.0}
                                        for c in (1024, 2048, 5000)])), "context, tokens", "reading")
        self.check(self.plot(self.file([{"name": "agent", "turn": t, "recomputed_tokens": 30 * t, "new_tokens": 20} for t in (1, 2)])),
                   "turn", "tokens", "computed")
        self.check(self.plot(self.file([{"name": "http", "route": r, "max_concurrency": c, "time_us": 9.5}
                                        for r in ("chat", "generate") for c in (1, 8)])), "microseconds", "generate")
        self.check(self.plot(self.file([{"name": "decode", "rates_tok_s": [90.0, 95.5, 93.0]}])), "output tokens per second")
        lines = os.path.join(self.dir, "lines.jsonl")
        with open(lines, "w") as f:
            for r in serve:
                r = dict(r, command="firesteel bench serve --max-concurrency %d" % r["max_concurrency"])
                del r["name"]
                f.write(json.dumps(r) + "\n")
        out = os.path.join(self.dir, "out.svg")
        self.plot(lines, "--svg", out)
        self.check(read(out), "--max-concurrency 1", "and 2 more commands", "input and output")

    def test_refused(self):
        self.assertIn(b"expected a result file", self.plot(expect=2))
        self.assertIn(b"no rows that a chart shows", self.plot(self.file([{"name": "odd"}]), expect=2))
        self.assertIn(b"accepted_by_position", self.plot(self.file([{"name": "serve"}]), "--kind", "accept", expect=2))
        self.assertIn(b"nowhere.json", self.plot("/nowhere.json", expect=3))

    def test_svg_of_a_bench(self):
        with Server(fake=False) as s:
            out = os.path.join(self.dir, "s.svg")
            bench("serve", "--port", s.port, "--num-prompts", 2, "--random-input", 16, "--random-output", 8, "--output-file", "none",
                  "--max-concurrency", "1,2", "--svg", out)
        self.check(read(out), "tokens per second", "$ firesteel bench serve")


class Cost(unittest.TestCase):
    def run_source(self, events, rate, requests, streams):
        source = subprocess.Popen([program("sse-source"), str(events), str(rate)], stdout=subprocess.PIPE)
        try:
            port = int(source.stdout.readline())
            return bench_json("serve", "--port", port, "--backend", "openai", "--num-prompts", requests, "--max-concurrency",
                              streams, "--random-input", 8, "--random-output", 8, "--warmup-requests", 0,
                              "--output-file", "none")["rows"][0]
        finally:
            source.kill()
            source.wait()
            source.stdout.close()

    def test_client_cost(self):
        """What a benchmark measures must not be itself: 20,000 events a second in a fifth of a core, and 100,000."""
        row = self.run_source(400, 20000, 256, 256)
        self.assertEqual((row["completed"], row["failed"]), (256, 0))
        per_event = row["client_cpu_share"] / row["client_events_per_s"]
        self.assertLess(per_event * 20000, 0.2)
        row = self.run_source(2000, 0, 256, 256)
        self.assertEqual(row["failed"], 0)
        # The source shares the machine: what the client could take follows from its own time.
        self.assertGreater(row["client_events_per_s"] / row["client_cpu_share"], 100000)
        print("client: %.1f %% of a core at 20,000 events/s; %.0f events/s came, %.1f %% of a core" % (
            100 * per_event * 20000, row["client_events_per_s"], 100 * row["client_cpu_share"]), file=sys.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
