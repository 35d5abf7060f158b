#!/usr/bin/env python3
"""`firesteel score` and the stored goldens against the Python references.

    tests/python tests/api/peer_golden.py

Size ci: `score --precision reference` on a fresh random checkpoint against numpy_v4.py, the stored
goldens against what computes them.  FST_TEST_SIZE=long: every case of tools/golden/check_score.py
against Hugging Face transformers too, in this interpreter or in build/venv-golden (scripts/setup
long); the figures go to bench/results/golden-transformers.json.  Says SKIP and why without packages.
"""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOLS = os.path.join(ROOT, "tools", "golden")
BUILD = os.path.abspath(os.environ.get("FST_BUILD", os.path.join(ROOT, "build")))
PYTHONS = [sys.executable, os.path.join(ROOT, "build", "venv-golden", "bin", "python")]
RESULT = os.path.join(ROOT, "bench", "results", "golden-transformers.json")


def python_with(*modules):
    """The first interpreter that has them, or None."""
    code = "import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in %r))"
    for p in PYTHONS:
        if os.path.exists(p) and subprocess.run([p, "-c", code % (modules,)]).returncode == 0:
            return p
    return None


def tool(python, name, *args):
    """Run a golden tool; (status, output)."""
    done = subprocess.run([python, os.path.join(TOOLS, name), *args], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def check_score(python, *args):
    status, out = tool(python, "check_score.py", "--program", os.path.join(BUILD, "firesteel"),
                       *args)
    m = re.search(r"^(\d+) of (\d+) cases within 0.0001, largest (\S+)$", out, re.M)
    assert status == 0 and m and m.group(1) == m.group(2) and float(m.group(3)) <= 1e-4, out
    print(out, end="")


def goldens(python):
    for name in ("make_goldens.py", "make_layers.py", "make_drafter.py"):
        status, out = tool(python, name, "--check")
        assert status == 0 and "equal; largest difference" in out, out


def mutations(python):
    status, out = tool(python, "make_goldens.py", "--mutations")
    assert status == 0 and out.count("\n| ") == 22, out


def score_numpy(python):
    """And a wrong reference, by the smallest of the planted faults, is told apart."""
    check_score(python, "--oracle", "numpy", "--fault", "sinkhorn_short", "t1-fp4")


def score_transformers(python):
    check_score(python, "--oracle", "transformers", "--result", RESULT)


def main():
    passed = failed = skipped = 0
    long = os.environ.get("FST_TEST_SIZE") == "long"
    light, heavy = ["numpy"], ["numpy", "torch", "transformers"]
    tests = [(goldens, light), (mutations, light), (score_numpy, light)]
    for test, modules in tests + ([(score_transformers, heavy)] if long else []):
        name = "peer_golden_" + test.__name__
        python = python_with(*modules)
        if not python:
            skipped += 1
            print(f"SKIP {name}: not all installed: {', '.join(modules)}")
            continue
        try:
            test(python)
            passed += 1
        except AssertionError as e:
            failed += 1
            print(f"{name} failed:\n{str(e)[-3000:]}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
