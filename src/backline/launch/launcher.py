"""The launcher as a whole: from options to instances that have ended."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import BackendUnavailable, BacklineError, BadType, BadValue, UnknownName
from ..processors import cpu_quota
from . import arguments, binding, counts, environment, instances, messages, profiles, saved_report
from .counts import Note
from .topology import CPUInfo

__all__ = ["Instance", "command", "main", "place"]


class Instance(NamedTuple):
    """The cores and nodes of one instance."""

    number: int
    cpus: list[int]
    nodes: list[int]


def main(args: argparse.Namespace) -> int:
    """Start what the options say, and wait for it.

    Parameters
    ----------
    args : argparse.Namespace
        What the parser of `create_args` returned.

    Returns
    -------
    int
        0 if all instances ended with 0, else the status of the first that did not: its own, or 128 and the signal.

    Raises
    ------
    BadValue
        The options contradict each other or do not fit this machine.
    UnknownName
        ``--set`` names no switch.
    BackendUnavailable
        Nothing here can bind a process, or this is not Linux (it is a RuntimeError).
    """
    system = platform.system()
    if system != "Linux":
        raise BackendUnavailable(
            f"the launcher runs on Linux only, this is {system or 'an unknown system'}",
            cause="it binds processes to cores with numactl or taskset, which others do not have",
            remedy="start the program itself",
        )
    arguments.check(args)
    settings = _settings(args)
    info = CPUInfo()
    bound = not args.from_report or arguments.names_cores(args)  # the program of a report ran wherever the system put it
    if bound:
        placed, notes = place(args, info, cpu_quota(), os.environ)
        binder, said = binding.choose(
            placed[0].cpus, placed[0].nodes, numactl=not args.disable_numactl, taskset=not args.disable_taskset
        )
        notes += said
    else:
        cpus = sorted(os.sched_getaffinity(0))
        placed, binder, notes = [Instance(0, cpus, info.nodes_of(cpus))], binding.Binder(), []
    # With the hardware threads of all nodes, the runtime's own binding would leave every second one out.
    everything = args.use_logical_core and args.node_id == -1 and args.core_list is None and not _mode(args)
    changes, said = environment.common(
        os.environ, allocator=_allocator(args, notes), iomp=not (args.disable_iomp or args.from_report), affinity=not everything
    )
    notes += said
    changes |= settings.variables
    notes += settings.notes
    folder = _log_folder(args)
    program = [*_python(args), *_program(args)]
    jobs = []
    for instance in placed:
        threads: dict[str, str] = {}
        if bound:
            threads, said = environment.keep(os.environ, "OMP_NUM_THREADS", str(len(instance.cpus)))
            notes += said
        variables = {**os.environ, **changes, **threads}
        if not variables.get("LD_PRELOAD"):
            variables.pop("LD_PRELOAD", None)
        line = [*binder.command(instance.cpus, instance.nodes), *program]
        jobs.append(instances.Job(instance.number, line, variables, folder and os.path.join(folder, str(instance.number))))
    messages.notes(notes)
    _describe(placed, jobs, changes, folder)
    return instances.run(jobs)


def command(words: Sequence[str] | None = None, prog: str = "python -m backline.backends.xeon.run_cpu") -> int:
    """Run the launcher as a command: what is wrong is printed, and becomes a status.

    Parameters
    ----------
    words : sequence of str, optional
        Options, program and its arguments; those of this process without it.
    prog : str
        What the help calls the command.

    Returns
    -------
    int
        As `main`; 2 for options that are wrong, 1 if nothing could be started.
    """
    _open_standard_files()
    args = arguments.create_args(arguments.new_parser(prog)).parse_args(words)
    try:
        return main(args)
    except (BadValue, BadType, UnknownName) as problem:
        messages.error(str(problem))
        return 2
    except (BacklineError, OSError) as problem:
        messages.error(str(problem))
        return 1
    except KeyboardInterrupt:  # before there were instances to pass it on to
        return 130


def _open_standard_files() -> None:
    """Open the null device where stdin, stdout or stderr is closed: a pipe to an instance would get that number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(number, True)


def place(
    args: argparse.Namespace, info: CPUInfo, quota: float | None, environ: Mapping[str, str]
) -> tuple[list[Instance], list[Note]]:
    """Decide which CPUs each instance gets.

    Parameters
    ----------
    args : argparse.Namespace
        The options.
    info : CPUInfo
        The processors.
    quota : float or None
        CPUs' worth of time that the container grants.
    environ : mapping
        LOCAL_WORLD_SIZE and LOCAL_RANK are read from it.

    Returns
    -------
    list of Instance, list of Note
        Those to start: all of them, or the one of --rank.

    Examples
    --------
    >>> args = arguments.create_args().parse_args(["--ninstances", "2", "job.py"])
    >>> info = CPUInfo("0,0,0,0\\n1,1,0,0\\n2,2,0,0\\n3,3,0,0\\n")
    >>> [instance.cpus for instance in place(args, info, None, {})[0]]
    [[0, 1], [2, 3]]
    """
    world, rank = _local(environ)
    if args.core_list is not None:
        dealt, notes = _listed(args, info, quota)
    else:
        dealt, notes = _dealt(args, info, quota)
    if args.rank != -1 and not 0 <= args.rank < len(dealt):
        raise BadValue(
            f"--rank {args.rank}: there is no such instance",
            cause=f"{len(dealt)} instance{'s' if len(dealt) > 1 else ''}",
            remedy=f"0 to {len(dealt) - 1}, or -1 (the default) for all",
        )
    placed = []
    for index, cpus in enumerate(dealt):
        if args.rank in (-1, index):
            if world > 1:
                cpus = counts.share(cpus, world, rank)
            placed.append(Instance(index, cpus, info.nodes_of(cpus)))
    across = [str(instance.number) for instance in placed if len(instance.nodes) > 1]
    if across:
        who = f"instance {across[0]} crosses" if len(across) == 1 else f"instances {', '.join(across)} cross"
        notes.append(Note("warning", f"{who} NUMA nodes, where memory is slower; --throughput-mode keeps to one node each"))
    return placed, notes


def _mode(args: argparse.Namespace) -> str:
    counted = args.ninstances != -1 or args.ncores_per_instance != -1 or args.core_list is not None
    if args.throughput_mode or (args.multi_instance and not counted and not args.latency_mode):
        return "--throughput-mode"
    return "--latency-mode" if args.latency_mode else ""


def _dealt(args: argparse.Namespace, info: CPUInfo, quota: float | None) -> tuple[list[list[int]], list[Note]]:
    """Cores dealt out by counts or by a mode."""
    mode = _mode(args)
    notes = []
    if mode:
        overridden = {
            "--ninstances": args.ninstances != -1, "--ncores-per-instance": args.ncores_per_instance != -1,
            "--skip-cross-node-cores": args.skip_cross_node_cores, "--node-id": args.node_id != -1,
            "--use-logical-core": args.use_logical_core,
        }  # fmt: skip
        given = [name for name, is_given in overridden.items() if is_given]
        if given:
            notes.append(Note("warning", f"{mode} overrides {', '.join(given)}"))
    logical = args.use_logical_core and not mode
    if args.node_id != -1 and not mode:
        groups = [info.get_node_logical_cores(args.node_id) if logical else info.get_node_physical_cores(args.node_id)]
    else:
        groups = [info.node_logical_cores[n] if logical else info.node_physical_cores[n] for n in info.nodes]
    limited, said = counts.limit(groups, quota)
    notes += said
    if mode:
        dealt, said = counts.throughput(limited) if mode == "--throughput-mode" else counts.latency(limited)
    else:
        dealt, said = counts.deal(limited, args.ninstances, args.ncores_per_instance, args.skip_cross_node_cores)
    return dealt, notes + said


def _listed(args: argparse.Namespace, info: CPUInfo, quota: float | None) -> tuple[list[list[int]], list[Note]]:
    """Cores dealt out of --core-list."""
    cpus = counts.parse_core_list(args.core_list, max(info.every_cpu))
    for cpu in cpus:
        info.check_cpu(cpu, "--core-list")
    dealt, notes = counts.listed(cpus, args.ncores_per_instance, args.ninstances)
    given = {"--node-id": args.node_id != -1, "--skip-cross-node-cores": args.skip_cross_node_cores}
    notes += [Note("warning", f"{name} has no effect with --core-list") for name, is_given in given.items() if is_given]
    used = sum(map(len, dealt))
    if quota is not None and quota < used:
        text = f"the CPU quota of this container grants {quota:g} CPUs, --core-list uses {used}: they will be held back"
        notes.append(Note("warning", text))
    return dealt, notes


def _local(environ: Mapping[str, str]) -> tuple[int, int]:
    """Returns the number of processes that share each instance's cores, and the rank of this one."""
    values = []
    for name, default in (("LOCAL_WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        text = environ.get(name, default).strip()
        if not (text.isascii() and text.isdecimal()):
            raise BadValue(f"{name}={text!r} is not a number", remedy=f"set it as torchrun does, or unset {name}")
        values.append(int(text))
    world, rank = max(values[0], 1), values[1]
    if world > 1 and rank >= world:
        raise BadValue(f"LOCAL_RANK={rank} with LOCAL_WORLD_SIZE={world}", remedy=f"a rank from 0 to {world - 1}")
    return world, rank


def _settings(args: argparse.Namespace) -> profiles.Settings:
    assigned, notes = _from_report(args.from_report, arguments.names_cores(args))
    settings = profiles.resolve(args.profile, [*assigned, *args.set], os.environ)
    settings.notes[:0] = notes
    blas = "tuned" if args.tuned else args.blas
    if blas not in ("", "numpy") and settings.values.get("deterministic"):
        raise BadValue(
            f"--blas {blas} and deterministic exclude each other",
            cause="NumPy's and SciPy's own calls keep to no level of determinism on another library",
            remedy="leave out --blas, or add --set deterministic=off",
        )
    return settings


def _from_report(path: str, cores: bool) -> tuple[list[str], list[Note]]:
    """Returns the switches of a report as ``--set`` takes them, and what differs here from what it says."""
    if not path:
        return [], []
    saved = saved_report.read(path)
    assigned, notes = saved_report.assignments(saved)
    differing = saved_report.differences(saved)
    if not differing:
        what = (
            "versions, machine and libraries" if cores else "versions, machine, libraries and variables with numbers of threads"
        )
        notes.append(Note("info", f"{what} are those of the report"))
    if cores:
        text = "differs from the report: the options name cores, and OMP_NUM_THREADS counts them"
        notes.append(Note("warning", text))
    return assigned, [*notes, *differing]


def _allocator(args: argparse.Namespace, notes: list[Note]) -> str:
    wanted = "tcmalloc" if args.enable_tcmalloc else "jemalloc" if args.enable_jemalloc else ""
    if args.use_default_allocator and wanted:
        notes.append(Note("warning", f"--use-default-allocator has no effect with --enable-{wanted}"))
    return wanted or ("" if args.use_default_allocator or args.from_report else "any")


def _python(args: argparse.Namespace) -> list[str]:
    return [] if args.no_python else [sys.executable, "-u"]


def _program(args: argparse.Namespace) -> list[str]:
    module = ["-m"] if args.module else []
    # Exchanged by the program's own process, before the program: the launcher computes nothing.
    chosen = "tuned" if args.tuned else args.blas
    exchange = ["-m", "backline.interop.exchanged_program", chosen] if chosen else []
    return [*exchange, *module, args.program, *args.program_args]


def _log_folder(args: argparse.Namespace) -> str:
    """The folder of this run's logs, made; "" if none are kept."""
    if not args.log_path:
        return ""
    name = f"{args.log_file_prefix}_{time.strftime('%Y%m%d-%H%M%S')}_{os.getpid()}"
    folder = os.path.join(args.log_path, name)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise BadValue(
            f"--log-path {args.log_path!r} cannot hold logs", cause=f"{folder}: {error.strerror}", remedy="name another folder"
        ) from None
    return folder


def _describe(placed: Sequence[Instance], jobs: Sequence[instances.Job], changes: Mapping[str, str], folder: str) -> None:
    """A line for each instance, then what they share."""
    import shlex

    rows = [
        (
            str(instance.number), ",".join(map(str, instance.nodes)), counts.ranges(instance.cpus),
            job.environment.get("OMP_NUM_THREADS", "-"), shlex.join(job.command),
        )
        for instance, job in zip(placed, jobs, strict=True)
    ]  # fmt: skip
    messages.table(("instance", "node", "cores", "threads", "command"), rows, right=[0, 3])
    for name, value in sorted(changes.items()):
        messages.line(f"{name}={value}")
    if folder:
        messages.line(f"logs: {folder}")
