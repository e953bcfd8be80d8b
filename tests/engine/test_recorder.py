"""What a run writes down of its Problems is enough to measure them again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import nn
from backline.engine.recorder import pack, unpack
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
    weights = (np.ones((16, 3), np.float32), np.ones((16, 4), np.float32))
    state = np.zeros((1, 2, 4), np.float32)
    nn.lstm(np.ones((5, 2, 3), np.float32), (state, state), weights, False, 1, 0.0, False, False, False)
    assert pack(backline.explain().problem) is None
