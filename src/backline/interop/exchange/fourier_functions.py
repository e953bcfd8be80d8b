"""`numpy.fft` and `scipy.fft` under an exchange: long transforms run on the library chosen, by Backline's own call of it.

Neither package calls another library for its transforms, so there is no address to be exchanged. `numpy.fft` looks its ufuncs up
in the module ``numpy.fft._pocketfft_umath`` at every call, and `scipy.fft` has a global backend: these two are put in place and
taken back. What does not fit exactly (another dtype, a factor that no `norm` gives) goes to what was there before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from ...errors import BacklineError
from ...switches import current

__all__ = ["LIBRARIES", "SMALL", "apply", "missing", "packages", "results_of_transforms"]

LIBRARIES = ("mkl", "fftw", "kernels")
"""The libraries that transforms can run on; all but the first have nothing else that could be exchanged."""

SMALL = 1 << 14
"""Points, in all transforms of a call, below which it stays: preparing a new one takes as long."""

_UFUNCS = "numpy.fft._pocketfft_umath"
_BACKENDS = "scipy.fft._backend"
# A ufunc -> Backline's function, the `norm` that does not scale, and the one that divides by the number of points.
_NUMPY = {
    "fft": ("fft", "backward", "forward"),
    "ifft": ("ifft", "forward", "backward"),
    "rfft_n_even": ("rfft", "backward", "forward"),
    "rfft_n_odd": ("rfft", "backward", "forward"),
    "irfft": ("irfft", "forward", "backward"),
}
_SCIPY = frozenset(f"{kind}{rank}" for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for rank in ("", "2", "n"))
_COMPLEX = {"f": "F", "d": "D", "F": "F", "D": "D"}
_REAL = {"f": "f", "d": "d", "F": "f", "D": "d"}


def _scope(library: str) -> Any:
    from ...settings import use

    return use(library, only=True)


# Transforms that the library does not run (errata, a switch that is off): asking again takes as long as computing them. The
# settings are part of the key, for they decide as well.
_refused: dict[tuple[Any, ...], bool] = {}
_MOST_REFUSED = 1000


def _is_refused(key: tuple[Any, ...]) -> bool:
    return bool(_refused) and (current(), *key) in _refused


def _refuse(key: tuple[Any, ...]) -> None:
    if len(_refused) >= _MOST_REFUSED:
        _refused.clear()
    _refused[current(), *key] = True


class _Ufunc:
    """Stands for a ufunc of `numpy.fft`, as its functions call it: ``ufunc(a, factor, axes=[(axis,), (), (axis,)], out=out)``."""

    def __init__(self, ufunc: Any, name: str, library: str) -> None:
        from ... import fft

        function, self._unscaled, self._divided = _NUMPY[name]
        self._ufunc, self._name, self._library, self._scope = ufunc, name, library, _scope(library)
        self._function = getattr(fft, function)
        self._dtypes = _REAL if name == "irfft" else _COMPLEX
        self._least = SMALL // 2 if function == "rfft" else SMALL  # its result is half a spectrum
        self._inputs = "fd" if function == "rfft" else "fdFD"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ufunc, name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        out = keywords.get("out")  # which NumPy's functions always pass
        if type(out) is not np.ndarray or out.size < self._least:
            return self._ufunc(*args, **keywords)
        arguments = self._arguments(*args, **keywords)
        if arguments is not None:
            a, out, *rest = arguments
            key = (self._library, self._name, a.shape, a.strides, a.dtype.char, *rest)
            if _is_refused(key):
                return self._ufunc(*args, **keywords)
            try:
                with self._scope:
                    if np.may_share_memory(a, out):
                        out[...] = self._function(a, *rest)
                        return out
                    return self._function(a, *rest, out=out)
            except BacklineError:
                _refuse(key)
        return self._ufunc(*args, **keywords)

    def _arguments(self, a: Any, factor: Any = None, *more: Any, axes: Any = None, out: Any = None, **others: Any) -> Any:
        """Returns input, result, points, axis and norm; None for what is left to the ufunc."""
        if more or others or type(a) is not np.ndarray:
            return None
        if a.dtype.char not in self._inputs or out.dtype.char != self._dtypes[a.dtype.char] or a.ndim != out.ndim:
            return None
        if not (a.dtype.isnative and out.dtype.isnative and out.flags.writeable):
            return None
        if not isinstance(factor, (int, float, np.floating)):
            return None
        axis = axes[0][0]
        if axes != [(axis,), (), (axis,)] or not 0 <= axis < a.ndim:
            return None
        shape = list(a.shape)
        shape[axis] = points = out.shape[axis]
        if tuple(shape) != out.shape:
            return None
        if self._name.startswith("rfft"):
            points = 2 * points - 1 - (self._name == "rfft_n_even")
        norm = self._norm(float(factor), points)
        return (a, out, points, axis, norm) if norm and points > 0 else None

    def _norm(self, factor: float, points: int) -> str:
        """Returns the `norm` that scales by a factor, "" if there is none; it was rounded to the input's precision."""
        if factor == 1:
            return self._unscaled
        if abs(factor * points - 1) < 1e-5:
            return self._divided
        return "ortho" if abs(factor * factor * points - 1) < 1e-5 else ""


class _Backend:
    """A backend of `scipy.fft` that leaves to the former one what is short, and what Backline does not take."""

    __ua_domain__ = "numpy.scipy.fft"

    def __init__(self, former: Any, library: str) -> None:
        self._former, self._library, self._scope = former, library, _scope(library)

    def __ua_function__(self, method: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        result = NotImplemented
        if method.__name__ in _SCIPY and args and type(args[0]) is np.ndarray and args[0].size >= SMALL:
            from .. import scipy_fft

            x = args[0]
            key = (self._library, method.__name__, x.shape, x.strides, x.dtype.char, repr(args[1:]), repr(keywords))
            if _is_refused(key):
                return self._former.__ua_function__(method, args, keywords)
            try:
                with self._scope:
                    result = scipy_fft.__ua_function__(method, args, keywords)
            except BacklineError:
                _refuse(key)  # SciPy computes it, or says what is wrong
        return self._former.__ua_function__(method, args, keywords) if result is NotImplemented else result


_ufuncs: dict[str, Any] = {}  # what numpy.fft had
_backend: tuple[Any, dict[str, bool], Any] | None = None  # what scipy.fft had, with its options; what was put there


def packages() -> Iterator[tuple[str, str]]:
    """Yields the packages whose transforms are imported, and why those of a package stay where they are, if they do."""
    if _UFUNCS in sys.modules:
        found = all(hasattr(sys.modules[_UFUNCS], name) for name in _NUMPY)
        yield "numpy", "" if found else "numpy.fft has no ufuncs (before NumPy 2.0)"
    if _is_complete():
        foreign = "scipy.fft has another global backend already" if _global_backend() else "SciPy does not tell its backend"
        yield "scipy", "" if _backend is not None or _former() is not None else foreign


def results_of_transforms(signal: Any) -> dict[str, Any]:
    """Returns transforms of a signal by each package whose transforms are imported and can be exchanged."""
    found = {}
    for package, reason in packages():
        transforms: Any = sys.modules.get(f"{package}.fft")
        backend = _global_backend() if package == "scipy" else None
        if reason or not hasattr(transforms, "irfft"):
            continue  # it is being imported, or has a backend of a program's
        # Not by a backend that the program has set for the block in which it makes an exchange.
        with transforms.set_backend(backend[0], only=True) if backend else nullcontext():
            found[f"{package}.fft"] = transforms.fft(signal)
            found[f"{package}.irfft"] = transforms.irfft(transforms.rfft(signal))
    return found


def missing(library: str) -> str:
    """Returns why transforms do not run on a library, "" where they do."""
    return "" if library in LIBRARIES else "it has no Fourier transforms"


_held = ""  # the library that transforms run on


def apply(library: str) -> None:
    """Lets transforms run on a library; "" puts back what was there. Modules that are not imported yet are left out."""
    global _held
    wanted = library if library in LIBRARIES else ""
    for name in dict.fromkeys(("" if wanted != _held else wanted, wanted)):
        _apply_to_numpy(name)
        _apply_to_scipy(name)
    _held = wanted


def _apply_to_numpy(library: str) -> None:
    module = sys.modules.get(_UFUNCS)
    if module is None or not all(hasattr(module, name) for name in _NUMPY):
        return
    for name in _NUMPY:
        held = getattr(module, name)
        ours = isinstance(held, _Ufunc)
        if library and not ours:
            _ufuncs[name] = held
            setattr(module, name, _Ufunc(held, name, library))
        elif not library and ours:
            setattr(module, name, _ufuncs.pop(name))


def _apply_to_scipy(library: str) -> None:
    global _backend
    if not _is_complete():
        return
    set_global = sys.modules["scipy.fft"].set_global_backend
    if library and _backend is None:
        former = _former()
        if former is not None:
            backend, options = former
            ours = _Backend(backend, library)
            set_global(ours, **options)
            _backend = backend, options, ours
    elif not library and _backend is not None:
        backend, options, ours = _backend
        now = _global_backend()
        if now is None or now[0] is ours:  # unless somebody has set another since
            set_global(backend, **options)
        _backend = None


def _is_complete() -> bool:
    return hasattr(sys.modules.get("scipy.fft"), "set_global_backend") and _BACKENDS in sys.modules


def _former() -> tuple[Any, dict[str, bool]] | None:
    """Returns SciPy's global backend and its options; None where it is not SciPy's own: that is a program's choice, and stays."""
    found, own = _global_backend(), sys.modules[_BACKENDS]._named_backends.get("scipy")
    return found if found is not None and found[0] is own else None


def _global_backend() -> tuple[Any, dict[str, bool]] | None:
    """Returns the global backend of `scipy.fft` and how it was set, None where SciPy does not tell."""
    try:
        from scipy._lib import uarray

        domains = uarray.get_state()._pickle()[0]
        (backend, coerce, only), _, try_last = domains["numpy.scipy.fft"]
        return backend, {"coerce": bool(coerce), "only": bool(only), "try_last": bool(try_last)}
    except (ImportError, AttributeError, KeyError, TypeError, ValueError, IndexError):
        return None
