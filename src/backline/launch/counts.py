"""The distribution of cores to instances: functions of lists of CPU numbers, which read nothing of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import BadValue

__all__ = ["LATENCY_CORES", "Note", "deal", "latency", "limit", "listed", "parse_core_list", "ranges", "share", "throughput"]

LATENCY_CORES = 4

Groups = Sequence[Sequence[int]]
"""The cores that may be used, in order, one group for each node."""


class Note(NamedTuple):
    """Something to tell the user: a "warning" or an "info"."""

    level: str
    text: str


def ranges(cpus: Iterable[int], single: bool = False) -> str:
    """Write CPU numbers sorted, with runs merged.

    Parameters
    ----------
    cpus : iterable of int
        The numbers.
    single : bool
        Write a run of one as "8-8", as the commands get it.

    Examples
    --------
    >>> ranges([8, 3, 2, 1, 0]), ranges([8, 3, 2, 1, 0], single=True)
    ('0-3,8', '0-3,8-8')
    """
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if single or first != last else str(first) for first, last in runs)


def parse_core_list(text: str, highest: int) -> list[int]:
    """Understand "0,1,2" or "0-3,8"; the order is kept.

    Parameters
    ----------
    text : str
        What the user wrote.
    highest : int
        The largest number a CPU of this machine has; larger ones are refused before a range is written out.

    Examples
    --------
    >>> parse_core_list("4, 0-2", 7)
    [4, 0, 1, 2]
    """
    cpus: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        ends = [first, last] if dash else [first]
        if not all(end.isascii() and end.isdecimal() and len(end) < 10 for end in ends):
            raise BadValue(f"--core-list {text!r}: {part.strip()!r} is no CPU", remedy='write numbers and ranges: "0-3,8"')
        low, high = int(ends[0]), int(ends[-1])
        if low > high:
            raise BadValue(f"--core-list {text!r}: the range {part.strip()!r} runs backwards", remedy=f'write "{high}-{low}"')
        if high > highest:
            raise BadValue(
                f"--core-list: CPU {max(low, highest + 1)} does not exist",
                cause=f"the highest CPU of this machine is {highest}",
                remedy="name CPUs that lscpu lists",
            )
        cpus += range(low, high + 1)
    twice = {cpu for cpu in cpus if cpus.count(cpu) > 1} if len(set(cpus)) < len(cpus) else set()
    if twice:
        raise BadValue(f"--core-list {text!r} names CPU {ranges(twice)} twice", remedy="name each CPU once")
    return cpus


def limit(groups: Groups, quota: float | None) -> tuple[list[list[int]], list[Note]]:
    """Leave no more cores than a CPU quota grants, and at least one.

    Examples
    --------
    >>> limit([[0, 1], [2, 3]], 3.5)[0]
    [[0, 1], [2]]
    """
    total = sum(map(len, groups))
    if quota is None or quota >= total:
        return [list(group) for group in groups], []
    left = most = max(1, int(quota))
    kept = []
    for group in groups:
        kept.append(list(group[:left]))
        left -= len(kept[-1])
    text = f"the CPU quota of this container grants {quota:g} CPUs: using {most} of {total} cores"
    return [group for group in kept if group], [Note("warning", text)] if most < total else []


def deal(groups: Groups, instances: int = -1, per_instance: int = -1, skip: bool = False) -> tuple[list[list[int]], list[Note]]:
    """Deal cores out in order.

    Parameters
    ----------
    groups : sequence of sequence of int
        The cores of each node.
    instances, per_instance : int
        How many of each; -1 for as many as there are.
    skip : bool
        Let each node drop the cores that are left over when it is divided by `per_instance`, so that no instance
        crosses nodes.

    Examples
    --------
    >>> deal([[0, 1, 2, 3], [4, 5, 6, 7]], per_instance=3, skip=True)[0]
    [[0, 1, 2], [4, 5, 6]]
    """
    notes: list[Note] = []
    if skip:
        groups, notes = _whole(groups, per_instance)
    cores = [cpu for group in groups for cpu in group]
    total = len(cores)
    where = f"{total} core{'' if total == 1 else 's'}" + (" within nodes" if skip else "")
    if instances == -1:
        instances = 1 if per_instance == -1 else total // per_instance
    elif instances > total:
        raise BadValue(
            f"--ninstances {instances}: there are {where}",
            cause="each instance needs a core", remedy=f"at most --ninstances {total}",
        )  # fmt: skip
    if per_instance == -1:
        per_instance = total // instances
    if per_instance > total:
        raise BadValue(f"--ncores-per-instance {per_instance}: there are {where}", remedy=f"at most {total}")
    if instances * per_instance > total:
        raise BadValue(
            f"--ninstances {instances} of --ncores-per-instance {per_instance} need {instances * per_instance} cores: "
            f"there are {where}",
            remedy=f"at most {total // per_instance} instances of {per_instance} cores, or {total // instances} cores for each",
        )
    spare = cores[instances * per_instance :]
    if spare:
        notes.append(Note("info", f"{len(spare)} of {where} stay unused: {ranges(spare)}"))
    return _cut(cores, instances, per_instance), notes


def _whole(groups: Groups, per_instance: int) -> tuple[list[list[int]], list[Note]]:
    """Each node without the cores that would have to join others of another node."""
    if all(len(group) < per_instance for group in groups):
        largest = max(map(len, groups))
        raise BadValue(
            f"--ncores-per-instance {per_instance} with --skip-cross-node-cores: no node has that many cores",
            cause=f"the largest has {largest}",
            remedy=f"at most {largest}, or no --skip-cross-node-cores",
        )
    dropped = [cpu for group in groups for cpu in group[len(group) - len(group) % per_instance :]]
    if not dropped:
        return [list(group) for group in groups], [Note("info", "--skip-cross-node-cores: no core needs to be dropped")]
    left = [list(group[: len(group) - len(group) % per_instance]) for group in groups]
    return [group for group in left if group], [Note("info", f"--skip-cross-node-cores: dropped cores {ranges(dropped)}")]


def _cut(cores: Sequence[int], instances: int, per_instance: int) -> list[list[int]]:
    return [list(cores[i * per_instance : (i + 1) * per_instance]) for i in range(instances)]


def latency(groups: Groups) -> tuple[list[list[int]], list[Note]]:
    """Four cores for each instance, at least one instance.

    Examples
    --------
    >>> latency([[0, 1, 2, 3], [4, 5, 6, 7]])[0], latency([[0, 1]])[0]
    ([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1]])
    """
    return deal(groups, per_instance=min(LATENCY_CORES, sum(map(len, groups))))


def throughput(groups: Groups) -> tuple[list[list[int]], list[Note]]:
    """One instance on each node, with all its cores, however many each node has.

    Examples
    --------
    >>> throughput([[0, 1, 2, 3], [4, 5]])[0]
    [[0, 1, 2, 3], [4, 5]]
    """
    return [list(group) for group in groups if group], []


def listed(cpus: Sequence[int], per_instance: int, instances: int = -1) -> tuple[list[list[int]], list[Note]]:
    """Deal out the CPUs that a user listed, in the order of the list.

    Examples
    --------
    >>> listed([0, 4, 1, 5], 2)[0]
    [[0, 4], [1, 5]]
    """
    if instances == -1:
        instances = len(cpus) // per_instance
    if instances < 1 or instances * per_instance > len(cpus):
        needed = max(1, instances) * per_instance
        raise BadValue(
            f"--core-list names {len(cpus)} CPU{'' if len(cpus) == 1 else 's'}, {needed} are needed",
            cause=f"{max(1, instances)} of --ncores-per-instance {per_instance}",
            remedy="name more CPUs, or ask for fewer",
        )
    spare = cpus[instances * per_instance :]
    notes = [Note("warning", f"CPUs {ranges(spare)} of --core-list stay unused")] if spare else []
    return _cut(cpus, instances, per_instance), notes


def share(cores: Sequence[int], world: int, rank: int) -> list[int]:
    """The cores of one of `world` processes that share an instance's cores.

    Examples
    --------
    >>> share([0, 1, 2, 3, 4, 5, 6, 7], 2, 1)
    [4, 5, 6, 7]
    """
    each = len(cores) // world
    if each < 1:
        raise BadValue(
            f"LOCAL_WORLD_SIZE={world}: an instance has {len(cores)} core{'' if len(cores) == 1 else 's'} to share",
            cause="each process needs a core",
            remedy=f"start at most {len(cores)} processes, or give each instance more cores",
        )
    return list(cores[rank * each : (rank + 1) * each])
