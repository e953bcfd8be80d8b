"""threadpoolctl: its limits hold for Backline, whoever is imported first, and end with their block."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys

import numpy as np
import pytest
import threadpoolctl

import backline
from backline import switches
from backline.engine import ranking
from backline.interop import numpy as exchange
from backline.interop import threadpoolctl as bridge
from backline.interop.exchange import targets
from backline.switches import store
from exchange_support import wheels_only
from support import clean, need

pytestmark = pytest.mark.usefixtures("unset")
assert clean
A = np.ones((300, 300), np.float32)


@pytest.fixture
def unset(clean: None) -> None:
    """No number of threads is assigned: `clean` assigns one."""
    store._restart()


def ours() -> list[dict[str, object]]:
    return [info for info in threadpoolctl.threadpool_info() if info["internal_api"] == "backline"]


def test_it_is_among_the_blas_libraries() -> None:
    (info,) = ours()
    assert info["user_api"] == "blas" and info["version"] == backline.__version__
    assert info["num_threads"] == backline.get_num_threads() and str(info["filepath"]).endswith(backline._core.__file__[-20:])


def test_a_limit_is_seen_by_explain_and_ends_with_its_block() -> None:
    before = switches.origin("num_threads")
    limit = 1 if backline.get_num_threads() > 1 else 2  # another number than this machine's
    with threadpoolctl.threadpool_limits(limit):
        choice = backline.explain(backline.matmul, A, A)
        assert choice.chosen is not None and choice.chosen.threads <= limit == choice.threads
        value, origin = choice.switches["num_threads"]
        assert value == str(limit) and "test_threadpoolctl.py" in origin
        backline.matmul(A, A)
        ran = backline.explain().chosen
        assert ran is not None and ran.threads <= limit
    assert switches.origin("num_threads") == before


@pytest.mark.parametrize(("api", "threads"), [("blas", 1), ("openmp", 2), (None, 1)])
def test_a_limit_of_one_api(api: str | None, threads: int) -> None:
    backline.set_num_threads(2)
    with threadpoolctl.threadpool_limits(1, user_api=api):
        assert backline.get_num_threads() == threads
    assert backline.get_num_threads() == 2 and switches.origin("num_threads").kind == "assignment"


def test_limits_nest() -> None:
    before = backline.get_num_threads()
    with threadpoolctl.threadpool_limits(3):
        with threadpoolctl.threadpool_limits(1):
            assert backline.get_num_threads() == 1
        assert backline.get_num_threads() == 3
    assert backline.get_num_threads() == before and switches.origin("num_threads").kind != "assignment"


def test_inside_a_scope_a_limit_is_one_of_that_scope() -> None:
    with backline.num_threads(2):
        with threadpoolctl.threadpool_limits(1):
            assert backline.get_num_threads() == 1
        assert backline.get_num_threads() == 2
    assert switches.origin("num_threads").kind != "assignment"


def test_what_is_registered_once_is_registered() -> None:
    assert bridge.register() and bridge.register() and len(ours()) == 1


IMPORTS = {
    "first": "import threadpoolctl, backline",
    "later": "import sys, backline; assert 'threadpoolctl' not in sys.modules; import threadpoolctl",
    "by another package": "import backline, sklearn.base, threadpoolctl",
}


@pytest.mark.parametrize("order", IMPORTS)
def test_whoever_is_imported_first(order: str) -> None:
    program = f"""
import sys
{IMPORTS[order]}
assert threadpoolctl.__loader__ is threadpoolctl.__spec__.loader and "backline" not in type(threadpoolctl.__loader__).__module__
assert not any("on_import" in type(finder).__module__ for finder in sys.meta_path)
with threadpoolctl.threadpool_limits(1):
    print(backline.get_num_threads())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr


def test_a_package_that_is_not_there_is_not_found() -> None:
    program = """
import backline
from backline.interop.on_import import when_imported
when_imported("no_such_package_here", print)
for _ in range(2):
    try:
        import no_such_package_here
    except ModuleNotFoundError as error:
        print(error.name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["no_such_package_here"] * 2


def test_a_frozen_base_is_told_and_left_alone() -> None:
    program = """
import warnings, backline, threadpoolctl
before = backline.get_num_threads()
backline.backends.disable_global_flags()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    with threadpoolctl.threadpool_limits(before + 1):
        assert backline.get_num_threads() == before
print(len(said), "cannot limit Backline" in str(said[0].message))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "1 True\n", done.stdout + done.stderr


def test_a_count_that_it_left_in_a_library_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """threadpoolctl restores the count that it found in OpenBLAS, past the guard that remembers another one."""
    library = need("openblas")
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: ("openblas.gemm@n", "openblas.gemm@1"))
    native, guard = library.traits.native, library.traits.thread_guard
    count = native.address(f"{library.control}get_num_threads{native.suffix}")
    a = np.ones((200, 200))
    with backline.use("openblas", only=True), backline.num_threads(2):
        backline.mm(a, a)
    with backline.use("openblas", only=True), threadpoolctl.threadpool_limits(1):
        backline.mm(a, a)
        assert native.call(count, restype=ctypes.c_int) == 1 == guard.value
    assert native.call(count, restype=ctypes.c_int) == 2, "threadpoolctl put back what it found"
    with backline.use("openblas", only=True), backline.num_threads(1):
        backline.mm(a, a)
    assert native.call(count, restype=ctypes.c_int) == 1


# The library under NumPy ----------------------------------------------------------------------------------------------


def exchanged() -> list[dict[str, object]]:
    return [info for info in threadpoolctl.threadpool_info() if info["internal_api"] == "backline-exchange"]


@wheels_only
@pytest.mark.parametrize("library", ["openblas", "mkl"])
@pytest.mark.parametrize("scoped", [False, True])
def test_a_limit_holds_for_the_library_under_numpy(library: str, scoped: bool) -> None:
    """OpenBLAS is a copy without a file there, which threadpoolctl does not find by itself; within a scope of Backline's, too."""
    need(library)
    target = targets.load(library)
    assert target.get_threads is not None
    backline.set_num_threads(2)
    with backline.num_threads(2) if scoped else contextlib.nullcontext(), exchange.use(library):
        (info,) = exchanged()
        held = target.get_threads()
        assert 1 <= held <= 2  # MKL takes no more threads than there are processors
        assert info["user_api"] == "blas" and info["num_threads"] == held
        for api, threads in (("blas", 1), (None, 1), ("openmp", held)):
            with threadpoolctl.threadpool_limits(1, user_api=api):
                if api != "openmp" or library != "mkl":  # MKL's threads may be those of OpenMP
                    assert target.get_threads() == threads == exchanged()[0]["num_threads"]
                assert np.allclose(np.linalg.inv(A + 300 * np.eye(300)) @ (A + 300 * np.eye(300)), np.eye(300), atol=1e-2)
            assert target.get_threads() == held
        with threadpoolctl.threadpool_limits(3), threadpoolctl.threadpool_limits(1):
            assert target.get_threads() == 1
        assert target.get_threads() == held


@wheels_only
def test_an_exchange_within_a_limit_and_a_limit_past_the_end_of_an_exchange() -> None:
    need("openblas")
    target = targets.load("openblas")
    assert target.get_threads is not None
    backline.set_num_threads(2)
    with threadpoolctl.threadpool_limits(1):
        with exchange.use("openblas"):
            assert target.get_threads() == 1 == exchange.status().threads
            np.linalg.inv(np.eye(200))
        (info,) = exchanged()
        assert info["num_threads"] == 1  # nothing is exchanged: what an exchange would have
    held = exchange.use("openblas")
    try:
        limit = threadpoolctl.threadpool_limits(1)
        held.restore()
        limit.restore_original_limits()
    finally:
        exchange.restore()
    assert backline.get_num_threads() == 2
    with exchange.use("openblas"):
        assert target.get_threads() == 2
