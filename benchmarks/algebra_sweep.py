"""Linear algebra and contractions from small to large: ``python benchmarks/algebra_sweep.py [WORD ...]``.

Against NumPy, SciPy and PyTorch. Words choose rows that have one of them in their names. The figure is the shortest of many short
repeats, each contestant in turn. ``--part``, ``--dtypes`` and ``--sizes`` take lists: ``--dtypes float32 --sizes 4,150,100x8``.
Rows above 1.05 are shown from the worst on, with ``--all`` every one.
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

OPTIONS = {"--dtypes": "float32,float64", "--sizes": "2,4,8,32,150,600,100x8", "--part": "algebra,norms,products,contractions"}
MIDDLE = 200  # larger matrices are left out where a call takes seconds
EQUATIONS = (  # with shapes in the sizes n and m = n + 1
    ("ij,ij->", "nm", "nm"), ("ij,ij->i", "nm", "nm"), ("ij,ij->j", "nm", "nm"), ("ij->", "nm"), ("ij->i", "nm"), ("ij->j", "nm"),
    ("ii->", "nn"), ("ii->i", "nn"), ("ij->ji", "nm"), ("ijk->ik", "n5m"), ("ijk->j", "7nm"), ("i,j->ij", "n", "m"),
    ("ij,j->ij", "nm", "m"), ("ij,ij->ij", "nm", "nm"), ("ij,jk->ik", "nm", "mn"), ("ij,kj->ik", "nm", "nm"),
    ("bij,bjk->bik", "6nm", "6mn"), ("bij,bkj->bik", "6nm", "6nm"), ("bji,bjk->bik", "6mn", "6mn"),
    ("bhqd,bhkd->bhqk", "23n8", "23m8"), ("bqhd,bkhd->bhqk", "2n38", "2m38"), ("ijk,kl->ijl", "3nm", "mn"),
    ("ij,j->i", "nm", "m"), ("i,ij,j->", "n", "nm", "m"), ("ij,jk,kl->il", "nm", "mn", "nm"),
    ("ijkl,kl->ij", "34nm", "nm"), ("ij,jk,ki->", "nm", "mn", "nn"),
)  # fmt: skip

rng = np.random.default_rng(1)
torch: Any = torch_or_none(threads_asked())
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
    definite = (a @ np.swapaxes(a.conj(), -1, -2)).astype(dtype)
    sides = numbers(*batch, n, 3, dtype=dtype)
    for name in ("det", "slogdet", "inv", "eig", "eigvals", "svdvals", "qr", "pinv", "matrix_rank", "cond", "norm", "svd"):
        if n <= MIDDLE or name not in ("eig", "eigvals", "svd", "pinv"):
            more = {"full_matrices": False} if name == "svd" else {}
            peers = {"numpy": (getattr(np.linalg, name), more), "torch": (of_torch(name), more)}
            yield row(name, getattr(linalg, name), (a,), keywords=more, **peers)
    for name in ("eigh", "eigvalsh", "cholesky"):
        yield row(name, getattr(linalg, name), (definite,), numpy=getattr(np.linalg, name), torch=of_torch(name))
    for name in ("solve",) if batch else ("solve", "lstsq"):
        yield row(name, getattr(linalg, name), (a, sides), numpy=getattr(np.linalg, name), torch=of_torch(name))
    for order in (1, np.inf, "fro"):
        yield row(f"cond {order}", linalg.cond, (a, order), numpy=np.linalg.cond, torch=of_torch("cond"))
    for name in ("lu_factor", "lu"):
        yield row(name, getattr(linalg, name), (a,), scipy=getattr(sl, name), torch=of_torch(name))
    yield row("matrix_exp", linalg.matrix_exp, (a / n,), scipy=sl.expm, torch=of_torch("matrix_exp"))
    for power in (3, -1):
        peers = {"numpy": np.linalg.matrix_power, "torch": of_torch("matrix_power")}
        yield row(f"matrix_power {power}", linalg.matrix_power, (a, power), **peers)
    lower = np.tril(a)
    peers = {"torch": (of_torch("solve_triangular"), {"upper": False})}
    if not batch:
        peers["scipy"] = (sl.solve_triangular, {"lower": True})
        factors, pivots = linalg.lu_factor(a)
        yield "lu_solve", plain(linalg.lu_solve, factors, pivots, sides), {"scipy": plain(sl.lu_solve, sl.lu_factor(a), sides)}
    yield row("solve_triangular", linalg.solve_triangular, (lower, sides), keywords={"upper": False}, **peers)
    yield row("cholesky_solve", backline.cholesky_solve, (sides, linalg.cholesky(definite)), torch=torch and torch.cholesky_solve)


def norms(dtype: Any, batch: tuple[int, ...], n: int) -> Iterator[Row]:
    a, other = numbers(*batch, n, n, dtype=dtype), np.linalg
    for order in (2.0, 1.0, np.inf, -np.inf, 0.0, 3.0, 2.5):
        peers = {"numpy": (other.vector_norm, {"ord": order}), "torch": (of_torch("vector_norm"), {"ord": order})}
        yield row(f"vector_norm {order:g}", linalg.vector_norm, (a,), keywords={"ord": order}, **peers)
        for axis in (-1, 0):
            peers = {"numpy": other.norm, "torch": of_torch("vector_norm")}
            yield row(f"vector_norm {order:g} dim {axis}", linalg.vector_norm, (a, order, axis), **peers)
    for order in ("fro", "nuc", 2, 1, -1, np.inf):
        if n <= MIDDLE or order not in ("nuc", 2):
            peers = {"numpy": (other.matrix_norm, {"ord": order}), "torch": (of_torch("matrix_norm"), {"ord": order})}
            yield row(f"matrix_norm {order}", linalg.matrix_norm, (a,), keywords={"ord": order}, **peers)


def products(dtype: Any, batch: tuple[int, ...], n: int) -> Iterator[Row]:
    a, b = numbers(*batch, n, n, dtype=dtype), numbers(*batch, n, n, dtype=dtype)
    x, y, t = numbers(n, dtype=dtype), numbers(n, dtype=dtype), torch
    yield row("matmul", backline.matmul, (a, b), numpy=np.matmul, torch=t and t.matmul)
    yield row("matmul of a vector", backline.matmul, (a, x), numpy=np.matmul, torch=t and t.matmul)
    yield row("vecdot of rows", linalg.vecdot, (a, b), numpy=np.vecdot, torch=of_torch("vecdot"))
    if n > 2:
        vectors = a[..., :3].copy(), b[..., :3].copy()
        yield row("cross", linalg.cross, vectors, numpy=np.linalg.cross, torch=of_torch("cross"))
    if batch:
        return
    for name, arguments in {
        "dot": (a.ravel(), b.ravel()), "vdot": (a.ravel(), b.ravel()), "outer": (x, y), "inner": (x, y), "trace": (a,),
    }.items():  # fmt: skip
        yield row(name, getattr(backline, name), arguments, numpy=getattr(np, name), torch=t and getattr(t, name))
    yield row("inner of matrices", backline.inner, (a, b), numpy=np.inner, torch=t and t.inner)
    yield row("vecdot", linalg.vecdot, (x, y), numpy=np.vecdot, torch=of_torch("vecdot"))
    if n <= 40:
        yield row("kron", backline.kron, (a, b), numpy=np.kron, torch=t and t.kron)
    for dims in (1, 2, ((1,), (1,))):
        yield row(f"tensordot {dims}", backline.tensordot, (a, b, dims), numpy=np.tensordot, torch=t and t.tensordot)
    yield row("vander", linalg.vander, (x,), numpy=partial(np.vander, increasing=True), torch=of_torch("vander"))
    yield row("multi_dot", linalg.multi_dot, ([a, b, a],), numpy=np.linalg.multi_dot, torch=of_torch("multi_dot"))


def contractions(dtype: Any, batch: tuple[int, ...], n: int) -> Iterator[Row]:
    if batch or n > MIDDLE:
        return
    for equation, *shapes in EQUATIONS:
        sizes = [[{"n": n, "m": n + 1}.get(word) or int(word) for word in shape] for shape in shapes]
        arguments = (equation, *(numbers(*shape, dtype=dtype) for shape in sizes))
        peers = {"numpy": (np.einsum, {"optimize": True}), "numpy unoptimized": np.einsum, "torch": torch and torch.einsum}
        yield row(f"einsum {equation}", backline.einsum, arguments, **peers)


PARTS = {"algebra": algebra, "norms": norms, "products": products, "contractions": contractions}


def rows(options: dict[str, str], words: list[str]) -> Iterator[Row]:
    for part in options["--part"].split(","):
        for dtype in options["--dtypes"].split(","):
            for size in options["--sizes"].split(","):
                *batch, n = map(int, size.split("x"))
                for name, ours, others in PARTS[part](dtype, tuple(batch), n):
                    if not words or any(word in name for word in words):
                        yield f"{name} {dtype} {size}", ours, others


def main() -> None:
    options, words = dict(OPTIONS), [word for word in sys.argv[1:] if word != "--all"]
    for option in options:
        if option in words:
            at = words.index(option)
            options[option] = words[at + 1]
            del words[at : at + 2]
    timed = []
    for label, ours, others in rows(options, words):
        times = shortest({"backline": ours, **others})
        ours.timeit(1)
        choice, mine = backline.explain(), times.pop("backline")
        best = min(times, key=lambda peer: times[peer])
        timed.append((label, {"backline": mine, "best": times[best]}, f"{best}; {choice.library} {choice.algorithm}"))
        print(f"{len(timed)}: {label}  {mine / times[best]:.2f} of {best}   ", end="\r", file=sys.stderr)
    table = Table("algebra_sweep", ["best"])
    for label, seconds, ran in sorted(timed, key=lambda each: -each[1]["backline"] / each[1]["best"]):
        if "--all" in sys.argv or seconds["backline"] > 1.05 * seconds["best"]:
            table.add(label, seconds, ran)
    ratios = [seconds["backline"] / seconds["best"] for _, seconds, _ in timed]
    print(f"\n{len(ratios)} rows: {sum(r > 1.1 for r in ratios)} above 1.1, {sum(r > 1.3 for r in ratios)} above 1.3")


if __name__ == "__main__":
    main()
