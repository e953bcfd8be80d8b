"""Many threads make the first call of a process at once: each library is loaded once, and its thread count is guarded once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.engine import choose
from backline.native import thread_team
from support import clean, need, python

assert clean
STORM = Path(__file__).with_name("first_use_storm.py")


def test_threads_that_solve_first() -> None:
    """Each loading had a guard of its own: threads hung in OpenBLAS's LU, and a sound library was refused for a wrong product."""
    need("openblas")
    for _ in range(3):
        python(
            """
            import threading
            import numpy as np
            import backline

            rng = np.random.default_rng(0)
            a = rng.standard_normal((130, 130)) + 1j * rng.standard_normal((130, 130))
            b = rng.standard_normal((130, 3)) + 0j
            expected = np.linalg.solve(a, b)
            barrier, wrong = threading.Barrier(8), []

            def work(i):
                barrier.wait()
                try:
                    for _ in range(3):
                        with backline.num_threads(1 + i % 2), backline.use("openblas", only=True):
                            x = backline.linalg.solve(a, b)
                        if not np.allclose(x, expected):
                            wrong.append(abs(x - expected).max())
                except Exception as error:
                    wrong.append(error)

            threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(200)
            assert not any(thread.is_alive() for thread in threads), "threads hang"
            assert not wrong, wrong
            """,
            timeout=300,
        )


def test_a_storm_of_first_calls() -> None:
    """A few fresh processes; the same program runs hundreds by `make storm`."""
    command = [sys.executable, str(STORM), "--processes", "6", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-6000:]


def test_a_library_is_loaded_once_whoever_comes_first() -> None:
    python(
        """
        import threading, time
        from backline.libraries.base import FileLibrary

        class Slow(FileLibrary):
            name = "slow"
            loads = 0

            def load(self):
                self.loads += 1
                time.sleep(0.3)
                return ""

        library, barrier, said = Slow(), threading.Barrier(8), []

        def ask():
            barrier.wait()
            said.append(library.reason())

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert library.loads == 1 and said == [""] * 8, (library.loads, said)
        """
    )


def test_a_library_that_asks_for_itself_while_it_is_loaded() -> None:
    from backline.libraries.base import FileLibrary

    class Curious(FileLibrary):
        name, title = "curious", "Curious"

        def load(self) -> str:
            return f"asked: {self.reason()}"

    assert Curious().reason() == "asked: Curious is being loaded"


def test_a_fork_while_another_thread_loads(tmp_path: Path) -> None:
    """The child has locks that can be taken: it does not wait for a thread that it does not have."""
    python(
        """
        import os, signal, threading, time
        from backline.native import loading
        from backline.libraries.base import FileLibrary

        loading.FORK_SECONDS = 0.5

        class Slow(FileLibrary):
            name = "slow"
            delay = 20.0

            def load(self):
                begun.set()
                time.sleep(self.delay)
                return "slow"

        begun, library = threading.Event(), Slow()
        threading.Thread(target=library.reason, daemon=True).start()
        begun.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            other = Slow()
            other.delay = 0
            os._exit(0 if other.reason() == "slow" else 3)
        assert os.waitpid(child, 0)[1] == 0
        assert not library.loaded()
        os._exit(0)
        """,
        timeout=200,
    )


@pytest.mark.parametrize("name", ["openblas", "mkl", "blis"])
def test_two_objects_on_one_file_share_the_guard(name: str, clean: None) -> None:
    first: Any = need(name)
    second: Any = type(first)()
    assert second.available(), second.reason()
    assert second.traits is not first.traits
    assert second.traits.thread_guard is first.traits.thread_guard and second.traits.native.rwlock is first.traits.native.rwlock
    assert len({id(made) for made, _ in thread_team._guards.values()}) == len(thread_team._guards)


def test_a_choice_follows_the_switches_that_held_when_it_began(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is kept under the switches that the call began with; chosen under others it would be another library's."""
    need("openblas")
    a = np.random.default_rng(0).standard_normal((70, 71))
    ready, seen = libraries.ready, []

    def turned_off_meanwhile() -> None:
        ready()
        seen.append(switches.get("openblas.enabled"))
        if len(seen) == 2:  # the first time is before the switches are read
            backline.backends.openblas.enabled = False

    with backline.use("openblas"):
        monkeypatch.setattr(choose.libraries, "ready", turned_off_meanwhile)
        backline.mm(a, a.T)
        assert backline.explain().library == "openblas" and len(seen) >= 2
        monkeypatch.undo()
        backline.mm(a, a.T)
        assert backline.explain().library != "openblas"
