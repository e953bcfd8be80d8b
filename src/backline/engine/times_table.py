"""Times of algorithms for several Problems, as columns of a table: what holds for all Problems is computed of all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .effective_precision import fineness

__all__ = ["Column", "TimesTable"]

Column = Any  # numpy array of float64, one for each Problem; NaN where nothing is known
LEAST = 1e-9  # below any time


class TimesTable(NamedTuple):
    """Logarithms of times, a row for each Problem and a column for each algorithm.

    Attributes
    ----------
    problems : tuple of str
        Keys of the Problems.
    columns : dict
        Key of an algorithm -> log2 of its times, NaN where there is none.
    """

    problems: tuple[str, ...]
    columns: Mapping[str, Column]

    @classmethod
    def of(cls, problems: Sequence[str], times: Sequence[Mapping[str, float]]) -> TimesTable:
        """Returns the table of times, which are in a unit that those of a Problem share.

        Examples
        --------
        >>> TimesTable.of(["a", "b"], [{"mkl.gemm@1": 2.0}, {"mkl.gemm@1": 8.0, "blis.gemm@1": 4.0}]).columns
        {'mkl.gemm@1': array([1., 3.]), 'blis.gemm@1': array([nan,  2.])}
        """
        keys = {key: i for i, key in enumerate(dict.fromkeys(key for each in times for key in each))}
        values = np.full((len(keys), len(problems)), np.nan)
        rows = np.repeat(np.arange(len(problems)), [len(each) for each in times])
        values[[keys[key] for each in times for key in each], rows] = [t for each in times for t in each.values()]
        return cls(tuple(problems), dict(zip(keys, np.log2(np.maximum(values, LEAST)), strict=True)))

    @classmethod
    def joined(cls, tables: Sequence[TimesTable]) -> TimesTable:
        """Returns one table with the rows of several.

        Examples
        --------
        >>> one, other = TimesTable.of(["a"], [{"mkl.gemm@1": 2.0}]), TimesTable.of(["b"], [{"blis.gemm@1": 2.0}])
        >>> TimesTable.joined([one, other]).columns
        {'mkl.gemm@1': array([ 1., nan]), 'blis.gemm@1': array([nan,  1.])}
        """
        if len(tables) == 1:
            return tables[0]
        keys = dict.fromkeys(key for table in tables for key in table.columns)
        empty = [np.full(len(table.problems), np.nan) for table in tables]
        parts = list(zip(tables, empty, strict=True))
        columns = {key: np.concatenate([table.columns.get(key, none) for table, none in parts]) for key in keys}
        return cls(tuple(problem for table in tables for problem in table.problems), columns)

    def least(self) -> Column:
        """Returns the least of each row among algorithms that do not reduce the precision of their inputs; of all, without any.

        Examples
        --------
        >>> TimesTable.of(["a"], [{"onednn.matmul_bf16@1": 1.0, "mkl.gemm@1": 2.0, "blis.gemm@1": 4.0}]).least()
        array([1.])
        """
        fine = _least([column for key, column in self.columns.items() if fineness(key) == 2], len(self.problems))
        return np.where(np.isnan(fine), _least([*self.columns.values()], len(self.problems)), fine)

    def over(self, least: Column) -> TimesTable:
        """Returns the table of times over others, one for each row."""
        return self._replace(columns={key: column - least for key, column in self.columns.items()})

    def rows(self, kept: Sequence[int]) -> TimesTable:
        """Returns the table of some rows."""
        if len(kept) == len(self.problems):
            return self
        return TimesTable(tuple(self.problems[i] for i in kept), {key: column[kept] for key, column in self.columns.items()})

    def completed(self, others: Mapping[str, Column]) -> TimesTable:
        """Returns the table with what other columns know where it has nothing; those that know nothing are left out.

        Examples
        --------
        >>> table = TimesTable(("a", "b"), {"mkl.gemm@1": np.array([1.0, np.nan])})
        >>> table.completed({"mkl.gemm@1": np.array([2.0, 3.0]), "blis.gemm@1": np.full(2, np.nan)}).columns
        {'mkl.gemm@1': array([1., 3.])}
        """
        columns = dict(self.columns)
        for key, other in others.items():
            own = columns.get(key)
            if own is not None:
                columns[key] = np.where(np.isnan(own), other, own)
            elif not np.isnan(other).all():
                columns[key] = other
        return self._replace(columns=columns)


def _least(columns: Iterable[Column], rows: int) -> Column:
    return np.fmin.reduce([np.full(rows, np.nan), *columns], axis=0)
