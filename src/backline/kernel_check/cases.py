"""The problems of the check, as lines of text: shapes with edges that vendor kernels are known to stumble over."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from ..problems.neural_problem import ELEMENTARY

__all__ = ["FAMILIES", "cases"]

EDGES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65)
MATRICES = ("f32", "f64", "c64", "c128")
PRIMES = (521, 1031, 2053, 4099, 8209)
SEED = 12


def matmul(rng: random.Random) -> Iterator[str]:
    """Products: sizes around those of vector registers and blocks, all layouts, empty ones, sums with a third matrix."""
    sizes = [*itertools.product((1, 2, 7, 16, 33), repeat=3), (0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1000), (129, 1, 257)]
    sizes += [tuple(rng.choice(EDGES) for _ in range(3)) for _ in range(60)]
    for m, k, n in sizes:
        layouts = [f"{m}x{k}{a} {k}x{n}{b}" for a in ("", ":F", ":X") for b in ("", ":F", ":X")]
        for dtype in ("f32", "f64", "c64", "c128", "f16", "bf16"):
            yield f"matmul {dtype} {rng.choice(layouts)}"
    for m, k, n in sizes[::9]:
        yield f"addmm f64 {m}x{n} {m}x{k} {k}x{n} alpha=0.5 beta=2"
        yield f"matmul f32 3x{m}x{k} 3x{k}x{n}"
        yield f"linear f32 {m}x{k} {n}x{k} {n}"
        yield f"linear bf16 {m}x{k} {n}x{k}"
        yield f"mv f64 {m}x{k} {k}"


def linalg(rng: random.Random) -> Iterator[str]:
    """Factorisations and solutions of small systems, square and not, one and several."""
    for n in (1, 2, 3, 5, 8, 17, 33, 65):
        for dtype in MATRICES:
            for op in ("inv", "cholesky", "eigh", "eigvalsh", "svd", "svdvals", "qr", "lu_factor", "eig", "eigvals",
                       "ldl_factor"):  # fmt: skip
                layout = rng.choice(("", ":F", ":X"))
                yield f"linalg.{op} {dtype} {rng.choice(('', '3x'))}{n}x{n}{layout}"
            m = rng.choice(EDGES)
            yield f"linalg.solve {dtype} {n}x{n} {n}x{m}"
            yield f"linalg.solve_triangular {dtype} {n}x{n} {n}x{m} upper={rng.choice((True, False))}"
            for op in ("svd", "svdvals", "qr", "lu_factor"):
                yield f"linalg.{op} {dtype} {n}x{m}"
            yield f"linalg.ldl_solve {dtype} {n}x{n} {n} {n}x{m}"
            yield f"linalg.householder_product {dtype} {max(n, m)}x{min(n, m)} {min(n, m)}"
            yield f"linalg.lstsq {dtype} {max(n, m)}x{min(n, m)} {max(n, m)}x3"


def _window(n: int, k: int, s: int, d: int, p: int) -> int:
    return (n + 2 * p - d * (k - 1) - 1) // s + 1


def conv(rng: random.Random) -> Iterator[str]:
    """Convolutions and gradients: kernels in padding, strides past the kernel, odd groups, dilation, one point, channels last."""
    # Those that gave rise to rows of the errata, and what is published of others.
    yield "conv bf16 1x2x1x6 4x1x2x2 dilation=3x3 padding=2x2 groups=2"
    yield "conv f32 1x2x1x6 4x1x2x2 dilation=3x3 padding=2x2 groups=2"
    yield "conv_transpose f32 1x1x3x1 1x1x3x3 stride=3x3 padding=2x2 output_padding=2x2"
    for dtype in ("f32", "bf16"):
        yield f"conv_grad_weight {dtype} 2x4x6x2 2x12x4x1 stride=2x3 padding=1x1 groups=4 result=12x1x2x2"
        yield f"conv_grad_input {dtype} 3x2x2x3x1 2x3x2x2x12 stride=2x1x3 result=2x2x5x4x35"
        yield f"conv_grad_weight {dtype} 4x4x16x16 4x8x8x8 stride=2x2 result=8x4x1x1 last"
        yield f"conv {dtype} 3x64x1x1 1x64x125x1 1 stride=2x2 padding=63x63 last"
        # Patches that are cut out of images, and rows of images that are passed over.
        kernels, strides = ((1, 2), (2, 2), (2, 4), (3, 4), (2, 8)), ((1, 2), (2, 2), (4, 4), (3, 8))
        for c, k, s in itertools.product((24, 40, 48, 80), kernels, strides):
            size = _x([3 * s[0] + k[0], 15 * s[1] + k[1]])
            yield f"conv {dtype} 2x{c}x{size} 32x{c}x{_x([*k])} stride={_x([*s])} last"
    for _ in range(1400):
        rank = rng.choice((1, 2, 2, 2, 3))
        groups = rng.choice((1, 1, 1, 2, 3, 4, 5))
        c, o = rng.choice(((1, 1), (1, 1), (2, 1), (1, 3), (3, 2), (4, 4), (8, 8), (16, 16), (7, 9), (17, 5)))
        image = [rng.choice((1, 1, 2, 3, 4, 5, 6, 7, 9, 17)) for _ in range(rank)]
        kernel = [rng.choice((1, 1, 2, 3, 3, 4, 5)) for _ in range(rank)]
        stride = [rng.choice((1, 1, 1, 2, 3, 4)) for _ in range(rank)]
        dilation = [rng.choice((1, 1, 1, 2, 3)) for _ in range(rank)]
        padding = [rng.choice((0, 0, 1, 2, 3)) for _ in range(rank)]
        batch, dtype, last = rng.choice((1, 1, 2, 5)), rng.choice(("f32", "f32", "f32", "bf16", "f64")), rng.choice(("", " last"))
        x, w = (rng.choice(("conv", "conv", "conv_transpose", "conv_grad_input", "conv_grad_weight")), _x(kernel))
        rest = f"stride={_x(stride)} dilation={_x(dilation)} padding={_x(padding)} groups={groups}{last}"
        if x == "conv_transpose":
            more = [rng.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)]
            numbers = zip(image, kernel, stride, dilation, padding, more, strict=True)
            if min((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, d, p, e in numbers) < 1:
                continue  # no result
            rest = f"output_padding={_x(more)} {rest}"
            bias = rng.choice(("", f" {o * groups}"))
            yield f"{x} {dtype} {batch}x{c * groups}x{_x(image)} {c * groups}x{o}x{w}{bias} {rest}"
            continue
        points = [_window(*numbers) for numbers in zip(image, kernel, stride, dilation, padding, strict=True)]
        if min(points) < 1:
            continue
        images, grads = f"{batch}x{c * groups}x{_x(image)}", f"{batch}x{o * groups}x{_x(points)}"
        weights = f"{o * groups}x{c}x{w}"
        if x == "conv_grad_input":
            yield f"{x} {dtype} {weights} {grads} {rest} result={images}"
        elif x == "conv_grad_weight":
            yield f"{x} {dtype} {images} {grads} {rest} result={weights}"
        else:
            bias = rng.choice(("", f" {o * groups}"))
            yield f"{x} {dtype} {images} {weights}{bias} {rest} {rng.choice(('', 'activation=relu'))}".rstrip()


def _x(numbers: list[int]) -> str:
    return "x".join(map(str, numbers)) if len(numbers) > 1 else f"{numbers[0]}"


def pooling(rng: random.Random) -> Iterator[str]:
    """Windows over images of one point, windows that hang over, and their gradients."""
    yield "max_pool2d f32 1x2x4x1 kernel_size=2x2 stride=1x1 padding=1x1"
    for _ in range(500):
        rank = rng.choice((1, 2, 2, 3))
        kernel = [rng.choice((1, 2, 2, 3, 4, 5)) for _ in range(rank)]
        stride = [rng.choice((1, 1, 2, 3, 4)) for _ in range(rank)]
        padding = [rng.choice((0, k // 2)) for k in kernel]
        image = [rng.choice((1, 1, 2, 3, 4, 7, 16, 17)) for _ in range(rank)]
        channels = rng.choice((1, 2, 3, 8, 16, 17))
        points = [_window(n, k, s, 1, p) for n, k, s, p in zip(image, kernel, stride, padding, strict=True)]
        if min(points) < 1:
            continue
        rest = f"kernel_size={_tuple(kernel)} stride={_tuple(stride)} padding={_tuple(padding)}{rng.choice(('', ' last'))}"
        lead = f"{rng.choice((1, 1, 2))}x{channels}"
        kind = rng.choice(("max_pool", "avg_pool"))
        yield f"{kind}{rank}d {rng.choice(('f32', 'f32', 'f64', 'bf16'))} {lead}x{_x(image)} {rest}"
        yield f"nn.grad.{kind}{rank}d_input f32 {lead}x{_x(image)} {lead}x{_x(points)} {rest}"


def _tuple(numbers: list[int]) -> str:
    return f"({','.join(map(str, numbers))},)"


def neural(rng: random.Random) -> Iterator[str]:
    """Activations, softmax and normalisation, of sizes that fill no vector register, and their gradients."""
    shapes = [(1,), (3,), (17,), (1, 1), (1, 5), (5, 1), (2, 3, 1), (1, 7, 1, 3), (4, 33), (2, 16, 15), (3, 1000), (3, 8, 5, 1)]
    for shape, dtype in itertools.product(shapes, ("f32", "f64", "bf16")):
        text = f"{dtype} {'x'.join(map(str, shape))}"
        for op in ("relu", "gelu", "silu", "tanh", "sigmoid"):
            yield f"{op} {text}{rng.choice(('', ':F', ':X') if len(shape) > 1 else ('',))}"
            if dtype != "bf16":
                yield f"nn.grad.{op}_input {text} {text.split()[1]}"
        for op in ELEMENTARY:
            yield f"{op} {text}{rng.choice(('', ':F', ':X') if len(shape) > 1 else ('',))}"
        for op in ("softmax", "log_softmax"):
            yield f"{op} {text} dim={rng.randrange(len(shape))}"
        yield f"layer_norm {text} normalized_shape=({shape[-1]},)"
        if len(shape) > 1:
            yield f"batch_norm {text} {shape[1]} {shape[1]}"


def fft(rng: random.Random) -> Iterator[str]:
    """Transforms of every residue modulo 64, of large primes and their multiples, one and several, of one and more axes."""
    for base in (64, 8192 + 64 * rng.randrange(800)):
        for length in range(base, base + 64):
            for dtype in ("f32", "f64"):
                half = f"{'c64' if dtype == 'f32' else 'c128'} {length // 2 + 1} n={length}"
                yield f"fft.rfft {dtype} {length}"
                yield f"fft.irfft {half}"
                yield f"fft.{rng.choice(('fft', 'ifft'))} {half.split()[0]} {length}"
    for length in (*range(1, 40), *PRIMES, *(2 * p for p in PRIMES), *(30 * p for p in PRIMES[:2])):
        for dtype in ("c64", "c128"):
            real = "f32" if dtype == "c64" else "f64"
            batch = rng.choice((1, 2, 3, 7))
            yield f"fft.{rng.choice(('fft', 'ifft'))} {dtype} {batch}x{length}"
            yield f"fft.rfft {real} {batch}x{length}"
            yield f"fft.{rng.choice(('irfft', 'hfft'))} {dtype} {batch}x{length // 2 + 1} n={length}"
            yield f"fft.dct {real} {batch}x{max(length, 2)} type={rng.choice((1, 2, 3, 4))}"
    for _ in range(60):
        shape = "x".join(str(rng.choice((1, 2, 3, 5, 8, 12, 17, 31))) for _ in range(rng.choice((2, 3))))
        yield f"fft.{rng.choice(('fftn', 'ifftn'))} {rng.choice(('c64', 'c128'))} {shape}{rng.choice(('', ':F', ':X'))}"
        yield f"fft.rfftn {rng.choice(('f32', 'f64'))} {shape}{rng.choice(('', ':F'))}"


def attention(rng: random.Random) -> Iterator[str]:
    """Attention over one and more keys, of heads that fill no vector register."""
    for _ in range(60):
        batch, heads, q, k, d = (rng.choice(c) for c in ((1, 2), (1, 3), (1, 2, 17), (1, 5, 33), (1, 3, 8, 17, 64)))
        dtype, rest = rng.choice(("f32", "f32", "f64", "bf16")), rng.choice(("", " is_causal=True"))
        lead = f"{batch}x{heads}"
        yield f"scaled_dot_product_attention {dtype} {lead}x{q}x{d} {lead}x{k}x{d} {lead}x{k}x{rng.choice((d, 1, 9))}{rest}"


def rnn(rng: random.Random) -> Iterator[str]:
    """Recurrent networks of one step, one sequence and odd sizes."""
    for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        for _ in range(8):
            steps, batch, size, hidden = (rng.choice(c) for c in ((1, 2, 5), (1, 3), (1, 4, 7, 17), (1, 3, 8, 17)))
            yield f"{mode} f32 {steps}x{batch}x{size} hidden={hidden}{rng.choice(('', ' bidirectional', ' layers=2'))}"


FAMILIES = {
    "matmul": matmul, "linalg": linalg, "conv": conv, "pooling": pooling, "neural": neural, "fft": fft, "attention": attention,
    "rnn": rnn,
}  # fmt: skip


def cases(only: str = "") -> list[str]:
    """Return the problems, mixed, so that any part of them has some of each kind.

    Parameters
    ----------
    only
        A family, or a part of an operation's name; "" for all.
    """
    found: list[str] = []
    for name, family in FAMILIES.items():
        lines = [*dict.fromkeys(family(random.Random(SEED)))]
        found += lines if name == only else [line for line in lines if only in line.partition(" ")[0]]
    order = random.Random(SEED)
    order.shuffle(found)
    return found
