"""Products of bfloat16 by AMX tiles: against wider arithmetic, and what is decided about them on every processor."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.libraries import capability
from backline.libraries.base import Refusal
from backline.libraries.kernels import bfloat16_tiles as tiles
from backline.libraries.kernels import matrix_tiles
from backline.libraries.onednn import library as onednn_library
from backline.nn import functional as F
from support import LAYOUTS, assert_close, clean, dtype_of, problem_of, random_array, rng, run_each, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

BF16 = dtype_of("bfloat16")
LINEAR = "nn.functional.linear"
UNIT, WIDE_UNIT, SMALLEST = 2.0**-8, 2.0**-24, 2.0**-126  # subnormal numbers may count as 0
#: Rows, terms and columns: whole tiles, one more and one less, one term, more columns than a block has.
SIZES = ((9, 1, 9), (16, 32, 32), (31, 31, 33), (32, 64, 64), (33, 65, 31), (100, 7, 300), (300, 167, 563), (700, 40, 45))


@pytest.fixture
def amx() -> None:
    if not tiles.has_tiles(tiles.SIZE):
        pytest.skip("the processor has no AMX for bfloat16, or its use is not permitted")


here = [pytest.mark.usefixtures("amx"), pytest.mark.cpu_kernel]


def on_amx(test: Any) -> Any:
    for mark in here:
        test = mark(test)
    return test


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def by_tiles(op: str, *args: Any, **kwargs: Any) -> list[tuple[str, Array]]:
    """Returns the tiles' results of a call, on all threads and on one, each with the name of its algorithm."""
    return [(name, result) for name, result in run_each("kernels", op, *args, **kwargs) if "tiles" in name]


def close(result: Array, wanted: Array, sizes: Array, terms: int, what: Any) -> None:
    """Within the rounding errors of sums of so many terms, whose absolute values are summed up in `sizes`, and of the result."""
    assert result.dtype == BF16, what
    assert_close(result, wanted, 1.01 * (UNIT * np.abs(wanted) + (terms + 3) * WIDE_UNIT * sizes) + SMALLEST, str(what))


def numbers(rng: np.random.Generator, *shape: int) -> Array:
    return random_array(rng, shape, BF16)


def check_product(a: Array, b: Array) -> int:
    """Compares the tiles' products, and returns their number."""
    results = by_tiles("matmul", a, b)
    for name, result in results:
        close(result, wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)), a.shape[-1], (name, a.shape, a.strides, b.shape))
    return len(results)


@on_amx
def test_every_layout(rng: np.random.Generator) -> None:
    taken = 0
    for m, k, n in (*SIZES, *map(tuple, rng.integers((9, 1, 9), (200, 300, 400), (12, 3)))):
        a, b = numbers(rng, m, k), numbers(rng, k, n)
        assert check_product(a, b) and check_product(b.T, a.T)
        for left, right in itertools.product(("C", "F", *rng.choice([*LAYOUTS], 1)), ("C", "F", *rng.choice([*LAYOUTS], 1))):
            taken += check_product(LAYOUTS[left](a), LAYOUTS[right](b))
    assert taken >= 4 * len(SIZES)


@on_amx
def test_large_products_on_all_threads(rng: np.random.Generator) -> None:
    for m, k, n in ((600, 500, 700), (9, 5000, 700), (1200, 33, 1100)):
        for b in (numbers(rng, k, n), numbers(rng, n, k).T):
            results = by_tiles("matmul", a := numbers(rng, m, k), b)
            assert len(results) == 2
            assert results[0][1].tobytes() == results[1][1].tobytes()  # threads change no bit
            close(results[0][1], wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)), k, (m, k, n))


@on_amx
def test_batches(rng: np.random.Generator) -> None:
    for batch, other in (((3,), (3,)), ((2, 3), (2, 3)), ((2, 3), (3,)), ((), (4,)), ((2, 1), (1, 3)), ((2, 3), ())):
        m, k, n = rng.integers((9, 1, 20), 70)
        a, b = numbers(rng, *batch, m, k), numbers(rng, *other, k, n)
        assert check_product(a, b)
        assert check_product(np.swapaxes(numbers(rng, *batch, k, m), -1, -2), np.swapaxes(numbers(rng, *other, n, k), -1, -2))
        assert check_product(a, b[..., ::2])  # no neighbours


@on_amx
def test_out_and_what_is_added(rng: np.random.Generator) -> None:
    for m, k, n in ((9, 50, 100), (100, 50, 33), (64, 90, 300)):
        a, b, c, row = numbers(rng, m, k), numbers(rng, k, n), numbers(rng, m, n), numbers(rng, n)
        product, sizes = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))
        for added in (c, LAYOUTS["wide"](c), row):
            for layout in ("C", "wide", "negative rows"):
                out = LAYOUTS[layout](np.full((m, n), 7, BF16))
                for name, result in by_tiles("addmm", added, a, b, out=out):
                    assert result is out
                    close(out, product + wide(added), sizes + np.abs(wide(added)), k, (name, layout))
        results = by_tiles("addmm", c, a, b, out=c.copy())
        assert results and by_tiles("matmul", a, b, out=c.copy())
        in_place = c.copy()
        name, result = next(each for each in run_each("kernels", "addmm", in_place, a, b, out=in_place) if "tiles" in each[0])
        assert result is in_place and result.tobytes() == results[0][1].tobytes(), name


@on_amx
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"])
def test_linear_layers(activation: str | None, rng: np.random.Generator) -> None:
    k, n = 70, 90
    name, approximate = (activation or "").removesuffix("_tanh"), {"approximate": "tanh"} if activation == "gelu_tanh" else {}
    for lead, biased, more in itertools.product(((9,), (3, 40)), (False, True), (False, True)):
        x, w, b, residual = numbers(rng, *lead, k), numbers(rng, n, k), numbers(rng, n), numbers(rng, *lead, n)
        wanted, sizes = wide(x) @ wide(w).T, np.abs(wide(x)) @ np.abs(wide(w)).T
        for there, term in ((biased, b), (more, residual)):
            wanted, sizes = (wanted + wide(term), sizes + np.abs(wide(term))) if there else (wanted, sizes)
        if activation:
            name = "tanh" if activation == "tanh" else name
            wanted = getattr(F, name)(wanted, **approximate)
        gaps = np.repeat(b, 2)[::2] if activation else b  # alone it is what a product is added to
        for weight, bias in ((w, b), (np.asfortranarray(w), gaps)):
            results = by_tiles(
                LINEAR, x, weight, bias if biased else None, activation=activation, residual=residual if more else None
            )
            assert results
            for what, result in results:
                close(result, wanted, 1.2 * sizes, k + 2, (what, lead, biased, more))


@on_amx
def test_what_lies_beside_is_not_multiplied(rng: np.random.Generator) -> None:
    """Tiles that are not whole end in zeros, whatever is in memory behind the operands."""
    for m, k, n in ((9, 5, 13), (33, 33, 35), (50, 90, 40)):
        around = [np.full((size + 40, other + 40), np.nan, BF16) for size, other in ((m, k), (k, n))]
        a, b = (array[20 : 20 + size, 20 : 20 + other] for array, (size, other) in zip(around, ((m, k), (k, n)), strict=True))
        a[...], b[...] = numbers(rng, m, k), numbers(rng, k, n)
        out = np.full((m + 2, n + 2), 3, BF16)
        assert check_product(a, b) and check_product(a, np.asfortranarray(b))
        assert by_tiles("matmul", a, b, out=out[1:-1, 1:-1])
        assert (out[[0, -1]] == 3).all() and (out[:, [0, -1]] == 3).all()


@on_amx
def test_special_values_stay_where_they_are(rng: np.random.Generator) -> None:
    a, b = numbers(rng, 40, 70), numbers(rng, 70, 90)
    b[3, 5], b[69, 88], b[0, 0] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        exact = wide(a) @ wide(b)
    for matrix in (b, np.asfortranarray(b)):
        results = by_tiles("matmul", a, matrix)
        assert results
        for _, result in results:
            np.testing.assert_array_equal(np.isnan(wide(result)), np.isnan(exact))
            np.testing.assert_array_equal(wide(result)[np.isinf(exact)], exact[np.isinf(exact)])


@on_amx
def test_numbers_of_every_size(rng: np.random.Generator) -> None:
    """Each number of bfloat16 times 1: subnormal ones are themselves or 0, all others themselves."""
    every = np.arange(1 << 16, dtype=np.uint16).view(BF16).reshape(1 << 10, 64)
    one = np.eye(64, dtype=np.float32).astype(BF16)
    with np.errstate(invalid="ignore"):
        finite = every[np.isfinite(wide(every)).all(axis=1)]
    results = by_tiles("matmul", finite, one)
    assert results
    for _, result in results:
        small = np.abs(wide(finite)) < SMALLEST
        np.testing.assert_array_equal(wide(result)[~small], wide(finite)[~small])
        assert ((wide(result) == wide(finite)) | (wide(result) == 0))[small].all()


@on_amx
def test_a_cap_is_kept() -> None:
    a = np.ones((64, 64), BF16)
    for word, there in (("avx2", False), ("avx512", True)):
        assert capability.allows(word)
        with backline.backends.cpu.flags(capability=word):
            assert bool(by_tiles("matmul", a, a)) is there


@on_amx
def test_a_user_gets_it(rng: np.random.Generator) -> None:
    x, w = numbers(rng, 50, 300), numbers(rng, 200, 300)
    with backline.use("kernels"):
        result = F.linear(x, w, activation="relu")
        assert (backline.explain().library, backline.explain().algorithm) == ("kernels", "tiles")
    np.testing.assert_allclose(wide(result), np.maximum(wide(x) @ wide(w).T, 0), rtol=2.0**-7, atol=1e-3)


# Decisions, on every processor ---------------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with AMX."""
    monkeypatch.setattr(tiles, "has_tiles", lambda size: True)


def listed(op: str, *args: Any, **kwargs: Any) -> list[Any]:
    found = libraries.get("kernels").algorithms(problem_of(op, *args, **kwargs), 2)
    return [each for each in found if each.name == tiles.TILES]


@pytest.mark.usefixtures("pretended")
def test_threads_are_offered_where_there_is_work() -> None:
    a = np.ones((300, 300), BF16)
    assert [each.threads for each in listed("matmul", a, a)] == [2, 1]
    assert [each.threads for each in listed("matmul", a[:40], a)] == [1]


@pytest.mark.usefixtures("pretended")
def test_what_is_refused() -> None:
    a, f = np.ones((40, 40), BF16), np.ones((40, 40), np.float32)
    memory = np.zeros(40 * 40 * 2 + 1, np.uint8)[1:].view(BF16).reshape(40, 40)
    cases = {
        "an empty product": ("matmul", a[:, :0], a[:0]), "a batch of more": ("matmul", np.ones((1025, 9, 9), BF16), a[:9, :9]),
        "8 rows or columns": ("matmul", a[:8], a), "not aligned": ("matmul", a, memory),
    }  # fmt: skip
    for reason, call in cases.items():
        (refused,) = listed(*call)
        assert isinstance(refused, Refusal) and reason in refused.reason
    for more in ({"alpha": 2.0}, {"beta": 0.5}):
        (refused,) = listed("addmm", a, a, a, **more)
        assert isinstance(refused, Refusal) and "no factor" in refused.reason
    (refused,) = listed("matmul", a, a, out=np.ones((40, 40), BF16).T)
    assert isinstance(refused, Refusal) and "no neighbours" in refused.reason
    assert not listed("matmul", f, f)


def test_a_processor_without_tiles_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "has_tiles", lambda size: False)
    (refused,) = listed("matmul", np.ones((40, 40), BF16), np.ones((40, 40), BF16))
    assert isinstance(refused, Refusal) and "no AMX" in refused.reason


def test_kernels_of_onednn_wait_where_there_are_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles them for a shape, which tiles do not need: they wait where shapes keep changing."""
    product: Any = problem_of("matmul", np.ones((40, 40), BF16), np.ones((40, 40), BF16))
    wide_product: Any = problem_of("matmul", np.ones((40, 40), np.float32), np.ones((40, 40), np.float32))
    for there in (True, False):
        monkeypatch.setattr(onednn_library, "has_tiles", lambda size, there=there: there)
        assert onednn_library.PRODUCTS.waits(product) is there
        assert not onednn_library.PRODUCTS.waits(wide_product)


def test_blocks_are_all_of_the_result(rng: np.random.Generator) -> None:
    most, least_rows, least_columns = matrix_tiles.MOST_BYTES, matrix_tiles.LEAST_ROWS, matrix_tiles.LEAST_COLUMNS
    for m, k, n in (*SIZES, *rng.integers((9, 1, 9), 6000, (100, 3)).tolist()):
        for threads, size in itertools.product((1, 2, 16), (1, 2)):
            rows, columns = matrix_tiles.blocks(m, n, k, 1, size, threads)
            for total, parts in ((m, rows), (n, columns)):
                ends = [first + count for first, count in parts]
                assert [first for first, _ in parts] == [0, *ends[:-1]] and ends[-1] == total
                assert all(first % matrix_tiles.PANEL == 0 and count > 0 for first, count in parts)
            assert max(count for _, count in columns) <= max(most // size, matrix_tiles.PANEL)
            assert threads == 1 or len(rows) * len(columns) >= min(threads, (m // least_rows) * (n // least_columns))
