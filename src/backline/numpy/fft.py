"""Fourier transforms as numpy.fft has them, run by Backline; `fftfreq`, `fftshift` and their like are NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ops import fourier
from .arguments import also_named, numbers

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft", "irfft2",
    "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

fftfreq, fftshift, ifftshift, rfftfreq = np.fft.fftfreq, np.fft.fftshift, np.fft.ifftshift, np.fft.rfftfreq

_TEXT = """{title}, as numpy.fft.{name}.

Parameters
----------
a : array_like
    What is transformed; integers as float64.
{sizes}
{axes}
norm : {{"backward", "ortho", "forward"}}, optional
    Which direction is divided by the length; "backward" unless told.
out : ndarray, optional
    Where to write the result.

Returns
-------
ndarray
    As numpy.fft.{name} returns it: of float32 and complex64 in single precision.

Raises
------
ValueError
    Lengths below 1, axes that the array does not have.

Examples
--------
>>> import numpy, backline.numpy as np
>>> x = numpy.ones({example})
>>> numpy.allclose(np.fft.{name}(x), numpy.fft.{name}(x))
True
"""
_LENGTH = "n : int, optional\n    Length of the result's axis, or of the real result; input is padded with zeros or cut."
_LENGTHS = "s : sequence of int, optional\n    Lengths of the transformed axes."
_AXIS = "axis : int\n    Which axis; ``dim`` is another name for it."
_AXES = "axes : sequence of int{default}\n    Which axes; ``dim`` is another name for it."


def _one(name: str, title: str) -> Callable[..., Any]:
    run, numpys = getattr(fourier, name), getattr(np.fft, name)

    @also_named(dim="axis", input="a")
    def transform(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None, out: Any = None) -> Any:
        given = numbers(a) if n is None or n > 0 else None
        if given is None or not _usual(name, given[0]) or not -given[0].ndim <= axis < given[0].ndim:
            return numpys(a, n, axis, norm, out)
        result = run(given[0], n, axis, norm)
        return result if out is None else out if _written(out, result) else numpys(a, n, axis, norm, out)

    return _named(transform, name, _TEXT.format(title=title, name=name, sizes=_LENGTH, axes=_AXIS, example="4"))


def _several(name: str, title: str, two: bool) -> Callable[..., Any]:
    run, numpys = getattr(fourier, name), getattr(np.fft, name)
    default = (-2, -1) if two else None

    @also_named(dim="axes", input="a")
    def transform(a: Any, s: Any = None, axes: Any = default, norm: str | None = None, out: Any = None) -> Any:
        given = numbers(a)
        if given is None or not _usual(name, given[0]) or not _ordinary_axes(given[0].ndim, s, axes):
            return numpys(a, s, axes, norm, out)
        result = run(given[0], s, axes, norm)
        return result if out is None else out if _written(out, result) else numpys(a, s, axes, norm, out)

    axes = _AXES.format(default="" if two else ", optional")
    return _named(transform, name, _TEXT.format(title=title, name=name, sizes=_LENGTHS, axes=axes, example="(4, 4)"))


def _named(function: Callable[..., Any], name: str, text: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__module__, function.__doc__ = __name__, text
    return function


def _usual(name: str, array: np.ndarray) -> bool:
    """Tells if there is something to transform. NumPy drops imaginary parts where real input is asked for, and warns."""
    return array.size > 0 and (array.dtype.kind == "f" or name not in ("rfft", "rfft2", "rfftn", "ihfft"))


def _written(out: Any, result: np.ndarray) -> bool:
    """Writes the result, and tells if that could be done: else NumPy casts, or says what is wrong."""
    if type(out) is not np.ndarray or out.dtype != result.dtype or out.shape != result.shape:
        return False
    np.copyto(out, result)
    return True


def _ordinary_axes(ndim: int, s: Any, axes: Any) -> bool:
    """Tells if axes are there once each, and lengths are positive: for other calls NumPy has rules or errors of its own."""
    if s is not None and (axes is None or not all(isinstance(n, int) and n > 0 for n in s) or len(s) != len(axes)):
        return False
    if axes is None:
        return ndim > 0
    within = all(isinstance(axis, int) and -ndim <= axis < ndim for axis in axes)
    return within and len({axis % ndim for axis in axes}) == len(axes) > 0


def __getattr__(name: str) -> Any:
    return getattr(np.fft, name)


fft = _one("fft", "Transform along an axis")
ifft = _one("ifft", "Inverse transform along an axis")
rfft = _one("rfft", "Transform of real values along an axis: the half that is not redundant")
irfft = _one("irfft", "Inverse of `rfft`")
hfft = _one("hfft", "Transform of values with Hermitian symmetry, which is real")
ihfft = _one("ihfft", "Inverse of `hfft`")
fft2 = _several("fft2", "Transform along two axes", True)
ifft2 = _several("ifft2", "Inverse transform along two axes", True)
rfft2 = _several("rfft2", "Transform of real values along two axes", True)
irfft2 = _several("irfft2", "Inverse of `rfft2`", True)
fftn = _several("fftn", "Transform along several axes", False)
ifftn = _several("ifftn", "Inverse transform along several axes", False)
rfftn = _several("rfftn", "Transform of real values along several axes", False)
irfftn = _several("irfftn", "Inverse of `rfftn`", False)
