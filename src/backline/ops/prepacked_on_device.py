"""Layers that own their weights on CuPy's arrays.

The layer itself holds its weights as the libraries read them: without gaps, aligned, and those of convolutions in the order of
the images' channels where the library wants that. Its Plans are those of the plain operation, which layers of one shape share:
they keep nothing of the weights.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import Any

from .. import _core
from ..engine.choose import choose, plan_for
from ..libraries.array_kinds import arrays_in, learn
from ..problems import Operand, Problem
from ..problems.conv_problem import ConvProblem, channels_last
from ..problems.memory_layout import contiguous_strides
from .array_arguments import like, one_kind
from .convolution_checks import Array
from .prepacked_state import Layer

__all__ = ["DeviceLayer", "LayerPlan"]

AS_IMAGES = ("cudnn",)
"""Libraries that read weights with channels last beside images with channels last; the others read them in C order."""


class LayerPlan:
    """The Plan of a layer: that of the plain operation, given weight and bias before the arrays of a call.

    Parameters
    ----------
    plan
        The plain operation's.
    arrays
        Weight, and bias where there is one.
    rank
        Dimensions of images that come without a batch; 0 where there is nothing to add.
    out
        Place of the output among the arrays of a call, or None.
    """

    __slots__ = ("arrays", "choice", "out", "plan", "rank")

    def __init__(self, plan: Any, arrays: tuple[Array, ...], rank: int, out: int | None) -> None:
        self.plan, self.arrays, self.rank, self.out = plan, arrays, rank, out
        self.choice = plan.choice

    @property
    def failed(self) -> bool:
        """Tells whether the Plan is not to be used again."""
        return bool(getattr(self.plan, "failed", False))

    def __call__(self, *arrays: Array) -> Any:
        if not self.rank:
            return self.plan(*self.arrays, *arrays)
        result = self.plan(*self.arrays, *(array[None] for array in arrays))
        return result[0] if self.out is None else arrays[self.out]


class DeviceLayer(Layer):
    """State of a packed layer whose weights are CuPy's: a copy for each order in which they are read, made when it first is."""

    foreign, marks = True, ()

    def _check(self, where: str, weight: Any, bias: Any) -> None:
        one_kind(where, weight=weight, bias=bias)
        super()._check(where, like(weight), like(bias))

    def _keep(self, where: str, weight: Any, bias: Any) -> None:
        from ..libraries.cuda.common.lasting_arrays import owned

        shown = Operand("weight", weight.dtype, tuple(weight.shape), tuple(weight.strides))
        last = bool(self.rank and channels_last(shown))
        self.copies: dict[bool, Array] = {last: owned(weight, where, last)}
        self.lock = Lock()
        self.weight = self.copies[last]
        self.bias = None if bias is None else owned(bias, where)

    @property
    def bound(self) -> tuple[Array, ...]:
        return ()  # plans have the arrays

    @property
    def nbytes(self) -> int:
        return sum(int(copy.nbytes) for copy in self.copies.values()) + (0 if self.bias is None else int(self.bias.nbytes))

    def shown(self, array: Array | None) -> Any:
        """Returns a copy: CuPy has no arrays that nothing writes to."""
        from ..libraries.cuda.common.lasting_arrays import owned

        return None if array is None else owned(array, f"a packed {self.operation}")

    def _copy(self, last: bool) -> Array:
        """Returns the weight in C order, or with channels last."""
        from ..libraries.cuda.common.lasting_arrays import owned

        with self.lock:
            if last not in self.copies:
                self.copies[last] = owned(self.weight, f"a packed {self.operation}", last)
            return self.copies[last]

    def _problem(self, arrays: dict[str, Any], where: str, *, of_any_size: bool = False) -> Problem:
        problem = super()._problem(arrays, where, of_any_size=of_any_size)
        if of_any_size or not isinstance(problem, ConvProblem):
            return problem
        if problem.last:
            as_images = _read(problem, last=True)
            if choose(as_images, measure=False).library in AS_IMAGES:
                return as_images
        return _read(problem, last=False)

    def resolve(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        problem = self.problem(args, kwargs)
        plan, weight, input = plan_for(problem), self.weight, args[0] if args else kwargs["input"]
        if isinstance(problem, ConvProblem):
            operand = problem.get("weight")
            assert operand is not None
            weight = self._copy(bool(channels_last(operand)))
        arrays = (weight,) if self.bias is None else (weight, self.bias)
        out = problem.index("out")
        rank = self.rank if self.rank and input.ndim == self.rank + 1 else 0
        return LayerPlan(plan, arrays, rank, None if out is None else out - len(arrays))

    def _general(self, owner: _core.Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = tuple(arrays_in(iter((*args, *kwargs.values()))))
        if any(learn(array, kind) for array, kind in found):
            return owner(*args, **kwargs)
        plan = self.resolve(args, kwargs)
        return _core.run(self.operation, plan, *(array for array, _ in found))


def _read(problem: ConvProblem, *, last: bool) -> ConvProblem:
    """Returns the Problem with its weight in C order, or with channels last."""
    operands = []
    for o in problem.operands:
        if o.role == "weight":
            order = (0, *range(2, len(o.shape)), 1) if last else None
            o = replace(o, strides=contiguous_strides(o.shape, o.dtype.itemsize, order), aligned=True)
        operands.append(o)
    return replace(problem, operands=tuple(operands))
