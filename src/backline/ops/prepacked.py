"""Convolutions and linear layers that own their weights, for weights that stay the same over many calls.

A plain call reads the weights that it is given, every time. A packed layer has a copy of its own that cannot be written to, so a
library may bring it into the order that its kernel wants once, and keep that with the plan.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any, Self

from .. import _core
from ..libraries import host_arrays
from ..libraries.array_kinds import kind_of
from ..problems import Problem, short
from .convolution_checks import Array, Sizes
from .doc_fragments import filled
from .families import RANKS, function_family, ranks
from .prepacked_state import PARAMETERS, Layer

__all__ = [
    "PackedLayer", "prepack_conv1d", "prepack_conv2d", "prepack_conv3d", "prepack_conv_transpose1d", "prepack_conv_transpose2d",
    "prepack_conv_transpose3d", "prepack_linear",
]  # fmt: skip

MAX_PLANS = 8
SIGNATURE = inspect.Signature([
    inspect.Parameter("input", inspect.Parameter.POSITIONAL_OR_KEYWORD),
    *(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in PARAMETERS[1:]),
])  # fmt: skip


class PackedLayer(_core.Operation):
    """Layer with weights of its own: ``layer(input, residual=None, out=None)``. Made by `prepack_linear`, `prepack_conv2d`, ...

    The weights are a copy, made once: writing to the arrays it was made from changes nothing here, and nothing writes to the
    copy. So what is kept of it, in whatever order, is never out of date. To use new values, prepack again.

    The first call with a new layout of the input, or under other switches, chooses a library and makes a plan; where the library
    has an order of its own for weights, that plan brings them there in its first run and keeps the result. A layer has at most
    `max_plans` plans, the least recently used goes first, and all of them go with the layer. (One that a thread ran last stays
    for `explain` until the thread runs something else.)

    Weights of CuPy make a layer for arrays of CuPy on their device. It holds them as the libraries there read them: without gaps,
    and for images with channels last, once cuDNN is to run those, with channels last too. Its plans are those of the plain
    operation.

    Attributes
    ----------
    weight, bias
        The copies, read-only; of CuPy, which has no read-only arrays, copies of them. bias may be None.
    operation
        Name of the plain operation: "conv2d", "linear".
    settings
        Its other arguments: stride, padding, activation, ...
    """

    __slots__ = ("_layer",)
    _layer: Layer

    def __new__(cls, layer: Layer) -> Self:
        resolve, general = layer.resolve, layer.general
        name, bound, most = layer.operation, layer.bound, layer.max_plans
        self = super().__new__(cls, name, PARAMETERS, resolve, general, bound, most, layer.foreign)
        self._layer = layer
        self.__signature__ = SIGNATURE
        layer.owner = weakref.ref(self)
        return self

    @property
    def weight(self) -> Array:
        shown: Array = self._layer.shown(self._layer.weight)
        return shown

    @property
    def bias(self) -> Array | None:
        shown: Array | None = self._layer.shown(self._layer.bias)
        return shown

    @property
    def operation(self) -> str:
        return self._layer.operation

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self._layer.settings)

    @property
    def max_plans(self) -> int:
        """Largest number of plans that it keeps."""
        return self._layer.max_plans

    @property
    def plans(self) -> int:
        """Number of plans that it has now."""
        return len(self.own_plans())

    @property
    def nbytes(self) -> int:
        """Bytes that it holds: its weights and bias, and what its plans keep of them in the order of their libraries."""
        return self._layer.nbytes + sum(_kept(plan) for plan in self.own_plans())

    def problem(self, input: Array, residual: Array | None = None, out: Array | None = None) -> Problem:
        """Returns the Problem of a call; `explain(layer, input)` says what would run it."""
        return self._layer.problem((input, residual, out), {})

    def __repr__(self) -> str:
        layer = self._layer
        size = "x".join(map(str, layer.weight.shape))
        parameters = inspect.signature(globals()[f"prepack_{layer.operation}"]).parameters
        extra = [f"{k}={v!r}" for k, v in layer.settings.items() if v != parameters[k].default]
        bias = [] if layer.bias is None else ["bias"]
        return f"<{' '.join(['packed', layer.operation, short(layer.weight.dtype), size, *bias, *extra])}>"

    def __reduce__(self) -> Any:  # plans are made anew where it arrives
        layer = self._layer
        return _again, (layer.operation, self.weight, self.bias, layer.settings, layer.max_plans)


def _kept(plan: Any) -> int:
    return int(getattr(getattr(plan, "plan", plan), "kept_bytes", 0))


# The functions that make packed layers ---------------------------------------------------------------------------------

MODULE = "backline.nn.functional"


def _again(operation: str, weight: Array, bias: Array | None, settings: dict[str, Any], max_plans: int) -> PackedLayer:
    """Makes a pickled or copied layer anew."""
    layer: PackedLayer = globals()[f"prepack_{operation}"](weight, bias, **settings, max_plans=max_plans)
    return layer


def _layer(
    operation: str, rank: int, weight: Any, bias: Any, max_plans: Any, settings: dict[str, Any]
) -> PackedLayer:  # fmt: skip
    """Makes a layer of weights of any kind; of other packages' arrays in the context in which work on them is done."""

    def made(weight: Any, bias: Any) -> PackedLayer:
        kind = kind_of(weight)
        if kind is not None and kind.kind == "cuda":
            from .prepacked_on_device import DeviceLayer

            return PackedLayer(DeviceLayer(operation, rank, weight, bias, max_plans, settings))
        return PackedLayer(Layer(operation, rank, weight, bias, max_plans, settings))

    made.__name__ = f"prepack_{operation}"
    other: Any = host_arrays.call(made, (weight, bias), {}, ("weight", "bias"))
    layer: PackedLayer = made(weight, bias) if other is NotImplemented else other
    return layer


def prepack_linear(
    weight: Array, bias: Array | None = None, *, activation: str | None = None, max_plans: int = MAX_PLANS
) -> PackedLayer:
    """Makes a linear layer with weights of its own: ``layer(input, residual=None, out=None)`` computes what `linear` does.

    Parameters
    ----------
    weight
        Array of shape (out, in).
    bias
        Array of shape (out,), or None.
    activation
        As `linear`.
    {max_plans}

    {packed_layer}

    {raises}
        As `linear`; calls raise them for what is wrong with their arrays.

    Notes
    -----
    It pays from the second call on for 2 to about 256 rows of input, where reading the weights takes most of the time. For many
    rows it makes no difference. Results may differ in the last bits from those of `linear`: another kernel adds in another order.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import prepack_linear
    >>> layer = prepack_linear(np.array([[1.0, 1.0], [-2.0, 0.0]]), np.array([0.5, 0.5]), activation="relu")
    >>> layer(np.array([[1.0, 2.0]]))
    array([[3.5, 0. ]])
    >>> layer
    <packed linear f64 2x2 bias activation='relu'>
    """
    return _layer("linear", 0, weight, bias, max_plans, {"activation": activation})


TEXT = """Makes a {kind} of {images} with weights of its own.

``layer(input, residual=None, out=None)`` computes what `{name}` does with them.

Parameters
----------
{arrays}
{relu}
{max_plans}

{packed_layer}

{raises}
    Weights that `{name}` would refuse; calls raise them for what is wrong with their arrays.

Examples
--------
>>> import numpy as np
>>> from backline.nn.functional import prepack_{name}
{example}
"""
EXAMPLE = """>>> layer = prepack_{name}(np.ones({weight}, np.float32), {settings})
>>> layer(np.ones({input}, np.float32)).shape
{result}"""
OF_CONV2D = """>>> weight = np.ones((1, 1, 2, 2))
>>> layer = prepack_conv2d(weight, padding="same")
>>> weight[:] = 0  # not the layer's
>>> layer(np.arange(4.0).reshape(1, 1, 2, 2))
array([[[[6., 4.],
         [5., 3.]]]])
>>> layer
<packed conv2d f64 1x1x2x2 padding='same'>"""
SHAPES = {  # weights, settings, input and result of an example
    "conv1d": ((2, 3, 5), "padding=2", (1, 3, 8), (1, 2, 8)),
    "conv3d": ((2, 3, 3, 3, 3), "padding=1", (1, 3, 4, 4, 4), (1, 2, 4, 4, 4)),
    "conv_transpose1d": ((3, 2, 4), "stride=2, padding=1", (1, 3, 8), (1, 2, 16)),
    "conv_transpose2d": ((3, 2, 4, 4), "stride=2, padding=1", (1, 3, 8, 8), (1, 2, 16, 16)),
    "conv_transpose3d": ((3, 2, 4, 4, 4), "stride=2, padding=1", (1, 3, 2, 2, 2), (1, 2, 4, 4, 4)),
}


def _example(name: str) -> str:
    if name == "conv2d":
        return OF_CONV2D
    weight, settings, input, result = SHAPES[name]
    return EXAMPLE.format(name=name, weight=weight, settings=settings, input=input, result=result)


def _text(stem: str, kind: str, arrays: str) -> Callable[[int], str | None]:
    return lambda rank: filled(
        TEXT, **RANKS[rank], name=f"{stem}{rank}d", kind=kind, arrays=arrays, example=_example(f"{stem}{rank}d")
    )


def _conv(
    rank: int, weight: Array, bias: Array | None = None, stride: Sizes = 1, padding: Sizes | str = 0, dilation: Sizes = 1,
    groups: int = 1, *, activation: str | None = None, max_plans: int = MAX_PLANS,
) -> PackedLayer:  # fmt: skip
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "activation": activation}
    return _layer(f"conv{rank}d", rank, weight, bias, max_plans, settings)


def _conv_transpose(
    rank: int, weight: Array, bias: Array | None = None, stride: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0,
    groups: int = 1, dilation: Sizes = 1, *, activation: str | None = None, max_plans: int = MAX_PLANS,
) -> PackedLayer:  # fmt: skip
    settings: dict[str, Any] = {"stride": stride, "padding": padding, "output_padding": output_padding, "groups": groups}
    settings["dilation"] = dilation
    settings["activation"] = activation
    return _layer(f"conv_transpose{rank}d", rank, weight, bias, max_plans, settings)


prepack_linear.__module__, prepack_linear.__doc__ = MODULE, filled(prepack_linear.__doc__)
prepack_conv1d, prepack_conv2d, prepack_conv3d = function_family(
    _conv, ranks("prepack_conv{}d"), _text("conv", "convolution", "{conv_arrays}"), module=MODULE
)
prepack_conv_transpose1d, prepack_conv_transpose2d, prepack_conv_transpose3d = function_family(
    _conv_transpose, ranks("prepack_conv_transpose{}d"),
    _text("conv_transpose", "transposed convolution", "{conv_transpose_arrays}"), module=MODULE,
)  # fmt: skip
