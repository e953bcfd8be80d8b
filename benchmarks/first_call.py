"""What it takes to begin: the import, each library's loading, and the first product, in fresh processes.

    python benchmarks/first_call.py [--other INTERPRETER] [--runs 11]

With `--other`, an interpreter that has another Backline, both are measured in turn. "cold" begins without a cache: each library
is tested in a child process first. "warm" finds what the run before it has kept there. Medians in milliseconds.
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
import json, sys
from time import perf_counter as now
import numpy as np
begin = now()
import backline
times = {"import": now() - begin}
a = np.ones((200, 200))
name = sys.argv[1]
begin = now()
if name == "first product":
    backline.mm(a, a)
    times[name] = now() - begin
else:
    from backline import libraries
    library = libraries.get(name)
    if not library.available():
        times = {}
    else:
        times[f"{name}, loading"] = library.load_seconds
print(json.dumps(times))
"""


def measure(interpreter: str, name: str, cache: str) -> dict[str, float]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"XDG_CACHE_HOME": cache}
    command = [interpreter, "-c", PROGRAM, name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tempfile.gettempdir())
    return {what: 1e3 * seconds for what, seconds in json.loads(done.stdout.splitlines()[-1]).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", default="", help="an interpreter that has another Backline")
    parser.add_argument("--runs", type=int, default=11)
    given = parser.parse_args()
    sides = {"this": sys.executable} | ({"other": given.other} if given.other else {})
    times: dict[tuple[str, str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for run in range(given.runs):
            for name in ("first product", *LIBRARIES):
                for side, interpreter in sides.items():
                    cache = os.path.join(folder, side, name, str(run))
                    for state in ("cold", "warm"):
                        for what, ms in measure(interpreter, name, cache).items():
                            times.setdefault((what, state, side), []).append(ms)
    heads = [(state, side) for side in sides for state in ("cold", "warm")]
    print(f"{f'median of {given.runs} [ms]':<24}" + "".join(f"{f'{state}, {side}':>14}" for state, side in heads))
    for what in dict.fromkeys(what for what, _, _ in times):
        columns = [times.get((what, *head), []) for head in heads]
        print(f"{what:<24}" + "".join(f"{statistics.median(ms):>14.1f}" if ms else f"{'-':>14}" for ms in columns))


if __name__ == "__main__":
    main()
