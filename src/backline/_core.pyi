"""The compiled core: what it exports to Python. The sources are in ``_core/``."""

from collections.abc import Callable, Container, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Self, TypedDict, final

import numpy as np

__all__ = [
    "CallSampler",
    "MemoInfo",
    "Operation",
    "PlanTemplate",
    "PoolInfo",
    "PreparedCall",
    "ReadWriteLock",
    "ScopeState",
    "ThreadCountGuard",
    "bind_scope",
    "call_convention",
    "cxx_flags",
    "empty",
    "fill_shares",
    "flush_denormal",
    "forget_array_types",
    "jobs_callback_address",
    "last_plan",
    "memo_clear",
    "memo_forget",
    "memo_generation",
    "memo_info",
    "memo_max_size",
    "pause_seconds",
    "pool_info",
    "pool_limit",
    "register_array_type",
    "run",
    "set_base",
    "set_team_limit",
    "set_tracer",
    "share_looks",
    "share_processors",
    "team_bind",
    "team_bound",
    "team_check",
    "team_keep_apart",
    "team_moves",
    "team_speedup",
    "team_stays_awake",
    "team_threads",
    "wait_for_ended_threads",
]

# The compiler and the flags this was compiled with, for reports; empty in a build by hand.
cxx_flags: str
# How plans call vendors' functions: "direct", or "libffi".
call_convention: str
most_threads: int
most_rolled: int
# A capsule: what backline._kernels needs of the thread team.
services: object

class MemoInfo(TypedDict):
    """State of the Memo. (In the stub only: at run time it is a dict.)"""

    size: int
    max_size: int
    lookups: int
    misses: int

class PoolInfo(TypedDict):
    """State of the pool of large blocks. (In the stub only: at run time it is a dict.)"""

    idle_bytes: int
    idle_blocks: int
    limit_bytes: int
    taken: int
    reused: int

@final
class ScopeState:
    """The switches that hold in one context; the value of the ContextVar given to `bind_scope`."""

    def __new__(cls, layers: Any, base: Any, snapshot: Any, tracer: Any = None) -> ScopeState: ...
    @property
    def layers(self) -> Any: ...
    @property
    def base(self) -> Any: ...
    @property
    def snapshot(self) -> Any: ...
    @property
    def tracer(self) -> Any: ...

@final
class ThreadCountGuard:
    """Sets a library's thread count around calls that need another one.

    `address` is the library's function; `kind` is 0 (holds for the calling thread), 1 (for the process) or 2 (for the process,
    with a 64-bit argument). `get`, with kind 0, is a function that tells the count which `address` then does not return.
    """

    def __new__(cls, address: int, kind: int, get: int = 0) -> ThreadCountGuard: ...
    @property
    def value(self) -> int: ...
    @property
    def active(self) -> int: ...
    @property
    def calls(self) -> int: ...
    def enter(self, threads: int, /) -> int: ...
    def leave(self, former: int, /) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
    def forget(self) -> None: ...
    def forked(self) -> None: ...

@final
class ReadWriteLock:
    """Lets one thread have a library to itself for a while; prepared calls with this `rwlock` wait meanwhile."""

    def __new__(cls) -> ReadWriteLock: ...
    @property
    def readers(self) -> int: ...
    @property
    def write_locked(self) -> bool: ...
    def acquire_write(self) -> None: ...
    def release_write(self) -> None: ...
    def acquire_read(self) -> None: ...
    def release_read(self) -> None: ...

@final
class PreparedCall:
    """Native calls, copies and triangles over buffers, ready to run on arrays of one layout."""

    choice: Any
    rwlock: ReadWriteLock | None
    failed: bool
    lasts: int
    @property
    def choice_source(self) -> Any: ...
    @property
    def runs(self) -> int: ...
    @property
    def used(self) -> int: ...

    def __new__(
        cls,
        arguments: int,
        buffers: Sequence[Any],
        groups: Sequence[Any],
        results: Iterable[int],
        overlaps: Sequence[Any],
        *,
        wrap: Callable[..., Any] | None = None,
        info: tuple[int, int, int] | None = None,
        on_info: Callable[..., Any] | None = None,
        thread_guard: ThreadCountGuard | None = None,
        threads: int = 0,
        release_gil: bool = False,
        keep: object = None,
        serial: bool = False,
        first: Sequence[Any] | None = None,
    ) -> PreparedCall: ...
    @property
    def kept_bytes(self) -> int: ...
    @property
    def keep(self) -> Any: ...
    @property
    def threads(self) -> int: ...
    @property
    def arguments(self) -> int: ...
    def __call__(self, *arrays: np.ndarray[Any, Any]) -> Any: ...

@final
class PlanTemplate:
    """A Plan for calls that differ in sizes and strides alone: expressions of these, and the conditions under which it holds."""

    def __new__(
        cls,
        quantities: Iterable[tuple[int, bool, int]],
        quotients: Iterable[Any],
        conditions: Iterable[Any],
        levels: Iterable[Any],
        sums: Iterable[Any],
        description: tuple[Any, ...] | None,
        options: dict[str, Any],
        rwlock: ReadWriteLock | None,
        describe: Callable[[tuple[int, ...]], Any] | None,
        same: Callable[[tuple[int, ...]], bool] | None,
        lasts: int,
    ) -> Self: ...

@final
class SampledPlan:
    """A Plan of which some calls are timed, for learning while running."""

    plan: Any
    next: Any
    repeatable: bool

    def __new__(
        cls, plan: Any, sampler: Callable[[SampledPlan, Any, int, int, int, int], object], calls: int, repeatable: bool
    ) -> SampledPlan: ...
    def time_after(self, calls: int, /) -> None: ...

@final
class CallSampler:
    """A tracer that some calls are handed to before they run; the others run as if it were not there."""

    @property
    def outer(self) -> Any: ...
    def __new__(
        cls, run: Callable[[CallSampler, Operation, Any, tuple[Any, ...], dict[str, Any]], Any], calls: int, outer: Any = None
    ) -> CallSampler: ...
    def after(self, calls: int, /) -> None: ...
    def over(self, listener: Callable[..., object], /) -> CallSampler: ...
    def __call__(self, op: str, plan: Any, nanoseconds: int) -> object: ...

class Operation:
    """The public callable of a hot operation: runs the Plan of a call whose signature was seen before, else asks for one."""

    __name__: str
    __qualname__: str
    __module__: str
    __doc__: str | None
    __signature__: Any
    __wrapped__: Any

    def __new__(
        cls,
        name: str,
        parameters: tuple[str, ...],
        resolve: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        general: Callable[..., Any],
        bound: tuple[np.ndarray[Any, Any], ...] = ...,
        most: int = 8,
        foreign: bool = False,
        templated: Callable[[tuple[Any, ...], dict[str, Any]], PlanTemplate | None] | None = None,
        scalar: str | None = None,
        draw: Callable[[], int] | None = None,
    ) -> Self: ...
    def own_plans(self) -> list[Any]: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...
    @property
    def resolve(self) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]: ...
    @property
    def general(self) -> Callable[..., Any]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def bind_scope(contextvar: ContextVar[ScopeState], current: Callable[[], Any], /) -> None: ...
def set_base(snapshot: Any, /) -> None: ...
def set_tracer(tracer: Callable[..., object] | None, /) -> None: ...
def team_bind(parallel: int, number: int, size: int, /) -> None: ...
def team_keep_apart(on: bool, /) -> None:
    """Keeps sleeping threads of the team off the caller's processor, or lets them stay there."""

def team_stays_awake(seconds: float) -> None:
    """Tell how many seconds the threads of the team wait for work before they sleep."""

def team_moves() -> int:
    """Counts how often the team's threads were given other processors."""

def team_threads() -> list[int]:
    """Identifiers of the threads of the team that have run for threads of this process."""

def share_processors(
    look: Callable[[], tuple[int, float]] | None,
    fewer: Callable[[Any, Any, int, tuple[Any, ...], dict[str, Any]], Any] | None,
    /,
) -> None: ...
def share_looks() -> int: ...
def wait_for_ended_threads(running: Container[int], seconds: float, /) -> int: ...
def pause_seconds() -> float:
    """Seconds that a pause of the processor takes, as loops have it that wait."""

def team_bound() -> bool: ...
def flush_denormal(on: bool, threads: int, /) -> bool:
    """Take subnormal numbers for zero in this thread and so many of the team's; False where the processor cannot."""

def fill_shares(memory: Any, threads: int, /) -> None:
    """Fill memory with ones, an equal share of it by each of so many threads of the team."""

def set_team_limit(threads: int, /) -> None: ...
def jobs_callback_address() -> int: ...
def team_check(jobs: int, /) -> tuple[int, int]: ...
def team_speedup(threads: int, /) -> float:
    """Returns how much more so many threads of the team do in a time than one does alone."""

def register_array_type(type: type, how: tuple[tuple[str, ...], ...] | Callable[[Any], tuple[Any, ...]], /) -> bool: ...
def forget_array_types() -> None: ...
def memo_generation() -> int: ...
def memo_info() -> MemoInfo: ...
def memo_clear() -> None: ...
def memo_forget(plans: Iterable[Any], /) -> None: ...
def memo_max_size(entries: int, /) -> None: ...
def empty(shape: int | Sequence[int], dtype: np.dtype[Any], /) -> np.ndarray[Any, Any]:
    """Returns an uninitialised array in C order; memory of a large one comes from the pool."""

def pool_info() -> PoolInfo: ...
def pool_limit(limit: int, /) -> None: ...
def last_plan() -> Any: ...
def run(name: str, plan: Any, /, *arrays: Any, **scalars: int) -> Any: ...
