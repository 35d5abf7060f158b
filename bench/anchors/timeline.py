#!/usr/bin/env python3
"""Where the time of a step goes, launch by launch: a table from the notes of a module built with -DFST_TIMELINE=ON.

    cmake -S . -B build/timeline -G Ninja -DFST_CUDA=ON -DFST_TIMELINE=ON && ninja -C build/timeline firesteel_cuda firesteel
    FIRESTEEL_TIMELINE=notes.txt build/timeline/firesteel bench step --device cuda --synthetic v4-flash --layers 8 \\
        --rows 1 --steps 20 --whole
    bench/anchors/timeline.py notes.txt [LINES]

A line is a launch, known by blocks, threads and shared memory, in the order in which their wait for the
kernel ahead was over, or (mark above 0) a place inside one.  `since`: after the line before; that of the
next line is how long this launch took.  `early`: when its first and its last wave began to wait, before
that; a negative number began later.  `spread`: from the first to the last wave.
"""
import sys

NEAR_NS = {0: 2500, 1: 4500}  # notes of one launch lie no further apart; of places inside: 1


def launches(path):
    with open(path, encoding="utf-8") as f:
        names = f.readline().split()
        notes = [dict(zip(names, map(int, line.split()))) for line in f]
    notes.sort(key=lambda n: n["end_ns"])
    out = []
    for n in notes:
        key = n["grid"], n["threads"], n["shared"], n["mark"]
        near = NEAR_NS[min(1, n["mark"])]
        for g in out[:-31:-1]:
            if g["key"] == key and n["end_ns"] - g["last"] < near:
                break
        else:
            g = {"key": key, "first": n["end_ns"], "began": n["begin_ns"], "late": n["begin_ns"], "n": 0}
            out.append(g)
        g["last"] = n["end_ns"]
        g["began"] = min(g["began"], n["begin_ns"])
        g["late"] = max(g["late"], n["begin_ns"])
        g["n"] += 1
    return out


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    out = launches(sys.argv[1])[:int(sys.argv[2]) if len(sys.argv) > 2 else None]
    print("blocks threads shared mark  notes |     at us   since | early: first    last | spread")
    before = None
    for g in out:
        grid, threads, shared, mark = g["key"]
        since = (g["first"] - before) / 1e3 if before is not None else 0
        before = g["first"]
        print("%6d %7d %5dK %4d %6d | %9.2f %7.2f | %12.2f %7.2f | %6.2f" % (
            grid, threads, shared >> 10, mark, g["n"], g["first"] / 1e3, since, (g["first"] - g["began"]) / 1e3,
            (g["first"] - g["late"]) / 1e3, (g["last"] - g["first"]) / 1e3))


if __name__ == "__main__":
    main()
