"""Fourier transforms along one axis; names and parameters are those of torch.fft, definitions those of numpy.fft.

The result of float32 and complex64 is single precision; halves are computed in float32, and so is their result. Integers are
computed in float64. Arrays of longdouble stay what they are, on the libraries that have it.
"""

from __future__ import annotations

from ..problems.fft_problem import FftProblem
from .fft_checks import MODULE, Array, fourier
from .operation import operation

__all__ = ["fft", "hfft", "ifft", "ihfft", "irfft", "rfft"]


@operation("fft", module=MODULE, family="fft")
def fft(
    input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Discrete Fourier transform.

    Parameters
    ----------
    input
        Real or complex, of one dimension or more.
    n
        Points of the transform; the input is cut, or filled with zeros behind. None: as many as it has.
    dim
        The axis.
    norm
        "backward" or None: no factor; "ortho": ``1 / sqrt(n)``; "forward": ``1 / n``.
    overwrite_input
        Whether the input may be destroyed, which can save a copy.
    out
        Array for the result; it must not overlap the input.

    Returns
    -------
    ndarray
        Complex, `n` along the axis, in the input's precision.

    Raises
    ------
    BadType, BadValue
        No array of numbers; no such axis or `norm`; `n` below 1, or more than memory holds; an `out` that does not fit.

    Notes
    -----
    ``y[k] = sum(x[j] * exp(-2j * pi * j * k / n))``.

    Halves and float32 give complex64, integers complex128.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.fft(np.array([1.0, 0.0, 0.0, 1.0]))
    array([2.+0.j, 1.+1.j, 0.+0.j, 1.-1.j])
    """
    return fourier("fft", "c2c", -1, input, n, dim, norm, out, overwrite_input, one=True)


@operation("ifft", module=MODULE, family="fft")
def ifft(
    input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `fft`.

    Parameters
    ----------
    input
        Real or complex, of one dimension or more.
    n
        Points of the transform; the input is cut, or filled with zeros behind. None: as many as it has.
    dim
        The axis.
    norm
        "backward" or None: ``1 / n``; "ortho": ``1 / sqrt(n)``; "forward": no factor.
    overwrite_input
        Whether the input may be destroyed, which can save a copy.
    out
        Array for the result; it must not overlap the input.

    Returns
    -------
    ndarray
        Complex, `n` along the axis.

    Raises
    ------
    BadType, BadValue
        As `fft`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.ifft(np.array([4.0, 0.0, 0.0, 0.0]))
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])
    """
    return fourier("ifft", "c2c", 1, input, n, dim, norm, out, overwrite_input, one=True)


@operation("rfft", module=MODULE, family="fft")
def rfft(
    input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Fourier transform of real numbers: the half that determines the other.

    Parameters
    ----------
    input
        Real, of one dimension or more.
    n
        Points of the transform; the input is cut, or filled with zeros behind. None: as many as it has.
    dim
        The axis.
    norm
        "backward" or None: no factor; "ortho": ``1 / sqrt(n)``; "forward": ``1 / n``.
    overwrite_input
        Whether the input may be destroyed, which can save a copy.
    out
        Array for the result; it must not overlap the input.

    Returns
    -------
    ndarray
        Complex, ``n // 2 + 1`` along the axis.

    Raises
    ------
    BadType, BadValue
        As `fft`; a complex input.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.rfft(np.array([1.0, 0.0, 0.0, 1.0]))
    array([2.+0.j, 1.+1.j, 0.+0.j])
    """
    return fourier("rfft", "r2c", -1, input, n, dim, norm, out, overwrite_input, one=True)


@operation("irfft", module=MODULE, family="fft")
def irfft(
    input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `rfft`.

    Parameters
    ----------
    input
        The half of a spectrum, real or complex. Imaginary parts that a real result cannot have are not looked at.
    n
        Points of the result; ``n // 2 + 1`` elements are taken, missing ones are 0. None: ``2 * (m - 1)`` for m elements.
    dim
        The axis.
    norm
        "backward" or None: ``1 / n``; "ortho": ``1 / sqrt(n)``; "forward": no factor.
    overwrite_input
        Whether the input may be destroyed, which can save a copy.
    out
        Array for the result; it must not overlap the input.

    Returns
    -------
    ndarray
        Real, `n` along the axis.

    Raises
    ------
    BadType, BadValue
        As `fft`.

    Notes
    -----
    A result of an odd number of elements must be asked for by `n`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.irfft(np.array([2.0, 1.0 + 1.0j, 0.0]))
    array([1., 0., 0., 1.])
    """
    return fourier("irfft", "c2r", 1, input, n, dim, norm, out, overwrite_input, one=True)


@operation("hfft", module=MODULE, family="fft")
def hfft(
    input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Fourier transform of a sequence with Hermitian symmetry, of which half is given; it is real.

    Parameters
    ----------
    input
        The half, real or complex, as `irfft` takes it.
    n
        Points of the result; ``n // 2 + 1`` elements are taken, missing ones are 0. None: ``2 * (m - 1)`` for m elements.
    dim
        The axis.
    norm
        "backward" or None: no factor; "ortho": ``1 / sqrt(n)``; "forward": ``1 / n``.
    overwrite_input
        Whether the input may be destroyed, which can save a copy.
    out
        Array for the result; it must not overlap the input.

    Returns
    -------
    ndarray
        Real, `n` along the axis.

    Raises
    ------
    BadType, BadValue
        As `fft`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.hfft(np.array([1.0, 0.5, 0.0]))
    array([2., 1., 0., 1.])
    """
    return fourier("hfft", "c2r", -1, input, n, dim, norm, out, overwrite_input, one=True)


@operation("ihfft", module=MODULE, family="fft")
def ihfft(
    input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `hfft`.

    Parameters
    ----------
    input
        Real, of one dimension or more.
    n
        Points of the transform; the input is cut, or filled with zeros behind. None: as many as it has.
    dim
        The axis.
    norm
        "backward" or None: ``1 / n``; "ortho": ``1 / sqrt(n)``; "forward": no factor.
    overwrite_input
        Whether the input may be destroyed, which can save a copy.
    out
        Array for the result; it must not overlap the input.

    Returns
    -------
    ndarray
        Complex, ``n // 2 + 1`` along the axis.

    Raises
    ------
    BadType, BadValue
        As `rfft`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.ihfft(np.array([2.0, 1.0, 0.0, 1.0]))
    array([1. +0.j, 0.5+0.j, 0. +0.j])
    """
    return fourier("ihfft", "r2c", 1, input, n, dim, norm, out, overwrite_input, one=True)
