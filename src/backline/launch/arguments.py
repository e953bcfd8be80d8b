"""The launcher's options, and what can be told to be wrong with them without looking at the machine."""

from __future__ import annotations

import argparse
import os
import shutil
from typing import Any

from ..errors import BadValue
from . import profiles

__all__ = ["check", "create_args", "names_cores", "new_parser"]

_CORES = (
    "multi_instance", "latency_mode", "throughput_mode", "ninstances", "ncores_per_instance", "skip_cross_node_cores", "rank",
    "node_id", "use_logical_core", "core_list",
)  # fmt: skip

DESCRIPTION = """\
Start a program, or several instances of it, each on cores and memory of its own, under chosen switches and libraries.

Without options: one instance on all physical cores. Options stand before the program; what follows it is the program's.
"""
EXAMPLES = """\
examples:
  {prog} script.py --size 10                         one instance on all cores
  {prog} --throughput-mode script.py                 one on each NUMA node
  {prog} --latency-mode -m package.module            4 cores for each
  {prog} --blas mkl script.py                        NumPy and SciPy on MKL
  {prog} --profile deterministic script.py           the same bits in every run
  {prog} --set cudnn.benchmark=true -m package       any switch of Backline, by its name
  {prog} --from report.json script.py                the switches of a report (`backline report`)
  {prog} --tuned script.py                           NumPy and SciPy on what was measured
  {prog} --ninstances 2 --log-path logs script.py    two, with logs
  {prog} --core-list 0-3,8 --ncores-per-instance 5 --no-python ./program

profiles, and the switches that each sets:
{profiles}

exit status: 0 if all instances ended with 0, else that of the first that did not (128 + signal if one ended it);
2 if the options were not understood.
"""


class _Program(argparse.Action):
    """Takes the program and all that follows it, options and "--" included, as they stand."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        words = list(values)
        if words[0] == "--":  # ended our own options
            words = words[1:]
        if not words:
            parser.error("the following arguments are required: program")
        namespace.program, namespace.program_args = words[0], words[1:]


def new_parser(prog: str = "python -m backline.backends.xeon.run_cpu") -> argparse.ArgumentParser:
    """A parser that prints our help and knows no options yet."""
    return argparse.ArgumentParser(
        prog=prog, usage="%(prog)s [options] program [args...]", description=DESCRIPTION,
        epilog=EXAMPLES.format(prog=prog, profiles=profiles.listed()),
        allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def create_args(parser: argparse.ArgumentParser | None = None) -> argparse.ArgumentParser:
    """Add the launcher's options to a parser.

    Parameters
    ----------
    parser : argparse.ArgumentParser, optional
        A new one without it.

    Returns
    -------
    argparse.ArgumentParser
        The parser; `main` takes what its ``parse_args`` returns.

    Examples
    --------
    >>> args = create_args().parse_args(["--ncores_per_instance", "4", "job.py", "--rank", "1"])
    >>> args.ncores_per_instance, args.rank, args.program, args.program_args
    (4, -1, 'job.py', ['--rank', '1'])
    """
    parser = parser or new_parser()
    group = parser.add_argument_group("program")
    _flag(group, "-m", "--module", help="the program is a module, as for python -m")
    _flag(group, "--no-python", help="the program is run directly, not by Python")
    _value(group, "--blas", str, "", "LIBRARY", "run NumPy and SciPy on mkl, openblas or blis, or dgesdd=mkl,*=openblas")
    _flag(group, "--tuned", help="run NumPy and SciPy on what backline tune found fastest here: the same as --blas tuned")

    group = parser.add_argument_group("switches")
    _value(group, "--profile", str, "", "PROFILE", f"set the switches of a profile: {', '.join(profiles.PROFILES)}")
    group.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="set a switch (`backline switches`) as its environment variable would; may be repeated; counts more than a profile",
    )  # fmt: skip

    group.add_argument(
        "--from", "--from-report", dest="from_report", default="", metavar="REPORT",
        help="set the switches of a report (`backline report`), and say what differs here; --set counts more; nothing is bound "
        "or preloaded unless options name cores or an allocator",
    )  # fmt: skip
    _underscored(group, "--from-report", type=str)

    group = parser.add_argument_group("instances and cores")
    _flag(group, "--multi-instance", help="without any count: the same as --throughput-mode")
    _flag(group, "--latency-mode", help="4 cores for each instance, on all physical cores")
    _flag(group, "--throughput-mode", help="one instance on each NUMA node, on all physical cores")
    _value(group, "--ninstances", int, -1, "N", "number of instances; default: as many as fit, or 1")
    _value(group, "--ncores-per-instance", int, -1, "N", "cores of each instance; default: as many as there are")
    _flag(group, "--skip-cross-node-cores", help="leave out cores so that no instance crosses nodes; with --ncores-per-instance")
    _value(group, "--rank", int, -1, "I", "start this instance only, counted from 0")
    _value(group, "--node-id", int, -1, "NODE", "use the cores of this NUMA node only")
    _flag(group, "--use-logical-core", help="count hardware threads as cores")
    _value(group, "--core-list", str, None, "CPUS", 'use these CPUs, "0,1,2" or "0-3,8"; needs --ncores-per-instance')

    group = parser.add_argument_group("binding")
    _flag(group, "--disable-numactl", help="bind with taskset instead, without memory")
    _flag(group, "--disable-taskset", help="do not fall back to taskset; with --disable-numactl nothing is bound")

    group = parser.add_argument_group("threads and memory")
    _flag(group, "--disable-iomp", help="do not preload Intel's OpenMP runtime")
    _flag(group, "--enable-tcmalloc", help="preload tcmalloc; default: tcmalloc, else jemalloc")
    _flag(group, "--enable-jemalloc", help="preload jemalloc, and configure it")
    _flag(group, "--use-default-allocator", help="preload no memory allocator")

    group = parser.add_argument_group("logs")
    _value(group, "--log-path", str, "", "FOLDER", "keep what each instance prints below this folder")
    _value(group, "--log-file-prefix", str, "run", "NAME", "start of the name of this run's folder; default: run")

    parser.add_argument(
        "program", nargs=argparse.PARSER, action=_Program, metavar="program",
        help="script that ends in .py (else see -m and --no-python), and its arguments",
    )  # fmt: skip
    return parser


def _flag(group: Any, *names: str, help: str) -> None:
    group.add_argument(*names, action="store_true", default=False, help=help)
    _underscored(group, names[-1], action="store_true")


def _value(group: Any, name: str, kind: Any, default: Any, metavar: str, help: str) -> None:
    group.add_argument(name, type=kind, default=default, metavar=metavar, help=help)
    _underscored(group, name, type=kind)


def _underscored(group: Any, name: str, **how: Any) -> None:
    """The same option spelt with underscores; the help need not say each twice."""
    spelt = "--" + name[2:].replace("-", "_")
    if spelt != name:
        group.add_argument(spelt, dest=spelt[2:], default=argparse.SUPPRESS, help=argparse.SUPPRESS, **how)


def check(args: argparse.Namespace) -> None:
    """Raise `BadValue` for options that are wrong or contradict each other on any machine."""
    for option in ("ninstances", "ncores_per_instance"):
        value = getattr(args, option)
        if value == 0 or value < -1:
            raise BadValue(
                f"--{option.replace('_', '-')} {value} is not a count",
                remedy="at least 1, or -1 (the default) for as many as there are",
            )
    if args.core_list is not None and args.ncores_per_instance == -1:
        raise BadValue("--core-list needs --ncores-per-instance", remedy="say how many of these CPUs each instance gets")
    if args.skip_cross_node_cores and args.ncores_per_instance == -1 and not _mode(args):
        raise BadValue("--skip-cross-node-cores needs --ncores-per-instance", remedy="say how many cores each instance gets")
    _refuse_both(args, "latency_mode", "throughput_mode", "each decides how many instances there are")
    _refuse_both(args, "enable_tcmalloc", "enable_jemalloc", "a process has one memory allocator")
    _refuse_both(args, "module", "no_python", "only Python runs modules")
    _refuse_both(args, "blas", "no_python", "the exchange is made inside Python")
    _refuse_both(args, "tuned", "no_python", "the exchange is made inside Python")
    _refuse_both(args, "blas", "tuned", "one of them says which library runs what")
    if args.from_report and args.profile:
        raise BadValue(
            "--from and --profile exclude each other", cause="each is a set of switches",
            remedy="one of them, and --set for the rest",
        )  # fmt: skip
    for mode in ("latency_mode", "throughput_mode"):
        if args.core_list is not None:
            _refuse_both(args, mode, "core_list", "a mode uses all physical cores")
    prefix = args.log_file_prefix
    if not prefix or prefix != os.path.basename(prefix) or prefix.startswith("."):
        raise BadValue(f"--log-file-prefix {prefix!r} is not the start of a file name", remedy='a plain word, such as "run"')
    _check_program(args)


def names_cores(args: argparse.Namespace) -> bool:
    """Tells whether an option says on which cores instances run, or how many there are.

    Examples
    --------
    >>> [names_cores(create_args().parse_args(words)) for words in (["job.py"], ["--rank", "0", "job.py"])]
    [False, True]
    """
    values = [getattr(args, name) for name in _CORES]
    return any(value is not None and value is not False and value != -1 for value in values)


def _mode(args: argparse.Namespace) -> bool:
    return bool(args.latency_mode or args.throughput_mode)


def _refuse_both(args: argparse.Namespace, one: str, other: str, cause: str) -> None:
    if getattr(args, one) and getattr(args, other):
        names = [f"--{name.replace('_', '-')}" for name in (one, other)]
        raise BadValue(f"{names[0]} and {names[1]} exclude each other", cause=cause, remedy="give one of them")


def _check_program(args: argparse.Namespace) -> None:
    program = args.program
    if args.module:
        return  # whether there is such a module, only the instance's own Python can tell
    if args.no_python:
        if shutil.which(program) is None:
            raise BadValue(f"there is no program {program!r} that can be run", remedy="give its path, or a name on PATH")
        return
    if not program.endswith(".py"):
        raise BadValue(
            f"{program!r} does not end in .py",
            cause="without an option the program is a Python script",
            remedy="give --module (-m) if it is a Python module, --no-python if it is to be run directly",
        )
    if not os.path.exists(program):
        raise BadValue(f"there is no script {program!r}", remedy="give its path")
