"""CuPy: what stands between products on CUDA arrays. Activations, softmax, normalisation (`row_kernels`) and pooling
(`pooling_kernels`) are one kernel each, the rest kernels and reductions, and so are softmax and normalisation where the one
kernel does not apply.

Halves are computed in float32 and rounded once; formulas take sums in float64, row kernels in the dtype of computation. CuPy adds
up in an order that the shape decides, and nothing here adds to memory from several threads, so results have the same bits each
time. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ....problems.attention_problem import AttentionProblem
from ....problems.einsum_problem import EinsumProblem
from ....problems.multi_head_problem import MultiHeadProblem
from ....problems.neural_problem import ELEMENTARY, NeuralProblem
from ....problems.quantized_problem import QuantizedProblem
from ....problems.rnn_problem import RnnProblem
from ... import python_packages
from ...base import Algorithm, Handler, Planner, Refusal
from ...reference import reference_einsum
from ...reference.array_namespaces import Space
from ...reference.composed import composed_algorithms, composed_function
from ...reference.layer_formulas import FORMULAS, empty, function
from ..attention import cuda_math_attention
from ..common import bindings, elementwise_kernels
from ..common.binding_library import BindingLibrary
from ..common.device_plan import DevicePlan, prepared, refuse_overlaps_of_out
from . import int8_layers, pooling_kernels, recurrent_steps, row_kernels

__all__ = ["CuPy", "space"]

Array = Any
Run = Callable[..., Any]

DTYPES = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("max_pool", "max_pool_indices")  # have these as well
KERNELS: tuple[Any, ...] = (row_kernels, pooling_kernels)
ONE_PASS = ("relu", "gelu", "silu", "tanh", "sigmoid", *ELEMENTARY)
NUMBERS = ("float32", "float64", "complex64", "complex128")


def space() -> Space:
    """The Space of CuPy's arrays, with its kernels."""
    cupy = bindings.cupy()

    def new(like: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        if shape == tuple(like.shape):
            return cupy.empty_like(like, dtype=dtype, order="K")
        return cupy.empty_like(like, dtype=dtype, order="K", shape=shape)

    return Space(cupy, np.dtype(np.float64), kernels=_Kernels(), new=new)


class _Kernels(dict[str, Run]):
    """Kernels of the formulas' parts, each made when it is first asked for."""

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = elementwise_kernels.kernel(name)
        return self[name]


# One pass ------------------------------------------------------------------------------------------------------------


def _one_pass(p: NeuralProblem) -> Run:
    name = p.op.removesuffix("_grad")
    form = "gelu_tanh" if p.parameter("approximate") == "tanh" else name
    made = elementwise_kernels.kernel(form if name == p.op else f"{form}_grad")
    empty_like = bindings.cupy().empty_like
    # Roles are input and grad, in any order.
    order = [p.index(role) or 0 for role in ("input", "grad") if p.get(role) is not None]
    written = p.index("out")

    def run(*arrays: Array) -> Array:
        given = [arrays[i] for i in order]
        if written is None:
            out = empty_like(given[0], order="K")
        else:
            refuse_overlaps_of_out(p, arrays, same=("input",))
            out = arrays[written]
        return made(*given, out) if out.size else out

    return run


def reason(p: NeuralProblem) -> str:
    """Returns why CuPy cannot run a layer; empty if it can."""
    if p.op not in FORMULAS and p.op.removesuffix("_grad") not in ONE_PASS and p.op not in pooling_kernels.OPERATIONS:
        return f"CuPy has no {p.op}"
    if p.dtype.name in DTYPES or (p.op in INTEGERS and p.dtype.kind in "iu"):
        return ""
    return f"{p.op} is for {', '.join(DTYPES)}, not {p.dtype.name}"


def _layer(p: NeuralProblem, algorithm: Algorithm) -> Run:
    if p.empty or any(0 in o.shape for o in p.operands):
        return empty(p, space())
    for kernels in KERNELS:
        if algorithm.name == kernels.NAME:
            one: Run = kernels.function(p)
            return one
    if p.op not in FORMULAS:
        return _one_pass(p)
    f = space().replaced(kept={})
    made = function(p, f)
    if f.kept:  # calls on other streams read it too
        f.xp.cuda.get_current_stream().synchronize()
    return made


def _step(p: EinsumProblem, algorithm: Algorithm) -> Run:
    """A step of an einsum that is no product of matrices: a sum over axes, or a product of elements. The result is dense."""
    cupy = bindings.cupy()
    looks, axes = reference_einsum.views(p)
    if len(looks) == 2:
        return lambda x, y: cupy.ascontiguousarray(cupy.multiply(looks[0](x), looks[1](y)))
    return lambda x: cupy.ascontiguousarray(looks[0](x).sum(axis=axes, dtype=p.dtype))


def _prepared(make: Callable[[Any, Algorithm], Run]) -> Callable[[Any, Any, Algorithm], DevicePlan]:
    """Returns the `prepare` of a Handler from a function that makes that of the arrays of a call, on the current device."""
    return lambda context, problem, algorithm: prepared(problem, lambda: make(problem, algorithm), f"CuPy, {problem.op}")


def _neural_algorithms(context: Any, problem: NeuralProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    halves = "f32, rounded once" if problem.dtype.name in ("float16", "bfloat16") else ""
    refused = reason(problem)
    if refused:
        yield Refusal("cupy", problem.op, refused)
        return
    way = partial(Algorithm, library="cupy", precision=halves, level="threads", basis="construction")
    for kernels in KERNELS:
        if problem.op in kernels.OPERATIONS:
            unfit = kernels.refusal(problem)
            yield Refusal("cupy", kernels.NAME, unfit) if unfit else way(name=kernels.NAME, note=kernels.NOTE)
    if problem.op in FORMULAS and problem.dtype.name in DTYPES:
        yield way(name="formula", note="kernels and reductions")
    elif problem.op not in pooling_kernels.OPERATIONS:
        yield way(name="kernel", note="one kernel")


def _einsum_algorithms(context: Any, problem: EinsumProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    kind = reference_einsum.kind_of(problem)
    legal = (*NUMBERS, "float16", "bfloat16") if kind == "multiply" else NUMBERS
    if kind == "einsum" or problem.dtype.name not in legal:
        yield Refusal("cupy", "einsum", f"it has sums and products of elements here, of {', '.join(legal)}")
    else:
        yield Algorithm(library="cupy", name=kind, level="threads", basis="construction")


def _attention_algorithms(planner: Planner, problem: AttentionProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    return cuda_math_attention.algorithms("cupy", problem, planner)


def _prepare_attention(planner: Planner, problem: AttentionProblem, algorithm: Algorithm) -> DevicePlan:
    return prepared(problem, lambda: cuda_math_attention.function(problem, algorithm, planner), f"CuPy, {problem.op}")


def _rnn_algorithms(planner: Planner, problem: RnnProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    return recurrent_steps.algorithms(problem, planner)


def _prepare_rnn(planner: Planner, problem: RnnProblem, algorithm: Algorithm) -> DevicePlan:
    return prepared(problem, lambda: recurrent_steps.function(problem, planner), f"CuPy, {problem.op}")


def _int8_algorithms(planner: Planner, problem: QuantizedProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    return int8_layers.algorithms(problem)


def _prepare_int8(planner: Planner, problem: QuantizedProblem, algorithm: Algorithm) -> DevicePlan:
    return prepared(problem, lambda: int8_layers.function(problem, planner), f"CuPy, {problem.op}")


class CuPy(BindingLibrary):
    """cupy, the package, for elementwise work and reductions; products, transforms and solvers are other libraries'."""

    handlers: ClassVar = {
        NeuralProblem: Handler(_neural_algorithms, _prepared(_layer)),
        EinsumProblem: Handler(_einsum_algorithms, _prepared(_step)),
        AttentionProblem: Handler(_attention_algorithms, _prepare_attention),
        MultiHeadProblem: Handler(
            lambda context, p, threads: composed_algorithms("cupy", "linear and scaled_dot_product_attention"),
            _prepared(lambda p, algorithm: composed_function(p)),
        ),
        RnnProblem: Handler(_rnn_algorithms, _prepare_rnn),
        QuantizedProblem: Handler(_int8_algorithms, _prepare_int8),
    }

    def version(self) -> str | None:
        return None if python_packages.find("cupy")[2] else python_packages.version("cupy")

    def details(self) -> dict[str, Any]:
        return {"pool": "", "version": self.version()}
