"""Errors and times of products of reduced precision, on any machine: ``python benchmarks/precision.py``.

Prints a table in Markdown. Every product of float32 matrices of normal random numbers is computed in plain float32 and, with
``emulate`` on, in tf32 and bf16, and compared with float64. Errors are relative to |A| |B|, element by element:

- `largest` and `typical` (root of the mean square) are measured;
- `bound` is what no error can exceed: 2 u + u**2 for operands rounded with unit roundoff u (2**-11 for tf32, 2**-8 for bf16), and
  gamma_k for k additions and products in float32 (Higham, Accuracy and Stability of Numerical Algorithms, section 3.5);
- `expected` is what `typical` would be if the errors of the operands were independent. Their sum grows with the root of k, and
  |A| |B| with k: that is why long sums lose less than the bound says. Plain float32 has no such column: how its errors add up
  depends on the order in which a library sums.

`computed in` says what the precision in effect was: hardware that has it is used, and then no "(emulated)" follows.
"""

from __future__ import annotations

import math
import os

os.environ["BACKLINE_CONFIG"] = os.environ["BACKLINE_TUNING"] = ""  # nothing that is set or tuned on this machine

import numpy as np

import backline
from backline import backends
from backline.libraries.reference.rounding import round_to, unit

PRECISIONS = ("ieee", "tf32", "bf16")
SHAPES = [(n, n, n) for n in (64, 256, 1024, 2048)] + [(128, k, 128) for k in (16, 256, 4096, 65536)]
HEADS = ("m x k x n", "asked for", "computed in", "largest", "typical", "expected", "bound")


def bound(precision: str, k: int) -> float:
    """Largest error relative to |A| |B| that rounding can explain."""
    gamma = k * 2.0**-24 / (1 - k * 2.0**-24)
    u = 0.0 if precision == "ieee" else unit(precision)
    return 2 * u + u**2 + gamma * (1 + u) ** 2


def expected(precision: str, a: np.ndarray, b: np.ndarray, size: np.ndarray) -> float:
    """Typical error relative to |A| |B|, from the mean squares of the operands and of what rounding takes from them."""

    def square(x: np.ndarray) -> float:
        return float(np.mean(x.astype(np.float64) ** 2))

    lost = square(round_to(a, precision) - a) * square(b) + square(a) * square(round_to(b, precision) - b)
    return math.sqrt(a.shape[1] * lost * float(np.mean(1 / size**2)))


def main() -> None:
    rng = np.random.default_rng(1)
    print("| " + " | ".join(HEADS) + " |")
    print("|---|---|---|" + "---:|" * 4)
    for m, k, n in SHAPES:
        a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        size = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
        for precision in PRECISIONS:
            with backends.flags(fp32_precision=precision, emulate=True):
                result = backline.matmul(a, b)
                effective = backline.explain().effective
            error = np.abs(result - exact) / size
            figures = [f"{error.max():.1e}", f"{math.sqrt(np.mean(error**2)):.1e}"]
            figures.append("" if precision == "ieee" else f"{expected(precision, a, b, size):.1e}")
            figures.append(f"{bound(precision, k):.1e}")
            print("| " + " | ".join([f"{m} x {k} x {n}", precision, effective, *figures]) + " |", flush=True)


if __name__ == "__main__":
    main()
