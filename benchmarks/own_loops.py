"""Backline's own loops over vectors, beside NumPy and PyTorch: ``python benchmarks/own_loops.py``.

Sums and norms, softmax of columns, products of few rows with a matrix in either order, and pooling. Each row runs on Backline's
kernels whatever the ranking chooses, in float32 and float64; a new compiler or processor shows here first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
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
POOLED = (((8, 64, 56, 56), (2, 2, 0)), ((8, 64, 112, 112), (3, 2, 1)), ((2, 128, 14, 14), (3, 1, 1)))


def row(name: str, ours: Callable[..., Any], numpys: Callable[..., Any] | None, torchs: str, *args: Any) -> Row:
    """A row; `torchs` is the name of PyTorch's function."""
    others = {"numpy": partial(numpys, *args)} if numpys else {}
    if torch:
        there = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in args]
        others["torch"] = partial(attrgetter(torchs)(torch), *there)
    return name, partial(ours, *args), others


def rows(dtype: type) -> Iterator[Row]:
    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(dtype)

    for size in (19_044, 193_600):
        yield row(f"sum {size}", partial(backline.einsum, "i->"), np.sum, "sum", draw(size))
        yield row(f"norm {size}", backline.linalg.norm, np.linalg.norm, "linalg.norm", draw(size))
    for m, n in COLUMNS:
        for name in ("softmax", "log_softmax"):
            yield row(f"{name} {m}x{n} along 0", getattr(functional, name), None, f"nn.functional.{name}", draw(m, n), 0)
    for m, k, n in FEW:
        yield row(f"{m}x{k} {k}x{n}", backline.matmul, np.matmul, "matmul", draw(m, k), draw(k, n))
        yield row(f"{m}x{k} {k}x{n}, columns", backline.matmul, np.matmul, "matmul", draw(m, k), draw(n, k).T)
    for shape, window in POOLED:
        images = draw(*shape)
        last = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        for layout, x in (("first", images), ("last", last)):
            what = f"{'x'.join(map(str, shape))} channels {layout}, kernel {window[0]}, stride {window[1]}, padding {window[2]}"
            for name in ("max_pool2d", "avg_pool2d"):
                yield row(f"{name} {what}", getattr(functional, name), None, f"nn.functional.{name}", x, *window)


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
