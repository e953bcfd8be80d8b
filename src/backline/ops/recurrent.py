"""Recurrent networks over whole sequences: lstm, gru, rnn_tanh, rnn_relu.

Arguments, their order, the layout of weights and the results are those of torch's functions of the same names.
"""

from __future__ import annotations

from typing import Any

from ..errors import BadType, BadValue
from ..problems import operand
from ..problems.rnn_problem import GATES, RnnProblem
from .array_arguments import check_array
from .doc_fragments import filled
from .families import kinds, operation_family
from .layer_checks import Array, as_input, positive, same_dtype
from .linalg_checks import flag, whole
from .seeds import seed_given, seed_of

__all__ = ["CELLS", "ROW", "gru", "lstm", "rnn_call", "rnn_relu", "rnn_tanh"]

TEXT = """{title}

{formula}Parameters
----------
input
    Shape (steps, batch, features), with `batch_first` (batch, steps, features): float16, bfloat16, float32 or float64.
hx
    {hx} before the first step.
params
    A tuple or list of arrays: for every layer, and in it every direction, W_ih ({rows}, columns), W_hh ({rows},
    hidden) and with `has_biases` b_ih and b_hh ({rows}). The first layer has as many columns as the input has features,
    the others directions * hidden. All of the input's dtype.
has_biases
    Whether there are biases.
num_layers
    Layers; each reads what the one before puts out.
dropout
    Probability with which an element between two layers is left out while `train` is True.
train
    Whether elements are left out.
bidirectional
    Whether each layer also runs from the last step to the first.
batch_first
    Whether input and output have the batch as their first axis.
lengths
    Integers of shape (batch,), from 0 to the number of steps: how much of each sequence is there. What lies behind is not
    read, the output is 0 there, and the last state is that after the last step that is there. They may be in any order.
seed
    For dropout: the same seed leaves out the same elements, on a CUDA device others than on the CPU. None draws one, where
    `backline.manual_seed` has been called.

Returns
-------
output : ndarray
    h of the last layer at every step: (steps, batch, directions * hidden), or with the first two axes exchanged.
{states} : ndarray
    After the last step, as `hx`.

Raises
------
BadValue
    Shapes that do not fit, a wrong number of `params`, lengths out of range, dropout without a seed.
BadType
    Not arrays, neither tuple nor list, several dtypes.

Notes
-----
What does not depend on the state, the product of W_ih and all steps, is one product. 16-bit floats are computed in float32 and
rounded once, by oneDNN and cuDNN after every step. Projections (5 arrays for each layer, in torch) are not there.

{examples}
{example}
"""
ONE_STATE = {"hx": "Array of shape (layers * directions, batch, hidden): h", "states": "h_n"}
CELLS = {
    "lstm": {
        "title": "Long short-term memory: layers of cells with a state h and a memory c.",
        "formula": """Each step: ``i, f, g, o = W_ih @ x + b_ih + W_hh @ h + b_hh``;
``c = sigmoid(f) * c + sigmoid(i) * tanh(g)``; ``h = sigmoid(o) * tanh(c)``.

""",
        "hx": "Two arrays of shape (layers * directions, batch, hidden), in a tuple or list: h and c", "rows": "4 * hidden",
        "states": "h_n, c_n",
        "example": """>>> x, h = np.ones((3, 1, 2)), np.zeros((1, 1, 1))
>>> w = np.zeros((4, 2)), np.zeros((4, 1)), np.full(4, 9.0), np.zeros(4)
>>> output, h_n, c_n = backline.nn.lstm(x, (h, h), w, True, 1, 0.0, False, False, False)
>>> np.round(c_n, 2)
array([[[3.]]])""",
    },
    "gru": ONE_STATE | {
        "title": "Gated recurrent units.", "rows": "3 * hidden",
        "formula": """Each step: ``r, z = sigmoid(W_ih @ x + b_ih + W_hh @ h + b_hh)`` of the first two thirds of the rows,
of the last one ``n = tanh(W_ih @ x + b_ih + r * (W_hh @ h + b_hh))``; ``h = (1 - z) * n + z * h``.

""",
        "example": """>>> x, h = np.ones((1, 1, 2)), np.full((1, 1, 1), 8.0)
>>> w = np.zeros((3, 2)), np.zeros((3, 1))
>>> backline.nn.gru(x, h, w, False, 1, 0.0, False, False, False)[1]
array([[[4.]]])""",
    },
    "rnn_tanh": ONE_STATE | {
        "title": "Plain recurrent network: ``h = tanh(W_ih @ x + b_ih + W_hh @ h + b_hh)``.", "formula": "", "rows": "hidden",
        "example": """>>> x, h = np.zeros((2, 1, 1)), np.zeros((1, 1, 1))
>>> backline.nn.rnn_tanh(x, h, (np.eye(1), np.eye(1)), False, 1, 0.0, False, False, False)[0].shape
(2, 1, 1)""",
    },
    "rnn_relu": ONE_STATE | {
        "title": "Plain recurrent network: ``h = relu(W_ih @ x + b_ih + W_hh @ h + b_hh)``.", "formula": "", "rows": "hidden",
        "example": """>>> x, h = np.ones((3, 1, 1)), np.zeros((1, 1, 1))
>>> backline.nn.rnn_relu(x, h, (np.eye(1), np.eye(1)), False, 1, 0.0, False, False, False)[0].ravel()
array([1., 2., 3.])""",
    },
}  # fmt: skip
ROW: dict[str, Any] = {"family": "rnn", "lists": ("hx", "params")}


def _text(mode: str) -> str | None:
    return filled(TEXT, **CELLS[mode])


def _lstm(
    mode: str, input: Array, hx: tuple[Array, Array], params: tuple[Array, ...], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool, *, lengths: Array | None = None, seed: int | None = None,
) -> RnnProblem:  # fmt: skip
    settings = has_biases, num_layers, dropout, train, bidirectional, batch_first, lengths, seed
    return rnn_call(mode, mode, input, hx, params, *settings)


def _recurrent(
    mode: str, input: Array, hx: Array, params: tuple[Array, ...], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool, *, lengths: Array | None = None, seed: int | None = None,
) -> RnnProblem:  # fmt: skip
    settings = has_biases, num_layers, dropout, train, bidirectional, batch_first, lengths, seed
    return rnn_call(mode, mode, input, hx, params, *settings)


(lstm,) = operation_family(
    _lstm, kinds("lstm"), _text, tuple[Array, Array, Array], module="backline.nn", **ROW
)
gru, rnn_tanh, rnn_relu = operation_family(
    _recurrent, kinds("gru", "rnn_tanh", "rnn_relu"), _text, tuple[Array, Array], module="backline.nn", **ROW
)


# What all of them check -------------------------------------------------------------------------------------------------


def rnn_call(
    where: str, mode: str, input: Any, hx: Any, params: Any, has_biases: Any, num_layers: Any, dropout: Any, train: Any,
    bidirectional: Any, batch_first: Any, lengths: Any, seed: Any,
) -> RnnProblem:  # fmt: skip
    """Returns the Problem of a call, checked for all but the values of `lengths`."""
    biases, first = flag(where, "has_biases", has_biases), flag(where, "batch_first", batch_first)
    directions = 2 if flag(where, "bidirectional", bidirectional) else 1
    layers = whole(where, "num_layers", num_layers)
    if layers < 1:
        raise BadValue(f"{where}: num_layers={layers}", remedy="1 or more")
    x = as_input(where, "input", input)
    if x.ndim != 3:
        axes = "(batch, steps, features)" if first else "(steps, batch, features)"
        raise BadValue(f"{where}: input must have shape {axes}, it has {x.shape}", remedy="np.expand_dims for a single sequence")
    steps, batch, features = (x.shape[1], x.shape[0], x.shape[2]) if first else x.shape
    states = _states(mode, where, hx)
    arrays = _params(where, params, layers * directions, biases)
    for name, array in (*states, *((f"params[{i}]", p) for i, p in enumerate(arrays))):
        as_input(where, name, array)
        same_dtype(where, name, array, "input", x.dtype)
    hidden = int(arrays[1].shape[-1]) if arrays[1].ndim == 2 else -1
    for i, array in enumerate(arrays):
        _check_param(mode, where, i, array, biases, directions, features, hidden)
    wanted = (layers * directions, batch, hidden)
    for name, array in states:
        if array.shape != wanted:
            raise BadValue(
                f"{where}: {name} has shape {array.shape}, it must be {wanted}",
                cause=f"{layers} layers, {directions} directions, {batch} sequences, {hidden} hidden elements",
            )
    operands = [operand("input", x), *(operand(f"{'hc'[i]}0", array) for i, (_, array) in enumerate(states))]
    operands += [operand(f"p{i}", array) for i, array in enumerate(arrays)]
    if lengths is not None:
        operands.append(operand("lengths", _lengths(where, lengths, batch)))
    return RnnProblem(
        mode, tuple(operands), _dropout(where, dropout, train, layers, seed), "rnn", steps=steps, batch=batch, features=features,
        hidden=hidden, layers=layers, directions=directions, biases=biases, batch_first=first,
        result=(*x.shape[:2], directions * hidden),
    )  # fmt: skip


def _states(mode: str, where: str, hx: Any) -> list[tuple[str, Array]]:
    if mode != "lstm":
        return [("hx", check_array(hx, f"{where}: hx"))]
    if not isinstance(hx, tuple) or len(hx) != 2:
        given = f"a tuple of {len(hx)}" if isinstance(hx, tuple) else type(hx).__name__
        raise BadType(f"{where}: hx is a tuple of two arrays, h_0 and c_0, not {given}")
    return [(f"hx[{i}]", check_array(array, f"{where}: hx[{i}]")) for i, array in enumerate(hx)]


def _params(where: str, params: Any, cells: int, biases: bool) -> tuple[Array, ...]:
    if not isinstance(params, tuple):
        raise BadType(f"{where}: params is a tuple of arrays, not {type(params).__name__}", remedy="tuple(params)")
    each = 4 if biases else 2
    if len(params) != cells * each:
        projected = len(params) == cells * (each + 1)
        raise BadValue(
            f"{where}: params has {len(params)} arrays, it must have {cells * each}",
            cause=f"layers * directions = {cells}, with {each} arrays each, has_biases={biases}"
            + ("; projections are not there" if projected else ""),
        )
    return params


def _check_param(
    mode: str, where: str, i: int, array: Array, biases: bool, directions: int, features: int, hidden: int
) -> None:
    cell, kind = divmod(i, 4 if biases else 2)
    layer = cell // directions
    rows = GATES[mode] * max(hidden, 0)
    columns = (features if layer == 0 else directions * hidden, hidden)
    wanted = (rows, columns[kind]) if kind < 2 else (rows,)
    if hidden < 0 or array.shape != wanted:
        name = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[kind]
        side = "_reverse" if cell % directions else ""
        need = wanted if hidden >= 0 else f"({GATES[mode]} * hidden, {'columns' if kind == 0 else 'hidden'})"
        raise BadValue(
            f"{where}: params[{i}], {name}_l{layer}{side}, has shape {array.shape}, it must be {need}",
            cause=f"input has {features} features, params[1] has {hidden} columns" if hidden >= 0 else "it is a matrix",
        )


def _lengths(where: str, lengths: Any, batch: int) -> Array:
    array = check_array(lengths, f"{where}: lengths")
    if array.dtype.kind not in "iu":
        raise BadType(f"{where}: lengths has dtype {array.dtype}", remedy="integers: np.asarray(lengths)")
    if array.shape != (batch,):
        raise BadValue(f"{where}: lengths has shape {array.shape}, it must be {(batch,)}: one for each sequence")
    return array


def _dropout(where: str, dropout: Any, train: Any, layers: int, seed: Any) -> tuple[tuple[str, Any], ...]:
    rate = positive(where, "dropout", dropout, most=1.0)
    seed_given(where, seed)
    if not flag(where, "train", train) or rate == 0 or layers == 1:
        return ()
    return ("dropout", rate), ("seed", seed_of(where, seed))
