"""Weights of quantized layers, packed once by an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries import quantized_engines
from ..libraries.reference.reference_quantized import ENGINE
from ..ops.array_arguments import check_array
from ..ops.convolution_checks import grouped, kernel_of, number_of_groups, numbers
from ..problems.quantized_problem import QuantizedProblem
from .arrays import QArray, check_quantized
from .checks import LEAST, MOST, Array
from .schemes import SCHEMES, current_engine

__all__ = ["Packed", "PackedConv2d", "PackedLinear", "conv2d_prepack", "linear_prepack"]

MOST_UNITS = 2**31 - 1  # of a bias
MOST_KNOWN = 256  # kinds of calls that a packed weight remembers its form for


class Packed:
    """Weight and bias of one layer as an engine holds them: read-only copies.

    The forms that the engine's library makes of them are kept here as well; a copied or unpickled one makes them anew.

    Attributes
    ----------
    engine
        The engine that packed it, and runs it, whatever `backends.quantized.engine` says later.
    weight
        The weight, a `QArray`.
    bias
        float32, or None.
    parts
        What calls need of them: the integers, the scales, the zero points or None where all are 0, the bias or None.
    """

    __slots__ = ("_bias", "_engine", "_forms", "_known", "_narrow", "_reach", "_there", "_weight", "parts")

    def __init__(self, where: str, weight: QArray, bias: Array | None) -> None:
        self._engine = current_engine(where)
        SCHEMES[self._engine].check_weight(where, weight)
        self._weight = QArray(_kept(weight.int_repr), weight.scale, weight.zero_point, weight.axis)
        self._bias = None if bias is None else _kept(bias)
        self._begin()

    def _begin(self) -> None:
        w = self._weight
        self.parts = w.int_repr, w.scales, w.zero_points if w.zero_points.any() else None, self._bias
        # The bias in units of the weight's scales, where it is largest; FBGEMM adds it to real numbers, so there is no limit.
        bias = None if self._engine == "fbgemm" else self._bias
        self._reach = 0.0 if bias is None else float(np.max(np.abs(bias) / w.scales.astype(np.float64), initial=0.0))
        # The smallest and the largest scale, where what follows from scales is float32.
        narrow = SCHEMES[self._engine].float32 and w.scales.size
        self._narrow = (float(w.scales.min()), float(w.scales.max())) if narrow else None
        self._forms: list[tuple[Any, Array]] = []
        self._known: dict[Any, Array] = {}
        self._there: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        names = [name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())]
        derived = ("_forms", "_known", "_narrow", "_reach", "_there", "parts")
        return {name: getattr(self, name) for name in names if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        for array in (self._weight.int_repr, self._bias):
            if array is not None:
                array.flags.writeable = False
        self._begin()

    def check_bias(self, where: str, scale: float) -> None:
        """Refuses a bias that, in units of an input's scale times the weight's, is no int32."""
        if self._reach > MOST_UNITS * scale:
            raise BadValue(
                f"{where}: the bias is up to {self._reach / scale:.6g} units of x.scale * weight.scale, with x.scale={scale:.6g}",
                cause=f"sums are int32, and so is the bias that is added to them: {MOST_UNITS} units at most",
                remedy="a larger x.scale, a smaller bias, or linear_dynamic, which adds the bias to real numbers",
            )

    def check_scales(self, where: str, scale: float, output: float = 1.0) -> None:
        """Refuses scales whose products or quotients leave the range of float32, where the engine works in that."""
        if self._narrow is None:
            return
        for each in self._narrow:
            for what, value in (("x.scale * weight.scale", scale * each), ("that, divided by scale", scale * each / output)):
                if not LEAST <= value <= MOST:
                    raise BadValue(
                        f"{where}: {what} is {value:.6g}, with x.scale={scale:.6g}, weight.scale={each:.6g}, scale={output:.6g}",
                        cause=f"engine {self._engine!r} computes in float32, which holds numbers from {LEAST:.4g} to {MOST:.4g}",
                        remedy="other scales, or engine 'reference'",
                    )

    def form(self, key: Any, problem: Callable[[], QuantizedProblem]) -> Array | None:
        """Returns the weight in the order in which the engine's library wants it for a call; None where that is NumPy's order.

        Made when it is first needed, and kept for all calls that want the same.

        Parameters
        ----------
        key
            What decides it about a call, beside the weight.
        problem
            Makes the Problem of the call, without a form.
        """
        if self._engine == ENGINE:
            return None
        found = self._known.get(key)
        if found is None:
            wanted = quantized_engines.packing(problem())
            if wanted is None:
                return None  # the library that runs it refuses with a reason, or needs no form
            found = next((array for other, array in self._forms if other == wanted), None)
            if found is None:
                found = wanted.pack(self._weight.int_repr)
                self._forms.append((wanted, found))
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = found
        return found

    def there(self, kind: str, make: Callable[[], Any]) -> Any:
        """Returns the form of the weight for arrays of another kind, which is made at its first use and kept."""
        found = self._there.get(kind)
        return found if found is not None else self._there.setdefault(kind, make())

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
        """Returns copies of the weight and the bias.

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
    """Packs the weight of a linear layer by the engine that `backends.quantized.engine` names now.

    Parameters
    ----------
    weight
        `QArray` of shape (out, in), with one scale or one for each output (axis 0). Engines differ in the
        dtypes and zero points that they take; `quantize_weights` makes weights that fit.
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
    """Packs the weight of a convolution of images by the engine that `backends.quantized.engine` names now.

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
