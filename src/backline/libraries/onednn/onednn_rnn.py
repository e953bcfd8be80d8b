"""Recurrent networks: a prepared call for each layer, in it a primitive for each direction.

Weights are brought into the order of the kernel at every call: reading them once costs little beside the steps that use them,
and nothing is kept that could be out of date. Where an algorithm computes in bfloat16, reorders inside the plan round: weights,
input and state; LSTM's memory stays float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ... import _core
from ...native.plan_builder import Pointer, shift
from ...problems.dtypes import bfloat16, is_bfloat16
from ...problems.memory_layout import dense_strides
from ...problems.rnn_problem import RnnProblem
from ..base import Algorithm, Refusal
from ..rnn_layers import by_layer, layer_problem
from . import abi
from .onednn_products import F32, SMALL_FLOPS, THREAD_FLOPS
from .plan_writer import Place, Writer
from .primitives import Desc, DnnlError, Engine, PrimitiveDesc, why

__all__ = ["prepare_rnn", "rnn_algorithms"]

NAME, REDUCED = "primitive", "bf16"
ALIGNMENT = 64
# Gates of GRU in the order of oneDNN, as places in PyTorch's: update, reset, new.
GRU = (1, 0, 2)


def rnn_algorithms(engine: Engine, p: RnnProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """oneDNN's ways for a recurrent network."""
    reason = _refusal(engine, p)
    if reason:
        yield Refusal("onednn", p.op, reason)
        return
    many = threads if p.flops >= THREAD_FLOPS else 1
    for name in (NAME, REDUCED) if p.dtype == F32 else (NAME,):
        reason = _reduced_refusal(engine, p) if name == REDUCED else ""
        if reason:
            yield Refusal("onednn", name, reason)
            continue
        try:
            kernel = engine.describe(_first_layer, p, many, name).kernels[0].implementation
        except RuntimeError as error:
            yield Refusal("onednn", name, why(error, f"this {p.op}"))
            continue
        precision = REDUCED if name == REDUCED else "f32 accumulation" if is_bfloat16(p.dtype) else ""
        isa = "avx512" if precision else ""
        if many > 1:
            # These kernels divide rows and columns among the threads, never a sum.
            level = "threads" if kernel.startswith("brgemm") and not precision else "run"
            yield Algorithm(
                library="onednn", name=name, threads=many, scaled=True, precision=precision, level=level, pool=engine.pool,
                note=kernel, isa=isa,
            )  # fmt: skip
        yield Algorithm(
            library="onednn", name=name, precision=precision, level="threads", basis="construction", note=kernel, isa=isa
        )


def prepare_rnn(engine: Engine, p: RnnProblem, algorithm: Algorithm) -> Any:
    """The plan of an Algorithm that `rnn_algorithms` listed."""

    threads, name = algorithm.threads, algorithm.name

    def make(features: int) -> Any:
        with engine.threads(threads):
            first = features == p.features
            layer = engine.described(_first_layer, p, threads, name) if first else _Layer(engine, p, features, threads, name)
            plan = layer.plan()
        assert isinstance(plan, _core.PreparedCall)
        plan.rwlock = engine.native.rwlock
        return plan

    return by_layer(p, make)


def _first_layer(engine: Engine, p: RnnProblem, threads: int, name: str) -> _Layer:
    return _Layer(engine, p, p.features, threads, name)


def _refusal(engine: Engine, p: RnnProblem) -> str:
    if p.is_gradient:
        return "its gradients are not supported"
    if p.dtype != F32 and not is_bfloat16(p.dtype):
        return f"no recurrent network of {p.dtype.name}"
    if p.mode == "rnn_relu":
        return "its relu makes 0 of NaN"
    if p.empty:
        return "an empty network needs no library"
    if p.get("lengths") is not None:
        return "its sequences are all of one length"
    return _reduced_refusal(engine, p) if is_bfloat16(p.dtype) else ""


def _reduced_refusal(engine: Engine, p: RnnProblem) -> str:
    if not engine.bf16:
        return "the processor has, or may use, no instructions for bfloat16"
    return "its GRU of bfloat16 makes NaN of infinity" if p.mode == "gru" else ""


class _Writer(Writer):
    """All workspaces are parts of one: the arrays of two directions, all reduced, are more than a plan has buffers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._room, _, _ = self.b.work(0, shared=True)
        self._taken = 0

    def space(self, nbytes: int) -> Pointer:
        pointer = self._room, self._taken, 0
        self._taken += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.b.buffers[self._room] = ("work", self._taken, True)
        return pointer

    def work(self, desc: Desc) -> Place:
        return Place(desc, self.space(desc.nbytes))


class _Layer:
    """One layer: where everything lies, and the primitives; `plan` writes the steps down."""

    def __init__(self, engine: Engine, p: RnnProblem, features: int, threads: int, name: str) -> None:
        self.engine, self.p, self.features = engine, p, features
        self.w = _Writer(engine, layer_problem(p, features), threads)
        self.inner = bfloat16() if name == REDUCED else p.dtype
        self.states = (1, 1, p.batch, p.hidden)
        # Into and out of the caller's layout, if the kernel can; else through dense arrays.
        self.direct = self.inner == p.dtype
        try:
            self.kernels = self._kernels()
        except DnnlError as error:
            if not (error.unimplemented and self.direct):
                raise
            self.direct = False
            self.kernels = self._kernels()

    # descriptors

    def sequence(self, columns: int, wide: int, *, direct: bool) -> Desc:
        """Steps of an input or output: `columns` of rows that have `wide`, as the caller has them; else dense."""
        p, shape = self.p, (self.p.steps, self.p.batch, columns)
        if not direct:
            return self.engine.desc(shape, self.inner, dense_strides(shape))
        return self.engine.desc(shape, p.dtype, self._sequence_strides(wide))

    def _sequence_strides(self, wide: int) -> tuple[int, int, int]:
        p = self.p
        return (wide, p.steps * wide, 1) if p.batch_first else (p.batch * wide, wide, 1)

    def dense(self, shape: tuple[int, ...], dtype: Any) -> Desc:
        return self.engine.desc(shape, dtype, dense_strides(shape))

    def _kernels(self) -> list[PrimitiveDesc]:
        return [self._kernel(d) for d in range(self.p.directions)]

    def _kernel(self, d: int) -> PrimitiveDesc:
        p, engine = self.p, self.engine
        state, memory = self.dense(self.states, self.inner), self.dense(self.states, F32)
        memories = [memory] if p.mode == "lstm" else []
        gates = p.gates + (p.mode == "gru")  # GRU's new gate has a bias for the input and one for the state
        weights = [engine.desc((1, 1, n, p.gates, p.hidden), self.inner) for n in (self.features, p.hidden)]
        args: list[Any] = [
            abi.Direction.REVERSE if d else abi.Direction.FORWARD,
            self.sequence(self.features, self.features, direct=self.direct), state, *memories, *weights,
            *([None, None] if p.mode == "lstm" else []),  # neither peepholes nor projections
            self.dense((1, 1, gates, p.hidden), F32),
            self.sequence(p.hidden, p.directions * p.hidden, direct=self.direct), state, *memories, 0,
        ]  # fmt: skip
        name = {"lstm": "lstm", "gru": "lbr_gru"}.get(p.mode, "vanilla_rnn")
        if name == "vanilla_rnn":
            args = [abi.Alg.TANH, *args, 0.0, 0.0]
        return engine.primitive_desc(f"{name}_forward", abi.Prop.FORWARD_INFERENCE, *args, attr=engine.attributes())

    # steps

    def plan(self) -> Any:
        p, w, wide = self.p, self.w, self.p.directions * self.p.hidden
        size, all_states = p.dtype.itemsize, (p.directions, p.batch, p.hidden)
        x = w.problem.operands[0].shape
        out = w.result((*x[:2], wide), p.dtype, dense_strides((*x[:2], wide)))
        last = [w.result(all_states, p.dtype, dense_strides(all_states)) for _ in ("hc" if p.mode == "lstm" else "h")]
        source = Place(self.sequence(self.features, self.features, direct=True), w.argument("x"))
        source = w.reorder(source, self.sequence(self.features, self.features, direct=self.direct))
        for d, kernel in enumerate(self.kernels):
            places: dict[int, Place] = {abi.Arg.SRC: source, abi.Arg.BIAS: self._bias(d)}
            for i, arg in enumerate((abi.Arg.WEIGHTS, abi.Arg.WEIGHTS_ITER)):
                wanted = kernel.desc(abi.Query.WEIGHTS, i)
                assert wanted is not None
                places[arg] = w.reorder(self._weights(d, i), wanted)
            behind = []
            results = [(abi.Arg.DST, out, d * p.hidden, self.sequence(p.hidden, wide, direct=True))]
            for i, pointer in enumerate(last):
                # h in the dtype of the kernel, LSTM's c in float32
                has, at = self.dense(self.states, p.dtype), d * p.batch * p.hidden
                wants = self.dense(self.states, F32 if i else self.inner)
                given = Place(has, shift(w.argument("hc"[i]), at * size))
                places[(abi.Arg.SRC_ITER, abi.Arg.SRC_ITER_C)[i]] = w.reorder(given, wants)
                results.append(((abi.Arg.DST_ITER, abi.Arg.DST_ITER_C)[i], pointer, at, has))
            for arg, pointer, at, has in results:
                final = Place(has, shift(pointer, at * size))
                wants = self.sequence(p.hidden, wide, direct=self.direct)
                if arg != abi.Arg.DST:
                    wants = self.dense(self.states, F32 if arg == abi.Arg.DST_ITER_C else self.inner)
                places[arg] = final if wants == has else w.work(wants)
                if places[arg] is not final:
                    behind.append((places[arg], final))
            w.run(kernel, places)
            for target, final in behind:
                w.move(target, final)
        return w.plan(out, *last, release_gil=p.flops >= SMALL_FLOPS)

    def _weights(self, d: int, which: int) -> Place:
        """Weights of the input (0) or of the state (1) as they are given; those of GRU with their gates in oneDNN's order."""
        p, columns = self.p, (self.features, self.p.hidden)[which]
        pointer = self.w.argument(("w_ih", "w_hh")[which] + str(d))
        gate, size = p.hidden * columns, p.dtype.itemsize
        if p.mode == "gru":
            turned = self.w.space(p.gates * gate * size)
            row = columns * size
            for to, at in enumerate(GRU):
                source, target = shift(pointer, at * gate * size), shift(turned, to * gate * size)
                self.w.b.copy((p.hidden, columns), source, (row, size), target, (row, size), size)
            pointer = turned
        strides = (p.gates * gate, p.gates * gate, 1, gate, columns)
        return Place(self.engine.desc((1, 1, columns, p.gates, p.hidden), p.dtype, strides), pointer)

    def _bias(self, d: int) -> Place:
        """The sum of both biases; of GRU's new gate one and then the other."""
        p, n = self.p, self.p.hidden
        gates = p.gates + (p.mode == "gru")
        desc = self.dense((1, 1, gates, n), F32)
        if not p.biases:
            return Place(desc, self.w.b.constant(bytes(4 * gates * n)))
        target = self.w.work(desc)
        if p.mode == "gru":
            for to in (0, 1):
                self._add(d, GRU[to], 1, shift(target.pointer, 4 * to * n))
            one, wide = self.dense((n,), p.dtype), self.dense((n,), F32)
            for to, role in ((2, "b_ih"), (3, "b_hh")):
                given = shift(self.w.argument(f"{role}{d}"), 2 * n * p.dtype.itemsize)
                self.w.move(Place(one, given), Place(wide, shift(target.pointer, 4 * to * n)))
        else:
            self._add(d, 0, gates, target.pointer)
        return target

    def _add(self, d: int, first: int, gates: int, to: Pointer) -> None:
        n, size = self.p.hidden, self.p.dtype.itemsize
        given, summed = self.dense((gates * n,), self.p.dtype), self.dense((gates * n,), F32)
        kernel = self.engine.primitive_desc("binary", abi.Alg.BINARY_ADD, given, given, summed, attr=self.engine.attributes())
        a, b = (Place(given, shift(self.w.argument(f"{role}{d}"), first * n * size)) for role in ("b_ih", "b_hh"))
        self.w.run(kernel, {abi.Arg.SRC: a, abi.Arg.SRC_1: b, abi.Arg.DST: Place(summed, to)})
