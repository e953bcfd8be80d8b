"""Activations, softmax and dropout: relu, gelu, silu, tanh, sigmoid, softmax, log_softmax, dropout.

Names, parameters and what happens to NaN are those of torch.nn.functional. Arrays are float16, bfloat16, float32 or float64;
halves are computed in float32 and rounded once. A result has the input's shape, dtype and order of axes in memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries.array_kinds import kind_of
from ..problems.neural_problem import NeuralProblem
from .array_arguments import check_array, functions, like, space_of
from .axes import axis_of
from .composite import natively, on_its_device
from .layer_checks import FLOATS, MODULE, Array, as_input, positive, problem
from .linalg_checks import dtype_given, flag, word
from .operation import operation
from .promote import conversion
from .seeds import drawn_generator

__all__ = ["dropout", "gelu", "log_softmax", "relu", "sigmoid", "silu", "softmax", "tanh"]


def _pointwise(op: str, input: Array, **parameters: Any) -> NeuralProblem:
    array = as_input(op, "input", input)
    return problem(op, {"input": array}, array.shape, **parameters)


@operation("relu", module=MODULE, family="neural")
def relu(input: Array) -> NeuralProblem:
    """The larger of x and 0.

    Parameters
    ----------
    input
        Array of any shape, of floating-point numbers or integers.

    Returns
    -------
    ndarray
        As `input`. NaN stays NaN.

    Raises
    ------
    BadType
        No array, or one of bool or complex numbers.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.functional.relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    array = as_input("relu", "input", input, integers=True)
    return problem("relu", {"input": array}, array.shape)


_FORMS = "approximate argument must be either none or tanh."


@operation("gelu", module=MODULE, family="neural")
def gelu(input: Array, approximate: str = "none") -> NeuralProblem:
    """x times the normal distribution function of x.

    Parameters
    ----------
    input
        Floating-point array of any shape.
    approximate
        "none": ``x / 2 * (1 + erf(x / sqrt(2)))``; "tanh": ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``.

    Returns
    -------
    ndarray
        As `input`.

    Raises
    ------
    BadType, BadValue
        No array, or not of floating-point numbers; another word for `approximate`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.functional.gelu(np.array([-1.0, 1.0])).round(6)
    array([-0.158655,  0.841345])
    """
    return _pointwise("gelu", input, approximate=word("gelu", "approximate", approximate, ("none", "tanh"), _FORMS))


@operation("silu", module=MODULE, family="neural")
def silu(input: Array) -> NeuralProblem:
    """``x / (1 + exp(-x))``, also known as swish.

    Parameters
    ----------
    input
        Floating-point array of any shape.

    Returns
    -------
    ndarray
        As `input`.

    Raises
    ------
    BadType
        No array, or not of floating-point numbers.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.functional.silu(np.array([0.0, 1.0])).round(6)
    array([0.      , 0.731059])
    """
    return _pointwise("silu", input)


@operation("tanh", module=MODULE, family="neural")
def tanh(input: Array) -> NeuralProblem:
    """Hyperbolic tangent.

    Parameters
    ----------
    input
        Floating-point array of any shape.

    Returns
    -------
    ndarray
        As `input`.

    Raises
    ------
    BadType
        No array, or not of floating-point numbers.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.functional.tanh(np.array([0.0, 1000.0]))
    array([0., 1.])
    """
    return _pointwise("tanh", input)


@operation("sigmoid", module=MODULE, family="neural")
def sigmoid(input: Array) -> NeuralProblem:
    """``1 / (1 + exp(-x))``, without overflow.

    Parameters
    ----------
    input
        Floating-point array of any shape.

    Returns
    -------
    ndarray
        As `input`.

    Raises
    ------
    BadType
        No array, or not of floating-point numbers.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.functional.sigmoid(np.array([0.0, -1000.0]))
    array([0.5, 0. ])
    """
    return _pointwise("sigmoid", input)


def _without_dim(op: str, input: Any, dim: Any = None, **more: Any) -> str:
    if dim is not None:
        return ""
    return f"Implicit dimension choice for {op} has been deprecated. Change the call to include dim=X as an argument."


def _along(op: str, input: Any, dim: Any, dtype: Any) -> NeuralProblem:
    """The Problem of a softmax; the input is converted to `dtype` before it runs."""
    converted: tuple[str, ...] = ()
    array = as_input(op, "input", input) if dtype is None else check_array(input, f"{op}: input")
    if dtype is not None:
        wanted = dtype_given(op, dtype, FLOATS)
        if array.dtype.kind == "c":
            raise BadType(f"{op}: input has dtype {array.dtype}", cause="the imaginary part would be lost", remedy="x.real")
        if array.dtype != wanted:
            converted = (conversion("input", array, wanted),)
            array = np.empty_like(array, dtype=wanted, subok=False)  # laid out as the converted one
    if dim is None:
        dim = 0 if array.ndim in (0, 1, 3) else 1
    axis = axis_of(op, "dim", dim, array.shape or (1,))
    return replace(problem(op, {"input": array}, array.shape, axis=axis), converted=converted)


@operation("softmax", module=MODULE, family="neural", deprecated=partial(_without_dim, "softmax"))
def softmax(input: Array, dim: int | None = None, *, dtype: Any = None) -> NeuralProblem:
    """Exponentials along an axis, divided by their sum.

    Parameters
    ----------
    input
        Floating-point array, or with `dtype` one of any real numbers. One without axes counts as one element along axis 0.
    dim
        The axis; counted from the end if negative. None, which torch is giving up and warns about, takes axis 0 of arrays of 0,
        1 or 3 dimensions, else axis 1.
    dtype
        float16, bfloat16, float32 or float64: what `input` is converted to first.

    Returns
    -------
    ndarray
        As `input`, of `dtype` if it is given; adds up to 1 along `dim`. Where the largest element is infinite or NaN, all are
        NaN.

    Raises
    ------
    BadType, BadValue
        No array, or not of floating-point numbers; no such axis; a `dtype` that is not one of those.

    Notes
    -----
    The largest element is subtracted first: nothing overflows.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.functional.softmax(np.array([[0.0, 0.0], [1000.0, 0.0]]), dim=1)
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    return _along("softmax", input, dim, dtype)


@operation("log_softmax", module=MODULE, family="neural", deprecated=partial(_without_dim, "log_softmax"))
def log_softmax(input: Array, dim: int | None = None, *, dtype: Any = None) -> NeuralProblem:
    """Logarithm of `softmax`, computed without going through it.

    Parameters
    ----------
    input
        As for `softmax`.
    dim, dtype
        As for `softmax`.

    Returns
    -------
    ndarray
        As `input`, of `dtype` if it is given.

    Raises
    ------
    BadType, BadValue
        As `softmax`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.nn.functional.log_softmax(np.array([1000.0, 0.0]), dim=0)
    array([    0., -1000.])
    """
    return _along("log_softmax", input, dim, dtype)


@on_its_device
@natively
def dropout(
    input: Array, p: float = 0.5, training: bool = True, *, seed: int | np.random.Generator | None = None
) -> Array:
    """Set elements to zero at random and scale the others by ``1 / (1 - p)``.

    Parameters
    ----------
    input
        Floating-point array of any shape.
    p
        Probability of an element to be dropped, from 0 to 1.
    training
        False returns a copy of the input.
    seed
        A seed, or a generator of random numbers, which moves on. None takes the generator of `backline.manual_seed`, which must
        have been called where elements are dropped at all.

    Returns
    -------
    ndarray
        As `input`. A dropped element is the element times 0, as in torch: NaN and infinity become NaN.

    Raises
    ------
    BadType, BadValue
        No array, or not of floating-point numbers; `p` out of range; no `seed`, and no `backline.manual_seed` before.

    Notes
    -----
    What is dropped depends on the seed and the shape, not on dtype, memory layout, library or number of threads. The numbers
    are those of ``numpy.random.default_rng(seed).random``, one for each element in C order.

    Examples
    --------
    >>> import numpy as np, backline
    >>> x = np.ones(8, np.float32)
    >>> backline.nn.functional.dropout(x, 0.5, seed=1)
    array([2., 2., 0., 2., 0., 0., 2., 0.], dtype=float32)
    """
    array = as_input("dropout", "input", like(input))
    rate = positive("dropout", "p", p, most=1.0)
    if not flag("dropout", "training", training) or rate == 0:
        return _copied(input)
    if seed is None:
        seed = drawn_generator("dropout")
    if not isinstance(seed, np.random.Generator):
        if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
            raise BadType(f"dropout: seed is an int or a numpy.random.Generator, not {type(seed).__name__}")
        if seed < 0:
            raise BadValue(f"dropout: seed={seed}", remedy="0 or more")
        seed = np.random.default_rng(seed)
    dtype = np.dtype(np.float32 if array.dtype.itemsize == 2 else array.dtype)
    scale = dtype.type(0 if rate == 1 else 1 / (1 - rate))
    kind = kind_of(input)
    if kind is not None and kind.package == "cupy":
        there: Array = _on_cuda(input, rate, float(scale), seed)
        return there
    kept: Any = np.asarray(seed.random(array.shape)) >= rate
    if kind is not None:  # the numbers are drawn here, and the memory is one
        f = space_of(input)
        dropped: Array = f.cast(f.cast(input, dtype) * (f.constant(kept, dtype) * float(scale)), array.dtype)
        return dropped
    result = _copied(input)
    with np.errstate(all="ignore"):  # overflow and NaN show in the result
        result[...] = input.astype(dtype, copy=False) * (kept * scale)
    return result


def _copied(input: Array) -> Array:
    """A copy with the same order of axes in memory."""
    if isinstance(input, np.ndarray):
        result = np.empty_like(input, order="K", subok=False)
        result[...] = input
        return result
    same: Array = functions(input).array(input)
    return same


def _on_cuda(input: Any, rate: float, scale: float, generator: np.random.Generator) -> Any:
    """Elements dropped by a kernel that computes the generator's numbers; the generator moves on here."""
    from ..libraries.cuda.common.elementwise_kernels import dropped

    bits = generator.bit_generator
    if not isinstance(bits, np.random.PCG64):
        raise BadType(
            f"dropout: the generator's numbers are those of {type(bits).__name__}",
            cause="on CUDA devices they are those of PCG64", remedy="seed=np.random.default_rng(...), whose they are, or an int",
        )  # fmt: skip
    xp = functions(input)
    if input.size == 0:
        return xp.empty_like(input, order="K")
    with bits.lock:
        state = bits.state
        bits.advance(input.size)
        # Half a number that was left over from integers stays, as it does where the numbers are drawn.
        bits.state = {**state, "state": bits.state["state"]}
    numbers = [np.uint64((state["state"][name] >> shift) & (2**64 - 1)) for name in ("state", "inc") for shift in (64, 0)]
    # Elements are counted as C order has them.
    made = dropped()(xp.ascontiguousarray(input).reshape(input.shape), *numbers, rate, scale, xp.empty(input.shape, input.dtype))
    if input.flags.c_contiguous:
        return made
    result = xp.empty_like(input, order="K")
    result[...] = made
    return result


dropout.__module__ = MODULE
