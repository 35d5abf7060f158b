#!/usr/bin/env python3
"""The stored goldens against the Python reference, and that against Hugging Face transformers.

    tests/api/peer_golden.py

Needs numpy; the comparison with transformers also torch and transformers, in this interpreter or in
build/venv-golden (tools/golden/README.md).  Says SKIP and why without them.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOLS = os.path.join(ROOT, "tools", "golden")
GOLDEN_PYTHON = os.path.join(ROOT, "build", "venv-golden", "bin", "python")
LOGIT_LIMIT = 1e-4  # observed 2.0e-5 between numpy and torch sums


def has(python, *modules):
    code = "import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in %r))"
    return subprocess.run([python, "-c", code % (modules,)]).returncode == 0


def tool(python, name, *args):
    """Run a golden tool; (status, output)."""
    done = subprocess.run([python, os.path.join(TOOLS, name), *args], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def goldens():
    status, out = tool(sys.executable, "make_goldens.py", "--check")
    assert status == 0 and "equal; largest difference" in out, out


def mutations():
    status, out = tool(sys.executable, "make_goldens.py", "--mutations")
    assert status == 0 and out.count("\n| ") == 22, out


def transformers():
    for case in (["--preset", "t1", "--format", "fp4", "--seed", "3", "--shards", "2"],
                 ["--preset", "t2", "--format", "f32"]):
        with tempfile.TemporaryDirectory() as folder:
            status, out = tool(sys.executable, "make_checkpoint.py", *case, folder)
            assert status == 0, out
            n = "300" if "t1" in case else "420"
            seed = "3" if "--seed" in case else "0"
            status, out = tool(GOLDEN_PYTHON if os.path.exists(GOLDEN_PYTHON) else sys.executable,
                               "transformers_logits.py", folder, "--tokens", n, "--seed", seed,
                               "--compare")
            assert status == 0, out
            d = re.search(r"max \|difference\| (\S+) at .* argmax equal at (\d+) of (\d+)", out)
            assert d and float(d.group(1)) < LOGIT_LIMIT and d.group(2) == d.group(3) == n, out


def main():
    passed = failed = skipped = 0
    with_torch = GOLDEN_PYTHON if os.path.exists(GOLDEN_PYTHON) else sys.executable
    for test, ok, why in (
        (goldens, importlib.util.find_spec("numpy"), "numpy is not installed"),
        (mutations, importlib.util.find_spec("numpy"), "numpy is not installed"),
        (transformers, importlib.util.find_spec("numpy") and
         has(with_torch, "numpy", "torch", "transformers"), "torch or transformers is missing"),
    ):
        name = "peer_golden_" + test.__name__
        if not ok:
            skipped += 1
            print(f"SKIP {name}: {why}")
            continue
        try:
            test()
            passed += 1
        except AssertionError as e:
            failed += 1
            print(f"{name} failed:\n{str(e)[-3000:]}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
