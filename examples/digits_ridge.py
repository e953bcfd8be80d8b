"""Handwritten digits and two photographs: principal components, compression, and kernel ridge regression.

The data are real: the 1797 digits of the UCI collection (8x8 pixels, values 0 to 16) and the two photographs (427x640) that
scikit-learn ships. scikit-learn only loads them. Every product, factorisation and solution is an operation of backline, so the
libraries of this machine can be compared on it:

    python examples/digits_ridge.py
    BACKLINE_ONLY=numpy python examples/digits_ridge.py
    backline tune examples/digits_ridge.py

The last line is a summary, rounded to what must not depend on the library: two runs can be compared by eye.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits, load_sample_images

import backline
from backline import linalg

Array = np.ndarray[Any, Any]

FOLDS = 5
RANKS = (5, 20, 80)
KNOWN_ERRORS = (0.1957, 0.1355, 0.0776)
COMPONENTS = (5, 10, 20, 40)
GAMMAS = (0.0005, 0.001, 0.002)
RIDGES = (0.1, 0.3, 1.0)


def principal_components(pixels: Array) -> tuple[list[float], float]:
    """Share of the variance that the first components keep, and how far eigh and SVD disagree about the variances."""
    centred = pixels - pixels.mean(axis=0)
    freedom = len(pixels) - 1
    covariance = backline.matmul(centred.T, centred) / freedom
    by_eigh, vectors = linalg.eigh(covariance)
    _, singular, _ = linalg.svd(centred, full_matrices=False)
    by_svd = singular**2 / freedom

    by_eigh = by_eigh[::-1]  # ascending order from eigh, descending from SVD
    disagreement = np.max(np.abs(by_eigh - by_svd)) / by_svd[0]

    kept = []
    for count in COMPONENTS:
        basis = vectors[:, -count:]
        scores = backline.matmul(centred, basis)
        rest = centred - backline.matmul(scores, basis.T)
        kept.append(1 - float((rest**2).sum() / (centred**2).sum()))
    return kept, float(disagreement)


def compress(photos: Array) -> list[tuple[float, float]]:
    """Relative error and PSNR of the photographs at each rank, every colour channel by its own truncated SVD, in float32."""
    channels = np.ascontiguousarray(photos.transpose(0, 3, 1, 2), dtype=np.float32) / 255  # photo, channel, row, column
    left, singular, right = linalg.svd(channels, full_matrices=False)
    errors = []
    for rank in RANKS:
        scaled = left[..., :rank] * singular[..., None, :rank]
        error = channels - backline.matmul(scaled, right[..., :rank, :])
        mean_square = np.mean(error**2, dtype=np.float64)  # a float32 sum over 1.6 million pixels would keep four digits
        relative = np.sqrt(mean_square / np.mean(channels**2, dtype=np.float64))
        errors.append((float(relative), float(-10 * np.log10(mean_square))))
    return errors


def squared_distances(pixels: Array) -> Array:
    """Between all pairs of digits. Pixels are small integers, so the float32 products are exact."""
    norms = (pixels**2).sum(axis=1)
    return norms[:, None] + norms - 2 * backline.matmul(pixels, pixels.T)


def predict(distances: Array, targets: Array, test: Array, gamma: float, ridge: float) -> Array:
    """Kernel ridge regression: learn from the digits outside `test`, give scores for those inside."""
    train = ~test
    kernel = np.exp(-gamma * distances[np.ix_(train, train)])
    kernel[np.diag_indices_from(kernel)] += ridge
    weights = backline.cholesky_solve(targets[train], linalg.cholesky(kernel))
    return backline.matmul(np.exp(-gamma * distances[np.ix_(test, train)]), weights)


def cross_validate(distances: Array, targets: Array, gamma: float, ridge: float) -> Array:
    """Scores for every digit, each from the digits of the other folds."""
    fold = np.arange(len(targets)) % FOLDS
    scores = np.empty_like(targets)
    for k in range(FOLDS):
        scores[fold == k] = predict(distances, targets, fold == k, gamma, ridge)
    return scores


def main() -> None:
    digits = load_digits()
    photos = np.stack(load_sample_images().images)

    print(f"Principal components of {len(digits.data)} digits")
    kept, disagreement = principal_components(digits.data)
    for count, share in zip(COMPONENTS, kept, strict=True):
        print(f"  {count:3} components keep {share:7.2%} of the variance")
    print(f"  eigh of the covariance and SVD of the data agree to {disagreement:.0e}")
    assert disagreement < 1e-12

    print("\nTruncated SVD of two photographs, each colour channel by itself")
    errors = compress(photos)
    for rank, (relative, psnr) in zip(RANKS, errors, strict=True):
        print(f"  rank {rank:3}: relative error {relative:.4f}, PSNR {psnr:5.2f} dB")
    assert np.allclose([relative for relative, _ in errors], KNOWN_ERRORS, rtol=0, atol=1e-4)

    count = len(digits.data) // FOLDS * FOLDS  # folds of one size
    print(f"\nKernel ridge regression on {count} digits, {FOLDS} folds")
    labels = digits.target[:count]
    one_hot = np.eye(10)[labels]
    distances = squared_distances(digits.data[:count].astype(np.float32))
    found = {}
    print("  mean squared error, searched in float32\n     gamma  " + "  ".join(f"ridge {ridge:3}" for ridge in RIDGES))
    for gamma in GAMMAS:
        for ridge in RIDGES:
            scores = cross_validate(distances, one_hot.astype(np.float32), gamma, ridge)
            found[gamma, ridge] = float(np.mean((scores - one_hot) ** 2))
        print(f"    {gamma:.4f}  " + "  ".join(f"{found[gamma, ridge]:9.5f}" for ridge in RIDGES))
    gamma, ridge = min(found, key=lambda setting: found[setting])

    scores = cross_validate(distances.astype(np.float64), one_hot, gamma, ridge)
    accuracy = float(np.mean(scores.argmax(axis=1) == labels))
    print(f"  accuracy with gamma {gamma}, ridge {ridge}, in float64: {accuracy:.4f}")
    assert accuracy >= 0.98

    numbers = " ".join(f"{value:.4f}" for value in (kept[1], *(relative for relative, _ in errors), accuracy))
    print(f"\nsummary (to 1e-4, whatever the library): {numbers}")


if __name__ == "__main__":
    main()
