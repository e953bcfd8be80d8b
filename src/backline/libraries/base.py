"""The interface between libraries and the engine: a Library refuses a Problem, or lists Algorithms and prepares Plans."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .. import _core
from ..errors import BadValue, LibraryFailed, NoKernel
from ..native import loading
from ..problems import Problem
from ..records import Record
from . import registry
from .availability import Availability

if TYPE_CHECKING:
    from ..native.library_search import Finding, LibrarySpec  # importing backline searches nothing

__all__ = [
    "ANY_SHAPE", "BORROWED", "COMPILED_AFTER", "NULL_PLANNER", "ONE_SHAPE", "Algorithm", "FileLibrary", "Handler", "Library",
    "Planner", "PythonPlan", "Refusal", "RefusedForNow", "failure", "planner_for",
]  # fmt: skip

LEVELS = ("off", "run", "threads")

#: Trait of an algorithm that sets a thread count of the whole process while it runs.
BORROWED = "count of the process"

#: Trait of an algorithm that comes first where nothing was measured, on devices that no ranking was made for.
LEADS = "leads"

#: Trait of an algorithm that compiles code for one shape: worth its time where calls of the shape are many.
ONE_SHAPE = "one shape"
COMPILED_AFTER = 500  # calls of one shape

#: Trait of an algorithm that is made soon, and stays, of a library whose others wait until a shape has come again.
ANY_SHAPE = "any shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One way a library has to solve a Problem.

    Attributes
    ----------
    library, name
        Who, and how: ``"mkl"``, ``"gemm"``.
    threads
        Threads it uses here.
    scaled
        Whether `threads` is the number the caller allows (else the Algorithm uses one thread whatever is allowed).
    precision
        Effective precision of the arithmetic: the short name of a dtype, or "tf32" or "bf16" for a float32 problem.
    level
        Determinism it reaches: "off", "run" or "threads".
    basis
        What that rests on: "promise", "measured" or "construction".
    pool
        Name of the thread pool it uses, "" for none.
    note
        What else a user should know.
    traits
        What a switch may forbid: "fp16 reduction", "emulated", ... (`engine.policy` has the table).
    isa
        Least CPU capability it needs, in lower case: "avx2", "avx512"; "" for none.
    """

    library: str
    name: str
    threads: int = 1
    scaled: bool = False
    precision: str = ""
    level: str = "run"
    basis: str = "measured"
    pool: str = ""
    note: str = ""
    traits: tuple[str, ...] = ()
    isa: str = ""

    @property
    def key(self) -> str:
        """Name in tuning records and rankings: ``mkl.gemm@n`` on all threads, ``mkl.gemm@1`` on one."""
        return f"{self.library}.{self.name}@{'n' if self.scaled else 1}"

    def reaches(self, level: str) -> bool:
        return LEVELS.index(self.level) >= LEVELS.index(level)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for which a library, or one of its algorithms, is not a candidate.

    Attributes
    ----------
    library, name, reason
        Library, algorithm or "", and why.
    switch
        The switch that would change it, if one would.
    lacks
        Whether the library does not have the operation at all, whatever the shapes and dtypes.
    """

    library: str
    name: str
    reason: str
    switch: str = ""
    lacks: bool = False


class RefusedForNow(BadValue):
    """A call that no library can take at this moment: no other one is tried, and none goes on record for it."""


def failure(plan: Any, message: str, *, cause: str = "", error: type[LibraryFailed] = LibraryFailed) -> LibraryFailed:
    """The error to raise where a library failed to run a plan; the plan is not used again."""
    if isinstance(plan, _core.PreparedCall):
        plan.failed = True
        _core.memo_clear()  # calls that led to the plan look for one in its cache again, which makes a new one
    return error(message, cause=cause)


class PythonPlan:
    """A Plan that is a Python function of the arrays of the call, in order, and of its run-time `scalars`, by keyword.

    For references, not for speed.
    """

    __slots__ = ("choice", "function", "scalars")

    def __init__(self, function: Any, scalars: tuple[str, ...] = ()) -> None:
        self.function, self.scalars = function, scalars
        self.choice: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import numpy as np

        arrays = []
        for value in (*args, *kwargs.values()):
            if isinstance(value, np.ndarray):
                arrays.append(value)
            elif isinstance(value, tuple):
                arrays += [v for v in value if isinstance(v, np.ndarray)]
        return self.function(*arrays, **{name: kwargs[name] for name in self.scalars if name in kwargs})


class Planner(Protocol):
    """The engine, as libraries see it whose algorithms are made of operations, or whose vendors have plans of their own."""

    def chosen(self, problem: Problem) -> Any:
        """Returns the Choice for a Problem under the switches that hold; nothing is measured or prepared for it."""

    def plan(self, problem: Problem) -> Any:
        """Returns the Plan for a Problem under the switches that hold."""

    def cufft_plan(self, device: int, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns the plan of cuFFT for a key from the cache of a device; `make` makes the one that is not there."""

    def timed_plan(self, library: str, key: str) -> tuple[str, int]:
        """Returns the vendor's plan that was the fastest for a key, "" if none was timed, and of how many at most (0: of all)."""

    def keep_timed_plan(self, library: str, key: str, plan: str, seconds: float, searched: int) -> None:
        """Keeps the vendor's plan that was the fastest for a key, its time, and how many were timed at most (0: all)."""


class NullPlanner:
    """The Planner of a library that is used without the engine: it keeps nothing, and there are no plans of other libraries."""

    def chosen(self, problem: Problem) -> Any:
        raise NoKernel(f"nothing plans {problem.key}", cause="the library was called without a planner")

    plan = chosen

    def cufft_plan(self, device: int, key: Hashable, make: Callable[[], Any]) -> Any:
        return make()

    def timed_plan(self, library: str, key: str) -> tuple[str, int]:
        return "", 0

    def keep_timed_plan(self, library: str, key: str, plan: str, seconds: float, searched: int) -> None:
        pass


NULL_PLANNER = NullPlanner()


class Handler(Record):
    """Support of one library for one type of Problem.

    Attributes
    ----------
    algorithms
        Function of the library's `context`, the Problem and the threads allowed: its algorithms, and why it lacks others.
    prepare
        Function of the `context`, the Problem and an Algorithm that `algorithms` listed: the Plan.
    one_shape
        Calls of one shape from which on its Plan is worth its time where shapes keep changing: it holds tables for the shape. 0
        where Plans hold nothing of the kind.
    one_shape_flops
        Operations of the largest Problem for which that holds: calls of a larger one take longer elsewhere than its Plan.
    one_shape_if
        Tells whether that holds for a Problem.
    one_shape_work
        Operations of all calls of one shape from which on its Plan is worth its time, where that is more calls than `one_shape`.
    soon
        As `algorithms`, those alone whose Plans are made soon, and nothing where the library refuses the Problem; None where the
        library has none.
    """

    algorithms: Callable[[Any, Any, int], Iterable[Algorithm | Refusal]]
    prepare: Callable[[Any, Any, Algorithm], Any]
    one_shape: int = 0
    one_shape_flops: float = math.inf
    one_shape_if: Callable[[Any], bool] = lambda problem: True
    one_shape_work: float = 0.0
    soon: Callable[[Any, Any, int], Iterable[Algorithm | Refusal]] | None = None

    def waits(self, problem: Problem) -> bool:
        """Tells whether a Problem is passed over where shapes keep changing."""
        return bool(self.one_shape) and problem.flops <= self.one_shape_flops and self.one_shape_if(problem)

    def calls(self, problem: Problem) -> int:
        """Returns the calls of a shape from which on its Plan is worth its time where shapes keep changing."""
        return max(self.one_shape, int(self.one_shape_work / max(problem.flops, 1.0)))

    @classmethod
    def plain(
        cls,
        algorithms: Callable[[Any, int], Iterable[Algorithm | Refusal]],
        prepare: Callable[[Any, Algorithm], Any],
        one_shape: int = 0,
    ) -> Handler:
        """Returns the Handler of two functions that take no context."""
        return cls(
            lambda context, problem, threads: algorithms(problem, threads),
            lambda context, problem, algorithm: prepare(problem, algorithm),
            one_shape,
        )


class Library(Availability):
    """Base of the libraries. A subclass has `reason`, `version` and `handlers`, or `algorithms` and `prepare` of its own.

    What else is known of it is its row in `registry`.

    Attributes
    ----------
    name, title, how_to_get
        From its row, and so are the others below; a class without a row sets them itself.
    handlers
        What it has for each type of Problem. A subclass without any has `algorithms` and `prepare` of its own, which may leave
        the planner out.
    threaded
        Whether it can use more than one thread for a call.
    rwlock
        Lock that its prepared calls take, None for none.
    switch
        The switch that allows it; ``<name>.enabled`` unless a subclass says otherwise.
    families
        Op families it may have something for; empty for any.
    devices
        Kinds of device whose arrays it takes.
    openmp
        Whether its threads are those of an OpenMP runtime.
    engines
        Engines of ``quantized.engine`` whose operations it has.
    kernels
        Attention kernels it has, in lower case: "math", "flash_attention".
    strict
        Whether it was asked, when it was loaded, for the same bits on any number of threads, and gives other last bits for that.
    being_made
        Whether it stands for a library that is needed while it is being made, and is not kept.
    """

    switch = ""
    being_made = False
    strict = False
    families: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    openmp = False
    kernels: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    handlers: ClassVar[Mapping[type[Problem], Handler]] = {}
    threaded = True
    rwlock: _core.ReadWriteLock | None = None
    _row: registry.LibraryInfo | None = None

    def __init_subclass__(cls) -> None:
        cls._row = None
        row = registry.implemented_by(f"{cls.__module__}:{cls.__qualname__}")
        if row is not None:
            cls._describe(row)
        elif not cls.switch and cls.name:
            cls.switch = f"{cls.name}.enabled"

    @classmethod
    def _describe(cls, row: registry.LibraryInfo) -> None:
        """Sets what a row says of the library."""
        cls._row = row
        cls.name, cls.title, cls.how_to_get, cls.switch = row.name, row.title, row.install, row.switch
        cls.families, cls.devices, cls.openmp = row.families, row.devices, row.openmp
        cls.kernels, cls.engines = row.kernels, row.engines

    @property
    def info(self) -> registry.LibraryInfo:
        """The row in `registry`; for a class without one, a row made from its attributes."""
        if self._row is not None:
            return self._row
        row = registry.find(self.name) or registry.LibraryInfo(self.name)
        return row.replaced(
            title=self.title,
            switch=self.switch,
            families=self.families,
            devices=self.devices,
            kernels=self.kernels,
            engines=self.engines,
        )

    def loaded(self) -> bool:
        """Tells if asking it anything costs no more than the answer: there is no file to load, or it was tried."""
        return True

    def imported(self) -> bool:
        """Tells if nothing that takes long has to be imported before an algorithm of it can be prepared."""
        return True

    def version(self) -> str | None:
        raise NotImplementedError

    def instruction_sets(self) -> tuple[str, ...] | None:
        """Instruction sets that its kernels are for ("avx2", "avx512"), as errata name them; None where it does not tell."""
        return None

    def capability(self, problem: Problem) -> tuple[int, int]:
        """Compute capability of the GPU of a Problem, as errata name it; (0, 0) where that is not known, and on CPUs."""
        return (0, 0)

    def concerns(self, kind: type[Problem], op: str, device: str) -> bool:
        """Tells whether it may have something for an operation: it is asked about no other one."""
        return not self.handlers or kind in self.handlers

    def context(self, planner: Planner) -> Any:
        """Returns the first argument of the functions of `handlers`."""
        return self

    def algorithms(self, problem: Problem, threads: int, planner: Planner = NULL_PLANNER) -> Iterator[Algorithm | Refusal]:
        """Returns the algorithms for a Problem on at most that many threads, and the reasons for those that are lacking."""
        handler = self.handlers.get(type(problem))
        if not self.available():
            return iter((Refusal(self.name, "", f"not available: {self.reason()}"),))
        if handler is None:
            return iter((Refusal(self.name, "", f"{self.title} has no {problem.op}", lacks=True),))
        return iter(handler.algorithms(self.context(planner), problem, threads if self.threaded else 1))

    def prepare(self, problem: Problem, algorithm: Algorithm, planner: Planner = NULL_PLANNER) -> Any:
        """Returns the Plan: a callable of the arrays of the call."""
        handler = self.handlers.get(type(problem))
        if handler is None:
            raise LibraryFailed(f"{self.title} has no {problem.op}")
        plan = handler.prepare(self.context(planner), problem, algorithm)
        if self.rwlock is not None and isinstance(plan, _core.PreparedCall):
            plan.rwlock = self.rwlock  # here, so that plans of second tries and measurements have it as well
        return plan

    def details(self) -> dict[str, Any]:
        """Returns facts of this library's own for `report`, which come after the common ones and replace them."""
        return {}

    def report(self) -> dict[str, Any]:
        """Returns facts for `backline info`: path, version, where it was found, threads, what was set at load."""
        reason = self.reason()
        facts: dict[str, Any] = {"name": self.name, "title": self.title, "available": not reason, "reason": reason}
        facts |= {"how to get": self.how_to_get} if reason else {"version": self.version()}
        return facts | self.details()


def planner_for(library: Library, planner: Planner) -> tuple[Planner] | tuple[()]:
    """Returns the last argument of `algorithms` and `prepare`: none for a library without handlers, which may not take it."""
    return (planner,) if library.handlers else ()


class FileLibrary(Library):
    """Base of the libraries that a file has to be loaded for; it is, when somebody first asks whether it can be used.

    Attributes
    ----------
    finding
        Result of the search for the file; None before.
    facts
        What was learned when it was loaded, for `report`.
    load_seconds
        Time that finding, loading and checking it took, without testing the file in a child process; 0 before.
    """

    load_seconds = 0.0
    finding: Finding | None = None
    facts: Mapping[str, Any] = MappingProxyType({})
    _reason: str | None = None
    _being_loaded = False

    @property
    def spec(self) -> LibrarySpec:
        """The description of its file for the search."""
        return self.info.spec

    def load(self) -> str:
        """Find, load and check the file; why it cannot be used, or an empty string. Called by one thread at a time."""
        raise NotImplementedError

    def test(self, path: str) -> dict[str, str]:
        """Load a file and compute with it, in a child process that may crash: "reason" is what is wrong with it, or empty."""
        raise NotImplementedError

    def loaded(self) -> bool:
        return self._reason is not None

    def reason(self) -> str:
        reason = self._reason
        return self._load_once() if reason is None else reason

    def _load_once(self) -> str:
        with loading.lock():
            if self._reason is not None:
                return self._reason  # another thread was first
            if self._being_loaded:
                return f"{self.title} is being loaded"  # its own loading asks
            begin = time.perf_counter() - loading.testing_seconds
            self._being_loaded = True
            try:
                reason = self.load()
            except (OSError, RuntimeError, ValueError) as error:
                # dlopen's own text, or a symbol or call that is not as it should be: a reason, not a crash.
                reason = f"{type(error).__name__}: {error}"
            finally:
                self._being_loaded = False
            self.load_seconds = time.perf_counter() - loading.testing_seconds - begin
            self._reason = reason  # last: from here on other threads use the library without the lock
            return reason

    def details(self) -> dict[str, Any]:
        found = self.finding
        searched = {} if found is None else {
            "path": found.path, "found by": found.step, "search": [str(step) for step in found.steps],
        }  # fmt: skip
        return searched | (dict(self.facts) if self.available() else {})
