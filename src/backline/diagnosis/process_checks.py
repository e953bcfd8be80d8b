"""Checks of a process: OpenMP runtimes, threads and what they have to share, variables, packages that exist twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..libraries import conflicts, thread_scopes
from ..libraries.in_process import LoadedLibrary
from .facts import COUNTS, Facts
from .finding import Check

__all__ = ["CHECKS"]

Case = Mapping[str, Any]


def _names(libraries: Iterable[LoadedLibrary]) -> str:
    return "; ".join(
        f"{library.path} (from {library.owner}" + (f", {library.threads} threads)" if library.threads else ")")
        for library in libraries
    )


# Several runtimes ---------------------------------------------------------------------------------------------------------


def _conflicts(facts: Facts) -> Iterator[Case]:
    for each in conflicts.conflicts(facts.mapped, facts.environ):
        threads = sum(library.threads or 0 for library in each.libraries)
        count = f"{len(each.libraries)} files, {threads} threads for {facts.available:g} processors: " if each.libraries else ""
        yield {
            "level": each.severity, "kind": each.kind, "meaning": each.meaning, "fix": each.remedy,
            "figures": count + (_names(each.libraries) or "the environment variable"),
            "cost": max(threads / facts.available, 1.0) if each.severity == "slow" else None,
        }  # fmt: skip


# Threads ------------------------------------------------------------------------------------------------------------------


class Pool(NamedTuple):
    """Threads that one call would use."""

    threads: int
    what: str


def _variable(facts: Facts, name: str) -> int | None:
    """Returns the count that a variable sets; OMP_NUM_THREADS may have one for each level of nesting."""
    first = facts.environ.get(name, "").split(",")[0].strip()
    return int(first) if re.fullmatch(r"\d{1,6}", first) and int(first) > 0 else None


def _pools(facts: Facts) -> list[Pool]:
    """Returns the pools of the process, the largest first; where none is there yet, what variables ask for."""
    found = [
        Pool(library.threads, f"{library.family} from {library.owner}")
        for library in facts.mapped
        if library.threads and library.threading != "team"
    ]
    asked = _variable(facts, "OMP_NUM_THREADS")  # OpenBLAS's own variable counts up to the number of processors only
    if asked is not None:
        found.append(Pool(asked, f"OMP_NUM_THREADS={facts.environ['OMP_NUM_THREADS']}"))
    return sorted(found, key=lambda pool: -pool.threads)


def _oversubscription(facts: Facts) -> Iterator[Case]:
    pools = _pools(facts)
    most = pools[0] if pools else Pool(1, "")
    cpus = facts.cpus
    if most.threads > cpus:
        yield {
            "what": f"A call uses more threads than there are processors: {most.what}",
            "figures": f"{most.threads} threads on {cpus} processors", "count": cpus, "cost": most.threads / cpus,
        }  # fmt: skip
    workers = facts.workers
    each = max((worker.threads or most.threads for worker in workers), default=1)
    if len(workers) > 1 and each > 1 and len(workers) * each > cpus:
        yield {
            "what": "Worker processes have more threads together than there are processors",
            "figures": f"{len(workers)} processes x {each} threads = {len(workers) * each} threads on {cpus} processors",
            "count": max(cpus // len(workers), 1), "cost": len(workers) * each / cpus,
        }  # fmt: skip


def _quota(facts: Facts) -> Iterator[Case]:
    if facts.quota is None or facts.quota >= facts.cpus:
        return
    pools = _pools(facts)
    threads = min(pools[0].threads, facts.cpus) if pools else facts.cpus
    if threads <= max(facts.quota, 1.0):
        return
    periods, stopped, seconds = facts.throttling or (0, 0, 0.0)
    figures = f"{threads} threads, a quota of {facts.quota:g} processors, {facts.cpus} processors visible"
    if periods:
        figures += f"; held up in {stopped} of {periods} periods, for {seconds:.3g} s in all"
    yield {"figures": figures, "count": max(int(facts.quota), 1), "cost": threads / facts.quota}


# Variables ----------------------------------------------------------------------------------------------------------------

_LLVM = ("libiomp5", "libomp")


def _version(library: LoadedLibrary) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", library.version))


def _no_effect(facts: Facts) -> Iterator[Case]:
    environ = facts.environ
    mkl = facts.families("mkl")
    if "MKL_DEBUG_CPU_TYPE" in environ and not any(library.version and _version(library) < (2020, 0, 1) for library in mkl):
        yield {
            "name": "MKL_DEBUG_CPU_TYPE", "value": environ["MKL_DEBUG_CPU_TYPE"],
            "why": "MKL has not read it since 2020 Update 1",
            "figures": f"MKL {mkl[0].version or 'of unknown version'} is here" if mkl else "no older MKL is in the process",
            "instead": "remove it: unset MKL_DEBUG_CPU_TYPE",
            "reference": "https://danieldk.eu/Intel-MKL-on-AMD-Zen",
        }  # fmt: skip
    gnu, llvm = facts.families("libgomp"), facts.families(*_LLVM)
    for prefix, absent, there, whose in (
        ("KMP_", llvm, gnu, "Intel's and LLVM's OpenMP runtimes alone read it, and GNU's is here"),
        ("GOMP_", gnu, llvm, "GNU's OpenMP runtime alone reads it, and LLVM's is here"),
    ):
        # KMP_DUPLICATE_LIB_OK is a finding of its own.
        names = [name for name in sorted(environ) if name.startswith(prefix) and name != "KMP_DUPLICATE_LIB_OK"]
        for name in names if there and not absent else ():
            instead = "OMP_PLACES=cores OMP_PROC_BIND=close" if "AFFINITY" in name else "OMP_WAIT_POLICY=PASSIVE or ACTIVE"
            yield {
                "name": name, "value": environ[name], "why": whose, "figures": _names(there),
                "instead": f"unset {name}; every runtime reads {instead}",
            }  # fmt: skip
    for name in COUNTS:
        if environ.get(name, "").strip() and _variable(facts, name) is None:
            yield {
                "name": name, "value": environ[name], "why": "it is no number of threads",
                "figures": "a positive integer is legal", "instead": f"{name}={int(facts.available) or 1}",
            }  # fmt: skip
    layer = environ.get("MKL_THREADING_LAYER", "").strip()
    if layer and layer.upper() not in ("INTEL", "GNU", "SEQUENTIAL", "TBB", "PGI"):
        yield {
            "name": "MKL_THREADING_LAYER", "value": layer, "why": "MKL knows no such layer",
            "figures": "INTEL, GNU, TBB and SEQUENTIAL are legal", "instead": "MKL_THREADING_LAYER=GNU",
        }  # fmt: skip


_OWN = {"OPENBLAS_NUM_THREADS": "OpenBLAS", "MKL_NUM_THREADS": "MKL", "BLIS_NUM_THREADS": "BLIS"}


def _contradict(facts: Facts) -> Iterator[Case]:
    common = _variable(facts, "OMP_NUM_THREADS")
    for name, library in _OWN.items():
        count = _variable(facts, name)
        if common is not None and count is not None and count != common:
            yield {"name": name, "count": count, "common": common, "library": library}


def _too_late(facts: Facts) -> Iterator[Case]:
    if facts.started_with is None:
        return
    for library in facts.mapped:
        scope = thread_scopes.scope_of(library)
        if scope is None or not library.threads:
            continue
        name = next((name for name in scope.variables if _variable(facts, name) is not None), "")
        if not name or facts.environ[name] == facts.started_with.get(name):
            continue
        asked = _variable(facts, name) or 0
        # More than there are processors is not what every library gives.
        if asked < library.threads or library.threads < asked <= facts.cpus:
            yield {
                "name": name, "asked": asked, "family": library.family, "owner": library.owner, "threads": library.threads,
                "call": scope.call, "before": facts.started_with.get(name, "not set"), "cost": max(library.threads / asked, 1.0),
            }  # fmt: skip


_CAPS = (
    "OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "NPY_DISABLE_CPU_FEATURES",
    "BLIS_ARCH_TYPE", "BACKLINE_CPU_CAPABILITY",
)  # fmt: skip


def _capped(facts: Facts) -> Iterator[Case]:
    have = [flag for flag in ("avx2", "avx512f", "amx_tile", "sve", "asimd") if flag in facts.flags]
    for name in _CAPS:
        value = facts.environ.get(name, "").strip()
        if value and value.lower() not in ("default", "all"):
            yield {"name": name, "value": value, "have": ", ".join(have) or "unknown instruction sets"}


# Packages that exist twice ------------------------------------------------------------------------------------------------


def _twice(facts: Facts) -> Iterator[Case]:
    for name, copies in facts.copies.items():
        if len(copies) > 1:
            versions = {copy.version for copy in copies}
            listed = "; ".join(f"{copy.folder} ({copy.version or 'not installed by pip'})" for copy in copies)
            yield {"name": name, "count": len(copies), "copies": listed, "level": "wrong" if len(versions) > 1 else "note"}
    for name, used in facts.imported.items():
        first = facts.copies.get(name, [])
        if len(first) == 1 and used.folder != first[0].folder:
            listed = f"{used.folder} ({used.version}) is imported, {first[0].folder} ({first[0].version}) is on the path now"
            yield {"name": name, "count": 2, "copies": listed, "level": "wrong"}


CHECKS = (
    Check(
        id="runtimes", level="slow", looks_at="libraries that are mapped into the process, and whose threads and symbols meet",
        text="{kind}: {meaning}", proof="{figures}", remedy="{fix}", find=_conflicts,
    ),
    Check(
        id="oversubscription", level="slow", looks_at="threads of each pool, worker processes, OMP_NUM_THREADS",
        text="{what}. They take turns on the processors, and each call waits for its last thread.",
        proof="{figures}",
        remedy="OMP_NUM_THREADS={count} OPENBLAS_NUM_THREADS={count} MKL_NUM_THREADS={count} before the program starts, or "
        "`backline run --ninstances N SCRIPT`, which divides the processors",
        find=_oversubscription,
    ),
    Check(
        id="cgroup-quota", level="slow", looks_at="cpu.max and cpu.stat of the control group, or their version 1 forms",
        text="The control group grants less processor time than there are threads: all of them are stopped when it is used up.",
        proof="{figures}",
        remedy="OMP_NUM_THREADS={count} OPENBLAS_NUM_THREADS={count} before the program starts (Backline's own calls keep to "
        "the quota), or a larger quota",
        find=_quota,
    ),
    Check(
        id="variable-too-late", level="slow", looks_at="variables now and at the start of the process, threads of the libraries",
        text="{name} was set after {family} from {owner} had been loaded, which reads it once: it has no effect.",
        proof="{name}={asked} now, {before} when the process was started; {threads} threads are in use",
        remedy="set {name} before Python starts, or call {call}({asked})",
        find=_too_late,
    ),
    Check(
        id="variable-without-effect", level="note", looks_at="variables of MKL and of OpenMP runtimes",
        text="{name}={value} has no effect: {why}.", proof="{figures}", remedy="{instead}", find=_no_effect,
    ),
    Check(
        id="variables-contradict", level="note", looks_at="thread counts in variables",
        text="{name}={count} and OMP_NUM_THREADS={common} contradict each other: the first holds for {library}, the other for "
        "the rest; for a build of {library} on OpenMP it may be the other one.",
        proof="{count} and {common} threads", remedy="one count for all: unset {name}, or OMP_NUM_THREADS={count}",
        find=_contradict,
    ),
    Check(
        id="instructions-capped", level="note", looks_at="variables that keep libraries from instruction sets",
        text="{name}={value} chooses kernels by hand, and may keep a library from the fastest.",
        proof="the processor has {have}", remedy="unset {name}, unless an erratum asks for it", find=_capped,
    ),
    Check(
        id="package-twice", level="wrong", looks_at="sys.path, and what is imported",
        text="{name} exists {count} times on the path of imports: which copy a program gets depends on where it is started, and "
        "extension modules may have been built for another one.",
        proof="{copies}", remedy="python -m pip uninstall {name} until none is left, then install it once; look into PYTHONPATH",
        find=_twice,
    ),
)  # fmt: skip
