"""The table of the doctor's checks, and the function that makes them."""

from __future__ import annotations

from ..errors import BadValue
from . import library_checks, machine_checks, process_checks
from .facts import Facts
from .finding import LEVELS, Check, Finding, Findings

__all__ = ["TABLE", "diagnose", "doctor"]

TABLE: tuple[Check, ...] = (*process_checks.CHECKS, *library_checks.CHECKS, *machine_checks.CHECKS)


def doctor(*, level: str = "note", quick: bool = False) -> Findings:
    """Returns what is wrong or slow in this process and on this machine, the most costly first.

    Parameters
    ----------
    level
        The least that counts: "fatal" (the process may end), "wrong" (numbers may be), "slow" or "note".
    quick
        Leave out what has to be measured, which takes some seconds.

    Returns
    -------
    Findings
        A list that prints; each finding has its proof, the figures, and the command that fixes it.

    Raises
    ------
    BadValue
        There is no such level.

    Notes
    -----
    It only reads. Libraries are measured in a process of their own; none is loaded into this one, and nothing is kept.

    Examples
    --------
    >>> import numpy as np, backline
    >>> found = backline.doctor(quick=True)
    >>> all(finding.remedy and finding.proof for finding in found)
    True
    """
    if level not in LEVELS:
        raise BadValue(f"level = {level!r} is not a level of findings", remedy=f"one of: {', '.join(LEVELS)}")
    found = diagnose(Facts(), quick=quick)
    return Findings(found.at_least(level), found.checked, found.skipped)


def diagnose(facts: Facts, *, quick: bool = False) -> Findings:
    """Makes every check on facts.

    A check that fails is left out, with the reason: the others are still worth having.

    Parameters
    ----------
    facts
        What is looked at.
    quick
        Leave out the checks that measure.
    """
    found: list[Finding] = []
    checked: list[str] = []
    skipped: dict[str, str] = {}
    for check in TABLE:
        if quick and check.measured:
            skipped[check.id] = "measured, and this is quick"
            continue
        try:
            found += check.findings(facts)
        except Exception as error:  # files of the kernel and of others, of which nothing is certain
            skipped[check.id] = f"{type(error).__name__}: {error}"
            continue
        checked.append(check.id)
    if not quick and "slow-blas" in checked and facts.products.problem:
        checked.remove("slow-blas")
        skipped["slow-blas"] = facts.products.problem
    return Findings(found, checked, skipped)
