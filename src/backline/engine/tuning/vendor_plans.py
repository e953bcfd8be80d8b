"""Plans of a library's own that were timed: which was the fastest, kept among the tuning records for every process.

Such a record is filed under the library's own name of what the plan is for, so that it never stands beside a Problem's.
"""

from __future__ import annotations

from datetime import UTC, datetime

from ... import libraries
from ..._version import __version__
from ...native import machine
from . import record_store
from .record import TuningRecord, parse

__all__ = ["find", "keep"]

THREADS = 1  # of the CPU have no part in it
LIMIT = "benchmark_limit"
UNKNOWN = 10  # what that is by default: older records do not say of how many plans theirs was the fastest


def find(library: str, key: str) -> tuple[str, int]:
    """The plan that was kept for a key, as the library wrote it, and of how many at most it was the fastest (0: of all).

    The plan is empty if there is none, or it was of another version.

    >>> find("cudnn", "cudnn nothing")
    ('', 0)
    """
    record = record_store.find_key(key, THREADS)
    if record is None or library not in record.versions:
        return "", 0
    searched = record.under.get(LIMIT, "")
    return record.plan, int(searched) if searched.isdecimal() else UNKNOWN


def keep(library: str, key: str, plan: str, seconds: float, searched: int) -> None:
    """Keep a plan for a key, in place of an older one. What records do not hold, such as a line that is too long, is left out.

    Parameters
    ----------
    library, key, plan
        As the library names them.
    seconds
        What it takes to run.
    searched
        How many plans were timed at most; 0 for all there are.
    """
    algorithm = f"{library}.plan@1"
    record = TuningRecord(
        key, THREADS, medians={algorithm: max(seconds, 1e-9)}, winner=algorithm, plan=plan,
        covered=(algorithm,), under={LIMIT: str(searched)},
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        versions={library: libraries.get(library).version() or ""},
        machine=machine.fingerprint(), backline=__version__,
    )  # fmt: skip
    try:
        parse(record.line())
    except ValueError:
        return
    record_store.keep_all([record], choices=False)
