"""NumPy's own routines: always there, and the reference that every other library is compared with.

They run on whatever BLAS NumPy was built with, on that BLAS's own threads. Float32 linear algebra is computed in
float64 inside NumPy, which is slower and more accurate than a float32 LAPACK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...errors import LinAlgError, refuse_overlap
from ...native.plan_builder import same_place
from ...problems import Problem
from ...problems.attention_problem import AttentionProblem
from ...problems.conv_problem import ConvProblem
from ...problems.einsum_problem import EinsumProblem
from ...problems.fft_problem import FftProblem
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
from ...problems.sparse_problem import SparseProblem
from ..base import Algorithm, Library, PythonPlan, Refusal
from ..blas.blas_multi_head import composed_algorithms, prepare_composed
from ..blas.linear_epilogue import linear_algorithms, prepare_linear
from ..reference import (
    reference_attention,
    reference_conv,
    reference_einsum,
    reference_fft,
    reference_indefinite,
    reference_linalg,
    reference_neural,
    reference_quantized,
    reference_rnn,
    reference_sparse,
)
from . import numpy_threads

__all__ = ["NumPy"]

FLOATS = ("float32", "float64", "complex64", "complex128")
# What NumPy's BLAS has a part in.
ON_BLAS = (MatmulProblem, LinalgProblem, ConvProblem, RnnProblem, QuantizedProblem, AttentionProblem)


class NumPy(Library):
    """numpy, the package."""

    name = "numpy"
    title = "NumPy"
    kernels = ("math",)  # of attention
    engines = reference_quantized.ENGINES  # for int8

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return np.__version__

    def report(self) -> dict[str, Any]:
        blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
        return {
            "name": self.name, "title": self.title, "available": True, "reason": "", "version": np.__version__,
            "path": np.__file__, "found by": "imported", "pool": "numpy",
            "config": f"built with {blas.get('name', 'an unknown BLAS')} {blas.get('version', '')}".strip(),
        }  # fmt: skip

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
        for found in self._algorithms(problem, threads):
            if isinstance(found, Algorithm) and isinstance(problem, ON_BLAS):
                found = numpy_threads.marked(found, problem)
            yield found

    def _algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
        if isinstance(problem, MatmulProblem):
            # NumPy's BLAS takes as many threads as it was told to, whatever is asked here: with one thread allowed
            # it is a candidate only where that can be had of it.
            if problem.dtype.name in FLOATS and (no := numpy_threads.refusal("matmul", problem, threads)):
                yield no
                return
            if problem.empty or problem.dtype.name not in (*FLOATS, "float16", "bfloat16"):
                # No BLAS takes part: NumPy's own loops, on one thread and in one order.
                yield Algorithm(library=self.name, name="matmul", level="threads", basis="construction")
                return
            yield Algorithm(library=self.name, name="matmul", threads=threads, scaled=True, pool="numpy" if threads > 1 else "")
        elif isinstance(problem, LinalgProblem):
            if problem.dtype.name not in FLOATS:
                yield Refusal(self.name, "linalg", f"NumPy has no linear algebra of {problem.dtype.name}")
                return
            driver = problem.parameter("driver")
            if driver is not None and driver not in ("gesdd", "gelsd"):
                yield Refusal(self.name, "linalg", f"the call asks for driver={driver!r}; NumPy has gesdd and gelsd")
                return
            single = problem.dtype.name in ("float32", "complex64")
            inside = "f64" if single else ""
            note = "computed in float64 and rounded" if single else ""
            yield Algorithm(
                library=self.name, name="linalg", threads=threads, scaled=True, precision=inside,
                pool="numpy" if threads > 1 else "", note=note,
            )  # fmt: skip
        elif isinstance(problem, LinearProblem):
            yield from linear_algorithms(self, problem, threads)
        elif isinstance(problem, NeuralProblem):
            yield from reference_neural.algorithms(problem, threads)
        elif isinstance(problem, AttentionProblem):
            yield from reference_attention.algorithms(self.name, problem, threads)
        elif isinstance(problem, MultiHeadProblem):
            yield from composed_algorithms(problem)
        elif isinstance(problem, ConvProblem):
            yield from reference_conv.algorithms(problem, threads)
        elif isinstance(problem, RnnProblem):
            yield from reference_rnn.algorithms(problem, threads)
        elif isinstance(problem, QuantizedProblem):
            yield from reference_quantized.algorithms(problem, threads)
        elif isinstance(problem, EinsumProblem):
            yield from reference_einsum.algorithms(self.name, problem)
        elif isinstance(problem, FftProblem):
            yield from reference_fft.algorithms(problem)
        elif isinstance(problem, SparseProblem):
            yield from reference_sparse.algorithms(problem)
        else:
            yield Refusal(self.name, "", f"NumPy has no {problem.op}")

    def prepare(self, problem: Problem, algorithm: Algorithm) -> Any:
        if isinstance(problem, LinearProblem):
            return prepare_linear(self, problem, algorithm)
        plan = self._plan(problem, algorithm)
        if numpy_threads.BORROWED in algorithm.traits:
            plan.function = numpy_threads.limited(plan.function)
        return plan

    def _plan(self, problem: Problem, algorithm: Algorithm) -> Any:
        if isinstance(problem, NeuralProblem):
            return reference_neural.prepare(problem, algorithm)
        if isinstance(problem, AttentionProblem):
            return PythonPlan(reference_attention.plan(problem, half=algorithm.name == reference_attention.HALF))
        if isinstance(problem, EinsumProblem):
            return PythonPlan(reference_einsum.plan(problem))
        if isinstance(problem, FftProblem):
            return reference_fft.plan(problem)
        if isinstance(problem, SparseProblem):
            return PythonPlan(reference_sparse.plan(problem))
        if isinstance(problem, MultiHeadProblem):
            return prepare_composed(problem)
        if isinstance(problem, QuantizedProblem):
            return PythonPlan(reference_quantized.plan(problem, loops=algorithm.name == "loops"))
        return reference_plan(problem, loops=algorithm.name == "loops")


def reference_plan(problem: Problem, *, loops: bool = False) -> PythonPlan:
    """The Plan of NumPy's routines for a product, a convolution or recurrence (with `loops` without a BLAS), linear algebra."""
    if isinstance(problem, MatmulProblem):
        return PythonPlan(_product(problem))
    if isinstance(problem, ConvProblem):
        return PythonPlan(_convolution(problem, loops))
    if isinstance(problem, RnnProblem):
        return PythonPlan(reference_rnn.plan(problem, loops=loops))
    assert isinstance(problem, LinalgProblem)
    return PythonPlan(_linalg(problem))


def _refuse_overlaps(problem: Problem, arrays: tuple[Any, ...], same: tuple[str, ...] = ()) -> None:
    """What the compiled plans refuse is refused here as well: whether a call is legal does not depend on who runs it."""
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


def _product(p: MatmulProblem) -> Callable[..., Any]:
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


def _convolution(p: ConvProblem, loops: bool) -> Callable[..., Any]:
    compute = reference_conv.function(p, loops=loops)

    def run(*arrays: Any) -> Any:
        _refuse_overlaps(p, arrays, same=("residual",))
        with np.errstate(all="ignore"):  # overflow and NaN show in the result
            return compute(*arrays)

    return run


def _linalg(p: LinalgProblem) -> Callable[..., Any]:
    name = p.op.rpartition(".")[2]
    solve = getattr(reference_indefinite if name in reference_indefinite.__all__ else reference_linalg, name)
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
