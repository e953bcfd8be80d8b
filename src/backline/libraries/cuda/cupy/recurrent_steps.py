"""Recurrent networks of CuPy's arrays step by step: products by the libraries that are chosen for them, the rest elementwise.

It takes what cuDNN does not: empty networks, and the same bits each time without settings of the environment. A device waits for
the next launch most of the time where networks are small. A step at which a sequence has ended changes nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .... import libraries, switches
from ....errors import BacklineError
from ....problems import Operand
from ....problems.dtypes import HALVES, compute_dtype
from ....problems.rnn_problem import RnnGrads, RnnProblem, StateGrads
from ... import fixed_order
from ...base import Algorithm, Planner, Refusal
from ...reference.rnn_cells import cell_of, over_steps
from ...rnn_layers import by_steps, checked_lengths
from ..attention.cuda_math_attention import Products, product_of
from ..attention.philox import kept
from ..common import bindings
from ..common.elementwise_kernels import kernel

__all__ = ["algorithms", "function"]

Array = Any
DTYPES = (*HALVES, "float32", "float64")


def _product(p: RnnProblem) -> Any:
    """The Problem of the largest product, that of the first layer's input: what chooses for it chooses for them all."""
    dtype, rows = compute_dtype(p.dtype), p.gates * p.hidden
    size = dtype.itemsize
    turned = Operand("b", dtype, (p.features, rows), (size, p.features * size))
    return product_of(Operand.contiguous("a", dtype, (p.steps * p.batch, p.features)), turned, p.device)


def _dropped_by_cudnn(p: RnnProblem) -> bool:
    """Tells whether cuDNN may run a network with dropout: it leaves out other elements than this module for the same seed."""
    snapshot: Any = switches.current()
    if not snapshot["cudnn.enabled"]:
        return False
    level = "run" if snapshot["cudnn.deterministic"] else "off"
    asked = max(level, fixed_order.level(p.family, "cuda", snapshot), key=("off", "run", "threads").index)
    return any(isinstance(a, Algorithm) and a.reaches(asked) for a in libraries.get("cudnn").algorithms(p, 1))


def algorithms(p: RnnProblem, planner: Planner) -> Iterator[Algorithm | Refusal]:
    """Lists what CuPy has for a recurrent network."""
    if p.dtype.name not in DTYPES:
        yield Refusal("cupy", p.op, f"recurrent networks on CUDA are of {', '.join(DTYPES)}, not of {p.dtype.name}")
        return
    if p.parameter("dropout") and not p.empty and _dropped_by_cudnn(p):
        reason = (
            "one seed must leave out the same elements in a network and its gradients; cuDNN, which may run, leaves out others"
        )
        yield Refusal("cupy", "steps", reason, "cudnn.enabled")
        return
    precision = "f32 accumulation" if p.dtype.name in HALVES else ""
    if p.empty:
        yield Algorithm(library="cupy", name="steps", precision=precision, level="threads", basis="construction")
        return
    try:
        chosen = planner.chosen(_product(p)).chosen
    except BacklineError as error:
        yield Refusal("cupy", "steps", f"there is nothing for its products: {error}")
        return
    waits = "" if p.get("lengths") is None else "; waits for the lengths"
    yield Algorithm(
        library="cupy", name="steps", precision=precision or chosen.precision, level=chosen.level, basis=chosen.basis,
        note=f"step by step; products by {chosen.library} {chosen.name}{waits}",
    )  # fmt: skip


class _Saved(NamedTuple):
    """The states before a step, and the values that the cell keeps for the gradient."""

    h: Array
    c: Array | None
    kept: tuple[Array, ...]


class _Direction(NamedTuple):
    """One layer in one direction, as it ran."""

    output: Array
    last: tuple[Array, Array | None]
    steps: dict[int, _Saved]


def function(p: RnnProblem, planner: Planner) -> Callable[..., tuple[Array, ...]]:
    """Returns the function of the arrays of a call."""
    made = _Plan(p, planner)

    def run(*arrays: Array, seed: int | None = None) -> tuple[Array, ...]:
        return _Call(made, arrays, int(p.parameter("seed", 0)) if seed is None else seed).run()

    return run


class _Plan:
    """The parts that all calls of a Problem share: the cell, and the plans of its products."""

    def __init__(self, p: RnnProblem, planner: Planner) -> None:
        self.p, self.xp, self.dtype = p, bindings.cupy(), compute_dtype(p.dtype)
        self.cell = cell_of(p.mode, self.xp, kernel("sigmoid"))
        self.products = Products(p.device, self.dtype, planner)
        if not p.empty:
            self.products.plan(_product(p))

    def times(self, left: Array, right: Array) -> Array:
        if 0 in left.shape or 0 in right.shape:
            return self.xp.zeros((left.shape[0], right.shape[1]), self.dtype)
        return self.products(left, right)


class _Call:
    """One call: its arrays with the steps first, in the dtype that is computed in."""

    def __init__(self, plan: _Plan, arrays: tuple[Array, ...], seed: int) -> None:
        self.plan, self.p, self.xp = plan, plan.p, plan.xp
        p, xp, dtype = plan.p, plan.xp, plan.dtype
        named = {o.role: array for o, array in zip(p.operands, arrays, strict=True)}
        lengths = named.pop("lengths", None)
        self.given = {role: array.astype(dtype, copy=False) for role, array in named.items()}
        self.there = None  # (steps, batch, 1): where a step is there
        if lengths is not None:
            checked_lengths(p, lengths.get())
            self.there = (xp.arange(p.steps)[:, None] < lengths.astype(np.int64)[None, :])[:, :, None]
        self.zero = xp.zeros((), dtype)
        self.scales: list[Array] = []  # what elements between two layers are multiplied with
        if p.parameter("dropout"):
            wide = p.directions * p.hidden
            drawn = kept(xp, (p.layers - 1, p.steps * p.batch, wide), seed, float(p.parameter("dropout")), dtype)
            self.scales = [scale.reshape(p.steps, p.batch, wide) for scale in drawn]

    def run(self) -> tuple[Array, ...]:
        p, xp = self.p, self.xp
        x, ran = by_steps(p, self.given["input"]), list[tuple[Array, list[_Direction]]]()
        for which in range(p.layers):
            if which and self.scales:
                x = x * self.scales[which - 1]
            directions = [self._forward(which, d, x) for d in range(p.directions)]
            ran.append((x, directions))
            x = directions[0].output if p.directions == 1 else xp.concatenate([each.output for each in directions], -1)
        if p.is_gradient:
            return self._backward(ran)
        last = [each.last for _, directions in ran for each in directions]
        parts = [by_steps(p, x), *(xp.stack(states) for states in zip(*last, strict=True) if states[0] is not None)]
        return tuple(self._result(part) for part in parts)

    def _result(self, array: Array) -> Array:
        return self.xp.ascontiguousarray(array.astype(self.p.dtype, copy=False))

    def _only(self, t: int, array: Array, other: Array) -> Array:
        """An array of one step where the step is there, else another one."""
        return array if self.there is None else self.xp.where(self.there[t], array, other)

    def _params(self, which: int, d: int) -> tuple[Array, ...]:
        first = (which * self.p.directions + d) * self.p.per_cell
        return tuple(self.given[f"p{first + i}"] for i in range(self.p.per_cell))

    def _forward(self, which: int, d: int, x: Array) -> _Direction:
        p, xp, times = self.p, self.xp, self.plan.times
        w_ih, w_hh, *biases = self._params(which, d)
        b_ih, b_hh = biases or (self.zero, self.zero)
        at = which * p.directions + d
        h, c = self.given["h0"][at], self.given["c0"][at] if "c0" in self.given else None
        rows = p.gates * p.hidden
        by_input = times(x.reshape(p.steps * p.batch, x.shape[2]), w_ih.T).reshape(p.steps, p.batch, rows) + b_ih
        output, steps = xp.empty((p.steps, p.batch, p.hidden), self.plan.dtype), dict[int, _Saved]()
        for t in over_steps(p, d == 1):
            by_state = times(h, w_hh.T) + b_hh
            new, memory, parts = self.plan.cell.step(by_input[t], by_state, h, c)
            if p.is_gradient:
                steps[t] = _Saved(h, c, parts)
            output[t] = self._only(t, new, self.zero)
            h = self._only(t, new, h)
            c = c if memory is None else self._only(t, memory, c)
        return _Direction(output, (h, c), steps)

    def _backward(self, ran: list[tuple[Array, list[_Direction]]]) -> tuple[Array, ...]:
        p, xp = self.p, self.xp
        given, wide = self.given.get("grad_output"), p.directions * p.hidden
        shape = (p.steps, p.batch, wide)
        grad = xp.zeros(shape, self.plan.dtype) if given is None else by_steps(p, given)
        # Gradients with respect to the first states, and the parameters of each layer.
        states: list[tuple[Array, Array | None]] = []
        params: list[list[Array]] = []
        for which in reversed(range(p.layers)):
            x, directions = ran[which]
            below, of_layer, of_states = None, list[Array](), list[tuple[Array, "Array | None"]]()
            for d, direction in enumerate(directions):
                part = grad[..., d * p.hidden : (d + 1) * p.hidden]
                dx, first, changes = self._back(which, d, x, direction, part)
                below = dx if below is None else below + dx
                of_layer += changes
                of_states.append(first)
            grad = below * self.scales[which - 1] if which and self.scales else below
            states[:0], params[:0] = of_states, [of_layer]
        before = [xp.stack(each) for each in zip(*states, strict=True) if each[0] is not None]
        results = (self._result(part) for part in (by_steps(p, grad), *before, *(g for layer in params for g in layer)))
        return RnnGrads(results) if p.mode == "lstm" else StateGrads(results)

    def _last(self, role: str, at: int) -> Array:
        given = self.given.get(role)
        return self.xp.zeros((self.p.batch, self.p.hidden), self.plan.dtype) if given is None else given[at]

    def _back(
        self, which: int, d: int, x: Array, direction: _Direction, grad: Array
    ) -> tuple[Array, tuple[Array, Array | None], list[Array]]:
        """The gradients with respect to what a direction read, to its first states and to its parameters."""
        p, xp, times = self.p, self.xp, self.plan.times
        w_ih, w_hh = self._params(which, d)[:2]
        at, rows, count = which * p.directions + d, p.gates * p.hidden, p.steps * p.batch
        dh, dc = self._last("grad_h", at), self._last("grad_c", at) if "c0" in self.given else None
        shape = (p.steps, p.batch, rows)
        # By the product of the input and by that of the state; the two differ for GRU only.
        by_input = xp.empty(shape, self.plan.dtype)
        by_state = xp.empty(shape, self.plan.dtype) if p.mode == "gru" else by_input
        before = xp.empty((p.steps, p.batch, p.hidden), self.plan.dtype)
        for t in over_steps(p, d == 0):
            h, c, parts = direction.steps[t]
            one, other, straight, into_c = self.plan.cell.back(dh + grad[t], dc, h, c, parts)
            by_input[t] = one = self._only(t, one, self.zero)
            other = one if by_state is by_input else self._only(t, other, self.zero)
            by_state[t], before[t] = other, self._only(t, h, self.zero)
            dh = self._only(t, straight + times(other, w_hh), dh)
            dc = dc if into_c is None else self._only(t, into_c, dc)
        flat, flat_state = by_input.reshape(count, rows), by_state.reshape(count, rows)
        seen = x if self.there is None else xp.where(self.there, x, self.zero)  # 0 times what is not there might not be 0
        changes = [times(flat.T, seen.reshape(count, x.shape[2])), times(flat_state.T, before.reshape(count, p.hidden))]
        if p.biases:
            changes += [g.sum(axis=0, dtype=np.float64).astype(self.plan.dtype) for g in (flat, flat_state)]
        return times(flat, w_ih).reshape(x.shape), (dh, dc), changes
