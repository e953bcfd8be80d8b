"""Convolutions by cuDNN in three dimensions, in groups, and transposed."""

from __future__ import annotations

from typing import Any

import pytest

import backline
from backline import switches
from backline.nn import functional
from gpu.arrays import error, normal, wide
from gpu.convolutions import CLOSE, IEEE, OPS, ROUNDED, Convolution, Size, anew

CASES: tuple[tuple[str, str, tuple[int, ...], tuple[int, ...], bool, dict[str, Any]], ...] = (
    ("volume", "float32", (2, 8, 7, 9, 8), (16, 8, 3, 3, 3), False, {"padding": 1}),
    ("volume, strided", "float32", (2, 8, 9, 10, 11), (16, 8, 3, 1, 3), False, {"stride": (2, 1, 2), "padding": (1, 0, 1)}),
    ("volume", "float16", (2, 16, 6, 8, 8), (16, 16, 3, 3, 3), True, {"padding": 1}),
    ("volume", "bfloat16", (2, 16, 6, 8, 8), (16, 16, 1, 3, 3), False, {"padding": (0, 1, 1)}),
    ("4 groups", "float32", (4, 32, 14, 14), (64, 8, 3, 3), False, {"padding": 1, "groups": 4}),
    ("4 groups", "float16", (4, 32, 14, 14), (64, 8, 3, 3), True, {"padding": 1, "groups": 4, "stride": 2}),
    ("2 groups, line", "float32", (4, 16, 50), (32, 8, 5), False, {"padding": 2, "groups": 2}),
)


def by_cudnn(choice: Any) -> bool:
    """Tells whether cuDNN ran, or an erratum kept it out."""
    return choice.library == "cudnn" or any(
        each.library == "cudnn" and "erratum" in each.reason.lower() for each in choice.candidates
    )


@pytest.mark.gpu(row="CONV-9")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_volumes_and_groups(row: Any, xp: Any, case: tuple[Any, ...]) -> None:
    row.expect("cuDNN runs them, unless an erratum names its version, forward and both gradients; near float64 in either case")
    name, dtype, shape, weight, last, given = case
    made = Convolution(xp, shape, weight, dtype, last, **given)
    for op in OPS:
        with anew(IEEE):
            found = made.error(op)
            choice = backline.explain()
        row.observe(found, f"{name} {dtype} {op}: {choice.chosen.key}")
        assert found < ROUNDED.get(dtype, CLOSE), op
        assert by_cudnn(choice), choice.candidates


@pytest.mark.gpu(row="CONV-9")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed(row: Any, xp: Any, size: Size, rank: int, dtype: str) -> None:
    row.expect("transposed convolutions, in groups and with output_padding, by cuDNN")
    n = size(12, 6)
    x, w = normal((2, 16, *(n, n - 1, n - 2)[:rank]), dtype, 1), normal((16, 8, *(3,) * rank), dtype, 2)
    given: dict[str, Any] = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}
    function = getattr(functional, f"conv_transpose{rank}d")
    with switches.scope({"only": ("numpy",)}):
        expected = function(wide(x), wide(w), **given)
    with anew(IEEE):
        found = error(function(xp.asarray(x), xp.asarray(w), **given), expected)
        choice = backline.explain()
    row.observe(found, f"{rank}-D {dtype}: {choice.chosen.key}")
    assert found < ROUNDED.get(dtype, CLOSE) and by_cudnn(choice)
