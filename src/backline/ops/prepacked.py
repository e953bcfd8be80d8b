"""Convolutions and linear layers for weights that stay the same over many calls: the functions that make packed layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .convolution_checks import Array, Sizes
from .prepacked_layer import MAX_PLANS, Layer, PackedLayer

__all__ = [
    "PackedLayer", "prepack_conv1d", "prepack_conv2d", "prepack_conv3d", "prepack_conv_transpose1d", "prepack_conv_transpose2d",
    "prepack_conv_transpose3d", "prepack_linear",
]  # fmt: skip


def _prepacked(operation: str, rank: int, given: dict[str, Any], function: Callable[..., PackedLayer]) -> PackedLayer:
    weight, bias, most = (given.pop(name) for name in ("weight", "bias", "max_plans"))
    parameters = inspect.signature(function).parameters
    defaults = {name: parameters[name].default for name in given}
    return PackedLayer(Layer(operation, rank, weight, bias, most, given, defaults))


def _again(operation: str, weight: Array, bias: Array | None, settings: dict[str, Any], max_plans: int) -> PackedLayer:
    """Where a pickled or copied layer arrives."""
    made: PackedLayer = globals()[f"prepack_{operation}"](weight, bias, **settings, max_plans=max_plans)
    return made


def prepack_linear(
    weight: Array, bias: Array | None = None, *, activation: str | None = None, max_plans: int = MAX_PLANS
) -> PackedLayer:
    """A linear layer with weights of its own: ``layer(input, residual=None, out=None)`` computes what `linear` does with them.

    Parameters
    ----------
    weight
        Array of shape (out, in).
    bias
        Array of shape (out,), or None.
    activation
        As `linear`.
    max_plans
        Most plans that the layer keeps, one for each layout of the input under each set of switches; each may hold the weights
        once more, as its library wants them.

    Returns
    -------
    PackedLayer
        It owns read-only copies of weight and bias: writing to the arrays given here changes nothing in it, and what it keeps is
        never out of date. `nbytes` is what it holds.

    Raises
    ------
    BadType, BadValue
        As `linear`; calls raise them for what is wrong with their arrays.

    Notes
    -----
    It pays from the second call on for 2 to about 256 rows of input, where reading the weights takes most of the time. For many
    rows it makes no difference. Results may differ in the last bits from those of `linear`: another kernel adds in another order.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import prepack_linear
    >>> layer = prepack_linear(np.array([[1.0, 1.0], [-2.0, 0.0]]), np.array([0.5, 0.5]), activation="relu")
    >>> layer(np.array([[1.0, 2.0]]))
    array([[3.5, 0. ]])
    >>> layer
    <packed linear f64 2x2 bias activation='relu'>
    """
    return _prepacked("linear", 0, locals(), prepack_linear)


def prepack_conv1d(
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    max_plans: int = MAX_PLANS,
) -> PackedLayer:
    """A convolution of signals with weights of its own, as `conv1d`; the rest as `prepack_conv2d`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn import functional
    >>> layer = functional.prepack_conv1d(np.ones((2, 3, 5), np.float32), padding=2)
    >>> layer(np.ones((1, 3, 8), np.float32)).shape
    (1, 2, 8)
    """
    return _prepacked("conv1d", 1, locals(), prepack_conv1d)


def prepack_conv2d(
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    max_plans: int = MAX_PLANS,
) -> PackedLayer:
    """A convolution of images with weights of its own: ``layer(input, residual=None, out=None)``, as `conv2d` with them.

    Parameters
    ----------
    weight, bias, stride, padding, dilation, groups, activation
        As `conv2d`.
    max_plans
        As `prepack_linear`.

    Returns
    -------
    PackedLayer
        It owns read-only copies of weight and bias, as `prepack_linear` says.

    Raises
    ------
    BadType, BadValue
        As `conv2d`; calls raise them for what is wrong with their arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import prepack_conv2d
    >>> weight = np.ones((1, 1, 2, 2))
    >>> layer = prepack_conv2d(weight, padding="same")
    >>> weight[:] = 0  # not the layer's
    >>> layer(np.arange(4.0).reshape(1, 1, 2, 2))
    array([[[[6., 4.],
             [5., 3.]]]])
    >>> layer
    <packed conv2d f64 1x1x2x2 padding='same'>
    """
    return _prepacked("conv2d", 2, locals(), prepack_conv2d)


def prepack_conv3d(
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    max_plans: int = MAX_PLANS,
) -> PackedLayer:
    """A convolution of volumes with weights of its own, as `conv3d`; the rest as `prepack_conv2d`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn import functional
    >>> layer = functional.prepack_conv3d(np.ones((2, 3, 3, 3, 3), np.float32), padding=1)
    >>> layer(np.ones((1, 3, 4, 4, 4), np.float32)).shape
    (1, 2, 4, 4, 4)
    """
    return _prepacked("conv3d", 3, locals(), prepack_conv3d)


def prepack_conv_transpose1d(
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    activation: str | None = None,
    max_plans: int = MAX_PLANS,
) -> PackedLayer:
    """A transposed convolution of signals with weights of its own, as `conv_transpose1d`; the rest as `prepack_conv2d`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn import functional
    >>> layer = functional.prepack_conv_transpose1d(np.ones((3, 2, 4), np.float32), stride=2, padding=1)
    >>> layer(np.ones((1, 3, 8), np.float32)).shape
    (1, 2, 16)
    """
    return _prepacked("conv_transpose1d", 1, locals(), prepack_conv_transpose1d)


def prepack_conv_transpose2d(
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    activation: str | None = None,
    max_plans: int = MAX_PLANS,
) -> PackedLayer:
    """A transposed convolution of images with weights of its own, as `conv_transpose2d`; the rest as `prepack_conv2d`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn import functional
    >>> layer = functional.prepack_conv_transpose2d(np.ones((3, 2, 4, 4), np.float32), stride=2, padding=1)
    >>> layer(np.ones((1, 3, 8, 8), np.float32)).shape
    (1, 2, 16, 16)
    """
    return _prepacked("conv_transpose2d", 2, locals(), prepack_conv_transpose2d)


def prepack_conv_transpose3d(
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    activation: str | None = None,
    max_plans: int = MAX_PLANS,
) -> PackedLayer:
    """A transposed convolution of volumes with weights of its own, as `conv_transpose3d`; the rest as `prepack_conv2d`.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn import functional
    >>> layer = functional.prepack_conv_transpose3d(np.ones((3, 2, 4, 4, 4), np.float32), stride=2, padding=1)
    >>> layer(np.ones((1, 3, 2, 2, 2), np.float32)).shape
    (1, 2, 4, 4, 4)
    """
    return _prepacked("conv_transpose3d", 3, locals(), prepack_conv_transpose3d)


for _function in (
    prepack_linear, prepack_conv1d, prepack_conv2d, prepack_conv3d, prepack_conv_transpose1d, prepack_conv_transpose2d,
    prepack_conv_transpose3d,
):  # fmt: skip
    _function.__module__ = "backline.nn.functional"  # the name that users know it by
