"""cuBLASLt: products whose algorithm can be told what not to do, and linear layers with bias and residual in the same kernel.

As in `cublas`, what is decided is decided by functions of values. The library's own heuristics are asked when a Plan is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from .... import switches
from ....errors import LibraryFailed
from ....problems import Problem
from ....problems.dtypes import HALVES
from ....problems.linear_problem import LinearProblem
from ....problems.matmul_problem import MatmulProblem
from ....problems.scaled_problem import ScaledProblem
from ...base import Algorithm, Handler, Refusal
from ...presence import presence
from ..common import bindings, elementwise_kernels
from ..common.alignment import copied, put
from ..common.alignment import workspace as work_area
from ..common.binding_library import BindingLibrary, GemmWay, listed_ways
from ..common.device_facts import capability, index_of
from ..common.device_plan import DevicePlan, at, strided
from ..common.gemm_layout import DTYPES, LARGEST, Gemm, Product, gemm_of, refusal
from ..cublas.library import scale_type, workspace_bytes
from . import eight_bit
from .described_product import DescribedProduct, Found, Preference, described_plan

__all__ = ["CuBLASLt", "Recipe", "bias_of", "epilogue_of", "listed", "recipe", "ways"]

# Numbers of cuBLASLt's header.
IN_F16, IN_F32, IN_F64, IN_TF32 = 64, 68, 70, 77
NONE, COMPUTE_TYPE, ANY = 0, 2, 7  # how the parts of a sum that is split along k may be added up
PLAIN, BIAS, GELU = 1, 4, 32  # epilogues
PROPOSAL, FURTHER = "_proposal", 3  # algorithms that the heuristics name after the first, which are listed to be timed
# Bytes that addresses may be multiples of: CuPy's own arrays are of 512, and kernels may want as much as 256; most parts of an
# array are of 16, which loads of whole vectors take.
ALIGNED = (256, 16)

EPILOGUES = ("float16", "bfloat16", "float32", "float64")
# Its headers say x := max(x, 0), which CUDA's fmax takes from a NaN as 0; nothing says that a NaN stays one.
RELU_AND_NAN = "its epilogue is described as max(x, 0), which may make 0 of a NaN: relu follows in a kernel that keeps it"


def _halves(kind: str) -> tuple[GemmWay, ...]:
    return (
        GemmWay("matmul", IN_F32, "f32 accumulation", (f"{kind} reduction", f"{kind} split-k"), mask=ANY),
        GemmWay("matmul_wide_sums", IN_F32, "f32 accumulation", (f"{kind} split-k",), mask=COMPUTE_TYPE),
        GemmWay("matmul_unsplit", IN_F32, "f32 accumulation", mask=NONE),
    )


_SINGLE = (GemmWay("matmul_tf32", IN_TF32, "tf32", (), (8, 0), mask=ANY), GemmWay("matmul", IN_F32, mask=ANY))
_DOUBLE = (GemmWay("matmul", IN_F64, mask=ANY),)
_FP16 = GemmWay("matmul_fp16", IN_F16, "f16 accumulation", ("fp16 accumulation", "fp16 split-k"), (7, 0), mask=ANY)
_WAYS: dict[str, tuple[GemmWay, ...]] = {
    "float32": _SINGLE, "complex64": _SINGLE, "float64": _DOUBLE, "complex128": _DOUBLE,
    "float16": (_FP16, *_halves("fp16")), "bfloat16": _halves("bf16"),
}  # fmt: skip


def ways(dtype: str) -> tuple[GemmWay, ...]:
    """The ways there are for a dtype, those that compute the fastest first.

    >>> [(way.name, way.mask) for way in ways("bfloat16")]
    [('matmul', 7), ('matmul_wide_sums', 2), ('matmul_unsplit', 0)]
    """
    return _WAYS[dtype]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Complete description of a Plan."""

    way: GemmWay  # compute type, and the mask of how split sums may be added up
    workspace: int  # most bytes an algorithm may take, from CuPy's pool, for each call
    epilogue: int  # what the kernel does to the sums: a number of the library
    bias: int | None  # place of the bias among the arrays of the call, or None
    gemm: Gemm | None  # sizes and layouts; None for an empty product
    # Bytes that addresses are multiples of; an algorithm is asked for each, and the first that a call fits is run.
    alignments: tuple[int, ...]


def bias_of(problem: Problem) -> int | None:
    """Place of the bias among the arrays, or None. C of a plain product is one if it is the same row for all of the result."""
    if isinstance(problem, LinearProblem):
        return problem.index("bias")
    assert isinstance(problem, MatmulProblem)
    c = problem.get("c")
    if c is None or problem.beta != 1 or problem.dtype.name not in EPILOGUES or problem.m * problem.items < 2:
        return None
    one_row = all(n == 1 or step == 0 for n, step in zip(c.shape[:-1], c.strides[:-1], strict=True))
    return problem.index("c") if one_row and c.shape[-1] == problem.n else None


def epilogue_of(problem: Problem) -> int:
    """Returns cuBLASLt's number for the epilogue, which the kernel applies after the product; relu is none (`RELU_AND_NAN`)."""
    return (BIAS if bias_of(problem) is not None else 0) | (GELU if _gelu(problem) else 0) or PLAIN


def listed(problem: Problem, having: tuple[int, int], further: int = 0) -> Iterator[Algorithm | Refusal]:
    """Lists cuBLASLt's Algorithms and Refusals for a Problem on a device with a compute capability.

    `further`: how many algorithms are listed of each way beside the one that the library recommends.
    """
    reason = refusal(problem) or _cannot(problem)
    if reason:
        yield Refusal("cublaslt", "", reason)
        return
    relu = problem.parameter("activation") == "relu"
    if relu:
        yield Refusal("cublaslt", "relu_epilogue", RELU_AND_NAN)
    # The residual is C, which the product is added to.
    inside = {"bias": bias_of(problem) is not None, "gelu_tanh": _gelu(problem), "residual": problem.get("residual") is not None}
    after = " and ".join(name for name, there in inside.items() if there)
    note, traits = (f"{after} in the same kernel", ("epilogue",)) if after else ("", ())
    if relu:
        note = "; then ".join(filter(None, [note, "relu in one kernel of CuPy's"]))
    found = ways(problem.dtype.name)
    yield from listed_ways("cublaslt", found, having, note, traits)
    for number in range(2, 2 + further):
        words = "; ".join(filter(None, [note, f"number {number} of the algorithms that its heuristics name"]))
        proposed = tuple(replace(way, name=f"{way.name}{PROPOSAL}{number}", proposal=number - 1) for way in found)
        yield from (a for a in listed_ways("cublaslt", proposed, having, words, traits) if isinstance(a, Algorithm))


def _gelu(problem: Problem) -> bool:
    return bool(problem.parameter("activation") == "gelu_tanh")


def _cannot(problem: Any) -> str:
    activation = problem.parameter("activation")
    if activation not in (None, "relu", "gelu_tanh"):
        return f"its kernels have relu and gelu_tanh, not {activation}"
    if _gelu(problem) and problem.dtype.name not in HALVES:
        return "its gelu is accurate to about 11 bits, which is for 16-bit floats"
    if activation and problem.dtype.name not in EPILOGUES:
        return f"activations are for {', '.join(EPILOGUES)}, not {problem.dtype.name}"
    plain = epilogue_of(problem) == PLAIN
    if problem.empty:
        terms = problem.k > 0 or 0 in (problem.m, problem.n, problem.items)
        return "" if terms or plain else "a product without terms runs no kernel that a bias could be part of"
    gemm = gemm_of(problem, rows_first=not plain)
    if gemm.batch > LARGEST:
        return f"it counts the items of a batch with 32 bits, and there are {gemm.batch}"
    if not gemm.uniform:
        return "it takes batches whose items lie a fixed step apart; cuBLAS takes others"
    return ""


def recipe(problem: Any, name: str, snapshot: Any, having: tuple[int, int]) -> Recipe:
    """The recipe of an Algorithm's name for a Problem; parameters as in `cublas.recipe`."""
    dtype = problem.dtype
    name, _, number = name.partition(PROPOSAL)
    way = next(way for way in ways(dtype.name) if way.name == name)
    if number:
        way = replace(way, proposal=int(number) - 1)
    workspace = workspace_bytes("cublaslt", snapshot, having)
    bias, epilogue = bias_of(problem), epilogue_of(problem)
    alignments = tuple(dict.fromkeys((*ALIGNED, dtype.itemsize)))
    if problem.empty:
        return Recipe(way, workspace, epilogue, bias, None, alignments)
    gemm = gemm_of(problem, rows_first=epilogue != PLAIN)
    return Recipe(way, workspace, epilogue, bias, gemm, alignments)


# --- the calls -----------------------------------------------------------------------------------------------------


class _Matmul(Product):
    """The function of a Plan. It owns the library's descriptions of the product, and frees them."""

    def __init__(self, problem: Any, made: Recipe, module: Any, device: int) -> None:
        super().__init__(problem, made.gemm)
        if made.bias is not None and isinstance(problem, MatmulProblem):
            self.added, self.beta = None, 0  # C is the bias, which the kernel adds
        self.made = made
        scale = scale_type(problem.dtype.name, made.way.compute)
        self.scalars = np.array([self.alpha], scale), np.array([self.beta], scale)
        self.addresses = self.scalars[0].ctypes.data, self.scalars[1].ctypes.data
        self.lock = Lock()  # the address of the bias is in the description, which threads share
        self.found: dict[int, Found] = {}
        if made.gemm is not None:
            self.described = DescribedProduct(module, device, made.way.compute, DTYPES[scale.name])
            self._describe(made.gemm)

    def _describe(self, gemm: Gemm) -> None:
        described, made, kind = self.described, self.made, self.problem.dtype
        described.set("TRANSA", np.int32, gemm.first.op)
        described.set("TRANSB", np.int32, gemm.second.op)
        described.set("EPILOGUE", np.uint32, made.epilogue)
        for side in (gemm.first, gemm.second, gemm.target):
            step = side.items // kind.itemsize if gemm.batch > 1 and isinstance(side.items, int) else 0
            described.layout(DTYPES[kind.name], side.rows, side.cols, side.ld, gemm.batch, step)
        for alignment in made.alignments:
            if made.bias is not None:  # any address of that alignment will do: it is not read from
                described.set("BIAS_POINTER", np.int64, alignment)
            try:
                self.found[alignment] = described.find(self._preference(alignment), self.problem.key)
            except LibraryFailed:
                # What CuPy's own arrays cannot have, nothing can; others may not come.
                if alignment == made.alignments[0]:
                    raise

    def _preference(self, alignment: int) -> Preference:
        # What is timed is timed on arrays of the best alignment; others run what is recommended for them.
        way, best = self.made.way, alignment == self.made.alignments[0]
        return Preference(alignment, self.made.workspace, way.mask, way.proposal if best else 0)

    def __call__(self, *arrays: Any) -> Any:
        result = super().__call__(*arrays)
        if self.problem.parameter("activation") == "relu" and result.size:
            elementwise_kernels.kernel("relu")(result, result)  # rounding before or after it gives the same
        return result

    def launch(self, first: Any, second: Any, target: Any, arrays: tuple[Any, ...]) -> None:
        made = self.made
        bias = None if made.bias is None else self._bias(arrays[made.bias])
        a, b, d = (at(array) for array in (first, second, target))
        bits = a | b | d | at(bias)
        # The last alignment is that of an element, which every address has.
        alignment = next((each for each in made.alignments if bits % each == 0), made.alignments[-1])
        found = self.found.get(alignment)
        if found is None:
            self._launch_copies(first, second, target, bias)
            return
        self._run(found, a, b, d, bias)

    def _launch_copies(self, first: Any, second: Any, target: Any, bias: Any) -> None:
        """Run it on copies, which CuPy's memory aligns: there is an algorithm for these, and none for addresses as they are."""
        most = self.made.alignments[0]
        given = first, second, target, bias
        moved = [array if at(array) % most == 0 else copied(array, most) for array in given]
        self._run(self.found[most], at(moved[0]), at(moved[1]), at(moved[2]), moved[3])
        if moved[2] is not target:
            put(moved[2], target)

    def _run(self, found: Found, a: int, b: int, d: int, bias: Any) -> None:
        described, memory = self.described, work_area(found.workspace)
        if bias is None:
            described.run(found, memory.ptr, self.addresses, a, b, d)
            return
        with self.lock:
            described.set("BIAS_POINTER", np.int64, at(bias))
            described.run(found, memory.ptr, self.addresses, a, b, d)

    def _bias(self, array: Any) -> Any:
        """The bias as a vector without gaps."""
        o = self.problem.operands[self.made.bias]
        if self.problem.n == 1 or o.strides[-1] == o.dtype.itemsize:
            return array
        return bindings.cupy().ascontiguousarray(strided(array, (self.problem.n,), o.strides[-1:]))


def _algorithms(context: Any, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
    timed = switches.current()["benchmark"] is True
    return listed(problem, capability(index_of(problem)), FURTHER if timed else 0)


def _prepare(context: Any, problem: Problem, algorithm: Algorithm) -> DevicePlan:
    device = index_of(problem)
    made = recipe(problem, algorithm.name, switches.current(), capability(device))
    return described_plan(problem, lambda module: _Matmul(problem, made, module, device))


def _eight_bit_algorithms(context: Any, problem: ScaledProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    return eight_bit.listed(problem, capability(index_of(problem)), presence("cublaslt").version())


def _prepare_eight_bit(context: Any, problem: ScaledProblem, algorithm: Algorithm) -> DevicePlan:
    device = index_of(problem)
    made = eight_bit.recipe(problem, workspace_bytes("cublaslt", switches.current(), capability(device)))
    return described_plan(problem, lambda module: eight_bit.EightBitProduct(problem, made, module, device))


class CuBLASLt(BindingLibrary):
    """libcublasLt, called through nvmath's binding."""

    modules = ("cublasLt",)
    handlers: ClassVar = {
        MatmulProblem: Handler(_algorithms, _prepare), LinearProblem: Handler(_algorithms, _prepare),
        ScaledProblem: Handler(_eight_bit_algorithms, _prepare_eight_bit),
    }  # fmt: skip
