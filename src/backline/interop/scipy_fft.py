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


# Parameters of SciPy's functions after the array, in their order, with the defaults.
_COMMON: dict[str, Any] = {"norm": None, "overwrite_x": False, "workers": None}
_ONE = {"n": None, "axis": -1, **_COMMON}
_TWO = {"s": None, "axes": (-2, -1), **_COMMON}
_SEVERAL = {"s": None, "axes": None, **_COMMON}
_COSINE = {"type": 2, **_ONE, "orthogonalize": None}
_COSINES = {"type": 2, **_SEVERAL, "orthogonalize": None}


def _transform(function: Any, parameters: dict[str, Any]) -> Callable[..., Any]:
    """Returns the function that SciPy's own one of these parameters is replaced by."""

    def call(x: Any, *args: Any, plan: Any = None, **keywords: Any) -> Any:
        given = {**parameters, **dict(zip(parameters, args, strict=False)), **keywords}  # SciPy has checked their names
        array = _array(x)
        if array is NotImplemented:
            return NotImplemented
        if "n" in given:
            where = given["n"], given["axis"]
        else:
            where = _numbers(given["s"], "shape"), _numbers(given["axes"], "axes")
            if where[1] == () or (where[1] is None and array.ndim == 0):
                return NotImplemented  # without axes SciPy returns the input itself
        rest = {"overwrite_input": True} if given["overwrite_x"] else {}
        if "type" not in given:
            return _run(function, given["workers"], plan, array, *where, given["norm"], **rest)
        orthogonalize = None if given["orthogonalize"] is None else bool(given["orthogonalize"])
        return _run(function, given["workers"], plan, array, given["type"], *where, given["norm"], orthogonalize, **rest)

    return call


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{kind}{suffix}": _transform(getattr(_fft, f"{kind}{suffix}"), parameters)
    for kinds, suffix, parameters in (
        (("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"), "", _ONE),
        (("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"), "2", _TWO),
        (("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"), "n", _SEVERAL),
        (("dct", "idct", "dst", "idst"), "", _COSINE),
        (("dct", "idct", "dst", "idst"), "n", _COSINES),
    )
    for kind in kinds
}
