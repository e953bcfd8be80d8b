"""Measures the precision of algorithms: relative errors and equivalent mantissa bits of ordinary and of hard operands."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .. import libraries, switches
from ..errors import BadValue
from ..libraries.base import Algorithm, planner_for
from ..problems import SHORT, Problem, short
from ..problems.fft_problem import FftProblem
from ..problems.length_factors import SMOOTH, largest_factor
from .choice import Candidate
from .choose import choose, planner
from .effective_precision import FINENESS, node, permitted, spelled
from .eligibility import able
from .leader import threads_of
from .mantissa_bits import MantissaBits
from .precision_cases import ADVERSARIAL, FORMATS, ONE_TERM, ORDINARY, Case, cases
from .precision_figures import BOUND, BOUNDS, Figure
from .tuning.sample_operands import arrays_for

__all__ = [
    "Measurement",
    "PrecisionReport",
    "PrecisionRow",
    "Sample",
    "check_precision",
    "loss_of_choice",
    "measure",
    "plain_bits",
]

ELEMENTS, REPEATS = 256, 16  # elements of results that an error is the largest of: where one result has fewer, several are made
ROUNDINGS_OF_A_BUTTERFLY = 4  # of complex numbers
HEADS = ("operation", "dtype", "library", "algorithm", "computed in", "error", "bits", "ordinary", "worst", "worst case")


@dataclass(frozen=True, slots=True)
class Sample:
    """Outcome of one algorithm in one case: relative error, equivalent mantissa bits, or the words with which it failed."""

    algorithm: Algorithm
    error: float = math.inf
    bits: float = 0.0
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """All algorithms on one case.

    Attributes
    ----------
    problem
        The Problem.
    samples
        Each algorithm's.
    plain
        Bits that plain arithmetic in the dtype has, as `plain_bits` counts them.
    """

    problem: Problem
    samples: tuple[Sample, ...]
    plain: float

    def best(self) -> Sample | None:
        """Returns the most precise of those that compute in the dtype's own arithmetic."""
        own = [s for s in self.samples if not s.failed and own_arithmetic(s.algorithm, self.problem)]
        return max(own, key=lambda s: s.bits, default=None)

    def loss(self, sample: Sample) -> float:
        """Returns the bits that an algorithm loses against the best, or plain arithmetic where the best has more than that."""
        best = self.best()
        return max(min(best.bits, self.plain) - sample.bits, 0.0) if best is not None else 0.0


def plain_bits(problem: Problem) -> float:
    """Returns the bits that plain arithmetic in the dtype has: each operation rounded, and terms summed one after the other.

    Rounding errors of a sum of k random terms grow with the root of k, so that sums have one bit less for each factor of four.

    Examples
    --------
    >>> [plain_bits(Problem.parse(f"matmul f32 9x{k} {k}x9")) for k in (1, 4, 16, 256)]
    [23.0, 23.0, 22.0, 20.0]
    """
    roundings = problem.summands
    if isinstance(problem, FftProblem):
        # Where the length has a large prime factor, a transform is made of three of more than twice the length.
        steps = 3 * (problem.summands + 2) if any(largest_factor(n) > SMOOTH for n in problem.lengths) else problem.summands
        roundings = ROUNDINGS_OF_A_BUTTERFLY * steps
    return FORMATS[short(problem.dtype)].stored - max(math.log2(roundings) / 2 - 1, 0.0)


def own_arithmetic(algorithm: Algorithm, problem: Problem) -> bool:
    """Tells whether an algorithm computes in the format of the dtype: what uses a wider one is no measure of the others."""
    return algorithm.precision in ("", "ieee", "f32 accumulation", short(problem.dtype))


def measure(
    problem: Problem, algorithms: Sequence[Algorithm], *, seed: int, change: Any = None, elements: int = ELEMENTS,
    repeats: int = REPEATS,
) -> Measurement:  # fmt: skip
    """Runs algorithms on the same operands, and compares their results with a reference in a wider format.

    Parameters
    ----------
    problem, algorithms
        What is asked, and what runs it.
    seed
        Of the operands.
    change
        Changes random operands in place: called with the Problem, the operands and a generator of random numbers.
    elements, repeats
        A Problem whose result has fewer elements is measured on several sets of operands, so many at most.
    """
    errors: dict[int, list[float]] = defaultdict(list)
    units: list[float] = []
    failed: dict[int, str] = {}
    plans: dict[int, Any] = {}
    size, rounds = 0, 0
    while rounds < repeats and size < elements:
        arrays = arrays_for(problem, seed + rounds)
        if change is not None:
            change(problem, arrays, np.random.default_rng(seed + rounds))
        bits = MantissaBits(problem, arrays)
        rounds += 1
        made = 0
        for i, a in enumerate(algorithms):
            if i in failed:
                continue
            try:
                library = libraries.get(a.library)
                if i not in plans:
                    plans[i] = library.prepare(problem, a, *planner_for(library, planner))
                with np.errstate(all="ignore"):
                    result = plans[i](*arrays, **dict.fromkeys(problem.scalars, 0))
            except (RuntimeError, ValueError, ArithmeticError, OSError) as error:
                failed[i] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                continue
            made = max(made, np.size(result[0] if isinstance(result, tuple) else result))
            if bits.measurable:
                errors[i].append(bits.error(result))
        size += max(made, 1)
        units += [bits.unit] if bits.measurable else []
    samples = []
    for i, a in enumerate(algorithms):
        if i in failed:
            samples.append(Sample(a, failed=failed[i]))
        elif units:
            # The unit is the largest error of the same operands, as the error is: of small results both are a matter of luck,
            # which the largest of several is not.
            worst = max(errors[i])
            bits.unit = max(units)
            samples.append(Sample(a, worst, bits.of(worst)))
    return Measurement(problem, tuple(samples), plain_bits(problem))


@dataclass(frozen=True, slots=True)
class PrecisionRow:
    """The precision of one algorithm for one operation and dtype.

    Attributes
    ----------
    operation, dtype, library, algorithm
        What was measured.
    precision
        What it computes in: "ieee", "tf32", "bf16", "f32 accumulation", ...
    figure
        The figures.
    """

    operation: str
    dtype: str
    library: str
    algorithm: str
    precision: str
    figure: Figure

    def as_dict(self) -> dict[str, Any]:
        """Returns the row as JSON has it."""
        return {name: value for name, value in asdict(self).items() if name != "figure"} | self.figure._asdict()

    def cells(self) -> tuple[str, ...]:
        """Returns the row as text."""
        f = self.figure
        numbers = (f"{f.error:.1e}", f"{f.bits:.1f}", f"{f.ordinary:.1f}", f"{f.worst:.1f}", f.case)
        return (self.operation, self.dtype, self.library, self.algorithm, self.precision, *numbers)


@dataclass(slots=True)
class PrecisionReport:
    """Result of `check_precision`; prints as a table.

    Attributes
    ----------
    rows : list of PrecisionRow
        One for each operation, dtype and algorithm.
    failures : dict
        Case -> algorithms that failed there, with what they said.
    unreached : int
        Cases for which there was no time.
    """

    rows: list[PrecisionRow] = field(default_factory=list)
    failures: dict[str, list[str]] = field(default_factory=dict)
    unreached: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as JSON has it."""
        return {"rows": [row.as_dict() for row in self.rows], "failures": self.failures, "unreached": self.unreached}

    def __str__(self) -> str:
        lines = [HEADS, *(row.cells() for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(HEADS))]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        from html import escape

        heads = "".join(f"<th>{head}</th>" for head in HEADS)
        body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row.cells()) + "</tr>" for row in self.rows)
        return f"<table><tr>{heads}</tr>{body}</table>"


@dataclass(slots=True)
class _Tally:
    """Outcomes of one algorithm so far."""

    precision: str
    one_term: list[float] = field(default_factory=list)
    ordinary: list[tuple[float, int, float]] = field(default_factory=list)
    all: list[tuple[float, str, int, float]] = field(default_factory=list)
    losses: list[tuple[float, str, str]] = field(default_factory=list)

    def add(self, case: Case, measurement: Measurement, sample: Sample) -> None:
        if case.part == ONE_TERM:
            self.one_term.append(sample.bits)
        elif case.part == ORDINARY:
            self.ordinary.append((sample.bits, measurement.problem.summands, sample.error))
        self.all.append((sample.bits, case.name, measurement.problem.summands, sample.error))
        best = measurement.best()
        # What operands that are hard on purpose cost is told, and refuses nothing: few programs have them.
        if best is not None and case.part != ADVERSARIAL and sample.algorithm.precision not in FINENESS:
            against = f"{best.algorithm.library}.{best.algorithm.name}"
            self.losses.append((measurement.loss(sample), against, case.name))

    def figure(self) -> Figure:
        worst, case, terms_of_worst, error_of_worst = min(self.all)
        bits, terms, error = min(self.ordinary, default=(worst, terms_of_worst, error_of_worst))  # it may run long sums alone
        loss = max(self.losses, default=(0.0, "", ""))
        return Figure(
            round(self.one_term[0] if self.one_term else bits, 2),
            round(bits, 2), terms, float(f"{error:.2e}"), round(worst, 2), case,
            *((round(loss[0], 2), *loss[1:]) if loss[0] >= 0.005 else ()),
        )  # fmt: skip


def check_precision(
    *ops: str, library: str = "", dtype: str = "", seconds: float = math.inf, quick: bool = False, seed: int = 1,
    progress: Callable[[int, int, str], None] | None = None,
) -> PrecisionReport:  # fmt: skip
    """Measures how precise the algorithms of the CPU libraries are, each against a reference in a wider format.

    Parameters
    ----------
    *ops
        Families ("matmul", "fft", "linalg"), parts of operations' names, or patterns ("linalg.*"); none for all.
    library
        This library only; the others still are what it is compared with.
    dtype
        This dtype only, by its name ("float32") or its short one ("f32").
    seconds
        Time after which no further problem is begun.
    quick
        Whether a few ordinary problems are enough.
    seed
        Of the random operands.
    progress
        Called with the problems done, their number, and the text of the next one.

    Returns
    -------
    PrecisionReport
        Relative error, equivalent mantissa bits, and the worst case of each algorithm, dtype and precision; prints as a table.

    Raises
    ------
    BadValue
        No case has such an operation or dtype; there is no such library.

    Notes
    -----
    Algorithms that switches forbid are left out, but reduced precision is measured whether it is permitted or not.

    Examples
    --------
    >>> import backline
    >>> report = backline.check_precision("matmul", library="numpy", dtype="f32", quick=True)
    >>> report.rows[0].library, 23 <= report.rows[0].figure.bits <= 24
    ('numpy', True)
    """
    libraries.ready()
    if library:
        libraries.get(library)  # or an error that lists the names
    wanted = cases(ops, _short(dtype), quick)
    if not wanted:
        raise BadValue(
            f"no case of the check has an operation like {' or '.join(map(repr, ops))}{f' of {dtype}' if dtype else ''}",
            remedy=f"one of: {', '.join(FORMATS)}" if dtype and cases(ops) else "a family, a part or a pattern: fft, linalg.*",
        )
    end = time.monotonic() + seconds
    with switches.scope(emulate=True):  # the library that emulates is measured, too
        snapshot = switches.current()
    tallies: dict[tuple[str, str, str, str], _Tally] = {}
    report = PrecisionReport()
    for number, case in enumerate(wanted):
        if time.monotonic() > end:
            report.unreached = len(wanted) - number
            break
        if progress is not None:
            progress(number, len(wanted), case.text)
        problem = Problem.parse(case.text)
        refused: list[Candidate] = []
        algorithms = able(problem, threads_of(snapshot), snapshot, refused, planner)
        if library and library not in {a.library for a in algorithms}:
            continue
        measurement = measure(problem, algorithms, seed=seed, change=case.change)
        for sample in measurement.samples:
            a = sample.algorithm
            if library not in ("", a.library):
                continue
            if sample.failed:
                report.failures.setdefault(f"{case.name}: {case.text}", []).append(f"{a.key}: {sample.failed}")
                continue
            key = problem.op, short(problem.dtype), a.library, a.name
            precision = spelled(a, node(problem)) or "ieee"
            tallies.setdefault(key, _Tally(precision)).add(case, measurement, sample)
    for (op, name, lib, algorithm), tally in sorted(tallies.items()):
        report.rows.append(PrecisionRow(op, name, lib, algorithm, tally.precision, tally.figure()))
    return report


def _short(dtype: str) -> str:
    found = SHORT.get(dtype, dtype)
    if found and found not in FORMATS:
        raise BadValue(f"the precision of {dtype!r} is not measured", remedy=f"one of: {', '.join(FORMATS)}")
    return found


def loss_of_choice(problem: Problem, seed: int) -> tuple[float, Measurement]:
    """Returns the bits that what is chosen for a Problem loses on random operands against the best there is, and all samples.

    The chosen algorithm is the first of the samples. A loss above the family's bound is measured again, on many more operands:
    of small results the largest error is a matter of luck.
    """
    snapshot = switches.current()
    chosen = choose(problem, measure=False).chosen
    assert chosen is not None
    refused: list[Candidate] = []
    others = permitted(able(problem, threads_of(snapshot), snapshot, refused, planner), problem, snapshot, refused)
    algorithms = [chosen, *(a for a in others if a.key != chosen.key)]
    for elements, repeats in ((ELEMENTS, REPEATS), (64 * ELEMENTS, 8 * REPEATS)):
        made = measure(problem, algorithms, seed=seed, elements=elements, repeats=repeats)
        if not made.samples:
            return 0.0, made
        loss = made.loss(made.samples[0])
        if loss <= BOUNDS.get(problem.family, BOUND):
            break
    return loss, made
