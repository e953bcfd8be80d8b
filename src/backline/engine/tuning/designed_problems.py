"""Problems whose times stand for many others: shapes from small to large, of every class, dtype and operation.

The shipped rankings and `backline calibrate` measure them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ...problems import Problem
from ...problems.dtypes import bfloat16
from ...problems.neural_problem import ELEMENTARY
from ...problems.op_registry import import_operations, operations

__all__ = ["PARTS", "problems"]

Call = tuple[str, tuple[Any, ...], dict[str, Any]]  # operation, arguments, keywords

LINALG = (
    "linalg.cholesky", "linalg.lu_factor", "linalg.inv", "linalg.solve", "linalg.qr", "linalg.eigh", "linalg.eigvalsh",
    "linalg.eig", "linalg.eigvals", "linalg.svd", "linalg.svdvals", "linalg.lstsq", "cholesky_solve",
    "cholesky_inverse", "linalg.solve_triangular", "linalg.lu_solve", "linalg.ldl_factor", "linalg.ldl_solve",
    "linalg.householder_product",
)  # fmt: skip

# Lengths of transforms with larger prime factors, by which libraries differ the most: even and odd, a few times a prime and not.
ROUGH = (215, 291, 1060, 1316, 2183, 3810, 4945, 6187, 7095, 16725, 20300, 28968, 33453, 57057, 160252, 182364, 198660)
ROUGH_BATCHES = (
    (735, 68), (3, 22040), (877, 57), (526, 95), (54, 931), (10, 4913), (50, 1316), (600, 74), (270, 185), (1063, 47), (57, 861),
    (9, 5375), (90, 582), (17, 2968), (847, 59), (170, 291), (94, 581), (8, 6603), (4, 16256), (9, 5540), (60, 831), (6, 8545),
    (35, 1413), (4, 10505), (2, 24041), (65, 368), (4, 2952), (12, 4195), (148, 298), (81, 318),
)  # fmt: skip
ROUGH_IMAGES = ((43, 32, 33), (224, 215), (202, 340), (90, 115), (300, 229), (88, 76), (148, 212), (60, 177))
# More, most of them odd, whose largest prime factor is from 17 to 47, is that of another axis, or is the length of the last axis.
MORE_ROUGH = (
    57, 69, 111, 798, 1102, 1105, 1885, 2109, 3036, 4773, 6669, 7337, 40755, 46483, 71775, 72930, 125818, 158175, 216125, 309925,
)  # fmt: skip
MORE_ROUGH_BATCHES = (
    (26, 95), (149, 57), (4, 8379), (30, 289), (414, 31), (139, 145), (161, 217), (170, 217), (3, 759), (172, 37), (29, 329),
)  # fmt: skip
MORE_ROUGH_IMAGES = (
    (34, 121), (27, 51), (28, 85), (68, 297), (108, 29), (92, 275), (31, 189), (87, 41), (147, 41), (268, 147), (445, 25),
    (134, 39), (366, 325), (371, 63), (150, 107), (96, 131), (240, 151), (60, 173), (180, 229), (120, 293), (300, 269), (45, 211),
)  # fmt: skip
# The same of odd lengths without such factors.
ODD_SMOOTH = (45, 99, 273, 729, 1617, 4095, 11025, 28875, 81675, 225225)
ODD_SMOOTH_BATCHES = (
    (200, 45), (700, 63), (24, 125), (64, 231), (130, 495), (12, 1575), (40, 2275), (5, 6875), (16, 14553), (3, 60025),
)  # fmt: skip
ODD_SMOOTH_IMAGES = ((60, 55), (96, 143), (200, 175), (110, 243), (33, 325), (420, 99), (24, 30, 35))
ROUNDED_DOWN = (1009, 15015, 1000003, 129)  # odd lengths whose half is transformed back to one point fewer

# What programs transform: powers of two, round numbers, sampling rates, images of common sizes.
USUAL = (
    32, 100, 128, 200, 256, 500, 512, 1000, 2000, 2048, 5000, 8192, 10000, 16000, 1 << 15, 44100, 48000, 100000, 1 << 17,
    500000, 1 << 19, 1000000,
)  # fmt: skip
USUAL_BATCHES = (
    (1000, 32), (256, 128), (1000, 100), (128, 256), (1000, 256), (100, 400), (512, 512), (100, 1000), (100, 2048), (32, 4096),
    (16, 8192), (8, 44100), (4, 1 << 16),
)  # fmt: skip
USUAL_IMAGES = (
    (8, 8), (16, 16), (28, 28), (32, 32), (50, 50), (100, 100), (128, 128), (224, 224), (256, 256), (480, 640), (1000, 1000),
    (1024, 1024), (1080, 1920), (16, 16, 16), (50, 50, 50), (64, 64, 64), (100, 100, 100),
)  # fmt: skip

VECTORS = 64, 256, 512, 700, 900, 1400, 2048  # sizes of square matrices that are multiplied by a vector

# More sizes, where threads begin to be worth it.
SIZES_BETWEEN = {
    **dict.fromkeys(("linalg.cholesky", "linalg.lu_factor", "linalg.inv", "linalg.solve"), (24, 40, 160, 384, 512, 700)),
    **dict.fromkeys(("linalg.qr", "linalg.eigh", "linalg.eigvalsh", "linalg.svd", "linalg.svdvals"), (160, 512)),
}


MOST = 1 << 29  # multiplications of a scattered product
LINEAR = (1, 2500), (8, 2000), (8, 2000)  # rows, inner sizes and columns of scattered linear layers


def scattered(count: int, *ranges: tuple[int, int], most: float = math.inf) -> Iterator[tuple[int, ...]]:
    """Yields sizes between the ends of ranges, as evenly spread as a program's shapes may come, in doublings.

    Of so many, those whose product is over `most` are left out.

    They are the points of an additive recurrence by powers of the root of x^(d + 1) = x + 1, for d ranges, which has a low
    discrepancy: M. Roberts, The Unreasonable Effectiveness of Quasirandom Sequences, 2018.

    Examples
    --------
    >>> list(scattered(3, (1, 1000), (10, 20)))
    [(6, 10), (1, 16), (197, 12)]
    """
    root = 2.0
    for _ in range(50):
        root = (1 + root) ** (1 / (len(ranges) + 1))
    for number in range(1, count + 1):
        places = [math.modf(0.5 + number / root ** (i + 1))[0] for i in range(len(ranges))]
        sizes = tuple(round(low * (high / low) ** x) for (low, high), x in zip(ranges, places, strict=True))
        if math.prod(sizes) <= most:
            yield sizes


def scattered_products(dtype: Any, count: int) -> Iterator[Call]:
    """Products of matrices that come by rows, as new arrays do, and more that do not."""
    ranges = (1, 3000), (2, 2500), (2, 2500)
    for sizes in scattered(count, *ranges, most=MOST):
        yield product(dtype, *sizes)
    turned = itertools.cycle(("b", "a", "b", "a", "ab"))
    for sizes in scattered(count + count // 2, *ranges, most=MOST):
        yield product(dtype, *sizes, turned=next(turned))


def scattered_batches(dtype: Any, count: int) -> Iterator[Call]:
    sizes = list(scattered(count, (3, 2000), (2, 150), (2, 150), (2, 150), most=MOST / 4))
    for turned in ("", "b"):
        for items, m, k, n in sizes:
            yield product(dtype, m, k, n, items, turned=turned)


def product(dtype: Any, m: int, k: int, n: int, *batch: int, turned: str = "") -> Call:
    """Returns the call of a product of matrices that come by rows, but for those in `turned`, which come by columns."""
    sizes = {"a": (m, k), "b": (k, n)}
    arrays = (np.empty((*batch, *(s[::-1] if name in turned else s)), dtype) for name, s in sizes.items())
    return "matmul", tuple(x.swapaxes(-1, -2) if name in turned else x for name, x in zip(sizes, arrays, strict=True)), {}


def linear(dtype: Any, sizes: Iterable[tuple[int, ...]], activation: str | None = "relu") -> Iterator[Call]:
    for rows, inner, columns in sizes:
        x, weight, bias = np.empty((rows, inner), dtype), np.empty((columns, inner), dtype), np.empty(columns, dtype)
        yield "nn.functional.linear", (x, weight, bias), {"activation": activation}


def biased(dtype: Any, count: int) -> Iterator[Call]:
    """Linear layers of a product and a bias, which is a product that adds to its result."""
    sizes = [(1, 1024, 1024), (1, 300, 64), (16, 1024, 1024), (256, 1024, 1024), (64, 64, 64)]
    yield from linear(dtype, [*sizes, *scattered(count, *LINEAR, most=MOST)], None)


def products(dtype: Any) -> Iterator[Call]:
    sizes = [(n, n, n) for n in (8, 16, 32, 48, 64, 128, 200, 256, 380, 512, 1024, 2048)]
    sizes += [(200, 8, 11), (80, 130, 5), (16, 256, 16), (500, 320, 16), (900, 60, 60)]
    sizes += [(20000, 64, 64), (4096, 64, 64), (4, 1024, 4096), (16, 1024, 1024), (1024, 16, 1024), (1024, 1024, 16)]
    sizes += [(n, n, 1) for n in VECTORS] + [(1, n, n) for n in VECTORS]
    sizes += [(30, 4, 500), (300, 30, 3), (3, 300, 30), (3, 30, 300), (4, 250, 250), (50000, 12, 12), (40, 3000, 40)]
    for shape in sizes:
        if dtype.kind != "c" or math.prod(shape) <= 512**3:
            yield product(dtype, *shape)
    for n in (16, 64, 200, 512, 1024):
        if dtype.kind != "c" or n <= 512:
            yield product(dtype, n, n, n, turned="a")
            yield product(dtype, n, n, n, turned="b")
    yield product(dtype, 4, 1024, 4096, turned="b")
    for n in (1000, 10**6):
        yield "dot", (np.empty(n, dtype), np.empty(n, dtype)), {}
    for items, n in ((1000, 4), (1000, 8), (1000, 16), (512, 32), (64, 64), (32, 128)):
        yield product(dtype, n, n, n, items)
    for items, m, k, n in ((2000, 3, 3, 1), (64, 128, 64, 128), (24, 20, 200, 20)):
        yield product(dtype, m, k, n, items)
    yield product(dtype, 100, 64, 90, 16, turned="b")  # as attention has it
    some = dtype.kind == "c"
    yield from scattered_products(dtype, 24 if some else 48)
    yield from scattered_batches(dtype, 16 if some else 24)
    for (n,) in scattered(9, (20, 600)):
        yield product(dtype, n, n, n)
    if dtype.kind == "f":
        yield from biased(dtype, 48)


def arguments(op: str, n: int, dtype: Any, batch: tuple[int, ...] = ()) -> tuple[Any, ...]:
    a, b = np.empty((*batch, n, n), dtype), np.empty((*batch, n, 16), dtype)
    if op in ("linalg.lu_solve", "linalg.ldl_solve"):
        return a, np.ones((*batch, n), np.int32), b
    if op == "cholesky_solve":
        return b, a
    if op == "linalg.householder_product":
        return a, a[..., 0]
    return (a, b) if "solve" in op or op == "linalg.lstsq" else (a,)


def linear_algebra(dtype: Any) -> Iterator[Call]:
    for op in LINALG:
        keywords = {"upper": False} if op == "linalg.solve_triangular" else {}
        sizes = (64, 256) if dtype.kind == "c" else (8, 64, 256, 1024)
        more = [n for (n,) in scattered(5, (5, 400))] if op in SIZES_BETWEEN else []
        # Libraries begin to divide a matrix into blocks, or among threads, at sizes of their own.
        odd = [n for (n,) in scattered(24, (6, 600))] if dtype.kind == "f" else []
        for n in sorted({*sizes, *SIZES_BETWEEN.get(op, ()), *more, *odd}):
            yield op, arguments(op, n, dtype), keywords
        for items, n in ((1000, 6), (100, 32)):
            yield op, arguments(op, n, dtype, (items,)), keywords
        for items, n in scattered(7 if more else 0, (2, 500), (4, 90), most=1 << 12):
            yield op, arguments(op, n, dtype, (items,)), keywords
    if dtype.kind == "f":
        for (n,) in scattered(10, (4, 600)):  # one right-hand side
            yield "linalg.solve", (np.empty((n, n), dtype), np.empty(n, dtype)), {}
        # Many, which are a product's work.
        square, sides = np.empty((1024, 1024), dtype), np.empty((1024, 512), dtype)
        yield "linalg.solve_triangular", (square, sides), {"upper": False}
        yield "linalg.solve", (square, sides), {}
        yield "cholesky_solve", (sides, square), {}


def batch_norms(x: Any) -> Iterator[Call]:
    statistics = np.empty(x.shape[1], x.dtype), np.empty(x.shape[1], x.dtype)
    for training in (False, True):
        yield "nn.functional.batch_norm", (x, *statistics), {"training": training}


def images(batch: int, channels: int, size: tuple[int, ...], dtype: Any, last: bool = False) -> Any:
    made = np.empty((batch, *size, channels) if last else (batch, channels, *size), dtype)
    return np.moveaxis(made, -1, 1) if last else made


def elementary(dtype: Any) -> Iterator[Call]:
    for size in (1 << 10, 1 << 14, 1 << 17, 1 << 20):
        for name in ELEMENTARY:
            yield name, (np.empty(size, dtype),), {}


def scattered_convolutions(dtype: Any) -> Iterator[Call]:
    """Convolutions as the first layers of networks have them, of few channels; of more; and depthwise ones."""
    few, more = scattered(45, (1, 4), (4, 256), (8, 160)), scattered(30, (4, 256), (4, 256), (7, 90))
    depthwise = ((channels, 0, size) for channels, size in scattered(12, (8, 256), (8, 90)))
    number = 0
    for shapes in (few, more, depthwise):
        for channels, features, size in shapes:
            kernel = (1, 3, 5, 3, 7)[number % 5] if features else (3, 5)[number % 2]
            batch, last, stride = (1, 8)[number % 2], number % 3 == 2, 1 + (number % 4 == 3)
            number += 1
            groups = 1 if features else channels
            weight = np.empty((features or channels, channels // groups, kernel, kernel), dtype)
            if batch * weight.size * size**2 <= MOST * stride**2:
                given = images(batch, channels, (size, size), dtype, last), weight
                yield "nn.functional.conv2d", given, {"stride": stride, "padding": kernel // 2, "groups": groups}


def layers(dtype: Any) -> Iterator[Call]:
    f = "nn.functional."
    convolutions = [  # channels, features, image, kernel, stride, padding, groups
        (8, 8, (8, 8), 3, 1, 1, 1), (32, 32, (12, 12), 3, 1, 1, 1), (64, 64, (56, 56), 3, 1, 1, 1),
        (256, 256, (14, 14), 3, 1, 1, 1),
        (3, 64, (224, 224), 7, 2, 3, 1), (64, 64, (56, 56), 5, 1, 2, 1),
        (16, 16, (28, 28), 5, 1, 2, 1), (256, 1024, (14, 14), 1, 1, 0, 1),
        (64, 64, (56, 56), 1, 1, 0, 1), (32, 32, (112, 112), 3, 1, 1, 32), (128, 128, (28, 28), 3, 1, 1, 32),
        (100, 200, (14, 14), 1, 1, 0, 1), (512, 256, (7, 7), 1, 1, 0, 1), (96, 96, (28, 28), 5, 1, 2, 96),
        (144, 144, (28, 28), 3, 2, 1, 144),
        (64, 64, (4096,), 9, 1, 4, 1), (16, 32, (8, 28, 28), 3, 1, 1, 1),
    ]  # fmt: skip
    for channels, features, size, kernel, stride, padding, groups in convolutions:
        weight = np.empty((features, channels // groups, *(kernel,) * len(size)), dtype)
        for batch in (1, 8):
            for last in (False, True):
                name = f"{f}conv{len(size)}d"
                given = images(batch, channels, size, dtype, last), weight
                yield name, given, {"stride": stride, "padding": padding, "groups": groups}
    yield from scattered_convolutions(dtype)
    for batch in (1, 8):
        given = images(batch, 64, (28, 28), dtype), np.empty((64, 32, 4, 4), dtype)
        yield f"{f}conv_transpose2d", given, {"stride": 2, "padding": 1}
        source, grad = images(batch, 32, (28, 28), dtype), images(batch, 64, (28, 28), dtype)
        weight = np.empty((64, 32, 3, 3), dtype)
        yield "nn.grad.conv2d_input", (source.shape, weight, grad), {"padding": 1}
        yield "nn.grad.conv2d_weight", (source, weight.shape, grad), {"padding": 1}
    for shape in ((16, 64), (128, 1000), (4096, 64), (8, 50257), (2048, 768), (8192, 1024)):
        x = np.empty(shape, dtype)
        for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
            yield f + name, (x,), {}
            yield f"nn.grad.{name}_input", (x, x), {}
        for name in ("softmax", "log_softmax"):
            yield f + name, (x,), {"dim": -1}
        yield f"{f}layer_norm", (x, shape[1:]), {}
    yield from elementary(dtype)
    for batch, channels, size in ((1, 16, (16, 16)), (2, 64, (28, 28)), (8, 64, (56, 56)), (16, 64, (112, 112))):
        x = images(batch, channels, size, dtype)
        half = images(batch, channels, tuple(n // 2 for n in size), dtype)
        yield f"{f}max_pool2d", (x, 2), {}
        yield f"{f}avg_pool2d", (x, 2), {}
        yield "nn.grad.max_pool2d_input", (x, half, 2), {}
        yield "nn.grad.avg_pool2d_input", (x.shape, half, 2), {}
        yield from batch_norms(x)
    for batch, heads, length, dim in ((1, 4, 32, 32), (1, 8, 128, 64), (2, 8, 512, 64), (1, 8, 2048, 64)):
        q = np.empty((batch, heads, length, dim), dtype)
        for causal in (False, True):
            yield f"{f}scaled_dot_product_attention", (q, q, q), {"is_causal": causal}
    yield from linear(dtype, ((1, 1024, 1024), (16, 1024, 1024), (256, 1024, 1024), (64, 64, 64)))
    yield from linear(dtype, scattered(32, *LINEAR, most=MOST))
    yield from linear(dtype, scattered(32, *LINEAR, most=MOST), "gelu")
    for steps, batch, features, hidden in ((32, 16, 256, 256), (128, 1, 512, 512), (64, 32, 512, 512), (20, 4, 32, 32)):
        x, state = np.empty((steps, batch, features), dtype), np.empty((1, batch, hidden), dtype)
        for name, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1)):
            sizes = ((gates * hidden, features), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,))
            hx = (state, state) if name == "lstm" else state
            params = tuple(np.empty(s, dtype) for s in sizes)
            yield f"nn.{name}", (x, hx, params, True, 1, 0.0, False, False, False), {}


def transforms(dtype: Any) -> Iterator[Call]:
    wide = np.dtype(np.complex64 if dtype == np.float32 else np.complex128)
    shapes: list[tuple[tuple[int, ...], tuple[int, ...] | None]]
    lengths = (64, 342, 1024, 1009, 2400, 1 << 12, 8500, 15015, 1 << 14, 33936, 36000, 1 << 16, 124744, 1 << 18, 1000003, 1 << 20)
    shapes = [((n,), None) for n in lengths]
    shapes += [((64, n), (1,)) for n in (34, 64, 314, 1024, 1009, 16384, 17010)] + [((1024, 1024), (1,))]
    shapes += [((64, 64), None), ((512, 512), None)]
    shapes += [((2048, 2048), None), ((127, 129), None), ((32, 32, 32), None), ((32, 48, 40), None)]
    shapes += [((128, 128, 128), None), ((16, 256, 256), (1, 2))]
    shapes += [((n,), None) for n in ROUGH]
    shapes += [((rows, n), (1,)) for rows, n in ROUGH_BATCHES]
    shapes += [(shape, None) for shape in ROUGH_IMAGES]
    shapes += [(shape, None) for shape in (*scattered(50, (8, 900), (8, 900)), *scattered(48, (4, 80), (4, 80), (4, 80)))]
    shapes += [(shape, None) for shape in scattered(90, (20, 300000))]
    shapes += [(shape, (1,)) for shape in scattered(80, (2, 64), (8, 20000))]
    # Most have a prime factor above 13, half one above 47: which library is the fastest depends on it, and on the axis it is of.
    shapes += [(shape, None) for shape in (*scattered(60, (100, 460), (100, 460)), *scattered(32, (18, 64), (18, 64), (18, 64)))]
    lines = *scattered(44, (1500, 15000)), *scattered(18, (15000, 60000)), *scattered(32, (100000, 450000))
    shapes += [(shape, None) for shape in lines]
    shapes += [(shape, (1,)) for shape in scattered(36, (30, 110), (280, 900))]
    shapes += [((n,), None) for n in (*MORE_ROUGH, *ODD_SMOOTH)]
    shapes += [(shape, (1,)) for shape in (*MORE_ROUGH_BATCHES, *ODD_SMOOTH_BATCHES)]
    shapes += [(shape, None) for shape in (*MORE_ROUGH_IMAGES, *ODD_SMOOTH_IMAGES)]
    shapes += [((n,), None) for n in USUAL]
    shapes += [(shape, (1,)) for shape in USUAL_BATCHES]
    shapes += [(shape, None) for shape in USUAL_IMAGES]
    for shape, axes in shapes:
        yield "fft.fftn", (np.empty(shape, wide),), {"dim": axes}
        yield "fft.rfftn", (np.empty(shape, dtype),), {"dim": axes}
        whole = shape if axes is None else shape[-len(axes) :]
        half = np.empty((*shape[:-1], shape[-1] // 2 + 1), wide)
        odd = shape[-1] % 2 and shape[-1] not in ROUNDED_DOWN
        yield "fft.irfftn", (half,), {"s": whole if odd else None, "dim": axes}
    for shape in ((64,), (4096,), (64, 512), (8192, 80), (512, 512), (20, 4099)):  # by rows; large images and odd lengths too
        yield "fft.dct", (np.empty(shape, dtype),), {}


def halves(dtype: Any) -> Iterator[Call]:
    """Products and layers of 16-bit floats: on processors that have instructions for them, and elsewhere."""
    for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        yield product(dtype, n, n, n)
    # Tiles of 16-bit floats are large: what is left of them costs more.
    long = [(320, 950, 720), (900, 1300, 500)]
    odd = [*((n, n, n) for n in (90, 150, 210, 250, 350, 1250)), *long]
    for sizes in ((4096, 64, 64), (4, 1024, 4096), (16, 1024, 1024), (1024, 16, 1024), (1024, 1024, 16), *odd):
        yield product(dtype, *sizes)
    for n in (64, 256, 1024):
        yield product(dtype, n, n, n, turned="a")
        yield product(dtype, n, n, n, turned="b")
    for n in (64, 512, 2048):
        yield product(dtype, 1, n, n)
    for items, n in ((1000, 8), (512, 32), (64, 64), (32, 128)):
        yield product(dtype, n, n, n, items)
    yield from scattered_batches(dtype, 24)
    odd = [(24, 700, 900), (240, 1100, 600), (700, 350, 450), *long]
    yield from linear(dtype, ((1, 1024, 1024), (16, 1024, 1024), (256, 1024, 1024), (64, 64, 64), (2048, 128, 512), *odd))
    yield from scattered_products(dtype, 32)
    yield from linear(dtype, scattered(24, *LINEAR, most=MOST))
    yield from linear(dtype, scattered(20, *LINEAR, most=MOST), "gelu")
    yield from biased(dtype, 32)
    for channels, features, size, kernel in ((32, 32, 12, 3), (64, 64, 56, 3), (256, 256, 14, 3), (256, 1024, 14, 1)):
        weight = np.empty((features, channels, kernel, kernel), dtype)
        for batch in (1, 8):
            yield "nn.functional.conv2d", (images(batch, channels, (size, size), dtype), weight), {"padding": kernel // 2}
    for shape in ((16, 64), (128, 1000), (2048, 768), (8192, 1024)):
        x = np.empty(shape, dtype)
        for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
            yield f"nn.functional.{name}", (x,), {}
        for name in ("softmax", "log_softmax"):
            yield f"nn.functional.{name}", (x,), {"dim": -1}
        yield "nn.functional.layer_norm", (x, shape[1:]), {}
    yield from elementary(dtype)
    for batch, channels, size in ((1, 16, 16), (8, 64, 56)):
        yield from batch_norms(images(batch, channels, (size, size), dtype))


# Part -> its Problems, and the dtypes they are measured for. Complex transforms are among the real ones.
PARTS: dict[str, tuple[Callable[[Any], Iterator[Call]], tuple[str, ...]]] = {
    "products": (products, ("float32", "float64", "complex64", "complex128")),
    "halves": (halves, ("float16", "bfloat16")),
    "algebra": (linear_algebra, ("float32", "float64", "complex64", "complex128")),
    "layers": (layers, ("float32", "float64")),
    "transforms": (transforms, ("float32", "float64")),
}


def problems(part: str) -> Iterator[Problem]:
    """Yields the Problems of a part. Their arrays are never written, so that no memory is taken for them."""
    import_operations()
    build, names = PARTS[part]
    for name in names:
        for op, arguments, keywords in build(_dtype(name)):
            yield operations[op].build(*arguments, **keywords)


def _dtype(name: str) -> Any:
    if name == "bfloat16":
        return bfloat16()
    return np.dtype(name)
