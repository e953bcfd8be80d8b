"""The Problem of an operation on int8."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from . import Problem, short
from .conv_problem import channels_last

__all__ = ["QuantizedProblem"]


@dataclass(frozen=True)
class QuantizedProblem(Problem):
    """A product or a convolution of quantized operands, with a weight that an engine packed.

    Operations: ``quantized.linear`` and ``quantized.conv2d``, whose result is quantized, and ``quantized.linear_dynamic``, whose
    result is float32. On devices that one has real numbers for input, which it quantizes to integers from ``least`` to ``most``,
    its further parameters; it has neither ``form`` nor numbers of the input, ``weight`` lies as the device's library wants it,
    filled up with zeros, and ``weight_sums``, where they are there, are the sums of its O rows, int32.
    Roles: ``input`` (..., K) or (N, C, H, W), ``weight`` (O, K) or (O, C / groups, h, w), both uint8 or int8 and dense, images
    with channels first or last, as the result then has them too; ``form``, the weight again in the order in which the engine's
    library wants it, as bytes, where it wants another one; ``input_scale``, ``input_zero``, ``result_scale``, ``result_zero``
    with one element, ``weight_scale``, ``weight_zero`` with one or O of them, float32 and int32; ``bias`` (O), float32. Numbers
    are operands, so that a Plan serves every scale; ``weight_zero`` is left out where every one is 0.
    Parameters: ``engine``; of a convolution ``stride``, ``padding``, ``dilation`` (pairs) and ``groups``, and with padding
    ``from_zero`` (True) where the zero point of the input is known to be 0.

    Parameters
    ----------
    result
        Shape of the result.
    """

    result: tuple[int, ...] = ()

    @property
    def engine(self) -> str:
        """The engine that packed the weight, and runs it."""
        return str(self.parameter("engine"))

    def shape(self, role: str) -> tuple[int, ...]:
        """Shape of an operand that is there."""
        found = self.get(role)
        assert found is not None
        return found.shape

    @property
    def outs(self) -> int:
        """O: outputs, or channels of the result."""
        return self.shape("weight")[0]

    @property
    def terms(self) -> int:
        """Products that one sum has."""
        return prod(self.shape("weight")[1:])

    @property
    def groups(self) -> int:
        """Parts that channels are divided into; 1 for a linear layer."""
        return int(self.parameter("groups", 1))

    @cached_property
    def empty(self) -> bool:
        """True if there is nothing to multiply."""
        return 0 in self.result or self.terms == 0

    @cached_property
    def last(self) -> bool:
        """True if images have their channels last."""
        shown = self.get("input")
        return shown is not None and len(shown.shape) == 4 and bool(channels_last(shown))

    @cached_property
    def flops(self) -> float:
        """Multiplications and additions of integers."""
        return 2.0 * prod(self.result) * self.terms

    @cached_property
    def key(self) -> str:
        """Name of what decides the speed: numbers are left out, and so is the number of scales that weights have."""
        parts = [self.op, short(self.dtype), *(o.text() for o in self.operands if o.role in ("input", "weight"))]
        plain = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, "from_zero": True}
        return " ".join(parts + [f"{k}={_written(v)}" for k, v in self.parameters if v != plain.get(k)])


def _written(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
