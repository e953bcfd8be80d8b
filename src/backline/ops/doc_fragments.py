"""Texts that the documentation of several operations shares: parameters, results, errors.

A docstring names one in braces, and the decorators `operation`, `composed_of` and `on_its_device` put the text there, so that
`help()` shows the whole. A name without a text is an error when the module is imported.
"""

from __future__ import annotations

import re
from textwrap import indent

__all__ = ["FRAGMENTS", "filled"]

FRAGMENTS: dict[str, str] = {
    "as_input": "{returns_array}\n    As `input`.",
    "grad_output": "grad_output\n    Array of the same shape and dtype.",
    "one_dtype": "{raises}\n    Not arrays of one dtype; shapes that do not fit.",
    "returns_array": "Returns\n-------\nndarray",
    "raises": "Raises\n------\nBadType, BadValue",
    "lapack": "Notes\n-----\nLAPACK",
    "examples": "Examples\n--------\n>>> import numpy as np, backline",
    "conv_types": "BadType\n    Not arrays, different dtypes, booleans, or numbers that are not ints.",
    "conv_numbers": "Shapes, groups, stride, padding or dilation that do not fit",
    "max_plans": """max_plans
    Most plans that the layer keeps, one for each layout of the input under each set of switches; each may hold the weights
    once more, as its library wants them. On CuPy's arrays it is the layer that holds them, and plans hold nothing.""",
    "packed_layer": """Returns
-------
PackedLayer
    It owns copies of weight and bias, of NumPy or CuPy as they are given: writing to those arrays changes nothing in it, and what
    it keeps is never out of date. `nbytes` is what it holds.""",
    "overwrite_input": """overwrite_input
    Whether the input may be destroyed, which can save a copy.""",
    "out_apart": """out
    Array for the result; it must not overlap the input.""",
    "conv_input": """input
    Shape (N, C, {sizes}), or (C, {sizes}) without a batch.""",
    "conv_arrays": """weight
    Shape (O, C / groups, {kernel}).
bias
    Shape (O,), added to every point.
stride, dilation
    Steps between the places of the kernel, and between its elements; an int or one for each dimension.
padding
    Zeros before and after each dimension, an int or one for each; or "valid" (none), or "same" (the result has the input's
    size; an odd number of zeros has the last one at the end).
groups
    Parts that channels and features are divided into; part i of the features sees part i of the channels only. With
    ``groups=C`` the convolution is depthwise.""",
    "conv_transpose_arrays": """weight
    Shape (C, O / groups, {kernel}).
bias
    Shape (O,), added to every point.
stride, dilation
    Steps between the places where the kernel is added, and between its elements; an int or one for each dimension.
padding
    Points that are cut off on both sides of each dimension of the result.
output_padding
    Points that the result has more at the end of each dimension; smaller than stride or dilation.
groups
    Parts that channels and features are divided into.""",
    "relu": """activation
    "relu", or None.""",
    "conv_extras": """{relu}
residual
    Array of the result's shape, added before the activation.
out
    Array of the result's shape and dtype, any strides; must not overlap the operands, but may be `residual` itself.""",
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
