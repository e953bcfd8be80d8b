"""Weights, packed once by an engine."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries.cpu.reference_quantized import MOST_TERMS
from ..ops.bind import check_array
from ..ops.conv_checks import grouped, kernel_of, number_of_groups, numbers
from .arrays import Array, QArray, check_quantized
from .schemes import SCHEMES, current_engine

__all__ = ["Packed", "PackedConv2d", "PackedLinear", "conv2d_prepack", "linear_prepack"]


class Packed:
    """A weight and a bias of one layer as an engine holds them. They are copies, and read-only.

    Attributes
    ----------
    engine
        The engine that packed it, and runs it, whatever `backends.quantized.engine` says later.
    weight
        The weight, a `QArray`.
    bias
        float32, or None.
    """

    __slots__ = ("_bias", "_engine", "_weight")

    def __init__(self, where: str, weight: QArray, bias: Array | None) -> None:
        self._engine = current_engine(where)
        SCHEMES[self._engine].check_weight(where, weight)
        self._weight = QArray(_kept(weight.int_repr), weight.scale, weight.zero_point, weight.axis)
        self._bias = None if bias is None else _kept(bias)

    @property
    def engine(self) -> str:
        return self._engine

    @property
    def weight(self) -> QArray:
        return self._weight

    @property
    def bias(self) -> Array | None:
        return self._bias

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return self._weight.shape

    def unpack(self) -> tuple[QArray, Array | None]:
        """Copies of the weight and the bias.

        >>> import numpy as np
        >>> from backline import quantized
        >>> packed = quantized.linear_prepack(quantized.QArray(np.array([[1, 2]], np.int8), 0.5))
        >>> packed.unpack()[0].int_repr, packed.unpack()[1]
        (array([[1, 2]], dtype=int8), None)
        """
        w = self._weight
        copy = QArray(w.int_repr.copy(), w.scale, w.zero_point, w.axis)
        return copy, None if self._bias is None else self._bias.copy()

    def __repr__(self) -> str:
        size, name = "x".join(map(str, self.shape)), type(self).__name__
        return f"<{name} {size} {self._weight.dtype}, by engine {self._engine!r}>"


class PackedLinear(Packed):
    """The weight of a linear layer. Made by `linear_prepack`; serves `linear` and `linear_dynamic` alike."""

    __slots__ = ()


class PackedConv2d(Packed):
    """The weight of a convolution. Made by `conv2d_prepack`.

    Attributes
    ----------
    stride, padding, dilation
        Pairs, for height and width.
    groups
        Parts that channels are divided into.
    """

    __slots__ = ("dilation", "groups", "padding", "stride")

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def _kept(array: Array) -> Array:
    copy = np.array(array, order="C", copy=True)
    copy.flags.writeable = False
    return copy


def _checked(where: str, weight: Any, bias: Any, rank: int, form: str) -> tuple[QArray, Array | None]:
    w = check_quantized(where, "weight", weight)
    if w.ndim != rank:
        raise BadValue(f"{where}: weight must have shape {form}, it has {w.shape}")
    if w.axis not in (None, 0):
        raise BadValue(
            f"{where}: weight has scales along axis {w.axis}, for shape {w.shape}",
            cause="they may differ between output channels, which are axis 0",
        )
    if prod(w.shape[1:]) > MOST_TERMS:
        raise BadValue(f"{where}: weight of shape {w.shape} has {prod(w.shape[1:])} terms a sum", cause=f"{MOST_TERMS} at most")
    if bias is None:
        return w, None
    b = check_array(bias, f"{where}: bias")
    if b.dtype.name != "float32":
        raise BadType(f"{where}: bias has dtype {b.dtype}, it must be float32", remedy="bias.astype(np.float32)")
    if b.shape != w.shape[:1]:
        raise BadValue(f"{where}: bias has shape {b.shape}, for weight of shape {w.shape} it must be {w.shape[:1]}")
    if not bool(np.isfinite(b).all()):
        raise BadValue(f"{where}: bias, of shape {b.shape}, holds NaN or infinity")
    return w, b if b.dtype.isnative else b.astype(np.float32)


def linear_prepack(weight: QArray, bias: Array | None = None) -> PackedLinear:
    """Pack the weight of a linear layer by the engine that `backends.quantized.engine` names now.

    Parameters
    ----------
    weight
        `QArray` of shape (out, in), with one scale or one for each output (axis 0). Which dtypes and zero points an engine takes
        differs; `quantize_weights` makes what fits.
    bias
        float32 array of shape (out,), or None.

    Returns
    -------
    PackedLinear
        For `linear` and `linear_dynamic`. It is a copy, and stays with the engine.

    Raises
    ------
    BadType, BadValue
        Not such arrays; a weight that the engine does not take.
    BackendUnavailable
        The environment or a file names an engine that is not there.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> quantized.linear_prepack(quantized.quantize_weights(np.eye(3)), np.zeros(3, np.float32)).shape
    (3, 3)
    """
    w, b = _checked("linear_prepack", weight, bias, 2, "(out, in)")
    return PackedLinear("linear_prepack", w, b)


def conv2d_prepack(
    weight: QArray,
    bias: Array | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> PackedConv2d:
    """Pack the weight of a convolution of images by the engine that `backends.quantized.engine` names now.

    Parameters
    ----------
    weight
        `QArray` of shape (O, C / groups, h, w), with one scale or one for each output channel (axis 0).
    bias
        float32 array of shape (O,), or None.
    stride, padding, dilation
        An int, or one for height and one for width. What is padded stands for 0.
    groups
        Parts that channels are divided into.

    Returns
    -------
    PackedConv2d
        For `conv2d`.

    Raises
    ------
    BadType, BadValue, BackendUnavailable
        As `linear_prepack`; sizes that are no such numbers, or do not fit the weight.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> quantized.conv2d_prepack(quantized.quantize_weights(np.ones((4, 1, 3, 3))), padding=1, groups=2).padding
    (1, 1)
    """
    where = "conv2d_prepack"
    w, b = _checked(where, weight, bias, 4, "(O, C / groups, h, w)")
    kernel_of(where, "weight", w.shape)
    parts = number_of_groups(where, groups)
    grouped(where, parts, "weight", w.shape, w.shape[1] * parts, "input")
    packed = PackedConv2d(where, w, b)
    packed.stride, packed.padding = numbers(where, "stride", stride, 2, 1), numbers(where, "padding", padding, 2, 0)
    packed.dilation, packed.groups = numbers(where, "dilation", dilation, 2, 1), parts
    return packed
