"""Verbose scopes: who is heard, where the lines come out, and what is in force when they end."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import io
import pickle
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, libraries, linalg, switches
from backline.backends import mkl, mkldnn
from backline.engine import verbose_scopes
from backline.errors import BackendUnavailable, BadType, BadValue
from backline.libraries.base import Algorithm, Library, PythonPlan, Refusal
from backline.libraries.verbosity_control import read_mkl, read_onednn, voice_of
from backline.switches.starting_values import starting_mkl, starting_mkldnn
from support import algorithms, clean, need, problem_of, python

pytestmark = pytest.mark.usefixtures("clean")
assert clean

SMALL = np.eye(4, dtype=np.float32) + 1
LARGE = np.ones((200, 200), np.float32)


@pytest.fixture
def on_mkl(clean: None) -> Iterator[None]:
    need("mkl")
    with backline.use("mkl", only=True):
        yield


def printed(text: str) -> list[str]:
    """Names of the functions that MKL's lines in a text tell of."""
    lines = [line for line in text.splitlines() if line.startswith("MKL_VERBOSE") and "(" in line.split(" ")[1]]
    return [line.split(" ")[1].split("(")[0].removesuffix("_64") for line in lines]


# Levels ---------------------------------------------------------------------------------------------------------------


def test_levels_are_checked_when_the_scope_is_made() -> None:
    for level in (0, 1, 2, np.int64(1), True, False, np.bool_(True)):
        mkl.verbose(level)  # type: ignore[arg-type]  # a level of a parametrized test
    for level in (0, 1, 2, np.int8(2)):
        mkldnn.verbose(level)  # type: ignore[arg-type]  # a level of a parametrized test
    for module, level in ((mkl, 3), (mkl, -1), (mkldnn, 3)):
        with pytest.raises(BadValue, match=rf"{module.__name__.split('.')[-1]}\.verbose = {level} is not") as caught:
            module.verbose(level)
        assert sorted(caught.value.remedy.partition(": ")[2].split(", ")) == ["0", "1", "2"]
    for module, wrong in ((mkl, "1"), (mkl, 1.0), (mkl, None), (mkldnn, True), (mkldnn, "on")):
        with pytest.raises(BadType, match=rf"{module.__name__.split('.')[-1]}\.verbose takes an int"):
            module.verbose(wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_a_scope_says_where_it_was_made() -> None:
    assert verbose_scopes.verbose("mkl", 1).where.rpartition(":")[0] == __file__


def test_events_can_be_sent_to_another_process() -> None:
    event = verbose_scopes.VerboseEvent("mkl", "matmul", "gemm", ((2, 3), ()), "float32", 1, 0.25, lines=("x",))
    assert pickle.loads(pickle.dumps(event)) == event and event.details == [{"text": "x"}] and "2x3 scalar" in str(event)


def test_without_the_library_only_silence_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent(Library):
        name, title, how_to_get, switch = "mkl", "MKL", "pip install mkl", "mkl.enabled"

        def reason(self) -> str:
            return "no file of this name was found"

    libraries.register(Absent())
    try:
        for scope in (mkl.verbose(1), mkl.verbose(2)):
            with pytest.raises(BackendUnavailable, match=r"(?s)mkl\.verbose.*no file of this name.*pip install mkl"), scope:
                raise AssertionError("it was entered")
        assert switches.get("mkl.verbose_level") == 0
        with mkl.verbose(0) as log:
            assert log == []
    finally:
        libraries.unregister("mkl")


def test_level_0_of_an_absent_library_is_fine() -> None:
    with mkldnn.verbose(0) as log:
        backline.matmul(SMALL, SMALL)
    assert not log and log.table() == str(log) == "no calls"


def test_what_the_levels_start_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MKL_VERBOSE", "ONEDNN_VERBOSE", "DNNL_VERBOSE"):
        monkeypatch.delenv(name, raising=False)
    assert starting_mkl()[0] == starting_mkldnn()[0] == 0
    for text, level in {"1": 1, " 2 ": 2, "0": 0, "": 0, "3": 0, "-1": 0, "yes": 0, "1.0": 0, "\u0661": 0}.items():
        monkeypatch.setenv("MKL_VERBOSE", text)
        assert starting_mkl()[0] == level, text
        assert not text or starting_mkl()[1] == ("MKL_VERBOSE" if text.strip() else starting_mkl()[1])
    words = {
        "0": 0, "1": 1, "2": 2, "9" * 50: 2, "none": 0, "error": 0, "dispatch": 0, "check": 0, "profile_exec": 1,
        "Profile_Exec": 1, "profile_create": 2, "profile": 2, "all": 2, "error, profile_exec": 1, "dispatch,profile": 2,
        "debuginfo=3": 0, "filter=matmul": 0, ",": 0, "nonsense": 0,
    }  # fmt: skip
    for text, level in words.items():
        monkeypatch.setenv("DNNL_VERBOSE", text)
        assert starting_mkldnn() == (level, "DNNL_VERBOSE"), text
    monkeypatch.setenv("ONEDNN_VERBOSE", "1")
    assert starting_mkldnn() == (1, "ONEDNN_VERBOSE"), "the newer name is the stronger one"


# MKL itself -----------------------------------------------------------------------------------------------------------


def test_lines_on_standard_output_stand_between_the_prints() -> None:
    need("mkl")
    done = python("""
        import numpy as np, backline
        from backline.backends import mkl
        a = np.ones((200, 200), np.float32)
        with backline.use("mkl", only=True):
            backline.mm(a, a)
            print("<1>")
            with mkl.verbose(1):
                backline.mm(a, a)
                print("<2>")
                with mkl.verbose(0):
                    backline.mm(a, a)
                print("<3>")
                backline.mm(a, a)
            print("<4>")
            backline.mm(a, a)
        print("<5>")
    """)
    parts = re.split("<[1-5]>\n", done.stdout)
    assert [set(printed(part)) for part in parts] == [set(), {"SGEMM"}, set(), {"SGEMM"}, set(), set()]


@pytest.mark.usefixtures("on_mkl")
def test_lines_in_a_stream_that_replaces_stdout(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    print("before")
    with mkl.verbose(True) as log:
        backline.mm(LARGE, LARGE)
    print("after")
    text = sys.stdout.getvalue()  # type: ignore[attr-defined]  # a StringIO here
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "SGEMM" in printed(text)
    assert [line for event in log for line in event.lines] == text.splitlines()[1:-1]
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("on_mkl")
def test_events_say_what_ran() -> None:
    with mkl.verbose(1) as log:
        for _ in range(2):  # the second is not prepared anew
            backline.mm(LARGE, LARGE, out=np.empty_like(LARGE))
        linalg.inv(np.eye(5) + 1)
    backline.mm(LARGE, LARGE)
    assert [event.op for event in log] == ["matmul", "matmul", "linalg.inv"]
    first, last = log[0], log[2]
    assert first.library == "mkl" and first.implementation.startswith("gemm") and first.dtype == "float32"
    assert first.shapes == ((200, 200), (200, 200)) and last.shapes == ((5, 5),) and last.dtype == "float64"
    assert all(event.phase == "execution" and event.milliseconds > 0 and event.threads >= 1 for event in log)
    sums = [d for d in log[1].details if "function" in d]
    assert sums and all(d["function"].startswith("SGEMM") and d["milliseconds"] > 0 and d["NThr"] >= 1 for d in sums)
    factorizes = {"getri": "DGETRF_64", "gesv": "DGESV_64"}[last.implementation]
    assert factorizes in [d.get("function") for d in last.details]
    assert not any("-1" in d["arguments"] for d in last.details if "function" in d), "asking for a workspace is no call"
    table = log.table().splitlines()
    assert len(table) == 4 and len({line.index(word) for line in table for word in ("phase", "execution") if word in line}) == 1
    assert "200x200 200x200" in table[1] and str(log) == log.table() and str(first).startswith("mkl  matmul")
    assert log._repr_html_().count("<tr>") == 4 and "linalg.inv" in log._repr_html_()


@pytest.mark.usefixtures("on_mkl")
def test_other_ways_to_call(capfd: pytest.CaptureFixture[str]) -> None:
    expected = LARGE @ LARGE
    with mkl.verbose(1) as log:
        assert np.array_equal(backline.mm(input=LARGE, mat2=LARGE), expected)
        assert np.array_equal(backline.mm(LARGE.view(np.recarray), LARGE), expected)
        out = np.empty_like(LARGE)
        assert backline.matmul(LARGE, LARGE, out=out) is out and np.array_equal(out, expected)
        assert np.allclose(backline.addmm(LARGE, LARGE, LARGE, alpha=2.0), LARGE + 2 * expected)
        q, r = linalg.qr(LARGE)
        assert np.allclose(q @ r, LARGE, atol=1e-3)
        assert backline.explain().library == "mkl"
    assert [event.op for event in log][:4] == ["matmul"] * 4 and len(log) >= 5


@pytest.mark.usefixtures("on_mkl")
def test_a_call_that_fails_is_told_of_and_leaves_silence(capfd: pytest.CaptureFixture[str]) -> None:
    with mkl.verbose(1) as log, pytest.raises(linalg.LinAlgError):
        linalg.inv(np.zeros((3, 3)))
    assert len(log) == 1 and any("DGETRF" in line for line in log[0].lines)
    capfd.readouterr()
    backline.mm(LARGE, LARGE)
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("on_mkl")
def test_inner_scopes_restore_the_outer_level(capfd: pytest.CaptureFixture[str]) -> None:
    def heard() -> bool:
        capfd.readouterr()
        backline.mm(LARGE, LARGE)
        return bool(printed(capfd.readouterr().out))

    assert not heard()
    with mkl.verbose(1) as outer:
        assert heard()
        with mkl.verbose(0) as silent:
            assert not heard()
            with mkl.verbose(2) as inner:
                assert heard()
            assert not heard()
        assert heard()
    assert not heard()
    assert (len(outer), len(silent), len(inner)) == (3, 1, 1), "the outer ones hear what the inner ones do"
    assert switches.get("mkl.verbose_level") == 0


@pytest.mark.usefixtures("on_mkl")
def test_scopes_may_end_in_any_order_and_be_entered_again() -> None:
    first, second = mkl.verbose(1), mkl.verbose(0)
    log = first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    backline.mm(SMALL, SMALL)
    assert switches.get("mkl.verbose_level") == 0
    second.__exit__(None, None, None)
    assert not log
    with first as again:
        backline.mm(SMALL, SMALL)
        with first:
            backline.mm(SMALL, SMALL)
    assert again is log and len(log) == 2
    with pytest.warns(RuntimeWarning, match=r"mkl\.verbose.* is not open"):
        first.__exit__(None, None, None)


@pytest.mark.usefixtures("on_mkl")
def test_as_a_decorator(capfd: pytest.CaptureFixture[str]) -> None:
    @mkl.verbose(1)
    def work() -> None:
        backline.mm(LARGE, LARGE)

    @mkl.verbose(1)
    async def later() -> None:
        backline.mm(LARGE, LARGE)

    for call in (work, lambda: asyncio.run(later())):
        call()
        assert printed(capfd.readouterr().out)
    backline.mm(LARGE, LARGE)
    assert not printed(capfd.readouterr().out)


def test_scopes_of_other_kinds_and_the_environment_set_the_level_too() -> None:
    need("mkl")
    program = """
        import numpy as np, backline
        from backline import switches
        from backline.backends import mkl
        a = np.ones((200, 200), np.float32)
        with backline.use("mkl", only=True):
            mkl.is_available()
            for title in ("base", "scope", "silent", "base"):
                level = {"scope": 1, "silent": 0}.get(title)
                with mkl.verbose(level) if level is not None else switches.scope():
                    print(f"<{title}>")
                    backline.mm(a, a)
    """
    for variables, base in (({}, False), ({"MKL_VERBOSE": "1"}, True), ({"BACKLINE_MKL_VERBOSE_LEVEL": "1"}, True),
                            ({"MKL_VERBOSE": "1", "BACKLINE_MKL_VERBOSE_LEVEL": "0"}, False)):  # fmt: skip
        text = python(program, env={"MKL_VERBOSE": "0", **variables}).stdout
        parts = {part.partition(">")[0]: part.partition(">")[2] for part in text.split("<")[1:]}
        assert bool(printed(parts["base"])) == base, (variables, text)  # the last one: what the outermost exit returns to
        assert printed(parts["scope"]) and not printed(parts["silent"]), (variables, text)
        assert bool(printed(text.split("<")[1])) == base, (variables, text)


@pytest.mark.usefixtures("on_mkl")
def test_a_scope_at_the_level_of_the_environment_collects_too() -> None:
    done = python(
        """
        import io, sys
        import numpy as np, backline
        from backline.backends import mkl
        with backline.use("mkl", only=True):
            mkl.is_available()
            real, sys.stdout = sys.stdout, io.StringIO()
            with mkl.verbose(1) as log:
                backline.mm(np.eye(200), np.eye(200))
            text, sys.stdout = sys.stdout.getvalue(), real
        assert len(log) == 1 and "DGEMM" in text and list(log[0].lines) == text.splitlines(), (log, text)
        """,
        env={"MKL_VERBOSE": "1"},
    )
    assert done.returncode == 0


@pytest.mark.cpu_kernel
@pytest.mark.usefixtures("on_mkl")
def test_a_kernel_compiled_for_the_shape_prints_nothing_and_is_told_of_all_the_same() -> None:
    """MKL prints lines of its named functions; a compiled kernel is none of them."""
    if "jit" not in {a.name for a in algorithms("mkl", problem_of("mm", SMALL, SMALL))}:
        pytest.skip("MKL compiles no kernels for this processor")
    backline.mm(SMALL, SMALL)  # setting it up calls functions that print
    with mkl.verbose(1) as log:
        for _ in range(3):
            assert np.array_equal(backline.mm(SMALL, SMALL), SMALL @ SMALL)
    assert [(event.implementation, event.lines) for event in log] == [("jit", ())] * 3


@pytest.mark.usefixtures("on_mkl")
def test_plans_outside_verbose_scopes_are_not_wrapped() -> None:
    backline.mm(LARGE, LARGE)
    assert isinstance(_core.last_plan(), _core.PreparedCall)
    with mkl.verbose(1):
        backline.mm(LARGE, LARGE)
        assert isinstance(_core.last_plan(), verbose_scopes.VerbosePlan)
    backline.mm(LARGE, LARGE)
    assert isinstance(_core.last_plan(), _core.PreparedCall)


@pytest.mark.usefixtures("on_mkl")
def test_traces_and_verbose_scopes_do_not_disturb_each_other() -> None:
    with backline.trace() as events, mkl.verbose(1) as log:
        backline.mm(LARGE, LARGE)
        with backline.trace() as inner:
            backline.mm(LARGE, LARGE)
    assert [e.op for e in events] == ["mm", "mm"] and len(inner) == 1 and len(log) == 2
    assert all(e.library == "mkl" and e.seconds > 0 for e in events)


# Other threads and tasks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [8, 150])
def test_threads_outside_the_scope_print_nothing_and_compute_all_the_same(n: int) -> None:
    need("mkl")
    done = python(f"""
        import threading, time
        import numpy as np, backline
        from backline.backends import mkl
        n = {n}
        rng = np.random.default_rng(5)
        a, b, c = rng.random((n, n)), rng.random((n, n)), rng.random((7, 7))
        expected, seven = a @ b, np.linalg.inv(c)
        end, counts, wrong = threading.Event(), [0, 0], []
        def outside(i):
            with backline.use("mkl", only=True):
                while not end.is_set() or not counts[i]:
                    if not np.allclose(backline.mm(a, b), expected): wrong.append(i)
                    if not np.allclose(backline.linalg.inv(c.copy() if i else c.T.copy()), seven if i else seven.T): wrong.append(i)
                    backline.linalg.solve(np.eye(3 + counts[i] % 20), np.eye(3 + counts[i] % 20))  # new plans are prepared
                    counts[i] += 1
        threads = [threading.Thread(target=outside, args=(i,)) for i in (0, 1)]
        x = np.ones((n + 1, n + 1))
        with backline.use("mkl", only=True), mkl.verbose(1) as log:
            for t in threads: t.start()
            until = time.monotonic() + 1
            while time.monotonic() < until or not all(counts):
                if not np.allclose(backline.mm(x, x), n + 1): wrong.append(2)
            end.set()
            for t in threads: t.join()
        print("end", len(log), counts, wrong)
    """)
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("end") and lines[-1].endswith("[]"), lines[-1]
    assert not done.stderr
    strangers = [
        line for line in lines[:-1] if line.startswith("MKL_VERBOSE") and f",{n + 1}," not in line and "oneMKL" not in line
    ]
    assert not strangers, strangers[:3]
    assert all(line.startswith("MKL_VERBOSE") for line in lines[:-1])


@pytest.mark.usefixtures("on_mkl")
def test_two_threads_in_scopes_of_their_own_hear_only_themselves() -> None:
    logs: dict[int, Any] = {}
    context = contextvars.copy_context()

    def work(n: int) -> None:
        x = np.ones((n, n))
        with mkl.verbose(1) as log:
            for _ in range(20):
                backline.mm(x, x)
        logs[n] = log

    threads = [threading.Thread(target=context.copy().run, args=(work, n)) for n in (80, 120, 210)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for n, log in logs.items():
        assert [event.shapes for event in log] == [((n, n), (n, n))] * 20
        assert all(
            event.lines and all(f",{n}," in line for line in event.lines if "(" in line and "oneMKL" not in line) for event in log
        )


@pytest.mark.usefixtures("on_mkl")
def test_tasks_outside_the_scope_collect_and_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    async def outside() -> int:
        before = len(capfd.readouterr().out)
        await asyncio.sleep(0)  # the other task opens its scope
        backline.mm(SMALL, SMALL)
        assert switches.get("mkl.verbose_level") == 0
        return before

    async def inside() -> list[Any]:
        with mkl.verbose(1) as log:
            await asyncio.sleep(0)
            backline.mm(LARGE, LARGE)
            await asyncio.sleep(0)
            await asyncio.to_thread(backline.mm, SMALL, SMALL)  # its context is a copy of this one
        return log

    async def main() -> tuple[Any, ...]:
        return tuple(await asyncio.gather(outside(), inside(), outside()))

    _, log, _ = asyncio.run(main())
    assert [event.shapes[0] for event in log] == [(200, 200), (4, 4)]
    assert len(printed(capfd.readouterr().out)) == sum("function" in d for event in log for d in event.details)


def test_a_forked_child_speaks_for_itself() -> None:
    need("mkl")
    done = python("""
        import os, threading, time, warnings
        import numpy as np, backline
        from backline.backends import mkl
        warnings.simplefilter("ignore")
        a = np.ones((200, 200), np.float32)
        with backline.use("mkl", only=True):
            stop, busy = threading.Event(), threading.Event()
            def work():
                with backline.use("mkl", only=True), mkl.verbose(1):
                    while not stop.is_set(): backline.mm(a, a), busy.set()
            t = threading.Thread(target=work); t.start()
            busy.wait()  # its first call imports modules, and a child that is made meanwhile would wait for them for ever
            time.sleep(0.3)
            child = os.fork()
            if child == 0:
                with mkl.verbose(1) as log:
                    backline.mm(a, a)
                os._exit(0 if len(log) == 1 and log[0].lines else 1)
            stop.set(); t.join()
            assert os.waitpid(child, 0)[1] == 0
    """)
    assert printed(done.stdout)


# The reader-writer lock -------------------------------------------------------------------------------------------------------------


def test_a_writer_keeps_other_threads_out() -> None:
    rwlock, seen = _core.ReadWriteLock(), []

    def visitor() -> None:
        rwlock.acquire_read()
        seen.append(rwlock.write_locked)
        rwlock.release_read()

    rwlock.acquire_write()
    rwlock.acquire_write()
    rwlock.acquire_read()  # the writer itself may read
    assert rwlock.write_locked and rwlock.readers == 1
    rwlock.release_read()
    t = threading.Thread(target=visitor)
    t.start()
    rwlock.release_write()
    t.join(0.2)
    assert t.is_alive() and not seen, "it was closed twice"
    rwlock.release_write()
    t.join()
    assert seen == [False] and not rwlock.write_locked and rwlock.readers == 0


def test_closing_waits_for_those_inside() -> None:
    rwlock, order = _core.ReadWriteLock(), []
    inside, go = threading.Event(), threading.Event()

    def visitor() -> None:
        rwlock.acquire_read()
        inside.set()
        go.wait()
        order.append("left")
        rwlock.release_read()

    def closer() -> None:
        inside.wait()
        rwlock.acquire_write()
        order.append("closed")
        rwlock.release_write()

    threads = [threading.Thread(target=f) for f in (visitor, closer)]
    for t in threads:
        t.start()
    inside.wait()
    threads[1].join(0.1)
    assert order == []
    go.set()
    for t in threads:
        t.join()
    assert order == ["left", "closed"]


def test_locks_refuse_what_makes_no_sense() -> None:
    rwlock = _core.ReadWriteLock()
    with pytest.raises(RuntimeError, match="not the writer"):
        rwlock.release_write()
    with pytest.raises(TypeError):
        _core.ReadWriteLock(1)  # type: ignore[call-arg]  # wrong on purpose
    need("mkl")
    with backline.use("mkl", only=True):
        backline.mm(LARGE, LARGE)
    plan = _core.last_plan()
    assert type(plan.rwlock) is _core.ReadWriteLock
    with pytest.raises(TypeError, match="ReadWriteLock or None"):
        plan.rwlock = 3
    with pytest.raises(TypeError):
        del plan.rwlock


@pytest.mark.parametrize("n", [4, 200])
@pytest.mark.usefixtures("on_mkl")
def test_prepared_calls_wait_for_a_writer(n: int) -> None:
    x = np.ones((n, n))
    backline.mm(x, x)
    rwlock = _core.last_plan().rwlock
    context, done = contextvars.copy_context(), threading.Event()
    t = threading.Thread(target=context.run, args=(lambda: (backline.mm(x, x), done.set()),))
    rwlock.acquire_write()
    try:
        backline.mm(x, x)  # of the thread that closed it
        t.start()
        assert not done.wait(0.1)
    finally:
        rwlock.release_write()
    t.join()
    assert done.is_set() and rwlock.readers == 0


# A library that speaks like oneDNN ------------------------------------------------------------------------------------

EXEC = "onednn_verbose,v1,primitive,exec,cpu,matmul,brg:avx2,undef,src_f32::blocked:ab::f0 dst_f32::blocked:ab::f0,,,4x4:4x4,0.01"
CREATE = EXEC.replace(",exec,", ",create:cache_miss,")


class Speaking(Library):
    """A library with a level, which prints as oneDNN does."""

    name, title, switch = "onednn", "oneDNN", "mkldnn.enabled"

    def __init__(self) -> None:
        self.level = 0
        self.set_to: list[int] = []
        self.while_running: Any = lambda: None

    def set_verbose(self, level: int) -> int:
        former, self.level = self.level, level
        self.set_to.append(level)
        return former

    def say(self, line: str, least: int) -> None:
        if self.level >= least:
            ctypes.CDLL(None).printf(b"%s\n", line.encode())

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return "3.0"

    def algorithms(self, problem: Any, threads: int) -> Iterator[Algorithm | Refusal]:
        if problem.op == "matmul":
            yield Algorithm(library=self.name, name="brgemm", threads=threads, level="threads", basis="construction")
        else:
            yield Refusal(self.name, "", "products only")

    def prepare(self, problem: Any, algorithm: Algorithm) -> Any:
        self.say(CREATE, 2)

        def run(a: Any, b: Any) -> Any:
            self.say(EXEC, 1)
            self.while_running()
            return a @ b

        return PythonPlan(run)

    def report(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def speaking(clean: None) -> Iterator[Speaking]:
    made = Speaking()
    libraries.register(made)
    with backline.use("onednn", only=True):
        yield made
    libraries.unregister("onednn")


def test_level_2_tells_of_what_is_prepared(speaking: Speaking, capfd: pytest.CaptureFixture[str]) -> None:
    x = np.eye(4)
    with mkldnn.verbose(1) as executions:
        backline.mm(x, x)
    with mkldnn.verbose(2) as log:
        backline.mm(x, x)
        backline.mm(x, x)
    backline.mm(x, x)
    assert capfd.readouterr().out.splitlines() == [EXEC, CREATE, EXEC, EXEC]
    assert [(e.phase, e.lines) for e in executions] == [("execution", (EXEC,))]
    assert [e.phase for e in log] == ["creation", "execution", "execution"]
    assert [e.details[0]["operation"] for e in log] == ["create:cache_miss", "exec", "exec"]
    assert {(e.library, e.op, e.implementation, e.threads) for e in log} == {("onednn", "matmul", "brgemm", 2)}
    assert speaking.level == 0 and speaking.set_to == [1, 0, 2, 0, 2, 0, 2, 0]


def test_a_level_that_fits_is_not_set(speaking: Speaking, capfd: pytest.CaptureFixture[str]) -> None:
    with mkldnn.verbose(0):
        backline.mm(SMALL, SMALL)
    assert speaking.set_to == []

    def nested() -> None:
        speaking.while_running = lambda: None
        backline.mm(SMALL, SMALL)

    speaking.while_running = nested
    with mkldnn.verbose(1) as log:
        backline.mm(LARGE, LARGE)  # which calls the library again, at the level that holds
    assert speaking.set_to == [1, 0] and len(log) == 2
    assert capfd.readouterr().out == f"{EXEC}\n{EXEC}\n"


def test_the_level_is_put_back_when_the_library_raises(speaking: Speaking) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    speaking.while_running = fail
    with mkldnn.verbose(2), pytest.raises(ZeroDivisionError):
        backline.mm(SMALL, SMALL)
    control = voice_of(speaking)
    assert speaking.level == 0 and control is not None and not control.rwlock.write_locked


def test_scopes_of_two_libraries_are_apart(speaking: Speaking, capfd: pytest.CaptureFixture[str]) -> None:
    need("mkl")
    with mkldnn.verbose(1) as one, mkl.verbose(1) as other:
        backline.mm(SMALL, SMALL)
        with backline.use("mkl", only=True):
            backline.mm(SMALL, SMALL)
    assert [e.library for e in one] == ["onednn"] and [e.library for e in other] == ["mkl"]
    assert all("MKL" in line for e in other for line in e.lines)


def test_plug_in_libraries_without_a_voice_are_left_alone(speaking: Speaking) -> None:
    class Silent(Speaking):
        set_verbose = None  # type: ignore[assignment]  # a library without the function

    silent = Silent()
    libraries.register(silent)
    with mkldnn.verbose(2) as log:
        assert np.array_equal(backline.mm(SMALL, SMALL), SMALL @ SMALL)
    assert not log and voice_of(silent) is None


# Reading lines --------------------------------------------------------------------------------------------------------


def test_reading_lines_of_mkl() -> None:
    head = "MKL_VERBOSE oneMKL 2026 Update 2 Product build 20260915 for Intel(R) 64 architecture, Lnx 2.60GHz lp64 gnu_thread"
    assert read_mkl(head) == {"text": head.removeprefix("MKL_VERBOSE ")}
    found = read_mkl("MKL_VERBOSE DGETRI_64(5,0x7f,5,0x7f,0x55,-1,0) 9.06ms CNR:AVX2,STRICT Dyn:0 FastMM:1 TID:0  NThr:2")
    assert found == {
        "function": "DGETRI_64", "arguments": ("5", "0x7f", "5", "0x7f", "0x55", "-1", "0"), "milliseconds": 9.06,
        "CNR": "AVX2,STRICT", "Dyn": 0, "FastMM": 1, "TID": 0, "NThr": 2,
    }  # fmt: skip
    assert read_mkl("MKL_VERBOSE FFT(drfo16) 1.5us CNR:OFF")["milliseconds"] == 0.0015
    assert read_mkl("MKL_VERBOSE DDOT() 950ns")["arguments"] == () and read_mkl("MKL_VERBOSE X(1) 2s")["milliseconds"] == 2000
    for line in (
        "",
        "MKL_VERBOSE",
        "MKL_VERBOSE SGEMM(",
        "MKL_VERBOSE SGEMM(N) fast",
        "something else",
        "MKL_VERBOSE A(1) 1..2us",
    ):
        assert "text" in read_mkl(line)


def test_reading_lines_of_onednn() -> None:
    found = read_onednn(EXEC)
    assert found["primitive"] == "matmul" and found["implementation"] == "brg:avx2" and found["problem"] == "4x4:4x4"
    older = "onednn_verbose,exec,cpu,matmul,gemm:jit,undef,src_f32::blocked:ab:f0,,,4x4:4x4,0.02"
    stamped = "onednn_verbose,1693533460193.346924,v1,primitive,create:cache_hit,cpu,reorder,jit:uni,undef,src,,,4x4,0.004"
    assert read_onednn(older)["implementation"] == "gemm:jit" and read_onednn(older)["milliseconds"] == 0.02
    assert read_onednn(stamped)["operation"] == "create:cache_hit" and read_onednn(stamped)["primitive"] == "reorder"
    for line in (
        "",
        "onednn_verbose",
        "onednn_verbose,v1,info,oneDNN v3.5.0 (commit 1)",
        "onednn_verbose,exec,cpu",
        "exec,exec,a,b,c,d",
    ):
        assert "text" in read_onednn(line)
