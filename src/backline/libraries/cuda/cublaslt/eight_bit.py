"""cuBLASLt's products of 8-bit matrices: float8 times scales with sums of float32, int8 with sums of int32.

Both run on tensor cores, in one layout only: k is contiguous in both factors, for the library the transpose of the first and the
second as it is. What lies otherwise is copied. As in `library`, what is decided is decided by functions of values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from ....problems import Operand
from ....problems.scaled_problem import ROW_WISE, ScaledProblem
from ...base import Algorithm, Refusal
from ..common import bindings
from ..common.binding_library import GemmWay, listed_ways
from ..common.device_plan import at, refuse_overlaps_of_out
from ..common.gemm_layout import LARGEST, T
from .described_product import DescribedProduct, Found, Preference

__all__ = ["EightBitProduct", "Factor", "Recipe", "listed", "recipe"]

# Numbers of the headers: cudaDataType, compute types, epilogues, scaling modes.
TYPES = {
    "float8_e4m3fn": 28, "float8_e5m2": 29, "int8": 3, "int32": 10, "float16": 2, "bfloat16": 14, "float32": 0,
}  # fmt: skip
IN_F32, IN_I32 = 68, 72
PLAIN, BIAS = 1, 4
ONE_SCALE, OUTER_VECTORS = 0, 3
ANY = 7  # parts of a sum that is split along k may be added up in every way
ALIGNMENT = 16  # bytes, of addresses: what is less aligned is copied
ROW_WISE_SINCE = (12, 9)  # the version that has a scale for each row
OF_FLOAT8, OF_INT8 = 16, 4  # what k, n and leading dimensions are multiples of


@dataclass(frozen=True, slots=True)
class Factor:
    """One of the two matrices, as k rows whose columns are contiguous."""

    argument: int  # its place among the arrays of the call
    transposed: bool  # whether its rows are the columns here
    cols: int
    ld: int
    copied: bool  # whether it does not lie so in memory


@dataclass(frozen=True, slots=True)
class Recipe:
    """Complete description of a Plan; the library computes the transpose of the result, whose columns are contiguous."""

    way: GemmWay
    workspace: int  # most bytes an algorithm may take
    k: int
    first: Factor  # b
    second: Factor  # a
    types: tuple[int, int, int]  # of first, second and result
    epilogue: int
    mode: int | None  # how scales belong to both factors; None where there are none
    fast: bool  # whether sums may stay in the precision of the tensor cores


def ways(p: ScaledProblem) -> tuple[GemmWay, ...]:
    """Returns the one way there is for a Problem."""
    if p.integer:
        return (GemmWay("matmul", IN_I32, least=(7, 5), mask=ANY),)
    precision = "tensor-core accumulation" if p.parameter("fast") else "f32 accumulation"
    return (GemmWay("matmul", IN_F32, precision, least=(8, 9), mask=ANY),)


def listed(p: ScaledProblem, having: tuple[int, int], version: Any = None) -> Iterator[Algorithm | Refusal]:
    """Lists the Algorithms and Refusals for a Problem on a device with a compute capability.

    `version`: of the library, as it tells it: "13.1.0".
    """
    reason = _cannot(p, having, version)
    if reason:
        yield Refusal("cublaslt", "", reason)
        return
    after = {True: "scales and bias", False: "scales"}[p.get("bias") is not None]
    note = "" if p.integer else f"{after} in the same kernel"
    yield from listed_ways("cublaslt", ways(p), having, note, ("eight-bit",))  # no element is widened: before what does


def _cannot(p: ScaledProblem, having: tuple[int, int], version: Any) -> str:
    if p.empty:
        return "a product without terms runs no kernel"
    multiple = OF_INT8 if p.integer else OF_FLOAT8
    wrong = [f"{name} = {size}" for name, size in (("k", p.k), ("n", p.n)) if size % multiple]
    if wrong:
        return f"{' and '.join(wrong)}: it takes multiples of {multiple}"
    if max(p.m, p.n, p.k) > LARGEST:
        return f"a size is above {LARGEST}"
    if p.integer:
        return ""
    if all(o.dtype.name == "float8_e5m2" for o in p.operands if o.role in "ab"):
        return "it has no product of two matrices of float8_e5m2"
    if p.get("bias") is not None and p.result_dtype == np.float32:
        return "its bias beside a result of float32 is bfloat16"
    recipes = {p.parameter("recipe_a"), p.parameter("recipe_b")}
    if len(recipes) > 1:
        return "it takes one scale for both matrices each, or one for each row and column"
    if ROW_WISE in recipes:
        if (8, 9) <= having < (9, 0):
            return f"a scale for each row takes compute capability 9.0; the device has {having[0]}.{having[1]}"
        parts = tuple(int(n) for n in str(version).split(".")[:2]) if version else ROW_WISE_SINCE
        if parts < ROW_WISE_SINCE:
            return f"a scale for each row takes cuBLASLt {'.'.join(map(str, ROW_WISE_SINCE))}; this is {version}"
    return ""


def recipe(p: ScaledProblem, workspace: int) -> Recipe:
    """Returns the recipe for a Problem that `listed` has nothing against."""
    (way,) = ways(p)
    multiple = OF_INT8 if p.integer else OF_FLOAT8
    first, second = (_factor(p, role, multiple) for role in "ba")
    one, two = (TYPES[p.operands[each.argument].dtype.name] for each in (first, second))
    types = one, two, TYPES[p.result_dtype.name]
    epilogue = BIAS if p.get("bias") is not None else PLAIN
    mode = None if p.integer else OUTER_VECTORS if p.parameter("recipe_a") == ROW_WISE else ONE_SCALE
    return Recipe(way, workspace, p.k, first, second, types, epilogue, mode, bool(p.parameter("fast")))


def _factor(p: ScaledProblem, role: str, multiple: int) -> Factor:
    argument = p.index(role)
    assert argument is not None
    o = p.operands[argument]
    cols = o.shape[1] if role == "b" else o.shape[0]
    along, step = o.strides if role == "b" else o.strides[::-1]
    if cols == 1:
        step = p.k
    as_it_is = along == 1 and step >= p.k and step % multiple == 0 and step <= LARGEST
    return Factor(argument, role == "a", cols, step if as_it_is else p.k, not as_it_is)


class EightBitProduct:
    """The function of a Plan."""

    def __init__(self, p: ScaledProblem, made: Recipe, module: Any, device: int) -> None:
        self.problem, self.made = p, made
        # alpha and beta are of the type of the scale, which is that of the sums.
        scale, number = (np.int32, TYPES["int32"]) if p.integer else (np.float32, TYPES["float32"])
        self.scalars = np.ones(1, scale), np.zeros(1, scale)
        self.addresses = self.scalars[0].ctypes.data, self.scalars[1].ctypes.data
        self.lock = Lock()  # the addresses of scales and bias are in the description, which threads share
        self.out = p.index("out")
        # Scales of the library's first factor, of its second, and the bias: attribute, place among the arrays of the call.
        named = {"A_SCALE_POINTER": "scale_b", "B_SCALE_POINTER": "scale_a", "BIAS_POINTER": "bias"}
        self.pointers = tuple((name, i) for name, role in named.items() if (i := p.index(role)) is not None)
        self.described = DescribedProduct(module, device, made.way.compute, number)
        self.found = self._describe()

    def _describe(self) -> Found:
        described, made, p = self.described, self.made, self.problem
        described.set("TRANSA", np.int32, T)
        described.set("EPILOGUE", np.uint32, made.epilogue)
        if made.mode:
            described.set("A_SCALE_MODE", np.int32, made.mode)
            described.set("B_SCALE_MODE", np.int32, made.mode)
        if made.fast:
            described.set("FAST_ACCUM", np.int8, 1)
        for name, _ in self.pointers:  # any address of that alignment will do: it is not read from
            described.set(name, np.int64, ALIGNMENT)
        if made.epilogue == BIAS:
            described.set("BIAS_DATA_TYPE", np.int32, made.types[2])
        described.layout(made.types[0], made.k, made.first.cols, made.first.ld)
        described.layout(made.types[1], made.k, made.second.cols, made.second.ld)
        described.layout(made.types[2], p.n, p.m, p.n)
        return described.find(Preference(ALIGNMENT, made.workspace, made.way.mask), p.key)

    def __call__(self, *arrays: Any) -> Any:
        p, made, cupy = self.problem, self.made, bindings.cupy()
        refuse_overlaps_of_out(p, arrays)
        out = None if self.out is None else arrays[self.out]
        direct = out is not None and p.operands[self.out or 0].is_contiguous() and at(out) % ALIGNMENT == 0
        result = out if direct else cupy.empty(p.result, p.result_dtype)
        first, second = (_lies(arrays[each.argument], each, cupy) for each in (made.first, made.second))
        memory = cupy.cuda.alloc(self.found.workspace)
        vectors = [(name, _vector(arrays[i], p.operands[i], cupy)) for name, i in self.pointers]
        if not vectors:
            self.described.run(self.found, memory.ptr, self.addresses, at(first), at(second), at(result))
        else:
            with self.lock:
                for name, vector in vectors:
                    self.described.set(name, np.int64, at(vector))
                self.described.run(self.found, memory.ptr, self.addresses, at(first), at(second), at(result))
        if out is None or direct:
            return result
        out[...] = result
        return out


def _lies(array: Any, factor: Factor, cupy: Any) -> Any:
    """The array, or a copy in which k is contiguous and the address is aligned. Bytes are copied, whatever they stand for."""
    if not factor.copied and at(array) % ALIGNMENT == 0:
        return array
    bytes_ = array.view(np.uint8)
    copy = cupy.empty((factor.cols, factor.ld), np.uint8)
    rows = bytes_ if factor.transposed else bytes_.T
    copy[:, : rows.shape[1]] = rows
    return copy


def _vector(array: Any, o: Operand, cupy: Any) -> Any:
    """Scales or a bias without gaps, at an aligned address."""
    if o.is_contiguous() and at(array) % ALIGNMENT == 0:
        return array
    copy = cupy.empty(o.shape, o.dtype)
    copy[...] = array
    return copy
