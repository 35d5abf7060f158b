"""SGLang's own benchmark client (PyPI sglang, without the packages of its server) on our server, beside ours: what they count is
equal, what they time agrees.

    pip install --no-deps sglang && pip install aiohttp msgspec numpy orjson pybase64 pillow requests tqdm transformers
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import MODEL, ROOT, Server, program  # noqa: E402

NEEDS = ("sglang", "aiohttp", "msgspec", "numpy", "orjson", "requests", "tqdm", "transformers")
MISSING = [n for n in NEEDS if not importlib.util.find_spec(n)]

# The client alone: the package's own start pulls in the server, and what the client takes of it are three names.
CLIENT = r"""
import importlib.util, sys, types
root = importlib.util.find_spec("sglang").submodule_search_locations[0]

def module(name, **names):
    m = types.ModuleType(name)
    m.__path__ = [root] if name == "sglang" else []
    m.__dict__.update(names)
    sys.modules[name] = m

def base_url(url, host, port):
    return url or "http://%s:%d" % (host, port)

def tokenizer(path, **kw):
    import transformers
    return transformers.PreTrainedTokenizerFast(tokenizer_file=path + "/tokenizer.json")

module("sglang")
module("sglang.srt")
module("sglang.srt.disaggregation")
module("sglang.srt.disaggregation.utils", FAKE_BOOTSTRAP_HOST="")
module("sglang.srt.utils")
module("sglang.srt.utils.network", resolve_base_url=base_url, resolve_host_port=base_url)
module("sglang.srt.utils.hf_transformers_utils", get_tokenizer=tokenizer)
import sglang.benchmark.serving as serving
serving.cli_main() if hasattr(serving, "cli_main") else serving.run_benchmark()
"""


@unittest.skipIf(MISSING, "no module named " + ", ".join(MISSING))
class PeerClient(unittest.TestCase):
    """The server computes nothing and takes 20 ms a step: what the clients time depends on nobody else's work."""
    FLAGS = ["--backend", "sglang", "--dataset-name", "random-ids", "--num-prompts", "16", "--random-input-len", "128",
             "--random-output-len", "48", "--random-range-ratio", "0.5", "--max-concurrency", "4", "--warmup-requests", "2",
             "--tokenize-prompt"]

    def theirs(self, port, out):
        p = subprocess.run([sys.executable, "-c", CLIENT] + self.FLAGS + [
            "--host", "127.0.0.1", "--port", str(port), "--model", MODEL, "--served-model-name", "test", "--output-file", out],
            capture_output=True, text=True, cwd=ROOT, timeout=300)
        self.assertEqual(p.returncode, 0, p.stdout[-2000:] + p.stderr[-3000:])
        with open(out) as f:
            return json.loads(f.read().splitlines()[-1])

    def ours(self, port):
        p = subprocess.run([program("firesteel"), "bench", "serve"] + self.FLAGS + ["--port", str(port), "--output-file", "none",
                                                                                   "--json"],
                           capture_output=True, text=True, cwd=ROOT, timeout=300)
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout)["rows"][0]

    def test_agrees(self):
        null = ["--debug-hooks", "--debug-null-model", "20000", "--speculative-algorithm", "none", "--disable-radix-cache"]
        with tempfile.TemporaryDirectory() as d, Server(fake=False, flags=null) as s:
            theirs = [self.theirs(s.port, os.path.join(d, "%d.jsonl" % i)) for i in range(3)]
            ours = [self.ours(s.port) for _ in range(3)]
        for key in ("completed", "total_input_tokens", "total_output_tokens"):
            self.assertEqual({r[key] for r in theirs}, {r[key] for r in ours}, key)
        for key in ("median_tpot_ms", "median_e2e_latency_ms", "median_itl_ms", "output_throughput", "concurrency"):
            a, b = (sorted(r[key] for r in x)[1] for x in (theirs, ours))
            print("%-22s theirs %10.3f  ours %10.3f  %+.2f %%" % (key, a, b, 100 * (b / a - 1)), file=sys.stderr)
            self.assertLess(abs(b / a - 1), 0.02, key)
        a, b = (sorted(r["median_ttft_ms"] for r in x)[1] for x in (theirs, ours))
        print("%-22s theirs %10.3f  ours %10.3f" % ("median_ttft_ms", a, b), file=sys.stderr)
        self.assertLess(abs(a - b), 8)  # they open a connection for each request


if __name__ == "__main__":
    unittest.main(verbosity=2)
