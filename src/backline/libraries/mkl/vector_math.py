"""Elementary functions by MKL's vector mathematics, in its mode of high accuracy: errors below one unit in the last place.

MKL has it in files of its own beside those of its products, and opens one at the first call: where that is missing, it ends the
process. So it is used only where there is one for each of those. Subnormal numbers stay as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...problems.dtypes import HALVES
from ...problems.names import name_of
from ...problems.neural_problem import NeuralProblem
from ..base import Algorithm, Refusal
from ..blas.cblas import BlasTraits
from ..kernels.element_functions import ElementFunction, element_plan, element_ways, layout_refusal

__all__ = ["VECTOR", "VectorMath", "missing_kernels"]

VECTOR = "vector_math"
NAMES = {"exp": "Exp", "expm1": "Expm1", "log": "Ln", "log1p": "Log1p", "sin": "Sin", "cos": "Cos"}
HIGH_ACCURACY, KEEP_SUBNORMAL, NO_ERRORS = 0x2, 0x140000, 0x100  # VML_HA, VML_FTZDAZ_OFF, VML_ERRMODE_IGNORE
DTYPES = ("float32", "float64", *HALVES)
_KERNELS = re.compile(r"libmkl_((?:def|mc|avx)\w*)\.")  # files of MKL's other kernels


def missing_kernels(names: list[str]) -> str:
    """Returns a file of vector kernels that MKL may want and that is not among the files of its folder, or an empty string.

    Examples
    --------
    >>> missing_kernels(["libmkl_avx2.so.3", "libmkl_vml_avx2.so.3", "libmkl_def.so.3"])
    'libmkl_vml_def'
    >>> missing_kernels(["libmkl_rt.so.3"]), missing_kernels(["libmkl_def.so.3", "libmkl_vml_def.so.3"])
    ('libmkl_vml_def', '')
    """
    stems = {name.partition(".")[0] for name in names}
    words = [found[1] for name in sorted(names) if (found := _KERNELS.match(name))]
    return next((stem for word in words or ("def",) if (stem := f"libmkl_vml_{word}") not in stems), "")


def _files(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # a folder that may not be listed: nothing is known to be there
        return []


class VectorMath:
    """MKL's functions of vectors.

    Parameters
    ----------
    blas
        The loaded MKL.
    """

    def __init__(self, blas: BlasTraits) -> None:
        self.blas = blas
        path = os.path.realpath(blas.native.path)
        # One that is linked into another library has its kernels there.
        alone = os.path.basename(path).startswith("libmkl_rt")
        missing = missing_kernels(_files(os.path.dirname(path))) if alone else ""
        self.missing = f"{missing} is not beside this MKL, which would end the process" if missing else ""

    def address(self, p: NeuralProblem) -> int:
        """Returns the address of the function for an operation and a dtype; 0 for none."""
        return self.blas.native.address(f"vm{'d' if p.dtype == np.float64 else 's'}{NAMES[p.op]}")

    def algorithms(self, p: NeuralProblem, threads: int) -> Iterator[Algorithm | Refusal]:
        """Yields a function of vectors, on all threads and on one, or the reason why there is none."""
        if p.op not in NAMES:
            yield Refusal("mkl", p.op, f"MKL has no {p.op}", lacks=True)
            return
        reason = self._reason(p)
        if reason:
            yield Refusal("mkl", VECTOR, reason)
            return
        yield from element_ways(p, threads, library="mkl", name=VECTOR, note="vector mathematics, high accuracy")

    def _reason(self, p: NeuralProblem) -> str:
        if name_of(p.dtype) not in DTYPES:
            return f"its functions are for {', '.join(DTYPES)}, not {p.dtype.name}"
        return self.missing or ("" if self.address(p) else f"this MKL has no function for {p.op}") or layout_refusal(p)

    def prepare(self, p: NeuralProblem, algorithm: Algorithm) -> Any:
        """The PreparedCall of what `algorithms` listed."""
        function = ElementFunction(self.address(p), mode=HIGH_ACCURACY | KEEP_SUBNORMAL | NO_ERRORS)
        # The threads are the team's: MKL would start its own from a hundred elements on.
        return element_plan(p, function, algorithm.threads, thread_guard=self.blas.thread_guard, guard_threads=1)
