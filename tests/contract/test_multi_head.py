"""Multi-head attention: both paths against formulas in float64, every form of mask, layout and projection, and who is asked."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.backends import cuda, flags, mha
from backline.errors import BadType, BadValue, NoKernel
from backline.libraries.base import Refusal
from backline.nn import functional as F
from support import LAYOUTS, arrays_in, clean, dtype_of, problem_of, rng, seed, wide

assert clean and rng and seed  # fixtures: imported to be found by pytest
Array = Any
pytestmark = pytest.mark.usefixtures("clean")
NAME = "nn.functional.multi_head_attention"
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 2e-5, "float64": 1e-12}


def weights(rng: np.random.Generator, size: int, dtype: str = "float64", keys: int = 0, values: int = 0) -> tuple[Any, ...]:
    """Projections in and out, with their biases; three apart where keys or values have other sizes."""

    def draw(*shape: int) -> Array:
        return (rng.standard_normal(shape) / size**0.5).astype(dtype_of(dtype))

    packed: Any = draw(3 * size, size)
    if keys or values:
        packed = (draw(size, size), draw(size, keys or size), draw(size, values or size))
    return packed, draw(3 * size), draw(size, size), draw(size)


def formula(
    query: Array, key: Array, value: Array, heads: int, weight: Any, bias: Any, out_weight: Array, out_bias: Any, taken: Any = None,
    added: Any = None,
) -> tuple[Array, Array]:  # fmt: skip
    """In float64, one query of one head after the other."""
    n, length, size = query.shape
    dim = size // heads
    parts = weight if isinstance(weight, tuple) else np.split(weight, 3)
    biases = np.split(wide(bias), 3) if bias is not None else [0] * 3
    q, k, v = (wide(x) @ wide(w).T + b for x, w, b in zip((query, key, value), parts, biases, strict=True))
    shape = (n, heads, length, key.shape[1])
    taken = np.broadcast_to(True if taken is None else taken, shape)
    added = np.broadcast_to(0.0 if added is None else wide(added), shape)
    attended, all_weights = np.zeros((n, length, size)), np.zeros(shape)
    for i, h, row in np.ndindex(n, heads, length):
        there = np.flatnonzero(taken[i, h, row] & (added[i, h, row] != -np.inf))
        if not there.size:
            continue
        here = slice(h * dim, (h + 1) * dim)
        scores = np.array([float(q[i, row, here] @ k[i, j, here]) / dim**0.5 + float(added[i, h, row, j]) for j in there])
        e = np.exp(scores - scores.max())
        all_weights[i, h, row, there] = e / e.sum()
        attended[i, row, here] = (e / e.sum()) @ v[i, there, here].astype(np.float64)
    result = attended @ wide(out_weight).T + (0 if out_bias is None else wide(out_bias))
    return result.astype(np.float64), all_weights


def by_each(*args: Any, op: str = NAME, **kwargs: Any) -> dict[str, Any]:
    """Name and result of every algorithm of every library, on one thread and two."""
    problem = problem_of(op, *args, **kwargs)
    arrays = builder(op)(*args, **kwargs)
    found = {}
    for name in libraries.names():
        library = libraries.get(name)
        if (library.families and "attention" not in library.families) or not library.available():
            continue
        for algorithm in library.algorithms(problem, 2):
            if not isinstance(algorithm, Refusal):
                found[f"{algorithm.key} x{algorithm.threads}"] = library.prepare(problem, algorithm)(*arrays_in(arrays, {}))
    return found


def builder(op: str) -> Any:
    from backline.ops import multi_head_checks

    return multi_head_checks.checked_as_torch if op.endswith("_forward") else multi_head_checks.checked


def near(result: Array, wanted: Array, dtype: str, what: str) -> None:
    assert result.dtype == dtype_of(dtype), what
    np.testing.assert_allclose(wide(result), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], err_msg=what)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(2, 5, 12, 3), (1, 1, 4, 1), (3, 40, 16, 16), (1, 130, 16, 2)])
def test_self_attention(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    n, length, size, heads = shape
    x, given = rng.standard_normal((n, length, size)).astype(dtype_of(dtype)), weights(rng, size, dtype)
    for some in (given, (given[0], None, given[2], None)):
        wanted, _ = formula(x, x, x, heads, *some)
        found = by_each(x, x, x, heads, *some)
        assert (dtype in ("float32", "float64")) == any("fused" in what for what in found)
        for what, result in found.items():
            near(result, wanted, dtype, what)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_keys_and_values(dtype: str, rng: np.random.Generator) -> None:
    x, y, z = (rng.standard_normal((2, n, 8)).astype(dtype) for n in (5, 7, 7))
    given = weights(rng, 8, dtype)
    for args in ((x, y, y), (x, y, z), (x, x, x.copy()), (y, y, z)):
        wanted, _ = formula(*args, 2, *given)
        found = by_each(*args, 2, *given)
        assert any("fused" in what for what in found)
        for what, result in found.items():
            near(result, wanted, dtype, what)
    apart = weights(rng, 8, dtype, keys=3, values=11)
    k, v = rng.standard_normal((2, 7, 3)).astype(dtype), rng.standard_normal((2, 7, 11)).astype(dtype)
    wanted, _ = formula(x, k, v, 4, *apart)
    found = by_each(x, k, v, 4, *apart)
    assert any("fused" in what for what in found)
    for what, result in found.items():
        near(result, wanted, dtype, what)


MASKS = ("padding", "attn", "attn of each head", "both", "floats", "both of floats", "causal", "causal with padding", "mixed")


def masks(rng: np.random.Generator, kind: str, n: int, heads: int, length: int, keys: int) -> tuple[dict[str, Any], Any, Any]:
    """Arguments, and what they say: where a key takes part, and what is added."""
    pad, attn, each = (rng.random(shape) < 0.3 for shape in ((n, keys), (length, keys), (n * heads, length, keys)))
    floats = rng.standard_normal((length, keys)).astype(np.float32)
    floats[rng.random(floats.shape) < 0.2] = -np.inf
    causal = np.tri(length, keys, dtype=bool)
    wide_pad = ~pad[:, None, None]
    return {
        "padding": ({"key_padding_mask": pad}, wide_pad, None),
        "attn": ({"attn_mask": attn}, ~attn, None),
        "attn of each head": ({"attn_mask": each}, ~each.reshape(n, heads, length, keys), None),
        "both": ({"key_padding_mask": pad, "attn_mask": attn}, ~attn & wide_pad, None),
        "floats": ({"attn_mask": floats}, None, floats),
        "both of floats": ({"attn_mask": floats, "key_padding_mask": floats[:n]}, None, floats + floats[:n, None, None]),
        "causal": ({"is_causal": True}, causal, None),
        "causal with padding": ({"is_causal": True, "key_padding_mask": pad}, causal & wide_pad, None),
        "mixed": ({"attn_mask": floats, "key_padding_mask": pad}, wide_pad, floats),
    }[kind]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_masks(kind: str, dtype: str, rng: np.random.Generator) -> None:
    n, heads, length = 3, 2, 9
    x, y = rng.standard_normal((n, length, 8)).astype(dtype), rng.standard_normal((n, 6, 8)).astype(dtype)
    given = weights(rng, 8, dtype)
    for args in ((x, x, x), (x, y, y)):
        more, taken, added = masks(rng, kind, n, heads, length, args[1].shape[1])
        wanted, all_weights = formula(*args, heads, *given, taken=taken, added=added)
        found = by_each(*args, heads, *given, **more)
        assert any("fused" in what for what in found), kind
        for what, result in found.items():
            near(result, wanted, dtype, f"{what}, {kind}")
        result = F.multi_head_attention(*args, heads, *given, need_weights=True, average_attn_weights=False, **more)
        near(result.output, wanted, dtype, kind)
        near(result.weights, all_weights, dtype, f"weights, {kind}")
        result = F.multi_head_attention(*args, heads, *given, need_weights=True, **more)
        near(result.weights, all_weights.mean(1), dtype, f"mean of the weights, {kind}")


def test_a_row_without_keys_gives_the_bias_and_what_is_masked_does_not_count(rng: np.random.Generator) -> None:
    x, given = rng.standard_normal((2, 5, 8)).astype(np.float32), weights(rng, 8, "float32")
    pad = np.zeros((2, 5), bool)
    pad[0] = True
    pad[1, 3:] = True
    x[1, 4] = np.nan
    wanted, _ = formula(np.nan_to_num(x), np.nan_to_num(x), np.nan_to_num(x), 2, *given, taken=~pad[:, None, None])
    for what, result in by_each(x, x, x, 2, *given, key_padding_mask=pad).items():
        near(result[0], np.broadcast_to(given[3], (5, 8)), "float32", what)
        near(result[1, :4], wanted[1, :4], "float32", what)
        assert np.isnan(result[1, 4]).all(), what


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, rng: np.random.Generator) -> None:
    x, given = rng.standard_normal((3, 6, 8)).astype(np.float32), weights(rng, 8, "float32")
    wanted, _ = formula(x, x, x, 2, *given)
    lay = LAYOUTS[layout]
    for args in ((lay(x), *given), (x, *(lay(a) for a in given)), (lay(x), *(lay(a) for a in given))):
        for what, result in by_each(args[0], args[0], args[0], 2, *args[1:]).items():
            near(result, wanted, "float32", f"{what}, {layout}")


def test_sequence_first(rng: np.random.Generator) -> None:
    """Neither that order nor the other costs a copy: the fused call takes both, and answers in the same."""
    x, given = rng.standard_normal((6, 3, 8)).astype(np.float32), weights(rng, 8, "float32")
    t = x.swapaxes(0, 1)
    wanted, all_weights = formula(t, t, t, 2, *given)
    args = (x, x, x, 8, 2, given[0], given[1], None, None, False, 0.5, given[2], given[3], False)
    found = by_each(*args, op=f"{NAME}_forward", need_weights=False)
    assert any("fused" in what for what in found)
    for what, result in found.items():
        near(result, wanted, "float32", what)
    output, none = F.multi_head_attention_forward(*args, None, False)
    near(output, wanted.swapaxes(0, 1), "float32", "forward")
    assert none is None and output.flags.c_contiguous
    output, mean = F.multi_head_attention_forward(*args)
    near(output, wanted.swapaxes(0, 1), "float32", "forward with weights")
    near(mean, all_weights.mean(1), "float32", "weights")
    single = F.multi_head_attention_forward(*(x[:, 0],) * 3, *args[3:])
    near(single.output, wanted[0], "float32", "without a batch")
    near(single.weights, all_weights[0].mean(0), "float32", "weights without a batch")


def test_what_is_appended_and_what_is_given_projected(rng: np.random.Generator) -> None:
    x, given = rng.standard_normal((2, 4, 8)), weights(rng, 8)
    t = x.swapaxes(0, 1)
    more = rng.standard_normal((2, 1, 1, 8))
    head = (t, t, t, 8, 2, given[0], given[1])
    tail = (0.0, given[2], given[3], False)
    k = x @ given[0][8:16].T + given[1][8:16]
    v = x @ given[0][16:].T + given[1][16:]
    causal = ~np.tri(4, 4, dtype=bool)
    for bias, zero in ((True, False), (False, True), (True, True)):
        keys = np.concatenate([k, *([more[0].repeat(2, 0)] if bias else []), *([np.zeros((2, 1, 8))] if zero else [])], 1)
        values = np.concatenate([v, *([more[1].repeat(2, 0)] if bias else []), *([np.zeros((2, 1, 8))] if zero else [])], 1)
        taken = np.pad(~causal, ((0, 0), (0, keys.shape[1] - 4)), constant_values=True)
        eye, none = (given[0][:8], np.eye(8), np.eye(8)), np.concatenate([given[1][:8], np.zeros(16)])
        wanted, all_weights = formula(x, keys, values, 2, eye, none, given[2], given[3], taken=taken)
        biases = (more[0], more[1]) if bias else (None, None)
        for masked in ({"attn_mask": causal}, {"attn_mask": causal, "is_causal": True}, {"attn_mask": np.where(causal, -np.inf, 0.0)}):
            result = F.multi_head_attention_forward(*head, *biases, zero, *tail, average_attn_weights=False, **masked)
            near(result.output, wanted.swapaxes(0, 1), "float64", str((bias, zero, *masked)))
            near(result.weights, all_weights, "float64", "weights")
    fixed = rng.standard_normal((2, 4, 7, 4))
    result = F.multi_head_attention_forward(*head, None, None, False, *tail, static_k=fixed[0], static_v=fixed[1])
    keys, values = (f.reshape(2, 2, 7, 4).transpose(0, 2, 1, 3).reshape(2, 7, 8) for f in fixed)
    wanted, _ = formula(x, keys, values, 2, eye, none, given[2], given[3])
    near(result.output, wanted.swapaxes(0, 1), "float64", "static")


def test_shapes_of_what_is_appended(rng: np.random.Generator) -> None:
    x, given = rng.standard_normal((4, 2, 8)), weights(rng, 8)
    k, v = rng.standard_normal((2, 8))
    head, tail = (x, x, x, 8, 2, given[0], given[1]), (False, 0.0, given[2], given[3])
    wanted = F.multi_head_attention_forward(*head, k.reshape(1, 1, 8), v.reshape(1, 1, 8), *tail)
    for shapes in (((8,), (8,)), ((1, 8), (1, 8)), ((8,), (1, 1, 8))):
        result = F.multi_head_attention_forward(*head, k.reshape(shapes[0]), v.reshape(shapes[1]), *tail)
        np.testing.assert_array_equal(result.output, wanted.output)
        np.testing.assert_array_equal(result.weights, wanted.weights)
    with pytest.raises(BadValue, match=r"bias_k has shape \(2, 4\), it must have \(1, 1, 8\)"):
        F.multi_head_attention_forward(*head, k.reshape(2, 4), v, *tail)


def test_is_causal_says_something_of_a_mask_that_is_there(rng: np.random.Generator) -> None:
    x, given = rng.standard_normal((4, 2, 8)), weights(rng, 8)
    args = (x, x, x, 8, 2, given[0], given[1], None, None, False, 0.0, given[2], given[3])
    for more in ({}, {"need_weights": False}, {"key_padding_mask": np.zeros((2, 4), bool)}):
        with pytest.raises(BadValue, match="Need attn_mask if specifying the is_causal hint"):
            F.multi_head_attention_forward(*args, is_causal=True, **more)
        mask = ~np.tri(4, dtype=bool)
        result = F.multi_head_attention_forward(*args, is_causal=True, attn_mask=mask, **more)
        np.testing.assert_array_equal(result.output, F.multi_head_attention_forward(*args, attn_mask=mask, **more).output)


def test_dropout_is_seeded_and_keeps_the_mean(rng: np.random.Generator) -> None:
    x, given = rng.standard_normal((1, 200, 8)), weights(rng, 8)
    args = (x, x, x, 2, *given)
    plain = F.multi_head_attention(*args, need_weights=True).weights
    once, again, other = (F.multi_head_attention(*args, dropout_p=0.5, seed=s, need_weights=True) for s in (1, 1, 2))
    np.testing.assert_array_equal(once.output, again.output)
    np.testing.assert_array_equal(once.weights, again.weights)
    assert not np.array_equal(once.weights, other.weights)
    assert abs(once.weights.sum() / plain.sum() - 1) < 0.05
    with pytest.raises(BadValue, match="dropout without a seed"):
        F.multi_head_attention(*args, dropout_p=0.5)


def test_empty(rng: np.random.Generator) -> None:
    given = weights(rng, 8)
    for n, length in ((0, 3), (2, 0)):
        x = np.zeros((n, length, 8))
        assert F.multi_head_attention(x, x, x, 2, *given).output.shape == x.shape
    x, none = np.ones((2, 3, 8)), np.ones((2, 0, 8))
    np.testing.assert_array_equal(F.multi_head_attention(x, none, none, 2, *given).output, np.broadcast_to(given[3], x.shape))


def test_the_switch_decides(rng: np.random.Generator) -> None:
    x, given = rng.standard_normal((2, 4, 8)).astype(np.float32), weights(rng, 8, "float32")
    args = (x, x, x, 2, *given)
    assert backline.explain(F.multi_head_attention, *args).algorithm == "fused"
    fast = F.multi_head_attention(*args).output
    assert backline.explain().algorithm == "fused"
    with mha.flags(fastpath=False):
        choice = backline.explain(NAME, *args)
        assert choice.algorithm == "composed" and choice.switches["mha.fastpath"][0] == "False"
        assert "mha.fastpath = False forbids" in str(choice)
        np.testing.assert_allclose(F.multi_head_attention(*args).output, fast, rtol=1e-5, atol=1e-6)
    slow = backline.explain(F.multi_head_attention_forward, x, x, x, 8, 2, given[0], given[1], None, None, False, 0.0, *given[2:])
    assert slow.algorithm == "composed" and "need_weights: the fused kernel never has" in str(slow)
    assert "no dropout" in str(backline.explain(NAME, *args, dropout_p=0.5, seed=1))
    assert "has float32 and float64" in str(backline.explain(NAME, *(a.astype(np.float16) if isinstance(a, np.ndarray) else a for a in args)))
    cuda.enable_flash_sdp(False)
    assert backline.explain(NAME, *args).algorithm == "composed"
    cuda.enable_flash_sdp(True)
    with flags(only=("mkl", "openblas")), mha.flags(fastpath=False), pytest.raises(NoKernel, match=r"mha\.fastpath"):
        F.multi_head_attention(*args)


def test_the_same_bits_again(rng: np.random.Generator) -> None:
    x, given = rng.standard_normal((4, 64, 64)).astype(np.float32), weights(rng, 64, "float32")
    for level in ("run", "threads"):
        with flags(deterministic=True, determinism_level=level):
            found = []
            for threads in (2, 2, 1) if level == "threads" else (2, 2):
                with backline.num_threads(threads):
                    found.append(F.multi_head_attention(x, x, x, 4, *given).output)
        assert all(np.array_equal(a, found[0]) for a in found), level


def test_plans_hold_no_copy_of_weights(rng: np.random.Generator) -> None:
    x, given = rng.standard_normal((2, 4, 8)).astype(np.float32), weights(rng, 8, "float32")
    F.multi_head_attention(x, x, x, 2, *given)
    given[0][...] = rng.standard_normal(given[0].shape)
    wanted, _ = formula(x, x, x, 2, *given)
    near(F.multi_head_attention(x, x, x, 2, *given).output, wanted, "float32", "after a change")


X = np.ones((2, 3, 4), np.float32)
W, B, O, C = np.ones((12, 4), np.float32), np.ones(12, np.float32), np.ones((4, 4), np.float32), np.ones(4, np.float32)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: F.multi_head_attention(X, X, X, 3, W, B, O, C), BadValue, "num_heads=3 does not divide the 4"),
    (lambda: F.multi_head_attention(X, X, X, 2.0, W, B, O, C), BadType, "num_heads is an int"),
    (lambda: F.multi_head_attention(X, X[0], X, 2, W, B, O, C), BadValue, "with a batch they have 3 axes, else 2"),
    (lambda: F.multi_head_attention(X, X[:1], X[:1], 2, W, B, O, C), BadValue, "do not fit"),
    (lambda: F.multi_head_attention(X, X, X.astype(float), 2, W, B, O, C), BadType, "dtypes float32, float32, float64"),
    (lambda: F.multi_head_attention(X, X, X, 2, W[1:], B, O, C), BadValue, r"in_proj_weight has shape \(11, 4\), it must have \(12, 4\)"),
    (lambda: F.multi_head_attention(X, X, X, 2, W.astype(float), B, O, C), BadType, "in_proj_weight has dtype float64"),
    (lambda: F.multi_head_attention(X, X, X, 2, (O, O), B, O, C), BadValue, "in_proj_weight has 2 arrays"),
    (lambda: F.multi_head_attention(X, X[..., :2], X, 2, W, B, O, C), BadValue, "4, 2 and 4 features"),
    (lambda: F.multi_head_attention(X, X, X, 2, W, B[1:], O, C), BadValue, "in_proj_bias has shape"),
    (lambda: F.multi_head_attention(X, X, X, 2, W, B, O[1:], C), BadValue, "out_proj_weight has shape"),
    (lambda: F.multi_head_attention(X, X, X, 2, W, B, O, C, key_padding_mask=np.ones((3, 3), bool)), BadValue, "key_padding_mask has shape"),
    (lambda: F.multi_head_attention(X, X, X, 2, W, B, O, C, attn_mask=np.ones((2, 3, 3), bool)), BadValue, r"or \(4, 3, 3\)"),
    (lambda: F.multi_head_attention(X, X, X, 2, W, B, O, C, attn_mask=np.ones((3, 3))), BadType, "attn_mask has dtype float64"),
    (lambda: F.multi_head_attention(X, X, X, 2, W, B, O, C, attn_mask=[[True]]), BadType, "attn_mask must be a NumPy array"),
    (lambda: F.multi_head_attention(X, X, X, 2, W, B, O, C, attn_mask=np.ones((3, 3), bool), is_causal=True), BadValue, "together"),
    (lambda: F.multi_head_attention(X, X, X, 2, W, B, O, C, need_weights=1), BadType, "need_weights is True or False"),
    (lambda: F.multi_head_attention(X, X, X, 2, W, B, O, C, dropout_p=1.5), BadValue, "dropout_p=1.5"),
    (lambda: F.multi_head_attention_forward(X, X, X, 5, 2, W, B, None, None, False, 0.0, O, C), BadValue, "embed_dim_to_check=5"),
    (lambda: F.multi_head_attention_forward(X, X, X, 4, 2, W, B, X[:1, :1], None, False, 0.0, O, C), BadValue, "bias_k without bias_v"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_wrong_arguments_are_named(number: int) -> None:
    call, kind, text = REFUSED[number]
    with pytest.raises(kind, match=text):
        call()


def test_names() -> None:
    for op in (F.multi_head_attention, F.multi_head_attention_forward, F.MultiHeadAttention):
        assert pickle.loads(pickle.dumps(op)) is op
