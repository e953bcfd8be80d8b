"""Linear algebra and contractions from small to large, against NumPy, SciPy and PyTorch: ``python benchmarks/algebra_sweep.py [WORD ...]``.

Words choose rows that have one of them in their names. The figure is the shortest of many short repeats, each contestant in turn.
``--dtypes float32,float64`` chooses dtypes, ``--sizes 4,150,100x8`` sizes. Rows come from the worst to the best.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from timeit import Timer
from typing import Any

import numpy as np
import scipy.linalg as sl
from small_operations import plain, shortest

import backline
from backline import linalg
from side_by_side import Table, threads_asked, torch_or_none

rng = np.random.default_rng(1)
torch: Any = torch_or_none(threads_asked())
SIZES = "2,4,8,32,150,600,100x8"
Row = tuple[str, Timer, dict[str, Timer]]


def numbers(*shape: int, dtype: Any) -> Any:
    made = rng.standard_normal(shape)
    return (made + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else made).astype(dtype)


def there(value: Any) -> Any:
    """Arrays as PyTorch has them."""
    if isinstance(value, np.ndarray):
        if value.dtype.name == "bfloat16":
            return torch.from_numpy(value.astype(np.float32)).bfloat16()
        return torch.from_numpy(value)
    return type(value)(map(there, value)) if isinstance(value, (list, tuple)) else value


def row(name: str, ours: Any, arguments: tuple[Any, ...], *, keywords: dict[str, Any] | None = None, **others: Any) -> Row:
    """Peers are functions, or pairs of a function and its keywords; PyTorch's gets tensors."""
    found = {}
    for peer, given in others.items():
        function, named = given if isinstance(given, tuple) else (given, {})
        if function is not None and (peer != "torch" or torch):
            found[peer] = plain(function, *(there(arguments) if peer == "torch" else arguments), **named)
    return name, plain(ours, *arguments, **(keywords or {})), found


def of_torch(name: str) -> Any:
    return getattr(torch.linalg, name) if torch else None


def algebra(dtype: Any, batch: tuple[int, ...], n: int) -> Iterator[Row]:
    a = numbers(*batch, n, n, dtype=dtype) + (n * np.eye(n)).astype(dtype)
    spd = (a @ np.swapaxes(a.conj(), -1, -2)).astype(dtype)
    sides = numbers(*batch, n, 3, dtype=dtype)
    for name in ("det", "slogdet", "inv", "eig", "eigvals", "svdvals", "qr", "pinv", "matrix_rank", "cond", "norm", "svd"):
        if n > 200 and name in ("eig", "eigvals", "svd", "pinv"):
            continue
        more = {"full_matrices": False} if name == "svd" else {}
        yield row(name, getattr(linalg, name), (a,), keywords=more, numpy=(getattr(np.linalg, name), more), torch=(of_torch(name), more))
    for name in ("eigh", "eigvalsh", "cholesky"):
        yield row(name, getattr(linalg, name), (spd,), numpy=getattr(np.linalg, name), torch=of_torch(name))
    for name in ("solve", "lstsq"):
        if name != "lstsq" or not batch:
            yield row(name, getattr(linalg, name), (a, sides), numpy=getattr(np.linalg, name), torch=of_torch(name))
    for order in (1, np.inf, "fro"):
        yield row(f"cond {order}", linalg.cond, (a, order), numpy=np.linalg.cond, torch=of_torch("cond"))
    yield row("lu_factor", linalg.lu_factor, (a,), scipy=sl.lu_factor, torch=of_torch("lu_factor"))
    yield row("lu", linalg.lu, (a,), scipy=sl.lu, torch=of_torch("lu"))
    yield row("matrix_exp", linalg.matrix_exp, (a / n,), scipy=sl.expm, torch=of_torch("matrix_exp"))
    for power in (3, -1):
        yield row(f"matrix_power {power}", linalg.matrix_power, (a, power), numpy=np.linalg.matrix_power, torch=of_torch("matrix_power"))
    triangular = partial(of_torch("solve_triangular"), upper=False) if torch else None
    lower = np.tril(a)
    scipys = None if batch else partial(sl.solve_triangular, lower=True)
    yield row("solve_triangular", linalg.solve_triangular, (lower, sides), keywords={"upper": False}, scipy=scipys, torch=triangular)
    factors, pivots = linalg.lu_factor(a)
    if not batch:
        pair = sl.lu_factor(a)
        yield "lu_solve", plain(linalg.lu_solve, factors, pivots, sides), {"scipy": plain(sl.lu_solve, pair, sides)}
    low = linalg.cholesky(spd)
    scipys = None if batch else (lambda b, c: sl.cho_solve((c, True), b))
    yield row("cholesky_solve", backline.cholesky_solve, (sides, low), scipy=scipys, torch=torch and torch.cholesky_solve)


def norms(dtype: Any, batch: tuple[int, ...], n: int) -> Iterator[Row]:
    a, other = numbers(*batch, n, n, dtype=dtype), np.linalg
    for order in (2.0, 1.0, np.inf, -np.inf, 0.0, 3.0, 2.5):
        yield row(f"vector_norm {order:g}", linalg.vector_norm, (a, order), numpy=lambda x, p: other.vector_norm(x, ord=p),
                  torch=of_torch("vector_norm"))
        for axis in (-1, 0):
            yield row(f"vector_norm {order:g} dim {axis}", linalg.vector_norm, (a, order, axis), numpy=other.norm, torch=of_torch("vector_norm"))
    for order in ("fro", "nuc", 2, 1, -1, np.inf):
        if n < 200 or order not in ("nuc", 2):
            yield row(f"matrix_norm {order}", linalg.matrix_norm, (a, order), numpy=lambda x, p: other.matrix_norm(x, ord=p),
                      torch=of_torch("matrix_norm"))


def products(dtype: Any, batch: tuple[int, ...], n: int) -> Iterator[Row]:
    a, b = numbers(*batch, n, n, dtype=dtype), numbers(*batch, n, n, dtype=dtype)
    x, y = numbers(n, dtype=dtype), numbers(n, dtype=dtype)
    long = numbers(n * n, dtype=dtype)
    t = torch
    yield row("matmul", backline.matmul, (a, b), numpy=np.matmul, torch=t and t.matmul)
    yield row("matmul vector", backline.matmul, (a, x), numpy=np.matmul, torch=t and t.matmul)
    yield row("vecdot of rows", linalg.vecdot, (a, b), numpy=np.vecdot, torch=of_torch("vecdot"))
    yield row("cross", linalg.cross, (a[..., :3].copy(), b[..., :3].copy()), numpy=np.linalg.cross, torch=of_torch("cross")) if n > 2 else row(
        "vecdot", linalg.vecdot, (x, y), numpy=np.vecdot, torch=of_torch("vecdot"))
    if batch:
        return
    yield row("dot", backline.dot, (long, long), numpy=np.dot, torch=t and t.dot)
    yield row("vdot", backline.vdot, (long, long), numpy=np.vdot, torch=t and t.vdot)
    yield row("vecdot", linalg.vecdot, (x, y), numpy=np.vecdot, torch=of_torch("vecdot"))
    yield row("outer", backline.outer, (x, y), numpy=np.outer, torch=t and t.outer)
    yield row("inner", backline.inner, (x, y), numpy=np.inner, torch=t and t.inner)
    yield row("inner of matrices", backline.inner, (a, b), numpy=np.inner, torch=t and t.inner)
    if n <= 40:
        yield row("kron", backline.kron, (a, b), numpy=np.kron, torch=t and t.kron)
    for dims in (1, 2):
        yield row(f"tensordot {dims}", backline.tensordot, (a, b, dims), numpy=np.tensordot, torch=t and t.tensordot)
    pair = ((1,), (1,))
    yield row("tensordot axes", backline.tensordot, (a, b, pair), numpy=np.tensordot, torch=t and t.tensordot)
    yield row("trace", backline.trace, (a,), numpy=np.trace, torch=t and t.trace)
    yield row("vander", linalg.vander, (x,), numpy=partial(np.vander, increasing=True), torch=of_torch("vander"))
    yield row("multi_dot", linalg.multi_dot, ([a, b, a],), numpy=np.linalg.multi_dot, torch=of_torch("multi_dot"))


def contractions(dtype: Any, batch: tuple[int, ...], n: int) -> Iterator[Row]:
    if batch or n > 200:
        return
    m = n + 1
    for equation, *shapes in (
        ("ij,ij->", (n, m), (n, m)), ("ij,ij->i", (n, m), (n, m)), ("ij,ij->j", (n, m), (n, m)), ("ij->", (n, m)), ("ij->i", (n, m)), ("ij->j", (n, m)),
        ("ii->", (n, n)), ("ii->i", (n, n)), ("ij->ji", (n, m)), ("ijk->ik", (n, 5, m)), ("ijk->j", (7, n, m)), ("i,j->ij", (n,), (m,)),
        ("ij,j->ij", (n, m), (m,)), ("ij,ij->ij", (n, m), (n, m)), ("ij,jk->ik", (n, m), (m, n)), ("ij,kj->ik", (n, m), (n, m)),
        ("bij,bjk->bik", (6, n, m), (6, m, n)), ("bij,bkj->bik", (6, n, m), (6, n, m)), ("bji,bjk->bik", (6, m, n), (6, m, n)),
        ("bhqd,bhkd->bhqk", (2, 3, n, 16), (2, 3, m, 16)), ("bqhd,bkhd->bhqk", (2, n, 3, 16), (2, m, 3, 16)),
        ("ijk,kl->ijl", (3, n, m), (m, n)), ("ij,j->i", (n, m), (m,)), ("i,ij,j->", (n,), (n, m), (m,)), ("ij,jk,kl->il", (n, m), (m, n), (n, m)),
        ("ijkl,kl->ij", (3, 4, n, m), (n, m)), ("ij,jk,ki->", (n, m), (m, n), (n, n)),
    ):  # fmt: skip
        arrays = [numbers(*shape, dtype=dtype) for shape in shapes]
        yield row(f"einsum {equation}", backline.einsum, (equation, *arrays), numpy=(np.einsum, {"optimize": True}), plain=np.einsum,
                  torch=torch and torch.einsum)


def main() -> None:
    options = {"--dtypes": "float32,float64", "--sizes": SIZES, "--part": "algebra,norms,products,contractions"}
    words = sys.argv[1:]
    for option in options:
        if option in words:
            at = words.index(option)
            options[option] = words[at + 1]
            del words[at : at + 2]
    words = [word for word in words if not word.startswith("--")]
    parts = {"algebra": algebra, "norms": norms, "products": products, "contractions": contractions}
    rows = []
    for part in options["--part"].split(","):
        for dtype in options["--dtypes"].split(","):
            for size in options["--sizes"].split(","):
                *batch, n = map(int, size.split("x"))
                for name, ours, others in parts[part](dtype, tuple(batch), n):
                    if not words or any(word in name for word in words):
                        rows.append((f"{name} {dtype} {size}", ours, others))
    timed = []
    for label, ours, others in rows:
        try:
            times = shortest({"backline": ours, **others})
        except Exception as error:  # a peer without such an operation
            print(f"{label}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        ours.timeit(1)
        choice = backline.explain()
        mine = times.pop("backline")
        if mine > 1.1 * min(times.values()):
            print(f"{label}: {mine / min(times.values()):.2f} of {min(times, key=times.__getitem__)}, {mine * 1e6:.2f} us", file=sys.stderr, flush=True)
        timed.append((label, {"backline": mine, "best": min(times.values())}, f"{min(times, key=times.__getitem__)}; {choice.library} {choice.algorithm}"))
    table = Table("algebra_sweep", ["best"])
    for label, seconds, ran in sorted(timed, key=lambda each: -each[1]["backline"] / each[1]["best"]):
        if "--all" in sys.argv or seconds["backline"] > 1.05 * seconds["best"]:
            table.add(label, seconds, ran)
    ratios = [seconds["backline"] / seconds["best"] for _, seconds, _ in timed]
    print(f"\n{len(ratios)} rows: {sum(r > 1.1 for r in ratios)} above 1.1, {sum(r > 1.3 for r in ratios)} above 1.3")


if __name__ == "__main__":
    main()
