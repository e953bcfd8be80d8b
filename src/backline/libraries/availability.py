"""Availability of a library: whether it can be used now, the reason where it cannot, its version and a remedy."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Availability", "Version", "keep_remedy"]

Version: TypeAlias = int | str | None

_remedies: dict[str, str] = {}  # by reason


def keep_remedy(reason: str, remedy: str) -> str:
    """Keeps what to do about a reason, for `Availability.remedy`; returns the reason."""
    if reason:
        _remedies[reason] = remedy
    return reason


class Availability:
    """Base of everything that can be there or not: the libraries that run calls, and the files and packages behind others.

    Attributes
    ----------
    name : str
        Its name in the registry.
    title : str
        Its name as its makers write it.
    how_to_get : str
        A command, or where it comes with.
    """

    name = ""
    title = ""
    how_to_get = ""

    def available(self) -> bool:
        """Tells whether it is found and usable now. Never raises; the answer is kept."""
        return self.reason() == ""

    def reason(self) -> str:
        """Returns the reason why it is not available, or an empty string."""
        raise NotImplementedError

    def version(self) -> Version:
        """Returns the version as the library itself tells it; None if it is absent or does not tell."""
        raise NotImplementedError

    def remedy(self) -> str:
        """Returns what to do where it is not available."""
        return _remedies.get(self.reason(), "") or self.how_to_get
