"""Accounts of what learning while running costs: it may take a part of the time that calls took so far, and no more."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

__all__ = ["Account", "Costs"]

LEFT = 0.5  # part of what others left that a Problem may take which has used up the part of its own time
OF_ITS_OWN = 10.0  # times the part allowed of all time that trials of one Problem may take of its own


@dataclass(slots=True)
class Account:
    """Seconds that calls took, learning included, and what something cost of them.

    Examples
    --------
    >>> account = Account(spent=2.0, cost=0.05)
    >>> round(account.room(0.03), 3)
    0.01
    """

    spent: float = 0.0
    cost: float = 0.0

    def room(self, part: float) -> float:
        """Seconds left of a part of the time spent; negative after something took longer than was expected."""
        return part * self.spent - self.cost


@dataclass(slots=True)
class Costs:
    """Time that learning takes in a process, and the usual times of its steps.

    Attributes
    ----------
    account
        Time of all calls, and what learning cost of it.
    trials
        The part of the cost that trials took beyond the time of the choices.
    planned
        Seconds that trials are expected to cost whose calls have not come yet; they count as if they had been spent.
    steps
        How many steps that are told below have been counted.
    timing, preparing, listing, writing
        Seconds to time a call and decide what the next one runs, to prepare an algorithm, to list the candidates of a Problem, to
        write records: what they took lately. What is not in the caches when it is wanted takes many times as long.

    Examples
    --------
    A Problem whose calls took 0.1 of the 10 seconds so far may take a half of what the others leave, but no more than 0.3 of
    its own time, since the bound is 0.03.

    >>> costs, mine = Costs(Account(spent=10.0, cost=0.1)), Account(spent=0.1)
    >>> round(costs.room(0.03), 3), round(costs.room(0.03, mine), 3)
    (0.2, 0.03)
    """

    account: Account = field(default_factory=Account)
    trials: float = 0.0
    planned: float = 0.0
    steps: int = 0
    timing: float = 2e-5
    preparing: float = 0.0002
    listing: float = 0.001
    writing: float = 0.1
    lock: threading.Lock = field(default_factory=threading.Lock)

    def room(self, overhead: float, mine: Account | None = None, *, borrows: bool = True) -> float:
        """Seconds that learning may take now, where it may take the part `overhead` of the time; or trials of a Problem.

        One that does not borrow is to take the part of its own time alone.
        """
        left = self.account.room(overhead) - self.planned
        if mine is None:
            return left
        own = mine.room(overhead)
        if not borrows:
            return min(left, own)
        return min(left, max(own, LEFT * left), mine.room(min(OF_ITS_OWN * overhead, 1.0)))

    def charge(self, account: Account, spent: float, trial: float = 0.0) -> None:
        """Counts calls of a Problem that has an account, and what a trial among them cost."""
        with self.lock:
            account.spent += spent
            account.cost += trial
            self.trials += trial
            self.account.spent += spent
            self.account.cost += trial

    def plan(self, seconds: float) -> None:
        """Counts what a trial is expected to cost, or with a negative number forgets it."""
        with self.lock:
            self.planned = max(self.planned + seconds, 0.0)

    def took(self, what: str, seconds: float) -> None:
        """Counts work, and corrects what is expected of it by what it took this time."""
        with self.lock:
            usual = getattr(self, what)
            setattr(self, what, usual * (max(seconds, 1e-6) / usual) ** 0.3)  # of one that another program held up, little
            self.account.spent += seconds
            self.account.cost += seconds
            self.steps += 1
