"""The problems that precision is measured by: ordinary operands, and such as make algorithms lose digits.

Each operation has cases of its own. Sums of one term show what an algorithm keeps of an operand, whatever its sums cost;
ordinary ones are those of random numbers. The others are hard on purpose: terms that cancel, magnitudes far apart, matrices that
are nearly singular, numbers near the largest and the smallest ones of the format, long sums, transforms whose length is a large
prime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from ..problems import Problem
from ..problems.neural_problem import ELEMENTARY
from ..problems.op_registry import import_operations

__all__ = ["ADVERSARIAL", "FAMILIES", "FORMATS", "ONE_TERM", "ORDINARY", "Case", "Format", "cases"]

Array = Any
Change = Callable[[Problem, list[Array], np.random.Generator], None]

ONE_TERM, ORDINARY, ADVERSARIAL = "one term", "ordinary", "adversarial"
CANCELLING = 2.0**-6  # part of a term that the term after it leaves
PRIMES = (4099, 100003)


class Format(NamedTuple):
    """A format of floating-point numbers: bits of mantissa it stores, least and largest exponent, bits of the sums."""

    stored: int
    least: int
    largest: int
    sums: int


_F32, _F64 = Format(23, -126, 127, 23), Format(52, -1022, 1023, 52)
#: Short name of a dtype -> its format; that of the parts of complex ones.
FORMATS = {
    "f16": Format(10, -14, 15, 23), "bf16": Format(7, -126, 127, 23), "f32": _F32, "f64": _F64, "c64": _F32, "c128": _F64,
}  # fmt: skip
REAL, COMPLEX, HALVES = ("f32", "f64"), ("c64", "c128"), ("f16", "bf16")


@dataclass(frozen=True)
class Case:
    """One problem and what is done to its random operands.

    Attributes
    ----------
    name
        Words for the table, such as "cancellation".
    text
        The Problem.
    part
        `ONE_TERM`, `ORDINARY` or `ADVERSARIAL`.
    change
        Changes random operands in place; None for those that stay as they are.
    quick
        Whether a short check has it, too.
    """

    name: str
    text: str
    part: str = ADVERSARIAL
    change: Change | None = None
    quick: bool = False


def cases(words: tuple[str, ...] = (), dtype: str = "", quick: bool = False) -> list[Case]:
    """Returns the cases of some operations.

    Parameters
    ----------
    words
        Families, parts of operations' names, or patterns such as "linalg.*"; none for all.
    dtype
        Short name of the only dtype, or an empty string.
    quick
        Only those that a short check has.
    """
    import_operations()
    found = []
    for family, make in FAMILIES.items():
        for short in FORMATS:
            for case in make(short):
                operation = case.text.partition(" ")[0]
                named = not words or any(w == family or w in operation or fnmatchcase(operation, w) for w in words)
                if named and dtype in ("", case.text.split()[1]) and (case.quick or not quick):
                    found.append(case)
    return list(dict.fromkeys(found))


# What is done to operands ----------------------------------------------------------------------------------------------


def _floats(problem: Problem, arrays: list[Array]) -> Iterator[tuple[str, Array]]:
    for o, array in zip(problem.operands, arrays, strict=True):
        if not o.role.startswith("out") and (o.dtype.kind in "fc" or o.dtype.name == "bfloat16"):
            yield o.role, array


def _one_of_each(index: int) -> Change:
    """Leaves one element in each row of an operand, so that a sum has one term; real ones from 1 to 2, none subnormal."""

    def change(problem: Problem, arrays: list[Array], rng: np.random.Generator) -> None:
        for _, each in _floats(problem, arrays):
            if each.dtype.kind != "c":
                each[...] = (np.sign(each) * (1 + rng.random(each.shape))).astype(each.dtype)
        array = arrays[index]
        lead = 1 if array.ndim > 2 and problem.family == "conv" else array.ndim - 1
        rows = array.reshape(*array.shape[:lead], -1)  # a view: operands of these cases are contiguous
        kept = rng.integers(0, rows.shape[-1], rows.shape[:-1])[..., None]
        values = np.take_along_axis(rows, kept, -1)
        rows[...] = 0
        np.put_along_axis(rows, kept, values, -1)

    return change


def _cancelled(first: int, second: int) -> Change:
    """Makes of the second half of the terms almost the negative of the first; the operands' axes of terms are given."""

    def change(problem: Problem, arrays: list[Array], rng: np.random.Generator) -> None:
        a, b = (np.moveaxis(x, axis, 0) for x, axis in zip(arrays[:2], (first, second), strict=True))
        half = len(a) // 2
        near = 1 + CANCELLING * rng.standard_normal(a[:half].shape)
        a[half : 2 * half] = (a[:half] * near).astype(a.dtype)
        b[half : 2 * half] = -b[:half]

    return change


def _powers(rng: np.random.Generator, spread: int, shape: tuple[int, ...]) -> Array:
    return 2.0 ** rng.integers(-spread, spread + 1, shape)


def _graded(spread: int) -> Change:
    """Multiplies every element by a power of two."""

    def change(problem: Problem, arrays: list[Array], rng: np.random.Generator) -> None:
        for _, array in _floats(problem, arrays):
            array[...] = (array * _powers(rng, spread, array.shape)).astype(array.dtype)

    return change


def _scaled(power: int, roles: str = "") -> Change:
    """Multiplies operands by a power of two."""

    def change(problem: Problem, arrays: list[Array], rng: np.random.Generator) -> None:
        for role, array in _floats(problem, arrays):
            if not roles or role in roles:
                array *= array.dtype.type(2.0**power)

    return change


def _graded_matrix(spread: int) -> Change:
    """Multiplies rows and columns of a matrix by powers of two, the same ones: what is Hermitian stays so."""

    def change(problem: Problem, arrays: list[Array], rng: np.random.Generator) -> None:
        a = arrays[problem.index("a") or 0]
        powers = _powers(rng, spread, (max(a.shape[-2:]),))
        a[...] = (a * powers[: a.shape[-2], None] * powers[: a.shape[-1]]).astype(a.dtype)

    return change


def _nearly_singular(problem: Problem, arrays: list[Array], rng: np.random.Generator) -> None:
    """Makes a matrix of singular values from 1 down to some roundings; positive definite where a factor needs that."""
    a = arrays[problem.index("a") or 0]
    m, n = a.shape[-2:]
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    stored = _format(a).stored
    # A matrix of rounded elements must still have a Cholesky factor: rounding is what results are measured by.
    least = 2.0 ** -(stored // 3 if problem.op == "linalg.cholesky" else stored - 5)

    def orthonormal(rows: int) -> Array:
        x: Array = rng.standard_normal((rows, min(m, n))).astype(wide)
        if wide is np.complex128:
            x += 1j * rng.standard_normal(x.shape)
        return np.linalg.qr(x)[0]

    left = orthonormal(m)
    right = left if problem.op.startswith(("linalg.cholesky", "linalg.eigh", "linalg.eigvalsh", "linalg.ldl")) else orthonormal(n)
    a[...] = ((left * np.geomspace(1, least, min(m, n))) @ right.conj().T).astype(a.dtype)


def _format(array: Array) -> Format:
    from ..problems import short

    return FORMATS[short(array.dtype)]


def _far_from_zero(problem: Problem, arrays: list[Array], rng: np.random.Generator) -> None:
    """Adds to the first operand a number far above its variance."""
    arrays[0][...] = (arrays[0] + 64).astype(arrays[0].dtype)


def _decaying(problem: Problem, arrays: list[Array], rng: np.random.Generator) -> None:
    """Multiplies the elements along the last axis by powers of two from 1 down to two to the -20th."""
    array = arrays[0]
    array[...] = (array * 2.0 ** -np.linspace(0, 20, array.shape[-1]).round()).astype(array.dtype)


# Cases of the families ---------------------------------------------------------------------------------------------------


def _extremes(text: str, format: Format, terms: int, roles: str = "") -> Iterator[Case]:
    """Products of two operands near the ends of the range; not of formats whose range is as narrow as float16's."""
    if format.largest > 100:
        above = (format.largest - 6 - terms.bit_length()) // 2
        yield Case("near overflow", text, change=_scaled(above, roles))
        yield Case("near underflow", text, change=_scaled((format.least + format.sums + 8) // 2, roles))


def products(d: str) -> Iterator[Case]:
    format = FORMATS[d]
    square, column, small = f"matmul {d} 64x256 256x64", f"matmul {d} 256x256 256", f"matmul {d} 16x16 16x16"
    few, batch, dot = f"matmul {d} 4x512 512x256", f"matmul {d} 40x24x24 40x24x24", f"matmul {d} 1000 1000"
    for text, terms in ((square, 256), (column, 256), (small, 16), (few, 512), (batch, 24), (dot, 1000)):
        yield Case("sums of one term", text, ONE_TERM, _one_of_each(0), text in (square, dot))
        yield Case(f"sums of {terms} terms", text, ORDINARY, quick=text in (square, dot))
    yield Case("cancellation", square, change=_cancelled(-1, -2), quick=True)
    yield Case("cancellation", dot, change=_cancelled(-1, -2))
    yield Case("graded magnitudes", square, change=_graded(2 if d == "f16" else 10))
    yield from _extremes(square, format, 256)
    yield from _extremes(dot, format, 1000)
    for text, terms in ((f"matmul {d} 16x20000 20000x16", 20000), (f"matmul {d} 64x20000 20000", 20000),
                        (f"matmul {d} 20000x64:F 64", 64), (f"matmul {d} 200000 200000", 200000)):  # fmt: skip
        yield Case(f"sums of {terms} terms", text)


def linear(d: str) -> Iterator[Case]:
    if d in COMPLEX:
        return
    text = f"linear {d} 48x256 64x256 64"
    yield Case("sums of one term", f"linear {d} 48x256 64x256", ONE_TERM, _one_of_each(0), True)
    yield Case("sums of 256 terms", text, ORDINARY)
    yield Case("sums of 256 terms", f"{text} activation=relu", ORDINARY, quick=True)
    yield Case("sums of 512 terms", f"linear {d} 1x512 256x512 256 activation=relu", ORDINARY)
    yield Case("cancellation", f"linear {d} 48x256 64x256", change=_cancelled(-1, -2))
    yield Case("graded magnitudes", text, change=_graded(2 if d == "f16" else 10))
    yield from _extremes(f"linear {d} 48x256 64x256", FORMATS[d], 256)
    yield Case("sums of 8000 terms", f"linear {d} 16x8000 32x8000 32")
    yield Case("sums of 512 terms", f"linear {d} 1x512 256x512 256", ORDINARY)


def convolutions(d: str) -> Iterator[Case]:
    if d in COMPLEX:
        return
    text = f"conv {d} 1x32x14x14 48x32x3x3 padding=1x1"
    yield Case("sums of one term", text, ONE_TERM, _one_of_each(1), True)
    yield Case("sums of 288 terms", text, ORDINARY, quick=True)
    for shape, terms in (
        ("2x16x9x9 24x16x3x3 24 padding=1x1 last", 144), ("1x3x32x32 16x3x7x7 stride=2x2 padding=3x3", 147),
        ("1x64x12x12 96x64x1x1", 64), ("1x24x16x16 24x1x3x3 padding=1x1 groups=24", 9), ("2x12x64 20x12x9 padding=4", 108),
        ("1x8x6x9x9 12x8x3x3x3 padding=1x1x1", 216), ("1x16x12x12 24x16x5x5 padding=2x2", 400),
    ):  # fmt: skip
        yield Case(f"sums of {terms} terms", f"conv {d} {shape}", ORDINARY)
    yield Case("cancellation", text, change=_cancelled(1, 1), quick=True)
    yield Case("graded magnitudes", text, change=_graded(2 if d == "f16" else 10))
    yield Case("sums of 4608 terms", f"conv {d} 1x512x7x7 16x512x3x3 padding=1x1")
    yield from _extremes(text, FORMATS[d], 288)
    if d in REAL:
        yield Case("sums of 128 terms", f"conv_transpose {d} 1x32x9x9 32x24x4x4 stride=2x2 padding=1x1", ORDINARY, quick=True)
        rest = "stride=1x1 padding=1x1 groups=1"
        yield Case("sums of 432 terms", f"conv_grad_input {d} 48x32x3x3 1x48x14x14 {rest} result=1x32x14x14", ORDINARY)
        yield Case("sums of 784 terms", f"conv_grad_weight {d} 4x32x14x14 4x48x14x14 {rest} result=48x32x3x3", ORDINARY)


def algebra(d: str) -> Iterator[Case]:
    if d in HALVES:
        return
    format = FORMATS[d]
    far = 90 if format is _F32 else 400
    for op, sizes in {
        "linalg.cholesky": "{n}x{n}", "linalg.lu_factor": "{n}x{n}", "linalg.inv": "{n}x{n}", "linalg.solve": "{n}x{n} {n}x8",
        "linalg.qr": "{m}x{n}", "linalg.eigh": "{n}x{n}", "linalg.eigvalsh": "{n}x{n}", "linalg.eig": "{n}x{n}",
        "linalg.eigvals": "{n}x{n}", "linalg.svd": "{m}x{n}", "linalg.svdvals": "{m}x{n}", "linalg.lstsq": "{m}x{n} {m}x4",
        "cholesky_solve": "{n}x8 {n}x{n}", "cholesky_inverse": "{n}x{n}", "linalg.solve_triangular": "{n}x{n} {n}x8 upper=True",
        "linalg.lu_solve": "{n}x{n} {n} {n}x8", "linalg.ldl_factor": "{n}x{n}", "linalg.ldl_solve": "{n}x{n} {n} {n}x8",
        "linalg.householder_product": "{m}x{n} {n}",
    }.items():  # fmt: skip
        text, large = (f"{op} {d} {sizes.format(n=n, m=3 * n // 2)}" for n in (48, 160))
        yield Case("order 48", text, ORDINARY, quick=True)
        yield Case("order 160", large, ORDINARY)
        if "{n}x{n} {n}" not in sizes:
            yield Case("order 8, a batch", f"{op} {d} {_batched(sizes)}", ORDINARY)
        yield Case("near overflow", text, change=_scaled(far, "a"))
        yield Case("near underflow", text, change=_scaled(-far, "a"))
        if op not in ("linalg.lu_solve", "linalg.ldl_solve", "cholesky_solve", "cholesky_inverse", "linalg.householder_product"):
            yield Case("graded magnitudes", text, change=_graded_matrix(8))
        if op in ("linalg.lu_factor", "linalg.solve", "linalg.inv", "linalg.qr", "linalg.svd", "linalg.svdvals", "linalg.lstsq",
                  "linalg.eigh", "linalg.eigvalsh", "linalg.cholesky"):  # fmt: skip
            yield Case("ill conditioned", text, change=_nearly_singular)


def _batched(sizes: str) -> str:
    words = sizes.format(n=8, m=12).split()
    return " ".join(word if "=" in word else f"20x{word}" for word in words)


def transforms(d: str) -> Iterator[Case]:
    if d in HALVES:
        return
    names = ("fft.fft {d} 4x{n}", "fft.irfft {d} 4x{h} n={n}") if d in COMPLEX else ("fft.rfft {d} 4x{n}", "fft.dct {d} 4x{n}")
    for name in names:

        def text(n: int, name: str = name) -> str:
            return name.format(d=d, n=n, h=n // 2 + 1)

        yield Case("length 1024", text(1024), ORDINARY, quick=True)
        yield Case("length 360", text(360), ORDINARY)
        yield Case("length 2310", text(2310), ORDINARY)
        for prime in PRIMES:
            yield Case(f"length {prime}, a prime", text(prime), quick=prime == PRIMES[0])
        yield Case("length 1031 x 4, a large factor", text(4124))
        yield Case("length 262144", text(1 << 18))
        yield Case("graded magnitudes", text(1024), change=_decaying)
        yield Case("cancellation", text(1024), change=_far_from_zero)
        far = 80 if FORMATS[d] is _F32 else 800
        yield Case("near overflow", text(1024), change=_scaled(far))
        yield Case("near underflow", text(1024), change=_scaled(-far))
    if d in COMPLEX:
        yield Case("shape 48 x 40", f"fft.fftn {d} 48x40", ORDINARY)
        yield Case("shape 16 x 15 x 14", f"fft.fftn {d} 16x15x14", ORDINARY)


def layers(d: str) -> Iterator[Case]:
    if d in COMPLEX:
        return
    for op in ("relu", "gelu", "silu", "tanh", "sigmoid"):
        yield Case("ordinary", f"{op} {d} 64x257", ORDINARY, quick=True)
        yield Case("large arguments", f"{op} {d} 64x257", change=_scaled(3))
        if d in REAL:
            yield Case("ordinary", f"nn.grad.{op}_input {d} 64x257 64x257", ORDINARY)
            yield Case("large arguments", f"nn.grad.{op}_input {d} 64x257 64x257", change=_scaled(3))
    for op in ELEMENTARY:
        # Exponentials of larger numbers are infinite in float16.
        narrow = d == "f16" and op in ("exp", "expm1")
        yield Case("ordinary", f"{op} {d} 64x257", ORDINARY, quick=True)
        yield Case("large arguments", f"{op} {d} 64x257", change=_scaled(1 if narrow else 3))
    for op in ("softmax", "log_softmax"):
        yield Case("sums of 257 terms", f"{op} {d} 64x257 dim=-1", ORDINARY, quick=True)
        yield Case("large arguments", f"{op} {d} 64x257 dim=-1", change=_scaled(4))
        yield Case("sums of 20000 terms", f"{op} {d} 4x20000 dim=-1")
    for op, rest in (("layer_norm", "32x257 normalized_shape=(257,)"), ("rms_norm", "32x257 normalized_shape=(257,)"),
                     ("batch_norm", "4x16x13x13 16 16"), ("batch_norm", "4x16x13x13 16 16 training=True")):  # fmt: skip
        yield Case("ordinary", f"{op} {d} {rest}", ORDINARY, quick=True)
        yield Case("cancellation", f"{op} {d} {rest}", change=_far_from_zero)
    for op in ("layer_norm", "rms_norm"):
        yield Case("sums of 20000 terms", f"{op} {d} 4x20000 normalized_shape=(20000,)")
    if d in REAL:
        yield Case("sums of 9 terms", f"avg_pool2d {d} 1x16x24x24 kernel_size=3x3", ORDINARY, quick=True)
        yield Case("sums of 400 terms", f"avg_pool2d {d} 1x16x40x40 kernel_size=20x20")
        yield Case("ordinary", f"max_pool2d {d} 1x16x24x24 kernel_size=3x3", ORDINARY)


def attention(d: str) -> Iterator[Case]:
    if d in COMPLEX:
        return
    text = f"scaled_dot_product_attention {d} 1x2x65x32 1x2x130x32 1x2x130x32"
    yield Case("130 keys", text, ORDINARY, quick=True)
    yield Case("large arguments", text, change=_scaled(2))
    yield Case("4000 keys", f"scaled_dot_product_attention {d} 1x1x16x64 1x1x4000x64 1x1x4000x64")


def recurrent(d: str) -> Iterator[Case]:
    if d not in REAL:
        return
    for mode in ("lstm", "gru", "rnn_tanh"):
        yield Case("6 steps", f"{mode} {d} 6x4x32 hidden=32", ORDINARY, quick=True)
        yield Case("100 steps", f"{mode} {d} 100x2x24 hidden=24")


FAMILIES: dict[str, Callable[[str], Iterator[Case]]] = {
    "matmul": products, "linear": linear, "conv": convolutions, "linalg": algebra, "fft": transforms, "neural": layers,
    "attention": attention, "rnn": recurrent,
}  # fmt: skip
