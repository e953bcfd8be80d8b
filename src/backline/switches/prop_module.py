"""The classes with which other packages build modules like ours: attributes that are switches of their own.

They have the model's names and signatures; programs import them from the root of the switchboard.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, Generic, NoReturn, TypeVar

from ..errors import BadValue, Frozen, UnknownName
from . import store
from .switch import nearest, show
from .switch_module import is_submodule, unknown_name

__all__ = ["ContextProp", "FP32Precision", "GenericModule", "PropModule", "precision_getter", "precision_setter"]

T = TypeVar("T")


class ContextProp(Generic[T]):
    """Attribute that calls `getter` when read and `setter` when written, for modules of extensions.

    Writing to a frozen base is refused; inside a scope it passes. Deleting is refused.

    Parameters
    ----------
    getter
        Function without arguments that returns the value.
    setter
        Function that takes the new value.

    Examples
    --------
    >>> box = ["slow"]
    >>> class Mode:
    ...     speed = ContextProp(lambda: box[0], lambda value: box.__setitem__(0, value))
    >>> mode = Mode()
    >>> mode.speed = "fast"
    >>> mode.speed
    'fast'
    """

    def __init__(self, getter: Callable[[], T], setter: Callable[[T], object]) -> None:
        self.getter = getter
        self.setter = setter
        self.name = "this attribute"

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: object, kind: type | None = None) -> T:
        return self.getter()

    def __set__(self, owner: object, value: T) -> None:
        if store.frozen() and not store.scope_is_open():
            raise Frozen(
                f"{self.name} = {show(value)} was refused: the base is frozen.",
                cause="disable_global_flags() was called: it is not allowed to set values after disable_global_flags",
                remedy=f"assign {self.name} inside a scope: with backline.backends.flags(): ...",
            )
        self.setter(value)

    def __delete__(self, owner: object) -> NoReturn:
        raise UnknownName(f"{self.name} cannot be deleted.", remedy="assign another value instead")


class PropModule(ModuleType):
    """Module type for extensions: its class holds `ContextProp` attributes, all else is read from module `m`.

    Parameters
    ----------
    m
        Module that answers for names the class does not have.
    name
        Name of the new module.
    """

    m: ModuleType

    def __init__(self, m: ModuleType, name: str) -> None:
        super().__init__(name)
        self.__dict__["m"] = m

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self.__dict__["m"], name)
        except (AttributeError, KeyError):
            if name.startswith("__"):
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None
            raise unknown_name(self.__name__, name, _plain_names(self)) from None

    def __setattr__(self, name: str, value: object) -> None:
        # Names that exist may be set: a test's double of a function, a submodule by the import system. Others are
        # misspelt, which must not pass for settings.
        known = name.startswith("_") or _in_class(self, name) or name in self.__dict__ or hasattr(self.__dict__["m"], name)
        if known or is_submodule(self, name, value):
            super().__setattr__(name, value)
        else:
            raise unknown_name(self.__name__, name, _plain_names(self))

    def __dir__(self) -> list[str]:
        return sorted({*_props(self), *dir(self.__dict__["m"])})

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, (self.__name__,)


def _in_class(module: PropModule, name: str) -> bool:
    # In the classes' dicts: asking the class itself for the attribute would call its getter.
    return any(name in vars(kind) for kind in type(module).__mro__)


def _props(module: PropModule) -> list[str]:
    """Returns the names of the attributes that the module's classes have beyond those of every module."""
    kinds = type(module).__mro__[: type(module).__mro__.index(PropModule)]
    return [name for kind in kinds for name in vars(kind) if not name.startswith("_")]


def _plain_names(module: ModuleType) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]


# --- nodes of the precision tree --------------------------------------------------------------------------------------

_NODES: Final = {
    ("generic", "all"): "fp32_precision",
    ("mkldnn", "all"): "mkldnn.fp32_precision",
    ("mkldnn", "matmul"): "mkldnn.matmul.fp32_precision",
    ("mkldnn", "conv"): "mkldnn.conv.fp32_precision",
    ("mkldnn", "rnn"): "mkldnn.rnn.fp32_precision",
    ("cuda", "all"): "cudnn.fp32_precision",
    ("cuda", "matmul"): "cuda.matmul.fp32_precision",
    ("cuda", "conv"): "cudnn.conv.fp32_precision",
    ("cuda", "rnn"): "cudnn.rnn.fp32_precision",
}


def _node(backend: str, op: str) -> str:
    node = _NODES.get((backend, op)) if isinstance(backend, str) and isinstance(op, str) else None
    if node is None:
        near = nearest(f"{backend} {op}", {f"{first} {second}": None for first, second in _NODES})
        raise BadValue(
            f"there is no precision for backend {show(backend)} and op {show(op)}.",
            remedy=f"the nearest pairs: {', '.join(near[:3])}",
        )
    return node


def precision_getter(backend: str, op: str) -> Callable[[], str]:
    """Returns a function that reads a node of the tree of ``fp32_precision``.

    Parameters
    ----------
    backend
        "generic", "mkldnn" or "cuda".
    op
        "all"; for "mkldnn" and "cuda" also "matmul", "conv" or "rnn".

    Examples
    --------
    >>> precision_getter("cuda", "conv")()
    'tf32'
    """

    def read() -> str:
        return str(store.get(_node(backend, op)))

    return read


def precision_setter(backend: str, op: str) -> Callable[[str], str]:
    """Returns a function that writes a node of the tree of ``fp32_precision``, and returns what it wrote.

    Parameters
    ----------
    backend, op
        As for `precision_getter`.
    """

    def write(precision: str) -> str:
        store.assign(_node(backend, op), precision, depth=2)
        return precision

    return write


class FP32Precision:
    """A node of the tree of ``fp32_precision`` as an object: that attribute may be set, and no other name is known.

    Parameters
    ----------
    backend, op
        As for `precision_getter`; they may be set, too.

    Examples
    --------
    >>> FP32Precision("mkldnn", "matmul").fp32_precision
    'none'
    """

    backend: str
    op: str
    fp32_precision: str

    def __init__(self, backend: str, op: str) -> None:
        self.backend = backend
        self.op = op

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "fp32_precision":
            store.assign(_node(self.backend, self.op), value, depth=2)
        elif name in ("backend", "op"):
            super().__setattr__(name, value)
        else:
            raise self._unknown(name)

    def __getattr__(self, name: str) -> str:
        if name == "fp32_precision":
            return precision_getter(self.backend, self.op)()
        raise self._unknown(name)

    def _unknown(self, name: str) -> UnknownName:
        return unknown_name("this node of fp32_precision", name, ("fp32_precision", "backend", "op"))


class GenericModule(PropModule):
    """Module type that has the ``fp32_precision`` of the root of the switchboard."""

    fp32_precision = ContextProp(precision_getter("generic", "all"), precision_setter("generic", "all"))
