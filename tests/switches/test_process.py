"""The switches in a whole process: import, the first read from several threads, fork, signals."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest

from backline import backends, switches
from backline.switches import config


def run(program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    path = str(Path(backends.__file__).parents[2])
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_the_import_is_light_and_reads_nothing():
    done = run(
        """
        import sys, threading
        import numpy
        opened = []
        sys.addaudithook(lambda name, args: opened.append(str(args[0])) if name == "open" else None)
        import backline.backends
        heavy = {"tomllib", "platformdirs", "difflib", "asyncio", "importlib.metadata", "torch"}
        print(sorted(heavy & set(sys.modules)))
        print([p for p in opened if p.endswith(".toml") or p.startswith(("/sys/", "/proc/cpuinfo"))])
        print(threading.active_count())
        """,
        "-W",
        "error",
    )
    assert done.stdout.splitlines() == ["[]", "[]", "1"], done.stderr


def test_the_first_read_from_many_threads_reads_the_files_once(monkeypatch):
    calls = []
    real = config.read_sources

    def counted(table):
        calls.append(threading.get_ident())
        return real(table)

    monkeypatch.setattr(config, "read_sources", counted)
    monkeypatch.setenv("BACKLINE_FALLBACK", "warm")
    ready = threading.Barrier(8)
    found: list[switches.Snapshot] = []

    def work() -> None:
        ready.wait()
        found.append(switches.current())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(calls) == 1 and len(caught) == 1
    assert len(found) == 8 and len({id(snapshot) for snapshot in found}) == 1


def test_writes_from_many_threads_are_all_kept():
    names = [
        "fallback",
        "benchmark",
        "deterministic",
        "warn_only",
        "num_threads",
        "max_error",
        "benchmark_limit",
    ]
    values = ["error", True, True, True, 9, 0.5, 4]
    ready = threading.Barrier(len(names))

    def work(name: str, value: object) -> None:
        ready.wait()
        switches.assign(name, value)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(names, values, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [switches.get(name) for name in names] == values


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_keeps_its_scopes_and_can_write_although_another_thread_held_the_locks():
    done = run(
        """
        import os, sys, threading
        from backline import backends, switches
        from backline.switches import scope_state, snapshot
        backends.fallback = "warn"
        held, release = threading.Event(), threading.Event()
        def hold():
            with scope_state.lock.now, snapshot._lock.now:
                held.set()
                release.wait()
        with backends.flags(benchmark_limit=3):
            threading.Thread(target=hold, daemon=True).start()
            held.wait()
            child = os.fork()
            if child == 0:
                backends.benchmark_limit = 4
                seen = [backends.fallback, backends.benchmark_limit]
                # a fresh context writes the base
                import contextvars
                contextvars.Context().run(switches.assign, "fallback", "error")
                seen.append(backends.fallback)
                os._exit(0 if seen == ["warn", 4, "error"] else 1)
            status = os.waitpid(child, 0)[1]
            release.set()
            print(status, backends.benchmark_limit)
        """
    )
    assert done.stdout.split() == ["0", "3"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="sends a POSIX signal")
def test_a_signal_handler_may_read_and_write_while_its_thread_holds_the_lock():
    done = run(
        """
        import os, signal
        from backline import backends, switches
        from backline.switches import scope_state, snapshot
        signal.signal(signal.SIGUSR1, lambda *_: switches.assign("max_error", 0.25))
        with scope_state.lock.now, snapshot._lock.now:
            os.kill(os.getpid(), signal.SIGUSR1)
            for _ in range(1000):
                pass
        print(backends.max_error)
        """
    )
    assert done.stdout.split() == ["0.25"], done.stderr
