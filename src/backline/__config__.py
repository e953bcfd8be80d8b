"""Build and environment of this Backline, as text for a bug report."""

from __future__ import annotations

import os

__all__ = ["parallel_info", "show"]

# Variables of the libraries themselves, which Backline leaves alone.
_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "KMP_AFFINITY", "KMP_BLOCKTIME",
    "GOMP_CPU_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES", "MKL_DYNAMIC", "MKL_CBWR", "MKL_THREADING_LAYER",
    "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
    "NVIDIA_TF32_OVERRIDE", "MLX_ENABLE_TF32",
)  # fmt: skip


def show() -> str:
    """Return the versions, every library with its version and path or why it is absent, the CPU and the flags of the core.

    Examples
    --------
    >>> import backline
    >>> "numpy" in backline.__config__.show()
    True
    """
    import platform

    import numpy

    from . import __version__, libraries
    from .libraries import capability

    lines = [
        f"backline {__version__}, python {platform.python_version()}, numpy {numpy.__version__}",
        f"CPU capability: {capability.effective()}" + ("" if capability.effective() == capability.detected()
                                                       else f" (capped; the processor has {capability.detected()})"),
        f"core compiled by: {_cxx_flags()}",
        "libraries:",
    ]  # fmt: skip
    for name in libraries.names():
        library = libraries.get(name)
        if library.available():
            path = library.report().get("path") or ""
            lines.append(f"  {name:<10} {library.version() or '':<10} {path}".rstrip())
        else:
            lines.append(f"  {name:<10} absent: {library.reason().splitlines()[0]}")
    found = [f"  {name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    return "\n".join([*lines, *(["variables of the libraries:", *found] if found else [])]) + "\n"


def parallel_info() -> str:
    """Return the threads: what a call may use, what each runtime in the process has, and the two variables.

    Examples
    --------
    >>> import backline
    >>> "threads a call may use" in backline.__config__.parallel_info()
    True
    """
    from . import get_num_interop_threads, get_num_threads
    from .libraries import openmp_runtimes

    lines = [f"threads a call may use: {get_num_threads()}", f"items of a batch at a time: {get_num_interop_threads()}"]
    lines += [f"{name}: {os.environ.get(name, '[not set]')}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")]
    lines += [str(runtime) for runtime in openmp_runtimes.runtimes()]
    return "\n".join(lines) + "\n"


def _cxx_flags() -> str:
    """Return the flags that the compiled core was built with."""
    from . import _core

    return str(_core.cxx_flags)
