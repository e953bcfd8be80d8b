"""Accounts of what learning while running costs: it may take a part of the time that calls took so far, and no more."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

__all__ = ["TRIALS", "Account", "Costs"]

TRIALS = 0.75  # part of what learning may take that is for trials, for each Problem of its own time; the rest is for other work


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
        Time of all calls, and of the work beside trials.
    trials
        Seconds that trials took beyond the time of the choices.
    preparing, listing, writing
        Seconds to prepare an algorithm, to list the candidates of a Problem, to write records.
    """

    account: Account = field(default_factory=Account)
    trials: float = 0.0
    preparing: float = 0.0005
    listing: float = 0.002
    writing: float = 0.02
    lock: threading.Lock = field(default_factory=threading.Lock)

    def room(self, overhead: float) -> float:
        """Seconds that may be spent now on other work than trials, where learning may take the part `overhead` of the time."""
        return self.account.room((1.0 - TRIALS) * overhead)

    def charge(self, account: Account, spent: float, trial: float = 0.0, work: float = 0.0) -> None:
        """Counts calls of a Problem that has an account, what a trial among them cost, and other work for them."""
        with self.lock:
            account.spent += spent
            account.cost += trial
            self.trials += trial
            self.account.spent += spent
            self.account.cost += work

    def took(self, what: str, seconds: float) -> None:
        """Counts work, and corrects what is expected of it by what it took this time."""
        with self.lock:
            setattr(self, what, 0.7 * getattr(self, what) + 0.3 * seconds)
            self.account.spent += seconds
            self.account.cost += seconds
