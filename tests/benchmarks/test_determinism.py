"""The calls of benchmarks/determinism_cases.py, smaller: the same bits at level "threads", and in a forked child those of its parent."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import backline
from backline import _core, backends
from backline.engine.run_hashes import hash_of
from processes import forked
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCALE = 0.25


def _cases() -> dict[str, Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        found: dict[str, Any] = importlib.import_module("determinism_cases").cases(SCALE)
    finally:
        sys.path.remove(str(FOLDER))
    return found


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    return _cases()


def hashes(cases: dict[str, Any], *names: str) -> list[str]:
    return [hash_of(cases[name].call(*cases[name].arrays)) for name in names or cases]


def test_every_kind_of_operation_has_the_same_bits(cases: dict[str, Any]) -> None:
    differing = []
    with backends.flags(deterministic=True, determinism_level="threads"):
        for name, case in cases.items():
            report = backline.verify_determinism(case.call, *case.arrays, runs=2, threads=(1, 3))
            if not report:
                differing.append(f"{name}\n{report}")
    assert not differing, "\n".join(differing)


@pytest.mark.parametrize("level", ["run", "threads"])
def test_a_forked_child_computes_the_bits_of_its_parent(cases: dict[str, Any], level: str) -> None:
    """At level "run", which is about one number of threads, that is so of transforms: a child has one thread."""
    names = [name for name in cases if level == "threads" or name.startswith(("fft", "rfft", "irfft", "dct"))]
    with backends.flags(deterministic=True, determinism_level=level), backline.num_threads(2):
        before = hashes(cases, *names)

        def again() -> bool:
            warnings.simplefilter("ignore")
            after = hashes(cases, *names)
            _core.memo_clear()
            assert after == before, [name for name, x, y in zip(names, before, after, strict=True) if x != y]
            return hashes(cases, *names) == before

        assert forked(again) == 0
