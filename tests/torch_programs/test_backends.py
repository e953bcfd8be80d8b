"""Lines of other programs that set or read ``torch.backends``, and modules that other packages build beside ours."""

from __future__ import annotations

import importlib
import inspect
import random
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import backline as torch
from backline import backends, switches
from backline.errors import BackendUnavailable, BadType, BadValue, Frozen, UnknownName
from backline.nn import attention, functional
from backline.switches import store

# --- what a query returns can be set back ------------------------------------------------------------------------------

QUERIES = ("preferred_blas_library", "preferred_linalg_library", "preferred_rocm_fa_library")


@pytest.mark.parametrize("name", QUERIES)
def test_a_preference_is_set_back_without_a_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = getattr(torch.backends.cuda, name)
    saved = function()
    assert function(saved) is saved is function()
    for variable, word in (("TORCH_BLAS_PREFER_CUBLASLT", "Cublaslt"), ("TORCH_LINALG_PREFER_CUSOLVER", "Cusolver"),
                           ("TORCH_ROCM_FA_PREFER_CK", "Ck")):  # fmt: skip
        monkeypatch.setenv(variable, "1")
        store._restart()
        preferred = function()
        assert function(preferred) is preferred is function(), "what the environment prefers can be set back, too"
        with torch.backends.cuda.flags(**{name: preferred}):
            assert function() is preferred
        assert variable.find(name.split("_")[1].upper()) < 0 or preferred.name == word


def test_a_preference_is_set_back_where_amds_library_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.libraries import devices

    monkeypatch.setattr(devices, "amd_architecture", lambda index: "gfx942")
    saved = torch.backends.cuda.preferred_blas_library()
    assert saved.name == "Cublaslt" and torch.backends.cuda.preferred_blas_library(saved) is saved


@pytest.mark.parametrize("word", ["cublas", "hipblas", backends.cuda.BlasBackend.Cublas])
def test_cublas_may_be_preferred_anywhere(word: Any) -> None:
    assert torch.backends.cuda.preferred_blas_library(word).name == "Cublas"
    assert switches.current()["cuda.preferred_blas_library"] == "cublas"
    with torch.backends.flags(fallback="error"):
        assert torch.matmul(np.eye(2), np.eye(2)).sum() == 2.0, "a preference for products on CUDA says nothing of NumPy's arrays"
    assert torch.backends.cuda.preferred_blas_library("default").name == "Cublas"
    assert switches.current()["cuda.preferred_blas_library"] == "default"


@pytest.mark.parametrize(("name", "word"), [(QUERIES[0], "cublaslt"), (QUERIES[1], "cusolver"), (QUERIES[1], "magma")])
def test_what_torch_refuses_without_its_library_is_refused(name: str, word: str) -> None:
    function = getattr(torch.backends.cuda, name)
    before = function()
    with pytest.raises(BackendUnavailable):
        function(word)
    assert function() is before


# --- names that other packages import ----------------------------------------------------------------------------------

PACKAGE = {
    "__init__.py": """
        import sys
        from contextlib import contextmanager
        from backline.backends import (
            __allow_nonbracketed_mutation, _FP32Precision, _get_fp32_precision_getter, _set_fp32_precision_setter, ContextProp,
            PropModule, flags_frozen,
        )

        _state = {"enabled": True, "mode": "fast"}

        def is_available():
            return True

        def set_flags(_enabled=None, _mode=None):
            orig_flags = (_state["enabled"], _state["mode"])
            if _enabled is not None:
                sys.modules[__name__].enabled = _enabled
            if _mode is not None:
                sys.modules[__name__].mode = _mode
            return orig_flags

        @contextmanager
        def flags(enabled=False, mode="slow"):
            with __allow_nonbracketed_mutation():
                orig_flags = set_flags(enabled, mode)
            try:
                yield
            finally:
                with __allow_nonbracketed_mutation():
                    set_flags(*orig_flags)

        class _Level:
            def __get__(self, module, kind):
                return _state.get("level", 0)

            def __set__(self, module, value):
                _state["level"] = value

        class NpuModule(PropModule):
            def __init__(self, m, name):
                super().__init__(m, name)
                self.m.made = "by __init__"

            enabled = ContextProp(lambda: _state["enabled"], lambda value: _state.update(enabled=value))
            mode = ContextProp(lambda: _state["mode"], lambda value: _state.update(mode=value))
            level = _Level()
            conv = _FP32Precision("cuda", "conv")
            fp32_precision = ContextProp(_get_fp32_precision_getter("cuda", "all"), _set_fp32_precision_setter("cuda", "all"))

            @property
            def kinds(self):
                return ["npu"]

        sys.modules[__name__] = NpuModule(sys.modules[__name__], __name__)

        enabled: bool
        mode: str
    """,
    "rnn.py": "hidden = 3",
}


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    folder = tmp_path / "npu_backend"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("npu_backend")
    for name in [name for name in sys.modules if name.partition(".")[0] == "npu_backend"]:
        del sys.modules[name]


def test_a_module_that_another_package_builds(npu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (npu.enabled, npu.mode, npu.level, npu.kinds, npu.made, npu.is_available()) == (True, "fast", 0, ["npu"], "by __init__", True)
    npu.enabled, npu.level = False, 2
    npu.conv.fp32_precision = npu.fp32_precision = "ieee"
    assert (npu.enabled, npu.level, npu.conv.fp32_precision, torch.backends.cudnn.fp32_precision) == (False, 2, "ieee", "ieee")
    assert importlib.import_module("npu_backend.rnn").hidden == npu.rnn.hidden == 3, "the import system sets its submodules"
    monkeypatch.setattr(npu, "is_available", lambda: "double")
    assert npu.is_available() == "double"
    monkeypatch.undo()
    assert npu.is_available() is True
    with pytest.raises(UnknownName, match="enabled"):
        npu.enabeld = True


def test_its_scopes_work_after_the_freeze(npu: Any) -> None:
    torch.backends.disable_global_flags()
    with pytest.raises(Frozen, match="mode"):
        npu.mode = "slow"
    with npu.flags(False):
        assert (npu.enabled, npu.mode) == (False, "slow")
        with pytest.raises(Frozen):
            npu.enabled = True
    assert (npu.enabled, npu.mode) == (True, "fast")


# --- the flag and its scope --------------------------------------------------------------------------------------------


def test_the_scope_lifts_the_freeze_and_what_is_assigned_stays() -> None:
    from backline.backends import __allow_nonbracketed_mutation, __allow_nonbracketed_mutation_flag

    assert __allow_nonbracketed_mutation_flag is True is torch.backends.__allow_nonbracketed_mutation_flag
    torch.backends.disable_global_flags()
    assert torch.backends.__allow_nonbracketed_mutation_flag is False
    with pytest.raises(ZeroDivisionError), __allow_nonbracketed_mutation():
        assert torch.backends.__allow_nonbracketed_mutation_flag is True and not torch.backends.flags_frozen()
        torch.backends.cudnn.enabled = False
        with __allow_nonbracketed_mutation():
            torch.backends.fallback = "warn"
        torch.set_float32_matmul_precision("high")
        raise ZeroDivisionError
    assert torch.backends.flags_frozen() and torch.backends.__allow_nonbracketed_mutation_flag is False
    assert (torch.backends.cudnn.enabled, torch.backends.fallback, torch.get_float32_matmul_precision()) == (False, "warn", "high")
    with pytest.raises(Frozen):
        torch.backends.cudnn.enabled = True

    @__allow_nonbracketed_mutation()
    def enable() -> None:
        torch.backends.cudnn.enabled = True

    enable()
    enable()
    assert torch.backends.cudnn.enabled and torch.backends.flags_frozen()


def test_the_scope_lifts_the_freeze_for_its_own_thread() -> None:
    from backline.backends import __allow_nonbracketed_mutation

    torch.backends.disable_global_flags()
    seen = []
    with __allow_nonbracketed_mutation():
        thread = threading.Thread(target=lambda: seen.append(torch.backends.flags_frozen()))
        thread.start()
        thread.join()
        assert not torch.backends.flags_frozen()
        torch.backends.disable_global_flags()
        assert torch.backends.flags_frozen(), "a freeze inside holds"
    assert seen == [True] and torch.backends.flags_frozen()


def test_the_flag_may_be_assigned() -> None:
    torch.backends.disable_global_flags()
    torch.backends.__allow_nonbracketed_mutation_flag = True  # type: ignore[attr-defined]  # PyTorch's own name for the flag
    assert not torch.backends.flags_frozen()
    torch.backends.cudnn.enabled = False
    torch.backends.__allow_nonbracketed_mutation_flag = np.False_  # type: ignore[attr-defined]  # PyTorch's own name for the flag
    assert torch.backends.flags_frozen()
    with pytest.raises(BadType, match="mutation_flag takes a bool, not int: 1"):
        torch.backends.__allow_nonbracketed_mutation_flag = 1  # type: ignore[attr-defined]  # PyTorch's own name for the flag


NODES = {
    ("generic", "all"): "backends", ("mkldnn", "all"): "backends.mkldnn", ("mkldnn", "matmul"): "backends.mkldnn.matmul",
    ("mkldnn", "conv"): "backends.mkldnn.conv", ("mkldnn", "rnn"): "backends.mkldnn.rnn", ("cuda", "all"): "backends.cudnn",
    ("cuda", "matmul"): "backends.cuda.matmul", ("cuda", "conv"): "backends.cudnn.conv", ("cuda", "rnn"): "backends.cudnn.rnn",
}  # fmt: skip


@pytest.mark.parametrize("pair", NODES)
def test_nodes_of_the_precision_tree_by_backend_and_op(pair: tuple[str, str]) -> None:
    handle = eval(NODES[pair])
    read, write = backends._get_fp32_precision_getter(*pair), backends._set_fp32_precision_setter(*pair)
    node: Any = backends._FP32Precision(*pair)
    assert read() == node.fp32_precision == handle.fp32_precision
    for word in ("ieee", "tf32", "none"):
        assert write(word) == word == read() == node.fp32_precision == handle.fp32_precision
        store._restart()
        node.fp32_precision = word
        assert read() == node.fp32_precision == handle.fp32_precision == word
        store._restart()
    with switches.scope():
        write("ieee")
        assert handle.fp32_precision == "ieee"
    assert (node.backend, node.op) == pair and handle.fp32_precision == ("tf32" if pair in (("cuda", "conv"), ("cuda", "rnn")) else "none")
    for illegal, error in (("foo", BadValue), (3, BadType), *([("bf16", BadValue)] if pair[0] == "cuda" else [])):
        with pytest.raises(error):
            write(illegal)
        with pytest.raises(error):
            node.fp32_precision = illegal
    for attempt in (lambda: node.precision, lambda: setattr(node, "precision", "ieee"), lambda: setattr(node, "fp32_precison", "ieee")):
        with pytest.raises(UnknownName, match="fp32_precision"):
            attempt()
    torch.backends.disable_global_flags()
    for attempt in (lambda: write("ieee"), lambda: setattr(node, "fp32_precision", "ieee")):
        with pytest.raises(Frozen):
            attempt()


@pytest.mark.parametrize("pair", [("cudnn", "all"), ("generic", "conv"), ("cuda", "fft"), (3, "all")])
def test_a_node_that_does_not_exist(pair: tuple[Any, str]) -> None:
    node = backends._FP32Precision(*pair)
    for attempt in (
        backends._get_fp32_precision_getter(*pair), lambda: backends._set_fp32_precision_setter(*pair)("ieee"), lambda: node.fp32_precision,
        lambda: setattr(node, "fp32_precision", "ieee"),
    ):  # fmt: skip
        with pytest.raises(BadValue, match="nearest pairs: "):
            attempt()


def test_the_generic_module() -> None:
    inner = ModuleType("inner")
    inner.helper = lambda: "helped"  # type: ignore[attr-defined]  # what the test adds
    module: Any = backends.GenericModule(inner, "outer")
    assert isinstance(module, backends.PropModule) and (module.__name__, module.m, module.helper()) == ("outer", inner, "helped")
    module.fp32_precision = "tf32"
    assert module.fp32_precision == torch.backends.fp32_precision == "tf32"
    with pytest.raises(UnknownName):
        module.fp32_precison = "tf32"


# --- strategies of opt_einsum ------------------------------------------------------------------------------------------

A = np.random.default_rng(0).standard_normal((3, 3))
EQUATION = "ab,bc,cd,de->ae"


def test_every_strategy_of_the_installed_opt_einsum_runs() -> None:
    import opt_einsum

    wanted = np.linalg.multi_dot([A, A, A, A])
    for name in opt_einsum.paths._PATH_OPTIONS:
        torch.backends.opt_einsum.strategy = name
        assert torch.backends.opt_einsum.strategy == name
        np.testing.assert_allclose(torch.einsum(EQUATION, A, A, A, A), wanted)
        with torch.backends.opt_einsum.flags(strategy=name):
            pass
    with pytest.raises(BadValue, match="'dynamic-programming'"):
        torch.backends.opt_einsum.strategy = "dynamic"


def test_a_strategy_that_a_program_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    import opt_einsum

    asked = []

    def first_two(inputs: Any, output: Any, sizes: Any, memory_limit: Any = None) -> list[tuple[int, ...]]:
        asked.append(len(inputs))
        return [(0, 1)] * (len(inputs) - 1)

    monkeypatch.setattr(opt_einsum.paths, "_PATH_OPTIONS", {**opt_einsum.paths._PATH_OPTIONS, "first-two": first_two})
    torch.backends.opt_einsum.strategy = "first-two"
    torch.einsum(EQUATION, A, A, A, A)
    assert asked == [4]


def test_strategies_that_draw_numbers_leave_the_programs_generator_alone() -> None:
    random.seed(7)
    wanted = [random.random() for _ in range(3)]
    random.seed(7)
    found = []
    for strategy in ("random-greedy", "random-greedy-128", "auto-hq"):
        found.append(random.random())
        with torch.backends.opt_einsum.flags(strategy=strategy):
            torch.einsum("ab,bc,cd,de,ef->af", A, A, A, A, A)
    assert found == wanted


# --- positional forms, NumPy's bools -----------------------------------------------------------------------------------


def test_cudnn_set_flags_without_the_limit() -> None:
    assert torch.backends.cudnn.set_flags(True, False, True, True) == (True, False, 10, False, True, "none", "auto")
    assert (torch.backends.cudnn.benchmark_limit, torch.backends.cudnn.deterministic) == (10, True)
    with torch.backends.cudnn.flags(False, True, False, False, False):
        assert (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32) == (False, True, False)
        assert (torch.backends.cudnn.benchmark_limit, torch.backends.cudnn.deterministic) == (10, False)
    with pytest.raises(BadType, match=r"cudnn\.benchmark_limit takes"):
        torch.backends.cudnn.benchmark_limit = True


def test_with_cudnn_the_limit_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.backends import _module_factory

    monkeypatch.setattr(_module_factory, "available", lambda backend: True)
    before = switches.current()
    for call in (torch.backends.cudnn.set_flags, torch.backends.cudnn.flags):
        with pytest.raises(BadType, match=r"cudnn\.benchmark_limit takes"):
            call(True, False, True, True)
    assert switches.current() is before


POSITIONAL = [
    "cudnn.set_flags(False)", "cudnn.set_flags(True, True)", "cudnn.set_flags(True, False, 10, True)", "cudnn.set_flags(True, True, 0, False, False)",
    "cudnn.set_flags(True, False, None, True, True, 'none', 'auto')", "cudnn.set_flags(*cudnn.set_flags())", "mkldnn.set_flags(True)",
    "mkldnn.set_flags(False, True)", "mkldnn.set_flags(*mkldnn.set_flags())", "nnpack.set_flags(True)", "miopen.set_flags(True)",
    "opt_einsum.set_flags(True, 'greedy')", "opt_einsum.set_flags(False)", "set_flags('none')", "set_flags('tf32')", "set_flags(None)",
    "set_flags(*set_flags())",
]  # fmt: skip


@pytest.mark.parametrize("call", POSITIONAL)
def test_positional_calls(call: str) -> None:
    module, _, arguments = call.partition("set_flags(")
    home = getattr(backends, module.rstrip(".")) if module else backends
    before = {name: switches.get(name) for name in switches.all_switches()}
    old = eval(f"home.set_flags({arguments}", {"home": home, "cudnn": backends.cudnn, "mkldnn": backends.mkldnn, "set_flags": backends.set_flags})
    home.set_flags(*old)
    assert {name: switches.get(name) for name in before} == before
    if "*" not in call:
        with eval(f"home.flags({arguments}"):
            home.set_flags(*old)
    assert {name: switches.get(name) for name in before} == before


@pytest.mark.parametrize("value", [np.True_, np.False_])
def test_a_bool_of_numpy_is_a_bool(value: Any) -> None:
    x = np.zeros((1, 2, 8, 16), np.float32)
    for call in (
        lambda: torch.use_deterministic_algorithms(value, warn_only=value), lambda: torch.set_flush_denormal(np.False_),
        lambda: torch.backends.cuda.enable_flash_sdp(value), lambda: torch.backends.mha.set_fastpath_enabled(value),
        lambda: torch.backends.mkl.verbose(np.False_), lambda: attention.sdpa_kernel(attention.SDPBackend.MATH, set_priority=value),
        lambda: torch.backends.cuda.SDPAParams(x, x, x, None, 0.0, value, value), lambda: torch.backends.nnpack.set_flags(value),
        lambda: functional.scaled_dot_product_attention(x, x, x, is_causal=value, enable_gqa=value),
        lambda: torch.linalg.eigh(np.eye(3)) and torch.linalg.cholesky(np.eye(3), upper=value),
        lambda: torch.linalg.svd(np.eye(3), full_matrices=value), lambda: torch.linalg.vector_norm(np.ones(3), keepdim=value),
        lambda: torch.linalg.solve(np.eye(3), np.eye(3), left=value), lambda: torch.linalg.lu_factor(np.eye(3), pivot=value or True),
        lambda: torch.linalg.pinv(np.eye(3), hermitian=value), lambda: torch.use("numpy", only=value),
        lambda: torch.cholesky_solve(np.eye(3), np.eye(3), upper=value), lambda: torch.backends.python_native.flags(triton=value),
        lambda: functional.avg_pool2d(x, 2, ceil_mode=value, count_include_pad=value), lambda: functional.dropout(x, 0.5, training=value, seed=0),
    ):  # fmt: skip
        call()
    torch.backends.python_native.triton.enabled = value
    torch.utils.deterministic.fill_uninitialized_memory = value
    attention.WARN_FOR_UNFUSED_KERNELS = value
    assert torch.backends.python_native.triton.enabled is bool(value) is torch.backends.mha.get_fastpath_enabled()


# --- scopes ------------------------------------------------------------------------------------------------------------


def test_scopes_for_the_precision_of_products_and_for_new_memory() -> None:
    before = switches.current()
    with torch.backends.flags(float32_matmul_precision="Medium"):
        assert torch.get_float32_matmul_precision() == "medium" and torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    with torch.backends.flags(deterministic=True), torch.utils.deterministic.flags(fill_uninitialized_memory=False):
        assert torch.utils.deterministic.fill_uninitialized_memory is False
    assert switches.current() is before
    torch.backends.disable_global_flags()
    with torch.backends.flags(float32_matmul_precision="high"), torch.utils.deterministic.flags(False):
        assert torch.get_float32_matmul_precision() == "high" and not torch.utils.deterministic.fill_uninitialized_memory
    for attempt in (lambda: torch.set_float32_matmul_precision("high"), lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)):
        with pytest.raises(Frozen) as caught:
            attempt()
        _, form, rest = str(caught.value).partition("with backline.")
        exec(f"{form}{rest}".replace("): ...", "): pass"), {"backline": torch})
    assert switches.current() is before
    with pytest.raises(BadValue, match="contradict"):
        switches.scope({"float32_matmul_precision": "high", "cuda.matmul.fp32_precision": "ieee"})


def test_the_flags_of_python_native_are_those_that_are_listed() -> None:
    native = torch.backends.python_native
    listed = {name.removeprefix("python_native.").removesuffix(".enabled") for name in switches.declared() if name.startswith("python_native.")}
    assert {*inspect.signature(native.flags).parameters} == listed
    with native.flags(cutedsl=False, disabled_operations=("a", "b"), disabled_dispatch_keys=["CPU"]):
        assert native.is_operation_disabled("b") and native.is_dsl_disabled("cutedsl") and not native.is_dsl_disabled("triton")
        assert switches.get("python_native.disabled_dispatch_keys") == ("CPU",)
    assert not native.is_operation_disabled("b")
    assert native.set_flags(_triton=False, _disabled_operations=("c",)) == (True, True) and native.is_operation_disabled("c")
    with pytest.raises(BadType, match="disabled_operations"):
        native.flags(disabled_operations="a")


# --- enumerations, verbose scopes --------------------------------------------------------------------------------------


def test_members_of_enumerations_print_and_convert_as_torchs() -> None:
    assert str(torch.backends.cuda.preferred_blas_library()) == "_BlasBackend.Cublas"
    assert f"{torch.backends.cuda.preferred_linalg_library()}" == "_LinalgBackend.Default"
    assert repr(torch.backends.cuda.preferred_rocm_fa_library()) == "<_ROCmFABackend.Default: 0>"
    assert (str(attention.SDPBackend.MATH), repr(attention.SDPBackend.ERROR)) == ("SDPBackend.MATH", "<SDPBackend.ERROR: -1>")
    for kind in (backends.cuda.BlasBackend, backends.cuda.LinalgBackend, backends.cuda.ROCmFABackend, attention.SDPBackend):
        for member in kind:
            assert int(member) == member.value == member.__index__() and f"{member:}" == str(member)
            assert f"{int(member):d}" == format(member.__index__(), "d")
            assert kind(int(member)) is member and member != member.value and type(int(member)) is int
    assert int(attention.SDPBackend.MATH) == 0 and ["math", "flash"][attention.SDPBackend.FLASH_ATTENTION] == "flash"


def test_verbose_scopes_tell_their_level() -> None:
    assert [torch.backends.mkl.verbose(level).enable for level in (0, 1, 2, True, False)] == [0, 1, 2, 1, 0]
    assert [torch.backends.mkldnn.verbose(level).level for level in (0, 1, 2)] == [0, 1, 2]


# --- attention without a fused kernel ----------------------------------------------------------------------------------


def test_attention_on_no_fused_kernel_warns_when_asked_to(recwarn: pytest.WarningsRecorder) -> None:
    x = np.zeros((1, 2, 8, 16), np.float32)
    assert attention.WARN_FOR_UNFUSED_KERNELS is False
    functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5, seed=0)
    attention.WARN_FOR_UNFUSED_KERNELS = True
    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
        functional.scaled_dot_product_attention(x, x, x)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"no fused kernel(.|\n)*flash: there may be no dropout") as caught:
        functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5, seed=0)
    assert caught[0].filename == __file__ and "efficient_attention: it is for arrays on cuda" in str(caught[0].message)
    with attention.sdpa_kernel(attention.SDPBackend.MATH), pytest.warns(UserWarning, match=r"cuda\.flash_sdp = False forbids"):
        functional.scaled_dot_product_attention(x, x, x)
    with pytest.raises(UnknownName, match="WARN_FOR_UNFUSED_KERNELS"):
        attention.WARN_FOR_UNFUSED_KERNEL = False
    with pytest.raises(BadType, match="WARN_FOR_UNFUSED_KERNELS"):
        attention.WARN_FOR_UNFUSED_KERNELS = 1  # type: ignore[assignment]  # wrong on purpose
