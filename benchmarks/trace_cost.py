"""The cost of `backline.trace()` for a call: while it collects, after it ended, and with a logger that is listened to.

    python benchmarks/trace_cost.py

Batches of calls take turns, and the least time of a batch counts. Instructions are counted by `perf stat` where the system
allows it, over many calls in processes of their own; a process that makes no such calls is taken off.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import backline

CALLS, BATCHES = 200, 400
COUNTED = 200_000

COUNT = """
import numpy as np, backline
a, out = np.ones((8, 8), np.float32), np.empty((8, 8), np.float32)
backline.mm(a, a, out=out)
{setup}
for _ in range({calls}):
    {line}
"""


def least(ways: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Returns the least seconds of a call, of batches in turn."""
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(BATCHES):
        for name, batch in ways.items():
            found[name] = min(found[name], batch())
    return found


def main() -> None:
    a, out = np.ones((8, 8), np.float32), np.empty((8, 8), np.float32)
    silent = logging.getLogger("benchmark")
    silent.propagate = False
    silent.setLevel(logging.DEBUG)
    silent.addHandler(logging.NullHandler())

    def batch() -> float:
        begin = time.perf_counter()
        for _ in range(CALLS):
            backline.mm(a, a, out=out)
        return (time.perf_counter() - begin) / CALLS

    def collected() -> float:
        with backline.trace():
            return batch()

    def logged() -> float:
        with backline.trace().logged(silent):
            return batch()

    batch()
    before = least({"a": batch, "b": batch})  # no trace has been made in this process
    times = least({"off": batch, "on": collected, "on, logged": logged})
    noise = abs(before["a"] - before["b"])
    print(f"a product of 8x8, float32, with out; least of {BATCHES} batches of {CALLS} calls")
    print(f"{'never traced':<14} {min(before.values()) * 1e9:7.0f} ns   (two of the same differ by {noise * 1e9:.0f} ns)")
    for name, seconds in times.items():
        print(f"{name:<14} {seconds * 1e9:7.0f} ns   {(seconds - times['off']) * 1e9:+7.0f} ns")
    instructions()


def instructions() -> None:
    """Prints instructions for a call, as `perf stat` counts them."""
    if not shutil.which("perf"):
        print("instructions are not counted: there is no perf here")
        return
    call = "backline.mm(a, a, out=out)"
    ways = {
        "loop alone": ("", "pass"), "off": ("", call), "on": ("scope = backline.trace(); scope.__enter__()", call),
    }  # fmt: skip
    counts = {}
    for name, (setup, line) in ways.items():
        program = COUNT.format(setup=setup, line=line, calls=COUNTED)
        command = ["perf", "stat", "-x,", "-e", "instructions:u", sys.executable, "-c", program]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
        rows = [row.split(",") for row in said.splitlines() if "instructions" in row]
        if not rows or not rows[0][0].isdecimal():
            print("instructions are not counted: perf may not do so here")
            return
        counts[name] = int(rows[0][0])
    for name in ("off", "on"):
        print(f"{name:<14} {(counts[name] - counts['loop alone']) / COUNTED:7.0f} instructions")


if __name__ == "__main__":
    main()
