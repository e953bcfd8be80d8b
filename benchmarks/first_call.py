"""The time to begin: the import, each library's loading, and the first product, in fresh processes.

    python benchmarks/first_call.py [--other INTERPRETER] [--runs 11]

With `--other`, an interpreter that has another Backline, both are measured in turn. "cold" begins without a cache: each library
is tested in a child process first. "warm" finds what the run before it has kept there. Medians in milliseconds: by the clock, and
of the processor, child processes included, which says more on a machine that does something else too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

LIBRARIES = ("openblas", "mkl", "blis", "onednn", "xnnpack", "fftw")
PROGRAM = """
import json, os, sys, time
import numpy as np
def now():
    spent = os.times()
    return time.perf_counter(), sum(spent[:4])
def since(begin):
    return [b - a for a, b in zip(begin, now())]
begin = now()
import backline
times = {"import": since(begin)}
name = sys.argv[1]
if name == "first product":
    a = np.ones((200, 200))
    begin = now()
    backline.mm(a, a)
    times[name] = since(begin)
else:
    from backline import libraries
    library = libraries.get(name)
    begin = now()
    if library.available():
        times[f"{name}, loading"] = since(begin)
print(json.dumps(times))
"""


def measure(interpreter: str, name: str, cache: str) -> dict[str, list[float]]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"XDG_CACHE_HOME": cache}
    command = [interpreter, "-c", PROGRAM, name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tempfile.gettempdir())
    return {what: [1e3 * seconds for seconds in pair] for what, pair in json.loads(done.stdout.splitlines()[-1]).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", default="", help="an interpreter that has another Backline")
    parser.add_argument("--runs", type=int, default=11)
    given = parser.parse_args()
    sides = {"this": sys.executable} | ({"other": given.other} if given.other else {})
    times: dict[tuple[str, str, str], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for run in range(given.runs):
            for name in ("first product", *LIBRARIES):
                for side, interpreter in sides.items():
                    cache = os.path.join(folder, side, name, str(run))
                    for state in ("cold", "warm"):
                        for what, ms in measure(interpreter, name, cache).items():
                            times.setdefault((what, state, side), []).append(ms)
    heads = [(state, side) for side in sides for state in ("cold", "warm")]
    for kind, label in enumerate(("clock", "processor")):
        print(f"{f'{label}, of {given.runs} [ms]':<24}" + "".join(f"{f'{state}, {side}':>14}" for state, side in heads))
        for what in dict.fromkeys(what for what, _, _ in times):
            columns = [[pair[kind] for pair in times.get((what, *head), [])] for head in heads]
            print(f"{what:<24}" + "".join(f"{statistics.median(ms):>14.1f}" if ms else f"{'-':>14}" for ms in columns))


if __name__ == "__main__":
    main()
