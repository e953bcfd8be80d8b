"""Native calls that return a status, and plans whose calls run one after the other."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import processes
from backline import _core

SOURCE = r"""
#include <stdatomic.h>
#include <unistd.h>
static atomic_int now, most;
int work(int *out, int value) { *out += 1; return value; }
int busy(void) {
    int n = ++now;
    if (n > most) most = n;
    usleep(20000);
    --now;
    return 0;
}
int seen(void) { return most; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("status")
    (folder / "status.c").write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", "libstatus.so", "status.c"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "libstatus.so"))


def address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("status", [0, 5, -3])
def test_a_status_ends_the_items_calls_and_is_told(library: Any, status: int, size: int) -> None:
    told: list[Any] = []
    out = (0, 0, 0)
    info = (1, 0, 0)
    call = address(library.work)
    steps = [("call", call, [out, value], 3, info) for value in (0, status, 0)]
    plan = _core.PreparedCall(
        1, [("argument", 0), ("work", 8)], [(1, 1, steps)], [0], [], info=(1, size, 1),
        on_info=lambda plan, infos, arrays, results: told.append(infos) or results[0],
    )  # fmt: skip
    counter = np.zeros(1, np.int32)
    for _ in range(2):  # what an earlier call left in the workspace does not matter
        counter[:] = 0
        told.clear()
        assert plan(counter) is counter
        assert counter[0] == (3 if status == 0 else 2)
        assert told == ([] if status == 0 else [[status]])


def test_calls_of_a_serial_plan_run_one_after_the_other(library: Any) -> None:
    step = ("call", address(library.busy), [], 3, (1, 0, 0))
    plan = _core.PreparedCall(
        1, [("argument", 0), ("work", 4)], [(1, 1, [step])], [0], [], info=(1, 4, 1), release_gil=True, serial=True
    )
    threads = [threading.Thread(target=plan, args=(np.zeros(1),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.seen() == 1


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(library: Any) -> None:
    step = ("call", address(library.busy), [], 3, (1, 0, 0))
    plan = _core.PreparedCall(
        1, [("argument", 0), ("work", 4)], [(1, 1, [step])], [0], [], info=(1, 4, 1), release_gil=True, serial=True
    )
    stop = threading.Event()

    def call() -> bool:
        plan(np.zeros(1))
        return True

    def keep_busy() -> None:
        while not stop.is_set():
            call()

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        for _ in range(5):
            assert processes.forked(call) == 0
    finally:
        stop.set()
        thread.join()
