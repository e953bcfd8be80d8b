"""Base of classes that only hold named values, such as the rows of registries.

They are declared like frozen dataclasses and look so to type checkers. `dataclasses` compiles several functions for each class,
which would be a third of the time of ``import backline``; a `Record` takes its methods from this base. Making an instance takes
somewhat longer than with a dataclass, so what is made on every call is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Any, ClassVar, NoReturn, Self, dataclass_transform

__all__ = ["Record"]


class _Signature:
    """Descriptor of ``__signature__``: made when `help` or `inspect` asks for it."""

    def __get__(self, record: Record | None, kind: type[Record]) -> Signature:
        usual = Parameter.POSITIONAL_OR_KEYWORD
        defaults = {name: kind._defaults.get(name, Parameter.empty) for name in kind._fields}
        parameters = [Parameter(name, usual, default=defaults[name], annotation=type_) for name, type_ in kind._fields.items()]
        return Signature(parameters, return_annotation=None)


@dataclass_transform(frozen_default=True)
class Record:
    """Base class. The annotated names in the body of a subclass are its fields, after those of its own base.

    Records with equal values are equal, and have one hash where the values have. ``__post_init__`` runs at the end of making one.

    Examples
    --------
    >>> class Point(Record):
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(x=1, y=0), Point(1, 2).replaced(x=5).x
    (Point(x=1, y=0), True, 5)
    >>> Point(1).x = 2
    Traceback (most recent call last):
      ...
    AttributeError: a Point does not change: cannot set x
    """

    _fields: ClassVar[Mapping[str, Any]] = {}  # with their annotations
    _defaults: ClassVar[Mapping[str, Any]] = {}
    __signature__ = _Signature()

    def __init_subclass__(cls) -> None:
        cls._fields = {**cls._fields, **cls.__annotations__}
        cls._defaults = {**cls._defaults, **{name: vars(cls)[name] for name in cls._fields if name in vars(cls)}}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(self._fields, args, strict=False))
        values = {**self._defaults, **given, **kwargs}
        if values.keys() != self._fields.keys() or len(given) < len(args) or not given.keys().isdisjoint(kwargs):
            raise self._refusal(args, kwargs)
        self.__dict__.update(values)
        self.__post_init__()

    def __post_init__(self) -> None:
        pass

    def _refusal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TypeError:
        name, fields = type(self).__name__, list(self._fields)
        if len(args) > len(fields):
            return TypeError(f"{name}() takes {len(fields)} arguments, not {len(args)}")
        for key in kwargs:
            if key not in fields[len(args) :]:
                problem = "multiple values for argument" if key in fields else "an unexpected keyword argument"
                return TypeError(f"{name}() got {problem} {key!r}; its arguments: {', '.join(fields)}")
        missing = [key for key in fields[len(args) :] if key not in kwargs and key not in self._defaults]
        return TypeError(f"{name}() misses arguments: {', '.join(missing)}")

    def _values(self) -> tuple[Any, ...]:
        return tuple([self.__dict__[name] for name in self._fields])

    def replaced(self, **changes: Any) -> Self:
        """Returns a Record with other values of some fields."""
        return type(self)(**dict(zip(self._fields, self._values(), strict=True)) | changes)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and self._values() == other._values())

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in self._fields)})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} does not change: cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} does not change: cannot delete {name}")
