"""Texts that describe a Problem, and what is said of those that do not."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest

from backline.errors import BackendUnavailable, BadType, BadValue
from backline.problems import Problem
from backline.problems.op_registry import operations

GOOD = [
    "matmul f32 1024x1024 1024x1024",
    "matmul f64 64x32:F 32x16:X",
    "matmul f32 5x64x32 32x16 out",
    "matmul c128 64x32 32x16:F out:F",
    "matmul bf16 64x64 64x64",
    "matmul f32 64x32 32x16:F 64x16 alpha=0.5 beta=2.0",
    "matmul f32 3x64x32 3x32x16 3x64x16 alpha=1 beta=1",
    "matmul c64 1x9 9x1 conj=True",
    "linalg.cholesky f64 512x512:F upper=True",
    "linalg.inv f32 100x512x512",
    "linalg.eigh f64 512x512 UPLO=U",
    "linalg.svdvals f64 512x20 driver=gesvd",
    "linalg.qr c64 40x20 mode=complete",
    "linalg.solve f64 40x40 40 left=True vector=True",
    "cholesky_inverse f64 30x30:F",
]


@pytest.mark.parametrize("text", GOOD)
def test_the_key_of_a_problem_reads_as_that_problem(text: str) -> None:
    assert Problem.parse(text).key == Problem.parse(Problem.parse(text).key).key


SCALED = ["matmul f32 64x32 32x16 64x16 alpha=0 beta=0.5", "matmul f32 64x32 32x16 64x16 alpha=1 beta=0"]
PACKED = ["matmul f32 16x64 64x32:F 16x32:X alpha=1 beta=1 packed=True", "matmul f32 16x64 64x32:F packed=True"]


@pytest.mark.parametrize("text", GOOD[:5] + SCALED + PACKED)
def test_plain_texts_are_keys(text: str) -> None:
    assert Problem.parse(text).key == text


def test_a_product_with_beta_zero_is_classed_as_what_adds_nothing() -> None:
    classes = [Problem.parse(f"matmul f32 64x32 32x16 64x16 alpha=1 beta={beta}").shape_class() for beta in (0, 0.0, 1)]
    assert classes == ["square", "square", "square added"]


def test_it_is_the_problem_of_the_call() -> None:
    a, b = np.ones((6, 4)), np.ones((4, 5), order="F")
    assert Problem.parse("matmul f64 6x4 4x5:F") == operations["matmul"].build(a, b)
    assert Problem.parse("mv float64 6x4 4") == operations["mv"].build(a, np.ones(4))
    pivots = np.ones(4, np.int32)
    assert Problem.parse("linalg.lu_solve f64 4x4 4 4x5") == operations["linalg.lu_solve"].build(a[:4], pivots, np.ones((4, 5)))


def test_huge_sizes_take_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert Problem.parse("matmul f64 3000000x3000000 3000000x3000000").bytes > 1 << 46
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("matmull f32 3x3 3x3", "'matmull'"),
        ("matmul", "no dtype"),
        ("matmul f32", "no shape"),
        ("matmul f33 3x3 3x3", "'f33'"),
        ("matmul 3x3 3x3", "'3x3' is not a dtype"),
        ("matmul f32 3xx3 3x3", "'3xx3'"),
        ("matmul f32 3x-3 3x3", "'3x-3'"),
        ("matmul f32 3x3:Q 3x3", "'Q' in '3x3:Q'"),
        ("matmul f32 3x3: 3x3", "'' in '3x3:'"),
        ("matmul f32 3x4 3x4", "do not fit"),
        ("matmul f32 3x3", "matmul"),
        ("matmul f32 3x3 3x3 speed=9", "speed"),
        ("matmul f32 3x3 3x3 9=9", "'9=9'"),
        ("matmul f32 99999999999x99999999999 3x3", "99999999999x99999999999"),
        ("linalg.tensorsolve f64 2x3x6 2x3", "made of other operations"),
        ("linalg.inv f64 3x4", "inv"),
        ("linalg.inv f64 3x3 out", "'out'"),
        ("linalg.qr f64 3x3 mode=fast", "fast"),
        ("linalg.svd f64 scalar", "svd"),
        ("linalg.inv i32 3x3", "int32"),
    ],
)
def test_a_bad_text_is_refused_and_the_word_named(text: str, word: str) -> None:
    with pytest.raises((BadValue, BadType)) as caught:
        Problem.parse(text)
    assert word in str(caught.value)


@pytest.mark.parametrize("name", sorted(operations))
@pytest.mark.parametrize("shapes", ["scalar", "0x3", "3x3 3x3 3x3 3x3 3x3", "1x1x1x1x1", "7"])
def test_no_shape_of_no_operation_breaks_it(name: str, shapes: str) -> None:
    found: Any
    try:
        found = Problem.parse(f"{name} f64 {shapes}")
    except (BadValue, BadType, BackendUnavailable) as error:
        assert str(error)
    else:
        assert found.key


@pytest.mark.parametrize("steps", ["stride=1x3 output_padding=0x1 padding=0x2", "stride=2x2 padding=0x10"])
def test_sizes_that_begin_with_0_are_no_hexadecimal_numbers(steps: str) -> None:
    key = f"conv_transpose f32 1x5x9x40 5x1x3x5 {steps}"
    assert Problem.parse(key).key == key
