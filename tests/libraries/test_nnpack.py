"""NNPACK as it is found and refused: a file of its own, or the copy inside PyTorch; and that it gets what it is meant to get."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backline import libraries
from backline.errors import LibraryFailed
from backline.libraries.base import Algorithm
from backline.libraries.nnpack import nnpack_conv
from backline.libraries.nnpack.library import NNPACK
from stand_ins import NNPACK_SOURCE, compiled
from support import clean, problem_of, python

assert clean  # a fixture: imported to be found by pytest
F32 = np.dtype(np.float32)
REASON = "from backline import libraries; print(libraries.get('nnpack').reason() or libraries.get('nnpack').report()['path'])"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nnpack"), "libstand_in.so", NNPACK_SOURCE, INITIALISED=0)


@pytest.fixture
def library(path: Path, monkeypatch: pytest.MonkeyPatch, clean: None) -> NNPACK:
    monkeypatch.setenv("BACKLINE_NNPACK_LIBRARY", str(path))
    found = NNPACK()
    assert found.available(), found.reason()
    return found


def said(file: Path | str, program: str = REASON, **variables: str) -> str:
    return str(python(program, env={"BACKLINE_NNPACK_LIBRARY": str(file), **variables}).stdout).strip()


def count(library: NNPACK, what: str) -> int:
    assert library.native is not None
    return int(ctypes.CFUNCTYPE(ctypes.c_long)(library.native.address(f"stand_in_{what}"))())


def test_a_file_that_is_named(path: Path, library: NNPACK) -> None:
    assert said(path) == str(path)
    report = library.report()
    assert report["available"] and report["path"] == str(path) and report["pool"] == "pthreadpool in libstand_in.so"
    assert library.version() is None


def test_nothing_is_loaded_before_it_is_asked_for_and_pytorch_never() -> None:
    python(
        """
        import sys, backline
        from backline import libraries
        found = libraries.get("nnpack")
        assert "nnpack" not in open("/proc/self/maps").read()
        found.available()
        assert "torch" not in sys.modules and "libtorch" not in open("/proc/self/maps").read()
        """
    )


@pytest.mark.torch
def test_the_copy_inside_pytorch_is_taken_once_that_is_imported() -> None:
    pytest.importorskip("torch")
    python(
        """
        from backline import libraries
        found = libraries.get("nnpack")
        before = found.reason()
        import torch
        assert found.available() and found.loaded() and before
        report = found.report()
        assert report["path"].endswith("libtorch_cpu.so") and report["found by"] == "inside other packages", report
        """,
        env={"BACKLINE_NNPACK_LIBRARY": ""},
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("return INITIALISED;", "return 51;", "does not initialise: it does not support this processor (status 51)"),
        ("return INITIALISED;", "abort();", "crashes when it is tested (SIGABRT)"),
        ("sum += input", "sum -= input", "computes a wrong convolution by"),
        ("nnp_convolution_inference(", "nnp_something_else(", "exports no nnp_convolution_inference"),
    ],
)
def test_one_that_does_not_work_is_refused(tmp_path: Path, before: str, after: str, words: str) -> None:
    assert before in NNPACK_SOURCE
    file = compiled(tmp_path, "libstand_in.so", NNPACK_SOURCE.replace(before, after), INITIALISED=0)
    assert words in said(file)


def test_other_processors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backline.libraries.nnpack.library.platform.machine", lambda: "aarch64")
    assert "how aarch64 passes them is not known" in NNPACK().reason()


def test_it_gets_what_it_is_meant_to_get(library: NNPACK) -> None:
    """One call for each image and group; the pool for one image, none where images are divided among threads."""
    for batch, groups, pooled in ((1, 1, True), (1, 2, False), (4, 1, False)):
        x, w = np.ones((batch, 16, 40, 40), F32), np.ones((16, 16 // groups, 3, 3), F32)
        problem = problem_of("nn.functional.conv2d", x, w, groups=groups)
        for way in library.algorithms(problem, 2):
            if not isinstance(way, Algorithm):
                continue
            plan = library.prepare(problem, way)
            calls, transforms, pools = (count(library, what) for what in ("calls", "transforms", "with_pool"))
            plan(x, w)
            items = batch * groups
            assert count(library, "calls") - calls == count(library, "transforms") - transforms == items
            assert count(library, "with_pool") - pools == (items if pooled and way.threads > 1 else 0), way.key


def test_packed_weights_are_transformed_once(library: NNPACK) -> None:
    x, w = np.ones((3, 4, 20, 20), F32), np.ones((4, 2, 3, 3), F32)
    problem = problem_of("nn.functional.conv2d", x, w, groups=2)
    problem = replace(problem, parameters=(("packed", True),))
    for way in library.algorithms(problem, 1):
        if isinstance(way, Algorithm):
            plan, transforms = library.prepare(problem, way), count(library, "transforms")
            for _ in range(3):
                plan(x, w)
            assert count(library, "transforms") - transforms == 2, way.name  # one for each group
            assert plan.kept_bytes >= w.nbytes
    one = problem_of("nn.functional.conv2d", x, np.ones((4, 4, 1, 1), F32))
    one = replace(one, parameters=(("packed", True),))
    (direct,) = [a for a in library.algorithms(one, 1) if isinstance(a, Algorithm) and a.name == "direct"]
    plan = library.prepare(one, direct)  # which has nothing to keep, and reads the weights of each call
    assert plan.kept_bytes == 0 and "first call" not in direct.note
    assert plan(x, np.full((4, 4, 1, 1), 2, F32))[0, 0, 0, 0] == 8


def test_a_call_that_fails_raises_with_the_status(library: NNPACK, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = np.ones((2, 3, 8, 8), F32), np.ones((3, 3, 3, 3), F32)
    problem = problem_of("nn.functional.conv2d", x, w)
    (way, *_) = [a for a in library.algorithms(problem, 1) if isinstance(a, Algorithm)]
    sizes = nnpack_conv._workspace
    monkeypatch.setattr(nnpack_conv, "_workspace", lambda *args: (sizes(*args)[0], 8))  # less than it asks for
    plan = library.prepare(problem, way)
    with pytest.raises(LibraryFailed, match=r"NNPACK failed to run conv f32 .*the workspace is too small \(status 53\)"):
        plan(x, w)


def test_what_it_says_no_to_is_refused(library: NNPACK, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of("nn.functional.conv2d", np.ones((1, 2, 8, 8), F32), np.ones((2, 2, 3, 3), F32))
    monkeypatch.setattr(nnpack_conv, "_workspace", lambda *args: (52, 0))
    found: list[Any] = list(library.algorithms(problem, 1))
    assert all(not isinstance(a, Algorithm) for a in found)
    assert "NNPACK refuses it: out of memory (status 52)" in {f.reason for f in found}
    with pytest.raises(RuntimeError, match="out of memory"):
        library.prepare(problem, Algorithm(library="nnpack", name="ft8x8"))


def test_it_is_known_to_the_rest() -> None:
    assert "nnpack" in libraries.names() and libraries.get("nnpack").families == ("conv",)
