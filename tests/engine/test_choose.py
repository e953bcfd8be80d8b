"""The rules of a choice: switches, abilities, accuracy, determinism, preference, fallback, libraries from elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, libraries, linalg
from backline.engine import choose
from backline.engine.tuning import record_store
from backline.errors import BadValue, FallbackRefused, NoKernel, NotDeterministic
from backline.libraries.base import Algorithm, Library, PythonPlan, Refusal
from support import LIBRARIES, clean, need, problem_of

pytestmark = pytest.mark.usefixtures("clean")
assert clean
A = np.ones((300, 300))
SMALL = np.eye(3)


def library_of(op: Any = backline.mm, *args: Any) -> str | None:
    return backline.explain(op, *(args or (A, A))).library


# Switches and preferences ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
def test_prefer_and_only(library: str) -> None:
    need(library)
    with backline.use(library):
        assert library_of() == library
    with backline.use(library, only=True):
        choice = backline.explain(backline.mm, A, A)
        assert choice.library == library
        others = [c for c in choice.candidates if c.library not in (library, "emulated")]
        assert others and all(c.verdict == "refused" and c.switch == "only" and "not among only" in c.reason for c in others)


def test_preferences_are_in_order() -> None:
    for a, b in (("mkl", "openblas"), ("openblas", "mkl"), ("numpy", "mkl")):
        need(a), need(b)
        with backline.use(a, b):
            found = [c.library for c in backline.explain(backline.mm, A, A).candidates if c.verdict != "refused"]
        assert found[0] == a and found.index(b) == found.count(a)


def test_a_disabled_library_is_refused_with_the_place() -> None:
    need("openblas")
    with backline.backends.openblas.flags(enabled=False):
        choice = backline.explain(backline.mm, A, A)
    refused = [c for c in choice.candidates if c.library == "openblas"]
    assert [c.switch for c in refused] == ["openblas.enabled"] and "test_choose.py" in refused[0].reason
    assert choice.library != "openblas"


def test_no_kernel_lists_every_library_with_its_reason() -> None:
    with backline.use("numpy", only=True), backline.backends.numpy.flags(enabled=False), pytest.raises(NoKernel) as caught:
        backline.mm(SMALL, SMALL)
    text = str(caught.value)
    assert "matmul f64 3x3 3x3" in text and "numpy.enabled" in text and "remedy" in text
    for library in (each for each in libraries.all_libraries() if "cpu" in each.devices):
        assert f"\n    {library.name}" in text or "matmul" not in (library.families or ("matmul",)), text
    need("blis")
    with backline.use("blis", only=True), pytest.raises(NoKernel, match=r"BLIS has no linalg\.inv"):
        linalg.inv(SMALL)


def test_empty_problems_run_wherever_full_ones_do() -> None:
    empty = np.ones((0, 3))
    for name in LIBRARIES:
        need(name)
        with backline.use(name, only=True):
            assert backline.mm(empty, SMALL).shape == (0, 3)
            if name != "blis":
                assert linalg.inv(np.ones((0, 3, 3))).shape == (0, 3, 3)
            else:
                with pytest.raises(NoKernel):
                    linalg.inv(np.ones((0, 3, 3)))


def test_the_number_of_threads_changes_the_choice() -> None:
    need("openblas")
    with backline.use("openblas", only=True):
        for n in (1, 2):
            with backline.num_threads(n):
                choice = backline.explain(backline.mm, A, A)
                assert choice.chosen is not None and choice.chosen.threads == n == choice.threads
        tiny = backline.explain(backline.mm, SMALL, SMALL)
        assert tiny.chosen is not None and tiny.chosen.threads == 1


# Fallback -------------------------------------------------------------------------------------------------------------

INTEGERS = np.ones((3, 3), np.int64)


def test_a_preference_that_cannot_be_kept() -> None:
    need("mkl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with backline.use("mkl"):
            assert backline.explain(backline.mm, INTEGERS, INTEGERS).library == "numpy"
            backline.mm(INTEGERS, INTEGERS)
    with backline.use("mkl", fallback="warn"):
        with pytest.warns(RuntimeWarning, match=r"matmul runs on numpy: mkl was preferred: .*int64"):
            backline.mm(INTEGERS, INTEGERS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the second time is silent
            backline.mm(INTEGERS, INTEGERS)
            backline.mm(INTEGERS[:2], INTEGERS)
    with backline.use("mkl", fallback="error"):
        with pytest.raises(FallbackRefused, match=r"cannot run on mkl") as caught:
            backline.mm(INTEGERS, INTEGERS)
        assert "int64" in caught.value.cause and backline.mm(SMALL, SMALL).shape == (3, 3)
    with backline.use("mkl", "openblas", fallback="error"), pytest.raises(FallbackRefused, match="mkl or openblas"):
        backline.mm(INTEGERS, INTEGERS)
    with backline.use("mkl"):
        assert "mkl was preferred" in backline.explain(backline.mm, INTEGERS, INTEGERS).fallbacks[0]


def test_a_second_preference_that_is_kept_is_no_fallback() -> None:
    need("openblas"), need("blis")
    with backline.use("blis", "openblas", fallback="error"):
        assert library_of(linalg.inv, SMALL) == "openblas"


# Determinism ----------------------------------------------------------------------------------------------------------


def test_determinism_is_a_filter() -> None:
    need("openblas")
    with backline.use("openblas", only=True), backline.backends.flags(deterministic=True, determinism_level="threads"):
        choice = backline.explain(backline.mm, A, A)
        assert choice.chosen is not None and choice.chosen.level == "threads" and choice.determinism == "threads"
        refused = [c for c in choice.candidates if c.verdict == "refused" and c.switch == "determinism_level"]
        assert refused and all("reaches determinism level 'run'" in c.reason for c in refused)
    with backline.backends.flags(deterministic=True):
        choice = backline.explain(backline.mm, A, A)
        assert choice.determinism == "run" and choice.chosen is not None and choice.chosen.reaches("run")
    assert "from run to run" in str(choice) or "any thread count" in str(choice)


def test_not_deterministic() -> None:
    """NumPy's products promise nothing across thread counts."""
    flags = backline.backends.flags
    with backline.use("numpy", only=True), flags(deterministic=True, determinism_level="threads"):
        with pytest.raises(NotDeterministic, match="'threads'") as caught:
            backline.mm(A, A)
        assert "numpy matmul" in caught.value.cause
        assert (backline.mm(INTEGERS, INTEGERS) == 3).all(), "integers are summed by one thread in one order"
        with flags(warn_only=True):
            with pytest.warns(RuntimeWarning, match="determinism level 'threads'"):
                backline.mm(A, A)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                backline.mm(A, A)


# Records --------------------------------------------------------------------------------------------------------------


class Record:
    """The part of a tuning record that choose() reads."""

    winner = disturbed = ""
    calibrated = False
    rejected: dict[str, str] = {}  # noqa: RUF012  # never written to

    def __init__(self, seconds: dict[str, float], errors: dict[str, float]) -> None:
        self.medians, self.errors, self.covered = seconds, errors, tuple(seconds)

    def seconds(self, key: str) -> float | None:
        return self.medians.get(key)

    def error(self, key: str) -> float | None:
        return self.errors.get(key)

    def describe(self) -> str:
        return "a record of this test"


def test_a_record_decides_and_max_error_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    need("openblas"), need("mkl")
    slow, fast = "openblas.gemm@n", "mkl.gemm@1"
    record = Record({slow: 2.0, fast: 1.0}, {slow: 1e-16, fast: 1e-3})
    monkeypatch.setattr(record_store, "find", lambda problem, threads: record)
    choice = backline.explain(backline.mm, A, A)
    assert choice.chosen is not None and choice.chosen.key == fast
    assert choice.basis.startswith("a record of this test; ") and choice.basis.endswith(" not timed")
    assert choice.candidates[0].seconds == 1.0 and choice.candidates[0].error == 1e-3
    with backline.backends.flags(max_error=1e-6):
        choice = backline.explain(backline.mm, A, A)
        assert choice.chosen is not None and choice.chosen.key == slow
        (refused,) = [c for c in choice.candidates if c.switch == "max_error"]
        assert refused.library == "mkl" and "1.0e-03 is above max_error = 1.0e-06" in refused.reason
    with backline.backends.flags(deterministic=True):
        assert not backline.explain(backline.mm, A, A).basis.startswith("a record"), "determinism beats timing"
    with backline.use("numpy"):
        assert library_of() == "numpy", "a preference beats a record"


# Libraries from elsewhere ---------------------------------------------------------------------------------------------


class Plugin(Library):
    """A library that is registered by another package; it counts."""

    name, title = "plugin", "Plug-in"

    def __init__(self) -> None:
        self.prepared = 0
        self.broken = self.missing = ""

    def reason(self) -> str:
        return self.missing

    def version(self) -> str | None:
        return "1.2"

    def algorithms(self, problem: Any, threads: int) -> Iterator[Algorithm | Refusal]:
        if problem.op != "matmul" or problem.get("out") is not None:
            yield Refusal(self.name, "", f"it has no {problem.op} with out")
            return
        for name in ("first", "second"):
            yield Algorithm(library=self.name, name=name, level="threads", basis="construction")

    def prepare(self, problem: Any, algorithm: Algorithm) -> Any:
        if algorithm.name == self.broken:
            raise RuntimeError("it was listed, but cannot be made")
        self.prepared += 1
        return PythonPlan(lambda a, b: np.full(problem.result, {"first": 1.0, "second": 2.0}[algorithm.name]))


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    made = Plugin()
    libraries.register(made)
    yield made
    libraries.unregister("plugin")


def test_a_library_that_is_registered_takes_part(plugin: Plugin) -> None:
    assert "plugin" in libraries.names() and libraries.get("plugin") is plugin
    x70 = np.eye(70)  # the kernels that MKL compiles for small products come before all others, where it has them
    choice = backline.explain(backline.mm, x70, x70)
    assert {c.algorithm for c in choice.candidates if c.library == "plugin"} == {"first", "second"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose.ranking, "LIBRARIES", ("plugin", "openblas", "mkl", "numpy", "blis"))
        patch.setattr(choose.ranking, "order_of", lambda problem, own=True: ())
        _core.memo_clear()
        assert (backline.mm(x70, x70) == 1).all() and (backline.mm(x70, x70) == 1).all()
        assert plugin.prepared == 1
        out = np.empty((70, 70))
        assert np.array_equal(backline.mm(x70, x70, out=out), x70), "what it refuses goes elsewhere"
        plugin.broken = "first"
        x = np.ones((66, 66))
        assert (backline.mm(x, x) == 2).all(), "an algorithm that cannot be prepared makes room for the next"
        (failed,) = [c for c in backline.explain().candidates if c.reason.startswith("failed when it was prepared: ")]
        assert (failed.library, failed.algorithm) == ("plugin", "first")
        plugin.missing = "the moon is full"
        choice = backline.explain(backline.mm, x, x)
        assert choice.library != "plugin" and any("not available: the moon is full" in c.reason for c in choice.candidates)


def test_unknown_libraries_are_refused_by_name() -> None:
    with pytest.raises(BadValue, match="openblas"):
        backline.use("openblass")
    with pytest.raises(BadValue, match="there is no library 'lapackpp'"):
        libraries.get("lapackpp")


def test_choosing_is_a_function_of_its_problem() -> None:
    problem = problem_of("matmul", A, A)
    first, second = choose.choose(problem, measure=False), choose.choose(problem, measure=False)
    assert first.chosen == second.chosen and [c.reason for c in first.candidates] == [c.reason for c in second.candidates]
