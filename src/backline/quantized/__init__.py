"""Operations on int8: arrays of integers with a scale and a zero point, and layers that compute with them.

`quantize` makes a `QArray` of real numbers, `dequantize` goes back. Weights are packed once, by the engine that
`backends.quantized.engine` names then (`linear_prepack`, `conv2d_prepack`), and stay with it. `linear` and `conv2d` take and
return `QArray`; `linear_dynamic` takes and returns float32. Observers find scales and zero points.
"""

from __future__ import annotations

from ..ops.scaled_products import int_mm
from . import described as _described
from .arrays import QArray, dequantize, quantize, requantize
from .observers import HistogramObserver, MinMaxObserver, quantize_weights
from .ops import conv2d, linear, linear_dynamic
from .packing import PackedConv2d, PackedLinear, conv2d_prepack, linear_prepack

__all__ = [
    "HistogramObserver", "MinMaxObserver", "PackedConv2d", "PackedLinear", "QArray", "conv2d", "conv2d_prepack", "dequantize",
    "int_mm", "linear", "linear_dynamic", "linear_prepack", "quantize", "quantize_weights", "requantize",
]  # fmt: skip

assert _described  # imported to tell `explain` of the operations
