"""Choices for the same bits with any thread count: the thread count has no say in which library runs a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, backends, libraries
from backline.engine import ranking
from backline.libraries.base import Algorithm, Library, PythonPlan
from backline.nn import functional, grad
from backline.problems import Problem
from support import rng, seed

__all__ = ["rng", "seed"]


def cases(rng: np.random.Generator) -> dict[str, Callable[[], Any]]:
    def draw(*shape: int) -> Any:
        return rng.standard_normal(shape, np.float32)

    few, taps, images, kernels = draw(32, 1, 8, 8), draw(32, 1, 3, 3), draw(2, 32, 40, 40), draw(32, 32, 3, 3)
    a, b, stack, heads, errors = draw(500, 700), draw(700, 300), draw(6, 120, 120), draw(1, 4, 300, 64), draw(2, 32, 40, 40)
    return {
        "conv2d": lambda: functional.conv2d(few, taps, padding=1),
        "a larger conv2d": lambda: functional.conv2d(images, kernels, padding=1),
        "conv2d_input": lambda: grad.conv2d_input(images.shape, kernels, errors, padding=1),
        "conv2d_weight": lambda: grad.conv2d_weight(images, kernels.shape, errors, padding=1),
        "mm": lambda: backline.mm(a, b),
        "bmm": lambda: backline.bmm(stack, stack),
        "svdvals": lambda: backline.linalg.svdvals(stack),
        "attention": lambda: functional.scaled_dot_product_attention(heads, heads, heads),
        "linear": lambda: functional.linear(a, b.T, activation="relu"),
        "softmax": lambda: functional.softmax(a, 1),
    }


@pytest.mark.parametrize("name", cases(np.random.default_rng(0)))
def test_the_bits_and_the_library_are_the_same(name: str, rng: np.random.Generator) -> None:
    call = cases(rng)[name]
    found = []
    with backends.flags(deterministic=True, determinism_level="threads"):
        for threads in (1, 2, 3):
            with backline.num_threads(threads):
                result = call()
                choice = backline.explain()
            assert choice.algorithm is not None
            found.append((result.tobytes(), choice.library, choice.algorithm.removesuffix("_items")))
    assert len({each[1:] for each in found}) == 1, [each[1:] for each in found]
    assert len(set(found)) == 1


class Promising(Library):
    """Promises the same bits on one thread only, comes first there, and cannot be prepared."""

    name = "promising"
    title = "Promising"
    tried = 0

    def reason(self) -> str:
        return ""

    def version(self) -> str:
        return "1"

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm]:
        if threads == 1:
            yield Algorithm(library=self.name, name="only alone", level="threads")

    def prepare(self, problem: Problem, algorithm: Algorithm) -> PythonPlan:
        Promising.tried += 1
        raise RuntimeError("not after all")


def test_what_cannot_be_prepared_makes_room_for_the_next_here_too() -> None:
    libraries.register(Promising())
    try:
        flags = backends.flags(deterministic=True, determinism_level="threads", num_threads=2)
        with flags, pytest.MonkeyPatch.context() as patch:
            patch.setattr(ranking, "sort", lambda problem, able, *prefer, own=True: sorted(able, key=lambda a: a.library != "promising"))
            x = np.eye(3)
            assert np.array_equal(backline.mm(x, x), x)
        assert Promising.tried == 1 and backline.explain().library != "promising"
    finally:
        libraries.unregister("promising")
        _core.memo_clear()
