"""Elementary functions, element by element: exp, log, expm1, log1p, sin, cos.

Names are those of torch. Arrays are float16, bfloat16, float32, float64, complex64 or complex128, those of log1p real: NumPy's
loop loses the digits of complex numbers near 0. 16-bit floats are computed in float32 and rounded once. A new result has the
order of the input's axes in memory.
"""

from __future__ import annotations

import numpy as np

from ..errors import BadType, BadValue
from ..problems.neural_problem import ELEMENTARY, NeuralProblem
from .array_arguments import check_out
from .doc_fragments import filled
from .families import kinds, operation_family
from .layer_checks import FLOATS, Array, as_input, problem

__all__ = ["cos", "exp", "expm1", "log", "log1p", "sin"]

COMPLEX = ("complex64", "complex128")
TEXT = """{title}

Parameters
----------
input
    Array of any shape, of {numbers} numbers.
out
    Array for the result, of `input`'s shape and dtype; may be `input` itself.

{returns_array}
    As `input`. {ends}

Raises
------
BadType
    No array, or not of {numbers} numbers; an `out` of another dtype.
BadValue
    An `out` of another shape, one whose elements share memory, or one that overlaps `input` and is not the same array.

Notes
-----
By MKL's vector mathematics, in its mode of high accuracy, or by the loops below NumPy's own function, on all threads.{complex}

{examples}
>>> backline.{name}(np.array([{given}])).round(6)
array([{result}])
"""
FACTS = {
    "exp": {
        "title": "Exponential: e to the power of each element.", "ends": "Infinity above 709.8 (88.7 in float32).",
        "given": "0.0, 1.0", "result": "1.      , 2.718282",
    },
    "expm1": {
        "title": "``exp(x) - 1``, accurate near 0.", "ends": "Infinity above 709.8 (88.7 in float32).",
        "given": "0.0, 0.5", "result": "0.      , 0.648721",
    },
    "log": {
        "title": "Natural logarithm.", "ends": "-infinity of 0; NaN below.", "given": "1.0, 10.0", "result": "0.      , 2.302585",
    },
    "log1p": {
        "title": "``log(1 + x)``, accurate near 0.", "ends": "-infinity of -1; NaN below.",
        "given": "0.0, 0.5", "result": "0.      , 0.405465",
    },
    "sin": {
        "title": "Sine of angles in radians.", "ends": "NaN of infinity.", "given": "0.0, 1.0", "result": "0.      , 0.841471",
    },
    "cos": {
        "title": "Cosine of angles in radians.", "ends": "NaN of infinity.", "given": "0.0, 1.0", "result": "1.      , 0.540302",
    },
}  # fmt: skip


def _text(name: str) -> str | None:
    if name == "log1p":
        words = {"numbers": "floating-point", "complex": ""}
    else:
        words = {"numbers": "floating-point or complex", "complex": "\nThese loops compute complex numbers."}
    return filled(TEXT, name=name, **words, **FACTS[name])


def _overlaps_itself(array: Array) -> bool:
    """Tells whether elements may share memory: an axis leads by less than the ones inside it reach."""
    axes = [(n, abs(stride)) for n, stride in zip(array.shape, array.strides, strict=True) if n > 1 and array.size]
    reach: int = array.itemsize
    for size, stride in sorted(axes, key=lambda axis: axis[1]):
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def _elementary(name: str, input: Array, *, out: Array | None = None) -> NeuralProblem:
    array = as_input(name, "input", input, dtypes=(*FLOATS, *COMPLEX))
    if name == "log1p" and array.dtype.kind == "c":
        cause = "NumPy's loop loses the digits of complex numbers near 0, and no other library has one"
        raise BadType(f"log1p: input has dtype {array.dtype}", cause=cause, remedy="np.log1p(x), or x.real")
    if out is not None:
        check_out(out, f"{name}: out", array.shape, array.dtype)
        if _overlaps_itself(out):
            what = f"{name}: out has elements that share memory: shape {out.shape}, strides {out.strides}"
            raise BadValue(what, remedy="an array of its own: out.copy()")
    return problem(name, {"input": array, "out": out}, array.shape)


def _positive(rng: np.random.Generator, array: Array, problem: NeuralProblem) -> None:
    array[...] = np.abs(array)


exp, expm1, log, log1p, sin, cos = operation_family(
    _elementary, kinds(*ELEMENTARY), _text, module="backline", family="neural",
    rows={name: {"sample": _positive} for name in ("log", "log1p")},
)  # fmt: skip
