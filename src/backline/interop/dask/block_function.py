"""Functions of the blocks of a dask array: operations of Backline under the settings that hold where an expression is written.

A task takes along the switches that something has set there, by a scope, an assignment, a file or the environment. The others are
what the worker has.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from ... import switches
from ...switches import Value

__all__ = ["BlockFunction", "plain", "set_here"]

Array = Any


def set_here() -> dict[str, Value]:
    """Returns the switches that something has set, as seen from here, with their values.

    Examples
    --------
    >>> with switches.scope(fp32_precision="tf32"):
    ...     set_here()["fp32_precision"]
    'tf32'
    """
    said = [switches.history(name)[0] for name in switches.declared()]
    return {each.switch: each.value for each in said if each.origin.kind != "default"}


def plain(block: Array) -> Array:
    """Returns an array in C or Fortran order, in aligned memory: the array itself if it is like that.

    A block that comes from another worker is like that, whatever it was there. The same operation has the same bits on both
    sides only if it sees the same layout.

    Examples
    --------
    >>> plain(np.ones((4, 4))[:, ::2]).flags.c_contiguous
    True
    """
    if not isinstance(block, np.ndarray):
        return block
    flags = block.flags
    if flags.aligned and (flags.c_contiguous or flags.f_contiguous):
        return block
    return np.require(block, requirements=("C", "A"))


class BlockFunction:
    """An operation as a function of blocks, which runs it under the settings of where this was made.

    Parameters
    ----------
    operation
        Public name of the operation, without the package's: "linalg.qr".
    keywords
        Arguments that are the same for every block.

    Examples
    --------
    >>> BlockFunction("matmul")(np.eye(2), np.ones((2, 2)))
    array([[1., 1.],
           [1., 1.]])
    """

    __slots__ = ("_settings", "keywords", "operation")

    def __init__(self, operation: str, keywords: Mapping[str, Any] | None = None) -> None:
        self.operation = operation
        self.keywords = dict(keywords or {})
        self._settings = set_here()

    def __call__(self, *blocks: Array, **more: Any) -> Any:
        module, _, name = self.operation.rpartition(".")
        function = getattr(import_module(f"backline.{module}" if module else "backline"), name)
        with switches.make_scope(f"dask.{self.operation}", self._settings, restore=True):
            arrays = {name: plain(value) for name, value in more.items()}
            return self.finish(function(*map(plain, blocks), **self.keywords, **arrays))

    def finish(self, result: Any) -> Any:
        """Returns what the task returns of the operation's result."""
        return result

    def __getstate__(self) -> tuple[Any, ...]:
        return self.operation, self.keywords, self._settings

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.operation, self.keywords, self._settings = state

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return type(self).__name__, *self.__getstate__()

    def __repr__(self) -> str:
        return f"<{self.operation} of blocks>"
