"""Graphs of cuDNN for attention over packed sequences, decided from values alone.

Arrays are (rows, heads, head dim). The graphs see (sequences, heads, length, head dim), where a table on the device says at which
element each sequence begins ("ragged offsets") and how long it is. So a graph is for a number of sequences and for a length that
none exceeds, whatever the lengths are, and both are rounded up: calls of one class share their plans. What makes another plan is
listed at `packed_recipe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....problems import Operand
from ....problems.attention_problem import AttentionProblem
from ....problems.memory_layout import contiguous_strides
from ....problems.packed_attention_problem import PackedAttentionProblem, length_class, size_class
from ... import attention_constraints
from ...base import Algorithm, Refusal
from ..common.gemm_layout import LARGEST
from . import sdpa_graphs as sdpa
from .conv_graphs import TYPES, Feed, Graph, Tensor, modes

__all__ = [
    "FIRST_OFFSETS", "LENGTHS_KEY", "LENGTHS_QUERY", "PackedRecipe", "packed_algorithms", "packed_recipe", "packed_refusal",
]  # fmt: skip

LENGTHS_QUERY, LENGTHS_KEY, FIRST_OFFSETS = 13, 14, 15  # uids; rows of the table of offsets follow each other
EMPTY_SINCE = 92500
# Compute capabilities whose kernels for gradients read the log-sum-exp as (sequences, heads, length) only, and give the same bits
# again for no packed sequences: by the frontend's own checks.
PADDED = (8, 12)
NOTE = "all sequences in one call; NaN and infinity in a sequence may reach rows of the next one"


@dataclass(frozen=True, slots=True)
class PackedRecipe:
    """Complete description of the Plan of attention over packed sequences."""

    # forward, backward: the graphs that run, in this order, as in `AttentionRecipe`.
    forward: Graph | None
    backward: Graph | None
    feeds: tuple[Feed, ...]  # operands that the graphs are given
    sequences: int  # of the graphs: those behind the call's own are empty
    lengths: tuple[int, int]  # most queries and keys of a sequence
    # The table's rows behind those of the lengths: whether it is of keys, and elements from one row of an array to the next.
    steps: tuple[tuple[bool, int], ...]
    padded: (
        int  # 1 + the index of the row, of `steps`, of the log-sum-exp that is copied to (sequences, heads, length); 0 for none
    )
    stats: tuple[int, ...]  # shape of the log-sum-exp of the graphs


def _sizes(p: PackedAttentionProblem) -> tuple[int, int, int]:
    """Returns the sequences of the graphs, and the most queries and keys of one."""
    return size_class(p.sequences, 1, 4), length_class(p.lengths[0]), length_class(p.lengths[1])


def as_batch(p: PackedAttentionProblem) -> AttentionProblem:
    """Returns the Problem of attention that the graphs see, for rules about it."""
    batch, queries, keys = _sizes(p)
    operands = tuple(
        Operand(o.role, o.dtype, (batch, o.shape[1], n, o.shape[2]), (n * o.strides[0], o.strides[1], o.strides[0], o.strides[2]))
        for o, n in zip(p.qkv, (queries, keys, keys), strict=True)
    )
    parameters = {"enable_gqa": p.enable_gqa, "is_causal": p.is_causal, "needs_grad": p.needs_grad, "scale": p.scale}
    return AttentionProblem(
        "nn.functional.scaled_dot_product_attention", operands, tuple(parameters.items()), "attention", device=p.device
    )  # fmt: skip


def packed_refusal(p: PackedAttentionProblem, facts: attention_constraints.Facts) -> str:
    """Returns why cuDNN cannot run a Problem in one call; empty if it can."""
    reason = sdpa.attention_refusal(as_batch(p), facts)
    if reason:
        return reason
    if facts.cudnn < EMPTY_SINCE:
        return f"sequences without queries or keys give NaN before cuDNN 9.25 (cudnn-frontend issue 943); this is {facts.cudnn}"
    if _padded(p, facts.capability) and p.dims[0] != p.dims[2]:
        return f"gradients on capability {facts.capability} need one head dim, not {p.dims}"
    if 0 in (*p.rows, p.sequences):
        return "there are no rows"
    for o in p.operands:
        if len(o.shape) == 3 and o.shape[0] * max(_step(o), o.shape[1] * o.shape[2]) > LARGEST:
            return f"offsets are numbers of 32 bits, and {o.role} spans more elements"
    batch, queries, _ = _sizes(p)
    if _padded(p, facts.capability) and batch * p.heads[0] * queries > LARGEST:
        return f"the log-sum-exp of {batch} sequences of {queries} queries has more than {LARGEST} elements"
    return ""


def packed_algorithms(p: PackedAttentionProblem, facts: attention_constraints.Facts) -> Iterator[Algorithm | Refusal]:
    """Lists cuDNN's Algorithms and Refusals for attention over packed sequences under some Facts."""
    reason = packed_refusal(p, facts)
    if reason:
        yield Refusal("cudnn", sdpa.KERNEL, reason)
        return
    for name in ("packed_backward", "packed_backward_steady") if p.needs_grad else ("packed",):
        if name.endswith("_steady") and facts.capability is not None and facts.capability[0] in PADDED:
            yield Refusal("cudnn", name, f"on capability {facts.capability[0]}.x it does not promise the same bits")
            continue
        level = "off" if name == "packed_backward" else "threads"
        yield Algorithm(
            library="cudnn", name=name, precision="f32 accumulation", level=level, basis="promise", note=NOTE,
            traits=(sdpa.KERNEL,),
        )  # fmt: skip


def packed_recipe(p: PackedAttentionProblem, name: str, capability: tuple[int, int]) -> PackedRecipe:
    """The recipe of an Algorithm's name for a Problem that `packed_refusal` has nothing against.

    Two calls share their plans where these are equal: device, dtype, heads and head dims, scale, causal or not (if so, whether
    keys have positions of their own), log-sum-exp or not, steps between rows and heads in memory, the classes of the number of
    sequences and of `max_q` and `max_k`; for gradients the class of the number of rows too, which bounds the workspace.
    """
    kind = TYPES[p.dtype.name]
    batch, queries, keys = _sizes(p)
    heads, width = p.heads[0], p.dims[2]
    table = _Table(batch)
    feeds: list[Feed] = []

    def rows(name: str, uid: int, o: Operand, keyed: bool) -> Tensor:
        """An array of rows, as (sequences, heads, length, head dim)."""
        step, head, last = sdpa.graph_strides(o)
        length = keys if keyed else queries
        return Tensor(
            name, uid, (batch, o.shape[1], length, o.shape[2]), (length * step, head, step, last), kind, table.row(keyed, step)
        )  # fmt: skip

    def operand(role: str, uid: int, keyed: bool = False, name: str = "") -> Tensor:
        o = p.get(role)
        assert o is not None
        feeds.append(Feed(role, uid, not sdpa.lies_as_graph_reads(o)))
        return rows(name or role, uid, o, keyed)

    qkv = (("q", operand("query", sdpa.QUERY)), ("k", operand("key", sdpa.KEY, True)), ("v", operand("value", sdpa.VALUE, True)))
    whole = Operand.contiguous("output", p.dtype, (p.rows[0], heads, width))
    shape, padded = (batch, heads, queries, 1), 0
    by_sequence = _padded(p, capability)
    if by_sequence:
        stats = Tensor("stats", sdpa.STATS, shape, contiguous_strides(shape, 1), sdpa.FLOAT)
    else:
        stats = Tensor("stats", sdpa.STATS, shape, (queries * heads, 1, heads, 1), sdpa.FLOAT, table.row(False, heads))
    lengths = (("seq_len_q", table.lengths(LENGTHS_QUERY)), ("seq_len_kv", table.lengths(LENGTHS_KEY)))
    causal = "use_causal_mask" if p.alike else "use_causal_mask_bottom_right"
    options = (("attn_scale", p.scale), (causal, p.is_causal), ("use_padding_mask", True))
    stated = p.needs_grad or p.returns_lse
    forward = backward = None
    lse = p.get("lse")
    if lse is not None:
        out = operand("output", sdpa.OUT, name="o")
        feeds.append(Feed("lse", sdpa.STATS, not lse.is_contiguous()))
        table.row(False, heads)
        padded = 1 + table.steps.index((False, heads)) if by_sequence else 0
    else:
        out = rows("o", sdpa.OUT, whole, False)
        forward = Graph(
            "sdpa", (*qkv, *lengths), (*options, ("generate_stats", stated)), (out, stats) if stated else (out,), kind,
            sdpa.FLOAT, sdpa.FLOAT, (), modes(),
        )  # fmt: skip
    if p.needs_grad:
        taken = (*qkv, ("o", out), ("dO", operand("grad", sdpa.GRAD)), ("stats", stats), *lengths)
        given = tuple(
            rows(f"grad_{o.role}", uid, Operand.contiguous(o.role, o.dtype, o.shape), uid != sdpa.GRAD_QUERY)
            for o, uid in zip(p.qkv, (sdpa.GRAD_QUERY, sdpa.GRAD_KEY, sdpa.GRAD_VALUE), strict=True)
        )
        most = (
            ("max_total_seq_len_q", size_class(p.rows[0], 1024, 8)), ("max_total_seq_len_kv", size_class(p.rows[1], 1024, 8)),
            ("use_deterministic_algorithm", name.endswith("_steady")),
        )  # fmt: skip
        backward = Graph("sdpa_backward", taken, (*options, *most), given, kind, sdpa.FLOAT, sdpa.FLOAT, (), modes())
    lying = shape[:3] if by_sequence else (p.rows[0], heads)
    return PackedRecipe(forward, backward, tuple(feeds), batch, (queries, keys), tuple(table.steps), padded, lying)


def _padded(p: PackedAttentionProblem, capability: tuple[int, int] | None) -> bool:
    """Tells whether the log-sum-exp lies as (sequences, heads, length) in the graphs."""
    return p.needs_grad and capability is not None and capability[0] in PADDED


def _step(o: Operand) -> int:
    """Elements from one row to the next, where a graph reads an operand uncopied; else of a dense copy."""
    return sdpa.graph_strides(o)[0]


class _Table:
    """The rows of the table of offsets, collected while tensors are described."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.steps: list[tuple[bool, int]] = []

    def row(self, keyed: bool, step: int) -> Tensor:
        """The offsets of arrays with rows of queries, or of keys, so many elements apart; arrays that lie alike share them."""
        if (keyed, step) not in self.steps:
            self.steps.append((keyed, step))
        at = self.steps.index((keyed, step))
        return Tensor(f"offsets_{at}", FIRST_OFFSETS + at, (self.batch + 1, 1, 1, 1), (1, 1, 1, 1), "INT32")

    def lengths(self, uid: int) -> Tensor:
        return Tensor(f"lengths_{uid}", uid, (self.batch, 1, 1, 1), (1, 1, 1, 1), "INT32")
