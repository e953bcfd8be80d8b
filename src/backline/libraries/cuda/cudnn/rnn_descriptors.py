"""Descriptors of one recurrent network, and where its matrices and biases lie in the memory of cuDNN's weights."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from ....errors import LibraryFailed
from ....problems.rnn_problem import RnnProblem
from ..common.descriptors import Descriptors
from ..common.device_plan import at
from .rnn_interface import Interface
from .rnn_recipe import RnnRecipe

__all__ = ["Place", "RnnDescriptors", "weight_places"]

LINEAR_INPUT, PADDED_IO = 0, 1
INFERENCE, TRAINING = 0, 1


class RnnDescriptors:
    """The descriptors of a network, its sequences and states; read only, so that threads may share them.

    Parameters
    ----------
    c
        cuDNN's functions.
    handle
        A handle of the device.
    recipe
        The network.
    lengths
        Steps of each sequence.
    states
        The seeded states of random numbers, an array of bytes of this call's own; None without dropout.
    """

    def __init__(self, c: Interface, handle: int, recipe: RnnRecipe, lengths: Sequence[int], states: Any = None) -> None:
        self.c, self.held, self.states = c, Descriptors(), states
        self.dropout = self._made("Dropout")
        # Restoring does not seed: that was done when the states were filled.
        if states is None:
            c.call("cudnnSetDropoutDescriptor", self.dropout, handle, 0.0, None, 0, 0)
        else:
            size = int(states.nbytes)
            c.call("cudnnRestoreDropoutDescriptor", self.dropout, handle, recipe.dropout, at(states), size, 0)
        self.network = self._made("RNN")
        c.call(
            "cudnnSetRNNDescriptor_v8", self.network, recipe.algo, recipe.mode, recipe.biases, recipe.directions - 1,
            LINEAR_INPUT, recipe.dtype, recipe.compute, recipe.math, recipe.features, recipe.hidden,
            recipe.hidden,  # of a projection, of which there is none
            recipe.layers, self.dropout, PADDED_IO,
        )  # fmt: skip
        self.x = self._sequences(recipe, recipe.features, lengths)
        self.y = self._sequences(recipe, recipe.directions * recipe.hidden, lengths)
        self.state = self._made("Tensor")
        shape = (recipe.layers * recipe.directions, recipe.batch, recipe.hidden)
        numbers = ctypes.c_int * 3
        strides = numbers(shape[1] * shape[2], shape[2], 1)
        c.call("cudnnSetTensorNdDescriptor", self.state, recipe.dtype, 3, numbers(*shape), strides)
        mode = TRAINING if recipe.training else INFERENCE
        self.workspace, self.reserve = c.sizes("cudnnGetRNNTempSpaceSizes", handle, self.network, mode, self.x, count=2)
        self.mode = mode

    def _made(self, kind: str) -> int:
        made = self.c.created(f"cudnnCreate{kind}Descriptor")
        return self.held.add(made, partial(self.c.call, f"cudnnDestroy{kind}Descriptor"))

    def _sequences(self, recipe: RnnRecipe, size: int, lengths: Sequence[int]) -> int:
        made = self._made("RNNData")
        of = (ctypes.c_int * len(lengths))(*lengths)
        nothing = ctypes.c_double(0.0)  # what is written behind the end of a sequence: zero in every dtype
        self.c.call(
            "cudnnSetRNNDataDescriptor", made, recipe.dtype, recipe.layout, recipe.steps, recipe.batch, size, of,
            ctypes.byref(nothing),
        )  # fmt: skip
        return made


class Place(NamedTuple):
    """Rows of one array of parameters, and where they lie in the weights."""

    param: int  # index among the arrays of parameters
    # first, rows: which of its rows; those of a bias are its elements.
    first: int
    rows: int
    begin: int  # element in the weights
    columns: int  # 0 for a bias


def weight_places(p: RnnProblem, c: Interface, handle: int, network: int, memory: int, nbytes: int) -> tuple[Place, ...]:
    """Returns where the gates of every array of parameters lie, in as few pieces as they can be copied in.

    cuDNN tells the place of each gate; its gates have the order of the rows of W_ih and W_hh: input, forget, new and output of
    LSTM, reset, update and new of GRU. `memory` is that of the weights, of `nbytes`.
    """
    held = Descriptors()

    destroy = partial(c.call, "cudnnDestroyTensorDescriptor")
    for_matrix, for_bias = (held.add(c.created("cudnnCreateTensorDescriptor"), destroy) for _ in range(2))
    size, found = p.dtype.itemsize, []
    for cell in range(p.layers * p.directions):
        features = p.features if cell < p.directions else p.directions * p.hidden
        for which in range(2 * p.gates):
            of_state, gate = divmod(which, p.gates)
            matrix, bias = c.places(handle, network, cell, nbytes, memory, which, for_matrix, for_bias)
            columns = p.hidden if of_state else features
            parts = [(of_state, matrix, columns)] + ([(2 + of_state, bias, 0)] if p.biases else [])
            for kind, address, wide in parts:
                begin, odd = divmod(address - memory, size)
                end = begin + p.hidden * (wide or 1)
                if odd or begin < 0 or end * size > nbytes:
                    raise LibraryFailed(
                        f"cuDNN puts weights at byte {address - memory} of {nbytes}", cause=f"layer {cell}, matrix {which}"
                    )
                found.append(Place(cell * p.per_cell + kind, gate * p.hidden, p.hidden, begin, wide))
    return tuple(_joined(sorted(found)))


def _joined(places: list[Place]) -> Iterator[Place]:
    """Yields the places with gates that follow one another as one."""
    last = places[0]
    for place in places[1:]:
        after = last.begin + last.rows * (last.columns or 1)
        if place.param == last.param and place.begin == after and place.first == last.first + last.rows:
            last = last._replace(rows=last.rows + place.rows)
        else:
            yield last
            last = place
    yield last


def nothing_left(places: Sequence[Place], items: int) -> bool:
    """Tells whether the places fill the weights, so that these need not be cleared first."""
    return sum(place.rows * (place.columns or 1) for place in places) == items
