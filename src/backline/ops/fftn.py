"""Fourier transforms along several axes; names and parameters are those of torch.fft, definitions those of numpy.fft."""

from __future__ import annotations

from ..problems.fft_problem import FftProblem
from .fft_checks import MODULE, Array, Sizes, fourier
from .operation import operation

__all__ = ["fftn", "hfftn", "ifftn", "ihfftn", "irfftn", "rfftn"]


@operation("fftn", module=MODULE, family="fft")
def fftn(
    input: Array, s: Sizes = None, dim: Sizes = None, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Fourier transform along several axes.

    Parameters
    ----------
    input
        Real or complex.
    s
        Points along each axis; -1: as many as there are. The input is cut, or filled with zeros behind.
    dim
        The axes. None: the last ``len(s)``, or all.
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
    >>> backline.fft.fftn(np.ones((2, 2)))
    array([[4.+0.j, 0.+0.j],
           [0.+0.j, 0.+0.j]])
    """
    return fourier("fftn", "c2c", -1, input, s, dim, norm, out, overwrite_input)


@operation("ifftn", module=MODULE, family="fft")
def ifftn(
    input: Array, s: Sizes = None, dim: Sizes = None, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `fftn`.

    Parameters
    ----------
    input
        Real or complex.
    s
        Points along each axis; -1: as many as there are. The input is cut, or filled with zeros behind.
    dim
        The axes. None: the last ``len(s)``, or all.
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
    >>> backline.fft.ifftn(np.array([[4.0, 0.0], [0.0, 0.0]]))
    array([[1.+0.j, 1.+0.j],
           [1.+0.j, 1.+0.j]])
    """
    return fourier("ifftn", "c2c", 1, input, s, dim, norm, out, overwrite_input)


@operation("rfftn", module=MODULE, family="fft")
def rfftn(
    input: Array, s: Sizes = None, dim: Sizes = None, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Fourier transform of real numbers along several axes: the half that determines the other.

    Parameters
    ----------
    input
        Real.
    s
        Points along each axis; -1: as many as there are. The input is cut, or filled with zeros behind.
    dim
        The axes, the last being halved. None: the last ``len(s)``, or all.
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
    >>> backline.fft.rfftn(np.ones((2, 4))).shape
    (2, 3)
    """
    return fourier("rfftn", "r2c", -1, input, s, dim, norm, out, overwrite_input)


@operation("irfftn", module=MODULE, family="fft")
def irfftn(
    input: Array, s: Sizes = None, dim: Sizes = None, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `rfftn`.

    Parameters
    ----------
    input
        The half of a spectrum, as `rfftn` gives it.
    s
        Points of the result along each axis. None or -1: as many as there are; along the last, ``2 * (m - 1)`` for m elements.
    dim
        The axes, the last being halved. None: the last ``len(s)``, or all.
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
    >>> backline.fft.irfftn(np.ones((2, 3))).shape
    (2, 4)
    """
    return fourier("irfftn", "c2r", 1, input, s, dim, norm, out, overwrite_input)


@operation("hfftn", module=MODULE, family="fft")
def hfftn(
    input: Array, s: Sizes = None, dim: Sizes = None, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Fourier transform along several axes of what has Hermitian symmetry and is given by half; it is real.

    Parameters
    ----------
    input
        The half, as `irfft` takes it.
    s
        Points of the result along each axis. None or -1: as many as there are; along the last, ``2 * (m - 1)`` for m elements.
    dim
        The axes, the last being halved. None: the last ``len(s)``, or all.
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
    >>> backline.fft.hfftn(np.ones((2, 3))).shape
    (2, 4)
    """
    return fourier("hfftn", "c2r", -1, input, s, dim, norm, out, overwrite_input)


@operation("ihfftn", module=MODULE, family="fft")
def ihfftn(
    input: Array, s: Sizes = None, dim: Sizes = None, norm: str | None = None, *, overwrite_input: bool = False,
    out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `hfftn`.

    Parameters
    ----------
    input
        Real.
    s
        Points along each axis; -1: as many as there are. The input is cut, or filled with zeros behind.
    dim
        The axes, the last being halved. None: the last ``len(s)``, or all.
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
    >>> backline.fft.ihfftn(np.ones((2, 4))).shape
    (2, 3)
    """
    return fourier("ihfftn", "r2c", 1, input, s, dim, norm, out, overwrite_input)
