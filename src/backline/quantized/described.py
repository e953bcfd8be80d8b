"""Problems of operations on int8 for `explain` and for problems as text, built from real operands or from shapes alone.

A plain array stands for a quantized one of its shape: on the command line there are no others. Real numbers become uint8 then, as
they would be quantized; weights are int8 with one scale.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries import quantized_engines
from ..libraries.reference.reference_quantized import MOST_TERMS
from ..ops.array_arguments import check_array
from ..ops.convolution_checks import grouped, kernel_of, number_of_groups, numbers, points_of
from ..ops.linalg_checks import enough_memory
from ..problems import Operand
from ..problems.op_registry import operations
from ..problems.quantized_problem import QuantizedProblem
from . import ops
from .schemes import scheme

__all__: list[str] = []

F32, I32, I8 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.int8)


def _given(where: str, x: Any, weight: Any, rank: int) -> np.dtype[Any]:
    """Returns the dtype of the input that two plain arrays stand for."""
    for name, array in (("x", x), ("weight", weight)):
        check_array(array, f"{where}: {name}")
    if weight.ndim != rank:
        raise BadValue(f"{where}: weight must have {rank} dimensions, it has shape {weight.shape}")
    if prod(weight.shape[1:]) > MOST_TERMS:
        raise BadValue(f"{where}: weight of shape {weight.shape} has too many terms", cause=f"{MOST_TERMS} at most")
    if x.dtype.name in ("uint8", "int8"):
        kind: np.dtype[Any] = x.dtype
        return kind
    if x.dtype.kind != "f" and x.dtype.name != "bfloat16":
        raise BadType(f"{where}: x has dtype {x.dtype}", remedy="uint8 or int8, or real numbers that are quantized to uint8")
    return np.dtype(np.uint8)


def _of_shapes(op: str, dtype: np.dtype[Any], x: Any, weight: Any, result: tuple[int, ...], **words: Any) -> QuantizedProblem:
    enough_memory(op, result, dtype)
    operands = [Operand.contiguous("input", dtype, x.shape), Operand.contiguous("weight", I8, weight.shape)]
    numbers_of = [("input_scale", F32), ("input_zero", I32), ("weight_scale", F32)]
    if op != "linear_dynamic":
        numbers_of += [("result_scale", F32), ("result_zero", I32)]
    operands += [Operand.contiguous(role, of, (1,)) for role, of in numbers_of]
    words["engine"] = scheme(words["engine"]).engine
    problem = QuantizedProblem(f"quantized.{op}", tuple(operands), tuple(sorted(words.items())), "quantized", result=result)
    wanted = quantized_engines.packing(problem)
    if wanted is None:
        return problem
    form = Operand.contiguous("form", np.dtype(np.uint8), (wanted.nbytes,))
    return replace(problem, operands=(*operands[:2], form, *operands[2:]))


def _linear_of_shapes(op: str, x: Any, weight: Any, engine: Any = None) -> QuantizedProblem:
    dtype = _given(op, x, weight, 2)
    ops.fits(op, x.shape, weight.shape)
    return _of_shapes(op, dtype, x, weight, (*x.shape[:-1], weight.shape[0]), engine=engine)


def _conv2d_of_shapes(
    op: str, x: Any, weight: Any, engine: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1
) -> QuantizedProblem:
    dtype = _given(op, x, weight, 4)
    if x.ndim != 4:
        raise BadValue(f"{op}: x must have 4 dimensions, (N, C, H, W); it has shape {x.shape}")
    kernel = kernel_of(op, "weight", weight.shape)
    parts = number_of_groups(op, groups)
    grouped(op, parts, "weight", weight.shape, x.shape[1], "x")
    steps, spread = numbers(op, "stride", stride, 2, 1), numbers(op, "dilation", dilation, 2, 1)
    around = numbers(op, "padding", padding, 2, 0)
    points = points_of(op, x.shape[2:], kernel, steps, tuple((n, n) for n in around), spread)
    result = (x.shape[0], weight.shape[0], *points)
    return _of_shapes(
        op, dtype, x, weight, result, engine=engine, stride=steps, padding=around, dilation=spread, groups=parts
    )  # fmt: skip


def _builder(op: str, arguments: Callable[..., Any], of_shapes: Callable[..., QuantizedProblem]) -> Callable[..., Any]:
    call, there = operations[f"quantized.{op}"].build, operations.get(f"quantized.{op}_there")

    def problem(x: Any, packed: Any, *numbers: Any, **words: Any) -> Any:
        if isinstance(packed, np.ndarray):
            return of_shapes(op, x, packed, *numbers, **words)
        if there is not None and ops.kind_there(x) is not None:
            return there.build(*arguments(x, packed, *numbers, **words))
        return call(*arguments(x, packed, *numbers, **words))

    return problem


for _name, _arguments, _of_shapes_alone in (
    ("linear", ops.for_linear, _linear_of_shapes), ("linear_dynamic", ops.for_dynamic, _linear_of_shapes),
    ("conv2d", ops.for_conv2d, _conv2d_of_shapes),
):  # fmt: skip
    _row = operations[f"quantized.{_name}"]
    _signature = inspect.signature(getattr(ops, _name))
    operations[_row.name] = _row.replaced(build=_builder(_name, _arguments, _of_shapes_alone), signature=_signature)

# It is the one before on arrays of another kind, and has no name of its own for users.
del operations["quantized.linear_dynamic_there"]
