"""Environment variables of other programs: those that set a switch, and those that are left alone; and answers without a device."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest

import backline
from backline import backends, switches
from backline.errors import BackendUnavailable
from backline.switches import cpu_capability, store

# variable, its text, what is read then
SETS: list[tuple[str, str, str, Any]] = [
    ("TORCH_LINALG_PREFER_CUSOLVER", "1", "backends.cuda.preferred_linalg_library().name", "Cusolver"),
    ("TORCH_LINALG_PREFER_HIPSOLVER", "1", "backends.cuda.preferred_linalg_library().name", "Cusolver"),
    ("TORCH_LINALG_PREFER_CUSOLVER", "0", "backends.cuda.preferred_linalg_library().name", "Default"),
    ("TORCH_BLAS_PREFER_CUBLASLT", "1", "backends.cuda.preferred_blas_library().name", "Cublaslt"),
    ("TORCH_BLAS_PREFER_HIPBLASLT", "1", "backends.cuda.preferred_blas_library().name", "Cublaslt"),
    ("TORCH_ROCM_FA_PREFER_CK", "1", "backends.cuda.preferred_rocm_fa_library().name", "Ck"),
    ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", "backends.cuda.matmul.allow_tf32", True),
    ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", "backline.get_float32_matmul_precision()", "high"),
    ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "0", "backends.cuda.matmul.allow_tf32", False),
    ("ATEN_CPU_CAPABILITY", "default", "backends.cpu.get_cpu_capability()", "DEFAULT"),
    ("OMP_NUM_THREADS", "3", "backline.get_num_threads()", 3),
    ("MKL_NUM_THREADS", "5", "backline.get_num_threads()", 5),
    ("CUBLAS_WORKSPACE_CONFIG", ":16:8", "backends.cuda.cublas_workspace_size()", 16 * 8 * 1024),
    ("CUBLASLT_WORKSPACE_SIZE", "100", "backends.cuda.cublaslt_workspace_size()", 100 * 1024),
    ("MKL_VERBOSE", "1", "switches.get('mkl.verbose_level')", 1),
    ("ONEDNN_VERBOSE", "2", "switches.get('mkldnn.verbose_level')", 2),
    ("DNNL_VERBOSE", "1", "switches.get('mkldnn.verbose_level')", 1),
]


@pytest.mark.parametrize(("variable", "text", "read", "wanted"), SETS)
def test_a_variable_sets_a_switch(variable: str, text: str, read: str, wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, text)
    store._restart()
    assert eval(read, {"backends": backends, "backline": backline, "switches": switches}) == wanted


OWN = {
    "TORCH_LINALG_PREFER_CUSOLVER": ("BACKLINE_CUDA_PREFERRED_LINALG_LIBRARY", "magma", "cuda.preferred_linalg_library"),
    "TORCH_BLAS_PREFER_CUBLASLT": ("BACKLINE_CUDA_PREFERRED_BLAS_LIBRARY", "cublas", "cuda.preferred_blas_library"),
    "TORCH_ROCM_FA_PREFER_CK": ("BACKLINE_CUDA_PREFERRED_ROCM_FA_LIBRARY", "aotriton", "cuda.preferred_rocm_fa_library"),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ("BACKLINE_CUDA_MATMUL_FP32_PRECISION", "ieee", "cuda.matmul.fp32_precision"),
}


@pytest.mark.parametrize("variable", OWN)
def test_our_own_variable_wins(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, text, switch = OWN[variable]
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv(own, text)
    store._restart()
    assert switches.get(switch) == text and own in str(switches.origin(switch))


@pytest.mark.parametrize("text", ["avx9", "AVX2", "1", "avx512"])
def test_a_capability_that_is_none_or_above_the_processors_warns_and_is_ignored(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_capability, "detected", lambda: "avx2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", text)
    store._restart()
    with pytest.warns(RuntimeWarning, match=f"ATEN_CPU_CAPABILITY.*'{text}'") as caught:
        assert backends.cpu.get_cpu_capability() == "AVX2"
    assert len(caught) == 1 and "'avx2'" in str(caught[0].message) and "'default'" in str(caught[0].message)


LEFT_ALONE = """
    TORCH_CUDNN_SDPA_DEPRIORITIZED TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED TORCH_CUDNN_V8_API_DISABLED TORCH_CUDNN_V8_API_DEBUG
    PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK TORCH_MKLDNN_ADDMM_MIN_DIM TORCH_MKLDNN_ADDMM_MIN_SIZE TORCH_MKLDNN_BMM_BADDBMM_THRESHOLD
    TORCH_DISABLE_NATIVE_JIT TORCH_NATIVE_SKIP_VERSION_CHECK KMP_AFFINITY KMP_BLOCKTIME GOMP_CPU_AFFINITY MKL_DYNAMIC MKL_CBWR
    MKL_THREADING_LAYER ONEDNN_DEFAULT_FPMATH_MODE ONEDNN_MAX_CPU_ISA ONEDNN_PRIMITIVE_CACHE_CAPACITY NVIDIA_TF32_OVERRIDE
"""


@pytest.mark.parametrize("variable", LEFT_ALONE.split())
def test_a_variable_sets_no_switch(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = switches.current()
    monkeypatch.setenv(variable, "1")
    store._restart()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert switches.current() is before


def test_without_a_metal_device() -> None:
    if backends.mps.is_available():
        assert backends.mps.get_name() and backends.mps.get_core_count() > 0
        return
    for function in (backends.mps.get_name, backends.mps.get_core_count):
        with pytest.raises(BackendUnavailable, match="Metal"):
            function()
    on_a_mac = sys.platform == "darwin"
    assert backends.mps.is_macos_or_newer(10, 0) is on_a_mac and backends.mps.is_macos13_or_newer() in (on_a_mac, False)


def test_old_values_of_precision_are_those_that_were_stored() -> None:
    backends.fp32_precision = "tf32"
    assert backends.cudnn.fp32_precision == backends.mkldnn.fp32_precision == "tf32"
    assert backends.cudnn.set_flags()[5] == "none" == backends.mkldnn.set_flags()[3]
    backends.cudnn.set_flags(_fp32_precision="ieee")
    assert backends.cudnn.set_flags(_fp32_precision="none")[5] == "ieee" and backends.cudnn.fp32_precision == "tf32"


@pytest.mark.parametrize("name", ["cudnn", "cusparselt", "kleidiai", "miopen", "mkl", "mkldnn", "mps", "nnpack", "openmp", "opt_einsum", "xnnpack"])
def test_asking_what_is_there_prints_nothing_and_off_is_not_enabled(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    module = getattr(backends, name)
    # MLX without a Metal device has a version, and so have NVIDIA's libraries without a GPU.
    there = module.is_built() if name == "mps" else name in ("cudnn", "cusparselt") or module.is_available()
    assert module.is_available() in (True, False) and (module.version() is None or there)
    assert module.is_enabled() is (module.enabled and module.is_available())
    with module.flags(enabled=False):
        assert not module.is_enabled() and module.enabled is False
    assert capfd.readouterr() == ("", "")
