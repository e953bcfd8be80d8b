"""Memory: views that begin anywhere, and a device on which almost nothing is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg, switches
from backline.nn import functional
from gpu.arrays import error, normal, wide

IEEE = {"cuda.matmul.fp32_precision": "ieee", "cudnn.conv.fp32_precision": "ieee"}
NEAR = {"float16": 2e-3, "float32": 2e-5, "complex64": 2e-5}

Size = Callable[[Any, Any], Any]


def begins_at(xp: Any, host: Any, elements: int) -> Any:
    """An array of the device whose memory begins so many elements after a multiple of 256 bytes."""
    size = host.dtype.itemsize
    flat = xp.empty((host.size + elements + 256 // size,), host.dtype)
    first = -int(flat.data.ptr) % 256 // size + elements  # CuPy's own memory begins at such a multiple
    made = flat[first : first + host.size].reshape(host.shape)
    made[...] = xp.asarray(host)
    assert int(made.data.ptr) % 256 == elements * size
    return made


def cases(n: int) -> Iterator[tuple[str, str, Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]]:
    """Yields what it is, the dtype, the call, what it comes to in float64, and shapes of its arrays."""
    for dtype in ("float16", "float32", "complex64"):
        for library in ("cublas", "cublaslt"):
            yield f"matmul by {library}", dtype, _preferring(library, backline.matmul), np.matmul, [(n, n), (n, n)]
    yield "rfft", "float32", backline.fft.rfft, np.fft.rfft, [(n, n)]
    yield "fft", "complex64", backline.fft.fft, np.fft.fft, [(n, n)]
    for dtype in ("float16", "float32"):
        yield "linear", dtype, functional.linear, lambda x, w, b: x @ w.T + b, [(n, n), (n, n), (n,)]
        yield "relu", dtype, functional.relu, lambda x: np.maximum(x, 0), [(n, n)]
        yield "softmax", dtype, lambda x: functional.softmax(x, 1), _softmax, [(n, n)]
        yield "conv2d", dtype, functional.conv2d, _conv2d, [(2, 8, 9, 9), (8, 8, 3, 3)]


def _preferring(library: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        with switches.scope({"cuda.preferred_blas_library": library}):
            return function(*arrays)

    return call


def _softmax(x: Any) -> Any:
    raised = np.exp(x - x.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def _conv2d(x: Any, w: Any) -> Any:
    with switches.scope({"only": ("numpy",)}):
        return functional.conv2d(x, w)


@pytest.mark.gpu(row="MEM-1")
@pytest.mark.parametrize("elements", [1, 3])
def test_views_that_begin_anywhere(row: Any, xp: Any, size: Size, elements: int) -> None:
    row.expect("operands that begin one and three elements after a multiple of 256 bytes give what others give, also after these")
    worst = ("", 0.0)
    with switches.scope(IEEE):
        for name, dtype, function, rule, shapes in cases(size(128, 16)):
            hosts = [normal(shape, dtype, seed) for seed, shape in enumerate(shapes)]
            expected = rule(*map(wide, hosts))
            for before in (0, elements, 0):  # what was planned for one place is not used for another where it must not be
                found = error(function(*(begins_at(xp, host, before) for host in hosts)), expected)
                assert found < NEAR[dtype], f"{name} {dtype}, {before} elements: {found}"
                worst = max(worst, (f"{name} {dtype}", found), key=lambda pair: pair[1])
    row.observe(f"{elements} elements: largest error {worst[1]:.2g}, {worst[0]}")


@contextmanager
def nearly_full(xp: Any, rehearsed: bool, left: int) -> Iterator[None]:
    """So many bytes of the device's memory are free while it is open; in a rehearsal memory is the host's, and stays free."""
    xp.get_default_memory_pool().free_all_blocks()
    held = None
    if not rehearsed:
        held = xp.cuda.Memory(max(int(xp.cuda.runtime.memGetInfo()[0]) - left, 1))  # CUDA's own, not of the pool
    try:
        yield
    finally:
        del held


@pytest.mark.gpu(row="MEM-2")
def test_a_device_that_is_nearly_full(row: Any, xp: Any, rehearsed: bool, size: Size, _check: Any) -> None:
    row.expect("what finds no memory raises MemoryError, the rest is right; as soon as there is memory everything runs")
    n, large = size((256, 16384), (24, 48))
    host, square = normal((n, n), "float64"), normal((n, n), "float64") + 4 * n * np.eye(n)
    a, s, big = xp.asarray(host), xp.asarray(square), xp.empty((large, large), "float32")
    big.fill(1)
    ways: dict[str, tuple[Callable[[], Any], Any]] = {
        "matmul": (lambda: backline.matmul(a, a), host @ host), "rfft": (lambda: backline.fft.rfft(a), np.fft.rfft(host)),
        "relu": (lambda: functional.relu(a), np.maximum(host, 0)),
    }  # fmt: skip
    if not _check.lacks("cusolverDn"):
        ways["inv"] = (lambda: linalg.inv(s), np.linalg.inv(square))
    assert error(ways["matmul"][0](), ways["matmul"][1]) < 1e-12  # a handle is there, and its workspace
    seen = []
    with nearly_full(xp, rehearsed, left=512 << 20):
        for name, (function, expected) in ways.items():
            try:
                result = function()
            except MemoryError as refused:  # of what a library makes when it is first used
                assert name != "matmul", "it had all it needs"
                seen.append(f"{name}: {type(refused).__name__}")
            else:
                assert error(result, expected) < 1e-10, name
                seen.append(f"{name} runs")
        if not rehearsed:
            with pytest.raises(MemoryError) as short:
                backline.matmul(big, big)  # its result alone is twice what is left
            seen.append(f"a result of {big.nbytes >> 20} MiB: {type(short.value).__name__}")
        assert error(ways["matmul"][0](), ways["matmul"][1]) < 1e-12
    for name, (function, expected) in ways.items():
        assert error(function(), expected) < 1e-10, f"{name}, after there was memory again"
    assert float(backline.matmul(big, big)[0, 0]) == large
    row.observe("; ".join(seen))
