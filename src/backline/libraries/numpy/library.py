"""NumPy's own routines: always there, and the reference that every other library is compared with.

They run on whatever BLAS NumPy was built with, on that BLAS's own threads. Float32 linear algebra is computed in
float64 inside NumPy, which is slower and more accurate than a float32 LAPACK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...errors import LinAlgError, refuse_overlap
from ...native.plan_builder import same_place
from ...problems import Problem
from ...problems.attention_problem import AttentionProblem
from ...problems.conv_problem import ConvProblem
from ...problems.einsum_problem import EinsumProblem
from ...problems.fft_problem import FftProblem
from ...problems.grouped_problem import GroupedProblem
from ...problems.linalg_problem import LinalgProblem, not_finite
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem
from ...problems.multi_head_problem import MultiHeadProblem
from ...problems.neural_problem import NeuralProblem
from ...problems.quantized_problem import QuantizedProblem
from ...problems.result_tuples import (
    QR,
    SVD,
    CholeskyEx,
    Eig,
    Eigh,
    InvEx,
    LDLFactor,
    LDLFactorEx,
    Lstsq,
    LUFactor,
    LUFactorEx,
    SolveEx,
)  # fmt: skip
from ...problems.rnn_problem import RnnProblem
from ...problems.scaled_problem import ScaledProblem
from ...problems.sparse_problem import SparseProblem
from .. import fixed_order
from ..base import Algorithm, Handler, Library, Planner, PythonPlan, Refusal
from ..linear_epilogue import linear_algorithms, prepare_linear
from ..reference import (
    numpy_threads,
    reference_attention,
    reference_conv,
    reference_einsum,
    reference_fft,
    reference_indefinite,
    reference_linalg,
    reference_neural,
    reference_quantized,
    reference_rnn,
    reference_scaled,
    reference_sparse,
)
from ..reference.composed import composed_algorithms, composed_function
from ..reference.planned_products import PlannedProducts
from . import element_loops, transform_loops

__all__ = ["NumPy"]

FLOATS = ("float32", "float64", "complex64", "complex128")


Listed = Iterator[Algorithm | Refusal]


def _product_algorithms(problem: MatmulProblem, threads: int) -> Listed:
    # NumPy's BLAS takes as many threads as it was told to, whatever is asked here: with one thread allowed
    # it is a candidate only where that can be had of it.
    if problem.dtype.name in FLOATS and (no := numpy_threads.refusal("matmul", problem, threads)):
        yield no
    elif problem.empty or problem.dtype.name not in (*FLOATS, "float16", "bfloat16"):
        # No BLAS takes part: NumPy's own loops, on one thread and in one order.
        yield Algorithm(library="numpy", name="matmul", level="threads", basis="construction")
    else:
        yield Algorithm(library="numpy", name="matmul", threads=threads, scaled=True, pool="numpy" if threads > 1 else "")


def _linalg_algorithms(problem: LinalgProblem, threads: int) -> Listed:
    driver = problem.parameter("driver")
    if problem.dtype.name not in FLOATS:
        yield Refusal("numpy", "linalg", f"NumPy has no linear algebra of {problem.dtype.name}")
    elif _reference(problem) is None:
        yield Refusal("numpy", "linalg", f"NumPy's {problem.op} is made of other operations")
    elif driver not in (None, "gesdd", "gelsd"):
        yield Refusal("numpy", "linalg", f"the call asks for driver={driver!r}; NumPy has gesdd and gelsd")
    else:
        single = problem.dtype.name in ("float32", "complex64")
        yield Algorithm(
            library="numpy", name="linalg", threads=threads, scaled=True, precision="f64" if single else "",
            pool="numpy" if threads > 1 else "", note="computed in float64 and rounded" if single else "",
        )  # fmt: skip


class _Context(NamedTuple):
    """The context that handlers are given: the library, and the engine, which plans products."""

    library: Library
    planner: Planner


def _on_blas(
    algorithms: Callable[[Any, int], Iterable[Algorithm | Refusal]], function: Callable[..., Callable[..., Any]],
    planned: bool = False,
) -> Handler:  # fmt: skip
    """Returns the Handler of what NumPy's BLAS has a part in.

    `function` returns the function of the arrays of a call, given the Problem and the name of the algorithm; where it has
    algorithms whose products are `planned`, what multiplies in them as well.
    """

    def marked(problem: Problem, threads: int) -> Listed:
        for each in algorithms(problem, threads):
            yield numpy_threads.marked(each, problem) if isinstance(each, Algorithm) else each

    def prepare(context: _Context | None, problem: Problem, algorithm: Algorithm) -> PythonPlan:
        if planned and algorithm.name.endswith(fixed_order.SUFFIX) and context is not None:
            whole = algorithm.name.removesuffix(fixed_order.SUFFIX)
            return PythonPlan(function(problem, whole, PlannedProducts(context.planner)), problem.scalars)
        run = function(problem, algorithm.name)
        run = numpy_threads.limited(run) if numpy_threads.BORROWED in algorithm.traits else run
        return PythonPlan(run, problem.scalars)

    return Handler(lambda context, problem, threads: marked(problem, threads), prepare)


def _multiply(context: _Context | None) -> Callable[..., Any]:
    """Returns what multiplies matrices inside of other operations; NumPy itself without the engine."""
    return np.matmul if context is None else PlannedProducts(context.planner)


def _refuse_overlaps(problem: Problem, arrays: tuple[Any, ...], same: tuple[str, ...] = ()) -> None:
    """Refuses what the compiled plans refuse: the library that runs a call must not decide whether the call is legal."""
    operands = list(zip(problem.operands, arrays, strict=True))
    for i, (out, target) in enumerate(operands):
        if not out.role.startswith("out"):
            continue
        for j, (other, array) in enumerate(operands):
            if i == j or (other.role.startswith("out") and j < i):
                continue
            if other.role in same and same_place(other, out) and target.ctypes.data == array.ctypes.data:
                continue
            if np.may_share_memory(target, array):
                refuse_overlap(target, array)


def _product(p: MatmulProblem, name: str) -> Callable[..., Any]:
    """beta * C + alpha * A @ B, with vectors as the caller gave them."""
    index = {o.role: i for i, o in enumerate(p.operands)}
    halves = p.dtype.name in ("float16", "bfloat16")

    def run(*arrays: Any) -> Any:
        # BLAS says nothing of overflow or NaN, so neither does this: the result shows it.
        with np.errstate(all="ignore"):
            return compute(*arrays)

    def compute(*arrays: Any) -> Any:
        _refuse_overlaps(p, arrays, same=("c",))
        views = {}
        for role, i in index.items():
            o = p.operands[i]
            views[role] = np.lib.stride_tricks.as_strided(arrays[i], o.shape, o.strides)
        a, b = views["a"], views["b"]
        if halves:
            a, b = a.astype(np.float32), b.astype(np.float32)
        if p.parameter("conj"):
            a = a.conj()
        if p.alpha == 0:  # as in BLAS: then A and B do not matter, whatever is in them
            product = np.zeros((*p.batch, p.m, p.n), a.dtype)
        else:
            product = np.matmul(a, b, order="C")
        if p.alpha not in (0, 1):
            product = product * np.asarray(p.alpha, product.dtype)
        if p.beta != 0:
            c = views["c"].astype(product.dtype, copy=False)
            product = product + (c if p.beta == 1 else c * np.asarray(p.beta, product.dtype))
        out = index.get("out")
        if out is not None:
            views["out"][...] = product
            return arrays[out]
        # Left to itself NumPy lays the batch out as it lies in A and B, but a plan's result has its axes in order.
        product = product.astype(p.dtype, order="C", copy=False)
        if product.shape != p.result:
            product = product.reshape(p.result)
        return product if product.ndim else product[()]

    return run


def _convolution(p: ConvProblem, name: str) -> Callable[..., Any]:
    compute = reference_conv.function(p, loops=name == "loops")

    def run(*arrays: Any) -> Any:
        _refuse_overlaps(p, arrays, same=("residual",))
        with np.errstate(all="ignore"):  # overflow and NaN show in the result
            return compute(*arrays)

    return run


def _reference(p: LinalgProblem) -> Callable[..., Any] | None:
    name = p.op.rpartition(".")[2]
    found: Callable[..., Any] | None = getattr(
        reference_indefinite if name in reference_indefinite.__all__ else reference_linalg, name, None
    )
    return found


def _linalg(p: LinalgProblem, algorithm: str) -> Callable[..., Any]:
    solve = _reference(p)
    assert solve is not None
    index = {o.role: i for i, o in enumerate(p.operands)}
    outs = sorted(r for r in index if r.startswith("out"))
    keywords = {k: v for k, v in p.parameters if k not in ("vector",)}
    wrap = WRAP.get((p.op, p.parameter("check", True)))

    def run(*arrays: Any) -> Any:
        with np.errstate(all="ignore"):  # as LAPACK: what is not finite shows in the results, or is an error
            return compute(*arrays)

    def compute(*arrays: Any) -> Any:
        _refuse_overlaps(p, arrays)
        inputs = [arrays[index[role]] for role in ("a", "p", "t", "b") if role in index]
        if p.op in NEEDS_FINITE and not _finite(p, inputs):
            raise LinAlgError(f"{p.op}: {not_finite(p.op)}")
        try:
            result = solve(p, *inputs, **keywords)
        except np.linalg.LinAlgError as error:
            if isinstance(error, LinAlgError):
                raise
            raise LinAlgError(f"{p.op}: {error}") from None  # NumPy's own class is no RuntimeError
        parts = result if isinstance(result, tuple) else (result,)
        if outs:
            for role, part in zip(outs, parts, strict=False):
                arrays[index[role]][...] = part
            parts = tuple(arrays[index[role]] for role in outs)
        return wrap(*parts) if wrap else parts[0]

    return run


def _finite(p: LinalgProblem, inputs: list[Any]) -> bool:
    a = inputs[0]
    uplo = p.parameter("UPLO")
    if uplo is not None:  # the other triangle is not read
        a = np.tril(a) if uplo == "L" else np.triu(a)
    arrays = (a, inputs[1]) if p.op == "linalg.lstsq" else (a,)
    return all(bool(np.isfinite(x).all()) for x in arrays)


NEEDS_FINITE = ("linalg.lstsq", "linalg.eigh", "linalg.eigvalsh", "linalg.eig", "linalg.eigvals", "linalg.svd", "linalg.svdvals")
WRAP: dict[tuple[str, bool], Any] = {
    ("linalg.inv", False): InvEx,
    ("linalg.cholesky", False): CholeskyEx,
    ("linalg.lu_factor", True): LUFactor,
    ("linalg.lu_factor", False): LUFactorEx,
    ("linalg.ldl_factor", True): LDLFactor,
    ("linalg.ldl_factor", False): LDLFactorEx,
    ("linalg.solve", False): SolveEx,
    ("linalg.qr", True): QR,
    ("linalg.eigh", True): Eigh,
    ("linalg.eig", True): Eig,
    ("linalg.svd", True): SVD,
    ("linalg.lstsq", True): Lstsq,
}


def _transforms(problem: FftProblem, threads: int) -> Listed:
    found = transform_loops.loop_algorithm(problem)
    if isinstance(found, Algorithm):  # the same without Python around it
        yield found
    yield from reference_fft.algorithms(problem)
    if isinstance(found, Refusal):
        yield found


def _transform(problem: FftProblem, algorithm: Algorithm) -> Any:
    loops = algorithm.name == transform_loops.LOOPS
    return transform_loops.prepare_loops(problem) if loops else reference_fft.plan(problem)


def _layer_algorithms(problem: NeuralProblem, threads: int) -> Listed:
    yield from element_loops.element_algorithms(problem, threads)
    yield from reference_neural.algorithms(problem)


def _prepare_layer(problem: NeuralProblem, algorithm: Algorithm) -> Any:
    if algorithm.name == element_loops.UFUNC:
        return element_loops.prepare_elements(problem, algorithm)
    compute = reference_neural.plan(problem)

    def run(*arrays: Any) -> Any:
        _refuse_overlaps(problem, arrays, same=("input",))
        return compute(*arrays)

    return PythonPlan(run if problem.get("out") is not None else compute)


class NumPy(Library):
    """numpy, the package."""

    handlers: ClassVar = {
        MatmulProblem: _on_blas(_product_algorithms, _product),
        LinalgProblem: _on_blas(_linalg_algorithms, _linalg),
        LinearProblem: Handler(
            lambda context, p, threads: linear_algorithms(context.library, p, threads),
            lambda context, p, algorithm: prepare_linear(context.library, p, algorithm),
        ),
        ConvProblem: _on_blas(reference_conv.algorithms, _convolution),
        RnnProblem: _on_blas(reference_rnn.algorithms, reference_rnn.named_plan, planned=True),
        QuantizedProblem: _on_blas(
            reference_quantized.algorithms, lambda p, name: reference_quantized.plan(p, loops=name == "loops")
        ),
        AttentionProblem: _on_blas(
            partial(reference_attention.algorithms, "numpy"),
            reference_attention.named_plan,
            planned=True,
        ),
        MultiHeadProblem: Handler.plain(
            lambda p, threads: composed_algorithms("numpy", "linear, matmul and softmax"),
            lambda p, algorithm: PythonPlan(composed_function(p), p.scalars),
        ),
        NeuralProblem: Handler.plain(_layer_algorithms, _prepare_layer),
        EinsumProblem: Handler.plain(
            lambda p, threads: reference_einsum.algorithms("numpy", p), lambda p, algorithm: PythonPlan(reference_einsum.plan(p))
        ),
        FftProblem: Handler.plain(_transforms, _transform),
        GroupedProblem: Handler.plain(
            lambda p, threads: composed_algorithms("numpy", "the groups' products"),
            lambda p, algorithm: PythonPlan(composed_function(p)),
        ),
        ScaledProblem: Handler(
            lambda context, p, threads: reference_scaled.algorithms(p),
            lambda context, p, algorithm: PythonPlan(reference_scaled.plan(p, _multiply(context))),
        ),
        SparseProblem: Handler.plain(
            lambda p, threads: reference_sparse.algorithms(p), lambda p, algorithm: PythonPlan(reference_sparse.plan(p))
        ),
    }

    def context(self, planner: Planner) -> _Context:
        return _Context(self, planner)

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return np.__version__

    def details(self) -> dict[str, Any]:
        blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
        return {
            "path": np.__file__, "found by": "imported", "pool": "numpy",
            "config": f"built with {blas.get('name', 'an unknown BLAS')} {blas.get('version', '')}".strip(),
        }  # fmt: skip


def reference_plan(problem: Problem, *, loops: bool = False) -> PythonPlan:
    """Returns the Plan of NumPy's routines for a Problem that a BLAS has a part in; with `loops` without a BLAS."""
    algorithm = Algorithm(library="numpy", name="loops" if loops else "reference")
    plan: PythonPlan = NumPy.handlers[type(problem)].prepare(None, problem, algorithm)
    return plan
