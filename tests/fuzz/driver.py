"""Runs cases: every case by the public function and by every algorithm that the switches allow, each result checked."""

from __future__ import annotations

import bisect
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import backline
from backline import libraries
from backline.engine.choose import eligible, planner
from backline.errors import BacklineError, LinAlgError, NoKernel, NotDeterministic
from backline.libraries.base import planner_for
from backline.problems.op_registry import operations

from . import families  # noqa: F401  (registers the generators)
from .arrays import Array, Draw, Plain
from .call import GENERATORS, Call
from .check import Wrong

CPU = ("mkl", "openblas", "blis", "onednn", "xnnpack", "nnpack", "libmvec", "fftw", "scipy", "kernels", "numpy")
TRANSFORMING = ("wino", "fft", "ft")
LEGAL = (BacklineError, LinAlgError, MemoryError)
JUNK = (None, "x", -1, 0, 1.5, 2**31, 2**63, 10**12, float("nan"), (), [], (1, 2, 3, 4, 5, 6, 7, 8), True, object(), 1j, {}, b"x")


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault: what was called, by what, what was wrong, and the case that shows it."""

    op: str
    by: str
    kind: str
    text: str
    case: str
    code: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.op, self.by, self.kind


class Choice:
    """The operations that are fuzzed, by their weights, narrowed by family and library."""

    def __init__(self, only_families: str = "", only_libraries: str = "") -> None:
        wanted = set(filter(None, only_families.split(",")))
        chosen = {op: g for op, g in GENERATORS.items() if not wanted or g[0] in wanted or op in wanted}
        if not chosen:
            known = sorted({g[0] for g in GENERATORS.values()})
            raise SystemExit(f"no family or operation is named {only_families!r}; families: {', '.join(known)}")
        self.ops = list(chosen)
        self.sums = list(itertools.accumulate(g[2] for g in chosen.values()))
        self.libraries = tuple(filter(None, only_libraries.split(",")))

    def draw(self, draw: Draw) -> tuple[str, Call]:
        op = self.ops[bisect.bisect_right(self.sums, draw.random.random() * self.sums[-1])]
        return op, GENERATORS[op][1](draw)


def function_of(op: str) -> Any:
    found: Any = backline
    for part in op.split("."):
        found = getattr(found, part)
    return found


def _arrays(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Array]:
    found: list[Array] = []
    for value in (*args, *kwargs.values()):
        found += [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, np.ndarray)]
    return found


class Case:
    """One case: its calls, one after the other, as pairs of what runs it and a function without arguments."""

    def __init__(self, choice: Choice, seed: int, index: int, plain: Plain | None = None) -> None:
        self.draw = Draw(seed, index, plain)
        self.choice = choice
        self.op, self.call = choice.draw(self.draw)
        self.name = f"{seed}:{index}" + (f":{plain.text()}" if plain else "")
        self.illegal = self.draw.chance(0.02) and self.call.function is None

    def runs(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The calls by what runs them."""
        call, draw = self.call, self.draw
        function = call.function or function_of(call.op)
        if self.illegal:
            yield "illegal arguments", self._illegal(function)
            return
        threads = 2 if draw.chance(0.03) else 1
        # What is composed where no library has a plan has no Problem for some of its arguments.
        described = call.function is None and call.direct and call.op in operations and not hasattr(function, "__wrapped__")
        builder = operations[call.op].build if described else None
        scope = draw.choice(("", "", "", "", "", "deterministic", "threads", "bf16", "tf32"))
        if scope in ("bf16", "tf32") and call.reduced is None:
            scope = ""
        if not self.choice.libraries:
            yield f"default{' ' if scope else ''}{scope}" + (" on 2" if threads == 2 else ""), self._scoped(function, scope, threads)
        names = self.choice.libraries or CPU
        if builder is None:
            there = [n for n in names if libraries.get(n).available()]
            for name in there if self.choice.libraries else draw.random.sample(there, min(2, len(there))):
                yield f"only {name}", self._only(function, name)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = builder(*call.args, **call.kwargs)
        arrays = _arrays(call.args, call.kwargs)
        for algorithm in eligible(problem, threads):
            if self.choice.libraries and algorithm.library not in self.choice.libraries:
                continue
            yield f"{algorithm.library}.{algorithm.name}" + (" on 2" if algorithm.threads > 1 else ""), self._prepared(problem, algorithm, arrays)

    def _scoped(self, function: Any, scope: str, threads: int) -> Callable[[], Any]:
        call = self.call

        def run() -> Any:
            if not scope and threads == 1:
                return function(*call.args, **call.kwargs)
            flags: dict[str, Any] = {"num_threads": threads}
            if scope == "deterministic":
                flags["deterministic"] = True
            elif scope == "threads":
                flags |= {"deterministic": True, "determinism_level": "threads"}
            elif scope in ("bf16", "tf32"):
                flags["fp32_precision"] = scope
            with backline.backends.flags(**flags):
                return function(*call.args, **call.kwargs)

        return run

    def _only(self, function: Any, name: str) -> Callable[[], Any]:
        def run() -> Any:
            with backline.use(name, only=True):
                return function(*self.call.args, **self.call.kwargs)

        return run

    def _prepared(self, problem: Any, algorithm: Any, arrays: list[Array]) -> Callable[[], Any]:
        plan: Any = None

        def run() -> Any:
            nonlocal plan
            if plan is None:
                library = libraries.get(algorithm.library)
                plan = library.prepare(problem, algorithm, *planner_for(library, planner))
            return plan(*arrays)

        return run

    def _overlapping(self, function: Any) -> Callable[[], Any]:
        """An operand that lies in the memory of `out`: refused, or right."""
        call, draw = self.call, self.draw
        at = next((i for i, a in enumerate(call.args) if isinstance(a, np.ndarray) and a.dtype == call.out.dtype and a.size), None)
        if at is None or not call.out.size or not call.out.flags.c_contiguous:
            return lambda: function(*call.args, **call.kwargs)
        x = call.args[at]
        memory = np.empty(x.size + call.out.size, x.dtype)
        inside = memory[: x.size].reshape(x.shape)
        start = draw.whole(0, x.size)
        call.kwargs["out"] = memory[start : start + call.out.size].reshape(call.out.shape)
        call.args = (*call.args[:at], inside, *call.args[at + 1 :])
        call.out, draw.target = None, None

        def run() -> Any:
            inside[...] = x
            return function(*call.args, **call.kwargs)

        return run

    def _illegal(self, function: Any) -> Callable[[], Any]:
        """One argument replaced by something else: refused with one of our errors, or harmless."""
        draw, call = self.draw, self.call
        args, kwargs = list(call.args), dict(call.kwargs)
        if args and (not kwargs or draw.chance(0.7)):
            at: Any = draw.whole(0, len(args) - 1)
            held: Any = args
        else:
            held, at = kwargs, draw.choice(list(kwargs)) if kwargs else "nothing"
        if call.out is not None and draw.chance(0.5):
            return self._overlapping(function)
        old = held[at] if held is args or at in kwargs else None
        r = draw.random.random()
        if isinstance(old, np.ndarray) and r < 0.7:
            options = (old[None], old.ravel(), old.astype(np.float32), old.astype(np.int64), old[..., :-1] if old.ndim else old,
                       np.asarray(old, object), old.astype(">f8"), np.zeros(0), old.tolist(), old.astype(bool))  # fmt: skip
            held[at] = draw.choice(options)
        else:
            held[at] = draw.choice(JUNK)
        self.call.args, self.call.kwargs = tuple(args), kwargs
        if at == "out":
            call.out, draw.target = None, None
        call.check = lambda result: None
        return lambda: function(*args, **kwargs)


def check(case: Case, by: str, run: Callable[[], Any]) -> Finding | bool | None:
    """A finding; None where the result is right; False where nothing ran, by right."""
    call = case.call
    if call.out is not None:
        call.out[...] = np.nan if call.out.dtype.kind in "fcV" else 85
    try:
        result = run()
    except call.raises:
        return False
    except LEGAL as error:
        if by == "illegal arguments" or (isinstance(error, NoKernel) and by.startswith("only")) or isinstance(error, NotDeterministic):
            return False
        kind, text = "refused", f"{type(error).__name__}: {error}"
    except Exception as error:
        kind, text = f"exception {type(error).__name__}", f"{type(error).__name__}: {error}"
    else:
        try:
            _judge(case, by, result)
            return None
        except Wrong as wrong:
            kind, text = wrong.kind, str(wrong)
            if kind == "not finite" and not _all_finite(call):
                kind = "NaN or infinity spreads"
        except Exception as error:
            kind, text = "check failed", f"{type(error).__name__}: {error}"
    return Finding(case.op, by, kind, text, case.name)


def _all_finite(call: Call) -> bool:
    with np.errstate(all="ignore"):
        return all(np.isfinite(a.astype(np.complex128)).all() for a in _arrays(call.args, call.kwargs) if a is not call.out)


def _judge(case: Case, by: str, result: Any) -> None:
    call = case.call
    call.extra = call.loose if any(word in by for word in TRANSFORMING) else 0.0
    if " bf16" in by or " tf32" in by:
        call.extra = call.reduced
    try:
        call.check(result)
    except Wrong:
        if not (by.startswith(("default", "only")) and call.loose and _transforms(case, by)):
            raise
        call.extra = call.loose
        call.check(result)
    if call.out is not None and result is not call.out and not np.shares_memory(np.asarray(result), call.out):
        raise Wrong("out", "the result is another array than out")
    touched = case.draw.touched()
    if touched:
        raise Wrong("memory", touched)


def _transforms(case: Case, by: str) -> bool:
    """Tells whether an algorithm that was chosen freely is one of those with larger errors."""
    try:
        chosen = backline.explain(function_of(case.op), *case.call.args, **case.call.kwargs).algorithm
    except BacklineError:
        return False
    return any(word in chosen for word in TRANSFORMING)


def run_case(
    case: Case, note: Callable[[str], None], counts: Counter[str], target: str = "", skip: frozenset[str] = frozenset()
) -> list[Finding]:
    """Runs the calls of a case, or the one by `target`; `note` is told before each. What is in `skip` crashes."""
    found = []
    for by, run in case.runs():
        if target and by != target:
            continue
        if f"{case.op} by {by}" in skip:
            counts["skipped"] += 1
            continue
        note(f"{case.op} by {by}")
        # Twice: the second call finds its plan in the memo, and a plan's memory as the first one left it.
        for _ in range(2):
            result = check(case, by, run)
            if result is False:
                break
            counts[GENERATORS[case.op][0]] += 1
            counts["library " + by.removeprefix("only ").split(".")[0].split(" ")[0]] += 1
            if result is not None:
                found.append(result)
                break
    return found


SMALLER = (2, 3, 4, 6, 9, 17, 33, 0)


def shrink(choice: Choice, finding: Finding, seed: int, index: int) -> Finding:
    """The same fault with smaller sizes, plainer strides and values, as far as a few dozen attempts go."""
    def same(plain: Plain) -> Finding | None:
        try:
            case = Case(choice, seed, index, plain)
            if case.op != finding.op:
                return None
            for again in run_case(case, lambda text: None, Counter(), finding.by):
                if again.kind == finding.kind:
                    return Finding(again.op, again.by, again.kind, again.text, again.case, code_of(case))
        except Exception:
            return None
        return None

    for size in SMALLER:
        for layout, values in ((True, True), (True, False), (False, True), (False, False)):
            for out in (True, False):
                smaller = same(Plain(size, layout, values, out))
                if smaller is not None:
                    return smaller
    return finding


# The call as a program ----------------------------------------------------------------------------------------------------


def _literal(value: Any, lines: list[str]) -> str:
    if isinstance(value, np.ndarray):
        name = f"a{len(lines)}"
        lines.append(f"{name} = {_array(value)}")
        return name
    if isinstance(value, (tuple, list)):
        inner = ", ".join(_literal(v, lines) for v in value)
        return f"({inner},)" if isinstance(value, tuple) and len(value) == 1 else f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, float) and not np.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def _array(x: Array) -> str:
    name = "ml_dtypes.bfloat16" if x.dtype.name == "bfloat16" else f"np.{x.dtype.name}" if x.dtype.name != "bool" else "bool"
    if x.size <= 200:
        kind = "float" if x.dtype.name in ("bfloat16", "float16") else ""
        values = x.astype(kind).tolist() if kind else x.tolist()
        data = repr(values).replace("nan", "np.nan").replace("inf", "np.inf")
    else:
        data = f"np.random.default_rng(0).standard_normal({x.shape})"
    data = f"np.array({data}).astype({name})"
    if x.size == 0 or x.ndim == 0:
        return f"{data}.reshape({x.shape})"
    if x.flags.c_contiguous and x.flags.aligned:
        return f"{data}.reshape({x.shape})"
    return f"strided({data}, {x.shape}, {x.strides})"


STRIDED = """\
def strided(values, shape, strides):
    low = sum(min(s * (n - 1), 0) for s, n in zip(strides, shape))
    high = sum(max(s * (n - 1), 0) for s, n in zip(strides, shape)) + values.itemsize
    x = np.ndarray(shape, values.dtype, np.zeros(high - low, np.uint8), -low, strides)
    x[...] = values.reshape(shape)
    return x
"""


def code_of(case: Case) -> str:
    """A program that makes the call."""
    lines: list[str] = []
    if any(type(a).__name__ == "QArray" for a in case.call.args) or case.call.function is not None:
        return f"make fuzz CASE={case.name}   # a call with packed or quantized operands"
    if case.call.out is not None:
        case.call.out[...] = np.nan if case.call.out.dtype.kind in "fcV" else 85
    given = [_literal(a, lines) for a in case.call.args] + [f"{k}={_literal(v, lines)}" for k, v in case.call.kwargs.items()]
    lines.append(f"print(backline.{case.call.op}({', '.join(given)}))")
    text = "\n".join(lines)
    head = "import numpy as np, ml_dtypes, backline\n" if "ml_dtypes" in text else "import numpy as np, backline\n"
    return head + (STRIDED if "strided(" in text else "") + text
