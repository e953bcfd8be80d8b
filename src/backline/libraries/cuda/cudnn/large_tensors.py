"""Arrays of 2**31 elements and more on their way to cuDNN: a batch of images is divided, everything else is refused.

No plan says whether it counts elements with 32 bits. Some convolutions have plans that count with 64 since 9.3, but those of
groups have none (PyTorch issue 152816), and what others compute past that number shows in wrong results only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from ....problems import Operand
from ....problems.attention_problem import AttentionProblem
from ....problems.conv_problem import ConvProblem
from ....problems.memory_layout import contiguous_strides
from ..common.device_plan import new_images, refuse_overlaps_of_out
from ..common.gemm_layout import LARGEST

__all__ = ["InParts", "attention_refusal", "conv_refusal", "images_at_once", "part"]

BATCHED = ("input", "grad", "residual", "out")  # roles whose first axis is the batch


def _of_one_image(p: ConvProblem) -> int:
    """The elements of one image, or of what it becomes, whichever has more; with the zeros that a copy may have around it."""
    shapes = [o.shape for o in p.operands if o.role in ("input", "grad")]
    if p.op != "conv_grad_weight":
        shapes.append(p.result)
    return max(s[1] * prod(n + sum(pair) for n, pair in zip(s[2:], p.padding, strict=True)) for s in shapes)


def conv_refusal(p: ConvProblem) -> str:
    """Returns why a convolution, or a gradient, is not given to cuDNN although its batch may be divided; empty if it is."""
    weight = p.get("weight")
    shape = p.result if weight is None else weight.shape
    if prod(shape) > LARGEST:
        return f"its plans may count with 32 bits, and the weight has {prod(shape)} elements"
    image = _of_one_image(p)
    if image > LARGEST:
        return f"its plans may count with 32 bits, and an image, or its result, has {image} elements"
    if p.op == "conv_grad_weight" and image * p.batch > LARGEST:
        return f"its plans may count with 32 bits, and {image * p.batch} elements are summed over the batch, which is not divided"
    return ""


def images_at_once(p: ConvProblem) -> int:
    """Returns how many images at most a call of cuDNN is given; 0 where it is given all of them.

    >>> import numpy as np
    >>> x = Operand.contiguous("input", np.dtype("f4"), (9, 1 << 10, 1 << 10, 1 << 9))
    >>> sizes = {"batch": 9, "channels": 1 << 10, "features": 8, "image": (1 << 10, 1 << 9)}
    >>> images_at_once(ConvProblem("conv", (x,), padding=((0, 0),) * 2, result=(9, 8, 1, 1), **sizes))
    3
    """
    image = 0 if p.empty else _of_one_image(p)
    if image * p.batch <= LARGEST:
        return 0
    parts = -(-p.batch // (LARGEST // image))
    return -(-p.batch // parts)  # of equal size, as far as that goes: they share a plan


def part(p: ConvProblem, count: int) -> ConvProblem:
    """The Problem of so many images of another one's batch; its last operand is the part of the result."""
    result = (count, *p.result[1:])
    out = p.get("out")
    if out is None:
        order = (0, *range(2, len(result)), 1) if p.last else None
        out = Operand("out", p.dtype, p.result, contiguous_strides(p.result, p.dtype.itemsize, order))
    operands = (*(o for o in p.operands if o.role != "out"), out)
    cut = tuple(replace(o, shape=(count, *o.shape[1:])) if o.role in BATCHED else o for o in operands)
    return replace(p, operands=cut, batch=count, result=result)


class InParts:
    """The function of the Plan of a convolution whose batch is divided.

    `make` returns that of a part, which is given so many images, and the part of the result to write to as the last array.
    """

    def __init__(self, p: ConvProblem, images: int, make: Callable[[ConvProblem], Callable[..., Any]]) -> None:
        self.p = p
        self.cuts = [(first, min(first + images, p.batch)) for first in range(0, p.batch, images)]
        self.made = {count: make(part(p, count)) for count in {end - first for first, end in self.cuts}}

    def __call__(self, *arrays: Any) -> Any:
        p = self.p
        refuse_overlaps_of_out(p, arrays)
        at = p.index("out")
        result = new_images(p.result, p.dtype, p.last) if at is None else arrays[at]
        given = [(o.role in BATCHED, array) for i, (o, array) in enumerate(zip(p.operands, arrays, strict=True)) if i != at]
        for first, end in self.cuts:
            taken = (array[first:end] if batched else array for batched, array in (*given, (True, result)))
            self.made[end - first](*taken)
        return result


def attention_refusal(p: AttentionProblem) -> str:
    """Returns why attention is not given to cuDNN because of its size; empty if it is."""
    counts = {o.role: (o.extent()[1] - o.extent()[0]) // o.dtype.itemsize for o in p.operands}
    (batch, heads, queries, _), keys = p.shapes[0], p.lengths[1]
    counts["result"] = batch * heads * queries * p.dims[2]
    if p.mask is not None:
        counts["mask"] = prod(p.mask.shape[:-2]) * queries * keys  # as it is added
    for role, count in counts.items():
        if count > LARGEST:
            return f"its plans may count with 32 bits, and {role} spans {count} elements"
    return ""
