"""The command that holds a process to its cores and memory: numactl, or taskset where numactl does not work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import BackendUnavailable
from ..processors import parse_cpu_list
from .counts import Note, ranges

__all__ = ["Binder", "choose", "memory_nodes"]

SECONDS = 20


@dataclass(frozen=True, slots=True)
class Binder:
    """Writes the start of a command.

    Attributes
    ----------
    tool : str
        "numactl", "taskset", or "" to bind nothing.
    memory : frozenset of int or None
        Nodes whose memory this process may use; None where that is not told, and then all of them.
    """

    tool: str = ""
    memory: frozenset[int] | None = None

    def command(self, cpus: Iterable[int], nodes: Iterable[int]) -> list[str]:
        """Returns the words to put in front of a program that shall run on `cpus` of `nodes`.

        Examples
        --------
        >>> Binder("numactl").command([8, 0, 1, 2, 3], [0])
        ['numactl', '-C', '0-3,8-8', '-m', '0']
        >>> Binder("taskset").command([8, 0, 1, 2, 3], [0])
        ['taskset', '-c', '0-3,8-8']
        """
        where = ranges(cpus, single=True)
        if self.tool == "numactl":
            usable = [str(node) for node in nodes if self.memory is None or node in self.memory]
            # A cpuset may grant CPUs of a node without its memory. numactl would refuse to start.
            return ["numactl", "-C", where, *(["-m", ",".join(usable)] if usable else [])]
        return ["taskset", "-c", where] if self.tool else []


def choose(cpus: Sequence[int], nodes: Sequence[int], *, numactl: bool = True, taskset: bool = True) -> tuple[Binder, list[Note]]:
    """Find what can bind processes here.

    Parameters
    ----------
    cpus, nodes : sequence of int
        Where the first instance will run. numactl is tried on the first of these: CPU 0 and node 0 may be forbidden.
    numactl, taskset : bool
        Whether each may be used. Without both nothing is bound.

    Raises
    ------
    BackendUnavailable
        What may be used does not work.
    """
    reason = ""
    if numactl:
        memory = memory_nodes()
        binder = Binder("numactl", memory)
        reason = _refusal(binder.command(cpus[:1], _probed(nodes, memory)))
        if not reason:
            return binder, []
        if not taskset:
            raise BackendUnavailable(
                "numactl cannot bind here, and --disable-taskset forbids taskset",
                cause=reason, remedy="install numactl, or leave --disable-taskset out",
            )  # fmt: skip
    if not taskset:
        return Binder(), []
    if shutil.which("taskset") is None:
        raise BackendUnavailable(
            "nothing here can bind a process to cores",
            cause=f"{reason + '; ' if reason else ''}there is no taskset on PATH",
            remedy="install numactl or util-linux, or give --disable-numactl and --disable-taskset to bind nothing",
        )
    text = f"numactl cannot bind here ({reason}): using taskset, which leaves memory where the system puts it"
    return Binder("taskset"), [Note("warning", text)] if numactl else []


def _probed(nodes: Sequence[int], memory: frozenset[int] | None) -> list[int]:
    usable = [node for node in nodes if memory is None or node in memory]
    return usable[:1] or sorted(memory or ())[:1]


def _refusal(command: list[str]) -> str:
    """Returns the reason that a binding command does not work, or ""."""
    import subprocess

    if shutil.which(command[0]) is None:
        return f"there is no {command[0]} on PATH"
    try:
        done = subprocess.run(
            [*command, "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            encoding="utf-8", errors="replace", timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command)} true` did not end in {SECONDS} seconds"
    except OSError as error:
        return f"{command[0]} cannot be run: {error.strerror}"
    if done.returncode == 0:
        return ""
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return f"`{' '.join(command)} true` ended with status {done.returncode}" + (f": {said[0]}" if said else "")


def memory_nodes(path: str = "/proc/self/status") -> frozenset[int] | None:
    """Nodes whose memory this process may use; None where the kernel does not tell."""
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key == "Mems_allowed_list":
                return frozenset(parse_cpu_list(value)) or None
    return None
