"""Fourier transforms along two axes; names and parameters are those of torch.fft, definitions those of numpy.fft."""

from __future__ import annotations

from ..problems.fft_problem import FftProblem
from .fft_checks import MODULE, Array, Sizes, fourier
from .operation import operation

__all__ = ["fft2", "hfft2", "ifft2", "ihfft2", "irfft2", "rfft2"]


@operation("fft2", module=MODULE, family="fft")
def fft2(
    input: Array, s: Sizes = None, dim: Sizes = (-2, -1), norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Fourier transform along two axes.

    Parameters
    ----------
    input
        Real or complex.
    s
        Points along each axis; -1: as many as there are. The input is cut, or filled with zeros behind.
    dim
        The axes.
    norm
        "backward" or None: no factor; "ortho": ``1 / sqrt(N)``; "forward": ``1 / N``, for N points in all.
    overwrite_input, out
        As for `fft`.

    Returns
    -------
    ndarray
        Complex, in the input's precision.

    Raises
    ------
    BadType, BadValue
        As `fft`; an axis named twice; `s` and `dim` of different lengths.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.fft2(np.ones((2, 2)))
    array([[4.+0.j, 0.+0.j],
           [0.+0.j, 0.+0.j]])
    """
    return fourier("fft2", "c2c", -1, input, s, dim, norm, out, overwrite_input)


@operation("ifft2", module=MODULE, family="fft")
def ifft2(
    input: Array, s: Sizes = None, dim: Sizes = (-2, -1), norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `fft2`.

    Parameters
    ----------
    input
        Real or complex.
    s
        Points along each axis; -1: as many as there are. The input is cut, or filled with zeros behind.
    dim
        The axes.
    norm
        "backward" or None: ``1 / N`` for N points in all; "ortho": ``1 / sqrt(N)``; "forward": no factor.
    overwrite_input, out
        As for `fft`.

    Returns
    -------
    ndarray
        Complex.

    Raises
    ------
    BadType, BadValue
        As `fft`; an axis named twice; `s` and `dim` of different lengths.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.ifft2(np.array([[4.0, 0.0], [0.0, 0.0]]))
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """
    return fourier("ifft2", "c2c", 1, input, s, dim, norm, out, overwrite_input)


@operation("rfft2", module=MODULE, family="fft")
def rfft2(
    input: Array, s: Sizes = None, dim: Sizes = (-2, -1), norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Fourier transform of real numbers along two axes: the half that determines the other.

    Parameters
    ----------
    input
        Real.
    s
        Points along each axis; -1: as many as there are. The input is cut, or filled with zeros behind.
    dim
        The axes; the last is the one that is halved.
    norm
        "backward" or None: no factor; "ortho": ``1 / sqrt(N)``; "forward": ``1 / N``, for N points in all.
    overwrite_input, out
        As for `fft`.

    Returns
    -------
    ndarray
        Complex, ``n // 2 + 1`` along the last of `dim`.

    Raises
    ------
    BadType, BadValue
        As `rfft`; an axis named twice; `s` and `dim` of different lengths.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.rfft2(np.ones((2, 4))).shape
    (2, 3)
    """
    return fourier("rfft2", "r2c", -1, input, s, dim, norm, out, overwrite_input)


@operation("irfft2", module=MODULE, family="fft")
def irfft2(
    input: Array, s: Sizes = None, dim: Sizes = (-2, -1), norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `rfft2`.

    Parameters
    ----------
    input
        The half of a spectrum, as `rfft2` gives it.
    s
        Points of the result along each axis. None or -1: as many as there are; along the last, ``2 * (m - 1)`` for m elements.
    dim
        The axes; the last is the one that is halved.
    norm
        "backward" or None: ``1 / N`` for N points in all; "ortho": ``1 / sqrt(N)``; "forward": no factor.
    overwrite_input, out
        As for `fft`.

    Returns
    -------
    ndarray
        Real.

    Raises
    ------
    BadType, BadValue
        As `fft`; an axis named twice; `s` and `dim` of different lengths.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.irfft2(np.ones((2, 3))).shape
    (2, 4)
    """
    return fourier("irfft2", "c2r", 1, input, s, dim, norm, out, overwrite_input)


@operation("hfft2", module=MODULE, family="fft")
def hfft2(
    input: Array, s: Sizes = None, dim: Sizes = (-2, -1), norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Fourier transform along two axes of what has Hermitian symmetry and is given by half; it is real.

    Parameters
    ----------
    input
        The half, as `irfft` takes it.
    s
        Points of the result along each axis. None or -1: as many as there are; along the last, ``2 * (m - 1)`` for m elements.
    dim
        The axes; the last is the one that is halved.
    norm
        "backward" or None: no factor; "ortho": ``1 / sqrt(N)``; "forward": ``1 / N``, for N points in all.
    overwrite_input, out
        As for `fft`.

    Returns
    -------
    ndarray
        Real.

    Raises
    ------
    BadType, BadValue
        As `fft`; an axis named twice; `s` and `dim` of different lengths.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.hfft2(np.ones((2, 3))).shape
    (2, 4)
    """
    return fourier("hfft2", "c2r", -1, input, s, dim, norm, out, overwrite_input)


@operation("ihfft2", module=MODULE, family="fft")
def ihfft2(
    input: Array, s: Sizes = None, dim: Sizes = (-2, -1), norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `hfft2`.

    Parameters
    ----------
    input
        Real.
    s
        Points along each axis; -1: as many as there are. The input is cut, or filled with zeros behind.
    dim
        The axes; the last is the one that is halved.
    norm
        "backward" or None: ``1 / N`` for N points in all; "ortho": ``1 / sqrt(N)``; "forward": no factor.
    overwrite_input, out
        As for `fft`.

    Returns
    -------
    ndarray
        Complex, ``n // 2 + 1`` along the last of `dim`.

    Raises
    ------
    BadType, BadValue
        As `rfft`; an axis named twice; `s` and `dim` of different lengths.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.ihfft2(np.ones((2, 4))).shape
    (2, 3)
    """
    return fourier("ihfft2", "r2c", 1, input, s, dim, norm, out, overwrite_input)
