"""Compiled loops of layers: activations to the ends of the range, normalisation of awkward numbers, and 16-bit floats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from layers import FORMULAS, LAYOUTS, assert_near, by_each, draw, exact, order, wide

import backline
from backline import libraries
from backline.libraries import capability
from backline.libraries.kernels import compiled_loops
from backline.libraries.kernels.shares import even_share
from backline.nn import functional as F
from support import THREADS, algorithms, clean, dtype_of, problem_of, rng, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

OPS = "nn.functional."
HALVES = ("float16", "bfloat16")
TINY = float(np.finfo(np.float32).tiny)


def by_loops(op: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    found = {what: result for what, result in by_each(op, *args, **kwargs) if "kernels" in what}
    assert found, f"no loop for {op}"
    return found


def called(name: str) -> tuple[str, dict[str, Any]]:
    return (f"{OPS}gelu", {"approximate": "tanh"}) if name == "gelu_tanh" else (f"{OPS}{name}", {})


@pytest.mark.parametrize("name", [name for name in FORMULAS if name != "relu"])
def test_activations_have_their_digits_everywhere(name: str) -> None:
    """Relative errors, in the tails too, wherever neither the result nor its exponential is subnormal."""
    size = np.concatenate([np.linspace(0, 14, 7001), np.geomspace(1e-30, 80, 1500)]).astype(np.float32)
    op, keywords = called(name)
    for x in (size, -size):
        wanted = exact(name, x)
        normal = np.abs(wanted) > 64 * TINY
        for what, result in by_loops(op, x, **keywords).items():
            assert_near(result[normal], wanted[normal], "float32", what, 4)
            assert np.abs(result[~normal] - wanted[~normal]).max(initial=0) <= 64 * TINY, what


@pytest.mark.parametrize("name", ("gelu", "gelu_tanh", "silu", "tanh", "sigmoid"))
def test_activations_of_what_is_not_finite(name: str) -> None:
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 3e38, -3e38, 1e-45, -1e-45])
    op, keywords = called(name)
    for dtype in ("float32", "float64", *HALVES):
        with np.errstate(all="ignore"):
            x = np.concatenate([special, np.zeros(30)]).astype(dtype_of(dtype))
        found = dict(by_each(op, x, **keywords))
        wanted = found[next(what for what in found if "numpy" in what)]
        for what, result in found.items():
            if "kernels" in what:
                np.testing.assert_allclose(
                    wide(result), wide(wanted), rtol=1e-2 if dtype in HALVES else 1e-6, atol=1e-37, err_msg=what
                )


@pytest.mark.parametrize("dtype", HALVES)
def test_relu_of_halves_keeps_nan(dtype: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = bits.view(dtype_of(dtype))
    with np.errstate(all="ignore"):  # signalling NaN
        wanted = np.where(np.isnan(wide(x)), np.nan, np.maximum(wide(x), 0))
        for what, result in by_each(f"{OPS}relu", x):
            np.testing.assert_array_equal(wide(result), wanted, err_msg=what)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("stepped", "backwards", "misaligned")])
@pytest.mark.parametrize("dtype", ("float32", *HALVES))
def test_layouts(layout: str, dtype: str, rng: np.random.Generator) -> None:
    x, g = (LAYOUTS[layout](draw(rng, (3, 5, 7, 6), dtype)) for _ in range(2))
    for name in ("gelu", "silu", "tanh", "sigmoid"):
        for what, result in by_loops(OPS + name, x).items():
            assert_near(result, exact(name, x), dtype, what, 4)
            assert order(result) == order(x), what
        found = dict(by_each(f"nn.grad.{name}_input", x, g))
        wanted = found[next(what for what in found if "numpy" in what)]
        for what, result in found.items():
            assert_near(result, wide(wanted), dtype, what, 16, 1.0)
    w, b = draw(rng, (5,), dtype), draw(rng, (5,), dtype)
    variance = np.abs(draw(rng, (5,), dtype)) + dtype_of(dtype).type(0.5)
    assert_near(F.layer_norm(weight=x[0, 0, 0], input=x, normalized_shape=6), wide(F.layer_norm(x, 6, x[0, 0, 0])), dtype, "keywords", 8, 8.0)
    for parameters in ((None, None), (w, None), (None, b), (w, b), (np.repeat(w, 2)[::2], b)):
        found = dict(by_each(f"{OPS}batch_norm", x, w, variance, *parameters))
        wanted = found[next(what for what in found if "numpy" in what)]
        assert any("kernels" in what for what in found)
        for what, result in found.items():
            assert_near(result, wide(wanted), dtype, what, 8, 8.0)
            assert order(result) == order(x), what


@pytest.mark.parametrize("dtype", ("float32", "float64", *HALVES))
@pytest.mark.parametrize("shape", [(4, 3, 5), (2, 3, 70, 60), (1, 4, 9), (5, 1, 33), (3, 40, 2)])
def test_batch_norm_in_training(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    x = draw(rng, shape, dtype) + dtype_of(dtype).type(2)
    w, b = draw(rng, shape[1:2], dtype), draw(rng, shape[1:2], dtype)
    axes, over = (0, *range(2, len(shape))), (-1, *[1] * (len(shape) - 2))
    centred = wide(x) - wide(x).mean(axes, keepdims=True)
    variance = (centred * centred).mean(axes)
    plain = centred / np.sqrt(variance.reshape(over) + 1e-3)
    statistic = "float32" if dtype in HALVES else dtype
    for weight, bias in ((None, None), (w, None), (None, b), (w, b)):
        wanted = plain * (1 if weight is None else wide(w).reshape(over)) + (0 if bias is None else wide(b).reshape(over))
        loops = 0
        for what, (result, mean, spread) in by_each(f"{OPS}batch_norm", x, None, None, weight, bias, training=True, eps=1e-3):
            ulps = 2 if "kernels" in what and dtype != "float64" else 128 if dtype == "float32" else 8
            loops += "kernels" in what
            assert_near(result, wanted, dtype, what, ulps, 8.0)
            assert_near(mean, wide(x).mean(axes), statistic, what, max(ulps, 4), 1.0)
            assert_near(spread, variance, statistic, what, max(ulps, 4), 1.0)
        assert loops


def test_normalisation_of_awkward_numbers(rng: np.random.Generator) -> None:
    """Far from zero, so large that squares overflow, and with what is not finite in some rows: as NumPy in float64."""
    x = rng.standard_normal((12, 3001)).astype(np.float32)
    x[0] += np.float32(1e4)
    x[1] *= np.float32(1e37)
    x[2] *= np.float32(1e-42)
    x[3] = 7
    x[4, 2999], x[5, 0], x[6, 5] = np.nan, np.inf, -np.inf
    x[7, :100] = np.float32(3e38)
    found = dict(by_each(f"{OPS}layer_norm", x, (3001,), eps=0.0))
    wanted = found[next(what for what in found if "numpy" in what)]
    for what, result in by_loops(f"{OPS}layer_norm", x, (3001,), eps=0.0).items():
        assert_near(result, wide(wanted), "float32", what, 2, 1e-3)
    images = x.reshape(1, 12, 3001)
    found = dict(by_each(f"{OPS}batch_norm", images, None, None, training=True, eps=0.0))
    wanted = found[next(what for what in found if "numpy" in what)]
    for what, results in found.items():
        if "kernels" in what:
            for result, other in zip(results, wanted, strict=True):
                assert_near(result, wide(other), "float32", what, 2, 1e-3)


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("width", (1, 15, 33, 40_000))
def test_relu_with_and_without_gaps(dtype: str, width: int, rng: np.random.Generator) -> None:
    """Bits of `where(x <= 0, 0, x)`, and of the gradient in place of the second x, wherever elements lie; NaN is not below 0."""
    x = rng.standard_normal((3, 4, 2 * width)).astype(dtype)
    x.flat[:8] = 0, -0.0, np.nan, np.inf, -np.inf, -np.nan, np.finfo(dtype).smallest_subnormal, -np.finfo(dtype).smallest_subnormal
    g = rng.standard_normal(x.shape).astype(dtype)
    g.flat[:8] = np.nan, np.inf, -np.inf, 3, 4, -0.0, 5, 6
    bits = f"u{x.itemsize}"
    layouts = (np.ascontiguousarray, lambda a: a[..., :width], lambda a: a[..., ::2], lambda a: a.T, lambda a: a[:, ::2, 1:])
    for number, layout in enumerate(layouts):
        here, gradient = layout(x), layout(g)
        for kept, name, given in ((here, "nn.functional.relu", ()), (gradient, "nn.grad.relu_input", (gradient,))):
            wanted = np.where(here <= 0, 0, kept).astype(dtype)
            for what, result in by_loops(name, here, *given).items():
                np.testing.assert_array_equal(result.view(bits), wanted.view(bits), f"{what} {number}")
            dense = compiled_loops._loop(problem_of(name, here, *given)) is compiled_loops.POINTWISE
            assert dense == (here.size == x.size), number


@pytest.mark.parametrize(("size", "formulas", "others"), [(16_383, {1}, {1}), (16_384, {1, 2}, {1}), (32_768, {1, 2}, {1, 2})])
def test_formulas_are_divided_earlier_than_what_takes_less(size: int, formulas: set[int], others: set[int]) -> None:
    x = np.ones(size, np.float32)
    for name, wanted in (("gelu", formulas), ("tanh", formulas), ("relu", others)):
        assert {a.threads for a in algorithms("kernels", problem_of(f"{OPS}{name}", x), 2)} == wanted, name


@pytest.mark.parametrize("name", ("gelu", "silu", "tanh", "sigmoid"))
def test_a_gradient_that_is_not_finite_changes_no_other(name: str, rng: np.random.Generator) -> None:
    """Bits of the others stay, the signs of zeros among them; infinity times a slope of what float has no room for is infinite."""
    x = np.concatenate([np.full(40, 300), np.full(40, -300), rng.standard_normal(20)]).astype(np.float32)
    gradient = -np.ones_like(x)
    slope = partial(getattr(backline.nn.grad, f"{name}_input"), x)
    with backline.use("kernels"):
        alone = slope(gradient)
        gradient[[5, 50]], gradient[[9, 90]] = np.inf, np.nan
        beside = slope(gradient)
    others = np.isfinite(gradient)
    np.testing.assert_array_equal(alone[others].view(np.uint32), beside[others].view(np.uint32))
    assert np.isnan(beside[[9, 90]]).all()
    assert np.isinf(beside[5])


@pytest.mark.parametrize("dtype", ("float32", *HALVES))
@pytest.mark.parametrize("width", (1, 3, 7, 8, 31, 47, 250, 2049))
def test_rows_keep_their_digits(dtype: str, width: int, rng: np.random.Generator) -> None:
    """Rows far from zero, whose first element is far from the others, or that reach to both ends of the range: as in float64."""
    x = rng.standard_normal((9, width))
    x[1] += 1000
    x[2] = 1000
    x[2, width // 2] += 1
    x[3, 0] = 30000
    x[4] *= 6e4 if dtype == "float16" else 3e38
    x[5] *= 6e-5 if dtype == "float16" else 1e-37
    x[6, 0], x[7, -1] = np.inf, np.nan
    eps = 1e-90
    with np.errstate(all="ignore"):
        x = x.astype(dtype_of(dtype))
        w, b = (rng.standard_normal(width).astype(dtype_of(dtype)) for _ in range(2))
        for weight, bias in ((None, None), (w, None), (None, b), (w, b)):
            rows = wide(x)
            apart = rows - rows.mean(1, keepdims=True)
            wanted = apart / np.sqrt((apart * apart).mean(1, keepdims=True) + eps)
            wanted = wanted * (1 if weight is None else wide(weight)) + (0 if bias is None else wide(bias))
            for what, result in by_loops(f"{OPS}layer_norm", x, (width,), weight, bias, eps=eps).items():
                assert_near(result, wanted, dtype, what, 2, 1e-3)


@pytest.mark.parametrize("dtype", ("float32", *HALVES))
@pytest.mark.parametrize("sign", (1, -1))
def test_channels_keep_their_digits(dtype: str, sign: int, rng: np.random.Generator) -> None:
    """Weights of both signs, with numbers near both ends of the range, a variance of 0, and a mean that is infinite."""
    x = rng.standard_normal((3, 9, 5, 7))
    mean, variance, weight, bias = np.zeros(9), np.ones(9), sign * np.linspace(1, 9, 9), np.zeros(9)
    if dtype != "float16":
        x[:, 1] *= 1e-22
        x[:, 2] *= 1e-20
        variance[2] = 1e-38
        x[:, 3], mean[3], weight[3], bias[3] = 2.0**70, 2.0**70, sign * 2e30, 3
        x[:, 4], mean[4], variance[4] = 3e38, -3e38, 1e4
        bias[5:] = rng.standard_normal(4)
    variance[6], mean[6], x[:, 6, 0, :3] = 0, 0.5, 0.5
    mean[7] = np.inf
    weight[8] = 0
    with np.errstate(all="ignore"):
        given = [part.astype(np.float32) for part in (mean, variance, weight, bias)]
        x = x.astype(dtype_of(dtype))
        m, v, w, b = (wide(part).reshape(9, 1, 1) for part in given)
        wanted = (wide(x) - m) / np.sqrt(v) * w + b
        for what, result in by_loops(f"{OPS}batch_norm", x, *given, eps=0.0).items():
            assert_near(result, wanted, dtype, what, 2, 1e-3)
        x[:, 6], x[:, 3] = x[:, 0], 1e25 if dtype != "float16" else 3
        ours = wide(x)
        m, v = ours.mean((0, 2, 3), keepdims=True), ours.var((0, 2, 3), keepdims=True)
        wanted = (ours - m) / np.sqrt(v + 1e-90) * w + b
        for what, (result, *_) in by_loops(f"{OPS}batch_norm", x, None, None, *given[2:], training=True, eps=1e-90).items():
            assert_near(result, wanted, dtype, what, 2, 1e-3)


@pytest.mark.parametrize("dtype", HALVES)
def test_softmax_of_halves(dtype: str, rng: np.random.Generator) -> None:
    for shape, dim in (((7, 33), 1), ((7, 33), 0), ((3, 5, 70), 1), ((300, 257), -1), ((2, 40001), 1), ((40, 3, 2), 0)):
        x = draw(rng, shape, dtype, 5)
        x.reshape(-1)[3] = np.inf
        for op in ("softmax", "log_softmax"):
            found = dict(by_each(OPS + op, x, dim))
            wanted = found[next(what for what in found if "numpy" in what)]
            for what, result in found.items():
                if "kernels" in what:
                    assert_near(result, wide(wanted), dtype, what, 2, 1e-3)
            assert any("kernels" in what for what in found)


@pytest.mark.parametrize("dtype", ("float32", *HALVES))
@pytest.mark.parametrize("activation", (None, "relu", "gelu"))
def test_linear_into_any_memory(activation: str | None, dtype: str, rng: np.random.Generator) -> None:
    """The result of the steps after a product comes where `out` is, whatever its layout; batches that are no single matrix too."""
    x, w, b = draw(rng, (4, 50, 24), dtype, 0.5)[:, ::2], draw(rng, (40, 24), dtype, 0.5), draw(rng, (80,), dtype)[::2]
    r = draw(rng, (4, 25, 40), dtype)
    wanted = wide(x) @ wide(w).T + wide(b) + wide(r)
    wanted = wanted if activation is None else exact(activation, wanted)
    for form in (None, np.zeros_like, lambda a: np.zeros_like(a, order="F"), lambda a: np.zeros((4, 25, 80), a.dtype)[..., ::2]):
        out = None if form is None else form(r)
        for what, result in by_each(f"{OPS}linear", x, w, b, activation=activation, residual=r, out=out):
            assert_near(result, wanted, dtype, what, 26 if dtype == "float32" else 2, 8.0 if dtype == "float32" else 0.25)
            assert out is None or result is out


@pytest.mark.parametrize("dtype", HALVES)
def test_mixed_products(dtype: str, rng: np.random.Generator) -> None:
    """Products of 16-bit floats in every layout and with every sum, added up in float32 and rounded once."""
    a, b, c = (draw(rng, shape, dtype, 0.5) for shape in ((70, 300), (300, 90), (70, 90)))
    forms: list[Any] = [
        np.asfortranarray,
        lambda x: x.copy(),
        lambda x: np.repeat(x, 2, 1)[:, ::2],
        lambda x: x[::-1].copy()[::-1],
    ]
    wanted = wide(a) @ wide(b)
    for form in forms:
        for other in forms:
            for what, result in by_each("matmul", form(a), other(b)):
                assert_near(result, wanted, dtype, what, 1.5, 0.25)
    for alpha, beta in ((1, 1), (0.5, -2), (3, 0)):
        for what, result in by_each("addmm", c, a, b, alpha=alpha, beta=beta):
            assert_near(result, alpha * wanted + beta * wide(c), dtype, what, 1.5, 0.25)
    if libraries.get("mkl").available():
        names = {x.name for x in algorithms("mkl", problem_of("matmul", a, b), THREADS)}
        assert "gemm_mixed" in names and "gemm_f32" in names
    stack = draw(rng, (5, 70, 300), dtype, 0.5)
    for what, result in by_each("matmul", stack, b):
        assert_near(result, wide(stack) @ wide(b), dtype, what, 1.5, 0.25)
    big, huge = draw(rng, (600, 300), dtype, 0.5), draw(rng, (300, 700), dtype, 0.5)
    for what, result in by_each("matmul", big, huge):
        assert_near(result, wide(big) @ wide(huge), dtype, what, 1.5, 0.25)


def test_shares_hold_every_unit() -> None:
    for units in (1, 2, 63, 64, 65, 4095, 4096, 16384, 16385, 100000):
        for length in (1, 3, 700, 50000):
            share = even_share(units, length, 1 << 13)
            assert 1 <= share <= units and (share * length <= 1 << 13 or share == 1)
    assert F.sigmoid(np.zeros(40000, np.float32)).sum() == 20000


@pytest.mark.parametrize("dtype", HALVES)
def test_activations_of_every_16_bit_float(dtype: str) -> None:
    """As the exact results rounded, but for a small part of a unit in the last place by which the formulas are off before."""
    with np.errstate(all="ignore"):  # signalling NaN
        x = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(dtype))
        finite, nan = np.isfinite(wide(x)), np.isnan(wide(x))
        for name in ("gelu", "gelu_tanh", "silu", "tanh", "sigmoid"):
            op, keywords = called(name)
            wanted = exact(name, x[finite])
            normal = np.abs(wanted) > (64 * TINY if dtype == "bfloat16" else 0)
            for what, result in by_loops(op, x, **keywords).items():
                assert_near(result[finite][normal], wanted[normal], dtype, what, 0.55)
                assert np.abs(wide(result[finite][~normal]) - wanted[~normal]).max(initial=0) <= 64 * TINY, what
                assert np.isnan(wide(result[nan])).all(), what


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.cpu_kernel
def test_16_bit_floats_have_the_same_bits_on_every_processor(dtype: str) -> None:
    """AVX-512 with its instruction for bfloat16, which takes subnormal numbers for 0, or without it, and AVX2; NaN is NaN."""
    if not capability.allows("avx512"):
        pytest.skip("this processor has no avx512")
    with np.errstate(all="ignore"):
        x = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(dtype))
        base = np.abs(x[:64])
        calls: dict[str, Callable[[], Any]] = {name: partial(getattr(F, name), x) for name in ("gelu", "silu", "tanh", "sigmoid")}
        calls["batch_norm"] = lambda: F.batch_norm(x.reshape(1024, 64), base, np.ones_like(base))
        for name, call in calls.items():
            results = []
            for word in ("avx2", "avx512"):
                with backline.backends.cpu.flags(capability=word), backline.use("kernels", only=True):
                    results.append(call())
            avx2, avx512 = results
            assert np.array_equal(np.isnan(avx2), np.isnan(avx512)), name
            numbers = ~np.isnan(avx2)
            assert np.array_equal(avx2.view(np.uint16)[numbers], avx512.view(np.uint16)[numbers]), name


def _logarithms(given: Any, axis: int) -> Any:
    logarithm = given - given.max(axis, keepdims=True)
    return logarithm - np.log(np.exp(logarithm).sum(axis, keepdims=True))


@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_softmax_of_rows_of_every_length(dtype: str, rng: np.random.Generator) -> None:
    """Ends that overlap what was before, rows shorter than a vector, and what is not finite in them."""
    for width in (*range(2, 71), 127, 128, 129, 200):
        x = draw(rng, (5, width), dtype, 4)
        x[1, width // 2], x[2, -1], x[3, :] = np.nan, -np.inf, 3
        x[4, 0] = 200
        logarithm = _logarithms(wide(x)[[0, 2, 3, 4]], 1)
        for op, wanted in (("softmax", np.exp(logarithm)), ("log_softmax", logarithm)):
            for what, result in by_loops(OPS + op, x, -1).items():
                assert np.isnan(result[1]).all(), what
                largest = np.abs(wanted).max(where=np.isfinite(wanted), initial=1.0)
                assert_near(result[[0, 2, 3, 4]], wanted, dtype, what, 4, largest)


@pytest.mark.parametrize("dtype", ("float32", "float64", *HALVES))
def test_softmax_of_columns_of_every_number(dtype: str, rng: np.random.Generator) -> None:
    """Vectors that overlap the one before, columns fewer than a vector has elements, and what is not finite; those of 16 bits in place."""
    for columns in (*range(2, 71), 127, 128, 129, 200):
        for length in (2, 5, 64, 131):
            x = draw(rng, (length, columns), dtype, 4)
            x[-1, 0], x[0, -1] = -np.inf, 200
            logarithm = _logarithms(x.astype(np.longdouble), 0)
            for op, wanted in (("softmax", np.exp(logarithm)), ("log_softmax", logarithm)):
                largest = np.abs(wanted).max(where=np.isfinite(wanted), initial=1.0)
                for what, result in by_loops(OPS + op, x, 0).items():
                    assert_near(result, wanted, dtype, what, 8, largest)
            x[length // 2, columns // 2], x[:, 0] = np.nan, np.inf
            for what, result in by_loops(OPS + "softmax", x, 0).items():
                assert np.array_equal(np.isnan(result).any(0), np.isnan(x).any(0) | np.isinf(x).all(0)), what


@pytest.mark.parametrize("dtype", ("float32", "float64", *HALVES))
def test_softmax_of_long_columns(dtype: str, rng: np.random.Generator) -> None:
    """Several matrices, and columns that are divided so that fewer than a vector's elements are left over.

    A sum of 20,000 terms has some 280 roundings one after the other: the bound is five times their standard deviation.
    """
    for shape, axis in (((3, 3000, 5), 1), ((20000, 35), 0), ((9000, 3), 0)):
        x = draw(rng, shape, dtype, 4)
        logarithm = _logarithms(x.astype(np.longdouble), axis)
        for op, wanted in (("softmax", np.exp(logarithm)), ("log_softmax", logarithm)):
            for what, result in by_loops(OPS + op, x, axis).items():
                assert_near(result, wanted, dtype, what, 24, np.abs(wanted).max())


@pytest.mark.parametrize("dtype", ("float32", "float64", *HALVES))
def test_running_statistics(dtype: str, rng: np.random.Generator) -> None:
    x, base = draw(rng, (4, 6, 5), dtype), draw(rng, (12,), dtype)
    mean, variance = base[::2].copy(), np.repeat(np.abs(base[1::2]), 2)[::2]
    before = wide(mean), wide(variance)
    F.batch_norm(x, mean, variance, training=True, momentum=0.25)
    assert_near(mean, 0.75 * before[0] + 0.25 * wide(x).mean((0, 2)), dtype, "mean", 2, 1.0)
    assert_near(variance, 0.75 * before[1] + 0.25 * wide(x).var((0, 2)) * 20 / 19, dtype, "variance", 4, 4.0)
