"""Commands that bind: numactl where it works, else taskset, else an error; and the commands they are given."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backline.errors import BackendUnavailable
from backline.launch import binding
from backline.launch.binding import Binder, choose, memory_nodes


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of this test's own."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binding, "memory_nodes", lambda: frozenset({0, 1}))
    return tmp_path


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


WORKS = 'echo "$0 $*" >> "${0%/*}/calls"'
FAILS = 'echo "libnuma: Warning: no" >&2; exit 1'


def test_commands() -> None:
    assert Binder("numactl").command([8, 0, 1, 2, 3], [0]) == ["numactl", "-C", "0-3,8-8", "-m", "0"]
    assert Binder("numactl").command([7, 100], [1, 0]) == ["numactl", "-C", "7-7,100-100", "-m", "1,0"]
    assert Binder("taskset").command([5], [0]) == ["taskset", "-c", "5-5"]
    assert Binder().command([5], [0]) == []


def test_memory_that_may_not_be_used_is_left_out() -> None:
    assert Binder("numactl", frozenset({0, 2})).command([1], [1, 2]) == ["numactl", "-C", "1-1", "-m", "2"]
    assert Binder("numactl", frozenset({0})).command([1], [1]) == ["numactl", "-C", "1-1"]


def test_numactl_is_tried_on_a_cpu_and_a_node_of_ours(path: Path) -> None:
    fake(path, "numactl", WORKS)
    assert choose([6, 7], [1], taskset=False) == (Binder("numactl", frozenset({0, 1})), [])
    assert (path / "calls").read_text().split("numactl ")[1] == "-C 6-6 -m 1 true\n"


def test_the_trial_uses_a_node_whose_memory_is_ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "memory_nodes", lambda: frozenset({3}))
    fake(path, "numactl", WORKS)
    choose([6, 7], [1])
    assert "-C 6-6 -m 3 true" in (path / "calls").read_text()


@pytest.mark.parametrize("script", ["", FAILS, "kill -9 $$"])
def test_taskset_where_numactl_does_not_work(script: str, path: Path) -> None:
    if script:
        fake(path, "numactl", script)
    fake(path, "taskset", WORKS)
    binder, notes = choose([0], [0])
    assert binder == Binder("taskset") and [n.level for n in notes] == ["warning"]
    assert ("no numactl on PATH" if not script else "status") in notes[0].text and "taskset" in notes[0].text
    assert ("libnuma: Warning: no" in notes[0].text) == (script == FAILS)


def test_a_numactl_that_hangs_or_is_no_program(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "SECONDS", 0.2)
    fake(path, "taskset", WORKS)
    fake(path, "numactl", "exec /bin/sleep 60")
    assert "did not end" in choose([0], [0])[1][0].text
    (path / "numactl").write_text("no program")
    assert "cannot be run" in choose([0], [0])[1][0].text


def test_taskset_forbidden_is_an_error_with_the_reason(path: Path) -> None:
    fake(path, "numactl", FAILS)
    fake(path, "taskset", WORKS)
    with pytest.raises(BackendUnavailable, match=r"--disable-taskset[\s\S]*libnuma: Warning: no"):
        choose([0], [0], taskset=False)


def test_nothing_there_is_an_error_that_says_so(path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"no numactl on PATH; there is no taskset[\s\S]*--disable-numactl and --disable-taskset"):
        choose([0], [0])


def test_what_is_disabled_is_not_used(path: Path) -> None:
    for name in ("numactl", "taskset"):
        fake(path, name, WORKS)
    assert choose([0], [0], numactl=False) == (Binder("taskset"), [])
    assert choose([0], [0], numactl=False, taskset=False) == (Binder(), [])
    assert not (path / "calls").exists()


def test_memory_nodes(tmp_path: Path) -> None:
    file = tmp_path / "status"
    assert memory_nodes(str(file)) is None
    for text, expected in (("Name:\tx\nMems_allowed_list:\t0-1,3\n", {0, 1, 3}), ("Name:\tx\n", None), ("Mems_allowed_list:\t\n", None)):
        file.write_text(text)
        assert memory_nodes(str(file)) == expected


def test_what_this_machine_has_works() -> None:
    import os

    cpu = min(os.sched_getaffinity(0))
    binder, notes = choose([cpu], [0])
    assert binder.tool in ("numactl", "taskset") and bool(notes) == (binder.tool == "taskset")
    if shutil.which("numactl") is None:
        assert binder.tool == "taskset"
