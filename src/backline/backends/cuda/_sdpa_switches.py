"""Attention on arrays of every device: the kernels that are available, and the reasons why one cannot run a call."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

import numpy as np

from ... import switches
from ...errors import BadType, BadValue, ReadOnly, UnknownName
from ...switches.switch import Switch, nearest, show

__all__ = [
    "SDPAParams", "can_use_cudnn_attention", "can_use_efficient_attention", "can_use_flash_attention",
    "is_flash_attention_available", "sdp_kernel",
]  # fmt: skip

_PUBLIC = "backline.backends.cuda"
_FIELDS = ("query", "key", "value", "attn_mask", "dropout", "is_causal", "enable_gqa")


class SDPAParams:
    """A call of scaled dot product attention, to be asked about. Its fields are read-only.

    Parameters
    ----------
    query, key, value
        Arrays of NumPy, CuPy or MLX.
    attn_mask
        Another one, or None.
    dropout
        Probability.
    is_causal, enable_gqa
        As for the operation.

    Raises
    ------
    BadType
        An argument is of another type.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.zeros((1, 2, 8, 16), np.float32)
    >>> SDPAParams(x, x, x, None, 0.0, True, False).is_causal
    True
    """

    __slots__ = _FIELDS
    query: Any
    key: Any
    value: Any
    attn_mask: Any
    dropout: float
    is_causal: bool
    enable_gqa: bool

    def __init__(
        self, query: Any, key: Any, value: Any, attn_mask: Any, dropout: float, is_causal: bool, enable_gqa: bool
    ) -> None:
        for name, array in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
            is_array = hasattr(array, "shape") and hasattr(array, "dtype")
            if not is_array and not (array is None and name == "attn_mask"):
                raise BadType(
                    f"cuda.SDPAParams: {name} = {show(array)} is {type(array).__name__}, not an array.",
                    remedy="an array of NumPy, CuPy or MLX" + (", or None" if name == "attn_mask" else ""),
                )
        values = (
            query, key, value, attn_mask, _checked("SDPAParams.dropout", float, dropout),
            _checked("SDPAParams.is_causal", bool, is_causal), _checked("SDPAParams.enable_gqa", bool, enable_gqa),
        )  # fmt: skip
        for name, each in zip(_FIELDS, values, strict=True):
            object.__setattr__(self, name, each)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        if name in _FIELDS:
            raise ReadOnly(f"SDPAParams.{name} is read-only.", cause=f"it cannot become {show(value)}", remedy="make another one")
        near = ", ".join(nearest(name, _FIELDS)[:3])
        raise UnknownName(f"SDPAParams has no name {show(name)}.", remedy=f"the nearest names: {near}")

    def __delattr__(self, name: str) -> NoReturn:
        raise UnknownName(f"SDPAParams.{name} cannot be deleted.")

    def __reduce__(self) -> tuple[object, ...]:
        return SDPAParams, tuple(getattr(self, name) for name in _FIELDS)

    def __repr__(self) -> str:
        shapes = [f"{name}={getattr(self, name).dtype}{list(getattr(self, name).shape)}" for name in _FIELDS[:3]]
        rest = [f"{name}={getattr(self, name)}" for name in _FIELDS[4:]]
        return f"SDPAParams({', '.join(shapes + rest)}{', with a mask' if self.attn_mask is not None else ''})"


SDPAParams.__module__ = _PUBLIC


def _checked(name: str, kind: type, value: object) -> Any:
    """Returns the value as that kind, or an error that names it. NumPy's numbers count, and bools are no numbers."""
    kinds = (bool, np.bool_) if kind is bool else (int, float, np.integer, np.floating)
    if isinstance(value, kinds) and (kind is bool or not isinstance(value, bool)):
        return kind(value)
    wanted = "a bool: True or False" if kind is bool else "a real number"
    raise BadType(f"cuda.{name} = {show(value)} is {type(value).__name__}.", remedy=f"{name.rpartition('.')[2]} takes {wanted}")


def is_flash_attention_available(device: str | None = None) -> bool:
    """Tells whether there is flash attention for a kind of device.

    Parameters
    ----------
    device
        "cpu", "cuda" or "mps"; None is CUDA.

    Raises
    ------
    BadValue, BadType
        Another word, or no text.
    """
    from ...libraries.attention_constraints import providers

    word = "cuda" if device is None else _DEVICE.check(device)
    return bool(providers("flash_attention", str(word))[0])


_DEVICE = Switch(
    "cuda.is_flash_attention_available.device", str, "cuda", ("cpu", "cuda", "mps"), doc="Kind of device that is asked about."
)


def can_use_flash_attention(params: SDPAParams, debug: bool = False) -> bool:
    """Tells whether flash attention can run a call here: it is switched on, there, and fit for the arrays.

    Parameters
    ----------
    params
        The call. Its arrays may be on any device.
    debug
        Warn of the reason if it cannot.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.backends import cuda
    >>> x = np.zeros((1, 2, 8, 16), np.float32)
    >>> with cuda.flags(flash_sdp=False):
    ...     cuda.can_use_flash_attention(cuda.SDPAParams(x, x, x, None, 0.0, False, False))
    False
    """
    return _can_use("can_use_flash_attention", "flash_attention", params, debug)


def can_use_efficient_attention(params: SDPAParams, debug: bool = False) -> bool:
    """Tells whether memory-efficient attention can run a call here; as `can_use_flash_attention`."""
    return _can_use("can_use_efficient_attention", "efficient_attention", params, debug)


def can_use_cudnn_attention(params: SDPAParams, debug: bool = False) -> bool:
    """Tells whether cuDNN's attention can run a call here; as `can_use_flash_attention`."""
    return _can_use("can_use_cudnn_attention", "cudnn_attention", params, debug)


def _can_use(function: str, kernel: str, params: object, debug: bool) -> bool:
    if not isinstance(params, SDPAParams):
        raise BadType(f"cuda.{function} takes SDPAParams, not {type(params).__name__}: {show(params)}")
    loud = _checked(f"{function}.debug", bool, debug)
    reason = refused(kernel, params)
    if reason and loud:
        warnings.warn(f"{kernel} cannot run this call: {reason}", UserWarning, stacklevel=3)
    return not reason


def refused(kernel: str, params: SDPAParams) -> str:
    """Returns the reason why a kernel cannot run a call here (off, absent, or a constraint that fails), or an empty string."""
    from ...libraries import attention_constraints
    from ...problems.attention_problem import attention_problem

    switch = attention_constraints.SWITCHES[kernel]
    if not switches.get(switch):
        return f"disabled by {switch}, {switches.origin(switch)}"
    arrays = (params.query, params.key, params.value, params.attn_mask)
    try:
        problem = attention_problem(*arrays, params.dropout, params.is_causal, None, params.enable_gqa)
    except BadValue as error:  # they are on several devices
        return error.message
    reason = ""
    if (kernel, problem.kind) in attention_constraints.RULES:
        libraries, reasons = attention_constraints.providers(kernel, problem.kind)
        if not libraries:
            reason = "; ".join(reasons) or f"no library here has it for arrays on {problem.kind}"
    return reason or attention_constraints.refusal(kernel, problem, attention_constraints.facts_of(problem.device))


def sdp_kernel(
    enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True, enable_cudnn: bool = True
) -> switches.Scope:
    """Returns a scope that sets four attention kernels on or off, as given or on, and forbids those of extensions.

    Deprecated: `backline.nn.attention.sdpa_kernel` says which kernels are allowed.

    Raises
    ------
    BadType
        Not a bool.
    """
    warnings.warn(
        "backline.backends.cuda.sdp_kernel is deprecated; use backline.nn.attention.sdpa_kernel([SDPBackend.MATH, ...]), "
        "which names the kernels that are allowed",
        FutureWarning,
        stacklevel=2,
    )
    arguments = {
        "cuda.flash_sdp": ("enable_flash", enable_flash), "cuda.math_sdp": ("enable_math", enable_math),
        "cuda.mem_efficient_sdp": ("enable_mem_efficient", enable_mem_efficient),
        "cuda.cudnn_sdp": ("enable_cudnn", enable_cudnn),
    }  # fmt: skip
    values = {switch: _checked(f"sdp_kernel.{name}", bool, value) for switch, (name, value) in arguments.items()}
    return switches.make_scope("cuda.sdp_kernel", {**values, "cuda.overrideable_sdp": False}, depth=2)


for _function in (
    can_use_cudnn_attention, can_use_efficient_attention, can_use_flash_attention, is_flash_attention_available, sdp_kernel,
):  # fmt: skip
    _function.__module__ = _PUBLIC
