"""Processors: CPUs, the cores they are threads of, sockets and NUMA nodes.

A core is told by its socket and its number, and stands for the lowest CPU of it that may be used. Only CPUs that this
process may use count: those of its affinity mask, which the kernel keeps within the cpuset.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import BadValue
from ..processors import parse_cpu_list, read_text, siblings, usable_cpus
from .counts import ranges

__all__ = ["CPUInfo", "Cpu", "parse_lscpu", "read_lscpu", "read_system"]

COLUMNS = "CPU,Core,Socket,Node"
SECONDS = 20


class Cpu(NamedTuple):
    """One CPU, as the system numbers it: a hardware thread."""

    cpu: int
    core: int
    socket: int
    node: int


def parse_lscpu(text: str) -> list[Cpu]:
    """Parses what ``lscpu --parse=CPU,Core,Socket,Node`` prints; columns after these are passed over.

    A blank node or socket is 0, a blank core is a core of its own.

    Raises
    ------
    BadValue
        A line is neither a comment nor numbers, or there is no CPU at all.

    Examples
    --------
    >>> parse_lscpu("# CPU,Core,Socket,Node\\n0,0,0,0\\n13,5,1,\\n")
    [Cpu(cpu=0, core=0, socket=0, node=0), Cpu(cpu=13, core=5, socket=1, node=0)]
    """
    found: dict[int, Cpu] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        # "-" is how some versions write what they do not know.
        cells = [("" if cell.strip() == "-" else cell.strip()) for cell in line.split(",")][:4]
        cells += [""] * (4 - len(cells))
        if not cells[0] or any(cell and not (cell.isascii() and cell.isdecimal()) for cell in cells):
            raise BadValue(
                f"line {number} of lscpu's output is not understood: {line.strip()!r}",
                cause=f"expected numbers, in the columns {COLUMNS}",
                remedy=f"give what `lscpu --parse={COLUMNS}` prints",
            )
        cpu = int(cells[0])
        core = int(cells[1]) if cells[1] else -1 - cpu  # below zero: no other CPU has it
        found[cpu] = Cpu(cpu, core, int(cells[2] or 0), int(cells[3] or 0))
    if not found:
        raise BadValue("lscpu's output names no CPU", remedy=f"give what `lscpu --parse={COLUMNS}` prints")
    return [found[cpu] for cpu in sorted(found)]


def read_lscpu() -> list[Cpu]:
    """Runs lscpu; [] where it is missing, fails, or says what is not understood."""
    import subprocess

    command = ["lscpu", f"--parse={COLUMNS}"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
            env={**os.environ, "LC_ALL": "C"}, timeout=SECONDS, check=False,
        )  # fmt: skip
        return parse_lscpu(done.stdout) if done.returncode == 0 else []
    except (OSError, BadValue, subprocess.TimeoutExpired):
        return []  # the kernel's own folders say the same


def read_system(root: str = "/sys/devices/system") -> list[Cpu]:
    """Reads the kernel's folders of CPUs and nodes; [] where there are none.

    Parameters
    ----------
    root : str
        The folder that holds ``cpu`` and ``node``.
    """
    node_of = {
        cpu: node
        for node in _numbered(f"{root}/node", "node")
        for cpu in parse_cpu_list(_text(f"{root}/node/node{node}/cpulist"))
    }
    found = []
    for cpu in _numbered(f"{root}/cpu", "cpu"):
        folder = f"{root}/cpu/cpu{cpu}"
        if _text(f"{folder}/online") == "0":
            continue
        topology = f"{folder}/topology"
        # Core numbers may repeat in the dies of one socket; who shares a core with whom never misleads.
        threads = siblings(cpu, read_text, f"{root}/cpu")
        number = _text(f"{topology}/core_id")
        core = min(threads) if threads else int(number) if number.isdecimal() else -1 - cpu
        socket = _text(f"{topology}/physical_package_id")
        found.append(Cpu(cpu, core, int(socket) if socket.isdecimal() else 0, node_of.get(cpu, 0)))
    return found


def _numbered(folder: str, prefix: str) -> list[int]:
    """The numbers N of the entries "prefixN" of a folder, in order."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(rf"{prefix}([0-9]+)", name)))


def _text(path: str) -> str:
    return read_text(path).strip()


class CPUInfo:
    """The cores of each NUMA node.

    Parameters
    ----------
    text : str, optional
        What ``lscpu --parse=CPU,Core,Socket,Node`` printed, here or on another machine. Without it this machine is
        asked, and only CPUs that this process may use count.
    allowed : iterable of int, optional
        The only CPUs that count.

    Attributes
    ----------
    node_nums : int
        Number of nodes: the highest node number and one.
    node_physical_cores, node_logical_cores : list of list of int
        For each node CPU numbers in order: one for each core, or all. A node of which no CPU may be used has none.
    nodes : list of int
        The nodes that have CPUs here.
    every_cpu : frozenset of int
        All CPUs of the machine, whether they may be used or not.

    Raises
    ------
    BadValue
        The text is not understood, or no CPU of it is allowed.

    Examples
    --------
    Two sockets, two cores each; CPUs 4 to 7 are the second threads of CPUs 0 to 3:

    >>> info = CPUInfo("0,0,0,0\\n1,1,0,0\\n2,0,1,1\\n3,1,1,1\\n4,0,0,0\\n5,1,0,0\\n6,0,1,1\\n7,1,1,1\\n")
    >>> info.node_physical_cores, info.get_node_logical_cores(1)
    ([[0, 1], [2, 3]], [2, 3, 6, 7])
    """

    def __init__(self, text: str | None = None, *, allowed: Iterable[int] | None = None) -> None:
        if text is not None:
            cpus = parse_lscpu(text)
            may = {c.cpu for c in cpus} if allowed is None else set(allowed)
        else:
            may = set(usable_cpus() if allowed is None else allowed)
            cpus = read_lscpu()
            if not any(c.cpu in may for c in cpus):
                cpus = read_system()
            if not any(c.cpu in may for c in cpus):  # a sandbox that hides the machine
                cpus = [Cpu(cpu, cpu, 0, 0) for cpu in sorted(may)]
        usable = [c for c in cpus if c.cpu in may]
        if not usable:
            raise BadValue(
                "no CPU is left to run on",
                cause=f"the machine has {ranges(c.cpu for c in cpus)}, allowed are {ranges(may) or 'none'}",
                remedy="allow at least one of them",
            )
        self.every_cpu = frozenset(c.cpu for c in cpus)
        self.node_nums = max(c.node for c in usable) + 1
        self.node_physical_cores: list[list[int]] = [[] for _ in range(self.node_nums)]
        self.node_logical_cores: list[list[int]] = [[] for _ in range(self.node_nums)]
        self._node_of = {c.cpu: c.node for c in usable}
        seen = set()
        for c in usable:  # in order of CPU: the first of a core is its lowest
            self.node_logical_cores[c.node].append(c.cpu)
            if (c.socket, c.core) not in seen:
                seen.add((c.socket, c.core))
                self.node_physical_cores[c.node].append(c.cpu)
        self.nodes = [node for node, cores in enumerate(self.node_logical_cores) if cores]

    def get_node_physical_cores(self, node_id: int) -> list[int]:
        """One CPU for each core of a node; `BadValue` for a node that has none to use."""
        return self.node_physical_cores[self._checked(node_id)]

    def get_node_logical_cores(self, node_id: int) -> list[int]:
        """The CPUs of a node; `BadValue` for a node that has none to use."""
        return self.node_logical_cores[self._checked(node_id)]

    def get_all_physical_cores(self) -> list[int]:
        """One CPU for each core, node by node."""
        return [cpu for cores in self.node_physical_cores for cpu in cores]

    def get_all_logical_cores(self) -> list[int]:
        """Every CPU, node by node."""
        return [cpu for cores in self.node_logical_cores for cpu in cores]

    def nodes_of(self, cpus: Iterable[int]) -> list[int]:
        """The nodes of some CPUs, in the order met.

        Raises
        ------
        BadValue
            A CPU does not exist, or this process may not use it.
        """
        nodes: dict[int, None] = {}
        for cpu in cpus:
            self.check_cpu(cpu)
            nodes[self._node_of[cpu]] = None
        return list(nodes)

    def numa_aware_check(self, cpus: Iterable[int]) -> list[int]:
        """The nodes of some CPUs, in the order met; a `RuntimeWarning` if there are several.

        Examples
        --------
        >>> CPUInfo("0,0,0,0\\n1,1,0,0\\n2,2,0,1\\n").numa_aware_check([1, 0])
        [0]
        """
        cpus = list(cpus)
        nodes = self.nodes_of(cpus)
        if len(nodes) > 1:
            text = f"CPUs {ranges(cpus)} lie on several NUMA nodes: {', '.join(map(str, nodes))}; memory will be slower"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return nodes

    def check_cpu(self, cpu: int, who: str = "") -> None:
        """Raise `BadValue` for a CPU that does not exist or may not be used; `who` names what asked for it."""
        if cpu in self._node_of:
            return
        known = cpu in self.every_cpu
        raise BadValue(
            f"{who}{': ' if who else ''}CPU {cpu} {'may not be used by this process' if known else 'does not exist'}",
            cause=f"its affinity mask or cpuset leaves it out ({ranges(self._node_of)} are left)" if known
            else f"the machine has CPUs {ranges(self.every_cpu)}",
            remedy=f"name CPUs of {ranges(self._node_of)}",
        )  # fmt: skip

    def _checked(self, node: int) -> int:
        if node in self.nodes:
            return node
        raise BadValue(
            f"there is no NUMA node {node} to run on",
            cause="this process may use none of its CPUs" if 0 <= node < self.node_nums else "the machine has no such node",
            remedy=f"one of: {', '.join(map(str, self.nodes))}",
        )
