"""Recurrent networks with the products of a BLAS and a loop over the steps compiled in the core.

A layer is one prepared call: the product of the weights of the input and all steps, then for every step the product of those of
the state, onto the former, and the gates. Sequences do not meet: parts of the batch, and the two directions, may be shared among
threads, each product then on one of them; or all sequences go together, and the library divides its products.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer
from ...problems.rnn_problem import RnnProblem
from .. import fixed_order
from ..base import Algorithm, Refusal
from ..kernels.vector_level import vector_level
from ..rnn_layers import by_layer, layer_problem
from .cblas import LETTER, PLAIN, ROW, SLAB_BYTES, THREAD_FLOPS, TRANSPOSED, BlasTraits

__all__ = ["prepare_rnn", "rnn_algorithms"]

CELLS = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 3}
LEAST_ROWS = 8  # sequences in a part: fewer would read the weights as often for less
FEW_ROWS = 6  # up to so many sequences, and weights past SLAB_BYTES, one after the other over slabs is faster than a product
BLOCK_ROWS = 64  # of the product of the input, in a part


def rnn_algorithms(blas: BlasTraits, p: RnnProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """The ways of a BLAS for a recurrent network."""
    if p.dtype.name not in LETTER:
        yield Refusal(blas.name, "steps", f"BLAS has no product of {p.dtype.name}")
    elif p.is_gradient:
        yield Refusal(blas.name, "steps", "the compiled steps have no gradients")
    elif p.empty:
        yield Algorithm(library=blas.name, name="empty", level="threads", basis="construction", note="nothing to compute")
    elif _largest(p) > blas.native.max_integer:
        yield Refusal(blas.name, "steps", f"sizes past {blas.native.max_integer} need 64-bit integers")
    else:
        if threads > 1 and p.flops >= THREAD_FLOPS and blas.pool:
            shared = thread_team.items_threads(threads)
            divided = Algorithm(
                library=blas.name, name="steps_items", threads=shared, scaled=True, basis="construction", pool=blas.pool,
                note="directions and parts of the batch divided among the threads",
            )  # fmt: skip
            whole = Algorithm(
                library=blas.name, name="steps", threads=threads, scaled=True,
                level="threads" if blas.any_thread_count else "run", basis=blas.any_thread_count or blas.run_basis,
                pool=blas.pool,
            )  # fmt: skip
            if p.directions * _parts(p, shared) > 1:
                yield divided
            yield whole
        if p.flops >= THREAD_FLOPS and fixed_order.asked():
            note = "directions and parts of the batch, as many for any number of threads"
            yield from fixed_order.listed("steps", threads, partial(Algorithm, library=blas.name), note, blas.pool)
        yield Algorithm(library=blas.name, name="steps", level="threads", basis=blas.run_basis)


def _largest(p: RnnProblem) -> int:
    """Largest size or leading dimension of a product."""
    width, wide = p.gates * p.hidden, p.directions * p.hidden
    return max(p.steps * p.batch, p.steps * width, p.features, wide)


def _parts(p: RnnProblem, threads: int) -> int:
    """Parts of the batch, where each direction has its share of the threads."""
    return max(min(-(-threads // p.directions), p.batch // LEAST_ROWS), 1)


def prepare_rnn(blas: BlasTraits, p: RnnProblem, algorithm: Algorithm) -> Any:
    """The plan of an Algorithm that `rnn_algorithms` listed: a prepared call for each layer."""
    if algorithm.name == "steps_items":
        thread_team.items_run()
    return by_layer(p, lambda features: _Layer(blas, p, features, algorithm).plan())


class _Layer:
    """Writes one layer down; its arrays are dense."""

    def __init__(self, blas: BlasTraits, p: RnnProblem, features: int, algorithm: Algorithm) -> None:
        self.blas, self.p, self.features = blas, p, features
        self.divided = algorithm.name != "steps"
        self.threads = algorithm.threads
        in_parts = algorithm.name == f"steps{fixed_order.SUFFIX}"
        self.shares = fixed_order.ANY_THREADS if in_parts else self.threads  # among which sequences are divided
        self.item = p.dtype.itemsize
        self.width = p.gates * p.hidden
        self.b = Builder(layer_problem(p, features), blas.native.int_size)

    def plan(self) -> Any:
        p, b = self.p, self.b
        threads = self.threads if self.divided else 1
        gates = b.work(p.directions * p.steps * p.batch * self.width * self.item, shared=True)
        parts = _parts(p, self.shares) if self.divided else 1
        b.each(self.products(gates), threads)
        states = (p.directions, p.batch, p.hidden)
        x = b.problem.operands[0].shape
        out = b.result(p.dtype, (*x[:2], p.directions * p.hidden))
        h = b.result(p.dtype, states)
        c = b.result(p.dtype, states) if p.mode == "lstm" else None
        rows = -(-p.batch // parts)
        work = b.work((4 * p.hidden + (rows * self.width if p.mode == "gru" else 0)) * self.item)
        weights: list[Any] = []
        for d in range(2):
            for role in ("w_hh", "b_ih", "b_hh"):
                weights.append(b.argument(f"{role}{d}") if b.problem.index(f"{role}{d}") is not None else 0)
        items = p.directions * parts
        b.call(
            _kernels.addresses["recurrent_steps"],
            [
                b.constant(self.description(parts)), list(range(items)), gates, *weights, b.argument("h"),
                b.argument("c") if c is not None else 0, b.argument("lengths") if p.get("lengths") is not None else 0,
                out, h, c if c is not None else 0, work,
            ],
        )  # fmt: skip
        results = [out, h] if c is None else [out, h, c]
        return b.plan(
            *results, count=items, threads=threads, guard_threads=1 if self.divided else self.threads,
            **self.blas.guard(p.flops, vector=p.batch == 1),
        )  # fmt: skip

    def products(self, gates: Pointer) -> int:
        """gates = input times weights, for every direction; in parts where threads share them. Returns how many."""
        p, b, item = self.p, self.b, self.item
        rows = p.steps * p.batch
        parts = min(max(rows // BLOCK_ROWS, 1), self.shares if self.divided else 1)
        bounds = [rows * i // parts for i in range(parts + 1)]
        firsts, counts = bounds[:-1], [n - m for m, n in pairwise(bounds)]
        gemm = self.blas.native.cblas(LETTER[p.dtype.name] + "gemm")
        one, zero = p.dtype.type(1), p.dtype.type(0)
        for d in range(p.directions):
            x = b.argument("x", tuple(first * self.features * item for first in firsts))
            to = (gates[0], d * rows * self.width * item, tuple(first * self.width * item for first in firsts))
            b.call(
                gemm,
                [ROW, PLAIN, TRANSPOSED, counts, self.width, self.features, one, x, self.features, b.argument(f"w_ih{d}"),
                 self.features, zero, to, self.width],
            )  # fmt: skip
        return parts

    def description(self, parts: int) -> bytes:
        """Returns the packed parameters that recurrent.cpp reads."""
        p, native = self.p, self.blas.native
        wide, letter = p.directions * p.hidden, LETTER[p.dtype.name]
        step, row = (1, p.steps) if p.batch_first else (p.batch, 1)
        weights = self.width * p.hidden * self.item
        few = -(-p.batch // parts) <= FEW_ROWS and weights > SLAB_BYTES
        slab = max(SLAB_BYTES // (p.hidden * self.item), 1) if few and (self.divided or self.threads == 1) else 0
        return struct.pack(
            "<16q", native.cblas(letter + "gemm"), native.cblas(letter + "gemv"), self.item, vector_level(), CELLS[p.mode],
            p.steps, p.batch, p.hidden, p.directions, parts, step * self.width, row * self.width, p.steps * p.batch * self.width,
            step * wide, row * wide, slab,
        )  # fmt: skip
