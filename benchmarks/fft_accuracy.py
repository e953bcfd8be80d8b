"""Errors of Fourier transforms at random lengths, beside NumPy's: ``python benchmarks/fft_accuracy.py [--count N] [--seed N]``.

Each case is one call of a function of `backline.fft` under the default switches: a random length up to ``--most`` (2^18
unless given; primes, small multiples of primes, products of small primes, powers of two and their neighbours, and any), a
random function of six, dtype, number of transforms, normalisation and layout. Its result and that of the same function of
NumPy are compared with a transform in a wider format: long double for float64, float64 for float32. Printed and kept are the
cases with the largest ratio of the two relative errors (in the Euclidean norm), and which library ran how many. With
``--library NAME`` that library alone is allowed; what it refuses is counted. ``--single`` tries the lengths at which libraries
compute float32 in float64, and lets them compute in float32; ``--untried`` tries those that MKL may use after a trial only, and
lets it. The exit status is 1 where a ratio is above 10.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

import numpy as np
import scipy.fft

import backline
import backline.fft
from backline import libraries
from backline.libraries.mkl.transform_trials import Trials, doubtful
from backline.problems import operand
from backline.problems.fft_problem import FftProblem
from backline.problems.length_factors import largest_factor

Array = np.ndarray[Any, Any]

FUNCTIONS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
ALLOWED = 10.0  # times NumPy's error
WORST = 20  # cases that are kept
ROUGH = 47  # prime factor above which a length is tried with --single


@dataclass(frozen=True)
class Case:
    """One call: function, length, rows, dtype, normalisation, elements between neighbours, and the seed of its numbers."""

    function: str
    n: int
    rows: int
    single: bool
    norm: str
    step: int
    seed: int

    @property
    def epsilon(self) -> float:
        return float(np.finfo(np.float32 if self.single else np.float64).eps)

    def numbers(self) -> Array:
        """The input."""
        rng = np.random.default_rng(self.seed)
        half = self.function in ("irfft", "hfft")
        shape = (self.rows, (self.n // 2 + 1 if half else self.n) * self.step)
        x = rng.standard_normal(shape)
        if self.function not in ("rfft", "ihfft"):
            x = x + 1j * rng.standard_normal(shape)
        if half:  # what the real result has no room for
            x[:, 0] = x[:, 0].real
            if self.n % 2 == 0:
                x[:, self.n // 2 * self.step] = x[:, self.n // 2 * self.step].real
        x = x.astype({"c": "complex64", "f": "float32"}[x.dtype.kind]) if self.single else x
        x = x[:, :: self.step]
        return x[0] if self.rows == 1 else x

    def exact(self, x: Array) -> Array:
        """The transform in a wider format."""
        real, whole = (np.float64, np.complex128) if self.single else (np.longdouble, np.clongdouble)
        wide = x.astype(whole if x.dtype.kind == "c" else real)
        return np.asarray(getattr(scipy.fft, self.function)(wide, self.n, norm=self.norm))

    def ratio(self, result: Array, x: Array) -> tuple[float, float, float]:
        """Relative errors of a result and of NumPy's, and the first in units of the second.

        Where NumPy's is less than an eighth of the machine's epsilon, by luck or because the length is tiny, that counts instead.
        """
        exact = self.exact(x)
        numpys = getattr(np.fft, self.function)(x, self.n, norm=self.norm)
        ours, theirs = (_error(y, exact) for y in (result, numpys))
        return ours, theirs, ours / max(theirs, self.epsilon / 8)


def _error(result: Array, exact: Array) -> float:
    d = np.abs(result - exact)
    size = np.abs(exact)
    return float(np.sqrt(np.sum(d * d) / np.sum(size * size)))


def prime_from(n: int) -> int:
    """Return the first prime that is not less."""
    n = max(n, 2)
    while any(n % k == 0 for k in range(2, int(n**0.5) + 1)):
        n += 1
    return n


def length(rng: np.random.Generator, most: int) -> int:
    """Return a random length of 2 to `most` points, small ones as often as large ones."""
    n = int(np.exp(rng.uniform(np.log(2), np.log(most))))
    kind = rng.integers(6)
    if kind == 0:
        found = prime_from(n)
    elif kind == 1:
        found = (factor := int(rng.choice([2, 3, 4, 6, 8, 12, 64]))) * prime_from(n // factor)
    elif kind == 2:
        found = 1
        while found < n:
            found *= int(rng.choice([2, 2, 2, 3, 3, 5, 7, 11, 13]))
    elif kind == 3:
        found = (1 << int(np.log2(n))) + int(rng.choice([0, 0, -1, 1, 2]))
    else:
        found = n
    return min(max(found, 2), most)


def cases(seed: int, count: int, most: int) -> Iterator[Case]:
    """Yield random cases; the same for the same seed."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        n = length(rng, most)
        rows = int(rng.choice([1, 1, 1, 2, 3, 8])) if n < most // 8 else 1
        norm, step = str(rng.choice(["backward", "ortho", "forward"])), int(rng.choice([1, 1, 1, 2]))
        yield Case(str(rng.choice(FUNCTIONS)), n, rows, bool(rng.integers(2)), norm, step, seed * 100_003 + i)


def always_single() -> Any:
    """Returns a scope in which no transform of float32 is computed in float64 for its length."""
    return mock.patch.object(FftProblem, "needs_double", lambda self, largest: False)


def untried() -> Any:
    """Returns a scope in which MKL computes what it may compute after a trial only."""
    return mock.patch.object(Trials, "refusal", lambda *args: "")


def in_doubt(case: Case) -> bool:
    """Tells whether MKL's transform is tried before it is used."""
    x = case.numbers()
    half = case.function in ("irfft", "hfft")
    op = "fft.c2r" if half else "fft.r2c" if case.function in ("rfft", "ihfft") else "fft.c2c"
    sets = libraries.get("mkl").instruction_sets()
    problem = FftProblem(op, (operand("input", x),), (), "fft", axes=(x.ndim - 1,), lengths=(case.n,))
    return doubtful(problem, avx512=sets is None or "avx512" in sets)


def option(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else ""


def main() -> int:
    from side_by_side import Table

    count, seed, most = int(option("--count") or 3000), int(option("--seed") or 0), int(option("--most") or 1 << 18)
    library, single, doubt = option("--library"), "--single" in sys.argv, "--untried" in sys.argv
    found: list[dict[str, Any]] = []
    ran: Counter[str] = Counter()
    with ExitStack() as scopes:
        if library:
            scopes.enter_context(backline.use(library, only=True))
        for wanted, scope in ((single, always_single), (doubt, untried)):
            if wanted:
                scopes.enter_context(scope())
        for case in cases(seed, count, most):
            if (single and not (case.single and largest_factor(case.n) > ROUGH)) or (doubt and not in_doubt(case)):
                continue
            x = case.numbers()
            try:
                result = getattr(backline.fft, case.function)(x, case.n, norm=case.norm)
            except backline.errors.NoKernel:
                ran["refused"] += 1
                continue
            choice = backline.explain()
            way = f"{choice.library} {choice.algorithm}"
            ours, theirs, ratio = case.ratio(result, x)
            ran[way] += 1
            found.append({"ratio": ratio, "error": ours, "numpy": theirs, "ran_on": way, **asdict(case)})
    found.sort(key=lambda f: -f["ratio"])
    over = sum(f["ratio"] > ALLOWED for f in found)
    shares = {}
    for dtype, precise in (("float32", False), ("float64", True)):
        of_it = [f["ratio"] > ALLOWED for f in found if f["single"] != precise]
        shares[dtype] = f"{sum(of_it)} of {len(of_it)}"
    print(f"{'ratio':>8} {'error':>9} {'NumPy':>9}  {'':6} {'':10} {'points':>8} rows  ran on")
    for f in found[:WORST]:
        dtype = "float32" if f["single"] else "float64"
        errors = f"{f['ratio']:8.2f} {f['error']:9.1e} {f['numpy']:9.1e}"
        print(f"{errors}  {f['function']:6} {dtype:10} {f['n']:8d} {f['rows']:4d}  {f['ran_on']}")
    print(f"\n{len(found)} transforms, {over} with more than {ALLOWED:g} times NumPy's error: {shares}")
    print(f"ran on: {dict(ran.most_common())}")
    modes = [word for wanted, word in ((single, "single"), (doubt, "untried")) if wanted]
    name = option("--name") or "_".join(filter(None, ["fft_accuracy", library, *modes]))
    table = Table(name, [])
    table.rows = found[:WORST]
    median = float(np.median([f["ratio"] for f in found]))
    table.save(count=count, seed=seed, most=most, over=over, shares=shares, median=median, ran_on=dict(ran))
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(main())
