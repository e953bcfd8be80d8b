"""Convolutions on CUDA arrays without cuDNN: as matrix products of cuBLAS, depthwise ones by kernels of our own.

Images are looked at through windows, spread into columns a block at a time, and multiplied; where images are what comes out,
columns are added to them tap by tap. Halves are multiplied as float32 (where the device has it in tf32, which holds all of their
bits) and rounded once. Everything is added up in an order that the shapes decide, so results have the same bits each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product as every
from math import prod
from typing import Any

from ....problems import Operand
from ....problems.conv_problem import ConvProblem
from ....problems.dtypes import compute_dtype
from ....problems.matmul_problem import MatmulProblem
from ...base import LEADS, Algorithm, Refusal
from ..common import bindings, elementwise_kernels
from ..common.dense_views import order_of
from ..common.device_plan import new_images, refuse_overlaps_of_out
from ..common.gemm_layout import LARGEST
from ..cudnn.conv_graphs import depthwise_half
from . import direct_depthwise

__all__ = ["Block", "DirectConv", "blocks", "direct_algorithms"]

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
COLUMNS = 256 << 20  # bytes of columns at a time, at most, unless those of one row of points are more
Array = Any


def by_channel(p: ConvProblem) -> bool:
    """Tells whether the depthwise kernels, which count along each axis with 32 bits, support this convolution."""
    axes = zip(p.image, p.padding, p.kernel, p.dilation, strict=True)
    longest = max((n + sum(pair) + k * d for n, pair, k, d in axes), default=0)
    return not p.transposed and p.depthwise and p.dtype.kind != "c" and longest <= LARGEST


def direct_algorithms(p: ConvProblem, tf32: str) -> Iterator[Algorithm | Refusal]:
    """The ways there are for a convolution, plain or transposed, or a gradient.

    `tf32` is why the device has no tf32; empty if it has.
    """
    if p.dtype.name not in DTYPES:
        yield Refusal("cublas", "im2col", f"it has no products of {p.dtype.name}")
        return
    if not p.dtype.isnative:
        yield Refusal("cublas", "im2col", "it takes native byte order only")
        return
    if p.dtype.kind == "c" and p.op.startswith("conv_grad"):
        yield Refusal("cublas", "im2col", "gradients of complex convolutions are conjugated, which this does not do")
        return
    traits = ("depthwise by us",) if depthwise_half(p) else ()
    way = partial(Algorithm, library="cublas", level="threads", traits=traits)
    spelled = "f32 accumulation" if p.dtype.itemsize == 2 else ""
    if by_channel(p):
        # Before cuDNN's, as in PyTorch, which runs float32 by a kernel of this kind.
        first = (LEADS,) if p.dtype.name == "float32" else ()
        note = "channel by channel, without a product"
        yield way(name="depthwise", precision=spelled, basis="construction", note=note, traits=(*traits, *first))
    note = "images spread into columns, block by block"
    if p.dtype.name == "float32":
        reduced = way(name="im2col_tf32", precision="tf32", basis="promise", note=note)
        yield Refusal("cublas", reduced.name, tf32) if tf32 else reduced
    yield way(name="im2col", precision=spelled, basis="promise", note=note)


@dataclass(frozen=True, slots=True)
class Block:
    """Images and rows of points whose columns are there at a time; `size` is how many points they have in all."""

    images: tuple[int, int]
    rows: tuple[int, int]
    size: int


def blocks(batch: int, points: tuple[int, ...], depth: int) -> list[Block]:
    """Divides a batch into blocks: many images at a time, or one; or where one is too large, some of its rows.

    `points` is the size of each image, `depth` the bytes of the columns of one point.

    Examples
    --------
    >>> [(b.images, b.rows, b.size) for b in blocks(3, (4, 4), COLUMNS // 32)]
    [((0, 2), (0, 4), 32), ((2, 3), (0, 4), 16)]
    """
    row = prod(points[1:])
    many = COLUMNS // max(depth * row * points[0], 1)
    if many:
        cuts = [(n, min(n + many, batch)) for n in range(0, batch, many)]
        return [Block(cut, (0, points[0]), (cut[1] - cut[0]) * row * points[0]) for cut in cuts]
    some = max(COLUMNS // (depth * row), 1)
    parts = [(r, min(r + some, points[0])) for r in range(0, points[0], some)]
    return [Block((n, n + 1), part, (part[1] - part[0]) * row) for n in range(batch) for part in parts]


class DirectConv:
    """The function of the Plan of such a convolution, by the name of one of the `direct_algorithms`.

    `multiply` prepares a product: a function of the operands and the result.
    """

    def __init__(self, problem: ConvProblem, name: str, multiply: Any) -> None:
        p = self.p = problem
        self.work = compute_dtype(p.dtype)
        self.taps = prod(p.kernel)
        self.depthwise = name == "depthwise"
        self.products: dict[Block, Any] = {}
        self.cuts: list[Block] = []
        if p.empty or self.depthwise:
            return
        groups, features = p.groups, p.features // p.groups
        self.scattered = p.op in ("conv_transpose", "conv_grad_input")
        # Rows of the weights as a matrix, and what stands beside the taps in a column.
        self.matrix = (p.channels // groups, features) if p.transposed else (features, p.channels // groups)
        self.places = p.image if p.transposed else p.points
        rows, depth = self.matrix[0], self.matrix[1] * self.taps
        self.cuts = blocks(p.batch, self.places, depth * groups * self.work.itemsize)
        kinds: dict[tuple[int, int], Any] = {}
        for cut in self.cuts:
            count = cut.images[1] - cut.images[0]
            size = cut.size // count
            if (count, size) not in kinds:
                matrix, images = (groups, rows, depth), (count, groups, rows, size)
                columns = (count, groups, depth, size)
                if p.op == "conv_grad_weight":
                    made = self._product((groups, rows, cut.size), (groups, depth, cut.size), matrix, "b")
                elif self.scattered:
                    made = self._product(matrix, images, columns, "a")
                else:
                    made = self._product(matrix, columns, images)
                kinds[count, size] = multiply(made)
            self.products[cut] = kinds[count, size]

    def _product(self, a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...], turned: str = "") -> MatmulProblem:
        """A product of dense batches of matrices; an operand that is `turned` is transposed by its strides."""
        first, second, out = (Operand.contiguous(role, self.work, shape) for role, shape in (("a", a), ("b", b), ("out", c)))
        if turned == "a":
            first = _turned(first)
        elif turned == "b":
            second = _turned(second)
        m, k = first.shape[-2:]
        return MatmulProblem(
            "matmul", (first, second, out), (), "matmul", m=m, n=c[-1], k=k, batch=c[:-2], result=c, device=self.p.device
        )  # fmt: skip

    def __call__(self, *arrays: Array) -> Array:
        p, cupy = self.p, bindings.cupy()
        given = {o.role: array for o, array in zip(p.operands, arrays, strict=True)}
        out = given.pop("out", None)
        refuse_overlaps_of_out(p, arrays, ("residual", "bias"))  # what follows the sums is done when everything has been read
        if p.empty:
            sums = cupy.zeros(p.result, self.work)
        elif self.depthwise:
            sums = direct_depthwise.run(p, given, self.work)
        else:
            sums = {"conv": self._gathered, "conv_grad_weight": self._by_weight}.get(p.op, self._added)(given)
        return self._after(sums, given, out)

    def _after(self, sums: Array, given: dict[str, Array], out: Array) -> Array:
        """Bias, residual and activation, in the dtype of the sums; then the result, rounded, and laid out as it should be."""
        p, last = self.p, self.p.last and self.p.op != "conv_grad_weight"
        added = tuple(role for role in ("bias", "residual") if role in given)
        activation = "relu" if p.parameter("activation") == "relu" else None
        if out is None:
            same = self.work == p.dtype and bool(order_of(sums)) is last
            if same and not added and activation is None:
                return sums
            out = sums if same else new_images(p.result, p.dtype, last)
        terms = [given[role].reshape((-1,) + (1,) * len(p.kernel)) if role == "bias" else given[role] for role in added]
        if p.dtype.kind == "c":
            for term in terms:
                sums += term
            if activation:
                bindings.cupy().maximum(sums, 0, out=sums)
            out[...] = sums
        else:
            elementwise_kernels.epilogue(activation, added)(sums, *terms, out)
        return out

    # the three kinds --------------------------------------------------------------------------------------------------

    def _weights(self, given: dict[str, Array]) -> Array:
        return bindings.cupy().ascontiguousarray(given["weight"], dtype=self.work)

    def _padded(self, image: Array, cut: Block) -> Array:
        """The images of a block with zeros around, dense, in the dtype of the sums."""
        p, cupy = self.p, bindings.cupy()
        part = image[cut.images[0] : cut.images[1]]
        if not any(map(any, p.padding)):
            return cupy.ascontiguousarray(part, dtype=self.work)
        sizes = [n + sum(pair) for n, pair in zip(p.image, p.padding, strict=True)]
        made = cupy.zeros((*part.shape[:2], *sizes), self.work)
        made[(slice(None), slice(None), *(slice(a, a + n) for n, (a, _) in zip(p.image, p.padding, strict=True)))] = part
        return made

    def _windows(self, padded: Array, cut: Block) -> Array:
        """Its windows: (images, channels, taps..., points...); the rows of the block."""
        p = self.p
        start = padded[:, :, cut.rows[0] * p.stride[0] :]
        steps = padded.strides[2:]
        taps = tuple(s * d for s, d in zip(steps, p.dilation, strict=True))
        moves = tuple(s * d for s, d in zip(steps, p.stride, strict=True))
        shape = (*padded.shape[:2], *p.kernel, cut.rows[1] - cut.rows[0], *p.points[1:])
        return bindings.cupy().lib.stride_tricks.as_strided(start, shape, (*padded.strides[:2], *taps, *moves))

    def _points(self, cut: Block) -> tuple[int, int]:
        """The points of a block, of each of its images."""
        row = prod(self.places[1:])
        return cut.rows[0] * row, cut.rows[1] * row

    def _gathered(self, given: dict[str, Array]) -> Array:
        """Weights times columns."""
        p, cupy = self.p, bindings.cupy()
        weights, image = self._weights(given), given["input"]
        sums = cupy.empty(p.result, self.work)
        flat = sums.reshape(p.batch, p.features, -1)
        for cut in self.cuts:
            windows = self._windows(self._padded(image, cut), cut)
            columns = cupy.empty(windows.shape, self.work)
            columns[...] = windows
            first, end = self._points(cut)
            if end - first == flat.shape[2]:  # whole images: they lie as a product leaves them
                self.products[cut](weights, columns, sums[cut.images[0] : cut.images[1]])
            else:
                part = cupy.empty((1, p.features, end - first), self.work)
                self.products[cut](weights, columns, part)
                flat[cut.images[0] : cut.images[1], :, first:end] = part
        return sums

    def _added(self, given: dict[str, Array]) -> Array:
        """The transposed convolution, and the gradient by the input, which is the same: products, added where they belong."""
        p, cupy = self.p, bindings.cupy()
        weights, source = self._weights(given), given["input" if p.transposed else "grad"]
        channels = p.result[1]
        sizes = [n + sum(pair) for n, pair in zip(p.result[2:], p.padding, strict=True)]
        inner = (slice(None), slice(None), *(slice(a, a + n) for n, (a, _) in zip(p.result[2:], p.padding, strict=True)))
        sums = cupy.empty(p.result, self.work)
        canvas: Array = None
        for cut in self.cuts:
            first, end = cut.images
            (low, high), count = cut.rows, end - first
            part = cupy.ascontiguousarray(source[first:end, :, low:high], dtype=self.work)
            columns = cupy.empty((count, channels, *p.kernel, high - low, *self.places[1:]), self.work)
            self.products[cut](weights, part, columns)
            if low == 0:
                canvas = cupy.zeros((count, channels, *sizes), self.work)
            for tap in every(*map(range, p.kernel)):
                starts = [t * d for t, d in zip(tap, p.dilation, strict=True)]
                starts[0] += low * p.stride[0]
                moves = zip(starts, (high - low, *self.places[1:]), p.stride, strict=True)
                where = tuple(slice(at, at + (n - 1) * step + 1, step) for at, n, step in moves)
                place = canvas[(slice(None), slice(None), *where)]  # CuPy would write the part to itself once more
                place += columns[(slice(None), slice(None), *tap)]
            if high == self.places[0]:
                sums[first:end] = canvas[inner]
        return sums

    def _by_weight(self, given: dict[str, Array]) -> Array:
        """The gradient by the weights: that of the result times the columns, over all points."""
        p, cupy = self.p, bindings.cupy()
        grad, rank = given["grad"], len(p.kernel)
        sums: Array = None
        for cut in self.cuts:
            windows = self._windows(self._padded(given["input"], cut), cut)
            order = (*range(1, 2 + rank), 0, *range(2 + rank, 2 + 2 * rank))
            columns = cupy.empty(tuple(windows.shape[axis] for axis in order), self.work)
            columns[...] = windows.transpose(order)
            part = grad[cut.images[0] : cut.images[1], :, cut.rows[0] : cut.rows[1]]
            slopes = cupy.empty((part.shape[1], part.shape[0], *part.shape[2:]), self.work)
            slopes[...] = part.swapaxes(0, 1)
            found = cupy.empty(p.result, self.work)
            self.products[cut](slopes, columns, found)
            if sums is None:
                sums = found
            else:
                sums += found
        return sums


def _turned(o: Operand) -> Operand:
    """A batch of matrices, transposed."""
    shape, steps = o.shape, o.strides
    return Operand(o.role, o.dtype, (*shape[:-2], shape[-1], shape[-2]), (*steps[:-2], steps[-1], steps[-2]))
