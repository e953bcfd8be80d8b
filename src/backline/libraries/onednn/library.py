"""oneDNN: loading and checking of libdnnl, and its handlers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from ... import switches
from ...native import thread_team
from ...native.library_search import Finding, search
from ...native.shared_library import NativeLibrary
from ...problems import Operand
from ...problems.conv_problem import ConvProblem
from ...problems.dtypes import is_bfloat16
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem
from ...problems.neural_problem import NeuralProblem
from ...problems.quantized_problem import QuantizedProblem
from ...problems.rnn_problem import RnnProblem
from ...switches.starting_values import starting_mkldnn
from .. import capability
from ..base import Algorithm, FileLibrary, Handler, Planner, Refusal
from ..kernels.matrix_tiles import BFLOAT16, has_tiles
from ..probing.probe_cache import prove_by_class
from . import abi
from .int8_sums import Packing, packing, quantized_refusal
from .onednn_conv import conv_algorithms, prepare_conv
from .onednn_int8 import prepare_quantized, quantized_algorithms, soon_prepared
from .onednn_layers import neural_algorithms, prepare_neural
from .onednn_layers_grad import GRADIENTS, gradient_algorithms, prepare_gradient
from .onednn_products import prepare_product, product_algorithms
from .onednn_rnn import prepare_rnn, rnn_algorithms
from .primitives import Engine

__all__ = ["OneDNN"]

OLDEST, NEWEST = (3, 2), (3, 99)
# Where shapes keep changing: calls of one after which a convolution is worth the millisecond that compiling its kernels takes,
# and operations of one that is worth it at once.
CONV_COMPILED_AFTER, CONV_COMPILED_FLOPS = 16, 1e8
# The same of layers that NumPy runs without a plan.
WAITING_LAYERS = ("max_pool", "avg_pool", "layer_norm_grad", "batch_norm_train_grad")
POOL_COMPILED_AFTER, POOL_COMPILED_FLOPS = 4, 6e4
# Of int8, whose products without a primitive take two or three times as long.
INT8_COMPILED_AFTER, INT8_COMPILED_FLOPS = 8, 5e7
# And of recurrent networks, which are products otherwise.
RNN_COMPILED_FLOPS = 1e7
NO_THREADS = "which takes no thread count for one call"
# Not just an installation: the wheel `onednn` writes its file over that of `onednn-cpu-gomp`, which pip then takes for installed.
REINSTALL = "pip install --force-reinstall --no-deps onednn-cpu-gomp brings a build on OpenMP"
# One product on one thread, and one that all threads take part in: a wrong OpenMP runtime gives wrong numbers in silence.
ONES = (64, 256)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A oneDNN that can be used."""

    native: NativeLibrary
    engine: Engine
    version: str


def _layer_algorithms(engine: Engine, problem: NeuralProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    return (gradient_algorithms if problem.op in GRADIENTS else neural_algorithms)(engine, problem, threads)


def _prepare_layer(engine: Engine, problem: NeuralProblem, algorithm: Algorithm) -> Any:
    return (prepare_gradient if problem.op in GRADIENTS else prepare_neural)(engine, problem, algorithm)


def _waits(p: MatmulProblem | LinearProblem) -> bool:
    # Packed weights are brought into an order of the kernel's own, for each shape. A kernel of AMX takes 7 ms to compile, and the
    # loop of tiles, which is about as fast, nothing (Intel Xeon, 2026-11).
    return p.packed or (is_bfloat16(p.dtype) and has_tiles(BFLOAT16))


PRODUCTS = Handler(
    product_algorithms,
    prepare_product,
    one_shape=CONV_COMPILED_AFTER,
    one_shape_flops=CONV_COMPILED_FLOPS,
    one_shape_if=_waits,
)


class OneDNN(FileLibrary):
    """libdnnl of release 3, built on OpenMP: from the wheel onednn-cpu-gomp, a conda environment, or the system."""

    handlers: ClassVar = {
        MatmulProblem: PRODUCTS,
        LinearProblem: PRODUCTS,
        ConvProblem: Handler(conv_algorithms, prepare_conv, one_shape=CONV_COMPILED_AFTER, one_shape_flops=CONV_COMPILED_FLOPS),
        NeuralProblem: Handler(
            _layer_algorithms,
            _prepare_layer,
            one_shape=POOL_COMPILED_AFTER,
            one_shape_flops=POOL_COMPILED_FLOPS,
            one_shape_if=lambda p: p.op in WAITING_LAYERS,
        ),
        RnnProblem: Handler(rnn_algorithms, prepare_rnn, one_shape=CONV_COMPILED_AFTER, one_shape_flops=RNN_COMPILED_FLOPS),
        QuantizedProblem: Handler(
            quantized_algorithms,
            prepare_quantized,
            one_shape=INT8_COMPILED_AFTER,
            one_shape_flops=INT8_COMPILED_FLOPS,
            soon=soon_prepared,
        ),
    }

    def __init__(self) -> None:
        self.traits: Loaded | None = None
        self.facts: dict[str, Any] = {}
        self._level = starting_mkldnn()[0]

    # loading

    def load(self) -> str:
        """The newest usable file; where there are older ones, and newer ones that are not usable, the report has them."""
        found = search(self.spec)
        if found.path is None:
            self.finding = found
            return found.reason
        reasons: list[str] = []
        for finding in (found, *found.others):
            self.finding = finding
            reason = self._try(finding)
            if not reason:
                if reasons:
                    self.facts["passed over"] = "; ".join(reasons)
                if finding.others or reasons:
                    self.facts["older"] = ", ".join(f.path for f in found.others[len(reasons) :] if f.path) or "none"
                return ""
            reasons.append(reason)
        self.finding = found
        return "; ".join(reasons)

    def _try(self, finding: Finding) -> str:
        """Load a file; why it cannot be used, or an empty string."""
        path = finding.path
        assert path is not None
        try:
            if finding.info is not None and any(name.startswith("libsycl") for name in finding.info.needed):
                return f"{path} is built on SYCL, {NO_THREADS}; {REINSTALL}"
            proof = prove_by_class(self.name, path, _threads())
            if proof.reason:
                return proof.reason
            loaded = self._open(path)
            wrong = proof.replaced()
            if wrong:
                return wrong
            wrong = _check(loaded.engine)
            if wrong:
                return f"{path} {wrong}"
        except (OSError, RuntimeError, ValueError) as error:
            # dlopen's own text, or a call that fails: a reason, not a crash.
            return f"{type(error).__name__}: {error}"
        self.traits, self.rwlock = loaded, loaded.native.rwlock
        self.threaded = loaded.engine.thread_guard is not None
        self.facts["pool"] = loaded.engine.pool
        return ""

    def test(self, path: str) -> dict[str, str]:
        return {"reason": _check(self._open(path).engine)}

    def _open(self, path: str) -> Loaded:
        thread_team.bind()  # its libgomp is then the one we know
        native = NativeLibrary(path)
        capped = capability.cap_onednn(native)  # before anything else of it
        said = native.call(native.address("dnnl_version"), restype=ctypes.POINTER(abi.Version)).contents
        version = f"{said.major}.{said.minor}.{said.patch}"
        if not OLDEST <= (said.major, said.minor) <= NEWEST:
            raise RuntimeError(f"{path} is oneDNN {version}, which has another interface; 3.2 or a later 3 is needed")
        runtime = said.cpu_runtime
        known = {int(r): r.name for r in abi.Runtime}
        if runtime not in (abi.Runtime.OPENMP, abi.Runtime.SEQUENTIAL):
            built = known.get(runtime, f"runtime {runtime}")
            raise RuntimeError(f"{path} is oneDNN {version} built on {built}, {NO_THREADS}; {REINSTALL}")
        thread_guard, pool = None, ""
        if runtime == abi.Runtime.OPENMP:
            setter = native.address("omp_set_num_threads")
            getter = native.address("omp_get_max_threads")
            thread_guard = thread_team.thread_guard(setter, thread_team.LOCAL, whole=setter, get=getter)
            pool = thread_team.name() if setter == thread_team.address("omp_set_num_threads") else "another OpenMP runtime"
        engine = Engine(native, thread_guard, pool)
        self.facts = {"runtime": known[runtime], "bfloat16": "in hardware" if engine.bf16 else "not in hardware"}
        if capped:
            self.facts["instructions"] = capped
        return Loaded(native, engine, version)

    def version(self) -> str | None:
        return self.traits.version if self.available() and self.traits is not None else None

    def instruction_sets(self) -> tuple[str, ...] | None:
        bits = self.traits.engine.isa if self.available() and self.traits is not None else 0
        return tuple(isa.name.lower() for isa in abi.Isa if bits & isa) if bits else None

    def context(self, planner: Planner) -> Engine:
        assert self.traits is not None
        return self.traits.engine

    # what others ask

    def engine_reason(self, name: str) -> str:
        """Returns the reason why oneDNN cannot run the int8 engine `name` here, or an empty string."""
        return quantized_refusal(self.traits.engine) if self.available() and self.traits is not None else self.reason()

    def packing(self, problem: QuantizedProblem) -> Packing | None:
        """Returns the packed layout of a weight, or None if oneDNN has no kernel for the Problem."""
        return packing(self.traits.engine, problem) if self.available() and self.traits is not None else None

    def set_verbose(self, level: int) -> int:
        """Makes oneDNN print a line for each execution (1) and each creation (2), or nothing (0); returns the former level."""
        assert self.traits is not None
        native = self.traits.native
        former = self._level
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(native.address("dnnl_set_verbose"))(level)
        self._level = level
        return former


def _threads() -> int:
    return 1 if thread_team.forked() else cast(int, switches.get("num_threads"))


def _check(engine: Engine) -> str:
    """Tests products of matrices of ones; returns the error found, or an empty string."""
    threads = _threads() if engine.thread_guard is not None else 1
    for n, count in zip(ONES, (1, threads), strict=True):
        ones = np.ones((n, n), np.float32)
        operands = tuple(Operand(role, ones.dtype, ones.shape, ones.strides) for role in "ab")
        problem = MatmulProblem("matmul", operands, (), "matmul", m=n, n=n, k=n, result=(n, n))
        plan = prepare_product(engine, problem, Algorithm(library="onednn", name="matmul", threads=count))
        if not np.array_equal(plan(ones, ones), np.full((n, n), n, np.float32)):
            return f"computes a wrong product of {n} x {n} ones on {count} threads"
    return ""
