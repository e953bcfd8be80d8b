"""From sums of int8 products to results: the call of compiled code that every plan of ours for int8 ends in."""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import gcd
from typing import NamedTuple

import numpy as np

from ... import _kernels
from ...native.plan_builder import Builder, Pointer
from ...problems.quantized_problem import QuantizedProblem
from ..reference.reference_requantize import FLOAT32
from .vector_level import vector_level

__all__ = ["SMALL_FLOPS", "Finish", "finish_for"]

ROUNDINGS = {"fbgemm": 1, "qnnpack": 2}  # of requantize.hpp; 0 for the others, which round exactly
SMALL_FLOPS = 2.4e5  # of a call that keeps the interpreter's lock, since it ends before another thread could begin
VECTOR, LONG_ROW = 16, 512  # sums that are done at once, and of a row


class Finish(NamedTuple):
    """The function that brings rows of sums to their scale, and its first arguments.

    Attributes
    ----------
    address, layer, numbers
        The function, the constants of the layer, and what follows from the numbers of a call.
    repeats
        Rows that it treats as one: parts of them are best multiples of that.
    """

    address: int
    layer: Pointer
    numbers: Pointer
    repeats: int


def finish_for(
    b: Builder, p: QuantizedProblem, weight_sums: Pointer, argument: Callable[[str], Pointer], rows: int, compensated: bool
) -> Finish:
    """Writes down what follows from scales, zero points and the bias of a call.

    Parameters
    ----------
    weight_sums
        Where the sums of each output's weights are.
    argument
        Returns where an operand is.
    rows
        Of sums that are finished at once.
    compensated
        Whether the zero point of the input is to be taken out of the sums.
    """
    real, narrow, zero = p.op == "quantized.linear_dynamic", p.engine in FLOAT32, p.get("weight_zero")
    # Rows are brought to their scale as if they were longer ones, which fill vectors and are worth a loop of their own.
    even, most = VECTOR // gcd(p.outs, VECTOR), min(LONG_ROW // p.outs, rows)
    repeats = max(most // even, 1) * even if zero is None and not real and not narrow and most > 1 else 1
    limits = np.iinfo(p.dtype)
    fields = (
        p.outs, repeats, p.terms, int(p.shape("weight_scale")[0] > 1), int(zero is not None and zero.shape[0] > 1),
        int(compensated), p.groups, int(limits.min), int(limits.max), vector_level(), ROUNDINGS.get(p.engine, 0),
    )  # fmt: skip
    layer = b.constant(struct.pack(f"<{len(fields)}q", *fields))
    numbers = b.work(_kernels.requantize_header + (20 if real or narrow else 16) * p.outs * repeats, shared=True)
    roles = ("input_scale", "input_zero", "weight_scale", "weight_zero", "bias", "result_scale", "result_zero")
    given = [argument(role) if p.get(role) is not None else 0 for role in roles]
    b.call(_kernels.addresses["requantize_numbers"], [layer, numbers, *given, weight_sums])
    return Finish(_kernels.addresses["requantize_real" if real else "requantize_finish"], layer, numbers, repeats)
