"""The switches: one module for each library, and the general ones here.

Read a switch as an attribute and set it by assignment, for the whole process; or for a while with
``flags()``, which only this thread or task sees, and which changes only what it names::

    from backline import backends

    backends.fallback = "warn"
    with backends.mkl.flags(enabled=False), backends.flags(num_threads=1):
        ...

``enabled`` of a library is a permission: while it is off, the library never runs, not even as a fallback.

An assignment inside a scope ends with the scope. Every switch also has an environment variable
(``BACKLINE_FALLBACK``) and a key in the configuration files.
"""

from __future__ import annotations

from typing import Any, Literal

from numpy import bool_ as _bool

from .. import switches as _switches
from ..errors import BadType as _BadType
from ..switches import store as _store
from ..switches.prop_module import ContextProp, GenericModule, PropModule
from ..switches.prop_module import FP32Precision as _FP32Precision
from ..switches.prop_module import precision_getter as _get_fp32_precision_getter
from ..switches.prop_module import precision_setter as _set_fp32_precision_setter
from ..switches.switch import show as _show
from . import _module_factory, _module_finder
from . import _validators as _validators

_MODULES = _module_finder.Names()

__all__ = [
    *_MODULES, "ContextProp", "GenericModule", "PropModule", "benchmark", "benchmark_limit", "benchmark_overhead",
    "determinism_level", "deterministic", "disable_global_flags", "effective_precision", "emulate", "fallback", "flags",
    "flags_frozen", "fp32_precision", "max_error", "num_threads", "only", "prefer", "promote", "set_flags", "warn_only",
]  # fmt: skip

fp32_precision: Literal["none", "ieee", "tf32", "bf16"]
fallback: Literal["allow", "warn", "error"]
benchmark: bool | Literal["online"]
benchmark_limit: int
benchmark_overhead: float
deterministic: bool
warn_only: bool
determinism_level: Literal["run", "threads"]
emulate: bool
num_threads: int
prefer: tuple[str, ...]
only: tuple[str, ...]
promote: Literal["error", "numpy"]
max_error: float
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


# Packages that add a module like ours import these from here, by these names.
_FOR_EXTENSIONS = (_FP32Precision, _get_fp32_precision_getter, _set_fp32_precision_setter)


def __allow_nonbracketed_mutation() -> Any:
    """Returns a scope in which this context may assign frozen switches. What it assigns stays."""
    return _store.thawed()


def disable_global_flags() -> None:
    """Freezes the process-wide value of every switch, for good.

    Scopes, and assignments inside them, still work.
    """
    _switches.freeze()


def flags_frozen() -> bool:
    """Tells whether the process-wide values are frozen."""
    return _switches.frozen()


def effective_precision() -> Any:
    """Returns a table of the precision requested and the precision in effect, for each operation and library here.

    Examples
    --------
    >>> from backline import backends
    >>> with backends.flags(fp32_precision="tf32", emulate=True):
    ...     table = backends.effective_precision()
    >>> [row.effective for row in table if row.library == "emulated"]
    ['tf32 (emulated)']
    """
    from ..engine.precision_table import table

    return table()


def _set_unfrozen(module: object, value: object) -> None:
    if not isinstance(value, (bool, _bool)):
        raise _BadType(
            f"backends.__allow_nonbracketed_mutation_flag takes a bool, not {type(value).__name__}: {_show(value)}",
            remedy="True lifts the freeze for the whole process, False freezes",
        )
    _store.freeze(not value)


_FLAG = property(lambda module: not _store.frozen(), _set_unfrozen, doc="Switches may be assigned outside of scopes.")

_module_factory.install(
    __name__,
    prefix="",
    model=("fp32_precision",),
    lazy=_MODULES,
    present=False,
    members={"__allow_nonbracketed_mutation_flag": _FLAG},
)
