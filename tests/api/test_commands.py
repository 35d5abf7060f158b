"""The commands on the bundled model: what they print, their JSON, their exit status."""

import json
import math
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import MODEL, ROOT, Server, free_port, program  # noqa: E402


def run(*args, stdin="", expect=0, env=None, exe="firesteel"):
    p = subprocess.run([program(exe)] + list(args), input=stdin if isinstance(stdin, bytes) else stdin.encode(),
                       capture_output=True, cwd=ROOT, timeout=300, env=dict(os.environ, **(env or {})))
    assert expect is None or p.returncode == expect, (args, p.returncode, p.stdout[-500:], p.stderr[-1500:])
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
        for c in ("serve chat generate score tokenize detokenize render inspect plan doctor bench plot calibrate "
                  "kv replay version help").split():
            self.assertIn("\n  " + c + " ", text)
            if c != "help":
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
        self.assertIn(b"nothing", run("bench", "nothing", expect=2).stderr)
        self.assertIn(b"stray", run("bench", "step", "stray", expect=2).stderr)
        self.assertIn(b"stray", run("bench", "kv", "stray", expect=2).stderr)
        self.assertIn(b"stray", run("bench", "kernels", "stray", expect=2).stderr)
        run("bench", expect=2)
        run("inspect", "a", "b", expect=2)
        run("inspect", "--preset", "v4-pro", "--model", MODEL, expect=2)
        run("render", expect=2)
        run("render", "--messages", "a", "b", expect=2)
        self.assertIn(b"503, 429", run("serve", "--queue-full-status", "500", "--port", "0", expect=2).stderr)

    def test_words_that_no_command_takes(self):
        for args in (("serve", "--port", "0"), ("chat",), ("score", "--text-file", "README.md"), ("doctor",), ("plan",),
                     ("version",), ("help", "fields")):
            err = run(*args, "stray", expect=2).stderr.decode()
            self.assertIn('"stray"', err)
            self.assertEqual(err.count("\n"), 1, err)

    def test_json_is_offered_where_it_is_printed(self):
        for c in "generate score tokenize detokenize render inspect plan doctor bench calibrate kv version".split():
            self.assertIn("\n  --json ", run(c, "--help").stdout.decode())
        for c in ("serve", "chat"):
            self.assertNotIn("--json", run(c, "--help").stdout.decode())
            self.assertIn(b"--json", run(c, "--json", expect=2).stderr)

    def test_output_that_cannot_be_written(self):
        """Status 1 and one line, whatever a command prints with."""
        ids = self.file("ids.json", [5, 6, 7])
        for args in (("help",), ("help", "fields"), ("version",), ("score", "--help"), ("tokenize", "a"),
                     ("detokenize", "[5]"), ("inspect",), ("inspect", "--json"), ("plan",), ("plan", "--json"), ("plan", "--table"),
                     ("score", "--ids", ids),
                     ("generate", "--ids", ids, "--max-tokens", "2"), ("chat", "-p", "a", "--max-tokens", "2"),
                     ("bench", "step", "--steps", "2", "--context", "4")):
            with open("/dev/full", "w", encoding="utf-8") as full:
                p = subprocess.run([program("firesteel")] + list(args), stdout=full, stderr=subprocess.PIPE,
                                   stdin=subprocess.DEVNULL, cwd=ROOT, timeout=300)
            self.assertEqual(p.returncode, 1, (args, p.stderr))
            self.assertIn(b"standard output could not be written\n", p.stderr)

    def test_a_result_file_is_named_as_it_was_given(self):
        path = os.path.join(self.dir, "none", "r.json")
        err = run("bench", "step", "--steps", "2", "--context", "4", "--out", path, expect=3).stderr.decode()
        self.assertIn(path + ": ", err)

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


    def test_words_that_are_known_but_not_built(self):
        """The engine answers, in one line; only words that nobody knows are wrong usage."""
        for flag, word, status, what in (
                ("device", "cuda", 3, "cuda"), ("device", "hip", 3, "hip"),
                ("device", "abacus", 2, "abacus"), ("verify-mode", "often", 2, "often")):
            err = run("generate", "-p", "a", "--" + flag, word, expect=status).stderr.decode()
            self.assertEqual(err.count("\n"), 1, err)
            if status != 3:  # which says what the machine lacks: module, driver or card
                self.assertIn(flag, err)
            self.assertIn(what, err)
        for word in "mtp", "EAGLE":
            err = run("generate", "-p", "a", "--speculative-algorithm", word, expect=2).stderr
            self.assertIn(b"this checkpoint bundles a DSpark drafter, not an MTP block; use dspark or none", err)

    def test_mtp(self):
        """The assembled preview checkpoint drafts with its block, and answers as without."""
        model = os.path.join(ROOT, "build", "kindling-mtp")
        one = ["generate", "--model", model, "-p", "Tom has 12 pens and buys 3 more.", "--max-tokens", "40",
               "--temperature", "0", "--verify-mode", "static", "--json"]
        plain = json.loads(run(*one, "--speculative-algorithm", "none").stdout)
        for flags, steps in (([], 3), (["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "2"], 2),
                             (["--speculative-num-draft-tokens", "2"], 1)):
            got = json.loads(run(*one, *flags).stdout)
            self.assertEqual(got["ids"], plain["ids"])
            self.assertEqual(got["spec"]["algorithm"], "mtp")
            self.assertEqual(len(got["spec"]["accepted_by_position"]), steps)
            self.assertGreater(got["spec"]["accepted"], 0)
        plan = json.loads(run("plan", "--model", model, "--json").stdout)
        self.assertEqual((plan["speculative_algorithm"], plan["gamma"]), ("mtp", 3))
        for flags, text in ((["--speculative-num-steps", "4"], b"from 1 to 3"),
                            (["--speculative-eagle-topk", "2"], b"--speculative-eagle-topk"),
                            (["--speculative-num-steps", "1", "--speculative-num-draft-tokens", "3"],
                             b"must be one more than --speculative-num-steps 1, got 3"),
                            (["--speculative-dspark-block-size", "2"], b"which has --speculative-num-steps"),
                            (["--speculative-algorithm", "dspark"], b"use mtp or none")):
            self.assertIn(text, run(*one, *flags, expect=2).stderr)

    def test_flags_of_tiers(self):
        """A flag that says how to keep what is kept nowhere."""
        one = ["generate", "--prompt", "hi", "--max-tokens", "1"]
        self.assertIn(b"--kv-disk-mb needs --kv-disk-dir", run(*one, "--kv-disk-mb", "5", expect=2).stderr)
        self.assertIn(b"--kv-disk-dir is empty", run(*one, "--kv-disk-dir", "", expect=2).stderr)
        published = ("--enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_through "
                     "--hicache-io-backend direct --hicache-mem-layout page_first --kv-disk-space-mb 100").split()
        err = run(*one, *published, "--kv-disk-dir", os.path.join(self.dir, "all")).stderr
        self.assertNotIn(b"effect=none", err)
        self.assertEqual(err.count(b"hicache-io-backend"), 1)
        line = b"flag=--hicache-storage-prefetch-policy effect=none"
        self.assertIn(line, run(*one, "--hicache-storage-prefetch-policy", "timeout", "--hicache-ratio", "4").stderr)
        for flag, value, of_host in (("--hicache-write-policy", "write_back", False),
                                     ("--hicache-mem-layout", "layer_first", True)):
            line = b"flag=%s effect=none" % flag.encode()
            self.assertIn(line, run(*one, flag, value).stderr)
            self.assertNotIn(line, run(*one, flag, value, "--hicache-ratio", "4").stderr)
            told = run(*one, flag, value, "--kv-disk-dir", os.path.join(self.dir, "kv")).stderr
            self.assertEqual(line in told, of_host)

    def test_help_is_made_of_sentences(self):
        for c in "serve chat generate score tokenize render inspect plan doctor bench calibrate kv".split():
            text = re.sub(r"\n {3,}", " ", run(c, "--help").stdout.decode())
            for line in re.findall(r"^  -.*$", text, re.M):
                self.assertRegex(line, r"\.( \[.*\])?$")

    def test_seeds(self):
        """The whole range of 64 bits, and nothing beside it."""
        for text, value in (("18446744073709551615", 2 ** 64 - 1), ("-1", 2 ** 64 - 1),
                            ("-9223372036854775808", 2 ** 63), ("9007199254740993", 2 ** 53 + 1)):
            r = run_json("generate", "-p", "a", "--max-tokens", "1", "--seed", text)
            self.assertEqual(r["seed"], value)
        for text in ("18446744073709551616", "-9223372036854775809", "1.5", "", "-", " 1", "0x10"):
            for args in (("generate", "-p", "a", "--seed", text), ("chat", "-p", "a", "--seed", text),
                         ("generate", "-p", "a", "--random-seed", text)):
                self.assertIn(b"seed", run(*args, expect=2).stderr)


class Plan(unittest.TestCase):
    """What fits, before anything is loaded."""

    FLASH = ("plan", "--preset", "v4-flash-dspark", "--device-memory", "139GiB")
    TWO = FLASH + ("--tensor-parallel-size", "2")
    GIB = 2 ** 30

    def refused(self, *args, status=3, json_too=True):
        p = run(*args, expect=status)
        err = p.stderr.decode()
        self.assertEqual(err.count("\n"), 1, err)
        if json_too:
            r = json.loads(run(*args, "--json", expect=status).stdout)
            self.assertFalse(r["fits"])
            self.assertEqual(err, "firesteel: %s\n" % r["why_not"])
        return err

    def test_table_of_readme(self):
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
            readme = f.read()
        self.assertIn("\n\n" + run("plan", "--table").stdout.decode() + "\n", readme)
        rows = run_json("plan", "--table")["rows"]
        self.assertEqual([(x["model"], x["tensor_parallel_size"]) for x in rows],
                         [(m, n) for m in ("v4-flash-dspark", "v4-pro-dspark", "v4.1-flash")
                          for n in (1, 2, 2, 4, 4, 8, 8)])
        self.assertNotEqual(run("plan", "--table", "--device-memory", "80GiB").stdout, run("plan", "--table").stdout)

    def test_bundled(self):
        """What plan says of the bundled model is what the engine does."""
        flags = ("--device", "cpu", "--context-length", "4096", "--max-running-requests", "3",
                 "--max-total-tokens", "12288")
        r = run_json("plan", *flags)
        self.assertTrue(r["fits"])
        self.assertIsNone(r["not_built"])
        self.assertEqual((r["pool_tokens"], r["context_length"], r["requests_per_card"]), (12288, 4096, 3))
        with Server(fake=False, flags=flags) as s:
            info = s.get("/server_info").json()
        self.assertEqual(info["max_total_num_tokens"], r["pool_tokens"])
        text = run("plan").stdout.decode()
        for word in ("kindling: 4 layers, draft dspark", "weights", "window rings", "index keys",
                     "requests that fit at the same time", "MB of a snapshot"):
            self.assertIn(word, text)

    def test_one_model(self):
        r = run_json(*self.TWO)
        self.assertTrue(r["fits"])
        self.assertEqual((r["bytes_per_full_token"], r["bytes_per_request"]),
                         (3817, 46 * 133 * 640 + 21 * 32 * 10240 + 20 * 256 * 4096))
        self.assertEqual(r["checkpoint_bytes"], 166878536440)
        self.assertLess(abs(r["budget_bytes"] - (0.92 * 139 * self.GIB - r["weights_bytes"])), 2)
        self.assertEqual(r["swa_bytes"], 9 * 46 * 133 * 640)
        self.assertEqual(r["kv_bytes"], sum(r[k + "_bytes"] for k in "swa state compressed index table".split()))
        left = r["budget_bytes"] - r["kv_bytes"] - r["work_bytes"] - r["scratch_bytes"]
        self.assertTrue(0 <= left < 256 * 3817 + 4)
        self.assertEqual(r["full_tokens_all_cards"], 2 * r["full_tokens"])
        self.assertEqual(r["snapshot"]["page_end"]["bytes"], 128 * 46 * 640 + 4 * 5120 * 21)
        self.assertEqual([x["context_length"] for x in r["largest"]], [8192, 131072, 1048576])
        for x in r["largest"]:  # what it says fits does, and one more on each card does not
            if x["requests"] < 4096:
                a = ("--context-length", str(x["context_length"]), "--max-running-requests")
                run(*self.TWO, *a, str(x["requests"]))
                run(*self.TWO, *a, str(x["requests"] + 1), expect=3)
        for names in (("--cards", "2", "--card-memory", "139GiB", "--requests", "5", "--context", "5000"),
                      ("--tp", "2", "--device-memory", "139GiB", "--slots", "5", "-c", "5000")):
            r = run_json("plan", "--preset", "v4-flash-dspark", *names)
            self.assertEqual((r["requests_per_card"], r["max_running_requests"], r["context_length"], r["pool_tokens"]),
                             (3, 5, 5000, 3 * 5120))
        self.assertEqual(run_json(*self.TWO, "--share", "tensors")["requests_per_card"], 16)
        self.assertIn(b"several cards", run(*self.TWO).stdout)

    def test_rows(self):
        """Bytes of a token by layout and keys, as published."""
        for preset, flags, want in (
                ("v4-flash", (), 3817), ("v4-flash", ("--index-keys", "fp8"), 4153),
                ("v4-flash", ("--kv-layout", "unified-bf16", "--index-keys", "fp8"), 6229),
                ("v4-flash", ("--kv-layout", "paged", "--index-keys", "fp8"), 3899.25),
                ("v4-pro", ("--sizing", "published", "--speculative-algorithm", "none"), 5945),
                ("v4-pro", ("--sizing", "published"), 5945 * 62 / 61), ("v4.1-flash", (), 890),
                ("v4.1-flash", ("--kv-layout", "unified-fp8"), 1770)):
            r = run_json("plan", "--preset", preset, "--device-memory", "1000GiB", *flags)
            self.assertAlmostEqual(r["bytes_per_full_token"], want, 6, (preset, flags))
            if preset == "v4-flash" and "--sizing" not in flags:
                self.assertIsNone(r["not_built"], flags)
        self.assertEqual(run_json("plan", "--preset", "v4.1-flash", "--device-memory", "1000GiB")["kv_layout"], "own")

    def test_published_tokens(self):
        """64 requests on eight cards, with the budget that both published runs had."""
        flags = ("plan", "--preset", "v4-flash-dspark", "--sizing", "published", "--tensor-parallel-size", "8",
                 "--max-running-requests", "64", "--mem-fraction-static", "1", "--device-memory")
        weights = run_json(*flags, "200GiB")["weights_bytes"]
        for layout, tokens in (("unified-fp8", 53978624), ("unified-bf16", 35985664)):
            r = run_json(*flags, str(weights + 229677000633), "--kv-layout", layout)
            self.assertEqual((r["budget_bytes"], r["full_tokens"]), (229677000633, tokens))
            self.assertEqual(r["index_keys"], "fp8")

    def test_what_does_not_fit(self):
        self.assertIn("--tensor-parallel-size 1: weights of 155.42 GiB on a card do not fit into 127.88 GiB of it; "
                      "2 cards would do", self.refused(*self.FLASH))
        self.assertIn("with --share tensors they do", self.refused(
            "plan", "--preset", "v4-pro-dspark", "--device-memory", "139GiB", "--cards", "8"))
        self.assertIn("nor would 64 cards", self.refused("plan", "--preset", "v4-pro", "--device-memory", "1GiB"))
        self.assertRegex(self.refused(*self.TWO, "--requests", "100", "--context", "1048576"),
                         r"--max-running-requests 100 at --context-length 1048576 does not fit: \d+ of that length "
                         r"fit, or 100 of length \d+\n")
        self.assertRegex(self.refused(*self.TWO, "--requests", "4096"), r"--max-running-requests 4096: .* at most \d+ fit\n")
        self.assertRegex(self.refused(*self.TWO, "--max-total-tokens", "100000000"),
                         r"--max-total-tokens 100000000 .*; at most \d+ fit\n")
        self.assertRegex(self.refused("plan", "--preset", "v4-flash-dspark", "--device-memory", "90GiB", "--cards",
                                      "2", "--context-length", "1048576"),
                         r"--context-length 1048576 does not fit: there is room for \d+ tokens of KV\n")

    def test_wrong(self):
        for flags, words in (
                (("--preset", "v9"), ("v9", "v4.1-flash")), (("--preset", "v4-pro", "--model", MODEL), ("--preset",)),
                (("--cards", "0"), ("--cards", "from 1 to 64")), (("--cards", "2"), ("--tensor-parallel-size 2",)),
                (("--device-memory", "big"), ("--device-memory", "a size")),
                (("--device-memory", "-5"), ("--device-memory", "a size")),
                (("--device-memory", "1GiB", "--device", "cpu"), ("--device-memory", "--device")),
                (("--mem-fraction-static", "2"), ("--mem-fraction-static", "from 0.05 to 1")),
                (("--sizing", "loose"), ("--sizing", "tight, published")),
                (("--share", "cake"), ("--share", "experts, tensors")),
                (("--sizing", "published", "--index-keys", "fp4"), ("--index-keys fp4", "fp8")),
                (("--kv-layout", "round"), ("--kv-layout", "unified-fp8")),
                (("--context-length", "1e9"), ("--context-length", "integer")),
                (("--context-length", "65537"), ("--context-length", "[1, 65536]", "65537")),
                (("--requests", "4097"), ("--requests", "from 1 to 4096")),
                (("--speculative-dspark-block-size", "6"), ("--speculative-dspark-block-size", "[1, 5]")),
                (("--preset", "v4-flash", "--speculative-algorithm", "dspark"), ("--speculative-algorithm dspark",)),
                (("--table", "--preset", "v4-pro"), ("--preset", "--table")), (("--prset", "x"), ("did you mean --preset",))):
            err = self.refused("plan", *flags, status=2, json_too=False)
            for w in words:
                self.assertIn(w, err)
        self.assertIn("no such folder", self.refused("plan", "--model", "/nowhere", json_too=False))
        self.refused("plan", "--device", "hip", json_too=False)


class Damaged(Folder):
    """Checkpoints that are not whole: status 1 and one line that names the place, from every command."""

    def copy(self):
        path = tempfile.mkdtemp(dir=self.dir)
        for name in os.listdir(MODEL):
            shutil.copy(os.path.join(MODEL, name), path)
        return path

    def shard(self, path, i):
        return os.path.join(path, sorted(f for f in os.listdir(path) if f.endswith(".safetensors"))[i])

    def edit_header(self, path, change):
        """Change the header; the bytes of tensors that it loses are cut out."""
        with open(path, "rb") as f:
            data = f.read()
        n = struct.unpack("<Q", data[:8])[0]
        before = json.loads(data[8:8 + n])
        after = change(json.loads(data[8:8 + n]))
        body = data[8 + n:]
        for name in set(before) - set(after):
            a, b = before[name]["data_offsets"]
            body = body[:a] + body[b:]
            for t in after.values():
                if "data_offsets" in t and t["data_offsets"][0] >= b:
                    t["data_offsets"] = [x - (b - a) for x in t["data_offsets"]]
        text = json.dumps(after).encode()
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + body)

    def edit_json(self, path, name, change):
        path = os.path.join(path, name)
        with open(path, encoding="utf-8") as f:
            value = json.load(f)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(change(value), f)

    def check(self, path, *words, commands=("inspect", "generate", "score", "serve")):
        lines = []
        for c in commands:
            args = {"inspect": (path,), "generate": ("-p", "a", "--model", path), "serve": ("--port", "0",
                    "--model", path), "score": ("--ids", self.file("i.json", [0, 5]), "--model", path)}[c]
            p = run(c, *args, expect=1)
            err = [x for x in p.stderr.decode().splitlines() if " info " not in x]
            if c == "inspect" and not err:  # the listing says it
                self.assertTrue(p.stdout.endswith(b"NOT WHOLE\n"))
                self.assertFalse(run_json("inspect", path, expect=1)["whole"])
                err = [p.stdout.decode()]
            self.assertEqual(len(err), 1, err)
            for w in words:
                self.assertIn(w, err[0])
            lines.append(err[0])
        return lines

    def test_files(self):
        p = self.copy()
        os.truncate(self.shard(p, 1), os.path.getsize(self.shard(p, 1)) // 2)
        self.check(p, os.path.basename(self.shard(p, 1)), "truncated")
        p = self.copy()
        gone = os.path.basename(self.shard(p, 1))
        os.remove(self.shard(p, 1))
        self.check(p, gone, "missing")

    def test_header_bytes(self):
        with open(self.shard(MODEL, 0), "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
        for at, byte in ((3, 0x9b), (8, 0x9b), (8 + n // 2, 0x00), (8 + n - 1, 0x2c)):
            p = self.copy()
            with open(self.shard(p, 0), "r+b") as f:
                f.seek(at)
                f.write(bytes([byte]))
            self.check(p, os.path.basename(self.shard(p, 0)), "header", commands=("inspect", "generate"))

    def test_tensors(self):
        p, seen = self.copy(), []

        def wrong(h):
            seen.append(min(k for k in h if h[k].get("dtype") == "F8_E4M3"))
            h[seen[0]]["dtype"] = "I8"
            return h
        self.edit_header(self.shard(p, 0), wrong)
        self.check(p, seen[0], "I8", "F8_E4M3")
        for prefix in ("mtp.", "layers."):
            p = self.copy()
            index = os.path.join(p, "model.safetensors.index.json")
            with open(index) as f:
                where = json.load(f)["weight_map"]
            name = max(k for k in where if k.startswith(prefix))

            def drop(v):
                (v["weight_map"] if "weight_map" in v else v).pop(name)
                return v
            self.edit_header(os.path.join(p, where[name]), drop)
            self.edit_json(p, "model.safetensors.index.json", drop)
            self.check(p, name)

    def test_config(self):
        p = self.copy()
        self.edit_json(p, "config.json", lambda c: dict(c, model_type="llama"))
        self.check(p, "config.json", "model_type", "llama", "deepseek_v4")
        p = self.copy()
        for name in ("config.json", "model.safetensors.index.json"):
            p = self.copy()
            self.file(os.path.join(p, name), "[" * 5_000_000)
            self.check(p, name, "nested")
        p = self.copy()
        self.file(os.path.join(p, "tokenizer.json"), "[" * 5_000_000)
        self.check(p, "tokenizer.json", "nested", commands=("generate", "serve"))

    def test_arguments(self):
        nest = self.file("n.json", "[" * 5_000_000)
        for args in (("generate", "--ids", nest), ("score", "--ids", nest), ("render", "--messages", nest)):
            err = run(*args, expect=1).stderr.decode()
            self.assertEqual(err.count("\n"), 1)
            self.assertIn("nested", err)
        for c in ("serve", "chat", "generate", "score", "inspect", "doctor", "bench", "render", "tokenize"):
            err = run(c, "--frobnicate", expect=2).stderr.decode()
            self.assertEqual((err.count("\n"), "--frobnicate" in err), (1, True))


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
        for mode in ("static", "cap", "compact", "auto"):
            x = run_json("generate", "--prompt", "Hello", "--max-tokens", "24", "--temperature", "0", "--ignore-eos",
                         "--verify-mode", mode)
            self.assertEqual(x["ids"], a["ids"], mode)
            if mode != "auto":
                self.assertGreater(x["spec"]["verify_steps"], 0, mode)
        m = self.file("m.json", [{"role": "user", "content": "Hello"}])
        f = run_json("generate", "--messages", m, "--max-tokens", "4", "--temperature", "0")
        self.assertEqual(f["usage"]["prompt_tokens"], 5 if len(prompt_ids) == 1 else f["usage"]["prompt_tokens"])
        text = run("generate", "--prompt", "Hello", "--max-tokens", "24", "--temperature", "0",
                   "--ignore-eos").stdout.decode()
        self.assertEqual(text, a["text"] + "\n")

    def test_calibrate(self):
        """Blocks of a few answers: the file is written where it helps, and serves the next start."""
        prompts = [run_json("tokenize", "Tom has %d pens and finds %d more." % (i, 2 * i))["ids"] for i in range(3, 43)]
        path, out = self.file("p.json", prompts), os.path.join(self.dir, "sts.json")
        args = ("calibrate", "--prompts", path, "--out", out, "--json")
        err = run(*args, "--max-tokens", "2", "--temperatures", "0", expect=2).stderr.decode()
        self.assertIn("400 rounds or more", err)
        self.assertFalse(os.path.exists(out))
        self.assertIn("prompt 1", run("calibrate", "--prompts", self.file("q.json", [[1], {"messages": 3}]), "--out", out,
                                      expect=1).stderr.decode())
        run("calibrate", "--prompts", "/none", "--out", out, expect=3)
        run("calibrate", expect=2)
        self.assertIn("--temperatures", run(*args, "--temperatures", "x", expect=2).stderr.decode())
        p = run(*args, "--max-tokens", "400", "--dataset", "a few", expect=None)
        r = json.loads(p.stdout)
        self.assertEqual(p.returncode, 0 if r["written"] else 1, p.stderr)
        self.assertEqual(os.path.exists(out), r["written"])
        self.assertGreaterEqual(r["rounds"], 400)
        self.assertEqual((len(r["temperatures"]), len(r["ece_before"]), len(r["ece_after"])), (5, 5, 5))
        self.assertEqual(r["written"], sum(r["ece_after"]) < sum(r["ece_before"]))
        if r["written"]:
            with open(out, encoding="utf-8") as f:
                self.assertEqual((json.load(f)["dataset"]), "a few")
        bad = self.file("bad.json", {"temperatures": [1] * 5, "ece_before": [0.1] * 5, "ece_after": [0.1] * 5})
        err = run("generate", "-p", "a", "--speculative-dspark-confidence-sts-path", bad, expect=None)
        self.assertNotEqual(err.returncode, 0)
        self.assertIn(b"does not help", err.stderr)

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
        # Probabilities, not logarithms: of a token that never comes the model knows no third digit.
        said = self.file("said.txt", "<｜begin▁of▁sentence｜><｜User｜>Tom has 12 pens. He finds 15 more. How many pens "
                         "does Tom have?<｜Assistant｜><think>Start: 12. Finds 15: 12 + 15 = 27.</think>")
        fast, ref = (run_json("score", "--text-file", said, *flags)["logprobs"][1:]
                     for flags in ((), ("--precision", "reference", "--kernels", "ref")))
        for i, (a, b) in enumerate(zip(fast, ref)):
            self.assertAlmostEqual(math.exp(a), math.exp(b), delta=0.1, msg=str(i))
        for row in (fast, ref):
            self.assertGreater(sum(row[-20:]), -0.1)  # it works the sum out itself
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
        self.assertEqual(run_json("inspect", MODEL, env={"FIRESTEEL_MODEL": "/nowhere"}), r)
        run("inspect", "--preset", "v4-pro", env={"FIRESTEEL_MODEL": "/nowhere"})
        columns = {line.index(" tensors ") for line in run("inspect").stdout.decode().splitlines() if line[:2] == "  "}
        self.assertEqual(len(columns), 1)
        self.assertGreater(run_json("inspect", "--preset", "v4-flash")["bytes"], 100e9)
        r = run_json("inspect", "--preset", "v4.1-flash")
        self.assertEqual((r["tensors"], r["bytes"], r["model_type"]), (95819, 509315486040, "deepseek_v41"))

    def test_values_that_are_no_numbers(self):
        """A scale byte of 255 is named before the first token, by generate as by inspect --values."""
        self.assertTrue(run_json("inspect", "--values")["whole"])
        self.assertIn(b"--values", run("inspect", "--values", "--preset", "v4-pro", expect=2).stderr)
        bad = os.path.join(self.dir, "bad")
        os.mkdir(bad)
        for name in os.listdir(MODEL):
            os.symlink(os.path.join(os.path.abspath(MODEL), name), os.path.join(bad, name))
        shard = os.path.join(bad, "model-00001-of-00002.safetensors")
        with open(shard, "rb") as f:
            data = bytearray(f.read())
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        name = next(n for n in sorted(header) if header[n].get("dtype") == "F8_E8M0")
        data[8 + size + header[name]["data_offsets"][0] + 3] = 255
        os.unlink(shard)
        with open(shard, "wb") as f:
            f.write(data)
        self.assertTrue(run_json("inspect", bad)["whole"])  # by its headers it is
        for args in (("inspect", "--values", bad), ("generate", "--model", bad, "Hello")):
            self.assertRegex(run(*args, expect=1).stderr.decode(), 'tensor "%s": element 3 ' % re.escape(name))

    def test_doctor(self):
        r = run_json("doctor", "--seconds", "0.2", "--port", str(free_port()))
        self.assertTrue(r["ok"])
        self.assertEqual({c["name"] for c in r["checks"]},
                         {"cpu", "cuda", "model", "tokenizer", "memory", "kernels", "port"})
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
            self.assertAlmostEqual(x["fraction_of_floor"], x["floor_us"] / x["time_us"],
                                   delta=2e-3 * max(1, x["fraction_of_floor"]))

    def test_bench_kv(self):
        """The prefix tree of a published geometry: what was taken is found, times and bytes are there."""
        r = run_json("bench", "kv", "--context", "2000", "--kv-layout", "unified-bf16")
        self.assertEqual([(x["name"], x["kind"], x["context"]) for x in r["rows"]],
                         [("kv/take", "most", 1791), ("kv/restore", "most", 1791), ("kv/take", "page", 1792),
                          ("kv/restore", "page", 1792), ("kv/match", "ids", 2000),
                          ("kv/host_put", "pages", 1792), ("kv/host_get", "pages", 1792)])
        self.assertGreater(r["rows"][0]["bytes"], r["rows"][2]["bytes"])
        for x in r["rows"]:
            self.assertGreater(x["time_us"], 0)
        for args, text in ((("--context", "3"), b"at least 512"), (("--synthetic", "v9"), b"v4-pro-dspark")):
            self.assertIn(text, run("bench", "kv", *args, expect=2).stderr)

    def test_bench_synthetic(self):
        """Random weights of a folder's configuration: decode, verify, prefill; blocks by kind of layer."""
        common = ("bench", "step", "--synthetic", MODEL, "--steps", "2", "--context", "600", "--threads", "1")
        r = run_json(*common, "--rows", "1,3", "--prefill", "40")
        steps = [x for x in r["rows"] if x["name"] == "step"]
        self.assertEqual([(x["kind"], x["rows"], x["context"]) for x in steps],
                         [("decode", 1, 600), ("draft", 5, 600), ("decode", 3, 600), ("draft", 15, 600),
                          ("prefill", 40, 0)])
        self.assertGreater(r["weight_bytes"], 1e7)
        for x in r["rows"]:
            self.assertEqual((x["preset"], x["layers"], x["routing"], x["layout"]),
                             (os.path.basename(MODEL), 4, "independent", "unified-fp8"))
            if x["floor_us"] > 10:  # printed with three decimals
                self.assertAlmostEqual(x["fraction_of_floor"], x["floor_us"] / x["time_us"],
                                       delta=2e-3 * max(1, x["fraction_of_floor"]))
        self.assertEqual(steps[0]["distinct_experts"], 2)
        calls = {(x["name"], x.get("layer_kind")): x["calls"] for x in r["rows"] if x["rows"] == 1}
        self.assertEqual(calls["block/index_topk", "C4"], 2)
        self.assertEqual(calls["block/seam", "window"], 2)
        self.assertEqual(calls["block/attention", "C128"], 1)
        self.assertEqual(calls["block/head", None], 1)
        # The sum over blocks is the step.
        self.assertAlmostEqual(sum(x["bytes"] for x in r["rows"] if x["rows"] == 1 and x["name"][:6] == "block/"),
                               steps[0]["bytes"], delta=1e-6 * steps[0]["bytes"])
        r = run_json(*common, "--rows", "2", "--verify", "--routing", "correlated", "--layers", "3",
                     "--kv-layout", "unified-bf16", "--index-keys", "fp8")
        x = r["rows"][0]
        self.assertEqual((x["kind"], x["rows"], x["layers"], x["routing"], x["layout"]),
                         ("verify", 12, 3, "correlated", "unified-bf16"))

    def test_bench_synthetic_usage(self):
        for args, text in ((("--synthetic", "v9"), b"v4-pro-dspark"),
                           (("--synthetic", "v4-flash", "--layers", "44"), b"43 layers, got 44"),
                           (("--synthetic", "v4-pro-dspark", "--layers", "2"), b"3 layers, got 2"),
                           (("--synthetic", "v4-pro", "--rows", "1,"), b"commas between, got '1,'"),
                           (("--synthetic", "v4-pro", "--rows", "0"), b"from 1 to 1024"),
                           (("--synthetic", "v4-pro", "--rows", "4 5"), b"from 1 to 1024"),
                           (("--synthetic", "v4-pro", "--rows", ",".join("1" * 17)), b"at most 16"),
                           (("--rows", "1,2"), b"--synthetic"), (("--verify",), b"--synthetic"),
                           (("--routing", "correlated"), b"--synthetic")):
            self.assertIn(text, run("bench", "step", *args, expect=2).stderr)

    def test_bench_kernels(self):
        """Every entry that a step launches, alone: bytes of bench step's blocks, floors by the ceilings in the file."""
        out = os.path.join(self.dir, "r.json")
        common = ("--synthetic", MODEL, "--context", "600", "--threads", "1", "--rows", "1", "--prefill", "8")
        r = run_json("bench", "kernels", *common, "--out", out)
        with open(out) as f:
            self.assertEqual(json.load(f), r)
        self.assertEqual(set(r) - {"card", "driver", "date", "build", "command", "rows"},
                         {"read_gb_s", "gmac_s", "weight_bytes", "fill_s"})
        seen = {}
        for x in r["rows"]:
            self.assertRegex(x["name"], "^kernel/[a-z_]+$")
            self.assertEqual((x["preset"], x["layers"], x["routing"]), (os.path.basename(MODEL), 4, "independent"))
            self.assertGreater(x["best_us"], 0, x)
            self.assertGreaterEqual(x["time_us"], x["best_us"])
            self.assertGreaterEqual(x["sets"], 1)
            self.assertEqual(x["calls"] % (5 * x["sets"]), 0)  # five passes of whole rounds
            floor = 1e-3 * max(x["bytes"] / r["read_gb_s"], x["flops"] / (2 * r["gmac_s"]))
            self.assertAlmostEqual(x["floor_us"], floor, delta=1e-3 + 1e-4 * floor)
            if x["floor_us"] > 10:  # printed with three decimals
                self.assertAlmostEqual(x["fraction_of_floor"], x["floor_us"] / x["time_us"],
                                       delta=2e-3 * max(1, x["fraction_of_floor"]))
            key = (x["kind"], x["rows"], x["name"][7:], x.get("layer_kind"))
            self.assertNotIn(key, seen)
            seen[key] = x
        blocks = {(x["kind"], x["rows"], x["name"][6:], x.get("layer_kind")): x
                  for x in run_json("bench", "step", *common, "--steps", "2")["rows"] if x["name"][:6] == "block/"}
        for (kind, rows, name, site), x in blocks.items():
            if kind == "draft" and site is None and name in ("attn_in", "kv_write", "ring_store", "main_proj"):
                self.assertIn((kind, 1, name, "inject"), seen)
                continue
            one = seen.pop((kind, rows, name, site))
            if (kind, name) == ("draft", "rope"):  # of the block, half the calls are the injection's
                x["calls"] //= 2
            if name != "experts" or rows == 1:  # else as the random rows of a step are routed
                self.assertAlmostEqual(one["bytes"] * x["calls"], x["bytes"], delta=x["calls"] + 1e-6 * x["bytes"])
                self.assertAlmostEqual(one["flops"] * x["calls"], x["flops"], delta=x["calls"] + 1e-6 * x["flops"])
        self.assertEqual({(name, site) for _, _, name, site in seen},
                         {("draw", None)} | {(name, "inject") for name in
                                             ("main_proj", "rope", "attn_in", "kv_write", "ring_store")})
        self.assertEqual(seen["prefill", 8, "draw", None]["bytes"], seen["decode", 1, "draw", None]["bytes"])

    def test_bench_kernels_of_a_table(self):
        """Named entries alone, by the kernels that were asked for; an expert is far slower in plain C."""
        args = ("bench", "kernels", "--synthetic", MODEL, "--threads", "1", "--layers", "3", "--rows", "2", "--verify",
                "--entries", "route,experts", "--kernels")
        ref, auto = (run_json(*args, name)["rows"] for name in ("ref", "auto"))
        what = [(x["kind"], x["rows"], x["name"], x["layer_kind"]) for x in auto]
        self.assertEqual([x for x in what if x[0] == "verify"],
                         [("verify", 12, "kernel/" + e, site) for e in ("route", "experts") for site in ("window", "C4", "C128")])
        self.assertEqual(what, [(x["kind"], x["rows"], x["name"], x["layer_kind"]) for x in ref])
        self.assertEqual({x["kernels"] for x in ref}, {"ref"})
        self.assertNotEqual({x["kernels"] for x in auto}, {"ref"})
        for a, b in zip(ref, auto):
            if a["name"] == "kernel/experts":
                self.assertGreater(a["time_us"], b["time_us"])
                self.assertGreaterEqual(a["distinct_experts"], 2)

    def test_bench_usage(self):
        for args, text in ((("kernels", "--entries", "route,heads"), b'"heads"; known: rope, embed, seam'),
                           (("kernels", "--entries", "head,"), b'""; known: '),
                           (("kernels", "--synthetic", MODEL, "--entries", "head,mtp_in"), b"launches mtp_in"),
                           (("kernels", "--synthetic", "v9"), b"v4-pro-dspark"),
                           (("kernels", "--synthetic", MODEL, "--layers", "9"), b"4 layers, got 9"),
                           (("kernels", "--rows", "0"), b"from 1 to 1024"),
                           (("kernels", "--steps", "3"), b"bench kernels takes no --steps"),
                           (("kernels", "--disk-object", "3"), b"bench kernels takes no --disk-object"),
                           (("step", "--entries", "head"), b"bench step takes no --entries"),
                           (("kv", "--rest"), b"bench kv takes no --rest"),
                           (("kv", "--rows", "2"), b"bench kv takes no --rows")):
            self.assertIn(text, run("bench", *args, expect=2).stderr)

    def test_bench_counts_steps(self):
        """Times and floors are of whole steps, whatever the number of requests in them.  Their ratio is
        no test: ceilings measured on a busy machine are too low.  That the engine counts no time twice
        is shown by sim_engine_fake."""
        for rows in ("1", "4"):
            r = run_json("bench", "step", "--rows", rows, "--context", "32")
            step = {x["kind"]: x for x in r["rows"] if x["name"] == "step"}
            self.assertEqual(set(step), {"prefill", "decode", "verify", "draft"})
            gamma = run_json("inspect")["gamma"]
            self.assertLessEqual(step["decode"]["rows"], int(rows))
            self.assertGreater(step["decode"]["rows"], int(rows) // 2)
            self.assertLessEqual(step["verify"]["rows"], int(rows) * (gamma + 1))
            self.assertLessEqual(step["draft"]["rows"], int(rows) * gamma)
            self.assertGreater(step["verify"]["rows"], step["draft"]["rows"] / 2)
            self.assertGreater(step["draft"]["rows"], int(rows) // 2 * gamma)

    def test_ids_without_a_name_are_never_drawn(self):
        with open(os.path.join(MODEL, "tokenizer.json"), encoding="utf-8") as f:
            tok = json.load(f)
        names = {i: t for t, i in tok["model"]["vocab"].items()}
        prompt = run_json("tokenize", "Tom has 12 pens. He finds")["ids"]
        args = ("--ids", self.file("i.json", prompt), "--temperature", "0", "--max-tokens", "12", "--ignore-eos")
        before = run_json("generate", *args)["ids"]
        drop = next(i for i in before if len(names.get(i, "")) > 2)
        path = os.path.join(self.dir, "m")
        os.mkdir(path)
        for name in os.listdir(MODEL):
            if name != "tokenizer.json":
                os.symlink(os.path.join(MODEL, name), os.path.join(path, name))
        gone = {names[drop]}
        for m in tok["model"]["merges"]:  # nor what is merged from it
            a, b = m if isinstance(m, list) else m.split(" ")
            if a in gone or b in gone:
                gone.add(a + b)
        tok["model"]["merges"] = [m for m in tok["model"]["merges"]
                                  if not gone & {"".join(m if isinstance(m, list) else m.split(" ")),
                                                 *(m if isinstance(m, list) else m.split(" "))}]
        gone_ids = {tok["model"]["vocab"].pop(t) for t in gone}
        self.file(os.path.join(path, "tokenizer.json"), tok)
        at = before.index(drop)
        after = run_json("generate", *args, "--model", path)["ids"]
        self.assertEqual(after[:at], before[:at])
        self.assertFalse(set(after) & gone_ids, (after, drop))
        with Server(fake=False, flags=["--model", path]) as s:
            r = s.post("/generate", {"input_ids": prompt, "sampling_params": {
                "temperature": 0, "max_new_tokens": 12, "ignore_eos": True}}).json()
            self.assertEqual(r["output_ids"], after)

    def test_one_request_takes_memory_for_one(self):
        """generate allocates KV for its own prompt and tokens, not for a server's load."""
        def kib(*flags):
            code = ("import resource, subprocess, sys\n"
                    "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
                    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
            p = subprocess.run([sys.executable, "-c", code, program("firesteel"), "generate", "-p", "a",
                                "--max-tokens", "4"] + list(flags), capture_output=True, cwd=ROOT, check=True)
            return int(p.stdout)
        self.assertLess(kib() + 40_000, kib("--max-running-requests", "16", "--max-total-tokens", "65536"))

    def test_chat_from_a_pipe(self):
        p = run("chat", "--max-tokens", "8", "--temperature", "0",
                stdin="Hello\n/stats\n/nothink\nAgain\n/new\n/help\n/bogus\n/quit\nnot read\n")
        out = p.stdout.decode("utf-8", "replace")
        for words in ("1 answers", "thinking is off", "a new conversation begins", "/quit", "unknown command /bogus"):
            self.assertIn(words, out)
        self.assertEqual(p.stderr.count(b"tok/s"), 2)


CALL = ('\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" '
        'string="true">Rome</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>')
WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}},
        "required": ["city"]}}}]


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, test, *args, **env):
        import pty
        self.test, self.seen = test, b""
        try:
            self.pid, self.fd = pty.fork()
        except OSError as e:  # a root without /dev/pts
            test.skipTest("no terminal to be had: %s" % e)
        if self.pid == 0:
            os.environ.update(HOME=test.dir, TERM="xterm", **env)
            os.execv(program("firesteel-fake"), ["firesteel", "chat", "--model", test.dir] + list(args))

    def until(self, words, seconds=20):
        """Returns what came before them."""
        end = time.time() + seconds
        while words not in self.seen:
            self.test.assertLess(time.time(), end, self.seen[-500:])
            if select.select([self.fd], [], [], 0.2)[0]:
                self.seen += os.read(self.fd, 65536)
        before, self.seen = self.seen.split(words, 1)
        return before

    def type(self, keys, prompt=b"> "):
        self.until(prompt)
        time.sleep(0.3)  # the prompt is written before the terminal is switched
        os.write(self.fd, keys)

    def end(self):
        """Ctrl-D at the prompt."""
        self.type(b"\x04")
        end = time.time() + 10
        done, status = 0, 0
        while not done and time.time() < end:
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    os.read(self.fd, 65536)
                except OSError:
                    pass
            done, status = os.waitpid(self.pid, os.WNOHANG)
        self.test.assertEqual((done, status), (self.pid, 0))

    def __enter__(self):
        return self

    def __exit__(self, kind, *a):
        if kind:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


class ChatTerminal(Folder):
    def setUp(self):
        super().setUp()
        shutil.copy(os.path.join(MODEL, "tokenizer.json"), self.dir)

    def saved(self):
        with open(os.path.join(self.dir, "talk.json"), encoding="utf-8") as f:
            return json.load(f)["messages"]

    def test_terminal(self):
        """On a terminal: editing, Ctrl-C stops the answer alone, Ctrl-D ends, history is kept."""
        self.file("script.json", {"text": "thought</think>" + "word " * 2000, "token_ms": 10})
        with Terminal(self) as t:
            t.type(b"helxlo\x1b[D\x1b[D\x7f\n")  # left, left, backspace: "hello"
            t.until(b"\x1b[2m")                    # thoughts are dimmed
            t.until(b"\x1b[0m")
            t.until(b"word word")
            os.write(t.fd, b"\x03")
            t.until(b"tok/s")
            t.until(b"accept length")
            t.until(b"stopped")
            t.type(b"/stats\n")
            t.until(b"1 answers")
            t.end()
        with open(os.path.join(self.dir, ".firesteel_history")) as f:
            self.assertIn("hello", f.read().replace("\\040", " "))
        with Terminal(self) as t:  # the next one finds it
            t.type(b"\x1b[A\x1b[A\n")  # up twice
            t.until(b"hello")
            t.until(b"word word")
            os.write(t.fd, b"\x03")
            t.until(b"stopped")
            t.end()

    def test_lines(self):
        """Several lines are one message; Ctrl-C at the prompt forgets what was begun."""
        self.file("script.json", {"text": "yes", "token_ms": 0})
        with Terminal(self, "--thinking", "off", "--no-stats") as t:
            t.type(b"one\\\n")
            t.type(b"\\\n", b"... ")
            t.type(b"two\n", b"... ")
            t.until(b"yes")
            t.type(b"gone\\\n")
            t.type(b"\x03", b"... ")
            t.type(b'"""\n')
            t.type(b"/think\n", b"... ")
            t.type(b"  three\\\n", b"... ")
            t.type(b'"""\n', b"... ")
            t.until(b"yes")
            t.type(b"/save %s/talk.json\n" % self.dir.encode())
            t.until(b"4 messages")
            t.end()
        self.assertEqual([m["content"] for m in self.saved()], ["one\n\ntwo", "yes", "/think\n  three\\", "yes"])

    def test_tools(self):
        """Calls are shown and answered by hand; the answer follows when all are."""
        self.file("script.json", {"text": "look" + "</think>" + CALL.replace(
            "</｜DSML｜tool_calls>", '<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>')})
        tools = self.file("tools.json", {"tools": WEATHER})
        with Terminal(self) as t:
            t.type(b"/tools\n")
            t.until(b"no tools")
            t.type(b"/tools %s\n" % tools.encode())
            t.until(b"get_weather: Weather of a city")
            t.type(b"Weather?\n")
            t.until(b'call get_weather {"city": "Rome"}')
            t.until(b"call now {}")
            t.type(b"18C\n", b"result of get_weather> ")
            self.file("script.json", {"text": "x</think>It is 18C."})
            t.type(b"\n", b"result of now> ")
            t.until(b"It is 18C.")
            t.type(b"/tools off\n")
            t.until(b"no tools")
            t.type(b"/tools %s/none.json\n" % self.dir.encode())
            t.until(b"none.json")
            t.type(b"/save %s/talk.json\n" % self.dir.encode())
            t.until(b"5 messages")
            t.end()
        self.assertEqual([m["role"] for m in self.saved()], ["user", "assistant", "tool", "tool", "assistant"])
        self.assertEqual([m["content"] for m in self.saved()], ["Weather?", "", "18C", "", "It is 18C."])

    def test_reading(self):
        """Loading, and a prompt that takes its time, have a line, which goes when they are done; Ctrl-C stops it too."""
        self.file("script.json", {"text": "yes", "prefill_ms": 2000, "prefill_chunks": 10})
        with Terminal(self, "--thinking", "off", FST_FAKE_OPEN_MS="700") as t:
            t.until(b"loading")
            t.until(b"GB/s")
            t.type(b"word word word word\n")
            t.until(b"reading")
            t.until(b" of 8 tokens")
            t.until(b"yes")
            self.file("script.json", {"text": "yes", "prefill_ms": 60000, "prefill_chunks": 10})
            t.type(b"again\n")
            t.until(b"reading")
            os.write(t.fd, b"\x03")
            t.until(b"stopped", 5)
            t.end()


class ChatText(Folder):
    def test_thoughts_and_answers(self):
        """Over the scripted engine: thoughts first, then the answer; history goes on."""
        shutil.copy(os.path.join(MODEL, "tokenizer.json"), self.dir)
        self.file("script.json", {"text": "my thought</think>my answer"})
        p = run("chat", "--model", self.dir, "--no-stats", stdin="Hello\n", exe="firesteel-fake")
        self.assertEqual(p.stdout.decode(), "my thought\n\nmy answer\n")
        p = run("chat", "--model", self.dir, "--no-stats", "--prompt", "x", exe="firesteel-fake")
        self.assertEqual(p.stdout.decode(), "my thought\n\nmy answer\n")

    def test_saved_conversation(self):
        """What /save wrote is rendered to the prompt that was asked with."""
        shutil.copy(os.path.join(MODEL, "tokenizer.json"), self.dir)
        self.file("script.json", {"text": "look</think>Well." + CALL})
        tools, talk = self.file("tools.json", WEATHER), os.path.join(self.dir, "talk.json")
        note = self.file("note.txt", "A note.")
        p = run("chat", "--model", self.dir, "--no-stats", "--tools", tools, "--system", "Be brief.",
                stdin="/read %s\nHello\n18C\n/save %s\n" % (note, talk), exe="firesteel-fake").stdout.decode()
        self.assertEqual(p.count('look\n\nWell.\ncall get_weather {"city": "Rome"}\n'), 2)
        self.assertIn("7 bytes go before the next message\n", p)
        text = run("render", "--messages", talk).stdout.decode()
        for words in ("Be brief.\n\n## Tools", "<｜User｜>A note.\n\nHello<｜Assistant｜><think>look</think>Well." + CALL,
                      "<｜User｜><tool_result>18C</tool_result><｜Assistant｜><think>look</think>Well."):
            self.assertIn(words, text)
        for bad in ('{"tools": 5}', "[5]", "{", '[{"type": "function", "function": {}}]'):
            p = run("chat", "--model", self.dir, "--tools", self.file("bad.json", bad), expect=None, exe="firesteel-fake")
            self.assertNotEqual(p.returncode, 0, bad)
            self.assertIn(b"firesteel: ", p.stderr)

    def test_call_of_the_bundled_model(self):
        p = run("chat", "--temperature", "0", "--no-stats", "--tools", self.file("tools.json", WEATHER),
                stdin='What is the weather in Rome?\n{"temperature": 18, "sky": "sunny"}\n').stdout.decode()
        self.assertIn('call get_weather {"city": "Rome"}\n', p)
        self.assertIn("18", p.split("call get_weather", 1)[1])


if __name__ == "__main__":
    unittest.main()
