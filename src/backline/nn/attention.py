"""The attention kernels that may run, and the order in which they are tried."""

from __future__ import annotations

from collections.abc import Sequence

from numpy import bool_

from .. import switches
from ..errors import BadType, BadValue
from ..switches.enumerations import SDPBackend
from ..switches.switch import show
from ..switches.switch_module import install

__all__ = ["WARN_FOR_UNFUSED_KERNELS", "SDPBackend", "sdpa_kernel"]

WARN_FOR_UNFUSED_KERNELS: bool

_SWITCHES = {
    SDPBackend.FLASH_ATTENTION: "cuda.flash_sdp",
    SDPBackend.EFFICIENT_ATTENTION: "cuda.mem_efficient_sdp",
    SDPBackend.MATH: "cuda.math_sdp",
    SDPBackend.CUDNN_ATTENTION: "cuda.cudnn_sdp",
    SDPBackend.OVERRIDEABLE: "cuda.overrideable_sdp",
}
_LEGAL = ", ".join(f"SDPBackend.{kernel.name}" for kernel in _SWITCHES)


def sdpa_kernel(backends: SDPBackend | Sequence[SDPBackend], set_priority: bool = False) -> switches.Scope:
    """Return a scope in which only these attention kernels may run, on arrays of any device; also a decorator.

    Parameters
    ----------
    backends
        A member of `SDPBackend`, or a list or tuple of them; one given twice counts once.
    set_priority
        Whether they are tried in the order given. Else the order stays what it is.

    Raises
    ------
    BadType
        Not members, or `set_priority` is no bool.
    BadValue
        None at all, or ``SDPBackend.ERROR``.

    Examples
    --------
    >>> from backline.backends import cuda
    >>> with sdpa_kernel([SDPBackend.MATH]):
    ...     cuda.math_sdp_enabled(), cuda.flash_sdp_enabled()
    (True, False)
    """
    allowed = [backends] if isinstance(backends, SDPBackend) else backends
    if not isinstance(allowed, (list, tuple)):
        raise _not_members(backends)
    for kernel in allowed:
        if not isinstance(kernel, SDPBackend):
            raise _not_members(kernel)
    if not allowed or SDPBackend.ERROR in allowed:
        wrong = "no kernel at all" if not allowed else "SDPBackend.ERROR, which is none"
        raise BadValue(f"sdpa_kernel({show(backends)}) allows {wrong}.", remedy=f"one or more of: {_LEGAL}")
    if not isinstance(set_priority, (bool, bool_)):
        kind = type(set_priority).__name__
        raise BadType(f"sdpa_kernel: set_priority = {show(set_priority)} is {kind}, not a bool.", remedy="True or False")
    values: dict[str, object] = {switch: kernel in allowed for kernel, switch in _SWITCHES.items()}
    if set_priority:
        values["sdp_priority"] = tuple(dict.fromkeys(kernel.name.lower() for kernel in allowed))
    return switches.make_scope("nn.attention.sdpa_kernel", values, depth=2)


def _not_members(value: object) -> BadType:
    return BadType(
        f"sdpa_kernel takes members of SDPBackend, not {type(value).__name__}: {show(value)}",
        cause="neither words nor numbers stand for them",
        remedy=f"one of, or a list or tuple of: {_LEGAL}",
    )


install(__name__, "nn.attention")
