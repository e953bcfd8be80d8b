"""Graphs of cuDNN for attention, decided from values alone.

What cuDNN cannot do is in the table of `libraries.attention_constraints`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....problems import Operand
from ....problems.attention_problem import AttentionProblem
from ....problems.memory_layout import contiguous_strides
from ... import attention_constraints
from ...base import LEADS, Algorithm, Refusal
from .conv_graphs import ALIGNMENT, TYPES, Dropout, Feed, Graph, Tensor, modes

__all__ = [
    "COMPILED_AFTER", "COMPILED_WORK", "LARGEST_SEED", "AttentionRecipe", "attention_algorithms", "attention_recipe",
    "attention_refusal", "graph_strides", "leads", "lies_as_graph_reads", "waits",
]  # fmt: skip

KERNEL = "cudnn_attention"
QUERY, KEY, VALUE, BIAS, SEED, OFFSET, OUT, STATS, GRAD, GRAD_QUERY, GRAD_KEY, GRAD_VALUE = range(1, 13)
LARGEST_SEED = 2**63 - 1
FLOAT = "FLOAT"
MASKED = "a key that a mask leaves out still counts if it, or its value, is NaN or infinite"
# Compute capability and head dims for which cuDNN's kernels, written for the device, come before ours in Triton: PyTorch's order;
# on an H100 Triton's took 1.5 to 2.9 times as long (row SDPA-6 of the check on a GPU).
LEADING, LEADING_DIMS = (9, 0), (64, 128)
# A plan is compiled for its shape, which takes a processor of 2 GHz 0.48 s. A kernel of cuDNN is taken to save 1 s in 1e15
# operations: 600e12 a second in the place of 375e12, as an H100 has about. So much work of one shape is worth its plan.
COMPILED_AFTER, COMPILED_WORK = 100, 4.8e14


@dataclass(frozen=True, slots=True)
class AttentionRecipe:
    """Complete description of the Plan of attention."""

    # forward, backward: the graphs that run, in this order. `backward` is None where no gradients are asked for, `forward` where
    # these are given the output and its log-sum-exp.
    forward: Graph | None
    backward: Graph | None
    feeds: tuple[Feed, ...]  # operands that the graphs are given
    # How the mask is read: "bool" or "added"; empty for none. A graph adds what is made of it; a query that may look at no key is
    # let look at all, and its row of the result (and of the gradient that comes in) is made zero instead.
    mask: str
    bias: tuple[int, ...]  # shape and dtype of what is made of the mask
    result: tuple[int, ...]  # shape of what attention gives


def attention_refusal(problem: AttentionProblem, facts: attention_constraints.Facts) -> str:
    """Returns why cuDNN's attention cannot run a Problem: the first rule that fails; empty if it can."""
    reason = attention_constraints.refusal(KERNEL, problem, facts)
    if reason:
        return reason
    if not problem.dtype.isnative:
        return "it takes native byte order only"
    if problem.dropout == 1:
        return "it divides by what dropout keeps, and a dropout of 1 keeps nothing"
    return ""


def leads(problem: AttentionProblem, capability: tuple[int, int] | None) -> bool:
    """Tells whether cuDNN's attention comes first where no switch sets a priority; errata refuse it before that matters."""
    return capability == LEADING and all(dim in LEADING_DIMS for dim in problem.dims)


def waits(problem: AttentionProblem, capability: tuple[int, int] | None, ordered: bool) -> bool:
    """Tells whether cuDNN is passed over for a Problem where shapes keep changing: where it leads, and the user has set no order.

    Not with dropout: another library leaves out other elements for a seed, and gradients have to leave out those of their output,
    while the calls of the one and of the other are counted apart.
    """
    return not problem.dropout and not ordered and leads(problem, capability)


def attention_algorithms(problem: AttentionProblem, facts: attention_constraints.Facts) -> Iterator[Algorithm | Refusal]:
    """Lists cuDNN's Algorithms and Refusals for attention under some Facts."""
    reason = attention_refusal(problem, facts)
    if reason:
        yield Refusal("cudnn", KERNEL, reason)
        return
    note = MASKED if problem.mask is not None else ""
    traits = (KERNEL, LEADS) if leads(problem, facts.capability) else (KERNEL,)
    backward = problem.get("grad") is not None
    for name in ("sdpa_backward", "sdpa_backward_steady") if backward else ("sdpa",):
        if name.endswith("_steady") and problem.dropout and facts.capability is not None and facts.capability[0] == 10:
            yield Refusal("cudnn", name, "with dropout it does not promise the same bits on capability 10.x")
            continue
        # Gradients are summed in any order where nobody asks for another way.
        level = "off" if name == "sdpa_backward" else "threads"
        yield Algorithm(
            library="cudnn", name=name, precision="f32 accumulation", level=level, basis="promise", note=note, traits=traits
        )


def attention_recipe(problem: AttentionProblem, name: str) -> AttentionRecipe:
    """The recipe of an Algorithm's name for a Problem that `attention_refusal` has nothing against."""
    kind = TYPES[problem.dtype.name]
    (batch, heads, queries, _), keys = problem.shapes[0], problem.lengths[1]
    feeds, qkv = [], {}
    for uid, (letter, o) in enumerate(zip("qkv", problem.qkv, strict=True), start=QUERY):
        feeds.append(Feed(o.role, uid, not lies_as_graph_reads(o)))
        qkv[letter] = Tensor(o.role, uid, o.shape, graph_strides(o), kind)
    result = (batch, heads, queries, problem.dims[2])
    out = Tensor("o", OUT, result, contiguous_strides(result, 1), kind)
    stats = Tensor("stats", STATS, (batch, heads, queries, 1), contiguous_strides((batch, heads, queries, 1), 1), FLOAT)
    shared: list[tuple[str, Tensor]] = []
    mask, bias = "", tuple[int, ...]()
    if problem.mask is not None:
        mask = "bool" if problem.mask.dtype.kind == "b" else "added"
        lead = problem.mask.shape[:-2] or (1, 1)
        bias = (*lead, queries, keys)
        wide = FLOAT if problem.mask.dtype.name == "float32" else kind
        shared.append(("bias", Tensor("bias", BIAS, bias, contiguous_strides(bias, 1), wide)))
    dropout = None
    if problem.dropout:
        one = (1, 1, 1, 1)
        dropout = Dropout(
            problem.dropout, Tensor("seed", SEED, one, one, "INT64"), Tensor("offset", OFFSET, one, one, "INT64")
        )  # fmt: skip
    options = (("attn_scale", problem.scale), ("use_causal_mask", problem.is_causal))
    backward = None
    grad, output, lse = (problem.get(role) for role in ("grad", "output", "lse"))
    stated = grad is not None or problem.returns_lse
    forward: Graph | None = None
    if output is not None and lse is not None:
        feeds += [Feed("output", OUT, not lies_as_graph_reads(output)), Feed("lse", STATS, not lse.is_contiguous())]
        out = Tensor("o", OUT, result, graph_strides(output), kind)
    else:
        forward = Graph(
            "sdpa", (*qkv.items(), *shared), (*options, ("generate_stats", stated)), (out, stats) if stated else (out,),
            kind, FLOAT, FLOAT, (), modes(), dropout,
        )  # fmt: skip
    if grad is not None:
        feeds.append(Feed("grad", GRAD, not lies_as_graph_reads(grad)))
        taken = (*qkv.items(), ("o", out), ("dO", Tensor("grad", GRAD, result, graph_strides(grad), kind)), ("stats", stats))
        given = tuple(
            Tensor(f"grad_{each.role}", uid, each.shape, contiguous_strides(each.shape, 1), kind)
            for each, uid in zip(problem.qkv, (GRAD_QUERY, GRAD_KEY, GRAD_VALUE), strict=True)
        )
        steady = (("use_deterministic_algorithm", name.endswith("_steady")),)
        backward = Graph("sdpa_backward", (*taken, *shared), (*options, *steady), given, kind, FLOAT, FLOAT, (), modes(), dropout)
    return AttentionRecipe(forward, backward, tuple(feeds), mask, bias, result)


def lies_as_graph_reads(o: Operand) -> bool:
    """Tells whether cuDNN reads an operand uncopied: contiguous rows, other strides positive multiples of `ALIGNMENT`."""
    if not o.aligned or (o.shape[-1] != 1 and o.strides[-1] != o.dtype.itemsize):
        return False
    return all(n == 1 or (step > 0 and step % ALIGNMENT == 0) for n, step in zip(o.shape[:-1], o.strides[:-1], strict=True))


def graph_strides(o: Operand) -> tuple[int, ...]:
    """Strides in elements that the graph is told: those of a dense copy where one is made, and where an axis has size 1."""
    dense = contiguous_strides(o.shape, 1)
    if not lies_as_graph_reads(o):
        return dense
    size = o.dtype.itemsize
    return tuple(own if n == 1 else step // size for n, step, own in zip(o.shape, o.strides, dense, strict=True))
