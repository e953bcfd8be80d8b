"""SciPy's own Fourier transforms: DUCC in newer releases, pocketfft in older ones, driven below `scipy.fft`.

Nothing of SciPy is imported before a transform runs on it. The compiled module is called itself: `scipy.fft` would ask which
backend is set, and that may be Backline.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ...problems.fft_problem import FftProblem
from ..base import Algorithm, Handler, Library
from ..fft_steps import PLANNED_AFTER, in_double, on_threads
from ..reference.reference_fft import FftPlan, apart, fits, fitted, scaled

__all__ = ["SciPy"]

Array = Any
# Largest prime factor that is not transformed by a convolution: by pocketfft, which estimates what either way costs, in a complex
# transform and in a real one of one axis, whatever the other factors are, and by anything.
COMPLEX_FACTOR, REAL_FACTOR, ANY_FACTOR = 61, 97, 31
# Folder of scipy.fft -> the compiled module in it, and what it is.
KINDS = {"_duccfft": ("pyduccfft", "DUCC"), "_pocketfft": ("pypocketfft", "pocketfft")}


def _algorithms(library: SciPy, problem: FftProblem, threads: int) -> Iterator[Algorithm]:
    name = problem.op.removeprefix("fft.")
    # One line is always transformed by one thread; with more, each line as it would be alone.
    largest = library.largest_factor(problem)
    precision, note = ("f64", f"float32 computed in float64: {in_double(largest)}") if problem.needs_double(largest) else ("", "")
    counts = (1, threads) if threads > 1 and (problem.items > 1 or len(problem.axes) > 1) and not problem.empty else (1,)
    for count in counts:
        yield on_threads("scipy", name, count, pool="scipy", precision=precision, note=note)


def _prepare(library: SciPy, problem: FftProblem, algorithm: Algorithm) -> FftPlan:
    function = _in_double if problem.needs_double(library.largest_factor(problem)) else _function
    return FftPlan(problem, function(problem, library.module(), algorithm.threads))


class SciPy(Library):
    """The compiled module below scipy.fft."""

    handlers: ClassVar = {FftProblem: Handler(_algorithms, _prepare, one_shape=PLANNED_AFTER)}

    def __init__(self) -> None:
        self._reason: str | None = None
        self._version: str | None = None
        self.folder = self.path = ""

    def reason(self) -> str:
        if self._reason is None:
            self._reason = self._find()
        return self._reason

    def _find(self) -> str:
        from importlib.util import find_spec

        try:
            spec = find_spec("scipy")
        except (ImportError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        if spec is None or not spec.submodule_search_locations:
            return f"SciPy is not installed ({self.how_to_get})"
        for root in spec.submodule_search_locations:
            for folder, (_, kind) in KINDS.items():
                path = os.path.join(root, "fft", folder)
                if os.path.isdir(path):
                    self.path, self.folder, self.title = path, folder, f"SciPy ({kind})"
                    return ""
        return f"the SciPy in {', '.join(spec.submodule_search_locations)} has neither {' nor '.join(KINDS)}"

    def largest_factor(self, problem: FftProblem) -> int:
        """Returns the largest prime factor of lengths that it transforms in float32."""
        if self.folder != "_pocketfft":
            return ANY_FACTOR
        return REAL_FACTOR if problem.op in ("fft.r2c", "fft.c2r") and len(problem.axes) == 1 else COMPLEX_FACTOR

    def version(self) -> str | None:
        if self._version is None and self.available():
            from importlib.metadata import PackageNotFoundError, version

            try:
                self._version = version("scipy")
            except PackageNotFoundError:  # without its metadata, as some bundles are
                from importlib import import_module

                self._version = str(import_module("scipy").__version__)
        return self._version

    def imported(self) -> bool:
        return self._module_name() in sys.modules

    def module(self) -> Any:
        """The compiled module."""
        from importlib import import_module

        return import_module(self._module_name())

    def _module_name(self) -> str:
        self.reason()
        return f"scipy.fft.{self.folder}.{KINDS[self.folder][0]}" if self.folder else ""

    def details(self) -> dict[str, Any]:
        return {"path": self.path, "found by": "imported", "pool": "scipy"} if self.available() else {}


def _function(p: FftProblem, module: Any, threads: int) -> Callable[[Array, Array | None], Array]:
    """The transform of the first array into the second, or into a new one."""
    transform = _transform(p, module, threads)
    dtype, exact = p.result_dtype, p.normalisation is not None
    direct = all(o.aligned for o in p.operands)
    ready = direct and fits(p) and not (p.op == "fft.c2r" and p.dtype.kind != "c")
    destroys = bool(p.parameter("overwrite")) and p.op in ("fft.c2c", "fft.r2r")

    def run(x: Array, out: Array | None) -> Array:
        if out is not None:
            apart(out, x)
        if ready:
            into = out if out is not None else x if destroys and x.dtype == dtype else None
            y = transform(x, into)
            return y if exact else scaled(p, y)
        if p.empty:
            return np.empty(p.result, dtype) if out is None else out
        made = fitted(p, x)
        if p.op == "fft.c2r" and made.dtype.kind != "c":
            made = made.astype(p.complex)
        own = made.base is None and made is not x and made.dtype == dtype and made.shape == p.result
        y = scaled(p, transform(made, out if direct and out is not None else made if own else None))
        if out is not None and y is not out:
            out[...] = y
            return out
        return y

    return run


def _in_double(p: FftProblem, module: Any, threads: int) -> Callable[[Array, Array | None], Array]:
    """The transform computed in float64 and rounded once."""
    x = next(o for o in p.operands if o.role == "input")
    wide = np.dtype(np.complex128 if x.dtype.kind == "c" else np.float64)
    compute = _function(replace(p, operands=(replace(x, dtype=wide, aligned=True),)), module, threads)

    def run(x: Array, out: Array | None) -> Array:
        if out is not None:
            apart(out, x)
        y = compute(x.astype(wide), None)
        if out is None:
            return y.astype(p.result_dtype)
        out[...] = y
        return out

    return run


def _transform(p: FftProblem, module: Any, threads: int) -> Callable[[Array, Array | None], Array]:
    axes, forward, norm = p.axes, p.sign < 0, p.normalisation or 0
    if not axes:
        return lambda x, out: _copied(x.astype(p.complex), out)
    if p.op == "fft.c2c":
        call = module.c2c
        return lambda x, out: call(x, axes, forward, norm, out, threads)
    if p.op == "fft.r2c":
        call = module.r2c
        return lambda x, out: call(x, axes, forward, norm, out, threads)
    if p.op == "fft.c2r":
        call, last = module.c2r, p.lengths[-1]
        return lambda x, out: call(x, axes, last, forward, norm, out, threads)
    kind, ortho = str(p.parameter("kind")), bool(p.parameter("ortho"))
    call, number = getattr(module, kind[:3]), int(kind[3])
    if p.dtype.kind != "c":
        return lambda x, out: call(x, number, axes, norm, out, threads, ortho)

    def parts(x: Array, out: Array | None) -> Array:
        y = np.empty(p.result, p.complex) if out is None else out
        call(x.real, number, axes, norm, y.real, threads, ortho)
        call(x.imag, number, axes, norm, y.imag, threads, ortho)
        return y

    return parts


def _copied(x: Array, out: Array | None) -> Array:
    if out is None:
        return x
    out[...] = x
    return out
