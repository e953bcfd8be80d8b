"""Compatibility of NVIDIA's libraries and driver: each library is of one CUDA version, and the driver supports up to one."""

from __future__ import annotations

import os

from ...presence import mentions, presence

__all__ = ["cuda_of", "driver_refuses", "two_cudas"]

_FIRST_OF_CUDA_12 = {"cublas": 12, "cublaslt": 12, "cusolver": 11, "cufft": 11}
_DRIVERS = {12: "525", 13: "580"}  # the first of NVIDIA's drivers for a CUDA


def cuda_of(name: str) -> int | None:
    """The major version of the CUDA that a library is of, by its own version; None where that does not tell.

    >>> cuda_of("opt_einsum") is None
    True
    """
    if name == "cudnn":
        return _cuda_of_cudnn()
    first, version = _FIRST_OF_CUDA_12.get(name), presence(name).version()
    if first is None or not isinstance(version, str):
        return None
    return 12 + int(version.partition(".")[0]) - first


def _cuda_of_cudnn() -> int | None:
    # One version is built for several CUDAs. The name of the cuBLASLt that it opens is in one of its parts.
    path = presence("cudnn").path
    if path is None:
        return None
    if path not in _cudnns:
        part = os.path.join(os.path.dirname(os.path.realpath(path)), "libcudnn_adv.so.9")
        try:
            found = [major for major in _DRIVERS if mentions(part, f"libcublasLt.so.{major}".encode())]
        except OSError:
            found = []
        _cudnns[path] = found[0] if len(found) == 1 else None
    return _cudnns[path]


_cudnns: dict[str, int | None] = {}  # by path


def driver_refuses(*libraries: str) -> tuple[str, str]:
    """Returns why the driver does not support the libraries that are present, and the remedy; two empty strings if it does.

    It has to be as new as the CUDA that each is of, by the names of their rows; a newer one serves older libraries.
    """
    driver = int(presence("cuda").facts.get("driver", 0))
    for name in libraries:
        of = cuda_of(name)
        if of is not None and driver and driver // 1000 < of:
            goes = f"{driver // 1000}.{driver % 1000 // 10}"
            older = driver // 1000
            library = f"{presence(name).title} {presence(name).version()}"
            return (
                f"the driver is too old: it goes up to CUDA {goes}, and {library} is of CUDA {of}",
                f"NVIDIA's driver {_DRIVERS.get(of, 'for it')} or newer; or packages for CUDA {older}, such as cupy-cuda{older}x",
            )
    return "", ""


def two_cudas() -> tuple[str, str]:
    """Returns why cuDNN and the cuBLASLt that is present are incompatible, and the remedy; two empty strings if they are not.

    Without the cuBLASLt of its own CUDA version, cuDNN ends the process.
    """
    ours, theirs = cuda_of("cudnn"), cuda_of("cublaslt")
    if ours is None or theirs is None or ours == theirs:
        return "", ""
    where = f"{presence('cudnn').path} and {presence('cublaslt').path}"
    return (
        f"cuDNN was built for CUDA {ours} and the cuBLASLt that is there is of CUDA {theirs} ({where})",
        f"pip install nvidia-cudnn-cu{theirs} in the place of nvidia-cudnn-cu{ours}",
    )
