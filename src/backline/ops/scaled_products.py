"""Products of 8-bit matrices: scaled_mm of float8, int_mm of int8, with results of wider dtypes."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import Operand, Problem, operand
from ..problems.scaled_problem import FLOAT8, ROW_WISE, TENSOR_WISE, ScaledProblem
from ..switches.switch import show
from .array_arguments import check_array, check_out
from .layer_checks import MODULE
from .linalg_checks import dtype_given, enough_memory, flag
from .operation import operation

__all__ = ["ScalingType", "int_mm", "scaled_mm"]

Array = np.ndarray[Any, Any]
RECIPES = (TENSOR_WISE, ROW_WISE)
OUTPUTS = ("bfloat16", "float16", "float32")


class ScalingType(enum.StrEnum):
    """Relation of the scales of `scaled_mm` to a matrix.

    Attributes
    ----------
    TensorWise
        One scale for the whole matrix.
    RowWise
        One scale for each row of `mat_a`, or each column of `mat_b`.
    """

    TensorWise = TENSOR_WISE
    RowWise = ROW_WISE


def _float8(where: str, value: Any) -> Array:
    if isinstance(value, np.ndarray) and value.dtype.name in FLOAT8:
        array = value
    else:
        array = check_array(value, where)
        raise BadType(
            f"{where} has dtype {array.dtype}, it must be {' or '.join(FLOAT8)}",
            remedy="(x / scale).astype(ml_dtypes.float8_e4m3fn), with a scale that brings the largest element to 448",
        )
    return _matrix(where, array)


def _matrix(where: str, array: Array) -> Array:
    if array.ndim != 2:
        raise BadValue(f"{where} must be a matrix, it has shape {array.shape}", cause="Inputs must be 2D")
    return array


def _fit(where: str, a: Array, b: Array) -> tuple[int, int, int]:
    (m, k), (rows, n) = a.shape, b.shape
    if k != rows:
        raise BadValue(
            f"{where}: shapes {a.shape} and {b.shape} do not fit",
            cause=f"mat1 and mat2 shapes cannot be multiplied: {k} columns on the left, {rows} rows on the right",
        )
    return m, n, k


def _recipe(where: str, value: Any) -> str:
    """Returns the name of a recipe; members of the enum of PyTorch have it as well."""
    if type(value) is list and len(value) == 1:
        value = value[0]
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if not isinstance(name, str):
        raise BadType(f"{where} is {show(value)}", remedy="nn.functional.ScalingType.TensorWise or RowWise")
    if name not in RECIPES:
        raise BadValue(f"{where}={name!r}", cause="scales of blocks are not supported", remedy="'TensorWise' or 'RowWise'")
    return str(name)


def _scale(where: str, value: Any, recipe: str, size: int, shape: tuple[int, int]) -> Array:
    scale = check_array(value, where)
    if scale.dtype != np.float32:
        raise BadType(f"{where} has dtype {scale.dtype}, it must be float32", remedy="scale.astype(np.float32)")
    if recipe == TENSOR_WISE:
        legal = scale.size == 1
        wanted = "one element"
    else:
        legal = scale.shape in (shape, (size,))
        wanted = f"shape {shape}"
    if not legal:
        raise BadValue(f"{where} has shape {scale.shape}, for {recipe} it has {wanted}")
    return scale


def _dims(where: str, value: Any) -> None:
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) for n in given):
        raise BadType(f"{where} is {show(value)}, it must be a tuple of ints")
    if given not in ((), (1, 0), (-1, 0), (1, -2), (-1, -2)):
        raise BadValue(f"{where}={given}", cause="the columns of mat_a meet the rows of mat_b", remedy="(), or (1, 0)")


def _error(problem: Any, operands: list[Any], results: tuple[Any, ...]) -> float:
    """Largest error of a result relative to the sum of its terms' sizes, in float64."""
    of = dict(zip((o.role for o in problem.operands), operands, strict=True))
    a, b = (np.asarray(of[role]).astype(np.float64) for role in "ab")
    wanted, size = a @ b, np.abs(a) @ np.abs(b)
    if problem.integer:
        wanted = wanted.astype(np.int64).astype(np.int32).astype(np.float64)  # sums beyond int32 wrap around
    for role, shape in (("scale_a", (-1, 1)), ("scale_b", (1, -1))):
        if role in of:
            scale = np.asarray(of[role], np.float64).reshape(shape)
            wanted, size = wanted * scale, size * np.abs(scale)
    if "bias" in of:
        bias = np.asarray(of["bias"]).astype(np.float64)
        wanted, size = wanted + bias, size + np.abs(bias)
    difference = np.abs(np.asarray(results[0]).astype(np.float64) - wanted)
    return float(np.max(difference, initial=0) / max(float(np.max(size, initial=0)), 1e-300))


@operation("scaled_mm", module=MODULE, family="quantized", lists=("contraction_dim",), check=_error)
def scaled_mm(
    mat_a: Array, mat_b: Array, scale_a: Array, scale_recipe_a: str, scale_b: Array, scale_recipe_b: str,
    swizzle_a: None = None, swizzle_b: None = None, bias: Array | None = None, output_dtype: Any = "bfloat16",
    contraction_dim: tuple[int, ...] = (), use_fast_accum: bool = False,
) -> Problem:  # fmt: skip
    """Product of two float8 matrices times their scales: ``(mat_a * scale_a) @ (mat_b * scale_b) + bias``.

    Parameters
    ----------
    mat_a, mat_b
        Arrays of shape (m, k) and (k, n), of float8_e4m3fn or float8_e5m2 (of ml_dtypes), each of its own.
    scale_a, scale_b
        float32 arrays: one element, or for "RowWise" shape (m, 1) of `scale_a` and (1, n) of `scale_b`.
    scale_recipe_a, scale_recipe_b
        `ScalingType`, or its word: "TensorWise" or "RowWise".
    swizzle_a, swizzle_b
        Must be None.
    bias
        Array of shape (n,), of the result's dtype, or None.
    output_dtype
        Dtype of the result: bfloat16, float16 or float32.
    contraction_dim
        Must be empty, or name the columns of `mat_a` and the rows of `mat_b`.
    use_fast_accum
        Whether a device may keep sums in the precision of its tensor cores, which is less than float32. No effect on the CPU.

    {returns_array}
        Shape (m, n), of `output_dtype`.

    {raises}
        Not such arrays; shapes that do not fit; recipes of blocks.

    Notes
    -----
    Sums are float32, or wider; scales and bias are applied to them, and the result is rounded once. On CUDA cuBLASLt runs it on
    devices of compute capability 8.9 or higher, where k and n are multiples of 16 and one matrix is float8_e4m3fn; elsewhere
    elements are widened, which changes no value.

    Examples
    --------
    >>> import ml_dtypes
    >>> import numpy as np
    >>> from backline.nn.functional import scaled_mm
    >>> x = np.array([[100.0, 300.0]], np.float32)
    >>> scale = np.array([x.max() / 448], np.float32)
    >>> x8, one = (x / scale).astype(ml_dtypes.float8_e4m3fn), np.ones(1, np.float32)
    >>> w8 = np.array([[1.0], [0.5]]).astype(ml_dtypes.float8_e4m3fn)
    >>> scaled_mm(x8, w8, scale, "TensorWise", one, "TensorWise", output_dtype=np.float32)
    array([[246.42857]], dtype=float32)
    """
    import ml_dtypes

    assert ml_dtypes  # NumPy knows "bfloat16" from then on
    a, b = _float8("scaled_mm: mat_a", mat_a), _float8("scaled_mm: mat_b", mat_b)
    m, n, k = _fit("scaled_mm", a, b)
    recipes = _recipe("scaled_mm: scale_recipe_a", scale_recipe_a), _recipe("scaled_mm: scale_recipe_b", scale_recipe_b)
    for name, value in (("swizzle_a", swizzle_a), ("swizzle_b", swizzle_b)):
        if value is not None and not (type(value) is list and not value):
            why = "scales of blocks are not supported"
            raise BadType(f"scaled_mm: {name} is {show(value)}", cause=why, remedy=f"{name}=None")
    dtype = dtype_given("scaled_mm: output_dtype", output_dtype, OUTPUTS)
    _dims("scaled_mm: contraction_dim", contraction_dim)
    fast = flag("scaled_mm", "use_fast_accum", use_fast_accum)
    operands: list[Operand] = [
        operand("a", a), operand("b", b),
        operand("scale_a", _scale("scaled_mm: scale_a", scale_a, recipes[0], m, (m, 1))),
        operand("scale_b", _scale("scaled_mm: scale_b", scale_b, recipes[1], n, (1, n))),
    ]  # fmt: skip
    if bias is not None:
        added = check_array(bias, "scaled_mm: bias")
        if added.dtype != dtype:
            raise BadType(f"scaled_mm: bias has dtype {added.dtype}, the result has {dtype}", remedy="bias.astype(...)")
        if added.shape != (n,):
            raise BadValue(f"scaled_mm: bias has shape {added.shape}, it must be {(n,)}")
        operands.append(operand("bias", added))
    enough_memory("scaled_mm", (m, n), dtype)
    parameters = (("fast", fast), ("output_dtype", dtype.name), ("recipe_a", recipes[0]), ("recipe_b", recipes[1]))
    return ScaledProblem("nn.functional.scaled_mm", tuple(operands), parameters, "quantized", m=m, n=n, k=k, result=(m, n))


@operation("int_mm", module="backline.quantized", family="quantized", check=_error)
def int_mm(input: Array, mat2: Array, *, out: Array | None = None) -> Problem:
    """Product of two int8 matrices, with sums and results of int32.

    Parameters
    ----------
    input, mat2
        int8 arrays of shape (m, k) and (k, n).
    out
        int32 array of shape (m, n); it must not overlap the operands.

    {returns_array}
        int32, shape (m, n). Exact; sums beyond int32, for which k has to be above 131071, wrap around.

    {raises}
        Not such arrays, shapes that do not fit, an unfit or overlapping `out`.

    Notes
    -----
    On the CPU a compiled loop runs it where the elements of each row, or of each column, are neighbours in memory; on CUDA
    cuBLASLt on the tensor cores where k and n are multiples of 4. Elsewhere elements are widened to a dtype in which sums are
    exact.

    Examples
    --------
    >>> import numpy as np
    >>> from backline import quantized
    >>> quantized.int_mm(np.array([[100, -100]], np.int8), np.array([[100], [-100]], np.int8))
    array([[20000]], dtype=int32)
    """
    arrays = {"input": input, "mat2": mat2}
    for name, value in arrays.items():
        array = check_array(value, f"int_mm: {name}")
        if array.dtype != np.int8:
            raise BadType(
                f"int_mm: {name} has dtype {array.dtype}, it must be int8", remedy="quantized.quantize(x, scale).int_repr"
            )
        _matrix(f"int_mm: {name}", array)
    m, n, k = _fit("int_mm", input, mat2)
    operands = [operand("a", input), operand("b", mat2)]
    if out is None:
        enough_memory("int_mm", (m, n), np.dtype(np.int32))
    else:
        operands.append(operand("out", check_out(out, "int_mm: out", (m, n), np.dtype(np.int32))))
    return ScaledProblem("quantized.int_mm", tuple(operands), (), "quantized", m=m, n=n, k=k, result=(m, n))
