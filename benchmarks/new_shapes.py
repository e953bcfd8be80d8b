"""Cost of a call whose shape was never seen before, beside NumPy's: ``python benchmarks/new_shapes.py [--shapes 10000]``.

A program whose shapes change with every call, such as one that works on sentences or sparse blocks, has a plan made for each.
Every shape is called once by each contestant, in turn and in random order; the figure is the median over the shapes, and the
note has the least, which says what a call costs that nothing disturbs, and the mean, in which the first calls count that every
later one profits from. Beside it stands how much the process grew:
plans are kept in bounded caches, so that it stops growing however many shapes come.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import backline
from side_by_side import Table, threads_asked

rng = np.random.default_rng(1)
threads = threads_asked()
SHAPES = int(sys.argv[sys.argv.index("--shapes") + 1]) if "--shapes" in sys.argv else 10_000
MEMORY_EVERY = max(SHAPES // 5, 1)
EVERY_SHAPE = "matmul", "packed convolution", "convolution int8"  # of the others a fifth

Call = Callable[[Any], object]
POOL = rng.standard_normal(1 << 18).astype(np.float32)
WIDE = POOL.astype(np.float64)


def matrix(rows: int, columns: int, pool: np.ndarray[Any, Any] = POOL) -> np.ndarray[Any, Any]:
    """A matrix over memory that is warm already: what is timed is the call."""
    return pool[: rows * columns].reshape(rows, columns)


def definite(n: int) -> np.ndarray[Any, Any]:
    return matrix(n, n, WIDE) + 4 * n * np.eye(n)


def resident() -> int:
    """Bytes of memory that the process holds now; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        return 0


# What makes the operand of the n-th call, and what Backline and NumPy do with it. Sides are distinct for distinct n.
def _pair(n: int, pool: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    m, k = 8 + n % 100, 8 + n // 100
    return matrix(m, k, pool), matrix(k, 64, pool)


OPERATIONS: dict[str, tuple[Callable[[int], Any], Call, Call]] = {
    "matmul float32": (lambda n: _pair(n, POOL), lambda p: backline.matmul(*p), lambda p: np.matmul(*p)),
    "matmul float64": (lambda n: _pair(n, WIDE), lambda p: backline.matmul(*p), lambda p: np.matmul(*p)),
    "solve float64": (
        lambda n: (definite(4 + n % 60), matrix(4 + n % 60, 1 + n // 60, WIDE)),
        lambda p: backline.linalg.solve(*p), lambda p: np.linalg.solve(*p),
    ),
    "fft complex64": (lambda n: POOL[: 16 + n].astype(np.complex64), backline.fft.fft, np.fft.fft),
    "relu float32": (lambda n: _pair(n, POOL)[0], backline.nn.functional.relu, lambda x: np.maximum(x, 0)),
    "norm float32": (lambda n: _pair(n, POOL)[0], backline.linalg.norm, np.linalg.norm),
    "einsum float32": (
        lambda n: _pair(n, POOL), lambda p: backline.einsum("ij,jk->ki", *p), lambda p: np.einsum("ij,jk->ki", *p),
    ),
}  # fmt: skip


def _images(n: int) -> np.ndarray[Any, Any]:
    shape = 1, 4 + n % 12, 8 + n // 12, 16
    return POOL[: shape[1] * shape[2] * shape[3]].reshape(shape)


def _convolution(p: tuple[np.ndarray[Any, Any], ...]) -> np.ndarray[Any, Any]:
    return np.tensordot(sliding_window_view(p[0], (3, 3), (2, 3)), p[1], ((1, 4, 5), (1, 2, 3)))


def _attention(p: tuple[np.ndarray[Any, Any], ...]) -> np.ndarray[Any, Any]:
    query, key, value = p
    scores = query @ key.swapaxes(-1, -2) / np.float32(query.shape[-1] ** 0.5)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


# The layers of a network, each with weights of its own, which see images of ever new sizes.
KERNELS = [POOL[: 16 * channels * 9].reshape(16, channels, 3, 3) for channels in range(4, 16)]
PACKED = {w.shape[1]: backline.nn.functional.prepack_conv2d(w) for w in KERNELS}
PACKED_INT8 = {w.shape[1]: backline.quantized.conv2d_prepack(backline.quantized.quantize_weights(w)) for w in KERNELS}
INTEGERS = rng.integers(0, 128, 1 << 18, np.uint8)


def _small_images(n: int, pool: np.ndarray[Any, Any] = POOL) -> np.ndarray[Any, Any]:
    shape = 1, 4 + n % 12, 8 + n // 12 % 29, 8 + n // 12 // 29
    return pool[: shape[1] * shape[2] * shape[3]].reshape(shape)


STEP, RESULT_STEP, ZERO = 0.02, 0.1, 64


def _of_integers(sums: np.ndarray[Any, Any], scales: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.clip(np.rint(sums * (STEP * scales / RESULT_STEP)) + ZERO, 0, 255).astype(np.uint8)


def _convolution_of_integers(p: tuple[np.ndarray[Any, Any], ...]) -> object:
    return backline.quantized.conv2d(backline.quantized.QArray(p[0], STEP, ZERO), PACKED_INT8[p[1].shape[1]], RESULT_STEP, ZERO)


def _convolution_of_integers_by_numpy(p: tuple[np.ndarray[Any, Any], ...]) -> object:
    weight = PACKED_INT8[p[1].shape[1]].weight
    sums = _convolution((p[0].astype(np.float32) - ZERO, weight.int_repr.astype(np.float32)))
    return _of_integers(sums, weight.scales)


LINEAR_INT8 = {k: backline.quantized.linear_prepack(backline.quantized.quantize_weights(matrix(64, k))) for k in range(8, 108)}


def _linear_of_integers(x: np.ndarray[Any, Any]) -> object:
    return backline.quantized.linear(backline.quantized.QArray(x, STEP, ZERO), LINEAR_INT8[x.shape[1]], RESULT_STEP, ZERO)


def _linear_of_integers_by_numpy(x: np.ndarray[Any, Any]) -> object:
    weight = LINEAR_INT8[x.shape[1]].weight
    return _of_integers((x.astype(np.float32) - ZERO) @ weight.int_repr.astype(np.float32).T, weight.scales)


# Of layers: not in the mix.
LAYERS: dict[str, tuple[Callable[[int], Any], Call, Call]] = {
    "convolution float32": (
        lambda n: (_images(n), POOL[: 16 * (4 + n % 12) * 9].reshape(16, -1, 3, 3)),
        lambda p: backline.nn.functional.conv2d(*p), _convolution,
    ),
    "largest of 2x2 float32": (
        _images, lambda x: backline.nn.functional.max_pool2d(x, 2),
        lambda x: sliding_window_view(x, (2, 2), (2, 3))[:, :, ::2, ::2].max((4, 5)),
    ),
    "packed convolution float32": (
        lambda n: (_small_images(n), KERNELS[n % 12]), lambda p: PACKED[p[1].shape[1]](p[0]), _convolution,
    ),
    "convolution int8": (
        lambda n: (_small_images(n, INTEGERS), KERNELS[n % 12]), _convolution_of_integers,
        _convolution_of_integers_by_numpy,
    ),
    "linear int8": (
        lambda n: INTEGERS[: (8 + n % 100) * (8 + n // 100)].reshape(-1, 8 + n // 100), _linear_of_integers,
        _linear_of_integers_by_numpy,
    ),
    "attention float32": (
        lambda n: [POOL[: 4 * (8 + n // 12) * 8 * (1 + n % 12)].reshape(1, 4, 8 + n // 12, -1)] * 3,
        lambda p: backline.nn.functional.scaled_dot_product_attention(*p), _attention,
    ),
}  # fmt: skip


def measure(names: list[str], label: str, shapes: int, table: Table) -> None:
    """One row of the table: new shapes of operations, which take turns."""
    times: dict[str, list[float]] = {"backline": [], "numpy": []}
    calls = {name: (OPERATIONS | LAYERS)[name] for name in names}
    for make, ours, theirs in calls.values():  # libraries are loaded, and what holds for all shapes is known
        ours(make(shapes + 1)), theirs(make(shapes + 1))
    start = grown = resident()
    steps = []
    for n in range(shapes):
        make, ours, theirs = calls[names[n % len(names)]]
        operand, pair = make(n), [("backline", ours), ("numpy", theirs)]
        random.shuffle(pair)
        for who, call in pair:
            begin = time.perf_counter()
            call(operand)
            times[who].append(time.perf_counter() - begin)
        if (n + 1) % MEMORY_EVERY == 0:
            now = resident()
            steps.append(f"{(now - grown) / 2**20:+.1f}")
            grown = now
    medians = {who: statistics.median(each) for who, each in times.items()}
    choice = backline.explain()
    on = f"{choice.library} {choice.algorithm}" if len(names) == 1 else f"{len(names)} operations"
    means, least = (", ".join(f"{who} {of(each) * 1e6:.1f}" for who, each in times.items()) for of in (statistics.fmean, min))
    growth = f"MiB by {MEMORY_EVERY} shapes: {' '.join(steps)}, in all {(grown - start) / 2**20:+.1f}"
    note = f"{on}; least us: {least}; mean us: {means}; {growth}"
    table.add(f"{label}, {shapes} shapes", medians, note)


if __name__ == "__main__":
    random.seed(1)
    table = Table("new_shapes", ["numpy"])
    asked = [word for word in sys.argv[1:] if not word.startswith("--") and not word.isdigit()]
    for name in OPERATIONS | LAYERS:
        if asked and not any(word in name for word in asked):
            continue
        measure([name], name, SHAPES if name.startswith(EVERY_SHAPE) else max(SHAPES // 5, 1), table)
    measure([*OPERATIONS], "a mix", SHAPES, table)
    table.save(threads=threads, shapes=SHAPES)
