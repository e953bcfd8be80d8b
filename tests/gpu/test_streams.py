"""Streams and devices: a graph that is being recorded, streams of other packages, the stream of each thread, a second device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg, switches
from backline.errors import BadValue
from backline.nn import functional
from gpu.arrays import error, normal, wide
from gpu.watch import watched

IEEE = {"cuda.matmul.fp32_precision": "ieee", "cudnn.conv.fp32_precision": "ieee"}
NEAR = 2e-5  # of float32

Size = Callable[[Any, Any], Any]


class Calls:
    """Operations of several libraries on arrays of a device, and what they come to in float64 on the host."""

    def __init__(self, xp: Any, n: int, seed: int = 1) -> None:
        a, b = normal((n, n), seed=seed), normal((n, n), seed=seed + 50)
        self.a, self.b = map(xp.asarray, (a, b))
        self.expected = {"matmul": wide(a) @ wide(b), "rfft": np.fft.rfft(wide(a)), "relu": np.maximum(wide(a), 0)}

    def functions(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        yield "matmul", lambda: backline.matmul(self.a, self.b)
        yield "rfft", lambda: backline.fft.rfft(self.a)
        yield "relu", lambda: functional.relu(self.a)

    def errors(self) -> dict[str, float]:
        """Returns the error of each operation; the current stream is waited for."""
        return {name: error(function(), self.expected[name]) for name, function in self.functions()}


@pytest.fixture(autouse=True)
def float32_is_float32() -> Iterator[None]:
    with switches.scope(IEEE):
        yield


@pytest.fixture
def calls(xp: Any, size: Size) -> Calls:
    """Makes the calls' arrays on the default stream, and waits for it."""
    made = Calls(xp, size(256, 24))
    xp.cuda.get_current_stream().synchronize()
    return made


@pytest.mark.gpu(row="STR-1")
@pytest.mark.parametrize("warm", [False, True], ids=["first call", "later call"])
def test_a_stream_that_records_a_graph_is_refused(row: Any, xp: Any, calls: Calls, warm: bool) -> None:
    row.expect("every call is refused, with the cause; the recording goes on, and what CuPy recorded is what the graph does")
    stream = xp.cuda.Stream(non_blocking=True)
    with stream:
        if warm:
            assert max(calls.errors().values()) < NEAR
        recorded = xp.zeros(calls.a.shape, "float32")
        xp.add(calls.a, calls.b, out=recorded)  # so that its kernel is loaded
        recorded.fill(0)
        stream.synchronize()
        stream.begin_capture()
        try:
            for name, function in calls.functions():
                with pytest.raises(BadValue, match="cannot be recorded in a CUDA graph") as refused:
                    function()
                assert "memory pool" in refused.value.cause, name
            xp.add(calls.a, calls.b, out=recorded)
        finally:
            graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        assert xp.array_equal(recorded, calls.a + calls.b)
        found = calls.errors()
    row.observe(
        f"{len(found)} calls refused; afterwards {', '.join(f'{name} {e:.2g}' for name, e in found.items())}", refused.value.cause
    )
    assert max(found.values()) < NEAR


class Foreign:
    """A stream of another package, by the protocol that CUDA's packages share."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self.owner.ptr)


def wrapped(xp: Any, owner: Any) -> Any:
    """A new object for a stream, as CuPy 14 makes it of those of other packages; older ones have a class for it."""
    made = getattr(xp.cuda.Stream, "from_external", None)
    return xp.cuda.ExternalStream(owner.ptr) if made is None else made(Foreign(owner))


@pytest.mark.gpu(row="STR-2")
def test_wrappers_of_one_stream_count_as_one(row: Any, xp: Any, calls: Calls) -> None:
    row.expect("a stream that each call wraps anew is one stream: cuBLAS is told it once, and given one workspace")
    owner = xp.cuda.Stream(non_blocking=True)
    results = []
    with watched("cublas", fresh=True) as seen:
        for _ in range(5):
            with wrapped(xp, owner):
                results.append(backline.matmul(calls.a, calls.b))
        owner.synchronize()
        told = {each["stream_id"] for each in seen.of("set_stream")}
        count = len(seen.of("set_stream")), len(seen.of("set_workspace")), len(seen.of("gemm_ex"))
    with wrapped(xp, owner):
        found = {**calls.errors(), "matmul of all": max(error(each, calls.expected["matmul"]) for each in results)}
    row.observe(f"set_stream {count[0]}, set_workspace {count[1]}, gemm_ex {count[2]}", str(found))
    assert count == (1, 1, 5) and told == {owner.ptr} and max(found.values()) < NEAR


@pytest.mark.gpu(row="STR-3")
def test_each_thread_has_a_default_stream(row: Any, xp: Any, size: Size) -> None:
    row.expect("threads on their per-thread default streams, which have one address, do not get in each other's way")
    n, threads, runs = size((256, 4, 25), (24, 4, 3))
    made = [Calls(xp, n, seed) for seed in range(1, threads + 1)]
    xp.cuda.get_current_stream().synchronize()
    found: list[float] = []
    failed: list[BaseException] = []

    def work(mine: Calls) -> None:
        try:
            with xp.cuda.Stream.ptds, switches.scope(IEEE):  # scopes are a thread's own
                found.extend(max(mine.errors().values()) for _ in range(runs))
        except BaseException as error:  # the row says it, not the thread
            failed.append(error)

    workers = [threading.Thread(target=work, args=(each,)) for each in made]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    row.observe(
        f"{threads} threads, {runs} runs each, stream {xp.cuda.Stream.ptds.ptr}: largest error {max(found, default=1.0):.2g}"
    )
    assert not failed, failed[0]
    assert len(found) == threads * runs and max(found) < NEAR


@pytest.mark.gpu(row="STR-4")
def test_arrays_of_another_device(row: Any, xp: Any, size: Size) -> None:
    row.expect(
        "calls run where their arrays are, whichever device is the current one; arrays of two devices in one call are refused"
    )
    n = size(256, 24)
    here, runtime = Calls(xp, n, 3), xp.cuda.runtime
    with xp.cuda.Device(1):
        there = Calls(xp, n, 4)
        xp.cuda.get_current_stream().synchronize()
    found = {}
    for name, function in there.functions():
        result = function()
        assert result.device.id == 1 and runtime.getDevice() == 0, name
        with xp.cuda.Device(1):
            found[name] = error(result, there.expected[name])
    found |= {f"{name} on device 0": each for name, each in here.errors().items()}
    row.observe(", ".join(f"{name} {each:.2g}" for name, each in found.items()))
    assert max(found.values()) < NEAR
    with pytest.raises(BadValue, match="device"):
        backline.matmul(here.a, there.b)


@pytest.mark.gpu(row="STR-4", needs=("cudnn", "cusolverDn"))
def test_convolutions_and_solvers_on_another_device(row: Any, xp: Any, size: Size) -> None:
    n = size(64, 12)
    x, w = normal((2, 8, n, n), seed=1), normal((8, 8, 3, 3), seed=2)
    a, b = normal((n, n), "float64", 3) + 2 * n * np.eye(n), normal((n, 2), "float64", 4)
    with xp.cuda.Device(1):
        arrays = [xp.asarray(each) for each in (x, w, a, b)]
        xp.cuda.get_current_stream().synchronize()
    results = functional.conv2d(arrays[0], arrays[1], padding=1), linalg.solve(arrays[2], arrays[3])
    assert xp.cuda.runtime.getDevice() == 0 and {each.device.id for each in results} == {1}
    with xp.cuda.Device(1), backline.use("numpy", only=True):
        expected = functional.conv2d(wide(x), wide(w), padding=1)
        found = error(results[0], expected), error(results[1], np.linalg.solve(a, b))
    row.observe(f"conv2d {found[0]:.2g}, solve {found[1]:.2g}")
    assert found[0] < NEAR and found[1] < 1e-12
