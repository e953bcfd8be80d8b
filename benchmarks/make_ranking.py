"""Makes the shipped ranking of this machine's class of processors: the times of all algorithms. About half an hour.

``python benchmarks/make_ranking.py [products] [halves] [algebra] [layers] [transforms]`` measures, as `backline tune` does, every
algorithm on a table of Problems and writes their medians to ``src/backline/engine/rankings/CLASS.json``. The entries of
parts that are not named stay as they are; with ``--new`` also those of Problems that are there, unless an algorithm can run
them that no entry of the operation and dtype names, and with ``--again REGEX`` unless the Problem matches; with
``--work LOW HIGH`` only those of so much work, as log2 of the operations, are measured again. With ``--least`` what was measured
before counts, too: of both times of an algorithm the lesser is kept. ``--every N`` takes one Problem of N, as a first ranking of
a class in a part of the time; with ``--new`` it is completed later. What was measured beside another program, or makes no sense
beside its neighbours, is measured again. Run it where nothing else runs, and without OPENBLAS_CORETYPE. Stopped by Ctrl-C or a
SIGTERM, it keeps what it has measured.

``python benchmarks/make_ranking.py --refresh CLASS`` measures nothing: it brings the file of a class that was made by an earlier
version to what Backline has now. Entries get the dtype and the class of shapes that their Problem has now, and what no library
lists for it any more is left out; nobody could choose it.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import sys
import time
from unittest import mock

os.environ["BACKLINE_CONFIG"] = os.environ["BACKLINE_TUNING"] = ""

import backline
from backline import libraries
from backline.engine import ranking, ranking_files
from backline.engine.calibration import implausible, least
from backline.engine.tuning import designed_problems
from backline.engine.tuning.measure import measure_problem
from backline.errors import BadValue
from backline.libraries.base import Algorithm
from backline.libraries.mkl.transform_trials import Trials
from backline.native.machine import machine
from backline.native.processor_class import ProcessorClass
from backline.native.whole_file import write_whole
from backline.problems import Problem

TRIES = 4
LONG = 200  # characters of a word of the command that the provenance tells
DIRECT = "dfti", "dfti_parts"  # MKL's transforms in float32


def part_of(entry):
    op = entry["op"]
    if entry["dtype"] in ("f16", "bf16"):
        return "halves"
    if op.startswith("fft."):
        return "transforms"
    if op == "matmul":
        return "products"
    return "algebra" if op.startswith(("linalg.", "cholesky_")) else "layers"


def unknown(able, entry, named):
    """The algorithms that no entry names; of those that divide a batch, those that this entry does not name."""
    here = {key.partition("@")[0] for key in entry["order"]}
    names = {f"{a.library}.{a.name}" for a in able}
    return {name for name in names if name not in (here if name.endswith("_items") else named)}


def measured(problem, able, threads, others):
    """The record of a problem: made again, and the lesser times kept, while it makes no sense beside itself and the others."""
    record = None
    for _ in range(TRIES):
        made = measure_problem(problem, able, threads, budget=0.25, limit=4.0, seed=1)
        record = made if record is None else least(made, record, able)
        if not implausible(problem, record, others):
            break
    return record


def able_to(problem, threads):
    """Returns the algorithms that libraries list for a problem, with all ways in which MKL might transform float32."""
    here = [library for library in libraries.all_libraries() if "cpu" in library.devices and library.available()]
    found = [a for library in here for a in library.algorithms(problem, threads) if isinstance(a, Algorithm)]
    if problem.op.startswith("fft."):
        with mock.patch.object(Trials, "refusal", lambda trials, p, a, make: "loses digits" if a.name in DIRECT else ""):
            listed = [a for a in libraries.get("mkl").algorithms(problem, threads) if isinstance(a, Algorithm)]
        known = {a.key for a in found}
        found += [a for a in listed if a.key not in known]
    return found


def refreshed(entries, threads):
    """Entries with the places that their problems have now, without the algorithms that no library lists for them."""
    known = {problem.key: problem for part in designed_problems.PARTS for problem in designed_problems.problems(part)}
    here = {library.name for library in libraries.all_libraries() if "cpu" in library.devices and library.available()}
    for e in entries:
        problem = known.get(e["example"])
        try:
            problem = problem or Problem.parse(e["example"])
        except BadValue:  # a key that is no call, of a problem that is not among the designed ones any more
            yield e
            continue
        place, keys = problem.place(), {ranking.named(a.key, e["order"]) for a in able_to(problem, threads)}
        times = zip(e["order"], e["microseconds"], strict=True)
        kept = {key: t for key, t in times if key in keys or key.partition(".")[0] not in here}
        yield entry_of(problem.key, place, kept)


def entry_of(key, place, times):
    """An entry of a ranking: what is known of a problem, the fastest first."""
    times = dict(sorted(times.items(), key=lambda item: item[1]))
    return {
        "op": place.op, "dtype": place.dtype, "class": place.shape_class, "size": round(place.work, 2), "example": key,
        "order": list(times), "microseconds": list(times.values()),
    }  # fmt: skip


def lesser(times, entry, able):
    """Returns the lesser of the times of algorithms and those that an entry has of them, as far as these are able to."""
    before = dict(zip(entry["order"], entry["microseconds"], strict=True))
    before = {a.key: before[a.key] for a in able if a.key in before}
    return {key: min(time, times.get(key, time)) for key, time in {**times, **before}.items()}


def write(processors, provenance, entries):
    made = ranking_files.Ranking.of(processors, provenance, entries)
    write_whole(ranking_files.file_name(processors), made.text().encode())


def refresh(name):
    found = ranking_files._read(ProcessorClass.parse(name))
    write(found.processors, found.provenance, refreshed(found.entries(), backline.get_num_threads()))


def asked():
    """Returns what the command asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(designed_problems.PARTS)}; all without any")
    parser.add_argument("--new", action="store_true", help="only Problems that are not there, or that a new algorithm can run")
    parser.add_argument("--again", metavar="REGEX", help="only Problems that are not there, or whose key matches")
    bounds = {"type": float, "metavar": ("LOW", "HIGH"), "default": (-math.inf, math.inf)}
    parser.add_argument("--work", nargs=2, help="of those that match, only with so much work: log2 of the operations", **bounds)
    parser.add_argument("--least", action="store_true", help="keep the lesser of what was measured before and now")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only one Problem of N, evenly over every part")
    parser.add_argument("--refresh", metavar="CLASS", help="measure nothing: bring the file of a class to what Backline has now")
    words = parser.parse_args()
    if words.again is None and math.isfinite(words.work[0]):
        parser.error("--work is of Problems that --again names")
    if words.every < 1:
        parser.error(f"--every takes 1 or more, and {words.every} was given")
    if set(words.parts) - set(designed_problems.PARTS):
        parser.error(f"parts are {', '.join(designed_problems.PARTS)}")
    return words


def made_or_kept(words, tables, before, named, threads):
    """Yields the entries of the Problems of `tables`: those of `before` that the command keeps, and those that it measures."""
    begin, there = time.perf_counter(), before if words.new or words.again is not None else {}
    for table in tables.values():
        others = []
        for number, problem in enumerate(table):
            if number % words.every:
                if problem.key in before:
                    yield before[problem.key]
                continue
            able, place = able_to(problem, threads), problem.place()
            again = words.again and re.search(words.again, problem.key) and words.work[0] <= place.work <= words.work[1]
            kept = problem.key in there and not again
            if kept and not (words.new and unknown(able, there[problem.key], named.get((place.op, place.dtype), set()))):
                yield there[problem.key]
                continue
            record = measured(problem, able, threads, others)
            others.append(record)
            times = {key: round(seconds * 1e6, 2) for key, seconds in record.medians.items()}
            if words.least and problem.key in before:
                times = lesser(times, before[problem.key], able)
            yield entry_of(problem.key, place, times)
            best = f"{min(times, key=times.get)} {min(times.values()):.1f} us" if times else "nothing"
            print(f"{time.perf_counter() - begin:6.0f} s  {problem.key:<50} {best}", flush=True)


def main() -> None:
    words = asked()
    if words.refresh:
        return refresh(words.refresh)
    threads = backline.get_num_threads()
    wanted, new = words.parts or list(designed_problems.PARTS), words.new or words.again is not None
    here = ranking_files.here()
    there = os.path.exists(ranking_files.file_name(here))
    old = ranking_files._read(here) if there else ranking_files.Ranking(here, {}, ())
    known = old.entries()
    before = {e["example"]: e for e in known}
    named = {(e["op"], e["dtype"]): set() for e in known}
    for e in known:
        named[e["op"], e["dtype"]].update(key.partition("@")[0] for key in e["order"])
    tables = {part: list(designed_problems.problems(part)) for part in wanted}
    made = {problem.key for table in tables.values() for problem in table}
    entries = [e for e in known if part_of(e) not in wanted and e["example"] not in made]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stopped = False
    try:
        for entry in made_or_kept(words, tables, before, named, threads):
            entries.append(entry)
    except KeyboardInterrupt:  # what was measured is kept, and what was not reached stays as it was
        stopped = True
        print("stopped: what was measured is kept", flush=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # they may come twice, and what follows takes no time
    if stopped:
        reached = {e["example"] for e in entries}
        entries += [e for key, e in before.items() if key not in reached]
    if len(entries) == len(before) and all(e is before.get(e["example"]) for e in entries):
        return print("nothing was measured")
    m = machine()
    provenance = {
        "cpu": m.cpu.model, "cores": m.physical_cores, "threads": threads, "date": time.strftime("%Y-%m-%d"),
        "command": "python " + " ".join(word if len(word) <= LONG else "REGEX" for word in sys.argv),
        "libraries": {n: v for n in libraries.names() if "cpu" in libraries.get(n).devices and (v := libraries.get(n).version())},
    }  # fmt: skip
    whole = not new and not stopped and words.every == 1 and set(wanted) == set(designed_problems.PARTS)
    if entries and there and not whole:  # a part of it is older
        provenance["cpu"] = old.provenance["cpu"]
        provenance["command"] = f"{old.provenance['command']} ({old.provenance['date']}); {provenance['command']}"
    write(here, provenance, entries)


if __name__ == "__main__":
    main()
