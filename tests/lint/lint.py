#!/usr/bin/env python3
"""House rules that a compiler does not check.  tests/lint/lint.py NAME, from the repository root.

Each lint prints the places it objects to and fails, or "1 passed, 0 failed, 0 skipped".
"""

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

# Who may include from whom: the table of docs/house.md.  "firesteel" is include/firesteel.
LAYERS = {
    "base": [],
    "device": ["base"],
    "kernels": ["base", "device"],
    "weights": ["base", "device", "kernels"],
    "tokenizer": ["base"],
    "chat": ["base", "tokenizer"],
    "grammar": ["base", "tokenizer"],
    "kv": ["base", "device", "kernels"],
    "model": ["base", "device", "kernels", "weights", "kv"],
    "sample": ["base", "device", "kernels", "firesteel"],
    "spec": ["base", "device", "kernels", "kv", "model", "sample", "firesteel"],
    "sched": ["base", "kv", "spec", "firesteel"],
    "engine": ["base", "device", "kernels", "weights", "grammar", "kv", "model", "sample", "spec",
               "sched", "firesteel"],
    "server": ["base", "tokenizer", "chat", "grammar", "firesteel"],
    "client": ["base", "tokenizer"],
    "plot": ["base"],
    "tools": ["base", "server", "chat", "tokenizer", "client", "plot", "firesteel"],
}
# Tools that look inside on purpose: what they are for is named in their head comments.
TOOL_EXCEPTIONS = {
    "cmd_inspect.c": ["weights"],
    "cmd_plan.c": ["device", "kernels", "weights", "kv", "model"],
    "cmd_doctor.c": ["device", "kernels", "weights"],
    "cmd_kv.c": ["kv"],
    "cmd_calibrate.c": ["spec"],
    "cmd_replay.c": ["kv", "model", "weights", "kernels", "device"],
    "cmd_bench.c": ["model"],
    "bench.h": ["device", "model"],
    "bench_ceilings.c": ["device", "model"],
    "bench_engine.c": ["device", "model"],
    "bench_disk.c": ["kv"],
    "bench_kv.c": ["weights", "kv", "model"],
    "bench_routing.h": ["kernels", "weights"],
    "bench_routing.c": ["kernels"],
    "bench_synthetic.h": ["kernels", "device", "weights", "kv", "model"],
    "bench_draft.c": ["kernels", "device", "weights", "kv", "model"],
    "bench_synthetic.c": ["kernels", "device", "weights", "kv", "model"],
    "bench_step.c": ["model"],
    "bench_calls.h": ["kernels", "model"],
    "bench_calls.c": ["kernels", "device", "weights", "model"],
    "bench_kernels.c": ["kernels", "device", "weights", "kv", "model"],
}
# Headers that other folders may include; all others belong to their folder alone.
INTERFACE = {
    "base": "base banned json options log pool file utf8 number hash arena rng clock progress",
    "device": "device fill",
    "kernels": "kernels mat rows philox self_test",
    "weights": "weights config rope",
    "tokenizer": "tokenizer",
    "chat": "chat gate memory parse protocol stream watch",
    "grammar": "grammar",
    "kv": "kv step sizing snapshot tree tiers store host disk",
    "model": "model cost plan",
    "sample": "sample",
    "spec": "spec plan cost sts track reject",
    "sched": "sched",
    "engine": "",
    "client": "http event answer load figures numpy dataset target report",
    "plot": "plot",
    "server": "server fields",
    "tools": "",
}
# Third-party headers: the only files that may include them.
THIRD_PARTY = {
    "jansson.h": ["src/base/json.c"],
    "xxhash.h": ["src/base/hash.c"],
    "sqlite3.h": ["src/kv/disk_index.c"],
    "liburing.h": ["src/kv/disk_io.c"],
    "zstd.h": ["src/kv/disk_file.c"],
    "uv.h": ["src/server/loop.c", "src/server/conn.c"],
    "llhttp.h": ["src/server/http.c", "src/server/conn.c", "src/client/http.c"],
    "histedit.h": ["src/tools/edit.c"],
    "editline/readline.h": ["src/tools/edit.c"],
    "mpi.h": ["src/comm/mpi.c"],
    "nccl.h": ["src/comm/nccl.c"],
    "ucp/api/ucp.h": ["src/comm/ucx.c"],
    "cuda_runtime_api.h": ["src/device/gpu/gpu.c"],
    "cuda_runtime.h": ["src/kernels/gpu/gpu.h"],
    "hip/hip_runtime.h": ["src/kernels/gpu/gpu.h"],
}
BANNED = ("strcpy strcat strncpy strncat sprintf vsprintf strtok gets atoi atol atof localtime gmtime "
          "ctime asctime alloca rand srand setjmp longjmp").split()
MAX_LINES = 1500


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def files(*patterns):
    """Tracked files and new ones that are not ignored."""
    out = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
                          "--exclude-standard", "--"] + list(patterns),
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted({f for f in out.split("\0") if f and os.path.isfile(f)})


def without_comments(text):
    """C text with comments and strings blanked; line numbers stay."""
    def blank(m):
        keep = m.group(0)
        return re.sub(r"[^\n]", " ", keep)
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", blank, text, flags=re.S)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def layers():
    bad = []
    for path in files("src/*.c", "src/*.h", "src/*.inl", "src/*.cu", "src/*.cuh"):
        folder = path.split("/")[1]
        if "/gen/" in path:
            continue
        if folder not in LAYERS:
            bad.append("%s: folder %s is in no table (tests/lint/lint.py, docs/house.md)" % (path, folder))
            continue
        for n, line in enumerate(read(path).splitlines(), 1):
            m = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
            if not m:
                continue
            quote, name = m.groups()
            where = "%s:%d: " % (path, n)
            if quote == "<":
                if name in THIRD_PARTY and path not in THIRD_PARTY[name]:
                    bad.append(where + "<%s> belongs in %s alone" % (name, ", ".join(THIRD_PARTY[name])))
                continue
            if ".." in name:
                bad.append(where + "includes are written from src/: no ../")
            if "/" not in name:
                if not name.endswith("_table.h"):  # made at build time
                    bad.append(where + "write \"%s/%s\"" % (folder, name))
                continue
            other, rest = name.split("/", 1)
            if other == folder or name == "firesteel/status.h":
                continue
            allowed = LAYERS[folder]
            if folder == "tools":
                allowed = allowed + TOOL_EXCEPTIONS.get(os.path.basename(path), [])
            if other not in allowed:
                bad.append(where + "%s may not include from %s" % (folder, other))
            elif other != "firesteel" and rest[:-2] not in INTERFACE[other].split():
                bad.append(where + "%s is inside %s; include its interface" % (name, other))
    return bad


def banned():
    bad = []
    call = re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(BANNED))
    for path in files("src/*.c", "src/*.h", "src/*.cu", "src/*.cuh", "include/*.h", "tests/*.c", "tests/*.h"):
        text = without_comments(read(path))
        for m in call.finditer(text):
            bad.append("%s:%d: %s() is banned (base/banned.h)" % (path, line_of(text, m.start()), m.group(1)))
    return bad


def headers():
    """Every header compiles alone as C17, the public ones also as C++."""
    bad = []
    warn = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-Isrc", "-Iinclude"]
    jobs = [(h, ["gcc", "-std=c17", "-D_GNU_SOURCE", "-x", "c"])
            for h in files("src/*.h", "include/*.h")
            if "/gen/" not in h and not h.startswith("src/kernels/gpu/")]
    if shutil.which("g++"):
        jobs += [(h, ["g++", "-std=c++17", "-x", "c++"]) for h in files("include/*.h")]
        # the language of GPU kernels, as its emulation sees it
        jobs += [(h, ["g++", "-std=c++17", "-D_GNU_SOURCE", "-DGPU_WAVE=32", "-x", "c++"])
                 for h in files("src/kernels/gpu/*.h", "src/kernels/gpu/*.cuh")]
    if os.uname().machine == "x86_64":  # vector types in a signature need their instruction set
        jobs = [(h, c + ["-march=sapphirerapids"] if h.startswith("src/kernels/cpu/") else c) for h, c in jobs]
    for header, compiler in jobs:
        done = subprocess.run(compiler + warn + ["-"], input='#include "%s"\nextern int fst_lint_nothing;\n' % header.split("/", 1)[1],
                              text=True, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            bad.append("%s does not compile alone (%s):\n%s" % (header, compiler[0], done.stderr.strip()))
    return bad


def size():
    bad = []
    for path in files("src/*", "include/*", "tests/*.c", "tests/*.h", "tests/*.py", "ui/*.js", "tools/*"):
        if path.endswith((".c", ".h", ".inl", ".cu", ".cuh", ".py", ".js", ".css", ".cmake")):
            n = read(path).count("\n")
            if n > MAX_LINES:
                bad.append("%s: %d lines, at most %d: do two things live in it?" % (path, n, MAX_LINES))
    return bad


def readmes():
    """Every folder of src says what it is for."""
    have = {p.split("/")[1] for p in files("src/*.c")}
    return ["src/%s has no README.md" % f for f in sorted(have) if not os.path.isfile("src/%s/README.md" % f)]


def tour():
    """Each stop of docs/tour.md names a file and functions that it defines."""
    bad, stops = [], 0
    for n, line in enumerate(read("docs/tour.md").splitlines(), 1):
        m = re.match(r"\|\s*\d+\s*\|([^|]*)\|([^|]*)\|", line)
        if not m:
            continue
        stops += 1
        paths = re.findall(r"`([^`]+)`", m.group(1))
        names = re.findall(r"`([^`]+)`", m.group(2))
        if not paths or not names:
            bad.append("docs/tour.md:%d: needs `file` and `function`" % n)
        text = ""
        for p in paths:
            if os.path.isfile("src/" + p):
                text += without_comments(read("src/" + p))
            else:
                bad.append("docs/tour.md:%d: there is no src/%s" % (n, p))
        for name in names:
            if not re.search(r"^\w[^;={}()]*\b%s\s*\([^;]*?\)\s*\{" % re.escape(name), text, re.M | re.S):
                bad.append("docs/tour.md:%d: %s defines no %s" % (n, ", ".join(paths), name))
    if stops < 3:
        bad.append("docs/tour.md: no table of stops")
    return bad


def glossary():
    """Each word once, in order, in use; words that it replaces are not used in code and docs."""
    bad, seen, instead = [], [], []
    for n, line in enumerate(read("docs/glossary.md").splitlines(), 1):
        m = re.match(r"- \*\*([^*]+)\*\*: (.*)$", line)
        if not m:
            continue
        seen.append(m.group(1))
        m = re.search(r"Not: ([^.]*)\.$", line)
        if m:
            instead += [(w.strip(), seen[-1]) for w in m.group(1).split(",")]
    if len(seen) < 20:
        bad.append("docs/glossary.md: entries look like \"- **word**: text\"")
    bad += ["docs/glossary.md: %s is not in its place" % b for a, b in zip(seen, seen[1:]) if a.lower() >= b.lower()]
    texts = [(p, read(p)) for p in files("src/*.c", "src/*.h", "include/*.h", "docs/*.md", "README.md",
                                         "src/*.md") if p != "docs/glossary.md"]
    everything = "\n".join(t for _, t in texts).lower()
    for word in seen:
        stem = re.escape(re.sub("(s|y)$", "", word.lower()))
        if not re.search(r"(?<![a-z])" + stem.replace(r"\ ", r"[ _-]"), everything):
            bad.append("docs/glossary.md: nobody says \"%s\"" % word)
    for word, better in instead:
        for path, text in texts:
            m = re.search(r"\b%s\b" % re.escape(word), text, re.I)
            if m:
                bad.append("%s:%d: \"%s\": the word here is \"%s\" (docs/glossary.md)"
                           % (path, line_of(text, m.start()), word, better))
    return bad


def paths():
    """Nobody else has our folders: no absolute path of one person or machine."""
    bad = []
    pattern = re.compile("/" + r"(?:home|root|work|Users)/\w")
    for path in files("*"):
        if path.endswith((".safetensors", ".jsonl", ".png")) or "/data/" in path or "tokenizer.json" in path:
            continue
        text = read(path)
        for m in pattern.finditer(text):
            bad.append("%s:%d: %s..." % (path, line_of(text, m.start()), m.group(0)))
    return bad


def formatting():
    if not shutil.which("clang-format"):
        return "clang-format is not installed"
    if not re.search(r"version 14\.", subprocess.run(["clang-format", "--version"], text=True, check=True,
                                                     stdout=subprocess.PIPE).stdout):
        return "clang-format is not version 14, whose layout is ours"
    names = files("src/*.c", "src/*.h", "src/*.cu", "src/*.cuh", "include/*.h", "tests/*.c", "tests/*.h",
                  "tests/*.cc")
    done = subprocess.run(["clang-format", "--dry-run", "--ferror-limit=1"] + names, text=True,
                          stderr=subprocess.PIPE, check=False)
    bad = sorted(set(re.findall(r"^(\S+?):\d+:\d+: warning", done.stderr, re.M)))
    return ["%s: make format" % b for b in bad]


def shell():
    if not shutil.which("shellcheck"):
        return "shellcheck is not installed"
    scripts = [p for p in files("scripts/*", "tests/*", ".ci/*", "bench/*")
               if not p.endswith((".c", ".h")) and re.match(r"#!.*\b(sh|bash)\b", read(p)[:80].split("\n")[0])]
    done = subprocess.run(["shellcheck"] + scripts, text=True, stdout=subprocess.PIPE, check=False)
    return done.stdout.strip().splitlines()


def clang():
    """The product compiles with clang too, whose warnings find other mistakes."""
    build = os.environ.get("FST_BUILD", "build")
    if not shutil.which("clang"):
        return "clang is not installed"
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        commands = json.load(f)
    bad, jobs = [], []
    for c in commands:
        path = os.path.relpath(c["file"], os.getcwd())
        if path.startswith("src/") and path.endswith(".c") and os.path.isfile(path):
            args = [a for a in shlex.split(c["command"])[1:] if re.match(r"-[DIWmfisO]|-std", a)]
            args = [a for a in args if not a.startswith(("-fsanitize", "-isystem"))]
            system = re.findall(r"-isystem (\S+)", c["command"])
            jobs.append((path, c["directory"], ["clang", "-fsyntax-only"] + args + ["-Wno-double-promotion"] +
                         [x for s in system for x in ("-isystem", s)] + [c["file"]]))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(lambda j: subprocess.run(j[2], cwd=j[1], text=True, check=False,
                                                 stderr=subprocess.PIPE), jobs)
        for (path, _, _), d in zip(jobs, done):
            if d.returncode:
                bad += [path] + [x for x in d.stderr.splitlines() if "error:" in x][:5]
    return bad


def needs():
    """build/firesteel runs with libc and libm alone."""
    program = os.path.join(os.environ.get("FST_BUILD", "build"), "firesteel")
    if not os.path.exists(program):
        return program + " is not built"
    out = subprocess.run(["readelf", "-d", program], check=True, text=True, stdout=subprocess.PIPE).stdout
    libs = re.findall(r"NEEDED.*\[(.*)\]", out)
    return ["%s needs %s" % (program, x) for x in libs if not re.match(r"(libc|libm|ld-linux[\w-]*)\.so", x)]


LINTS = {f.__name__: f for f in (layers, banned, headers, size, readmes, tour, glossary, paths, formatting,
                                 shell, clang, needs)}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in LINTS:
        sys.exit("usage: tests/lint/lint.py " + "|".join(LINTS))
    bad = LINTS[sys.argv[1]]()
    if isinstance(bad, str):
        print("SKIP lint_%s: %s" % (sys.argv[1], bad))
        print("0 passed, 0 failed, 1 skipped")
        return
    for b in bad:
        print(b)
    print("%d passed, %d failed, 0 skipped" % (not bad, bool(bad)))
    sys.exit(1 if bad else 0)


main()
