"""Attention: every kernel of every library against float64, over dtypes, shapes, masks and layouts; what is refused, and why."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import backline
from backline import backends
from backline.backends import cuda
from backline.errors import BadType, BadValue, NoKernel
from backline.libraries import attention_constraints as kernels
from backline.libraries.capability import reachables
from backline.libraries.kernels import attention_items
from backline.nn.attention import SDPBackend, sdpa_kernel
from backline.nn.functional import scaled_dot_product_attention as attend
from backline.nn.grad import scaled_dot_product_attention_backward as gradients
from support import (
    HALVES,
    LAYOUTS,
    algorithms,
    assert_close,
    clean,
    dtype_of,
    need,
    problem_of,
    python,
    rng,
    roundoff,
    run_each,
    seed,
    smallest,
    spread,
)

__all__ = ["clean", "rng", "seed"]

OP = "nn.functional.scaled_dot_product_attention"
DTYPES = ("float32", "float64", *HALVES)
BLAS = ("openblas", "mkl")
Array = Any

pytestmark = pytest.mark.usefixtures("clean")


# The oracle: row by row, over the keys that take part and no others ------------------------------------------------------


def oracle(
    q: Array, k: Array, v: Array, attn_mask: Array = None, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False, **_: Any,
) -> tuple[Array, Array]:  # fmt: skip
    """The result in float64, and a bound on the error of a kernel that computes in the dtype, or in float32 for halves."""
    unit = max(roundoff(q.dtype), 2.0**-53) if q.dtype.name not in HALVES else 2.0**-24
    stored = roundoff(q.dtype) if q.dtype.name in HALVES else 0.0
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = q.dtype
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    if enable_gqa:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    q, k, v = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (q, k, v))
    queries, keys = q.shape[-2], k.shape[-2]
    mask = np.tri(queries, keys, dtype=bool) if is_causal else np.ones((), bool) if attn_mask is None else attn_mask
    mask = np.broadcast_to(mask, (*lead, queries, keys))
    result, bound = np.zeros((*lead, queries, v.shape[-1])), np.zeros((*lead, queries, v.shape[-1]))
    for at in np.ndindex(*lead, queries):
        row = mask[at] if mask.dtype == bool else mask[at] != -np.inf
        taken = np.flatnonzero(row)
        if not taken.size:
            continue
        some, values, query = k[at[:-1]][taken], v[at[:-1]][taken], q[at]
        with np.errstate(all="ignore"):
            scores = some @ query * scale
            size = np.abs(some) @ np.abs(query) * abs(scale)
            if mask.dtype != bool:
                scores = scores + mask[at][taken].astype(np.float64)
                size = size + np.abs(mask[at][taken].astype(np.float64))
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            result[at] = weights @ values
            doubt = unit * (4 * len(query) ** 0.5 + 8) * size.max() + unit * (4 * taken.size**0.5 + 16)
            bound[at] = 2 * doubt * (weights @ np.abs(values)) + stored * np.abs(result[at])
    bound = np.nan_to_num(bound, nan=np.inf) + 4 * smallest(dtype)
    return result, bound


def check(library: str, q: Array, k: Array, v: Array, **keywords: Any) -> list[str]:
    """Every algorithm of a library; returns what ran."""
    reference, bound = oracle(q, k, v, **keywords)
    ran = []
    for name, result in run_each(library, OP, q, k, v, **keywords):
        assert result.dtype == q.dtype and result.flags.c_contiguous
        assert_close(result, reference, bound, f"{name} of {problem_of(OP, q, k, v, **keywords)}")
        ran.append(name)
    return ran


def operands(
    rng: np.random.Generator, dtype: str, q: tuple[int, ...], k: tuple[int, ...] | None = None, v: tuple[int, ...] | None = None
) -> tuple[Array, Array, Array]:  # fmt: skip
    k = k or q
    shapes = (q, k, v or (*k[:-1], q[-1]))
    return tuple(np.asarray(rng.standard_normal(s), dtype_of(dtype)) for s in shapes)  # type: ignore[return-value]  # as many as there are shapes


SHAPES = {
    "one of each": ((1, 1, 1, 1), None),
    "one query": ((2, 3, 1, 16), (2, 3, 70, 16)),
    "one key": ((1, 2, 9, 8), (1, 2, 1, 8)),
    "odd lengths": ((1, 2, 131, 20), (1, 2, 133, 20)),
    "several tiles of keys": ((1, 1, 33, 24), (1, 1, 1100, 24)),
    "several blocks of rows": ((2, 1, 300, 8), (2, 1, 40, 8)),
    "long rows": ((1, 1, 5, 300), (1, 1, 17, 300)),
}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", [*BLAS, "numpy"])
def test_close_to_float64(library: str, dtype: str, shape: str, causal: bool, rng: np.random.Generator) -> None:
    ran = check(library, *operands(rng, dtype, *SHAPES[shape]), is_causal=causal)
    assert len(ran) >= (1 if library == "numpy" else 2)


def masks(rng: np.random.Generator, dtype: str, batch: int, heads: int, queries: int, keys: int) -> dict[str, Array]:
    """Masks of every shape and kind; in those that are added, some elements are minus infinity."""
    shapes = (
        (queries, keys),
        (1, keys),
        (queries, 1),
        (1, 1),
        (batch, heads, queries, keys),
        (batch, 1, 1, keys),
        (1, heads, queries, 1),
    )
    found: dict[str, Array] = {}
    for shape in shapes:
        taken = rng.random(shape) < 0.6
        found[f"bool {shape}"] = taken
        for name in dict.fromkeys(("float32", dtype)):
            added = np.where(taken, rng.standard_normal(shape), -np.inf)
            found[f"{name} {shape}"] = added.astype(dtype_of(name))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", [*BLAS, "numpy"])
def test_masks(library: str, dtype: str, rng: np.random.Generator) -> None:
    q, k, v = operands(rng, dtype, (2, 3, 37, 8), (2, 3, 45, 8))
    for mask in masks(rng, dtype, 2, 3, 37, 45).values():
        check(library, q, k, v, attn_mask=mask)


@pytest.mark.parametrize("library", [*BLAS, "numpy"])
def test_masks_with_gaps_and_over_several_tiles(library: str, rng: np.random.Generator) -> None:
    q, k, v = operands(rng, "float32", (1, 2, 40, 8), (1, 2, 1300, 8))
    taken = rng.random((40, 1300)) < 0.5
    taken[:, 512:1024] = False  # a tile in which nothing takes part
    added = np.where(taken, rng.standard_normal(taken.shape), -np.inf).astype(np.float32)
    for make in LAYOUTS.values():
        check(library, q, k, v, attn_mask=make(added))
        check(library, q, k, v, attn_mask=make(taken))
    check(library, q, k, v, attn_mask=spread(added)), check(library, q, k, v, attn_mask=spread(taken, axis=0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", [*BLAS, "numpy"])
def test_rows_in_which_no_key_takes_part_are_zeros(library: str, dtype: str, rng: np.random.Generator) -> None:
    q, k, v = operands(rng, dtype, (1, 2, 20, 8), (1, 2, 600, 8))
    taken = rng.random((20, 600)) < 0.5
    taken[[0, 7, 19]] = False
    for mask in (taken, np.where(taken, 0, -np.inf).astype(np.float32), np.zeros((20, 1), bool)):
        check(library, q, k, v, attn_mask=mask)
        for name, result in run_each(library, OP, q, k, v, attn_mask=mask):
            assert not result[..., [0, 7, 19], :].any(), name


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("library", [*BLAS, "numpy"])
def test_what_is_in_keys_that_take_no_part_does_not_count(library: str, special: float, rng: np.random.Generator) -> None:
    q, k, v = operands(rng, "float32", (1, 2, 70, 8), (1, 2, 700, 8))
    padding = np.arange(700) < 650
    k[..., 650:, :] = special
    v[..., 660:, 3] = special
    added = np.where(padding, 0, -np.inf).astype(np.float32)
    mask = padding & (rng.random((70, 700)) < 0.5)
    for keywords in ({"attn_mask": padding[None]}, {"attn_mask": added[None]}, {"attn_mask": mask}, {"is_causal": True}):
        check(library, q, k, v, **keywords)
        for name, result in run_each(library, OP, q, k, v, **keywords):
            assert np.isfinite(result).all(), f"{name} with {[*keywords]}"


@pytest.mark.parametrize("library", [*BLAS, "numpy"])
def test_nan_and_infinity_go_to_the_rows_that_they_are_for_and_no_others(library: str, rng: np.random.Generator) -> None:
    q, k, v = operands(rng, "float64", (1, 1, 40, 8), (1, 1, 40, 8))
    v[..., 20, 5], k[..., 30, 0] = np.nan, np.nan
    check(library, q, k, v, is_causal=True)
    for _, result in run_each(library, OP, q, k, v, is_causal=True):
        wrong = np.isnan(result[0, 0])
        assert not wrong[:20].any() and wrong[20:30, 5].all() and not wrong[20:30, :5].any() and wrong[30:].all()
    q[..., 3, 0] = np.nan
    for _, result in run_each(library, OP, q, k, v, is_causal=True):
        assert np.isnan(result[0, 0, 3]).all() and not np.isnan(result[0, 0, [2, 4]]).any()


@pytest.mark.parametrize("library", [*BLAS, "numpy"])
def test_huge_scores(library: str, rng: np.random.Generator) -> None:
    for dtype in ("float32", "float64"):
        q, k, v = operands(rng, dtype, (1, 2, 50, 16), (1, 2, 1100, 16))
        for scale in (1e4, 1e15, -1e4, 0.0):
            for _, result in run_each(library, OP, q, k, v, scale=scale):
                # The largest score takes everything; the smallest with a negative scale; all the same with none.
                scores = np.einsum("bhqe,bhke->bhqk", q.astype(np.float64), k.astype(np.float64)) * np.sign(scale)
                first = np.take_along_axis(v, scores.argmax(-1)[..., None], axis=-2) if scale else v.mean(-2, keepdims=True)
                off = np.abs(result - first).max(axis=-1) > 1e-3
                assert np.isfinite(result).all() and off.mean() < 0.05  # near ties may go either way
        check(library, q, k, v, scale=-0.7)
        check(library, 30 * q, 30 * k, v)


@pytest.mark.parametrize("library", [*BLAS, "numpy"])
def test_query_heads_that_share_keys_and_values(library: str, rng: np.random.Generator) -> None:
    q, k, v = operands(rng, "float32", (2, 6, 40, 8), (2, 2, 45, 8))
    for keywords in ({}, {"is_causal": True}, {"attn_mask": rng.random((2, 6, 40, 45)) < 0.5}):
        check(library, q, k, v, enable_gqa=True, **keywords)
        check(library, q, k[:, :1], v, enable_gqa=True, **keywords)
        check(library, q, k, np.concatenate([v, v[:, :1]], axis=1), enable_gqa=True, **keywords)
    check(library, q[0], k[0], v[0], enable_gqa=True)
    v[:, 1, 40:] = np.nan
    check(library, q, k, v, enable_gqa=True, attn_mask=np.arange(45)[None] < 40)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("library", [*BLAS, "numpy"])
def test_layouts(library: str, dtype: str, rng: np.random.Generator) -> None:
    q, k, v = operands(rng, dtype, (2, 2, 35, 8), (2, 2, 41, 8))
    for name, make in LAYOUTS.items():
        ran = check(library, make(q), make(k), make(v))
        flash = any("flash" in each for each in ran)
        assert library == "numpy" or flash == (make(q).strides[-1] == q.itemsize), name
    check(library, spread(q, -2), spread(k, 1), spread(v, 0))
    check(library, np.swapaxes(np.swapaxes(q, 1, 2).copy(), 1, 2), k, v)  # heads inside of rows, as projections give them
    packed = np.zeros((2, 2, 35, 8), np.dtype([("x", dtype), ("y", np.int8)]))
    packed["x"] = q
    check(library, packed["x"], k, v)


@pytest.mark.parametrize("library", [*BLAS, "numpy"])
def test_any_number_of_axes_and_broadcast(library: str, rng: np.random.Generator) -> None:
    for shapes in (
        ((5, 8), (7, 8)), ((3, 5, 8), (3, 7, 8)), ((5, 8), (3, 7, 8)), ((2, 1, 5, 8), (1, 3, 7, 8)), ((2, 3, 5, 8), (7, 8)),
        ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)), ((2, 2, 3, 5, 8), (2, 2, 3, 7, 8)), ((2, 3, 5, 8), (3, 7, 8), (2, 1, 7, 2)),
    ):  # fmt: skip
        q, k, v = operands(rng, "float64", *shapes)
        ran = check(library, q, k, v)
        assert ran or (library in BLAS and q.ndim == 5)
        check(library, q, k, v, attn_mask=rng.random((5, 7)) < 0.7)
        check(library, q, k, v, attn_mask=rng.random(7) < 0.7)


def test_lengths_of_zero(rng: np.random.Generator) -> None:
    for dtype in ("float32", "float16", "longdouble"):
        for q, k, v, shape in (
            ((2, 2, 0, 4), (2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 0, 4)), ((2, 2, 3, 4), (2, 2, 0, 4), (2, 2, 0, 4), (2, 2, 3, 4)),
            ((0, 2, 3, 4), (0, 2, 3, 4), (0, 2, 3, 4), (0, 2, 3, 4)), ((2, 0, 3, 4), (2, 0, 3, 4), (2, 0, 3, 4), (2, 0, 3, 4)),
            ((2, 2, 3, 0), (2, 2, 3, 0), (2, 2, 3, 0), (2, 2, 3, 0)),
        ):  # fmt: skip
            result = attend(*(np.ones(x, dtype) for x in (q, k, v)))
            assert result.shape == shape and result.dtype == dtype and not result.any()
    # Without a head dim all scores are 0: the mean of the values.
    v = rng.standard_normal((1, 1, 4, 2))
    assert np.allclose(attend(np.ones((1, 1, 3, 0)), np.ones((1, 1, 4, 0)), v), v.mean(-2))


def test_longdouble_is_numpys(rng: np.random.Generator) -> None:
    q, k, v = (x.astype(np.longdouble) for x in operands(rng, "float64", (1, 2, 5, 8)))
    reference, bound = oracle(*(x.astype(np.float64) for x in (q, k, v)))
    assert_close(attend(q, k, v), reference, bound, "longdouble")
    assert backline.explain().library == "numpy"


def test_arrays_by_keyword_in_any_order(rng: np.random.Generator) -> None:
    q, k, v = operands(rng, "float32", (1, 2, 20, 8), (1, 2, 30, 8))
    mask = rng.random((20, 30)) < 0.5
    wanted = attend(q, k, v, mask)
    for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(kernel):
            for _ in range(2):  # the second finds the plan
                assert np.allclose(attend(attn_mask=mask, value=v, key=k, query=q), wanted, atol=1e-6)
    assert np.allclose(attend(q, k, attn_mask=mask, value=v, dropout_p=0, scale=np.float32(8**-0.5)), wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("library", BLAS)
def test_the_same_bits_for_any_number_of_threads(library: str, dtype: str, rng: np.random.Generator) -> None:
    lib = need(library)
    for heads, queries, keys, causal in ((3, 257, 1030, True), (1, 130, 600, False), (1, 40, 3000, False)):
        q, k, v = operands(rng, dtype, (1, heads, queries, 32), (1, heads, keys, 32))
        found: dict[str, set[bytes]] = {}
        for threads in (1, 2, 3, 5):
            problem = problem_of(OP, q, k, v, is_causal=causal)
            for algorithm in algorithms(library, problem, threads):
                assert (algorithm.level, algorithm.basis) == ("threads", "construction")
                plan = lib.prepare(problem, algorithm)
                found.setdefault(algorithm.name, set()).update(plan(q, k, v).tobytes() for _ in range(3))
        assert {name: len(bits) for name, bits in found.items()} == {"flash": 1, "math": 1}


@pytest.mark.parametrize("library", BLAS)
def test_every_level_of_vector_instructions(library: str, rng: np.random.Generator) -> None:
    mask = rng.random((50, 700)) < 0.5
    for dtype in ("float32", "float64"):
        q, k, v = operands(rng, dtype, (1, 2, 50, 24), (1, 2, 700, 24))
        for word in reachables():
            with backline.switches.scope({"cpu.capability": word}):
                assert attention_items.vector_level() == {"avx2": 1, "avx512": 2}.get(word, 0)
                check(library, q, k, v, attn_mask=mask)
                check(library, q, k, v, is_causal=True)


def test_random_problems(rng: np.random.Generator) -> None:
    for _ in range(25):
        heads, each = int(rng.integers(1, 4)), int(rng.integers(1, 3))
        batch, queries, keys, dim = (int(rng.integers(1, most)) for most in (3, 140, 1200 if rng.random() < 0.3 else 60, 40))
        dtype = str(rng.choice(DTYPES))
        q, k, v = operands(rng, dtype, (batch, heads * each, queries, dim), (batch, heads, keys, dim))
        layouts = [*LAYOUTS.values()]
        q, k, v = (layouts[rng.integers(len(layouts))](x) for x in (q, k, v))
        keywords: dict[str, Any] = {"enable_gqa": each > 1, "scale": float(rng.standard_normal())}
        if rng.random() < 0.4:
            keywords["is_causal"] = True
        elif rng.random() < 0.7:
            every = [*masks(rng, dtype, batch, heads * each, queries, keys).values()]
            keywords["attn_mask"] = layouts[rng.integers(len(layouts))](every[rng.integers(len(every))])
        for library in (*BLAS, "numpy"):
            check(library, q, k, v, **keywords)


def test_memory_does_not_grow_with_queries_times_keys() -> None:
    for library in BLAS:
        need(library)
        done = python(f"""
            import json, numpy as np, backline
            from backline.nn.functional import scaled_dot_product_attention as attend
            def peak():
                return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) / 1024
            backline.set_num_threads(2)
            rng = np.random.default_rng(0)
            with backline.backends.flags(only=({library!r},)):
                small = rng.standard_normal((1, 2, 128, 16)).astype(np.float32)
                attend(small, small, small)  # the library's own buffers
                big = rng.standard_normal((1, 2, 8192, 16)).astype(np.float32)
                mask = np.ones((1, 1, 1, 8192), bool)
                before = peak()
                attend(big, big, big)
                attend(big, big, big, is_causal=True)
                attend(big, big, big, mask)
            choice = backline.explain()
            print(json.dumps([choice.algorithm, peak() - before]))
        """)
        algorithm, grown = json.loads(done.stdout)
        assert algorithm == "flash" and grown < 64, f"{library}: {grown} MiB for scores of 512 MiB"


# Dropout --------------------------------------------------------------------------------------------------------------


def test_dropout_is_seeded_and_keeps_the_mean(rng: np.random.Generator) -> None:
    q, k, v = operands(rng, "float32", (1, 2, 64, 16))
    first = attend(q, k, v, dropout_p=0.3, seed=7)
    assert backline.explain().library == "numpy"
    assert np.array_equal(first, attend(q, k, v, dropout_p=0.3, seed=7))
    assert not np.array_equal(first, attend(q, k, v, dropout_p=0.3, seed=8))
    mean = np.mean([attend(q, k, v, dropout_p=0.3, seed=s) for s in range(200)], axis=0)
    assert np.abs(mean - attend(q, k, v)).max() < 0.35  # some six deviations
    assert not attend(q, k, v, dropout_p=1.0, seed=0).any()
    assert np.array_equal(attend(q, k, v, dropout_p=0.0, seed=5), attend(q, k, v))
    # What is kept is scaled up: with values of one, a row's sum is what its weights add up to.
    eye = np.broadcast_to(np.eye(64, dtype=np.float32), (1, 2, 64, 64))
    weights, kept = attend(q, k, eye), attend(q, k, eye, dropout_p=0.5, seed=3)
    assert np.allclose(kept[kept != 0], 2 * weights[kept != 0], rtol=1e-5) and 0.45 < (kept == 0).mean() < 0.55


@pytest.mark.parametrize(
    ("seed_given", "error"), [(None, BadValue), (-1, BadValue), (1.5, BadType), (True, BadType), ("1", BadType)]
)
def test_dropout_without_a_proper_seed(seed_given: Any, error: type[Exception]) -> None:
    x = np.ones((1, 1, 2, 2), np.float32)
    with pytest.raises(error, match="seed"):
        attend(x, x, x, dropout_p=0.5, seed=seed_given)


# What is refused --------------------------------------------------------------------------------------------------------

X = np.ones((2, 4, 6, 8), np.float32)
NO_CALLS: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
    ({"attn_mask": np.ones((6, 6), bool), "is_causal": True}, BadValue, "exclude each other"),
    ({"key": X.astype(np.float64)}, BadType, "one dtype"),
    ({"attn_mask": np.ones((6, 6), np.int32)}, BadType, "int32"),
    ({"attn_mask": np.ones((6, 6))}, BadType, "float64"),
    ({"attn_mask": np.ones((5, 6), bool)}, BadValue, r"\(5, 6\) does not broadcast"),
    ({"attn_mask": np.ones((1, 2, 4, 6, 6), bool)}, BadValue, "does not broadcast"),
    ({"dropout_p": 1.5}, BadValue, "between 0 and 1"),
    ({"dropout_p": -0.1}, BadValue, "between 0 and 1"),
    ({"dropout_p": float("nan")}, BadValue, "between 0 and 1"),
    ({"dropout_p": "0"}, BadType, "is a number"),
    ({"query": np.ones(8, np.float32)}, BadValue, "2 dimensions"),
    ({"key": np.ones((2, 3, 6, 8), np.float32), "value": np.ones((2, 3, 6, 8), np.float32), "enable_gqa": True}, BadValue, "divide"),
    ({"key": np.ones((2, 2, 6, 8), np.float32), "value": np.ones((2, 2, 6, 8), np.float32)}, BadValue, "enable_gqa"),
    ({"key": np.ones((3, 4, 6, 8), np.float32), "enable_gqa": True}, BadValue, "batches"),
    ({"key": np.ones((2, 4, 6, 7), np.float32)}, BadValue, "head dim"),
    ({"value": np.ones((2, 4, 5, 8), np.float32)}, BadValue, "one length"),
    ({"query": X.astype(np.int32)}, BadType, "not real floating"),
    ({"value": X.astype(np.complex64)}, BadType, "not real floating"),
    ({"query": X.tolist()}, BadType, "NumPy array"),
    ({"attn_mask": [[True]]}, BadType, "NumPy array"),
    ({"is_causal": 1}, BadType, "True or False"),
    ({"enable_gqa": None}, BadType, "True or False"),
    ({"scale": "1"}, BadType, "is a number"),
)  # fmt: skip


@pytest.mark.parametrize(("change", "error", "text"), NO_CALLS)
def test_calls_that_no_kernel_could_run(change: dict[str, Any], error: type[Exception], text: str) -> None:
    for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(kernel), pytest.raises(error, match=text):
            attend(**{"query": X, "key": X, "value": X, **change})


FIT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("plain", {}),
    ("causal", {"is_causal": True}),
    ("half", {name: X.astype(np.float16) for name in ("query", "key", "value")}),
    ("mask of heads", {"attn_mask": np.ones((1, 4, 6, 1), bool)}),
    ("shared heads", {"key": X[:, :2], "value": X[:, :2], "enable_gqa": True}),
)
UNFIT: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("dropout", {"dropout_p": 0.5, "seed": 1}, "no dropout"),
    ("three axes", {"query": X[0], "key": X[0], "value": X[0]}, "4-D"),
    ("batch", {"key": X[:1], "value": X[:1]}, "one batch size"),
    ("heads", {"key": X[:, :1], "value": X[:, :1]}, "as many heads"),
    ("mask of three axes", {"attn_mask": np.ones((4, 6, 6), bool)}, "the mask must be"),
    ("other values", {"value": np.ones((2, 4, 6, 3), np.float32)}, "one head dim"),
    ("no keys", {"key": X[:, :, :0], "value": X[:, :, :0]}, "no length may be zero"),
    ("last stride", {"query": np.asfortranarray(X)}, "contiguous along"),
    ("longdouble", {name: X.astype(np.longdouble) for name in ("query", "key", "value")}, "the dtype"),
)


def params(call: dict[str, Any]) -> Any:
    return cuda.SDPAParams(
        call["query"], call["key"], call["value"], call.get("attn_mask"), call.get("dropout_p", 0.0),
        call.get("is_causal", False), call.get("enable_gqa", False),
    )  # fmt: skip


@pytest.mark.parametrize(("what", "change"), FIT)
def test_flash_runs_what_it_can_and_says_so(what: str, change: dict[str, Any]) -> None:
    call = {"query": X, "key": X, "value": X, **change}
    assert cuda.can_use_flash_attention(params(call))
    attend(**call)
    assert backline.explain().algorithm == "flash" and backline.explain(attend, **call).algorithm == "flash"


@pytest.mark.parametrize(("what", "change", "text"), UNFIT)
def test_flash_refuses_what_it_cannot_and_says_why(what: str, change: dict[str, Any], text: str) -> None:
    call = {"query": X, "key": X, "value": X, **change}
    assert not cuda.can_use_flash_attention(params(call))
    with pytest.warns(UserWarning, match=text):
        cuda.can_use_flash_attention(params(call), debug=True)
    attend(**call)
    choice = backline.explain()
    assert choice.algorithm == "math"
    assert all(text in c.reason for c in choice.candidates if c.algorithm == "flash") and "flash" in str(choice)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(NoKernel, match=text):
        attend(**call)


def test_no_kernel_names_every_kernel_with_its_reason() -> None:
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.OVERRIDEABLE]):
        with pytest.raises(NoKernel) as caught:
            attend(X, X, X)
        text = str(caught.value)
        for part in (
            "openblas flash: it is flash attention, which cuda.flash_sdp = False forbids", "numpy math: ", "cuda.math_sdp = False",
            "efficient_attention: it is for arrays on cuda, not on cpu", "cudnn_attention: it is for arrays on cuda",
            "overrideable: no extension has registered one",
        ):  # fmt: skip
            assert part in text
        assert "change cuda.flash_sdp, cuda.math_sdp" in text
    with backends.flags(only=("blis",)), pytest.raises(NoKernel, match="only"):
        attend(X, X, X)


def test_kernels_are_tried_in_the_order_asked_for() -> None:
    assert backline.explain(attend, X, X, X).algorithm == "flash"
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        choice = backline.explain(attend, X, X, X)
        assert choice.algorithm == "math" and "flash" in {c.algorithm for c in choice.candidates if c.verdict == "next"}
    with sdpa_kernel(SDPBackend.MATH):
        choice = backline.explain(attend, X, X, X)
        assert choice.algorithm == "math" and all(c.verdict == "refused" for c in choice.candidates if c.algorithm == "flash")
    for kernel in ("math", "flash_attention"):
        assert {library.name for library in kernels.providers(kernel, "cpu")[0]} >= {"openblas"}
    with backline.switches.scope({"openblas.enabled": False, "mkl.enabled": False}):
        assert not cuda.can_use_flash_attention(params({"query": X, "key": X, "value": X}))
        assert not cuda.is_flash_attention_available("cpu")
        assert backline.explain(attend, X, X, X).library == "numpy"


def test_determinism_for_any_number_of_threads_has_a_kernel() -> None:
    with backends.flags(deterministic=True, determinism_level="threads"):
        assert backline.explain(attend, X, X, X).algorithm == "flash"


def test_a_measurement_checks_and_times_the_kernels(rng: np.random.Generator) -> None:
    q, k, v = operands(rng, "float32", (1, 2, 64, 16))
    mask = rng.random((64, 64)) < 0.5
    with backends.flags(benchmark=True):
        attend(q, k, v, mask)
        choice = backline.explain()
    timed = [c for c in choice.candidates if c.seconds]
    assert {c.algorithm for c in timed} == {"flash", "math"} and all(c.error < 1e-5 for c in timed)


# Gradients --------------------------------------------------------------------------------------------------------------


def slopes(arrays: dict[str, Array], name: str, grad: Array, **keywords: Any) -> Array:
    """The gradient by central differences, in float64."""
    found = np.zeros(arrays[name].shape)
    for at in np.ndindex(*found.shape):
        if not np.isfinite(arrays[name][at]):
            continue
        sides = []
        for step in (1e-5, -1e-5):
            moved = {n: a.copy() for n, a in arrays.items()}
            moved[name][at] += step
            sides.append(np.sum(attend(**moved, **keywords) * grad))
        found[at] = (sides[0] - sides[1]) / 2e-5
    return found


@pytest.mark.parametrize("kind", ["full", "causal", "bool", "added", "shared", "broadcast", "dropout"])
def test_gradients_are_the_slopes(kind: str, rng: np.random.Generator) -> None:
    shapes = {"shared": ((1, 4, 3, 2), (1, 2, 4, 2)), "broadcast": ((2, 1, 3, 2), (1, 2, 4, 2))}.get(
        kind, ((1, 2, 3, 2), (1, 2, 4, 2))
    )
    q, k, v = operands(rng, "float64", *shapes)
    arrays = {"query": q, "key": k, "value": v}
    keywords: dict[str, Any] = {
        "causal": {"is_causal": True}, "shared": {"enable_gqa": True, "scale": -0.4}, "dropout": {"dropout_p": 0.4, "seed": 5},
    }.get(kind, {})  # fmt: skip
    if kind == "bool":
        keywords["attn_mask"] = np.array([[True, False, True, True], [False] * 4, [True, True, False, False]])
    if kind == "added":
        arrays["attn_mask"] = np.where(rng.random((2, 1, 4)) < 0.7, rng.standard_normal((2, 1, 4)), -np.inf)
    grad = rng.standard_normal(attend(**arrays, **keywords).shape)
    found = gradients(**arrays, grad_output=grad, **keywords)
    assert (found.attn_mask is None) == (kind != "added")
    for name in arrays:
        assert np.allclose(getattr(found, name), slopes(arrays, name, grad, **keywords), atol=1e-8), name


def test_gradients_of_keys_that_take_no_part_are_zeros(rng: np.random.Generator) -> None:
    q, k, v = operands(rng, "float32", (1, 2, 5, 4), (1, 2, 6, 4))
    mask = np.arange(6) < 4
    grad = rng.standard_normal((1, 2, 5, 4)).astype(np.float32)
    wanted = gradients(q, k[..., :4, :], v[..., :4, :], grad)
    k[..., 4:, :], v[..., 5:, :] = np.nan, np.inf
    for given in (mask, np.where(mask, 0, -np.inf).astype(np.float32)):
        found = gradients(q, k, v, grad, given)
        assert np.allclose(found.query, wanted.query, atol=1e-6) and np.allclose(found.key[..., :4, :], wanted.key, atol=1e-6)
        assert np.allclose(found.value[..., :4, :], wanted.value, atol=1e-6)
        assert not found.key[..., 4:, :].any() and not found.value[..., 4:, :].any()
    half = gradients(*(x.astype(np.float16) for x in (q, wanted.key, wanted.value, grad[..., :4])))
    assert half.query.dtype == np.float16


def test_gradients_refuse_what_does_not_fit() -> None:
    with pytest.raises(BadValue, match="grad_output has shape"):
        gradients(X, X, X, X[:1])
    with pytest.raises(BadType, match="grad_output has dtype"):
        gradients(X, X, X, X.astype(np.float64))
    with pytest.raises(BadValue, match="exclude"):
        gradients(X, X, X, X, np.ones((6, 6), bool), is_causal=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(NoKernel, match="no gradients"):
        gradients(X, X, X, X)


# Beside PyTorch -----------------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_as_pytorch(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    function = torch.nn.functional.scaled_dot_product_attention
    q, k, v = operands(rng, "float32", (2, 4, 70, 16), (2, 4, 90, 16))
    cases: tuple[dict[str, Any], ...] = (
        {}, {"is_causal": True}, {"scale": -0.3}, {"attn_mask": rng.random((2, 1, 70, 90)) < 0.5},
        {"attn_mask": rng.standard_normal((70, 90)).astype(np.float32)},
    )  # fmt: skip
    for keywords in cases:
        theirs = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in keywords.items()}
        wanted = function(*(torch.from_numpy(x) for x in (q, k, v)), **theirs).numpy()
        assert np.abs(attend(q, k, v, **keywords) - wanted).max() < 5e-6, keywords


def test_every_dtype_and_library_has_a_row() -> None:
    for library in (*BLAS, "numpy"):
        need(library)
        for dtype in DTYPES:
            x = np.ones((1, 2, 300, 64), dtype_of(dtype))
            names = {a.name for a in algorithms(library, problem_of(OP, x, x, x))}
            assert names == ({"math"} if library == "numpy" else {"flash", "math"})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_by_permission(dtype: str, rng: np.random.Generator) -> None:
    """As in torch, the switch is about the kernel MATH on every device: its products and weights are then rounded to the dtype."""
    q, k, v = operands(rng, dtype, (2, 3, 17, 16), (2, 3, 40, 16))
    with backends.cuda.flags(flash_sdp=False):
        wide = attend(q, k, v)
        with backends.cuda.flags(fp16_bf16_reduction_math_sdp=True):
            narrow = attend(q, k, v)
            choice = backline.explain()
    assert (choice.library, choice.algorithm) == ("numpy", "math_half")
    assert choice.switches["cuda.fp16_bf16_reduction_math_sdp"][0] == "True"
    assert narrow.dtype == wide.dtype == q.dtype
    a, b = wide.astype(np.float64), narrow.astype(np.float64)
    step = 2.0 ** (-10 if dtype == "float16" else -7)
    assert 0 < np.abs(a - b).max() < 8 * step * np.abs(v.astype(np.float64)).max()
    with backends.cuda.flags(fp16_bf16_reduction_math_sdp=True):  # other kernels, and other dtypes, are as they were
        assert "half" not in backline.explain(attend, q, k, v).algorithm
        single = [x.astype(np.float32) for x in (q, k, v)]
        assert "half" not in str(backline.explain(attend, *single))
