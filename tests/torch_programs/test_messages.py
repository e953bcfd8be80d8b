"""Errors keep the words that programs written for torch look for in them, beside our cause and remedy."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import switches
from backline.errors import BacklineError, Frozen, LinAlgError, NoKernel, ReadOnly
from backline.nn import attention, functional
from backline.switches import store

sys.path.append(str(Path(__file__).parents[1]))

from support import clean  # the folder of it is named above

assert clean  # fixture: imported to be found by pytest


def rows() -> list[Any]:
    """The table beside this file: the class of the error, words in its text, the call."""
    found = []
    for line in Path(__file__).with_name("messages.txt").read_text().splitlines():
        if not line.startswith("#"):
            kind, words, call = line.split(" | ")
            found.append(pytest.param(getattr(builtins, kind), words, call, id=call))
    return found


def with_backline() -> dict[str, Any]:
    return {
        "torch": backline,
        "ones": lambda *shape, dtype="float32": np.ones(shape, dtype),
        "zeros": lambda *shape: np.zeros(shape, np.float32),
        "ints": lambda *shape: np.ones(shape, np.int64),
        "eye": lambda n, dtype="float32": np.eye(n, dtype=dtype),
        "full": lambda value: np.full((2, 2), value, np.float32),
        "array": np.array,
    }


def with_torch(torch: Any) -> dict[str, Any]:
    return {
        "torch": torch,
        "ones": lambda *shape, dtype="float32": torch.ones(*shape, dtype=getattr(torch, dtype)) if shape else torch.tensor(1.0),
        "zeros": lambda *shape: torch.zeros(*shape),
        "ints": lambda *shape: torch.ones(*shape, dtype=torch.int64),
        "eye": lambda n, dtype="float32": torch.eye(n, dtype=getattr(torch, dtype)),
        "full": lambda value: torch.full((2, 2), value),
        "array": lambda values, dtype: torch.tensor(values, dtype=getattr(torch, dtype)),
    }


NUMBERS = {"nan": float("nan"), "inf": float("inf")}


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(("kind", "words", "call"), rows())
def test_an_error_has_the_words_and_the_class_of_torchs(kind: type[Exception], words: str, call: str) -> None:
    with pytest.raises(kind) as caught:
        exec(call, with_backline() | NUMBERS)
    assert isinstance(caught.value, (BacklineError, LinAlgError)) and isinstance(caught.value, RuntimeError)
    assert words in str(caught.value)


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "words", "call"), rows())
def test_torch_has_these_words(kind: type[Exception], words: str, call: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(kind) as caught:
        exec(call, with_torch(torch) | NUMBERS)
    assert words in str(caught.value)


@pytest.mark.usefixtures("clean")
def test_attention_without_a_kernel() -> None:
    x = np.ones((2, 2, 3), np.float32)
    with (
        attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION),
        pytest.raises(NoKernel, match="No available kernel") as caught,
    ):
        functional.scaled_dot_product_attention(x, x, x)
    assert "No viable backend for scaled_dot_product_attention was found" in str(caught.value)


@pytest.mark.usefixtures("clean")
def test_the_plan_cache_of_cuda() -> None:
    with pytest.raises(RuntimeError, match="read-only property") as caught:
        backline.backends.cuda.cufft_plan_cache.size = 3
    assert isinstance(caught.value, ReadOnly)
    with pytest.raises(RuntimeError, match="must be non-negative"):
        switches.assign("cuda.cufft_plan_cache.max_size", -1)


@pytest.mark.usefixtures("clean")
def test_frozen_flags() -> None:
    try:
        store.freeze()
        with pytest.raises(Frozen, match="not allowed to set"):
            backline.backends.cudnn.enabled = False
    finally:
        store._restart()
