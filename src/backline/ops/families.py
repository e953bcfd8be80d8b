"""Generates operations that differ by rank or by kind: one function, one text and one table a family.

The signature stands in the source once, so type checkers and editors see it for every operation of the family.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

import numpy as np

from .operation import operation

__all__ = ["RANKS", "function_family", "kinds", "operation_family", "ranks"]

Array = np.ndarray[Any, Any]
# Words of a documentation for images of 1, 2 and 3 dimensions.
RANKS = {
    1: {"rank": "1", "images": "signals", "sizes": "width", "kernel": "kernel width", "axes": "L", "s": "", "number": "An int"},
    2: {"rank": "2", "images": "images", "sizes": "height, width", "kernel": "kernel height, kernel width", "axes": "H, W",
        "s": "s", "number": "An int, or a tuple of 2"},
    3: {"rank": "3", "images": "volumes", "sizes": "depth, height, width", "kernel": "kernel depth, kernel height, kernel width",
        "axes": "D, H, W", "s": "s", "number": "An int, or a tuple of 3"},
}  # fmt: skip
P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")
Rows = Mapping[str, Mapping[str, Any]]


@overload
def operation_family(
    function: Callable[Concatenate[V, P], Any], variants: Mapping[str, V], text: Callable[[V], str | None], /, *,
    rows: Rows = ..., make: Callable[..., Any] = ..., **row: Any,
) -> tuple[Callable[P, Array], ...]: ...  # fmt: skip
@overload
def operation_family(
    function: Callable[Concatenate[V, P], Any], variants: Mapping[str, V], text: Callable[[V], str | None], results: type[R], /,
    *, rows: Rows = ..., make: Callable[..., Any] = ..., **row: Any,
) -> tuple[Callable[P, R], ...]: ...  # fmt: skip
def operation_family(
    function: Callable[..., Any], variants: Mapping[str, Any], text: Callable[[Any], str | None], results: Any = None, /, *,
    rows: Rows = MappingProxyType({}), make: Callable[..., Any] = operation, **row: Any,
) -> tuple[Callable[..., Any], ...]:  # fmt: skip
    """Returns an operation for each name of `variants`, whose Problem is built by the function, called with the variant first.

    `text` returns the documentation of a variant. The operations return `results`, or an array where none is named. The other
    arguments are those of the decorator `operation`, or of `make`; `rows` has those that differ, by name.
    """
    built = {name: _variant(function, name, value, text(value), function.__module__) for name, value in variants.items()}
    fields = row if results is None else {**row, "results": results}
    return tuple(make(name, **fields, **rows.get(name, {}))(variant) for name, variant in built.items())


def function_family(
    function: Callable[Concatenate[V, P], R], variants: Mapping[str, V], text: Callable[[V], str | None], *, module: str,
    decorate: Callable[[V, Callable[..., R]], Callable[..., R]] = lambda value, variant: variant,
) -> tuple[Callable[P, R], ...]:  # fmt: skip
    """Returns a plain function of `module` for each name of `variants`, as `operation_family` returns operations."""
    return tuple(decorate(value, _variant(function, name, value, text(value), module)) for name, value in variants.items())


def kinds(*names: str, suffix: str = "") -> dict[str, str]:
    """Returns variants that are called by a name of their own.

    >>> kinds("silu", "tanh", suffix="_input")
    {'silu_input': 'silu', 'tanh_input': 'tanh'}
    """
    return {name + suffix: name for name in names}


def ranks(name: str) -> dict[str, int]:
    """Returns the variants of 1, 2 and 3 dimensions, whose numbers replace the braces of the name.

    >>> ranks("conv{}d")
    {'conv1d': 1, 'conv2d': 2, 'conv3d': 3}
    """
    return {name.format(rank): rank for rank in (1, 2, 3)}


def _variant(function: Callable[..., R], name: str, value: Any, text: str | None, module: str) -> Callable[..., R]:
    """The function with its first argument fixed, under a name and a documentation of its own."""

    def variant(*args: Any, **kwargs: Any) -> R:
        return function(value, *args, **kwargs)

    signature = inspect.signature(function)
    variant.__name__ = variant.__qualname__ = name
    variant.__doc__ = text
    variant.__module__ = module
    # What `inspect.signature` looks at first, and the stubs of functions do not have.
    variant.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return variant
