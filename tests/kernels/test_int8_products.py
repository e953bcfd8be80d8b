"""Products of int8 by a compiled loop: sums to the last bit at every level of vector instructions, and weights packed by anyone."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import backline
from backline import _kernels, backends, libraries, quantized
from backline.libraries.kernels import int8_products
from backline.libraries.kernels.int8_products import Packing, packed_here, prepare_quantized
from backline.problems.op_registry import operations
from backline.quantized import ops
from support import algorithms, clean, rng, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

LEVELS = range(_kernels.instruction_level + 1)
KINDS = ("uint8", "int8")
GUARD = 64  # bytes before and behind what is written


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, most: int | None = None) -> Array:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max if most is None else most, shape, dtype, endpoint=True)


def guarded(nbytes: int) -> tuple[Array, Array]:
    memory = np.full(nbytes + 2 * GUARD, 0x5A, np.uint8)
    return memory, memory[GUARD:-GUARD]


def untouched(memory: Array) -> bool:
    return bool((memory[:GUARD] == 0x5A).all() and (memory[-GUARD:] == 0x5A).all())


def product(level: int, x: Array, w: Array, together: int, gap: int = 0) -> tuple[Array, Array]:
    """The sums of the loop, and those of each row; rows lie `gap` bytes apart, and nothing behind the last one may be read."""
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64)
    (rows, terms), outs = x.shape, len(w)
    form = Packing(outs, terms, 1, 1).pack(w)
    given = np.zeros(max(rows * (terms + gap) - gap, 1), x.dtype)
    for i in range(rows):
        given[i * (terms + gap) : i * (terms + gap) + terms] = x[i]
    words = np.array([level, terms, x.dtype == np.int8, outs, together, 1], np.int64)
    copies, copy = guarded(together * 2 * -(-terms // 64) * 64)
    memory, sums = guarded(4 * rows * outs)
    of_rows = np.zeros(rows, np.int32)
    run(_kernels.addresses["byte_product"])(
        words.ctypes.data, given.ctypes.data, terms + gap, form.ctypes.data, copy.ctypes.data, sums.ctypes.data, of_rows.ctypes.data,
        rows, outs,
    )  # fmt: skip
    assert untouched(memory) and untouched(copies)
    return sums.view(np.int32).reshape(rows, outs), of_rows


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", KINDS)
def test_sums_are_exact_at_every_level(rng: np.random.Generator, level: int, dtype: str) -> None:
    for trial in range(150):
        rows, outs, terms = int(rng.integers(1, 40)), int(rng.integers(1, 70)), int(rng.integers(1, 300))
        x = whole(rng, (rows, terms), dtype, 127 if trial % 2 else None)
        if trial % 4 == 1:
            x[rng.integers(rows), rng.integers(terms)] = np.iinfo(dtype).max  # one that has more than seven bits
        w = whole(rng, (outs, terms), "int8")
        sums, of_rows = product(level, x, w, int(rng.integers(1, 30)), int(rng.integers(0, 3)) * int(rng.integers(0, 9)))
        np.testing.assert_array_equal(sums, x.astype(np.int64) @ w.T.astype(np.int64))
        np.testing.assert_array_equal(of_rows, x.sum(1, dtype=np.int64))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("weight", [-128, 127])
def test_no_sum_saturates(level: int, dtype: str, weight: int) -> None:
    """All bytes at the ends of their range: a sum of two products has no room in 16 bits, but for rows of seven bits."""
    limits = np.iinfo(dtype)
    for value in {int(limits.min), 64, 127, 128, int(limits.max)} & set(range(limits.min, limits.max + 1)):
        for terms in (1, 2, 3, 4, 5, 64, 1000):
            x, w = np.full((13, terms), value, dtype), np.full((17, terms), weight, np.int8)
            assert (product(level, x, w, 12)[0] == value * weight * terms).all(), (value, terms)


# Packed weights -----------------------------------------------------------------------------------------------------------


def layers(rng: np.random.Generator, dtype: str) -> list[tuple[str, Any, Any, tuple[Any, ...]]]:
    """Operations with the weight packed by engine x86, of every kind that the loop has steps for."""
    made = []
    with backends.quantized.flags(engine="x86"):
        for rows, zeros in ((3, False), (3, True), (150, False)):
            w = quantized.QArray(whole(rng, (90, 37), "int8"), np.full(90, 0.01), whole(rng, (90,), "int8") if zeros else np.zeros(90, np.int8), 0)
            x = quantized.QArray(whole(rng, (rows, 37), dtype), 0.1, 3)
            made.append(("linear", x, quantized.linear_prepack(w, rng.standard_normal(90, np.float32)), (0.3, 4)))
        for groups, outs, zeros, last in ((1, 20, False, True), (1, 20, False, False), (3, 21, True, False), (24, 24, False, True), (24, 24, True, True)):
            zero = whole(rng, (outs,), "int8") if zeros else np.zeros(outs, np.int8)
            w = quantized.QArray(whole(rng, (outs, 24 // groups, 3, 2), "int8"), np.full(outs, 0.01), zero, 0)
            x = whole(rng, (2, 24, 9, 7), dtype)
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if last else x
            made.append(("conv2d", quantized.QArray(x, 0.1, 3), quantized.conv2d_prepack(w, None, 1, 1, 1, groups), (0.3, 4)))
    return made


@pytest.mark.parametrize("dtype", KINDS)
def test_weights_that_nobody_packed_or_somebody_else_are_packed_in_the_call(rng: np.random.Generator, dtype: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(int8_products, "THREAD_FLOPS", 0)
    for op, x, packed, numbers in layers(rng, dtype):
        wanted = getattr(quantized, op)(x, packed, *numbers).int_repr
        problem = operations[f"quantized.{op}"].build(x, packed, *numbers)
        roles = [o.role for o in problem.operands]
        arrays = [a for a in getattr(ops, f"for_{op}")(x, packed, *numbers) if isinstance(a, np.ndarray)]
        order = int8_products.packing(problem)
        assert order is not None and order.nbytes % 4 == 2, "as many bytes as no order of another library has"
        for nbytes in (order.nbytes, order.nbytes + 2, None):
            kept = [i for i, role in enumerate(roles) if role != "form"]
            operands, given = [problem.operands[i] for i in kept], [arrays[i] for i in kept]
            if nbytes is not None:
                form = order.pack(packed.weight.int_repr) if nbytes == order.nbytes else np.full(nbytes, 0x77, np.uint8)
                from backline.problems import Operand

                operands.insert(2, Operand.contiguous("form", np.dtype(np.uint8), (nbytes,)))
                given.insert(2, form)
            other = replace(problem, operands=tuple(operands))
            assert packed_here(other) is (nbytes == order.nbytes)
            listed = algorithms("kernels", other)
            assert {a.threads for a in listed} == {1, 2}
            for algorithm in listed:
                np.testing.assert_array_equal(prepare_quantized(other, algorithm)(*given), wanted, f"{problem.key} {nbytes} {algorithm.key}")


def test_a_weight_that_is_packed_for_the_loop_is_no_other_librarys(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    onednn: Any = libraries.get("onednn")
    monkeypatch.setattr(onednn, "packing", lambda problem: None)
    for op, x, packed, numbers in layers(rng, "uint8"):
        problem = operations[f"quantized.{op}"].build(x, packed, *numbers)
        assert packed_here(problem)
        if onednn.available():
            assert not algorithms("onednn", problem)
        getattr(quantized, op)(x, packed, *numbers)
        assert backline.explain().library == "kernels"


def test_a_packed_weight_is_read_only_and_aligned() -> None:
    order = Packing(5, 3, 4, 2)
    weight = np.arange(120, dtype=np.int8).reshape(10, 3, 4)
    form = order.pack(weight)
    assert form.nbytes == order.nbytes and form.ctypes.data % 64 == 0 and not form.flags.writeable
    np.testing.assert_array_equal(form[order.sums_at : -2].view(np.int32), weight.reshape(10, 12).sum(1, dtype=np.int32))
