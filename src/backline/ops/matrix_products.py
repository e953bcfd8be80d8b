"""Products of matrices and vectors: matmul, mm, bmm, mv, dot, vdot, outer, addmm, baddbmm.

Names, parameters and rules are those of torch; operands are NumPy arrays of one dtype. float16 and bfloat16 (of ml_dtypes)
accumulate in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import Operand
from ..problems.matmul_problem import MatmulProblem
from ..problems.memory_layout import broadcast_batch, broadcast_strides
from .array_arguments import check_array, check_out
from .doc_fragments import filled
from .families import kinds, operation_family
from .linalg_checks import number
from .operation import operation

__all__ = ["addmm", "baddbmm", "bmm", "dot", "matmul", "mm", "mv", "outer", "vdot"]

Array = np.ndarray[Any, Any]


def _as_matrix(role: str, array: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Operand:
    return Operand(role, array.dtype, shape, strides, array.flags.aligned)


def _product(
    where: str, a: Array, b: Array, out: Array | None, *, c: Array | None = None, alpha: Any = 1, beta: Any = 0,
    conj: bool = False,
) -> MatmulProblem:  # fmt: skip
    """Returns the Problem of beta * c + alpha * a @ b, with NumPy's rules for vectors."""
    if a.dtype != b.dtype:
        raise BadType(
            f"{where}: operands have dtypes {a.dtype} and {b.dtype}, expected m1 and m2 to have the same dtype",
            cause="a product runs in one dtype, and an implicit conversion could cost more than the product",
            remedy=f"a.astype(np.{b.dtype.name}) or the other way round",
        )
    left, right = a.ndim == 1, b.ndim == 1
    a_shape, a_strides = ((1, *a.shape), (0, *a.strides)) if left else (a.shape, a.strides)
    b_shape, b_strides = ((*b.shape, 1), (*b.strides, 0)) if right else (b.shape, b.strides)
    if a_shape[-1] != b_shape[-2]:
        raise BadValue(
            f"{where}: shapes {a.shape} and {b.shape} do not fit",
            cause=f"{_in_torch(where, a, b)}: {a_shape[-1]} columns on the left, {b_shape[-2]} rows on the right",
        )
    batch = broadcast_batch(a_shape[:-2], b_shape[:-2])
    if batch is None:
        raise BadValue(
            f"{where}: batch shapes {a_shape[:-2]} and {b_shape[:-2]} do not broadcast",
            cause=_first_clash(a_shape[:-2], b_shape[:-2]),
        )
    m, k, n = a_shape[-2], a_shape[-1], b_shape[-1]
    result = (*batch, *([] if left else [m]), *([] if right else [n]))
    operands = [_as_matrix("a", a, a_shape, a_strides), _as_matrix("b", b, b_shape, b_strides)]
    parameters: list[tuple[str, Any]] = []
    if c is not None:
        if c.dtype != a.dtype:
            raise BadType(f"{where}: input has dtype {c.dtype}, the matrices have {a.dtype}")
        spread = broadcast_strides(c.shape, c.strides, result)
        if spread is None:
            raise BadValue(f"{where}: input of shape {c.shape} does not broadcast to {result}")
        operands.insert(0, _as_matrix("c", c, result, spread))
        if a.dtype.kind != "c" and (isinstance(alpha, complex) or isinstance(beta, complex)):
            raise BadType(f"{where}: alpha and beta must be real for {a.dtype}")
        for name, value in (("alpha", alpha), ("beta", beta)):
            if a.dtype.kind in "biu" and value != int(value.real):
                raise BadType(
                    f"{where}: {name} = {value} for {a.dtype}",
                    cause="integers would cut it off",
                    remedy="an integer, or x.astype(np.float64)",
                )
        parameters = [("alpha", alpha), ("beta", beta)]
    if conj:
        parameters.append(("conj", True))
    if out is not None:
        check_out(out, f"{where}: out", result, a.dtype)
        o_shape, o_strides = list(out.shape), list(out.strides)
        if left:
            o_shape.insert(len(batch), 1)
            o_strides.insert(len(batch), 0)
        if right:
            o_shape.append(1)
            o_strides.append(0)
        operands.append(_as_matrix("out", out, tuple(o_shape), tuple(o_strides)))
    return MatmulProblem(
        "matmul", tuple(operands), tuple(parameters), "matmul", m=m, n=n, k=k, batch=batch, result=result
    )  # fmt: skip


def _in_torch(where: str, a: Array, b: Array) -> str:
    """The words of torch's error for shapes that do not fit: programs look for them."""
    if a.ndim == b.ndim == 1:
        sizes = f"{list(a.shape)} and src {list(b.shape)}"
        return f"inconsistent tensor size, expected tensor {sizes} to have the same number of elements"
    if b.ndim == 1:
        return "size mismatch"
    if where in ("bmm", "baddbmm"):
        sizes = f"{[a.shape[0], a.shape[-1]]} but got: {list(b.shape[:2])}"
        return f"Expected size for first two dimensions of batch2 tensor to be: {sizes}"
    sizes = f"{'x'.join(map(str, a.shape))} and {'x'.join(map(str, b.shape))}"
    return f"mat1 and mat2 shapes cannot be multiplied ({sizes})"


def _first_clash(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """The last axis in which batches do not broadcast, in torch's words."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    axis, m, n = [(i, m, n) for i, (m, n) in enumerate(pairs) if m != n and 1 not in (m, n)][-1]
    return f"The size of tensor a ({m}) must match the size of tensor b ({n}) at non-singleton dimension {axis}"


_MUST_BE = {1: "1D tensors expected", 2: "{name} must be a matrix", 3: "{name} must be a 3D tensor"}


def _arrays(where: str, **arrays: Any) -> None:
    for name, value in arrays.items():
        check_array(value, f"{where}: {name}")


def _ranks(where: str, ranks: tuple[int, int], **arrays: Any) -> None:
    """Refuses what are not arrays of these ranks, and stacks of different lengths."""
    _arrays(where, **arrays)
    for (name, array), rank in zip(arrays.items(), ranks, strict=True):
        if array.ndim != rank:
            raise BadValue(
                f"{where}: {name} must have {rank} dimension{'s' if rank > 1 else ''}, it has shape {array.shape}",
                cause=f"{_MUST_BE[rank].format(name=name)}, but got {array.ndim}D",
            )
    a, b = arrays.values()
    if ranks == (3, 3) and a.shape[0] != b.shape[0]:
        raise BadValue(f"{where}: stacks of {a.shape[0]} and {b.shape[0]} matrices", cause=_in_torch(where, a, b))


def _added(where: str, rank: int, c: Any, alpha: Any, beta: Any, out: Any, **arrays: Any) -> MatmulProblem:
    """Returns the Problem of a product of matrices, or of stacks of them, that is added to something."""
    _arrays(where, input=c)
    _ranks(where, (rank, rank), **arrays)
    a, b = arrays.values()
    return _product(where, a, b, out, c=c, alpha=_factor(where, "alpha", alpha), beta=_factor(where, "beta", beta))


def _factor(where: str, name: str, value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool) or not isinstance(value, (int, float, complex)):
        raise BadType(f"{where}: {name} is a number, not {type(value).__name__}")
    if isinstance(value, int):
        number(where, name, value)
    return value


@operation("matmul", sizes="{n}x{n} {n}x{n}", bench=True)
def matmul(input: Array, other: Array, *, out: Array | None = None) -> MatmulProblem:
    """Matrix product, batched and broadcast.

    Parameters
    ----------
    input, other
        Arrays of shape (..., m, k) and (..., k, n), of one dtype: float16, bfloat16, float32, float64, complex64, complex128,
        or integers (by NumPy). A vector counts as one row on the left, one column on the right, and its axis is removed
        from the result.
    out
        Array of the result's shape and dtype, any strides; must not overlap the operands.

    {returns_array}
        Shape (..., m, n). A product of two vectors is a scalar.

    Raises
    ------
    BadValue
        Shapes that do not fit, an unfit or overlapping `out`.
    BadType
        Not arrays, or of different dtypes.

    Notes
    -----
    Runs `?gemm`, `?gemv`, `?dot` or a batched or compiled form of a BLAS library, or NumPy. 16-bit floats accumulate in
    float32 and round once.

    {examples}
    >>> backline.matmul(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]))
    array([[11.]])
    """
    _arrays("matmul", input=input, other=other)
    for name, value in (("input", input), ("other", other)):
        if value.ndim == 0:
            cause = f"both arguments to matmul need to be at least 1D, but they are {input.ndim}D and {other.ndim}D"
            raise BadValue(f"matmul: {name} is a scalar", cause=cause, remedy="use * to scale")
    return _product("matmul", input, other, out)


# Products of fixed ranks ------------------------------------------------------------------------------------------------

TEXT = """{title}

Parameters
----------
{operands}
out
    Array of shape {shape}{alias}.

Returns
-------
{result}

{raises}
    As `matmul`.

{examples}
>>> {example}
"""
FACTS = {
    "mm": {
        "title": "Product of two matrices, without broadcasting.",
        "operands": "input, mat2\n    Shapes (m, k) and (k, n), one dtype.",
        "shape": "(m, n)", "example": "backline.mm(np.eye(2), np.ones((2, 3))).shape\n(2, 3)",
    },
    "bmm": {
        "title": "Products of the matrices of two stacks of equal length.",
        "operands": "input, mat2\n    Shapes (b, m, k) and (b, k, n), one dtype.",
        "shape": "(b, m, n)", "example": "backline.bmm(np.ones((5, 2, 3)), np.ones((5, 3, 4))).shape\n(5, 2, 4)",
    },
    "mv": {
        "title": "Product of a matrix and a vector.", "operands": "input, vec\n    Shapes (m, n) and (n,), one dtype.",
        "shape": "(m,)", "example": "backline.mv(np.eye(2), np.array([3.0, 4.0]))\narray([3., 4.])",
    },
    "dot": {
        "title": "Sum of the products of two vectors; complex ones are not conjugated.",
        "operands": "input, tensor\n    Vectors of equal length and dtype.", "shape": "()",
        "result": "scalar\n    Of the vectors' dtype.",
        "example": "float(backline.dot(np.array([1.0, 2.0]), np.array([3.0, 4.0])))\n11.0",
    },
    "vdot": {
        "title": "Sum of the products of two vectors, the first one conjugated.",
        "operands": "input, other\n    Vectors of equal length and dtype.", "shape": "()",
        "result": "scalar\n    Of the vectors' dtype.",
        "example": "complex(backline.vdot(np.array([1j]), np.array([1j])))\n(1+0j)",
    },
    "outer": {
        "title": "Every product of an element of one vector and an element of another.",
        "operands": "input, vec2\n    Vectors of lengths m and n, one dtype.", "shape": "(m, n)",
        "example": "backline.outer(np.array([1.0, 2.0]), np.array([3.0, 4.0]))\narray([[3., 4.],\n       [6., 8.]])",
    },
    "addmm": {
        "title": "``beta * input + alpha * mat1 @ mat2``.", "shape": "(m, n)", "alias": "; may be `input` itself",
        "operands": "{added_matrix}\nmat1, mat2\n    Shapes (m, k) and (k, n).\n{beta_alpha}",
        "example": "backline.addmm(np.array([1.0, 2.0]), np.eye(2), np.eye(2), alpha=3)\narray([[4., 2.],\n       [1., 5.]])",
    },
    "baddbmm": {
        "title": "``beta * input + alpha * batch1 @ batch2`` for stacks of matrices.", "shape": "(b, m, n)",
        "alias": "; may be `input` itself",
        "operands": """input
    Array that broadcasts to (b, m, n). Where beta is 0 it is ignored, NaN and infinity included.
batch1, batch2
    Shapes (b, m, k) and (b, k, n).
{beta_alpha}""",
        "example": "backline.baddbmm(np.zeros(1), np.ones((4, 2, 3)), np.ones((4, 3, 2))).max().item()\n3.0",
    },
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "mm": {"sizes": "{n}x{n} {n}x{n}"}, "bmm": {"sizes": "64x32x32 64x32x32", "bench": True},
    "mv": {"sizes": "{n}x{n} {n}", "bench": True},
}  # fmt: skip


def _text(name: str) -> str | None:
    facts = {"alias": "", "result": "ndarray\n    Shape {shape}."} | FACTS[name]
    return filled(TEXT, **facts)


def _matrices(name: str, input: Array, mat2: Array, *, out: Array | None = None) -> MatmulProblem:
    rank = 3 if name == "bmm" else 2
    _ranks(name, (rank, rank), input=input, mat2=mat2)
    return _product(name, input, mat2, out)


def _mv(name: str, input: Array, vec: Array, *, out: Array | None = None) -> MatmulProblem:
    _ranks(name, (2, 1), input=input, vec=vec)
    return _product(name, input, vec, out)


def _dot(name: str, input: Array, tensor: Array, *, out: Array | None = None) -> MatmulProblem:
    _ranks(name, (1, 1), input=input, tensor=tensor)
    return _product(name, input, tensor, out)


def _vdot(name: str, input: Array, other: Array, *, out: Array | None = None) -> MatmulProblem:
    _ranks(name, (1, 1), input=input, other=other)
    return _product(name, input, other, out, conj=input.dtype.kind == "c")


def _outer(name: str, input: Array, vec2: Array, *, out: Array | None = None) -> MatmulProblem:
    _ranks(name, (1, 1), input=input, vec2=vec2)
    return _product(name, input[:, None], vec2[None, :], out)


def _addmm(
    name: str, input: Array, mat1: Array, mat2: Array, *, beta: complex = 1, alpha: complex = 1, out: Array | None = None
) -> MatmulProblem:
    return _added(name, 2, input, alpha, beta, out, mat1=mat1, mat2=mat2)


def _baddbmm(
    name: str, input: Array, batch1: Array, batch2: Array, *, beta: complex = 1, alpha: complex = 1, out: Array | None = None
) -> MatmulProblem:
    return _added(name, 3, input, alpha, beta, out, batch1=batch1, batch2=batch2)


mm, bmm = operation_family(_matrices, kinds("mm", "bmm"), _text, rows=ROWS)
(mv,) = operation_family(_mv, kinds("mv"), _text, rows=ROWS)
(dot,) = operation_family(_dot, kinds("dot"), _text)
(vdot,) = operation_family(_vdot, kinds("vdot"), _text)
(outer,) = operation_family(_outer, kinds("outer"), _text)
(addmm,) = operation_family(_addmm, kinds("addmm"), _text)
(baddbmm,) = operation_family(_baddbmm, kinds("baddbmm"), _text)
