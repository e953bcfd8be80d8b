"""A photograph under a bank of filters, and cleaned of noise by attention between its patches.

The photograph (427x640) is one that scikit-learn ships; scikit-learn only loads it. Three things are computed, each with backline
and with NumPy alone, and timed in turn:

- a bank of oriented filters, 9x9: one convolution;
- a smaller picture, every colour blurred by itself: a depthwise convolution with stride 2;
- non-local means: every point becomes a mean of the points of its window, weighted by how much the 3x3 patches around them look
  alike. That is attention: patches are queries and keys, colours the values.

    python examples/photo_filters.py
    python examples/photo_filters.py --out filters.png
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.datasets import load_sample_image

import backline
from backline.nn.functional import conv2d, scaled_dot_product_attention

Array = np.ndarray[Any, Any]

GREY = np.array([0.299, 0.587, 0.114], np.float32)
ANGLES = 12
WINDOW, PATCH = 16, 3
NOISE = 0.1
ALIKE = 0.07  # root mean square by which two patches differ when they count exp(-1/2) as much as equal ones


def oriented_filters(size: int = 9) -> Array:
    """Gabor filters: waves of two lengths in every direction, fading out from the centre. They see brightness only."""
    y, x = np.mgrid[:size, :size].astype(np.float32) - size // 2
    fade = np.exp(-(x**2 + y**2) / (2 * 2.0**2))
    found = []
    for length in (4.0, 8.0):
        for angle in np.arange(ANGLES) * np.pi / ANGLES:
            wave = fade * np.sin(2 * np.pi / length * (x * np.cos(angle) + y * np.sin(angle)))
            found.append(wave / np.abs(wave).sum())
    return (np.stack(found)[:, None] * GREY[:, None, None]).astype(np.float32)


def blur_filters(size: int = 5) -> Array:
    """A binomial blur, once for each colour."""
    row = np.array([1, 4, 6, 4, 1], np.float32) / 16
    return np.broadcast_to(np.outer(row, row), (3, 1, size, size)).copy()


def numpy_convolution(images: Array, weight: Array) -> Array:
    margin = weight.shape[-1] // 2
    padded = np.pad(images, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    windows = sliding_window_view(padded, weight.shape[2:], axis=(2, 3))
    return np.tensordot(windows, weight, ([1, 4, 5], [1, 2, 3])).transpose(0, 3, 1, 2)


def numpy_depthwise(images: Array, weight: Array, stride: int) -> Array:
    margin = weight.shape[-1] // 2
    padded = np.pad(images, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    windows = sliding_window_view(padded, weight.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,cij->nchw", windows, weight[:, 0])


def numpy_attention(query: Array, key: Array, value: Array, scale: float) -> Array:
    scores = query @ key.swapaxes(-1, -2)
    scores *= np.float32(scale)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores @ value


def windows_of(photo: Array) -> tuple[Array, Array, Array]:
    """Queries, keys and values of shape (windows, 1, points, numbers).

    Attention weighs by exp(q.k): with one number more in each, that is exp(-|q - k|^2 / 2) but for a factor that all weights of
    a query share.
    """
    rows, columns = photo.shape[0] // WINDOW, photo.shape[1] // WINDOW
    photo = photo[: rows * WINDOW, : columns * WINDOW]
    margin = PATCH // 2
    padded = np.pad(photo, ((margin, margin), (margin, margin), (0, 0)), mode="reflect")
    patches = sliding_window_view(padded, (PATCH, PATCH), axis=(0, 1)).reshape(*photo.shape[:2], -1)

    def cut(points: Array) -> Array:
        parts = points.reshape(rows, WINDOW, columns, WINDOW, -1).swapaxes(1, 2)
        return np.ascontiguousarray(parts.reshape(rows * columns, 1, WINDOW * WINDOW, -1))

    half = (patches**2).sum(axis=-1, keepdims=True) / 2
    return cut(np.concatenate([patches, np.ones_like(half)], -1)), cut(np.concatenate([patches, -half], -1)), cut(photo)


def put_together(windows: Array, shape: tuple[int, ...]) -> Array:
    rows, columns = shape[0] // WINDOW, shape[1] // WINDOW
    parts = windows.reshape(rows, columns, WINDOW, WINDOW, 3).swapaxes(1, 2)
    return parts.reshape(rows * WINDOW, columns * WINDOW, 3)


def psnr(photo: Array, wanted: Array) -> float:
    return float(-10 * np.log10(np.mean((photo - wanted) ** 2, dtype=np.float64)))


def compare(label: str, ours: Callable[[], Array], plain: Callable[[], Array], rounds: int) -> Array:
    """Time both in turn, print a line, and return our result, which must be NumPy's up to rounding."""
    result, wanted = ours(), plain()
    choice = backline.explain()  # what ran last: ours
    times: dict[Callable[[], Array], list[float]] = {ours: [], plain: []}
    for _ in range(rounds):
        for call in times:
            started = time.perf_counter()
            call()
            times[call].append(time.perf_counter() - started)
    error = float(np.abs(result - wanted).max())
    assert error < 1e-4, f"{label}: off by {error}"
    mine, theirs = (statistics.median(t) for t in times.values())
    ran = f"{choice.library} {choice.algorithm} x{choice.chosen.threads}"
    print(f"  {label:<30} {ran:<22} {mine * 1e3:8.1f} ms {theirs * 1e3:8.1f} ms {theirs / mine:6.1f}x  {error:.0e}")
    return result


def write(path: str, noisy: Array, clean: Array, responses: Array, small: Array) -> None:
    """The strongest filter of every point as a colour, the noisy photograph, the cleaned one, and the small one."""
    from PIL import Image

    height, width = clean.shape[:2]
    strength = np.abs(responses[0]).reshape(2, ANGLES, *responses.shape[2:]).max(axis=0)[:, :height, :width]
    angle = strength.argmax(axis=0) / ANGLES * 2 * np.pi
    colour = 0.5 + 0.5 * np.cos(angle[..., None] - np.arange(3) * 2 * np.pi / 3)
    edges = colour * np.minimum(strength.max(axis=0) * 8, 1)[..., None]
    last = np.ones_like(clean)
    shrunk = small[0].transpose(1, 2, 0)[:height, :width]
    last[: shrunk.shape[0], : shrunk.shape[1]] = shrunk
    sheet = np.concatenate([np.concatenate([noisy, clean], 1), np.concatenate([edges, last], 1)])[::2, ::2]
    Image.fromarray((np.clip(sheet, 0, 1) * 255).astype(np.uint8)).save(path)
    print(f"\n{path}: the noisy photograph and the cleaned one; the direction of edges, and the photograph at half its size")


def main() -> None:
    parser = argparse.ArgumentParser(description="Filters and attention on a photograph.")
    parser.add_argument("--out", metavar="FILE.png", help="write what came out")
    parser.add_argument("--short", action="store_true", help="a corner of the photograph, each thing timed once")
    asked = parser.parse_args()

    photo = load_sample_image("china.jpg").astype(np.float32) / 255
    if asked.short:
        photo = np.ascontiguousarray(photo[160:288, :192])
    rounds = 1 if asked.short else 5
    images = photo.transpose(2, 0, 1)[None]  # channels are last in memory, and stay there
    size = "x".join(map(str, photo.shape[:2]))
    print(f"A photograph of {size} points on {backline.get_num_threads()} threads; medians of {rounds}, in turn")
    print(f"  {'':<30} {'runs on':<22} {'backline':>11} {'NumPy':>11} {'faster':>7}  differ by")

    bank, blur = oriented_filters(), blur_filters()
    responses = compare(
        f"{len(bank)} filters of 9x9",
        lambda: conv2d(images, bank, padding=4),
        lambda: numpy_convolution(images, bank),
        rounds,
    )
    small = compare(
        "half the size",
        lambda: conv2d(images, blur, stride=2, padding=2, groups=3),
        lambda: numpy_depthwise(images, blur, 2),
        rounds,
    )
    noisy = photo + NOISE * np.random.default_rng(1).standard_normal(photo.shape, np.float32)
    query, key, value = windows_of(noisy)
    scale = 1 / (ALIKE**2 * 3 * PATCH**2)
    found = compare(
        f"attention in {len(query)} windows",
        lambda: scaled_dot_product_attention(query, key, value, scale=scale),
        lambda: numpy_attention(query, key, value, scale),
        rounds,
    )
    clean = put_together(found, photo.shape)
    height, width = clean.shape[:2]
    photo, noisy = photo[:height, :width], noisy[:height, :width]
    before, after = psnr(noisy, photo), psnr(clean, photo)
    print(f"\nPSNR of the photograph with noise {before:.2f} dB, cleaned {after:.2f} dB")
    assert after > before + 3

    strength = np.abs(responses[0]).mean(axis=(1, 2))[:ANGLES]
    degrees = strength.argmax() * 180 // ANGLES
    times = strength.max() / strength.min()
    print(f"Waves of 4 points are strongest at {degrees} degrees, {times:.1f} times the weakest direction")
    if asked.out:
        write(asked.out, noisy, clean, responses, small)


if __name__ == "__main__":
    main()
