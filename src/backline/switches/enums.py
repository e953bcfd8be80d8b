"""Enumerations of the switches whose model takes members as well as words."""

from __future__ import annotations

from enum import Enum

__all__ = ["BlasBackend", "LinalgBackend", "ROCmFABackend", "SDPBackend"]


class LinalgBackend(Enum):
    """Libraries for linear algebra on CUDA arrays."""

    Default = 0
    Cusolver = 1
    Magma = 2


class BlasBackend(Enum):
    """Libraries for products on CUDA arrays."""

    Default = 0
    Cublas = 1
    Cublaslt = 2
    Ck = 3


class ROCmFABackend(Enum):
    """Libraries for flash attention on ROCm arrays."""

    Default = 0
    AOTriton = 1
    Ck = 2


class SDPBackend(Enum):
    """Kernels for scaled dot product attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4
