"""The log-sum-exp of attention, and gradients that are given it, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline.errors import BadType, BadValue
from backline.nn.functional import AttentionLSE
from backline.nn.functional import scaled_dot_product_attention as attend
from backline.nn.grad import scaled_dot_product_attention_backward as gradients
from support import HALVES, clean, dtype_of, rng, roundoff, run_each, seed

__all__ = ["clean", "rng", "seed"]

OP = "nn.functional.scaled_dot_product_attention"
DTYPES = ("float32", "float64", *HALVES)
KINDS = ("full", "causal", "bool", "added", "shared", "more values")
Array = Any

pytestmark = pytest.mark.usefixtures("clean")


def case(rng: np.random.Generator, kind: str, dtype: Any, queries: int = 37, keys: int = 41) -> tuple[list[Array], dict[str, Any]]:
    """Query, key and value, and the other arguments; with a mask some queries may attend to no key."""
    shapes = {
        "shared": ((2, 4, queries, 8), (2, 2, keys, 8), (2, 2, keys, 6)), "more values": ((1, 2, queries, 8), (1, 2, keys, 8), (3, 2, keys, 6)),
    }.get(kind, ((2, 2, queries, 8), (2, 2, keys, 8), (2, 2, keys, 6)))  # fmt: skip
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    given: dict[str, Any] = {"causal": {"is_causal": True}, "shared": {"enable_gqa": True, "scale": -0.4}}.get(kind, {})
    taken = rng.random((2, 1, queries, keys)) < 0.6
    taken[:, :, ::5] = False
    if kind == "bool":
        given["attn_mask"] = taken
    if kind == "added":
        given["attn_mask"] = np.where(taken, rng.standard_normal(taken.shape), -np.inf).astype(dtype)
    return arrays, given


def expected(arrays: list[Array], given: dict[str, Any]) -> tuple[Array, Array]:
    """The log-sum-exp in float64, and the largest score of each row by size."""
    q, k, v = (x.astype(np.float64) for x in arrays)
    if given.get("enable_gqa"):
        k = np.repeat(k, q.shape[1] // k.shape[1], 1)
    scale = given.get("scale", q.shape[-1] ** -0.5)
    scores = q @ k.swapaxes(-1, -2) * scale
    size = np.abs(q) @ np.abs(k).swapaxes(-1, -2) * abs(scale)
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        mask = np.tri(*scores.shape[-2:], dtype=bool)
    if mask is not None and mask.dtype != bool:
        scores = scores + mask.astype(np.float64)
        size = size + np.nan_to_num(np.abs(mask.astype(np.float64)), posinf=0)
    elif mask is not None:
        scores = np.where(mask, scores, -np.inf)
    lead = np.broadcast_shapes(q.shape[:-2], v.shape[:-2] if not given.get("enable_gqa") else q.shape[:-2])
    with np.errstate(all="ignore"):
        found = np.logaddexp.reduce(scores, axis=-1)
    return np.broadcast_to(found, (*lead, q.shape[-2])), size.max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", ["openblas", "mkl", "numpy"])
def test_close_to_float64(library: str, dtype: str, kind: str, rng: np.random.Generator) -> None:
    arrays, given = case(rng, kind, dtype_of(dtype))
    wanted, size = expected(arrays, given)
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    plain = dict(run_each(library, OP, *arrays, **given))
    ran = 0
    for name, (output, lse) in run_each(library, OP, *arrays, **given, return_lse=True):
        assert lse.dtype == (np.float64 if dtype == "float64" else np.float32) and lse.shape == output.shape[:-1] == wanted.shape
        none = np.isneginf(wanted)
        assert (np.isneginf(lse) == none).all() and none.any() == (kind in ("bool", "added")), name
        bound = unit * (8 * 8**0.5 * size + 4 * 41**0.5 + 32 + 4 * np.abs(wanted[~none]))
        assert (np.abs(lse[~none].astype(np.float64) - wanted[~none]) <= bound).all(), name
        assert output.tobytes() == plain[name].tobytes(), "the output has the bits that it has alone"
        ran += 1
    assert ran


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_from_it_are_those_without_it(dtype: str, kind: str, rng: np.random.Generator) -> None:
    arrays, given = case(rng, kind, dtype_of(dtype))
    wide = [x.astype(np.float64) for x in arrays]
    more = {name: x.astype(np.float64) if name == "attn_mask" and x.dtype != bool else x for name, x in given.items()}
    attended = attend(*arrays, **given, return_lse=True)
    assert type(attended) is AttentionLSE
    grad = rng.standard_normal(attended.output.shape).astype(dtype_of(dtype))
    found = gradients(*arrays, grad, **given, output=attended.output, lse=attended.lse)
    wanted = gradients(*wide, grad.astype(np.float64), **more)
    for got, want in zip(found, wanted, strict=True):
        if want is None:
            assert got is None
            continue
        assert got.shape == want.shape and got.dtype == arrays[0].dtype
        # Sums of at most some thousand terms of the size of the largest, and the rounding of the result.
        unit = (2.0**-53 if dtype == "float64" else 2.0**-24) * 4000 + roundoff(got.dtype)
        np.testing.assert_allclose(got.astype(np.float64), want, atol=unit * (1 + np.abs(want).max()), rtol=0)


def test_dropout_keeps_the_same_weights(rng: np.random.Generator) -> None:
    arrays, _ = case(rng, "full", np.float64)
    output, lse = attend(*arrays, dropout_p=0.3, seed=5, return_lse=True)
    assert output.tobytes() == attend(*arrays, dropout_p=0.3, seed=5).tobytes()
    grad = rng.standard_normal(output.shape)
    found = gradients(*arrays, grad, dropout_p=0.3, seed=5, output=output, lse=lse)
    for got, want in zip(found[:3], gradients(*arrays, grad, dropout_p=0.3, seed=5)[:3], strict=True):
        np.testing.assert_allclose(got, want, atol=1e-11)


def test_keys_that_take_no_part_stay_out(rng: np.random.Generator) -> None:
    (q, k, v), _ = case(rng, "full", np.float32)
    mask = np.arange(41) < 30
    wanted = attend(q, k[..., :30, :], v[..., :30, :], return_lse=True)
    k[..., 30:, :], v[..., 33:, :] = np.nan, np.inf
    found = attend(q, k, v, mask, return_lse=True)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    grad = np.ones_like(found.output)
    slopes = gradients(q, k, v, grad, mask, output=found.output, lse=found.lse)
    assert all(np.isfinite(x).all() for x in slopes[:3]) and not slopes.key[..., 30:, :].any()


def test_scores_that_are_no_numbers_show() -> None:
    x = np.array([[np.nan, 1.0], [1.0, 1.0]])
    output, lse = attend(x, x, x, return_lse=True)
    assert np.isnan(lse).all() and np.isnan(output).all()
    output, lse = attend(x[1:], x, x, np.array([[False, True]]), return_lse=True)
    assert lse == pytest.approx(2**0.5) and (output == 1).all()


@pytest.mark.parametrize(("queries", "keys", "dim", "width"), [(0, 3, 2, 2), (3, 0, 2, 2), (3, 4, 0, 2), (3, 4, 2, 0), (0, 0, 0, 0)])
def test_empty_arrays(queries: int, keys: int, dim: int, width: int) -> None:
    q, k, v = np.ones((2, queries, dim)), np.ones((2, keys, dim)), np.ones((2, keys, width))
    output, lse = attend(q, k, v, return_lse=True)
    assert output.shape == (2, queries, width) and lse.shape == (2, queries)
    wanted = np.log(keys) + (dim**0.5 if dim else 0.0) if keys else -np.inf
    np.testing.assert_allclose(lse, np.full((2, queries), wanted))
    found = gradients(q, k, v, np.ones_like(output), output=output, lse=lse)
    assert [x.shape for x in found[:3]] == [q.shape, k.shape, v.shape]


def test_no_batch_and_strided_operands(rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((9, 16))[::-1, ::2] for _ in range(3))
    output, lse = attend(q, k, v, return_lse=True)
    scores = q @ k.T * 8**-0.5
    np.testing.assert_allclose(lse, np.logaddexp.reduce(scores, -1), rtol=1e-12)
    turned = np.asfortranarray(output)
    apart = np.repeat(lse, 2)[::2]
    for got, want in zip(gradients(q, k, v, q, output=turned, lse=apart)[:3], gradients(q, k, v, q)[:3], strict=True):
        np.testing.assert_allclose(got, want, atol=1e-12)


def test_what_does_not_fit_is_refused() -> None:
    x = np.ones((2, 3, 4), np.float16)
    output, lse = attend(x, x, x, return_lse=True)
    for given, error, text in (
        ({"output": output}, BadValue, "output without lse"), ({"lse": lse}, BadValue, "lse without output"),
        ({"output": output[:1], "lse": lse}, BadValue, "output has shape"), ({"output": output, "lse": lse[..., None]}, BadValue, "lse has shape"),
        ({"output": output.astype(np.float32), "lse": lse}, BadType, "output has dtype"),
        ({"output": output, "lse": lse.astype(np.float64)}, BadType, "lse has dtype"), ({"output": [1], "lse": lse}, BadType, "output must be"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            gradients(x, x, x, x, **given)
    with pytest.raises(BadType, match="return_lse"):
        attend(x, x, x, return_lse=1)  # type: ignore[call-overload]  # an integer is refused, also where nobody checks types


def test_problems_tell_and_read_it() -> None:
    x = np.ones((2, 3, 4), np.float32)
    problem = backline.explain(attend, x, x, x, return_lse=True).problem
    assert "return_lse=True" in problem.key and str(type(problem).parse(problem.key)) == problem.key
    assert "return_lse" not in backline.explain(attend, x, x, x).problem.key
