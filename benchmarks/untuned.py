"""The first answer of a machine that nobody tuned, beside NumPy, SciPy and PyTorch: ``python benchmarks/untuned.py [PART ...]``.

Parts are products, algebra, transforms, elementary (functions of each element), layers, halves (products and layers of 16-bit
floats) and contractions. All run in turn in one process, on ``--threads`` threads. A ratio is our time over the least of the
others; each part ends with geometric means, and the number of rows above 1.05, 1.1 and 1.3. Rows above 0.95 are measured again
after all the others, minutes later, and have the medians of both: virtual processors may be far apart at one time and near at
another. Run it where nothing else runs. Of transforms the results have the errors of all sides over NumPy's, too: ours untuned.

``--calibrated`` calibrates into a new tuning file first (``--seconds``, default 60), ``--calibrated=FILE`` takes a file that
``BACKLINE_TUNING=FILE backline calibrate`` made; ``--tuned`` measures each row's problems before it is timed. What either chooses
then takes its turn beside the untuned choice. ``--seed N`` draws other sizes: each between 0.6 and 1.6 times that of the table.
``--without LIBRARY`` turns one off, as where it is not installed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from timeit import Timer
from typing import Any

import numpy as np
import scipy.fft
import scipy.linalg as sl

import backline
from backline import linalg
from backline.engine import ranking_files
from backline.engine.tuning import record_store
from backline.nn import functional as F
from backline.nn import grad
from backline.problems.neural_problem import ELEMENTARY
from side_by_side import Contestants, Table, geometric_mean, round_by_round, threads_asked, torch_or_none

PARTS = "products", "algebra", "transforms", "elementary", "layers", "halves", "contractions"


def asked() -> argparse.Namespace:
    """Returns what the command asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="all without any")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--calibrated", nargs="?", const="", metavar="FILE")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--without", default="", metavar="LIBRARY")
    parser.add_argument("--json", action="store_true", help="as other benchmarks have it: here results are always kept")
    words = parser.parse_args()
    if unknown := set(words.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}: they are {', '.join(PARTS)}")
    return words


words = asked()
SEED, WITHOUT = words.seed, words.without
SPREAD = 0.7  # of the drawn sizes, in doublings to either side
rng = np.random.default_rng(1)
sizes = random.Random(SEED)
threads = threads_asked()
torch = torch_or_none(threads)
CLOSE = 0.95  # of the best peer's time, above which a row is measured twice
Row = tuple[str, Callable[[], Any], dict[str, Callable[[], Any]]]


def near(n: int) -> int:
    """A size of the table; with --seed, another one near it."""
    return n if SEED is None or n == 1 else max(round(n * 2 ** sizes.uniform(-SPREAD, SPREAD)), 2)


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

    squares = [(1, n, n, n) for n in (8, 24, 50, 100, 200, 300, 500, 700, 1000, 1500)]
    others = [(1, 7, 900, 300), (1, 3000, 50, 40), (1, 4, 1024, 4096), (1, 900, 900, 1), (1, 1, 700, 1300), (900, 12, 12, 12),
              (300, 32, 32, 32), (40, 100, 100, 100)]  # fmt: skip
    for dtype in (np.float32, np.float64):
        for shape in squares[:: 1 if dtype == np.float32 else 2] + others[:: 1 if dtype == np.float32 else 2]:
            yield product(dtype, *shape)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        for n in (100, 300, 1000):
            yield product(dtype, 1, n, n, n)
    for dtype in (np.complex64, np.complex128):
        for n in (50, 400):
            yield product(dtype, 1, n, n, n)


def product(dtype: Any, items: int, m: int, k: int, n: int) -> Row:
    if m == k == n:
        items, m = near(items), near(m)
        k = n = m
    else:
        items, m, k, n = map(near, (items, m, k, n))
    batch = (items,) if items > 1 else ()
    sa, sb = (*batch, m, k), (*batch, k, n)
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
    lengths = (6, 30, 150, 400)
    for name, (ours, theirs, torchs) in calls.items():
        for dtype in (np.float32, np.float64):
            largest = 3 if name in ("eig", "pinv", "matrix_rank", "svd") else 4
            for n in map(near, lengths[:largest] if dtype == np.float64 else lengths[1:3]):
                yield one(f"{name} {np.dtype(dtype).name} {(n, n)}", ours, theirs, torchs, definite((n, n), dtype))
    for name in ("inv", "det", "cholesky", "eigh", "svd"):
        ours, theirs, torchs = calls[name]
        items, n = near(1000), near(6)
        yield one(f"{name} float64 {(items, n, n)}", ours, theirs, torchs, definite((items, n, n), np.float64))
    for n, dtype in ((6, np.float64), (30, np.float32), (150, np.float64), (400, np.float32)):
        n, columns = near(n), near(9)
        a, b = definite((n, n), dtype), numbers((n, columns), dtype)
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
        for number, listed in enumerate(((100,), (1000,), (4099,), (30000,), (1 << 18,), (60, 500), (200, 300), (32, 48, 40))):
            shape = tuple(map(near, listed))
            x = numbers(shape, dtype)
            name = "rfft" if x.dtype.kind == "f" else "fft"
            kind = name if number < 6 else f"{name}n"
            others = {"numpy": partial(getattr(np.fft, kind), x), "scipy": partial(getattr(scipy.fft, kind), x)}
            if torch:
                others["torch"] = partial(getattr(torch.fft, kind), given(x))
            yield f"{kind} {np.dtype(dtype).name} {shape}", partial(getattr(backline.fft, kind), x), others


def elementary() -> Iterator[Row]:
    for dtype in (np.float32, np.float64):
        for shape in ((300,), (20000,), (700, 900)):
            for name in ELEMENTARY:
                x = np.abs(numbers(tuple(map(near, shape)), dtype))
                yield elements(name, x)
                if shape == (700, 900) and name in ("exp", "log"):
                    yield elements(name, x[:, : x.shape[1] // 2])


def elements(name: str, x: Any) -> Row:
    others: dict[str, Callable[[], Any]] = {"numpy": partial(getattr(np, name), x)}
    if torch:
        others["torch"] = partial(getattr(torch, name), given(x))
    gaps = "" if x.flags.c_contiguous else " with gaps"
    return f"{name} {x.dtype.name} {x.shape}{gaps}", partial(getattr(backline, name), x), others


def layers() -> Iterator[Row]:
    if torch is None:
        return
    f = torch.nn.functional
    for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
        for shape in ((64, 100), (300, 250), (3000, 700)):
            yield beside(name, getattr(F, name), getattr(f, name), numbers(tuple(map(near, shape)), np.float32))
    x = numbers((near(5000), near(800)), np.float32)
    yield beside("gelu tanh", lambda x: F.gelu(x, "tanh"), lambda x: f.gelu(x, approximate="tanh"), x)
    yield beside("gelu gradient", lambda x, g: grad.gelu_input(x, g), lambda x, g: torch.ops.aten.gelu_backward(g, x), x, x)
    yield beside("silu gradient", lambda x, g: grad.silu_input(x, g), lambda x, g: torch.ops.aten.silu_backward(g, x), x, x)
    for shape in ((64, 100), (3000, 700), (20, 30000), (50000, 24)):
        x = numbers(tuple(map(near, shape)), np.float32)
        yield beside("softmax", lambda x: F.softmax(x, -1), lambda x: f.softmax(x, -1), x)
        yield beside("log_softmax", lambda x: F.log_softmax(x, -1), lambda x: f.log_softmax(x, -1), x)
        yield beside("layer_norm", lambda x: F.layer_norm(x, x.shape[1:]), lambda x: f.layer_norm(x, x.shape[1:]), x)
    x = numbers((near(700), near(900)), np.float32)
    yield beside("softmax of columns", lambda x: F.softmax(x, 0), lambda x: f.softmax(x, 0), x)
    for shape in ((64, 100), (3000, 700)):
        x = numbers(tuple(map(near, shape)), np.float32)
        w = numbers((near(90), x.shape[1]), np.float32)
        yield beside("linear", lambda x, w: F.linear(x, w), lambda x, w: f.linear(x, w), x, w)
    for images, weights in (
        ((1, 3, 60, 60), (16, 3, 3, 3)), ((4, 32, 30, 30), (48, 32, 3, 3)), ((1, 100, 14, 14), (200, 100, 1, 1)),
        ((8, 64, 50, 50), (64, 64, 3, 3)), ((2, 120, 9, 9), (60, 120, 1, 1)), ((1, 300, 7, 7), (900, 300, 1, 1)),
        ((8, 64, 40, 40), (32, 64, 1, 1)),
    ):  # fmt: skip
        batch, channels, height, width = map(near, images)
        x = numbers((batch, channels, height, width), np.float32)
        w = numbers((near(weights[0]), channels, *weights[2:]), np.float32)
        yield beside("conv2d", partial(F.conv2d, padding=weights[2] // 2), partial(f.conv2d, padding=weights[2] // 2), x, w)
    for images, side in (((1, 32, 40, 40), 3), ((4, 96, 28, 28), 5)):
        images = tuple(map(near, images))
        x, w = numbers(images, np.float32), numbers((images[1], 1, side, side), np.float32)
        more = {"padding": side // 2, "groups": images[1]}
        yield beside("depthwise", partial(F.conv2d, **more), partial(f.conv2d, **more), x, w)
    for images in ((16, 64, 56, 56), (1, 24, 30, 30), (6, 300, 13, 13)):
        images = tuple(map(near, images))
        x = numbers(images, np.float32)
        mean, var = numbers(images[1:2], np.float32), np.ones(images[1], np.float32)
        yield beside("batch_norm", F.batch_norm, f.batch_norm, x, mean, var)
        training = {"training": True}
        yield beside("batch_norm training", partial(F.batch_norm, **training), partial(f.batch_norm, **training), x, mean, var)
    x = numbers(tuple(map(near, (16, 64, 56, 56))), np.float32)
    yield beside("max_pool2d", lambda x: F.max_pool2d(x, 2), lambda x: f.max_pool2d(x, 2), x)
    q = numbers((2, 8, near(200), 64), np.float32)
    yield beside("attention", F.scaled_dot_product_attention, f.scaled_dot_product_attention, q, q, q)


def halves() -> Iterator[Row]:
    if torch is None:
        return
    import ml_dtypes

    f = torch.nn.functional
    for dtype in (np.float16, ml_dtypes.bfloat16):
        for rows, k, n in ((1, 700, 900), (20, 1000, 1200), (300, 900, 700), (2000, 128, 500)):
            rows, k, n = map(near, (rows, k, n))
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
            yield product(dtype, math.prod(sa[:-2]), *sa[-2:], sb[-1])
        for shape in ((300, 250), (3000, 700)):
            x = numbers(tuple(map(near, shape)), dtype)
            for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
                yield beside(name, getattr(F, name), getattr(f, name), x)
            yield beside("softmax", lambda x: F.softmax(x, -1), lambda x: f.softmax(x, -1), x)
            yield beside("layer_norm", lambda x: F.layer_norm(x, x.shape[1:]), lambda x: f.layer_norm(x, x.shape[1:]), x)
        images = tuple(map(near, (4, 60, 30, 30)))
        x = numbers(images, dtype)
        mean, var = numbers(images[1:2], dtype), np.ones(images[1], dtype)
        yield beside("batch_norm", F.batch_norm, f.batch_norm, x, mean, var)
        x, w = numbers(images, dtype), numbers((near(50), images[1], 3, 3), dtype)
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
        letters = {}
        for operand, shape in zip(equation.partition("->")[0].split(","), shapes, strict=True):
            for letter, n in zip(operand, shape, strict=True):
                letters[letter] = letters.get(letter) or near(n)
        arrays = [numbers(tuple(letters[x] for x in o), np.float32) for o in equation.partition("->")[0].split(",")]
        others = {"numpy": partial(np.einsum, equation, *arrays, optimize=True)}
        if torch:
            others["torch"] = partial(torch.einsum, equation, *map(given, arrays))
        yield f"{equation} {' '.join(str(a.shape) for a in arrays)}", partial(backline.einsum, equation, *arrays), others


TABLES = {
    "products": products, "algebra": algebra, "transforms": transforms, "elementary": elementary, "layers": layers,
    "halves": halves, "contractions": contractions,
}  # fmt: skip


class Mode:
    """A way of choosing: by which tuning file, and whether a row's problems are measured before it is timed."""

    current = ""

    def __init__(self, name: str, file: str, measures: bool = False) -> None:
        self.name, self.file, self.measures = name, file, measures

    def begin(self) -> None:
        """Lets its file decide from now on."""
        if Mode.current != self.name:
            os.environ["BACKLINE_TUNING"] = self.file
            record_store.reload()
            Mode.current = self.name

    def prepare(self, ours: Callable[[], Any]) -> str:
        """Runs a row once, and measures its problems if that is wanted; returns what the row runs on."""
        self.begin()
        if self.measures:
            with backline.backends.flags(benchmark=True):
                ours()
        ours()
        choice = backline.explain()
        return f"{choice.library} {choice.algorithm}" if hasattr(choice, "algorithm") else ""


def modes() -> list[Mode]:
    """The modes that the command line asks for, calibrated if need be."""
    found = [Mode("untuned", "")]
    folder = tempfile.mkdtemp()
    if words.calibrated is not None:
        file = os.path.abspath(words.calibrated or os.path.join(folder, "calibrated.sqlite"))
        if not os.path.exists(file):
            command = [sys.executable, "-m", "backline", "calibrate", "--seconds", str(words.seconds), "--threads", str(threads)]
            subprocess.run(command, env=os.environ | {"BACKLINE_TUNING": file}, check=True)
        found.append(Mode("calibrated", file))
    if words.tuned:
        found.append(Mode("tuned", os.path.join(folder, "tuned.sqlite"), measures=True))
    return found


def timed(contestants: Contestants) -> dict[str, list[float]]:
    return round_by_round(contestants, seconds=0.01, rounds=7)


def summary(part: str, mode: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a mode in a part, which it prints as well."""
    to_best = [row["of_best"][mode] for row in rows]
    over = {f"over {limit}": sum(ratio > limit for ratio in to_best) for limit in (1.05, 1.1, 1.3)}
    facts = {"rows": len(to_best), "of the best": round(geometric_mean(to_best), 3), **over, "worst": round(max(to_best), 2)}
    if torch:
        times = [row["seconds"] for row in rows]
        facts["of PyTorch"] = round(math.exp(sum(math.log(t[mode] / t["torch"]) for t in times) / len(times)), 3)
    print(f"{part}, {mode}: " + ", ".join(f"{name} {value}" for name, value in facts.items()))
    return facts


def errors(kind: str, ours: Any, others: dict[str, Any]) -> dict[str, float]:
    """Returns the error of each side's transform, beside long double in the Euclidean norm, over that of NumPy's."""
    x = ours.args[0]
    exact = getattr(scipy.fft, kind)(x.astype(np.result_type(x, np.longdouble)))
    sides = {"backline": ours, **others}
    far = {name: float(np.linalg.norm((np.asarray(side()) - exact).ravel())) for name, side in sides.items()}
    return {name: round(error / far["numpy"], 2) for name, error in far.items() if name != "numpy"}


def main() -> None:
    wanted = [name for name in PARTS if name in words.parts] or PARTS
    if WITHOUT:
        getattr(backline.backends, WITHOUT).enabled = False
    ways = modes()
    names = [mode.name for mode in ways]
    totals: dict[str, list[dict[str, Any]]] = {}
    for part in wanted:
        drawn = ("" if SEED is None else f"_seed{SEED}") + (f"_without_{WITHOUT}" if WITHOUT else "")
        table = Table(f"{'_'.join(names)}_{part}{drawn}_{ranking_files.here()}", ["numpy", "scipy", "torch"], names)
        measured: list[tuple[str, Any, Contestants, dict[str, list[float]], str]] = []
        for title, ours, others in TABLES[part]():
            ran = dict.fromkeys(mode.prepare(ours) for mode in ways)
            contestants: Contestants = {**{m.name: Timer(ours, setup=m.begin) for m in ways}, **others}
            measured.append((title, ours, contestants, timed(contestants), " / ".join(ran)))
            print(f"{part}: {title}", end="\033[K\r", file=sys.stderr)
        for title, ours, contestants, times, ran_on in measured:
            medians = {name: median(each) for name, each in times.items()}
            if max(medians[name] for name in names) > CLOSE * min(medians[name] for name in medians if name not in names):
                for name, more in timed(contestants).items():
                    times[name] += more
            table.add(title, {name: median(each) for name, each in times.items()}, ran_on)
            if part == "transforms":
                ways[0].begin()
                others = {name: side for name, side in contestants.items() if name not in names}
                table.rows[-1]["error_over_numpys"] = errors(title.partition(" ")[0], ours, others)
        table.save(**{name: summary(part, name, table.rows) for name in names})
        totals[part] = table.rows
    if len(wanted) > 1:
        for name in names:
            summary("all", name, [row for rows in totals.values() for row in rows])


if __name__ == "__main__":
    main()
