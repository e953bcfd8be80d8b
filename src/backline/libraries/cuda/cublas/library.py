"""cuBLAS: products of CuPy's arrays.

What is decided (which routine, in which precision, with how much workspace) is decided by functions of values, for any device;
a Plan makes the calls and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from .... import switches
from ....problems import Problem
from ....problems.conv_problem import ConvProblem
from ....problems.grouped_problem import GroupedProblem
from ....problems.linear_problem import LinearProblem
from ....problems.matmul_problem import MatmulProblem
from ....problems.scaled_problem import ScaledProblem
from ....switches import starting_values
from ...base import Algorithm, Handler, Refusal
from ...presence import presence
from ...reference.composed import composed_algorithms, composed_function
from ..common import bindings, pointer_tables
from ..common.binding_library import BindingLibrary, GemmWay, listed_ways
from ..common.device_facts import capability, index_of, lacks
from ..common.device_plan import DevicePlan, prepared
from ..common.gemm_layout import DTYPES, Gemm, Product, gemm_of, refusal
from ..common.streams import Handles

__all__ = ["CuBLAS", "Recipe", "listed", "recipe", "scale_type", "ways", "workspace_bytes"]

# Math modes, compute types and strategies have the numbers of cuBLAS's header.
DEFAULT, TF32, BF16X9, NO_REDUCED_SUMS = 0, 3, 4, 16
IN_F16, IN_F32, IN_F64, IN_BF16X9 = 64, 68, 70, 78
DEFAULT_STRATEGY, EAGER = 0, 2
LIBRARY_CHOOSES = -1  # of the routine's own algorithms, which newer devices take no other word on


def _halves(kind: str) -> tuple[GemmWay, ...]:
    return (
        GemmWay("gemm", IN_F32, "f32 accumulation", (f"{kind} reduction", f"{kind} split-k")),
        GemmWay("gemm_wide_sums", IN_F32, "f32 accumulation", (f"{kind} split-k",), mode=NO_REDUCED_SUMS),
    )


_SINGLE = (GemmWay("gemm_tf32", IN_F32, "tf32", (), (8, 0), TF32), GemmWay("gemm", IN_F32))
_DOUBLE = (GemmWay("gemm", IN_F64),)
_FP16 = GemmWay("gemm_fp16", IN_F16, "f16 accumulation", ("fp16 accumulation", "fp16 split-k"), (7, 0))
_WAYS: dict[str, tuple[GemmWay, ...]] = {
    "float32": _SINGLE, "complex64": _SINGLE, "float64": _DOUBLE, "complex128": _DOUBLE,
    "float16": (_FP16, *_halves("fp16")), "bfloat16": _halves("bf16"),
}  # fmt: skip

# No switch asks for it, and the library computes plain float32 where it has none: prepared by name only.
_UNLISTED = {"float32": (GemmWay("gemm_bf16x9", IN_BF16X9, "bf16x9", mode=BF16X9, strategy=EAGER),)}


def ways(dtype: str) -> tuple[GemmWay, ...]:
    """The ways there are for a dtype, those that compute the fastest first.

    >>> [way.name for way in ways("float16")]
    ['gemm_fp16', 'gemm', 'gemm_wide_sums']
    """
    return _WAYS[dtype]


def scale_type(dtype: str, compute: int) -> np.dtype[Any]:
    """Dtype of alpha and beta: it follows the compute type."""
    if compute == IN_F16:
        return np.dtype(np.float16)
    if dtype in ("complex64", "complex128", "float64"):
        return np.dtype(dtype)
    return np.dtype(np.float32)


def workspace_bytes(name: str, snapshot: Any, having: tuple[int, int]) -> int:
    """Bytes of workspace of "cublas" or "cublaslt" under a Snapshot.

    The device's compute capability says what is recommended where nobody set a size.
    """
    whole = int(snapshot["cuda.cublas_workspace_size"])
    if whole == starting_values.RECOMMENDED:
        whole = starting_values.recommended(having)
    if name == "cublas":
        return whole
    size = int(snapshot["cuda.cublaslt_workspace_size"])
    if size == starting_values.RECOMMENDED:
        return whole
    return min(size, whole) if starting_values.shared() else size


@dataclass(frozen=True, slots=True)
class Recipe:
    """Complete description of a Plan."""

    routine: str  # the function that is called; "" for an empty product, which calls none
    way: GemmWay  # math mode, compute type and strategy
    workspace: int  # bytes, from CuPy's pool: kept with the handle
    own_handle: bool  # whether each stream has a handle of its own
    gemm: Gemm | None  # sizes and layouts; None for an empty product
    # The functions of the binding, in order. Stream and workspace are set where the handle had another one before; what else is
    # set is set back, also where the routine fails.
    calls: tuple[str, ...]


def recipe(problem: Problem, name: str, snapshot: Any, having: tuple[int, int]) -> Recipe:
    """The recipe of the name of one of the `ways` for a product that `refusal` has nothing against."""
    assert isinstance(problem, MatmulProblem)
    dtype = problem.dtype.name
    way = next(way for way in (*ways(dtype), *_UNLISTED.get(dtype, ())) if way.name == name)
    workspace, own = workspace_bytes("cublas", snapshot, having), bool(snapshot["deterministic"])
    if problem.empty:
        return Recipe("", way, 0, own, None, ())
    gemm = gemm_of(problem)
    routine = "gemm_ex" if gemm.batch == 1 else "gemm_strided_batched_ex" if gemm.uniform else "gemm_batched_ex"
    routine += "_64" if gemm.large else ""
    settings = []
    if way.mode != DEFAULT:
        settings.append("set_math_mode")
    if way.strategy != DEFAULT_STRATEGY:
        settings.append("set_emulation_strategy")
    # Setting the stream takes the workspace away, so it comes first.
    calls = ("set_stream", "set_workspace", *settings, routine, *reversed(settings))
    return Recipe(routine, way, workspace, own, gemm, calls)


def listed(problem: Problem, having: tuple[int, int]) -> Iterator[Algorithm | Refusal]:
    """Lists cuBLAS's Algorithms and Refusals for a Problem on a device with a compute capability."""
    reason = refusal(problem)
    if reason:
        yield Refusal("cublas", "", reason)
        return
    assert isinstance(problem, MatmulProblem)
    yield from listed_ways("cublas", ways(problem.dtype.name), having)
    if problem.dtype.name in ("float16", "bfloat16"):
        switch = "cuda.preferred_blas_library"
        yield Refusal(
            "cublas", "gemm_unsplit", f"it cannot be kept from splitting k; cuBLASLt can ({switch} = 'cublaslt')", switch
        )


# --- the calls -----------------------------------------------------------------------------------------------------


def _create(module: Any) -> int:
    handle = module.create()
    module.set_atomics_mode(handle, 0)  # not allowed: sums would come out in any order
    return int(handle)


_handles = Handles(_create)


class _Gemm(Product):
    """The function of a Plan.

    `unrounded`: whether the result of halves, which is new memory, is left in the float32 that their sums are in.
    """

    def __init__(self, problem: MatmulProblem, made: Recipe, module: Any, device: int, unrounded: bool = False) -> None:
        super().__init__(problem, made.gemm)
        if unrounded and made.way.compute == IN_F32 and problem.dtype.itemsize == 2:
            assert self.out is None and self.added is None
            self.kind = np.dtype(np.float32)
        self.made, self.module, self.device = made, module, device
        scale = scale_type(problem.dtype.name, made.way.compute)
        self.scalars = np.array([self.alpha], scale), np.array([self.beta], scale)
        self.addresses = tuple(scalar.ctypes.data for scalar in self.scalars)
        self.routine = getattr(module, made.routine) if made.routine else None
        gemm = made.gemm
        if gemm is not None:
            self.before = gemm.first.op, gemm.second.op, gemm.m, gemm.n, gemm.k, self.addresses[0]
            self.layouts = _layouts(gemm, problem.dtype, self.kind)
            self.after = (*(() if gemm.batch == 1 else (gemm.batch,)), made.way.compute, LIBRARY_CHOOSES)
        self.steps: pointer_tables.Steps = ()
        if gemm is not None and not gemm.uniform:
            self.steps = _steps(problem, gemm, self.kind.itemsize // problem.dtype.itemsize)

    def launch(self, first: Any, second: Any, target: Any, arrays: tuple[Any, ...]) -> None:
        made, module, way, routine = self.made, self.module, self.made.way, self.routine
        assert routine is not None
        handle = _handles.ready(module, self.device, made.workspace, made.own_handle)
        a, b, c = first.data.ptr, second.data.ptr, target.data.ptr
        if self.steps:
            # Given back to the pool at the end, which hands their memory to later work of this stream only.
            tables = pointer_tables.tables((a, b, c), self.steps)
            a, b, c = (tables.data.ptr + i * tables.strides[0] for i in range(3))
        of_a, of_b, of_c = self.layouts
        arguments = (handle, *self.before, a, *of_a, b, *of_b, self.addresses[1], c, *of_c, *self.after)
        if way.mode == DEFAULT and way.strategy == DEFAULT_STRATEGY:
            routine(*arguments)
            return
        try:
            if way.mode != DEFAULT:
                module.set_math_mode(handle, way.mode)
            if way.strategy != DEFAULT_STRATEGY:
                module.set_emulation_strategy(handle, way.strategy)
            routine(*arguments)
        finally:
            if way.strategy != DEFAULT_STRATEGY:
                module.set_emulation_strategy(handle, DEFAULT_STRATEGY)
            if way.mode != DEFAULT:
                module.set_math_mode(handle, DEFAULT)


def _layouts(gemm: Gemm, dtype: np.dtype[Any], result: np.dtype[Any]) -> tuple[tuple[int, ...], ...]:
    """Of each matrix: type, leading dimension, and the step to the next item where a regular batch has one."""
    found = []
    for side, kind in ((gemm.first, dtype), (gemm.second, dtype), (gemm.target, result)):
        step = (side.items // dtype.itemsize,) if gemm.batch > 1 and gemm.uniform and isinstance(side.items, int) else ()
        found.append((DTYPES[kind.name], side.ld, *step))
    return tuple(found)


def _steps(problem: MatmulProblem, gemm: Gemm, wider: int) -> pointer_tables.Steps:
    """The batch of a product whose items lie no fixed step apart; elements of the result are so many times wider than others."""
    found = pointer_tables.steps_of(problem.batch, [side.items for side in (gemm.first, gemm.second, gemm.target)])
    return tuple((n, (a, b, c * wider)) for n, (a, b, c) in found)  # what is wider is new memory, without gaps


def _prepare_product(context: Any, problem: MatmulProblem, algorithm: Algorithm, unrounded: bool = False) -> DevicePlan:
    device = index_of(problem)
    made = recipe(problem, algorithm.name, switches.current(), capability(device))
    module = bindings.cublas()
    function = partial(_Gemm, problem, made, module, device, unrounded)
    return prepared(problem, function, f"cuBLAS {made.routine}", (module.cuBLASError,))


def _product_algorithms(context: Any, problem: MatmulProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    return listed(problem, capability(index_of(problem)))


def _linear_algorithms(context: Any, problem: LinearProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    from . import cuda_epilogue

    having = capability(index_of(problem))
    return cuda_epilogue.algorithms("cublas", problem, lambda product: listed(product, having))


def _prepare_linear(context: Any, problem: LinearProblem, algorithm: Algorithm) -> DevicePlan:
    from . import cuda_epilogue

    product = Algorithm(library="cublas", name=algorithm.name.removesuffix(cuda_epilogue.SUFFIX))
    return cuda_epilogue.plan(problem, _prepare_product(context, cuda_epilogue.product_of(problem), product, unrounded=True))


def _conv_algorithms(context: Any, problem: ConvProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    from .direct_conv import direct_algorithms

    return direct_algorithms(problem, lacks("tf32", (8, 0), capability(index_of(problem))))


def _prepare_conv(context: Any, problem: ConvProblem, algorithm: Algorithm) -> DevicePlan:
    from .direct_conv import DirectConv

    device = index_of(problem)
    halves = problem.dtype.itemsize == 2 and not lacks("tf32", (8, 0), capability(device))
    way = Algorithm(library="cublas", name="gemm_tf32" if halves or algorithm.name.endswith("_tf32") else "gemm")
    function = DirectConv(problem, algorithm.name, lambda product: _prepare_product(context, product, way))
    return DevicePlan(function, device, f"convolution without cuDNN, {problem.key}", (bindings.cublas().cuBLASError,))


def _widened_algorithms(context: Any, problem: ScaledProblem, threads: int) -> Iterator[Algorithm]:
    from . import widened_products

    return widened_products.algorithms(problem)


def _prepare_widened(context: Any, problem: ScaledProblem, algorithm: Algorithm) -> DevicePlan:
    from .widened_products import WAY, WidenedProduct

    way = Algorithm(library="cublas", name=WAY)

    def prepare(product: MatmulProblem) -> Callable[..., Any]:
        return _prepare_product(context, product, way, unrounded=True).function

    errors = (bindings.cublas().cuBLASError,)
    return prepared(problem, lambda: WidenedProduct(problem, prepare), f"cuBLAS, {problem.op}", errors)


def _grouped_algorithms(context: Any, problem: GroupedProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    from .grouped_gemm import listed as listed_groups

    yield from listed_groups(problem, capability(index_of(problem)), presence("cublas").version())
    yield from composed_algorithms("cublas", "the groups' products")


def _prepare_grouped(context: Any, problem: GroupedProblem, algorithm: Algorithm) -> DevicePlan:
    from .grouped_gemm import GroupedGemm
    from .grouped_gemm import ways as grouped_ways

    device, module, one_by_one = index_of(problem), bindings.cublas(), composed_function(problem)
    what, errors = f"cuBLAS, {problem.op}", (module.cuBLASError,)
    if algorithm.name == "composed":
        return DevicePlan(one_by_one, device, what, errors)
    way = next(way for way in grouped_ways(problem.dtype.name) if way.name == algorithm.name)
    workspace = workspace_bytes("cublas", switches.current(), capability(device))
    function = partial(GroupedGemm, problem, way, module, device, workspace, _handles, one_by_one)
    return prepared(problem, function, what, errors)


class CuBLAS(BindingLibrary):
    """libcublas, called through nvmath's binding."""

    modules = ("cublas",)
    handlers: ClassVar = {
        MatmulProblem: Handler(_product_algorithms, _prepare_product),
        LinearProblem: Handler(_linear_algorithms, _prepare_linear),
        ConvProblem: Handler(_conv_algorithms, _prepare_conv),
        GroupedProblem: Handler(_grouped_algorithms, _prepare_grouped),
        ScaledProblem: Handler(_widened_algorithms, _prepare_widened),
    }
