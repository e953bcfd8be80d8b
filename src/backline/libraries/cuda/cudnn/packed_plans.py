"""Plans of attention over packed sequences on cuDNN: the function of the arrays of a call, around the graphs of `packed_graphs`.

Nothing is read on the host: one kernel makes the table of offsets and lengths from the positions, which no call has checked where
they are on the device. Whatever they are, the table stays within the arrays.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ....problems.attention_problem import AttentionGrads, AttentionLSE
from ....problems.packed_attention_problem import PackedAttentionProblem
from ...base import Planner
from ..common import bindings, elementwise_kernels
from ..common.device_plan import at
from . import packed_graphs as packed
from .attention_plans import AT_ONCE, rows_for
from .conv_graphs import ALIGNMENT, Graph
from .graph_cache import GraphRun
from .sdpa_graphs import GRAD_KEY, GRAD_QUERY, GRAD_VALUE, OUT, STATS

__all__ = ["PackedAttentionPlan", "padded_source", "table_source", "table_width"]

ITEM = 4  # bytes of an offset, and of a length


def table_width(sequences: int) -> int:
    """Returns the numbers in a row of the table: one more than there are sequences, filled up so that rows are aligned."""
    return -(-(sequences + 1) * ITEM // ALIGNMENT) * ALIGNMENT // ITEM


@lru_cache
def table_source(steps: int) -> elementwise_kernels.Kernel:
    """The kernel that makes a table with so many rows of offsets, behind those of the lengths of queries and of keys.

    A causal sequence with more queries than keys begins at its first query that has a key; one without queries or keys has none.
    Lengths are at most `most_q` and `most_k`, and where positions decrease, or lie outside of the rows, they are moved inside.
    """
    names = [f"int64 step{i}" for i in range(steps)]
    offsets = "".join(f"else if (row == {i + 2}) y = T((keyed >> {i} & 1 ? k : q) * step{i});\n" for i in range(steps))
    body = f"""
        const long long row = i / width, at = i % width, b = at < sequences ? at : sequences;
        long long q = bl_inside(begins_q[b], rows_q), k = bl_inside(begins_k[b], rows_k), queries = 0, keys = 0;
        if (b < sequences) {{
            queries = bl_inside(bl_inside(begins_q[b + 1], rows_q) - q, most_q);
            keys = bl_inside(bl_inside(begins_k[b + 1], rows_k) - k, most_k);
            if (causal && queries > keys) {{ q += queries - keys; queries = keys; }}
            if (queries == 0 || keys == 0) queries = keys = 0;
        }}
        if (row == 0) y = T(queries);
        else if (row == 1) y = T(keys);
        {offsets}
    """
    inputs = [
        "raw Q begins_q", "raw K begins_k", "int64 sequences", "int64 width", "int64 rows_q", "int64 rows_k", "int64 most_q",
        "int64 most_k", "int64 causal", "int64 keyed", *names,
    ]  # fmt: skip
    return elementwise_kernels.Kernel(", ".join(inputs), "T y", body)


INSIDE = """
__device__ inline long long bl_inside(long long n, long long most) { return n < 0 ? 0 : n > most ? most : n; }
"""
_PADDED = elementwise_kernels.Kernel(
    "raw T lse, raw I begins, raw I lengths, int64 heads, int64 longest", "T y",
    "const long long at = i % longest, head = i / longest % heads, b = i / longest / heads; "
    "y = at < lengths[b] ? lse[begins[b] + at * heads + head] : T(0.0f);",
)  # fmt: skip


def padded_source() -> elementwise_kernels.Kernel:
    """The kernel that copies the log-sum-exp of rows to (sequences, heads, length)."""
    return _PADDED


class PackedAttentionPlan:
    """The function of the Plan of attention over packed sequences, or of its gradients."""

    def __init__(
        self, problem: PackedAttentionProblem, made: packed.PackedRecipe, module: Any, device: int, planner: Planner
    ) -> None:
        self.problem, self.made = problem, made
        self.roles = tuple(o.role for o in problem.operands)
        self.width = table_width(made.sequences)

        def run(graph: Graph | None) -> tuple[GraphRun, tuple[int, ...]] | None:
            return None if graph is None else (GraphRun(graph, AT_ONCE, module, device, planner), _uids(graph))

        self.forward, self.backward = run(made.forward), run(made.backward)
        steps = made.steps
        self.table = elementwise_kernels.made(f"packed_{len(steps)}", table_source(len(steps)), INSIDE)
        keyed = sum(1 << i for i, (of_keys, _) in enumerate(steps) if of_keys)
        causal = int(problem.is_causal and not problem.alike)
        sizes = problem.sequences, self.width, *problem.rows[:2], *made.lengths
        self.numbers = (*sizes, causal, keyed, *(step for _, step in steps))

    def __call__(self, *arrays: Any) -> Any:
        p, made, cupy = self.problem, self.made, bindings.cupy()
        given = dict(zip(self.roles, arrays, strict=True))
        table = cupy.empty((2 + len(made.steps), self.width), "int32")
        positions = given["cu_seq_q"]
        self.table(positions, given.get("cu_seq_k", positions), *self.numbers, table)
        base, row = at(table), self.width * ITEM
        pointers = {packed.LENGTHS_QUERY: base, packed.LENGTHS_KEY: base + row}
        pointers.update((packed.FIRST_OFFSETS + i, base + (2 + i) * row) for i in range(len(made.steps)))
        held = {feed.uid: rows_for(feed, given[feed.role]) for feed in made.feeds}
        new = cupy.zeros if p.gaps else cupy.empty
        if self.forward is not None:
            held[OUT] = new(p.result, p.dtype)
            if STATS in self.forward[1]:
                held[STATS] = self._stats()
        elif made.padded:
            padded = cupy.empty(made.stats, "float32")
            kernel = elementwise_kernels.made("packed_lse", _PADDED, "")
            kernel(held[STATS], table[1 + made.padded], table[0], p.heads[0], made.lengths[0], padded)
            held[STATS] = padded
        grads: tuple[Any, ...] = ()
        if self.backward is not None:
            grads = tuple(new(o.shape, p.dtype) for o in p.qkv)
            held.update(zip((GRAD_QUERY, GRAD_KEY, GRAD_VALUE), grads, strict=True))
        pointers.update((uid, at(array)) for uid, array in held.items())
        for part in (self.forward, self.backward):
            if part is not None:
                run, uids = part
                run({uid: pointers[uid] for uid in uids})
        if self.backward is not None:
            return AttentionGrads(grads[0], grads[1], grads[2], None)
        return AttentionLSE(held[OUT], held[STATS]) if p.returns_lse else held[OUT]

    def _stats(self) -> Any:
        """Memory for the log-sum-exp; what no graph writes there is a number that no kernel for gradients makes NaN of."""
        cupy, shape = bindings.cupy(), self.made.stats
        if self.problem.needs_grad:
            return cupy.zeros(shape, "float32")
        return cupy.full(shape, -float("inf"), "float32") if self.problem.gaps else cupy.empty(shape, "float32")


def _uids(graph: Graph) -> tuple[int, ...]:
    """The uids of the arrays that a graph is given, offsets among them."""
    tensors = [*(of for _, of in graph.inputs), *graph.outputs]
    return tuple(dict.fromkeys(each.uid for of in tensors for each in (of, of.offsets) if each is not None))
