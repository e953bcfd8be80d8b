"""scaled_mm and int_mm on the CPU against float64 and exact integers, and what they refuse."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import quantized
from backline.errors import BadType, BadValue
from backline.nn.functional import ScalingType, scaled_mm
from backline.problems.op_registry import operations
from support import LAYOUTS, clean, new_seed

pytestmark = pytest.mark.usefixtures("clean")
assert clean

E4M3, E5M2, BF16 = (np.dtype(each) for each in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16))
ONE = np.ones(1, np.float32)
# Half the distance of two neighbours, of a result.
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
EVEN = [lay for lay in LAYOUTS if lay != "misaligned"]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(new_seed())


def wanted(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> tuple[Any, Any]:
    """The result in float64, and how large its terms are together."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    factor = scale_a.astype(np.float64).reshape(-1, 1) * scale_b.astype(np.float64).reshape(1, -1)
    added = 0.0 if bias is None else bias.astype(np.float64)
    return x @ y * factor + added, np.abs(x) @ np.abs(y) * np.abs(factor) + np.abs(added)


def agree(result: Any, reference: Any, size: Any, output: str, terms: int) -> None:
    assert result.dtype.name == output and result.shape == reference.shape
    bound = UNIT[output] * np.abs(reference) + (terms + 4) * 2.0**-23 * size + 2.0**-24
    assert (np.abs(result.astype(np.float64) - reference) <= bound).all()


@pytest.mark.parametrize("output", UNIT)
@pytest.mark.parametrize("kinds", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)], ids=str)
def test_scaled_products_agree_with_float64(kinds: tuple[Any, Any], output: str, rng: np.random.Generator) -> None:
    for m, k, n in ((5, 33, 7), (1, 16, 1), (64, 1, 3), (17, 200, 16)):
        a, b = (rng.standard_normal(s).astype(np.float32).astype(t) for s, t in zip(((m, k), (k, n)), kinds, strict=True))
        bias = rng.standard_normal(n).astype(BF16 if output == "bfloat16" else output)
        for recipe, shapes in (("TensorWise", ((), (1, 1))), ("RowWise", ((m, 1), (1, n)))):
            scales = [np.asarray(rng.random(shape) + 0.1, np.float32) for shape in shapes]
            for added in (None, bias):
                result = scaled_mm(a, b, scales[0], recipe, scales[1], recipe, bias=added, output_dtype=output)
                agree(result, *wanted(a, b, *scales, added), output, k)


@pytest.mark.parametrize("lay", EVEN)
def test_every_layout(lay: str, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((6, 9)).astype(np.float32), rng.standard_normal((9, 4)).astype(np.float32)
    x, y = LAYOUTS[lay](a.astype(E4M3)), LAYOUTS[lay](b.astype(E5M2))
    scale = LAYOUTS[lay](rng.random((6, 1)).astype(np.float32))
    result = scaled_mm(x, y, scale, "RowWise", ONE, "TensorWise", output_dtype=np.float32)
    agree(result, *wanted(x, y, scale, ONE), "float32", 9)
    whole, other = (LAYOUTS[lay](rng.integers(-128, 128, s).astype(np.int8)) for s in ((6, 9), (9, 4)))
    assert np.array_equal(quantized.int_mm(whole, other), whole.astype(np.int64) @ other.astype(np.int64))


def test_members_of_the_enum_and_of_others_are_recipes() -> None:
    import enum

    theirs = enum.Enum("Theirs", ["TensorWise", "RowWise"])
    a = np.eye(3).astype(E4M3)
    for recipe in ("TensorWise", ScalingType.TensorWise, theirs.TensorWise, [ScalingType.TensorWise]):
        assert np.array_equal(scaled_mm(a, a, ONE, recipe, ONE, recipe).astype(float), np.eye(3))  # type: ignore[arg-type]  # an Enum of others
    assert ScalingType.RowWise == "RowWise" and scaled_mm(a, a, ONE, "TensorWise", ONE, "TensorWise").dtype == BF16


def test_values_that_are_no_numbers_show() -> None:
    a = np.array([[1.0, 2.0], [np.nan, 1.0]]).astype(E4M3)
    b = np.array([[np.inf, 1.0], [1.0, 1.0]]).astype(E5M2)
    result = scaled_mm(a, b, ONE, "TensorWise", ONE, "TensorWise", output_dtype=np.float32)
    assert result[0, 0] == np.inf and result[0, 1] == 3 and np.isnan(result[1]).all()


def test_large_and_small_scales_do_not_leave_the_range_before_the_product_does() -> None:
    a = np.full((2, 2), 2.0).astype(E4M3)
    huge, tiny = np.array([1e38], np.float32), np.array([1e-38], np.float32)
    result = scaled_mm(a, a, huge, "TensorWise", tiny, "TensorWise", output_dtype=np.float32)
    assert np.allclose(result, 8.0, rtol=1e-6)


@pytest.mark.parametrize("sizes", [(0, 4, 3), (5, 4, 0), (5, 0, 3), (0, 0, 0)])
def test_products_without_terms(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b, bias = np.ones((m, k), E4M3), np.ones((k, n), E4M3), np.full(n, 2, np.float32)
    result = scaled_mm(a, b, ONE, "TensorWise", ONE, "TensorWise", bias=bias, output_dtype="float32")
    assert result.shape == (m, n) and (result == 2).all()
    assert not quantized.int_mm(np.ones((m, k), np.int8), np.ones((k, n), np.int8)).any()


@pytest.mark.parametrize("terms", [1, 1024, 1025, 5000])
def test_integers_are_exact(terms: int, rng: np.random.Generator) -> None:
    a, b = np.full((3, terms), -128, np.int8), np.full((terms, 2), -128, np.int8)
    assert (quantized.int_mm(a, b) == 128 * 128 * terms).all()
    x, y = rng.integers(-128, 128, (7, terms)).astype(np.int8), rng.integers(-128, 128, (terms, 5)).astype(np.int8)
    out = np.empty((5, 7), np.int32).T
    assert quantized.int_mm(x, y, out=out) is out and np.array_equal(out, x.astype(np.int64) @ y.astype(np.int64))


def test_sums_beyond_int32_wrap_around() -> None:
    terms = 1 << 17
    a, b = np.full((1, terms), -128, np.int8), np.full((terms, 1), -128, np.int8)
    assert quantized.int_mm(a, b)[0, 0] == -(2**31)


def test_what_is_chosen_is_explained() -> None:
    a = np.eye(4).astype(E4M3)
    choice = backline.explain(scaled_mm, a, a, ONE, "TensorWise", ONE, "TensorWise")
    assert choice.library == "numpy" and choice.algorithm == "widened" and "float32" in str(choice)


def test_the_rows_check_tells_right_from_wrong() -> None:
    a = np.eye(4).astype(E4M3)
    problem = operations["nn.functional.scaled_mm"].build(a, a, ONE, "TensorWise", ONE, "TensorWise")
    check = operations["nn.functional.scaled_mm"].check
    assert callable(check)
    right = scaled_mm(a, a, ONE, "TensorWise", ONE, "TensorWise")
    assert check(problem, [a, a, ONE, ONE], (right,)) == 0 and check(problem, [a, a, ONE, ONE], (right + right,)) == 1


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"mat_a": np.eye(4, dtype=np.float32)}, BadType, "float8_e4m3fn or float8_e5m2"),
    ({"mat_a": np.ones(4, E4M3)}, BadValue, "must be a matrix"),
    ({"mat_b": np.ones((5, 4), E4M3)}, BadValue, "cannot be multiplied"),
    ({"scale_a": np.ones(1)}, BadType, "float32"),
    ({"scale_a": np.ones(2, np.float32)}, BadValue, "one element"),
    ({"scale_recipe_a": "RowWise"}, BadValue, r"shape \(4, 1\)"),
    ({"scale_recipe_b": "BlockWise1x128"}, BadValue, "blocks"),
    ({"scale_recipe_b": 1}, BadType, "scale_recipe_b"),
    ({"swizzle_a": "SWIZZLE_32_4_4"}, BadType, "swizzle_a"),
    ({"bias": np.ones(4, np.float32)}, BadType, "the result has bfloat16"),
    ({"bias": np.ones(3, BF16)}, BadValue, r"it must be \(4,\)"),
    ({"output_dtype": np.float64}, BadType, "float64"),
    ({"output_dtype": None}, BadType, "None"),
    ({"contraction_dim": (0, 0)}, BadValue, "columns of mat_a"),
    ({"contraction_dim": "k"}, BadType, "tuple of ints"),
    ({"use_fast_accum": 1}, BadType, "use_fast_accum"),
]


@pytest.mark.parametrize(("changed", "error", "words"), REFUSED)
def test_what_is_refused(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    a = np.eye(4).astype(E4M3)
    given: dict[str, Any] = {
        "mat_a": a, "mat_b": a, "scale_a": ONE, "scale_recipe_a": "TensorWise", "scale_b": ONE, "scale_recipe_b": "TensorWise",
    }  # fmt: skip
    with pytest.raises(error, match=words):
        scaled_mm(**given | changed)


def test_what_int_mm_refuses() -> None:
    a = np.ones((4, 4), np.int8)
    for wrong, error in ((a.astype(np.uint8), BadType), (a[0], BadValue), (a[:3], BadValue), (None, BadType)):
        with pytest.raises(error):
            quantized.int_mm(a, wrong)
    out = np.ones((4, 16), np.int8).view(np.int32)
    with pytest.raises(BadValue):
        quantized.int_mm(out.view(np.int8)[:, :4], a, out=out)
    with pytest.raises(BadType):
        quantized.int_mm(a, a, out=np.ones((4, 4), np.int64))
