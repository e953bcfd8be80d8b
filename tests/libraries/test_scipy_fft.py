"""SciPy as a library: found without importing it, called by what it is."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

from backline import libraries
from backline.libraries.base import Refusal
from backline.libraries.scipy.library import SciPy
from support import algorithms, clean, problem_of, python

pytestmark = pytest.mark.usefixtures("clean")
assert clean


def test_it_says_what_it_is() -> None:
    library = SciPy()
    assert library.available() and library.version() == scipy.__version__
    assert library.title in ("SciPy (DUCC)", "SciPy (pocketfft)")
    report = library.report()
    assert report["path"].startswith(str(Path(scipy.__file__).parent)) and report["title"] == library.title
    assert library.module().c2c(np.ones(2)).tolist() == [2, 0]


def test_asking_it_imports_nothing_of_scipy() -> None:
    python(
        """
        import sys, numpy as np, backline
        from backline import libraries
        library = libraries.get("scipy")
        assert library.available() and library.version() and library.report()["available"]
        choice = backline.explain("fft.fft", np.ones(8))
        assert "scipy" in [c.library for c in choice.candidates if c.verdict != "refused"]
        assert not [name for name in sys.modules if name.partition(".")[0] == "scipy"], "imported"
        assert not library.imported()
        with backline.use("scipy", only=True):
            assert backline.fft.fft(np.ones(2)).tolist() == [2, 0]
        assert library.imported()
        """
    )


@pytest.mark.parametrize(("folder", "title"), [("_duccfft", "SciPy (DUCC)"), ("_pocketfft", "SciPy (pocketfft)"), ("_other", "")])
def test_older_and_newer_releases(folder: str, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fft" / folder).mkdir(parents=True)
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    library = SciPy()
    assert library.available() == bool(title)
    if title:
        assert library.title == title
    else:
        assert "neither _duccfft nor _pocketfft" in library.reason() and library.report()["how to get"]


def test_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    library = SciPy()
    assert not library.available() and "pip install scipy" in library.reason() and library.version() is None
    assert library.report()["reason"] == library.reason()


def test_threads_are_for_more_than_one_line() -> None:
    def counts(name: str, x: Any) -> list[int]:
        return [a.threads for a in algorithms("scipy", problem_of(f"fft.{name}", x), 4)]

    assert counts("fft", np.ones(1 << 12)) == [1]
    assert counts("fft", np.ones((8, 512))) == counts("fft2", np.ones((64, 64))) == [1, 4]
    assert counts("fft", np.empty((0, 4))) == [1]


def test_nothing_but_transforms() -> None:
    (refusal,) = libraries.get("scipy").algorithms(problem_of("matmul", np.ones((2, 2)), np.ones((2, 2))), 1)
    assert isinstance(refusal, Refusal) and refusal.reason.endswith("has no matmul")


def test_runs_are_counted() -> None:
    """As compiled plans count theirs: the cache of plans reads them off."""
    x, out = np.ones(16), np.empty(9, complex)
    for name in ("scipy", "numpy"):
        problem = problem_of("fft.rfft", x, out=out)
        plan = libraries.get(name).prepare(problem, next(a for a in algorithms(name, problem, 1) if a.name != "loops"))
        assert (plan.runs, plan.used) == (0, 0)
        plan(x, out)
        first = plan.used
        assert plan(out=out, input=x) is out and plan.runs == 2 and plan.used > first
