"""Attention of MLX's arrays: the formula against float64 of NumPy, and the fused kernel with a Metal device that is played."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mlx_arrays import Core, agree, back, metal, mx, there

import backline
from backline.errors import NoKernel
from backline.nn.functional import scaled_dot_product_attention as attend
from backline.nn.grad import scaled_dot_product_attention_backward
from support import clean, dtype_of

pytestmark = pytest.mark.usefixtures("clean")
assert clean and metal

RNG = np.random.default_rng(10)
TAKEN = RNG.random((2, 3, 5, 7)) > 0.4
LENGTHS = [(5, 7), (7, 5), (6, 6), (1, 7), (7, 1), (12, 12)]


def draw(shape: tuple[int, ...], name: str = "float32") -> Any:
    return np.asarray(RNG.standard_normal(shape)).astype(dtype_of(name))


def qkv(queries: int, keys: int, name: str = "float32", *, lead: tuple[int, ...] = (2, 3), heads: int = 3, dim: int = 8) -> Any:
    shared = (*lead[:-1], heads) if lead else ()
    return draw((*lead, queries, dim), name), draw((*shared, keys, dim), name), draw((*shared, keys, dim), name)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_formula(lengths: Any, name: str) -> None:
    for causal in (False, True):
        agree(attend, *qkv(*lengths, name), is_causal=causal, dtype=name)
        agree(attend, *qkv(*lengths, name), is_causal=causal, scale=-0.3, dtype=name)
        agree(attend, *qkv(*lengths, name, lead=(2, 6)), is_causal=causal, enable_gqa=True, dtype=name)
    for shape in ((), lengths, (3, 1, lengths[1]), (2, 1, *lengths)):
        agree(attend, *qkv(*lengths, name), np.asarray(RNG.random(shape) > 0.3), dtype=name)
        agree(attend, *qkv(*lengths, name), draw(shape, name), dtype=name)


@pytest.mark.parametrize("lead", [(), (3,), (2, 2, 3), (0, 3)], ids=str)
def test_any_rank(lead: Any) -> None:
    given = qkv(5, 7, lead=lead)
    for causal in (False, True):
        agree(attend, *given, is_causal=causal)


def test_rows_and_keys_that_are_masked() -> None:
    q, k, v = qkv(5, 7)
    taken = TAKEN.copy()
    taken[..., 2, :] = False
    result = agree(attend, q, k, v, taken)
    assert not result[..., 2, :].any()
    agree(attend, q, k, v, np.where(taken, np.float32(0.5), np.float32(-np.inf)))
    for value in (np.nan, np.inf, -np.inf):  # in keys that take part for some of the queries only
        spoilt = v.copy()
        spoilt[..., 4, 1] = value
        agree(attend, q, k, spoilt, taken)
        agree(attend, q, k, spoilt, is_causal=True)
        everywhere = taken.copy()
        everywhere[..., 4] = False
        spoilt_key = k.copy()
        spoilt_key[..., 4, :] = value
        agree(attend, q, spoilt_key, spoilt, everywhere)


def test_large_scores_and_nothing() -> None:
    q, k, v = qkv(5, 7)
    agree(attend, q * 1e4, k * 1e4, v, times=1e5)
    agree(attend, *qkv(0, 7))
    agree(attend, *qkv(5, 0))
    agree(attend, *qkv(1, 1, dim=1))


def test_dropout_is_that_of_numpy() -> None:
    agree(attend, *qkv(5, 7), dropout_p=0.5, seed=3)
    agree(attend, *qkv(5, 7), dropout_p=1.0, seed=3)


def test_a_mask_takes_its_place_in_the_call() -> None:
    q, k, v = qkv(5, 7)
    agree(attend, attn_mask=TAKEN, value=v, key=k, query=q)


# The fused kernel ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_fused_kernel(lengths: Any, name: str, metal: Core) -> None:
    for causal in (False, True):
        agree(attend, *qkv(*lengths, name), is_causal=causal, dtype=name)
        assert backline.explain().algorithm == "flash_attention"
        # MLX's own "causal" is aligned to the lower right corner.
        mask = metal.fast.masks[-1]
        assert mask is None if not causal else mask == "causal" if lengths[0] == lengths[1] else mask.shape == lengths
        agree(attend, *qkv(*lengths, name, lead=(2, 6)), is_causal=causal, enable_gqa=True, dtype=name)
        agree(attend, *qkv(*lengths, name, lead=(2, 2, 3)), is_causal=causal, dtype=name)
        agree(attend, *qkv(*lengths, name, lead=()), is_causal=causal, dtype=name)
        assert backline.explain().algorithm == "flash_attention"


def test_rows_that_are_masked_are_zeros_there_too(metal: Core) -> None:
    q, k, v = qkv(5, 7)
    taken = TAKEN.copy()
    taken[..., 2, :] = False
    for mask in (taken, np.where(taken, np.float32(0.5), np.float32(-np.inf)), taken[0, 0], np.zeros((1, 1), bool)):
        agree(attend, q, k, v, mask)
        assert backline.explain().algorithm == "flash_attention"
    agree(attend, *qkv(5, 7, lead=(2, 2, 3)), np.broadcast_to(taken, (2, 2, 3, 5, 7)).copy())
    assert "mask leaves its key out" in str(backline.explain())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"dim": 16}, "no fused kernel is available"),
        ({"dropout_p": 0.5, "seed": 1}, "may be no dropout"),
        ({"name": "float16", "attn_mask": np.zeros((5, 7), np.float32)}, "masks are of bool or float16"),
        ({"keys": 0}, "nothing to attend to"),
    ],
    ids=str,
)  # fmt: skip
def test_where_it_is_refused_the_formula_runs(given: dict[str, Any], why: str, metal: Core) -> None:
    shape = {key: given[key] for key in ("dim", "name") if key in given}
    call = {key: given[key] for key in given if key not in (*shape, "keys")}
    agree(attend, *qkv(5, given.get("keys", 7), **shape), **call)
    choice = backline.explain()
    assert choice.algorithm == "math"
    assert why in next(c.reason for c in choice.candidates if c.algorithm == "flash_attention")


def test_switches_of_the_kernels_decide(metal: Core) -> None:
    q, k, v = map(there, qkv(5, 7))
    with backline.nn.attention.sdpa_kernel(backline.nn.attention.SDPBackend.MATH):
        assert backline.explain(attend, q, k, v).algorithm == "math"
    with backline.backends.mps.flags(enabled=False):
        assert backline.explain(attend, q, k, v).algorithm == "math_cpu"
    assert backline.explain(attend, q, k, v).algorithm == "flash_attention"


def test_gradients() -> None:
    taken = TAKEN.copy()
    taken[..., 2, :] = False
    added = np.where(taken, np.float32(0.5), np.float32(-np.inf))[:1]
    for options in ({}, {"is_causal": True}, {"attn_mask": taken}, {"attn_mask": added}, {"scale": -0.3}, {"dropout_p": 0.3, "seed": 4}):
        q, k, v = qkv(5, 7)
        g = draw((2, 3, 5, 8))
        with backline.use("numpy", only=True):
            wanted = scaled_dot_product_attention_backward(*(x.astype(np.float64) for x in (q, k, v, g)), **options)
        given = {name: there(value) for name, value in options.items()}
        found = scaled_dot_product_attention_backward(*map(there, (q, k, v, g)), **given)
        assert backline.explain().library == "mlx" and backline.explain().algorithm.startswith("math")
        for one, expected in zip(found, wanted, strict=True):
            if expected is None:
                assert one is None
            else:
                assert np.abs(back(one) - expected).max() <= 2e-6 * max(1.0, np.abs(expected).max())
    shared = qkv(5, 7, lead=(2, 6))
    found = scaled_dot_product_attention_backward(*map(there, (*shared, shared[0])), enable_gqa=True)
    wanted = scaled_dot_product_attention_backward(*(x.astype(np.float64) for x in (*shared, shared[0])), enable_gqa=True)
    for one, expected in zip(found[:3], wanted[:3], strict=True):
        assert one.shape == expected.shape and np.abs(back(one) - expected).max() <= 2e-6 * max(1.0, np.abs(expected).max())


def test_refusals() -> None:
    q, k, v = map(there, qkv(5, 7))
    with pytest.raises(NoKernel, match="not of float64"):
        attend(*(x.astype(mx.float64) for x in (q, k, v)))
    choice = backline.explain(attend, q, k, v)
    why = {c.algorithm: c.reason for c in choice.candidates if c.verdict == "refused"}
    assert why["flash_attention"] == "MLX has no Metal device here" and "cuda" in why["cudnn_attention"]
    slope = mx.grad(lambda x: mx.sum(attend(x, k, v, is_causal=True)))(q)
    assert np.isfinite(back(slope)).all()
