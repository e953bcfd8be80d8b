"""Facts about an Event beyond its time, worked out when it is read: rates, parts of the machine's peak, provenance."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .. import switches
from ..switches.scope_state import process
from . import machine_peak
from .choice import Choice

__all__ = [
    "as_dict", "flops", "gflops", "of_peak", "peak_of", "percent", "provenance", "provenance_rows", "rate", "seen", "unit",
]  # fmt: skip


def seen(plan: Any, last: int) -> tuple[Any, bool]:
    """Returns the Choice of a Plan that just ran, or where it comes from, and whether the Plan was made for this call.

    Plans in Python do not count their runs: there it is told by when the Choice was made, and when the event before it ended.
    """
    try:
        return plan.choice_source, plan.runs == 1
    except AttributeError:
        choice = plan.choice
        return choice, choice.made > last


def flops(choice: Choice) -> float:
    """Returns the operations of a Choice: those of the steps where it is made of several."""
    return float(getattr(choice, "flops", 0.0) or choice.problem.flops)


def gflops(operations: float, seconds: float) -> float | None:
    """Returns 10^9 operations a second; None where no operations are counted or no time passed.

    >>> gflops(2e9, 0.5), gflops(0.0, 0.5)
    (4.0, None)
    """
    return operations / seconds * 1e-9 if operations > 0 and seconds > 0 else None


def unit(choice: Choice) -> str:
    """Returns the type of number whose peak counts for a Choice; empty on other devices than the CPU."""
    return machine_peak.unit_of(choice.problem.dtype, choice.effective) if choice.problem.device == "cpu" else ""


def peak_of(choice: Choice) -> float | None:
    """Returns the machine's measured peak for what a Choice computes in, in GFLOP/s; None where there is none."""
    return machine_peak.known().gflops.get(unit(choice))


def of_peak(choice: Choice, rate: float | None) -> float | None:
    """Returns a rate in GFLOP/s as a part of the machine's peak."""
    peak = peak_of(choice)
    return rate / peak if rate is not None and peak else None


def rate(value: float | None) -> str:
    """Returns GFLOP/s in words.

    >>> rate(12.345), rate(1234.5), rate(0.0005), rate(None)
    ('12.3', '1234', '0.0005', '')
    """
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"


def percent(part: float | None) -> str:
    """Returns a part of one in percent.

    >>> percent(0.754), percent(0.0123), percent(1e-6), percent(None)
    ('75 %', '1.2 %', '<0.1 %', '')
    """
    if part is None:
        return ""
    if 0 < part < 0.001:
        return "<0.1 %"
    return f"{part * 100:.0f} %" if part >= 0.0995 else f"{part * 100:.2g} %"


def provenance(state: Any) -> dict[str, tuple[str, str]]:
    """Returns the switches that differ from their defaults in a scope state: name to value and origin."""
    return dict(_provenance(state, process.base)) if state is not None else {}


@lru_cache(maxsize=16)
def _provenance(state: Any, base: Any) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for name in switches.declared():
        said = switches.history(name, state)[0]
        value = state.snapshot.get(name, said.value)
        if value != said.value:
            found[name] = (repr(value), "the process, changed since")
        elif said.origin.kind != "default":
            found[name] = (repr(value), str(said.origin))
    return found


def provenance_rows(state: Any) -> dict[str, dict[str, str]]:
    """Returns the same as JSON takes it."""
    return {name: {"value": value, "origin": origin} for name, (value, origin) in provenance(state).items()}


def as_dict(event: Any) -> dict[str, Any]:
    """Returns an Event as JSON takes it."""
    choice: Choice = event.choice
    chosen = choice.chosen
    return {
        "op": event.op,
        "problem": choice.problem.key,
        "device": choice.problem.device,
        "library": choice.library or "",
        "algorithm": choice.algorithm or "",
        "threads": chosen.threads if chosen else 0,
        "seconds": event.seconds,
        "ended": event.ended,
        "thread": event.thread,
        "planned": event.planned,
        "trial": choice.trial,
        "bytes": event.bytes,
        "flops": event.flops,
        "gflops": event.gflops,
        "of_peak": event.of_peak,
        "precision": event.precision,
        "determinism": event.determinism,
        "switches": provenance_rows(event._state),
    }
