"""Cosine and sine transforms of types 1 to 4; names, parameters and definitions are those of scipy.fft."""

from __future__ import annotations

from ..problems.fft_problem import FftProblem
from .fft_checks import MODULE, Array, Sizes, cosine
from .operation import operation

__all__ = ["dct", "dctn", "dst", "dstn", "idct", "idctn", "idst", "idstn"]


@operation("dct", module=MODULE, family="fft")
def dct(
    input: Array, type: int = 2, n: int | None = None, dim: int = -1, norm: str | None = None,
    orthogonalize: bool | None = None, *, overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Discrete cosine transform.

    Parameters
    ----------
    input
        Real or complex, of one dimension or more.
    type
        1, 2, 3 or 4. Type 1 needs 2 elements.
    n
        Points of the transform; the input is cut, or filled with zeros behind. None: as many as it has.
    dim
        The axis.
    norm
        "backward" or None: no factor; "ortho": 1 / sqrt(N); "forward": 1 / N. N is twice the points; for type 1 twice
        the points less 1.
    orthogonalize
        Whether to scale the ends so that the matrix is orthogonal, up to the factor. None: with norm="ortho" only.
    overwrite_input, out
        As for `fft`.

    Returns
    -------
    ndarray
        In the input's precision, real for a real input.

    Raises
    ------
    BadType, BadValue
        As `fft`; another `type`.

    Notes
    -----
    Without a factor, for n elements: type 1 ``y[k] = x[0] + (-1)**k * x[n-1] + 2 * sum(x[j] * cos(pi * j * k / (n - 1)))`` over
    0 < j < n - 1; type 2 ``2 * sum(x[j] * cos(pi * k * (2j + 1) / (2n)))``; type 3
    ``x[0] + 2 * sum(x[j] * cos(pi * j * (2k + 1) / (2n)))`` over j > 0; type 4
    ``2 * sum(x[j] * cos(pi * (2j + 1) * (2k + 1) / (4n)))``. Of complex numbers both parts are transformed.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.dct(np.ones(2))
    array([4., 0.])
    """
    return cosine("dct", input, type, n, dim, norm, orthogonalize, out, overwrite_input, one=True)


@operation("idct", module=MODULE, family="fft")
def idct(
    input: Array, type: int = 2, n: int | None = None, dim: int = -1, norm: str | None = None,
    orthogonalize: bool | None = None, *, overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `dct`.

    Parameters
    ----------
    input, type
        As for `dct`.
    n
        Points of the transform; the input is cut, or filled with zeros behind. None: as many as it has.
    dim
        The axis.
    norm
        "backward" or None: 1 / N; "ortho": 1 / sqrt(N); "forward": no factor. N is twice the points; for type 1 twice
        the points less 1.
    orthogonalize, overwrite_input, out
        As for `dct`.

    Returns
    -------
    ndarray
        In the input's precision, real for a real input.

    Raises
    ------
    BadType, BadValue
        As `fft`; another `type`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.idct(np.array([4.0, 0.0]))
    array([1., 1.])
    """
    return cosine("idct", input, type, n, dim, norm, orthogonalize, out, overwrite_input, one=True)


@operation("dctn", module=MODULE, family="fft")
def dctn(
    input: Array, type: int = 2, s: Sizes = None, dim: Sizes = None, norm: str | None = None,
    orthogonalize: bool | None = None, *, overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Discrete cosine transform along several axes.

    Parameters
    ----------
    input, type
        As for `dct`.
    s
        Points along each axis; the input is cut, or filled with zeros behind. None or -1: as many as it has.
    dim
        The axes. None: the last ``len(s)``, or all.
    norm
        "backward" or None: no factor; "ortho": 1 / sqrt(N); "forward": 1 / N. N is the product of twice the points
        along each axis; for type 1 twice the points less 1.
    orthogonalize, overwrite_input, out
        As for `dct`.

    Returns
    -------
    ndarray
        In the input's precision, real for a real input.

    Raises
    ------
    BadType, BadValue
        As `fft`; another `type`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.dctn(np.ones((2, 2)))
    array([[16.,  0.],
           [ 0.,  0.]])
    """
    return cosine("dctn", input, type, s, dim, norm, orthogonalize, out, overwrite_input)


@operation("idctn", module=MODULE, family="fft")
def idctn(
    input: Array, type: int = 2, s: Sizes = None, dim: Sizes = None, norm: str | None = None,
    orthogonalize: bool | None = None, *, overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `dctn`.

    Parameters
    ----------
    input, type
        As for `dct`.
    s
        Points along each axis; the input is cut, or filled with zeros behind. None or -1: as many as it has.
    dim
        The axes. None: the last ``len(s)``, or all.
    norm
        "backward" or None: 1 / N; "ortho": 1 / sqrt(N); "forward": no factor. N is the product of twice the points
        along each axis; for type 1 twice the points less 1.
    orthogonalize, overwrite_input, out
        As for `dct`.

    Returns
    -------
    ndarray
        In the input's precision, real for a real input.

    Raises
    ------
    BadType, BadValue
        As `fft`; another `type`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.idctn(np.array([[16.0, 0.0], [0.0, 0.0]]))
    array([[1., 1.],
           [1., 1.]])
    """
    return cosine("idctn", input, type, s, dim, norm, orthogonalize, out, overwrite_input)


@operation("dst", module=MODULE, family="fft")
def dst(
    input: Array, type: int = 2, n: int | None = None, dim: int = -1, norm: str | None = None,
    orthogonalize: bool | None = None, *, overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Discrete sine transform.

    Parameters
    ----------
    input
        Real or complex, of one dimension or more.
    type
        1, 2, 3 or 4.
    n
        Points of the transform; the input is cut, or filled with zeros behind. None: as many as it has.
    dim
        The axis.
    norm
        "backward" or None: no factor; "ortho": 1 / sqrt(N); "forward": 1 / N. N is twice the points; for type 1 twice
        the points and 1 more.
    orthogonalize
        Whether to scale the ends so that the matrix is orthogonal, up to the factor. None: with norm="ortho" only.
    overwrite_input, out
        As for `fft`.

    Returns
    -------
    ndarray
        In the input's precision, real for a real input.

    Raises
    ------
    BadType, BadValue
        As `fft`; another `type`.

    Notes
    -----
    Without a factor, for n elements: type 1 ``y[k] = 2 * sum(x[j] * sin(pi * (j + 1) * (k + 1) / (n + 1)))``; type 2
    ``2 * sum(x[j] * sin(pi * (k + 1) * (2j + 1) / (2n)))``; type 3
    ``(-1)**k * x[n-1] + 2 * sum(x[j] * sin(pi * (j + 1) * (2k + 1) / (2n)))`` over j < n - 1; type 4
    ``2 * sum(x[j] * sin(pi * (2j + 1) * (2k + 1) / (4n)))``. Of complex numbers both parts are transformed.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.dst(np.ones(1))
    array([2.])
    """
    return cosine("dst", input, type, n, dim, norm, orthogonalize, out, overwrite_input, one=True)


@operation("idst", module=MODULE, family="fft")
def idst(
    input: Array, type: int = 2, n: int | None = None, dim: int = -1, norm: str | None = None,
    orthogonalize: bool | None = None, *, overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `dst`.

    Parameters
    ----------
    input, type
        As for `dst`.
    n
        Points of the transform; the input is cut, or filled with zeros behind. None: as many as it has.
    dim
        The axis.
    norm
        "backward" or None: 1 / N; "ortho": 1 / sqrt(N); "forward": no factor. N is twice the points; for type 1 twice
        the points and 1 more.
    orthogonalize, overwrite_input, out
        As for `dst`.

    Returns
    -------
    ndarray
        In the input's precision, real for a real input.

    Raises
    ------
    BadType, BadValue
        As `fft`; another `type`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.idst(np.array([2.0]))
    array([1.])
    """
    return cosine("idst", input, type, n, dim, norm, orthogonalize, out, overwrite_input, one=True)


@operation("dstn", module=MODULE, family="fft")
def dstn(
    input: Array, type: int = 2, s: Sizes = None, dim: Sizes = None, norm: str | None = None,
    orthogonalize: bool | None = None, *, overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Discrete sine transform along several axes.

    Parameters
    ----------
    input, type
        As for `dst`.
    s
        Points along each axis; the input is cut, or filled with zeros behind. None or -1: as many as it has.
    dim
        The axes. None: the last ``len(s)``, or all.
    norm
        "backward" or None: no factor; "ortho": 1 / sqrt(N); "forward": 1 / N. N is the product of twice the points
        along each axis; for type 1 twice the points and 1 more.
    orthogonalize, overwrite_input, out
        As for `dst`.

    Returns
    -------
    ndarray
        In the input's precision, real for a real input.

    Raises
    ------
    BadType, BadValue
        As `fft`; another `type`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.dstn(np.ones((1, 1)))
    array([[4.]])
    """
    return cosine("dstn", input, type, s, dim, norm, orthogonalize, out, overwrite_input)


@operation("idstn", module=MODULE, family="fft")
def idstn(
    input: Array, type: int = 2, s: Sizes = None, dim: Sizes = None, norm: str | None = None,
    orthogonalize: bool | None = None, *, overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    """Inverse of `dstn`.

    Parameters
    ----------
    input, type
        As for `dst`.
    s
        Points along each axis; the input is cut, or filled with zeros behind. None or -1: as many as it has.
    dim
        The axes. None: the last ``len(s)``, or all.
    norm
        "backward" or None: 1 / N; "ortho": 1 / sqrt(N); "forward": no factor. N is the product of twice the points
        along each axis; for type 1 twice the points and 1 more.
    orthogonalize, overwrite_input, out
        As for `dst`.

    Returns
    -------
    ndarray
        In the input's precision, real for a real input.

    Raises
    ------
    BadType, BadValue
        As `fft`; another `type`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.fft.idstn(np.array([[4.0]]))
    array([[1.]])
    """
    return cosine("idstn", input, type, s, dim, norm, orthogonalize, out, overwrite_input)
