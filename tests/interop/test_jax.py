"""Backline and the real JAX: its arrays in operations, operations in traced functions, and the settings that `apply_to` maps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import backline
from backline import backends, linalg, switches
from backline.errors import BadType, BadValue
from backline.interop.framework_settings import FRAMEWORKS
from backline.interop.operator_gradients import GRADIENTS
from support import clean

pytestmark = [pytest.mark.jax, pytest.mark.usefixtures("clean")]
assert clean


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax")


@pytest.fixture
def x64(jax: Any) -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture
def ops(jax: Any) -> Any:
    import backline.interop.jax

    return backline.interop.jax


rng = np.random.default_rng(2)


def r(*shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape)


# Arrays in Backline's own operations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "complex128", "float16", "bfloat16"])
def test_products_of_every_dtype(jax: Any, x64: None, name: str) -> None:
    a, b = (jax.numpy.asarray(r(5, 5)).astype(name) for _ in range(2))
    got = backline.matmul(a, b)
    assert isinstance(got, jax.Array) and got.dtype == a.dtype
    want = np.asarray(a).astype(np.complex128) @ np.asarray(b).astype(np.complex128)
    error = np.abs(np.asarray(got).astype(np.complex128) - want).max()
    assert error <= 64 * float(jax.numpy.finfo(a.dtype).eps) * np.abs(want).max()


def test_operands_are_views_and_never_written_to(jax: Any) -> None:
    x = jax.numpy.asarray(r(64, 64).astype(np.float32))
    before = np.array(x)
    from backline.libraries.host_arrays import view_of

    view = view_of(x, "x")
    assert view.ctypes.data == x.unsafe_buffer_pointer() and not view.flags.writeable
    backline.fft.fft(x + 0j, overwrite_input=True)
    linalg.svd(x)
    assert (np.asarray(x) == before).all()
    with pytest.raises(BadType, match="matmul: out") as caught:
        backline.matmul(x, x, out=jax.numpy.zeros((64, 64)))
    assert "nothing writes to arrays of JAX" in caught.value.cause


def test_a_large_result_is_not_copied(jax: Any) -> None:
    from backline.libraries.host_arrays import jax_array

    made = backline.matmul(*(r(512, 512).astype(np.float32),) * 2)
    assert made.ctypes.data % 64 == 0
    assert jax_array(made).unsafe_buffer_pointer() == made.ctypes.data


def test_results_live_on(jax: Any) -> None:
    """Memory of results belongs to them as long as anybody has one."""
    x = jax.numpy.asarray(r(300, 300).astype(np.float32))
    results = [backline.matmul(x, x * i) for i in range(8)]
    want = np.asarray(x) @ np.asarray(x)
    for i, result in enumerate(results):
        np.testing.assert_allclose(np.asarray(result), want * i, rtol=1e-4, atol=1e-3)


def test_numbers_of_64_bits_are_not_rounded_in_silence(jax: Any) -> None:
    x = jax.numpy.asarray(r(4, 4).astype(np.float32))
    assert linalg.matrix_rank(x).dtype == np.int32
    with pytest.raises(BadType, match="the result is complex128") as caught:
        backline.fft.fft(jax.numpy.arange(8))
    assert "jax_enable_x64" in caught.value.remedy


def test_what_has_no_data_here_is_refused(jax: Any) -> None:
    x = jax.numpy.eye(3)
    with pytest.raises(BadType, match="a value that JAX traces") as caught:
        jax.jit(lambda a: backline.matmul(a, a))(x)
    assert "backline.interop.jax" in caught.value.remedy
    with pytest.raises(BadType, match="input is an array of NumPy, another argument is one of JAX"):
        backline.matmul(np.eye(3, dtype=np.float32), x)
    gone = jax.numpy.array(r(3, 3))
    gone.delete()
    with pytest.raises(BadType, match="no NumPy view"):
        backline.matmul(gone, x)
    with pytest.raises(BadType, match=r"no NumPy view|dtype"):
        backline.matmul(jax.random.key(0), x)


# Operations in traced functions -----------------------------------------------------------------------------------------

SPD = (lambda a: a @ a.T + 4 * np.eye(4))(r(4, 4))
SQUARE = r(4, 4) + 4 * np.eye(4)
IMAGES, KERNEL, HEADS = r(2, 3, 6, 6), r(4, 3, 3, 3), r(2, 2, 5, 4)
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "matmul": ((r(2, 3, 4), r(4, 5)), {}), "mv": ((r(3, 4), r(4)), {}), "dot": ((r(4), r(4)), {}), "outer": ((r(3), r(4)), {}),
    "addmm": ((r(5), r(3, 4), r(4, 5)), {"alpha": 2.0}), "baddbmm": ((r(2, 3, 5), r(2, 3, 4), r(2, 4, 5)), {}),
    "linear": ((r(2, 4), r(5, 4), r(5)), {"activation": "tanh"}), "einsum": (("ij,jk->ki", [r(3, 4), r(4, 5)]), {}),
    "conv2d": ((IMAGES, KERNEL, r(4)), {"padding": "same"}), "conv_transpose2d": ((IMAGES, r(3, 4, 2, 2)), {"stride": 2}),
    "max_pool2d": ((IMAGES, 2), {}), "avg_pool2d": ((IMAGES, 2), {}), "adaptive_avg_pool2d": ((IMAGES, 3), {}),
    "relu": ((r(3, 4),), {}), "gelu": ((r(3, 4),), {}), "softmax": ((r(3, 4), 1), {}), "log_softmax": ((r(3, 4), 0), {}),
    "layer_norm": ((r(3, 4), 4, r(4), r(4)), {}), "scaled_dot_product_attention": ((HEADS, HEADS, HEADS), {"is_causal": True}),
    "gru": ((r(3, 2, 4), r(1, 2, 5), [r(15, 4), r(15, 5)], False, 1, 0.0, False, False, False), {}),
    "lstm": ((r(3, 2, 4), [r(1, 2, 5), r(1, 2, 5)], [r(20, 4), r(20, 5)], False, 1, 0.0, False, False, False), {}),
    "linalg_inv": ((SQUARE,), {}), "linalg_solve": ((SQUARE, r(4, 2)), {}), "linalg_cholesky": ((SPD,), {}),
    "linalg_svd": ((r(4, 3),), {}), "linalg_eigh": ((SPD,), {}), "linalg_det": ((SQUARE,), {}), "linalg_qr": ((r(5, 3),), {}),
    "linalg_eig": ((SQUARE,), {}), "linalg_lu_factor": ((SQUARE,), {}), "linalg_matrix_rank": ((SQUARE,), {}),
    "fft_fft": ((r(4, 5),), {}), "fft_rfft": ((r(4, 6),), {}), "fft_ifft": ((r(4, 5) + 0j,), {}), "kron": ((r(2, 2), r(2, 3)), {}),
}  # fmt: skip


def parted(jax: Any, name: str, dtype: str) -> tuple[Any, list[Any]]:
    """A function of the arrays of a call alone, and these."""
    args, kwargs = CALLS[name]
    flat: list[Any] = []

    def place(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            kind = np.result_type(np.float32, value.dtype) if dtype == "float64" else "complex64" if value.dtype.kind == "c" else dtype
            flat.append(jax.numpy.asarray(value.astype(kind)))
            i = len(flat) - 1
            return lambda given: given[i]
        return [place(part) for part in value] if isinstance(value, list) else value

    places = [place(value) for value in args]

    def call(function: Any, *given: Any) -> Any:
        def one(value: Any) -> Any:
            return value(given) if callable(value) else [one(part) for part in value] if isinstance(value, list) else value

        return function(*map(one, places), **kwargs)

    return call, flat


def compared(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    parts = got if isinstance(got, tuple) else (got,)
    for one, other in zip(parts, want if isinstance(want, tuple) else (want,), strict=True):
        scale = max(float(np.abs(np.asarray(other)).max(initial=0.0)), 1.0)
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("name", CALLS)
def test_under_jit_and_vmap(jax: Any, ops: Any, name: str) -> None:
    call, arrays = parted(jax, name, "float32")
    function = getattr(ops, name)
    want = call(function, *arrays)
    compared(jax.jit(lambda *given: call(function, *given))(*arrays), want)
    stacked = [jax.numpy.stack([a, a * 0.5 + 0.25 * a, a]) for a in arrays]
    got = jax.vmap(lambda *given: call(function, *given))(*stacked)
    for i in (0, 1, 2):
        item = tuple(part[i] for part in got) if isinstance(got, tuple) else got[i]
        compared(item, call(function, *(a[i] for a in stacked)))


@pytest.mark.parametrize("name", sorted(CALLS.keys() & GRADIENTS.keys()))
def test_gradients_are_those_of_finite_differences(jax: Any, ops: Any, x64: None, name: str) -> None:
    call, arrays = parted(jax, name, "float64")
    function = getattr(ops, name)

    def total(*given: Any) -> Any:
        found = call(function, *given)
        parts = found if isinstance(found, tuple) else (found,)
        return sum(jax.numpy.sum(jax.numpy.sin(part)) for part in parts)

    gradients = jax.jit(jax.grad(total, argnums=tuple(range(len(arrays)))))(*arrays)
    for i, array in enumerate(arrays):
        direction = jax.numpy.asarray(np.random.default_rng(i).standard_normal(array.shape))
        step = 1e-6

        def moved(by: float, i: int = i, array: Any = array, direction: Any = direction) -> float:
            return float(total(*(array + by * direction if j == i else a for j, a in enumerate(arrays))))

        slope = (moved(step) - moved(-step)) / (2 * step)
        assert float(jax.numpy.vdot(gradients[i], direction)) == pytest.approx(slope, rel=1e-4, abs=1e-5)


def test_gradients_of_complex_numbers_are_jaxs(jax: Any, ops: Any, x64: None) -> None:
    a, b = (jax.numpy.asarray(r(3, 3) + 1j * r(3, 3)) for _ in range(2))

    def loss(product: Any) -> Any:
        return lambda x, y: jax.numpy.sum(jax.numpy.abs(product(x, y)) ** 2)

    for mine, theirs in zip(jax.grad(loss(ops.matmul), (0, 1))(a, b), jax.grad(loss(jax.numpy.matmul), (0, 1))(a, b), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-10)


def test_an_operation_without_a_gradient_says_so(jax: Any, ops: Any) -> None:
    with pytest.raises(BadValue, match="linalg_eigh: Backline has no gradient"):
        jax.grad(lambda x: ops.linalg_eigh(x)[0].sum())(jax.numpy.eye(3))


def test_numbers_of_64_bits_in_traced_functions(jax: Any, ops: Any) -> None:
    with pytest.raises(BadType, match="input has dtype float64") as caught:
        ops.matmul(np.eye(3), np.eye(3))
    assert "jax_enable_x64" in caught.value.remedy
    with pytest.raises(BadType, match="the result is complex128"):
        jax.jit(ops.fft_fft)(jax.numpy.arange(8))
    jax.config.update("jax_enable_x64", True)
    try:
        assert jax.jit(ops.matmul)(np.eye(3), np.eye(3)).dtype == np.float64
    finally:
        jax.config.update("jax_enable_x64", False)


def test_settings_are_those_of_tracing(jax: Any, ops: Any) -> None:
    x = jax.numpy.eye(3)
    with backline.trace() as seen:
        with backline.use("numpy"):
            function = jax.jit(lambda a: ops.matmul(a, a)).lower(x).compile()
        function(x).block_until_ready()
    assert {event.choice.library for event in seen if event.op == "matmul"} <= {"numpy"}


def test_wrong_calls(jax: Any, ops: Any) -> None:
    x = jax.numpy.eye(3)
    with pytest.raises(TypeError, match="matmul\\(\\) misses the argument 'other'"):
        ops.matmul(x)
    with pytest.raises(TypeError, match="unexpected argument 'third'"):
        ops.matmul(x, x, third=x)
    with pytest.raises(BadType, match="is a list"):
        ops.matmul(x, [[1.0]])
    with pytest.raises(BadValue, match="matmul"):
        jax.jit(ops.matmul)(x, x[:2])
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        ops.matmull  # noqa: B018  # reading it raises
    assert "matmul" in dir(ops)


def test_two_threads_do_not_wait_for_each_other(jax: Any, ops: Any) -> None:
    x = jax.numpy.asarray(r(300, 300).astype(np.float32))
    function = jax.jit(lambda a: jax.numpy.sum(ops.matmul(a, a) * 2) + jax.numpy.sum(jax.numpy.dot(a, a)))
    want = float(function(x))

    def work(i: int) -> float:
        return float(function(x))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, range(40), timeout=200))
    assert found == pytest.approx([want] * 40, rel=1e-4)


PROGRAM = """
import os
from concurrent.futures import ThreadPoolExecutor
import numpy as np, jax
import backline.interop.jax as ops
x = jax.numpy.asarray(np.random.default_rng(0).standard_normal((700, 700)).astype(np.float32))
f = jax.jit(lambda a: ops.matmul(jax.numpy.tanh(a), ops.matmul(a, a)).sum())
with ThreadPoolExecutor(2) as pool:
    print(len(list(pool.map(lambda i: float(f(x)), range(10), timeout=100))))
"""


@pytest.mark.parametrize("cores", ["one core", "all cores"])
def test_a_fresh_process_of_one_core_ends(jax: Any, cores: str) -> None:
    """Callbacks of large arrays hang in JAX where they wait for a pool of one thread, which runs them."""
    program = PROGRAM if cores == "all cores" else f"import os; os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program], timeout=200, capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.strip() == "10", done.stderr


# Settings ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [("ieee", "highest"), ("tf32", "tensorfloat32"), ("bf16", "bfloat16")])
def test_precision_is_set_read_back_and_put_back(jax: Any, ours: str, theirs: str) -> None:
    before = jax.config.jax_default_matmul_precision
    with backends.flags(fp32_precision=ours), backline.apply_to("jax") as table:
        (row,) = [row for row in table if row.switch == "fp32_precision"]
        assert row.applied and row.effective == theirs and jax.config.jax_default_matmul_precision == theirs
    assert jax.config.jax_default_matmul_precision == before
    jax.config.update("jax_default_matmul_precision", theirs)
    try:
        with backline.read_from("jax"):
            assert switches.get("fp32_precision") == ours
    finally:
        jax.config.update("jax_default_matmul_precision", before)


@pytest.mark.parametrize(("ours", "word"), [("ieee", "[HIGHEST, HIGHEST]"), ("tf32", "[HIGH, HIGH]"), ("bf16", "[DEFAULT, DEFAULT]")])
def test_precision_has_its_effect(jax: Any, ours: str, word: str) -> None:
    """The setting is in the operations that JAX lowers, for devices that have such kernels; the CPU computes in float32."""
    a = jax.numpy.ones((8, 8))

    def lowered() -> str:
        return str(jax.jit(lambda x: jax.numpy.dot(x, x)).lower(a).as_text())

    plain = lowered()
    assert "[DEFAULT, DEFAULT]" in plain
    with backends.flags(fp32_precision=ours), backline.apply_to("jax"):
        assert word in lowered()
    assert lowered() == plain


def test_a_scope_of_jax_is_told_and_the_value_of_the_process_put_back(jax: Any) -> None:
    with jax.default_matmul_precision("float32"), backends.flags(fp32_precision="bf16"), backline.apply_to("jax") as table:
        (row,) = [row for row in table if row.switch == "fp32_precision"]
        assert not row.applied and row.reason == "jax reads 'float32' after it was set"
    assert jax.config.jax_default_matmul_precision is None


@pytest.mark.parametrize(("theirs", "ours"), [("float32", "ieee"), ("high", "tf32"), ("BF16_BF16_F32", "bf16"), ("default", "none")])
def test_other_names_of_a_precision_are_read(jax: Any, theirs: str, ours: str) -> None:
    with jax.default_matmul_precision(theirs), backends.flags(fp32_precision="bf16" if ours != "bf16" else "tf32"):
        backline.read_from("jax")
        assert switches.get("fp32_precision") == ours


def test_every_row_has_a_reading(jax: Any) -> None:
    for setting in FRAMEWORKS["jax"].settings:
        setting.read(jax)
    with backline.num_threads(1):
        (row,) = [row for row in backline.apply_to("jax") if row.switch == "num_threads"]
    assert not row.applied and "XLA makes its pool" in row.reason
