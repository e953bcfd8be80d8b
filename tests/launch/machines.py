"""Machines to launch on: what lscpu prints there, the kernel's folders there, and what is expected of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HEAD = """\
# The following is the parsable format, which can be fed to other
# programs. Each different item in every column has an unique ID
# starting usually from zero.
# CPU,Core,Socket,Node
"""


@dataclass(frozen=True)
class Recorded:
    """One machine: rows of (cpu, core, socket, node or ""), and the cores and CPUs of its nodes."""

    rows: tuple[tuple[int, int, int, int | str], ...]
    physical: list[list[int]]
    logical: list[list[int]]

    @property
    def text(self) -> str:
        return HEAD + "".join(",".join(map(str, row)) + "\n" for row in self.rows)


def _rows(cpus: Iterable[tuple[int, int, int, int | str]]) -> tuple[tuple[int, int, int, int | str], ...]:
    return tuple(sorted(cpus, key=lambda row: row[0]))


# 2 sockets of 4 cores; CPUs 8 to 15 are the second threads of 0 to 7.
two_sockets = Recorded(
    _rows((cpu, cpu % 8, cpu % 8 // 4, cpu % 8 // 4) for cpu in range(16)),
    [[0, 1, 2, 3], [4, 5, 6, 7]],
    [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]],
)

# 2 sockets of 8 cores, each split in 2 clusters whose CPU numbers are interleaved, and are not as many.
sub_numa = Recorded(
    _rows((8 * s + i, 8 * s + i, s, 2 * s + (i in (2, 3, 7))) for s in (0, 1) for i in range(8)),
    [[0, 1, 4, 5, 6], [2, 3, 7], [8, 9, 12, 13, 14], [10, 11, 15]],
    [[0, 1, 4, 5, 6], [2, 3, 7], [8, 9, 12, 13, 14], [10, 11, 15]],
)

# 2 fast cores with two threads, 4 efficient ones with one; lscpu numbers their cores with gaps.
hybrid = Recorded(
    ((0, 0, 0, 0), (1, 0, 0, 0), (2, 4, 0, 0), (3, 4, 0, 0), (4, 8, 0, 0), (5, 9, 0, 0), (6, 10, 0, 0), (7, 11, 0, 0)),
    [[0, 2, 4, 5, 6, 7]],
    [[0, 1, 2, 3, 4, 5, 6, 7]],
)

twelve_nodes = Recorded(
    _rows((cpu, cpu, cpu // 12, cpu // 2) for cpu in range(24)),
    [[2 * n, 2 * n + 1] for n in range(12)],
    [[2 * n, 2 * n + 1] for n in range(12)],
)

blank_node = Recorded(tuple((cpu, cpu, 0, "") for cpu in range(4)), [[0, 1, 2, 3]], [[0, 1, 2, 3]])

# Each socket numbers its cores from 0.
both_from_zero = Recorded(
    ((0, 0, 0, 0), (1, 1, 0, 0), (2, 0, 1, 1), (3, 1, 1, 1), (4, 0, 0, 0), (5, 1, 0, 0), (6, 0, 1, 1), (7, 1, 1, 1)),
    [[0, 1], [2, 3]],
    [[0, 1, 4, 5], [2, 3, 6, 7]],
)

adjacent_siblings = Recorded(
    tuple((cpu, cpu // 2, 0, 0) for cpu in range(8)),
    [[0, 2, 4, 6]],
    [[0, 1, 2, 3, 4, 5, 6, 7]],
)

# Node 2 has memory and no CPU.
uneven = Recorded(
    ((0, 0, 0, 0), (1, 1, 0, 0), (2, 2, 0, 0), (3, 3, 0, 1), (4, 4, 1, 3), (5, 5, 1, 3)),
    [[0, 1, 2], [3], [], [4, 5]],
    [[0, 1, 2], [3], [], [4, 5]],
)

# Three-digit numbers everywhere.
large = Recorded(
    _rows((cpu, cpu % 128 + 100, cpu % 128 // 64 + 10, cpu % 128 // 64) for cpu in range(256)),
    [list(range(64)), list(range(64, 128))],
    [[*range(64), *range(128, 192)], [*range(64, 128), *range(192, 256)]],
)

MACHINES = {name: value for name, value in dict(globals()).items() if isinstance(value, Recorded)}


def make_folders(machine: Recorded, root: Path, siblings: str = "core_cpus_list") -> Path:
    """Write the kernel's folders of CPUs and nodes; `siblings` is the file that tells who shares a core, or ""."""
    nodes: dict[int, list[int]] = {}
    for cpu, core, socket, node in machine.rows:
        topology = root / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text(f"{core}\n")
        (topology / "physical_package_id").write_text(f"{socket}\n")
        if siblings:
            same = [c for c, other, s, _ in machine.rows if (other, s) == (core, socket)]
            (topology / siblings).write_text(",".join(map(str, same)) + "\n")
        if node != "":
            nodes.setdefault(int(node), []).append(cpu)
    for name in ("cpufreq", "cpuidle"):
        (root / "cpu" / name).mkdir()
    for node, cpus in nodes.items():
        (root / "node" / f"node{node}").mkdir(parents=True)
        (root / "node" / f"node{node}" / "cpulist").write_text(",".join(map(str, cpus)) + "\n")
    return root
