"""Activations, softmax and dropout: relu, gelu, silu, tanh, sigmoid, softmax, log_softmax, dropout.

Names, parameters and the treatment of NaN are those of torch.nn.functional. Arrays are float16, bfloat16, float32 or float64;
16-bit floats are computed in float32 and rounded once. A result has the input's shape, dtype and order of axes in memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..errors import BadType
from ..libraries.array_kinds import kind_of
from ..problems.neural_problem import NeuralProblem
from .array_arguments import check_array, functions, like, space_of
from .axes import axis_of
from .composite import natively, on_its_device
from .doc_fragments import filled
from .families import kinds, operation_family
from .layer_checks import FLOATS, MODULE, Array, as_input, positive, problem
from .linalg_checks import dtype_given, flag, word
from .operation import operation
from .promote import conversion
from .seeds import drawn_generator, seed_given

__all__ = ["dropout", "gelu", "log_softmax", "relu", "sigmoid", "silu", "softmax", "tanh"]


# Activations ------------------------------------------------------------------------------------------------------------

TEXT = """{title}

Parameters
----------
input
    {input}
{approximate}
{returns_array}
    As `input`{nan}.

Raises
------
{raised}
    {errors}

{examples}
>>> backline.nn.functional.{name}{example}
"""
FLOATING = {
    "input": "Floating-point array of any shape.", "approximate": "", "nan": "",
    "raised": "BadType", "errors": "No array, or not of floating-point numbers.",
}  # fmt: skip
FACTS = {
    "relu": FLOATING | {
        "title": "The larger of x and 0.", "input": "Array of any shape, of floating-point numbers or integers.",
        "nan": ". NaN stays NaN", "errors": "No array, or one of bool or complex numbers.",
        "example": "(np.array([-1.0, 2.0]))\narray([0., 2.])",
    },
    "gelu": FLOATING | {
        "title": "x times the normal distribution function of x.",
        "approximate": """approximate
    "none": ``x / 2 * (1 + erf(x / sqrt(2)))``; "tanh": ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``.
""",
        "raised": "BadType, BadValue", "errors": "No array, or not of floating-point numbers; another word for `approximate`.",
        "example": "(np.array([-1.0, 1.0])).round(6)\narray([-0.158655,  0.841345])",
    },
    "silu": FLOATING | {
        "title": "``x / (1 + exp(-x))``, also known as swish.",
        "example": "(np.array([0.0, 1.0])).round(6)\narray([0.      , 0.731059])",
    },
    "tanh": FLOATING | {"title": "Hyperbolic tangent.", "example": "(np.array([0.0, 1000.0]))\narray([0., 1.])"},
    "sigmoid": FLOATING | {
        "title": "``1 / (1 + exp(-x))``, without overflow.", "example": "(np.array([0.0, -1000.0]))\narray([0.5, 0. ])",
    },
}  # fmt: skip
ROW: dict[str, Any] = {"module": MODULE, "family": "neural"}
_FORMS = "approximate argument must be either none or tanh."


def _text(name: str) -> str | None:
    return filled(TEXT, name=name, **FACTS[name])


def _pointwise(name: str, input: Array) -> NeuralProblem:
    array = as_input(name, "input", input, integers=("cpu",) if name == "relu" else ())
    return problem(name, {"input": array}, array.shape)


def _gelu(name: str, input: Array, approximate: str = "none") -> NeuralProblem:
    form = word(name, "approximate", approximate, ("none", "tanh"), _FORMS)
    array = as_input(name, "input", input)
    return problem(name, {"input": array}, array.shape, approximate=form)


relu, silu, tanh, sigmoid = operation_family(_pointwise, kinds("relu", "silu", "tanh", "sigmoid"), _text, **ROW)
(gelu,) = operation_family(_gelu, kinds("gelu"), _text, **ROW)


# Softmax ----------------------------------------------------------------------------------------------------------------

SOFTMAX = """{title}

Parameters
----------
input
    Floating-point array, or with `dtype` one of any real numbers. One without axes counts as one element along axis 0.
dim
    The axis; counted from the end if negative. None, which torch is giving up and warns about, takes axis 0 of arrays of 0,
    1 or 3 dimensions, else axis 1.
dtype
    float16, bfloat16, float32 or float64: the dtype that `input` is converted to first.

{returns_array}
    As `input`, of `dtype` if it is given{sum}. Where the largest element is infinite or NaN, all are NaN.

{raises}
    No array, or not of floating-point numbers; no such axis; a `dtype` that is not one of those.

Notes
-----
The largest element is subtracted first: nothing overflows.

{examples}
>>> backline.nn.functional.{example}
"""
SOFTMAX_FACTS = {
    "softmax": {
        "title": "Exponentials along an axis, divided by their sum.", "sum": "; adds up to 1 along `dim`",
        "example": "softmax(np.array([[0.0, 0.0], [1000.0, 0.0]]), dim=1)\narray([[0.5, 0.5],\n       [1. , 0. ]])",
    },
    "log_softmax": {
        "title": "Logarithm of `softmax`, computed without going through it.", "sum": "",
        "example": "log_softmax(np.array([1000.0, 0.0]), dim=0)\narray([    0., -1000.])",
    },
}  # fmt: skip


def _without_dim(op: str, input: Any, dim: Any = None, **more: Any) -> str:
    if dim is not None:
        return ""
    return f"Implicit dimension choice for {op} has been deprecated. Change the call to include dim=X as an argument."


def _softmax(op: str, input: Array, dim: int | None = None, *, dtype: Any = None) -> NeuralProblem:
    """Returns the Problem of a softmax; the input is converted to `dtype` before it runs."""
    converted: tuple[str, ...] = ()
    array = as_input(op, "input", input) if dtype is None else check_array(input, f"{op}: input")
    if dtype is not None:
        target = dtype_given(op, dtype, FLOATS)
        if array.dtype.kind == "c":
            raise BadType(f"{op}: input has dtype {array.dtype}", cause="the imaginary part would be lost", remedy="x.real")
        if array.dtype != target:
            converted = (conversion("input", array, target),)
            array = np.empty_like(array, dtype=target, subok=False)  # laid out as the converted one
    if dim is None:
        dim = 0 if array.ndim in (0, 1, 3) else 1
    axis = axis_of(op, "dim", dim, array.shape or (1,))
    return replace(problem(op, {"input": array}, array.shape, axis=axis), converted=converted)


def _operation(name: str) -> Any:
    return operation(name, **ROW, deprecated=partial(_without_dim, name))


softmax, log_softmax = operation_family(
    _softmax, kinds("softmax", "log_softmax"), lambda name: filled(SOFTMAX, **SOFTMAX_FACTS[name]), make=_operation
)


# Dropout ----------------------------------------------------------------------------------------------------------------


@on_its_device
@natively
def dropout(
    input: Array, p: float = 0.5, training: bool = True, *, seed: int | np.random.Generator | None = None
) -> Array:
    """Sets elements to zero at random and scales the others by ``1 / (1 - p)``.

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

    {returns_array}
        As `input`. A dropped element is the element times 0, as in torch: NaN and infinity become NaN.

    {raises}
        No array, or not of floating-point numbers; `p` out of range; no `seed`, and no `backline.manual_seed` before.

    Notes
    -----
    Which elements are dropped depends on the seed and the shape, not on dtype, memory layout, library or number of threads.
    The numbers are those of ``numpy.random.default_rng(seed).random``, one for each element in C order.

    {examples}
    >>> x = np.ones(8, np.float32)
    >>> backline.nn.functional.dropout(x, 0.5, seed=1)
    array([2., 2., 0., 2., 0., 0., 2., 0.], dtype=float32)
    """
    array = as_input("dropout", "input", like(input))
    rate = positive("dropout", "p", p, most=1.0)
    if not flag("dropout", "training", training) or rate == 0:
        return _copied(input)
    if not isinstance(seed, np.random.Generator):
        number = seed_given("dropout", seed, "an int or a numpy.random.Generator")
        seed = drawn_generator("dropout") if number is None else np.random.default_rng(number)
    dtype = np.dtype(np.float32 if array.dtype.itemsize == 2 else array.dtype)
    scale = dtype.type(0 if rate == 1 else 1 / (1 - rate))
    kind = kind_of(input)
    if kind is not None and kind.package == "cupy":
        on_device: Array = _on_cuda(input, rate, float(scale), seed)
        return on_device
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
    """Returns a copy with the same order of axes in memory."""
    if isinstance(input, np.ndarray):
        result = np.empty_like(input, order="K", subok=False)
        result[...] = input
        return result
    return functions(input).array(input)


def _on_cuda(input: Any, rate: float, scale: float, generator: np.random.Generator) -> Any:
    """Drops elements by a kernel that computes the generator's numbers, and advances the generator."""
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
    # Elements are counted as C order has them.
    pcg = state["state"]
    flat = dropped(xp.ascontiguousarray(input).reshape(input.shape), pcg["state"], pcg["inc"], rate, scale)
    if input.flags.c_contiguous:
        return flat
    result = xp.empty_like(input, order="K")
    result[...] = flat
    return result


dropout.__module__ = MODULE
