"""Activations and their gradients by compiled loops: one reading of the memory, NaN and infinity as the formulas have them."""

from __future__ import annotations

import struct
from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES, compute_dtype
from ...problems.neural_problem import NeuralProblem
from .shares import DTYPES, Share, dense, even_share, float_size, in_shares, memory_order, placed
from .vector_level import vector_level

__all__ = ["ACTIVATIONS", "GRADIENTS", "pointwise_fields", "pointwise_refusal", "relu_of_halves", "write_pointwise"]

KINDS = ("none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")  # in the order of activations.hpp
ACTIVATIONS = ("gelu", "silu", "tanh", "sigmoid")
GRADIENTS = tuple(f"{name}_grad" for name in ACTIVATIONS)
SHARE, LINE = 1 << 14, 64  # elements of an item, and of the lines of the cache that it begins with
INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80}  # its bits


def pointwise_refusal(p: NeuralProblem) -> str:
    """Returns the reason why there is no loop for a Problem, or an empty string."""
    if p.dtype.name not in DTYPES:
        return f"its loops are for {', '.join(DTYPES)}, not {p.dtype.name}"
    order = memory_order(p.operands[0])
    return (
        "" if all(dense(o, order) for o in p.operands) else "there are gaps between elements, or arrays lie in different orders"
    )


def write_pointwise(b: Builder, p: NeuralProblem, threads: int) -> tuple[tuple[Pointer, ...], int]:
    """Writes the loop down; returns the result, and the number of items of the last group."""
    wide, size = compute_dtype(p.dtype).itemsize, prod(p.result)
    inputs = [b.argument(role) for role in ("input", "grad") if p.get(role)]
    out = placed(b, p, p.operands[0])
    if p.op == "relu" and p.dtype.name in HALVES:
        return (out,), relu_of_halves(b, p.dtype, inputs[0], out, size, threads)
    if not p.get("grad"):
        return (out,), _write_activation(b, p, inputs[0], out, threads)
    share = even_share(size, 1, SHARE, LINE)
    works = [b.work(share * wide) if p.dtype.name in HALVES else out for _ in inputs]
    description = b.constant(pointwise_fields(activation_of(p), wide))

    def write(at: Share) -> None:
        given = [at.load(array, p.dtype, 1, work) for array, work in zip(inputs, works, strict=True)]
        target = works[0] if p.dtype.name in HALVES else at.place(out, p.dtype.itemsize)
        b.call(_kernels.addresses["activation_grad"], [description, at.units, *given, target])
        at.store(target, out, p.dtype, 1)

    return (out,), in_shares(b, size, share, threads, write)


def _write_activation(b: Builder, p: NeuralProblem, source: Pointer, target: Pointer, threads: int) -> int:
    """Writes an activation down, which reads and writes 16-bit floats by itself; returns the items of the last group."""
    description = b.constant(pointwise_fields(activation_of(p), float_size(p.dtype)))

    def write(at: Share) -> None:
        here = (at.place(source, p.dtype.itemsize), at.place(target, p.dtype.itemsize))
        b.call(_kernels.addresses["activation"], [description, at.units, *here])

    return in_shares(b, prod(p.result), even_share(prod(p.result), 1, SHARE, LINE), threads, write)


def relu_of_halves(b: Builder, dtype: np.dtype[Any], source: Pointer, target: Pointer, size: int, threads: int) -> int:
    """Writes relu of 16-bit floats down, which may be in place; returns the number of items of the last group."""

    def write(at: Share) -> None:
        here = (at.place(source, 2), at.place(target, 2))
        b.call(_kernels.addresses["relu_16"], [vector_level(), INFINITY[dtype.name], at.units, *here])

    return in_shares(b, size, even_share(size, 1, SHARE, LINE), threads, write)


def activation_of(p: NeuralProblem) -> str:
    """Returns the name of the activation of a Problem, as KINDS has it."""
    return "gelu_tanh" if p.parameter("approximate") == "tanh" else p.op.removesuffix("_grad")


def pointwise_fields(activation: str, itemsize: int, *more: Any) -> bytes:
    """Returns the description of a loop: bytes of an element, vector instructions, the activation, and what else it has."""
    return struct.pack(f"<{3 + len(more)}q", itemsize, vector_level(), KINDS.index(activation), *more)
