"""Inference by a small convolutional network for images, in float32, bfloat16 and int8.

Six convolutions of 3x3 with relu, three poolings, the mean of all points, one linear layer. Images have their channels last in
memory on all sides. In int8 the scales of all results come from a run in float32, which is made once, with the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from . import Program, numpy_operations

CLASSES = 10
BOUNDS = {"float32": 1e-4, "bfloat16": 4e-2, "int8": 4e-2}


def inputs(small: bool) -> dict[str, Any]:
    rng = np.random.default_rng(6)
    count, size, widths = (2, 16, (8, 16)) if small else (16, 64, (32, 64, 128))
    images = rng.standard_normal((count, size, size, 3), np.float32).transpose(0, 3, 1, 2)
    layers, channels = [], 3
    for width in widths:
        for _ in range(2):
            weight = rng.standard_normal((width, channels, 3, 3), np.float32) * np.float32((2 / (9 * channels)) ** 0.5)
            layers.append((weight, 0.1 * rng.standard_normal(width, np.float32)))
            channels = width
    head = rng.standard_normal((CLASSES, channels), np.float32) / np.float32(channels**0.5), np.zeros(CLASSES, np.float32)
    return {"images": images, "layers": layers, "head": head}


def scales(data: dict[str, Any]) -> list[float]:
    """Returns the scales of the images and of every layer's result, for integers of 7 bits."""
    x = np.maximum(data["images"], 0)
    found = [float(x.max()) / 127]
    for n, (weight, bias) in enumerate(data["layers"]):
        x = numpy_operations.conv2d_relu(weight, bias, "float32")(x)
        found.append(float(x.max()) / 127)
        x = numpy_operations.max_pool(x) if n % 2 else x
    return found


def build(kind: str, ops: Any, data: dict[str, Any]) -> Any:
    images = ops.array(data["images"], kind)
    layers = [ops.conv2d_relu(*parameters, kind) for parameters in data["layers"]]
    head = ops.linear(*data["head"], kind)

    def run() -> Mapping[str, Any]:
        x = images
        for n, layer in enumerate(layers):
            x = layer(x)
            if n % 2:
                x = ops.max_pool(x)
        return {"logits": head(ops.mean_points(x))}

    return run


def build_int8(ops: Any, data: dict[str, Any]) -> Any:
    """Builds the network on integers, from the images to the last convolution; images are not negative: zero stands for zero."""
    data = data | {"images": np.maximum(data["images"], 0)}
    images, steps = ops.array(data["images"]), scales(data)
    layers = [
        ops.quantized_conv2d_relu(*parameters, scale, result)
        for parameters, scale, result in zip(data["layers"], steps, steps[1:], strict=False)
    ]
    head = ops.linear(*data["head"], "float32")

    def run() -> Mapping[str, Any]:
        x = ops.quantize(images, steps[0])
        for n, layer in enumerate(layers):
            x = layer(x)
            if n % 2:
                x = ops.quantized_max_pool(x)
        return {"logits": head(ops.mean_points(ops.dequantize(x, steps[-1])))}

    return run


PROGRAMS = [
    Program(f"CNN {kind}", inputs, build_int8 if kind == "int8" else partial(build, kind), bound)
    for kind, bound in BOUNDS.items()
]
