"""A launcher that is killed, has no stdout, or is read no further: its instances end, and nothing is said that steers a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backline.launch import watcher
from backline.launch.instances import Job, run
from backline.launch.watcher import Watcher
from processes import started

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the launcher runs on Linux only")

LAUNCH = "import os, sys; from backline.launch.instances import Job, run; "


def alive(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def wait_for(condition: object, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]  # callers give functions
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("ignores", [False, True], ids=["ends when asked", "has to be killed"])
def test_instances_end_with_a_killed_launcher(tmp_path: Path, ignores: bool) -> None:
    """The instance and what it has started."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, subprocess, sys, time\n"
        + ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if ignores else "")
        + "child = os.posix_spawn(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)'], os.environ)\n"
        "with open(sys.argv[1] + '.new', 'w') as file:\n"
        "    file.write(f'{os.getpid()} {child}')\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "time.sleep(600)\n"
    )
    notes = [tmp_path / str(number) for number in range(2)]
    jobs = f"[Job(n, [sys.executable, {str(program)!r}, {str(tmp_path)!r} + f'/{{n}}'], dict(os.environ)) for n in range(2)]"
    processes: list[int] = []
    with started([sys.executable, "-c", f"{LAUNCH}run({jobs}, grace=0.5)"]) as launcher:
        try:
            assert wait_for(lambda: all(note.exists() for note in notes)), "the instances did not start"
            processes = [int(word) for note in notes for word in note.read_text().split()]
            launcher.kill()
            launcher.wait()
            assert wait_for(lambda: not any(map(alive, processes))), "instances outlive their launcher"
        finally:
            for process in filter(alive, processes):
                os.kill(process, signal.SIGKILL)


def test_nothing_is_left_of_a_launcher_that_ends() -> None:
    """Its watcher ends with it, and signals nobody."""
    program = (
        f"{LAUNCH}import subprocess\n"
        "status = run([Job(0, ['sh', '-c', 'exit 3'], dict(os.environ))])\n"
        "path = f'/proc/self/task/{os.getpid()}/children'\n"
        "print(status, repr(open(path).read()) if os.path.exists(path) else repr(''))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["3", "''"]


COMMANDS = [
    ["-m", "backline.backends.xeon.run_cpu", "--disable-numactl", "--disable-taskset", "{program}"],
    ["-m", "backline.backends.xeon.run_cpu", "--ninstances", "1", "--log-path", "{folder}", "{program}"],
]


CLOSED = ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"]
# Without a log the program itself would print to the pipe that nobody reads, and fail.
CASES = [*((command, closed) for command in COMMANDS for closed in CLOSED), (COMMANDS[1], "| head -n 0")]


@pytest.mark.parametrize(("command", "closed"), CASES)
def test_a_launcher_without_its_standard_files(tmp_path: Path, command: list[str], closed: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write('yes'); print('x')")
    words = [word.format(program=program, folder=tmp_path / "logs") for word in command]
    status = tmp_path / "status"
    line = f'("$@"; echo $? > {status}) {closed}' if "|" in closed else f'"$@" {closed}; echo $? > {status}'
    ended = subprocess.run(["sh", "-c", line, "sh", sys.executable, *words], capture_output=True, text=True, timeout=120, check=False)
    assert status.read_text().strip() == "0", ended.stderr
    assert (tmp_path / "ran").read_text() == "yes"
    assert "Traceback" not in ended.stderr


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_watcher_whose_interpreter_needs_the_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one built with --enable-shared in a folder that the loader does not know."""
    python = script(tmp_path / "python", f'[ "$LD_LIBRARY_PATH" = {tmp_path} ] || exit 127\nexec {sys.executable} "$@"')
    with started(["sleep", "600"]) as instance:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        monkeypatch.setattr(sys, "executable", python)
        with Watcher(0.1) as watching:
            watching.started(instance.pid)
            assert watching._process is not None and watching._process.stdin is not None
            watching._process.stdin.close()  # as at the end of a launcher that is killed
            assert instance.wait(60) == -signal.SIGTERM


@pytest.mark.parametrize(("text", "said"), [("exit 127", "ended with status 127"), ("exec sleep 600", "does not run after 0.5 seconds")])
def test_a_watcher_that_does_not_run_is_told(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python", text))
    monkeypatch.setattr(watcher, "SECONDS", 0.5)
    assert run([Job(0, ["sh", "-c", "exit 3"], dict(os.environ))]) == 3
    warned = capfd.readouterr().err
    assert "warning: instances would outlive a launcher that is killed" in warned and said in warned
