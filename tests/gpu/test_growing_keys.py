"""Attention to a key cache that grows: what the first call of each length takes, and that its result is right."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import pytest

import backline
from backline.engine import first_sights
from backline.engine.first_sights import CHANGING_ON_DEVICES
from backline.nn.attention import SDPBackend, sdpa_kernel
from gpu.arrays import normal, wide
from gpu.variants import ALLOWED, attend, deviation, only, slopes

CUDNN, MATH = SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH
LEADS = (9, 0)
Size = Callable[[Any, Any], Any]


def spent(xp: Any, call: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds until the device has the result of a call, and that."""
    xp.cuda.get_current_stream().synchronize()
    begin = time.perf_counter()
    result = call()
    xp.cuda.get_current_stream().synchronize()
    return 1e3 * (time.perf_counter() - begin), result


@pytest.mark.gpu(row="SDPA-14")
@pytest.mark.parametrize("view", [False, True])
def test_one_query_and_one_more_key_each_time(row: Any, xp: Any, size: Size, device: Any, view: bool) -> None:
    row.expect(
        "right at every length, of keys that are copied together or lie in a longer array; where cuDNN leads it compiles for "
        f"{CHANGING_ON_DEVICES} lengths at most"
    )
    first_sights.clear()
    heads, begin, steps, longest = size((32, 700, 24, 1024), (2, 20, 6, 32))
    q = normal((1, heads, 1, 128), "float16")
    cache = [normal((1, heads, longest, 128), "float16", seed) for seed in (1, 2)]
    on_device = [xp.asarray(each) for each in cache]
    times, again, taken, worst = [], [], [], 0.0
    query = xp.asarray(q)
    for n in range(begin, begin + steps):
        k, v = (each[:, :, :n] if view else xp.ascontiguousarray(each[:, :, :n]) for each in on_device)
        first, found = spent(xp, lambda k=k, v=v: attend(query, k, v))
        times.append(first)
        taken.append(str(backline.explain().library))
        again.append(spent(xp, lambda k=k, v=v: attend(query, k, v))[0])
        with sdpa_kernel(MATH), backline.use("numpy", only=True):
            expected = attend(*(wide(each) for each in (q, cache[0][:, :, :n], cache[1][:, :, :n])))
        worst = max(worst, deviation(found, expected))
    row.observe(f"{'a view' if view else 'copied'}: error {worst:.2g}, by {taken[0]}, then {taken[-1]}")
    row.observe(f"ms of first calls: {[round(each, 2) for each in times[:4]]}, then {median(times[4:]):.3g}")
    row.observe(f"ms of second calls: {median(again):.3g}")
    assert worst <= ALLOWED["float16"]
    if device.capability == LEADS:
        assert taken.count("cudnn") <= CHANGING_ON_DEVICES


@pytest.mark.gpu(row="SDPA-14")
def test_prompts_of_many_lengths_and_their_gradients(row: Any, xp: Any, size: Size, device: Any) -> None:
    row.expect("gradients are right at every length; beside them what a new length takes on cuDNN alone")
    first_sights.clear()
    heads, begin, steps = size((8, 300, 8), (2, 18, 5))
    times, alone, taken, worst = [], [], [], 0.0
    for n in range(begin, begin + steps):
        hosts = [normal((1, heads, n, 64), "float16", seed) for seed in range(4)]
        arrays = [xp.asarray(each) for each in hosts]
        first, found = spent(xp, lambda arrays=arrays: slopes(*arrays, is_causal=True))
        times.append(first)
        taken.append(str(backline.explain().library))
        with sdpa_kernel(MATH), backline.use("numpy", only=True):
            expected = slopes(*map(wide, hosts), is_causal=True)
        worst = max([worst, *(deviation(one, of) for one, of in zip(found[:3], expected[:3], strict=True))])
    for n in (begin + steps, begin + steps + 1):
        arrays = [xp.asarray(normal((1, heads, n, 64), "float16", seed)) for seed in range(4)]
        with only(CUDNN):
            alone.append(spent(xp, lambda arrays=arrays: slopes(*arrays, is_causal=True))[0])
    row.observe(f"error {worst:.2g}, by {taken[0]}, then {taken[-1]}")
    row.observe(f"ms of first calls: {[round(each, 2) for each in times]}; of cuDNN's: {[round(each, 2) for each in alone]}")
    assert worst <= 4 * ALLOWED["float16"] and np.isfinite(worst)
    if device.capability == LEADS:
        assert taken.count("cudnn") <= CHANGING_ON_DEVICES
