"""The real Codex client (PyPI openai-codex-cli-bin) in an edit loop: it reads a file, patches it, runs it, and ends.

The replies are scripted, everything between is the server's and Codex's own.  Looked for in this interpreter, in
build/venv-golden and in FST_CODEX (the program itself); without it the tests are skipped by name."""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import BUILD, MODEL, Server, program  # noqa: E402
from test_chat import M  # noqa: E402


def find_codex():
    try:
        import codex_cli_bin
        found = str(codex_cli_bin.bundled_codex_path())
    except (ImportError, FileNotFoundError):
        found = next(iter(glob.glob(os.path.join(BUILD, "venv-golden", "lib", "python*", "site-packages",
                                                 "codex_cli_bin", "bin", "codex"))), None)
    return os.environ.get("FST_CODEX", found)


CODEX = find_codex()
PROGRAM = "def add(a, b):\n    return a - b\n\n\nprint(add(17, 25))\n"
PATCH = ("*** Begin Patch\n*** Update File: sum.py\n@@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
         "*** End Patch\n")
CONFIG = """
model = "%s"
model_provider = "firesteel"
model_context_window = 65536

[model_providers.firesteel]
name = "firesteel"
base_url = "http://127.0.0.1:%d/v1"
wire_api = "responses"
env_key = "FIRESTEEL_API_KEY"
stream_idle_timeout_ms = 1000000
request_max_retries = 0
stream_max_retries = 0
"""


def call(name, **args):
    inside = "\n".join("<%sparameter name=\"%s\" string=\"true\">%s</%sparameter>" % (M, k, v, M)
                       for k, v in args.items())
    return "\n\n<%stool_calls>\n<%sinvoke name=\"%s\">\n%s\n</%sinvoke>\n</%stool_calls>" % (M, M, name, inside, M, M)


@unittest.skipIf(CODEX is None, "the package openai-codex-cli-bin is not installed")
class Codex(unittest.TestCase):
    def setUp(self):
        # not below /tmp, where Codex makes no helper programs
        self.home = tempfile.mkdtemp(prefix="codex-", dir=os.path.join(BUILD, "Testing") if os.path.isdir(
            os.path.join(BUILD, "Testing")) else BUILD)
        self.work = os.path.join(self.home, "work")
        os.mkdir(self.work)

    def tearDown(self):
        shutil.rmtree(self.home, ignore_errors=True)

    def run_codex(self, port, prompt, model="test", seconds=120):
        """Codex's events as JSON lines."""
        with open(os.path.join(self.home, "config.toml"), "w") as f:
            f.write(CONFIG % (model, port))
        env = dict(os.environ, CODEX_HOME=self.home, FIRESTEEL_API_KEY="key")
        p = subprocess.run([CODEX, "exec", "--json", "--skip-git-repo-check",
                            "--dangerously-bypass-approvals-and-sandbox", prompt],
                           cwd=self.work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                           timeout=seconds)
        self.assertEqual(p.returncode, 0, p.stdout[-3000:] + p.stderr[-2000:])
        return [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]

    def loop(self, edit, model, shown):
        path = os.path.join(self.work, "sum.py")
        with open(path, "w") as f:
            f.write(PROGRAM)
        turns = ["I read it first.</think>I look at the file." + call("exec_command", cmd="cat sum.py"),
                 "A minus.</think>" + edit,
                 "Run it.</think>" + call("exec_command", cmd="python3 sum.py 2>&1 | tail -n 3"),
                 "42, good.</think>Fixed: `sum.py` prints 42."]
        with Server(flags=["--api-key", "key"]) as s:
            s.script(turns=turns, token_ms=1)  # not for the warm-up
            s.get = lambda p: Server.get(s, p, [("x-api-key", "key")])
            evs = self.run_codex(s.port, "sum.py prints the wrong number, fix it.", model)
            s.wait_idle()
            i = s.info()
        with open(path) as f:
            self.assertEqual(f.read(), PROGRAM.replace("a - b", "a + b"))
        items = [e["item"] for e in evs if e.get("type") == "item.completed"]
        self.assertEqual(items[-1]["type"], "agent_message")
        self.assertIn("prints 42", items[-1]["text"])
        ran = [x for x in items if x["type"] == "command_execution"]
        self.assertIn("42", ran[-1]["aggregated_output"])
        self.assertEqual(ran[-1]["exit_code"], 0)
        self.assertIn("return a - b", ran[0]["aggregated_output"])
        thoughts = [x["text"] for x in items if x["type"] == "reasoning"]
        self.assertEqual(thoughts, ["I read it first.", "A minus.", "Run it.", "42, good."] if shown else [])
        self.assertEqual(evs[-1]["type"], "turn.completed")
        self.assertGreater(evs[-1]["usage"]["output_tokens"], 20)
        # three turns with calls came back: one, two and three times over
        self.assertEqual((i["call_memory"]["spliced"], i["call_memory"]["changed"]), (1 + 2 + 3, 0))
        return items

    def test_edit_loop(self):
        """The patch goes through the shell, which Codex makes an edit of its own of."""
        self.loop(call("exec_command", cmd="apply_patch <<'EOF'\n" + PATCH + "EOF\n"), "test", True)

    def test_edit_loop_by_plain_text(self):
        """For models that it knows, Codex declares apply_patch as a custom tool with a grammar."""
        self.loop(call("apply_patch", input=PATCH), "gpt-5.5", False)  # asks for no thoughts

    def test_failure_ends_the_turn(self):
        """A failed response is told to the user, not taken for an answer."""
        with Server(flags=["--api-key", "key"], script={"text": "x</think>a b c d", "fail_after": 4}) as s:
            with self.assertRaises(AssertionError) as e:
                self.run_codex(s.port, "hi")
            self.assertIn("not numbers", str(e.exception))

    @unittest.skipUnless(os.path.exists(program("firesteel")) and os.path.exists(os.path.join(MODEL, "config.json")),
                         "no built program or bundled model")
    def test_bundled_model(self):
        """A plain exchange; what the small model says to 9,000 tokens of instructions is its own affair."""
        with Server(fake=False, flags=["--api-key", "key"]) as s:
            evs = self.run_codex(s.port, "What is 17 + 25?", seconds=600)
            self.assertEqual(evs[-1]["type"], "turn.completed")
            self.assertGreater(evs[-1]["usage"]["input_tokens"], 2000)


if __name__ == "__main__":
    unittest.main()
