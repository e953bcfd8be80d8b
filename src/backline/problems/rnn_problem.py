"""The Problem of a recurrent network over whole sequences, and of its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from . import Problem
from .names import GATES

__all__ = ["GATES", "RnnGrads", "RnnProblem", "StateGrads"]


class StateGrads(tuple[Any, ...]):
    """Gradients of a recurrent network whose cells have a state only: those of input and h_0, then of every array of `params`.

    Attributes
    ----------
    input, h_0
        The first two.
    params
        The others, in the order of `params`.

    Examples
    --------
    >>> StateGrads("xhwu").params
    ('w', 'u')
    """

    __slots__ = ()
    _first = 2  # gradients before those of `params`

    @property
    def input(self) -> Any:
        return self[0]

    @property
    def h_0(self) -> Any:
        return self[1]

    @property
    def params(self) -> tuple[Any, ...]:
        return tuple(self[self._first :])


class RnnGrads(StateGrads):
    """Gradients of LSTM: those of input, h_0 and c_0, then of every array of `params`.

    Attributes
    ----------
    input, h_0, c_0
        The first three.
    params
        The others, in the order of `params`.

    Examples
    --------
    >>> RnnGrads("xhcwu").params
    ('w', 'u')
    """

    __slots__ = ()
    _first = 3

    @property
    def c_0(self) -> Any:
        return self[2]


@dataclass(frozen=True)
class RnnProblem(Problem):
    """Layers of recurrent cells, each over all steps of its input, in one direction or in two.

    Operations: ``lstm``, ``gru``, ``rnn_tanh``, ``rnn_relu``; of each the gradients, as ``lstm_grad``.
    Roles: ``input``; ``h0``, of LSTM also ``c0``; ``p0``, ``p1``, ...: for every layer and direction weights of the input, of the
    state, and with `biases` the two biases. ``lengths`` (integers) where sequences differ in length. Gradients: ``grad_output``,
    ``grad_h``, ``grad_c``, if given. Parameters: ``dropout`` and ``seed``, where elements between layers are left out.

    Parameters
    ----------
    steps, batch, features, hidden
        Sizes: of the sequences, how many there are, elements of the input and of the state.
    layers, directions
        How many of each.
    biases
        Whether there are biases.
    batch_first
        Whether the first axis of input and output is the batch, rather than the steps.
    result
        Shape of the output; of gradients, that of the input's.
    """

    steps: int = 0
    batch: int = 0
    features: int = 0
    hidden: int = 0
    layers: int = 1
    directions: int = 1
    biases: bool = True
    batch_first: bool = False
    result: tuple[int, ...] = ()

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return next(o.dtype for o in self.operands if o.role == "input")  # keywords may put lengths first

    @property
    def mode(self) -> str:
        """The kind of cell, a key of `GATES`."""
        return self.op.removesuffix("_grad")

    @property
    def is_gradient(self) -> bool:
        """True if the gradients are asked for, rather than the results."""
        return self.op.endswith("_grad")

    @property
    def gates(self) -> int:
        return GATES[self.mode]

    @property
    def per_cell(self) -> int:
        """Arrays of parameters for each layer and direction."""
        return 4 if self.biases else 2

    @cached_property
    def summands(self) -> int:
        # Those of every step before an element of the last state included.
        return max(self.steps * self.layers * (self.features + self.hidden), 1)

    @cached_property
    def key(self) -> str:
        """As of any Problem, with what the shapes do not say."""
        parts = [super().key]
        if self.layers > 1:
            parts.append(f"layers={self.layers}")
        parts += [word for word, said in (("bidirectional", self.directions > 1), ("batch_first", self.batch_first)) if said]
        return " ".join(parts)

    def shape_class(self) -> str:
        return "one" if self.batch == 1 else "many"

    @cached_property
    def flops(self) -> float:
        wide = self.directions * self.hidden
        columns = self.features + (self.layers - 1) * wide + self.layers * self.hidden
        once = 2.0 * self.steps * self.batch * self.directions * self.gates * self.hidden * columns
        return 3 * once if self.is_gradient else once

    @cached_property
    def empty(self) -> bool:
        return 0 in (self.steps, self.batch, self.features, self.hidden)
