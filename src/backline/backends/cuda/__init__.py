"""CUDA: the libraries that run products, linear algebra and attention on arrays of GPUs, and their workspaces.

The switches of attention (``..._sdp``) hold for arrays of every device.
"""

from __future__ import annotations

from typing import cast as _cast

from ... import switches as _switches
from ...errors import BadValue as _BadValue
from ...switches.enumerations import BlasBackend, LinalgBackend, ROCmFABackend, SDPBackend
from ...switches.switch import EnumSwitch as _EnumSwitch
from .. import _module_factory
from ._matmul_switches import cuBLASModule
from ._plan_cache import cufft_plan_cache, cuFFTPlanCache, cuFFTPlanCacheAttrContextProp, cuFFTPlanCacheManager
from ._sdpa_switches import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
    is_flash_attention_available,
    sdp_kernel,
)

__all__ = [
    "BlasBackend", "LinalgBackend", "ROCmFABackend", "SDPAParams", "SDPBackend", "allow_fp16_bf16_reduction_math_sdp",
    "blas_workspace_size", "can_use_cudnn_attention", "can_use_efficient_attention", "can_use_flash_attention", "cuBLASModule",
    "cuFFTPlanCache", "cuFFTPlanCacheAttrContextProp", "cuFFTPlanCacheManager", "cublas_workspace_size",
    "cublaslt_workspace_size", "cudnn_sdp_enabled", "cufft_plan_cache", "enable_cudnn_sdp", "enable_flash_sdp",
    "enable_math_sdp", "enable_mem_efficient_sdp", "flags", "flash_sdp_enabled", "fp16_bf16_reduction_math_sdp_allowed",
    "is_available", "is_built", "is_ck_sdpa_available", "is_flash_attention_available", "math_sdp_enabled", "matmul",
    "mem_efficient_sdp_enabled", "preferred_blas_library", "preferred_linalg_library", "preferred_rocm_fa_library",
    "sdp_kernel", "set_flags", "version",
]  # fmt: skip

is_available: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags

matmul = cuBLASModule()


def is_built() -> bool:
    """Tells whether CuPy, for the arrays, and cuBLAS are found; that needs neither driver nor device."""
    from ...libraries import presence

    return presence.cuda_is_built()


# --- preferred libraries -----------------------------------------------------------------------------------------


def _preferred(name: str) -> object:
    switch = _switches.lookup(name)
    assert isinstance(switch, _EnumSwitch)
    return switch.member(_switches.get(name))


def preferred_linalg_library(backend: LinalgBackend | str | None = None) -> LinalgBackend:
    """Sets the library tried first for linear algebra on CUDA arrays, and returns it. A query is a call without argument.

    A library that lacks an operation is passed over; ``backends.fallback`` decides what that means.

    Parameters
    ----------
    backend
        "default", "cusolver" or "magma", or a member of `LinalgBackend`.

    Raises
    ------
    BadValue, BadType
        Something else.
    BackendUnavailable
        The library is absent; what was preferred stays.

    Examples
    --------
    >>> preferred_linalg_library()
    <_LinalgBackend.Default: 0>
    """
    if backend is not None:
        _switches.assign("cuda.preferred_linalg_library", backend, depth=2)
    return _cast(LinalgBackend, _preferred("cuda.preferred_linalg_library"))


def preferred_blas_library(backend: BlasBackend | str | None = None) -> BlasBackend:
    """Sets the library tried first for products on CUDA arrays, and returns it. A query is a call without argument.

    Where none is preferred, the query returns the one that is tried first then, and nothing is stored.

    Parameters
    ----------
    backend
        "default", "cublas" (or "hipblas"), "cublaslt" (or "hipblaslt"), "ck", or a member of `BlasBackend`.

    Raises
    ------
    BadValue, BadType
        Something else.
    BackendUnavailable
        The library is absent; what was preferred stays. What the query returns can be set on any machine, and "cublas".

    Examples
    --------
    >>> preferred_blas_library(preferred_blas_library())
    <_BlasBackend.Cublas: 1>
    """
    if backend is not None:
        _switches.assign("cuda.preferred_blas_library", backend, depth=2)
    return _blas(_cast(BlasBackend, _preferred("cuda.preferred_blas_library")))


def _blas(backend: BlasBackend) -> BlasBackend:
    if backend is not BlasBackend.Default:
        return backend
    from ...libraries import devices

    return BlasBackend.Cublaslt if devices.usual_blas(devices.current()) == "cublaslt" else BlasBackend.Cublas


def preferred_rocm_fa_library(backend: ROCmFABackend | str | None = None) -> ROCmFABackend:
    """Sets the library tried first for flash attention on ROCm arrays, and returns it. A query is a call without argument.

    Parameters
    ----------
    backend
        "default", "aotriton" or "ck", or a member of `ROCmFABackend`.

    Raises
    ------
    BadValue, BadType
        Something else.
    BackendUnavailable
        The library is absent; what was preferred stays.

    Examples
    --------
    >>> preferred_rocm_fa_library()
    <_ROCmFABackend.Default: 0>
    """
    if backend is not None:
        _switches.assign("cuda.preferred_rocm_fa_library", backend, depth=2)
    return _cast(ROCmFABackend, _preferred("cuda.preferred_rocm_fa_library"))


def is_ck_sdpa_available() -> bool:
    """Tells whether AMD's Composable Kernel library is found, which has attention for ROCm arrays."""
    from ...libraries.presence import presence

    return bool(presence("composable_kernel").available())


# --- workspaces --------------------------------------------------------------------------------------------------


def cublas_workspace_size(size: int | None = None) -> int:
    """Sets the bytes of cuBLAS's workspace, and returns them. A query is a call without argument.

    There is one workspace for each handle and stream, made when it is first needed. The size beats CUBLAS_WORKSPACE_CONFIG.

    Parameters
    ----------
    size
        0 or more.

    Raises
    ------
    BadValue, BadType
        Something else.
    BackendUnavailable
        There is no device.

    Examples
    --------
    >>> cublas_workspace_size() > 0
    True
    """
    if size is not None:
        _switches.assign("cuda.cublas_workspace_size", size, depth=2)
    return _cast(int, _switches.get("cuda.cublas_workspace_size"))


def cublaslt_workspace_size(size: int | None = None) -> int:
    """Sets the bytes of cuBLASLt's workspace, and returns them. A query is a call without argument.

    Unless somebody sets it, it is as large as cuBLAS's; and never larger while the two share one, which they do unless
    TORCH_CUBLASLT_UNIFIED_WORKSPACE is 0. The size beats CUBLASLT_WORKSPACE_SIZE.

    Parameters
    ----------
    size
        0 or more.

    Raises
    ------
    BadValue, BadType
        Something else.
    BackendUnavailable
        There is no device.

    Examples
    --------
    >>> cublaslt_workspace_size() <= cublas_workspace_size()
    True
    """
    if size is not None:
        _switches.assign("cuda.cublaslt_workspace_size", size, depth=2)
    return _cast(int, _switches.get("cuda.cublaslt_workspace_size"))


def blas_workspace_size(size: int | None = None, backend: BlasBackend | str | None = None) -> int:
    """Sets the bytes of the workspace of a library for products, and returns them. Without `size` it is a query.

    Parameters
    ----------
    size
        0 or more.
    backend
        As for `preferred_blas_library`; None is the preferred one.

    Raises
    ------
    BadValue
        The library is "ck", which has no workspace, or there is none of that name; or the size is below 0.
    BadType
        Something else.
    BackendUnavailable
        There is no device.

    Examples
    --------
    >>> blas_workspace_size() == cublas_workspace_size()
    True
    """
    declared = _switches.lookup("cuda.preferred_blas_library")
    assert isinstance(declared, _EnumSwitch)
    if backend is None:
        which = preferred_blas_library()
    else:
        argument = declared.replaced(name="cuda.blas_workspace_size.backend", doc="library whose workspace is meant")
        which = _blas(_cast(BlasBackend, argument.member(argument.check(backend))))
    if which is BlasBackend.Ck:
        raise _BadValue(
            "cuda.blas_workspace_size: the library 'ck' has no workspace.",
            cause="it is the one given" if backend is not None else "it is the preferred one",
            remedy="give backend='cublas' or 'cublaslt'",
        )
    name = "cuda.cublaslt_workspace_size" if which is BlasBackend.Cublaslt else "cuda.cublas_workspace_size"
    if size is not None:
        _switches.assign(name, size, depth=2)
    return _cast(int, _switches.get(name))


# --- attention ---------------------------------------------------------------------------------------------------


flash_sdp_enabled, enable_flash_sdp = _module_factory.switch_functions(
    "cuda.flash_sdp", "flash_sdp_enabled", "enable_flash_sdp", __name__
)
mem_efficient_sdp_enabled, enable_mem_efficient_sdp = _module_factory.switch_functions(
    "cuda.mem_efficient_sdp", "mem_efficient_sdp_enabled", "enable_mem_efficient_sdp", __name__
)
math_sdp_enabled, enable_math_sdp = _module_factory.switch_functions(
    "cuda.math_sdp", "math_sdp_enabled", "enable_math_sdp", __name__
)
cudnn_sdp_enabled, enable_cudnn_sdp = _module_factory.switch_functions(
    "cuda.cudnn_sdp", "cudnn_sdp_enabled", "enable_cudnn_sdp", __name__
)
fp16_bf16_reduction_math_sdp_allowed, allow_fp16_bf16_reduction_math_sdp = _module_factory.switch_functions(
    "cuda.fp16_bf16_reduction_math_sdp",
    "fp16_bf16_reduction_math_sdp_allowed",
    "allow_fp16_bf16_reduction_math_sdp",
    __name__,
)


_module_factory.install(__name__)
