"""Convolutions of int8 on processors with AMX, by a loop of ours that brings each tile of sums to its scale where it is computed.

oneDNN's primitives write their sums to memory, and another pass reads them again. Here they stay in the nearest cache. There is
nothing to compile for a shape. The sums are exact, as those of primitives are.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Pointer
from ...problems.quantized_problem import QuantizedProblem
from ..kernels.conv_steps import cut, same, uniform
from ..kernels.matrix_tiles import INT8, permitted
from ..kernels.vector_level import vector_level
from .primitives import Engine

__all__ = ["ROWS", "TileSteps", "in_tiles", "packed_tiles", "packs_tiles", "tile_bytes"]

ROWS, BYTES = 16, 64  # of a tile
MOST_SUMS = 2 * ROWS  # points whose sums are computed together, while those before are brought to their scale
LINES = 1 << 15  # bytes of an image's lines that an item has, at most about so many: they stay in the nearest cache
LEAST_ROWS = 4  # of the result that an item has, where there are so many: the lines above and below are copied for each
# Elsewhere primitives are faster (measured on an Intel Xeon with AMX, 2026-11): most points of tiles are the result's, tiles of
# outputs come in pairs, and bytes that a row of the window meets fill half a tile. With a window of one point few sums are made
# of what is copied, unless outputs are many and no point is passed over.
POINTS = 0.85
OUTS = 2 * ROWS
RUN = BYTES // 2

Array = np.ndarray[Any, Any]


def packs_tiles(engine: Engine, p: QuantizedProblem) -> bool:
    """Tells whether the weights of a convolution are packed in tiles as well."""
    suits = p.op == "quantized.conv2d" and p.groups == 1 and p.outs % ROWS == 0 and p.outs >= OUTS
    return suits and engine.amx and permitted(INT8)


def in_tiles(engine: Engine, p: QuantizedProblem) -> bool:
    """Tells whether a convolution is computed by tiles."""
    if not packs_tiles(engine, p) or p.parameter("dilation") != (1, 1) or p.get("weight_zero") is not None:
        return False
    points, (_, channels, *window) = p.result[3], p.shape("weight")
    if window == [1, 1] and (channels > p.outs or p.parameter("stride") != (1, 1)):
        return False
    if channels * window[1] < RUN:
        return False
    return vector_level() == 2 and points >= POINTS * ROWS * -(-points // ROWS)


def _pieces(p: QuantizedProblem) -> int:
    """Returns the tiles that a row of the window takes: runs of bytes of an image with channels last."""
    _, channels, _, width = p.shape("weight")
    return -(-channels * width // BYTES)


def tile_bytes(p: QuantizedProblem) -> int:
    """Returns the size of the weights in tiles."""
    return p.outs * p.shape("weight")[2] * _pieces(p) * BYTES


def packed_tiles(p: QuantizedProblem, weight: Array) -> Array:
    """The weights in tiles, as int8_tiles.cpp wants them: bytes in one row."""
    outs, channels, height, width = weight.shape
    pieces = _pieces(p)
    runs = np.zeros((outs, height, pieces * BYTES), np.int8)
    runs[:, :, : channels * width] = weight.transpose(0, 2, 3, 1).reshape(outs, height, -1)
    fours = runs.reshape(outs // ROWS, ROWS, height, pieces, BYTES // 4, 4)
    return np.ascontiguousarray(fours.transpose(0, 2, 3, 4, 1, 5)).reshape(-1)


class TileSteps:
    """The steps of one convolution whose images have channels last.

    Parameters
    ----------
    p
        The Problem, one for which `in_tiles` is true.
    threads
        Those of the plan.

    Attributes
    ----------
    items
        (image, first row, rows) of what is one thread's at a time.
    """

    def __init__(self, p: QuantizedProblem, threads: int) -> None:
        self.p, self.threads = p, threads
        _, channels, height, width = p.shape("input")
        images, _, rows, points = p.result
        window, (down, along) = p.shape("weight")[2:], p.parameter("stride")
        self.words = (
            channels, height, width, *window, down, along, *p.parameter("padding"), points, p.outs, int(p.dtype == np.int8)
        )  # fmt: skip
        pitch = ((points - 1) * along + window[1]) * channels
        count = -(-rows // max(LINES // (pitch * down), LEAST_ROWS))
        while images * count % threads and count < rows // LEAST_ROWS:
            count += 1  # as many for each thread
        parts = cut(rows, -(-rows // count))
        self.items = [(n, first, count) for n in range(images) for first, count in parts]
        largest = max(count for _, count in parts)
        # Behind the last line tiles read points that the result does not have, and bytes for which weights are 0.
        behind = (-points % ROWS) * along * channels + _pieces(p) * BYTES
        self.lines = ((largest - 1) * down + window[0]) * pitch + behind

    def write(self, b: Any, finish: Any, images: Pointer, weights: Pointer, zero: Pointer, target: Pointer) -> None:
        """Writes the steps: from images and weights in tiles to the result."""
        p, (_, channels, height, width) = self.p, self.p.shape("input")
        geometry = b.constant(struct.pack(f"<{len(self.words)}q", *self.words))
        row = p.result[3] * p.outs
        source = images[0], images[1], uniform([n * channels * height * width for n, _, _ in self.items])
        made = target[0], target[1], uniform([(n * p.result[2] + first) * row for n, first, _ in self.items])
        lines, sums = b.work(self.lines), b.work(2 * 4 * MOST_SUMS * p.outs)
        firsts, counts = [first for _, first, _ in self.items], same([count for _, _, count in self.items])
        b.each()
        b.call(
            _kernels.addresses["conv_tiles"],
            [geometry, finish.layer, finish.numbers, source, weights, zero, lines, sums, made, same(firsts), counts],
        )
        threads = thread_team.items_threads(self.threads)
        if threads > 1:
            thread_team.items_run()
        b.each(len(self.items), threads)
