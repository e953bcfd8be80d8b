"""Texts that docstrings of this package share: parameters, errors, the beginning of an example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..ops.doc_fragments import filled

__all__ = ["documented"]

Function = TypeVar("Function", bound=Callable[..., Any])

_TEXTS = {
    "of_matrices": "Parameters\n----------\na : array_like\n    Shape (..., m, n).",
    "of_square_matrices": "Parameters\n----------\na : array_like\n    Shape (..., n, n).",
    "of_hermitian_matrices": """Parameters
----------
a : array_like
    Shape (..., n, n); one triangle is read.
UPLO : {"L", "U"}
    Which.""",
    "keepdims": "keepdims : bool\n    The axes stay, of length 1; ``keepdim`` is another name for it.",
    "out": "out : ndarray, optional\n    Where to write the result.",
    "numpys": """out : ndarray, optional
    Where to write the result: NumPy computes then.
**keywords
    Further parameters of the function in numpy: NumPy computes then.""",
    "singular": "Raises\n------\nnumpy.linalg.LinAlgError\n    A singular matrix, or one that is not square.",
    "singular_map": "Raises\n------\nnumpy.linalg.LinAlgError\n    A singular map, or one that is not square.",
    "not_square": "Raises\n------\nnumpy.linalg.LinAlgError\n    A matrix that is not square.",
    "not_finite": "Raises\n------\nnumpy.linalg.LinAlgError\n    A matrix that is not square or not finite; no convergence.",
    "not_hermitian": "Raises\n------\nnumpy.linalg.LinAlgError\n    A matrix that is not square; no convergence.",
    "no_convergence": "Raises\n------\nnumpy.linalg.LinAlgError\n    No convergence.",
    "no_order": "Raises\n------\nValueError\n    An order that there is not.",
    "shapes": "Raises\n------\nValueError\n    Shapes that do not fit.",
    "example": "Examples\n--------\n>>> import backline.numpy as np",
}


def documented(function: Function) -> Function:
    """Fills the texts that a docstring names in braces into it.

    Examples
    --------
    >>> @documented
    ... def double(a):
    ...     '''Doubles.
    ...
    ...     {of_matrices}
    ...     '''
    >>> print(double.__doc__.splitlines()[-2].strip())
    Shape (..., m, n).
    """
    function.__doc__ = filled(function.__doc__, **_TEXTS)
    return function
