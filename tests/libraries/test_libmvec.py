"""libmvec as it is found and refused, with the functions of each instruction set."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.capability import reachables
from backline.libraries.kernels.vector_level import vector_level
from backline.libraries.libmvec.library import Libmvec
from backline.problems.neural_problem import ELEMENTARY
from stand_ins import compiled
from support import THREADS, clean, problem_of, rng, seed

assert clean and rng and seed  # fixtures: imported to be found by pytest
Array = Any
UNITS = 4
pytestmark = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="its functions are known for x86-64")

# The functions of glibc 2.22, or with NEW those of 2.35. ERROR is added to sines.
SOURCE = r"""
#include <math.h>
#define ONE(letter, lanes, type, set, op, suffix, error)                                        \
    typedef type op##letter##lanes __attribute__((vector_size(lanes * sizeof(type))));          \
    __attribute__((target(set))) op##letter##lanes _ZGV##letter##N##lanes##v_##op##suffix(op##letter##lanes x) { \
        for (int i = 0; i < lanes; ++i) x[i] = op(x[i]) + error;                                \
        return x;                                                                               \
    }
#define EACH(op, error)                                                                         \
    ONE(b, 2, double, "sse2", op, , error) ONE(d, 4, double, "avx2", op, , error)               \
    ONE(e, 8, double, "avx512f", op, , error) ONE(b, 4, float, "sse2", op, f, error)            \
    ONE(d, 8, float, "avx2", op, f, error) ONE(e, 16, float, "avx512f", op, f, error)
EACH(exp, 0) EACH(log, 0) EACH(sin, ERROR) EACH(cos, 0)
#if NEW
EACH(expm1, 0) EACH(log1p, 0)
#endif
"""


def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, **macros: int) -> Libmvec:
    monkeypatch.setenv("BACKLINE_LIBMVEC_LIBRARY", str(compiled(folder, "libstand_in_vectors.so", SOURCE, **macros)))
    return Libmvec()


def listed(library: Libmvec, op: str, x: Array) -> list[Algorithm | Refusal]:
    return list(library.algorithms(problem_of(op, x), THREADS))


def test_it_comes_with_the_c_library() -> None:
    library = libraries.get("libmvec")
    assert library.available(), library.reason()
    assert f"glibc {library.version()}" == os.confstr("CS_GNU_LIBC_VERSION")
    assert "libmvec.so.1" in library.report()["path"]
    with backline.backends.flags(only=("libmvec",)):
        backline.sin(np.ones(5))
        assert backline.explain().library == "libmvec" and "4 units" in str(backline.explain())


def test_functions_that_an_older_one_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: None) -> None:
    library = opened(tmp_path, monkeypatch, NEW=0, ERROR=0)
    assert library.available(), library.reason()
    x = np.linspace(0.1, 3, 100)
    (sines, *_), (refused,) = listed(library, "sin", x), listed(library, "expm1", x)
    assert isinstance(sines, Algorithm) and isinstance(refused, Refusal)
    assert refused.reason == "this libmvec has no expm1; glibc 2.35 has"
    np.testing.assert_allclose(library.prepare(problem_of("sin", x), sines)(x), np.sin(x), rtol=1e-15)
    (tmp_path / "newer").mkdir()
    newer = opened(tmp_path / "newer", monkeypatch, NEW=1, ERROR=0)
    assert isinstance(listed(newer, "expm1", x)[0], Algorithm)


def test_one_that_computes_wrong_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: None) -> None:
    library = opened(tmp_path, monkeypatch, NEW=1, ERROR=1)
    assert not library.available()
    assert library.reason().endswith("libstand_in_vectors.so computes a wrong sin of float32")


def test_what_it_has_no_functions_for() -> None:
    library = libraries.get("libmvec")
    for x, op, reason in (
        (np.ones(3, complex), "exp", "not complex128"), (np.ones(3), "nn.functional.relu", "libmvec has no relu"), (np.ones(0), "sin", "without elements"),
    ):  # fmt: skip
        (refused,) = listed(library, op, x)  # type: ignore[arg-type]  # `get` returns any library
        assert isinstance(refused, Refusal) and reason in refused.reason


@pytest.mark.parametrize("cap", reachables())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_instruction_set(dtype: str, cap: str, rng: np.random.Generator, clean: None) -> None:
    """Any number of elements: what is left over goes through a whole vector, and nothing is written behind the array."""
    memory = np.abs(rng.standard_normal(100)).astype(dtype)
    with backline.backends.flags(only=("libmvec",)), backline.backends.cpu.flags(capability=cap):
        for op in ELEMENTARY:
            with np.errstate(all="ignore"):
                wanted = getattr(np, op)(memory.astype(np.longdouble)).astype(dtype)
            whole = getattr(backline, op)(memory)
            assert (np.abs(whole - wanted) <= UNITS * np.spacing(np.abs(wanted))).all(), op
            for size in range(1, 70):
                out = np.full(100, 7, dtype)
                getattr(backline, op)(memory[:size], out=out[:size])
                assert np.array_equal(out[:size], whole[:size]) and (out[size:] == 7).all(), (op, size)


def test_a_cap_takes_functions_of_shorter_vectors() -> None:
    library = libraries.get("libmvec")
    assert isinstance(library, Libmvec)
    found = set()
    for cap in reachables():
        with backline.backends.cpu.flags(capability=cap):
            function = library.function("sin", "float64", vector_level())
            assert function is not None
            found.add((function.address, function.mode))
    assert len(found) == len(reachables())


@pytest.mark.parametrize("cap", reachables())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sines_stay_within_one_and_cosines_are_even(dtype: str, cap: str, clean: None) -> None:
    """The functions themselves are a unit beyond 1 near some multiples of a quarter of the period."""
    near = np.arange(1, 20000) * (np.pi / 2)
    x = np.concatenate([near, np.nextafter(near, 0), np.linspace(0, 9000, 200001), [6820.397650943441, 271.74777, np.inf, np.nan, 0.0, -0.0]])
    x = np.concatenate([x, -x]).astype(dtype)
    with backline.backends.flags(only=("libmvec",)), backline.backends.cpu.flags(capability=cap):
        cosines, sines = backline.cos(x), backline.sin(x)
        assert np.array_equal(cosines, backline.cos(-x), equal_nan=True)
    for result in (cosines, sines):
        assert np.array_equal(np.isnan(result), ~np.isfinite(x)) and np.nanmax(np.abs(result)) <= 1
    assert np.array_equal(np.signbit(sines[x == 0]), np.signbit(x[x == 0]))


def test_one_that_is_wrong_at_one_level_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: None) -> None:
    """Whatever the cap is when it is loaded: another may hold later."""
    source = SOURCE.replace('ONE(b, 2, double, "sse2", op, , error)', 'ONE(b, 2, double, "sse2", op, , 0.5)')
    monkeypatch.setenv("BACKLINE_LIBMVEC_LIBRARY", str(compiled(tmp_path, "libstand_in_vectors.so", source, NEW=1, ERROR=0)))
    assert Libmvec().reason().endswith("computes a wrong exp of float64")


def test_on_another_processor(monkeypatch: pytest.MonkeyPatch, clean: None) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert Libmvec().reason() == "its functions are known here for x86-64, not for aarch64"
