"""Convolutions and linear layers that own their weights, for weights that stay the same over many calls.

A plain call reads the weights that it is given, every time. A packed layer has a copy of its own that cannot be written to, so a
library may bring it into the order that its kernel wants once, and keep that with the plan.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np

from .. import _core
from ..engine.choose import plan_for
from ..errors import BadType, BadValue
from ..libraries import host_arrays
from ..problems import Problem, short
from . import linear_layers
from .array_arguments import check_array, native
from .convolution import UnbatchedPlan
from .convolution_checks import MOST, Array, Sizes, conv_problem, number_of_groups, transpose_problem
from .doc_fragments import filled
from .families import RANKS, function_family, ranks
from .operation import _plain, unconverted

__all__ = [
    "PackedLayer", "prepack_conv1d", "prepack_conv2d", "prepack_conv3d", "prepack_conv_transpose1d", "prepack_conv_transpose2d",
    "prepack_conv_transpose3d", "prepack_linear",
]  # fmt: skip

assert linear_layers  # its operation has to be known
MAX_PLANS = 8
ALIGNMENT = 64
PARAMETERS = ("input", "residual", "out")
SIGNATURE = inspect.Signature([
    inspect.Parameter("input", inspect.Parameter.POSITIONAL_OR_KEYWORD),
    *(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in PARAMETERS[1:]),
])  # fmt: skip


class PackedLayer(_core.Operation):
    """Layer with weights of its own: ``layer(input, residual=None, out=None)``. Made by `prepack_linear`, `prepack_conv2d`, ...

    The weights are a copy, made once: writing to the arrays it was made from changes nothing here, and the copy cannot be written
    to. So what is kept of it, in whatever order, is never out of date. To use new values, prepack again.

    The first call with a new layout of the input, or under other switches, chooses a library and makes a plan; where the library
    has an order of its own for weights, that plan brings them there in its first run and keeps the result. A layer has at most
    `max_plans` plans, the least recently used goes first, and all of them go with the layer. (One that a thread ran last stays
    for `explain` until the thread runs something else.)

    Attributes
    ----------
    weight, bias
        The copies, read-only; bias may be None.
    operation
        Name of the plain operation: "conv2d", "linear".
    settings
        Its other arguments: stride, padding, activation, ...
    """

    __slots__ = ("_layer",)
    _layer: Layer

    def __new__(cls, layer: Layer) -> Self:
        bound = tuple(a for a in (layer.weight, layer.bias) if a is not None)
        self = super().__new__(cls, layer.operation, PARAMETERS, layer.resolve, layer.general, bound, layer.max_plans)
        self._layer = layer
        self.__signature__ = SIGNATURE
        layer.owner = weakref.ref(self)
        return self

    @property
    def weight(self) -> Array:
        return self._layer.weight

    @property
    def bias(self) -> Array | None:
        return self._layer.bias

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
        kept = sum(_kept(plan) for plan in self.own_plans())
        return kept + sum(a.nbytes for a in (self.weight, self.bias) if a is not None)

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
        return _again, (layer.operation, layer.weight, layer.bias, layer.settings, layer.max_plans)


def _kept(plan: Any) -> int:
    return int(getattr(getattr(plan, "plan", plan), "kept_bytes", 0))


class Layer:
    """State of a packed layer, to which it holds a weak reference only, so that the layer goes with its last user."""

    def __init__(self, operation: str, rank: int, weight: Any, bias: Any, max_plans: Any, settings: dict[str, Any]) -> None:
        where = f"prepack_{operation}"
        if isinstance(max_plans, bool) or not isinstance(max_plans, int):
            raise BadType(f"{where}: max_plans={max_plans!r} is not an int")
        if not 1 <= max_plans <= 1 << 20:
            raise BadValue(f"{where}: max_plans={max_plans}", cause="a layer keeps at least one plan, and not millions")
        self.operation, self.rank, self.max_plans = operation, rank, max_plans
        weight, bias = (host_arrays.view_of(a, f"{where}: {name}") for name, a in (("weight", weight), ("bias", bias)))
        self.settings = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
        self.owner: Callable[[], PackedLayer | None] = lambda: None
        # Checked before it is copied, by asking for nothing at all.
        self.weight: Array = native(check_array(weight, f"{where}: weight"))
        self.bias: Array | None = native(bias)
        self._problem({"input": self._nothing(where)}, where, of_any_size=True)
        self.weight, self.bias = _own(weight), None if bias is None else _own(bias)

    def _nothing(self, where: str) -> Array:
        """Returns an input without elements that fits the weights."""
        shape = self.weight.shape
        if self.operation == "linear":
            return np.empty((0, shape[-1] if shape else 0), self.weight.dtype)
        channels = 1
        if len(shape) == self.rank + 2:
            channels = shape[0] if "transpose" in self.operation else shape[1] * number_of_groups(where, self.settings["groups"])
        if channels > MOST:
            raise BadValue(
                f"{where}: groups={self.settings['groups']}", cause=f"weight of shape {shape} would take {channels} channels"
            )
        return np.empty((0, channels, *(0,) * self.rank), self.weight.dtype)

    def _problem(self, arrays: dict[str, Any], where: str, *, of_any_size: bool = False) -> Problem:
        """Returns the Problem, its operands in the order of the plan: weight, bias, then as the call lists them."""
        settings = self.settings
        if self.operation == "linear":
            arguments = {"weight": self.weight, **({} if self.bias is None else {"bias": self.bias}), **arrays}
            problem = unconverted["nn.functional.linear"](**arguments, **settings)
        else:
            rest = {role: None for role in PARAMETERS if role not in arrays}
            arguments = {"weight": self.weight, "bias": self.bias, **arrays, **rest}
            make = transpose_problem if "transpose" in self.operation else conv_problem
            problem = make(where, self.rank, arguments, **settings, of_any_size=of_any_size)
        return replace(problem, parameters=(*problem.parameters, ("packed", True)))

    def problem(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem:
        arguments = self._named(args, kwargs)
        return self._problem({name: value for name, value in arguments.items() if value is not None}, self.operation)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of a call by name, in its order."""
        if len(args) > len(PARAMETERS):
            raise TypeError(f"a packed {self.operation} takes {', '.join(PARAMETERS)}; {len(args)} arguments were given")
        arguments = dict(zip(PARAMETERS, args, strict=False))
        for name, value in kwargs.items():
            if name in arguments:
                raise TypeError(f"a packed {self.operation} got {name!r} twice")
            if name not in PARAMETERS:
                raise TypeError(f"a packed {self.operation} takes {', '.join(PARAMETERS)}; it got {name!r}")
            arguments[name] = value
        if arguments.get("input") is None:
            raise BadType(f"a packed {self.operation} takes an input")
        return arguments

    def resolve(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        problem = self.problem(args, kwargs)
        plan = plan_for(problem, self._outgrown(problem))
        input = args[0] if args else kwargs["input"]
        return UnbatchedPlan(plan, self.rank) if self.rank and input.ndim == self.rank + 1 else plan

    def _outgrown(self, problem: Problem) -> bool:
        """Tells whether a plan for few calls of a Problem has run as often as it lasts."""
        owner = self.owner()
        plans = [] if owner is None else [p for p in owner.own_plans() if isinstance(p, _core.PreparedCall)]
        return any(0 < p.lasts <= p.runs and p.choice.problem == problem for p in plans)

    def general(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a call that cannot be memoised as it is: with plain arrays it can, or building its Problem raises."""
        owner = self.owner()
        assert owner is not None
        other = host_arrays.call(owner, args, kwargs)
        if other is not NotImplemented:
            return other
        arguments = self._named(args, kwargs)
        plain = {name: _plain(arguments[name]) for name in PARAMETERS if name in arguments}
        out = arguments.get("out")
        if out is not None and not (isinstance(out, np.ndarray) and out.dtype.isnative):
            plain["out"] = out  # an array to write to is not converted: it is refused
        self.problem((), plain)
        result = owner(**plain)
        return result if out is None else out


def _own(array: Array) -> Array:
    """Returns a contiguous copy that cannot be written to, nor be made writeable."""
    dtype = array.dtype.newbyteorder("=")
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    inside = slice(first, first + array.nbytes)
    room[inside].view(dtype).reshape(array.shape)[...] = array
    own: Array = np.frombuffer(room.data.toreadonly(), np.uint8)[inside].view(dtype).reshape(array.shape)
    return own


# The functions that make packed layers ---------------------------------------------------------------------------------

MODULE = "backline.nn.functional"


def _again(operation: str, weight: Array, bias: Array | None, settings: dict[str, Any], max_plans: int) -> PackedLayer:
    """Makes a pickled or copied layer anew."""
    layer: PackedLayer = globals()[f"prepack_{operation}"](weight, bias, **settings, max_plans=max_plans)
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
    return PackedLayer(Layer("linear", 0, weight, bias, max_plans, {"activation": activation}))


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
    return PackedLayer(Layer(f"conv{rank}d", rank, weight, bias, max_plans, settings))


def _conv_transpose(
    rank: int, weight: Array, bias: Array | None = None, stride: Sizes = 1, padding: Sizes = 0, output_padding: Sizes = 0,
    groups: int = 1, dilation: Sizes = 1, *, activation: str | None = None, max_plans: int = MAX_PLANS,
) -> PackedLayer:  # fmt: skip
    settings = {"stride": stride, "padding": padding, "output_padding": output_padding, "groups": groups, "dilation": dilation}
    return PackedLayer(Layer(f"conv_transpose{rank}d", rank, weight, bias, max_plans, settings | {"activation": activation}))


prepack_linear.__module__, prepack_linear.__doc__ = MODULE, filled(prepack_linear.__doc__)
prepack_conv1d, prepack_conv2d, prepack_conv3d = function_family(
    _conv, ranks("prepack_conv{}d"), _text("conv", "convolution", "{conv_arrays}"), module=MODULE
)
prepack_conv_transpose1d, prepack_conv_transpose2d, prepack_conv_transpose3d = function_family(
    _conv_transpose, ranks("prepack_conv_transpose{}d"),
    _text("conv_transpose", "transposed convolution", "{conv_transpose_arrays}"), module=MODULE,
)  # fmt: skip
