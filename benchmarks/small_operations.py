"""Small linear algebra that is composed of other operations, against NumPy and SciPy: ``python benchmarks/small_operations.py``.

The figure is the shortest of many short repeats, each contestant in turn: what else the machine does makes calls longer, never
shorter. Rows come from the worst to the best.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from timeit import Timer
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special

import backline
from backline import linalg
from side_by_side import Table

REPEATS, SECONDS = 60, 2e-4
SIZES = ((4,), (8,), (32,), (1000, 6))
LARGE = 800  # of the norm that reads more than a cache holds


def shortest(contestants: dict[str, Timer]) -> dict[str, float]:
    """Least seconds of a call for each contestant."""
    best = {}
    counts = {}
    for name, timer in contestants.items():
        best[name] = min(timer.timeit(1) for _ in range(5))
        counts[name] = max(1, min(500, int(SECONDS / max(best[name], 1e-7))))
    for _ in range(REPEATS):
        for name, timer in contestants.items():
            best[name] = min(best[name], timer.timeit(counts[name]) / counts[name])
    return best


def plain(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Timer:
    """A contestant that costs no Python frame of its own."""
    names = {f"a{i}": value for i, value in enumerate(arguments)} | {f"k_{name}": value for name, value in keywords.items()}
    call = [f"a{i}" for i in range(len(arguments))] + [f"{name}=k_{name}" for name in keywords]
    return Timer(f"f({', '.join(call)})", globals={"f": function, **names})


def rows(dtype: Any, size: tuple[int, ...], rng: np.random.Generator) -> Iterator[tuple[str, Timer, list[Timer]]]:
    """Name of each operation, Backline's call, and those of the others."""
    n, batch, other = size[-1], size[:-1], np.linalg
    a = (rng.standard_normal((*batch, n, n)) + n * np.eye(n)).astype(dtype)
    symmetric = (a @ np.swapaxes(a, -1, -2)).astype(dtype)
    for name in ("det", "slogdet", "inv", "eig", "eigvals", "svd", "svdvals", "qr", "pinv", "matrix_rank", "cond", "norm"):
        yield name, plain(getattr(linalg, name), a), [plain(getattr(other, name), a)]
    for name in ("eigh", "eigvalsh", "cholesky"):
        yield name, plain(getattr(linalg, name), symmetric), [plain(getattr(other, name), symmetric)]
    yield "cond 1", plain(linalg.cond, a, 1), [plain(other.cond, a, 1)]
    yield "lu", plain(linalg.lu, a), [plain(scipy.linalg.lu, a)]
    yield "lu_factor", plain(linalg.lu_factor, a), [plain(scipy.linalg.lu_factor, a)]
    yield "matrix_exp", plain(linalg.matrix_exp, a / n), [plain(scipy.linalg.expm, a / n)]
    for power in (2, 5, -1):
        yield f"matrix_power {power}", plain(linalg.matrix_power, a, power), [plain(other.matrix_power, a, power)]
    for order in (2.0, 1.0, np.inf, 3.0):
        theirs = [plain(other.vector_norm, a, ord=order)]
        yield f"vector_norm {order:g}", plain(linalg.vector_norm, a, order), theirs
        theirs = [plain(other.vector_norm, a, axis=-1, ord=order), plain(other.norm, a, order, -1)]
        yield f"vector_norm {order:g} of rows", plain(linalg.vector_norm, a, order, -1), theirs
    for order in ("fro", "nuc", 2, 1, np.inf):
        yield f"matrix_norm {order}", plain(linalg.matrix_norm, a, order), [plain(other.matrix_norm, a, ord=order)]
    yield "softmax", plain(backline.nn.functional.softmax, a, -1), [plain(scipy.special.softmax, a, -1)]
    yield "cross", plain(linalg.cross, a[..., :3], a[..., :3]), [plain(np.cross, a[..., :3], a[..., :3])]
    sides = rng.standard_normal((*batch, n, 3)).astype(dtype)
    yield "solve", plain(linalg.solve, a, sides), [plain(other.solve, a, sides)]
    if batch:
        return
    x = a[0].copy()
    tall, right = rng.standard_normal((2 * n, n)).astype(dtype), rng.standard_normal((2 * n, 3)).astype(dtype)
    yield "lstsq", plain(linalg.lstsq, tall, right), [plain(other.lstsq, tall, right)]
    yield "multi_dot", plain(linalg.multi_dot, [a, a, a]), [plain(other.multi_dot, [a, a, a])]
    yield "trace", plain(backline.trace, a), [plain(np.trace, a)]
    yield "vander", plain(linalg.vander, x), [plain(np.vander, x, increasing=True)]
    yield "vecdot", plain(linalg.vecdot, x, x), [plain(np.vecdot, x, x)]
    yield "inner", plain(backline.inner, x, x), [plain(np.inner, x, x)]
    yield "inner of matrices", plain(backline.inner, a, a), [plain(np.inner, a, a)]
    yield "outer", plain(backline.outer, x, x), [plain(np.outer, x, x)]
    yield "kron", plain(backline.kron, a, a), [plain(np.kron, a, a)]
    yield "tensordot 1", plain(backline.tensordot, a, a, 1), [plain(np.tensordot, a, a, 1)]
    yield "tensordot 2", plain(backline.tensordot, a, a), [plain(np.tensordot, a, a)]
    yield "tensorsolve", plain(linalg.tensorsolve, a, x), [plain(other.tensorsolve, a, x)]
    yield "tensorinv", plain(linalg.tensorinv, a, 1), [plain(other.tensorinv, a, 1)]


def main(only: tuple[str, ...]) -> None:
    rng = np.random.default_rng(1)
    found = []
    for dtype in (np.float32, np.float64):
        for size in SIZES:
            shape = "x".join(map(str, (*size, size[-1])))
            for name, ours, others in rows(dtype, size, rng):
                if not only or name.split()[0] in only:
                    found.append((f"{name} {np.dtype(dtype).name} {shape}", ours, others))
        a = rng.standard_normal((LARGE, LARGE)).astype(dtype)
        if not only or "norm" in only:
            found.append((f"norm {np.dtype(dtype).name} {LARGE}x{LARGE}", plain(linalg.norm, a), [plain(np.linalg.norm, a)]))
    timed = []
    for label, ours, others in found:
        times = shortest({"backline": ours, **{str(i): other for i, other in enumerate(others)}})
        ours.timeit(1)
        choice = backline.explain()
        ran = f"{choice.library} {choice.algorithm}"
        timed.append((label, {"backline": times.pop("backline"), "numpy or scipy": min(times.values())}, ran))
        print(f"{len(timed)} of {len(found)}: {label}", end="\r", file=sys.stderr)
    table = Table("small_operations", ["numpy or scipy"])
    for label, seconds, ran in sorted(timed, key=lambda row: -row[1]["backline"] / row[1]["numpy or scipy"]):
        table.add(label, seconds, ran)
    slow = [row["row"] for row in table.rows if row["of_best_peer"] > 1.1]
    print(f"\n{len(slow)} of {len(table.rows)} above 1.1")
    if not only:
        table.save(above_1_1=len(slow), repeats=REPEATS, figure="minimum")


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
