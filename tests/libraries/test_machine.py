"""Facts about machines, from texts of several of them."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backline import processors
from backline.native import machine
from backline.native.machine import CpuInfo

X86 = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R) Platinum 8175M CPU @ 2.50GHz
stepping\t: 4
core id\t\t: 0
flags\t\t: fpu sse sse2 avx avx2 fma f16c avx512f avx512dq avx512bw avx512vl avx512_vnni ibrs
power management:

processor\t: 1
model name\t: another
"""
ARM = """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm sve asimdhp bf16 i8mm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1
"""
POWER = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nrevision\t: 2.2 (pvr 004e 1202)\n"
Z = "vendor_id       : IBM/S390\nfeatures\t: esan3 zarch vx vxd\nprocessor 0: version = FF,  machine = 8561\n"


def test_x86() -> None:
    cpu = machine.parse_cpuinfo(X86)
    assert cpu.model == "Intel(R) Xeon(R) Platinum 8175M CPU @ 2.50GHz"
    assert (cpu.vendor, cpu.family) == ("GenuineIntel", "6 85 4")
    assert {"avx512f", "fma"} <= cpu.flags


def test_arm() -> None:
    cpu = machine.parse_cpuinfo(ARM)
    assert (cpu.model, cpu.vendor) == ("Arm core 0xd40", "Arm")
    assert "sve" in cpu.flags
    assert machine.parse_cpuinfo(ARM.replace("0x41", "0xee")).vendor == "0xee"
    assert machine.parse_cpuinfo(ARM.replace("0x41", "odd")).vendor == "odd"


def test_others() -> None:
    assert machine.parse_cpuinfo(POWER).model == "POWER9, altivec supported"
    assert machine.parse_cpuinfo(Z).vendor == "IBM/S390"
    assert machine.parse_cpuinfo("") == CpuInfo()


@given(st.text())
def test_any_text_is_understood_somehow(text: str) -> None:
    machine.parse_cpuinfo(text)
    machine.parse_size(text)
    processors.quota_of(text, {}.get)
    processors.memory_of(text, text, {}.get)


@pytest.mark.parametrize(
    ("flags", "architecture", "vector", "word"),
    [
        ("avx avx2 fma avx512f avx512bw avx512dq avx512vl", "x86_64", None, "AVX512"),
        ("avx avx2 fma avx512f avx512bw avx512dq", "x86_64", None, "AVX2"),
        ("avx2", "x86_64", None, "DEFAULT"),
        ("sse4_2", "AMD64", None, "DEFAULT"),
        ("asimd sve", "aarch64", 32, "SVE256"),
        ("asimd sve", "aarch64", 16, "DEFAULT"),
        ("asimd", "aarch64", 32, "DEFAULT"),
        ("", "arm64", None, "DEFAULT"),
        ("vx", "s390x", None, "Z VECTOR"),
        ("", "s390x", None, "DEFAULT"),
        ("", "ppc64le", None, "VSX"),
        ("avx2 fma", "riscv64", None, "DEFAULT"),
    ],
)
def test_capability(flags: str, architecture: str, vector: int | None, word: str) -> None:
    assert machine.capability_of(flags.split(), architecture, vector) == word


def test_cpu_lists() -> None:
    assert processors.parse_cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert processors.parse_cpu_list("") == ()
    assert processors.parse_cpu_list("x,1-,2-y,5") == (5,)


def test_sizes() -> None:
    assert [machine.parse_size(text) for text in ("48K", "32M\n", "1024", "8192 KB", "1GiB", "?", "")] == [
        48 << 10, 32 << 20, 1024, 8192 << 10, 1 << 30, None, None,
    ]  # fmt: skip


def topology(lists: dict[int, str], name: str = "core_cpus_list") -> dict[str, str]:
    return {f"/sys/devices/system/cpu/cpu{cpu}/topology/{name}": text for cpu, text in lists.items()}


def test_hardware_threads_count_once() -> None:
    files = topology({0: "0,4\n", 1: "1,5\n", 4: "0,4\n", 5: "1,5\n"})
    assert processors.count_cores([0, 1, 4, 5], files.get) == 2
    assert processors.count_cores([4, 5], files.get) == 2
    assert processors.count_cores([0, 4], files.get) == 1
    assert processors.count_cores([0, 4], topology({0: "0-4", 4: "0-4"}, "thread_siblings_list").get) == 1


def test_cores_without_topology() -> None:
    assert processors.count_cores([0, 1, 2], {}.get) == 3
    assert processors.count_cores([0, 1], topology({0: "rubbish", 1: "7"}).get) == 2


def test_caches() -> None:
    base = "/sys/devices/system/cpu/cpu3/cache/index"
    files = {
        f"{base}0/level": "1\n", f"{base}0/type": "Instruction\n", f"{base}0/size": "64K\n",
        f"{base}1/level": "1\n", f"{base}1/type": "Data\n", f"{base}1/size": "32K\n",
        f"{base}2/level": "2\n", f"{base}2/type": "Unified\n", f"{base}2/size": "2048K\n",
    }  # fmt: skip
    assert machine.cache_size(1, 3, files.get) == 32 << 10
    assert machine.cache_size(2, 3, files.get) == 2 << 20
    assert machine.cache_size(3, 3, files.get) is None


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/a/b\n", {"/sys/fs/cgroup/a/b/cpu.max": "200000 100000"}, 2.0),
        ("0::/a/b\n", {"/sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None),
        ("0::/a/b\n", {"/sys/fs/cgroup/a/cpu.max": "50000 100000",
                       "/sys/fs/cgroup/a/b/cpu.max": "200000 100000"}, 0.5),
        ("0::/seen/by/host/only\n", {"/sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"/sys/fs/cgroup/cpu.max": "100000 100000"}, 1.0),
        ("4:cpu,cpuacct:/d\n", {"/sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_quota_us": "300000\n",
                                "/sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_period_us": "100000\n"}, 3.0),
        ("1:cpu:/\n", {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                       "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ("5:memory:/d\n", {"/sys/fs/cgroup/cpu.max": "1 1"}, None),
        ("0::/\n", {"/sys/fs/cgroup/cpu.max": "100000 0"}, None),
        ("", {}, None),
    ],
)  # fmt: skip
def test_quota(groups: str, files: dict[str, str], quota: float | None) -> None:
    assert processors.quota_of(groups, files.get) == quota


def test_memory() -> None:
    info = "MemTotal:       24684092 kB\nMemFree:        1 kB\n"
    assert processors.memory_of(info, "0::/\n", {}.get) == 24684092 << 10
    limit = {"/sys/fs/cgroup/memory.max": "1000000\n"}
    assert processors.memory_of(info, "0::/job\n", limit.get) == 1000000
    assert processors.memory_of(info, "0::/job\n", {"/sys/fs/cgroup/memory.max": "max"}.get) == 24684092 << 10
    old = {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}
    assert processors.memory_of(info, "4:memory:/\n", old.get) == 24684092 << 10
    assert processors.memory_of("", "", {}.get) is None


def test_fingerprint_changes_with_what_changes_results() -> None:
    cpu = machine.parse_cpuinfo(X86)
    name = machine.fingerprint_of(cpu, "x86_64", 4)
    assert name.startswith("intel-xeon-platinum-8175m-4c-")
    assert name == machine.fingerprint_of(machine.parse_cpuinfo(X86), "x86_64", 4)
    # A kernel that knows of another mitigation does not make another machine.
    same = machine.parse_cpuinfo(X86.replace(" ibrs", " ibpb stibp"))
    assert machine.fingerprint_of(same, "x86_64", 4) == name
    less = machine.parse_cpuinfo(X86.replace(" avx512_vnni", ""))
    others = [
        machine.fingerprint_of(less, "x86_64", 4),
        machine.fingerprint_of(cpu, "x86_64", 8),
        machine.fingerprint_of(machine.parse_cpuinfo(X86.replace(": 85", ": 106")), "x86_64", 4),
    ]
    assert len({name, *others}) == 4
    assert machine.fingerprint_of(CpuInfo(), "riscv64", 1).startswith("riscv64-1c-")


def test_this_machine() -> None:
    here = machine.machine()
    assert 1 <= here.physical_cores <= len(here.usable_cpus)
    assert here.capability in ("DEFAULT", "AVX2", "AVX512", "SVE256", "VSX", "Z VECTOR")
    assert here.system
    assert machine.fingerprint() == machine.fingerprint()
    if sys.platform.startswith("linux"):
        assert here.memory is not None and here.memory > 1 << 20
        assert here.usable_cpus == tuple(sorted(os.sched_getaffinity(0)))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity")
def test_affinity_is_read_each_time_and_does_not_change_the_name() -> None:
    before, name = processors.usable_cpus(), machine.fingerprint()
    os.sched_setaffinity(0, {before[0]})
    try:
        assert processors.usable_cpus() == (before[0],)
        assert machine.machine().physical_cores == 1
        machine.fingerprint.cache_clear()
        assert machine.fingerprint() == name
    finally:
        os.sched_setaffinity(0, before)


def test_without_any_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that is not Linux: what is not known is None, nothing raises."""
    for module in (machine, processors):
        monkeypatch.setattr(module, "read_text", lambda path: "")
    monkeypatch.setattr(sys, "platform", "darwin")
    for cached in (machine.cpu_info, machine.capability, machine.fingerprint):
        cached.cache_clear()
    try:
        here = machine.machine()
        assert (here.quota, here.l2, here.l3, here.memory) == (None, None, None, None)
        assert here.system
        assert machine.fingerprint()
    finally:
        for cached in (machine.cpu_info, machine.capability, machine.fingerprint):
            cached.cache_clear()
