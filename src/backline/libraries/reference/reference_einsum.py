"""The steps of an einsum that are no matrix products, by NumPy: sums over axes, products of elements, and sums of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...problems.einsum_problem import LETTERS, EinsumProblem
from ..base import Algorithm, Refusal

__all__ = ["algorithms", "kind_of", "plan", "views"]

Array = Any


def algorithms(name: str, p: EinsumProblem) -> Iterator[Algorithm | Refusal]:
    """One way for each kind of step; all on one thread, in one order."""
    if p.dtype.name in ("float16", "bfloat16"):
        yield Refusal(name, "einsum", "NumPy would add halves up in halves: they are converted to float32 before")
    elif kind_of(p) == "einsum" and (len(p.sizes) > len(LETTERS) or len(p.terms) > 31):
        yield Refusal(name, "einsum", f"NumPy's einsum has {len(LETTERS)} labels and 31 operands at most")
    else:
        yield Algorithm(library=name, name=kind_of(p), level="threads", basis="construction")


def kind_of(p: EinsumProblem) -> str:
    """Returns "sum" for a sum over axes, "multiply" for a product of elements, and "einsum" for all else."""
    distinct = all(len(set(term)) == len(term) for term in p.terms)
    if distinct and len(p.terms) == 1:
        return "sum"
    if distinct and len(p.terms) == 2 and all(p.sizes[label] == 1 for label in p.summed):
        # Where each operand repeats the other one, einsum's loops are faster.
        first, second = ({label for label in term if p.sizes[label] != 1} for term in p.terms)
        return "multiply" if first <= second or second <= first else "einsum"
    return "einsum"


def _view(term: str, shape: tuple[int, ...], output: str) -> Callable[[Array], Array]:
    """Returns the function that makes an array with the labels of `term` one that broadcasts against the axes of `output`.

    Labels of `term` that the output has not are of size 1, or come after its axes in the view.
    """
    inside = [label for label in output if label in term]
    rest = [label for i, label in enumerate(term) if label not in output and shape[i] != 1]
    dropped = [label for i, label in enumerate(term) if label not in output and shape[i] == 1]
    order = tuple(term.index(label) for label in (*inside, *rest, *dropped))
    index = (*(slice(None) if label in term else None for label in output), *(slice(None) for _ in rest), *(0 for _ in dropped))
    moves, indexes = order != tuple(range(len(term))), any(i is None or i == 0 for i in index)
    if moves and indexes:
        return lambda array: array.transpose(order)[index]
    if moves:
        return lambda array: array.transpose(order)
    return (lambda array: array[index]) if indexes else (lambda array: array)


def views(p: EinsumProblem) -> tuple[list[Callable[[Array], Array]], tuple[int, ...]]:
    """Returns the `_view` of each operand, and the axes of the first one's that are summed over."""
    looks = [_view(term, o.shape, p.output) for term, o in zip(p.terms, p.inputs, strict=True)]
    summed = sum(1 for label, n in zip(p.terms[0], p.inputs[0].shape, strict=True) if label not in p.output and n != 1)
    return looks, tuple(range(len(p.output), len(p.output) + summed))


def plan(p: EinsumProblem) -> Callable[..., Any]:
    """The function of the arrays of the call."""
    compute = {"sum": _sum, "multiply": _multiply, "einsum": _einsum}[kind_of(p)](p)

    def run(*arrays: Array) -> Any:
        with np.errstate(all="ignore"):  # as BLAS: what is not finite shows in the result
            return compute(*arrays)

    return run


def _sum(p: EinsumProblem) -> Callable[..., Any]:
    (look,), axes = views(p)
    dtype = p.dtype  # of a sum of bools, bool; of small integers, the same

    def run(array: Array, out: Array | None = None) -> Any:
        return np.add.reduce(look(array), axis=axes, dtype=dtype, out=out)

    return run


def _multiply(p: EinsumProblem) -> Callable[..., Any]:
    (first, second), _ = views(p)

    def run(x: Array, y: Array, out: Array | None = None) -> Any:
        return np.multiply(first(x), second(y), out=out)

    return run


def _einsum(p: EinsumProblem) -> Callable[..., Any]:
    letters = dict(zip(p.sizes, LETTERS, strict=False))
    inputs = ",".join("".join(map(letters.__getitem__, term)) for term in p.terms)
    equation = f"{inputs}->{''.join(map(letters.__getitem__, p.output))}"
    count = len(p.terms)
    shape = tuple(p.sizes[label] for label in p.output)

    def nothing(*arrays: Array) -> Any:
        # Not by np.einsum: heaps were found damaged after it had been given empty operands.
        result = arrays[count] if len(arrays) > count else np.empty(shape, p.dtype)
        result[...] = 0
        return result

    if 0 in p.sizes.values():
        return nothing

    def run(*arrays: Array) -> Any:
        return np.einsum(equation, *arrays[:count], out=arrays[count] if len(arrays) > count else None)

    return run
