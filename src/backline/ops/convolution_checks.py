"""Argument checks of convolutions and their gradients, and the Problems that they build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import operand
from ..problems.conv_problem import ConvProblem
from ..switches.switch import show
from .array_arguments import check_array, check_out
from .linalg_checks import enough_memory, word

__all__ = ["Array", "Sizes", "conv_problem", "grad_problem", "grad_shape", "transpose_problem"]

Array = np.ndarray[Any, Any]
Sizes = int | Sequence[int]
Pairs = tuple[tuple[int, int], ...]
MOST = 2**31 - 1  # of any size that is given as a number


# Parts of a call ------------------------------------------------------------------------------------------------------


# Words of torch's errors that programs look for.
_WRONG_NUMBER = {
    "": "expected {name} to be a single integer value or a list of {rank} values to match the convolution dimensions",
    **dict.fromkeys(("max_pool", "avg_pool"), "{where}: {name} must either be a single int, or a tuple of {word} ints"),
    "adaptive_avg_pool": "{where}: output_size must be {rank}",
}
_TOO_SMALL = {
    "conv": {
        "padding": "negative padding is not supported", "output_padding": "negative output_padding is not supported",
        "stride": "non-positive stride is not supported", "dilation": "dilation should be greater than zero",
    },
    "pool": {
        "padding": "padding must be non-negative", "stride": "stride must be greater than zero, stride should not be zero",
        "kernel_size": "kernel_size must be greater than zero, kernel size should be greater than zero",
        "dilation": "dilation must be greater than zero, dilation should be greater than zero",
        "output_size": "elements of output_size must be greater than or equal to 0",
    },
}  # fmt: skip


def numbers(where: str, name: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    """Returns an int for each dimension, from one int, one for each, or a tuple of one that stands for all."""
    wanted = "an int" if rank == 1 else f"an int or a tuple of {rank} ints"
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if any(isinstance(n, (bool, np.bool_)) or not isinstance(n, (int, np.integer)) for n in values):
        raise BadType(f"{where}: {name}={show(value)} is not {wanted}")
    if len(values) == 1:
        values *= rank
    if len(values) != rank:
        raise BadValue(
            f"{where}: {name}={show(value)} has {len(values)} numbers, the images have {rank} dimensions",
            cause=_WRONG_NUMBER.get(where.rstrip("123d"), _WRONG_NUMBER[""]).format(
                where=where, name=name, rank=rank, word={1: "one", 2: "two", 3: "three"}.get(rank, rank)
            ),
        )
    if min(values) < least or max(values) > MOST:
        cause = f"it must be from {least} to {MOST} in each dimension"
        if min(values) < least:
            words = _TOO_SMALL.get("conv" if where.startswith(("conv", "prepack")) else "pool", {}).get(name, "")
            cause = f"{words.format(name=name)}: {cause}" if words else cause
        raise BadValue(f"{where}: {name}={show(value)}", cause=cause)
    return tuple(map(int, values))


def number_of_groups(where: str, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise BadType(f"{where}: groups={show(value)} is not an int")
    if value < 1:
        raise BadValue(f"{where}: groups={show(value)}", cause="non-positive groups is not supported: it must be 1 or more")
    return int(value)


def padding_pairs(where: str, padding: Any, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> Pairs:
    """Returns the zeros before and after each dimension, from numbers or from a word."""
    if not isinstance(padding, str):
        return tuple((n, n) for n in numbers(where, "padding", padding, len(kernel), 0))
    if word(where, "padding", padding, ("valid", "same"), f"Invalid padding string: {padding!r}") == "valid":
        return ((0, 0),) * len(kernel)
    if any(s != 1 for s in stride):
        raise BadValue(
            f"{where}: padding='same' with stride={stride}",
            cause="padding='same' is not supported for strided convolutions: a result of the input's size has a stride of 1",
            remedy="numbers for padding",
        )
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return tuple((n // 2, n - n // 2) for n in total)  # an odd number has the last one at the end


def check_arrays(where: str, arrays: dict[str, Any]) -> None:
    """Refuses what is not arrays of one dtype that convolutions take; bias and residual may be None, and out is not checked."""
    optional = [name for name in ("bias", "residual") if arrays.get(name) is None]
    present = {name: check_array(a, f"{where}: {name}") for name, a in arrays.items() if name not in (*optional, "out")}
    first, array = next(iter(present.items()))
    if array.dtype.kind not in "iufc" and array.dtype.name != "bfloat16":
        raise BadType(f"{where}: {first} has dtype {array.dtype}", remedy="x.astype(np.float32)")
    for name, other in present.items():
        if other.dtype != array.dtype:
            raise BadType(
                f"{where}: {first} has dtype {array.dtype}, {name} has {other.dtype}",
                cause="a convolution runs in one dtype",
                remedy=f"{name}.astype(np.{array.dtype.name})",
            )


def rank_of(where: str, name: str, shape: tuple[int, ...], rank: int, what: str) -> None:
    if len(shape) != rank + 2:
        raise BadValue(f"{where}: {name} must have {rank + 2} dimensions, {what}; it has shape {shape}")


def dims(names: str, rank: int) -> str:
    return f"({names}, {', '.join('dhw'[3 - rank :])})"


def kernel_of(where: str, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if 0 in shape[2:]:
        raise BadValue(
            f"{where}: {name} of shape {shape} has a kernel without elements", cause="kernel size should be greater than zero"
        )
    return shape[2:]


def grouped(where: str, groups: int, weight: str, shape: tuple[int, ...], channels: int, of: str) -> None:
    """Refuses weights (O, C / groups, ...) that do not fit that many channels."""
    if shape[1] * groups != channels:
        raise BadValue(
            f"{where}: {of} has {channels} channels, {weight} of shape {shape} with groups={groups} takes {shape[1] * groups}",
            cause=f"Given groups={groups}, {weight} of size {list(shape)} expects the {of} to have {shape[1] * groups} channels,"
            f" but got {channels} channels instead",
        )
    if shape[0] % groups:
        raise BadValue(
            f"{where}: {weight} of shape {shape} has {shape[0]} features, which groups={groups} does not divide",
            cause=f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0",
        )


def points_of(
    where: str, image: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...], padding: Pairs,
    dilation: tuple[int, ...],
) -> tuple[int, ...]:  # fmt: skip
    """Returns the sizes of the resulting images."""
    points = []
    for n, k, s, (before, after), d in zip(image, kernel, stride, padding, dilation, strict=True):
        room, span = n + before + after, d * (k - 1) + 1
        if span > room:
            raise BadValue(
                f"{where}: images of size {image} with padding {padding} are smaller than a kernel of size {kernel}"
                f" with dilation {dilation}. Kernel size can't be greater than actual input size",
                cause=f"the kernel spans {span}, there is room for {room}",
                remedy="more padding, or larger images",
            )
        points.append((room - span) // s + 1)
    return tuple(points)


# Problems -------------------------------------------------------------------------------------------------------------


def _operands(
    where: str, rank: int, arrays: dict[str, Any], axes: str, groups: Any, stride: Any, dilation: Any
) -> tuple[Array, Array, int, tuple[int, ...], tuple[int, ...]]:
    """Returns input, with a batch, and weights, whose first axes are named; groups, stride and dilation as they are checked."""
    check_arrays(where, arrays)
    weight, input = arrays["weight"], arrays["input"]
    if input.ndim not in (rank + 1, rank + 2):
        raise BadValue(
            f"{where}: input must have {rank + 2} dimensions, {dims('N, C', rank)}, or {rank + 1} without a batch;"
            f" it has shape {input.shape}",
            cause=f"Expected {rank + 1}D (unbatched) or {rank + 2}D (batched) input to {where}, but got input of size:"
            f" {list(input.shape)}",
        )
    rank_of(where, "weight", weight.shape, rank, dims(axes, rank))
    kernel_of(where, "weight", weight.shape)
    return (
        input if input.ndim == rank + 2 else input[None], weight, number_of_groups(where, groups),
        numbers(where, "stride", stride, rank, 1), numbers(where, "dilation", dilation, rank, 1),
    )  # fmt: skip


def _finished(
    where: str, op: str, result: tuple[int, ...], arrays: dict[str, Any], activation: Any, **numbers: Any
) -> ConvProblem:
    """Returns the Problem, once bias, residual, activation and out have been checked against the result."""
    enough_memory(where, result, arrays["input"].dtype)
    single = arrays["input"].ndim < len(result)
    shape = result[1:] if single else result
    input, bias, residual, out = arrays["input"], arrays["bias"], arrays["residual"], arrays["out"]
    if bias is not None and bias.shape != (result[1],):
        raise BadValue(
            f"{where}: bias has shape {bias.shape}, the result has {result[1]} channels",
            cause=f"expected bias to be 1-dimensional with {result[1]} elements, but got bias of size {list(bias.shape)} instead",
        )
    if residual is not None and residual.shape != shape:
        raise BadValue(f"{where}: residual has shape {residual.shape}, the result has shape {shape}")
    parameters: tuple[tuple[str, Any], ...] = ()
    if activation is not None:
        parameters = (("activation", word(where, "activation", activation, ("relu",))),)
        if input.dtype.kind == "c":
            raise BadType(f"{where}: activation='relu' for {input.dtype}", cause="complex numbers have no order")
    if out is not None:
        check_out(out, f"{where}: out", shape, input.dtype)
    operands = []
    for role, array in arrays.items():
        if array is not None:
            operands.append(operand(role, array[None] if single and role in ("input", "residual", "out") else array))
    channels, *image = input.shape[1 - len(result) :]
    return ConvProblem(
        op, tuple(operands), parameters, "conv", result=result, batch=result[0], features=result[1], channels=channels,
        image=tuple(image), kernel=arrays["weight"].shape[2:], **numbers,
    )  # fmt: skip


def conv_problem(
    where: str, rank: int, arrays: dict[str, Any], stride: Any, padding: Any, dilation: Any, groups: Any, activation: Any, *,
    of_any_size: bool = False,
) -> ConvProblem:  # fmt: skip
    """Returns the Problem of a convolution; `arrays` has its arrays by role. With `of_any_size` the images are not known yet."""
    input, weight, groups, stride, dilation = _operands(where, rank, arrays, "O, C / groups", groups, stride, dilation)
    grouped(where, groups, "weight", weight.shape, input.shape[1], "input")
    kernel = weight.shape[2:]
    padding = padding_pairs(where, padding, kernel, stride, dilation)
    points = (0,) * rank if of_any_size else points_of(where, input.shape[2:], kernel, stride, padding, dilation)
    return _finished(
        where, "conv", (input.shape[0], weight.shape[0], *points), arrays, activation, stride=stride, padding=padding,
        dilation=dilation, groups=groups, output_padding=(0,) * rank,
    )  # fmt: skip


def transpose_problem(
    where: str, rank: int, arrays: dict[str, Any], stride: Any, padding: Any, output_padding: Any, groups: Any, dilation: Any,
    activation: Any, *, of_any_size: bool = False,
) -> ConvProblem:  # fmt: skip
    """Returns the Problem of a transposed convolution; parameters as `conv_problem`."""
    input, weight, groups, stride, dilation = _operands(where, rank, arrays, "C, O / groups", groups, stride, dilation)
    channels, kernel = input.shape[1], weight.shape[2:]
    if weight.shape[0] != channels:
        raise BadValue(
            f"{where}: input has {channels} channels, weight of shape {weight.shape} takes {weight.shape[0]}",
            cause=f"weight is (channels, features / groups, ...): expected input to have {weight.shape[0]} channels,"
            f" but got {channels} channels instead",
        )
    if channels % groups:
        raise BadValue(f"{where}: input has {channels} channels, which groups={groups} does not divide")
    if isinstance(padding, str):
        raise BadType(f"{where}: padding={padding!r} is not a number", cause="a transposed convolution takes no words for it")
    cut = numbers(where, "padding", padding, rank, 0)
    extra = numbers(where, "output_padding", output_padding, rank, 0)
    if any(n >= max(s, d) for n, s, d in zip(extra, stride, dilation, strict=True)):
        raise BadValue(
            f"{where}: output_padding={output_padding!r}",
            cause=f"output padding must be smaller than either stride or dilation, in each dimension:"
            f" stride={stride}, dilation={dilation}",
        )
    if 0 in input.shape[2:] and not of_any_size:
        raise BadValue(
            f"{where}: Only zero batch or zero channel inputs are supported, but got input shape: {list(input.shape)}",
            cause="there is no point to begin with", remedy="images of 1 point or more in each dimension",
        )  # fmt: skip
    points = []
    for n, k, s, p, d, e in zip(input.shape[2:], kernel, stride, cut, dilation, extra, strict=True):
        size = (n - 1) * s - 2 * p + d * (k - 1) + 1 + e
        if size < 1 and not of_any_size:
            raise BadValue(
                f"{where}: padding={padding!r} leaves a result of size {size}",
                cause="Output size is too small:"
                f" images of size {input.shape[2:]} and a kernel of size {kernel} with stride {stride} give {size + 2 * p}",
            )
        points.append(0 if of_any_size else size)
    return _finished(
        where, "conv_transpose", (input.shape[0], weight.shape[1] * groups, *points), arrays, activation, stride=stride,
        padding=tuple((p, p) for p in cut), dilation=dilation, groups=groups, output_padding=extra,
    )  # fmt: skip


def grad_shape(where: str, rank: int, arrays: dict[str, Any], name: str, size: Any) -> tuple[int, ...]:
    """Returns the shape that a gradient is to have, given by the argument `name`, once the arrays are known to fit together."""
    check_arrays(where, {"grad_output" if role == "grad" else role: a for role, a in arrays.items()})
    if not isinstance(size, (tuple, list)):
        raise BadType(f"{where}: {name}={size!r} is not a tuple of {rank + 2} ints")
    if len(size) != rank + 2:
        raise BadValue(f"{where}: {name}={size!r} has {len(size)} numbers, there are {rank + 2} dimensions")
    shape = numbers(where, name, size, rank + 2, 0)
    role, input_shape = (name, shape) if name == "input_size" else ("input", arrays["input"].shape)
    rank_of(where, role, input_shape, rank, dims("N, C", rank))
    return shape


def grad_problem(
    where: str, rank: int, op: str, arrays: dict[str, Any], size: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> ConvProblem:
    """Returns the Problem of a gradient: by the input, whose size is given beside the weights, or by the weights."""
    name = "input_size" if op == "conv_grad_input" else "weight_size"
    size = grad_shape(where, rank, arrays, name, size)
    grad = arrays["grad"]
    if op == "conv_grad_input":
        input_shape, weight_shape, names = size, arrays["weight"].shape, (name, "weight")
    else:
        input_shape, weight_shape, names = arrays["input"].shape, size, ("input", name)
    rank_of(where, names[1], weight_shape, rank, dims("O, C / groups", rank))
    rank_of(where, "grad_output", grad.shape, rank, dims("N, O", rank))
    kernel = kernel_of(where, names[1], weight_shape)
    groups = number_of_groups(where, groups)
    grouped(where, groups, names[1], weight_shape, input_shape[1], names[0])
    stride, dilation = numbers(where, "stride", stride, rank, 1), numbers(where, "dilation", dilation, rank, 1)
    padding = padding_pairs(where, padding, kernel, stride, dilation)
    points = points_of(where, input_shape[2:], kernel, stride, padding, dilation)
    result = (input_shape[0], weight_shape[0], *points)
    if grad.shape != result:
        raise BadValue(
            f"{where}: grad_output has shape {grad.shape}, the convolution has a result of shape {result}",
            cause=f"{names[0]} {input_shape}, {names[1]} {weight_shape}, stride {stride}, padding {padding}, dilation {dilation}",
        )
    enough_memory(where, size, grad.dtype)
    operands = tuple(operand(role, array) for role, array in arrays.items())
    return ConvProblem(
        op, operands, (), "conv", stride=stride, padding=padding, dilation=dilation, groups=groups, output_padding=(0,) * rank,
        batch=input_shape[0], channels=input_shape[1], features=weight_shape[0], image=input_shape[2:], kernel=kernel,
        result=size,
    )  # fmt: skip
