"""Which Fourier transforms MKL runs, and in which way.

In float32 and float64 as they are, as "dfti", and transforms of one axis whose length has a large prime factor as "dfti_chirp",
convolutions of other lengths (`chirp_fft`). Where float32 is wrong or loses digits (`transform_trials`), "dfti_chirp" takes its
place, if that is right, and all may be computed in float64, as "dfti_double": the input is converted before, the result after.
Where float64 loses digits, "dfti" is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ...native import thread_team
from ...problems.fft_problem import FftProblem
from .. import fixed_order
from ..base import Algorithm, Library, Refusal
from ..blas.cblas import BlasTraits
from ..fft_steps import empty_plan, in_pieces, on_threads, thread_counts, unfit
from .chirp_fft import ChirpSteps, convolved
from .mkl_fft import DftiSteps
from .transform_trials import Trials, doubtful

__all__ = ["fft_algorithms", "prepare_fft"]

MOST_AXES = 7
WAYS: dict[str, Callable[..., DftiSteps]] = {
    "dfti": DftiSteps, "dfti_double": partial(DftiSteps, wide=True), "dfti_chirp": ChirpSteps,
}  # fmt: skip
Listed = Callable[..., Iterator[Algorithm]]  # of a way of computing, with its precision and note


def fft_algorithms(
    library: Library, traits: BlasTraits, trials: Trials, problem: FftProblem, threads: int
) -> Iterator[Algorithm | Refusal]:
    """Lists DFTI's algorithms for a Problem, or the reason why there are none."""
    from .. import errata

    name = traits.name
    if problem.op == "fft.r2r":
        yield Refusal(name, "dfti", "DFTI has no cosine and sine transforms")
        return
    if problem.empty:
        yield Algorithm(library=name, name="empty", level="threads", basis="construction", note="nothing to compute")
        return
    reason = unfit(problem)
    if reason or len(problem.axes) > MOST_AXES:
        yield Refusal(name, "dfti", reason or f"DFTI transforms up to {MOST_AXES} axes, not {len(problem.axes)}")
        return
    wrong = any(True for _ in errata.matching(library, problem, "dfti"))  # a choice refuses it; it is listed to be checked
    sets = library.instruction_sets()
    doubt = not wrong and doubtful(problem, avx512=sets is None or "avx512" in sets)

    def whole(count: int) -> Listed:
        return lambda way, **how: iter([on_threads(name, way, count, pool=traits.pool, **how)])

    def divided(way: str, **how: str) -> Iterator[Algorithm]:
        return in_pieces(name, way, problem, threads, pool=traits.pool, **how)

    def refusal(tried: Algorithm) -> str:
        return trials.refusal(problem, tried, partial(library.prepare, algorithm=tried))

    for listed in (*map(whole, thread_counts(problem, threads)), divided):
        tried = next(listed("dfti"), None)  # all that are listed beside it give the same bits
        if tried is None:
            continue
        reason = refusal(tried) if doubt else ""
        if reason:
            yield Refusal(name, tried.name, reason)
        if not reason and not (wrong and listed is divided):
            yield from listed("dfti")
        if convolved(problem) and (reason or wrong or not problem.single):
            way = partial(listed, "dfti_chirp", note="a convolution with a chirp (Bluestein)")
            other = refusal(next(way())) if problem.single else ""  # lengths of the convolution are never doubtful in float64
            if other:
                yield Refusal(name, next(way()).name, other)
            else:
                yield from way()
        if (reason or wrong) and problem.single:
            yield from listed("dfti_double", precision="f64", note="float32 computed in float64")


def prepare_fft(traits: BlasTraits, problem: FftProblem, algorithm: Algorithm) -> Any:
    """The plan of an Algorithm that `fft_algorithms` listed."""
    if algorithm.name == "empty":
        return empty_plan(problem)
    threads = 1 if thread_team.forked() else algorithm.threads
    way = algorithm.name.removesuffix(fixed_order.SUFFIX)
    return WAYS[way](traits, problem, threads, divided=way != algorithm.name).plan()
