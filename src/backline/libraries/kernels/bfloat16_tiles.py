"""Products of bfloat16, and linear layers of them, on processors with AMX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...native import thread_team
from ...native.plan_builder import Builder
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MOST_ROWS, MatmulProblem
from ..base import Algorithm, Refusal
from .matrix_tiles import BFLOAT16, NO_TILES, THREADED, Matrices, TileProduct, has_tiles
from .pointwise_loops import KINDS
from .shares import vector

__all__ = ["TILES", "prepare_tiles", "tile_algorithms"]

TILES = "tiles"
DTYPE, SIZE = "bfloat16", BFLOAT16
MOST_ITEMS = 1 << 10  # of a batch: what is said of each is kept with the plan


def tile_algorithms(p: MatmulProblem | LinearProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the product by tiles on all threads and on one, or the reason why there is none; nothing for other dtypes."""
    if p.dtype.name != DTYPE:
        return
    reason = _refusal(p)
    if reason:
        yield Refusal("kernels", TILES, reason)
        return
    note = "sums of 32 rows and columns by AMX, then rounded; subnormal numbers may count as 0"
    if threads > 1 and p.flops >= THREADED:
        yield Algorithm(
            library="kernels", name=TILES, threads=threads, scaled=True, level="threads", basis="construction",
            precision="f32 accumulation", pool=thread_team.name(), note=note,
        )  # fmt: skip
    yield Algorithm(
        library="kernels", name=TILES, level="threads", basis="construction", precision="f32 accumulation", note=note
    )


def _refusal(p: MatmulProblem | LinearProblem) -> str:
    """Returns the reason why a product is not computed by tiles, or an empty string."""
    if not has_tiles(SIZE):
        return NO_TILES.format(DTYPE)
    if p.empty or p.items > MOST_ITEMS:
        return "an empty product needs no tiles" if p.empty else f"a batch of more than {MOST_ITEMS} products"
    if min(p.m, p.n) <= MOST_ROWS:
        return f"{MOST_ROWS} rows or columns, or fewer, fill no tiles"
    if any(o.dtype != p.dtype or not o.aligned for o in p.operands):
        return "an operand is not aligned, or of another dtype"
    product = p.given_product if isinstance(p, LinearProblem) else p
    if product.alpha != 1 or product.beta not in (0, 1):
        return "tiles are multiplied by no factor"
    for role, v in (("out", product.views.get("out")), ("what is added", product.views["c"] if product.beta else None)):
        if v is not None and v.stride1 != SIZE:
            return f"elements of a row of {role} are no neighbours in memory"
    return ""


def prepare_tiles(p: MatmulProblem | LinearProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `tile_algorithms` listed."""
    product = p.given_product if isinstance(p, LinearProblem) else p
    b, threads, row = Builder(product), algorithm.threads, p.n * SIZE
    out, c = product.views.get("out"), product.views["c"] if product.beta else None
    result = b.argument("out") if out is not None else b.result(p.dtype, p.result, "C")
    target = Matrices(result, out.items, out.stride0, SIZE) if out is not None else Matrices(result, p.m * row, row, SIZE)
    added = Matrices(b.argument("c"), c.items, c.stride0, SIZE) if c is not None else None
    bias = p.bias_row if isinstance(p, LinearProblem) else None
    count = TileProduct(b, SIZE, p.m, p.n, p.k, p.items, threads).write(
        _neighbours(b, product, "a", p.m, p.k), _neighbours(b, product, "b", p.k, p.n), target, added,
        vector(b, bias, "bias", p.dtype, result) if bias is not None else None, KINDS.index(p.parameter("activation") or "none"),
    )  # fmt: skip
    return b.plan(result, count=count, threads=threads, release_gil=True, same=("c",))


def _neighbours(b: Builder, p: MatmulProblem, role: str, rows: int, columns: int) -> Matrices:
    """Returns an operand whose elements of a row or of a column are neighbours in memory: copied where neither are."""
    v = p.views[role]
    given = Matrices(b.argument(role), v.items, v.stride0 if rows > 1 else columns * SIZE, v.stride1 if columns > 1 else SIZE)
    if SIZE in (given.stride0, given.stride1):
        return given
    items, whole = p.items if given.starts else 1, rows * columns * SIZE
    made = Matrices(b.work(items * whole, shared=True), whole if given.starts else 0, columns * SIZE, SIZE)
    places = [(item, 0, 0) for item in range(items)]
    b.each()
    b.copy((rows, columns), given.at(places), (given.stride0, given.stride1), made.at(places), (made.stride0, SIZE), SIZE)
    b.each(items)
    return made
