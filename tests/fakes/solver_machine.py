"""A machine for linear algebra on CUDA arrays: the true bindings' names, LAPACK's numbers, and kernels compiled for the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backline import libraries
from backline.libraries.base import Algorithm
from backline.problems.op_registry import operations
from fakes.cupy_standin import H100, CuPy
from fakes.host_kernels import HostKernel
from fakes.lapack_numbers import Numbers
from fakes.recording import Recording


class KernelCuPy(CuPy):
    """One that has `RawKernel`: sources are compiled for the host."""

    def __init__(self, folder: Path, log: list[Any]) -> None:
        super().__init__(H100, H100, log=log)
        self._folder = folder

    def RawKernel(self, source: str, name: str) -> HostKernel:
        return HostKernel(source, name, self.written)


def real_types() -> None:
    """Leave the tests of a module out where the bindings are not installed."""
    pytest.importorskip("nvmath.bindings.cusolverDn")


class SolverMachine:
    """Fakes that share one log.

    Attributes
    ----------
    numbers
        What computes.
    log
        Calls, as pairs of name and arguments.
    """

    def __init__(self, folder: Path) -> None:
        from nvmath.bindings import cublas, cusolver, cusolverDn

        self.numbers = Numbers()
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.cupy = KernelCuPy(folder, self.log)
        self.solver = Recording(cusolverDn, self.numbers.solver, self.log)
        self.blas = Recording(cublas, self.numbers.blas, self.log)
        self.cusolver = cusolver

    def modules(self) -> dict[str, Any]:
        return {"cupy": self.cupy, "cublas": self.blas, "cusolverDn": self.solver, "cusolver": self.cusolver}

    def names(self) -> list[str]:
        return [name for name, _ in self.log if name != "alloc"]

    def forget(self) -> None:
        self.log.clear()

    def algorithms(self, op: Any, *args: Any, **kwargs: Any) -> list[str]:
        """Names of what there is for an operation."""
        return [a.name for a in libraries.get("cusolver").algorithms(self._problem(op, args, kwargs), 1) if isinstance(a, Algorithm)]

    @staticmethod
    def _problem(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return operations[f"{op.__module__}.{op.__qualname__}".removeprefix("backline.")].build(*args, **kwargs)

    def run(self, algorithm: str, op: Any, *args: Any, **kwargs: Any) -> Any:
        """An operation by a certain Algorithm."""
        library = libraries.get("cusolver")
        problem = self._problem(op, args, kwargs)
        chosen = next(a for a in library.algorithms(problem, 1) if isinstance(a, Algorithm) and a.name == algorithm)
        arrays = [a for a in (*args, *kwargs.values()) if hasattr(a, "host")]
        return library.prepare(problem, chosen)(*arrays)
