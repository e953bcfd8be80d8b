"""The builds of NumPy and SciPy whose BLAS can be exchanged, and what is said of the others."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable

from ... import _exchange
from ...errors import BackendUnavailable
from .loaded_objects import Module

__all__ = ["require", "require_system", "unsupported"]

_MESSAGE = "NumPy's BLAS cannot be exchanged in this process"


def unsupported(system: str = sys.platform, machine: str = "", libc: str | None = None) -> str:
    """Returns why there is no exchange on a system, "" where there is.

    Examples
    --------
    >>> unsupported("darwin", "arm64")
    'it rewrites the addresses that ELF objects call, which macOS does not have'
    """
    machine = machine or platform.machine()
    if not system.startswith("linux"):
        name = {"darwin": "macOS", "win32": "Windows"}.get(system, system)
        return f"it rewrites the addresses that ELF objects call, which {name} does not have"
    if (platform.libc_ver()[0] if libc is None else libc) != "glibc":
        return "it was tested with the loader of glibc only, and this is another C library (musl?)"
    if machine.lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        return f"the calling convention is proved for x86-64 and AArch64 only, this is {machine}"
    return ""


def require_system() -> None:
    """Raise `BackendUnavailable` where there is no exchange on this system."""
    reason = unsupported() or ("" if _exchange.supported else "backline._exchange was built without it")
    if reason:
        raise BackendUnavailable(
            _MESSAGE, cause=reason, remedy="call Backline's own functions, which run on any library there is"
        )


def require(modules: Iterable[Module]) -> tuple[Module, ...]:
    """Returns the modules whose calls can be exchanged.

    Raises
    ------
    BackendUnavailable
        NumPy is built so that its calls cannot be told or redirected.
    """
    modules = tuple(modules)
    numpys = [module for module in modules if module.package == "numpy"]
    if not numpys:
        raise BackendUnavailable(
            _MESSAGE, cause="its modules call no BLAS or LAPACK of another file: they are linked statically, or built without",
            remedy="a wheel from PyPI: pip install --force-reinstall numpy",
        )  # fmt: skip
    for module in modules:
        described = _described(module)
        if described:
            raise BackendUnavailable(
                _MESSAGE, cause=f"{module.path} calls {described}",
                remedy="the exchange knows the wheels from PyPI: pip install --force-reinstall numpy scipy; or take "
                "the distribution's own switch (conda: libblas=*=*mkl; Debian: update-alternatives)",
            )  # fmt: skip
    return modules


def _described(module: Module) -> str:
    """Returns what a module's BLAS is, "" where it is the OpenBLAS of a wheel."""
    for origin in module.origins:
        name = os.path.basename(origin)
        if name.startswith("libmkl"):
            return f"MKL already: {origin}"
        if f"{os.sep}conda-meta{os.sep}" in origin or os.path.isdir(
            os.path.join(os.path.dirname(os.path.dirname(origin)), "conda-meta")
        ):
            return f"the BLAS of a conda environment: {origin}"
        if not name.startswith("libscipy_openblas"):
            return f"a BLAS that is not the one of its wheel: {origin}"
    strange = next((slot for slot in module.slots if not slot.symbol.bundled), None)
    return f"{strange.symbol.routine} by a name that no wheel uses" if strange else ""
