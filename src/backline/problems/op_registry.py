"""Registry of operations: a row for each, which the decorator that makes the operation writes.

A row holds what other parts have to know of an operation: how its Problem is built, which family it belongs to, how it is
measured, checked and explained. They look it up here and need no table of their own. A Problem reads its text by these rows, so
that they cannot name its class: where a field is about a Problem, its type is Any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from inspect import Signature
from types import ModuleType
from typing import Any, Literal, TypedDict

from ..records import Record

__all__ = ["Measured", "Op", "composites", "import_operations", "operations"]

# (generator of random numbers, array, Problem); naming NumPy's generator here would import numpy.random with the package.
Sample = Callable[[Any, Any, Any], None]
Flops = Callable[[int, int, int], float]
Check = Literal["unique", "values", "residual"] | Callable[[Any, list[Any], tuple[Any, ...]], float]


class Measured(TypedDict, total=False):
    """The fields of an `Op` that say how it is measured; a declaration gives those that differ from the defaults."""

    flops: Flops
    sample: Sample
    check: Check
    powers: tuple[int, float, float]
    sizes: str
    bench: bool


class Op(Record):
    """Row of one operation.

    Attributes
    ----------
    name
        Public name without the package's: "linalg.qr".
    build
        Makes the Problem of a call's arguments.
    family
        Family of its Problems: "linalg".
    signature
        Parameters of its call.
    results
        Class of the result where it is not one array.
    flops
        Operations of the usual algorithm for an m x n matrix, m >= n, and k right-hand sides; other Problems count their own.
    sample
        Turns random numbers into a matrix that the operation takes, for measuring. Any matrix will do without it.
    check
        Accuracy of results of linear algebra: "unique" ones and unique "values" in any order are compared with a reference,
        of others the "residual" is computed. For a Problem of any kind, a function that returns the relative error of results,
        from the Problem, its operands and the results.
    powers
        Index of the part of the result that scales with the operands, and the powers of the operands a and b that it scales with.
    sizes
        Operands in the text of a Problem of size n, for `backline bench`: "{n}x{n} {n}x16". Without it, one square matrix.
    bench
        Whether `backline bench` runs it where no operation is named.
    explain
        Tells which libraries would run a Problem of several steps; None where one library runs it.
    compose
        Computes a Problem by other operations, from the Problem, its arrays by role, and by keyword its run-time scalars; None
        where only libraries do.
    scalar
        The parameter that is a run-time scalar: a number that its Plans are given with the arrays, and no key has. "" for none.
    """

    name: str
    build: Callable[..., Any]
    family: str
    signature: Signature | None = None
    results: Any = None
    flops: Flops = lambda m, n, k: 0.0
    sample: Sample | None = None
    check: Check = "residual"
    powers: tuple[int, float, float] | None = None
    sizes: str = ""
    bench: bool = False
    explain: Callable[[Any], Any] | None = None
    compose: Callable[..., Any] | None = None
    scalar: str = ""


# Modules that have operations, in the order in which tables list these. They are imported when something in them is asked for.
_MODULES = (
    "ops.matrix_products", "ops.small_products", "ops.elementary", "fft", "linalg", "nn.functional", "nn.grad",
    "ops.einsum.einsum_operation", "quantized", "sparse",
)  # fmt: skip


class _Operations(MutableMapping[str, Op]):
    """The rows by name. Modules are imported until one brings the operation that is asked for; iterating imports all of them."""

    def __init__(self) -> None:
        self._rows: dict[str, Op] = {}

    def __getitem__(self, name: str) -> Op:
        if name not in self._rows:
            next((True for _ in _imported() if name in self._rows), False)
        return self._rows[name]

    def __setitem__(self, name: str, row: Op) -> None:
        self._rows[name] = row

    def __delitem__(self, name: str) -> None:
        del self._rows[name]

    def __iter__(self) -> Iterator[str]:
        import_operations()
        return iter(self._rows)

    def __len__(self) -> int:
        import_operations()
        return len(self._rows)


def _imported() -> Iterator[ModuleType]:
    """Yields the modules that have operations, each imported before it."""
    for module in _MODULES:
        yield import_module(f"backline.{module}")


operations: MutableMapping[str, Op] = _Operations()
# Names of operations composed of others, and of those that they call.
composites: dict[str, tuple[str, ...]] = {}


def import_operations() -> None:
    """Imports every module that has operations."""
    for _ in _imported():
        pass
