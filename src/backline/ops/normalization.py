"""Normalization: layer_norm, rms_norm, and batch_norm for inference and for training.

Names and parameters are those of torch.nn.functional; dtypes and layouts as in `ops.activations`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _kernels
from ..errors import BadType, BadValue
from ..libraries.array_kinds import kind_of
from ..problems.dtypes import compute_dtype
from ..problems.neural_problem import NeuralProblem
from ..problems.op_registry import Op, operations
from .array_arguments import like, one_kind
from .composite import on_its_device
from .layer_checks import MODULE, Array, as_input, channels, parameter, positive, problem
from .linalg_checks import flag, whole
from .operation import operation
from .promote import accepted, names_of

__all__ = ["batch_norm", "layer_norm", "normalized_axes", "rms_norm"]


def normalized_axes(where: str, input: Array, normalized_shape: Any) -> tuple[int, ...]:
    """Returns the normalized shape as a tuple; refuses one that is not that of the input's last axes."""
    sizes = normalized_shape if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
    shape = tuple(whole(where, "each number of normalized_shape", n) for n in sizes)
    if not shape or input.shape[-len(shape) :] != shape:
        raise BadValue(
            f"{where}: normalized_shape={shape} for input of shape {input.shape}",
            cause=f"it is the shape of the last axes: expected input with shape [*, {', '.join(map(str, shape))}]"
            if shape
            else "Expected normalized_shape to be at least 1-dimensional",
        )
    return shape


@operation("layer_norm", module=MODULE, family="neural")
def layer_norm(
    input: Array, normalized_shape: int | Sequence[int], weight: Array | None = None, bias: Array | None = None,
    eps: float = 1e-5,
) -> NeuralProblem:  # fmt: skip
    """Normalizes the last axes to mean 0 and variance 1, then scales and shifts them.

    Parameters
    ----------
    input
        Floating-point array.
    normalized_shape
        Shape of the last axes; an int where it is one.
    weight, bias
        Arrays of shape `normalized_shape` to multiply by and to add, or None. Of the input's dtype, or float32 beside a 16-bit
        float.
    eps
        Added to the variance, which is the biased one.

    {as_input}

    {raises}
        Not arrays of floating-point numbers, shapes or dtypes that do not fit, a negative `eps`.

    {examples}
    >>> backline.nn.functional.layer_norm(np.array([[1.0, 3.0], [5.0, 5.0]]), 2, eps=0)
    array([[-1.,  1.],
           [nan, nan]])
    """
    array = as_input("layer_norm", "input", input, rank=1)
    shape = normalized_axes("layer_norm", array, normalized_shape)
    arrays = {
        "input": array,
        "weight": parameter("layer_norm", "weight", weight, shape, array),
        "bias": parameter("layer_norm", "bias", bias, shape, array),
    }
    return problem("layer_norm", arrays, array.shape, axes=len(shape), eps=positive("layer_norm", "eps", eps))


@operation("rms_norm", module=MODULE, family="neural")
def rms_norm(
    input: Array, normalized_shape: int | Sequence[int], weight: Array | None = None, eps: float | None = None
) -> NeuralProblem:
    """Divides the last axes by the root of the mean of their squares, then scales them.

    Parameters
    ----------
    input
        Floating-point array.
    normalized_shape
        Shape of the last axes; an int where it is one.
    weight
        Array of shape `normalized_shape` to multiply by, or None. Of the input's dtype, or float32 beside a 16-bit float.
    eps
        Added to the mean of the squares. None adds ``np.finfo(dtype).eps``, of float32 for 16-bit floats, as torch does.

    {as_input}

    {raises}
        Not arrays of floating-point numbers, shapes or dtypes that do not fit, a negative `eps`.

    {examples}
    >>> backline.nn.functional.rms_norm(np.array([[3.0, 4.0], [5.0, 5.0]]), 2, eps=0).round(4)
    array([[0.8485, 1.1314],
           [1.    , 1.    ]])
    """
    array = as_input("rms_norm", "input", input, rank=1)
    shape = normalized_axes("rms_norm", array, normalized_shape)
    arrays = {"input": array, "weight": parameter("rms_norm", "weight", weight, shape, array)}
    added = float(np.finfo(compute_dtype(array.dtype)).eps) if eps is None else positive("rms_norm", "eps", eps)
    return problem("rms_norm", arrays, array.shape, axes=len(shape), eps=added)


@operation("batch_norm_inference", module=MODULE, family="neural")
def _inference(
    input: Array, running_mean: Array | None, running_var: Array | None, weight: Array | None = None, bias: Array | None = None,
    eps: float = 1e-5,
) -> NeuralProblem:  # fmt: skip
    """Builds the Problem of `batch_norm` with given statistics."""
    array, parameters = _checked("batch_norm", input, running_mean, running_var, weight, bias)
    for name, given in (("running_mean", running_mean), ("running_var", running_var)):
        if given is None:
            cause = f"{name} must be defined in evaluation mode"
            raise BadValue(f"batch_norm: no {name}", cause=cause, remedy="give both, or training=True")
    return problem("batch_norm", {"input": array, **parameters}, array.shape, eps=positive("batch_norm", "eps", eps))


@operation("batch_norm_train", module=MODULE, family="neural", results=tuple[Array, Array, Array])
def _training(input: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5) -> NeuralProblem:
    """Builds the Problem of `batch_norm` in training, which returns mean and biased variance of every channel as well."""
    array, parameters = _checked("batch_norm", input, None, None, weight, bias)
    if array.shape[1] and array.size == array.shape[1]:
        raise BadValue(
            f"batch_norm: input of shape {array.shape} has one value for each channel",
            cause="Expected more than 1 value per channel when training: a variance needs two",
            remedy="a larger batch, or training=False",
        )
    arrays = {"input": array, "weight": parameters["weight"], "bias": parameters["bias"]}
    return problem("batch_norm_train", arrays, array.shape, eps=positive("batch_norm", "eps", eps))


def _checked(
    where: str, input: Any, mean: Any, variance: Any, weight: Any, bias: Any
) -> tuple[Array, dict[str, Array | None]]:
    array = as_input(where, "input", input)
    shape = (channels(where, array),)
    parameters = {"running_mean": mean, "running_var": variance, "weight": weight, "bias": bias}
    checked = [parameter(where, name, value, shape, array) for name, value in parameters.items()]
    return array, dict(zip(("mean", "variance", "weight", "bias"), checked, strict=True))


@on_its_device
def batch_norm(
    input: Array, running_mean: Array | None, running_var: Array | None, weight: Array | None = None, bias: Array | None = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Array:  # fmt: skip
    """Normalizes every channel to mean 0 and variance 1, then scales and shifts it.

    Parameters
    ----------
    input
        Floating-point array of shape (N, C, ...).
    running_mean, running_var
        Arrays of shape (C,). Without training, the statistics to normalize by. In training they may be None; else they are
        updated in place: the new value is ``(1 - momentum) * old + momentum * batch``, with the unbiased variance.
    weight, bias
        Arrays of shape (C,) to multiply by and to add, or None. All four of the input's dtype, or float32 beside a 16-bit float.
    training
        Whether to normalize by the mean and the biased variance of the batch itself.
    momentum
        From 0 to 1.
    eps
        Added to the variance.

    {as_input}

    {raises}
        Not arrays of floating-point numbers, shapes or dtypes that do not fit; read-only running arrays, or one value for each
        channel, in training. Then nothing is updated.

    {examples}
    >>> mean, variance = np.zeros(1), np.ones(1)
    >>> x = np.array([[1.0], [3.0]])
    >>> backline.nn.functional.batch_norm(x, mean, variance, training=True, eps=0)
    array([[-1.],
           [ 1.]])
    >>> mean, variance
    (array([0.2]), array([1.1]))
    """
    if not flag("batch_norm", "training", training):
        positive("batch_norm", "momentum", momentum, most=1.0)
        return _inference(input, running_mean, running_var, weight, bias, eps)
    share = positive("batch_norm", "momentum", momentum, most=1.0)
    if not _are_plain(input, running_mean, running_var):
        _check_training(input, running_mean, running_var, weight, bias)
    result, mean, variance = _training(input, weight, bias, eps)
    count = input.size // max(input.shape[1], 1)
    if count and (running_mean is not None or running_var is not None):
        _update(running_mean, mean, share)
        _update(running_var, variance, share, count / (count - 1))
    return result


def _are_plain(input: Any, *running: Any) -> bool:
    """Tells whether running statistics are what training can update, by a glance: else they are checked in full."""
    return type(input) is np.ndarray and input.ndim > 1 and all(
        r is None
        or (type(r) is np.ndarray and r.dtype == input.dtype and r.shape == input.shape[1:2] and r.flags.writeable)
        for r in running
    )  # fmt: skip


def _check_training(input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any) -> None:
    """Refuses arrays that training cannot take, before it updates any."""
    one_kind("batch_norm", input=input, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    _checked("batch_norm", *map(like, (input, running_mean, running_var, weight, bias)))
    for name, running in (("running_mean", running_mean), ("running_var", running_var)):
        kind = kind_of(running)
        if kind is not None and kind.package == "mlx":
            raise BadType(
                f"batch_norm: {name} is an array of MLX", cause="training updates it, and nothing is written to arrays of MLX",
                remedy="None; and running statistics kept by the program, of mx.mean and mx.var",
            )  # fmt: skip
        if isinstance(running, np.ndarray) and not running.flags.writeable:
            raise BadValue(f"batch_norm: {name} is read-only", cause="training updates it", remedy="a writeable array, or None")


def _update(running: Array | None, new: Array, share: float, scale: float = 1.0) -> None:
    if running is None or _kernels.blend(running, new, 1 - share, share * scale):
        return
    kind = kind_of(running)
    if kind is not None and kind.package == "cupy":
        from ..libraries.cuda.common import elementwise_kernels  # imports nothing of CUDA before a device needs it

        elementwise_kernels.kernel("blended")(running, new, 1 - share, share * scale, running)
        return
    with np.errstate(all="ignore"):  # overflow and NaN show in the arrays
        updated, added = running.astype(np.float64), new.astype(np.float64)
        updated *= 1 - share
        added *= share * scale
        updated += added
        running[...] = updated


def _problem(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: Any = False,
    momentum: Any = 0.1, eps: Any = 1e-5,
) -> Any:  # fmt: skip
    """Returns the Problem inside a call of `batch_norm`, for `explain`."""
    positive("batch_norm", "momentum", momentum, most=1.0)
    if flag("batch_norm", "training", training):
        _checked("batch_norm", *map(like, (input, running_mean, running_var, weight, bias)))
        return _training_problem(input, weight, bias, eps)
    return _inference_problem(input, running_mean, running_var, weight, bias, eps)


batch_norm.__module__ = MODULE
_training_problem = operations.pop("nn.functional.batch_norm_train").build
_inference_problem = operations.pop("nn.functional.batch_norm_inference").build
_NAMES = names_of(batch_norm)
operations["nn.functional.batch_norm"] = Op(
    name="nn.functional.batch_norm", family="neural", signature=inspect.signature(batch_norm),
    build=lambda *args, **kwargs: accepted(_problem, _NAMES, args, kwargs)
)
