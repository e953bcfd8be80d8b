"""Texts that the documentation of several operations shares: parameters, results, errors.

A docstring names one in braces, and the decorators `operation`, `composed_of` and `on_its_device` put the text there, so that
`help()` shows the whole. A name without a text is an error when the module is imported.
"""

from __future__ import annotations

import re
from textwrap import indent

__all__ = ["FRAGMENTS", "filled"]

FRAGMENTS: dict[str, str] = {
    "as_matmul": "Raises\n------\nBadValue, BadType\n    As `matmul`.",
    "no_convergence": "Raises\n------\nLinAlgError\n    Not finite, or no convergence.",
    "singular": "Raises\n------\nLinAlgError\n    A is singular.",
    "rectangular": "A\n    Shape (..., m, n).",
    "square": "A\n    Shape (..., n, n).",
    "out": "out\n    Array for the result.",
    "out_inverse": "out\n    Array for the inverse.",
    "out_solution": "out\n    Array for the solution.",
    "out_of_shape": "out\n    Array of the result's shape.",
    "out_factors": "out\n    Arrays for the factors and the pivots (int32).",
    "out_factors_info": "out\n    Arrays for the factors, the pivots and info (int32).",
    "out_matrix": "out\n    Array of shape (m, n).",
    "out_scalar": "out\n    Array of shape ().",
    "out_or_input": "out\n    Array of shape (m, n); may be `input` itself.",
    "check_errors": "check_errors\n    Must be False.",
    "pivot": "pivot\n    Must be True.",
    "left": "left\n    Which side A stands on.",
    "right_sides": "B\n    Shape (..., n, k), or (..., k, n) where `left` is False.",
    "upper_factor": "upper\n    Whether it is the upper one.",
    "keepdim": "keepdim\n    Keep the axes with size 1.",
    "beta_alpha": "beta, alpha\n    Numbers; real for real dtypes.",
    "added_matrix": "input\n    Array that broadcasts to (m, n). Where beta is 0 it is ignored, NaN and infinity included.",
}

_MARKER = re.compile(r"^( *)\{([a-z][a-z0-9_]*)\}|\{([a-z][a-z0-9_]*)\}", re.MULTILINE)


def filled(doc: str | None, /, **own: str) -> str | None:
    r"""Returns a docstring with its markers replaced by the fragments that they name.

    A marker at the beginning of a line may stand for several lines, which are indented as it is.

    Parameters
    ----------
    doc
        The docstring; None where Python leaves docstrings out.
    **own
        Fragments of this docstring alone, which come before the shared ones.

    Raises
    ------
    KeyError
        There is no such fragment.

    Examples
    --------
    >>> print(filled("Sum.\n\n    {axis}\n    {out}", axis="axis\n    One of {rank} axes.", rank="two"))
    Sum.
    <BLANKLINE>
        axis
            One of two axes.
        out
            Array for the result.
    """

    def fragment(match: re.Match[str]) -> str:
        name = match[2] or match[3]
        text = own[name] if name in own else FRAGMENTS[name]
        return indent(_MARKER.sub(fragment, text), match[1] or "")

    return doc if doc is None or "{" not in doc else _MARKER.sub(fragment, doc)
