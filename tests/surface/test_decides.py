"""Every switch decides something: a case for each, in which it changes what is done, and which other switches do too.

Most cases look at a Choice: which algorithms may run, in which order, and which are refused. The libraries are registered by the
test and do nothing; what counts is what the engine makes of the algorithms they list.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from names import SETTINGS, everything_is_there

import backline
from backline import libraries, switches
from backline.engine import choose, cufft_plan_caches, processor_share, refusals
from backline.engine.tuning import benchmark, learned, learned_records, record_store
from backline.engine.tuning.learning_costs import Account, Costs
from backline.errors import BadType, FallbackRefused, NoKernel, NotDeterministic
from backline.libraries import overrides
from backline.libraries.base import Algorithm, Library, PythonPlan
from backline.libraries.cuda.cublas import library as cublas
from backline.libraries.cuda.cudnn import conv_graphs
from backline.libraries.fftw import library as fftw_library
from backline.libraries.fftw.library import FFTW
from backline.problems import Operand, Problem
from backline.problems.fft_problem import FftProblem
from backline.problems.matmul_problem import MatmulProblem
from backline.switches import cpu_capability, store
from fakes.cupy_standin import CuPy
from fakes.insert import inserted
from support import clean

pytestmark = pytest.mark.usefixtures("clean", "everything_is_there", "an_avx512_machine")
assert clean and everything_is_there


@pytest.fixture
def an_avx512_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_capability, "detected", lambda: "avx512")
    store._restart()  # the cap starts as what is detected


# --- what a library lists, and what is asked -----------------------------------------------------------------------


class Trial(Library):
    """A library that lists what the test says, and remembers how many threads it was allowed."""

    def __init__(self, name: str, *algorithms: dict[str, Any], switch: str = "", openmp: bool = False) -> None:
        self.name, self.title, self.openmp = name, name.upper(), openmp
        self.switch = switch or f"{name}.enabled"
        self.devices = ("cpu", "cuda", "rocm", "mps")
        self.listed = [
            Algorithm(library=name, name=each.pop("as_", f"way{i}"), **{"level": "threads", **each})
            for i, each in enumerate(map(dict, algorithms))
        ]
        self.threads = 0
        self.levels: list[int] = []

    def reason(self) -> str:
        return ""

    def version(self) -> str:
        return "1"

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm]:
        self.threads = threads
        yield from self.listed

    def prepare(self, problem: Problem, algorithm: Algorithm) -> PythonPlan:
        return PythonPlan(lambda *arrays: np.zeros(()))

    def report(self) -> dict[str, Any]:
        return {}

    def set_verbose(self, level: int) -> int:
        self.levels.append(level)
        return 0


def problem(family: str, device: str, op: str = "") -> Problem:
    operands = tuple(Operand(role, np.dtype(np.float32), (64, 64), (256, 4)) for role in "ab")
    if family == "matmul":
        return MatmulProblem("matmul", operands, (), family, m=64, n=64, k=64, batch=(), result=(64, 64), device=device)
    return Problem(op or f"trial.{family}", operands, (), family, device=device)


def verdicts(made: list[Trial], asked: Problem, **more: Any) -> Any:
    """Algorithms of the test that may run, in their order, and those refused with the switch; or the error."""
    refusals.warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            choice = choose.choose(asked, **{"measure": False, **more})
        except (NoKernel, NotDeterministic, FallbackRefused) as error:
            return type(error).__name__
    mine = [c for c in choice.candidates if c.library in {library.name for library in made}]
    able = tuple(f"{c.library} {c.algorithm}" for c in mine if c.verdict != "refused")
    refused = frozenset((c.library, c.algorithm, c.switch) for c in mine if c.verdict == "refused")
    return able, refused, len(caught)


# --- cases ---------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A value that `see` returns: it changes when the switch becomes `change`, and with no other switch but those in `also`."""

    change: Any
    see: Callable[[], Any]
    also: tuple[str, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)
    family: str = ""
    registered: tuple[Trial, ...] = ()


def choosing(
    change: Any, *made: Trial, family: str = "matmul", device: str = "cuda:0", op: str = "", also: tuple[str, ...] = (),
    see: Callable[..., Any] = verdicts, given: dict[str, Any] | None = None, **more: Any,
) -> Case:  # fmt: skip
    """A case about the Choice for a Problem. `only`, which allows other libraries than the test's, has a say in all of them."""
    asked = problem(family, device, op)
    return Case(change, lambda: see(list(made), asked, **more), ("only", *also), given or {}, family, made)


PLAIN, FAST = {"as_": "plain"}, {"as_": "fast", "precision": "tf32"}
TO_THE_BIT, LOOSE, RUN = {"as_": "sure"}, {"as_": "loose", "level": "off"}, {"as_": "run", "level": "run"}
TWELVE = [{"as_": f"way{i}"} for i in range(12)]


def with_trait(trait: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"as_": "special", "traits": (trait,)}, PLAIN


class Record:
    """A tuning record in which the first algorithm is the least exact."""

    winner, disturbed, covered, rejected, errors, medians = "", "", (), {}, {}, {}
    calibrated = False

    def seconds(self, key: str) -> float:
        return 1.0

    def error(self, key: str) -> float:
        return 1e-3 if "fast" in key else 0.0

    def describe(self) -> str:
        return "a record of the test"


def plans_timed() -> Any:
    """Returns how cuDNN's plans for a convolution are chosen."""
    return conv_graphs.search(switches.current())


def tried_online() -> int:
    """Returns how many of 200 calls of one Problem run another algorithm than the choice, which is the slower one by a tenth."""
    asked = problem("matmul", "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learned_records, "costs", Costs(Account(spent=100.0)))
        patch.setattr(learned, "table", OrderedDict())
        learner = learned_records.learned_of(asked, asked, 1, switches.current(), "one.way@1").learner
        learner.compare({"one.way@1": None, "another.way@1": None})
        count, key = 0, "one.way@1"
        for _ in range(200):
            learner.note(key, 1, 1.0e-3 if key == "one.way@1" else 1.05e-3)
            key, after = learner.next()
            key = key if after == 1 else "one.way@1"
            count += key != "one.way@1"
    return count


def timed(made: list[Trial], asked: Problem) -> Any:
    """Returns how many algorithms are timed for a call."""
    count = []

    def measure_once(asked: Problem, found: list[Algorithm], threads: int, under: object, planner: object) -> Record:
        count.append(len(found))
        return Record()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "measure_once", measure_once)
        patch.setattr("backline.engine.choose.measured_by", lambda device: object())  # as if there were such a device
        found = verdicts(made, asked, measure=True)
    return found if isinstance(found, str) else count


def with_a_record(made: list[Trial], asked: Problem) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_store, "find", lambda *args: Record())
        return verdicts(made, asked)


def warned_of(made: list[Trial], asked: Problem) -> Any:
    """True if a call warns that no fused kernel runs it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            choose.plan_for(asked)
        except NoKernel as error:
            return type(error).__name__
    return [str(each.message) for each in caught if "fused" in str(each.message)]


def threads_allowed(made: list[Trial], asked: Problem) -> Any:
    found = verdicts(made, asked)
    return found if isinstance(found, str) else made[0].threads


def printed(made: list[Trial], asked: Problem) -> Any:
    """The levels that the library is set to when a plan of it is made and run."""
    made[0].levels.clear()
    try:
        choose.plan_for(asked)(np.zeros(1))
    except NoKernel:
        return "NoKernel"
    return list(made[0].levels)


def enabled(switch: str, library: str, device: str = "cuda:0", also: tuple[str, ...] = ()) -> dict[str, Case]:
    family = switches.lookup(switch).governs[0]
    return {switch: choosing(False, Trial(library, PLAIN, switch=switch), family=family, device=device, also=also)}


def planned() -> Any:
    """Returns how FFTW would plan, and for how long at most."""
    fftw = FFTW()
    fftw._reason, fftw.planners = "", {"": SimpleNamespace(wise=False, threaded=None, base=None)}
    operands = (Operand("input", np.dtype(complex), (64,), (16,)),)
    asked = FftProblem("fft.c2c", operands, (), "fft", axes=(0,), lengths=(64,), result=(64,))
    names = [a.name for a in fftw.algorithms(asked, 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fftw_library, "prepare_fftw", lambda planner, problem, algorithm, seconds, thread_guard: seconds)
        return names, fftw.prepare(asked, Algorithm(library="fftw", name=names[0]))


def permits(switch: str, change: Any, trait: str, family: str = "matmul", library: str = "trial", **more: Any) -> dict[str, Case]:
    """A switch without which algorithms with a trait are refused."""
    return {switch: choosing(change, Trial(library, *with_trait(trait)), family=family, **more)}


def on_a_gpu(change: Any, dtype: str, *also: str) -> Case:
    """Products by the libraries themselves, on a device that has everything: what they list, and with how much workspace."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    operands = tuple(Operand(role, kind, (64, 64), (64 * kind.itemsize, kind.itemsize)) for role in "ab")
    asked = MatmulProblem("matmul", operands, (), "matmul", m=64, n=64, k=64, result=(64, 64), device="cuda:0")

    def see() -> Any:
        with inserted(cupy=CuPy(), cublas=object(), cublasLt=object()):
            found = verdicts([libraries.get("cublas"), libraries.get("cublaslt")], asked)
        return found, [cublas.workspace_bytes(name, switches.current(), (9, 0)) for name in ("cublas", "cublaslt")]

    # Further algorithms of cuBLASLt are listed to be timed.
    said = ("benchmark", "only", "prefer", "cuda.preferred_blas_library", "cuda.cublas_workspace_size", "cuda.cublaslt_workspace_size")
    return Case(change, see, (*said, *also), {}, "matmul")


CUDA_MATMUL = ("fp32_precision", "cudnn.fp32_precision", "cuda.matmul.fp32_precision", "cuda.matmul.allow_tf32", "float32_matmul_precision")
CPU_MATMUL = ("fp32_precision", "mkldnn.fp32_precision", "mkldnn.matmul.fp32_precision", "mkldnn.allow_tf32", "float32_matmul_precision")


def precision(change: Any, family: str, device: str, nodes: tuple[str, ...], op: str = "") -> Case:
    """A node of precision, or a view of some: whether an algorithm coarser than float32 may run. `nodes` all have a say."""
    return choosing(change, Trial("trial", PLAIN, FAST), family=family, device=device, op=op, also=nodes)


def tree(family: str, backend: str, op: str = "") -> tuple[str, ...]:
    return ("fp32_precision", f"{backend}.fp32_precision", f"{backend}.{family}.fp32_precision", f"{backend}.allow_tf32")


def filled() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "empty", np.zeros)  # memory may hold anything, what was filled before too
        return bool(np.isnan(backline.empty(1)[0]))


def contraction() -> Any:
    """The path of an einsum that is asked for."""
    operands = (np.ones(shape, np.float32) for shape in ((10, 10), (10, 2, 5), (5, 2, 10), (2, 10)))
    try:
        return backline.explain("einsum", "ea,adf,fdb,da->af", *operands).path
    except NoKernel:
        return "NoKernel"


def plans_kept() -> int:
    plans = cufft_plan_caches.DevicePlans(3)
    for key in range(30):
        plans.get(key, object)
    return plans.size


def kernel_in_python() -> Any:
    made = overrides.register("triton", "trial.op", "CUDA", lambda: None)
    other = overrides.register("cutedsl", "trial.op", "CUDA", lambda: None)
    try:
        return {made: "triton", other: "cutedsl"}.get(overrides.active("trial.op", "CUDA"))
    finally:
        overrides.unregister(made)
        overrides.unregister(other)


def only_cutedsl() -> Any:
    made = overrides.register("cutedsl", "trial.op", "CUDA", lambda: None)
    try:
        return overrides.active("trial.op", "CUDA") is made
    finally:
        overrides.unregister(made)


IN_PYTHON = ("python_native.triton.enabled", "python_native.disabled_operations", "python_native.also_disabled_operations",
             "python_native.disabled_dispatch_keys")  # fmt: skip
ATTENTION = (PLAIN | {"traits": ("flash_attention",), "as_": "flash"}, PLAIN | {"traits": ("math",), "as_": "math"})
EINSUM = ("opt_einsum.enabled", "opt_einsum.strategy")
CUFFT = "cuda.cufft_plan_cache.max_size"

def of_two_dtypes() -> str:
    try:
        return " ".join(backline.explain("matmul", np.eye(2, dtype=np.float32), np.eye(2)).problem.converted)
    except BadType:
        return "refused"


def shares() -> bool:
    """Tells whether a call would run on fewer threads beside other work."""
    return processor_share._shares(switches.current(), 1)


CASES: dict[str, Case] = {
    "fp32_precision": precision("tf32", "matmul", "mps", ()),
    "fallback": choosing("error", Trial("trial", PLAIN), given={"prefer": ("mkl",)}),
    "benchmark": choosing(True, Trial("trial", *TWELVE), see=timed),
    "benchmark_limit": choosing(3, Trial("trial", *TWELVE), see=timed, given={"benchmark": True}, also=("benchmark", "deterministic")),
    "benchmark_overhead": Case(0.0, tried_online),
    "deterministic": choosing(True, Trial("trial", TO_THE_BIT, LOOSE)),
    "warn_only": choosing(True, Trial("trial", LOOSE), given={"deterministic": True}, also=("deterministic",)),
    "determinism_level": choosing("threads", Trial("trial", TO_THE_BIT, RUN), given={"deterministic": True}),
    "emulate": choosing(True, Trial("trial", PLAIN), Trial("emulated", FAST | {"traits": ("emulated",)}, switch="emulate"),
                        given={"cuda.matmul.fp32_precision": "tf32"}),
    "num_threads": choosing(3, Trial("trial", PLAIN), see=threads_allowed),
    "prefer": choosing(("magma",), Trial("cusolver", PLAIN), Trial("magma", PLAIN), family="fft"),
    "only": choosing(("magma",), Trial("cusolver", PLAIN), Trial("magma", PLAIN), family="fft", also=("prefer",)),
    "promote": Case("numpy", of_two_dtypes),
    "share_processors": Case(False, shares, ("num_threads", "deterministic", "mkldnn.deterministic", "cudnn.deterministic"), {"num_threads": 4}),
    "max_error": choosing(1e-6, Trial("trial", PLAIN, {"as_": "fast"}), see=with_a_record),
    "sdp_priority": choosing(("math",), Trial("trial", *ATTENTION), family="attention", also=("cuda.flash_sdp", "cuda.math_sdp")),
    "float32_matmul_precision": precision("high", "matmul", "cuda:0", CUDA_MATMUL),
    "nn.attention.WARN_FOR_UNFUSED_KERNELS": choosing(
        True, Trial("trial", PLAIN | {"traits": ("math",), "as_": "math"}), see=warned_of, family="attention", also=("cuda.math_sdp",)),
    "utils.deterministic.fill_uninitialized_memory": Case(False, filled, ("deterministic",), {"deterministic": True}),
    **enabled("numpy.enabled", "numpy"), **enabled("openblas.enabled", "openblas"), **enabled("mkl.enabled", "mkl"),
    **enabled("blis.enabled", "blis"), **enabled("mkldnn.enabled", "onednn"), **enabled("nnpack.enabled", "nnpack"),
    **enabled("xnnpack.enabled", "xnnpack"), **enabled("kleidiai.enabled", "kleidiai"), **enabled("cudnn.enabled", "cudnn"),
    **enabled("cusparselt.enabled", "cusparselt"), **permits("mps.enabled", False, "metal", library="mlx", device="mps"),
    **enabled("miopen.enabled", "miopen", "rocm:0", also=("cudnn.enabled",)),
    **enabled("fftw.enabled", "fftw"), **enabled("scipy.enabled", "scipy"), **enabled("kernels.enabled", "kernels"),
    **enabled("libmvec.enabled", "libmvec"),
    "fftw.planning": Case("measure", planned, ("fftw.plan_time_limit",)),
    "fftw.plan_time_limit": Case(1.5, planned, ("fftw.planning",)),
    "mkl.verbose_level": choosing(1, Trial("mkl", PLAIN), see=printed, also=("mkl.enabled",)),
    "mkldnn.verbose_level": choosing(2, Trial("onednn", PLAIN, switch="mkldnn.enabled"), see=printed, also=("mkldnn.enabled",)),
    "cpu.capability": choosing("avx2", Trial("trial", PLAIN, {"as_": "wide", "isa": "avx512"})),
    "mkldnn.deterministic": choosing(True, Trial("onednn", TO_THE_BIT, LOOSE, switch="mkldnn.enabled"), family="conv", device="cpu",
                                     also=("mkldnn.enabled", "deterministic")),
    "mkldnn.allow_tf32": precision(True, "conv", "cpu", tree("conv", "mkldnn")),
    "mkldnn.fp32_precision": precision("tf32", "rnn", "cpu", tree("rnn", "mkldnn"), "lstm"),
    "mkldnn.matmul.fp32_precision": precision("tf32", "matmul", "cpu", CPU_MATMUL),
    "mkldnn.conv.fp32_precision": precision("tf32", "conv", "cpu", tree("conv", "mkldnn")),
    "mkldnn.rnn.fp32_precision": precision("bf16", "rnn", "cpu", tree("rnn", "mkldnn"), "lstm"),
    "openmp.enabled": choosing(False, Trial("trial", PLAIN, openmp=True), see=threads_allowed, also=("num_threads",), given={"num_threads": 4}),
    "opt_einsum.enabled": Case(False, contraction, (*EINSUM, "only")),
    "opt_einsum.strategy": Case("greedy", contraction, (*EINSUM, "only")),
    **permits("mha.fastpath", False, "fused", "attention"),
    **permits("quantized.engine", "onednn", "engine x86", "quantized", given={"quantized.engine": "x86"}),
    "cuda.preferred_linalg_library": choosing("magma", Trial("cusolver", PLAIN), Trial("magma", PLAIN), family="linalg", also=("prefer",)),
    "cuda.preferred_blas_library": on_a_gpu("cublaslt", "float64"),
    "cuda.preferred_rocm_fa_library": choosing(
        "ck", Trial("aotriton", PLAIN), Trial("composable_kernel", PLAIN), family="attention", device="rocm:0"),
    "cuda.cublas_workspace_size": on_a_gpu(1000, "float64"),
    "cuda.cublaslt_workspace_size": on_a_gpu(1000, "float64"),
    **permits("cuda.flash_sdp", False, "flash_attention", "attention", also=("sdp_priority",)),
    **permits("cuda.mem_efficient_sdp", False, "efficient_attention", "attention", also=("sdp_priority",)),
    **permits("cuda.math_sdp", False, "math", "attention", also=("sdp_priority",)),
    **permits("cuda.cudnn_sdp", False, "cudnn_attention", "attention", also=("sdp_priority",)),
    **permits("cuda.overrideable_sdp", False, "overrideable", "attention", also=("sdp_priority",)),
    **permits("cuda.fp16_bf16_reduction_math_sdp", True, "half math", "attention"),
    "cuda.matmul.allow_tf32": precision(True, "matmul", "cuda:0", CUDA_MATMUL),
    "cuda.matmul.allow_fp16_reduced_precision_reduction": on_a_gpu(False, "float16", "cuda.matmul.allow_fp16_accumulation"),
    "cuda.matmul.allow_bf16_reduced_precision_reduction": on_a_gpu((False, False), "bfloat16"),
    "cuda.matmul.allow_fp16_accumulation": on_a_gpu(True, "float16", "cuda.matmul.allow_fp16_reduced_precision_reduction"),
    "cuda.matmul.fp32_precision": on_a_gpu("tf32", "float32", *CUDA_MATMUL),
    "cuda.cufft_plan_cache.max_size": Case(10, plans_kept, given={CUFFT: 20}),
    "cuda.cufft_plan_cache.by_device": Case(("3=7",), plans_kept, (CUFFT,), {CUFFT: 20}),
    "cudnn.benchmark": Case(True, plans_timed, ("deterministic", "benchmark"), family="conv"),
    "cudnn.benchmark_limit": Case(3, plans_timed, ("deterministic", "cudnn.benchmark"), {"cudnn.benchmark": True}, "conv"),
    "cudnn.deterministic": choosing(True, Trial("cudnn", TO_THE_BIT, LOOSE), family="conv", also=("cudnn.enabled", "deterministic")),
    "cudnn.allow_tf32": precision(False, "conv", "cuda:0", (*tree("conv", "cudnn"), "emulate")),
    "cudnn.fp32_precision": precision("ieee", "rnn", "cuda:0", (*tree("rnn", "cudnn"), "emulate")),
    "cudnn.conv.fp32_precision": precision("ieee", "conv", "cuda:0", (*tree("conv", "cudnn"), "emulate")),
    "cudnn.rnn.fp32_precision": precision("none", "rnn", "cuda:0", (*tree("rnn", "cudnn"), "emulate")),
    **permits("cudnn.depthwise_kernel", "native", "depthwise by cudnn", "conv"),
    **permits("miopen.immediate", True, "tuned search", "conv", library="miopen", device="rocm:0", also=("miopen.enabled", "cudnn.enabled")),
    "python_native.triton.enabled": Case(False, kernel_in_python, IN_PYTHON),
    "python_native.cutedsl.enabled": Case(False, only_cutedsl, ("python_native.cutedsl.enabled", *IN_PYTHON[1:])),
    "python_native.disabled_operations": Case(("trial.op",), kernel_in_python, IN_PYTHON),
    "python_native.also_disabled_operations": Case(("trial.op",), kernel_in_python, IN_PYTHON),
    "python_native.disabled_dispatch_keys": Case(("CUDA",), kernel_in_python, IN_PYTHON),
}  # fmt: skip

# What other values a switch may have, so far as no table says: those that the cases here are about.
FURTHER: dict[str, tuple[Any, ...]] = {
    "prefer": (("magma",), ("cublaslt",)),
    "sdp_priority": (("efficient_attention",), ("overrideable",), ("flash_attention",)),
    "cpu.capability": ("default", "avx2"),
    "python_native.disabled_operations": (("trial.op",),),
    "python_native.also_disabled_operations": (("trial.op",),),
}


def values_of(name: str) -> list[Any]:
    setting = SETTINGS[name]
    return [*setting.legal, *(value for value, _ in setting.alike), *FURTHER.get(name, ())]


@pytest.mark.parametrize("name", CASES)
def test_a_switch_decides_and_no_other_in_its_place(name: str) -> None:
    case = CASES[name]
    with ExitStack() as stack:
        for library in case.registered:
            libraries.register(library)
            stack.callback(libraries.unregister, library.name)
        stack.enter_context(switches.scope(case.given))
        before = case.see()
        with switches.scope({name: case.change}):
            after = case.see()
        assert after != before
        if isinstance(before, tuple) and isinstance(after, tuple) and case.registered:
            blamed = {switch for *_, switch in before[1] ^ after[1]}
            assert blamed <= {name, *case.also}, "who is refused is told the switch"
        moved = set()
        for other in SETTINGS:
            for value in values_of(other):
                with switches.scope({other: value}):
                    if case.see() != before:
                        moved.add(other)
        assert moved - {name} == {*case.also} - {name}
        assert case.see() == before


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.family])
def test_the_declarations_say_what_is_governed(name: str) -> None:
    """So that a Choice lists every switch that had a say in it."""
    case = CASES[name]
    assert [each for each in (name, *case.also) if case.family not in switches.lookup(each).governs] == []


def test_every_switch_has_a_case() -> None:
    from backline.cli.docs import pending

    waiting = {each.name for each in pending() if each.kind == "switch"}
    assert {*SETTINGS} - waiting <= {*CASES} <= {*SETTINGS}
