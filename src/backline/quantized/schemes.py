"""Number ranges that suit each engine, and the weights that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from .. import switches
from ..errors import BackendUnavailable, BadType, BadValue
from ..libraries import quantized_engines
from ..libraries.reference.reference_quantized import MOST_TERMS
from ..libraries.reference.reference_requantize import FLOAT32
from .arrays import QArray

__all__ = ["SCHEMES", "Scheme", "current_engine", "scheme"]


@cache
def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


@dataclass(frozen=True, slots=True)
class Scheme:
    """Quantization scheme of an engine.

    Attributes
    ----------
    engine
        Its name.
    reduced
        Whether activations leave out one bit of the dtype's range: pairs of products of such and int8 weights fit int16, which
        the kernels of some processors add them up in.
    per_channel
        Whether `quantize_weights` takes a scale for each output channel.
    weights
        Dtypes of weights.
    float32
        Whether the numbers of real inputs are chosen, and results rounded, in float32.
    terms
        The most products that one sum may have.
    """

    engine: str
    reduced: bool = False
    per_channel: bool = True
    weights: tuple[str, ...] = ("int8",)
    terms: int = (2**31 - 1) // 255**2  # a sum fits int32 then, whatever the zero points

    @property
    def float32(self) -> bool:
        return self.engine in FLOAT32

    def activations(self, dtype: np.dtype[Any]) -> tuple[int, int]:
        """Returns the least and the greatest integer that activations are quantized to.

        >>> SCHEMES["x86"].activations(np.dtype("uint8")), SCHEMES["onednn"].activations(np.dtype("uint8"))
        ((0, 127), (0, 255))
        """
        least, most = _limits(dtype)
        return (least // 2, most // 2) if self.reduced else (least, most)

    def check_weight(self, where: str, weight: QArray) -> None:
        """Refuses a weight that the engine cannot pack."""
        if weight.dtype.name not in self.weights:
            raise BadType(
                f"{where}: weight has dtype {weight.dtype}", cause=f"engine {self.engine!r} takes {' and '.join(self.weights)}"
            )
        if prod(weight.shape[1:]) > self.terms:
            raise BadValue(
                f"{where}: weight of shape {weight.shape} has {prod(weight.shape[1:])} terms a sum",
                cause=f"{self.terms} at most by engine {self.engine!r}",
                remedy="" if self.terms == MOST_TERMS else f"engine 'reference' takes {MOST_TERMS}",
            )


SCHEMES = {
    s.engine: s
    for s in (
        Scheme("x86", reduced=True),
        Scheme("fbgemm", reduced=True),
        Scheme("onednn"),
        Scheme("qnnpack", per_channel=False),
        Scheme("reference", weights=("int8", "uint8"), terms=MOST_TERMS),
    )
}


def scheme(engine: str | None = None) -> Scheme:
    """Returns the scheme of an engine, available or not; by default of the one that `backends.quantized.engine` names."""
    if engine is None:
        return SCHEMES[str(switches.get("quantized.engine"))]
    if not isinstance(engine, str):
        raise BadType(f"engine={engine!r} is not a str or None")
    if engine not in SCHEMES:
        raise BadValue(f"engine={engine!r} is no engine", remedy=f"one of: {', '.join(map(repr, SCHEMES))}")
    return SCHEMES[engine]


def current_engine(where: str) -> str:
    """Returns the engine that packs now.

    Raises
    ------
    BackendUnavailable
        The environment or a file names one that is not there.
    """
    name = str(switches.get("quantized.engine"))
    there = quantized_engines.supported()
    if name not in there:
        raise BackendUnavailable(
            f"{where}: quantized.engine is {name!r}, {switches.origin('quantized.engine')}, which is not available here",
            cause=quantized_engines.reason(name),
            remedy=f"engines that are, the best first: {', '.join(map(repr, there))}",
        )
    return name
