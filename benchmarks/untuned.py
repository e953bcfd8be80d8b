"""The first answer of a machine that nobody tuned, beside NumPy, SciPy and PyTorch: ``python benchmarks/untuned.py [PART ...]``.

Parts are products, algebra, transforms, layers, halves (products and layers of 16-bit floats) and contractions. All run in turn
in one process, on ``--threads`` threads. The column `of best` is our time over the least of the others. ``--tuning FILE`` lets a
tuning file decide, such as one that
``BACKLINE_TUNING=FILE backline calibrate`` made. Each part ends with the geometric means over PyTorch's time and over the best,
and the number of rows above 1.05, 1.1 and 1.3. Run it where nothing else runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy.fft
import scipy.linalg as sl

from side_by_side import Table, compare, geometric_mean, threads_asked, torch_or_none

if "--tuning" in sys.argv:  # side_by_side has turned it off
    os.environ["BACKLINE_TUNING"] = os.path.abspath(sys.argv[sys.argv.index("--tuning") + 1])

import backline
from backline import linalg
from backline.engine import ranking_files
from backline.nn import functional as F
from backline.nn import grad

rng = np.random.default_rng(1)
threads = threads_asked()
torch = torch_or_none(threads)
Row = tuple[str, Callable[[], Any], dict[str, Callable[[], Any]]]


def numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    x = rng.standard_normal(shape)
    return x.astype(dtype)


def given(x: Any) -> Any:
    """The same numbers as PyTorch has them."""
    if torch is None:
        return None
    return torch.from_numpy(x.astype(np.float32)).bfloat16() if x.dtype.name == "bfloat16" else torch.from_numpy(x)


def products() -> Iterator[Row]:
    import ml_dtypes

    squares = [((n, n), (n, n)) for n in (8, 24, 50, 100, 200, 300, 500, 700, 1000, 1500)]
    others = [((7, 900), (900, 300)), ((3000, 50), (50, 40)), ((4, 1024), (1024, 4096)), ((900, 900), (900, 1)),
              ((1, 700), (700, 1300)), ((900, 12, 12), (900, 12, 12)), ((300, 32, 32), (300, 32, 32)),
              ((40, 100, 100), (40, 100, 100))]  # fmt: skip
    for dtype in (np.float32, np.float64):
        for sa, sb in squares[:: 1 if dtype == np.float32 else 2] + others[:: 1 if dtype == np.float32 else 2]:
            yield product(dtype, sa, sb)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        for n in (100, 300, 1000):
            yield product(dtype, (n, n), (n, n))
    for dtype in (np.complex64, np.complex128):
        for n in (50, 400):
            yield product(dtype, (n, n), (n, n))


def product(dtype: Any, sa: tuple[int, ...], sb: tuple[int, ...]) -> Row:
    a, b = numbers(sa, dtype), numbers(sb, dtype)
    others: dict[str, Callable[[], Any]] = {"numpy": lambda: np.matmul(a, b)}
    if torch:
        x, y = given(a), given(b)
        others["torch"] = lambda: torch.matmul(x, y)
    return f"matmul {np.dtype(dtype).name} {sa} {sb}", lambda: backline.matmul(a, b), others


def algebra() -> Iterator[Row]:
    t = torch.linalg if torch else None
    calls = {
        "inv": (linalg.inv, np.linalg.inv, t and t.inv), "det": (linalg.det, np.linalg.det, t and t.det),
        "cholesky": (linalg.cholesky, np.linalg.cholesky, t and t.cholesky), "qr": (linalg.qr, np.linalg.qr, t and t.qr),
        "eigh": (linalg.eigh, np.linalg.eigh, t and t.eigh), "eig": (linalg.eig, np.linalg.eig, t and t.eig),
        "eigvalsh": (linalg.eigvalsh, np.linalg.eigvalsh, t and t.eigvalsh),
        "svd": (lambda a: linalg.svd(a, full_matrices=False), lambda a: np.linalg.svd(a, full_matrices=False),
                t and (lambda a: t.svd(a, full_matrices=False))),
        "svdvals": (linalg.svdvals, lambda a: np.linalg.svd(a, compute_uv=False), t and t.svdvals),
        "pinv": (linalg.pinv, np.linalg.pinv, t and t.pinv), "slogdet": (linalg.slogdet, np.linalg.slogdet, t and t.slogdet),
        "norm": (linalg.norm, np.linalg.norm, t and t.norm),
        "matrix_rank": (linalg.matrix_rank, np.linalg.matrix_rank, t and t.matrix_rank),
        "lu_factor": (linalg.lu_factor, sl.lu_factor, t and t.lu_factor),
    }  # fmt: skip
    shapes = ((6, 6), (30, 30), (150, 150), (400, 400))
    for name, (ours, theirs, torchs) in calls.items():
        for dtype in (np.float32, np.float64):
            largest = 3 if name in ("eig", "pinv", "matrix_rank", "svd") else 4
            for shape in shapes[:largest] if dtype == np.float64 else shapes[1:3]:
                yield one(f"{name} {np.dtype(dtype).name} {shape}", ours, theirs, torchs, definite(shape, dtype))
    for name in ("inv", "det", "cholesky", "eigh", "svd"):
        ours, theirs, torchs = calls[name]
        yield one(f"{name} float64 (1000, 6, 6)", ours, theirs, torchs, definite((1000, 6, 6), np.float64))
    for n, dtype in ((6, np.float64), (30, np.float32), (150, np.float64), (400, np.float32)):
        a, b = definite((n, n), dtype), numbers((n, 9), dtype)
        others = {"numpy": partial(np.linalg.solve, a, b)}
        if torch:
            others["torch"] = partial(torch.linalg.solve, given(a), given(b))
        yield f"solve {np.dtype(dtype).name} {n}", partial(linalg.solve, a, b), others


def definite(shape: tuple[int, ...], dtype: Any) -> Any:
    a = numbers(shape, dtype)
    return (a @ a.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def one(title: str, ours: Any, theirs: Any, torchs: Any, a: Any) -> Row:
    others: dict[str, Callable[[], Any]] = {"numpy": lambda: theirs(a)}
    if torchs:
        x = given(a)
        others["torch"] = lambda: torchs(x)
    return title, lambda: ours(a), others


def transforms() -> Iterator[Row]:
    for dtype in (np.float32, np.float64, np.complex64, np.complex128):
        for shape in ((100,), (1000,), (4099,), (30000,), (1 << 18,), (60, 500), (200, 300), (32, 48, 40)):
            x = numbers(shape, dtype)
            name = "rfft" if x.dtype.kind == "f" else "fft"
            kind = name if len(shape) < 3 and shape != (200, 300) else f"{name}n"
            others = {"numpy": partial(getattr(np.fft, kind), x), "scipy": partial(getattr(scipy.fft, kind), x)}
            if torch:
                others["torch"] = partial(getattr(torch.fft, kind), given(x))
            yield f"{kind} {np.dtype(dtype).name} {shape}", partial(getattr(backline.fft, kind), x), others


def layers() -> Iterator[Row]:
    if torch is None:
        return
    f = torch.nn.functional
    for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
        for shape in ((64, 100), (300, 250), (3000, 700)):
            yield beside(name, getattr(F, name), getattr(f, name), numbers(shape, np.float32))
    x = numbers((5000, 800), np.float32)
    yield beside("gelu tanh", lambda x: F.gelu(x, "tanh"), lambda x: f.gelu(x, approximate="tanh"), x)
    yield beside("gelu gradient", lambda x, g: grad.gelu_input(x, g), lambda x, g: torch.ops.aten.gelu_backward(g, x), x, x)
    yield beside("silu gradient", lambda x, g: grad.silu_input(x, g), lambda x, g: torch.ops.aten.silu_backward(g, x), x, x)
    for shape in ((64, 100), (3000, 700), (20, 30000), (50000, 24)):
        x = numbers(shape, np.float32)
        yield beside("softmax", lambda x: F.softmax(x, -1), lambda x: f.softmax(x, -1), x)
        yield beside("log_softmax", lambda x: F.log_softmax(x, -1), lambda x: f.log_softmax(x, -1), x)
        yield beside("layer_norm", lambda x: F.layer_norm(x, x.shape[1:]), lambda x: f.layer_norm(x, x.shape[1:]), x)
    yield beside("softmax of columns", lambda x: F.softmax(x, 0), lambda x: f.softmax(x, 0), numbers((700, 900), np.float32))
    for shape in ((64, 100), (3000, 700)):
        x = numbers(shape, np.float32)
        w = numbers((90, shape[1]), np.float32)
        yield beside("linear", lambda x, w: F.linear(x, w), lambda x, w: f.linear(x, w), x, w)
    for images, weights in (
        ((1, 3, 60, 60), (16, 3, 3, 3)), ((4, 32, 30, 30), (48, 32, 3, 3)), ((1, 100, 14, 14), (200, 100, 1, 1)),
        ((8, 64, 50, 50), (64, 64, 3, 3)), ((2, 120, 9, 9), (60, 120, 1, 1)), ((1, 300, 7, 7), (900, 300, 1, 1)),
        ((8, 64, 40, 40), (32, 64, 1, 1)),
    ):  # fmt: skip
        x, w = numbers(images, np.float32), numbers(weights, np.float32)
        yield beside("conv2d", partial(F.conv2d, padding=weights[2] // 2), partial(f.conv2d, padding=weights[2] // 2), x, w)
    for images, side in (((1, 32, 40, 40), 3), ((4, 96, 28, 28), 5)):
        x, w = numbers(images, np.float32), numbers((images[1], 1, side, side), np.float32)
        more = {"padding": side // 2, "groups": images[1]}
        yield beside("depthwise", partial(F.conv2d, **more), partial(f.conv2d, **more), x, w)
    for images in ((16, 64, 56, 56), (1, 24, 30, 30), (6, 300, 13, 13)):
        x = numbers(images, np.float32)
        mean, var = numbers(images[1:2], np.float32), np.ones(images[1], np.float32)
        yield beside("batch_norm", F.batch_norm, f.batch_norm, x, mean, var)
        training = {"training": True}
        yield beside("batch_norm training", partial(F.batch_norm, **training), partial(f.batch_norm, **training), x, mean, var)
    x = numbers((16, 64, 56, 56), np.float32)
    yield beside("max_pool2d", lambda x: F.max_pool2d(x, 2), lambda x: f.max_pool2d(x, 2), x)
    q = numbers((2, 8, 200, 64), np.float32)
    yield beside("attention", F.scaled_dot_product_attention, f.scaled_dot_product_attention, q, q, q)


def halves() -> Iterator[Row]:
    if torch is None:
        return
    import ml_dtypes

    f = torch.nn.functional
    for dtype in (np.float16, ml_dtypes.bfloat16):
        for rows, k, n in ((1, 700, 900), (20, 1000, 1200), (300, 900, 700), (2000, 128, 500)):
            x, w, b = numbers((rows, k), dtype), numbers((n, k), dtype), numbers((n,), dtype)
            yield beside("linear", F.linear, f.linear, x, w, b)
            yield beside("linear relu", lambda *a: F.linear(*a, activation="relu"), lambda *a: f.relu(f.linear(*a)), x, w, b)
            yield beside("linear gelu", lambda *a: F.linear(*a, activation="gelu"), lambda *a: f.gelu(f.linear(*a)), x, w, b)
        for sa, sb in (
            ((400, 400), (400, 400)),
            ((1500, 1500), (1500, 1500)),
            ((30, 90, 90), (30, 90, 90)),
            ((900, 40), (40, 1100)),
        ):
            yield product(dtype, sa, sb)
        for shape in ((300, 250), (3000, 700)):
            x = numbers(shape, dtype)
            for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
                yield beside(name, getattr(F, name), getattr(f, name), x)
            yield beside("softmax", lambda x: F.softmax(x, -1), lambda x: f.softmax(x, -1), x)
            yield beside("layer_norm", lambda x: F.layer_norm(x, x.shape[1:]), lambda x: f.layer_norm(x, x.shape[1:]), x)
        x = numbers((4, 60, 30, 30), dtype)
        mean, var = numbers((60,), dtype), np.ones(60, dtype)
        yield beside("batch_norm", F.batch_norm, f.batch_norm, x, mean, var)
        x, w = numbers((4, 60, 30, 30), dtype), numbers((50, 60, 3, 3), dtype)
        yield beside("conv2d", lambda x, w: F.conv2d(x, w, padding=1), lambda x, w: f.conv2d(x, w, padding=1), x, w)


def beside(name: str, ours: Any, torchs: Any, *arrays: Any) -> Row:
    there = [given(x) for x in arrays]
    kind = "" if arrays[0].dtype == np.float32 else f" {arrays[0].dtype.name}"
    title = f"{name}{kind} {' '.join(str(x.shape) for x in arrays)}"
    return title, lambda: ours(*arrays), {"torch": lambda: torchs(*there)}


def contractions() -> Iterator[Row]:
    for equation, *shapes in (
        ("ij,jk->ik", (300, 200), (200, 100)), ("bij,bjk->bik", (50, 40, 30), (50, 30, 60)), ("ij,ij->", (500, 400), (500, 400)),
        ("bhqd,bhkd->bhqk", (2, 8, 100, 64), (2, 8, 90, 64)), ("ijk,kl->ijl", (20, 30, 40), (40, 50)),
        ("ij,jk,kl->il", (60, 50), (50, 70), (70, 40)),
        ("ijkl,kl->ij", (12, 13, 14, 15), (14, 15)), ("ii->i", (400, 400)), ("ij->j", (700, 600)), ("i,j->ij", (600,), (500,)),
    ):  # fmt: skip
        arrays = [numbers(shape, np.float32) for shape in shapes]
        others = {"numpy": partial(np.einsum, equation, *arrays, optimize=True)}
        if torch:
            others["torch"] = partial(torch.einsum, equation, *map(given, arrays))
        yield f"{equation} {' '.join(map(str, shapes))}", partial(backline.einsum, equation, *arrays), others


PARTS = {
    "products": products, "algebra": algebra, "transforms": transforms, "layers": layers, "halves": halves,
    "contractions": contractions,
}  # fmt: skip


def main() -> None:
    wanted = [name for name in PARTS if name in sys.argv[1:]] or list(PARTS)
    tuned = "calibrated" if "--tuning" in sys.argv else "untuned"
    for part in wanted:
        table = Table(f"{tuned}_{part}_{ranking_files.here()}", ["numpy", "scipy", "torch"])
        for title, ours, others in PARTS[part]():
            times = compare({"backline": ours, **others}, seconds=0.01, rounds=7)
            ours()
            choice = backline.explain()
            table.add(title, times, f"{choice.library} {choice.algorithm}" if hasattr(choice, "algorithm") else "")
        to_best = [row["of_best_peer"] for row in table.rows]
        over = {f"over {limit}": sum(ratio > limit for ratio in to_best) for limit in (1.05, 1.1, 1.3)}
        facts = {"rows": len(to_best), "of the best": round(geometric_mean(to_best), 3), **over, "worst": round(max(to_best), 2)}
        if torch:
            facts["of PyTorch"] = round(1 / table.speed_over("torch"), 3)
        print(f"{part}, {tuned}: " + ", ".join(f"{name} {value}" for name, value in facts.items()))
        table.save(**facts)


if __name__ == "__main__":
    main()
