"""``cuda.matmul``: permissions for products on CUDA arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ... import switches
from ...switches.switch import Reduction
from ...switches.switch_module import Computed, SwitchGroup
from .. import _module_factory

__all__ = ["cuBLASModule"]

_PREFIX = "cuda.matmul"


def _split_k(switch: str) -> Callable[[], bool]:
    def read() -> bool:
        declared = switches.lookup(switch)
        assert isinstance(declared, Reduction)
        return declared.pair(dict(switches.current().items()))[1]

    return read


def _computed() -> Computed:
    facts = {}
    for kind in ("fp16", "bf16"):
        name = f"allow_{kind}_reduced_precision_reduction"
        facts[f"{name}_split_k"] = (_split_k(f"{_PREFIX}.{name}"), f"{_PREFIX}.{name} = (reduced, split_k)")
    return facts


if TYPE_CHECKING:

    class cuBLASModule(SwitchGroup):
        """Switches of products on CUDA arrays."""

        allow_tf32: bool
        allow_fp16_reduced_precision_reduction: Any
        allow_bf16_reduced_precision_reduction: Any
        allow_fp16_accumulation: bool
        fp32_precision: str

        @property
        def allow_fp16_reduced_precision_reduction_split_k(self) -> bool: ...
        @property
        def allow_bf16_reduced_precision_reduction_split_k(self) -> bool: ...

        flags: _module_factory.Flags
        set_flags: _module_factory.SetFlags

else:
    _body = _module_factory.group("backline.backends.cuda.matmul", _PREFIX, _computed())
    cuBLASModule = type("cuBLASModule", (SwitchGroup,), _body)
    cuBLASModule.__doc__ = """Switches of products on CUDA arrays; ``cuda.matmul`` is one of these.

``allow_fp16_reduced_precision_reduction`` and its sister for bfloat16 take a bool, or a tuple of two: whether sums may be reduced
in the short type, and whether they may be split along k. They read as the first; the second is the attribute with ``_split_k``.
"""
    cuBLASModule.__module__ = "backline.backends.cuda"
