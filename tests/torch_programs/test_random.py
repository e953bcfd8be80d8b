"""Seeds: the process's generator after `manual_seed`, and the few functions of torch.cuda that seeding functions call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import cuda, nn
from backline.errors import BadType, BadValue
from backline.nn import functional as F

X = np.random.default_rng(0).standard_normal((2, 2, 6, 4))
W = np.random.default_rng(1).standard_normal((12, 4))


def lstm() -> Any:
    states = np.zeros((2, 2, 4))
    params = tuple(np.random.default_rng(i).standard_normal((16, 4)) for i in range(4))
    return nn.lstm(X[0], (states[:, : X.shape[2]].repeat(3, 1), states.repeat(3, 1)), params, False, 2, 0.5, True, False, False)[0]


CALLS: dict[str, Callable[[], Any]] = {
    "dropout": lambda: F.dropout(X, 0.5),
    "attention": lambda: F.scaled_dot_product_attention(X, X, X, dropout_p=0.5),
    "multi-head attention": lambda: F.multi_head_attention_forward(
        X[0], X[0], X[0], 4, 2, W, None, None, None, False, 0.5, W[:4], None
    ).output,
    "lstm": lstm,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_same_seed_gives_the_same_results(call: Callable[[], Any]) -> None:
    with pytest.raises(BadValue, match=r"dropout without a seed[\s\S]*manual_seed"):
        call()
    backline.manual_seed(7)
    first = [call() for _ in range(3)]
    backline.manual_seed(7)
    second = [call() for _ in range(3)]
    assert all(map(np.array_equal, first, second))
    # A plan that is kept must not keep its seed: each call leaves out others.
    assert not np.array_equal(first[0], first[1]) and not np.array_equal(first[1], first[2])


def test_dropout_draws_the_numbers_of_the_generator() -> None:
    backline.manual_seed(5)
    assert np.array_equal(F.dropout(X, 0.5), F.dropout(X, 0.5, seed=np.random.default_rng(5)))


def test_a_seed_that_is_given_leaves_the_generator_alone() -> None:
    backline.manual_seed(5)
    F.dropout(X, 0.5, seed=1)
    F.scaled_dot_product_attention(X, X, X, dropout_p=0.5, seed=1)
    assert np.array_equal(F.dropout(X, 0.5), F.dropout(X, 0.5, seed=5))


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**64 - 1, np.int64(3)])
def test_seeds_in_the_range_of_torch(seed: int) -> None:
    assert isinstance(backline.manual_seed(seed), np.random.Generator)


@pytest.mark.parametrize(("seed", "error"), [(2**64, BadValue), (-(2**63) - 1, BadValue), (1.5, BadType), (True, BadType), ("1", BadType)])
def test_other_seeds_are_refused_and_change_nothing(seed: Any, error: type[Exception]) -> None:
    backline.manual_seed(5)
    with pytest.raises(error, match="manual_seed"):
        backline.manual_seed(seed)
    assert np.array_equal(F.dropout(X, 0.5), F.dropout(X, 0.5, seed=5))


def test_seeding_by_cuda() -> None:
    for seed in (cuda.manual_seed, cuda.manual_seed_all):
        seed(5)
        assert np.array_equal(F.dropout(X, 0.5), F.dropout(X, 0.5, seed=5))
    assert cuda.is_available() is (cuda.device_count() > 0) is backline.backends.cuda.is_available()
