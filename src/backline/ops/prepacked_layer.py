"""A layer that owns its weights: what a call of it is checked for and resolved to, and the plans that go with it.

A plain call reads the weights that it is given, every time. A packed layer has a copy of its own that nobody can write to, so a
library may bring it into the order that its kernel wants once, and keep that with the plan. `packed_layers` makes them.
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
from ..problems import Problem, short
from . import linear_layers
from .array_arguments import check_array, native
from .convolution import _OneImage
from .convolution_checks import MOST, Array, conv_problem, number_of_groups, transpose_problem
from .operation import _plain, unconverted

__all__ = ["MAX_PLANS", "Layer", "PackedLayer"]

assert linear_layers  # its operation has to be known
MAX_PLANS = 8
ALIGNMENT = 64
PARAMETERS = ("input", "residual", "out")
_kinds = inspect.Parameter
SIGNATURE = inspect.Signature([
    _kinds("input", _kinds.POSITIONAL_OR_KEYWORD),
    *(_kinds(name, _kinds.POSITIONAL_OR_KEYWORD, default=None) for name in PARAMETERS[1:]),
])  # fmt: skip


class PackedLayer(_core.Operation):
    """A layer with weights of its own: ``layer(input, residual=None, out=None)``. Made by `prepack_linear`, `prepack_conv2d`, ...

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
        """Most plans it keeps."""
        return self._layer.max_plans

    @property
    def plans(self) -> int:
        """Plans it has now."""
        return len(self.own_plans())

    @property
    def nbytes(self) -> int:
        """Bytes it holds: its weights and bias, and what its plans keep of them in the order of their libraries."""
        kept = sum(_kept(plan) for plan in self.own_plans())
        return kept + sum(a.nbytes for a in (self.weight, self.bias) if a is not None)

    def problem(self, input: Array, residual: Array | None = None, out: Array | None = None) -> Problem:
        """What a call asks for; `explain(layer, input)` says what would run it."""
        return self._layer.problem((input, residual, out), {})

    def __repr__(self) -> str:
        layer = self._layer
        size = "x".join(map(str, layer.weight.shape))
        extra = [f"{k}={v!r}" for k, v in layer.settings.items() if v != layer.defaults[k]]
        bias = [] if layer.bias is None else ["bias"]
        return f"<{' '.join(['packed', layer.operation, short(layer.weight.dtype), size, *bias, *extra])}>"

    def __reduce__(self) -> Any:  # plans are made anew where it arrives
        from .prepacked import _again

        layer = self._layer
        return _again, (layer.operation, layer.weight, layer.bias, layer.settings, layer.max_plans)


def _kept(plan: Any) -> int:
    return int(getattr(getattr(plan, "plan", plan), "kept_bytes", 0))


class Layer:
    """What a packed layer is made of; it does not know it but by a weak reference, so that it goes with its last user."""

    def __init__(
        self,
        operation: str,
        rank: int,
        weight: Any,
        bias: Any,
        max_plans: Any,
        settings: dict[str, Any],
        defaults: dict[str, Any],
    ) -> None:
        where = f"prepack_{operation}"
        if isinstance(max_plans, bool) or not isinstance(max_plans, int):
            raise BadType(f"{where}: max_plans={max_plans!r} is not an int")
        if not 1 <= max_plans <= 1 << 20:
            raise BadValue(f"{where}: max_plans={max_plans}", cause="a layer keeps at least one plan, and not millions")
        self.operation, self.rank, self.max_plans = operation, rank, max_plans
        self.defaults = defaults
        self.settings = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
        self.owner: Callable[[], PackedLayer | None] = lambda: None
        # Checked before it is copied, by asking for nothing at all.
        self.weight: Array = native(check_array(weight, f"{where}: weight"))
        self.bias: Array | None = native(bias)
        self._made({"input": self._nothing(where)}, where, of_any_size=True)
        self.weight, self.bias = _own(weight), None if bias is None else _own(bias)

    def _nothing(self, where: str) -> Array:
        """An input without elements that goes with the weights."""
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

    def _made(self, arrays: dict[str, Any], where: str, *, of_any_size: bool = False) -> Problem:
        """The Problem, its operands in the order in which a plan gets them: weight, bias, then as the call lists them."""
        settings = self.settings
        if self.operation == "linear":
            given = {"weight": self.weight, **({} if self.bias is None else {"bias": self.bias}), **arrays}
            made = unconverted["nn.functional.linear"](**given, **settings)
        else:
            rest = {role: None for role in PARAMETERS if role not in arrays}
            given = {"weight": self.weight, "bias": self.bias, **arrays, **rest}
            make = transpose_problem if "transpose" in self.operation else conv_problem
            made = make(where, self.rank, given, **settings, of_any_size=of_any_size)
        return replace(made, parameters=(*made.parameters, ("packed", True)))

    def problem(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem:
        given = self._named(args, kwargs)
        return self._made({name: value for name, value in given.items() if value is not None}, self.operation)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, in its order."""
        if len(args) > len(PARAMETERS):
            raise TypeError(f"a packed {self.operation} takes {', '.join(PARAMETERS)}; {len(args)} arguments were given")
        given = dict(zip(PARAMETERS, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise TypeError(f"a packed {self.operation} got {name!r} twice")
            if name not in PARAMETERS:
                raise TypeError(f"a packed {self.operation} takes {', '.join(PARAMETERS)}; it got {name!r}")
            given[name] = value
        if given.get("input") is None:
            raise BadType(f"a packed {self.operation} takes an input")
        return given

    def resolve(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = plan_for(self.problem(args, kwargs))
        input = args[0] if args else kwargs["input"]
        return _OneImage(plan, self.rank) if self.rank and input.ndim == self.rank + 1 else plan

    def general(self, *args: Any, **kwargs: Any) -> Any:
        """A call that cannot be memoised as it is: with plain arrays it can, or the Problem says what is wrong."""
        given = self._named(args, kwargs)
        plain = {name: _plain(given[name]) for name in PARAMETERS if name in given}
        if given.get("out") is not None and not (isinstance(given["out"], np.ndarray) and given["out"].dtype.isnative):
            plain["out"] = given["out"]  # what is written to is not converted: it is refused
        self.problem((), plain)
        owner = self.owner()
        assert owner is not None
        result = owner(**plain)
        return result if given.get("out") is None else given["out"]


def _own(array: Array) -> Array:
    """A dense copy that cannot be written to, nor be made writeable."""
    dtype = array.dtype.newbyteorder("=")
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    inside = slice(first, first + array.nbytes)
    room[inside].view(dtype).reshape(array.shape)[...] = array
    own: Array = np.frombuffer(room.data.toreadonly(), np.uint8)[inside].view(dtype).reshape(array.shape)
    return own
