"""grouped_mm against float64: rows, columns and terms in groups, groups without anything, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline.errors import BadType, BadValue
from backline.nn.functional import grouped_mm
from grouped import ACCURACY, agree, reference
from support import clean, dtype_of, rng, seed

pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures

ENDS = [[2, 5, 9], [0, 9, 9], [0, 0, 0], [3, 3, 7], [9, 9, 9]]


SHAPES = {"rows": ((9, 4), (3, 4, 5)), "columns": ((3, 6, 4), (4, 9)), "terms": ((6, 9), (9, 5))}


@pytest.mark.parametrize("dtype", ACCURACY)
@pytest.mark.parametrize("form", SHAPES)
def test_groups_agree_with_float64(form: str, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for ends in ENDS:
        a, b = (rng.standard_normal(shape).astype(kind) for shape in SHAPES[form])
        turned = np.ascontiguousarray(np.swapaxes(b, -1, -2)).swapaxes(-1, -2)
        for right in (b, turned, b[..., ::-1]):
            agree(grouped_mm(a, right, offs=np.array(ends, np.int32)), form, a, right, ends)


def test_one_product_a_group_without_offsets(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5, 2))
    assert np.allclose(grouped_mm(a, b), a @ b)
    assert backline.explain().problem.op == "matmul"


def test_many_divisions_into_groups_share_one_plan(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((40, 8)), rng.standard_normal((4, 8, 6))
    for _ in range(30):
        ends = np.sort(rng.integers(0, 41, 4))
        assert np.allclose(grouped_mm(a, b, offs=ends), reference("rows", a, b, ends.tolist()))
    choice = backline.explain(grouped_mm, a, b, offs=ends)
    assert choice.problem.op == "nn.functional.grouped_mm" and (choice.library, choice.algorithm) == ("numpy", "composed")


def test_sizes_that_change(rng: np.random.Generator) -> None:
    """Of a few more shapes than it takes until plans are made for sizes in general."""
    for m in range(1, 25):
        a, b = rng.standard_normal((m, 3)), rng.standard_normal((2, 3, m + 1))
        assert np.allclose(grouped_mm(a, b, offs=np.array([m // 2, m])), reference("rows", a, b, [m // 2, m]))


def test_no_groups_and_no_rows() -> None:
    assert grouped_mm(np.ones((3, 2)), np.ones((0, 2, 4)), offs=np.zeros(0, np.int32)).tolist() == np.zeros((3, 4)).tolist()
    assert grouped_mm(np.ones((0, 2)), np.ones((1, 2, 4)), offs=np.zeros(1, np.int32)).shape == (0, 4)
    assert grouped_mm(np.ones((3, 0)), np.ones((0, 4)), offs=np.zeros(2, np.int32)).tolist() == np.zeros((2, 3, 4)).tolist()


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"offs": np.array([3, 2], np.int32)}, BadValue, r"offs\[1\] = 2, after 3"),
    ({"offs": np.array([3, 10], np.int32)}, BadValue, r"offs\[1\] = 10"),
    ({"offs": np.array([-1, 3], np.int32)}, BadValue, r"offs\[0\] = -1"),
    ({"offs": np.array([3.0, 9.0])}, BadType, "int32"),
    ({"offs": np.array([[3, 9]])}, BadType, "one axis"),
    ({"offs": np.array([9])}, BadValue, "for 2 matrices"),
    ({"offs": None}, BadValue, "offs is None"),
    ({"offs": [3, 9]}, BadType, "offs"),
    ({"mat_a": np.ones((9, 3))}, BadValue, "contraction dimension"),
    ({"mat_a": np.ones((2, 9, 4))}, BadValue, "offs is given"),
    ({"mat_a": np.ones((9, 4), np.float32)}, BadType, "one dtype"),
    ({"mat_a": np.ones((9, 4), np.int64), "mat_b": np.ones((2, 4, 5), np.int64)}, BadType, "int64"),
    ({"mat_b": np.ones(4)}, BadValue, "2 axes"),
    ({"bias": np.ones(5)}, BadType, "bias"),
    ({"out_dtype": np.float32}, BadType, "out_dtype"),
]


@pytest.mark.parametrize(("changed", "error", "words"), REFUSED)
def test_what_is_refused(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {"mat_a": np.ones((9, 4)), "mat_b": np.ones((2, 4, 5)), "offs": np.array([3, 9], np.int32)}
    with pytest.raises(error, match=words):
        grouped_mm(**given | changed)
