"""The seeds of dropout: those that a call is given, and those that the process draws after `manual_seed`."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from .linalg_checks import whole

__all__ = ["checked_seed", "drawn_generator", "drawn_seed", "is_drawn", "manual_seed", "seed_given", "seed_of"]

# Made by manual_seed and by nothing else: without it a call without a seed is refused, since nobody could repeat it.
_generator: np.random.Generator | None = None
_lock = threading.Lock()


class DrawnSeed(int):
    """A seed that the process drew: the same call draws another one the next time, so that its plan must not be kept."""


def manual_seed(seed: int) -> np.random.Generator:
    """Seeds the generator that dropout draws from where a call gives no seed, for the whole process.

    Parameters
    ----------
    seed
        An int from ``-2**63`` to ``2**64 - 1``, as in torch; negative ones count from ``2**64``.

    Returns
    -------
    numpy.random.Generator
        The generator: ``numpy.random.default_rng(seed)``. The numbers are not those of torch.

    Raises
    ------
    BadType, BadValue
        Not an int; out of range.

    Examples
    --------
    >>> import numpy as np, backline
    >>> x = np.ones(8, np.float32)
    >>> generator = backline.manual_seed(1)
    >>> backline.nn.functional.dropout(x)
    array([2., 2., 0., 2., 0., 0., 2., 0.], dtype=float32)
    """
    global _generator
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        raise BadType(f"manual_seed: seed = {seed!r} is {type(seed).__name__}, not an int", remedy="an int: manual_seed(0)")
    if not -(2**63) <= seed < 2**64:
        raise BadValue(f"manual_seed: seed = {seed}", cause="it is out of range", remedy="an int from -2**63 to 2**64 - 1")
    with _lock:
        _generator = np.random.default_rng(int(seed) % 2**64)
        return _generator


def drawn_generator(where: str) -> np.random.Generator:
    """Returns the process's generator; a `BadValue` says that `manual_seed` has not been called."""
    if _generator is None:
        raise BadValue(
            f"{where}: dropout without a seed" if where != "dropout" else "dropout without a seed",
            cause="results must be repeatable, and nothing says which elements are left out",
            remedy="seed=0, and another one for every step; or backline.manual_seed(0) once, for all calls",
        )
    return _generator


def seed_given(where: str, seed: Any, kind: str = "an int") -> int | None:
    """Returns the seed of a call, an int of 0 or more; None stays. `kind` says in an error what it may be."""
    number = None if seed is None else whole(where, "seed", seed, kind)
    if number is not None and number < 0:
        raise BadValue(f"{where}: seed={number}", remedy="0 or more")
    return number


def checked_seed(where: str, seed: Any) -> int | None:
    """Returns the seed of a call; None where the process draws one when the call runs. Refuses a call for which nobody can."""
    number = seed_given(where, seed)
    if number is None:
        drawn_generator(where)
    return number


def drawn_seed(where: str) -> int:
    """Returns a seed from the process's generator, which moves on."""
    return int(drawn_generator(where).integers(2**63))


def seed_of(where: str, seed: Any) -> int:
    """Returns the seed of a call, or one that the process draws."""
    number = seed_given(where, seed)
    return DrawnSeed(drawn_seed(where)) if number is None else number


def is_drawn(parameters: Iterable[tuple[str, Any]]) -> bool:
    """Tells whether the process drew the seed that is among the parameters of a Problem."""
    return any(type(value) is DrawnSeed for _, value in parameters)
