"""The cores of a machine, from what lscpu prints and from the kernel's folders, of many machines."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from machines import MACHINES, adjacent_siblings, both_from_zero, hybrid, make_folders, twelve_nodes, two_sockets, uneven

from backline.errors import BadValue
from backline.launch import topology
from backline.launch.topology import Cpu, CPUInfo, parse_lscpu, read_lscpu, read_system


@pytest.mark.parametrize("name", MACHINES)
def test_cores_of_each_node(name: str) -> None:
    machine = MACHINES[name]
    info = CPUInfo(machine.text)
    assert info.node_physical_cores == machine.physical and info.node_logical_cores == machine.logical
    assert info.node_nums == len(machine.physical)
    assert info.get_all_physical_cores() == [cpu for cores in machine.physical for cpu in cores]
    assert info.get_all_logical_cores() == [cpu for cores in machine.logical for cpu in cores]
    assert info.nodes == [node for node, cores in enumerate(machine.logical) if cores]
    for node in info.nodes:
        assert info.get_node_physical_cores(node) == machine.physical[node]
        assert info.get_node_logical_cores(node) == machine.logical[node]


def test_what_the_machines_are_there_for() -> None:
    assert CPUInfo(twelve_nodes.text).node_nums == 12
    assert CPUInfo(both_from_zero.text).get_all_physical_cores() == [0, 1, 2, 3]  # four CPUs, not the numbers 0, 1 twice
    assert CPUInfo(adjacent_siblings.text).get_all_physical_cores() == [0, 2, 4, 6]
    assert len(CPUInfo(hybrid.text).get_all_physical_cores()) == 6
    assert len(CPUInfo(uneven.text).get_all_physical_cores()) == 6


@pytest.mark.parametrize("siblings", ["core_cpus_list", "thread_siblings_list", ""])
@pytest.mark.parametrize("name", MACHINES)
def test_the_kernels_folders_say_the_same(name: str, siblings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MACHINES[name]
    root = make_folders(machine, tmp_path, siblings)
    monkeypatch.setattr(topology, "read_lscpu", list)
    monkeypatch.setattr(topology, "read_system", lambda: read_system(str(root)))
    info = CPUInfo(allowed=[row[0] for row in machine.rows])
    assert info.node_physical_cores == machine.physical and info.node_logical_cores == machine.logical


def test_folders_with_gaps(tmp_path: Path) -> None:
    assert read_system(str(tmp_path / "nowhere")) == []
    make_folders(two_sockets, tmp_path)
    (tmp_path / "cpu/cpu3/online").write_text("0\n")
    (tmp_path / "cpu/cpu4/online").write_text("1\n")
    (tmp_path / "cpu/cpu5/topology/physical_package_id").write_text("-1\n")  # some virtual machines
    (tmp_path / "cpu/cpu5/topology/core_cpus_list").unlink()
    (tmp_path / "cpu/cpu5/topology/core_id").unlink()
    (tmp_path / "node/node1/cpulist").unlink()
    rows = {c.cpu: c for c in read_system(str(tmp_path))}
    assert 3 not in rows and rows[4].socket == 1 and rows[5].socket == 0
    assert rows[5].core < 0 and {rows[cpu].node for cpu in (4, 5, 6)} == {0}


def test_dies_that_number_their_cores_alike(tmp_path: Path) -> None:
    for cpu in (0, 1):
        folder = tmp_path / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        for name, text in (("core_id", "0"), ("physical_package_id", "0"), ("core_cpus_list", str(cpu))):
            (folder / name).write_text(text)
    assert [c.core for c in read_system(str(tmp_path))] == [0, 1]


# What lscpu prints --------------------------------------------------------------------------------------------------------


def test_blanks_dashes_and_further_columns() -> None:
    text = "# CPU,Core,Socket,Node,,L1d,L1i\n\n0,0,0,0,,0,0\n 1 , 1 ,,-,,1,1\n2,,0,\n3,,0,\n4\n"
    assert parse_lscpu(text) == [
        Cpu(0, 0, 0, 0), Cpu(1, 1, 0, 0), Cpu(2, -3, 0, 0), Cpu(3, -4, 0, 0), Cpu(4, -5, 0, 0),
    ]  # fmt: skip
    assert CPUInfo(text).get_all_physical_cores() == [0, 1, 2, 3, 4]  # unknown cores are not taken for one


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no CPU"), ("# CPU\n\n", "no CPU"), ("0,0,0,0\nx,1,0,0\n", "line 2"), ("0,0,0,one\n", "'0,0,0,one'"), (",0,0,0\n", "line 1"), ("٣,0,0,0", "line 1"), ("-1,0,0,0", "line 1")],
)
def test_text_that_is_not_understood(text: str, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        CPUInfo(text)


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_lscpu_is_asked_and_may_be_missing_or_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_lscpu() == []
    fake(tmp_path, "lscpu", 'echo "# $1 $LC_ALL"; echo 0,0,0,; echo 12,3,1,11')
    assert read_lscpu() == [Cpu(0, 0, 0, 0), Cpu(12, 3, 1, 11)]
    for script in ("exit 1", "echo CPU CORE", "echo; exit 0", "printf '0,\\377,0,0'"):
        fake(tmp_path, "lscpu", script)
        assert read_lscpu() == []
    (tmp_path / "lscpu").write_text("no program")
    (tmp_path / "lscpu").chmod(0o755)
    assert read_lscpu() == []


def test_this_machine_with_lscpu_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = CPUInfo()
    monkeypatch.setenv("PATH", str(tmp_path))
    second = CPUInfo()
    assert first.node_physical_cores == second.node_physical_cores
    assert first.node_logical_cores == second.node_logical_cores
    assert set(first.get_all_logical_cores()) == os.sched_getaffinity(0)


def test_a_sandbox_that_hides_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "read_lscpu", lambda: [Cpu(100, 0, 0, 0)])
    monkeypatch.setattr(topology, "read_system", list)
    monkeypatch.setattr(topology, "usable_cpus", lambda: (3, 5))
    assert CPUInfo().node_physical_cores == [[3, 5]]


# What this process may use ------------------------------------------------------------------------------------------------


def test_only_allowed_cpus_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "read_lscpu", lambda: parse_lscpu(two_sockets.text))
    monkeypatch.setattr(topology, "usable_cpus", lambda: (2, 5, 6, 11, 13, 14))
    info = CPUInfo()
    # 11 is the second thread of 3, and the only one of it that is left.
    assert info.node_physical_cores == [[2, 11], [5, 6]] and info.node_logical_cores == [[2, 11], [5, 6, 13, 14]]


def test_a_node_of_which_nothing_is_allowed() -> None:
    info = CPUInfo(two_sockets.text, allowed=[5, 13])
    assert info.node_nums == 2 and info.nodes == [1] and info.node_physical_cores == [[], [5]]
    with pytest.raises(BadValue, match=r"node 0[\s\S]*none of its CPUs[\s\S]*one of: 1"):
        info.get_node_physical_cores(0)
    with pytest.raises(BadValue, match="no CPU is left"):
        CPUInfo(two_sockets.text, allowed=[99])


@pytest.mark.parametrize("node", [-1, 2, 4])
def test_unknown_nodes_are_refused_with_those_there_are(node: int) -> None:
    info = CPUInfo(uneven.text)
    for function in (info.get_node_physical_cores, info.get_node_logical_cores):
        with pytest.raises(BadValue, match=rf"node {node}[\s\S]*one of: 0, 1, 3"):
            function(node)


def test_nodes_of_cpus_in_the_order_met() -> None:
    info = CPUInfo(uneven.text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert info.numa_aware_check([1, 0]) == [0] and info.numa_aware_check([]) == []
    with pytest.warns(RuntimeWarning, match=r"CPUs 0-1,4 lie on several NUMA nodes: 3, 0"):
        assert info.numa_aware_check(iter([4, 0, 1])) == [3, 0]
    with pytest.raises(BadValue, match="CPU 9 does not exist"):
        info.numa_aware_check([0, 9])
    with pytest.raises(BadValue, match="CPU 1 may not be used"):
        CPUInfo(uneven.text, allowed=[0]).numa_aware_check([1])
