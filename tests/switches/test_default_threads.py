"""The thread count to start with: variables, affinity, siblings, quotas."""

from __future__ import annotations

import os

import pytest

from backline import processors
from backline.switches import starting_values


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be another machine: `files` by path, and the CPUs this process may use."""

    def pretend(files: dict[str, str], cpus: list[int]) -> None:
        monkeypatch.setattr(processors, "read_text", lambda path: files.get(path.replace("//", "/"), ""))
        monkeypatch.setattr(processors, "usable_cpus", lambda: cpus)

    return pretend


def siblings(groups: list[str]) -> dict[str, str]:
    found = {}
    for group in groups:
        for cpu in group.split(","):
            found[f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = group
    return found


@pytest.mark.parametrize(
    ("cpus", "count"), [([0, 1, 2, 3], 2), ([0, 2], 1), ([0, 1], 2), ([1, 3], 1), ([3], 1), ([0, 1, 3], 2)]
)
def test_two_threads_of_a_core_count_once_and_only_what_is_allowed_counts(machine, cpus, count):
    machine(siblings(["0,2", "1,3"]), cpus)
    assert processors.usable_cores() == count


def test_cpuinfo_answers_where_sys_does_not(machine):
    blocks = [
        f"processor\t: {cpu}\nphysical id\t: {cpu // 4}\ncore id\t\t: {cpu % 4 // 2}" for cpu in range(8)
    ]
    machine({"/proc/cpuinfo": "\n\n".join(blocks)}, [0, 1, 2, 4, 5])
    assert processors.usable_cores() == 3


def test_without_any_topology_every_cpu_counts(machine):
    machine({}, [0, 1, 2])
    assert processors.usable_cores() == 3


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "max 100000"}, 4),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/cpu.max": "300000 100000"}, 3),
        (
            {
                "/proc/self/cgroup": "0::/a/b",
                "/sys/fs/cgroup/a/b/cpu.max": "300000 100000",
                "/sys/fs/cgroup/a/cpu.max": "200000 100000",
            },
            2,
        ),
        (
            {
                "/proc/self/cgroup": "4:cpu,cpuacct:/c\n1:name=x:/",
                "/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "200000",
                "/sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (
            {
                "/proc/self/cgroup": "4:cpu:/",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        ({"/proc/self/cgroup": "rubbish", "/sys/fs/cgroup/cpu.max": "rubbish 0"}, 4),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "100000 0"}, 4),
    ],
)
def test_a_quota_lowers_the_count_but_not_below_one(machine, files, count):
    machine({**siblings(["0", "1", "2", "3"]), **files}, [0, 1, 2, 3])
    assert processors.usable_cores() == count


@pytest.mark.parametrize(
    ("omp", "mkl", "expected"),
    [
        ("3", None, (3, "OMP_NUM_THREADS")),
        (None, "5", (5, "MKL_NUM_THREADS")),
        ("3", "5", (5, "MKL_NUM_THREADS")),
        ("6,2", "5", (6, "OMP_NUM_THREADS")),
        ("0", "x", (1, "usable physical cores")),
        ("-2", "", (1, "usable physical cores")),
        ("٣", "9" * 30, (1, "usable physical cores")),
    ],
)
def test_the_larger_variable_wins_and_bad_ones_do_not_count(machine, monkeypatch, omp, mkl, expected):
    machine(siblings(["0"]), [0])
    for name, value in (("OMP_NUM_THREADS", omp), ("MKL_NUM_THREADS", mkl)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert starting_values.starting_threads() == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks on this system")
def test_this_machine():
    allowed = os.sched_getaffinity(0)
    assert 1 <= processors.usable_cores() <= len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert processors.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
