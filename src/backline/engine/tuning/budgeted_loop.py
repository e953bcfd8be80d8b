"""The loop over what a script has to have measured: within a budget of time, and twice where the machine was busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from .record import TuningRecord

__all__ = ["BudgetedLoop"]

Item = TypeVar("Item")


class BudgetedLoop(Generic[Item]):
    """Goes through what is to be measured, the most important first, and after that through what is to be measured again.

    Parameters
    ----------
    wanted
        What is to be measured.
    budget
        Seconds.
    key
        Names one of them.
    progress
        Told number, of how many, and name of each when its first turn comes, and of the end.

    Attributes
    ----------
    first : bool
        Whether it is the first turn of the present one.
    left_out : dict
        Those for which no time was left, with the reason.
    """

    def __init__(
        self, wanted: Sequence[Item], budget: float, key: Callable[[Item], str], progress: Callable[[int, int, str], None]
    ) -> None:
        self.wanted, self.budget, self.key, self.progress = list(wanted), budget, key, progress
        self.deadline = time.perf_counter() + budget
        self.first = True
        self.left_out: dict[str, str] = {}
        self._kept: dict[int, TuningRecord] = {}
        self._again: list[Item] = []

    def __iter__(self) -> Iterator[Item]:
        for number, item in enumerate(self.wanted):
            self.progress(number, len(self.wanted), self.key(item))
            yield item
        self.first = False
        yield from self._again
        self.progress(len(self.wanted), len(self.wanted), "")

    def again(self, item: Item) -> None:
        """Gives one a second turn, after the first ones of all."""
        if self.first:
            self._again.append(item)

    def seconds_left(self) -> float:
        """Returns the seconds of the budget that are left; not above 0 where it is used up."""
        return self.deadline - time.perf_counter()

    def leave_out(self, item: Item) -> None:
        """Notes that no time was left for one, unless it was measured in its first turn."""
        if id(item) not in self._kept:
            self.left_out[self.key(item)] = (
                f"the budget of {self.budget:g} s was used up; `backline tune` again goes on with them"
            )

    def keep(self, item: Item, record: TuningRecord) -> None:
        """Takes the record of one; it has a second turn if the machine was busy."""
        self._kept[id(item)] = record
        if record.disturbed:
            self.again(item)

    def records(self) -> list[TuningRecord]:
        """Returns the records, the last one of each."""
        return list(self._kept.values())
