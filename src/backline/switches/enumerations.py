"""Enumerations of the switches whose model takes members as well as words."""

from __future__ import annotations

from enum import Enum

__all__ = ["BlasBackend", "LinalgBackend", "ROCmFABackend", "SDPBackend"]


class _Numbered(Enum):
    """Base of the enumerations: members convert to their numbers, but do not equal them, as with the model's.

    Examples
    --------
    >>> int(SDPBackend.MATH), SDPBackend.MATH == 0
    (0, False)
    """

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


class _LibraryEnum(_Numbered):
    """Base of the enumerations of libraries. The text of a member is the model's, which programs compare and print.

    Examples
    --------
    >>> str(BlasBackend.Cublas), BlasBackend.Cublas
    ('_BlasBackend.Cublas', <_BlasBackend.Cublas: 1>)
    """

    def __str__(self) -> str:
        return f"_{type(self).__name__}.{self.name}"

    def __repr__(self) -> str:
        return f"<{self}: {self.value}>"


class LinalgBackend(_LibraryEnum):
    """Libraries for linear algebra on CUDA arrays."""

    Default = 0
    Cusolver = 1
    Magma = 2


class BlasBackend(_LibraryEnum):
    """Libraries for products on CUDA arrays."""

    Default = 0
    Cublas = 1
    Cublaslt = 2
    Ck = 3


class ROCmFABackend(_LibraryEnum):
    """Libraries for flash attention on ROCm arrays."""

    Default = 0
    AOTriton = 1
    Ck = 2


class SDPBackend(_Numbered):
    """Kernels for scaled dot product attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4
