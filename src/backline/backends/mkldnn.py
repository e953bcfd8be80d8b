"""oneDNN: products, convolution and recurrent networks on the CPU, in several precisions.

The library is libdnnl; this module has the name it had before.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from . import _module_factory

__all__ = [
    "VERBOSE_OFF", "VERBOSE_ON", "VERBOSE_ON_CREATION", "allow_tf32", "conv", "deterministic", "enabled", "flags",
    "fp32_precision", "is_acl_available", "is_available", "is_enabled", "matmul", "rnn", "set_flags", "verbose", "version",
]  # fmt: skip

VERBOSE_OFF: Final = 0
VERBOSE_ON: Final = 1
VERBOSE_ON_CREATION: Final = 2

enabled: bool
deterministic: bool
allow_tf32: bool
fp32_precision: Literal["none", "ieee", "tf32", "bf16"]
is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


def is_acl_available() -> bool:
    """Tells whether the oneDNN that is found was built on the Arm Compute Library."""
    from ..libraries import presence

    return presence.acl_available()


def verbose(level: int) -> Any:
    """Returns a scope in which oneDNN prints a line for each execution, and which collects them.

    Parameters
    ----------
    level
        `VERBOSE_OFF`, `VERBOSE_ON`, or `VERBOSE_ON_CREATION`, which adds the making of primitives.

    Returns
    -------
    scope
        Entering it returns a list of events; its ``table()`` is text. The lines of oneDNN itself go to the program's output.

    Raises
    ------
    BadValue, BadType
        Another level.
    BackendUnavailable
        When it is entered with a level above 0 and oneDNN is absent.

    Examples
    --------
    >>> from backline.backends import mkldnn
    >>> with mkldnn.verbose(mkldnn.VERBOSE_OFF) as log:
    ...     len(log)
    0
    """
    from ..engine.verbose_scopes import verbose as scope

    return scope("mkldnn", level, depth=2)


matmul = _module_factory.precision(__name__, "mkldnn", "matmul")
conv = _module_factory.precision(__name__, "mkldnn", "conv")
rnn = _module_factory.precision(__name__, "mkldnn", "rnn")

_module_factory.install(__name__)
