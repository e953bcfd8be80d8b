"""From the precision requested to the one in effect.

Only float32 and complex64 are concerned. A request is a permission: an algorithm may be as coarse as it says, and is not
asked to be. `emulate` makes it an order, kept by rounding the inputs, where no hardware has the precision.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from .. import switches
from ..libraries.base import Algorithm
from ..problems import Problem
from .choice import Candidate

__all__ = ["FINENESS", "as_asked", "fineness", "node", "permitted", "requested", "spelled"]

FINENESS = {"bf16": 0, "tf32": 1, "winograd": 1}  # anything else is finer
_OP = {"matmul": "matmul", "attention": "matmul", "einsum": "matmul", "conv": "conv", "rnn": "rnn"}
_BACKEND = {("cpu", "matmul"): "mkldnn", ("cpu", "conv"): "mkldnn", ("cpu", "rnn"): "mkldnn",
            ("cuda", "matmul"): "cuda", ("cuda", "conv"): "cudnn", ("cuda", "rnn"): "cudnn"}  # fmt: skip


def node(problem: Problem) -> str:
    """Name of the switch that says how far the inputs of a Problem may be reduced; empty if none does.

    Linear algebra and Fourier transforms are always plain float32.
    """
    if problem.dtype.name not in ("float32", "complex64") or problem.family not in _OP:
        return ""
    kind = problem.device.partition(":")[0]
    if kind == "mps":
        return "fp32_precision"
    op = _OP[problem.family]
    if op == "rnn" and kind == "cpu" and not problem.op.startswith("lstm"):
        op = "matmul"  # GRU and plain recurrent networks run as products there
    backend = _BACKEND.get((kind, op))
    return f"{backend}.{op}.fp32_precision" if backend else ""


def requested(problem: Problem, snapshot: switches.Snapshot) -> str:
    """Returns the precision that the switches ask for: "none", "ieee", "tf32" or "bf16"; empty where no switch governs it."""
    name = node(problem)
    return str(snapshot.resolved(name)) if name else ""


def permitted(able: list[Algorithm], problem: Problem, snapshot: Any, refused: list[Candidate]) -> list[Algorithm]:
    """Drop the algorithms that are coarser than the switches permit, and under `emulate` those that are finer than asked."""
    name = node(problem)
    wish = requested(problem, snapshot)
    floor = FINENESS.get(wish, 2)
    kept = []
    for a in able:
        if FINENESS.get(a.precision, 2) < floor:
            reads = f"{name} reads {wish!r}" if name else "no switch permits less than the inputs' own precision here"
            refused.append(Candidate(a.library, a.name, "refused", f"computes in {a.precision}, and {reads}", name))
        else:
            kept.append(a)
    if not snapshot["emulate"] or wish not in FINENESS:
        return kept
    real = [a for a in kept if a.precision == wish and "emulated" not in a.traits]
    taken = real or [a for a in kept if a.precision == wish]
    if not taken:
        return kept
    for a in kept:
        if a not in taken:
            what = f"the hardware has {wish}" if "emulated" in a.traits and real else f"{wish} is asked for exactly"
            refused.append(Candidate(a.library, a.name, "refused", f"{what}, and emulate is on", "emulate"))
    return taken


def as_asked(problem: Problem, snapshot: Any) -> Problem:
    """The Problem with the precision asked for exactly among its parameters: what is measured is measured for that."""
    wish = requested(problem, snapshot)
    if not snapshot["emulate"] or wish not in FINENESS:
        return problem
    return replace(problem, parameters=(*problem.parameters, ("precision", wish)))


def spelled(algorithm: Algorithm, governing: str) -> str:
    """The precision an algorithm computes in, as reports write it; `governing` is the `node` of its Problem."""
    if algorithm.precision in FINENESS:
        return algorithm.precision + (" (emulated)" if "emulated" in algorithm.traits else "")
    return algorithm.precision or ("ieee" if governing else "")


@lru_cache(maxsize=4096)
def fineness(key: str) -> int:
    """Returns how finely an algorithm computes, as far as its name tells; by the scale of `FINENESS`.

    Examples
    --------
    >>> fineness("onednn.nhwc_bf16@n"), fineness("emulated.tf32@1"), fineness("mkl.gemm@1")
    (0, 1, 2)
    """
    return min(FINENESS.get(word, 2) for word in key.partition("@")[0].replace(".", "_").split("_"))
