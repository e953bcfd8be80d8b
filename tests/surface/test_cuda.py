"""`backends.cuda` without a GPU, and as it is where a driver reports devices: a stand-in for one."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backline import backends, libraries, switches
from backline.backends import cuda
from backline.engine.cufft_plan_caches import cufft_plans
from backline.errors import BackendUnavailable, BadType, BadValue, Frozen, ReadOnly, UnknownName
from backline.libraries import attention_constraints, devices, presence
from backline.libraries.base import Library
from backline.problems.attention_problem import attention_problem
from backline.switches import store

MIB = 1 << 20


def everything() -> dict[str, object]:
    return dict(switches.current().items())


def there(*names: str, monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Let libraries be found."""
    for name in names:
        found = presence.Found("", (), f"/fake/lib{name}.so", facts or {"version": "1.2.3"})
        fake = presence.Presence(presence.registry.LibraryInfo(name, name), lambda row, found=found: found)
        monkeypatch.setitem(presence._presences, name, fake)


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A driver with two devices, of capability 9.0 and 8.0, and CuPy's idea of the current one, which the function sets."""
    there("cuda", monkeypatch=monkeypatch, devices=2)
    monkeypatch.setattr(devices, "_capabilities", lambda path: ((9, 0), (8, 0)))
    now = [0]
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(getDevice=lambda: now[0], is_hip=False))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    for index in (0, 1):
        cufft_plans(index).clear()
    return lambda index: now.__setitem__(0, index)


@pytest.fixture(autouse=True)
def without_a_driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the GPU of the machine that this runs on, if it has one."""
    if "two_devices" not in request.fixturenames:
        gone = presence.Found("no file of this name was found (libcuda.so.1)", ("here", "there"))
        monkeypatch.setitem(presence._presences, "cuda", presence.Presence(presence.registry.LibraryInfo("cuda", "the CUDA driver"), lambda row: gone))
        for name in ("cusolver", "magma", "cublas", "cublaslt", "composable_kernel", "aotriton", "cudnn"):
            absent = presence.Found("it is not installed", ("here", "there"), remedy=f"install {name}")
            monkeypatch.setitem(presence._presences, name, presence.Presence(presence.registry.LibraryInfo(name, name), lambda row, absent=absent: absent))


def run(program: str) -> None:
    path = str(Path(backends.__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {path!r})\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- names --------------------------------------------------------------------------------------------------------

SIGNATURES = {
    "is_built": "()",
    "is_available": "()",
    "version": "()",
    "preferred_linalg_library": "(backend=None)",
    "preferred_blas_library": "(backend=None)",
    "preferred_rocm_fa_library": "(backend=None)",
    "is_ck_sdpa_available": "()",
    "cublas_workspace_size": "(size=None)",
    "cublaslt_workspace_size": "(size=None)",
    "blas_workspace_size": "(size=None, backend=None)",
    "flash_sdp_enabled": "()",
    "mem_efficient_sdp_enabled": "()",
    "math_sdp_enabled": "()",
    "cudnn_sdp_enabled": "()",
    "enable_flash_sdp": "(enabled)",
    "enable_mem_efficient_sdp": "(enabled)",
    "enable_math_sdp": "(enabled)",
    "enable_cudnn_sdp": "(enabled)",
    "fp16_bf16_reduction_math_sdp_allowed": "()",
    "allow_fp16_bf16_reduction_math_sdp": "(enabled)",
    "is_flash_attention_available": "(device=None)",
    "can_use_flash_attention": "(params, debug=False)",
    "can_use_efficient_attention": "(params, debug=False)",
    "can_use_cudnn_attention": "(params, debug=False)",
    "sdp_kernel": "(enable_flash=True, enable_math=True, enable_mem_efficient=True, enable_cudnn=True)",
    "SDPAParams": "(query, key, value, attn_mask, dropout, is_causal, enable_gqa)",
    "cuFFTPlanCache": "(device_index)",
    "cuFFTPlanCacheManager": "()",
    "cuFFTPlanCacheAttrContextProp": "(getter, setter)",
}
FLAGS = [
    "preferred_linalg_library", "preferred_blas_library", "preferred_rocm_fa_library", "cublas_workspace_size",
    "cublaslt_workspace_size", "flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp", "fp16_bf16_reduction_math_sdp",
]  # fmt: skip
MATMUL_FLAGS = [
    "allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation",
    "fp32_precision",
]  # fmt: skip


@pytest.mark.parametrize(("name", "wanted"), SIGNATURES.items())
def test_a_name_is_there_with_its_signature(name, wanted):
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(getattr(cuda, name)).parameters.values()]
    assert str(inspect.Signature(parameters)) == wanted
    assert name in dir(cuda) and name in cuda.__all__ and getattr(cuda, name).__doc__


def test_flags_take_the_switches_in_order():
    assert [*inspect.signature(cuda.flags).parameters][: len(FLAGS)] == FLAGS
    assert [*inspect.signature(cuda.set_flags).parameters][: len(FLAGS)] == [f"_{name}" for name in FLAGS]
    assert [*inspect.signature(cuda.matmul.flags).parameters] == MATMUL_FLAGS
    assert [*inspect.signature(cuda.matmul.set_flags).parameters] == [f"_{name}" for name in MATMUL_FLAGS]


def test_enumerations_have_the_models_members_and_numbers():
    assert {m.name: m.value for m in cuda.LinalgBackend} == {"Default": 0, "Cusolver": 1, "Magma": 2}
    assert {m.name: m.value for m in cuda.BlasBackend} == {"Default": 0, "Cublas": 1, "Cublaslt": 2, "Ck": 3}
    assert {m.name: m.value for m in cuda.ROCmFABackend} == {"Default": 0, "AOTriton": 1, "Ck": 2}


def test_classes_are_those_of_the_sub_objects():
    assert isinstance(cuda.matmul, cuda.cuBLASModule) and isinstance(cuda.cufft_plan_cache, cuda.cuFFTPlanCacheManager)
    assert cuda.cuBLASModule.__module__ == cuda.SDPAParams.__module__ == "backline.backends.cuda"


@pytest.mark.parametrize(
    ("name", "slip", "near"), [("", "flag", "flags"), ("matmul", "allow_tf3", "allow_tf32"), ("cufft_plan_cache", "max_sise", "max_size")]
)
def test_unknown_names_are_refused_with_the_nearest(name, slip, near):
    owner = getattr(cuda, name) if name else cuda  # not when the tests are collected: another one reloads the module
    for attempt in (lambda: getattr(owner, slip), lambda: setattr(owner, slip, 1)):
        with pytest.raises(UnknownName, match=f"{slip}.*(?s:.*){near}"):
            attempt()
    with pytest.raises(UnknownName, match="cannot be deleted"):
        delattr(owner, near)


def test_pickling_and_reloading():
    for thing in (cuda, cuda.matmul, cuda.cufft_plan_cache):
        assert pickle.loads(pickle.dumps(thing)) is thing
    with cuda.flags(flash_sdp=False):
        assert importlib.reload(cuda) is cuda and not cuda.flash_sdp_enabled()
    assert pickle.loads(pickle.dumps(cuda.cufft_plan_cache)) is cuda.cufft_plan_cache
    cuda.matmul.allow_tf32 = True
    assert switches.get("cuda.matmul.fp32_precision") == "tf32"


def test_without_a_driver_nothing_is_available_and_nothing_raises():
    assert cuda.is_available() is False and cuda.is_ck_sdpa_available() is False
    assert cuda.version() is None or isinstance(cuda.version(), int)


def test_is_built_needs_cupy_and_cublas_but_no_driver(monkeypatch):
    from backline.libraries import python_packages

    monkeypatch.setattr(python_packages, "find", lambda name, part="": ("/site/cupy", (), ""))
    assert cuda.is_built() is False
    there("cublas", monkeypatch=monkeypatch)
    assert cuda.is_built() is True and cuda.is_available() is False


# --- preferred libraries ------------------------------------------------------------------------------------------

PREFERENCES = [
    (cuda.preferred_linalg_library, cuda.LinalgBackend, "cuda.preferred_linalg_library", {"cusolver": "cusolver", "magma": "magma"}),
    (cuda.preferred_blas_library, cuda.BlasBackend, "cuda.preferred_blas_library", {"cublas": "cublas", "cublaslt": "cublaslt", "ck": "composable_kernel"}),
    (cuda.preferred_rocm_fa_library, cuda.ROCmFABackend, "cuda.preferred_rocm_fa_library", {"aotriton": "aotriton", "ck": "composable_kernel"}),
]  # fmt: skip
WORDS = [(*row[:3], word, library) for row in PREFERENCES for word, library in row[3].items()]


def member(enum: Any, word: str) -> Any:
    return next(m for m in enum if m.name.lower() == word)


@pytest.mark.parametrize(("function", "enum", "switch", "word", "library"), WORDS)
@pytest.mark.parametrize("as_member", [True, False])
def test_a_preference_round_trips_as_a_word_and_as_a_member(function, enum, switch, word, library, as_member, monkeypatch):
    there(library, monkeypatch=monkeypatch)
    assert function(member(enum, word) if as_member else word) is member(enum, word)
    assert function() is member(enum, word) and switches.current()[switch] == word
    assert function("default") in (enum.Default, cuda.BlasBackend.Cublas) and switches.current()[switch] == "default"


@pytest.mark.parametrize(("function", "enum", "switch", "word", "library"), [row for row in WORDS if row[3] != "cublas"])
def test_an_absent_library_is_refused_and_nothing_is_stored(function, enum, switch, word, library):
    before = function(), everything()
    for asked in (word, member(enum, word)):
        with pytest.raises(BackendUnavailable) as caught:
            function(asked)
        assert f"{switch} = {word!r}" in str(caught.value) and "here; there" in str(caught.value) and "install" in str(caught.value)
    keyword = switch.rpartition(".")[2]
    with pytest.raises(BackendUnavailable):
        cuda.flags(**{keyword: word})
    with pytest.raises(BackendUnavailable):
        cuda.set_flags(**{f"_{keyword}": word, "_flash_sdp": False})
    assert (function(), everything()) == before


@pytest.mark.parametrize(("function", "enum", "switch", "words"), PREFERENCES)
def test_other_values_are_refused_naming_switch_value_and_legal_values(function, enum, switch, words):
    before = everything()
    for value, error in (("cublax", BadValue), ("", BadValue), ("DEFAULT", BadValue), (1, BadType), (True, BadType), (b"default", BadType), (["default"], BadType), (np.int64(0), BadType), (cuda.SDPBackend.MATH, BadType)):
        with pytest.raises(error) as caught:
            function(value)
        assert switch in str(caught.value) and repr(value)[:10] in str(caught.value)
        assert all(repr(word) in str(caught.value) for word in ("default", *words))
    assert everything() == before


def test_a_preference_of_another_enumeration_is_refused():
    with pytest.raises(BadType):
        cuda.preferred_linalg_library(cuda.BlasBackend.Default)


@pytest.mark.parametrize(("synonym", "wanted"), [("hipblas", cuda.BlasBackend.Cublas), ("hipblaslt", cuda.BlasBackend.Cublaslt)])
def test_amds_names_for_blas_are_taken(synonym, wanted, monkeypatch):
    there("cublas", "cublaslt", monkeypatch=monkeypatch)
    assert cuda.preferred_blas_library(synonym) is wanted


def test_a_query_resolves_the_default_for_blas_and_stores_nothing(monkeypatch):
    assert cuda.preferred_blas_library() is cuda.BlasBackend.Cublas
    monkeypatch.setattr(devices, "amd_architecture", lambda index: "gfx942")
    assert cuda.preferred_blas_library() is cuda.BlasBackend.Cublaslt
    monkeypatch.setattr(devices, "amd_architecture", lambda index: "gfx1100")
    assert cuda.preferred_blas_library() is cuda.BlasBackend.Cublas
    assert switches.current()["cuda.preferred_blas_library"] == "default"


def test_a_preference_has_a_scope_and_assignments_end_with_it(monkeypatch):
    there("cusolver", "magma", monkeypatch=monkeypatch)
    with cuda.flags(preferred_linalg_library="magma"):
        assert cuda.preferred_linalg_library() is cuda.LinalgBackend.Magma
        cuda.preferred_linalg_library(cuda.LinalgBackend.Cusolver)
        assert cuda.preferred_linalg_library() is cuda.LinalgBackend.Cusolver
    assert cuda.preferred_linalg_library() is cuda.LinalgBackend.Default


@pytest.mark.parametrize(
    ("variable", "text", "function", "wanted"),
    [
        ("TORCH_LINALG_PREFER_CUSOLVER", "1", cuda.preferred_linalg_library, "Cusolver"),
        ("TORCH_LINALG_PREFER_CUSOLVER", "0", cuda.preferred_linalg_library, "Default"),
        ("TORCH_LINALG_PREFER_HIPSOLVER", "1", cuda.preferred_linalg_library, "Cusolver"),
        ("TORCH_BLAS_PREFER_CUBLASLT", "1", cuda.preferred_blas_library, "Cublaslt"),
        ("TORCH_BLAS_PREFER_HIPBLASLT", "1", cuda.preferred_blas_library, "Cublaslt"),
        ("TORCH_ROCM_FA_PREFER_CK", "1", cuda.preferred_rocm_fa_library, "Ck"),
        ("BACKLINE_CUDA_PREFERRED_LINALG_LIBRARY", "magma", cuda.preferred_linalg_library, "Magma"),
    ],
)
def test_the_environment_may_prefer_what_is_absent(variable, text, function, wanted, monkeypatch):
    monkeypatch.setenv(variable, text)
    store._restart()
    assert function().name == wanted


# --- workspaces ---------------------------------------------------------------------------------------------------

SIZES = [("cublas_workspace_size", cuda.cublas_workspace_size), ("cublaslt_workspace_size", cuda.cublaslt_workspace_size), ("blas_workspace_size", cuda.blas_workspace_size)]


@pytest.mark.parametrize(("name", "function"), SIZES)
def test_without_a_device_a_size_reads_its_default_and_cannot_be_set(name, function):
    assert function() == 8_519_680
    with pytest.raises(BackendUnavailable, match="workspace_size = 1"):
        function(1)
    assert function() == 8_519_680


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(("name", "function"), SIZES)
def test_a_size_round_trips(name, function):
    for size in (0, 5 * MIB, np.int64(3 * MIB), 2**33):
        cuda.cublas_workspace_size(max(int(size), 2**33))
        assert function(size) == int(size) and function() == int(size) and type(function()) is int


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(("name", "function"), SIZES)
@pytest.mark.parametrize(("value", "error"), [(-1, BadValue), (1.5, BadType), (True, BadType), ("8MB", BadType)])
def test_a_bad_size_is_refused_and_changes_nothing(name, function, value, error):
    before = function(), everything()
    with pytest.raises(error) as caught:
        function(value)
    switch = "cuda.cublas_workspace_size" if name == "blas_workspace_size" else f"cuda.{name}"
    assert switch in str(caught.value) and repr(value) in str(caught.value) and "0 (the nearest)" in str(caught.value)
    assert (function(), everything()) == before


def test_the_default_size_is_larger_on_capability_9_0(two_devices):
    assert cuda.cublas_workspace_size() == cuda.cublaslt_workspace_size() == 32 * MIB
    two_devices(1)
    assert cuda.cublas_workspace_size() == 8_519_680
    two_devices(0)
    assert cuda.cublas_workspace_size(8_519_680) == 8_519_680  # said, so it counts


@pytest.mark.usefixtures("two_devices")
def test_cublaslt_follows_cublas_and_never_exceeds_it_while_they_share(monkeypatch):
    cuda.cublas_workspace_size(4 * MIB)
    assert cuda.cublaslt_workspace_size() == 4 * MIB
    assert cuda.cublaslt_workspace_size(64 * MIB) == 4 * MIB
    cuda.cublas_workspace_size(16 * MIB)
    assert cuda.cublaslt_workspace_size() == 16 * MIB
    assert cuda.cublaslt_workspace_size(1 * MIB) == 1 * MIB
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0")
    assert cuda.cublaslt_workspace_size(64 * MIB) == 64 * MIB


@pytest.mark.usefixtures("two_devices")
def test_a_size_has_a_scope_that_gives_back_the_default():
    with cuda.flags(cublas_workspace_size=MIB, cublaslt_workspace_size=MIB // 2):
        assert (cuda.cublas_workspace_size(), cuda.cublaslt_workspace_size()) == (MIB, MIB // 2)
        cuda.cublas_workspace_size(2 * MIB)
        assert cuda.cublas_workspace_size() == 2 * MIB
    assert cuda.cublas_workspace_size() == 32 * MIB
    old = cuda.set_flags(_cublas_workspace_size=MIB)
    assert old[3:5] == (32 * MIB, 32 * MIB) and cuda.cublas_workspace_size() == MIB


@pytest.mark.usefixtures("two_devices")
def test_blas_workspace_size_is_that_of_the_library_given_or_preferred(monkeypatch):
    there("cublas", "cublaslt", "composable_kernel", monkeypatch=monkeypatch)
    cuda.cublaslt_workspace_size(MIB)
    assert cuda.blas_workspace_size() == cuda.blas_workspace_size(backend="cublas") == 32 * MIB
    for backend in ("cublaslt", "hipblaslt", cuda.BlasBackend.Cublaslt):
        assert cuda.blas_workspace_size(backend=backend) == MIB
    for backend in ("default", "hipblas", cuda.BlasBackend.Default):
        assert cuda.blas_workspace_size(backend=backend) == 32 * MIB
    assert cuda.blas_workspace_size(2 * MIB, "cublaslt") == cuda.cublaslt_workspace_size() == 2 * MIB
    cuda.preferred_blas_library("cublaslt")
    assert cuda.blas_workspace_size(3 * MIB) == cuda.cublaslt_workspace_size() == 3 * MIB
    for call in (lambda: cuda.blas_workspace_size(backend="ck"), lambda: cuda.blas_workspace_size(1, cuda.BlasBackend.Ck)):
        with pytest.raises(BadValue, match=r"cuda\.blas_workspace_size: the library 'ck' has no workspace(?s:.*)the one given"):
            call()
    cuda.preferred_blas_library("ck")
    with pytest.raises(BadValue, match="the preferred one"):
        cuda.blas_workspace_size()


@pytest.mark.parametrize(("backend", "error"), [("cusolver", BadValue), (1, BadType), (cuda.LinalgBackend.Cusolver, BadType)])
def test_blas_workspace_size_names_its_argument(backend, error):
    with pytest.raises(error, match=r"cuda\.blas_workspace_size\.backend(?s:.*)'cublaslt'"):
        cuda.blas_workspace_size(backend=backend)


@pytest.mark.parametrize(
    ("variables", "cublas", "cublaslt"),
    [
        ({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, 32 * MIB, 32 * MIB),
        ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, 128 << 10, 128 << 10),
        ({"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}, 8_519_680, 8_519_680),
        ({"CUBLAS_WORKSPACE_CONFIG": "4096"}, 8_519_680, 8_519_680),
        ({"CUBLASLT_WORKSPACE_SIZE": "1024"}, 8_519_680, MIB),
        ({"CUBLASLT_WORKSPACE_SIZE": "102400"}, 8_519_680, 8_519_680),
        ({"CUBLASLT_WORKSPACE_SIZE": "102400", "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"}, 8_519_680, 100 * MIB),
        ({"CUBLASLT_WORKSPACE_SIZE": "many"}, 8_519_680, 8_519_680),
        ({"CUBLAS_WORKSPACE_CONFIG": ":16:8", "BACKLINE_CUDA_CUBLAS_WORKSPACE_SIZE": "4096"}, 4096, 4096),
    ],
)
def test_sizes_start_from_the_environment(variables, cublas, cublaslt, monkeypatch):
    for name in ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    store._restart()
    assert (cuda.cublas_workspace_size(), cuda.cublaslt_workspace_size()) == (cublas, cublaslt)


# --- attention switches -------------------------------------------------------------------------------------------

SDP = [
    ("flash_sdp", cuda.flash_sdp_enabled, cuda.enable_flash_sdp, True),
    ("mem_efficient_sdp", cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp, True),
    ("math_sdp", cuda.math_sdp_enabled, cuda.enable_math_sdp, True),
    ("cudnn_sdp", cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp, True),
    ("fp16_bf16_reduction_math_sdp", cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp, False),
]


@pytest.mark.parametrize(("name", "get", "put", "default"), SDP)
def test_an_attention_switch_round_trips(name, get, put, default):
    assert get() is default
    for value in (not default, default, np.bool_(not default)):
        assert put(value) is None and get() is bool(value)


@pytest.mark.parametrize(("name", "get", "put", "default"), SDP)
@pytest.mark.parametrize("value", [1, 0, None, "True", [True], np.int8(1)])
def test_an_attention_switch_takes_bools_only_and_names_itself(name, get, put, default, value):
    before = everything()
    with pytest.raises(BadType) as caught:
        put(value)
    text = str(caught.value)
    assert f"cuda.{name} takes a bool" in text and "True, False" in text and not any(f"cuda.{other[0]} " in text for other in SDP if other[0] != name)
    assert "%" not in text and "{" not in text
    assert everything() == before


@pytest.mark.parametrize(("name", "get", "put", "default"), SDP)
def test_an_attention_switch_has_a_scope_and_set_flags(name, get, put, default):
    before = everything()
    with cuda.flags(**{name: not default}):
        assert everything() == {**before, f"cuda.{name}": not default}
        put(default)
        assert get() is default
    assert everything() == before
    old = cuda.set_flags(**{f"_{name}": not default})
    assert old[FLAGS.index(name)] is default and get() is not default


def test_every_setter_is_frozen_outside_scopes():
    run("""
        from backline import backends, switches
        from backline.backends import cuda
        from backline.errors import Frozen
        backends.disable_global_flags()
        before = dict(switches.current().items())
        calls = [
            lambda: cuda.enable_flash_sdp(False), lambda: cuda.enable_mem_efficient_sdp(False), lambda: cuda.enable_math_sdp(False),
            lambda: cuda.enable_cudnn_sdp(False), lambda: cuda.allow_fp16_bf16_reduction_math_sdp(True),
            lambda: setattr(cuda.matmul, "allow_tf32", True), lambda: setattr(cuda.matmul, "fp32_precision", "tf32"),
            lambda: setattr(cuda.matmul, "allow_fp16_accumulation", True),
            lambda: setattr(cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
            lambda: setattr(cuda.matmul, "allow_bf16_reduced_precision_reduction", (False, False)),
            lambda: cuda.preferred_linalg_library("default"), lambda: cuda.preferred_blas_library("default"),
            lambda: cuda.preferred_rocm_fa_library("default"), lambda: cuda.set_flags(_flash_sdp=False),
            lambda: cuda.matmul.set_flags(_allow_tf32=True),
        ]
        for call in calls:
            try:
                call()
            except Frozen as error:
                assert "with backline." in str(error) and "cuda." in str(error), error
            else:
                raise SystemExit("not refused")
        assert dict(switches.current().items()) == before
        with cuda.flags(), cuda.matmul.flags():
            for call in calls:
                call()
            assert not cuda.flash_sdp_enabled() and cuda.matmul.allow_tf32
        assert dict(switches.current().items()) == before
    """)


def test_the_old_scope_warns_once_sets_all_four_and_forbids_extensions():
    cuda.enable_math_sdp(False)
    with pytest.warns(FutureWarning, match="sdpa_kernel") as caught:
        scope = cuda.sdp_kernel(enable_flash=False)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with scope:
            assert [get() for _, get, _, _ in SDP[:4]] == [False, True, True, True]
            assert switches.get("cuda.overrideable_sdp") is False
    assert [get() for _, get, _, _ in SDP[:4]] == [True, True, False, True] and switches.get("cuda.overrideable_sdp") is True


@pytest.mark.parametrize("name", ["enable_flash", "enable_math", "enable_mem_efficient", "enable_cudnn"])
@pytest.mark.parametrize("value", [None, 1, "no"])
def test_the_old_scope_takes_bools_only(name, value):
    with pytest.warns(FutureWarning), pytest.raises(BadType, match=name):
        cuda.sdp_kernel(**{name: value})


# --- SDPAParams and can_use_* -------------------------------------------------------------------------------------

X = np.zeros((1, 2, 4, 8), np.float16)


def params(query: Any = X, key: Any = None, value: Any = None, mask: Any = None, dropout: float = 0.0, causal: bool = False, gqa: bool = False) -> Any:
    return cuda.SDPAParams(query, query if key is None else key, query if value is None else value, mask, dropout, causal, gqa)


class OnDevice:
    """The parts of a CuPy array that are looked at."""

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.float16, index: int = 0, ptr: int = 512, step: int = 1) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        inner = np.zeros((0, *shape[1:]), self.dtype).strides
        self.strides = (*inner[:-1], self.dtype.itemsize * step)
        self.device, self.data = types.SimpleNamespace(id=index), types.SimpleNamespace(ptr=ptr)


class Fused(Library):
    """Has the fused kernels, on every device."""

    name = "fused_kernels"
    title = "Fused kernels"
    families = ("attention",)
    devices = ("cpu", "cuda")
    kernels = ("flash_attention", "efficient_attention", "cudnn_attention")
    missing = ""

    def reason(self) -> str:
        return self.missing

    def version(self) -> str:
        return "1"

    def algorithms(self, problem: Any, threads: int) -> Iterator[Any]:
        return iter(())


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fused]:
    """The only library there is."""
    library = Fused()
    libraries.register(library)
    monkeypatch.setattr(libraries, "names", lambda: (library.name,))
    yield library
    libraries.unregister("fused_kernels")


ASK = {
    "flash_attention": cuda.can_use_flash_attention,
    "efficient_attention": cuda.can_use_efficient_attention,
    "cudnn_attention": cuda.can_use_cudnn_attention,
}


def why(kernel: str, asked: Any) -> str:
    """The reason that `debug` warns; an empty string if the kernel can be used."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        can = ASK[kernel](asked, debug=True)
    assert len(caught) == (not can) and can is ASK[kernel](asked)
    if can:
        return ""
    assert caught[0].category is UserWarning and caught[0].filename == __file__
    head = f"{kernel} cannot run this call: "
    assert str(caught[0].message).startswith(head)
    return str(caught[0].message).removeprefix(head)


def test_parameters_are_read_only_fields():
    asked = params(mask=np.ones((4, 4), bool), dropout=0.25, causal=True, gqa=True)
    assert (asked.query is X, asked.key is X, asked.value is X, asked.attn_mask.shape) == (True, True, True, (4, 4))
    assert (asked.dropout, asked.is_causal, asked.enable_gqa) == (0.25, True, True)
    for name in ("query", "key", "value", "attn_mask", "dropout", "is_causal", "enable_gqa"):
        with pytest.raises(ReadOnly, match=name):
            setattr(asked, name, 1)
    with pytest.raises(UnknownName, match=r"(?s)qery.*query"):
        asked.qery = 1
    with pytest.raises(AttributeError):
        _ = asked.scale
    assert "float16[1, 2, 4, 8]" in repr(asked) and "with a mask" in repr(asked)
    again = pickle.loads(pickle.dumps(asked))
    assert again.dropout == 0.25 and (again.query == X).all()


def test_all_parameters_are_required_and_checked():
    with pytest.raises(TypeError):
        cuda.SDPAParams(X, X, X)
    good = (X, X, X, None, 0.0, False, False)
    for place, name, bad in ((0, "query", [1.0]), (1, "key", None), (2, "value", "x"), (3, "attn_mask", 1), (4, "dropout", "0"), (4, "dropout", True), (5, "is_causal", 1), (6, "enable_gqa", None)):
        with pytest.raises(BadType, match=name):
            cuda.SDPAParams(*good[:place], bad, *good[place + 1 :])
    assert cuda.SDPAParams(X, X, X, None, np.float32(0.5), np.True_, np.False_).dropout == 0.5


@pytest.mark.parametrize("kernel", ASK)
def test_the_questions_take_parameters_and_a_bool(kernel):
    with pytest.raises(BadType, match=f"cuda.{ASK[kernel].__name__} takes SDPAParams, not tuple"):
        ASK[kernel]((X, X, X))
    with pytest.raises(BadType, match=r"debug"):
        ASK[kernel](params(), debug=1)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(("kernel", "switch"), [("flash_attention", "flash_sdp"), ("efficient_attention", "mem_efficient_sdp"), ("cudnn_attention", "cudnn_sdp")])
def test_a_switch_that_is_off_is_the_first_reason(kernel, switch):
    with cuda.flags(**{switch: False}):
        assert why(kernel, params(dropout=7.0)).startswith(f"disabled by cuda.{switch}, scope ({__file__}")


def test_an_absent_library_is_the_next_reason(fused):
    fused.missing = "it was not built"
    assert why("flash_attention", params(dropout=0.5)) == "fused_kernels is not available: it was not built"
    fused.devices = ("mps",)
    assert why("flash_attention", params()) == "no library here has it for arrays on cpu"
    for kernel in ASK:
        assert why(kernel, params(OnDevice(X.shape))) == "no library here has it for arrays on cuda"
    fused.devices, fused.missing, fused.switch = ("cpu",), "", "blis.enabled"
    with backends.blis.flags(enabled=False):
        assert why("flash_attention", params()).startswith("fused_kernels is disabled by blis.enabled, scope")


@pytest.mark.usefixtures("fused")
def test_the_list_of_the_arrays_own_device_is_run():
    assert why("flash_attention", params()) == ""
    assert why("flash_attention", params(dropout=0.5)) == "there may be no dropout, and it is 0.5"
    assert why("efficient_attention", params()) == "it is for arrays on cuda, not on cpu"
    assert why("cudnn_attention", params()) == "it is for arrays on cuda, not on cpu"
    assert "capability must be 8.0 to 12.1, not None" in why("flash_attention", params(OnDevice(X.shape)))
    assert "several devices" in why("flash_attention", params(X, OnDevice(X.shape)))
    assert "exclude each other" in why("flash_attention", params(mask=np.ones((4, 4), bool), causal=True))


@pytest.mark.usefixtures("fused", "two_devices")
def test_each_devices_own_capability_counts(monkeypatch):
    monkeypatch.setattr(devices, "_capabilities", lambda path: ((9, 0), (7, 5)))
    there("cudnn", monkeypatch=monkeypatch, version=91500)
    for kernel in ("flash_attention", "cudnn_attention"):
        assert why(kernel, params(OnDevice(X.shape, index=0))) == ""
        assert "not (7, 5)" in why(kernel, params(OnDevice(X.shape, index=1)))
    assert why("efficient_attention", params(OnDevice(X.shape, index=1))) == ""
    with backends.flags(deterministic=True):
        assert "same bits" in why("cudnn_attention", params(OnDevice(X.shape)))
    with backends.flags(deterministic=True, warn_only=True):
        assert why("cudnn_attention", params(OnDevice(X.shape))) == ""


SHAPES = st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2, 4, 3]), st.sampled_from([0, 1, 4]), st.sampled_from([1, 6, 8, 64, 192, 264]))
DTYPES = st.sampled_from([np.float16, ml_dtypes.bfloat16, np.float32, np.float64])


@pytest.mark.usefixtures("fused", "two_devices")
@settings(max_examples=300, deadline=None)
@given(data=st.data(), kernel=st.sampled_from([*ASK]), on_cuda=st.booleans(), index=st.sampled_from([0, 1]), q=SHAPES, dtype=DTYPES)
def test_the_questions_agree_with_the_table(data, kernel, on_cuda, index, q, dtype):
    k = (q[0], data.draw(st.sampled_from([q[1], 1])), data.draw(st.sampled_from([q[2], 1, 4])), q[3])
    v = (*k[:3], data.draw(st.sampled_from([q[3], 8])))
    make: Any = (lambda shape: OnDevice(shape, dtype, index)) if on_cuda else (lambda shape: np.zeros(shape, dtype))
    mask = data.draw(st.sampled_from([None, (q[2], k[2]), (3, 3), (q[0], 1, 1, k[2])]))
    mask = None if mask is None else OnDevice(mask, bool, index) if on_cuda else np.ones(mask, bool)
    dropout, causal, gqa = data.draw(st.sampled_from([0.0, 0.0, 0.25, 0.3])), data.draw(st.booleans()), data.draw(st.booleans())
    arrays = [make(shape) for shape in (q, k, v)]
    asked = params(*arrays, mask, dropout, causal, gqa)
    problem = attention_problem(*arrays, mask, dropout, causal, None, gqa)
    assert why(kernel, asked) == attention_constraints.refusal(kernel, problem, attention_constraints.facts_of(problem.device))


@pytest.mark.parametrize(("device", "wanted"), [(None, "cuda"), ("cpu", "cpu"), ("cuda", "cuda"), ("mps", "mps")])
def test_flash_attention_is_available_where_a_library_has_it(device, wanted, fused):
    for there in ((), ("cpu",), ("cuda",), ("mps",), ("cpu", "cuda", "mps")):
        fused.devices = there
        assert cuda.is_flash_attention_available(device) is (wanted in there)
    fused.devices, fused.missing = ("cpu", "cuda", "mps"), "no"
    assert cuda.is_flash_attention_available(device) is False


@pytest.mark.parametrize(("device", "error"), [("tpu", BadValue), ("CPU", BadValue), (0, BadType), (True, BadType)])
def test_other_devices_are_refused(device, error):
    with pytest.raises(error, match=r"cuda\.is_flash_attention_available\.device(?s:.*)'cpu'"):
        cuda.is_flash_attention_available(device)


# --- matmul -------------------------------------------------------------------------------------------------------

def test_the_switches_of_products_start_as_in_the_model():
    matmul = cuda.matmul
    assert {name: getattr(matmul, name) for name in dir(matmul) if "flags" not in name} == {
        "allow_tf32": False, "allow_fp16_reduced_precision_reduction": True, "allow_bf16_reduced_precision_reduction": True,
        "allow_fp16_reduced_precision_reduction_split_k": True, "allow_bf16_reduced_precision_reduction_split_k": True,
        "allow_fp16_accumulation": False, "fp32_precision": "none",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("given", "reduced", "split"),
    [(True, True, True), (False, False, True), ((True,), True, True), ([False], False, True), ((True, True), True, True), ((False, True), False, True), ([False, False], False, False), (np.False_, False, True)],
)
def test_reductions_take_one_bool_or_two(kind, given, reduced, split):
    matmul, name = cuda.matmul, f"allow_{kind}_reduced_precision_reduction"
    setattr(matmul, name, given)
    assert (getattr(matmul, name), getattr(matmul, f"{name}_split_k")) == (reduced, split)
    setattr(matmul, name, True)
    with matmul.flags(**{name: given}):
        assert (getattr(matmul, name), getattr(matmul, f"{name}_split_k")) == (reduced, split)
    assert (getattr(matmul, name), getattr(matmul, f"{name}_split_k")) == (True, True)


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("value", "error"),
    [((True, False), BadValue), ((), BadValue), ((True, True, True), BadValue), (1, BadType), (None, BadType), ((1, True), BadType), ("yes please", BadType)],
)
def test_reductions_refuse_the_rest(kind, value, error):
    name, before = f"allow_{kind}_reduced_precision_reduction", everything()
    with pytest.raises(error, match=rf"cuda\.matmul\.{name}(?s:.*)\(False, True\)"):
        setattr(cuda.matmul, name, value)
    assert everything() == before


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_the_second_item_is_read_only(kind):
    name = f"allow_{kind}_reduced_precision_reduction"
    with pytest.raises(ReadOnly, match=rf"cuda\.matmul\.{name} = \(reduced, split_k\)"):
        setattr(cuda.matmul, f"{name}_split_k", False)


@pytest.mark.parametrize(("value", "node"), [(True, "tf32"), (False, "ieee")])
def test_allow_tf32_is_a_view_of_the_precision(value, node):
    cuda.matmul.allow_tf32 = value
    assert (cuda.matmul.fp32_precision, cuda.matmul.allow_tf32) == (node, value)
    with pytest.raises(BadType, match=r"cuda\.matmul\.allow_tf32"):
        cuda.matmul.allow_tf32 = 1


@pytest.mark.parametrize("word", ["none", "ieee", "tf32"])
def test_the_precision_of_products(word):
    cuda.matmul.fp32_precision = word
    assert cuda.matmul.fp32_precision == word
    for bad in ("bf16", "TF32", ""):
        with pytest.raises(BadValue, match=r"cuda\.matmul\.fp32_precision"):
            cuda.matmul.fp32_precision = bad


@pytest.mark.parametrize("value", [1, None, "True"])
def test_accumulation_takes_bools(value):
    cuda.matmul.allow_fp16_accumulation = True
    with pytest.raises(BadType, match=r"cuda\.matmul\.allow_fp16_accumulation"):
        cuda.matmul.allow_fp16_accumulation = value
    assert cuda.matmul.allow_fp16_accumulation is True


@pytest.mark.parametrize(("name", "value"), [("allow_tf32", True), ("allow_fp16_reduced_precision_reduction", (False, False)), ("allow_bf16_reduced_precision_reduction", False), ("allow_fp16_accumulation", True), ("fp32_precision", "tf32")])
def test_flags_of_products_change_only_what_is_named(name, value):
    before = everything()
    with cuda.matmul.flags(**{name: value}):
        changed = {key for key, held in everything().items() if held != before[key]}
        assert changed == {"cuda.matmul.fp32_precision" if name == "allow_tf32" else f"cuda.matmul.{name}"}
        cuda.matmul.allow_fp16_accumulation = False
    assert everything() == before
    with pytest.raises(BadType):
        cuda.matmul.flags(allow_fp16_accumulation=True, allow_tf32=3)
    with pytest.raises(BadValue, match="contradict"):
        cuda.matmul.flags(allow_tf32=True, fp32_precision="ieee")
    assert everything() == before


# --- cufft_plan_cache ---------------------------------------------------------------------------------------------


def test_without_a_device_the_plan_cache_is_empty_and_cannot_be_set():
    cache = cuda.cuFFTPlanCacheManager()  # that of the module may have been indexed by tests on played devices
    assert (cache.size, cache.max_size, cache.clear(), cache.caches) == (0, 4096, None, [])
    with cache.flags():
        pass
    for attempt in (
        lambda: cache[0], lambda: cache["cuda:0"], lambda: setattr(cache, "max_size", 3), lambda: cache.flags(max_size=3),
        lambda: cuda.cuFFTPlanCache(0),
    ):  # fmt: skip
        with pytest.raises(BackendUnavailable, match=r"cuda\.cufft_plan_cache(?s:.*)libcuda(?s:.*)here; there"):
            attempt()
    with pytest.raises(ReadOnly, match="max_size"):
        cache.size = 3


def test_the_default_of_the_plan_cache_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("BACKLINE_CUDA_CUFFT_PLAN_CACHE_MAX_SIZE", "17")
    store._restart()
    assert cuda.cufft_plan_cache.max_size == 17


class DeviceLike:
    """Device objects as CuPy, cuda.core, PyTorch and MLX have them."""

    def __init__(self, text: str = "", **fields: Any) -> None:
        self.__dict__.update(fields)
        self._text = text

    def __str__(self) -> str:
        return self._text


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(
    "device",
    [1, np.int32(1), "cuda:1", DeviceLike(id=1), DeviceLike(device_id=1), DeviceLike("cuda:1", type="cuda", index=1)],
    ids=["int", "numpy", "text", "CuPy", "cuda.core", "PyTorch"],
)
def test_a_cache_is_found_by_index_text_or_device(device):
    found = cuda.cufft_plan_cache[device]
    assert isinstance(found, cuda.cuFFTPlanCache) and found.device_index == 1 and found is cuda.cufft_plan_cache[1]


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("device", [None, 2, -1, "cuda:2", "cpu", "mps", "cuda:", "cuda:x", "cuda:-1", "1", "", DeviceLike("cpu", type="cpu", index=None), DeviceLike("Device(gpu, 0)"), DeviceLike(id=5), (0,), "cuda:¹"])
def test_other_devices_have_no_cache(device):
    with pytest.raises(BadValue, match=r"cuda\.cufft_plan_cache\[(?s:.*)0 <= index < 2"):
        cuda.cufft_plan_cache[device]


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("device", [True, 1.0])
def test_bools_and_floats_are_no_devices(device):
    with pytest.raises(BadType, match=r"cuda\.cufft_plan_cache"):
        cuda.cufft_plan_cache[device]


def test_without_an_index_the_current_device_is_meant(two_devices):
    cache = cuda.cufft_plan_cache
    two_devices(1)
    cache.max_size = 10
    cufft_plans(1).get("a", object)
    assert (cache.max_size, cache.size, cache[1].max_size, cache[0].max_size, cache[0].size) == (10, 1, 10, 4096, 0)
    assert cache["cuda"] is cache[1]
    two_devices(0)
    assert (cache.max_size, cache.size) == (4096, 0)
    cache[1].clear()
    assert cache[1].size == 0


@pytest.mark.usefixtures("two_devices")
def test_caches_lists_those_made_so_far():
    manager = cuda.cuFFTPlanCacheManager()
    assert manager.caches == []
    one, zero = manager[1], manager[0]
    assert manager.caches == [one, zero] and manager[1] is one


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("index", [None, 0, 1])
def test_the_bound_round_trips_and_evicts(index):
    cache = cuda.cufft_plan_cache if index is None else cuda.cufft_plan_cache[index]
    plans = cufft_plans(index or 0)
    for key in range(6):
        plans.get(key, object)
    for bound in (4096, 5, np.int64(2), 0):
        cache.max_size = bound
        assert cache.max_size == int(bound) and cache.size == min(6, int(bound)) == plans.size
    for value, error in ((-1, BadValue), ("3", BadType), (None, BadType), (True, BadType), (2.0, BadType)):
        with pytest.raises(error, match=rf"cuda\.cufft_plan_cache\.device{index or 0}\.max_size"):
            cache.max_size = value
    assert cache.max_size == 0


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("index", [None, 1])
def test_the_bound_has_a_scope(index):
    cache = cuda.cufft_plan_cache if index is None else cuda.cufft_plan_cache[index]
    with cache.flags(max_size=5):
        assert cache.max_size == 5 and cuda.cufft_plan_cache[0 if index else 1].max_size == 4096
        cache.max_size = 6
        assert cache.max_size == 6
    assert cache.max_size == 4096

    @cache.flags(7)
    def inside() -> int:
        return cache.max_size

    assert inside() == 7
    with pytest.raises(BadValue):
        cache.flags(max_size=-1)


@pytest.mark.usefixtures("two_devices")
def test_an_assignment_is_traced_to_the_users_line():
    for cache in (cuda.cufft_plan_cache, cuda.cufft_plan_cache[0]):
        cache.max_size = 9
        line = inspect.currentframe().f_lineno - 1
        assert str(switches.origin("cuda.cufft_plan_cache.device0.max_size")) == f"assignment ({__file__}:{line})"


@pytest.mark.usefixtures("two_devices")
def test_a_cache_keeps_its_names():
    cache = cuda.cufft_plan_cache[1]
    assert [name for name in dir(cache) if not name.startswith("_")] == ["clear", "device_index", "flags", "max_size", "size"]
    with pytest.raises(ReadOnly, match="max_size"):
        cache.size = 1
    for name in ("device_index", "clear"):
        with pytest.raises(ReadOnly, match=name):
            setattr(cache, name, 0)
    for attempt in (lambda: cache.sise, lambda: setattr(cache, "sise", 1), lambda: setattr(cuda.cufft_plan_cache, "cache", 1)):
        with pytest.raises(UnknownName):
            attempt()
    assert pickle.loads(pickle.dumps(cache)) is cache and repr(cache) == "<backline.backends.cuda.cufft_plan_cache[1]: 0 of 4096>"


@pytest.mark.usefixtures("two_devices")
def test_a_frozen_base_refuses_bounds_but_scopes_take_them(monkeypatch):
    monkeypatch.setattr(store, "_is_frozen", True)
    with pytest.raises(Frozen, match=r"cuda\.cufft_plan_cache\.device0\.max_size = 3(?s:.*)with backline"):
        cuda.cufft_plan_cache.max_size = 3
    with backends.flags():
        cuda.cufft_plan_cache.max_size = 3
        assert cuda.cufft_plan_cache.max_size == 3
    assert cuda.cufft_plan_cache.max_size == 4096


def test_the_descriptor_passes_the_index_and_a_text_makes_it_read_only():
    seen = []

    class Cache:
        device_index = 4
        size = cuda.cuFFTPlanCacheAttrContextProp(lambda index: 10 * index, "size is read-only, set max_size")
        max_size = cuda.cuFFTPlanCacheAttrContextProp(lambda index: index, lambda index, value: seen.append((index, value)))

    cache = Cache()
    assert (cache.size, cache.max_size) == (40, 4)
    cache.max_size = 3
    assert seen == [(4, 3)]
    with pytest.raises(ReadOnly, match="size is read-only, set max_size"):
        cache.size = 1
    assert isinstance(Cache.size, cuda.cuFFTPlanCacheAttrContextProp)
