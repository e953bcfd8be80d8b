"""`int_mm` by the compiled loop: every layout, every number of threads, and what is left to the reference."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import backline
from backline import _kernels, quantized
from backline.errors import BadValue
from backline.libraries.base import Refusal
from backline.libraries.kernels import int8_matmul, int8_products
from backline.libraries.kernels.int8_matmul import prepare_scaled
from backline.libraries.kernels.int8_products import up_to
from backline.problems.op_registry import operations
from support import algorithms, clean, rng, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

GUARD = 64
SIZES = [(1, 1, 1), (1, 300, 1), (3, 5, 4), (7, 64, 16), (2, 1030, 70), (65, 33, 17), (130, 7, 200), (1, 129, 333), (200, 96, 1), (600, 130, 700)]
ORDERS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "gaps": lambda a: np.repeat(a, 3, 0)[::3],
    "column gaps": lambda a: np.repeat(a, 3, 1).T.copy()[::3].T,
    "upwards": lambda a: a[::-1].copy()[::-1],
}


def whole(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-128, 127, shape, np.int8, endpoint=True)


def wanted(a: Array, b: Array) -> Array:
    return a.astype(np.int64) @ b.astype(np.int64)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_sums_are_exact_in_every_layout(rng: np.random.Generator, sizes: tuple[int, int, int], order: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(int8_products, "THREAD_FLOPS", 0)
    monkeypatch.setattr(int8_matmul, "THREADED", 0)
    m, k, n = sizes
    for other in ORDERS:
        a, b = ORDERS[order](whole(rng, m, k)), ORDERS[other](whole(rng, k, n))
        problem = operations["quantized.int_mm"].build(a, b)
        listed = algorithms("kernels", problem)
        assert {x.threads for x in listed} == {1, 2}, (order, other, problem.key)
        for algorithm in listed:
            np.testing.assert_array_equal(prepare_scaled(problem, algorithm)(a, b), wanted(a, b), f"{problem.key} {algorithm.key}")


@pytest.mark.parametrize("threads", [1, 2])
def test_it_writes_into_rows_with_gaps_between_them(rng: np.random.Generator, threads: int) -> None:
    with backline.num_threads(threads):
        for m, k, n in ((3, 50, 20), (150, 200, 90)):
            a, b = whole(rng, m, k), whole(rng, k, n)
            memory = np.full((2 * m, n + 5), 7, np.int32)
            for out in (memory[::2, 2:-3], memory[::-2, 2:-3]):
                memory[:] = 7
                assert quantized.int_mm(a, b, out=out) is out and backline.explain().library == "kernels"
                np.testing.assert_array_equal(out, wanted(a, b))
                out[:] = 7
                assert (memory == 7).all(), "nothing else was written"


@pytest.mark.parametrize("there", [True, False])
def test_tiles_come_first_where_the_processor_has_them(monkeypatch: Any, there: bool) -> None:
    monkeypatch.setattr(int8_matmul, "has_tiles", lambda size: there)
    a = np.ones((300, 300), np.int8)
    listed = list(int8_matmul.scaled_algorithms(operations["quantized.int_mm"].build(a, a), 2))
    tiles = [x for x in listed if x.name == int8_matmul.TILES]
    assert listed[: len(tiles)] == tiles
    if there:
        assert [x.threads for x in tiles if not isinstance(x, Refusal)] == [2, 1]
    else:
        (refused,) = tiles
        assert isinstance(refused, Refusal) and "no AMX for int8" in refused.reason


def test_what_has_no_neighbours_is_left_to_the_reference(rng: np.random.Generator) -> None:
    a, b, columns = whole(rng, 6, 9), whole(rng, 9, 4), np.zeros((4, 6), np.int32).T
    for x, y, out, words in (
        (whole(rng, 12, 18)[::2, ::2], b, None, "elements of a "),
        (a, whole(rng, 18, 4)[::2, ::-1], None, "elements of b "),
        (a, b, columns, "of out "),
    ):
        refused, *rest = int8_matmul.scaled_algorithms(operations["quantized.int_mm"].build(x, y, out=out), 2)
        assert isinstance(refused, Refusal) and words in refused.reason and not rest
        np.testing.assert_array_equal(quantized.int_mm(x, y, out=out), wanted(x, y))
        assert backline.explain().library == "numpy"


def test_an_output_must_not_overlap_the_operands() -> None:
    memory = np.zeros(4096, np.int8)
    a, b = memory[:256].reshape(16, 16), np.ones((16, 16), np.int8)
    problem = operations["quantized.int_mm"].build(a, b, out=memory[:1024].view(np.int32).reshape(16, 16))
    assert algorithms("kernels", problem)
    with pytest.raises(BadValue, match="overlap"):
        quantized.int_mm(a, b, out=memory[:1024].view(np.int32).reshape(16, 16))


def test_sums_beyond_int32_wrap_around(rng: np.random.Generator) -> None:
    terms = (1 << 17) + 3
    a, b = np.full((2, terms), -128, np.int8), np.full((terms, 3), -128, np.int8)
    assert (quantized.int_mm(a, b) == np.int64(terms * 128 * 128).astype(np.int32)).all()
    assert backline.explain().library == "kernels"


@pytest.mark.parametrize("kernel", ["pack_rows", "pack_columns"])
def test_packing_writes_all_of_its_memory_and_no_more(rng: np.random.Generator, kernel: str) -> None:
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        _kernels.addresses[kernel]
    )
    for _ in range(200):
        outs, terms, gap = int(rng.integers(1, 150)), int(rng.integers(1, 70)), int(rng.integers(0, 9))
        matrix = whole(rng, terms, outs)
        lies = matrix if kernel == "pack_rows" else matrix.T
        given = np.zeros(lies.shape[0] * (lies.shape[1] + gap) - gap, np.int8)  # nothing lies behind the last row
        for i, line in enumerate(lies):
            given[i * (lies.shape[1] + gap) :][: lies.shape[1]] = line
        filled = np.zeros((up_to(terms, 4), up_to(outs, 16)), np.int8)
        filled[:terms, :outs] = matrix
        expected = filled.reshape(-1, 4, filled.shape[1] // 16, 16).transpose(2, 0, 3, 1).reshape(-1)
        memory = np.full(len(expected) + 2 * GUARD, 0x5A, np.int8)
        run(given.ctypes.data, lies.shape[1] + gap, memory[GUARD:].ctypes.data, outs, terms)
        np.testing.assert_array_equal(memory[GUARD:-GUARD], expected)
        assert (memory[:GUARD] == 0x5A).all() and (memory[-GUARD:] == 0x5A).all()
