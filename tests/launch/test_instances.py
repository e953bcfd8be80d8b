"""Running several processes at once: statuses, ends, logs, the console they share, and signals. No core is needed here."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backline.launch.instances import Job, exit_status, run
from processes import started

ENVIRONMENT = dict(os.environ)
Launcher = Callable[..., "subprocess.Popen[str]"]


def shell(*scripts: str, folder: Path | None = None) -> list[Job]:
    return [Job(i, ["sh", "-c", s], ENVIRONMENT, str(folder / str(i)) if folder else "") for i, s in enumerate(scripts)]


def until(condition: Callable[[], object], what: str) -> None:
    for _ in range(9000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"waited three minutes for {what}")


def alive(pid: int) -> bool:
    """Tells whether a process runs; one that ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# Statuses -----------------------------------------------------------------------------------------------------------------


def test_statuses() -> None:
    assert [exit_status(code) for code in (0, 1, 255, -1, -9, -15)] == [0, 1, 255, 129, 137, 143]


@pytest.mark.parametrize(("scripts", "status"), [(["exit 0"], 0), (["exit 3"], 3), (["kill -9 $$"], 137), (["exit 0", "exit 0", "exit 0"], 0)])
def test_how_they_end(scripts: list[str], status: int) -> None:
    assert run(shell(*scripts)) == status


def test_the_first_failure_counts_and_ends_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    scripts = ["exec sleep 100", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 7", f"touch {tmp_path}/go; exec sleep 100", "exit 0"]
    assert run(shell(*scripts)) == 7
    said = capfd.readouterr().err
    # The last one may still be ending, too.
    assert re.search(r"instance 1 ended with status 7\nterminating instances 0, 2(, 3)?\n", said) and "killing" not in said


def test_who_does_not_end_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    stubborn = "trap '' TERM; echo up; exec sleep 100"
    assert run(shell(stubborn, "sleep 0.3; kill -USR1 $$"), grace=0.3) == 128 + signal.SIGUSR1
    said = capfd.readouterr()
    assert said.out == "up\n" and "by signal SIGUSR1" in said.err
    assert "killing instance 0: still running 0.3 seconds later" in said.err


def test_what_a_terminated_instance_prints_last_is_kept(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    tidy = f"trap 'echo tidied; exit 0' TERM; touch {ready}; while :; do sleep 0.02; done"
    assert run(shell(tidy, f"until [ -e {ready} ]; do sleep 0.02; done; exit 2", folder=tmp_path)) == 2
    assert (tmp_path / "0/stdout.log").read_text() == "tidied\n"


def test_a_program_that_cannot_be_started_ends_those_before(tmp_path: Path) -> None:
    started = []

    class Slow(list[str]):
        """A command that is read only when the first instance is there."""

        def __iter__(self) -> Iterator[str]:
            until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the first instance")
            started.append(int((tmp_path / "pid").read_text()))
            return super().__iter__()

    jobs = shell(f"echo $$ > {tmp_path}/pid; exec sleep 100")
    with pytest.raises(FileNotFoundError):
        run([*jobs, Job(1, Slow([f"{tmp_path}/nowhere"]), ENVIRONMENT)])
    until(lambda: not alive(started[0]), "the first instance to end")


def test_a_signal_while_instances_are_started_reaches_those_and_starts_no_more(tmp_path: Path) -> None:
    class Interrupted(list[str]):
        """A command that is read while its instance is being started."""

        def __iter__(self) -> Iterator[str]:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().__iter__()

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        slow = ["sleep", "100"]
        jobs = [Job(0, slow, ENVIRONMENT), Job(1, Interrupted(slow), ENVIRONMENT), *shell(f"touch {tmp_path}/started")]
        assert run(jobs) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "started").exists()


def test_outside_the_main_thread_it_runs_too() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(run(shell("exit 4"))))
    thread.start()
    thread.join()
    assert found == [4]


def test_handlers_are_put_back() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)}
    run(shell("exit 1"))
    assert before == {number: signal.getsignal(number) for number in before}


# Output -------------------------------------------------------------------------------------------------------------------


def test_logs_and_console_have_everything(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    jobs = shell("echo zero; echo warn >&2; printf 'no end'", "echo one", folder=tmp_path)
    assert run(jobs) == 0
    assert (tmp_path / "0/stdout.log").read_text() == "zero\nno end" and (tmp_path / "0/stderr.log").read_text() == "warn\n"
    assert (tmp_path / "1/stdout.log").read_text() == "one\n" and (tmp_path / "1/stderr.log").read_text() == ""
    said = capfd.readouterr()
    assert sorted(said.out.replace("no end", "").splitlines()) == ["one", "zero"] and "no end" in said.out and said.err == "warn\n"


def test_one_instance_with_a_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(shell("printf '10%%\\r'; printf '20%%\\r'", folder=tmp_path)) == 0
    assert capfd.readouterr().out == "10%\r20%\r" == (tmp_path / "0/stdout.log").read_bytes().decode()


def test_lines_of_several_instances_stay_whole(capfd: pytest.CaptureFixture[str]) -> None:
    halves = "for i in 1 2 3 4 5 6 7 8 9; do printf {0}{0}; sleep 0.01; echo {0}{0}; done"
    assert run(shell(*(halves.format(c) for c in "abcd"))) == 0
    assert sorted(capfd.readouterr().out.split()) == sorted(c * 4 for c in "abcd" for _ in range(9))


def test_much_output_without_a_line_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = "import sys; sys.stdout.write('x' * 3_000_000)"
    jobs = [Job(i, [sys.executable, "-c", program], ENVIRONMENT, str(tmp_path / str(i))) for i in (0, 1)]
    assert run(jobs) == 0
    assert len(capfd.readouterr().out) == 6_000_000 and (tmp_path / "1/stdout.log").stat().st_size == 3_000_000


def test_a_process_left_behind_does_not_hold_the_launcher(tmp_path: Path) -> None:
    assert run(shell(f"sleep 100 & echo $! > {tmp_path}/pid; echo done", folder=tmp_path)) == 0
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)  # nobody waited for it
    os.kill(pid, signal.SIGKILL)
    assert (tmp_path / "0/stdout.log").read_text() == "done\n"


def test_a_log_that_cannot_be_written_is_told_and_costs_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "0/stdout.log").mkdir(parents=True)
    (tmp_path / "1").mkdir()
    (tmp_path / "1/stdout.log").symlink_to("/dev/full")
    assert run(shell("echo zero", "echo one; sleep 0.1; echo two", folder=tmp_path)) == 0
    said = capfd.readouterr()
    assert sorted(said.out.split()) == ["one", "two", "zero"]
    assert said.err.count("Is a directory") == 1 and said.err.count("No space left on device") == 1


# A launcher of its own ----------------------------------------------------------------------------------------------------

LAUNCHER = """
import os, signal, sys
from backline.launch.instances import Job, run
if "ignoring" in sys.argv[1]:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
sys.exit(run([Job(i, [sys.executable, "-c", script], dict(os.environ)) for i, script in enumerate(sys.argv[1:])], grace=20))
"""


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    """Starts launchers, which end with the test."""
    with contextlib.ExitStack() as stack:

        def start(*scripts: str, **how: object) -> subprocess.Popen[str]:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            return stack.enter_context(started([sys.executable, "-c", LAUNCHER, *scripts], **pipes, **how))

        yield start


def ready(process: subprocess.Popen[str], count: int = 1) -> list[int]:
    """Wait until `count` instances have said their process number."""
    assert process.stdout
    return [int(process.stdout.readline()) for _ in range(count)]


# Says who it is, counts signals for a while after the first, then says how many came.
COUNTS = """
import os, signal, sys, time
got = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, lambda n, frame: got.append(signal.Signals(n).name))
os.write(1, b"%d\\n" % os.getpid())
while not got: time.sleep(0.01)
time.sleep(0.3)
os.write(1, (" ".join(got) + "\\n").encode())
sys.exit(0)
"""
DIES = "import os, signal, time; [signal.signal(n, signal.SIG_DFL) for n in (2, 15)]; os.write(1, b'%d\\n' % os.getpid()); time.sleep(100)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize("count", [1, 2])
def test_signals_are_passed_on_once_to_each(launcher: Launcher, number: signal.Signals, count: int) -> None:
    process = launcher(*[COUNTS] * count)
    ready(process, count)
    process.send_signal(number)
    out, errors = process.communicate(timeout=200)
    assert out.split() == [number.name] * count and process.returncode == 0, errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_instances_that_a_passed_signal_ends(launcher: Launcher, number: signal.Signals) -> None:
    process = launcher(DIES, DIES)
    pids = ready(process, 2)
    process.send_signal(number)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 128 + number and f"by signal {number.name}" in errors
    assert "terminating" not in errors and "Traceback" not in errors  # the other one knew already
    assert not any(map(alive, pids))


def test_ctrl_c_on_a_terminal_reaches_an_instance_once() -> None:
    import pty

    main, side = pty.openpty()
    # The launcher as the foreground of a terminal of its own.
    code = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])"
    command = [sys.executable, "-c", code, LAUNCHER, COUNTS]
    with started(command, stdin=side, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        os.close(side)
        ready(process)
        os.write(main, b"\x03")
        out, errors = process.communicate(timeout=200)
        os.close(main)
        assert out.split() == ["SIGINT"] and process.returncode == 0, errors


def test_stopping_the_launcher_stops_its_instances_and_waking_it_wakes_them(launcher: Launcher) -> None:
    process = launcher(DIES, DIES)
    pids = ready(process, 2)
    process.send_signal(signal.SIGTSTP)
    until(lambda: {state(pid) for pid in (*pids, process.pid)} == {"T"}, "all to stop")
    process.send_signal(signal.SIGCONT)
    until(lambda: "T" not in {state(pid) for pid in (*pids, process.pid)}, "all to go on")
    process.terminate()
    process.communicate(timeout=200)
    assert process.returncode == 143 and not any(map(alive, pids))


def test_a_signal_that_is_ignored_stays_ignored(launcher: Launcher) -> None:
    process = launcher("import signal; print('ignoring', signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)")
    assert process.communicate(timeout=200)[0] == "ignoring True\n"


def test_one_instance_reads_what_the_launcher_is_given_and_several_nothing(launcher: Launcher) -> None:
    reads = "import sys; print(repr(sys.stdin.read()))"
    assert launcher(reads, stdin=subprocess.PIPE).communicate("words", timeout=200)[0] == "'words'\n"
    assert launcher(reads, reads, stdin=subprocess.PIPE).communicate("words", timeout=200)[0] == "''\n''\n"


def test_who_reads_no_further_ends_the_instances(launcher: Launcher) -> None:
    endless = "while True: print('y', flush=True)"
    process = launcher(endless, endless)
    assert process.stdout and process.stdout.readline() == "y\n"
    process.stdout.close()
    process.wait(timeout=200)
    assert process.returncode and process.stderr
    process.stderr.close()
