"""Scaled dot product attention, full, causal and masked: ``python benchmarks/attention.py [--threads N]``.

Of float32 and of bfloat16, for which NumPy has no fast products: on its side they are computed in float32, as its users do.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import backline
from backline.nn.functional import scaled_dot_product_attention
from side_by_side import Table, compare, threads_asked, torch_or_none

DTYPES = ("float32", "bfloat16")
SHAPES = ((1, 8, 128, 128, 64), (2, 8, 512, 512, 64), (1, 8, 2048, 2048, 64), (1, 16, 1024, 1024, 128), (1, 16, 1, 4096, 64))
MOST_SCORES = 1 << 25  # NumPy holds them all: more are left out

rng = np.random.default_rng(1)
threads = threads_asked()
torch = torch_or_none(threads)


def formula(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
    """Attention as one writes it with NumPy alone."""
    scores = q @ k.swapaxes(-1, -2)
    scores *= np.float32(q.shape[-1] ** -0.5)
    if is_causal:
        attn_mask = np.tri(*scores.shape[-2:], dtype=bool)
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, np.float32(-np.inf))
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores @ v


def row(table: Table, batch: int, heads: int, queries: int, keys: int, dim: int, kind: str, dtype: str) -> None:
    sizes = (queries, keys, keys)
    wide = [rng.standard_normal((batch, heads, n, dim), np.float32) for n in sizes]
    q, k, v = wide if dtype == "float32" else [x.astype(ml_dtypes.bfloat16) for x in wide]
    keywords: dict[str, Any] = {
        "causal": {"is_causal": True},
        "padding": {"attn_mask": rng.random((batch, 1, 1, keys)) < 0.8},
    }.get(kind, {})
    contestants: dict[str, Any] = {"backline": lambda: scaled_dot_product_attention(q, k, v, **keywords)}
    if q.size // dim * keys <= MOST_SCORES:
        contestants["numpy"] = lambda: formula(*wide, **keywords)
    if torch:
        function = torch.nn.functional.scaled_dot_product_attention
        tensors = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in wide]
        same = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in keywords.items()}
        contestants["torch"] = lambda: function(*tensors, **same)
    times = compare(contestants)
    scaled_dot_product_attention(q, k, v, **keywords)
    choice = backline.explain()
    table.add(f"{dtype} {batch}x{heads}x{queries}x{keys}x{dim} {kind}", times, f"{choice.library} {choice.algorithm}")


def main() -> None:
    table = Table("attention", ["numpy", "torch"] if torch else ["numpy"])
    with backline.backends.flags(num_threads=threads):
        for shape in SHAPES:
            for kind in ("full", "padding") if shape[2] == 1 else ("full", "causal", "padding"):
                for dtype in DTYPES:
                    row(table, *shape, kind, dtype)
    table.save(threads=threads)


if __name__ == "__main__":
    main()
