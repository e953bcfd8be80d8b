"""Documentation that several operations share, by name: written once, and filled into the text of each."""

from __future__ import annotations

from typing import Any

__all__ = ["FRAGMENTS", "RANKS", "filled"]

# For images of 1, 2 and 3 dimensions.
RANKS: dict[int, dict[str, Any]] = {
    1: {"rank": 1, "images": "signals", "sizes": "width", "kernel": "kernel width", "axes": "L", "s": "", "number": "An int"},
    2: {"rank": 2, "images": "images", "sizes": "height, width", "kernel": "kernel height, kernel width", "axes": "H, W",
        "s": "s", "number": "An int, or a tuple of 2"},
    3: {"rank": 3, "images": "volumes", "sizes": "depth, height, width", "kernel": "kernel depth, kernel height, kernel width",
        "axes": "D, H, W", "s": "s", "number": "An int, or a tuple of 3"},
}  # fmt: skip

FRAGMENTS = {
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
}


def filled(doc: str, **values: Any) -> str:
    """Returns the text with each ``{name}`` replaced by a value or a fragment; in these, too, to a depth of three.

    Raises
    ------
    KeyError
        There is neither a value nor a fragment of that name.
    """
    words = FRAGMENTS | values
    return doc.format_map(words).format_map(words).format_map(words)
