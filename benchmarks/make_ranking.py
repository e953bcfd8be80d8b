"""Makes ``src/backline/engine/ranking.json``: the order of algorithms on a machine nobody tuned. About eight minutes.

``python benchmarks/make_ranking.py`` measures, as `backline tune` does, every algorithm on a table of Problems and writes the
order of their medians. Run it where nothing else runs, and without OPENBLAS_CORETYPE.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time

os.environ["BACKLINE_CONFIG"] = os.environ["BACKLINE_TUNING"] = ""

import numpy as np

import backline
from backline import libraries
from backline.engine import ranking
from backline.engine.explain import problem_builders
from backline.engine.measure import measure_problem
from backline.libraries.base import Algorithm
from backline.libraries.machine import machine
from backline.problems import short

LINALG = (
    "linalg.cholesky", "linalg.lu_factor", "linalg.inv", "linalg.solve", "linalg.qr", "linalg.eigh", "linalg.eigvalsh",
    "linalg.eig", "linalg.eigvals", "linalg.svd", "linalg.svdvals", "linalg.lstsq", "cholesky_solve",
    "cholesky_inverse", "linalg.solve_triangular", "linalg.lu_solve",
)  # fmt: skip


def products(dtype):
    sizes = [(n, n, n) for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048)]
    sizes += [(20000, 64, 64), (4096, 64, 64), (4, 1024, 4096), (16, 1024, 1024), (1024, 16, 1024), (1024, 1024, 16)]
    sizes += [(n, n, 1) for n in (64, 512, 2048)] + [(1, n, n) for n in (64, 512, 2048)]
    for m, k, n in sizes:
        if dtype.kind != "c" or m * k * n <= 512**3:
            yield "matmul", (np.empty((m, k), dtype), np.empty((k, n), dtype)), {}
    yield "matmul", (np.empty((4, 1024), dtype), np.empty((4096, 1024), dtype).T), {}
    for n in (1000, 10**6):
        yield "dot", (np.empty(n, dtype), np.empty(n, dtype)), {}
    for items, n in ((1000, 4), (1000, 8), (1000, 16), (512, 32), (64, 64), (32, 128)):
        yield "matmul", (np.empty((items, n, n), dtype), np.empty((items, n, n), dtype)), {}


def arguments(op, n, dtype, batch=()):
    a, b = np.empty((*batch, n, n), dtype), np.empty((*batch, n, 16), dtype)
    if op == "linalg.lu_solve":
        return a, np.ones((*batch, n), np.int32), b
    if op == "cholesky_solve":
        return b, a
    return (a, b) if "solve" in op or op == "linalg.lstsq" else (a,)


def linear_algebra(dtype):
    for op in LINALG:
        keywords = {"upper": False} if op == "linalg.solve_triangular" else {}
        for n in (64, 256) if dtype.kind == "c" else (8, 64, 256, 1024):
            yield op, arguments(op, n, dtype), keywords
        yield op, arguments(op, 32, dtype, (100,)), keywords


def main() -> None:
    threads = backline.get_num_threads()
    entries = []
    begin = time.perf_counter()
    for name in ("float32", "float64", "complex64", "complex128"):
        dtype = np.dtype(name)
        for op, args, kwargs in (*products(dtype), *linear_algebra(dtype)):
            problem = problem_builders[op](*args, **kwargs)
            able = [
                a
                for library in libraries.all_libraries()
                if library.available()
                for a in library.algorithms(problem, threads)
                if isinstance(a, Algorithm)
            ]
            record = measure_problem(problem, able, threads, budget=0.25, limit=4.0, seed=1)
            timed = sorted((s, a.key) for a in able if (s := record.seconds(a.key)) is not None)
            entries.append({
                "op": problem.op, "dtype": short(dtype), "class": ranking.shape_class(problem),
                "size": round(math.log2(max(problem.flops, 1))), "example": problem.key, "order": [key for _, key in timed],
                "microseconds": [round(s * 1e6, 2) for s, _ in timed],
            })  # fmt: skip
            best = timed[0] if timed else (0, "nothing")
            print(f"{time.perf_counter() - begin:6.0f} s  {problem.key:<50} {best[1]} {best[0] * 1e6:.1f} us", flush=True)
    m = machine()
    provenance = {
        "cpu": m.cpu.model, "cores": m.physical_cores, "threads": threads, "date": time.strftime("%Y-%m-%d"),
        "command": "python " + " ".join(sys.argv),
        "libraries": {n: libraries.get(n).version() for n in libraries.names()},
    }  # fmt: skip
    lines = ",\n  ".join(json.dumps(e) for e in entries)
    with open(ranking.FILE, "w", encoding="utf-8") as stream:
        stream.write('{"provenance": ' + json.dumps(provenance) + ',\n "entries": [\n  ' + lines + "\n ]}\n")


if __name__ == "__main__":
    main()
