"""Kernels written in a Python kernel language, and the languages, operations and kinds of device that may use them.

Such a kernel takes the place of an operation if neither its language, nor the operation, nor the kind of device is disabled,
and its own condition holds. Everything here may be set inside a scope, and ends with it then.
"""

from __future__ import annotations

from collections.abc import Iterable as _Iterable
from types import MappingProxyType as _MappingProxyType
from typing import Any
from typing import cast as _cast

from .. import switches as _switches
from ..errors import BadType as _BadType
from ..errors import Frozen as _Frozen
from ..errors import UnknownName as _UnknownName
from ..switches.switch import nearest as _nearest
from ..switches.switch import show as _show
from ..switches.switch_module import SwitchGroup as _SwitchGroup
from . import _module_factory

__all__ = [
    "DSLController", "all_dsls", "available_dsls", "cutedsl", "disable_dispatch_keys", "disable_operations",
    "enable_dispatch_keys", "enable_operations", "flags", "get_dsl_operations", "is_dsl_disabled", "is_operation_disabled",
    "operations_disabled", "set_flags", "triton",
]  # fmt: skip

_PACKAGES = {"cutedsl": ("cutlass", "nvidia-cutlass-dsl"), "triton": ("triton", "triton")}  # imported as, installed as
_OPERATIONS = "python_native.disabled_operations"
_KEYS = "python_native.disabled_dispatch_keys"

cutedsl: DSLController
triton: DSLController
all_dsls: list[str]
available_dsls: list[str]


class _Version(str):
    """A version as text, with its first numbers."""

    __slots__ = ()

    @property
    def major(self) -> int:
        return self._number(0)

    @property
    def minor(self) -> int:
        return self._number(1)

    def _number(self, place: int) -> int:
        import re

        numbers = re.findall("[0-9]+", self)
        return int(numbers[place]) if place < len(numbers) else 0


class DSLController(_SwitchGroup):
    """One kernel language.

    Parameters
    ----------
    dsl_name
        One of `all_dsls`.

    Raises
    ------
    UnknownName
        There is no such language.

    Examples
    --------
    >>> from backline.backends import python_native
    >>> with python_native.triton.disabled():
    ...     python_native.triton.enabled
    False
    >>> python_native.triton.enabled
    True
    """

    __backend__: str  # type: ignore[misc]  # of each object, not of the class
    __title__: str  # type: ignore[misc]  # likewise
    __computed__ = _MappingProxyType({})
    _name: str

    def __init__(self, dsl_name: str) -> None:
        if dsl_name not in _PACKAGES:
            near = ", ".join(_nearest(str(dsl_name), _PACKAGES))
            raise _UnknownName(f"there is no kernel language {_show(dsl_name)}.", remedy=f"the nearest names: {near}")
        vars(self).update(_name=dsl_name, __backend__=f"python_native.{dsl_name}", __title__=f"{__name__}.{dsl_name}")

    @property
    def name(self) -> str:
        """Name of the language."""
        return self._name

    @property
    def available(self) -> bool:
        """True if its package can be imported. It is not imported for that."""
        from ..libraries import python_packages

        return not python_packages.find(_PACKAGES[self._name][0])[2]

    @property
    def version(self) -> _Version | None:
        """Version of its package, a text with ``major`` and ``minor``; None if it is absent or does not tell."""
        from ..libraries import python_packages

        package, distribution = _PACKAGES[self._name]
        text = python_packages.version(package) or python_packages.version(distribution) if self.available else None
        return None if text is None else _Version(text)

    @property
    def enabled(self) -> bool:
        """True if its kernels may run here. May be set."""
        return _cast(bool, _switches.get(f"{self.__backend__}.enabled"))

    def disable(self) -> None:
        """Lets none of its kernels run: in the process, or until the end of an open scope."""
        _switches.assign(f"{self.__backend__}.enabled", False, depth=2)

    def enable(self) -> None:
        """Lets its kernels run again."""
        _switches.assign(f"{self.__backend__}.enabled", True, depth=2)

    def disabled(self) -> _switches.Scope:
        """Returns a scope in which none of its kernels runs; also a decorator."""
        return _switches.make_scope(f"python_native.{self._name}.disabled", {f"{self.__backend__}.enabled": False}, depth=2)

    def __repr__(self) -> str:
        there = "available" if self.available else "unavailable"
        return f"DSLController({self._name}, {there}, {'enabled' if self.enabled else 'disabled'})"


_controllers = {name: DSLController(name) for name in _PACKAGES}


def get_dsl_operations(dsl_name: str) -> list[str]:
    """Returns the sorted names of the operations that have a kernel in a language; none for a language that is not known.

    The language need not be usable here: see `available_dsls`.

    Examples
    --------
    >>> from backline.backends import python_native
    >>> python_native.get_dsl_operations("triton")
    ['nn.functional.scaled_dot_product_attention', 'nn.grad.scaled_dot_product_attention_backward']
    >>> python_native.get_dsl_operations("fortran")
    []
    """
    from ..libraries import overrides

    return overrides.operations(dsl_name)


def is_operation_disabled(op_symbol: str) -> bool:
    """Tells whether an operation is disabled here; False for one that is not known."""
    return op_symbol in _held(_OPERATIONS)


def is_dsl_disabled(dsl_name: str) -> bool:
    """Tells whether a language is disabled here; False for one that is not known."""
    return dsl_name in _PACKAGES and not _switches.get(f"python_native.{dsl_name}.enabled")


def disable_operations(*op_symbols: str) -> None:
    """Lets no kernel of any language take the place of these operations, which may be registered later.

    Raises
    ------
    BadType
        Not a text.
    Frozen
        ``disable_global_flags()`` was called, and no scope is open.

    Examples
    --------
    >>> from backline import backends
    >>> with backends.flags():
    ...     backends.python_native.disable_operations("matmul")
    ...     backends.python_native.is_operation_disabled("matmul")
    True
    >>> backends.python_native.is_operation_disabled("matmul")
    False
    """
    _change(_OPERATIONS, "disable_operations", op_symbols, disable=True)


def enable_operations(*op_symbols: str) -> None:
    """Undoes `disable_operations` for these."""
    _change(_OPERATIONS, "enable_operations", op_symbols, disable=False)


def disable_dispatch_keys(*dispatch_keys: str) -> None:
    """Lets no kernel run on these kinds of device: "CPU", "CUDA", "MPS".

    Raises
    ------
    BadType
        Not a text.
    Frozen
        ``disable_global_flags()`` was called, and no scope is open.
    """
    _change(_KEYS, "disable_dispatch_keys", dispatch_keys, disable=True)


def enable_dispatch_keys(*dispatch_keys: str) -> None:
    """Undoes `disable_dispatch_keys` for these."""
    _change(_KEYS, "enable_dispatch_keys", dispatch_keys, disable=False)


def operations_disabled(*op_symbols: str) -> _switches.Scope:
    """Returns a scope in which these operations are disabled, besides those that are already; also a decorator.

    Examples
    --------
    >>> from backline.backends import python_native
    >>> with python_native.operations_disabled("matmul"):
    ...     python_native.is_operation_disabled("matmul")
    True
    """
    _texts("operations_disabled", op_symbols)
    return _switches.make_scope(
        "python_native.operations_disabled", {"python_native.also_disabled_operations": op_symbols}, depth=2
    )


def flags(
    cutedsl: bool | None = None,
    triton: bool | None = None,
    disabled_operations: tuple[str, ...] | None = None,
    disabled_dispatch_keys: tuple[str, ...] | None = None,
) -> _switches.Scope:
    """Returns a scope that allows or forbids languages, operations and kinds of device; also a decorator. None keeps what holds.

    Parameters
    ----------
    cutedsl, triton
        True lets kernels in the language run.
    disabled_operations, disabled_dispatch_keys
        The names that are disabled, in the place of those that are; `operations_disabled` adds some.

    Raises
    ------
    BadType
        Not a bool, or not a tuple of names.

    Examples
    --------
    >>> from backline.backends import python_native
    >>> with python_native.flags(triton=False, disabled_dispatch_keys=("CUDA",)):
    ...     python_native.triton.enabled
    False
    """
    values = _named(cutedsl, triton, disabled_operations, disabled_dispatch_keys)
    return _switches.make_scope("python_native.flags", values, depth=2)


def set_flags(
    _cutedsl: bool | None = None,
    _triton: bool | None = None,
    _disabled_operations: tuple[str, ...] | None = None,
    _disabled_dispatch_keys: tuple[str, ...] | None = None,
) -> tuple[Any, ...]:
    """Assigns what `flags` has scopes for, all or none, and returns what held for the languages. None keeps."""
    values = _named(_cutedsl, _triton, _disabled_operations, _disabled_dispatch_keys)
    old = tuple(_switches.get(name) for name in [*values][:2])
    _switches.assign_many({name: value for name, value in values.items() if value is not None}, depth=2)
    return old


def _named(cutedsl: object, triton: object, operations: object, keys: object) -> dict[str, object]:
    languages = {"python_native.cutedsl.enabled": cutedsl, "python_native.triton.enabled": triton}
    return {**languages, _OPERATIONS: operations, _KEYS: keys}


def _held(switch: str) -> tuple[str, ...]:
    return _cast("tuple[str, ...]", _switches.get(switch))


def _texts(function: str, names: _Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise _BadType(
                f"python_native.{function} takes str, not {type(name).__name__}: {_show(name)}",
                remedy=f"names, each an argument: {function}('a', 'b')",
            )


def _change(switch: str, function: str, names: tuple[str, ...], *, disable: bool) -> None:
    from ..libraries import overrides

    _texts(function, names)
    with overrides.lock:  # reading and writing are two steps
        held = _held(switch)
        new = (*held, *names) if disable else tuple(name for name in held if name not in names)
        try:
            if names:
                _switches.assign(switch, new, depth=3)
        except _Frozen as error:
            call = f"{function}({', '.join(map(repr, names))})"
            raise _Frozen(
                f"python_native.{call} was refused: the base is frozen.",
                cause=f"{switch}: {error.cause}",
                remedy=f"call it inside a scope: with backline.backends.flags(): backline.backends.python_native.{call}",
            ) from None


def _all_dsls() -> list[str]:
    """Names of the kernel languages. Read-only."""
    return [*_controllers]


def _available_dsls() -> list[str]:
    """Names of the languages whose package can be imported here. Read-only."""
    return [name for name, controller in _controllers.items() if controller.available]


_SET = "python_native.triton.enabled or python_native.cutedsl.enabled"
_module_factory.install(
    __name__,
    present=False,
    computed={
        "all_dsls": (_all_dsls, _SET),
        "available_dsls": (_available_dsls, _SET),
        "cutedsl": (lambda: _controllers["cutedsl"], "python_native.cutedsl.enabled"),
        "triton": (lambda: _controllers["triton"], "python_native.triton.enabled"),
    },
)
