"""Programs that know nothing of Backline, under each library that can run NumPy's and SciPy's BLAS and LAPACK.

``python benchmarks/existing_programs.py`` runs the scripts of the folder of that name with plain ``python``, with
``backline run --blas openblas`` (and mkl, and blis), and with ``backline run --tuned`` after ``backline tune``: each run in a
process of its own, in turn, the order changing from round to round. A program repeats its timed section, which leaves out imports
and loading; the first repeat is not counted, and the figure is the median of the others of all rounds (``--figure minimum``
beside other programs). The results of each run must agree with those of the first run of plain NumPy, or it fails. ``--json``
keeps the table in benchmarks/results. Run it where nothing else runs.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from program_suite import differences

from side_by_side import PAUSE, Table, geometric_mean

FOLDER = Path(__file__).parent / "existing_programs"
#: Largest difference of a result from plain NumPy's, relative to its largest element. Where a program minimises a function,
#: rounding decides where it stops; elsewhere the bound is what thousands of roundings of its longest sums may give.
BOUNDS = {
    "digits_numpy": 1e-9, "pca_ridge_sklearn": 1e-8, "gaussian_process_sklearn": 1e-4, "kernel_pca_sklearn": 1e-8,
    "signal_scipy": 1e-9, "optimisation_scipy": 1e-6,
}  # fmt: skip
#: The launcher without anything but the choice of a library: no binding, no other OpenMP runtime or allocator.
RUN = ("-m", "backline", "run", "--disable-numactl", "--disable-taskset", "--disable-iomp", "--use-default-allocator")
STOCK, TUNED = "numpy", "tuned"
#: What stands between the interpreter and the script.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    STOCK: (),
    "openblas": (*RUN, "--blas", "openblas"),
    "mkl": (*RUN, "--blas", "mkl"),
    "blis": (*RUN, "--blas", "blis"),
    TUNED: (*RUN, "--tuned"),
}
TUNE = ("-m", "backline", "tune")
FIGURES = {"median": statistics.median, "minimum": min}


def environment(threads: int, tuning: str) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BACKLINE_NUM_THREADS")
    own = dict.fromkeys(names, str(threads)) | {"BACKLINE_CONFIG": "", "BACKLINE_TUNING": tuning}
    return {name: value for name, value in os.environ.items() if not name.startswith("BACKLINE_")} | own


def started(words: tuple[str, ...], script: Path, options: list[str], variables: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, *words, str(script), *options], env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join([*words, script.name])} ended with status {done.returncode}\n{done.stdout}{done.stderr}")


def one_run(side: str, program: str, args: argparse.Namespace, folder: Path) -> tuple[list[float], dict[str, Any]]:
    """Times and results of a run of a program on one side."""
    file = folder / f"{program}.npz"
    options = ["--repeats", str(args.repeats + 1), "--save", str(file), *(["--small"] if args.small else [])]
    started(COMMANDS[side], FOLDER / f"{program}.py", options, environment(args.threads, str(folder / "tuning.db")))
    with np.load(file) as content:
        results = {name.removeprefix("result "): content[name] for name in content.files if name.startswith("result ")}
        times = content["seconds"][1:].tolist()
    file.unlink()
    return times, results


def measured(program: str, sides: list[str], args: argparse.Namespace, folder: Path) -> tuple[dict[str, float], str]:
    """Seconds of a program on each side, and its largest difference from plain NumPy."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    reference: dict[str, Any] = {}
    farthest = 0.0
    for number in range(args.rounds):
        for side in random.sample(sides, len(sides)) if number else sides:
            time.sleep(PAUSE)
            found, results = one_run(side, program, args, folder)
            times[side] += found
            reference = reference or results
            for name, far in differences(results, reference).items():
                farthest = max(farthest, far)
                if not far <= BOUNDS[program]:
                    raise SystemExit(
                        f"{program} on {side}: {name} differs from plain NumPy's by {far:.1e} of its largest element, "
                        f"the bound is {BOUNDS[program]:.0e}"
                    )
    taken = {side: FIGURES[args.figure](each) for side, each in times.items()}
    return taken, f"differ by {farthest:.0e}, bound {BOUNDS[program]:.0e}"


def available(names: list[str]) -> list[str]:
    """The sides that there are here, with a word on those that are left out."""
    from backline import libraries

    found = [STOCK]
    for name in names:
        if name == TUNED:
            help = subprocess.run([sys.executable, *RUN, "--help"], capture_output=True, text=True, check=True).stdout
            reason = "" if "--tuned" in help else "`backline run` has no --tuned"
        else:
            library = libraries.get(name)
            reason = "" if library.available() else library.reason()
        if reason:
            print(f"{name} is left out: {reason}")
        else:
            found.append(name)
    return found


def summary(table: Table) -> dict[str, dict[str, float]]:
    """Geometric mean and least of the speed over plain NumPy, for each side."""
    speeds = {way: [row["seconds"][STOCK] / row["seconds"][way] for row in table.rows] for way in table.ways}
    return {way: {"geometric mean": geometric_mean(each), "least": min(each)} for way, each in speeds.items()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"parts of names; all without one: {', '.join(BOUNDS)}")
    parser.add_argument("--sides", default=",".join(name for name in COMMANDS if name != STOCK), help="besides plain NumPy")
    parser.add_argument("--threads", type=int, default=0, help="of every side; as Backline counts processors by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="that count in each run")
    parser.add_argument("--figure", choices=FIGURES, default="median", help="of all times; the minimum beside other programs")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds that a program is tuned for")
    parser.add_argument("--small", action="store_true", help="less data: to see that it works")
    parser.add_argument("--json", action="store_true", help="keep the table in benchmarks/results")
    args = parser.parse_args()
    names = args.sides.split(",")
    unknown = [name for name in names if name not in COMMANDS]
    if unknown:
        parser.error(f"--sides {args.sides}: there is no {', '.join(unknown)}; there are {', '.join(COMMANDS)}")
    args.sides = [name for name in names if name != STOCK]
    args.programs = [name for name in BOUNDS if not args.programs or any(part in name for part in args.programs)]
    return args


def main() -> None:
    import backline

    args = arguments()
    args.threads = args.threads or backline.get_num_threads()
    sides = available(args.sides)
    ours = sides[:0:-1]  # the first of these counts in the column "of best peer"
    if not ours:
        raise SystemExit("there is nothing to compare plain NumPy with")
    table = Table("existing_programs", [STOCK], ours=ours)
    for program in args.programs:
        with tempfile.TemporaryDirectory(prefix="backline-") as name:
            folder = Path(name)
            if TUNED in sides:
                options = ["--small"] if args.small else []
                variables = environment(args.threads, str(folder / "tuning.db"))
                started((*TUNE, "--budget", str(args.budget)), FOLDER / f"{program}.py", options, variables)
            table.add(program, *measured(program, sides, args, folder))
    totals = summary(table)
    print("\nspeed over plain NumPy")
    for way, figures in totals.items():
        print(f"{way:12} geometric mean {figures['geometric mean']:.2f}, least {figures['least']:.2f}")
    if args.json:
        table.save(threads=args.threads, rounds=args.rounds, repeats=args.repeats, figure=args.figure, speed_over_numpy=totals)


if __name__ == "__main__":
    main()
