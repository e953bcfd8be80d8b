"""Pooling of images of one, two and three dimensions: max_pool, avg_pool, adaptive_avg_pool.

Names, parameters and results are those of torch.nn.functional; dtypes and layouts as in `ops.activations`.
Images are (N, C, ...), or (C, ...) without a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import BadValue
from ..problems.neural_problem import NeuralProblem
from ..switches.switch import show
from .convolution_checks import MOST, Sizes, numbers
from .doc_fragments import filled
from .families import RANKS, operation_family, ranks
from .layer_checks import MODULE, Array, as_input, problem
from .linalg_checks import flag, whole

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_parameters", "avg_parameters", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "images", "max_parameters", "max_pool1d", "max_pool2d", "max_pool3d", "shaped",
]  # fmt: skip


def shaped(where: str, name: str, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Returns the sizes of the images; refuses a shape that is not one of images with points."""
    axes = RANKS[rank]["axes"]
    if len(shape) not in (rank + 1, rank + 2):
        raise BadValue(
            f"{where}: {name} must have shape (N, C, {axes}) or (C, {axes}), it has {shape}",
            cause=f"Expected {rank + 1}D or {rank + 2}D (batch mode) tensor, but got {list(shape)}",
        )
    image = shape[len(shape) - rank :]
    if 0 in image:
        raise BadValue(
            f"{where}: {name} of shape {shape} has images without points",
            cause="Expected input to have non-zero size for non-batch dimensions",
        )
    return image


def images(where: str, input: Any, rank: int, *, integers: tuple[str, ...] = ()) -> Array:
    array = as_input(where, "input", input, integers=integers)
    shaped(where, "input", array.shape, rank)
    return array


def _windows(
    where: str, image: tuple[int, ...], kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any
) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Returns parameters of the Problem, sizes of the result, and the points that ceil_mode adds to the padding's end."""
    rank = len(image)
    kernel = numbers(where, "kernel_size", kernel_size, rank, 1)
    # torch's functions take an empty tuple for the default.
    default = stride is None or (isinstance(stride, (tuple, list)) and not stride)
    steps = kernel if default else numbers(where, "stride", stride, rank, 1)
    margin = numbers(where, "padding", padding, rank, 0)
    spread = numbers(where, "dilation", dilation, rank, 1)
    up = flag(where, "ceil_mode", ceil_mode)
    sizes, pairs, overhangs = [], [], []
    for n, k, s, m, d in zip(image, kernel, steps, margin, spread, strict=True):
        reach = d * (k - 1) + 1
        if 2 * m > reach:
            cause = f"pad should be at most half of effective kernel size, of the {reach} points that the kernel covers"
            raise BadValue(f"{where}: padding={padding!r} with kernel_size={kernel_size!r}", cause=cause)
        room = n + 2 * m - reach
        points = (-(-room // s) if up else room // s) + 1
        if up and (points - 1) * s >= n + m:  # a window must not begin beyond the image
            points -= 1
        if room < 0 and (not up or points < 1):
            raise BadValue(
                f"{where}: kernel_size={kernel_size!r} covers {reach} points, the images have {n} and padding {m}",
                cause="Output size is too small",
            )
        overhang = max((points - 1) * s - room, 0)
        sizes.append(points)
        pairs.append((m, m + overhang))
        overhangs.append(overhang)
    return {"kernel": kernel, "stride": steps, "padding": tuple(pairs)}, tuple(sizes), tuple(overhangs)


def max_parameters(
    where: str, image: tuple[int, ...], kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Returns the parameters of a maximum pooling, and the sizes of its result."""
    parameters, sizes, _ = _windows(where, image, kernel_size, stride, padding, dilation, ceil_mode)
    return parameters | {"dilation": numbers(where, "dilation", dilation, len(image), 1)}, sizes


def avg_parameters(
    where: str, image: tuple[int, ...], kernel_size: Any, stride: Any, padding: Any, ceil_mode: Any, count_include_pad: Any,
    divisor_override: Any,
) -> tuple[str, dict[str, Any], tuple[int, ...]]:  # fmt: skip
    """Returns the operation of an average pooling's Problem, its parameters, and the sizes of its result."""
    parameters, sizes, overhang = _windows(where, image, kernel_size, stride, padding, 1, ceil_mode)
    padded = flag(where, "count_include_pad", count_include_pad)
    parameters["count_include_pad"] = padded
    if divisor_override is None and not (padded and any(overhang)):
        return "avg_pool", parameters, sizes
    divisor = None if divisor_override is None else whole(where, "divisor_override", divisor_override)
    if divisor == 0:
        raise BadValue(f"{where}: divisor must be not zero, and divisor_override=0", cause="the sums are divided by it")
    if divisor is not None and not -MOST <= divisor <= MOST:
        raise BadValue(f"{where}: divisor_override={show(divisor)}", cause=f"it is from {-MOST} to {MOST}, without 0")
    return "avg_pool_divided", parameters | {"divisor": divisor, "overhang": overhang}, sizes


def adaptive_parameters(
    where: str, image: tuple[int, ...], output_size: Any
) -> tuple[str, dict[str, Any], tuple[int, ...]]:
    """Returns what `avg_parameters` returns: where sizes divide, this is a plain average pooling."""
    rank = len(image)
    sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * rank
    if len(sizes) == rank:
        sizes = tuple(n if wanted is None else wanted for n, wanted in zip(image, sizes, strict=True))
    output = numbers(where, "output_size", sizes, rank, 1)
    if any(n % points for n, points in zip(image, output, strict=True)):
        return "adaptive_avg_pool", {"output": output}, output
    kernel = tuple(n // points for n, points in zip(image, output, strict=True))
    plain = {"kernel": kernel, "stride": kernel, "padding": ((0, 0),) * rank, "count_include_pad": False}
    return "avg_pool", plain, output


def _result(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[: len(shape) - len(sizes)], *sizes)


# The operations -------------------------------------------------------------------------------------------------------

MAX = """Largest element of every window of images of {rank} dimension{s}.

Parameters
----------
input
    Array of shape (N, C, {axes}) or (C, {axes}), of floating-point numbers or integers.
kernel_size, stride, padding, dilation
    {number}: size of the window; steps between windows (None: the size); points around the image, at most
    half of what the window covers, which count as the least number there is; steps within the window.
ceil_mode
    Whether a last window may reach beyond the padding.
return_indices
    Whether the places of these elements are returned, too.

{returns_array}
    Images of ``floor((n + 2 * padding - dilation * (kernel_size - 1) - 1) / stride) + 1`` points, rounded up with `ceil_mode`;
    its axes in the order in memory that the input's have. A window with NaN has NaN. With `return_indices` a tuple of these and
    an array of int64: where each element lies in its image, counted along the last axis first. Of equal elements it is the first,
    of several NaN the last.

{raises}
    Not an array of floating-point numbers or integers, numbers out of range, images smaller than a window.

{examples}
>>> x = np.arange(16.0).reshape({shape})
>>> backline.nn.functional.max_pool{rank}d(x, 2).ravel()
array({largest})
>>> backline.nn.functional.max_pool{rank}d(x, 2, return_indices=True)[1].ravel()
array({places})
"""

AVERAGE = """Mean of every window of images of {rank} dimension{s}.

Parameters
----------
input
    Floating-point array of shape (N, C, {axes}) or (C, {axes}).
kernel_size, stride, padding
    {number}: size of the window; steps between windows (None: the size); zeros around the image, at most
    half of the window.
ceil_mode
    Whether a last window may reach beyond the padding; what is beyond is not counted.
count_include_pad
    Whether the zeros of the padding count as points.{divisor}

{returns_array}
    Images of ``floor((n + 2 * padding - kernel_size) / stride) + 1`` points, rounded up with `ceil_mode`; its axes in the order
    in memory that the input's have.

{raises}
    Not an array of floating-point numbers, numbers out of range, images smaller than a window.

{examples}
>>> x = np.arange(16.0).reshape({shape})
>>> backline.nn.functional.avg_pool{rank}d(x, 2).ravel()
array({means})
"""

ADAPTIVE = """Mean of as many windows as the result has points, spread over images of {rank} dimension{s}.

Parameters
----------
input
    Floating-point array of shape (N, C, {axes}) or (C, {axes}).
output_size
    {number}: points of the result; None in a tuple keeps the image's own.

{returns_array}
    Point i is the mean of points ``floor(i * n / output_size)`` to ``ceil((i + 1) * n / output_size) - 1`` of the image.

{raises}
    Not an array of floating-point numbers, images without points, sizes below 1.

{examples}
>>> x = np.arange(16.0).reshape({shape})
>>> backline.nn.functional.adaptive_avg_pool{rank}d(x, 1).ravel()
array([{mean}])
"""

EXAMPLES: dict[int, dict[str, str]] = {
    1: {"shape": "1, 4, 4", "largest": "[ 1.,  3.,  5.,  7.,  9., 11., 13., 15.]", "mean": " 1.5,  5.5,  9.5, 13.5",
        "places": "[1, 3, 1, 3, 1, 3, 1, 3]", "means": "[ 0.5,  2.5,  4.5,  6.5,  8.5, 10.5, 12.5, 14.5]"},
    2: {"shape": "1, 1, 4, 4", "largest": "[ 5.,  7., 13., 15.]", "mean": "7.5", "places": "[ 5,  7, 13, 15]",
        "means": "[ 2.5,  4.5, 10.5, 12.5]"},
    3: {"shape": "1, 1, 2, 2, 4", "largest": "[13., 15.]", "mean": "7.5", "places": "[13, 15]", "means": "[6.5, 8.5]"},
}  # fmt: skip
DIVISOR = "\ndivisor_override\n    Divisor of the sums, instead of the number of points."
ROW: dict[str, Any] = {"module": MODULE, "family": "neural"}


def _text(doc: str) -> Callable[[int], str | None]:
    return lambda rank: filled(doc, **RANKS[rank], **EXAMPLES[rank], divisor=DIVISOR if rank > 1 else "")


def _max_pool(
    rank: int, input: Array, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> NeuralProblem:  # fmt: skip
    name = f"max_pool{rank}d"
    array = images(name, input, rank, integers=("cpu", "cuda"))
    parameters, sizes = max_parameters(name, array.shape[-rank:], kernel_size, stride, padding, dilation, ceil_mode)
    if not flag(name, "return_indices", return_indices):
        return problem("max_pool", {"input": array}, _result(array.shape, sizes), **parameters)
    return problem("max_pool_indices", {"input": array}, _result(array.shape, sizes), indices=True, **parameters)


# torch has no divisor_override for signals.
def _avg_pool1d(
    rank: int, input: Array, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> NeuralProblem:  # fmt: skip
    return _avg_pool(rank, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def _avg_pool(
    rank: int, input: Array, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> NeuralProblem:  # fmt: skip
    name = f"avg_pool{rank}d"
    array = images(name, input, rank)
    op, parameters, sizes = avg_parameters(
        name, array.shape[-rank:], kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )
    return problem(op, {"input": array}, _result(array.shape, sizes), **parameters)


def _adaptive_avg_pool(rank: int, input: Array, output_size: Sizes) -> NeuralProblem:
    name = f"adaptive_avg_pool{rank}d"
    array = images(name, input, rank)
    op, parameters, sizes = adaptive_parameters(name, array.shape[-rank:], output_size)
    return problem(op, {"input": array}, _result(array.shape, sizes), **parameters)


max_pool1d, max_pool2d, max_pool3d = operation_family(_max_pool, ranks("max_pool{}d"), _text(MAX), **ROW)
(avg_pool1d,) = operation_family(_avg_pool1d, {"avg_pool1d": 1}, _text(AVERAGE), **ROW)
avg_pool2d, avg_pool3d = operation_family(_avg_pool, {"avg_pool2d": 2, "avg_pool3d": 3}, _text(AVERAGE), **ROW)
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = operation_family(
    _adaptive_avg_pool, ranks("adaptive_avg_pool{}d"), _text(ADAPTIVE), **ROW
)
