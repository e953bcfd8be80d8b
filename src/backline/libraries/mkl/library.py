"""Intel's MKL: products, LAPACK, transforms, elementary functions, and kernels compiled for one small shape.

Its threading layer is chosen here, before its first computation. Wherever libgomp can be had, the GNU layer is: then MKL
shares the one team of the process, and cannot meet the layer that computes wrong products beside a global libgomp.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from ...native import thread_team
from ...native.machine import machine
from ...native.plan_builder import Builder
from ...native.process_map import mapped_files
from ...native.shared_library import NativeLibrary
from ...problems import Problem
from ...problems.fft_problem import FftProblem
from ...problems.matmul_problem import MatmulProblem
from ...problems.neural_problem import NeuralProblem
from .. import capability, fixed_order
from ..base import NULL_PLANNER, ONE_SHAPE, Algorithm, Handler, Planner, Refusal
from ..blas.blas_library import ATTENTION, BlasLibrary, prepare_product, product_algorithms
from ..blas.blas_product import BlasProduct
from ..blas.cblas import COLUMN, LETTER, PLAIN, ROW, TRANSPOSED, BlasTraits
from ..fft_steps import PLANNED_AFTER
from .dfti_algorithms import fft_algorithms, prepare_fft
from .mixed_products import MIXED, MixedProduct, mixed_algorithms
from .transform_trials import Trials
from .vector_math import VectorMath

__all__ = ["MKL"]

GNU_LAYER, INTEL_LAYER = 3, 0
INTEL = "GenuineIntel"  # elsewhere MKL 2026.2 divides products from 500 operations on, and takes two to four times as long
JIT_LARGEST = 64
CNR_OFF, CNR_AUTO, CNR_STRICT, CNR_ALL = 1, 2, 0x10000, -1
# Kernels that compute in one order whatever MKL was asked, and results that nothing is computed for.
ALWAYS_REPRODUCIBLE = ("jit", "jit_pointwise", "empty")
UNREPRODUCIBLE = "MKL was used in this process before it could be asked for the same bits from run to run"
ASKED_LATE = "MKL was loaded before determinism_level 'threads' was asked for: a process that asks first may get other last bits"


def _product_algorithms(mkl: MKL, problem: MatmulProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    reason = mkl.jit.refusal(problem)
    if reason:
        yield Refusal("mkl", "jit", reason)
    else:
        note = "a kernel compiled for this shape"
        yield Algorithm(library="mkl", name="jit", level="threads", basis="construction", note=note, traits=(ONE_SHAPE,))
    yield from product_algorithms(mkl, problem, threads)
    if problem.dtype.itemsize == 2:
        yield from mixed_algorithms(mkl.blas, problem, threads)


def _prepare_product(mkl: MKL, problem: MatmulProblem, algorithm: Algorithm) -> Any:
    return mkl.jit.prepare(problem) if algorithm.name == "jit" else prepare_product(mkl, problem, algorithm)


def _fft_algorithms(mkl: MKL, problem: FftProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    return fft_algorithms(mkl, mkl.blas, mkl.transform_trials, problem, threads)


def _prepare_fft(mkl: MKL, problem: FftProblem, algorithm: Algorithm) -> Any:
    return prepare_fft(mkl.blas, problem, algorithm)


class MKL(BlasLibrary):
    """libmkl_rt of the wheel mkl, a conda environment, or the system."""

    handlers: ClassVar = {
        **BlasLibrary.handlers,
        **ATTENTION,
        MatmulProblem: Handler(_product_algorithms, _prepare_product),
        FftProblem: Handler(_fft_algorithms, _prepare_fft, one_shape=PLANNED_AFTER),
        NeuralProblem: Handler(
            lambda mkl, problem, threads: mkl.vector_math.algorithms(problem, threads),
            lambda mkl, problem, algorithm: mkl.vector_math.prepare(problem, algorithm),
        ),
    }
    reproducible = True
    _instruction_sets: tuple[str, ...] | None = None

    def product_kind(self, name: str) -> type[BlasProduct]:
        return MixedProduct if name.startswith(MIXED) else super().product_kind(name)

    def instruction_sets(self) -> tuple[str, ...] | None:
        return self._instruction_sets if self.available() else None

    def trial(self) -> dict[str, Any]:
        layer = _layer()
        setup = [("MKL_Set_Dynamic", 0)] if layer is None else [("MKL_Set_Threading_Layer", layer), ("MKL_Set_Dynamic", 0)]
        return {"mode": 0, "prefix": "", "suffix": "_64", "setup": setup, "set threads": "MKL_Set_Num_Threads"}

    def open(self, path: str) -> BlasTraits:
        # MKL exports both widths side by side; with 64-bit integers no size is too large.
        native = NativeLibrary(path, suffix="_64", int_size=8)
        layer = _layer()
        if layer is not None:
            native.call(native.address("MKL_Set_Threading_Layer"), ctypes.c_int(layer))
        capped = capability.cap_mkl(native)
        self._reproduce(native)
        text = ctypes.create_string_buffer(256)
        native.call(native.address("MKL_Get_Version_String"), text, ctypes.c_int(256))
        native.call(native.address("MKL_Set_Dynamic"), ctypes.c_int(0))  # the number asked for is the number used
        self.facts = {"config": text.value.decode(errors="replace"), "strict CNR": "yes" if self.strict else "no"}
        if capped:
            self.facts["instructions"] = capped
        thread_guard = thread_team.thread_guard(
            native.address("MKL_Set_Num_Threads_Local"), thread_team.LOCAL, whole=native.address("MKL_Set_Num_Threads")
        )
        self.jit = _Kernels(native)
        self.transform_trials = Trials()
        self.rwlock = native.rwlock
        traits = BlasTraits(
            self.name, native, thread_guard, "", run="promise", threads="promise" if self.strict else "",
            always_guarded=machine().cpu.vendor != INTEL, own_count=True,
        )  # fmt: skip
        self.vector_math = VectorMath(traits)
        return traits

    def _reproduce(self, native: NativeLibrary) -> None:
        """Asks MKL for the same bits from run to run, and strictly, for any number of threads, where that is asked for now.

        MKL promises nothing otherwise: on Intel's processors `eigh` and `svd` then give other bits, on one thread, when their
        arrays lie elsewhere in memory. It can be asked before the first computation only, and costs no measurable time.
        """
        asked = fixed_order.asked()
        if asked or not os.environ.get("MKL_CBWR"):
            mode = ctypes.c_int(CNR_AUTO | CNR_STRICT if asked else CNR_AUTO)
            native.call(native.address("MKL_CBWR_Set"), mode, restype=ctypes.c_int)
        reached = native.call(native.address("MKL_CBWR_Get"), ctypes.c_int(CNR_ALL), restype=ctypes.c_int)
        self.reproducible = reached & ~CNR_STRICT > CNR_OFF
        self.strict = self.reproducible and bool(reached & CNR_STRICT)

    def opened(self, traits: BlasTraits) -> None:
        """After the first computation: which kernels and which layer MKL really took."""
        self._instruction_sets = capability.mkl_kernels(traits.native.path)
        names = [os.path.basename(f.path) for f in mapped_files()]
        layers = {"libmkl_gnu_thread": "gomp", "libmkl_intel_thread": "iomp5", "libmkl_tbb_thread": "tbb"}
        found = [pool for stem, pool in layers.items() if any(n.startswith(stem) for n in names)]
        traits.pool = found[0] if found else ""
        self.facts["threading layer"] = {"gomp": "GNU", "iomp5": "Intel", "tbb": "TBB"}.get(traits.pool, "sequential")

    def version(self) -> str | None:
        if not self.available():
            return None
        words = self.facts["config"].split()
        return next((w.split("-")[0] for w in words if w[:1].isdigit()), None)

    def algorithms(self, problem: Problem, threads: int, planner: Planner = NULL_PLANNER) -> Iterator[Algorithm | Refusal]:
        listed = super().algorithms(problem, threads, planner)
        if not self.reproducible:
            return (_noted(each, UNREPRODUCIBLE, level="off") for each in listed)
        if not self.strict and fixed_order.asked():
            return (_noted(each, ASKED_LATE) for each in listed)
        return listed


def _noted(each: Algorithm | Refusal, note: str, **changes: Any) -> Algorithm | Refusal:
    """Returns what was listed, with a note and changes where its results depend on what MKL was asked for."""
    if isinstance(each, Refusal) or each.name in ALWAYS_REPRODUCIBLE:
        return each
    return replace(each, note="; ".join(filter(None, (each.note, note))), **changes)


def _layer() -> int | None:
    """The threading layer to set before anything else; None where the user has chosen one by the environment."""
    ours = thread_team.bind()
    if os.environ.get("MKL_THREADING_LAYER"):
        return None
    # Never the Intel layer by call while libgomp is mapped: with a global libgomp its products are wrong.
    return GNU_LAYER if ours else INTEL_LAYER


class _Kernels:
    """MKL's just-in-time GEMM kernels."""

    def __init__(self, native: NativeLibrary) -> None:
        self.native = native
        self._works: str | None = None
        # Made now: when the interpreter ends, the names of modules are gone.
        self.destroy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(native.address("mkl_jit_destroy") or 0)

    def refusal(self, p: MatmulProblem) -> str:
        if p.dtype.name not in LETTER:
            return f"no kernels for {p.dtype.name}"
        if p.empty or any(size > JIT_LARGEST for size in (p.m, p.n, p.k)) or p.m == 1 or p.n == 1:
            return f"kernels are compiled for 2 to {JIT_LARGEST} rows and columns"
        if (p.beta != 0 and p.get("c") is not None) or p.parameter("conj"):
            return "kernels overwrite the result"
        views = [v for v in (p.view("a"), p.view("b"), p.view("out")) if v]
        if any(v.layout == "X" for v in views):
            return "an operand would have to be copied first"
        if self._works is None:
            made = self.make("s", ROW, PLAIN, PLAIN, (8, 8, 8), 1.0, 0.0, (8, 8, 8))
            self._works = "" if made[0] == 0 else "MKL compiles no kernels for this CPU (status 1: it would call plain GEMM)"
            if made[1]:
                self.destroy(made[1])
        return self._works

    def make(
        self, letter: str, order: int, ta: int, tb: int, sizes: tuple[int, int, int], alpha: Any, beta: Any, lds: Any
    ) -> tuple[int, int]:
        """Status and handle of a new kernel."""
        create = self.native.address(f"mkl_cblas_jit_create_{letter}gemm")
        if not create:
            return 2, 0
        handle = ctypes.c_void_p()
        if letter in "sd":
            real = ctypes.c_float if letter == "s" else ctypes.c_double
            scalars: list[Any] = [real(alpha), real(beta)]
        else:
            part = ctypes.c_float if letter == "c" else ctypes.c_double
            scalars = [(part * 2)(complex(x).real, complex(x).imag) for x in (alpha, beta)]
        lda, ldb, ldc = (ctypes.c_int(x) for x in lds)
        status = self.native.call(
            create, ctypes.byref(handle), ctypes.c_int(order), ctypes.c_int(ta), ctypes.c_int(tb),
            *(ctypes.c_int(x) for x in sizes), scalars[0], lda, ldb, scalars[1], ldc, restype=ctypes.c_int,
        )  # fmt: skip
        return int(status), int(handle.value or 0)

    def prepare(self, p: MatmulProblem) -> Any:
        letter = LETTER[p.dtype.name]
        a, b, out = p.view("a"), p.view("b"), p.view("out")
        assert a is not None and b is not None
        layout, ldc = (out.layout, out.ld) if out else ("C", p.n)
        order = ROW if layout == "C" else COLUMN
        ta, tb = (PLAIN if v.layout == layout else TRANSPOSED for v in (a, b))
        status, handle = self.make(letter, order, ta, tb, (p.m, p.n, p.k), p.alpha, 0, (a.ld, b.ld, ldc))
        if status > 1 or not handle:
            raise RuntimeError(f"MKL compiled no kernel for {p}: status {status}")
        get = self.native.address(f"mkl_jit_get_{letter}gemm_ptr")
        kernel = self.native.call(get, ctypes.c_void_p(handle), restype=ctypes.c_void_p)
        w = Builder(p)
        w.keep.append(_Handle(self.destroy, handle))
        result = w.argument("out", out.items) if out else w.result(p.dtype, p.result, "C", p.m * p.n * p.dtype.itemsize)
        w.call(kernel, [handle, w.argument("a", a.items), w.argument("b", b.items), result])
        return w.plan(result, count=p.items)


class _Handle:
    """A compiled kernel, freed with the plan that owns it."""

    def __init__(self, destroy: Callable[[int], int], handle: int) -> None:
        self.destroy, self.handle = destroy, handle

    def __del__(self) -> None:
        self.destroy(self.handle)
