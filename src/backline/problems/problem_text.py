"""Reads a Problem from a line of text: ``matmul f32 1024x1024 1024x1024:F``, ``linalg.svd f64 512x512 full_matrices=False``.

It takes an operation's name (the last part will do for layers: ``conv2d``), a dtype, the shape of every array in the order of
the call (a layout after a colon: C rows, F columns, X neither), ``out`` for an output given by the caller, and keyword
parameters, tuples of ints also as ``2x2``. Recurrent networks need the input's shape and ``hidden`` only. The keys of tuning
records are such texts. A parameter that is left out has the operation's default; keys leave out what is False, so that the key of
``linalg.svd`` with ``full_matrices=False`` reads as that of a call without it. The key of ``linear`` has the weight
transposed: without a bias or a residual, a square one reads as the weight of a call. Keys of gradients of average pooling do not
read: they do not have the input's size.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import BacklineError, BadValue
from ..switches.switch import nearest, show
from . import layer_text
from .dtypes import bfloat16
from .names import SHORT
from .op_registry import composites, import_operations, operations

__all__ = ["read"]

Array = np.ndarray[Any, Any]

SIZES = re.compile(r"\d+(x\d+)*")
DTYPES = {**{v: k for k, v in SHORT.items()}, **{k: k for k in SHORT}}
FORM = 'write it like "matmul f32 1024x1024 1024x1024" or "linalg.svd f64 512x512:F full_matrices=False"'
MAX_SIZE = 1 << 62  # bytes
MAX_DIGITS = 20
MAX_DIMENSIONS = 64  # of NumPy
MAX_TEXT = 100_000  # characters


def read(text: str) -> Any:
    """Returns what `Problem.parse` does; no memory of the Problem's size is taken."""
    if len(text) > MAX_TEXT:
        raise BadValue(f"the text has {len(text)} characters, more than {MAX_TEXT}", remedy=FORM)
    words = _words(text)
    if not words:
        raise BadValue("the text is empty", remedy=FORM)
    given, further = layer_text.KEYS.get(words[0], (words[0], {}))
    rest = words[1:]
    import_operations()
    name = _operation(given, rest)
    dtype: np.dtype[Any] | None = None
    shapes: list[tuple[tuple[int, ...], str]] = []
    keywords: dict[str, Any] = {**further}
    out = ""
    for word in rest:
        if dtype is None:
            dtype = _dtype(word)
        elif word == "out" or word.startswith("out:"):
            out = _layout(word, word.partition(":")[2] or "C")
        elif "=" in word:
            key, _, value = word.partition("=")
            keywords[key] = _value(word, value)
        elif word in layer_text.WORDS:
            keywords[word] = True
        else:
            shapes.append(_shape(word))
    if dtype is None:
        raise BadValue(f"{text!r} names no dtype", remedy=layer_text.example(name) or FORM)
    if not shapes:
        raise BadValue(f"{text!r} names no shape", remedy=layer_text.example(name) or FORM)
    packed = keywords.pop("packed", False)
    problem = _build(name, dtype, shapes, keywords, out)
    return replace(problem, parameters=(*problem.parameters, ("packed", True))) if packed else problem


def _words(text: str) -> list[str]:
    """The words between spaces; what is in parentheses stays together, without the spaces there."""
    words, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter.isspace():
            if depth <= 0 and words[-1]:
                words.append("")
        else:
            words[-1] += letter
    if depth:
        raise BadValue(f"parentheses in {text!r} do not match", remedy="write a tuple like stride=(2,2), or stride=2x2")
    return [word for word in words if word]


def _operation(given: str, words: list[str]) -> str:
    """The operation's name in full."""
    if given in composites and given not in operations:
        parts = " and ".join(composites[given])
        raise BadValue(f"{given} is made of other operations: {parts}", remedy=f"ask for {parts}")
    name = layer_text.operation_name(given, words, operations)
    if name not in operations:
        short = {known.rpartition(".")[2]: known for known in operations}
        close = nearest(given, operations)[:5] if "." in given else [short[s] for s in nearest(given, short)[:5]]
        raise BadValue(f"{given!r} is not an operation", remedy=f"one of: {', '.join(close)}")
    return name


def _dtype(word: str) -> np.dtype[Any]:
    if word not in DTYPES:
        close = nearest(word, list(SHORT.values()))
        raise BadValue(f"{word!r} is not a dtype", remedy=f"one of: {', '.join(close)}")
    name = DTYPES[word]
    if name == "bfloat16":
        return bfloat16()
    return np.dtype(name)


def _layout(word: str, layout: str) -> str:
    if layout not in ("C", "F", "X"):
        raise BadValue(f"{layout!r} in {word!r} is not a layout", remedy="C (rows), F (columns) or X (neither)")
    return layout


def _shape(word: str) -> tuple[tuple[int, ...], str]:
    sizes, colon, layout = word.partition(":")
    if sizes == "scalar":
        return (), "C"
    if not SIZES.fullmatch(sizes):
        raise BadValue(f"{word!r} is not a shape", cause="sizes are whole numbers joined by x", remedy=FORM)
    parts = sizes.split("x")
    if len(parts) > MAX_DIMENSIONS:
        raise BadValue(f"{show(word)} has {len(parts)} dimensions", cause=f"arrays have at most {MAX_DIMENSIONS}", remedy=FORM)
    # Zeros do not hide what the strides of the other axes would come to.
    if any(len(part) > MAX_DIGITS for part in parts) or 32 * math.prod(max(int(n), 1) for n in parts) > MAX_SIZE:
        raise BadValue(f"{show(word)} has more elements than memory can be addressed")
    shape = tuple(map(int, parts))
    return shape, _layout(word, layout) if colon else "C"


def _value(word: str, value: str) -> Any:
    if not word.partition("=")[0].isidentifier():
        raise BadValue(f"{word!r} is not a parameter", remedy="write it like upper=True")
    if re.fullmatch(r"\d+(x\d+)+", value):
        return value  # sizes, though "0x1" is also a number of Python's
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def _array(shape: tuple[int, ...], layout: str, dtype: np.dtype[Any]) -> Array:
    """An array with these strides and no memory behind it; only its description is looked at."""
    step = dtype.itemsize * (2 if layout == "X" else 1)
    strides: list[int] = []
    axes = list(range(len(shape)))
    if layout == "F" and len(shape) > 1:
        axes[-2:] = axes[:-3:-1]
    by_axis = {}
    for axis in reversed(axes):
        by_axis[axis] = step
        step *= max(shape[axis], 1)
    strides = [by_axis[axis] for axis in range(len(shape))]
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, strides)


def _build(name: str, dtype: np.dtype[Any], shapes: list[Any], keywords: dict[str, Any], out: str) -> Any:
    dtypes = [dtype] * len(shapes)
    if name in ("linalg.lu_solve", "linalg.ldl_solve") and len(shapes) > 1:
        dtypes[1] = np.dtype(np.int32)
    keywords.pop("vector", None)  # in keys of solve; the shape says it
    if name == "linalg.solve_triangular":
        keywords.setdefault("upper", False)  # which keys leave out
    if name == "matmul" and len(shapes) == 3:  # in keys, which have what is added last
        name = "addmm" if all(len(shape) == 2 for shape, _ in shapes) else "baddbmm"
        shapes = [shapes[2], *shapes[:2]]
    if name == "matmul" and keywords.pop("conj", False):
        name = "vdot"
        shapes = [((max(shape, default=1),), layout) for shape, layout in shapes]

    def make(shape: tuple[int, ...], layout: str, other: np.dtype[Any] | None = None) -> Array:
        return _array(shape, layout, other or dtype)

    layer = layer_text.call(name, shapes, keywords, make)
    if layer is not None:
        arrays, keywords = layer
    else:
        arrays = [_array(shape, layout, d) for (shape, layout), d in zip(shapes, dtypes, strict=True)]
    if operations[name].scalar:
        keywords.setdefault(operations[name].scalar, 0)  # no part of a Problem, so no text has it; a call may need it
    build = operations[name].build
    try:
        problem = build(*arrays, **keywords)
    except TypeError as error:
        if isinstance(error, BacklineError):
            raise
        remedy = layer_text.example(name) or f"its call is {name}{_signature(name)}"
        raise BadValue(f"{name} does not take these words: {error}", remedy=remedy) from None
    except (ValueError, ArithmeticError, RecursionError, MemoryError) as error:  # numbers past what NumPy or C count to
        if isinstance(error, BacklineError):
            raise
        raise BadValue(f"{name} does not take these numbers: {error}", remedy=layer_text.example(name) or FORM) from None
    if not out:
        return problem
    result = getattr(problem, "result", None)
    if result is None:
        raise BadValue(f"'out' can be described for products only, not for {name}")
    return build(*arrays, **keywords, out=_array(result, out, getattr(problem, "result_dtype", dtype)))


def _signature(name: str) -> str:
    """The parameters of an operation, without their types."""
    signature = operations[name].signature
    if signature is None:
        return "(...)"
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
