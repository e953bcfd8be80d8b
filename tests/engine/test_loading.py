"""Libraries are loaded when they may be what is chosen, and not before; a plan that failed is not used again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, libraries
from backline.engine import choose, plan_caches, ranking, ranking_files
from backline.engine.tuning import record_store
from backline.engine.tuning.record import TuningRecord
from backline.errors import LibraryFailed
from backline.libraries.base import Algorithm, FileLibrary, failure
from backline.libraries.probing import probe_cache, probe_process
from backline.native.processor_class import ProcessorClass
from support import clean, need, problem_of, python

pytestmark = pytest.mark.usefixtures("clean")
assert clean

HEAD = """
import numpy as np, backline
from backline import libraries
a = np.ones((300, 300), np.float32)
names = ("blis", "mkl", "onednn", "openblas")
def loaded():
    return [name for name in names if libraries.get(name).loaded()]
"""


def test_a_first_call_loads_what_it_takes_and_explain_loads_the_rest() -> None:
    need("openblas")
    done = python(
        HEAD
        + """
a = a.astype(float)  # of float32 BLIS 0.9 is refused as soon as it is loaded
backline.mm(a, a)
first = loaded()
ran = backline.explain()
print(first, ran.library, sorted(c.library for c in ran.candidates if "not loaded" in c.reason and c.library in names))
would = backline.explain(backline.mm, a, a)
print(loaded(), would.library == ran.library, any("not loaded" in c.reason for c in would.candidates))
"""
    )
    first, second = done.stdout.splitlines()
    names = ["blis", "mkl", "onednn", "openblas"]
    entry = ranking.order_of(problem_of("mm", np.ones((300, 300)), np.ones((300, 300))))
    best = next(key.partition(".")[0] for key in entry if libraries.get(key.partition(".")[0]).available())
    rest = [n for n in names if n != best]
    assert first == f"{[best]} {best} {rest}"
    assert second == f"{names} True False"


def test_what_is_asked_for_is_loaded() -> None:
    for name in ("mkl", "blis", "onednn"):
        need(name)
    done = python(
        HEAD
        + """
with backline.use("blis"):
    backline.mm(a.astype(float), a.astype(float))
    print("blis" in loaded(), "onednn" in loaded(), backline.explain().library)
with backline.use("onednn", only=True):
    backline.mm(a, a)
    print("onednn" in loaded(), backline.explain().library)
with backline.backends.flags(deterministic=True, determinism_level="threads"):
    backline.mm(a, a)
    print(loaded())
"""
    )
    assert done.stdout.splitlines() == ["True False blis", "True onednn", "['blis', 'mkl', 'onednn', 'openblas']"]


@pytest.mark.parametrize(("seconds", "left", "expected"), [(1e-3, {}, "mkl"), (1e-3, {"mkl": "why"}, ""), (3e-3, {}, "")])
def test_a_record_says_whether_loading_may_change_the_choice(seconds: float, left: dict[str, str], expected: str) -> None:
    record = TuningRecord("x", 1, medians={"openblas.gemm@1": 2e-3, "mkl.gemm@1": seconds}, left=left)
    assert record_store.sooner(record, "openblas.gemm@1", {"mkl", "blis"}) == expected


def test_a_little_faster_may_still_win_by_the_ranking() -> None:
    record = TuningRecord("x", 1, medians={"openblas.gemm@1": 2e-3, "mkl.gemm@1": 2.01e-3})
    assert record_store.sooner(record, "openblas.gemm@1", {"mkl"}) == "mkl"
    assert record_store.sooner(record, "numpy.matmul@1", {"mkl"}) == "mkl"  # what was not measured comes after what was


def test_the_ranking_says_whether_loading_may_change_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of("mm", np.ones((8, 8)), np.ones((8, 8)))
    monkeypatch.setattr(ranking, "order_of", lambda p: ["blis.gemm@1", "openblas.gemm@1", "mkl.gemm@1"])
    monkeypatch.setattr(ranking_files, "here", lambda: ProcessorClass("amd", "avx2", 2))
    chosen = Algorithm(library="openblas", name="gemm")
    assert ranking.sooner(problem, chosen, {"mkl", "onednn"}) == ""
    assert ranking.sooner(problem, chosen, {"mkl", "blis"}) == "blis"
    assert ranking.sooner(problem, Algorithm(library="numpy", name="matmul"), {"mkl", "onednn"}) == "mkl"
    monkeypatch.setattr(ranking_files, "here", lambda: ProcessorClass("intel", "avx2", 2))
    assert ranking.sooner(problem, chosen, {"mkl", "onednn"}) == "mkl"  # it may have a kernel compiled for the shape


@pytest.fixture
def prepared() -> Iterator[list[int]]:
    """Counts how often OpenBLAS makes a plan."""
    inner = libraries.get("openblas")
    made = [0]
    prepare = inner.prepare

    def counted(*arguments: Any) -> object:
        made[0] += 1
        return prepare(*arguments)

    inner.prepare = counted  # type: ignore[method-assign]  # a double
    plan_caches.clear()
    yield made
    del inner.prepare  # type: ignore[method-assign]  # a double
    plan_caches.clear()


def test_a_plan_that_failed_is_made_anew(prepared: list[int]) -> None:
    need("openblas")
    a = np.ones((300, 300))
    with backline.use("openblas", only=True):
        for _ in range(3):
            backline.mm(a, a)
        assert prepared == [1]
        plan = _core.last_plan()
        error = failure(plan, "openblas failed to run it", cause="out of memory")
        assert isinstance(error, LibraryFailed) and "out of memory" in str(error) and plan.failed
        for _ in range(3):
            backline.mm(a, a)
        assert prepared == [2] and _core.last_plan() is not plan


def test_an_old_record_has_nothing_left_out(tmp_path: Path) -> None:
    import json

    from backline.engine.tuning.record import parse

    line = json.loads(TuningRecord("x", 1, created="2026-11-21T03:00:00.000000Z", machine="m", backline="1").line())
    del line["left"]
    assert parse(json.dumps(line)).left == {}
    line["left"] = {"Bad Name": "x"}
    with pytest.raises(ValueError, match="left is"):
        parse(json.dumps(line))


def test_choosing_without_loading_falls_back_to_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that are not loaded are loaded before it is an error that no loaded one can run a Problem."""
    need("openblas")
    problem = problem_of("mm", np.ones((300, 300)), np.ones((300, 300)))
    with backline.backends.numpy.flags(enabled=False):
        assert choose.choose(problem, load=False).chosen is not None


def test_rows_hold_for_the_classes() -> None:
    """In a process of its own: there the libraries are as their rows have them, none loaded."""
    done = python(
        """
from backline import libraries
for name in libraries.names():
    row, loaded = libraries.info(name), libraries.is_loaded(name)
    library = libraries.get(name)
    assert library.info is row and libraries.info(name) is row, name
    assert (library.name, library.families, library.devices, library.switch) == (name, row.families, row.devices, row.switch)
    assert library.loaded() == loaded, name
print(len(libraries.names()))
"""
    )
    assert int(done.stdout) >= 12


def test_a_product_imports_no_library_of_other_families() -> None:
    done = python(
        """
import sys, numpy as np, backline
backline.mm(np.ones((3, 3)), np.ones((3, 3)))
print(sorted(name for name in sys.modules if name.startswith(("backline.libraries.fftw", "backline.libraries.cuda.cu",
    "backline.libraries.mlx", "backline.libraries.nnpack", "backline.libraries.scipy.library"))))
"""
    )
    assert done.stdout.strip() == "[]"


def test_float64_does_not_import_the_package_of_bfloat16() -> None:
    """A release of it, 0.7.0, takes a second to import."""
    need("onednn")
    done = python(
        """
import sys, numpy as np, backline
from backline.nn import functional
x = np.ones((8, 8))
with backline.use("onednn"):
    functional.relu(x), backline.mm(x, x)
backline.mm(x, x), backline.linalg.svd(x), backline.fft.fft(x), backline.matmul(x[None], x)
print("ml_dtypes" in sys.modules)
"""
    )
    assert done.stdout.strip() == "False"


def test_the_time_of_loading_leaves_out_the_test_in_a_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That is due once for a file: whether a library is worth loading must not depend on it."""
    clock = [0.0]
    file = tmp_path / "libtoy.so"
    file.write_bytes(b"toy")

    def ask(*args: Any, **changes: Any) -> tuple[dict[str, str], bool]:
        clock[0] += 1000
        return {"reason": ""}, False

    class Toy(FileLibrary):
        name, title = "toy", "Toy"

        def load(self) -> str:
            clock[0] += 2
            return probe_cache.prove("toy", str(file), "library", {}).reason

    monkeypatch.setattr(probe_process, "ask", ask)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    toy = Toy()
    assert toy.reason() == "" and toy.load_seconds == pytest.approx(2)
