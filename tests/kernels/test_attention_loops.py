"""Attention by loops of ours, of few queries and by AMX tiles: against wider arithmetic, and what is decided on every processor."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.libraries import capability
from backline.libraries.base import Refusal
from backline.libraries.kernels import attention_loops, matrix_tiles
from backline.nn import functional as F
from support import assert_close, clean, dtype_of, problem_of, random_array, rng, roundoff, run_each, seed, smallest

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

BF16 = dtype_of("bfloat16")
ATTENTION = "nn.functional.scaled_dot_product_attention"
UNIT, SMALLEST = 2.0**-8, 2.0**-120


def on_amx(test: Any) -> Any:
    return pytest.mark.usefixtures("amx")(pytest.mark.cpu_kernel(test))


@pytest.fixture
def amx() -> None:
    if not matrix_tiles.has_tiles(matrix_tiles.BFLOAT16):
        pytest.skip("the processor has no AMX for bfloat16, or its use is not permitted")


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def numbers(rng: np.random.Generator, *shape: int) -> Array:
    return random_array(rng, shape, BF16)


class Exact:
    """An attention in float64: its result, its log-sum-exp, and the sum of the absolute values of what is added up."""

    def __init__(self, q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False, scale: float = 0.0) -> None:
        scores = wide(q) @ np.swapaxes(wide(k), -1, -2) * (scale or 1 / np.sqrt(q.shape[-1]))
        if causal:
            scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
        if mask is not None:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + wide(mask)
        most = np.max(scores, axis=-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isinf(most), 0, most))
        total = weights.sum(axis=-1, keepdims=True)
        shares = np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)
        self.value, self.sizes = shares @ wide(v), shares @ np.abs(wide(v))
        with np.errstate(divide="ignore"):
            self.lse = (most + np.log(total))[..., 0]
        self.spread = np.abs(wide(q)) @ np.swapaxes(np.abs(wide(k)), -1, -2)  # scores have roundings of sums of these

    def check(self, q: Array, k: Array, v: Array, **more: Any) -> int:
        """Compares what the loops make of the call, and returns how many algorithms that were."""
        count, few = 0, q.shape[-2] <= attention_loops.FEW
        for name, result in run_each("kernels", ATTENTION, q, k, v, **more):
            assert result.dtype == q.dtype
            drift = self.spread.max() * (q.shape[-1] + 4) * 2.0**-23  # of a score, and so of a weight
            weights = drift + (k.shape[-2] + 8) * 2.0**-24 if few else (1 + drift) * UNIT
            bound = 1.01 * (roundoff(q.dtype) * np.abs(self.value) + weights * self.sizes) + max(smallest(q.dtype), SMALLEST)
            assert_close(result, self.value, bound, f"{name} of {q.shape} {k.shape} {v.shape} {sorted(more)}")
            count += 1
        return count


#: Queries, keys, head dim: whole tiles, one more and one less, several tiles of keys.
SIZES = ((16, 1, 32), (31, 33, 64), (33, 31, 40), (100, 300, 7), (300, 1100, 33), (128, 513, 128))


@on_amx
def test_sizes_and_masks(rng: np.random.Generator) -> None:
    for queries, keys, dim in SIZES:
        q, k, v = numbers(rng, 2, 3, queries, dim), numbers(rng, 2, 3, keys, dim), numbers(rng, 2, 3, keys, dim)
        taken, added = rng.random((2, 1, queries, keys)) < 0.8, numbers(rng, 1, 3, queries, keys)
        taken[..., 0] = True
        assert Exact(q, k, v).check(q, k, v)
        assert Exact(q, k, v, causal=True).check(q, k, v, is_causal=True)
        for mask in (taken, added, taken[..., :1, :], added[..., :1]):
            assert Exact(q, k, v, mask).check(q, k, v, attn_mask=mask), mask.shape
        assert Exact(q, k, v, scale=0.3).check(q, k, v, scale=0.3)


@on_amx
def test_layouts_and_shared_heads(rng: np.random.Generator) -> None:
    rows = numbers(rng, 2, 50, 4, 64)
    q, k, v = rows.swapaxes(1, 2), numbers(rng, 2, 70, 4, 64).swapaxes(1, 2), numbers(rng, 2, 4, 140, 64)[:, :, ::2]
    assert Exact(q, k, v).check(q, k, v)
    assert Exact(q, k[::-1, :, ::-1], v[::-1, :, ::-1]).check(q, k[::-1, :, ::-1], v[::-1, :, ::-1])
    few = k[:, :2], v[:, :2]
    wanted = Exact(q, *(x.repeat(2, axis=1) for x in few))
    assert wanted.check(q, *few, enable_gqa=True)
    assert Exact(q[:1], k[:1], v[:1]).check(q[:1], k[:1], v[:1])


@on_amx
def test_threads_change_no_bit(rng: np.random.Generator) -> None:
    q, k, v = (numbers(rng, 1, 6, 300, 64) for _ in range(3))
    for causal in (False, True):
        results = [result.tobytes() for _, result in run_each("kernels", ATTENTION, q, k, v, is_causal=causal)]
        assert len(results) == 2 and results[0] == results[1]


@on_amx
def test_where_no_key_takes_part_and_what_is_not_finite(rng: np.random.Generator) -> None:
    for keys in (40, 700):
        q, k, v = (rng.standard_normal((1, 2, n, 64)).astype(BF16) for n in (40, keys, keys))  # no weight is 0
        mask = rng.random((40, keys)) < 0.7
        mask[:, 0], mask[5] = True, False
        mask[:, 7] = False
        mask[9, keys - 1] = False
        wanted = Exact(q, k, v, mask)
        assert (wanted.value[..., 5, :] == 0).all()
        bad = v.copy()
        bad[..., 7, :], bad[0, 0, keys - 1, 3] = np.nan, np.inf  # the first takes no part, the second not in every row
        for _, result in run_each("kernels", ATTENTION, q, k, bad, attn_mask=mask):
            infinite = np.zeros(wanted.value.shape, bool)
            infinite[0, 0, :, 3] = mask[:, keys - 1]
            assert (wide(result)[infinite] == np.inf).all()
            bound = 2.02 * UNIT * (np.abs(wanted.value) + wanted.sizes) + SMALLEST
            assert_close(np.where(infinite, 0, wide(result)), np.where(infinite, 0, wanted.value), bound, keys)


@on_amx
def test_the_log_sum_exp_is_that_of_float32(rng: np.random.Generator) -> None:
    q, k, v = (numbers(rng, 1, 2, 100, 64) for _ in range(3))
    with backline.use("kernels"):
        result = F.scaled_dot_product_attention(q, k, v, return_lse=True)
        assert backline.explain().library == "kernels"
    np.testing.assert_allclose(result.lse, Exact(q, k, v).lse, rtol=1e-5, atol=1e-4)


@on_amx
def test_it_is_chosen_and_a_cap_is_kept(rng: np.random.Generator) -> None:
    q = numbers(rng, 1, 2, 64, 64)
    F.scaled_dot_product_attention(q, q, q)
    assert (backline.explain().library, backline.explain().algorithm) == ("kernels", "flash")
    with backline.backends.cpu.flags(capability="avx2"):
        F.scaled_dot_product_attention(q, q, q)
        assert backline.explain().library != "kernels"


# Few queries ---------------------------------------------------------------------------------------------------------


@pytest.mark.cpu_kernel
@pytest.mark.parametrize("word", ["default", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_few_queries_on_every_processor(dtype: str, word: str, rng: np.random.Generator) -> None:
    if not capability.allows(word):
        pytest.skip(f"this processor has no {word}")
    with backline.backends.cpu.flags(capability=word):
        for queries, keys, dim in ((1, 1, 1), (1, 700, 64), (2, 33, 7), (3, 1100, 33), (4, 513, 128)):
            q, k, v = (rng.standard_normal((2, 3, n, dim)).astype(dtype_of(dtype)) for n in (queries, keys, keys))
            assert Exact(q, k, v).check(q, k, v)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_masks_and_layouts_of_few_queries(dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for queries, keys in ((1, 60), (3, 700), (4, 4)):
        q, k, v = (rng.standard_normal((2, n, 4, 64)).astype(kind).swapaxes(1, 2) for n in (queries, keys, 2 * keys))
        v = v[:, :, ::-2]
        taken, added = rng.random((2, 1, queries, keys)) < 0.8, rng.standard_normal((1, 4, queries, keys)).astype(kind)
        taken[..., 0] = True
        assert Exact(q, k, v, causal=True).check(q, k, v, is_causal=True)
        for mask in (taken, added, taken[..., :1, :]):
            assert Exact(q, k, v, mask).check(q, k, v, attn_mask=mask), mask.shape
        few = k[:, :2], v[:, :2]
        assert Exact(q, *(x.repeat(2, axis=1) for x in few)).check(q, *few, enable_gqa=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_few_queries_are_chosen_and_keep_out_what_takes_no_part(dtype: str, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((1, 2, n, 32)).astype(dtype_of(dtype)) for n in (2, 600, 600))
    mask = np.ones((2, 600), bool)
    mask[0], mask[:, 7], mask[:, 555] = False, False, False
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, return_lse=True)
    assert (backline.explain().library, backline.explain().algorithm) == ("kernels", "flash")
    assert (wanted.output[:, :, 0] == 0).all() and np.isneginf(wanted.lse[:, :, 0]).all()
    np.testing.assert_allclose(wanted.lse[:, :, 1], Exact(q, k, v, mask).lse[:, :, 1], rtol=1e-5, atol=1e-4)
    v[..., 7, :], v[..., 555, 3] = np.nan, np.inf
    again = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    np.testing.assert_allclose(wide(again), wide(wanted.output), rtol=2 * roundoff(q.dtype), atol=1e-6)


# Decisions, on every processor ---------------------------------------------------------------------------------------


def listed(*args: Any, **kwargs: Any) -> list[Any]:
    return list(libraries.get("kernels").algorithms(problem_of(ATTENTION, *args, **kwargs), 2))


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    q, f = np.ones((1, 2, 64, 64), BF16), np.ones((1, 2, 64, 64), np.float32)
    for there, large in itertools.product((True, False), (True, False)):
        monkeypatch.setattr(attention_loops, "has_tiles", lambda size, there=there: there)
        found = listed(*[q.repeat(9, 1).repeat(9, 2) if large else q] * 3)
        if there:
            assert [x.threads for x in found] == ([2, 1] if large else [1])
        else:
            assert isinstance(found[0], Refusal) and "no AMX" in found[0].reason
    monkeypatch.setattr(attention_loops, "has_tiles", lambda size: True)
    memory = np.zeros(q.nbytes + 1, np.uint8)[1:].view(BF16).reshape(q.shape)
    for reason, call, more in (
        ("contiguous along the head dim", (q.swapaxes(2, 3), q, q), {}),
        ("no dropout", (q, q, q), {"dropout_p": 0.5, "seed": 0}), ("not aligned", (memory, q, q), {}),
    ):  # fmt: skip
        (refused,) = listed(*call, **more)
        assert isinstance(refused, Refusal) and reason in refused.reason, refused
    assert not listed(f, f, f) and not listed(*[f[:, :, :1]] * 3) and not listed(*[q.astype(np.float16)] * 3)
    monkeypatch.setattr(attention_loops, "has_tiles", lambda size: False)
    assert [x.threads for x in listed(q[:, :, :4], q, q)] == [1]
    long = np.broadcast_to(q[:, :, :1], (1, 2, 4096, 64))
    assert [x.threads for x in listed(q[:, :, :1], long, long)] == [2, 1]
