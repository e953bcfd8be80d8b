"""Activations of small and of large numbers: ``python benchmarks/activation_ranges.py [--threads N] [--json]``.

A row is an activation of 400x600 normal numbers times a scale. What underflows on the way may take a processor a hundred times as
long as another number; an activation should take as long for any input.
"""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np

import backline
from backline.engine import ranking_files
from backline.nn import functional as F
from side_by_side import Table, compare, threads_asked, torch_or_none

SCALES = (1, 10, 30)
DTYPES = {"float32": np.float32, "float64": np.float64, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}

threads = threads_asked()
torch = torch_or_none(threads)


def main() -> None:
    if not torch:
        raise SystemExit("this compares with PyTorch alone")
    table = Table(f"activation_ranges_{ranking_files.here()}", ["torch"])
    numbers = np.random.default_rng(1).standard_normal((400, 600))
    with backline.backends.flags(num_threads=threads):
        for name in ("gelu", "silu", "tanh", "sigmoid"):
            peer = getattr(torch.nn.functional, name) if name in ("gelu", "silu") else getattr(torch, name)
            for dtype, of_numpy in DTYPES.items():
                for scale in SCALES:
                    x = (numbers * scale).astype(of_numpy)
                    same = torch.from_numpy(numbers * scale).to(getattr(torch, dtype))
                    ours = getattr(F, name)
                    contestants = {"backline": lambda f=ours, x=x: f(x), "torch": lambda f=peer, x=same: f(x)}
                    times = compare(contestants, seconds=0.01, rounds=5)
                    ours(x)
                    choice = backline.explain()
                    table.add(f"{name} {dtype} times {scale}", times, f"{choice.library} {choice.algorithm}")
    if "--json" in sys.argv:
        table.save(threads=threads)


if __name__ == "__main__":
    main()
