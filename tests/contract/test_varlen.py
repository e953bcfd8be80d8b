"""Attention over packed sequences of several lengths: each as if it were alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backline import backends
from backline.errors import BadType, BadValue
from backline.nn.functional import scaled_dot_product_attention as attend
from backline.nn.functional import varlen_attn
from backline.nn.grad import scaled_dot_product_attention_backward, varlen_attn_backward
from support import HALVES, clean, dtype_of, rng, seed

__all__ = ["clean", "rng", "seed"]

pytestmark = pytest.mark.usefixtures("clean")
Array = Any
LENGTHS = {
    "several": ([3, 3, 7, 1, 5], [3, 3, 7, 1, 5]), "other keys": ([4, 1, 3], [2, 6, 3]), "empty ones": ([0, 2, 0, 0, 3, 0], [1, 0, 0, 4, 2, 0]),
    "one": ([6], [9]), "alike": ([4, 4, 4], [5, 5, 5]), "none": ([], []),
}  # fmt: skip


def packed(rng: np.random.Generator, lengths: tuple[list[int], list[int]], dtype: Any, heads: tuple[int, int] = (2, 2)) -> list[Array]:
    (q, k), (many, few) = map(sum, lengths), heads
    return [rng.standard_normal(shape).astype(dtype) for shape in ((q, many, 8), (k, few, 8), (k, few, 6))]


def sequences(lengths: tuple[list[int], list[int]]) -> list[tuple[slice, slice]]:
    ends = [np.cumsum([0, *each]).tolist() for each in lengths]
    return [(slice(a, b), slice(c, d)) for a, b, c, d in zip(ends[0], ends[0][1:], ends[1], ends[1][1:], strict=False)]


def starts(lengths: list[int]) -> Array:
    return np.cumsum([0, *lengths])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64", *HALVES])
def test_every_sequence_is_as_alone(dtype: str, name: str, causal: bool, rng: np.random.Generator) -> None:
    lengths = LENGTHS[name]
    q, k, v = packed(rng, lengths, dtype_of(dtype), (4, 2))
    given: dict[str, Any] = {"scale": 0.3, "enable_gqa": True}
    positions = starts(lengths[0]), starts(lengths[1]).astype(np.int32)
    output, lse = varlen_attn(q, k, v, *positions, is_causal=causal, return_lse=True, **given)
    assert output.shape == (len(q), 4, 6) and output.dtype == q.dtype and lse.shape == (len(q), 4)
    assert varlen_attn(q, k, v, *map(list, positions), 50, 50, is_causal=causal, **given).tobytes() == output.tobytes()
    g = rng.standard_normal(output.shape).astype(q.dtype)
    found = varlen_attn_backward(q, k, v, g, *positions, is_causal=causal, **given)
    again = varlen_attn_backward(q, k, v, g, *positions, is_causal=causal, output=output, lse=lse, **given)
    assert found.attn_mask is None and [x.shape for x in found[:3]] == [x.shape for x in (q, k, v)]
    tolerance = 1e-12 if dtype == "float64" else 1e-5 if dtype == "float32" else 2.0**-6
    for rows, keys in sequences(lengths):
        n, m = rows.stop - rows.start, keys.stop - keys.start
        mask = np.tri(n, m, m - n, dtype=bool) if causal else None
        one = [x[at].swapaxes(0, 1).astype(np.float64) for x, at in ((q, rows), (k, keys), (v, keys))]
        wanted = attend(*one, mask, return_lse=True, **given)
        np.testing.assert_allclose(output[rows].swapaxes(0, 1).astype(np.float64), wanted.output, atol=tolerance)
        np.testing.assert_allclose(lse[rows].T.astype(np.float64), wanted.lse, atol=1e-5 if dtype != "float64" else 1e-12)
        slopes = scaled_dot_product_attention_backward(*one, g[rows].swapaxes(0, 1).astype(np.float64), mask, **given)
        for parts in (found, again):
            for got, want, at in zip(parts[:3], slopes[:3], (rows, keys, keys), strict=True):
                np.testing.assert_allclose(got[at].swapaxes(0, 1).astype(np.float64), want, atol=8 * tolerance)


def test_self_attention_names_its_positions_once(rng: np.random.Generator) -> None:
    q, k, v = packed(rng, ([2, 5], [2, 5]), np.float32)
    assert varlen_attn(q, k, v, [0, 2, 7]).tobytes() == varlen_attn(q, k, v, [0, 2, 7], [0, 2, 7]).tobytes()
    turned = [np.asfortranarray(x)[::-1] for x in (q, k, v)]
    np.testing.assert_allclose(varlen_attn(*turned, [0, 5, 7])[::-1], varlen_attn(q, k, v, [0, 2, 7]), atol=1e-6)


@pytest.mark.parametrize(("positions", "error", "text"), [
    ([0, 4, 3, 7], BadValue, "cu_seq_q decreases from 4 to 3, at index 2"), ([1, 7], BadValue, "goes from 1 to 7"),
    ([0, 6], BadValue, "goes from 0 to 6"), ([0, 8], BadValue, "goes from 0 to 8"), ([], BadType, "one axis of integers"),
    (np.array([], int), BadValue, "from nothing"), ([0.0, 7.0], BadType, "one axis of integers"), ([[0, 7]], BadType, "one axis of integers"),
    (7, BadType, "is int, not a NumPy array"), (None, BadType, "is NoneType"), ([0, -1, 7], BadValue, "decreases from 0 to -1"),
    ([False, True], BadType, "one axis of integers"),
])  # fmt: skip
def test_positions_that_no_array_has(positions: Any, error: type[Exception], text: str, rng: np.random.Generator) -> None:
    q, k, v = packed(rng, ([7], [7]), np.float32)
    with pytest.raises(error, match=text):
        varlen_attn(q, k, v, positions)
    with pytest.raises(error, match="varlen_attn_backward"):
        varlen_attn_backward(q, k, v, v, positions)


def test_what_else_is_refused(rng: np.random.Generator) -> None:
    q, k, v = packed(rng, ([7], [7]), np.float32)
    for given, error, text in (
        (((q, k, v, [0, 7], [0, 3, 7]), {}), BadValue, "1 sequences, cu_seq_k 2"), (((q, k, v, [0, 7], None, 6), {}), BadValue, "longer than the 6"),
        (((q, k, v, [0, 7], None, 7, 6), {}), BadValue, "longer than the 6"), (((q, k, v, [0, 7], None, 7.0), {}), BadType, "not an int"),
        (((q[0], k, v, [0, 7]), {}), BadValue, "rows of all sequences"), (((q, k, v[:3], [0, 7]), {}), BadValue, "rows of all sequences"),
        (((q, k[:, :1], v[:, :1], [0, 7]), {}), BadValue, "enable_gqa=True"), (((q, k.astype(np.float64), v, [0, 7]), {}), BadType, "one dtype"),
        (((q, k[..., :4], v, [0, 7]), {}), BadValue, "one head dim"), (((q, k, v, [0, 7]), {"is_causal": 1}), BadType, "is_causal"),
        (((q.astype(int), k, v, [0, 7]), {}), BadType, "not real floating"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            varlen_attn(*given[0], **given[1])
    output, lse = varlen_attn(q, k, v, [0, 7], return_lse=True)
    for more, error, text in (
        ({"output": output}, BadValue, "output without lse"), ({"output": output[1:], "lse": lse}, BadValue, "output has shape"),
        ({"output": output, "lse": lse.astype(np.float64)}, BadType, "lse has dtype"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            varlen_attn_backward(q, k, v, output, [0, 7], **more)
    with pytest.raises(BadValue, match="grad_output has shape"):
        varlen_attn_backward(q, k, v, q, [0, 7])


def test_dtypes_are_converted_where_that_is_allowed(rng: np.random.Generator) -> None:
    q, k, v = packed(rng, ([2, 3], [2, 3]), np.float32)
    with backends.flags(promote="numpy"):
        found = varlen_attn(q, k.astype(np.float64), v, np.array([0, 2, 5]))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, varlen_attn(q, k, v, [0, 2, 5]), atol=1e-5)
