"""Every switch that `explain` may list can matter: flipped, a call on the libraries themselves is done in another way.

`test_decides.py` shows with libraries of its own that the engine heeds each switch. Here a switch that governs nothing real is
found out. What acts in the engine alone, and what needs an accelerator, is shown there; `ELSEWHERE` says which, and why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import test_decides

import backline
from backline import backends, fft, libraries, quantized, switches
from backline.cli.docs import pending
from backline.engine import plan_caches
from backline.errors import BacklineError
from backline.libraries import verbosity_control
from backline.libraries.fftw.planner import Planner
from backline.libraries.onednn.primitives import Engine
from backline.native.shared_library import NativeLibrary
from backline.nn import functional
from support import clean, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean

Array = Any
A = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32)
IMAGES, KERNELS = np.ones((2, 8, 12, 12), np.float32), np.ones((8, 8, 3, 3), np.float32)
HALVES = [np.random.default_rng(i).standard_normal((1, 2, 24, 8)).astype(np.float16) for i in range(3)]


@dataclass
class Row:
    """A call, the value that a switch is set to, and what is seen of the call.

    Attributes
    ----------
    value
        What the switch is flipped to.
    see
        What is compared: a Choice's library and algorithm, refusals, precision, a library's arguments, a result.
    given
        Switches that hold before and after.
    needs
        A library without which there is nothing to see.
    """

    value: Any
    see: Callable[[], Any]
    given: dict[str, Any] = field(default_factory=dict)
    needs: str = ""


def choice(operation: Any, *args: Any, **keywords: Any) -> Callable[[], Any]:
    """Returns a reader of the explanation of a call before it runs: all of what may run and what is refused, but for the list of switches."""

    def see() -> Any:
        try:
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                found = backline.explain(operation, *args, **keywords)
        except BacklineError as error:
            return type(error).__name__, str(error)
        able = [(c.library, c.algorithm, c.reason) for c in found.candidates]
        return found.library, found.algorithm, found.threads, found.effective_precision, able

    return see


def ran(operation: Any, *args: Any) -> Callable[[], Any]:
    """Returns a reader of the library, the threads and the result of a call."""

    def see() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = operation(*args)
        done = backline.explain()
        return done.library, done.algorithm, done.threads, np.asarray(result).tobytes()

    return see


def warned() -> list[str]:
    """The warnings of attention that runs on no fused kernel."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        functional.scaled_dot_product_attention(*HALVES, dropout_p=0.5, seed=0)
    return [str(w.message) for w in caught]


def fftw_limits() -> Any:
    """The times that FFTW is given for its plans."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        plan = Planner.plan

        def noted(self: Planner, request: Any, planning: str, **more: Any) -> Any:
            seen.append((planning, more.get("seconds")))
            return plan(self, request, planning, **more)

        patch.setattr(Planner, "plan", noted)
        plan_caches.clear()
        fft.fft(np.ones(96))
    forget()
    return sorted({str(each) for each in seen})


def planned() -> Any:
    """Returns how FFTW plans a transform that it knows nothing of."""
    fft.fft(np.ones(96))
    found = backline.explain().algorithm
    forget()
    return found


def forget() -> None:
    libraries.get("fftw").forget_wisdom()  # type: ignore[attr-defined]  # FFTW has it


DETERMINISTIC = "dnnl_primitive_attr_set_deterministic"


def asked_of_onednn() -> Any:
    """Counts how often an attribute is set for each primitive of a convolution, a layer, a product: this one, and one set always.

    Releases before 3.4 lack the function: what would be called there counts, and is not.
    """
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        call, address = Engine.call, NativeLibrary.address

        def noted(self: Engine, name: str, *args: Any) -> None:
            seen.append(name)
            if name != DETERMINISTIC or address(self.native, name):
                call(self, name, *args)

        patch.setattr(NativeLibrary, "address", lambda self, name: address(self, name) or (1 if name == DETERMINISTIC else 0))
        patch.setattr(Engine, "call", noted)
        plan_caches.clear()
        with backends.flags(only=("onednn",)):
            functional.conv2d(IMAGES, KERNELS)
            functional.softmax(A, -1)
            backline.matmul(A, A)
    made = seen.count("dnnl_primitive_attr_create")
    assert made, "there are primitives"
    return [round(seen.count(name) / made, 9) for name in (DETERMINISTIC, "dnnl_primitive_attr_set_scratchpad_mode")]


def printed(library: str) -> Callable[[], Any]:
    """The levels that a library is set to while a call runs."""

    def see() -> Any:
        levels: list[int] = []
        made = need(library)
        control = verbosity_control.VerbosityControl(made, lambda level: (levels.append(level), 0)[1])
        with pytest.MonkeyPatch.context() as patch, backends.flags(only=(library,)):
            patch.setitem(verbosity_control._controls, id(made), (made, control))
            plan_caches.clear()
            backline.matmul(A, A)
        plan_caches.clear()
        return levels

    return see


def packed_by() -> Any:
    layer = quantized.linear_prepack(quantized.quantize_weights(A))
    return layer.engine, layer.weight.axis, quantized.linear_dynamic(A, layer).tobytes()


def disabled(operation: Any, *args: Any) -> Row:
    return Row(False, choice(operation, *args))


EINSUM = "ea,adf,fdb,da->af", *(np.ones(shape, np.float32) for shape in ((10, 10), (10, 2, 5), (5, 2, 10), (2, 10)))
X = np.ones((3, 2, 8), np.float32)
HEADS = (X, X, X, 8, 2, np.ones((24, 8), np.float32), np.ones(24, np.float32), None, None, False, 0.0, np.ones((8, 8), np.float32), np.ones(8, np.float32))
ROWS: dict[str, Row] = {
    "promote": Row("numpy", choice(backline.matmul, A, A.astype(np.float64))),
    "nn.attention.WARN_FOR_UNFUSED_KERNELS": Row(True, warned),
    "numpy.enabled": disabled(backline.matmul, A, A), "openblas.enabled": disabled(backline.matmul, A, A),
    "mkl.enabled": disabled(backline.matmul, A, A), "blis.enabled": disabled(backline.matmul, A, A),
    "mkldnn.enabled": disabled(functional.conv2d, IMAGES, KERNELS), "nnpack.enabled": disabled(functional.conv2d, IMAGES, KERNELS),
    "xnnpack.enabled": disabled(functional.conv2d, IMAGES, KERNELS),
    "libmvec.enabled": disabled(backline.sin, np.ones(5)),
    "fftw.enabled": disabled(fft.fft, np.ones(96)), "scipy.enabled": disabled(fft.fft, np.ones(96)),
    "kernels.enabled": disabled(functional.log_softmax, A, -1),
    "fftw.planning": Row("measure", planned, {"only": ("fftw",)}, "fftw"),
    "fftw.plan_time_limit": Row(0.25, fftw_limits, {"only": ("fftw",), "fftw.planning": "measure"}, "fftw"),
    "mkldnn.deterministic": Row(True, asked_of_onednn, needs="onednn"),
    "mkl.verbose_level": Row(1, printed("mkl"), needs="mkl"), "mkldnn.verbose_level": Row(1, printed("onednn"), needs="onednn"),
    "num_threads": Row(1, choice(backline.matmul, np.ones((700, 700)), np.ones((700, 700))), {"only": ("openblas",)}),
    "openmp.enabled": Row(False, choice(functional.conv2d, np.ones((8, 32, 64, 64), np.float32), np.ones((32, 32, 3, 3), np.float32)),
                          {"only": ("onednn",), "num_threads": 2}, "onednn"),
    "cpu.capability": Row("default", choice(functional.scaled_dot_product_attention, *(np.ones((1, 1, 64, 64), np.float32),) * 3)),
    "prefer": Row(("numpy",), choice(backline.linalg.svd, A)), "only": Row(("numpy",), choice(backline.linalg.svd, A)),
    "fallback": Row("error", choice(functional.softmax, A, -1), {"prefer": ("blis",)}),
    "deterministic": Row(True, choice(fft.fft, np.ones(96)), {"only": ("fftw",), "fftw.planning": "measure"}, "fftw"),
    "determinism_level": Row("threads", choice(backline.matmul, A, A), {"deterministic": True}),
    "warn_only": Row(True, choice(backline.matmul, A, A), {"deterministic": True, "determinism_level": "threads", "only": ("numpy",), "num_threads": 2}),
    "emulate": Row(True, choice(backline.matmul, A, A), {"fp32_precision": "bf16"}),
    **{node: Row("bf16", choice(backline.matmul, A, A), {"emulate": True})
       for node in ("fp32_precision", "mkldnn.fp32_precision", "mkldnn.matmul.fp32_precision")},
    "sdp_priority": Row(("math",), choice(functional.scaled_dot_product_attention, *HALVES)),
    "cuda.flash_sdp": Row(False, choice(functional.scaled_dot_product_attention, *HALVES)),
    "cuda.math_sdp": Row(False, choice(functional.scaled_dot_product_attention, *HALVES)),
    "cuda.fp16_bf16_reduction_math_sdp": Row(True, ran(functional.scaled_dot_product_attention, *HALVES), {"cuda.flash_sdp": False}),
    "mha.fastpath": Row(False, choice(functional.multi_head_attention_forward, *HEADS, training=False, need_weights=False)),
    "opt_einsum.enabled": Row(False, lambda: str(backline.explain("einsum", *EINSUM).path)),
    "opt_einsum.strategy": Row("greedy", lambda: str(backline.explain("einsum", *EINSUM).path)),
    "quantized.engine": Row("qnnpack", packed_by, {"quantized.engine": "fbgemm"}),
}  # fmt: skip

GPU = "needs an accelerator: played or recorded ones in test_decides.py and tests/cuda"
ENGINE = "acts in the engine, whatever the library"
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("mkldnn.conv.fp32_precision", "mkldnn.rnn.fp32_precision"), "needs a processor that multiplies bfloat16"),
    **dict.fromkeys(("benchmark", "benchmark_limit", "benchmark_overhead", "max_error", "share_processors"), ENGINE),
    "utils.deterministic.fill_uninitialized_memory": "is about memory; test_decides.py reads it",
    **dict.fromkeys((
        "cuda.preferred_linalg_library", "cuda.preferred_blas_library", "cuda.cublas_workspace_size", "cuda.cublaslt_workspace_size",
        "cuda.mem_efficient_sdp", "cuda.cudnn_sdp", "cuda.matmul.allow_fp16_reduced_precision_reduction",
        "cuda.matmul.allow_bf16_reduced_precision_reduction", "cuda.matmul.allow_fp16_accumulation", "cuda.matmul.fp32_precision",
        "cuda.cufft_plan_cache.max_size", "cuda.cufft_plan_cache.by_device", "cudnn.enabled", "cudnn.benchmark", "cudnn.benchmark_limit",
        "cudnn.deterministic", "cudnn.fp32_precision", "cudnn.depthwise_kernel", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision",
        "cusparselt.enabled", "mps.enabled", "python_native.cutedsl.enabled", "python_native.triton.enabled",
        "python_native.disabled_operations", "python_native.disabled_dispatch_keys",
    ), GPU),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_flipping_it_changes_what_is_done(name: str) -> None:
    row = ROWS[name]
    if row.needs:
        need(row.needs)
    libraries.ready()
    with switches.scope(row.given):
        plan_caches.clear()
        before = row.see()
        with switches.scope({name: row.value}):
            plan_caches.clear()
            after = row.see()
        plan_caches.clear()
        assert after != before
        assert row.see() == before


def test_the_attribute_is_on_every_primitive() -> None:
    need("onednn")
    assert asked_of_onednn()[0] == 0
    for name in ("mkldnn.deterministic", "deterministic"):
        with switches.scope({name: True}):
            assert asked_of_onednn() == [1, 1]


def test_every_switch_that_explain_may_list_is_here() -> None:
    waiting = {each.name for each in pending() if each.kind == "switch"}
    views = {name for name, switch in switches.declared().items() if isinstance(switch, switches.DerivedSwitch)}
    listed = {name for name, switch in switches.declared().items() if switch.governs} - waiting - views
    assert listed - {*ROWS, *ELSEWHERE} == set()
    assert {*ROWS} & {*ELSEWHERE} == set() and {*ELSEWHERE} <= {*test_decides.CASES}


def test_what_cannot_matter_is_not_listed() -> None:
    """A switch about other arrays than the call's, or a library that nothing drives."""
    about_others = {"cudnn.benchmark": True, "miopen.immediate": True, "cudnn.deterministic": True}
    with switches.scope({**about_others, "mkldnn.deterministic": True}):
        assert set(backline.explain(functional.conv2d, IMAGES, KERNELS).switches) - {"num_threads"} == {"mkldnn.deterministic"}
    with switches.scope({"kleidiai.enabled": False, "numpy.enabled": False}):
        assert set(backline.explain(backline.matmul, A, A).switches) - {"num_threads"} == {"numpy.enabled"}
