"""libmvec, the functions of vectors in the GNU C library for x86-64: elementary functions, wherever glibc is.

Each takes one vector in a register and returns one, with errors below 4 units in the last place by the library's manual; a
compiled loop calls it for neighbours in memory. ``expm1`` and ``log1p`` are there from glibc 2.35 on, the others from 2.22 on.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from itertools import product
from typing import Any, ClassVar

import numpy as np

from ... import _kernels
from ...native.library_search import search
from ...native.machine import libc
from ...native.shared_library import NativeLibrary
from ...problems.dtypes import HALVES
from ...problems.names import name_of
from ...problems.neural_problem import ELEMENTARY, NeuralProblem
from ..base import Algorithm, FileLibrary, Handler, Planner, Refusal
from ..kernels.element_functions import ElementFunction, element_plan, element_ways, layout_refusal, wide_name
from ..kernels.vector_level import vector_level, vector_levels
from ..probing.probe_cache import prove_found

__all__ = ["Libmvec"]

VECTORS = "vectors"
DTYPES = ("float32", "float64", *HALVES)
LETTERS = "bde"  # of the vector function ABI, by the level of vector instructions, whose vectors have
BYTES = (16, 32, 64)
UNITS = 4  # in the last place: what an error may be at most
TRIED = np.resize((0.25, 1.0, 0.75, 3.0, 0.5), 49)  # where every function has a value: three whole vectors, and part of one
LOOPS = {"sin": "sines", "cos": "cosines"}  # that keep within 1, and cosines even; others are "vectors"
NEWER = ("expm1", "log1p")


def symbol(op: str, dtype: str, level: int) -> str:
    """Returns the name of the function of one vector, by the vector function ABI.

    Examples
    --------
    >>> symbol("sin", "float64", 1), symbol("exp", "float32", 2)
    ('_ZGVdN4v_sin', '_ZGVeN16v_expf')
    """
    lanes = BYTES[level] // np.dtype(dtype).itemsize
    return f"_ZGV{LETTERS[level]}N{lanes}v_{op}{'f' if dtype == 'float32' else ''}"


class Libmvec(FileLibrary):
    """The libmvec of the process's C library."""

    native: NativeLibrary | None = None

    # loading

    def load(self) -> str:
        if platform.machine().lower() not in self.info.machines:
            return f"its functions are known here for x86-64, not for {platform.machine()}"
        proof = prove_found(self, search(self.spec))
        return proof.reason or self._open(proof.path) or proof.replaced()

    def test(self, path: str) -> dict[str, str]:
        return {"reason": self._open(path)}

    def _open(self, path: str) -> str:
        """Load and check a file; what is wrong with it, or an empty string."""
        self.native = NativeLibrary(path)
        levels = range(_kernels.instruction_level + 1)  # a cap may come or go later
        keys = product(ELEMENTARY, ("float32", "float64"), levels)
        found = {key: self.function(*key) for key in keys}
        if not any(function for (*_, level), function in found.items() if level == vector_level()):
            return f"{path} has none of the functions, such as {symbol('exp', 'float64', vector_level())}"
        wrong = next(((op, dtype) for (op, dtype, _), function in found.items() if _is_wrong(function, op, dtype)), None)
        return f"{path} computes a wrong {wrong[0]} of {wrong[1]}" if wrong else ""

    def version(self) -> str | None:
        """Returns that of the C library."""
        return libc().rpartition(" ")[2] or None

    def instruction_sets(self) -> tuple[str, ...] | None:
        return vector_levels()

    # calls

    def context(self, planner: Planner) -> Libmvec:
        return self

    def function(self, op: str, dtype: str, level: int) -> ElementFunction | None:
        """Returns the function for neighbours in memory, at a level of vector instructions; None where this libmvec has none."""
        assert self.native is not None
        address = self.native.address(symbol(op, dtype, level))
        loop = f"{dtype}_{LOOPS.get(op, 'vectors')}_{level}"
        return ElementFunction(_kernels.addresses[loop], mode=address) if address else None

    def _refusal(self, p: NeuralProblem) -> str:
        if name_of(p.dtype) not in DTYPES:
            return f"its functions are for {', '.join(DTYPES)}, not {p.dtype.name}"
        known = self.function(p.op, wide_name(p), vector_level()) is not None
        return layout_refusal(p) if known else f"this libmvec has no {p.op}" + ("; glibc 2.35 has" if p.op in NEWER else "")

    def algorithms_for(self, p: NeuralProblem, threads: int) -> Iterator[Algorithm | Refusal]:
        """Yields its functions of vectors, on all threads and on one, or the reason why they do not take a Problem."""
        if p.op not in ELEMENTARY:
            yield Refusal("libmvec", p.op, f"libmvec has no {p.op}", lacks=True)
            return
        reason = self._refusal(p)
        if reason:
            yield Refusal("libmvec", VECTORS, reason)
        else:
            yield from element_ways(p, threads, library="libmvec", name=VECTORS, note="errors below 4 units in the last place")

    def plan_for(self, p: NeuralProblem, algorithm: Algorithm) -> Any:
        """The PreparedCall of what `algorithms_for` listed."""
        function = self.function(p.op, wide_name(p), vector_level())
        assert function is not None
        return element_plan(p, function, algorithm.threads)

    handlers: ClassVar = {NeuralProblem: Handler(algorithms_for, plan_for)}


def _is_wrong(function: ElementFunction | None, op: str, dtype: str) -> bool:
    """Tells whether a function computes something else."""
    if function is None:
        return False
    given = np.array(TRIED, dtype)
    result, expected = np.empty_like(given), getattr(np, op)(given)
    loop = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(function.address)
    loop(given.size, given.ctypes.data, result.ctypes.data, function.mode)
    return not (abs(result - expected) <= UNITS * np.spacing(abs(expected))).all()
