"""Fourier transforms of CUDA arrays: the plans of a device, which are kept and which are dropped, and how exact transforms are."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import switches
from backline.backends import cuda
from backline.engine.cufft_plan_caches import cufft_plans
from backline.errors import BadValue, ReadOnly
from backline.libraries.cuda.cufft import transform_plans
from gpu.arrays import error, normal, wide
from gpu.watch import watched

HALF = {"cuda.matmul.allow_fp16_accumulation": True}
FINE = {"complex64": 2e-6, "float32": 2e-6, "complex128": 1e-14, "float64": 1e-14}

Size = Callable[[Any, Any], Any]


@pytest.fixture
def cache() -> Iterator[Any]:
    """The plans of device 0, none at first; what a test set is set back."""
    found = cufft_plans(0)
    found.clear()
    with switches.scope({"cuda.cufft_plan_cache.max_size": 4096}):
        yield found
    found.clear()


def transformed(xp: Any, *shape: int, dtype: str = "complex64") -> float:
    """The error of a transform along the last axis."""
    host = normal(shape, dtype)
    return error(backline.fft.fft(xp.asarray(host)), np.fft.fft(wide(host)))


@pytest.mark.gpu(row="FFT-1")
def test_one_cache_for_all_threads(row: Any, xp: Any, cache: Any) -> None:
    row.expect("threads on streams of their own share one plan; at most 4096 are kept")
    shapes = [(16, n) for n in (64, 100, 81)]
    hosts = [normal(shape, "complex64") for shape in shapes]
    expected = [np.fft.fft(wide(host)) for host in hosts]
    worst: list[float] = []
    failed: list[BaseException] = []
    begin = threading.Barrier(4)

    def work() -> None:
        try:
            with xp.cuda.Stream(non_blocking=True) as stream:
                arrays = [xp.asarray(host) for host in hosts]
                begin.wait(60)
                for i in range(30):
                    result = backline.fft.fft(arrays[i % 3])
                    stream.synchronize()
                    worst.append(error(result, expected[i % 3]))
        except BaseException as failure:
            failed.append(failure)
            raise

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row.observe(f"{cache.size} plans for {len(shapes)} shapes in 4 threads, at most {cache.max_size}", f"largest error {max(worst, default=9):.3g}")
    assert not failed and len(worst) == 120 and max(worst) < FINE["complex64"]
    assert cache.size == len(shapes) and cache.max_size == 4096 == cuda.cufft_plan_cache.max_size


# Name, and what is transformed how: each differs from the others in what a plan depends on.
CASES: dict[str, tuple[str, tuple[int, ...], str, dict[str, Any]]] = {
    "sizes": ("fft", (8, 64), "complex64", {}),
    "other sizes": ("fft", (8, 96), "complex64", {}),
    "batch": ("fft", (9, 64), "complex64", {}),
    "strides": ("fft", (8, 64), "complex64", {"dim": 0}),
    "two axes": ("fft2", (4, 32, 48), "complex64", {}),
    "three axes": ("fftn", (16, 20, 24), "complex64", {}),
    "from real": ("rfft", (8, 64), "float32", {}),
    "to real": ("irfft", (8, 33), "complex64", {}),
    "double": ("fft", (8, 64), "complex128", {}),
    "double from real, two axes": ("rfft2", (4, 32, 48), "float64", {}),
    "prime": ("fft", (4, 1009), "complex64", {}),
    "long": ("ifft", (2, 1 << 16), "complex64", {}),
}


@pytest.mark.gpu(row="FFT-2")
def test_what_tells_plans_apart(row: Any, xp: Any, cache: Any) -> None:
    row.expect("a plan for each of sizes, batch, strides, kind and precision, and none for what is transformed again")
    errors: dict[str, float] = {}
    for number, (name, (op, shape, dtype, more)) in enumerate(CASES.items(), 1):
        host = normal(shape, dtype)
        axes = {"axis": more["dim"]} if more else {}
        expected = getattr(np.fft, op)(wide(host) if dtype.startswith("complex") else wide(host).real, **axes)
        there = xp.asarray(host)
        for _ in range(2):
            found = getattr(backline.fft, op)(there, **more)
            errors[name] = error(found, expected)
            assert errors[name] < (1e-5 if name == "prime" else FINE[dtype]), (name, errors[name])
        assert cache.size == number, name
        assert np.array_equal(there.get(), host), "what is transformed stays as it is"
    row.observe(f"{cache.size} plans", f"errors {', '.join(f'{name} {found:.2g}' for name, found in errors.items())}")


@pytest.mark.gpu(row="FFT-3")
def test_the_least_recently_used_goes_first(row: Any, xp: Any, cache: Any) -> None:
    row.expect("a lower max_size drops the plan that was not used for longest; 0 makes a plan for each call; a negative one is BadValue")
    with watched("cufft") as calls:
        cache = cufft_plans(0)
        for n in (64, 72, 80, 64):  # 72 is now the one that was not used for longest
            transformed(xp, 4, n)
        kept = {key.sizes[0]: plan._handle for key, plan in cache.contents().items()}
        xp.cuda.get_current_stream().synchronize()
        with cuda.cufft_plan_cache.flags(max_size=2):
            assert cache.size == 2
            gc.collect()
            transform_plans.destroy_unused()
            destroyed = [each["plan"] for each in calls.of("destroy")]
            row.observe(f"max_size 2 of 3 plans: {[n for n, handle in kept.items() if handle in destroyed]} destroyed")
            assert destroyed == [kept[72]] and [key.sizes[0] for key in cache.contents()] == [80, 64]
            made = len(calls.of("create"))
            assert transformed(xp, 4, 80) < FINE["complex64"] and len(calls.of("create")) == made
            assert transformed(xp, 4, 72) < FINE["complex64"] and len(calls.of("create")) == made + 1
            assert [key.sizes[0] for key in cache.contents()] == [80, 72]
        with cuda.cufft_plan_cache.flags(max_size=0):
            made = len(calls.of("create"))
            found = [transformed(xp, 4, 64) for _ in range(3)]
            row.observe(f"max_size 0: {len(calls.of('create')) - made} plans for 3 calls, {cache.size} kept", f"error {max(found):.3g}")
            assert len(calls.of("create")) == made + 3 and cache.size == 0 and max(found) < FINE["complex64"]
        before = cuda.cufft_plan_cache.max_size
        with pytest.raises(BadValue):
            cuda.cufft_plan_cache.max_size = -1
        row.observe("max_size -1: BadValue")
        assert cuda.cufft_plan_cache.max_size == before


@pytest.mark.gpu(row="FFT-4")
def test_size_and_clear(row: Any, xp: Any, cache: Any) -> None:
    row.expect("size is read-only; clear() drops every plan; without an index the current device is meant")
    shown = cuda.cufft_plan_cache
    for n in (64, 72):
        transformed(xp, 4, n)
    assert shown.size == shown[0].size == shown["cuda:0"].size == cache.size == 2
    with pytest.raises(ReadOnly):
        shown.size = 0
    with pytest.raises(BadValue):
        shown[xp.cuda.runtime.getDeviceCount()]
    shown.clear()
    row.observe(f"2 plans; after clear() {shown.size}")
    assert shown.size == 0 and transformed(xp, 4, 64) < FINE["complex64"] and shown.size == 1


@pytest.mark.gpu(row="FFT-5")
def test_work_areas_are_of_the_pool(row: Any, xp: Any, size: Size, cache: Any) -> None:
    row.expect("auto-allocation is off before a plan is made; each run gets a work area and its stream")
    n = size(1 << 20, 1 << 10)
    host = normal((n + 1,), "complex64")  # a length that needs a work area
    there = xp.asarray(host)
    with watched("cufft") as calls:
        stream = xp.cuda.Stream(non_blocking=True)
        xp.cuda.get_current_stream().synchronize()
        with stream:
            result = backline.fft.fft(there)
        stream.synchronize()
        names = calls.names()
        (plan,) = cufft_plans(0).contents().values()
        area = calls.of("set_work_area")[-1]["work_area"]
        on = calls.of("set_stream")[-1]["stream"]
        off = calls.of("set_auto_allocation")
    found = error(result, np.fft.fft(wide(host)))
    row.observe(f"work area of {plan.nbytes} bytes", f"{names}, error {found:.3g}")
    assert [name for name in names if name != "destroy"] == [
        "create", "set_auto_allocation", "make_plan_many64", "set_stream", "set_work_area", "exec_c2c"
    ]  # fmt: skip
    assert off[0]["auto_allocate"] == 0 and on == stream.ptr and plan.nbytes > 0 and area > 0
    assert found < 1e-5, "lengths with large primes take a detour"


@pytest.mark.gpu(row="FFT-5")
def test_a_plan_that_is_dropped_while_it_is_used(row: Any, xp: Any, size: Size, cache: Any) -> None:
    row.expect("its handle is destroyed after its last use; the result is right")
    host = normal((size(512, 8), 4096), "complex64")
    there = xp.asarray(host)
    xp.cuda.get_current_stream().synchronize()
    streams = [xp.cuda.Stream(non_blocking=True) for _ in range(2)]
    with watched("cufft") as calls:
        results = []
        for i in range(8):
            with streams[i % 2]:
                results.append(backline.fft.fft(there))
            cuda.cufft_plan_cache.clear()
        for stream in streams:
            stream.synchronize()
        gc.collect()
        transform_plans.destroy_unused()
        made, destroyed = len(calls.of("create")), len(calls.of("destroy"))
    expected = np.fft.fft(wide(host))
    worst = max(error(result, expected) for result in results)
    row.observe(f"{made} plans made and dropped at once on two streams, {destroyed} destroyed after them", f"largest error {worst:.3g}")
    assert made == 8 == destroyed and worst < FINE["complex64"]


@pytest.mark.gpu(row="FFT-6")
def test_half_precision(row: Any, xp: Any, size: Size, cache: Any) -> None:
    row.expect("lengths that are powers of two are transformed in float16 where a switch permits it; others in float32")
    batch = size(64, 4)
    for n in (1024, 1000):
        host = normal((batch, n), "float16")
        there, expected = xp.asarray(host), np.fft.rfft(wide(host))
        names, errors = {}, {}
        for permitted in (False, True):
            with switches.scope(HALF if permitted else {}), watched("cufft") as calls:
                found = backline.fft.rfft(there)
                names[permitted], errors[permitted] = backline.explain().chosen.name, error(found, expected)
                half = calls.of("xt_make_plan_many")
                assert bool(half) == (permitted and n == 1024), names
                if half:
                    assert (half[0]["inputtype"], half[0]["executiontype"]) == (2, 6) and calls.of("xt_exec")
                assert found.dtype == np.complex64
        row.observe(f"{n}: {names[True]} permitted, {names[False]} otherwise", f"errors {errors[True]:.3g}, {errors[False]:.3g}")
        assert errors[False] < FINE["complex64"]
        assert errors[True] < FINE["complex64"] if n == 1000 else 1e-5 < errors[True] < 5e-3
    with switches.scope(HALF):
        reasons = [c.reason for c in backline.explain(backline.fft.rfft, xp.asarray(normal((4, 1000), "float16"))).candidates]
    assert any("powers of two" in reason for reason in reasons), reasons


@pytest.mark.gpu(row="FFT-6")
def test_half_precision_of_whole_spectra_and_several_axes(row: Any, xp: Any, cache: Any) -> None:
    with switches.scope(HALF):
        for op, shape in (("fft", (8, 256)), ("fft2", (4, 32, 64)), ("rfft2", (4, 32, 64)), ("ihfft", (8, 256))):
            host = normal(shape, "float16")
            found = getattr(backline.fft, op)(xp.asarray(host))
            far = error(found, getattr(np.fft, op)(wide(host)))
            row.observe(f"{op} {shape}: {backline.explain().chosen.name}", f"error {far:.3g}")
            assert backline.explain().chosen.name == "half" and far < 5e-3
