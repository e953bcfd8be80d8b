"""Wrong arguments to the compiled core, and memory or threads that run out: a typed error, never a crash."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backline import _core
from support import clean, python

pytestmark = pytest.mark.usefixtures("clean")
assert clean

ARGUMENT = [("argument", 0)]


def plan(buffers: Any = (), groups: Any = (), results: Any = (), overlaps: Any = (), **more: Any) -> Any:
    return _core.PreparedCall(1, buffers, groups, results, overlaps, **more)


@pytest.mark.parametrize(
    "call",
    [
        lambda: plan([5]), lambda: plan([["argument", 0]]), lambda: plan(ARGUMENT, [5]), lambda: plan(ARGUMENT, [(1, 1, [5])]),
        lambda: plan(ARGUMENT, [], [], [5]), lambda: plan(ARGUMENT, info=5), lambda: plan(ARGUMENT, info=[0, 4, 1]),
        lambda: plan(ARGUMENT, first=[None]), lambda: plan([(None, 0)]), lambda: plan(ARGUMENT, [(1, 1, [("triangle", *[0] * 7, 3)])]),
        lambda: plan(5), lambda: plan(ARGUMENT, [(1, 1, 5)]), lambda: plan()(5), lambda: plan()([np.zeros(3)]),
    ],
)  # fmt: skip
def test_what_is_no_tuple_is_a_type_error(call: Any) -> None:
    with pytest.raises(TypeError):
        call()


@pytest.mark.parametrize("call", [lambda: plan([("\ud800", 0)]), lambda: plan(ARGUMENT, [(1, 1, [("\ud800",)])])])
def test_text_that_is_no_utf8(call: Any) -> None:
    with pytest.raises(UnicodeEncodeError):
        call()


@pytest.mark.parametrize("size", [2**62, 2**63 - 1, 2**64 - 1])
def test_sizes_past_the_memory(size: int) -> None:
    for kind in ("work", "kept"):
        with pytest.raises((MemoryError, OverflowError)):
            plan([(kind, size)])
    with pytest.raises((MemoryError, OverflowError)):
        plan([("work", 2**60)], [(64, 64, [])])  # the sum for all threads
    with pytest.raises((MemoryError, ValueError)):
        plan([("result", np.dtype("f8"), (2**31, 2**31), "C")], [], [0])(np.zeros(1))


@pytest.mark.parametrize("info", [(0, 4, 17), (0, 8, 9), (0, 3, 1), (0, 4, -1), (1, 4, 1), (-2, 4, 1), (5, 4, 1)])
def test_more_infos_than_their_buffer_holds(info: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError):
        plan([("work", 64), ("argument", 0)], [], [], [], info=info)


def test_more_threads_than_any_call_may_have() -> None:
    with pytest.raises(ValueError, match="1024"):
        plan(ARGUMENT, [(2000, 1025, [])])
    thread_guard = _core.ThreadCountGuard(1, 1)
    for count in (0, -5, 1025, 2**40):
        with pytest.raises(ValueError, match="1 to 1024"):
            thread_guard.enter(count)


def test_a_block_that_was_moved_is_no_workspace() -> None:
    """ndarray.resize moves the memory of a large result; freed, it must not become a workspace, which wants more alignment."""
    made = plan([("result", np.dtype("f8"), (1 << 17,), "C")], [], [0])
    address = np.zeros(1, np.uintp)
    for _ in range(20):
        array = made(address)
        array.resize(1 << 18, refcheck=False)
        del array
        again = plan([("result", np.dtype("f8"), (1 << 18,), "C")], [], [0])(address)
        assert again.ctypes.data % 64 == 0


def test_threads_that_cannot_be_started() -> None:
    """A limit on memory stands for one on threads: each thread's stack needs some. The call says so, and the next one runs."""
    python(
        """
import resource, threading
from backline import _core

assert _core.team_check(1)[0] == 1
threading.stack_size()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), before[1]))
try:
    _core.team_check(64)
except RuntimeError as error:
    text = str(error)
else:
    raise AssertionError("64 threads were started")
resource.setrlimit(resource.RLIMIT_AS, before)
assert "a call on 64 threads cannot run: the system let" in text and "BACKLINE_NUM_THREADS" in text and "ulimit -v" in text, text
assert _core.team_check(2) == (2, 3)
"""
    )


def test_compiled_modules_that_are_imported_again_are_the_same() -> None:
    """A test-suite may remove modules from `sys.modules`; types and tables belong to the process."""
    out = python(
        """
        import sys
        import numpy as np
        import backline
        from backline import _core, _kernels
        for name in [name for name in sys.modules if name.startswith("backline")]:
            del sys.modules[name]
        from backline import _core as core, _kernels as kernels, matmul
        assert core is not _core and core.Operation is _core.Operation and core.memo_info is _core.memo_info
        assert kernels.addresses == _kernels.addresses
        x = np.eye(3)
        print(np.array_equal(matmul(x, x), x))
        """
    )
    assert out.stdout.strip() == "True"


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: _core.team_bind(1, 2), TypeError, "3 arguments are needed, 2 were given"),  # type: ignore[call-arg]  # wrong on purpose
        (lambda: _core.flush_denormal(True, 2**40), OverflowError, "does not fit into 4 bytes"),
        (lambda: _core.memo_max_size(2**70), OverflowError, "too big|too large"),
        (lambda: _core.pool_limit("much"), TypeError, "integer"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: _core.ThreadCountGuard(1, 1).leave(2**31), OverflowError, "does not fit into 4 bytes"),
        (lambda: delattr(plan(ARGUMENT), "failed"), TypeError, "True or False"),
        (lambda: delattr(plan(ARGUMENT), "rwlock"), TypeError, "ReadWriteLock or None"),
        (lambda: setattr(plan(ARGUMENT), "runs", 3), AttributeError, "runs"),
        (lambda: _core.bind_scope(3, print), TypeError, "ContextVar"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: _core.register_array_type(3, print), TypeError, "type"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_arguments_that_no_function_takes(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


# Functions in tables of methods, attributes and slots. The garbage collector's and destructors have no way to raise, and allocate nothing.
IN_TABLES = (
    r'\{"\w+", ([^,]+), METH_',
    r'\{"\w+", ([^,"]+), [^,"]+, (?:"|nullptr)',
    r'\{"\w+", [^,"]+, ([^,"]+), (?:"|nullptr)',
    r"\{Py_tp_(?:new|repr|call|init|getattro|setattro), reinterpret_cast<void \*>\((.+)\)\}",
    r"\.tp_(?:new|repr|call|init|getattro|setattro) = ([^;]+);",
    r'describe<\w+>\(\s*\w+, "[^"]+", ([^,]+),',
)
# Rows of tables that catch exceptions themselves.
GUARDED = r"\b(?:function|method|attribute)<\w+(?:, \w+)?>\("
NO_FUNCTIONS_OF_OURS = ("nullptr", "PyVectorcall_Call", "PyObject_GenericGetDict", "PyObject_GenericSetDict")


def test_every_function_that_python_calls_catches_exceptions() -> None:
    bare, seen = [], 0
    for source in sorted((Path(__file__).parents[2] / "src" / "backline").glob("_*/*.cpp")):
        text = source.read_text()
        seen += len(re.findall(GUARDED, text))
        for function in (match for pattern in IN_TABLES for match in re.findall(pattern, text)):
            seen += 1
            if "entry<" not in function and function not in NO_FUNCTIONS_OF_OURS and not function.startswith(("METH_", "T_")):
                bare.append(f"{source.name}: {function}")
    assert not bare and seen > 50
