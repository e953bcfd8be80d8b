"""Backline's own loops over vectors, beside NumPy and PyTorch: ``python benchmarks/own_loops.py``.

Sums and norms, softmax of columns, and products of few rows with a matrix in either order. Each row runs on Backline's kernels
whatever the ranking chooses, in float32 and float64; a new compiler or processor shows here first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import backline
from backline.engine import ranking_files
from backline.nn import functional
from side_by_side import Table, compare, threads_asked, torch_or_none

Row = tuple[str, Callable[[], Any], dict[str, Callable[[], Any]]]
rng = np.random.default_rng(1)
threads = threads_asked()
torch = torch_or_none(threads)
FEW = ((2, 967, 1136), (3, 679, 3145), (4, 1024, 4096), (8, 512, 512))
COLUMNS = ((519, 735), (64, 2000), (128, 20), (30000, 3))


def with_torch(numpys: Callable[[], Any] | None, torchs: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    found = {"numpy": numpys} if numpys else {}
    return {**found, "torch": torchs} if torch else found


def rows(dtype: type) -> Iterator[Row]:
    def draw(*shape: int) -> tuple[Any, Any]:
        x = rng.standard_normal(shape).astype(dtype)
        return x, torch.from_numpy(x) if torch else None

    for size in (19_044, 193_600):
        x, there = draw(size)
        yield f"sum {size}", lambda: backline.einsum("i->", x), with_torch(lambda: x.sum(), lambda: there.sum())
        yield f"norm {size}", lambda: backline.linalg.norm(x), with_torch(lambda: np.linalg.norm(x), lambda: torch.linalg.norm(there))
    for shape in COLUMNS:
        x, there = draw(*shape)
        for name in ("softmax", "log_softmax"):
            ours, torchs = getattr(functional, name), torch and getattr(torch.nn.functional, name)
            yield f"{name} {shape[0]}x{shape[1]} along 0", lambda: ours(x, 0), with_torch(None, lambda: torchs(there, 0))
    for m, k, n in FEW:
        (a, a_there), (b, b_there) = draw(m, k), draw(k, n)
        yield f"{m}x{k} {k}x{n}", lambda: backline.matmul(a, b), with_torch(lambda: a @ b, lambda: a_there @ b_there)
        b = draw(n, k)[0].T
        b_there = torch.from_numpy(b) if torch else None
        yield f"{m}x{k} {k}x{n}, columns", lambda: backline.matmul(a, b), with_torch(lambda: a @ b, lambda: a_there @ b_there)


def main() -> None:
    table = Table(f"own_loops_{ranking_files.here()}", ["numpy", "torch"])
    for dtype in (np.float32, np.float64):
        for name, ours, others in rows(dtype):
            with backline.use("kernels"):
                times = compare({"backline": ours, **others})
                ours()
                choice = backline.explain()
            table.add(f"{np.dtype(dtype).name} {name}", times, f"{choice.library} {choice.algorithm}")
    table.save(threads=threads)


if __name__ == "__main__":
    main()
