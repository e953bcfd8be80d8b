"""No choice loses more digits than its family may, on a few of the random shapes of benchmarks/precision_of_choices.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from backline.engine.check_precision import loss_of_choice
from backline.engine.precision_figures import BOUND, BOUNDS
from backline.problems import Problem
from support import new_seed

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "precision_of_choices.py"
CASES = 24


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("precision_of_choices", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


def test_choices_on_random_shapes_keep_to_the_bound(script: Any) -> None:
    seed = new_seed()
    for number in range(CASES):
        problem = Problem.parse(script.text(seed, number))
        loss, made = loss_of_choice(problem, seed + number)
        best = made.best()
        assert loss <= BOUNDS.get(problem.family, BOUND), (problem.key, made.samples[0], best)


def test_random_shapes_are_problems_of_every_family(script: Any) -> None:
    found = {Problem.parse(script.text(1, number)).family for number in range(400)}
    assert found >= {"matmul", "conv", "linalg", "fft", "neural", "attention", "rnn"}
