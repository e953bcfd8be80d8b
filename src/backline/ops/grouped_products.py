"""grouped_mm: products of groups of rows with a matrix each, as layers with several experts have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import Problem, operand
from ..problems.grouped_problem import COLUMNS, ROWS, TERMS, GroupedProblem, group_bounds
from ..problems.op_registry import operations
from ..switches.switch import show
from .array_arguments import check_array, functions
from .layer_checks import MODULE
from .linalg_checks import dtype_given, enough_memory
from .matrix_products import matmul
from .operation import operation

__all__ = ["grouped_mm"]

Array = np.ndarray[Any, Any]
DTYPES = ("bfloat16", "float16", "float32", "float64")


@operation("grouped_mm", module=MODULE)
def grouped_mm(
    mat_a: Array, mat_b: Array, *, offs: Array | None = None, bias: None = None, out_dtype: Any = None
) -> Problem:  # fmt: skip
    """Products of the groups that `offs` divides an operand into, each with a matrix of its own.

    Parameters
    ----------
    mat_a, mat_b
        Arrays of one dtype: bfloat16, float16, float32 or float64. (m, k) and (groups, k, n): rows of `mat_a` in groups.
        (groups, m, k) and (k, n): columns of `mat_b` in groups. (m, k) and (k, n): the terms of all sums in groups.
        (groups, m, k) and (groups, k, n): one product a group, without `offs`.
    offs
        int32 or int64 array of shape (groups,): the end of each group, in increasing order. What lies beyond the last one belongs
        to no group.
    bias
        Must be None.
    out_dtype
        None, or the dtype of the operands.

    {returns_array}
        Shape (m, n), or (groups, m, n) where terms are in groups or there are no `offs`. Zero where there is no group.

    {raises}
        Not such arrays; shapes that do not fit; offsets that decrease or lie outside.

    Notes
    -----
    On CUDA one call of cuBLAS computes all groups, for which the offsets are copied to the host: the call waits for the work that
    computes them.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import grouped_mm
    >>> tokens, experts = np.ones((3, 2)), np.stack([np.eye(2), 10 * np.eye(2)])
    >>> grouped_mm(tokens, experts, offs=np.array([1, 3], np.int32))
    array([[ 1.,  1.],
           [10., 10.],
           [10., 10.]])
    """
    for name, value in (("mat_a", mat_a), ("mat_b", mat_b)):
        array = check_array(value, f"grouped_mm: {name}")
        if array.ndim not in (2, 3):
            raise BadValue(f"grouped_mm: {name} has shape {array.shape}", cause="it has 2 axes, or 3 with groups first")
        if array.dtype.name not in DTYPES:
            raise BadType(f"grouped_mm: {name} has dtype {array.dtype}", remedy=f"one of: {', '.join(DTYPES)}")
    if mat_a.dtype != mat_b.dtype:
        raise BadType(f"grouped_mm: operands have dtypes {mat_a.dtype} and {mat_b.dtype}", remedy="one dtype for both")
    if bias is not None:
        raise BadType(f"grouped_mm: bias is {show(bias)}", cause="a bias is not supported", remedy="add it to the result")
    if out_dtype is not None and dtype_given("grouped_mm: out_dtype", out_dtype, DTYPES) != mat_a.dtype:
        raise BadType(f"grouped_mm: out_dtype is {out_dtype}, the operands have dtype {mat_a.dtype}", remedy="out_dtype=None")
    (m, k), (rows, n) = mat_a.shape[-2:], mat_b.shape[-2:]
    if k != rows:
        raise BadValue(
            f"grouped_mm: shapes {mat_a.shape} and {mat_b.shape} do not fit",
            cause=f"contraction dimension of mat_a and mat_b must match: {k} columns on the left, {rows} rows on the right",
        )
    both = mat_a.ndim == mat_b.ndim == 3
    if both != (offs is None):
        says = "two operands of 3 axes have no offsets" if both else "an operand of 2 axes has its groups from offs"
        raise BadValue(f"grouped_mm: offs is {'given' if both else 'None'}", cause=says)
    if both:
        products: Problem = operations["bmm"].build(mat_a, mat_b)
        return products
    ends = check_array(offs, "grouped_mm: offs")
    if ends.dtype.name not in ("int32", "int64") or ends.ndim != 1:
        raise BadType(f"grouped_mm: offs has dtype {ends.dtype} and shape {ends.shape}", remedy="an int32 array of one axis")
    groups = len(ends)
    counted = mat_a if mat_a.ndim == 3 else mat_b if mat_b.ndim == 3 else None
    if counted is not None and len(counted) != groups:
        raise BadValue(f"grouped_mm: offs has {groups} ends, for {len(counted)} matrices")
    grouped = ROWS if mat_b.ndim == 3 else COLUMNS if mat_a.ndim == 3 else TERMS
    result = (groups, m, n) if grouped == TERMS else (m, n)
    enough_memory("grouped_mm", result, mat_a.dtype)
    operands = (operand("a", mat_a), operand("b", mat_b), operand("offs", ends))
    return GroupedProblem(
        "nn.functional.grouped_mm", operands, (("grouped", grouped),), "matmul", m=m, n=n, k=k, result=result, groups=groups
    )


def _one_by_one(p: GroupedProblem, arrays: dict[str, Any]) -> Array:
    """Computes the groups one after the other, each product by the library that is chosen for its size."""
    a, b, xp = arrays["a"], arrays["b"], functions(arrays["a"])
    offs = arrays["offs"]
    bounds = group_bounds((offs.get() if hasattr(offs, "get") else offs).tolist(), p.length)
    whole = p.grouped == TERMS or (bounds and bounds[-1][1] == p.length)
    result: Array = (xp.empty if whole else xp.zeros)(p.result, p.dtype)
    for i, (start, end) in enumerate(bounds):
        group = slice(start, end)
        if p.grouped == ROWS:
            matmul(a[group], b[i], out=result[group])
        elif p.grouped == COLUMNS:
            matmul(a[i], b[:, group], out=result[:, group])
        else:
            matmul(a[:, group], b[group], out=result[i])
    return result


operations["nn.functional.grouped_mm"] = operations["nn.functional.grouped_mm"].replaced(compose=_one_by_one)
