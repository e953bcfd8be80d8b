"""Results that are written part by part, where new memory holds numbers that would be seen: every element is written."""

from __future__ import annotations

import textwrap

import pytest

from support import POISON, python

HEAD = """
import ml_dtypes
import numpy as np
from backline import quantized
from backline.nn import functional as F, grad
rng = np.random.default_rng(0)
def draw(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)
def check(found, exact, allowed=1e-4):
    parts = found if isinstance(found, tuple) else (found,)
    wanted = exact if isinstance(exact, tuple) else (exact,)
    for part, right in zip(parts, wanted, strict=False):
        error = np.abs(np.asarray(part, np.float64) - np.asarray(right, np.float64)).max()
        assert error <= allowed * max(np.abs(np.asarray(right, np.float64)).max(), 1), error
def attend(q, k, v):
    s = np.einsum('qhe,khe->hqk', q, k) / q.shape[-1] ** 0.5
    p = np.exp(s - s.max(-1, keepdims=True, initial=0))
    return np.einsum('hqk,khe->qhe', p / np.maximum(p.sum(-1, keepdims=True), 1e-300), v)
ends = [0, 20, 20, 40, 100, 160]
parts = [slice(a, b) for a, b in zip(ends, ends[1:])]
"""
CASES = {
    "rms_norm": """
        for shape in ((3, 5), (300, 257), (2, 40_000)):
            x, w = draw(*shape), draw(shape[-1])
            check(F.rms_norm(x, shape[1:], w, eps=0.5), x / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + 0.5) * w)
    """,
    "varlen_attn": """
        q, k, v = (draw(160, 4, 32) for _ in 'qkv')
        exact = np.concatenate([attend(*(x[at].astype(float) for x in (q, k, v))) for at in parts])
        check(F.varlen_attn(q, k, v, ends), exact)
        keys = [0, 0, 30, 90, 160, 160]  # a sequence without queries, and two without keys
        found = F.varlen_attn(q, k, v, ends, keys, return_lse=True)
        for at, first, last in zip(parts, keys, keys[1:]):
            check(found.output[at], attend(*(x.astype(float) for x in (q[at], k[first:last], v[first:last])))) if at.stop > at.start else None
        assert np.isneginf(found.lse[:20]).all() and np.isneginf(found.lse[100:]).all() and np.isfinite(found.lse[20:100]).all()
    """,
    "varlen_attn_backward": """
        q, k, v, g = (draw(160, 4, 32) for _ in 'qkvg')
        each = [grad.scaled_dot_product_attention_backward(*(x[at].swapaxes(0, 1).astype(float) for x in (q, k, v, g))) for at in parts]
        exact = tuple(np.concatenate([one[i].swapaxes(0, 1) for one in each]) for i in range(3))
        check(tuple(grad.varlen_attn_backward(q, k, v, g, ends))[:3], exact)
        ends, keys = [0, 100, 160], [0, 0, 160]  # the queries of the first sequence have no keys
        found = grad.varlen_attn_backward(q, k, v, g, ends, keys)
        assert not found.query[:100].any() and all(np.isfinite(x).all() for x in found[:3])
    """,
    "scaled_mm": """
        a, b, bias = draw(200, 96).astype(ml_dtypes.float8_e4m3fn), draw(96, 130).astype(ml_dtypes.float8_e5m2), draw(130)
        left, right = abs(draw(200, 1)), abs(draw(1, 130))
        exact = a.astype(float) * left @ (b.astype(float) * right) + bias
        check(F.scaled_mm(a, b, left, 'RowWise', right, 'RowWise', bias=bias, output_dtype=np.float32), exact)
        check(F.scaled_mm(a, b, left, 'RowWise', right, 'RowWise'), exact - bias, 1e-2)
        assert not F.scaled_mm(a[:, :0], b[:0], left, 'RowWise', right, 'RowWise').any()
    """,
    "int_mm": """
        for k in (96, 3000):
            a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((200, k), (k, 130)))
            check(quantized.int_mm(a, b), a.astype(int) @ b.astype(int), 0)
        assert not quantized.int_mm(a[:, :0], b[:0]).any()
    """,
    "grouped_mm": """
        for stops in ([90, 90, 300], [0, 0, 0], [10, 200, 250]):
            a, b, offs = draw(300, 200), draw(3, 200, 60), np.array(stops)
            exact, turned, terms = np.zeros((300, 60)), np.zeros((60, 300)), np.zeros((3, 60, 60))
            for i, (first, last) in enumerate(zip([0, *stops], stops)):
                exact[first:last] = a[first:last].astype(float) @ b[i]
                turned[:, first:last] = exact[first:last].T
                terms[i] = a[first:last, :60].T.astype(float) @ a[first:last, 60:120]
            check(F.grouped_mm(a, b, offs=offs), exact)
            check(F.grouped_mm(b.swapaxes(1, 2), a.T, offs=offs), turned)
            check(F.grouped_mm(a[:, :60].T, a[:, 60:120], offs=offs), terms)
    """,
}


@pytest.mark.parametrize("case", CASES)
def test_every_element_is_written(case: str) -> None:
    python(HEAD + textwrap.dedent(CASES[case]), env=POISON)
