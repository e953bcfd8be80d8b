"""Costs of the same bits on any number of threads, and a check that they are the same: ``python benchmarks/determinism.py``.

For every kind of operation: what runs it at ``determinism_level = "threads"``, and its time beside that of a call without
determinism, which may use any algorithm on as many threads; the least of some calls on both sides, in turn. ``--only NAME ...``
takes some operations, ``--threads N`` another number of threads, ``--markdown`` prints the last results as the table of
docs/determinism.md.

``--check`` times nothing: it runs every operation on 1 to 8 threads, ``--runs`` times on each (50 unless told), its arrays moved,
and compares all bits. The exit status is 1 where they differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import backline
from backline import backends
from backline.engine.run_hashes import hash_of
from determinism_cases import Case, cases
from side_by_side import RESULTS, Table, geometric_mean, show  # first: it keeps this machine's tuning away

STRICT = {"deterministic": True, "determinism_level": "threads"}
ROUNDS, SECONDS, CALLS = 7, 0.02, 50  # of each way; of a round, which then ends


def chosen(case: Case) -> str:
    """Runs a case and returns what computed it: the longest of its operations where there are several."""
    with backline.trace() as events:
        case.call(*case.arrays)
    longest = max(events, key=lambda event: event.seconds)
    taken = longest.choice.chosen
    assert taken is not None
    return f"{taken.library} {taken.name}, {taken.threads}"


def best(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Returns the least seconds of each way, timed in turn."""
    times: dict[str, float] = {}
    for way in ways.values():
        way()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            count, begin = 0, time.perf_counter()
            while True:
                start = time.perf_counter()
                way()
                end = time.perf_counter()
                count += 1
                times[name] = min(times.get(name, end - start), end - start)
                if end - begin > SECONDS or count >= CALLS:
                    break
    return times


def costs(only: list[str], threads: int) -> None:
    table = Table("determinism", ["default"], ["threads", "threads on one"])
    backline.set_num_threads(threads)
    backends.share_processors = False  # other programs have no say in the number of threads
    for name, case in cases().items():
        if only and name not in only:
            continue

        def strict(case: Case = case, **flags: Any) -> Any:
            with backends.flags(**STRICT, **flags):
                return case.call(*case.arrays)

        ways = {
            "default": partial(case.call, *case.arrays), "threads": strict, "threads on one": partial(strict, num_threads=1),
        }  # fmt: skip
        note = chosen(case)
        with backends.flags(**STRICT):
            note = f"{chosen(case)}; default {note}"
        table.add(name, best(ways), note)
    if table.rows and not only:
        table.save(threads=threads, geometric_mean=geometric_mean([row["of_best_peer"] for row in table.rows]))


def as_markdown() -> None:
    """Prints the table of docs/determinism.md from the results."""
    content = json.loads(RESULTS.joinpath("determinism.json").read_text())
    print("| operation | level `threads` runs on | time | without determinism | cost |\n|---|---|---|---|---|")
    for row in content["rows"]:
        ran, seconds = row["ran_on"].partition("; default ")[0], row["seconds"]
        times = f"{show(seconds['threads'])} | {show(seconds['default'])} | {row['of_best_peer']:.2f}"
        print(f"| {row['row']} | {ran} | {times} |")
    summary = content["summary"]
    print(f"\n{content['cpu']}, {summary['threads']} threads, {content['date']}; geometric mean {summary['geometric_mean']:.2f}.")


def check(only: list[str], runs: int, threads: tuple[int, ...], scale: float) -> int:
    """Runs all cases again and again; where bits differ, the report names the first operation."""
    chosen_cases = {name: case for name, case in cases(scale).items() if not only or name in only}

    def run(arrays: dict[str, tuple[Any, ...]]) -> dict[str, str]:
        return {name: hash_of(case.call(*arrays[name])) for name, case in chosen_cases.items()}

    with backends.flags(**STRICT):
        arrays = {name: case.arrays for name, case in chosen_cases.items()}
        report = backline.verify_determinism(run, arrays, runs=runs, threads=threads)
    print(report)
    if not only:
        content = {
            "command": " ".join(["python", *sys.argv]), "date": time.strftime("%Y-%m-%d"), "runs": runs, "threads": threads,
            "scale": scale, "cases": list(chosen_cases), "operations": report.operations, "level": report.level,
        }  # fmt: skip
        RESULTS.joinpath("determinism_check.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0 if report.reaches("threads") else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--scale", type=float, default=0.2)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    unknown = set(arguments.only) - set(cases())
    if unknown:
        parser.error(f"no case is named {', '.join(sorted(unknown))}: {', '.join(cases())}")
    if arguments.check:
        return check(arguments.only, arguments.runs, tuple(range(1, (arguments.threads or 8) + 1)), arguments.scale)
    if arguments.markdown:
        as_markdown()
    else:
        costs(arguments.only, arguments.threads or backline.get_num_threads())
    return 0


if __name__ == "__main__":
    sys.exit(main())
