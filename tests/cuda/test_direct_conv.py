"""Convolutions on CUDA arrays without cuDNN: what there is for a Problem, how it is cut into blocks, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.engine import plan_caches
from backline.errors import BadValue
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.cuda.cublas import direct_conv, direct_depthwise
from backline.libraries.cuda.cublas.direct_conv import Block, blocks, direct_algorithms
from backline.nn import functional, grad
from backline.ops.convolution_checks import conv_problem, grad_problem, transpose_problem
from backline.problems.conv_problem import ConvProblem
from support import clean

pytest.importorskip("cudnn")
cublas = pytest.importorskip("nvmath.bindings.cublas")
from fakes.computing import Blas  # noqa: E402  # after importorskip
from fakes.cudnn_machine import Machine, same  # noqa: E402  # after importorskip
from fakes.insert import inserted  # noqa: E402  # after importorskip

pytestmark = pytest.mark.usefixtures("clean")
assert clean

BOUND = {2: 2e-3, 4: 1e-5, 8: 1e-13}
EXACT = {"cudnn.enabled": False, "cudnn.conv.fp32_precision": "ieee"}


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    with inserted(cupy=made.cupy, cublas=Blas(cublas, log=made.log), cudnn=made.cudnn), switches.scope(EXACT):
        yield made


# --- what there is ---------------------------------------------------------------------------------------------------


def conv(dtype: Any = np.float32, groups: int = 1, channels: int = 4, op: str = "conv") -> ConvProblem:
    x, w = np.zeros((2, channels, 6, 6), dtype), np.zeros((channels, channels // groups, 3, 3), dtype)
    none = {"bias": None, "residual": None, "out": None}
    if op == "conv":
        made = conv_problem("conv", 2, {"input": x, "weight": w, **none}, 1, 0, 1, groups, None)
    elif op == "transpose":
        made = transpose_problem("t", 2, {"input": x, "weight": w, **none}, 1, 0, 0, groups, 1, None)
    else:
        made = grad_problem(
            "g", 2, "conv_grad_weight", {"input": x, "grad": np.zeros((2, channels, 4, 4), dtype)}, w.shape, 1, 0, 1, groups
        )
    return replace(made, device="cuda:0")


def names(problem: ConvProblem, tf32: str = "") -> list[str]:
    return [a.name for a in direct_algorithms(problem, tf32) if isinstance(a, Algorithm)]


def test_ways_by_dtype_and_kind() -> None:
    assert names(conv()) == ["im2col_tf32", "im2col"] and names(conv(), "no tf32 here") == ["im2col"]
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float64, np.complex64):
        assert names(conv(dtype)) == ["im2col"]
    assert names(conv(groups=4)) == ["depthwise", "im2col_tf32", "im2col"] and names(conv(groups=2)) == ["im2col_tf32", "im2col"]
    assert names(conv(groups=4, op="transpose")) == ["im2col_tf32", "im2col"]
    for problem, why in (
        (conv(np.int32), "no products of int32"),
        (conv(np.complex128, op="grad"), "conjugated"),
        (conv(">f4"), "byte order"),
    ):
        (found,) = direct_algorithms(problem, "")
        assert isinstance(found, Refusal) and why in found.reason
    assert {a.level for a in direct_algorithms(conv(), "") if isinstance(a, Algorithm)} == {"threads"}


def test_the_switch_of_depthwise_kernels_is_about_ours_too() -> None:
    halves = [a for a in direct_algorithms(conv(np.float16, 32, 32), "") if isinstance(a, Algorithm)]
    assert [a.traits for a in halves] == [("depthwise by us",)] * 2
    for other in (conv(np.float16, 31, 31), conv(np.float32, 32, 32), conv(np.float16, 32, 32, "transpose")):
        assert not any("depthwise by us" in a.traits for a in direct_algorithms(other, "") if isinstance(a, Algorithm))


def test_blocks_hold_as_much_as_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_conv, "COLUMNS", 1000)
    assert blocks(5, (4, 5), 20) == [Block((0, 2), (0, 4), 40), Block((2, 4), (0, 4), 40), Block((4, 5), (0, 4), 20)]
    assert blocks(2, (5, 10), 40) == [
        Block((n, n + 1), rows, 10 * (rows[1] - rows[0])) for n in (0, 1) for rows in ((0, 2), (2, 4), (4, 5))
    ]
    assert [b.rows for b in blocks(1, (3, 100), 100)] == [(0, 1), (1, 2), (2, 3)], "one row at the least"


# --- what comes out --------------------------------------------------------------------------------------------------


def off(found: Any, wanted: Any) -> float:
    return float(np.abs(found.host.astype(float) - wanted).max() / np.abs(wanted).max())


def wide(array: Any) -> Any:
    return array.host.astype(np.float64)


GIVEN = [
    {},
    {"stride": 2, "padding": 1},
    {"dilation": 2, "padding": "same"},
    {"groups": 2},
    {"groups": 4, "stride": (2, 1, 2), "padding": 1},
]


@pytest.mark.parametrize("columns", [2000, 256 << 20], ids=["cut", "whole"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_convolutions_and_gradients(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, columns: int, rank: int, given: dict[str, Any]
) -> None:
    monkeypatch.setattr(direct_conv, "COLUMNS", columns)
    given = {name: value[:rank] if isinstance(value, tuple) else value for name, value in given.items()}
    groups, last = given.get("groups", 1), rank == 2
    f, by_input, by_weight, back = (getattr(m, f"{n}{rank}d{e}") for m, n, e in (
        (functional, "conv", ""), (grad, "conv", "_input"), (grad, "conv", "_weight"), (functional, "conv_transpose", ""),
    ))  # fmt: skip
    for dtype in (np.float32, np.float16) if rank == 2 else (np.float64,):
        bound = BOUND[np.dtype(dtype).itemsize]
        x = machine.array(3, 4, *(9, 8, 7)[:rank], dtype=dtype, last=last)
        w = machine.array(8, 4 // groups, *(3, 2, 3)[:rank], dtype=dtype)
        y = f(x, w, **given)
        assert backline.explain().algorithm == ("depthwise" if groups == 4 else "im2col")
        wanted = f(wide(x), wide(w), **given)
        assert off(y, wanted) < bound and y.dtype == dtype
        assert y.host.transpose(0, *range(2, rank + 2), 1).flags.c_contiguous is last or rank != 2
        dy = machine.array(*wanted.shape, dtype=dtype, last=last)
        assert off(by_input(x.shape, w, dy, **given), by_input(x.shape, wide(w), wide(dy), **given)) < bound
        assert off(by_weight(x, w.shape, dy, **given), by_weight(wide(x), w.shape, wide(dy), **given)) < bound
        if given.get("padding") != "same":
            turned = machine.array(4, 8 // groups, *(3, 2, 3)[:rank], dtype=dtype)
            assert off(back(x, turned, **given), back(wide(x), wide(turned), **given)) < bound


@pytest.mark.parametrize("name", ["im2col", "depthwise"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_bias_residual_activation_and_out(machine: Machine, name: str, dtype: Any) -> None:
    groups = 4 if name == "depthwise" else 1
    x, w, b = (
        machine.array(2, 4, 6, 6, dtype=dtype),
        machine.array(8, 4 // groups, 3, 3, dtype=dtype),
        machine.array(8, dtype=dtype),
    )
    residual = machine.array(2, 8, 4, 4, dtype=dtype, last=True)
    wanted = functional.conv2d(wide(x), wide(w), wide(b), groups=groups, residual=wide(residual), activation="relu")
    found = functional.conv2d(x, w, b, groups=groups, residual=residual, activation="relu")
    assert backline.explain().algorithm == name and off(found, wanted) < BOUND[np.dtype(dtype).itemsize]
    assert functional.conv2d(x, w, b, groups=groups, residual=residual, activation="relu", out=residual) is residual
    assert np.array_equal(residual.host, found.host)
    with pytest.raises(BadValue, match="overlap"):
        functional.conv2d(x, w[:4], padding=1, groups=groups if name == "depthwise" else 1, out=x)
    x.host[0, 0, 0, 0] = np.nan
    assert np.isnan(functional.conv2d(x, w, groups=groups, activation="relu").host[0, 0, 0, 0])


def test_complex_convolutions_and_empty_ones(machine: Machine) -> None:
    x, w = machine.array(2, 4, 6, 6, dtype=np.complex128), machine.array(8, 4, 3, 3, dtype=np.complex128)
    x.host[...] += 1j * machine.array(2, 4, 6, 6).host
    found = functional.conv2d(x, w)
    assert np.allclose(found.host, functional.conv2d(x.host, w.host))
    x, w, b = machine.array(2, 0, 6, 6), machine.array(8, 0, 3, 3), machine.array(8)
    same(functional.conv2d(x, w, b), functional.conv2d(x.host, w.host, b.host))
    assert functional.conv2d(machine.array(0, 4, 6, 6), machine.array(8, 4, 3, 3)).shape == (0, 8, 4, 4)


def test_products_run_in_the_mode_that_is_asked_for(machine: Machine) -> None:
    x, w = machine.array(2, 4, 6, 6), machine.array(8, 4, 3, 3)
    for values, mode, dtype in (({}, 3, np.float32), (EXACT, None, np.float32), ({}, 3, np.float16), (EXACT, 3, np.float16)):
        plan_caches.clear()
        machine.log.clear()
        with switches.scope({"cudnn.conv.fp32_precision": "tf32", **values}):
            functional.conv2d(*(machine.array(*a.shape, dtype=dtype) for a in (x, w)))
        modes = [given["mode"] for name, given in machine.log if name == "set_math_mode"]
        assert modes == ([] if mode is None else [mode, 0]), "halves have all their bits in tf32"
        assert [name for name, _ in machine.log if name.startswith("gemm")] == ["gemm_strided_batched_ex"]


def test_kernels_name_nothing_that_cupy_keeps_for_itself() -> None:
    import re

    for body in (direct_depthwise.FORWARD, direct_depthwise.INPUT, direct_depthwise.WEIGHT):
        words = set(re.findall(r"[A-Za-z_]\w*", body))
        assert "n" not in words and not any(word.startswith("_") for word in words) and "i" in words
    assert {library for library in ("cublas",) if "conv" in libraries.get(library).families} == {"cublas"}
