"""Whole programs with Backline, beside plain NumPy with SciPy and beside PyTorch: ``python benchmarks/programs.py``.

Each program of `program_suite` is written once over a small set of operations. Every side runs it in a process of its own, in
turn, with pauses in between; Backline as on a machine that nobody tuned, calibrated (``backline calibrate``, once;
``--calibration`` names the tuning file), and tuned on the program itself. The results of all sides must agree, or the run fails.
The figures are medians of the rounds. ``--json`` keeps them in benchmarks/results. Run it where nothing else runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from program_suite import Program, differences, operations, programs

from side_by_side import PAUSE, Table, geometric_mean, show

PEERS = ("numpy", "torch")
FIGURES = {"median": statistics.median, "minimum": min}
OURS = ("untuned", "calibrated", "tuned")
CALIBRATION = Path(__file__).parents[1] / "build" / "calibration.db"


# One side, in its process -----------------------------------------------------------------------------------------------


def serve(side: str, threads: int, small: bool) -> None:
    """Answers requests, one JSON object a line: builds a program, writes its results, or times it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    ops = operations(side if side in PEERS else "backline")
    if side == "torch":
        ops.xp.set_num_threads(threads)
    known = {program.name: program for program in programs()}
    run: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if "build" in request:
                program = known[request["build"]]
                run = None  # what the last program held goes first
                run = program.build(ops, program.inputs(small))
                answer["first"] = first(side, run, ops, request["results"])
            else:
                answer["seconds"] = timed(run, request["seconds"])
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), file=answers, flush=True)


def first(side: str, run: Any, ops: Any, path: str) -> float:
    """Runs a program for the first time, tuning it where that is asked for, and writes its results."""
    import numpy as np

    begin = time.perf_counter()
    results = run()
    spent = time.perf_counter() - begin
    if side == "tuned":
        from backline import backends

        with backends.flags(benchmark=True, benchmark_limit=0):
            results = run()
    np.savez(path, **{name: ops.numpy(value) for name, value in results.items()})
    return spent


def timed(run: Any, seconds: float) -> float:
    """Returns the seconds of one run: the mean of as many as fit, after one that is not counted."""
    begin = time.perf_counter()
    run()
    count = max(1, int(seconds / max(time.perf_counter() - begin, 1e-6)))
    begin = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - begin) / count


# All sides --------------------------------------------------------------------------------------------------------------


class Side:
    """A process that runs programs when it is told to."""

    def __init__(self, name: str, asked: argparse.Namespace) -> None:
        self.name = name
        threads = str(asked.threads)
        environment = os.environ | dict.fromkeys(("OPENBLAS_NUM_THREADS", "BACKLINE_NUM_THREADS"), threads)
        environment |= {"BACKLINE_CONFIG": "", "BACKLINE_TUNING": str(asked.calibration) if name == "calibrated" else ""}
        command = [sys.executable, __file__, "--serve", name, "--threads", threads, *(["--small"] if asked.small else [])]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: the process ended with status {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@contextlib.contextmanager
def started(names: list[str], asked: argparse.Namespace) -> Iterator[list[Side]]:
    sides: list[Side] = []
    try:
        for name in names:
            sides.append(Side(name, asked))
        yield sides
    finally:
        for side in sides:
            side.close()


def built(program: Program, sides: list[Side]) -> dict[str, float]:
    """Builds a program on every side and compares the results with NumPy's; returns the seconds of the first runs."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        firsts, results = {}, {}
        for side in sides:
            path = os.path.join(folder, f"{side.name}.npz")
            firsts[side.name] = side.ask(build=program.name, results=path)["first"]
            with np.load(path) as file:
                results[side.name] = dict(file)
    reference = results.pop("numpy", None)
    for name, found in results.items() if reference is not None else ():
        off = {result: far for result, far in differences(found, reference).items() if not far <= program.bound}
        if off:
            raise SystemExit(
                f"{program.name}: {name} is off from NumPy by {off}, more than {program.bound} of the largest element"
            )
    return firsts


def measured(program: Program, sides: list[Side], rounds: int, seconds: float, figure: str) -> dict[str, Any]:
    firsts = built(program, sides)
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(rounds):
        for side in random.sample(sides, len(sides)):
            time.sleep(PAUSE)
            times[side.name].append(side.ask(seconds=seconds)["seconds"])
    taken = {name: FIGURES[figure](each) for name, each in times.items()}
    spread = {name: (max(each) - min(each)) / statistics.median(each) for name, each in times.items()}
    return {"row": program.name, "seconds": taken, "spread": spread, "first": firsts}


def calibrated(path: Path, seconds: float, threads: int) -> None:
    """Calibrates this machine into a file, unless it is there."""
    if path.exists():
        return
    print(f"calibrating into {path}: {seconds:.0f} seconds", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "backline", "calibrate", "--seconds", str(seconds), "--threads", str(threads)]
    subprocess.run(command, env=os.environ | {"BACKLINE_CONFIG": "", "BACKLINE_TUNING": str(path)}, check=True, stdout=sys.stderr)


# The table --------------------------------------------------------------------------------------------------------------


def summary(rows: list[dict[str, Any]], ours: list[str], peers: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Returns the geometric mean and the least of the speed over each peer, for each way of choosing."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for way in ours:
        for peer in peers:
            speeds = [row["seconds"][peer] / row["seconds"][way] for row in rows]
            found.setdefault(way, {})[peer] = {"geometric mean": geometric_mean(speeds), "least": min(speeds)}
    return found


def printed(rows: list[dict[str, Any]], ours: list[str], peers: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(title="Whole programs: seconds of one run, and how many times faster than NumPy and PyTorch")
    grid.add_column("program")
    for name in (*peers, *ours):
        grid.add_column(name, justify="right")
        if name in ours:
            for peer in peers:
                grid.add_column(f"over {peer}", justify="right")
    for row in rows:
        cells = [row["row"], *(show(row["seconds"][peer]) for peer in peers)]
        for way in ours:
            own = row["seconds"][way]
            cells += [show(own), *(f"{row['seconds'][peer] / own:.2f}" for peer in peers)]
        grid.add_row(*cells)
    totals = summary(rows, ours, peers)
    for what in ("geometric mean", "least"):
        cells = [what, *("" for _ in peers)]
        for way in ours:
            cells += ["", *(f"{totals[way][peer][what]:.2f}" for peer in peers)]
        grid.add_section()
        grid.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 160).print(grid)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="parts of names, such as CNN; all if none is given")
    parser.add_argument("--threads", type=int, default=0, help="threads of every side; as Backline counts processors by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="of runs in a round, at least one")
    parser.add_argument("--figure", choices=FIGURES, default="median", help="of the rounds; the minimum beside other programs")
    parser.add_argument("--sides", default=",".join((*PEERS, *OURS)), help="those that run, separated by commas")
    parser.add_argument("--small", action="store_true", help="small data: to see that it works")
    parser.add_argument("--calibration", type=Path, default=CALIBRATION, help="tuning file; made if it is not there")
    parser.add_argument("--calibrate-seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true", help="keep the table in benchmarks/results")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    if not asked.threads:
        import backline

        asked.threads = backline.get_num_threads()
    if asked.serve:
        return serve(asked.serve, asked.threads, asked.small)
    names = [name for name in asked.sides.split(",") if name]
    unknown = set(names) - {*PEERS, *OURS}
    if unknown:
        raise SystemExit(
            f"--sides {asked.sides}: there is no {', '.join(sorted(unknown))}; there are {', '.join((*PEERS, *OURS))}"
        )
    if "torch" in names and not has_torch():
        print("PyTorch is not installed: its column is left out (pip install torch==2.13.0)")
        names.remove("torch")
    if "calibrated" in names:
        asked.calibration = asked.calibration.resolve()
        calibrated(asked.calibration, asked.calibrate_seconds, asked.threads)
    peers, ours = ([name for name in group if name in names] for group in (PEERS, OURS))
    chosen = [p for p in programs() if not asked.programs or any(part.lower() in p.name.lower() for part in asked.programs)]
    table = Table("programs", peers, ours="untuned")
    with started(names, asked) as sides:
        for program in chosen:
            table.rows.append(measured(program, sides, asked.rounds, asked.seconds, asked.figure))
            print(f"{len(table.rows)} of {len(chosen)}: {program.name}", file=sys.stderr)
    printed(table.rows, ours, peers)
    if asked.json:
        table.save(threads=asked.threads, rounds=asked.rounds, figure=asked.figure, speed_over=summary(table.rows, ours, peers))


def has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


if __name__ == "__main__":
    main()
