"""Operations on dask arrays, block by block: values, chunks, settings, layouts, and arrays that are cut otherwise."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import backline
from backline import switches
from backline.errors import BacklineError, BadType, BadValue
from backline.interop import dask as blocks
from backline.interop.dask.block_function import BlockFunction, plain
from support import assert_close, clean, random_array, rng, roundoff, seed, wide

pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed
TYPES = ("float32", "float64", "complex64", "complex128")
TRANSFORMS = [kind + rank for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for rank in ("", "2", "n")]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    with dask.config.set(scheduler="synchronous"):
        yield


def cut(rng: np.random.Generator, size: int) -> tuple[int, ...]:
    """A size as the sum of random ones."""
    marks = np.unique(rng.integers(0, size + 1, rng.integers(0, 4)))
    return tuple(int(n) for n in np.diff([0, *marks[(marks > 0) & (marks < size)], size]))


def product_bound(a: Any, b: Any, dtype: np.dtype[Any]) -> Any:
    return (4 * a.shape[-1] + 20) * roundoff(dtype) * (abs(wide(a)) @ abs(wide(b))) + 1e-300


@pytest.mark.parametrize("dtype", [*TYPES, "float16", "int64"])
def test_products(dtype: str, rng: np.random.Generator) -> None:
    for batch, other in (((), ()), ((3,), (3,)), ((2, 1), (4,)), ((), (2,))):
        m, k, n = (int(size) for size in rng.integers(1, 30, 3))
        kind = np.dtype(dtype)
        a, b = random_array(rng, (*batch, m, k), kind), random_array(rng, (*other, k, n), kind)
        inner, batches = cut(rng, k), {size: cut(rng, size) for size in (1, 2, 3, 4)}
        x = da.from_array(a, chunks=(*(batches[size] for size in batch), cut(rng, m), inner))
        y = da.from_array(b, chunks=(*(batches[size] for size in other), inner, cut(rng, n)))
        product = blocks.matmul(x, y)
        result = product.compute()
        assert product.dtype == result.dtype == kind and product.shape == result.shape
        assert product.chunks[-2:] == (x.chunks[-2], y.chunks[-1])
        if kind.kind == "i":
            assert (result == a @ b).all()
        else:
            assert_close(result, wide(a) @ wide(b), product_bound(a, b, kind), f"{a.shape} @ {b.shape} in {x.chunks}")


def test_products_with_vectors_and_arrays_in_memory(rng: np.random.Generator) -> None:
    a, b, v = (
        random_array(rng, (12, 9), np.dtype("f8")),
        random_array(rng, (9, 5), np.dtype("f8")),
        random_array(rng, (9,), np.dtype("f8")),
    )
    x, y, w = da.from_array(a, chunks=(5, 4)), da.from_array(b, chunks=(4, 2)), da.from_array(v, chunks=4)
    for given, reference in (
        ((x, w), a @ v),
        ((w, y), v @ b),
        ((w, w), v @ v),
        ((x, b), a @ b),
        ((a, y), a @ b),
        ((x, v), a @ v),
    ):
        assert np.allclose(blocks.matmul(*given).compute(), reference, rtol=1e-12, atol=1e-12)
    assert blocks.matmul(da.zeros((3, 0), chunks=(2, 0)), da.zeros((0, 2), chunks=(0, 2))).compute().tolist() == [[0.0] * 2] * 3


def test_what_is_not_a_number_stays_in_its_rows(rng: np.random.Generator) -> None:
    a = random_array(rng, (8, 6), np.dtype("f8"))
    a[1, 2], a[6, 0] = np.nan, np.inf
    result = blocks.matmul(da.from_array(a, chunks=(3, 2)), da.ones((6, 4), chunks=(2, 4))).compute()
    assert np.isnan(result[1]).all() and np.isinf(result[6]).all()
    assert np.isfinite(np.delete(result, [1, 6], axis=0)).all()


def test_sums_of_short_floats_are_rounded_once() -> None:
    ones = da.ones((1, 4096), chunks=(1, 8), dtype=np.float16)
    assert blocks.matmul(ones, ones.T).compute() == 4096  # rounded after every block they stay at 2048


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "rows"), [
    ((40, 5), 9), ((90, 3), 4), ((7, 9), 3), ((20, 4), 20), ((60, 2), 3), ((5, 5), 1), ((1, 1), 1),
])  # fmt: skip
def test_factors(dtype: str, shape: tuple[int, int], rows: int, rng: np.random.Generator) -> None:
    kind = np.dtype(dtype)
    a = random_array(rng, shape, kind)
    x = da.from_array(a, chunks=(rows, -1))
    k, size = min(shape), max(shape)
    bound = 100 * size * roundoff(kind)
    q, r = (each.compute() for each in blocks.linalg.qr(x))
    assert q.shape == (shape[0], k) and r.shape == (k, shape[1]) and q.dtype == r.dtype == kind
    assert abs(wide(q) @ wide(r) - wide(a)).max() <= bound * abs(a).max()
    assert abs(wide(q).conj().T @ wide(q) - np.eye(k)).max() <= bound
    assert (np.tril(r, -1) == 0).all()
    for tall in (True, False):
        b, y = (a, x) if tall else (a.T, x.T)
        u, s, vh = (each.compute() for each in blocks.linalg.svd(y))
        assert s.dtype == kind.type(0).real.dtype and s.shape == (k,) and (np.diff(s) <= 0).all()
        assert np.allclose(s, np.linalg.svd(b.astype("c16"), compute_uv=False), rtol=0, atol=bound * max(s[0], 1.0))
        assert abs(wide(u) * s @ wide(vh) - wide(b)).max() <= bound * max(s[0], 1.0)
        assert abs(wide(u).conj().T @ wide(u) - np.eye(k)).max() <= bound


def test_the_chunks_of_factors_are_those_of_the_array() -> None:
    x = da.ones((300, 4), chunks=(7, 4))
    q, r = blocks.linalg.qr(x)
    assert q.chunks == x.chunks and r.chunks == ((4,), (4,))
    u, s, vh = blocks.linalg.svd(x)
    assert u.chunks == x.chunks and s.chunks == ((4,),) and vh.chunks == ((4,), (4,))
    u, s, vh = blocks.linalg.svd(x.T)
    assert vh.chunks == x.T.chunks and u.chunks == ((4,), (4,))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, rng: np.random.Generator) -> None:
    real = name.startswith(("rfft", "ihfft"))
    several = name.endswith(("2", "n"))
    a = random_array(rng, (5, 6, 4, 7), np.dtype("f8" if real else "c16"))
    x = da.from_array(a, chunks=(2, -1, 3, -1))
    cases: list[dict[str, Any]] = (
        [{"dim": (1, 3)}, {"dim": (3, 1), "s": (4, 9), "norm": "ortho"}]
        if several
        else [{}, {"dim": 1, "n": 10, "norm": "forward"}]
    )
    for keywords in cases:
        result = getattr(blocks.fft, name)(x, **keywords)
        whole = getattr(backline.fft, name)(a, **keywords)
        assert result.shape == whole.shape and result.dtype == whole.dtype
        assert result.chunks[0] == x.chunks[0] and result.chunks[2] == x.chunks[2]
        assert_close(result.compute(), whole, np.full(whole.shape, 1e-11), f"{name} {keywords}")


def test_transforms_of_numpy_are_the_same(rng: np.random.Generator) -> None:
    a = random_array(rng, (6, 30), np.dtype("f8"))
    x = da.from_array(a, chunks=(4, 30))
    assert np.allclose(blocks.fft.rfft(x).compute(), np.fft.rfft(a), rtol=0, atol=1e-12)
    assert np.allclose(blocks.fft.irfft(blocks.fft.rfft(x)).compute(), a, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions(rank: int, rng: np.random.Generator) -> None:
    image, kernel = (6, 5, 7)[:rank], (3, 2, 3)[:rank]
    a, w = random_array(rng, (5, 4, *image), np.dtype("f4")), random_array(rng, (6, 2, *kernel), np.dtype("f4"))
    bias = random_array(rng, (6,), np.dtype("f4"))
    x = da.from_array(a, chunks=(2, *[-1] * (rank + 1)))
    keywords: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2, "activation": "relu"}
    name = f"conv{rank}d"
    exact = getattr(backline.nn.functional, name)(*(each.astype(np.float64) for each in (a, w, bias)), **keywords)
    terms = 4 * int(np.prod(kernel)) + 20
    size = terms * max(abs(a).max() * abs(w).max(), abs(bias).max())
    for weight in (w, da.from_array(w, chunks=(4, 2, *[-1] * rank))):
        result = getattr(blocks.nn, name)(x, weight, bias, **keywords)
        assert result.shape == exact.shape and result.chunks[0] == (2, 2, 1) and result.dtype == np.float32
        assert_close(result.compute(), exact, np.full(exact.shape, terms * roundoff(np.dtype("f4")) * size), name)


# Arrays that are cut otherwise -----------------------------------------------------------------------------------------

WRONG = {
    "products": (lambda a, b: blocks.matmul(a, b), (8, 6), (3, 6), (6, 8), (4, 8)),
    "batches": (lambda a, b: blocks.matmul(a, b), (4, 2, 3), (2, 2, 3), (4, 3, 2), (3, 3, 2)),
    "columns": (lambda A, b: blocks.linalg.qr(A), (8, 6), (4, 3), (1,), (1,)),
    "svd": (lambda A, b: blocks.linalg.svd(A), (8, 3), (4, 2), (1,), (1,)),
    "transform": (lambda input, b: blocks.fft.fft(input), (4, 8), (4, 3), (1,), (1,)),
    "two axes": (lambda input, b: blocks.fft.rfft2(input), (4, 8), (3, 3), (1,), (1,)),
    "convolution": (lambda input, b: blocks.nn.conv1d(input, np.ones((2, 3, 2))), (4, 3, 8), (2, 3, 5), (1,), (1,)),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_remedy_in_the_text_is_one(name: str) -> None:
    call, first, chunks, second, other = WRONG[name]
    given = {"a": da.ones(first, chunks=chunks), "b": da.ones(second, chunks=other)}
    names = {**given, "A": given["a"], "input": given["a"]}
    with pytest.raises(BadValue, match="rechunk") as caught:
        call(given["a"], given["b"])
    remedy = caught.value.remedy.partition(" for ")[0].partition(",  ")[0].partition(", which")[0]
    target = remedy.partition(".")[0]
    assert target in caught.value.message
    changed = given | {"b" if target == "b" else "a": eval(remedy, {}, names)}
    call(changed["a"], changed["b"])


REFUSED: dict[str, Any] = {
    "an array of NumPy's": (lambda: blocks.linalg.qr(np.ones((3, 2))), BadType, "from_array"),
    "two arrays of NumPy's": (lambda: blocks.matmul(np.ones((3, 2)), np.ones((2, 3))), BadType, "from_array"),
    "integers": (lambda: blocks.linalg.svd(da.ones((4, 2), dtype="i8")), BadType, "float64"),
    "no such axis": (lambda: blocks.fft.fft(da.ones((4, 2)), dim=3), BacklineError, "3"),
    "complex": (lambda: blocks.fft.rfft(da.ones((4, 2), dtype="c16")), BadType, "real"),
    "a batch of matrices": (lambda: blocks.linalg.qr(da.ones((2, 4, 2))), BadValue, "two dimensions"),
    "no batch": (lambda: blocks.nn.conv2d(da.ones((3, 5, 5)), np.ones((1, 3, 2, 2))), BadValue, r"input\[None\]"),
    "channels": (lambda: blocks.nn.conv1d(da.ones((2, 3, 5)), np.ones((1, 4, 2))), BadValue, "channels"),
    "a number": (lambda: blocks.matmul(da.ones(()), da.ones((2, 2))), BadValue, "no dimensions"),
    "sizes": (lambda: blocks.matmul(da.ones((3, 2)), da.ones((3, 2))), BadValue, "columns"),
    "batches": (lambda: blocks.matmul(da.ones((3, 2, 2)), da.ones((4, 2, 2))), BadValue, "broadcast"),
    "unknown sizes": (lambda: blocks.linalg.qr((x := da.ones((6, 2), chunks=3))[x[:, 0] > 0]), BadValue, "compute_chunk_sizes"),
    "dtypes": (lambda: blocks.matmul(da.ones((2, 2)), da.ones((2, 2), dtype="f4")), BadType, "float"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_before_anything_runs(name: str) -> None:
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        call()


# Settings and bits ------------------------------------------------------------------------------------------------------


def test_blocks_run_under_the_settings_of_where_the_expression_was_written() -> None:
    x = da.ones((6, 4), chunks=(3, 2))
    with backline.use("numpy"):
        expression = blocks.matmul(x, x.T)
    with backline.trace() as events:
        expression.compute()
    assert {event.library for event in events} == {"numpy"} and len(events) == 8
    assert switches.get("prefer") == ()


def test_a_function_of_blocks_goes_to_another_process_and_has_a_name_of_its_own() -> None:
    with switches.scope(fp32_precision="bf16"):
        function = BlockFunction("linalg.svd", {"full_matrices": False})
    same, other = pickle.loads(pickle.dumps(function)), BlockFunction("linalg.svd", {"full_matrices": False})
    assert dask.base.tokenize(same) == dask.base.tokenize(function) != dask.base.tokenize(other)
    assert same(np.eye(3)).S.tolist() == [1.0, 1.0, 1.0] and len(pickle.dumps(other)) < 500


def test_layouts_are_those_that_blocks_have_on_another_worker(rng: np.random.Generator) -> None:
    a = random_array(rng, (8, 8), np.dtype("f8"))
    for same in (a, a.T):
        assert plain(same) is same
    for view in (a[:, ::2], a[::-1], a[2:7, 1:5]):
        assert plain(view).flags.c_contiguous and (plain(view) == view).all()
    memory = np.zeros(65, np.uint8)
    odd = memory[1:].view("f8")
    assert plain(odd).flags.aligned


def test_bits_depend_on_chunks_alone(rng: np.random.Generator) -> None:
    a = random_array(rng, (120, 50), np.dtype("f4"))
    spread = np.zeros((240, 100), np.float32)
    spread[::2, ::2] = a

    def results(array: Any, **how: Any) -> list[Any]:
        x = da.from_array(array, chunks=(40, 25))
        tall = x.rechunk({1: -1})
        return list(
            dask.compute(blocks.matmul(x, x.T), *blocks.linalg.qr(tall), *blocks.linalg.svd(tall), blocks.fft.rfft(tall), **how)
        )

    with backline.backends.flags(deterministic=True, determinism_level="threads"):
        first = results(a)
        others = [results(spread[::2, ::2]), results(a, scheduler="threads", num_workers=4)]
        with backline.num_threads(1):
            others.append(results(a))
    for other in others:
        assert all((x == y).all() for x, y in zip(first, other, strict=True))
