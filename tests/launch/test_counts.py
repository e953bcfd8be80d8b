"""The cores that each instance gets: the rules, case by case, and what holds for all of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import MACHINES, hybrid, sub_numa, twelve_nodes, two_sockets, uneven

from backline.errors import BadValue
from backline.launch import counts
from backline.launch.arguments import create_args
from backline.launch.launcher import place
from backline.launch.topology import CPUInfo

TWO_NODES = [[0, 1, 2, 3], [4, 5, 6, 7]]


def placed(machine, *options, quota=None, environ=None, allowed=None):
    """The cores of each instance as text, and what is said about them."""
    args = create_args().parse_args([*options, "job.py"])
    found, notes = place(args, CPUInfo(machine.text, allowed=allowed), quota, environ or {})
    return [counts.ranges(instance.cpus) for instance in found], [f"{n.level}: {n.text}" for n in notes]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", ["0-7"]),
        ("--ninstances 1", ["0-7"]),
        ("--ninstances 3", ["0-1", "2-3", "4-5"]),
        ("--ninstances 8", [str(i) for i in range(8)]),
        ("--ncores-per-instance 3", ["0-2", "3-5"]),
        ("--ncores-per-instance 8", ["0-7"]),
        ("--ncores-per-instance 3 --skip-cross-node-cores", ["0-2", "4-6"]),
        ("--ncores-per-instance 4 --skip-cross-node-cores", ["0-3", "4-7"]),
        ("--ncores-per-instance 3 --skip-cross-node-cores --ninstances 1", ["0-2"]),
        ("--ncores-per-instance 1 --ninstances 2", ["0", "1"]),
        ("--ncores-per-instance 3 --ninstances 2", ["0-2", "3-5"]),
        ("--latency-mode", ["0-3", "4-7"]),
        ("--throughput-mode", ["0-3", "4-7"]),
        ("--multi-instance", ["0-3", "4-7"]),
        ("--multi-instance --ninstances 4", ["0-1", "2-3", "4-5", "6-7"]),
        ("--multi-instance --latency-mode", ["0-3", "4-7"]),
        ("--node-id 1", ["4-7"]),
        ("--node-id 1 --ninstances 2", ["4-5", "6-7"]),
        ("--use-logical-core", ["0-15"]),
        ("--use-logical-core --node-id 0", ["0-3,8-11"]),
        ("--use-logical-core --ninstances 4", ["0-3", "8-11", "4-7", "12-15"]),
        ("--ninstances 4 --rank 2", ["4-5"]),
        ("--core-list 0,1,2,3 --ncores-per-instance 2", ["0-1", "2-3"]),
        ("--core-list 1-3,8,9 --ncores-per-instance 2", ["1-2", "3,8"]),
        ("--core-list 0-7 --ncores-per-instance 2 --ninstances 2", ["0-1", "2-3"]),
        ("--core-list 0-7 --ncores-per-instance 2 --rank 3", ["6-7"]),
        ("--core-list 0,8,1,9 --ncores-per-instance 2", ["0,8", "1,9"]),
    ],
)
def test_two_sockets(options: str, expected: list[str]) -> None:
    assert placed(two_sockets, *options.split())[0] == expected


@pytest.mark.parametrize(
    ("machine", "options", "expected"),
    [
        (uneven, "--throughput-mode", ["0-2", "3", "4-5"]),
        (uneven, "--latency-mode", ["0-3"]),
        (uneven, "--ncores-per-instance 2 --skip-cross-node-cores", ["0-1", "4-5"]),
        (uneven, "--node-id 3", ["4-5"]),
        (sub_numa, "--throughput-mode", ["0-1,4-6", "2-3,7", "8-9,12-14", "10-11,15"]),
        (sub_numa, "--ncores-per-instance 3 --skip-cross-node-cores", ["0-1,4", "2-3,7", "8-9,12", "10-11,15"]),
        (sub_numa, "--ninstances 2", ["0-7", "8-15"]),
        (hybrid, "", ["0,2,4-7"]),
        (hybrid, "--latency-mode", ["0,2,4-5"]),
        (twelve_nodes, "--throughput-mode", [f"{2 * n}-{2 * n + 1}" for n in range(12)]),
        (twelve_nodes, "--node-id 11", ["22-23"]),
    ],
)
def test_other_machines(machine, options: str, expected: list[str]) -> None:
    assert placed(machine, *options.split())[0] == expected


def test_instances_in_a_container() -> None:
    # An affinity mask without CPU 0, where one core is left with its second thread only.
    assert placed(two_sockets, allowed=[2, 5, 11, 13])[0] == ["2,5,11"]
    assert placed(two_sockets, "--throughput-mode", allowed=[2, 5, 11, 13])[0] == ["2,11", "5"]
    # A quota of 3.5 CPUs.
    found, said = placed(two_sockets, quota=3.5)
    assert found == ["0-2"] and said == ["warning: the CPU quota of this container grants 3.5 CPUs: using 3 of 8 cores"]
    assert placed(two_sockets, quota=0.2)[0] == ["0"]
    assert placed(two_sockets, quota=8.0)[1][:1] != said and placed(two_sockets, quota=64.0)[0] == ["0-7"]
    assert placed(two_sockets, "--throughput-mode", quota=6)[0] == ["0-3", "4-5"]
    assert placed(two_sockets, "--throughput-mode", quota=2)[0] == ["0-1"]  # no node is left without a core for its instance
    assert placed(two_sockets, "--node-id", "1", quota=2)[0] == ["4-5"]
    assert placed(two_sockets, "--latency-mode", quota=2)[0] == ["0-1"]
    with pytest.raises(BadValue, match="there are 3 cores"):
        placed(two_sockets, "--ninstances", "4", quota=3)
    # A list is what the user wants; the quota holds it back all the same, and that is said.
    found, said = placed(two_sockets, "--core-list", "0-3", "--ncores-per-instance", "4", quota=2)
    assert found == ["0-3"] and "held back" in said[0]


# What is said -------------------------------------------------------------------------------------------------------------


def test_crossing_nodes_is_a_warning() -> None:
    assert any("instance 1 crosses NUMA nodes" in text for text in placed(two_sockets, "--ncores-per-instance", "3")[1])
    assert any("instances 0, 1 cross" in text for text in placed(twelve_nodes, "--ninstances", "2")[1])
    for options in (["--ninstances", "3"], ["--throughput-mode"], ["--ncores-per-instance", "3", "--skip-cross-node-cores"]):
        assert not any("cross NUMA" in text or "crosses NUMA" in text for text in placed(two_sockets, *options)[1])


def test_modes_say_what_they_override() -> None:
    options = ["--ninstances", "5", "--ncores-per-instance", "9", "--node-id", "77", "--use-logical-core", "--skip-cross-node-cores"]
    for mode in ("--latency-mode", "--throughput-mode"):
        found, said = placed(two_sockets, mode, *options)
        assert found == ["0-3", "4-7"]
        assert said == [
            f"warning: {mode} overrides --ninstances, --ncores-per-instance, --skip-cross-node-cores, --node-id, --use-logical-core"
        ]
        assert placed(two_sockets, mode)[1] == []


def test_dropped_and_spare_cores_are_named() -> None:
    skip = ["--skip-cross-node-cores"]
    assert "info: --skip-cross-node-cores: dropped cores 3,7" in placed(two_sockets, "--ncores-per-instance", "3", *skip)[1]
    assert "no core needs to be dropped" in placed(two_sockets, "--ncores-per-instance", "2", *skip)[1][0]
    assert "info: 2 of 8 cores stay unused: 6-7" in placed(two_sockets, "--ninstances", "3")[1]
    listed = ["--core-list", "0-4", "--ncores-per-instance", "2"]
    assert "warning: CPUs 4 of --core-list stay unused" in placed(two_sockets, *listed)[1]
    assert "warning: CPUs 2-4 of --core-list stay unused" in placed(two_sockets, *listed, "--ninstances", "1")[1]
    assert "warning: --node-id has no effect with --core-list" in placed(two_sockets, *listed, "--node-id", "0")[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--ninstances 9", r"--ninstances 9: there are 8 cores[\s\S]*at most --ninstances 8"),
        ("--ncores-per-instance 9", r"--ncores-per-instance 9: there are 8 cores"),
        ("--ninstances 3 --ncores-per-instance 3", r"need 9 cores: there are 8 cores[\s\S]*at most 2 instances of 3 cores, or 2 cores"),
        ("--ncores-per-instance 5 --skip-cross-node-cores", r"no node has that many cores[\s\S]*at most 4"),
        ("--ncores-per-instance 3 --skip-cross-node-cores --ninstances 3", r"there are 6 cores within nodes"),
        ("--node-id 2", r"node 2[\s\S]*one of: 0, 1"),
        ("--node-id -2", r"node -2[\s\S]*one of: 0, 1"),
        ("--ninstances 2 --rank 2", r"--rank 2[\s\S]*0 to 1"),
        ("--ninstances 2 --rank -2", r"--rank -2[\s\S]*0 to 1"),
        ("--core-list 16 --ncores-per-instance 1", r"CPU 16 does not exist"),
        ("--core-list 0-999999999 --ncores-per-instance 1", r"CPU 16 does not exist"),
        ("--core-list 99999999999 --ncores-per-instance 1", r"is no CPU"),
        ("--core-list 3-1 --ncores-per-instance 1", r"backwards[\s\S]*1-3"),
        ("--core-list 0,x --ncores-per-instance 1", r"'x' is no CPU"),
        ("--core-list 0,,1 --ncores-per-instance 1", r"'' is no CPU"),
        ("--core-list= --ncores-per-instance 1", r"'' is no CPU"),
        ("--core-list 1- --ncores-per-instance 1", r"'1-' is no CPU"),
        ("--core-list 0-3,2 --ncores-per-instance 1", r"names CPU 2 twice"),
        ("--core-list 0-3 --ncores-per-instance 5", r"names 4 CPUs, 5 are needed"),
        ("--core-list 0-3 --ncores-per-instance 2 --ninstances 3", r"names 4 CPUs, 6 are needed"),
    ],
)
def test_what_does_not_fit_is_refused(options: str, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        placed(two_sockets, *options.split())


def test_a_forbidden_cpu_of_a_list_is_named() -> None:
    with pytest.raises(BadValue, match=r"--core-list: CPU 1 may not be used by this process[\s\S]*4-7"):
        placed(two_sockets, "--core-list", "4,1", "--ncores-per-instance", "2", allowed=[4, 5, 6, 7])


# Processes that share an instance -----------------------------------------------------------------------------------------


def test_local_ranks_share_the_cores_of_each_instance() -> None:
    environ = {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    assert placed(two_sockets, environ=environ)[0] == ["4-7"]
    assert placed(two_sockets, "--ninstances", "2", environ=environ)[0] == ["2-3", "6-7"]
    assert placed(two_sockets, environ={"LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": "2"})[0] == ["4-5"]
    assert placed(two_sockets, environ={"LOCAL_WORLD_SIZE": "2"})[0] == ["0-3"]
    assert placed(two_sockets, environ={"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "7"})[0] == ["0-7"]


@pytest.mark.parametrize(
    ("world", "rank", "said"),
    [("9", "0", "LOCAL_WORLD_SIZE=9: an instance has 8 cores"), ("2", "2", "LOCAL_RANK=2"), ("x", "0", "'x' is not a number"), ("2", "-1", "'-1' is not a number")],
)
def test_local_ranks_that_do_not_fit(world: str, rank: str, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        placed(two_sockets, environ={"LOCAL_WORLD_SIZE": world, "LOCAL_RANK": rank})


# For all machines and counts ----------------------------------------------------------------------------------------------


@st.composite
def groups(draw: st.DrawFn) -> list[list[int]]:
    cpus = draw(st.lists(st.integers(0, 300), min_size=1, max_size=40, unique=True))
    cuts = sorted(draw(st.lists(st.integers(0, len(cpus)), max_size=5)))
    ends = [0, *cuts, len(cpus)]
    return [sorted(cpus[a:b]) for a, b in pairwise(ends) if a < b]


count = st.integers(1, 12) | st.just(-1)


@given(groups(), count, count, st.booleans(), st.none() | st.floats(0.01, 50))
def test_dealt_cores_are_disjoint_allowed_and_for_everybody(nodes, instances, per_instance, skip, quota) -> None:
    limited, _ = counts.limit(nodes, quota)
    total = sum(map(len, limited))
    assert total == min(sum(map(len, nodes)), max(1, int(quota)) if quota is not None else 1000)
    try:
        dealt, _ = counts.deal(limited, instances, per_instance, skip and per_instance != -1)
    except BadValue:
        assert instances * per_instance > 1 or instances > total or per_instance > min(map(len, limited))
        return
    every = [cpu for cpus in dealt for cpu in cpus]
    assert len(set(every)) == len(every) and set(every) <= {cpu for group in limited for cpu in group}
    assert dealt and all(dealt) and len({len(cpus) for cpus in dealt}) == 1
    assert instances in (-1, len(dealt)) and per_instance in (-1, len(dealt[0]))
    if instances == -1 and per_instance != -1 and not skip:
        assert total - len(every) < per_instance
    if skip and per_instance != -1:
        assert all(any(set(cpus) <= set(group) for group in nodes) for cpus in dealt)


@given(groups())
def test_modes_use_every_node_and_core(nodes) -> None:
    assert counts.throughput(nodes)[0] == nodes
    dealt, _ = counts.latency(nodes)
    total = sum(map(len, nodes))
    assert len(dealt) == max(1, total // 4) and {len(cpus) for cpus in dealt} == {min(4, total)}


@given(st.sampled_from(sorted(MACHINES)), st.data())
def test_any_options_on_any_machine_and_mask(name: str, data: st.DataObject) -> None:
    machine = MACHINES[name]
    allowed = data.draw(st.sets(st.sampled_from([row[0] for row in machine.rows]), min_size=1))
    options = []
    for option, values in (("--ninstances", count), ("--ncores-per-instance", count), ("--node-id", st.integers(-1, 2)), ("--rank", st.integers(-1, 2))):
        options += [option, str(data.draw(values))]
    options += data.draw(st.lists(st.sampled_from(["--latency-mode", "--use-logical-core", "--multi-instance"]), unique=True))
    world = data.draw(st.integers(1, 3))
    args = create_args().parse_args([*options, "job.py"])
    info = CPUInfo(machine.text, allowed=allowed)
    try:
        found, _ = place(args, info, data.draw(st.none() | st.floats(0.5, 20)), {"LOCAL_WORLD_SIZE": str(world), "LOCAL_RANK": "0"})
    except BadValue:
        return
    every = [cpu for instance in found for cpu in instance.cpus]
    assert found and all(instance.cpus for instance in found)
    assert len(set(every)) == len(every) and set(every) <= allowed
    for instance in found:
        assert instance.nodes == info.nodes_of(instance.cpus)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_ranges_are_read_back(cpus) -> None:
    assert counts.parse_core_list(counts.ranges(cpus), 200) == sorted(cpus)
    assert counts.parse_core_list(counts.ranges(cpus, single=True), 200) == sorted(cpus)
