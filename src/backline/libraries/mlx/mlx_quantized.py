"""Linear layers with int8 weights on MLX's arrays: real numbers times weights that MLX holds as bytes, by its `quantized_matmul`.

MLX keeps a weight of 8 bits as ``scale * q + offset`` with q from 0 to 255, a scale and an offset for each group along a row, and
four q in a word. Ours have one scale and one zero point for a row, so all groups of a row have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...problems.quantized_problem import QuantizedProblem

__all__ = ["GROUP", "linear_dynamic", "note", "pack", "refusal"]

GROUP, BITS = 32, 8  # the smallest group that MLX has: rows are filled up to whole ones
LEAST, MOST = 2.0**-126, float(np.finfo(np.float32).max)  # of steps, as for NumPy's arrays


def pack(weight: Any, scales: Any, zeros: Any) -> tuple[Any, Any, Any]:
    """A weight of integers as MLX's words, and the scale and offset of each group; NumPy arrays.

    The weight is int8 or uint8 of shape (out, in); scales are float32 and zeros int32, or None, with one element or one for each
    row.

    Examples
    --------
    >>> words, scales, offsets = pack(np.array([[1, -1]], np.int8), np.array([0.5], np.float32), None)
    >>> words.shape, [int(byte) for byte in words.view(np.uint8)[0, :3]], scales.tolist(), offsets.tolist()
    ((1, 8), [129, 127, 0], [[0.5]], [[-64.0]])
    """
    rows, width = weight.shape
    shift = 128 if weight.dtype == np.int8 else 0
    bytes_ = np.zeros((rows, -(-width // GROUP) * GROUP), np.uint8)
    bytes_[:, :width] = weight.astype(np.int16) + shift
    shape = rows, bytes_.shape[1] // GROUP
    zero = np.float32(shift) if zeros is None else (zeros + shift).astype(np.float32)[:, None]
    scale = scales[:, None]
    groups = [np.ascontiguousarray(np.broadcast_to(each, shape)) for each in (scale, (-scale * zero).astype(np.float32))]
    return bytes_.view("<u4"), groups[0], groups[1]


def refusal(p: QuantizedProblem) -> str:
    """Returns the reason why MLX does not support a quantized layer, or an empty string."""
    return "" if p.op == "quantized.linear_dynamic" else "MLX multiplies real numbers by quantized weights: linear_dynamic alone"


def note(p: QuantizedProblem) -> str:
    """Returns a note for users on the layer's arithmetic."""
    return "x is quantized, and sums are, in float32; NaN or infinity in x makes the whole result NaN"


def linear_dynamic(p: QuantizedProblem, mx: Any, metal: bool) -> Callable[..., Any]:
    """``x @ weight.T + bias``, with `x` rounded to integers of the range between its least and greatest element."""
    roles = [o.role for o in p.operands]
    least, most, width = int(p.parameter("least")), int(p.parameter("most")), p.shape("input")[-1]
    filled = p.shape("weight")[1] * (32 // BITS) - width

    def run(*arrays: Any) -> Any:
        given = dict(zip(roles, arrays, strict=True))
        product = mx.zeros(p.result, mx.float32)
        if 0 not in (*p.result, width):
            x = _rounded(given["input"].reshape(-1, width), least, most, mx)
            if filled:
                x = mx.pad(x, ((0, 0), (0, filled)))
            product = mx.quantized_matmul(
                x, given["weight"], given["weight_scale"], given["weight_zero"], transpose=True, group_size=GROUP, bits=BITS
            ).reshape(p.result)
        return product + given["bias"] if "bias" in given else product

    return run


def _rounded(x: Any, least: int, most: int, mx: Any) -> Any:
    low, high = mx.minimum(mx.min(x), 0), mx.maximum(mx.max(x), 0)
    step = mx.clip(high / (most - least) - low / (most - least), LEAST, MOST)
    step = mx.where(mx.logical_and(low == 0, high == 0), 1.0, step)
    zero = mx.clip(least + mx.round(-low / step), least, most)
    there = (mx.clip(mx.round(x / step) + zero, least, most) - zero) * step
    return there + mx.sum(x * 0)  # NaN if there is one, or infinity
