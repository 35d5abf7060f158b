"""`firesteel kv`: list, verify and prune a folder of the disk tier; what is printed, JSON, exit status."""

import glob
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import program  # noqa: E402
from test_commands import Folder, run, run_json  # noqa: E402


class Kv(Folder):
    def setUp(self):
        super().setUp()
        self.kv = os.path.join(self.dir, "kv")

    def fill(self, numerics="rows/1", weights="w1", pages=4, size=9000):
        subprocess.run([program("kv-folder"), self.kv, numerics, weights, str(pages), str(size)], check=True,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)

    def files(self):
        return sorted(glob.glob(os.path.join(self.kv, "objects", "*", "*", "*")))

    def spoil(self, path, at=8000):
        with open(path, "r+b") as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 1]))

    def test_list(self):
        self.fill()
        self.fill("rows/2", pages=2)
        r = run_json("kv", "list", "--dir", self.kv)
        self.assertEqual((r["n"], r["n_bad"], len(r["objects"])), (6, 0, 6))
        self.assertEqual(r["bytes"], sum(os.path.getsize(f) for f in self.files()))
        x = r["objects"][0]
        self.assertEqual(set(x), {"kind", "key", "tokens", "own_tokens", "bytes", "created", "age_s", "hits", "ours",
                                  "numerics", "weights", "file"})
        self.assertEqual({os.path.join(self.kv, x["file"]) for x in r["objects"]}, set(self.files()))
        self.assertEqual({(x["tokens"], x["own_tokens"], x["kind"], x["ours"]) for x in r["objects"]},
                         {(256 * i, 256, "page", None) for i in (1, 2, 3, 4)})
        for flags, n in ((("--numerics", "rows/2"), 2), (("--numerics", "rows/1", "--weights", "w1"), 4),
                         (("--weights", "w1"), 6), (("--weights", "w2"), 0)):
            r = run_json("kv", "list", "--dir", self.kv, *flags)
            self.assertEqual(sum(x["ours"] for x in r["objects"]), n)
        text = run("kv", "list", "--dir", self.kv, "--numerics", "rows/2").stdout.decode()
        self.assertEqual((text.count(" yes "), text.count(" no ")), (2, 4))
        self.assertRegex(text, r"numerics rows/2, weights w1: 2 objects, \d+ bytes\n")
        self.assertTrue(text.endswith(": 6 objects, %d bytes, 0 bad\n" % r["bytes"]), text)

    def test_verify(self):
        self.fill()
        self.assertEqual(run_json("kv", "verify", "--dir", self.kv), {
            "bad": [], "n": 4, "n_bad": 0, "bytes": sum(os.path.getsize(f) for f in self.files())})
        bad = self.files()[2]
        self.spoil(bad)
        with open(self.files()[0], "r+b") as f:
            f.truncate(5000)
        r = run_json("kv", "verify", "--dir", self.kv, expect=1)
        self.assertEqual((r["n"], r["n_bad"]), (4, 2))
        self.assertEqual({os.path.join(self.kv, x["file"]) for x in r["bad"]}, {bad, self.files()[0]})
        out = run("kv", "verify", "--dir", self.kv, expect=1).stdout.decode()
        self.assertIn(os.path.relpath(bad, self.kv) + ": a checksum of the payload is wrong\n", out)
        self.assertIn(": the file is cut off\n", out)
        self.assertEqual(len(self.files()), 4)
        self.assertEqual(run_json("kv", "prune", "--bad", "--dir", self.kv)["n"], 2)
        self.assertEqual(run_json("kv", "verify", "--dir", self.kv)["n"], 2)

    def test_prune(self):
        self.fill()
        self.fill("rows/2", pages=2)
        one = os.path.getsize(self.files()[0])
        all_files = self.files()
        r = run_json("kv", "prune", "--others", "--numerics", "rows/1", "--dry-run", "--dir", self.kv)
        self.assertEqual((r["n"], r["bytes"], r["dry_run"]), (2, 2 * one, True))
        self.assertEqual(self.files(), all_files)
        r = run_json("kv", "prune", "--others", "--numerics", "rows/1", "--dir", self.kv)
        self.assertEqual((r["n"], r["dry_run"]), (2, False))
        self.assertEqual({x["numerics"] for x in r["objects"]}, {"rows/2"})
        self.assertEqual(run_json("kv", "prune", "--max-age-hours", "1", "--dir", self.kv)["n"], 0)
        out = run("kv", "prune", "--budget", str(2 * one + 10), "--dir", self.kv).stdout.decode()
        self.assertIn(": 2 objects, %d bytes, 0 bad; gone\n" % (2 * one), out)
        left = run_json("kv", "list", "--dir", self.kv)["objects"]
        self.assertEqual({x["tokens"] for x in left}, {256, 512})  # ends go before beginnings
        run("kv", "prune", "--max-age-hours", "0", "--dir", self.kv)
        self.assertEqual(self.files(), [])

    def test_beside_a_server(self):
        p = subprocess.Popen([program("kv-folder"), self.kv, "rows/1", "w1", "3", "5000"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            self.assertEqual(p.stdout.readline(), b"there\n")
            self.assertEqual(run_json("kv", "list", "--dir", self.kv)["n"], 3)
            for args in (("verify",), ("prune", "--budget", "0")):
                err = run("kv", *args, "--dir", self.kv, expect=1).stderr.decode()
                self.assertEqual(err, "firesteel: %s: another process has it (process %d)\n" % (self.kv, p.pid))
        finally:
            p.stdin.close()
            p.wait(timeout=60)
            p.stdout.close()
        self.assertEqual(run_json("kv", "verify", "--dir", self.kv)["n"], 3)

    def test_wrong_usage(self):
        os.makedirs(os.path.join(self.kv, "objects"))
        here = ("--dir", self.kv)
        for args, status, text in (
                ((), 2, "`list`, `verify` or `prune`"), (("lists",) + here, 2, "lists"), (("list",), 2, "--dir"),
                (("list", "stray") + here, 2, "stray"), (("prune",) + here, 2, "--budget"),
                (("prune", "--others") + here, 2, "--numerics"), (("list", "--budget", "1") + here, 2, "--budget"),
                (("list", "--dir", self.kv + "/none"), 3, self.kv + "/none: no such folder"),
                (("verify", "--dir", self.kv + "/none"), 3, self.kv + "/none: no such folder"),
                (("list", "--dir", self.dir), 3, self.dir + ": keeps no prompts"),
                (("verify", "--dir", self.dir), 3, self.dir + ": keeps no prompts"),
                (("prune", "--budget", "0", "--dir", self.dir), 3, self.dir + ": keeps no prompts"),
                (("list", "--dir", __file__), 3, "is a file, expected a folder")):
            err = run("kv", *args, expect=status).stderr.decode()
            self.assertIn(text, err)
            self.assertEqual(err.count("\n"), 1, err)
        self.assertEqual(run_json("kv", "list", *here), {"objects": [], "n": 0, "bytes": 0, "n_bad": 0})
        self.assertEqual(os.listdir(self.kv), ["objects"])  # looking leaves nothing behind
        self.assertEqual(sorted(os.listdir(self.dir)), ["kv"])

    def test_output_that_cannot_be_written(self):
        self.fill()
        for args in (("list",), ("list", "--json"), ("verify",), ("prune", "--budget", "0", "--dry-run")):
            with open("/dev/full", "w", encoding="utf-8") as full:
                p = subprocess.run([program("firesteel"), "kv"] + list(args) + ["--dir", self.kv], stdout=full,
                                   stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60)
            self.assertEqual(p.returncode, 1, (args, p.stderr))
            self.assertIn(b"standard output could not be written\n", p.stderr)

    def test_bench(self):
        """Restores and sequential reads of as many bytes, in one run; nothing stays."""
        os.mkdir(self.kv)
        r = run_json("bench", "kv", "--context", "600", "--disk-dir", self.kv, "--disk-bytes", "3MiB",
                     "--disk-object", "100000")
        rows = {(x["name"], x["kind"]): x for x in r["rows"] if x["name"].startswith("kv/disk_")}
        self.assertEqual(set(rows), {("kv/disk_sequential", "plain"), ("kv/disk_sequential", "deep"),
                                     ("kv/disk_get", "restore"), ("kv/disk_put", "flushed")})
        for x in rows.values():
            self.assertEqual((x["rows"], x["bytes"]), (32, 3200000))
            self.assertGreater(x["time_us"], 0)
            self.assertAlmostEqual(x["fraction_of_floor"], rows["kv/disk_sequential", "deep"]["time_us"] / x["time_us"],
                                   delta=2e-3)
        self.assertEqual(os.listdir(self.kv), [])


if __name__ == "__main__":
    unittest.main()
