"""Problems that a run writes down: enough to measure them again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, quantized
from backline.engine.tuning.trace_script import Recorder, pack, unpack
from backline.nn import functional

IMAGES, KERNELS = np.ones((2, 4, 8, 8), np.float32), np.ones((6, 2, 3, 3), np.float32)
A, HEADS = np.ones((5, 7), np.float32), np.ones((1, 2, 6, 4), np.float32)
CALLS: dict[str, Callable[[], Any]] = {
    "matmul": lambda: backline.addmm(np.ones((5, 5), np.complex64), A.astype(np.complex64), A.T.astype(np.complex64), alpha=1j),
    "linalg": lambda: backline.linalg.qr(A),
    "conv": lambda: functional.conv2d(IMAGES, KERNELS, stride=(1, 2), padding=(2, 1), groups=2, activation="relu"),
    "pooling": lambda: functional.max_pool2d(IMAGES, 2),
    "norm": lambda: functional.layer_norm(A, (7,)),
    "linear": lambda: functional.linear(A, A, activation="relu"),
    "attention": lambda: functional.scaled_dot_product_attention(HEADS, HEADS, HEADS, is_causal=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_problem_comes_back_from_json(name: str) -> None:
    CALLS[name]()
    problem = backline.explain().problem
    packed = pack(problem)
    assert packed is not None
    again = unpack(json.loads(json.dumps(packed)))
    assert again == problem and again.key == problem.key and hash(again) == hash(problem)


def test_a_problem_that_cannot_be_measured_again_is_told_apart() -> None:
    weight = quantized.quantize_weights(np.ones((3, 4), np.float32))
    quantized.linear_dynamic(np.ones((2, 4), np.float32), quantized.linear_prepack(weight))
    assert pack(backline.explain().problem) is None


def test_the_steps_of_a_contraction_are_measured_one_by_one() -> None:
    seen = Recorder()
    _core.set_tracer(seen)
    try:
        for _ in range(2):
            backline.einsum("ij,jk,kl->il", np.ones((30, 40)), np.ones((40, 50)), np.ones((50, 60)))
    finally:
        _core.set_tracer(None)
    entries = seen.entries()
    assert [(e["op"], e["key"].split()[0], e["count"]) for e in entries] == [("einsum", "matmul", 2)] * 2
    assert all(e["problem"] is not None and unpack(e["problem"]).key == e["key"] for e in entries)
    total = sum(nanoseconds for *_, nanoseconds in seen.seen.values()) * 1e-9
    assert sum(e["seconds"] for e in entries) == pytest.approx(total)
