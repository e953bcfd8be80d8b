"""State of layers that own their weights: checks, the copies, and the Problems and Plans of calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from .. import _core
from ..engine.choose import plan_for
from ..errors import BadType, BadValue
from ..libraries import host_arrays
from ..libraries.array_kinds import kind_of
from ..problems import Problem
from . import device_dispatch, linear_layers
from .array_arguments import ONE_KIND, check_array, native
from .convolution import UnbatchedPlan
from .convolution_checks import MOST, Array, conv_problem, number_of_groups, transpose_problem
from .operation import _plain, unconverted

__all__ = ["PARAMETERS", "Layer"]

assert linear_layers  # its operation has to be known
ALIGNMENT = 64
PARAMETERS = ("input", "residual", "out")


class Layer:
    """State of a packed layer, to which it holds a weak reference only, so that the layer goes with its last user."""

    foreign = False  # whether calls are given arrays that are not NumPy's
    marks: ClassVar[tuple[tuple[str, Any], ...]] = (("packed", True),)  # parameters of its Problems beside those of the operation

    def __init__(self, operation: str, rank: int, weight: Any, bias: Any, max_plans: Any, settings: dict[str, Any]) -> None:
        where = f"prepack_{operation}"
        if isinstance(max_plans, bool) or not isinstance(max_plans, int):
            raise BadType(f"{where}: max_plans={max_plans!r} is not an int")
        if not 1 <= max_plans <= 1 << 20:
            raise BadValue(f"{where}: max_plans={max_plans}", cause="a layer keeps at least one plan, and not millions")
        self.operation, self.rank, self.max_plans = operation, rank, max_plans
        self.settings = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
        self.owner: Callable[[], _core.Operation | None] = lambda: None
        self.weight: Array
        self.bias: Array | None
        self._check(where, weight, bias)
        self._keep(where, weight, bias)

    def _check(self, where: str, weight: Any, bias: Any) -> None:
        """Refuses what is no weight or bias, before anything is copied, by asking for nothing at all."""
        self.weight, self.bias = native(check_array(weight, f"{where}: weight")), native(bias)
        self._problem({"input": self._nothing(where)}, where, of_any_size=True)

    def _keep(self, where: str, weight: Any, bias: Any) -> None:
        """Makes the copies."""
        self.weight, self.bias = _own(weight), None if bias is None else _own(bias)

    @property
    def bound(self) -> tuple[Array, ...]:
        """The arrays that every plan is given before those of a call."""
        return tuple(a for a in (self.weight, self.bias) if a is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return sum(a.nbytes for a in self.bound)

    def shown(self, array: Array | None) -> Any:
        """Returns a copy as users may see it."""
        return array

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
            made = transpose_problem if "transpose" in self.operation else conv_problem

            def build(**arguments: Any) -> Problem:
                return made(where, self.rank, arguments, **settings, of_any_size=of_any_size)

            arguments = {"weight": self.weight, "bias": self.bias, **arrays, **rest}
            there = device_dispatch.among((), arguments)
            problem = device_dispatch.problem_of(where, build, (), arguments) if there else build(**arguments)
        return replace(problem, parameters=(*problem.parameters, *self.marks))

    def problem(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem:
        arguments = {name: value for name, value in self._named(args, kwargs).items() if value is not None}
        self._check_place(arguments)
        return self._problem(arguments, self.operation)

    def _check_place(self, arguments: dict[str, Any]) -> None:
        """Refuses arrays of another kind than the weights, or on another device; what is no array is refused later."""
        mine = kind_of(self.weight)
        for name, value in arguments.items():
            kind = kind_of(value)
            if kind is None and not isinstance(value, np.ndarray):
                continue
            if kind is not mine:
                titles = ["NumPy" if each is None else each.title for each in (kind, mine)]
                raise BadType(
                    f"a packed {self.operation}: {name} is an array of {titles[0]}, the layer's weights are of {titles[1]}",
                    cause=ONE_KIND["cause"], remedy=f"a layer of weights of {titles[0]}: prepack_{self.operation}(weight)",
                )  # fmt: skip
            if kind is not None and mine is not None and kind.device(value) != mine.device(self.weight):
                raise BadValue(
                    f"a packed {self.operation}: {name} is on {kind.device(value)}, the layer's weights are on"
                    f" {mine.device(self.weight)}",
                    cause="a layer runs where its weights are",
                    remedy=f"a layer for each device: prepack_{self.operation} of a weight there; or copy {name}",
                )

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
        return self._general(owner, args, kwargs)

    def _general(self, owner: _core.Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
