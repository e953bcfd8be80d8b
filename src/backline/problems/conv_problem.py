"""The Problem of a convolution, of a transposed one, and of their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from . import Operand, Problem

__all__ = ["ConvProblem", "channels_last"]


def channels_last(o: Operand) -> bool | None:
    """Returns true if an array (N, C, ...) has its channels last; None if it has neither of the two contiguous layouts.

    An array that is dense both ways (one channel, or one point) counts as channels first.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.problems import operand
    >>> images = np.zeros((2, 5, 5, 3), np.float32)
    >>> channels_last(operand("input", images.transpose(0, 3, 1, 2))), channels_last(operand("input", images))
    (True, False)
    """
    first = tuple(range(len(o.shape)))
    last = (0, *first[2:], 1)
    return next((kind for kind, order in ((False, first), (True, last)) if o.is_contiguous(order)), None)


@dataclass(frozen=True)
class ConvProblem(Problem):
    """``activation(convolution(input, weight) + bias + residual)`` over a batch of images of one, two or three dimensions.

    Operations: ``conv``, ``conv_transpose``; ``conv_grad_input`` and ``conv_grad_weight``, of the plain one, where ``input`` or
    ``weight`` is what is returned and ``grad`` (of the result) is given.
    Roles: ``input`` (N, C, ...), ``weight`` (O, C / groups, ...; transposed: (C, O / groups, ...)), ``bias`` (O), ``residual``
    and ``grad`` (as the result), ``out``. Parameters: ``activation`` ("relu") where there is one.

    Parameters
    ----------
    stride, dilation, output_padding
        One number for each dimension of the images.
    padding
        Zeros before and after, for each dimension.
    groups
        Parts that channels are divided into.
    image, kernel
        Sizes of the images and of the kernel.
    batch, channels, features
        N, C, and O: channels of the result.
    result
        Shape of the result.
    """

    stride: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    output_padding: tuple[int, ...] = ()
    batch: int = 0
    channels: int = 0
    features: int = 0
    image: tuple[int, ...] = ()
    kernel: tuple[int, ...] = ()
    result: tuple[int, ...] = ()

    @cached_property
    def transposed(self) -> bool:
        return self.op == "conv_transpose"

    @cached_property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.channels

    @cached_property
    def points(self) -> tuple[int, ...]:
        """Size of the images that come out (of the plain convolution, where this is a gradient)."""
        if self.op.startswith("conv_grad"):
            grad = self.get("grad")
            assert grad is not None
            return grad.shape[2:]
        return self.result[2:]

    @cached_property
    def key(self) -> str:
        """As of any Problem, with the numbers that a convolution has beside its arrays; ``last`` where channels are last."""
        parts = [super().key]
        for name, usual in (("stride", 1), ("dilation", 1), ("output_padding", 0)):
            values = getattr(self, name)
            if any(v != usual for v in values):
                parts.append(f"{name}={'x'.join(map(str, values))}")
        if any(map(any, self.padding)):
            parts.append("padding=" + "x".join(str(a) if a == b else f"{a}+{b}" for a, b in self.padding))
        if self.groups > 1:
            parts.append(f"groups={self.groups}")
        if self.op.startswith("conv_grad"):
            parts.append(f"result={'x'.join(map(str, self.result))}")
        if self.last:
            parts.append("last")
        return " ".join(parts)

    @cached_property
    def summands(self) -> int:
        if self.op == "conv_grad_weight":
            return max(self.batch * prod(self.points), 1)
        channels = self.features if self.op == "conv_grad_input" else self.channels
        return max(channels // self.groups * prod(self.kernel), 1)

    def shape_class(self) -> str:
        size = "1" if prod(self.kernel) == 1 else "3" if max(self.kernel) <= 3 else "5"
        groups = "" if self.groups == 1 else "depthwise " if self.groups == self.channels else "groups "
        return f"{groups}{size} {'one' if self.batch == 1 else 'many'}{' last' if self.last else ''}"

    @cached_property
    def flops(self) -> float:
        places = self.image if self.transposed else self.points
        real = 8.0 if self.dtype.kind == "c" else 2.0
        return real * self.batch * prod(places) * prod(self.kernel) * self.channels * self.features / self.groups

    @cached_property
    def empty(self) -> bool:
        return 0 in (self.batch, self.channels, self.features, *self.image, *self.points)

    @cached_property
    def last(self) -> bool:
        """True if the result has its channels last: as the input has, or where that has neither layout, first."""
        shown = self.get("input") or self.get("grad")
        return shown is not None and bool(channels_last(shown))
