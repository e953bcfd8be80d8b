"""Random operands for a Problem, made to suit its operation.

Matrices to be solved with are well conditioned, so that an error tells of the algorithm and not of the data; rows are shuffled,
so that a pivoted factorisation has interchanges to do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...problems import Problem
from ...problems.grouped_problem import GroupedProblem
from ...problems.linalg_problem import LinalgProblem
from ...problems.multi_head_problem import MultiHeadProblem
from ...problems.op_registry import operations
from ...problems.rnn_problem import RnnProblem

__all__ = ["arrays_for", "definite", "factors", "hermitian", "regular", "triangle"]

Array = np.ndarray[Any, Any]

CHUNK = 1 << 20  # elements made at a time where they have to be converted


def arrays_for(problem: Problem, seed: int) -> list[Array]:
    """Operands with the dtypes, shapes, strides and alignment of a Problem, outputs included.

    Parameters
    ----------
    problem
        What is asked.
    seed
        The same seed gives the same values.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.problems import operand
    >>> (a,) = arrays_for(Problem("example", (operand("a", np.zeros((3, 4), np.float32).T),)), 0)
    >>> a.shape, a.strides, a.dtype.name
    ((4, 3), (4, 16), 'float32')
    """
    rng = np.random.default_rng(seed)
    row = operations[problem.op] if isinstance(problem, LinalgProblem) else operations.get(problem.op)
    arrays: list[Array] = []
    for o in problem.operands:
        array = o.empty()
        if o.role.startswith("out"):
            array[...] = 0
        elif o.role == "p":
            _pivots(rng, array, getattr(problem, "n", array.shape[-1]))
        elif o.role == "t" and isinstance(problem, LinalgProblem):
            _reflect(array, arrays[0])
        elif array.size:
            _fill(rng, array)
            if o.role in ("a", "input") and row is not None and row.sample is not None:
                row.sample(rng, array, problem)
            elif o.role == "variance":
                array[...] = np.abs(array) + array.dtype.type(0.5)
            elif isinstance(problem, MultiHeadProblem) and o.role.endswith("weight"):
                # Scores far apart make of softmax a choice of one, and of small errors large ones.
                array *= array.dtype.type(1 / array.shape[-1] ** 0.5)
            elif isinstance(problem, GroupedProblem) and o.role == "offs":
                array[...] = [problem.length * (i + 1) // problem.groups for i in range(problem.groups)]
            elif isinstance(problem, RnnProblem) and o.role == "lengths":
                array[...] = rng.integers(0, problem.steps + 1, array.shape)
            elif isinstance(problem, RnnProblem) and o.role.startswith("p") and array.ndim == 2:
                # Of networks whose states grow, or are chaotic, small errors would become large ones.
                array *= array.dtype.type(0.5 / array.shape[-1] ** 0.5)
        arrays.append(array)
    return arrays


def _working(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A dtype that random numbers can be drawn in."""
    return np.dtype(np.float64 if dtype.char in "dDgG" else np.float32)


def _fill(rng: np.random.Generator, array: Array) -> None:
    """Normal values of variance 1; small integers for integers. Drawn in pieces: no second array of the whole size."""
    if array.ndim > 1 and array.size > CHUNK:
        for part in array:
            _fill(rng, part) if part.size > CHUNK else _draw(rng, part)
    else:
        _draw(rng, array)


def _draw(rng: np.random.Generator, array: Array) -> None:
    dtype = array.dtype
    if dtype.kind in "iu":
        array[...] = rng.integers(0 if dtype.kind == "u" else -4, 5, array.shape)
    elif dtype.kind == "b":
        array[...] = rng.integers(0, 2, array.shape)
    elif dtype.kind == "c":
        scale = 0.5**0.5
        array.real[...] = rng.standard_normal(array.shape, _working(dtype)) * scale
        array.imag[...] = rng.standard_normal(array.shape, _working(dtype)) * scale
    else:
        array[...] = rng.standard_normal(array.shape, _working(dtype)).astype(dtype, copy=False)


def _pivots(rng: np.random.Generator, array: Array, n: int) -> None:
    """Interchanges counted from 1: row i with one at or below it."""
    for i in range(array.shape[-1]):
        array[..., i] = rng.integers(i + 1, n + 1, array.shape[:-1])


def _reflect(array: Array, a: Array) -> None:
    """The factors with which the reflectors below the diagonal of `a` are unitary."""
    for i in range(array.shape[-1]):
        array[..., i] = 2 / (1 + np.sum(np.abs(a[..., i + 1 :, i]) ** 2, axis=-1))


# Matrices that operations of linear algebra take -----------------------------------------------------------------------


def _scale(array: Array) -> Any:
    """One over the root of the order, in the array's dtype: a random matrix times it has a norm of about 2."""
    return array.dtype.type(1.0 / array.shape[-1] ** 0.5)


def _diagonal(array: Array) -> Array:
    """A view of the diagonals."""
    view: Array = np.einsum("...ii->...i", array)
    return view


def hermitian(rng: np.random.Generator, array: Array, problem: Problem) -> None:
    """The sum with its own transpose: eigenvalues within -1.5 and 1.5."""
    array *= _scale(array) / 2
    array += np.swapaxes(array, -1, -2).conj()


def definite(rng: np.random.Generator, array: Array, problem: Problem) -> None:
    """As `hermitian`, its eigenvalues moved away from zero."""
    hermitian(rng, array, problem)
    diagonal = _diagonal(array)
    diagonal += array.dtype.type(3)


def factors(rng: np.random.Generator, array: Array, problem: Problem) -> None:
    """Triangular factors in one matrix, both of them well conditioned."""
    array *= _scale(array)
    diagonal = _diagonal(array)
    diagonal += array.dtype.type(3)


def regular(rng: np.random.Generator, array: Array, problem: Problem) -> None:
    """A well-conditioned matrix with its rows shuffled."""
    factors(rng, array, problem)
    array[...] = array[..., rng.permutation(array.shape[-2]), :]


def triangle(rng: np.random.Generator, array: Array, problem: Problem) -> None:
    """A triangle with a positive diagonal, and ones on the other side, which must not be read."""
    array *= _scale(array)
    diagonal = _diagonal(array)
    diagonal[...] = np.abs(diagonal) + array.dtype.type(2)
    n = array.shape[-1]
    if n <= 2048:
        other = np.tril_indices(n, -1) if problem.parameter("upper", False) else np.triu_indices(n, 1)
        array[..., other[0], other[1]] = array.dtype.type(1)
