"""The true CuPy over a device that is not there: what CuPy itself does with the calls that Backline makes.

True are CuPy (arrays, layouts, dtypes, pools, streams, events, the code of its kernels), NVRTC, which compiles each kernel for an
H100, and, where a test says so, nvmath's binding of cuBLAS. Memory is the host's; kernels run there, compiled by g++, one thread
after another. What is shown: no call of CuPy's is wrong, every kernel compiles, and computes what it should.

What cannot be shown: races between threads and streams, a device's arithmetic and time, reductions by CUB (CuPy's default on a
device), kernels from files, which are played, and what cuSOLVER, cuFFT, cuDNN and cuSPARSELt take: fakes stand for these.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import backends, errors, fft, linalg, nn, quantized
from backline.nn import functional as F
from backline.nn import grad as G
from backline.problems.neural_problem import ELEMENTARY

pytestmark = pytest.mark.cupy
TESTS = Path(__file__).parents[1]
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
Op = Callable[..., Any]


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    from gpu.arrays import normal

    return normal(shape, dtype, seed)


def layouts(array: Any) -> Iterator[Any]:
    """The same numbers row by row, column by column, backwards and with gaps."""
    yield array
    yield np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2) if array.ndim > 1 else array
    yield np.ascontiguousarray(array[..., ::-1])[..., ::-1]
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    yield wide[..., ::2]


def there(array: Any, index: int = 0) -> Any:
    """A copy on a device, of the same strides."""
    from backline.libraries.array_kinds import measured_by

    kind = measured_by("cuda:0")
    assert kind is not None and kind.put is not None
    made = kind.put(array, f"cuda:{index}")
    assert made.strides == array.strides or not array.size
    return made


def agree(here: Any, op: Op, *arrays: Any) -> None:
    """An operation gives on the device what it gives on the host: shape, dtype, numbers; in every layout. Or both refuse it."""
    for each in zip(*map(layouts, arrays), strict=True):
        try:
            wanted = op(*each)
        except np.linalg.LinAlgError:
            with pytest.raises(np.linalg.LinAlgError):
                op(*map(there, each))
            continue
        found = op(*map(there, each))
        parts = (found, wanted) if isinstance(wanted, tuple) else ((found,), (wanted,))
        for got, expected in zip(*parts, strict=True):
            if expected is None:
                assert got is None
                continue
            expected = np.asarray(expected)
            assert type(got) is here.xp.ndarray and got.device.id == 0
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            # Signs and phases of vectors are a library's choice.
            both = (np.abs(a.astype(np.complex128)) for a in (got.get(), expected))
            np.testing.assert_allclose(*both, rtol=0.02, atol=0.06)


PRODUCTS: dict[str, tuple[Op, tuple[tuple[int, ...], ...]]] = {
    "matmul": (backline.matmul, ((6, 6), (6, 6))), "stacks": (backline.matmul, ((3, 6, 6), (3, 6, 6))), "mv": (backline.mv, ((6, 6), (6,))),
    "dot": (backline.dot, ((6,), (6,))), "outer": (backline.outer, ((6,), (6,))), "addmm": (backline.addmm, ((6,), (6, 6), (6, 6))),
    "einsum": (lambda x, y, z: backline.einsum("ij,kj,kl->il", x, y, z), ((6, 6),) * 3),
    "diagonal": (lambda x: backline.einsum("ii->i", x), ((6, 6),)), "sum": (lambda x: backline.einsum("ij->j", x), ((6, 6),)),
    "elements": (lambda x, y: backline.einsum("ij,ij->ij", x, y), ((6, 6),) * 2), "empty": (lambda x: backline.matmul(x, x.T), ((4, 0),)),
}  # fmt: skip
LAYERS: dict[str, tuple[Op, tuple[tuple[int, ...], ...]]] = {
    **{name: (getattr(backline, name), ((6, 6),)) for name in ELEMENTARY},
    **{name: (getattr(F, name), ((6, 6),)) for name in ("relu", "gelu", "silu", "tanh", "sigmoid")},
    **{f"{name}_input": (getattr(G, f"{name}_input"), ((6, 6),) * 2) for name in ("relu", "gelu", "silu", "tanh", "sigmoid")},
    **{f"softmax {d}": (lambda x, d=d: F.softmax(x, d), ((3, 6, 6),)) for d in (0, -1)},
    "log_softmax_input": (lambda x, y: G.log_softmax_input(x, y, 1), ((6, 6),) * 2), "softmax_input": (lambda x, y: G.softmax_input(x, y, 0), ((6, 6),) * 2),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, 6, w, b), ((6, 6), (6,), (6,))), "layer_norm_backward": (lambda x, y, w: G.layer_norm_backward(x, y, 6, w), ((6, 6), (6, 6), (6,))),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), ((3, 6, 6),)), "batch_norm_backward": (G.batch_norm_backward, ((3, 6, 6),) * 2),
    "dropout": (lambda x: F.dropout(x, 0.5, seed=3), ((6, 6),)), "nothing": (F.gelu, ((0, 3),)), "max_pool": (lambda x: F.max_pool2d(x, 2), ((2, 4, 7, 7),)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), ((2, 4, 7, 7),)), "linear": (lambda x, w, b: F.linear(x, w, b, activation="gelu"), ((3, 6, 6), (6, 6), (6,))),
    "residual": (lambda x, w, r: F.linear(x, w, residual=r), ((6, 6),) * 3), "conv": (lambda x, w, b: F.conv2d(x, w, b, padding=1, activation="relu"), ((2, 4, 7, 7), (6, 4, 3, 3), (6,))),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=4), ((2, 4, 7, 7), (4, 1, 3, 3))), "conv_transpose": (F.conv_transpose2d, ((2, 4, 7, 7), (4, 3, 3, 3))),
    "conv_weight": (lambda x, g: G.conv2d_weight(x, (6, 4, 3, 3), g), ((2, 4, 7, 7), (2, 6, 5, 5))), "attention": (F.scaled_dot_product_attention, ((2, 3, 5, 8),) * 3),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ((2, 3, 5, 8),) * 3),
    "log-sum-exp": (lambda q, k, v: tuple(F.scaled_dot_product_attention(q, k, v, return_lse=True)), ((2, 3, 5, 8),) * 3),
    "multi_head": (lambda x, w, o: F.multi_head_attention(x, x, x, 2, w, None, o, None).output, ((2, 5, 8), (24, 8), (8, 8))),
    "packed": (lambda q, k, v: F.varlen_attn(q, k, v, [0, 2, 6]), ((6, 2, 8),) * 3),
    "attention_backward": (lambda *a: G.scaled_dot_product_attention_backward(*a)[:3], ((2, 3, 5, 8),) * 4),
}  # fmt: skip
_STATES, _WEIGHTS = ((2, 3, 4),) * 2, ((16, 5), (16, 4)) * 2


def lstm(x: Any, h: Any, c: Any, *params: Any) -> Any:
    return nn.lstm(x, (h, c), params, False, 1, 0.0, False, True, False, lengths=lengths_beside(x, (4, 0, 2)))


def lstm_backward(x: Any, h: Any, c: Any, g: Any, *params: Any) -> Any:
    return tuple(G.lstm_backward(x, (h, c), params, g, None, c, False, 1, 0.0, False, True, False, lengths=lengths_beside(x, (4, 0, 2))))


def lengths_beside(x: Any, lengths: tuple[int, ...]) -> Any:
    """Lengths of sequences where the sequences are."""
    made = np.array(lengths)
    return made if isinstance(x, np.ndarray) else there(made)


def by_steps(op: Op) -> Op:
    """The same without cuDNN."""

    def call(*arrays: Any) -> Any:
        with backends.cudnn.flags(enabled=False):
            return op(*arrays)

    return call


LAYERS |= {
    f"{name}{suffix}": (wrap(op), ((4, 3, 5), *_STATES, *more, *_WEIGHTS))
    for name, op, more in (("lstm", lstm, ()), ("lstm_backward", lstm_backward, ((4, 3, 8),)))
    for suffix, wrap in (("", lambda op: op), (" by steps", by_steps))
}
ALGEBRA = ["cholesky", "cond", "det", "eigvalsh", "inv", "norm", "pinv", "slogdet", "svdvals", "cholesky_ex", "inv_ex", "eigh", "lu_factor", "lu", "qr", "svd", "eigvals"]
TRANSFORMS = [n for n in fft.__all__ if "freq" not in n and "ct" not in n and "st" not in n.replace("fftshift", "").replace("ihfft", "")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(here: Any, name: str, dtype: str) -> None:
    op, shapes = PRODUCTS[name]
    agree(here, op, *(numbers(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)))


@pytest.mark.parametrize("dtype", DTYPES[:4])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(here: Any, name: str, dtype: str) -> None:
    op, shapes = LAYERS[name]
    launched = here.device.hollow_launches()
    agree(here, op, *(numbers(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)))
    assert here.device.hollow_launches() > launched or name == "nothing"


@pytest.mark.parametrize("dtype", DTYPES[:4])
def test_numbers_of_dropout_have_the_bits_of_the_host(here: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take one element or several; attention draws four keys at a time."""
    from backline.libraries.cuda.attention import philox
    from backline.libraries.cuda.common import elementwise_kernels
    from fakes.philox import kept

    x = numbers(7, 33, dtype=dtype)
    for lanes in (1 << 17, 50, 1):
        monkeypatch.setattr(elementwise_kernels, "LANES", lanes)
        assert (F.dropout(there(x), 0.4, seed=2**70 + 3).get() == F.dropout(x, 0.4, seed=2**70 + 3)).all()
    if dtype in ("float32", "float64"):
        for shape in ((2, 3, 5, 7), (1, 4), (3, 2, 1)):
            found = philox.kept(here.xp, shape, 2**63 + 9, 0.3, np.dtype(dtype))
            assert (found.get() == kept(shape, 2**63 + 9, 0.3).astype(dtype)).all()


@pytest.mark.parametrize("dtype", DTYPES[2:])
@pytest.mark.parametrize("name", ALGEBRA)
def test_linear_algebra(here: Any, name: str, dtype: str) -> None:
    for stack in ((), (3,)):
        a = numbers(*stack, 6, 6, dtype=dtype)
        agree(here, getattr(linalg, name), (a @ a.conj().swapaxes(-1, -2) + 6 * np.eye(6)).astype(dtype))
    if name not in ("cond", "norm", "pinv"):
        agree(here, getattr(linalg, name), numbers(2, 0, 0, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES[2:])
def test_solving(here: Any, dtype: str) -> None:
    a, b = (numbers(6, 6, dtype=dtype, seed=seed) for seed in (1, 2))
    a += 6 * np.eye(6).astype(dtype)
    for op, right in itertools.product((linalg.solve, linalg.solve_ex), (b, b[0].copy())):
        agree(here, op, a, right)
    agree(here, lambda x, y: linalg.solve_triangular(x, y, upper=True), a, b)
    agree(here, lambda x, y: linalg.lstsq(x, y)[0], a, b)


@pytest.mark.parametrize("dtype", DTYPES[2:])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(here: Any, name: str, dtype: str) -> None:
    if dtype.startswith("complex") and name.startswith(("rfft", "ihfft")):
        with pytest.raises(errors.BacklineError):
            getattr(fft, name)(there(numbers(6, 6, dtype=dtype)))
    else:
        agree(here, getattr(fft, name), numbers(6, 6, dtype=dtype))


def test_products_by_the_true_binding(begun: Any, tmp_path: Path) -> None:
    from fakes.insert import inserted
    from hollow.machine import true_cublas

    with inserted(cupy=begun.xp, cublas=true_cublas(tmp_path)):
        for dtype in DTYPES:
            a, b = numbers(5, 7, dtype=dtype), numbers(7, 3, dtype=dtype, seed=1)
            agree(begun, backline.matmul, a, b)
            agree(begun, backline.matmul, numbers(4, 5, 7, dtype=dtype), b)
            agree(begun, lambda c, x, y: backline.addmm(c, x, y, beta=0.5, alpha=2), numbers(5, 3, dtype=dtype, seed=2), a, b)
            found = backline.explain(backline.matmul, there(a), there(b))
            assert "cublas" in str(found)


def test_groups_by_the_true_binding(begun: Any, tmp_path: Path) -> None:
    from fakes.insert import inserted
    from hollow.machine import true_cublas

    def grouped(a: Any, b: Any) -> Any:
        ends = np.array([8, 8, 32], np.int32)
        return F.grouped_mm(a, b, offs=ends if isinstance(a, np.ndarray) else begun.xp.asarray(ends))

    with inserted(cupy=begun.xp, cublas=true_cublas(tmp_path)):
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            for shapes in (((40, 16), (3, 16, 24)), ((3, 8, 16), (16, 40)), ((16, 40), (40, 24)), ((33, 5), (3, 5, 7))):
                a, b = (numbers(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes))
                agree(begun, grouped, a, b)
        asked = there(numbers(40, 16)), there(numbers(3, 16, 24))
        grouped(*asked)
        assert backline.explain().algorithm == "gemm_grouped"


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_and_int8(here: Any, name: str) -> None:
    import ml_dtypes

    xp, kind = here.xp, np.dtype(getattr(ml_dtypes, name))

    def scaled(a: Any, b: Any, output: str, bias: bool) -> Any:
        space = np if isinstance(a, np.ndarray) else xp
        one, two = space.asarray(np.linspace(0.5, 2, 16, dtype=np.float32)[:, None]), space.asarray(np.full(1, 0.5, np.float32))
        added = space.asarray(numbers(a.shape[0], dtype=output, seed=4)) if bias else None
        return F.scaled_mm(a, b, one, "RowWise", two, "TensorWise", bias=added, output_dtype=output)

    a, b = numbers(16, 32).astype(kind), numbers(32, 16, seed=1).astype(kind)
    for output in ("float16", "bfloat16", "float32"):
        for bias in (False, True):
            agree(here, lambda x, y, o=output, with_bias=bias: scaled(x, y, o, with_bias), a, b)
    one = xp.ones(1, "f4")
    for x, y in zip(layouts(a), layouts(b), strict=True):
        found = F.scaled_mm(there(x), there(y), one, "TensorWise", one, "TensorWise", output_dtype="float32")
        wide = x.astype(np.float64) @ y.astype(np.float64)
        np.testing.assert_allclose(found.get(), wide, rtol=1e-5, atol=1e-4)
    whole, other = ((numbers(*shape, seed=i) * 50).clip(-128, 127).astype(np.int8) for i, shape in enumerate(((5, 1028), (1028, 8))))
    agree(here, quantized.int_mm, whole, other)
    agree(here, quantized.int_mm, whole[:, :1027], other[:1027])


def test_outputs(here: Any) -> None:
    xp, a = here.xp, there(numbers(6, 6))
    expected = a.get() @ a.get()
    for out in (xp.zeros((6, 6), "f4"), xp.zeros((6, 6), "f4", order="F"), xp.zeros((6, 12), "f4")[:, ::2], xp.zeros((6, 6), "f4")[::-1]):
        assert backline.matmul(a, a, out=out) is out
        np.testing.assert_allclose(out.get(), expected, atol=1e-4)
    with pytest.raises(errors.BadValue, match="overlaps"):
        backline.matmul(a, a, out=a)
    with pytest.raises(errors.BadValue, match="share memory"):
        backline.matmul(a, a, out=xp.broadcast_to(xp.zeros(6, "f4"), (6, 6)))
    assert F.relu(xp.asarray(np.float32(-3))).shape == () and linalg.norm(a).shape == ()


def test_a_subclass_of_its_arrays(here: Any) -> None:
    # Wherever it was written.
    own = types.new_class("Own", (here.xp.ndarray,))
    a = there(numbers(6, 6))
    found = backline.matmul(a.view(own), a)
    np.testing.assert_allclose(found.get(), a.get() @ a.get(), atol=1e-4)


def test_devices(here: Any) -> None:
    a, b = there(numbers(6, 6)), there(numbers(6, 6), 1)
    for op in (lambda x: backline.matmul(x, x), F.gelu, lambda x: F.softmax(x, 1), fft.fft, linalg.inv, linalg.svdvals):
        found = op(b)
        assert found.device.id == 1 and here.xp.cuda.runtime.getDevice() == 0
        np.testing.assert_array_equal(found.get(), op(a).get())
    with pytest.raises(errors.BadValue, match="cuda:0 and cuda:1"):
        backline.matmul(a, b)
    with pytest.raises(errors.BadType, match="CuPy and NumPy"):
        backline.matmul(a, a.get())


def test_streams_and_threads(here: Any) -> None:
    xp, a = here.xp, there(numbers(6, 6) + 6 * np.eye(6, dtype="f4"))
    backline.matmul(a, a)
    here.machine.log.clear()
    waited = here.device.hollow_waits()
    with xp.cuda.Stream(non_blocking=True) as stream:
        backline.matmul(a, a)
        F.gelu(a)
        fft.fft(a)
    assert here.device.hollow_waits() == waited
    assert {given[-1] for name, given in ((n, tuple(g.values())) for n, g in here.machine.log) if name == "set_stream"} == {stream.ptr}
    found: list[Any] = []
    other = threading.Thread(target=lambda: found.append(linalg.solve(a, a)))
    other.start()
    other.join()
    np.testing.assert_allclose(found[0].get(), np.eye(6), atol=1e-5)


def test_memory_goes_back(here: Any) -> None:
    pool = here.xp.get_default_memory_pool()
    a = there(numbers(64, 64) + 64 * np.eye(64, dtype="f4"))
    for op in (lambda: backline.matmul(a, a), lambda: linalg.solve(a, a), lambda: fft.fft(a), lambda: F.softmax(a, 1)):
        op()
        used = pool.used_bytes()
        for _ in range(3):
            op()
        assert pool.used_bytes() == used
    pool.free_all_blocks()
    own = here.xp.cuda.MemoryPool()
    with here.xp.cuda.using_allocator(own.malloc):
        kept = backline.matmul(a, a)
    assert own.used_bytes() >= kept.nbytes


@pytest.mark.parametrize("op", [lambda a: backline.matmul(a, a), linalg.inv, F.relu, fft.fft], ids=["matmul", "inv", "relu", "fft"])
def test_a_lost_device(here: Any, op: Op) -> None:
    a = there(numbers(6, 6))
    op(a)
    with here.xp.cuda.using_allocator(None):  # so that the call asks for memory
        here.device.hollow_fail(700, 0)  # an illegal address, told ever after
        with pytest.raises(errors.DeviceLost, match="cudaErrorIllegalAddress"):
            op(a)


def test_rows_of_the_check(tmp_path: Path) -> None:
    pytest.importorskip("cudnn")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = os.pathsep.join(p for p in (str(TESTS), env.get("PYTHONPATH", "")) if p)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", "-p", "hollow.plugin", f"--gpu-out={tmp_path}", "--gpu-deadline=2000"]
    done = subprocess.run(command, cwd=TESTS.parent, env=env, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
