"""Steps between products on CUDA arrays, and operations made of others there: computed by CuPy's stand-in.

The C++ of the kernels is compiled for the CPU, so its numbers are compared with those of NumPy in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, fft, linalg, switches
from backline.errors import BadAxis, BadType, BadValue, NoKernel
from backline.libraries.cuda.common import elementwise_kernels
from backline.libraries.reference.array_namespaces import PIECES
from backline.nn import functional as F
from backline.nn import grad as G
from backline.problems.neural_problem import ELEMENTARY
from fakes.cupy_standin import ndarray
from fakes.gpu_machine import GpuMachine
from fakes.solver_machine import real_types
from gpu.layers import EQUATIONS, layers
from support import clean, dtype_of

real_types()
pytestmark = pytest.mark.usefixtures("clean", "machine")
assert clean

HALVES, FLOATS = ("float16", "bfloat16"), ("float32", "float64", "complex64", "complex128")
NEAR = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 4e-6, "float64": 1e-13, "complex64": 4e-6, "complex128": 1e-13}


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype_of(dtype))


def there(value: Any) -> Any:
    if isinstance(value, list):
        return [there(v) for v in value]
    return ndarray(value) if isinstance(value, np.ndarray) else value


def wide(value: Any) -> Any:
    if isinstance(value, list):
        return [wide(v) for v in value]
    if not isinstance(value, np.ndarray):
        return value
    return value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)


def parts(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)


def same(function: Any, *args: Any, times: float = 1, dtype: Any = None, **kwargs: Any) -> None:
    """A call on the device against the same on the host in float64."""
    found = function(*map(there, args), **kwargs)
    expected = function(*map(wide, args), **kwargs)
    first = next(a for v in args for a in (v if isinstance(v, list) else [v]) if isinstance(a, np.ndarray))
    for got, want in zip(parts(found), parts(expected), strict=True):
        assert type(got) is ndarray and got.shape == np.shape(want), function
        if got.dtype.kind in "fcV" and dtype is None and not isinstance(found, tuple):
            assert got.dtype in (first.dtype, first.real.dtype), function
        host, bound = wide(got.host), times * NEAR[first.dtype.name]
        np.testing.assert_allclose(host, np.asarray(want, host.dtype), rtol=bound, atol=bound, err_msg=str(function))


LAYOUTS = {
    "C": lambda a: a,
    "F": np.asfortranarray,
    "backwards": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "steps": lambda a: np.ascontiguousarray(np.repeat(a, 2, -1))[..., ::2],
}


@pytest.mark.parametrize(("dtype", "layout"), [(d, "C") for d in (*HALVES, *FLOATS[:2])] + [("float32", lay) for lay in list(LAYOUTS)[1:]])
def test_layers(dtype: str, layout: str) -> None:
    for function, *args in layers(dtype):
        given = [LAYOUTS[layout](a) if isinstance(a, np.ndarray) and a.ndim > 2 else a for a in args]
        # A mean is rounded, and so are its differences; a half that is nearly the maximum of a window is not it.
        same(function, *given, times=4 if dtype in HALVES else 2)


def test_layers_neither_wait_for_the_device_nor_upload_anything(made: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [(function, [there(a) for a in args]) for function, *args in layers("bfloat16")]
    for function, args in calls:
        function(*args)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("something crosses over in a call that is like an earlier one")

    for where, names in ((made.cupy, ("asarray", "array", "asnumpy")), (ndarray, ("get", "__bool__", "__float__", "__int__"))):
        for name in names:
            monkeypatch.setattr(where, name, refuse)
    for function, args in calls:
        function(*args)


def test_two_kernels_of_one_name_are_two(made: GpuMachine) -> None:
    one, other = (elementwise_kernels.Kernel("T x", "T y", f"y = x + {n};") for n in (1, 2))
    assert elementwise_kernels.made("same", one) is elementwise_kernels.made("same", one)
    assert elementwise_kernels.made("same", one) is not elementwise_kernels.made("same", other)


def test_kernels_are_made_once(made: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = there(numbers((2, 4, 6, 5), "float32")), there(numbers((4, 1, 3, 3), "float32", 1))
    with switches.scope({"cudnn.enabled": False}):
        F.conv2d(x, w, groups=4)
        monkeypatch.setattr(made.cupy, "ElementwiseKernel", None)
        F.conv2d(x, w, groups=4)
    assert backline.explain().algorithm == "depthwise"


@pytest.mark.parametrize("dtype", [*HALVES, "float32", "float64"])
def test_nasty_numbers(dtype: str) -> None:
    kind = dtype_of(dtype)
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 80.0, -80.0, 1e-4, -6e-5, 20.0, -20.0], np.float64).astype(kind)
    g = np.ones_like(x)
    for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
        same(getattr(F, name), x)
        same(getattr(G, f"{name}_input"), x, g)
    for name in ELEMENTARY:
        same(getattr(backline, name), np.asarray(x / kind.type(8), kind))  # exp(10) is a number of float16
    rows = np.array([[1.0, np.inf], [np.nan, 0.0], [-np.inf, 1.0], [-np.inf, -np.inf], [30000.0, -30000.0]], np.float64).astype(kind)
    for name in ("softmax", "log_softmax"):
        same(getattr(F, name), rows, 1)
    same(F.layer_norm, rows, 2)
    image = np.array([[[1.0, np.nan, 3.0, -np.inf, np.inf, 2.0]]], np.float64).astype(kind)
    same(F.max_pool1d, image, 2)
    same(F.max_pool1d, image, 3, 1, 1)
    same(G.max_pool1d_input, image, np.ones((1, 1, 3)).astype(kind), 2)


def test_nothing_and_one() -> None:
    for shape in ((0, 4, 6, 5), (2, 0, 6, 5), (1, 1, 6, 5)):
        x = np.zeros(shape, np.float32)
        for function, *args in ((F.relu,), (F.softmax, 1), (F.layer_norm, 5), (F.max_pool2d, 2), (F.avg_pool2d, 2), (F.gelu,)):
            same(function, x, *args)
        same(G.layer_norm_backward, x, x, 5)
        same(F.batch_norm, x, np.zeros(shape[1], np.float32), np.ones(shape[1], np.float32))
    same(F.batch_norm, np.zeros((0, 4, 2), np.float32), None, None, training=True)


@pytest.mark.parametrize("dtype", [*HALVES, "float32"])
def test_running_statistics_are_updated_on_the_device(dtype: str) -> None:
    x = numbers((3, 4, 5), dtype)
    mean, variance = there(np.zeros(4, np.float32)), there(np.ones(4, np.float32))
    host = np.zeros(4, np.float32), np.ones(4, np.float32)
    F.batch_norm(there(x), mean, variance, training=True)
    F.batch_norm(x, *host, training=True)
    np.testing.assert_allclose(mean.host, host[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance.host, host[1], rtol=1e-5)
    with pytest.raises(BadType, match=r"input is an array of CuPy and running_mean is an array of NumPy"):
        F.batch_norm(there(x), *host, training=True)


@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_of_formulas_are_what_numpy_computes(name: str, dtype: str) -> None:
    kernel = elementwise_kernels.kernel(name)
    count = len(elementwise_kernels.KERNELS[name].inputs.split(","))
    arrays = [numbers((5, 7), dtype), *(numbers((5, 1), dtype, i) for i in range(1, count))]
    np.testing.assert_allclose(kernel(*map(there, arrays)).host, PIECES[name](np, *arrays), rtol=1e-5 if dtype == "float32" else 1e-14)


def test_dropout_drops_the_same_elements_as_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = np.random.default_rng(3), np.random.default_rng(3)
    for dtype in (*HALVES, "float32", "float64"):
        x = numbers((40, 7), dtype)
        assert np.array_equal(F.dropout(there(x), 0.4, seed=ours).host, F.dropout(x, 0.4, seed=theirs))
        assert np.array_equal(F.dropout(there(x.T), 0.4, seed=5).host, F.dropout(x.T, 0.4, seed=5))
    for lanes in (1, 3, 100):
        monkeypatch.setattr(elementwise_kernels, "LANES", lanes)
        x = numbers((9, 29), "float32")
        assert np.array_equal(F.dropout(there(x), 0.4, seed=lanes).host, F.dropout(x, 0.4, seed=lanes))
    assert ours.random() == theirs.random()
    for generator in (ours, theirs):
        generator.integers(0, 10, 3, dtype=np.uint32)  # leaves half a number over
    x = numbers((5, 3), "float32")
    assert np.array_equal(F.dropout(there(x), 0.4, seed=ours).host, F.dropout(x, 0.4, seed=theirs))
    assert ours.integers(0, 1000, 5, dtype=np.uint32).tolist() == theirs.integers(0, 1000, 5, dtype=np.uint32).tolist()
    assert F.dropout(there(x.reshape(15)[0:1].reshape(())), 0.5, seed=1).shape == ()
    x = there(numbers((4, 4), "float32"))
    assert np.array_equal(F.dropout(x, training=False).host, x.host) and not np.shares_memory(F.dropout(x, 0.0).host, x.host)
    with pytest.raises(BadType, match="PCG64"):
        F.dropout(x, seed=np.random.Generator(np.random.MT19937(1)))


# Linear layers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*HALVES, "float32", "float64"])
def test_what_follows_a_product(dtype: str) -> None:
    x, weight, bias, residual = (numbers(s, dtype, i) for i, s in enumerate(((2, 3, 4), (5, 4), (5,), (2, 3, 5))))
    for activation, more in (("gelu", {}), ("silu", {"residual": residual}), ("tanh", {}), ("sigmoid", {"residual": residual})):
        for given in (None, bias):
            expected = F.linear(wide(x), wide(weight), wide(given), activation=activation, **{k: wide(v) for k, v in more.items()})
            for out in (None, np.zeros((2, 3, 5), x.dtype)[:, ::-1]):
                named = {k: there(v.copy()) for k, v in more.items()} | ({} if out is None else {"out": there(out)})
                found = F.linear(there(x), there(weight), there(given), activation=activation, **named)
                np.testing.assert_allclose(wide(found.host), expected, rtol=2 * NEAR[dtype], atol=2 * NEAR[dtype] * 3)
                assert out is None or found is named["out"]
    choice = backline.explain()
    assert (choice.library, "pointwise" in str(choice.algorithm)) == ("cublas", True)
    target = there(residual.copy())
    assert F.linear(there(x), there(weight), activation="tanh", residual=target, out=target) is target
    with pytest.raises(BadValue, match="overlap"):
        F.linear(there(x), there(weight), activation="tanh", residual=there(target.host[:, ::-1]), out=target)


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_rounded_once_after_what_follows_a_product(dtype: str) -> None:
    x, weight = numbers((2, 30, 64), dtype), numbers((40, 64), dtype, 1)
    apart = there(numbers((2, 3, 30, 64), dtype).transpose(1, 0, 2, 3))  # no fixed step from one to the next
    for given in (there(x), there(numbers((2, 64, 30), dtype).swapaxes(1, 2)), there(x[:, ::-1]), apart):
        found = F.linear(given, there(weight), activation="silu").host
        exact = F.linear(wide(given.host), wide(weight), activation="silu").astype(x.dtype)
        assert found.dtype == x.dtype and np.mean(found == exact) > 0.98
    assert F.linear(there(x[:, :, :0]), there(weight[:, :0]), activation="sigmoid").host.astype(float).tolist() == [[[0.5] * 40] * 30] * 2
    with switches.scope({"cuda.matmul.allow_fp16_accumulation": True}):
        found = F.linear(there(x), there(weight), activation="silu")
    assert found.dtype == x.dtype and (dtype == "bfloat16" or "rounded after the product too" in backline.explain().chosen.note)


def test_products_inside_gradients() -> None:
    for dtype in ("float32", "complex128"):
        a, w = numbers((2, 3, 4), dtype), numbers((4, 5), dtype, 1)
        same(G.linear_input, w, a)
        same(G.linear_weight, a, numbers((2, 3, 2), dtype, 2))
        same(F.bilinear, a, a[..., :2], numbers((5, 4, 2), dtype, 3), numbers((5,), dtype, 4), times=4)


# Linear algebra ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_linear_algebra_made_of_other_operations(dtype: str) -> None:
    a, b = numbers((2, 4, 4), dtype), numbers((2, 4, 3), dtype, 1)
    for order in (2, 1, 0, np.inf, -np.inf, 3, -1):
        for dim, keep in ((None, False), (-1, True), ((0, 2), False)):
            same(linalg.vector_norm, a, order, dim, keep, times=8)
    for order in ("fro", "nuc", 2, -2, 1, -1, np.inf, -np.inf):
        same(linalg.matrix_norm, b, order, (-2, -1), True, times=40)
        same(linalg.matrix_norm, b, order, (0, 1), times=40)
    same(linalg.norm, a, times=8)
    for p in (None, -2, 1, "fro"):
        same(linalg.cond, a, p, times=4000)
    same(linalg.det, a, times=40)
    same(linalg.slogdet, a, times=40)
    for m in (a, b, np.ascontiguousarray(b.swapaxes(-1, -2))):
        same(linalg.lu, m, times=40)
    same(linalg.pinv, b, times=400)
    for m in (a, b, b @ np.ascontiguousarray(b.conj().swapaxes(-1, -2))):
        rank = linalg.matrix_rank(there(m), rtol=1e-4)
        assert rank.dtype == np.int64 and np.array_equal(rank.host, linalg.matrix_rank(m, rtol=1e-4))
    for n in (0, 1, 3, -2):
        same(linalg.matrix_power, a, n, times=4000)
    same(linalg.multi_dot, [a[0], a[0][:, :2], a[0][:2]], times=8)
    same(backline.tensordot, a, a, ([0, 1], [0, 2]), times=8)


def test_special_matrices() -> None:
    singular, single = np.ones((3, 3), np.float32), np.full((1, 1), 2.0, np.float32)
    assert linalg.det(there(singular)).host == 0 and linalg.slogdet(there(singular)).logabsdet.host == -np.inf
    assert linalg.cond(there(np.zeros((2, 2), np.float32)), 1).host == np.inf
    for function in (linalg.det, linalg.pinv, linalg.matrix_rank, linalg.cond, linalg.lu):
        same(function, single)
    nothing = np.zeros((2, 0, 0))
    for function in (linalg.det, linalg.pinv, linalg.matrix_rank, linalg.slogdet):
        same(function, nothing)
    huge = np.array([3e38, 4e38 / 2], np.float32)
    same(linalg.vector_norm, huge / 4)
    atol = there(np.array([0.5, 0.0], np.float32))
    m = np.stack([np.diag([1.0, 0.1]), np.diag([1.0, 0.1])]).astype(np.float32)
    assert linalg.matrix_rank(there(m), atol=atol).host.tolist() == [1, 2]


def test_outputs_and_refusals_of_composites() -> None:
    a = numbers((3, 3), "float32")
    out = there(np.zeros((), np.float32))
    assert linalg.det(there(a), out=out) is out and out.host == pytest.approx(np.linalg.det(a), rel=1e-4)
    with pytest.raises(BadType, match="out is an array of NumPy and result is an array of CuPy"):
        linalg.vector_norm(there(a), out=np.zeros((), np.float32))
    with pytest.raises(BadValue, match="the result has shape"):
        linalg.vector_norm(there(a), out=there(np.zeros(2, np.float32)))
    with pytest.raises(BadType, match="linear algebra takes"):
        linalg.det(there(a.astype(np.float16)))
    with pytest.raises(BadType, match="one call takes arrays of one kind"):
        backline.tensordot(there(a), a, 1)


def test_matrices_without_elements() -> None:
    nothing = np.zeros((2, 0, 0))
    for a in (nothing, there(nothing)):
        for order in (-2, -1, -np.inf):
            with pytest.raises(BadAxis, match="a smallest value"):
                linalg.matrix_norm(a, order)
    for order in (2, 1, np.inf):
        same(linalg.matrix_norm, nothing, order)
    same(linalg.matrix_norm, np.zeros((2, 0, 3)), 1)
    same(linalg.matrix_norm, nothing, "nuc")
    for p in (None, -2, 1, "fro"):
        same(linalg.cond, nothing, p)


def test_shifts() -> None:
    x = numbers((5, 4), "complex64")
    for function in (fft.fftshift, fft.ifftshift):
        for dim in (None, 0, (1,), ()):
            assert np.array_equal(function(there(x), dim).host, function(x, dim))


# einsum --------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("dtype", "layout"), [*((d, "C") for d in (*HALVES, *FLOATS)), ("float32", "F"), ("bfloat16", "F"), ("float64", "steps")])
def test_einsum(dtype: str, layout: str) -> None:
    for equation, *shapes in EQUATIONS:
        arrays = [LAYOUTS[layout](numbers(s, dtype, i)) for i, s in enumerate(shapes)]
        same(backline.einsum, equation, *arrays, times=8)


def test_einsum_says_what_runs() -> None:
    a = there(numbers((4, 4), "float32"))
    choice = backline.explain(backline.einsum, "ij,jk,kl->li", a, a, a)
    assert choice.library == "cublas" and [s.kind for s in choice.steps] == ["product", "product"]  # type: ignore[attr-defined]  # a choice of einsum has it
    with switches.scope({"opt_einsum.enabled": False}):
        backline.einsum("ij,jk,k->i", a, a, there(np.ones(4, np.float32)))
    ran = backline.explain()
    assert ran.problem.op == "einsum" and ran.problem.device == "cuda:0" and "left to right" in ran.basis
    assert backline.einsum(a, [0, 1], a, [1, 2], [2, 0]).shape == (4, 4)
    out = there(np.zeros((4, 4), np.float32))
    assert backline.einsum("ij,jk", a, a, out=out) is out and np.allclose(out.host, a.host @ a.host, rtol=1e-5, atol=1e-5)
    with pytest.raises(NoKernel):
        backline.einsum("ij,jk", there(np.ones((2, 2), np.int32)), there(np.ones((2, 2), np.int32)))
    with pytest.raises(BadType, match="one call takes arrays of one kind"):
        backline.einsum("ij,jk", a, np.ones((4, 4), np.float32))


def test_einsum_is_planned_once() -> None:
    a, b = there(numbers((4, 4), "float32")), there(numbers((4, 4), "float32", 1))
    first = backline.einsum("ij,jk->ki", a, b)
    calls: tuple[tuple[Any, ...], ...] = (("ij,jk->ki", a, b), ("ij,jk->ki", (a, b)), ("ij, jk -> ki", a, b), (a, [0, 1], b, [1, 2], [2, 0]))
    for call in calls:
        backline.einsum(*call)
    before = _core.memo_info()["misses"]
    for call in calls:
        assert np.array_equal(backline.einsum(*call).host, first.host)
    assert _core.memo_info()["misses"] == before
    with switches.scope({"cuda.matmul.allow_tf32": True}):
        assert "tf32" in {s.choice.chosen.name.rpartition("_")[2] for _ in [backline.einsum("ij,jk->ki", a, b)] for s in backline.explain().steps}
    square, turned = there(numbers((3, 3), "float32")), numbers((3, 3), "float32").T
    assert backline.einsum("ij->ji", square, out=square) is square and np.array_equal(square.host, turned)
    with pytest.raises(BadType):
        backline.einsum("ij->ji", square, out=np.zeros((3, 3), np.float32))
    with pytest.raises(BadValue):
        backline.einsum("ij->ji", square, out=there(np.zeros((2, 3), np.float32)))
    long = ",".join(["ab"] * 12) + "->ab"
    assert np.allclose(backline.einsum(long, *[a] * 12).host, a.host**12, rtol=1e-4)


def test_explain_of_layers() -> None:
    x = there(numbers((4, 4), "float16"))
    choice = backline.explain(F.softmax, x, 1)
    assert (choice.library, choice.algorithm) == ("cupy", "rows") and any(c.algorithm == "formula" for c in choice.candidates)
    assert backline.explain(F.gelu, x).algorithm == "kernel"
    assert backline.explain(F.batch_norm, x, None, None, training=True).problem.op == "batch_norm_train"
    with switches.scope({"deterministic": True, "determinism_level": "threads"}):
        assert F.gelu(x).dtype == np.float16
    with pytest.raises(NoKernel, match="only"), switches.scope({"only": ("cublas",)}):
        F.gelu(x)


def test_einsum_of_operands_that_repeat(machine: None) -> None:
    """A stride of 0 is one: nothing beside the element is read."""
    x, y = np.broadcast_to(numbers((4,), "float32"), (5, 4)), numbers((4, 3), "float32")
    for equation, *given in (("ij,jk->ik", x, y), ("ji,ij->j", y.T, x.T[:, :3]), ("ij,ij->", x, x)):
        found = backline.einsum(equation, *(ndarray(array) for array in given))
        np.testing.assert_allclose(found.host, np.einsum(equation, *map(wide, given)), atol=1e-5)
