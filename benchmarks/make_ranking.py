"""Makes the shipped ranking of this machine's class of processors: the times of all algorithms. About half an hour.

``python benchmarks/make_ranking.py [products] [halves] [algebra] [layers] [transforms]`` measures, as `backline tune` does, every
algorithm on a table of Problems and writes their medians to ``src/backline/engine/rankings/CLASS.json``. The entries of
parts that are not named stay as they are; with ``--new`` also those of Problems that are there, unless an algorithm can run
them that no entry of the operation and dtype names, and with ``--again REGEX`` unless the Problem matches. What was measured
beside another program, or makes no sense beside its neighbours, is measured again. Run it where nothing else runs, and without
OPENBLAS_CORETYPE.

``python benchmarks/make_ranking.py --refresh CLASS`` measures nothing: it brings the file of a class that was made by an earlier
version to what Backline has now. Entries get the dtype and the class of shapes that their Problem has now, and what no library
lists for it any more is left out; nobody could choose it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

os.environ["BACKLINE_CONFIG"] = os.environ["BACKLINE_TUNING"] = ""

import backline
from backline import libraries
from backline.engine import ranking, ranking_files
from backline.engine.calibration import implausible, least
from backline.engine.tuning import designed_problems
from backline.engine.tuning.measure import measure_problem
from backline.errors import BadValue
from backline.libraries.base import Algorithm
from backline.native.machine import machine
from backline.native.processor_class import ProcessorClass
from backline.problems import Problem

TRIES = 4


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
    """Returns the algorithms that libraries list for a problem."""
    return [
        a
        for library in libraries.all_libraries()
        if "cpu" in library.devices and library.available()
        for a in library.algorithms(problem, threads)
        if isinstance(a, Algorithm)
    ]


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
    return {
        "op": place.op, "dtype": place.dtype, "class": place.shape_class, "size": round(place.work, 2), "example": key,
        "order": list(times), "microseconds": list(times.values()),
    }  # fmt: skip


def write(path, provenance, entries):
    lines = ",\n  ".join(json.dumps(e) for e in entries)
    with open(path, "w", encoding="utf-8") as stream:
        stream.write('{"provenance": ' + json.dumps(provenance) + ',\n "entries": [\n  ' + lines + "\n ]}\n")


def refresh(name):
    found = ranking_files._read(ProcessorClass.parse(name))
    write(ranking_files.file_name(found.processors), found.provenance, list(refreshed(found.entries, backline.get_num_threads())))


def main() -> None:
    threads = backline.get_num_threads()
    words = sys.argv[1:]
    if "--refresh" in words:
        return refresh(words[words.index("--refresh") + 1])
    again = words.pop(words.index("--again") + 1) if "--again" in words else None
    wanted = [word for word in words if not word.startswith("--")] or list(designed_problems.PARTS)
    new = "--new" in words or again is not None
    if set(wanted) - set(designed_problems.PARTS):
        sys.exit(f"parts are {', '.join(designed_problems.PARTS)}")
    path = ranking_files.file_name(ranking_files.here())
    old = {"entries": []}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as stream:
            old = json.load(stream)
    there = {e["example"]: e for e in old["entries"]} if new else {}
    named = {(e["op"], e["dtype"]): set() for e in old["entries"]}
    for e in old["entries"]:
        named[e["op"], e["dtype"]].update(key.partition("@")[0] for key in e["order"])
    tables = {part: list(designed_problems.problems(part)) for part in wanted}
    made = {problem.key for table in tables.values() for problem in table}
    entries = [e for e in old["entries"] if part_of(e) not in wanted and e["example"] not in made]
    begin = time.perf_counter()
    for part in wanted:
        others = []
        for problem in tables[part]:
            able = able_to(problem, threads)
            place = problem.place()
            named_here = named.get((place.op, place.dtype), set())
            kept = problem.key in there and not (again and re.search(again, problem.key))
            if kept and not ("--new" in words and unknown(able, there[problem.key], named_here)):
                entries.append(there[problem.key])
                continue
            record = measured(problem, able, threads, others)
            others.append(record)
            timed = sorted((seconds, key) for key, seconds in record.medians.items())
            entries.append(entry_of(problem.key, place, {key: round(s * 1e6, 2) for s, key in timed}))
            best = timed[0] if timed else (0, "nothing")
            print(f"{time.perf_counter() - begin:6.0f} s  {problem.key:<50} {best[1]} {best[0] * 1e6:.1f} us", flush=True)
    m = machine()
    provenance = {
        "cpu": m.cpu.model, "cores": m.physical_cores, "threads": threads, "date": time.strftime("%Y-%m-%d"),
        "command": "python " + " ".join(sys.argv),
        "libraries": {n: v for n in libraries.names() if "cpu" in libraries.get(n).devices and (v := libraries.get(n).version())},
    }  # fmt: skip
    if entries and "provenance" in old and set(wanted) != set(designed_problems.PARTS):  # a part of it is older
        provenance["cpu"] = old["provenance"]["cpu"]
        provenance["command"] = f"{old['provenance']['command']} ({old['provenance']['date']}); {provenance['command']}"
    write(path, provenance, entries)


if __name__ == "__main__":
    main()
