"""The switch `promote`: operands of several dtypes, and integers, as NumPy takes them; what is converted shows in `explain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, linalg, nn
from backline.errors import BadType, BadValue
from backline.nn import functional as F
from backline.nn import grad as G
from support import clean, dtype_of, rng, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

DTYPES = ("bool", "int8", "uint8", "int32", "uint64", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")


@pytest.fixture
def promoted(clean: None) -> Any:
    with backline.backends.flags(promote="numpy"):
        yield


def drawn(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Array:
    return rng.integers(0, 5, shape).astype(dtype_of(name))


@pytest.mark.parametrize("second", DTYPES)
@pytest.mark.parametrize("first", DTYPES)
def test_products_have_the_dtype_of_numpys(promoted: None, rng: np.random.Generator, first: str, second: str) -> None:
    a, b = drawn(rng, (4, 6), first), drawn(rng, (6, 3), second)
    try:
        dtype = np.result_type(a, b)
    except TypeError:  # float16 and bfloat16 have none
        with pytest.raises(BadType, match=r"matmul: operands have dtypes .* and"):
            backline.matmul(a, b)
        return
    wanted = a.astype(dtype) @ b.astype(dtype)
    for _ in range(2):  # the second one by the Memo
        result = backline.matmul(a, b)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, wanted)
    said = backline.explain().problem.converted
    assert len(said) == (a.dtype != dtype) + (b.dtype != dtype)
    assert backline.explain(backline.matmul, a, b).problem.converted == said
    np.testing.assert_array_equal(backline.einsum("ij,jk->ik", a, b), wanted)


def test_without_the_switch_the_error_says_how_to_get_it() -> None:
    a, b = np.eye(3), np.eye(3, dtype=np.float32)
    for call in (lambda: backline.matmul(a, b), lambda: backline.explain(backline.matmul, a, b), lambda: backline.einsum("ij,jk", a, b)):
        with pytest.raises(BadType, match=r"backends\.promote = 'numpy', which converts to float64"):
            call()
    with pytest.raises(BadType) as caught:  # nothing would help here
        linalg.inv(a.astype(np.float16))
    assert "promote" not in str(caught.value)


def test_the_conversion_is_in_explain_and_in_a_trace(promoted: None) -> None:
    a, b = np.eye(3, dtype=int), np.eye(3, dtype=np.float32)
    with backline.trace() as events:
        backline.matmul(a, b)
    assert events[0].choice.problem.converted == ("input i64 -> f64", "other f32 -> f64")
    text = str(backline.explain())
    assert "converted  input i64 -> f64, other f32 -> f64" in text and "promote = 'numpy'" in text
    backline.matmul(b, b)
    assert backline.explain().problem.converted == () and "converted" not in str(backline.explain())


def test_a_call_that_is_legal_is_not_touched(promoted: None) -> None:
    for dtype in ("int32", "bool", "float16", "float32"):
        a = np.eye(3, dtype=dtype)
        assert backline.matmul(a, a).dtype == a.dtype
    x = np.ones((2, 3), np.float16)
    assert F.layer_norm(x, 3, np.ones(3, np.float32)).dtype == np.float16  # parameters may be float32 beside it
    assert F.relu(np.array([-1, 2])).dtype == np.int64


def test_the_memo_has_such_calls_apart(promoted: None) -> None:
    a, b = np.eye(3, dtype=int), np.eye(3)
    backline.matmul(a, b), backline.matmul(b, b)
    before = _core.memo_info()["misses"]
    for _ in range(5):
        backline.matmul(a, b), backline.matmul(b, b)
    assert _core.memo_info()["misses"] == before
    with backline.backends.flags(promote="error"), pytest.raises(BadType):
        backline.matmul(a, b)


def test_layouts_and_views(promoted: None, rng: np.random.Generator) -> None:
    base, b = rng.integers(-9, 9, (8, 8)), rng.standard_normal((4, 4)).astype(np.float32)
    for a in (base[:4, :4].T, base[::2, ::2], base[3::-1, 3::-1], base[:4, :4].astype(">i4"), np.broadcast_to(base[0, :4], (4, 4)),
              np.asfortranarray(base[:4, :4]), base[:0, :4]):  # fmt: skip
        for _ in range(2):
            np.testing.assert_allclose(backline.matmul(a, b), a @ b.astype(float), rtol=1e-12, atol=1e-12)
    out = np.empty((4, 4))
    assert backline.matmul(base[:4, :4], b, out=out) is out
    np.testing.assert_allclose(out, base[:4, :4] @ b.astype(float))
    with pytest.raises(BadType, match="out has dtype float32"):
        backline.matmul(base[:4, :4], b, out=out.astype(np.float32))
    with pytest.raises(BadType, match="must be a NumPy array, not list"):
        backline.matmul([[1]], b)
    for strange in (np.ma.masked_array(base[:4, :4], base[:4, :4] > 0), base[:4, :4].view(np.matrix)):
        with pytest.raises(BadType, match="rules of its own"):
            backline.matmul(strange, b)
        with pytest.raises(BadType, match="rules of its own"):
            linalg.det(strange)
    for other in (base[:4, :4].astype(object), base[:4, :4].astype(str), base[:4, :4].astype("m8[s]")):
        with pytest.raises(BadType):
            backline.matmul(other, b)
    endless: list[Any] = [base]
    endless.append(endless)
    with pytest.raises(BadType, match="must be a NumPy array, not list"):
        backline.matmul(endless, b)
    with pytest.raises(BadValue, match="do not fit"):
        backline.matmul(base[:4, :3], b)


A = np.array([[4, 1, 0], [1, 5, 2], [0, 2, 6]])
LINALG: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "inv": (lambda: linalg.inv(A), lambda: np.linalg.inv(A)),
    "solve": (lambda: linalg.solve(A, np.ones(3, np.float32)), lambda: np.linalg.solve(A, np.ones(3))),
    "solve, by name": (lambda: linalg.solve(B=A, A=A.astype("f4")), lambda: np.linalg.solve(A, A)),
    "cholesky": (lambda: linalg.cholesky(A), lambda: np.linalg.cholesky(A)),
    "eigvalsh": (lambda: linalg.eigvalsh(A.astype(np.int8)), lambda: np.linalg.eigvalsh(A)),
    "svdvals": (lambda: linalg.svdvals(A > 1), lambda: np.linalg.svd((A > 1).astype(float), compute_uv=False)),
    "lstsq": (lambda: linalg.lstsq(A, np.ones((3, 1), "f4")).solution, lambda: np.linalg.lstsq(A, np.ones((3, 1)))[0]),
    "det": (lambda: linalg.det(A), lambda: np.linalg.det(A)),
    "pinv": (lambda: linalg.pinv(A), lambda: np.linalg.pinv(A)),
    "matrix_rank": (lambda: linalg.matrix_rank(A), lambda: np.linalg.matrix_rank(A)),
    "norm": (lambda: linalg.norm(A), lambda: np.linalg.norm(A)),
    "matrix_norm": (lambda: linalg.matrix_norm(A, 2), lambda: np.linalg.norm(A, 2)),
    "vector_norm": (lambda: linalg.vector_norm(A, 3, 0), lambda: np.linalg.norm(A, 3, 0)),
    "cond": (lambda: linalg.cond(A), lambda: np.linalg.cond(A)),
    "multi_dot": (lambda: linalg.multi_dot([A, A.astype("f4"), A]), lambda: np.linalg.multi_dot([A, A.astype("f4"), A])),
    "matrix_power": (lambda: linalg.matrix_power(A, -2), lambda: np.linalg.matrix_power(A.astype(float), -2)),
    "tensordot": (lambda: backline.tensordot(A, A.astype("f4"), 1), lambda: np.tensordot(A, A.astype("f4"), 1)),
    "lu_solve": (lambda: linalg.lu_solve(*linalg.lu_factor(A.astype(float)), A), lambda: np.eye(3) * 1.0),
    "addmm": (lambda: backline.addmm(np.ones(3, np.float16), A, A), lambda: A @ A + np.ones(3)),
    "vdot": (lambda: backline.vdot(A[0] * 1j, A[1]), lambda: np.vdot(A[0] * 1j, A[1])),
}


@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra_is_numpys(promoted: None, name: str) -> None:
    ours, theirs = LINALG[name]
    result, wanted = ours(), theirs()
    assert np.asarray(result).dtype == wanted.dtype
    np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)
    with backline.backends.flags(promote="error"), pytest.raises(BadType):
        ours()


def layers(rng: np.random.Generator) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Operations of layers and arguments whose arrays are all of one float dtype in a legal call."""
    x, w = rng.integers(-3, 4, (2, 3, 6, 6)), rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    q, v, m = (rng.standard_normal((2, 3, 4)) for _ in range(3))
    stack = (rng.standard_normal((4, 2)), rng.integers(0, 3, (4, 1)), np.full(4, 9, np.float32), np.zeros(4))
    seen = rng.random((3, 3)) < 0.7
    return {
        "conv2d": (F.conv2d, (x, w, np.ones(4))),
        "conv2d without a batch": (F.conv2d, (x[0], w)),
        "linear": (F.linear, (x[0, 0], rng.standard_normal((5, 6)).astype(np.float32), np.ones(5, np.float16))),
        "bilinear": (F.bilinear, (q, v.astype(np.float32), rng.integers(0, 3, (2, 4, 4)))),
        "softmax": (F.softmax, (x, 1)),
        "gelu": (F.gelu, (x,)),
        "layer_norm": (F.layer_norm, (x, 6, np.ones(6))),
        "batch_norm": (F.batch_norm, (x, np.zeros(3), np.ones(3))),
        "avg_pool2d": (F.avg_pool2d, (x, 2)),
        "attention": (F.scaled_dot_product_attention, (q.astype(np.float32), v, m, seen)),
        "multi_head_attention": (lambda *a: F.multi_head_attention(*a).output,
                                 (q, q, q, 2, rng.standard_normal((12, 4)).astype(np.float32), None, np.eye(4, dtype=int), None)),
        "lstm": (lambda *a: nn.lstm(*a)[0],
                 (rng.integers(0, 3, (3, 1, 2)), (np.zeros((1, 1, 1)),) * 2, stack, True, 1, 0.0, False, False, False)),
        "relu_input": (G.relu_input, (x, np.ones(x.shape, np.float32))),
        "layer_norm_backward": (lambda *a: G.layer_norm_backward(*a)[0], (x, np.ones(x.shape, np.float32), 6)),
        "conv2d_input": (G.conv2d_input, (x.shape, w, np.ones((2, 4, 4, 4)))),
        "max_pool2d_input": (G.max_pool2d_input, (x, np.ones((2, 3, 3, 3), np.float32), 2)),
        "linear_weight": (G.linear_weight, (x[0, 0], q[0, :1].repeat(6, 0))),
    }  # fmt: skip


LAYERS = list(layers(np.random.default_rng(0)))


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_of_converted_operands(promoted: None, rng: np.random.Generator, name: str) -> None:
    op, args = layers(rng)[name]

    def wide(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(wide, value))
        return value.astype(float) if isinstance(value, np.ndarray) and value.dtype != bool else value

    result, wanted = op(*args), op(*map(wide, args))
    if name == "batch_norm":
        assert backline.explain(op, *args).problem.converted == ("input i64 -> f64",)
    assert result.dtype == wanted.dtype == np.float64
    # The converted copies lie elsewhere in memory, and no library promises the same bits there.
    np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)
    with backline.backends.flags(promote="error"), pytest.raises(BadType):
        op(*args)


def test_statistics_that_are_written_to_are_never_converted(promoted: None) -> None:
    mean, var = np.zeros(3, np.float32), np.ones(3, np.float32)
    with pytest.raises(BadType, match="running_mean has dtype float32"):
        F.batch_norm(np.ones((4, 3)), mean, var, training=True)
    F.batch_norm(np.ones((4, 3), np.float32), mean, var, np.ones(3, np.float16), training=True)  # the weight is
    assert mean.tolist() != [0, 0, 0]


def test_one_array_stays_one(promoted: None) -> None:
    x, w, o = np.ones((1, 3, 4), np.float32), np.ones((12, 4)), np.ones((4, 4))
    said = backline.explain(F.multi_head_attention, x, x, x, 2, w, None, o, None).problem
    assert [p.role for p in said.operands] == ["query", "weight", "final_weight"] and said.converted[0] == "query f32 -> f64"
    with pytest.raises(BadType), backline.backends.flags(promote="error"):
        F.multi_head_attention(x, x, x, 2, w, None, o, None)


def test_contractions_of_every_form(promoted: None, rng: np.random.Generator) -> None:
    a, b, c = rng.integers(0, 5, (2, 3)), rng.standard_normal((3, 4)).astype(np.float32), rng.standard_normal((4, 2))
    wanted = a @ b.astype(float) @ c
    for _ in range(2):
        np.testing.assert_allclose(backline.einsum("ij,jk,kl->il", a, b, c), wanted)
        np.testing.assert_allclose(backline.einsum("ij,jk,kl->il", [a, b, c]), wanted)
        np.testing.assert_allclose(backline.einsum(a, [0, 1], b, [1, 2], c, [2, 3]), wanted)
    out = np.empty((2, 2))
    assert backline.einsum("ij,jk,kl->il", a, b, c, out=out) is out
    np.testing.assert_allclose(out, wanted)
    assert backline.explain("einsum", "ij,jk,kl->il", a, b, c).problem.converted == ("operand 0 i64 -> f64", "operand 1 f32 -> f64")
    assert backline.einsum("ij,ij->i", a, a.astype(np.int8)).dtype == np.int64


def test_packed_weights_keep_their_dtype(promoted: None) -> None:
    layer = F.prepack_linear(np.eye(3, dtype=np.float32))
    with pytest.raises(BadType, match="weight has dtype float32, input has float64") as caught:
        layer(np.eye(3))
    assert "promote" not in str(caught.value)
