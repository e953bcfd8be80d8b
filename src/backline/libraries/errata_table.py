"""The shipped errata, as data. docs/errata.md is made from it: ``backline info --errata --docs docs/errata.md``."""

from __future__ import annotations

from .errata import Erratum

__all__ = ["TABLE"]

TABLE: tuple[Erratum, ...] = ()
