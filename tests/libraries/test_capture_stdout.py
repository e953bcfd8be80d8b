"""Lines that a library prints during a call: they come out where the user's prints do, whole and in order."""

from __future__ import annotations

import ctypes
import io
import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import backline
from backline.native.capture_stdout import Capture
from processes import started

SOURCE = str(Path(backline.__file__).parents[1])
HEAD = """
import ctypes, io, os, sys, threading, time
from backline.native import capture_stdout as stdout
from backline.native.capture_stdout import Capture
C = ctypes.CDLL(None)
def say(text): C.printf(b"%s", text.encode())  # into C's buffer, as libraries do
"""


def run(program: str, **more: Any) -> Any:
    """Run a program whose standard output is a pipe; its own words go to stderr or the exit status."""
    command = [sys.executable, "-c", HEAD + textwrap.dedent(program)]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False, **more)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


def say(text: str) -> None:
    ctypes.CDLL(None).printf(b"%s", text.encode())


def test_text_comes_between_the_prints_around_it() -> None:
    done = run("""
        print("one")  # both buffers are full: nothing is written yet
        say("two\\n")
        with Capture(("LIB",)) as caught:
            say("LIB three\\n"); say("no line of the library\\n")
        print("four")
        assert caught.lines == ["LIB three"], caught.lines
    """)
    words = done.stdout.splitlines()
    assert words.index("one") < words.index("LIB three") < words.index("no line of the library") < words.index("four")
    assert words.index("two") < words.index("LIB three") and len(words) == 5


def test_a_stream_in_the_place_of_stdout_gets_the_lines_and_the_descriptor_the_rest() -> None:
    done = run("""
        print("first", flush=True)
        real, sys.stdout = sys.stdout, io.StringIO()
        print("a")
        with Capture(("LIB",)) as caught:
            say("LIB 1\\nother\\nLIB 2\\n")
        print("b")
        text, sys.stdout = sys.stdout.getvalue(), real
        assert text == "a\\nLIB 1\\nLIB 2\\nb\\n", text
        with Capture() as caught:  # nothing known of how its lines begin: all are its own
            say("x\\r\\ny")
        assert caught.lines == ["x", "y"], caught.lines
    """)
    assert done.stdout == "first\nother\nx\ny"


def test_notebook_streams(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Capture():
        say("seen\n")
    assert capsys.readouterr().out == "seen\n"

    class Notebook(io.StringIO):
        def fileno(self) -> int:
            return 7  # ipykernel's stream has the number of a copy

    monkeypatch.setattr(sys, "stdout", Notebook())
    with Capture():
        say("seen\n")
    assert sys.stdout.getvalue() == "seen\n"  # type: ignore[attr-defined]  # a StringIO here


def test_exceptions_put_the_descriptor_back_and_lose_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    before = os.fstat(1)
    with pytest.raises(ZeroDivisionError), Capture() as caught:
        say("said\n")
        raise ZeroDivisionError
    assert os.path.samestat(before, os.fstat(1)) and caught.lines == ["said"]
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "said\nafter\n"


def test_no_descriptor_is_left_behind() -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        with Capture():
            say("")
    assert os.listdir("/proc/self/fd") == before


def test_more_than_a_pipe_holds() -> None:
    done = run("""
        with Capture(("LIB",)) as caught:
            for i in range(40000):
                say(f"LIB {i} " + "x" * 60 + "\\n")
        assert len(caught.lines) == 40000
    """)
    assert len(done.stdout.splitlines()) == 40000 and done.stdout.splitlines()[-1].startswith("LIB 39999 ")


def test_captures_nest() -> None:
    done = run("""
        with Capture(("A",)) as outer:
            say("A 1\\n")
            with Capture(("B",)) as inner:
                say("B\\n")
            say("A 2\\n")
        assert (outer.lines, inner.lines) == (["A 1", "A 2"], ["B"]), (outer.lines, inner.lines)
    """)
    assert done.stdout == "A 1\nB\nA 2\n"


def test_threads_take_turns() -> None:
    done = run("""
        found = {}
        def work(name):
            mine = []
            for i in range(50):
                with Capture((name,)) as caught:
                    for j in range(5):
                        say(f"{name} {i} {j}\\n")
                        time.sleep(0)
                mine += caught.lines
            found[name] = mine
        threads = [threading.Thread(target=work, args=(n,)) for n in ("LIB", "XYZ")]
        for t in threads: t.start()
        for t in threads: t.join()
        for name in found:
            assert found[name] == [f"{name} {i} {j}" for i in range(50) for j in range(5)]
    """)
    assert len(done.stdout.splitlines()) == 500


def test_what_another_thread_prints_meanwhile_is_passed_on() -> None:
    for stream in ("sys.stdout", "io.StringIO()"):
        done = run(f"""
            sys.stdout = {stream}
            go, said = threading.Event(), threading.Event()
            def other():
                go.wait()
                os.write(1, b"from another thread\\n")
                said.set()
            t = threading.Thread(target=other); t.start()
            with Capture(("LIB",)) as caught:
                say("LIB 1\\n")
                go.set(); said.wait()
            t.join()
            os.write(1, b"end\\n")
            assert caught.lines == ["LIB 1"]
        """)
        words = done.stdout.splitlines()
        assert "from another thread" in words and words[-1] == "end" and ("LIB 1" in words) == (stream == "sys.stdout")


def test_descriptor_1_closed() -> None:
    run("""
        os.close(1)
        for stream in (None, sys.stdout, io.StringIO()):
            sys.stdout = stream
            with Capture() as caught:
                say("heard\\n")
            assert caught.lines == ["heard"], caught.lines
            try:
                os.fstat(1)
            except OSError:
                pass
            else:
                raise AssertionError("descriptor 1 was left open")
        assert stream.getvalue() == "heard\\n"
        os.close(0); os.close(2)  # its files must not take the places of these
        with Capture() as caught:
            os.write(1, b"again\\n")
            taken = [n for n in (0, 2) if os.path.exists(f"/proc/self/fd/{n}")]
        os._exit(0 if caught.lines == ["again"] and not taken else 1)
    """)


def test_no_stdout_object() -> None:
    done = run("""
        sys.stdout = None
        with Capture() as caught:
            say("heard\\n")
        assert caught.lines == ["heard"]
    """)
    assert done.stdout == "heard\n"


def test_streams_that_fail_cost_nothing_but_their_text() -> None:
    done = run("""
        class Broken(io.StringIO):
            def write(self, text): raise RuntimeError("broken")
        closed = io.StringIO(); closed.close()
        class Odd:
            def fileno(self): raise RuntimeError("odd")
        for i, stream in enumerate((Broken(), closed, Odd(), 3)):
            sys.stdout = stream
            with Capture() as caught:
                say(f"{i}\\n")
            assert caught.lines == [str(i)]
        sys.stdout = sys.__stdout__
    """)
    assert done.stdout == "0\n1\n2\n3\n", "where the stream does not take it, the descriptor does"
    run("""
        read, write = os.pipe()
        os.dup2(write, 1); os.close(read)  # nobody reads any more
        with Capture() as caught:
            say("x\\n")
        assert caught.lines == ["x"]
        os.close(1); sys.stdout = None
    """)


def test_a_pipe_that_does_not_block_gets_all() -> None:
    run("""
        import fcntl
        read, write = os.pipe()
        os.dup2(write, 1); os.close(write)
        fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)
        got = []
        def reader():
            while part := os.read(read, 4096):
                got.append(part)
                time.sleep(0.0005)
        t = threading.Thread(target=reader); t.start()
        with Capture():
            for i in range(5000):
                say("y" * 99 + "\\n")
        os.close(1); t.join()
        assert len(b"".join(got)) == 500000, len(b"".join(got))
    """)


def test_where_the_descriptor_cannot_be_caught_the_call_runs_without() -> None:
    done = run("""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 64))
        with Capture() as caught:
            say("straight\\n")
        assert caught.lines == []
    """)
    assert done.stdout == "straight\n"


def test_without_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise PermissionError(name)

    monkeypatch.setattr(os, "memfd_create", refuse)
    with Capture() as caught:
        say("in a file\n")
    assert caught.lines == ["in a file"]


def test_somebody_who_takes_descriptor_1_meanwhile_keeps_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(f"""
        with Capture():
            new = os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT)
            os.dup2(new, 1)
        os.write(1, b"to the log")
    """)
    assert log.read_text() == "to the log"


def test_a_fork_waits_until_the_descriptor_is_back() -> None:
    done = run("""
        inside = threading.Event()
        def work():
            with Capture(("LIB",)):
                inside.set()
                time.sleep(0.2)
                say("LIB\\n")
        t = threading.Thread(target=work); t.start()
        inside.wait()
        child = os.fork()
        if child == 0:
            with Capture() as caught:
                say("child\\n")
            os._exit(0 if caught.lines == ["child"] else 1)
        assert os.waitpid(child, 0)[1] == 0
        t.join()
    """)
    assert sorted(done.stdout.splitlines()) == ["LIB", "child"]


def test_the_end_of_the_process_waits_too() -> None:
    done = run("""
        inside = threading.Event()
        def work():
            while True:
                with Capture(("LIB",)):
                    inside.set()
                    time.sleep(0.05)
                    say("LIB\\n")
        threading.Thread(target=work, daemon=True).start()
        inside.wait()
        print("last words")
    """)
    assert "last words" in done.stdout.splitlines() and not done.stderr


def test_a_thread_that_waits_for_input_is_not_waited_for() -> None:
    with started(["sleep", "600"], stdout=subprocess.PIPE) as never:
        done = run(
            """
            stdin = ctypes.c_void_p.in_dll(C, "stdin")
            buffer = ctypes.create_string_buffer(10)
            threading.Thread(target=C.fgets, args=(buffer, 10, stdin), daemon=True).start()
            time.sleep(0.2)  # it holds the lock of C's stdin by now
            with Capture():
                say("done\\n")
            sys.stdout.flush()
            os._exit(0)
            """,
            stdin=never.stdout,
        )
    assert done.stdout == "done\n"


def test_a_terminal_stays_one_for_c() -> None:
    ours, theirs = pty.openpty()
    program = HEAD + textwrap.dedent("""
        with Capture():
            say("first words of C\\n")
        say("a line at once\\n")
        os._exit(0)  # what is still in a buffer is lost
    """)
    with started([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": SOURCE}, stdout=theirs) as child:
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 1000):
                text += part
        except OSError:  # how a terminal tells that its other end is closed
            pass
        assert child.wait() == 0
    os.close(ours)
    assert text.replace(b"\r", b"") == b"first words of C\na line at once\n"
