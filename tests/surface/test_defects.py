"""Defects of the model, of which users told for years: each must not come back. Those that another file tests are not here.

=============================================================== ==================================================================
defect                                                          where it is tested
=============================================================== ==================================================================
a scope is seen by other threads and tasks                      test_switch_modules, threads/test_scopes_storm, test_precision_model
scopes that overlap leave wrong values behind                   test_switch_modules, switches/test_scopes_model, test_precision_model
flags() resets what is not named                                here, for every module
a scope brings back resolved precision instead of the raw one   here; test_precision_tree, each row of the table inside a scope
getters and flags() raise in some states of precision           here; test_precision_model
one bad argument of several leaves the others set               here; test_switch_modules
a slip of the pen passes for a setting                          here, on every module and sub-object
switches without a scope                                        here
an absent library is refused, and stored all the same           test_cuda
opt_einsum's flags fail while it is disabled                    here
leaving a verbose scope silences what was loud before           here; engine/test_verbose_scopes, with the library's own lines
mkldnn's precision writes everybody's                           here
flags() warns on a machine without the hardware                 here
an error names another switch, or has residue of its format     test_values; test_cuda
some switches escape the freeze, and scopes do not              here; test_switch_modules, test_cuda, test_python_native
a limit or a setter takes anything while its library is absent  here; test_values
the word of precision minds its case, and ignores nonsense      here; test_values
an int8 engine that is a number                                 test_values (packed weights come with the operations on int8)
lists of attention kernels with words, or nothing, or repeats   test_sdpa_kernel
a mask with is_causal depends on the kernel                     here; libraries/test_attention_constraints
no kernel: many warnings instead of one error                   test_sdpa_kernel
benchmark ignores a shape that it met while it was off          here; engine/test_measure
determinism does not stop the timing                            engine/test_measure
import loads libraries or warns, and some modules need their own here; faults/test_import
the launcher's reading of machines                              launch/test_topology
the launcher's way of running                                   launch/test_counts, test_environment, test_instances, test_run
dir() hides switches; modules do not pickle or reload           here; test_switch_modules
=============================================================== ==================================================================
"""

from __future__ import annotations

import importlib
import pickle
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from names import MODEL, OWN, SETTINGS, everything_is_there, lines

import backline
from backline import backends, switches
from backline.backends import cuda, cudnn, mha, mkl, mkldnn, nnpack, opt_einsum, quantized
from backline.engine.tuning import benchmark
from backline.errors import BackendUnavailable, BadType, BadValue, Frozen, UnknownName
from backline.libraries.base import Algorithm
from backline.switches import store
from support import clean, python

assert clean and everything_is_there
there = pytest.mark.usefixtures("everything_is_there")
PATHS = [path for path in sorted({*MODEL, *OWN}) if path not in ("xeon.run_cpu", "cuda.cufft_plan_cache")]


def at(path: str) -> Any:
    found: Any = backends
    for part in path.split(".") if path else ():
        found = getattr(found, part)
    return found


def everything() -> dict[str, Any]:
    return {name: switches.get(name) for name in SETTINGS}


# --- flags() and set_flags() ---------------------------------------------------------------------------------------

IN_BACKENDS = [name for name in SETTINGS if not name.startswith(("nn.", "utils."))]
BY_FLAGS = [name for name in IN_BACKENDS if SETTINGS[name].flags != "-" and hasattr(at(name.rpartition(".")[0]), "flags")]
VIEWED = {name: {*switches.derived_switches()[name].nodes} for name in switches.derived_switches()} | {"cuda.cublas_workspace_size": {"cuda.cublaslt_workspace_size"}}


def related(name: str) -> set[str]:
    """Returns what reads otherwise when a switch is written: views of it, and what inherits from it."""
    found = {name, *VIEWED.get(name, ()), *(view for view, nodes in VIEWED.items() if name in nodes)}
    if "precision" in name or "tf32" in name:
        found |= {other for other in SETTINGS if "precision" in other or "tf32" in other}
    return found


@there
@pytest.mark.parametrize("name", BY_FLAGS)
def test_flags_change_only_what_is_named(name: str) -> None:
    backends.set_flags(_warn_only=True, _fallback="error", _prefer=("blis",))  # not the defaults, to be kept
    cudnn.set_flags(False, True, 3, True)
    mkldnn.set_flags(False, True)
    before = switches.current()
    setting = SETTINGS[name]
    home, _, attribute = name.rpartition(".")
    for value, _ in [(value, None) for value in setting.legal] + list(setting.alike):
        if name == "cpu.capability" and value != "default":
            continue
        scope = eval(setting.flags, {"backends": backends, "v": value}) if setting.flags else at(home).flags(**{attribute: value})
        with scope:
            changed = {each for each in switches.current() if switches.current()[each] != before[each]}
            if name == "cuda.cufft_plan_cache.max_size":
                continue
            assert changed <= {name, *VIEWED.get(name, ())}
            assert {each for each in SETTINGS if switches.get(each) != before.resolved(each)} - related(name) <= UNRESOLVED
        assert switches.current() is before


UNRESOLVED = {"cuda.cublas_workspace_size", "cuda.cublaslt_workspace_size", "quantized.engine"}  # read with a look at the machine


def test_flags_of_one_library_keep_its_other_switches() -> None:
    cudnn.deterministic, cudnn.fp32_precision = True, "ieee"
    before = (cudnn.enabled, cudnn.deterministic, cudnn.allow_tf32, cudnn.fp32_precision)
    with cudnn.flags(benchmark=True):
        assert (cudnn.enabled, cudnn.deterministic, cudnn.allow_tf32, cudnn.fp32_precision) == before == (True, True, False, "ieee")
    assert cudnn.set_flags(_benchmark=True)[0] is True
    assert (cudnn.enabled, cudnn.deterministic, cudnn.allow_tf32, cudnn.fp32_precision) == before


@pytest.mark.parametrize("path", [path for path in PATHS if hasattr(at(path), "flags")])
def test_without_arguments_nothing_changes(path: str) -> None:
    module = at(path)
    with backends.flags(fp32_precision="bf16", fallback="warn"), cudnn.flags(allow_tf32=False, benchmark_limit=3):
        before = switches.current()
        with module.flags():
            assert switches.current() is before
        if hasattr(module, "set_flags"):
            answer = module.set_flags()
            assert isinstance(answer, tuple) and answer == module.set_flags(None)
        assert switches.current() is before
        assert everything() == everything()


def test_scopes_keep_raw_precision_and_inheritance() -> None:
    cudnn.conv.fp32_precision = "ieee"
    with cudnn.flags(benchmark=True), cudnn.flags(allow_tf32=True):
        assert cudnn.conv.fp32_precision == "tf32"
    assert cudnn.conv.fp32_precision == "ieee"
    backends.fp32_precision = "ieee"
    assert cudnn.rnn.fp32_precision == "ieee", "nobody wrote this node, so it follows"
    backends.fp32_precision = "tf32"
    with mkldnn.flags(deterministic=True, allow_tf32=False):
        assert mkldnn.matmul.fp32_precision == "ieee"
    assert mkldnn.matmul.fp32_precision == "tf32"
    backends.fp32_precision = "none"
    assert (mkldnn.matmul.fp32_precision, cudnn.rnn.fp32_precision) == ("none", "tf32"), "still inherited"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: cudnn.flags(enabled=False, benchmark=True, fp32_precision="foo"), BadValue),
        (lambda: cudnn.set_flags(False, True, None, None, None, "foo"), BadValue),
        (lambda: cudnn.set_flags(_enabled=False, _benchmark_limit=-1), BadValue),
        (lambda: mkldnn.set_flags(_enabled=False, _allow_tf32="yes"), BadType),
        (lambda: cuda.flags(flash_sdp=False, math_sdp=1), BadType),
        (lambda: cuda.matmul.set_flags(_allow_tf32=True, _allow_fp16_accumulation=3), BadType),
        (lambda: opt_einsum.set_flags(False, "nonsense"), BadValue),
        (lambda: backline.use_deterministic_algorithms(True, warn_only=3), BadType),
        (lambda: backline.use_deterministic_algorithms(True, level="x"), BadValue),
        (lambda: backline.set_deterministic_debug_mode("x"), BadValue),
        (lambda: backline.set_float32_matmul_precision("foo"), BadValue),
        (lambda: backline.set_float32_matmul_precision(""), BadValue),
        (lambda: backends.python_native.disable_operations("a", 3), BadType),
    ],
)  # fmt: skip
def test_one_bad_argument_changes_nothing(call: Any, error: type[Exception]) -> None:
    before = switches.current()
    with pytest.raises(error):
        call()
    assert switches.current() is before
    with backends.flags(warn_only=True):
        inside = switches.current()
        with pytest.raises(error):
            call()
        assert switches.current() is inside
    assert switches.current() is before


# --- names ---------------------------------------------------------------------------------------------------------

SLIPS = [(row.path, row.name) for row in (*lines(MODEL), *lines(OWN)) if row.path in PATHS and row.kind != "item" and len(row.name) > 3]


@pytest.mark.parametrize(("path", "name"), SLIPS)
def test_a_slip_of_the_pen_is_refused_with_the_right_name(path: str, name: str) -> None:
    home, slip = at(path), name[:-2] + name[-1] + "x" if len(name) < 5 else name[:-2] + name[-1]
    assert not hasattr(home, slip)
    for attempt in (lambda: setattr(home, slip, True), lambda: getattr(home, slip)):
        with pytest.raises(UnknownName) as caught:
            attempt()
        assert slip in str(caught.value) and name in str(caught.value).partition("nearest names:")[2]
    assert slip not in vars(home)


@pytest.mark.parametrize("path", PATHS)
def test_tools_see_every_switch(path: str) -> None:
    home = at(path)
    names = {name.rpartition(".")[2] for name in SETTINGS if name.rpartition(".")[0] == path and not SETTINGS[name].write}
    assert names <= {*dir(home)}


@pytest.mark.parametrize("path", PATHS)
def test_pickle_and_reload(path: str) -> None:
    home = at(path)
    same = pickle.loads(pickle.dumps(home))
    assert same is home or ("." in path and repr(same) == repr(home))
    if type(home).__name__ == "SwitchModule":
        with cudnn.flags(allow_tf32=False), backends.flags(fallback="warn"):
            before = switches.current()
            assert importlib.reload(home) is home and sys.modules[home.__name__] is home
            assert switches.current() is before
            assert everything() == everything()
        with pytest.raises(UnknownName):
            home.nonsense = 1


# --- scopes for everything -----------------------------------------------------------------------------------------

SCOPES = {  # a scope -> what reads how inside
    "quantized.flags(engine='reference')": ("quantized.engine", "reference"),
    "mha.flags(fastpath=False)": ("mha.get_fastpath_enabled()", False),
    "cuda.flags(cublas_workspace_size=7)": ("cuda.cublas_workspace_size()", 7),
    "cuda.matmul.flags(allow_fp16_accumulation=True)": ("cuda.matmul.allow_fp16_accumulation", True),
    "cuda.cufft_plan_cache.flags(max_size=7)": ("cuda.cufft_plan_cache.max_size", 7),
    "nnpack.flags(enabled=False)": ("nnpack.enabled", False),
    "cuda.flags(preferred_linalg_library='magma')": ("cuda.preferred_linalg_library().name", "Magma"),
    "cuda.flags(preferred_blas_library='cublaslt')": ("cuda.preferred_blas_library().name", "Cublaslt"),
    "cuda.flags(preferred_rocm_fa_library='ck')": ("cuda.preferred_rocm_fa_library().name", "Ck"),
    "backends.flags(deterministic=True)": ("backline.are_deterministic_algorithms_enabled()", True),
    "backends.flags(deterministic=True, warn_only=True)": ("backline.get_deterministic_debug_mode()", 1),
    "cuda.flags(flash_sdp=False)": ("cuda.flash_sdp_enabled()", False),
    "cuda.flags(mem_efficient_sdp=False)": ("cuda.mem_efficient_sdp_enabled()", False),
    "cuda.flags(math_sdp=False)": ("cuda.math_sdp_enabled()", False),
    "cuda.flags(cudnn_sdp=False)": ("cuda.cudnn_sdp_enabled()", False),
    "backends.flags(num_threads=7)": ("backline.get_num_threads()", 7),
    "mkldnn.conv.flags(fp32_precision='bf16')": ("mkldnn.conv.fp32_precision", "bf16"),
    "cudnn.rnn.flags(fp32_precision='ieee')": ("cudnn.rnn.fp32_precision", "ieee"),
    "backends.python_native.flags(triton=False)": ("backends.python_native.is_dsl_disabled('triton')", True),
    "backends.python_native.operations_disabled('x')": ("backends.python_native.is_operation_disabled('x')", True),
}  # fmt: skip


@there
@pytest.mark.parametrize("scope", SCOPES)
def test_everything_has_a_scope_also_after_a_freeze(scope: str) -> None:
    reading, wanted = SCOPES[scope]
    before = switches.current(), eval(reading)
    switches.freeze()
    with eval(scope):
        assert eval(reading) == wanted != before[1]
    assert (switches.current(), eval(reading)) == before


# --- single libraries ----------------------------------------------------------------------------------------------


@there
def test_opt_einsum_under_a_disabled_base() -> None:
    opt_einsum.enabled = False
    with opt_einsum.flags(enabled=True):
        assert opt_einsum.enabled is True
    assert opt_einsum.enabled is False
    assert opt_einsum.set_flags(True, "greedy") == (False, "auto")
    assert opt_einsum.set_flags(False, "optimal") == (True, "greedy") and opt_einsum.strategy == "optimal"
    opt_einsum.strategy = "greedy"
    with opt_einsum.flags(strategy="auto"):
        assert opt_einsum.strategy == "auto", "flags() has effect after an assignment"
    for name, value in (("strategy", "nonsense"), ("enabled", "x")):
        with pytest.raises((BadValue, BadType), match=f"opt_einsum.{name}"):
            setattr(opt_einsum, name, value)


def test_without_the_package_it_reads_off_and_cannot_be_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.backends import _module_factory

    monkeypatch.setattr(_module_factory, "available", lambda backend: False)
    for module in (opt_einsum, backends.xnnpack):
        assert module.enabled is False
        with pytest.raises(BackendUnavailable, match=module.__name__.rpartition(".")[2]):
            module.enabled = True
        module.enabled = False
        with module.flags(enabled=False):
            assert module.enabled is False
    opt_einsum.strategy = "optimal"
    assert opt_einsum.strategy == "optimal"


def test_verbose_levels_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_VERBOSE", "1")
    monkeypatch.setenv("DNNL_VERBOSE", "2")
    store._restart()
    for module, standing in ((mkl, 1), (mkldnn, 2)):
        name = f"{module.__name__.rpartition('.')[2]}.verbose_level"
        assert switches.get(name) == standing
        with module.verbose(0):
            assert switches.get(name) == 0
            with switches.scope({name: 2}):
                with module.verbose(0):
                    assert switches.get(name) == 0
                assert switches.get(name) == 2
            assert switches.get(name) == 0
        assert switches.get(name) == standing


def test_precision_of_the_cpu_is_the_cpus_and_no_scope_warns() -> None:
    on_cuda = [cudnn, cuda.matmul, cudnn.conv, cudnn.rnn]
    before = [each.fp32_precision for each in (backends, *on_cuda)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mkldnn.fp32_precision = "bf16"
        assert mkldnn.matmul.fp32_precision == "bf16"
        assert [each.fp32_precision for each in (backends, *on_cuda)] == before
        for scope in (mkldnn.flags(allow_tf32=True), mkldnn.flags(fp32_precision="tf32"), cudnn.flags(allow_tf32=True),
                      cuda.matmul.flags(allow_tf32=True), backends.flags(fp32_precision="bf16"), backends.flags(emulate=True)):  # fmt: skip
            with scope:
                assert everything() == everything()


def test_what_absent_libraries_take_is_checked_all_the_same() -> None:
    for attempt in (
        lambda: setattr(cudnn, "benchmark_limit", "x"), lambda: mha.set_fastpath_enabled("x"), lambda: cudnn.flags(benchmark_limit=1.5),
        lambda: setattr(nnpack, "enabled", "x"), lambda: backends.miopen.set_flags("x"), lambda: setattr(quantized, "engine", 3),
    ):  # fmt: skip
        with pytest.raises(BadType):
            attempt()
    assert nnpack.enabled is True and nnpack.set_flags(None) == (True,) and nnpack.enabled is True
    for word in ("HIGH", "Medium", "highest"):
        backline.set_float32_matmul_precision(word)
        assert backline.get_float32_matmul_precision() == word.lower()


# --- freeze --------------------------------------------------------------------------------------------------------

WRITES = """
    cuda.matmul.allow_tf32 = True; cuda.matmul.fp32_precision = 'tf32'; cuda.matmul.allow_fp16_accumulation = True
    cuda.matmul.allow_fp16_reduced_precision_reduction = False; cuda.matmul.set_flags(True)
    cuda.enable_flash_sdp(False); cuda.enable_mem_efficient_sdp(False); cuda.enable_math_sdp(False); cuda.enable_cudnn_sdp(False)
    cuda.allow_fp16_bf16_reduction_math_sdp(True); cuda.preferred_linalg_library('magma'); cuda.preferred_blas_library('cublaslt')
    cuda.cublas_workspace_size(7); cuda.cufft_plan_cache.max_size = 7; cuda.set_flags(_flash_sdp=False)
    cudnn.conv.fp32_precision = 'ieee'; cudnn.rnn.fp32_precision = 'ieee'; cudnn.fp32_precision = 'ieee'; cudnn.allow_tf32 = False
    cudnn.enabled = False; cudnn.benchmark_limit = 3; cudnn.set_flags(False); cudnn.rnn.set_flags('ieee')
    mkldnn.matmul.fp32_precision = 'bf16'; mkldnn.conv.fp32_precision = 'bf16'; mkldnn.allow_tf32 = True; mkldnn.set_flags(False)
    quantized.engine = 'reference'; opt_einsum.enabled = False; opt_einsum.strategy = 'greedy'; opt_einsum.set_flags(False)
    mha.set_fastpath_enabled(False); nnpack.enabled = False; backends.miopen.immediate = True; backends.mps.enabled = False
    backends.set_flags('tf32'); backends.fp32_precision = 'tf32'; backends.benchmark_limit = 3
    backline.set_float32_matmul_precision('high'); backline.set_num_threads(3); backline.use_deterministic_algorithms(True)
    backline.set_deterministic_debug_mode(2); backline.utils.deterministic.fill_uninitialized_memory = False
    backends.python_native.triton.enabled = False; backends.python_native.triton.disable()
    backends.python_native.disable_operations('x'); backends.python_native.disable_dispatch_keys('CUDA')
"""


@there
@pytest.mark.parametrize("write", [each.strip() for line in WRITES.splitlines() for each in line.split(";") if each.strip()])
def test_after_the_freeze_the_base_is_closed_and_scopes_are_open(write: str) -> None:
    before = switches.current()
    backends.disable_global_flags()
    with pytest.raises(Frozen) as caught:
        exec(write)
    assert switches.current() is before
    _, form, rest = str(caught.value).partition("with backline.")
    exec(f"{form}{rest}".replace("): ...", "): pass"))  # what the error proposes works as it stands
    with backends.flags():
        exec(write)
        assert switches.current() is not before
    assert switches.current() is before


# --- calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_a_mask_with_is_causal_is_refused_whichever_kernel_is_asked(kernel: str) -> None:
    x = np.zeros((1, 2, 8, 16), np.float32)
    params = cuda.SDPAParams(x, x, x, np.zeros((8, 8), bool), 0.0, True, False)
    assert getattr(cuda, f"can_use_{kernel}_attention")(params) is False


@pytest.mark.usefixtures("clean")
def test_benchmark_times_a_shape_that_was_met_while_it_was_off(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[list[Algorithm]] = []
    real = benchmark.measure_once

    def count(problem: Any, found: list[Algorithm], threads: int, under: Any, planner: Any) -> Any:
        timed.append(found)
        return real(problem, found, threads, under, planner)

    monkeypatch.setattr(benchmark, "measure_once", count)
    a = np.eye(5)
    for turn in range(2):
        backline.mm(a, a)
        backline.mm(a, a)
        assert len(timed) == turn
        with backends.flags(benchmark=True, benchmark_limit=2):
            backline.mm(a, a)
            backline.mm(a, a)
        assert len(timed) == 1


def test_no_module_needs_an_import_of_its_own() -> None:
    found = python(
        """
        import sys, warnings
        warnings.simplefilter("error")
        import backline
        before = set(sys.modules)
        b = backline.backends
        print(b.opt_einsum.strategy, b.xnnpack.is_enabled() in (True, False), b.cudnn.rnn.fp32_precision, b.xeon.run_cpu.__name__)
        print([name for name in ("torch", "cupy", "mlx", "jax", "opt_einsum") if name in sys.modules])
        """
    ).stdout.splitlines()
    assert found == ["auto True tf32 backline.backends.xeon.run_cpu", "[]"]
