"""The import time that backline adds to NumPy's: ``python benchmarks/import_time.py``. Median of fresh processes, in turn."""

from __future__ import annotations

import statistics
import subprocess
import sys

CODE = "from time import perf_counter as t; b = t(); import numpy; m = t(){}; e = t(); print(m - b, e - m)"


def run(extra: str) -> tuple[float, float]:
    child = subprocess.run([sys.executable, "-c", CODE.format(extra)], capture_output=True, text=True, check=True)
    first, second = child.stdout.split()
    return float(first), float(second)


if __name__ == "__main__":
    run("; import backline")  # byte code is written now
    times = [run("; import backline") for _ in range(15)]
    numpy, ours = (statistics.median(t) * 1e3 for t in zip(*times, strict=True))
    print(f"import numpy {numpy:.0f} ms, then import backline {ours:.0f} ms")
