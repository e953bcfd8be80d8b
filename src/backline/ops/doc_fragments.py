"""Texts that the documentation of several operations shares: parameters, results, errors.

A docstring names one in braces, and the decorators `operation`, `composed_of` and `on_its_device` put the text there, so that
`help()` shows the whole. A name without a text is an error when the module is imported.
"""

from __future__ import annotations

import re
from textwrap import indent

__all__ = ["FRAGMENTS", "filled"]

FRAGMENTS: dict[str, str] = {}

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
    >>> print(filled("Sum.\n\n    {axis}\n    out\n        {place}.", axis="axis\n    Of {rank} axes.", rank="two", place="Array"))
    Sum.
    <BLANKLINE>
        axis
            Of two axes.
        out
            Array.
    """

    def fragment(match: re.Match[str]) -> str:
        name = match[2] or match[3]
        text = own[name] if name in own else FRAGMENTS[name]
        return indent(_MARKER.sub(fragment, text), match[1] or "")

    return doc if doc is None or "{" not in doc else _MARKER.sub(fragment, doc)
