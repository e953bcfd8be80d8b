"""A backend for scipy.fft: programs that call `scipy.fft` have their transforms run by the library that Backline chooses.

``with scipy.fft.set_backend(backline.interop.scipy_fft): ...`` for a part of a program, `set_global` for all of it. Every
transform that Backline has is taken over: Fourier, cosine and sine. The others (`fht`, `ifht`), and arrays that are not NumPy's,
are left to SciPy.

``workers=`` bounds the threads of a call, and so does ``scipy.fft.set_workers`` above 1; without them Backline uses as many as it
may. (1 is what SciPy has when nobody has set anything.) ``overwrite_x`` is passed on.

Examples
--------
>>> import numpy as np, scipy.fft, backline
>>> with scipy.fft.set_backend(backline.interop.scipy_fft):
...     scipy.fft.rfft(np.ones(4))
array([4.+0.j, 0.+0.j, 0.+0.j])
>>> backline.explain().problem.key
'fft.rfft f64 4'
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import numpy as np

from .. import fft as _fft
from ..settings import num_threads
from ..switches import current

__all__ = ["set_global", "unset_global"]

__ua_domain__ = "numpy.scipy.fft"

TAKEN = frozenset("biufc?")  # kinds of dtypes; what else SciPy makes of an array is its own business
SCALARS = (bool, int, float, complex, np.number, np.bool_)


def __ua_function__(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function = _FUNCTIONS.get(method.__name__)
    return NotImplemented if function is None else function(*args, **kwargs)


def set_global() -> None:
    """Run every transform of `scipy.fft` in this process by Backline, until `unset_global`.

    Examples
    --------
    >>> set_global()
    >>> unset_global()
    """
    import sys

    import scipy.fft

    # What this one leaves to SciPy is looked for among the registered: the global one was SciPy's own place.
    scipy.fft.register_backend("scipy")
    scipy.fft.set_global_backend(sys.modules[__name__])


def unset_global() -> None:
    """Give `scipy.fft` back to SciPy."""
    import scipy.fft

    scipy.fft.set_global_backend("scipy", try_last=True)


def _array(x: Any) -> Any:
    """The input as an array, or NotImplemented for what SciPy has to say something about."""
    if type(x) is not np.ndarray:
        if not isinstance(x, (list, tuple, *SCALARS)):
            return NotImplemented
        x = np.asarray(x)
    return x if x.dtype.kind in TAKEN else NotImplemented


def _bound(workers: Any) -> int:
    """Threads that a call may use; 0 where it says nothing."""
    if workers is None:
        set_before: int = _workers()()
        return set_before if set_before > 1 else 0
    count = operator.index(workers)
    if count > 0:
        return count
    cpus = os.cpu_count() or 1
    if count == 0:
        raise ValueError("workers must not be zero")
    if count < -cpus:
        raise ValueError(f"workers value out of range; got {count}, must not be less than {-cpus}")
    return count + 1 + cpus


@lru_cache(maxsize=1)
def _workers() -> Any:
    from scipy.fft import get_workers

    return get_workers


@lru_cache(maxsize=64)
def _on(threads: int) -> Any:
    """The scope of so many threads: to make one takes longer than a short transform, to enter it again does not."""
    return num_threads(threads)


def _run(function: Any, workers: Any, plan: Any, *args: Any, **keywords: Any) -> Any:
    if plan is not None:
        raise NotImplementedError("Passing a precomputed plan is not supported: Backline keeps its own")
    bound, snapshot = _bound(workers), cast(Any, current())
    if not 0 < bound < snapshot["num_threads"]:
        return function(*args, **keywords)
    with _on(bound):
        return function(*args, **keywords)


def _numbers(value: Any, name: str) -> Any:
    """One int or several as a tuple."""
    if value is None:
        return None
    try:
        return tuple(operator.index(v) for v in (value if np.iterable(value) else (value,)))
    except TypeError:
        raise ValueError(f"{name} must be a scalar or iterable of integers") from None


def _one(function: Any) -> Callable[..., Any]:
    """Of one dimension."""

    def call(
        x: Any,
        n: Any = None,
        axis: Any = -1,
        norm: Any = None,
        overwrite_x: Any = False,
        workers: Any = None,
        *,
        plan: Any = None,
    ) -> Any:
        array = _array(x)
        if array is NotImplemented:
            return NotImplemented
        keywords = {"overwrite_input": True} if overwrite_x else {}
        return _run(function, workers, plan, array, n, axis, norm, **keywords)

    return call


def _several(function: Any, default: tuple[int, ...] | None) -> Callable[..., Any]:
    """Of two dimensions or more."""

    def call(
        x: Any,
        s: Any = None,
        axes: Any = default,
        norm: Any = None,
        overwrite_x: Any = False,
        workers: Any = None,
        *,
        plan: Any = None,
    ) -> Any:
        array, axes = _array(x), _numbers(axes, "axes")
        if array is NotImplemented or axes == () or (axes is None and array.ndim == 0):
            return NotImplemented  # without axes SciPy returns the input itself
        keywords = {"overwrite_input": True} if overwrite_x else {}
        return _run(function, workers, plan, array, _numbers(s, "shape"), axes, norm, **keywords)

    return call


def _cosine(function: Any) -> Callable[..., Any]:
    def call(
        x: Any,
        type: Any = 2,
        n: Any = None,
        axis: Any = -1,
        norm: Any = None,
        overwrite_x: Any = False,
        workers: Any = None,
        orthogonalize: Any = None,
    ) -> Any:
        array = _array(x)
        if array is NotImplemented:
            return NotImplemented
        keywords = {"overwrite_input": True} if overwrite_x else {}
        ortho = None if orthogonalize is None else bool(orthogonalize)
        return _run(function, workers, None, array, type, n, axis, norm, ortho, **keywords)

    return call


def _cosines(function: Any) -> Callable[..., Any]:
    def call(
        x: Any,
        type: Any = 2,
        s: Any = None,
        axes: Any = None,
        norm: Any = None,
        overwrite_x: Any = False,
        workers: Any = None,
        orthogonalize: Any = None,
    ) -> Any:
        array, axes = _array(x), _numbers(axes, "axes")
        if array is NotImplemented or axes == () or (axes is None and array.ndim == 0):
            return NotImplemented
        keywords = {"overwrite_input": True} if overwrite_x else {}
        ortho = None if orthogonalize is None else bool(orthogonalize)
        return _run(function, workers, None, array, type, _numbers(s, "shape"), axes, norm, ortho, **keywords)

    return call


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _one(getattr(_fft, name)) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{name: _several(getattr(_fft, name), (-2, -1)) for name in ("fft2", "ifft2", "rfft2", "irfft2", "hfft2", "ihfft2")},
    **{name: _several(getattr(_fft, name), None) for name in ("fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn")},
    **{name: _cosine(getattr(_fft, name)) for name in ("dct", "idct", "dst", "idst")},
    **{name: _cosines(getattr(_fft, name)) for name in ("dctn", "idctn", "dstn", "idstn")},
}
