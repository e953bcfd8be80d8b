"""How good the predicted choice is on shapes that nobody measured: the time of what is chosen over that of the best.

``python benchmarks/ranking_regret.py [COUNT] [SEED]`` draws COUNT problems of each kind (default 12) whose sizes are uniform on a
logarithmic scale, measures every algorithm on them, and compares what four rules would choose: the nearest entry of the shipped
ranking, times interpolated among its entries, the same with this machine's class left out, and, where the tuning file of the user
has a calibration, corrected by it. Run it where nothing else runs. Reduced precision takes no part.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import defaultdict
from functools import partial

import numpy as np

import backline
from backline.engine import predicted_times, ranking, ranking_files
from backline.engine.choose import eligible, planner
from backline.engine.tuning import record_store
from backline.engine.tuning.measure import measure_problem
from backline.native.machine import machine
from backline.problems.op_registry import import_operations, operations

SMALLEST, LARGEST = 4, 1500


def drawn(kind: str, rng: random.Random):
    """One problem of a kind, with sizes that are no powers of two."""

    def size(low=SMALLEST, high=LARGEST):
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    dtype = np.dtype(rng.choice(("float32", "float64")))
    n = size()
    if kind == "products":
        return "matmul", (np.empty((n, n), dtype), np.empty((n, n), dtype)), {}
    if kind == "thin products":
        m, k, n = (size() for _ in range(3))
        return "matmul", (np.empty((m, k), dtype), np.empty((k, n), dtype)), {}
    if kind == "matrix times vector":
        return "matmul", (np.empty((size(16, 3000), n), dtype), np.empty((n, 1), dtype)), {}
    if kind == "batches":
        n, items = size(4, 100), size(8, 2000)
        items = min(items, 4_000_000 // (n * n) + 1)
        return "matmul", (np.empty((items, n, n), dtype), np.empty((items, n, n), dtype)), {}
    if kind == "linear algebra":
        op = "linalg." + rng.choice(("cholesky", "lu_factor", "inv", "solve", "qr", "eigh", "svd"))
        n = size(4, 700)
        a = np.empty((n, n), dtype)
        return op, (a, np.empty((n, 16), dtype)) if op == "linalg.solve" else (a,), {}
    if kind == "transforms":
        kind = rng.choice((np.float32, np.float64, np.complex64, np.complex128))
        x = np.empty((rng.choice((1, 1, 40)), size(16, 200_000)), kind)
        return "fft.rfftn" if x.dtype.kind == "f" else "fft.fftn", (x,), {"dim": (1,)}
    if kind == "layers":
        op = rng.choice(("relu", "gelu", "tanh", "softmax", "layer_norm"))
        x = np.empty((size(8, 4000), size(8, 2000)), dtype)
        more = ((x.shape[1],),) if op == "layer_norm" else ()
        return f"nn.functional.{op}", (x, *more), {"dim": -1} if op == "softmax" else {}
    channels, features, side = size(4, 200), size(4, 200), size(7, 60)
    kernel = rng.choice((1, 3, 5))
    x = np.empty((rng.choice((1, 4)), channels, side, side), np.float32)
    return "nn.functional.conv2d", (x, np.empty((features, channels, kernel, kernel), np.float32)), {"padding": kernel // 2}


KINDS = (
    "products", "thin products", "matrix times vector", "batches", "linear algebra", "transforms", "layers", "convolutions",
)  # fmt: skip


def nearest_entry(problem):
    """The order of the entry that is nearest in size."""
    place = problem.place()
    _, entries = ranking_files.entries(ranking_files.here(), *place[:3])
    return min(entries, key=lambda e: abs(e["size"] - place.work))["order"] if entries else ()


def left_out(problem):
    """Interpolated times of the other classes."""
    here, place = ranking_files.here(), problem.place()
    others = tuple(c for c in ranking_files._nearest(here) if c != here)
    real = ranking_files._nearest
    ranking_files._nearest = lambda _: others
    try:
        curves = predicted_times._curves.__wrapped__(here, *place[:3], predicted_times.SHIPPED_ONLY)
    finally:
        ranking_files._nearest = real
    return sorted(curves, key=lambda key: predicted_times.predicted(curves[key], place.work))


RULES = {
    "nearest entry": nearest_entry,
    "interpolated": partial(ranking.order_of, own=False),
    "class left out": left_out,
    "calibrated": ranking.order_of,
}


def chosen(problem, able, order):
    """The first of the candidates by an order, by the rules that hold beside it."""
    return min(able, key=lambda a: ranking.place(a, order, problem.flops >= ranking.LARGE)).key


def main() -> None:
    count, seed = (int(n) for n in [*sys.argv[1:], *("12", "1")[len(sys.argv) - 1 :]])
    import_operations()
    threads, rng = backline.get_num_threads(), random.Random(seed)
    here = ranking_files.here()
    known = sum(bool(r.place) for r in record_store.every())
    rules = {name: rule for name, rule in RULES.items() if name != "calibrated" or known}
    found = defaultdict(lambda: defaultdict(list))
    worst = defaultdict(list)
    for kind in KINDS:
        for _ in range(count):
            op, arguments, keywords = drawn(kind, rng)
            problem = operations[op].build(*arguments, **keywords)
            able = eligible(problem, threads)
            record = measure_problem(problem, able, threads, budget=0.1, limit=5.0, seed=1, tries=4, planner=planner)
            timed = [a for a in able if a.key in record.medians]
            if len(timed) < 2:
                continue
            best = min(record.medians.values())
            for name, rule in rules.items():
                key = chosen(problem, timed, rule(problem))
                regret = record.medians[key] / best
                found[name][kind].append(regret)
                worst[name].append((round(regret, 2), problem.key, key, min(record.medians, key=record.medians.get)))
    print(f"{here}: the time of what is chosen over the best; geometric mean, largest, part over 1.1")
    print(f"{'':<22}" + "".join(f"{name:>21}" for name in rules))
    for kind in (*KINDS, "all"):
        cells = []
        for name in rules:
            values = found[name][kind] if kind != "all" else [v for k in KINDS for v in found[name][k]]
            mean = math.exp(sum(map(math.log, values)) / len(values))
            cells.append(f"{mean:.2f} {max(values):6.2f} {sum(v > 1.1 for v in values) / len(values):4.0%}")
        print(f"{kind:<22}" + "".join(f"{cell:>21}" for cell in cells))
    for name in rules:
        print(f"worst, {name}:")
        for regret, key, taken, best in sorted(worst[name])[:-6:-1]:
            print(f"  {regret:6.2f}  {key}: {taken}, best {best}")
    content = {
        "machine": machine().cpu.model, "class": str(here), "count": count, "seed": seed, "records": known,
        "regret": {name: {kind: [round(v, 3) for v in values] for kind, values in by.items()} for name, by in found.items()},
    }  # fmt: skip
    with open(f"benchmarks/results/ranking_regret_{here}.json", "w", encoding="utf-8") as stream:
        json.dump(content, stream, indent=1)


if __name__ == "__main__":
    main()
