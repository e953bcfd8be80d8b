"""Runs recipes of attention in Triton's interpreter, case by case, against float64. A program of its own: the interpreter is
chosen by the environment when Triton is imported.

    TRITON_INTERPRET=1 python tests/triton_kernels/interpreted.py            all cases
    TRITON_INTERPRET=1 python tests/triton_kernels/interpreted.py gqa        one

Writes a line for each case: its name, the error of each result, and what is allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from backline.libraries.cuda.attention import triton_kernels
from backline.libraries.cuda.attention.launch_sequence import KERNELS, Recipe, Tile, limits, recipe
from backline.problems import operand
from backline.problems.attention_problem import AttentionProblem, attention_problem
from fakes import philox
from fakes.triton_arrays import Pointer

Array = np.ndarray[Any, Any]
SMALL = Tile(16, 16, 4, 1)
UNEVEN = Tile(32, 16, 4, 1)
SEED = 2**40 + 5
ALLOWED = {"float32": 2e-6, "float16": 3e-3}


def run(problem: AttentionProblem, made: Recipe, tile: Tile, arrays: dict[str, Array]) -> dict[str, Array]:
    """Returns what a recipe computes: its arrays by role."""
    at = dict(arrays)
    for each in made.made:
        at[each.role] = np.full(each.shape, np.nan, each.dtype)
    none = np.zeros(1, bool)
    for step in made.steps:
        pointers = [Pointer(at[role] if role else none) for role in step.pointers]
        kernel = getattr(triton_kernels, step.variant.kernel)
        names = KERNELS[step.variant.kernel][1]
        scalars = (SEED if name == "seed" else value for name, value in zip(names, step.scalars, strict=True))
        kernel[(step.programs(tile),)](*pointers, *scalars, **step.variant.fixed(tile))
    return at


# --- the reference -----------------------------------------------------------------------------------------------------------


def reference(p: AttentionProblem, arrays: dict[str, Array]) -> dict[str, Array]:
    """Attention and its gradients in float64, by roles of a recipe."""
    q, k, v = (arrays[role].astype(np.float64) for role in ("query", "key", "value"))
    heads = q.shape[1]
    many = [np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v)]
    scores = q @ many[0].swapaxes(-1, -2) * p.scale
    mask = arrays.get("mask")
    taken = np.ones(scores.shape, bool)
    if mask is not None:
        taken &= mask if mask.dtype == bool else mask != -np.inf
        scores = scores if mask.dtype == bool else scores + np.where(mask == -np.inf, 0, mask)
    if p.is_causal:
        taken &= np.tri(*scores.shape[-2:], dtype=bool)
    scores = np.where(taken, scores, -np.inf)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(most), 0, most))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    kept = np.ones(scores.shape)
    if p.dropout:
        kept = philox.kept(scores.shape, SEED, p.dropout)
    found = {"O": (weights * kept) @ many[1]}
    if p.returns_lse or "grad" in arrays:
        with np.errstate(divide="ignore"):
            found["LSE"] = np.where(total == 0, -np.inf, most + np.log(total))[..., 0]
    if "grad" in arrays:
        g = arrays["grad"].astype(np.float64)
        dp = g @ many[1].swapaxes(-1, -2) * kept
        ds = weights * (dp - (dp * weights).sum(-1, keepdims=True))
        found["DQ"] = ds @ many[0] * p.scale
        found["DK"] = ds.swapaxes(-1, -2) @ q * p.scale
        found["DV_"] = (weights * kept).swapaxes(-1, -2) @ g
        for role, of in (("DK", k), ("DV_", v)):
            found[role] = found[role].reshape(*of.shape[:2], -1, *found[role].shape[-2:]).sum(2)
    return found


# --- the cases ---------------------------------------------------------------------------------------------------------------


def case(
    queries: int = 20, keys: int = 20, dim: int = 16, vdim: int = 0, heads: int = 2, shared: int = 1, batch: int = 1, dtype: str = "float32",
    mask: Callable[[np.random.Generator, tuple[int, ...]], Array] | None = None, causal: bool = False, dropout: float = 0.0,
    tile: Tile = SMALL, grad: bool = True, interleaved: bool = False, scale: float | None = None, large: float = 1.0,
    known: bool = False,
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """Name of each result -> its error and what is allowed."""
    rng = np.random.default_rng(7)

    def array(h: int, n: int, d: int) -> Array:
        if interleaved:
            return rng.standard_normal((batch, n, h, d)).astype(dtype).swapaxes(1, 2)
        return rng.standard_normal((batch, h, n, d)).astype(dtype)

    q, k, v = array(heads, queries, dim) * np.dtype(dtype).type(large), array(heads // shared, keys, dim), array(heads // shared, keys, vdim or dim)
    m = mask(rng, (batch, heads, queries, keys)) if mask else None
    p = attention_problem(q, k, v, m, dropout, causal, scale, shared > 1)
    arrays = {"query": q, "key": k, "value": v} | ({} if m is None else {"mask": m})
    if grad:
        arrays["grad"] = array(heads, queries, vdim or dim)
        p = replace(p, operands=(*p.operands, operand("grad", arrays["grad"])))
    p = replace(p, device="cuda:0")
    if not grad:
        p = replace(p, parameters=(*p.parameters, ("return_lse", True)))
    if known:  # gradients from what a forward pass gave
        forward = replace(p, operands=tuple(o for o in p.operands if o.role != "grad"), parameters=(*p.parameters, ("return_lse", True)))
        gave = run(forward, recipe(forward, (9, 0)), tile, arrays)
        arrays |= {"output": gave["O"], "lse": gave["LSE"]}
        p = replace(p, operands=(*p.operands, *(operand(role, arrays[role]) for role in ("output", "lse"))))
    assert limits(p) == "", limits(p)
    found, expected = run(p, recipe(p, (9, 0)), tile, arrays), reference(p, arrays)
    if known:
        expected = {role: wanted for role, wanted in expected.items() if role in ("DQ", "DK", "DV_")}
    errors = {}
    for role, wanted in expected.items():
        got, none = found[role].astype(np.float64), np.isneginf(wanted)
        assert (np.isneginf(got) == none).all(), role
        error = np.abs(got[~none] - wanted[~none]).max(initial=0) / max(1.0, np.abs(wanted[~none]).max(initial=0))
        errors[role] = float(error), ALLOWED[dtype] * (1 if role == "O" else 4) * large
    return errors


def _bools(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    made = rng.random(shape) < 0.6
    made[..., 3, :] = False  # a row for which no key takes part
    return made


def _added(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    made = rng.standard_normal((shape[0], 1, 1, shape[3])).astype(np.float32)
    made[..., ::5] = -np.inf
    return made


def _everything_out(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.full(shape[2:], -np.inf, np.float32)


def _columns_first(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asfortranarray(rng.random(shape[2:]) < 0.7)


CASES: dict[str, dict[str, Any]] = {
    "plain": {"queries": 33, "keys": 47},
    "one query": {"queries": 1, "keys": 19},
    "one key": {"queries": 5, "keys": 1},
    "causal": {"queries": 37, "keys": 37, "causal": True},
    "causal, more keys": {"queries": 9, "keys": 40, "causal": True},
    "causal, more queries": {"queries": 40, "keys": 9, "causal": True},
    "causal, uneven tiles": {"queries": 70, "keys": 70, "heads": 1, "causal": True, "tile": UNEVEN},
    "mask of bool": {"mask": _bools},
    "mask added": {"mask": _added, "batch": 2},
    "mask, nothing left": {"mask": _everything_out, "heads": 1},
    "mask by columns": {"mask": _columns_first},
    "shared heads": {"heads": 4, "shared": 2, "queries": 18, "keys": 21},
    "odd dims": {"dim": 24, "vdim": 40, "heads": 1},
    "half": {"dtype": "float16", "causal": True},
    "dropout": {"dropout": 0.3},
    "dropout of all": {"dropout": 1.0, "heads": 1},
    "interleaved": {"interleaved": True, "batch": 2, "queries": 17, "keys": 17},
    "scale": {"scale": -0.7, "heads": 1},
    "large scores": {"large": 30.0, "heads": 1},
    "log-sum-exp given": {"known": True, "mask": _bools}, "log-sum-exp given, dropout": {"known": True, "dropout": 0.3, "queries": 33},
    "forward alone": {"grad": False, "queries": 33},
}

if __name__ == "__main__":
    assert "torch" not in sys.modules
    for name in sys.argv[1:] or CASES:
        for role, (error, allowed) in case(**CASES[name]).items():
            print(f"{name}\t{role}\t{error:.3e}\t{allowed:.3e}", flush=True)
    assert "torch" not in sys.modules
