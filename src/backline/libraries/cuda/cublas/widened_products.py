"""Products of 8-bit matrices by cuBLAS: elements widened to float16, which has all of them, and products with sums of float32.

It is for what cuBLASLt has no kernel for: older devices, sizes that are no multiples of 4 or 16, two matrices of float8_e5m2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ....problems import Operand
from ....problems.matmul_problem import MatmulProblem
from ....problems.scaled_problem import ScaledProblem
from ...base import Algorithm
from ..common import bindings
from ..common.device_plan import refuse_overlaps_of_out
from ..common.elementwise_kernels import Kernel, made

__all__ = ["EXACT_SUMS", "WidenedProduct", "algorithms", "parts"]

# Products of two int8 are at most 2**14, and float32 has every integer up to 2**24.
EXACT_SUMS = 1 << 10
F16 = np.dtype(np.float16)
WAY = "gemm_wide_sums"  # of the product: sums are added up in float32, also where k is split
_SCALED = "y = T(float(double(x) * double(p) * double(q){}));"
SCALED = Kernel("P x, P p, P q", "T y", _SCALED.format(""))
SCALED_BIAS = Kernel("P x, P p, P q, T b", "T y", _SCALED.format(" + double(float(b))"))


def algorithms(p: ScaledProblem) -> Iterator[Algorithm]:
    """Lists the one way."""
    note = "elements widened to float16"
    if p.integer and p.k > EXACT_SUMS:
        note += f"; {len(parts(p))} products of at most {EXACT_SUMS} terms, whose sums are exact"
    precision = "" if p.integer else "f32 accumulation"
    yield Algorithm(library="cublas", name="gemm_widened", precision=precision, level="threads", basis="promise", note=note)


def parts(p: ScaledProblem) -> tuple[slice, ...]:
    """Returns the parts of k that are multiplied one after the other: sums of int8 products stay exact in float32."""
    step = EXACT_SUMS if p.integer else max(p.k, 1)
    return tuple(slice(start, min(start + step, p.k)) for start in range(0, p.k, step))


def _columns(o: Operand) -> bool:
    """True for a matrix whose columns are the contiguous ones."""
    return abs(o.strides[0]) < abs(o.strides[1])


class WidenedProduct:
    """The function of a Plan; `prepare` makes the function of a product of float16 that returns its sums in float32."""

    def __init__(self, p: ScaledProblem, prepare: Callable[[MatmulProblem], Callable[..., Any]]) -> None:
        self.problem, self.parts = p, () if p.empty else parts(p)
        self.index = {o.role: i for i, o in enumerate(p.operands)}
        self.columns = {role: _columns(p.operands[self.index[role]]) for role in "ab"}
        self.products = {part.stop - part.start: prepare(self._product(part.stop - part.start)) for part in self.parts}
        self.tables = {o.dtype.name: _table(o.dtype) for o in p.operands if o.role in "ab" and not p.integer}

    def _product(self, terms: int) -> MatmulProblem:
        p = self.problem

        def wide(role: str, rows: int, cols: int) -> Operand:
            # A part of k of the widened matrix, which has no gaps itself.
            strides = (2, 2 * (p.k if role == "b" else p.m)) if self.columns[role] else (2 * (p.n if role == "b" else p.k), 2)
            return Operand(role, F16, (rows, cols), strides)

        return MatmulProblem(
            "matmul", (wide("a", p.m, terms), wide("b", terms, p.n)), (), "matmul", m=p.m, n=p.n, k=terms, result=(p.m, p.n),
            device=p.device,
        )  # fmt: skip

    def __call__(self, *arrays: Any) -> Any:
        p, cupy = self.problem, bindings.cupy()
        refuse_overlaps_of_out(p, arrays)
        of = {role: arrays[i] for role, i in self.index.items()}
        a, b = (self._wide(role, of[role], cupy) for role in "ab") if self.parts else (None, None)
        if p.integer:
            total = self._sums_of_int(a, b, cupy)
            out = of.get("out")
            if out is None:
                return total
            out[...] = total
            return out
        sums = self.products[p.k](a, b) if self.parts else cupy.zeros(p.result, np.float32)
        result = cupy.empty(p.result, p.result_dtype)
        if not result.size:
            return result
        scales = of["scale_a"].reshape(-1, 1), of["scale_b"].reshape(1, -1)
        if "bias" in of:
            made("widened_bias", SCALED_BIAS)(sums, *scales, of["bias"], result)
        else:
            made("widened", SCALED)(sums, *scales, result)
        return result

    def _sums_of_int(self, a: Any, b: Any, cupy: Any) -> Any:
        total = None
        for part in self.parts:
            found = self.products[part.stop - part.start](a[:, part], b[part]).astype(np.int32)
            if total is None:
                total = found
            else:
                total += found  # beyond int32 it wraps around
        return cupy.zeros(self.problem.result, np.int32) if total is None else total

    def _wide(self, role: str, array: Any, cupy: Any) -> Any:
        """A matrix in float16, without gaps, contiguous along the axis along which it is."""
        turned = self.columns[role]
        rows = array.T if turned else array
        if self.problem.integer:
            wide = rows.astype(F16, order="C")
        else:
            table = self.tables[self.problem.operands[self.index[role]].dtype.name]
            wide = cupy.take(table, rows.view(np.uint8))
        return wide.T if turned else wide


def _table(dtype: np.dtype[Any]) -> Any:
    """The float16 of each of the 256 elements of a float8, on the device."""
    cupy = bindings.cupy()
    table = cupy.asarray(np.arange(256, dtype=np.uint8).view(dtype).astype(F16))
    cupy.cuda.get_current_stream().synchronize()  # calls on other streams read it too
    return table
