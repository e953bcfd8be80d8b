"""The Plan of the first calls of a shape, where the best one is compiled and shapes keep changing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["EarlyPlan"]


class EarlyPlan:
    """A Plan that another one takes the place of after a number of calls.

    The Memo keeps it, so that calls of a shape that comes again cost one function more than those of the Plan itself. Each length
    of a growing key cache is met by all layers of a network: a choice at each of their calls would take
    longer than the calls. Threads that call at once may count one call for two, which only moves the moment.

    Parameters
    ----------
    plan
        What runs first.
    calls
        How often it runs.
    renew
        Makes what runs then. Where that raises, the call does, and the next one tries again.

    Examples
    --------
    >>> early = EarlyPlan(lambda x: x + 1, 2, lambda: lambda x: x - 1)
    >>> [early(5) for call in range(4)]
    [6, 6, 4, 4]
    """

    __slots__ = ("_left", "_renew", "plan")

    def __init__(self, plan: Any, calls: int, renew: Callable[[], Any]) -> None:
        self.plan, self._left = plan, calls
        self._renew: Callable[[], Any] | None = renew

    @property
    def choice(self) -> Any:
        """The Choice of what runs now."""
        return self.plan.choice

    @property
    def failed(self) -> bool:
        """True where what runs now is not to be used again."""
        return bool(getattr(self.plan, "failed", False))

    @property
    def scalars(self) -> tuple[str, ...]:
        """The run-time scalars that calls bring."""
        return tuple(self.plan.scalars)

    def __call__(self, *arrays: Any, **scalars: Any) -> Any:
        if self._left > 0:
            self._left -= 1
        elif self._renew is not None:
            self.plan = self._renew()
            self._renew = None
        return self.plan(*arrays, **scalars)
