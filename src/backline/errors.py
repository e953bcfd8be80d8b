"""The exceptions and how they read.

Every error of backline says three things: what was refused, why, and what to do instead. Each class also
derives from the built-in exception that a program would naturally catch (``BadValue`` is a ``ValueError``,
``UnknownName`` an ``AttributeError``), so no import from here is needed to handle one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "BackendUnavailable",
    "BacklineError",
    "BadAxis",
    "BadType",
    "BadValue",
    "DeviceLost",
    "FallbackRefused",
    "Frozen",
    "LibraryFailed",
    "LinAlgError",
    "NoKernel",
    "NotDeterministic",
    "OutOfMemory",
    "ReadOnly",
    "ResultsDiffer",
    "TooLarge",
    "UnknownName",
]


class BacklineError(Exception):
    """Common base of the exceptions defined here.

    Parameters
    ----------
    message
        What was refused, in one sentence, with the offending value in it.
    cause
        Why. Left out of the text when empty.
    remedy
        What to do instead. Left out of the text when empty.

    Examples
    --------
    >>> print(BadValue("fallback = 'warm' is not a legal value.", remedy="write 'warn'"))
    fallback = 'warm' is not a legal value.
      remedy: write 'warn'
    """

    def __init__(self, message: str, *, cause: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [self.message]
        if self.cause:
            lines.append(f"  cause : {self.cause}")
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # BaseException would call the class with its positional arguments only and lose the other two.
        return _rebuild, (type(self), self.message, self.cause, self.remedy)


def _rebuild(cls: type[BacklineError], message: str, cause: str, remedy: str) -> BacklineError:
    return cls(message, cause=cause, remedy=remedy)


class BadValue(BacklineError, RuntimeError, ValueError):
    """A value outside the legal ones; the text lists those, the nearest first."""


class BadAxis(BadValue, IndexError):
    """An axis that an array does not have; the text says how many dimensions it has."""


class TooLarge(BadValue, MemoryError):
    """A result that no memory of this machine can hold; the text says how large it would be."""


class LinAlgError(np.linalg.LinAlgError, RuntimeError):
    """A matrix without such a factorization, inverse or solution: NumPy's class of that name, and a RuntimeError as in torch.

    Examples
    --------
    >>> import numpy as np, backline
    >>> try:
    ...     backline.linalg.cholesky(-np.eye(2))
    ... except RuntimeError as error:
    ...     print(error)
    linalg.cholesky: the leading minor of order 1 is not positive-definite
    >>> issubclass(LinAlgError, np.linalg.LinAlgError)
    True
    """


def refuse_overlap(out: Any, operand: Any) -> None:
    """Raise `BadValue` if two arrays whose ranges of bytes meet have an element in common.

    The compiled core calls this, and so do plans in Python, so that every library refuses the same calls.
    """

    try:
        # Exact for what people write; the bound keeps adversarial strides (an NP-hard problem) from hanging.
        bounded: Any = 10_000  # NumPy's own annotation knows two of the values only
        shared = np.shares_memory(out, operand, max_work=bounded)
    except np.exceptions.TooHardError:
        shared = True
    if shared:
        raise BadValue(
            f"out, of shape {out.shape}, overlaps an operand of shape {operand.shape}",
            cause="it would be overwritten while it is read",
            remedy="another array for out, or operand.copy()",
        )


class BadType(BacklineError, RuntimeError, TypeError):
    """A value of the wrong type; the text names the type given and the type wanted."""


class Frozen(BacklineError, RuntimeError):
    """A write to the process-wide values after ``disable_global_flags()``; scopes still work."""


class UnknownName(BacklineError, AttributeError):
    """An attribute that does not exist was read or set, or one that does was deleted."""


class ReadOnly(BacklineError, RuntimeError, AttributeError):
    """A read-only name was assigned; the text says what to set instead."""


class BackendUnavailable(BacklineError, RuntimeError):
    """A library is not there; the text says what was looked for, where, and how to get it."""


class FallbackRefused(BacklineError, RuntimeError):
    """``fallback`` is "error" and a preference could not be kept."""


class NoKernel(BacklineError, RuntimeError):
    """Every candidate for a call was disabled or refused; the text gives each one's reason."""


class NotDeterministic(BacklineError, RuntimeError):
    """Determinism is on and no candidate promises the level asked for."""


class ResultsDiffer(BacklineError, ArithmeticError):
    """A shadow run and a call's result differ by more than the tolerance; the text names operation, libraries and difference."""


class LibraryFailed(BacklineError, RuntimeError):
    """A library reported an error while it ran; the text has its own status in words. The next call prepares everything anew."""


class OutOfMemory(LibraryFailed, MemoryError):
    """A library found no memory; on a CUDA device, also after memory that CuPy kept in its pool was given back."""


class DeviceLost(LibraryFailed):
    """A device answers every call with an error since a kernel failed there: this process cannot use it any more."""
