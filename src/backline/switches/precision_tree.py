"""The tree of ``fp32_precision``: nine nodes, how each one reads, and the older switches that are derived from them.

A write stores a value in one node and nothing else. Reading walks up: the node, the ``all`` node of its backend, the root.
``none`` means "as above", and plain float32 with nothing above. Convolution and recurrent networks on CUDA start in a state
of their own, `FACTORY`: tf32 unless something above says otherwise.

+----------------------------------+---------------------------+
| node                             | above it                  |
+==================================+===========================+
| fp32_precision                   |                           |
+----------------------------------+---------------------------+
| mkldnn.fp32_precision            | fp32_precision            |
+----------------------------------+---------------------------+
| mkldnn.matmul, .conv, .rnn       | mkldnn.fp32_precision     |
+----------------------------------+---------------------------+
| cudnn.fp32_precision             | fp32_precision            |
+----------------------------------+---------------------------+
| cuda.matmul, cudnn.conv, .rnn    | cudnn.fp32_precision      |
+----------------------------------+---------------------------+
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..errors import BadType, BadValue
from .switch import DerivedSwitch, Switch, Value, show

__all__ = ["CUDA", "FACTORY", "LEGAL", "PARENT", "MatmulPrecisionWord", "Precision", "TF32Switch", "decides", "resolve"]

FACTORY: Final = "factory"
"""Value of CUDA's conv and rnn nodes until they are written. It cannot be assigned, and no getter returns it."""

LEGAL: Final = ("none", "ieee", "tf32", "bf16")
PARENT: Final = {
    "fp32_precision": "",
    "mkldnn.fp32_precision": "fp32_precision",
    "mkldnn.matmul.fp32_precision": "mkldnn.fp32_precision",
    "mkldnn.conv.fp32_precision": "mkldnn.fp32_precision",
    "mkldnn.rnn.fp32_precision": "mkldnn.fp32_precision",
    "cudnn.fp32_precision": "fp32_precision",
    "cuda.matmul.fp32_precision": "cudnn.fp32_precision",
    "cudnn.conv.fp32_precision": "cudnn.fp32_precision",
    "cudnn.rnn.fp32_precision": "cudnn.fp32_precision",
}
CUDA: Final = frozenset(name for name in PARENT if name.startswith("cud"))

MKLDNN_OPS: Final = tuple(f"mkldnn.{op}.fp32_precision" for op in ("matmul", "conv", "rnn"))
CUDNN_OPS: Final = ("cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision")
CUDA_MATMUL: Final = "cuda.matmul.fp32_precision"
MKLDNN_MATMUL: Final = "mkldnn.matmul.fp32_precision"


def decides(values: Mapping[str, Value], node: str) -> str:
    """Returns the node that the reading of `node` comes from: itself, or one above it."""
    at = node
    while values[at] in ("none", FACTORY) and PARENT[at]:
        at = PARENT[at]
    return node if values[at] == "none" else at


def resolve(values: Mapping[str, Value], node: str) -> str:
    """Returns what `node` reads as: "none", "ieee", "tf32" or "bf16".

    Examples
    --------
    >>> values = dict.fromkeys(PARENT, "none") | {"fp32_precision": "bf16", "cudnn.conv.fp32_precision": FACTORY}
    >>> resolve(values, "mkldnn.conv.fp32_precision"), resolve(values, "cudnn.conv.fp32_precision")
    ('bf16', 'none')
    """
    word = values[decides(values, node)]
    if word == FACTORY:
        return "tf32"
    if word == "bf16" and node in CUDA:
        return "none"
    return str(word)


class Precision(Switch):
    """A node of the tree."""

    def resolve(self, values: Mapping[str, Value]) -> Value:
        return resolve(values, self.name)

    def check(self, value: object) -> Value:
        if value == "bf16" and self.name in CUDA and isinstance(value, str):
            raise BadValue(
                f"{self.name} = 'bf16' is not a legal value.",
                cause="CUDA has no bf16 arithmetic for float32 inputs; bf16 exists for the CPU's nodes (mkldnn) and the root",
                remedy=f"legal values, the nearest first: {self.legal_text(value)}",
            )
        return Switch.check(self, value)


class TF32Switch(DerivedSwitch):
    """An ``allow_tf32``: True where all its nodes read tf32."""

    def resolve(self, values: Mapping[str, Value]) -> Value:
        return all(resolve(values, node) == "tf32" for node in self.nodes)

    def write(self, value: Value, values: Mapping[str, Value]) -> dict[str, Value]:
        if value:
            return dict.fromkeys(self.nodes, "tf32")
        if self.nodes == (CUDA_MATMUL,):
            return {CUDA_MATMUL: "ieee"}
        # CUDA's two are both written; of the CPU's three, those that read tf32.
        both = self.nodes == CUDNN_OPS
        written: dict[str, Value] = {node: "none" for node in self.nodes if both or resolve(values, node) == "tf32"}
        after = {**values, **written}
        return {node: "ieee" if resolve(after, node) == "tf32" else "none" for node in written}


_WORDS: Final[dict[str, dict[str, Value]]] = {
    "highest": {CUDA_MATMUL: "ieee", MKLDNN_MATMUL: "ieee"},
    "high": {CUDA_MATMUL: "tf32", MKLDNN_MATMUL: "tf32"},
    "medium": {CUDA_MATMUL: "tf32", MKLDNN_MATMUL: "bf16"},
}


class MatmulPrecisionWord(DerivedSwitch):
    """``float32_matmul_precision``: one word for the two matmul nodes. Upper and lower case are one."""

    def check(self, value: object) -> Value:
        if not isinstance(value, str):
            raise BadType(
                f"{self.name} takes a str, not {type(value).__name__}: {show(value)}",
                remedy=f"legal values, the nearest first: {self.legal_text(value)}",
            )
        return DerivedSwitch.check(self, value.lower())

    def resolve(self, values: Mapping[str, Value]) -> Value:
        if resolve(values, MKLDNN_MATMUL) == "bf16":
            return "medium"
        reduced = "tf32" in (resolve(values, MKLDNN_MATMUL), resolve(values, CUDA_MATMUL))
        return "high" if reduced else "highest"

    def write(self, value: Value, values: Mapping[str, Value]) -> dict[str, Value]:
        return dict(_WORDS[str(value)])
