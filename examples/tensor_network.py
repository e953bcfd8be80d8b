"""Photographs as tensor trains: compressed by singular values, put together and compared by einsum.

Two photographs that scikit-learn ships (it only loads them) are cut into blocks: five axes, of rows and columns of blocks, rows
and columns inside of one, and colours. A tensor of five axes is a train of five small tensors, each of which has one of the axes
and is joined to its neighbours. Singular values say how little of them suffices. Then, each with backline and with NumPy alone:

- a train is put together to the photograph again, in the order of its points;
- the scalar product of two photographs is computed from their trains, ten tensors, without putting them together;
- a photograph is blurred inside of every block, by two small matrices on the train.

    python examples/tensor_network.py
    python examples/tensor_network.py --out trains.png
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
from sklearn.datasets import load_sample_image

import backline

Array = np.ndarray[Any, Any]

BLOCK = 16
TOGETHER = "ai,icj,jbk,kdl,le->abcde"
PRODUCT = "ai,icj,jbk,kdl,le,am,mcn,nbo,odp,pe->"
BLURRED = "ai,icj,jbk,kdl,le,fb,gd->afcge"


def cut(photo: Array) -> Array:
    """The points by block row, row inside, block column, column inside, colour."""
    rows, columns = photo.shape[0] // BLOCK, photo.shape[1] // BLOCK
    photo = photo[: rows * BLOCK, : columns * BLOCK]
    return np.ascontiguousarray(photo).reshape(rows, BLOCK, columns, BLOCK, -1)


def train(points: Array, error: float) -> list[Array]:
    """The tensor as a train, its axes in the order block row, block column, row, column, colour.

    Each unfolding loses at most its share of `error`, the relative error of all (Oseledets, Tensor-train decomposition, 2011).
    """
    rest = points.transpose(0, 2, 1, 3, 4)
    shape = rest.shape
    allowed = (error * np.linalg.norm(points)) ** 2 / (len(shape) - 1)
    parts: list[Array] = []
    rank = 1
    for size in shape[:-1]:
        u, s, vh = backline.linalg.svd(rest.reshape(rank * size, -1), full_matrices=False)
        lost = np.cumsum((s**2)[::-1])[::-1]
        keep = max(1, int(np.count_nonzero(lost > allowed)))
        parts.append(np.ascontiguousarray(u[:, :keep]).reshape(rank, size, keep))
        rest, rank = s[:keep, None] * vh[:keep], keep
    parts.append(np.ascontiguousarray(rest))
    return [parts[0][0], *parts[1:]]


def blur(size: int) -> Array:
    """Every point becomes a mean of those near it in its block."""
    distance = np.subtract.outer(np.arange(size), np.arange(size))
    weights = np.exp(-(distance**2) / 8.0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def psnr(photo: Array, wanted: Array) -> float:
    return float(-10 * np.log10(np.mean((photo - wanted) ** 2, dtype=np.float64)))


def compare(label: str, equation: str, operands: list[Array], rounds: int) -> Array:
    """Contract with both, time them in turn, print a line, and return our result."""
    calls = (lambda: backline.einsum(equation, *operands), lambda: np.einsum(equation, *operands, optimize=True))
    result, wanted = (call() for call in calls)
    times: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for call, spent in zip(calls, times, strict=True):
            started = time.perf_counter()
            call()
            spent.append(time.perf_counter() - started)
    error = float(np.abs(result - wanted).max() / np.abs(wanted).max())
    assert error < 1e-4, f"{label}: off by {error}"
    mine, theirs = map(statistics.median, times)
    ran = backline.explain(backline.einsum, equation, *operands)
    libraries = "+".join(sorted({s.choice.library for s in ran.steps if s.choice}))
    print(
        f"  {label:<22} {len(operands):>7} {len(ran.steps):>6} {libraries:<18} {ran.flops:>10.2g} {mine * 1e3:9.2f} ms"
        f" {theirs * 1e3:9.2f} ms {theirs / mine:6.1f}x  {error:.0e}"
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Photographs as tensor trains.")
    parser.add_argument("--out", metavar="FILE.png", help="write the photograph, its train, and the train blurred")
    parser.add_argument("--error", type=float, default=0.1, help="relative error that compression may cost")
    parser.add_argument("--short", action="store_true", help="a corner of the photographs, each thing timed once")
    asked = parser.parse_args()

    names = ("china.jpg", "flower.jpg")
    photos = [load_sample_image(name).astype(np.float32) / 255 for name in names]
    if asked.short:
        photos = [photo[160:288, :192] for photo in photos]
    rounds = 1 if asked.short else 7

    points = [cut(photo) for photo in photos]
    shape = points[0].shape
    flat = (shape[0] * BLOCK, shape[2] * BLOCK, shape[4])
    print(f"Photographs of {flat[0]}x{flat[1]} points as tensors of {'x'.join(map(str, shape))}")
    trains = []
    for name, each in zip(names, points, strict=True):
        parts = train(each, asked.error)
        numbers = sum(part.size for part in parts)
        ranks = "-".join(str(part.shape[-1]) for part in parts[:-1])
        print(f"  {name:<10}  ranks {ranks:<16} {each.size:>8} numbers in {numbers:>7}: {each.size / numbers:.1f} times fewer")
        trains.append(parts)

    print(f"\nOn {backline.get_num_threads()} threads; medians of {rounds}, in turn, NumPy with optimize=True")
    titles = f"{'tensors':>7} {'steps':>6} {'ran on':<18} {'operations':>10} {'backline':>12} {'NumPy':>12} {'faster':>7}"
    print(f"  {'':<22} {titles}  differ by")
    whole = compare("put together", TOGETHER, trains[0], rounds)
    product = compare("scalar product", PRODUCT, [*trains[0], *trains[1]], rounds)
    soft = compare("blurred", BLURRED, [*trains[0], blur(BLOCK), blur(BLOCK)], rounds)

    error = np.linalg.norm(whole - points[0]) / np.linalg.norm(points[0])
    assert error <= asked.error * 1.001
    exact = float(np.vdot(points[0], points[1]))
    print(f"\nRelative error of the train {error:.3f}, PSNR {psnr(whole, points[0]):.1f} dB")
    apart = abs(product - exact) / exact
    print(f"Scalar product {float(product):.1f} by the trains, {exact:.1f} by the points: {apart:.1%} apart")

    print("\nHow the scalar product is computed:")
    print(backline.explain(backline.einsum, PRODUCT, *trains[0], *trains[1]))
    if asked.out:
        from PIL import Image

        sheet = np.concatenate([each.reshape(flat) for each in (points[0], whole, soft)], axis=1)[::2, ::2]
        Image.fromarray((np.clip(sheet, 0, 1) * 255).astype(np.uint8)).save(asked.out)
        print(f"\n{asked.out}: the photograph, its train, and the train blurred")


if __name__ == "__main__":
    main()
