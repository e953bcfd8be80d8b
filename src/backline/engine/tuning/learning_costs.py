"""Accounts of what learning while running costs: it may take a part of the time that calls took so far, and no more."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

__all__ = ["Account", "Costs"]


@dataclass(slots=True)
class Account:
    """Seconds that calls took, learning included, and what learning cost of them.

    Examples
    --------
    >>> account = Account(spent=2.0, cost=0.05)
    >>> round(account.room(0.03), 3)
    0.01
    """

    spent: float = 0.0
    cost: float = 0.0

    def room(self, overhead: float) -> float:
        """Seconds that may be spent on learning now; negative after a trial took longer than was expected."""
        return overhead * self.spent - self.cost


@dataclass(slots=True)
class Costs:
    """The account of a process and what things that are done for learning usually take.

    Attributes
    ----------
    account
        Of all Problems.
    preparing, listing, writing
        Seconds to prepare an algorithm, to list the candidates of a Problem, to write records.
    """

    account: Account = field(default_factory=Account)
    preparing: float = 0.0005
    listing: float = 0.002
    writing: float = 0.02
    lock: threading.Lock = field(default_factory=threading.Lock)

    def charge(self, account: Account | None, spent: float, cost: float) -> None:
        """Adds to the account of the process and to that of one Problem."""
        with self.lock:
            for one in (self.account, account):
                if one is not None:
                    one.spent += spent
                    one.cost += cost

    def took(self, what: str, seconds: float) -> None:
        """Corrects what is expected of something by what it took this time."""
        setattr(self, what, 0.7 * getattr(self, what) + 0.3 * seconds)
