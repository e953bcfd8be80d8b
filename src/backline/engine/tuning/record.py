"""One tuning record: what was measured for a Problem, and reading it from text that may be anything."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

__all__ = ["RENAMED", "SCHEMA", "TuningRecord", "current_key", "parse"]

SCHEMA = 1
# Keys of algorithms in records and rankings of earlier versions, without the thread count -> their keys now. Records of before
# name no version of the new library: what they say of it holds until another measurement.
RENAMED = {
    "numpy.compiled": "kernels.compiled",
    **dict.fromkeys(("mkl.depthwise", "openblas.depthwise", "blis.depthwise"), "kernels.depthwise"),
}
MAX_TEXT = 1 << 16
MAX_ALGORITHMS = 256


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """Measured times of algorithms for one Problem on one machine.

    Attributes
    ----------
    key, threads
        The Problem's key, and the threads that were allowed.
    medians, minima
        Seconds by algorithm key, for those that were timed.
    runs
        How many runs those figures rest on.
    errors
        Relative error, compared with a more precise result, for those that were checked; infinite for a result with NaN or
        infinity.
    rejected
        Algorithms that must not be used, with the reason.
    left
        Libraries that are not worth loading for what the script that was tuned saves by them, with the figures.
    winner
        Key of the algorithm to take; "default" leaves it to the ranking.
    plan
        Where the record is of one library's own plans: the fastest of them, as the library wrote it.
    calls
        Where the record is of a routine of BLAS or LAPACK: how often the script called it that was tuned.
    covered
        Algorithms that it gives a verdict on: timed on a quiet machine, rejected, or given up as much slower than others. What
        is allowed and not covered is measured when that is asked for. Records that lack the field cover what they list.
    under
        Switches that kept other candidates from being measured, with their values then.
    disturbed
        What else kept the machine busy while algorithms were timed that are not covered; empty if it was quiet.
    place
        Operation, dtype, shape class and log2 of the work, for predictions of other Problems; empty in records that lack it.
    processors
        Class of the processor; empty in records that lack it.
    calibrated
        True where it was measured for predictions of other Problems (`backline calibrate`), and not for a program.
    seed
        Of the operands and of the order of the runs.
    spent
        Seconds the measurement took.
    created
        When, in UTC, as ISO 8601 with microseconds.
    versions
        Version of each library that took part.
    machine
        Fingerprint of the machine.
    backline
        Version of backline.
    schema
        Version of this layout.

    Examples
    --------
    >>> r = TuningRecord("matmul f32 8x8 8x8", 1, medians={"mkl.gemm@1": 2e-7}, created="2026-11-21T03:00:00.000000Z")
    >>> r.seconds("mkl.gemm@1"), r.error("mkl.gemm@1"), r.describe()
    (2e-07, None, 'tuning record of 2026-11-21, 1 algorithm')
    """

    key: str
    threads: int
    medians: Mapping[str, float] = field(default_factory=dict)
    minima: Mapping[str, float] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    winner: str = ""
    plan: str = ""
    calls: int = 0
    covered: tuple[str, ...] = ()
    under: Mapping[str, str] = field(default_factory=dict)
    disturbed: str = ""
    place: str = ""
    processors: str = ""
    calibrated: bool = False
    seed: int = 0
    spent: float = 0.0
    created: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    backline: str = ""
    schema: int = SCHEMA

    def seconds(self, algorithm: str) -> float | None:
        """Median time of an algorithm, by its key."""
        return self.medians.get(algorithm)

    def error(self, algorithm: str) -> float | None:
        """Relative error of an algorithm, by its key."""
        return self.errors.get(algorithm)

    def describe(self) -> str:
        """Returns the origin of an order that rests on this, in words."""
        count = len(self.medians)
        busy = ", timed on a busy machine" if self.disturbed else ""
        kind = "calibration" if self.calibrated else "tuning record"
        return f"{kind} of {self.created[:10]}, {count} algorithm{'' if count == 1 else 's'}{busy}"

    def without(self, names: Iterable[str]) -> TuningRecord:
        """The record without what it says of some libraries."""
        gone = set(names)

        def rest(part: Mapping[str, Any]) -> dict[str, Any]:
            return {k: v for k, v in part.items() if k.partition(".")[0] not in gone}

        winner = "" if self.winner.partition(".")[0] in gone else self.winner
        parts: dict[str, Any] = {
            name: rest(getattr(self, name)) for name in ("medians", "minima", "runs", "errors", "rejected", "versions")
        }
        covered = tuple(key for key in self.covered if key.partition(".")[0] not in gone)
        return replace(self, **parts, winner=winner, covered=covered)

    def renamed(self) -> TuningRecord:
        """The record under the keys that algorithms have now.

        Where several old keys are one now, the shortest times stay, the largest error, and any reason to reject it.
        """
        named = {*self.medians, *self.minima, *self.runs, *self.errors, *self.rejected, *self.covered, self.winner}
        if all(current_key(key) == key for key in named):
            return self

        def merged(table: Mapping[str, Any], order: Callable[[str], float] | None = None) -> dict[str, Any]:
            keys = table if order is None else sorted(table, key=order)
            return {current_key(key): table[key] for key in keys}  # of several the last one stays

        def slowest_first(key: str) -> float:
            return -self.medians.get(key, math.inf)

        parts: dict[str, Any] = {name: merged(getattr(self, name), slowest_first) for name in ("medians", "minima", "runs")}
        return replace(
            self, **parts, errors=merged(self.errors, self.errors.__getitem__), rejected=merged(self.rejected),
            covered=tuple(dict.fromkeys(map(current_key, self.covered))), winner=current_key(self.winner),
        )  # fmt: skip

    def line(self) -> str:
        """The record as one line of JSON with sorted keys."""
        import json

        content = {f.name: getattr(self, f.name) for f in fields(self)}
        content["errors"] = {k: v if math.isfinite(v) else None for k, v in self.errors.items()}
        return json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)


# Keys of earlier versions ---------------------------------------------------------------------------------------------


def current_key(key: str) -> str:
    """Returns the key that an algorithm has now.

    >>> current_key("numpy.compiled@n"), current_key("mkl.gemm@1"), current_key("default")
    ('kernels.compiled@n', 'mkl.gemm@1', 'default')
    """
    name, at, threads = key.partition("@")
    return RENAMED.get(name, name) + at + threads


# Reading --------------------------------------------------------------------------------------------------------------

ALGORITHM = re.compile(r"[a-z][a-z0-9_]{0,39}\.[A-Za-z0-9_]{1,60}@[1n]")
CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def _text(limit: int, pattern: str = r"[ -~]*") -> Callable[[Any], bool]:
    shape = re.compile(pattern)
    return lambda v: isinstance(v, str) and len(v) <= limit and shape.fullmatch(v) is not None


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high


def _number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and low <= v <= high


def _table(name: Callable[[Any], bool], value: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, dict) and len(v) <= MAX_ALGORITHMS and all(name(k) and value(x) for k, x in v.items())


_algorithm = _text(110, ALGORITHM.pattern)
_seconds = _number(1e-12, 1e6)

CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "schema": (_whole(SCHEMA, SCHEMA), f"{SCHEMA}"),
    "key": (_text(1000, r"[!-~][ -~]*"), "a line of printable ASCII"),
    "threads": (_whole(1, 1 << 16), "an integer from 1 to 65536"),
    "medians": (_table(_algorithm, _seconds), "algorithms with positive seconds"),
    "minima": (_table(_algorithm, _seconds), "algorithms with positive seconds"),
    "runs": (_table(_algorithm, _whole(1, 1 << 53)), "algorithms with counts"),
    "errors": (_table(_algorithm, lambda v: v is None or _number(0.0, 1e300)(v)), "algorithms with errors from 0, or null"),
    "rejected": (_table(_algorithm, _text(500)), "algorithms with reasons"),
    "left": (_table(_text(40, r"[a-z][a-z0-9_]*"), _text(200)), "libraries with reasons"),
    "winner": (lambda v: v in ("", "default") or _algorithm(v), 'an algorithm, "default" or empty'),
    "plan": (_text(500), "a line of printable ASCII"),
    "calls": (_whole(0, 1 << 53), "a count"),
    "covered": (lambda v: isinstance(v, list) and len(v) <= MAX_ALGORITHMS and all(map(_algorithm, v)), "a list of algorithms"),
    "under": (_table(_text(100, r"[a-z][a-z0-9_.]*"), _text(200)), "switches with values"),
    "disturbed": (_text(500), "a line of printable ASCII"),
    "place": (_text(200, r"([ -{}~]+\|[a-z0-9]+\|[a-z0-9 -]*\|\d+\.\d\d)?"), "operation|dtype|class|log2 of the work"),
    "processors": (_text(40, r"([a-z]+-[a-z0-9]+-\d+c)?"), "a class of processors such as intel-amx-2c"),
    "calibrated": (lambda v: isinstance(v, bool), "true or false"),
    "seed": (_whole(0, (1 << 64) - 1), "an integer of 64 bits"),
    "spent": (_number(0.0, 1e9), "seconds"),
    "created": (_text(27, CREATED.pattern), "a time such as 2026-11-21T03:00:00.000000Z"),
    "versions": (_table(_text(40, r"[a-z][a-z0-9_]*"), _text(100)), "libraries with versions"),
    "machine": (_text(100, r"[a-z0-9-]+"), "a machine's name"),
    "backline": (_text(60), "a version"),
}
# Fields that older records of this schema lack.
ADDED = frozenset(("left", "plan", "calls", "covered", "under", "disturbed", "place", "processors", "calibrated"))


def parse(text: object) -> TuningRecord:
    """The record that a line of JSON holds.

    Raises
    ------
    ValueError
        It is not one; the message says what is wrong.

    Examples
    --------
    >>> parse('{"schema": 99}')
    Traceback (most recent call last):
    ...
    ValueError: schema is 99, not 1
    """
    import json

    if not isinstance(text, str):
        raise ValueError(f"it is {type(text).__name__}, not text")
    if len(text) > MAX_TEXT:
        raise ValueError(f"it has more than {MAX_TEXT} characters")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    for name, (legal, wanted) in CHECKS.items():
        if name not in content:
            if name in ADDED:
                continue
            raise ValueError(f"{name} is missing")
        if not legal(content[name]):
            raise ValueError(f"{name} is {_short(content[name])}, not {wanted}")
    unknown = sorted(set(content) - set(CHECKS))
    if unknown:
        raise ValueError(f"{_short(unknown[0])} is not known here")
    errors = {k: math.inf if v is None else float(v) for k, v in content["errors"].items()}
    covered = tuple(content.get("covered", sorted({*content["medians"], *content["rejected"]})))
    return TuningRecord(**{**content, "errors": errors, "covered": covered}).renamed()


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
