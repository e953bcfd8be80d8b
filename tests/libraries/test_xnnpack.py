"""XNNPACK as it is found and refused: which interface a file has, pools of threads, operators that fail or are left over."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.errors import LibraryFailed
from backline.libraries.base import Algorithm
from backline.libraries.pthreadpool import Pools
from backline.libraries.xnnpack import interface as interfaces
from backline.libraries.xnnpack.interface import EARLY, LATE, PRODUCT, Interface, Operator, Xnnpack, trials, wrong
from backline.libraries.xnnpack.library import RIGHT, XNNPACK, _tried, _try
from backline.native.shared_library import NativeLibrary
from backline.nn import functional as F
from stand_ins import XNNPACK_SOURCE, compiled
from support import clean, problem_of, python

assert clean  # a fixture: imported to be found by pytest
F32 = np.dtype(np.float32)
SIZES = {"setup": 0, "reshape": 1, "workspace": 2, "aligned workspace": 3}
REASON = "from backline import libraries; print(libraries.get('xnnpack').reason() or libraries.get('xnnpack').report()['config'])"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], Path]:
    """A function that gives the stand-in with an interface; each is compiled once."""
    done: dict[tuple[int, str], Path] = {}

    def make(caches: int, sizes: str) -> Path:
        if (caches, sizes) not in done:
            folder = tmp_path_factory.mktemp("xnnpack")
            done[caches, sizes] = compiled(folder, "libstand_in.so", XNNPACK_SOURCE, CACHES=caches, SIZES=SIZES[sizes])
        return done[caches, sizes]

    return make


def said(path: Path | str, program: str = REASON, **variables: str) -> str:
    return str(python(program, env={"BACKLINE_XNNPACK_LIBRARY": str(path), **variables}).stdout)


# Interfaces -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interface", [*EARLY, *LATE], ids=str)
def test_the_interface_of_a_file_is_found_by_trying(made: Callable[[int, str], Path], interface: Interface) -> None:
    assert _tried(NativeLibrary(str(made(interface.caches, interface.sizes)))) == str(interface)


@pytest.mark.parametrize("interface", [EARLY[-1], LATE[-2]], ids=str)
def test_the_search_does_that_in_a_process_of_its_own(made: Callable[[int, str], Path], interface: Interface) -> None:
    age = "older" if interface.sizes == "setup" else "newer"
    assert said(made(interface.caches, interface.sizes)).strip() == f"the {age} {interface}"


@pytest.mark.parametrize("has", [Interface(0, "setup"), Interface(2, "workspace"), Interface(1, "reshape")], ids=str)
def test_what_comes_before_the_right_interface_fails(made: Callable[[int, str], Path], has: Interface) -> None:
    native = NativeLibrary(str(made(has.caches, has.sizes)))
    before = list(itertools.takewhile(lambda each: each != has, trials(native)))
    assert before and all(_try(native, each) != RIGHT for each in before)
    assert _try(native, has) == RIGHT


def test_one_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backline.libraries.xnnpack.library.SECONDS", 1)
    path = compiled(tmp_path, "libstand_in.so", XNNPACK_SOURCE.replace("++runs;", "for (;;) ;"), CACHES=0, SIZES=0)
    assert _try(NativeLibrary(str(path)), Interface(0, "setup")) < 0


def test_the_one_that_is_installed_has_the_interface_of_2022() -> None:
    library = libraries.get("xnnpack")
    if not library.available():
        pytest.skip(f"xnnpack is not available: {library.reason()}")
    report = library.report()
    assert report["config"] == "the older interface with 0 caches, sizes by setup" and report["pool"] == "pthreadpool"
    assert library.version() is None and backline.backends.xnnpack.version() is None
    assert backline.backends.xnnpack.is_available() and backline.backends.xnnpack.enabled is True


def test_an_interface_is_named_and_read_again() -> None:
    for each in (*EARLY, *LATE):
        assert Interface.read(str(each)) == each
    assert Interface.read("hangs when it is tested") is None and Interface.read("") is None


# Refusals -----------------------------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    python(
        """
        import backline
        from backline import libraries
        libraries.get("xnnpack")
        assert "XNNPACK" not in open("/proc/self/maps").read()
        """
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("return allocator ? INVALID : OK;", "return 5;", "a call failed"),
        ("sum += op->in[r * op->c[2] + i]", "sum -= op->in[r * op->c[2] + i]", "wrong result"),
        ("int xnn_delete_operator(op_t op) {", "int xnn_delete_operator(op_t op) { abort();", "crashed"),
        ("sum += op->in[((b", "sum += 1 + op->in[((b", "wrong result"),
    ],
)
def test_one_that_does_not_work_is_refused(tmp_path: Path, before: str, after: str, words: str) -> None:
    assert before in XNNPACK_SOURCE
    path = compiled(tmp_path, "libstand_in.so", XNNPACK_SOURCE.replace(before, after), CACHES=0, SIZES=0)
    out = said(path)
    assert "has none of the interfaces that are known" in out and f"interface with 0 caches, sizes by setup: {words}" in out


def test_files_that_are_none() -> None:
    assert "no such file" in said("/nowhere/libXNNPACK.so.0")


def test_one_without_pools_runs_on_one_thread(tmp_path: Path) -> None:
    source = XNNPACK_SOURCE.replace("pthreadpool_t pthreadpool_create(", "static pthreadpool_t unused(")
    path = compiled(tmp_path, "libstand_in.so", source, CACHES=0, SIZES=0)
    out = said(
        path,
        """
        import numpy as np
        from backline import libraries
        from backline.problems.op_registry import operations
        a = np.ones((200, 200), np.float32)
        import backline
        library = libraries.get("xnnpack")
        print([w.threads for w in library.algorithms(operations["matmul"].build(a, a), 2)], repr(library.report()["pool"]))
        """,
    )
    assert out.strip() == "[1] ''"


# Operators ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(made: Callable[[int, str], Path]) -> Any:
    """A stand-in that counts, loaded here."""
    native = NativeLibrary(str(made(1, "workspace")))
    return Xnnpack(native, Interface(1, "workspace"))


def count(xnn: Xnnpack, what: str) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_long)(xnn.native.address(f"stand_in_{what}"))())


def library_of(xnn: Xnnpack) -> XNNPACK:
    library = XNNPACK()
    library.xnn, library._reason = xnn, ""
    return library


def test_every_operator_is_deleted(counted: Xnnpack) -> None:
    assert wrong(counted, 1) == "" and wrong(counted, 2) == "" and count(counted, "threads") == 2
    assert count(counted, "live") == 0
    library, x, w = library_of(counted), np.ones((1, 2, 5, 5), F32), np.ones((3, 2, 3, 3), F32)
    problem = problem_of("nn.functional.conv2d", x, w)
    (way,) = [a for a in library.algorithms(problem, 1) if isinstance(a, Algorithm)]
    plan, packed = library.prepare(problem, way), count(counted, "packed")
    for _ in range(3):
        plan(x, w)
    assert (count(counted, "live"), count(counted, "packed")) == (0, packed + 3)


def test_a_packed_plan_keeps_one_operator_until_it_goes(counted: Xnnpack) -> None:
    library, x, w = library_of(counted), np.ones((1, 2, 5, 5), F32), np.ones((3, 2, 3, 3), F32)
    problem = problem_of("nn.functional.conv2d", x, w)
    problem = replace(problem, parameters=(("packed", True),))
    (way,) = [a for a in library.algorithms(problem, 1) if isinstance(a, Algorithm)]
    plan, packed = library.prepare(problem, way), count(counted, "packed")
    for _ in range(3):
        plan(x, w)
    assert (count(counted, "live"), count(counted, "packed")) == (1, packed + 1) and way.note == "weights packed by the first call"
    assert plan.kept_bytes == w.nbytes
    del plan
    gc.collect()
    assert count(counted, "live") == 0


def test_a_call_that_fails_raises_with_the_status_and_leaves_nothing(counted: Xnnpack) -> None:
    one = np.ones(64, F32)
    with pytest.raises(LibraryFailed, match=r"xnn_create_fully_connected_nc_f32 failed: invalid parameter \(status 2\)"):
        Operator(counted, PRODUCT, (0, 4, 4, 4), one.ctypes.data, 0)
    op = Operator(counted, PRODUCT, (4, 4, 4, 4), one.ctypes.data, 0)
    with pytest.raises(LibraryFailed, match=r"xnn_setup_fully_connected_nc_f32 failed: invalid state \(status 3\)"):
        op.run((2,), 0, 0, 1)
    op.delete(), op.delete()
    conv = Operator(counted, interfaces.CONV, (0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2), one.ctypes.data, 0)
    with pytest.raises(LibraryFailed, match=r"makes images of \(3, 3\) where they should be of \(9, 9\)"):
        conv.run((1, 3, 3), one.ctypes.data, one.ctypes.data, 1, (9, 9))
    conv.delete()
    assert count(counted, "live") == 0
    with pytest.raises(RuntimeError, match="exports no xnn_nothing"):
        counted.function("xnn_nothing", ())


def test_a_plan_whose_operator_fails_leaves_none(counted: Xnnpack, monkeypatch: pytest.MonkeyPatch) -> None:
    library, a = library_of(counted), np.ones((4, 4), F32)
    problem = problem_of("matmul", a, a)
    (way,) = [w for w in library.algorithms(problem, 1) if isinstance(w, Algorithm)]
    plan = library.prepare(problem, way)
    monkeypatch.setitem(interfaces.STATUS, 3, "as wished")
    monkeypatch.setitem(counted._functions, "xnn_run_operator", lambda op, pool: 3)
    with pytest.raises(LibraryFailed, match=r"xnn_run_operator failed: as wished \(status 3\)"):
        plan(a, a)
    assert count(counted, "live") == 0


# Pools ------------------------------------------------------------------------------------------------------------------------------


def test_there_is_one_pool_for_each_number_of_threads(counted: Xnnpack) -> None:
    pools = Pools(counted.native)
    assert pools.get(1) == pools.get(0) == 0
    assert pools.get(2) == pools.get(2) != pools.get(3)
    assert pools.name == "pthreadpool in libstand_in.so"


def test_a_pool_of_another_size_is_refused(tmp_path: Path) -> None:
    source = XNNPACK_SOURCE.replace("p->threads = n;", "p->threads = 1;")
    path = compiled(tmp_path, "libstand_in.so", source, CACHES=0, SIZES=0)
    with pytest.raises(RuntimeError, match="has made no pool of 2 threads"):
        Pools(NativeLibrary(str(path))).get(2)
    assert "has made no pool of 2 threads" in said(path, BACKLINE_NUM_THREADS="2")


@pytest.mark.usefixtures("clean")
def test_its_switch_turns_it_off() -> None:
    library = libraries.get("xnnpack")
    if not library.available():
        pytest.skip(f"xnnpack is not available: {library.reason()}")
    a, x, w = np.ones((4, 4), F32), np.ones((1, 2, 6, 6), F32), np.ones((2, 2, 3, 3), F32)
    for function, args in ((backline.matmul, (a, a)), (F.conv2d, (x, w)), (F.linear, (a, a))):
        with backline.use("xnnpack", only=True):
            function(*args)
            assert backline.explain().library == "xnnpack"
            with backline.backends.xnnpack.flags(enabled=False), pytest.raises(backline.errors.NoKernel, match=r"xnnpack\.enabled"):
                function(*args)
