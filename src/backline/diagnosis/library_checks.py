"""Checks of libraries: known defects of the releases in the process, and speed beside what is there or could be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..libraries import errata_table, registry
from . import known_defects
from .facts import Facts
from .finding import Check
from .measurements import SIZE

__all__ = ["CHECKS"]

Case = Mapping[str, Any]
FASTER = 1.3  # times, from which another library is worth a finding
FASTER_BUSY = 2.0  # the same where other programs kept the machine busy
SHIPPED_FASTER = 1.15  # the same of one that is not there: the figure is a mean over many sizes


def _defects(facts: Facts) -> Iterator[Case]:
    for library in facts.mapped:
        for row in known_defects.TABLE:
            if row.family == library.family and row.concerns(library.version, facts.flags):
                newer = f"{row.before} or later" if row.before else "another release"
                yield {
                    "title": f"{library.family} {library.version}", "owner": library.owner, "what": row.text, "id": row.id,
                    "path": library.path, "newer": newer + (f" ({row.remedy})" if row.remedy else ""),
                    "range": f"{row.since or 'the first'} up to, without, {row.before or 'none yet'}", "reference": row.reference,
                }  # fmt: skip


def _own_errata(facts: Facts) -> Iterator[Case]:
    for library in facts.mapped:
        rows = [
            row
            for row in errata_table.TABLE
            if row.library == library.family and library.version and row.concerns_version(library.version)
            and (not row.isa or _has(facts.flags, row.isa))
        ]  # fmt: skip
        if rows:
            yield {
                "title": f"{library.family} {library.version}", "owner": library.owner, "count": len(rows),
                "rows": ", ".join(row.id for row in rows),
            }  # fmt: skip


def _has(flags: frozenset[str], instructions: str) -> bool:
    return {"avx512": "avx512f"}.get(instructions, instructions) in flags


def _slow_blas(facts: Facts) -> Iterator[Case]:
    worst: tuple[float, str, str, float, float] | None = None
    for dtype, seconds in facts.products.seconds.items():
        others = {name: s for name, s in seconds.items() if name != "numpy"}
        if not others:
            continue
        best = min(others, key=others.__getitem__)
        gain = seconds["numpy"] / max(others[best], 1e-9)
        if gain >= (FASTER_BUSY if facts.products.disturbed else FASTER) and (worst is None or gain > worst[0]):
            worst = gain, dtype, best, seconds["numpy"], others[best]
    if worst is None:
        return
    gain, dtype, best, slow, fast = worst
    busy = facts.products.disturbed
    own = next((f"{library.family} {library.version}" for library in facts.mapped
                if library.kind == "blas" and library.owner == "numpy"), "the BLAS that NumPy was built with")  # fmt: skip
    product = f"a product of {SIZE} x {SIZE} in {dtype} on one thread"
    disturbed = f" (measured while {busy}: ask again on a quiet machine)" if busy else ""
    figures = f"{product}: {slow * 1e3:.3g} ms by NumPy, {fast * 1e3:.3g} ms by {best}{disturbed}"
    yield {"own": own, "best": best, "gain": f"{gain:.3g}", "cost": gain, "figures": figures}


def _missing(facts: Facts) -> Iterator[Case]:
    if facts.products.problem:
        return
    for name, said in facts.shipped.items():
        row = registry.find(name)
        if row is not None and said.gain >= SHIPPED_FASTER:
            yield {
                "title": row.title, "install": row.install, "cost": said.gain,
                "figures": f"{said.gain:.2f} times as fast in the mean of {said.entries} products, measured on {said.cpu}, "
                f"{said.date} (shipped ranking {said.processors}; not measured on this machine)",
            }  # fmt: skip


CHECKS = (
    Check(
        id="known-defect", level="wrong", looks_at="releases of the libraries in the process, and the processor's flags",
        text="{title} (from {owner}) has a known defect: {what}.", proof="{path} is release {title}; {id} concerns {range}",
        remedy="install {newer}", find=_defects,
    ),
    Check(
        id="slow-blas", level="slow", looks_at="NumPy's BLAS beside the libraries that are there",
        measured=f"products of {SIZE} x {SIZE} in float64 and float32 on one thread, in turn, in a process of their own",
        text="NumPy computes products on {own}, which takes {gain} times as long as {best}, which is installed.",
        proof="{figures}", remedy="backline run --blas {best} SCRIPT, or backline.matmul in the place of numpy.matmul",
        find=_slow_blas,
    ),
    Check(
        id="faster-library", level="note", looks_at="the shipped ranking of the nearest class of processors",
        measured="as slow-blas, to see what is there",
        text="{title} is not installed, and was faster on processors like this one.", proof="{figures}", remedy="{install}",
        find=_missing,
    ),
    Check(
        id="errata", level="note", looks_at="Backline's own errata, and the libraries in the process",
        text="Some kernels of {title} (from {owner}) are wrong under exact conditions. Backline does not choose them there; "
        "other programs in this process may.",
        proof="{count} rows: {rows}", remedy="`backline check errata` has the conditions", find=_own_errata,
    ),
)  # fmt: skip
