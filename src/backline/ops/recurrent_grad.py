"""Gradients of recurrent networks: lstm_backward, gru_backward, rnn_tanh_backward, rnn_relu_backward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import BadValue
from ..problems import operand
from ..problems.rnn_problem import RnnGrads, RnnProblem, StateGrads
from .activations_grad import GRAD
from .doc_fragments import filled
from .families import kinds, operation_family
from .layer_checks import Array, as_input, same_dtype
from .recurrent import ROW, rnn_call

__all__ = ["RnnGrads", "StateGrads", "gru_backward", "lstm_backward", "rnn_relu_backward", "rnn_tanh_backward"]

TEXT = """Gradients of `{mode}` with respect to its arrays.

Parameters
----------
input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, lengths, seed
    As for `{mode}`; the same seed leaves out the same elements.
{gradients}
    Gradients with respect to its {count} results, of their shapes and dtype; None for zeros.

Returns
-------
{grads}
    A tuple: the gradients of `input`{states}, then of every array of `params`; also by name, as ``input``, ``h_0``,
    {names}``params``, which is a tuple.

{raises}
    As `{mode}`; a gradient of another shape or dtype, or none at all.

Notes
-----
Computes the forward pass again and holds the gates of all steps. 16-bit floats are computed in float32.{note}

{examples}
{example}
"""
ONE_STATE = {
    "gradients": "grad_output, grad_h_n", "count": "two", "grads": "StateGrads", "states": " and h_0", "names": "and ",
    "note": "",
}  # fmt: skip
FACTS = {
    "lstm": {
        "gradients": "grad_output, grad_h_n, grad_c_n", "count": "three", "grads": "RnnGrads", "states": ", h_0 and c_0",
        "names": "``c_0`` and ", "note": "",
        "example": """>>> x, h = np.ones((3, 1, 2)), np.zeros((1, 1, 1))
>>> w = np.zeros((4, 2)), np.zeros((4, 1)), np.full(4, 9.0), np.zeros(4)
>>> grads = backline.nn.grad.lstm_backward(x, (h, h), w, None, None, h + 1, True, 1, 0.0, False, False, False)
>>> np.round(grads.c_0, 2), grads.params[0].shape
(array([[[1.]]]), (4, 2))""",
    },
    "gru": ONE_STATE | {
        "example": """>>> x, h = np.ones((1, 1, 2)), np.full((1, 1, 1), 8.0)
>>> w = np.zeros((3, 2)), np.zeros((3, 1))
>>> backline.nn.grad.gru_backward(x, h, w, None, h, False, 1, 0.0, False, False, False).h_0
array([[[4.]]])""",
    },
    "rnn_tanh": ONE_STATE | {
        "example": """>>> x, h, one = np.zeros((2, 1, 1)), np.zeros((1, 1, 1)), np.eye(1)
>>> backline.nn.grad.rnn_tanh_backward(x, h, (one, 3 * one), None, h + 1, False, 1, 0.0, False, False, False).h_0
array([[[9.]]])""",
    },
    "rnn_relu": ONE_STATE | {
        "note": " Where the state is\n0, so is its gradient by what relu was given.",
        "example": """>>> x, h, one = np.ones((3, 1, 1)), np.zeros((1, 1, 1)), np.eye(1)
>>> backline.nn.grad.rnn_relu_backward(x, h, (one, one), None, h + 1, False, 1, 0.0, False, False, False).input.ravel()
array([1., 1., 1.])""",
    },
}  # fmt: skip


def _text(mode: str) -> str | None:
    return filled(TEXT, mode=mode, **FACTS[mode])


def _lstm(
    mode: str, input: Array, hx: tuple[Array, Array], params: tuple[Array, ...], grad_output: Array | None,
    grad_h_n: Array | None, grad_c_n: Array | None, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool, *, lengths: Array | None = None, seed: int | None = None,
) -> RnnProblem:  # fmt: skip
    grads = {"output": grad_output, "h_n": grad_h_n, "c_n": grad_c_n}
    settings = has_biases, num_layers, dropout, train, bidirectional, batch_first, lengths, seed
    return _backward(mode, grads, input, hx, params, *settings)


def _recurrent(
    mode: str, input: Array, hx: Array, params: tuple[Array, ...], grad_output: Array | None, grad_h_n: Array | None,
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool, *,
    lengths: Array | None = None, seed: int | None = None,
) -> RnnProblem:  # fmt: skip
    settings = has_biases, num_layers, dropout, train, bidirectional, batch_first, lengths, seed
    return _backward(mode, {"output": grad_output, "h_n": grad_h_n}, input, hx, params, *settings)


def _backward(mode: str, given: dict[str, Array | None], input: Array, *arguments: Any) -> RnnProblem:
    """Returns the Problem of a call; `given` are the gradients by its results."""
    where = f"{mode}_backward"
    p = rnn_call(where, mode, input, *arguments)
    if all(array is None for array in given.values()):
        names = [f"grad_{name}" for name in given]
        raise BadValue(f"{where}: {', '.join(names[:-1])} and {names[-1]} are all None", remedy="at least one of them")
    states = (p.layers * p.directions, p.batch, p.hidden)
    grads = []
    for name, array in given.items():
        if array is None:
            continue
        argument, shape = f"grad_{name}", p.result if name == "output" else states
        if as_input(where, argument, array).shape != shape:
            raise BadValue(f"{where}: {argument} has shape {array.shape}, it must be {shape}")
        same_dtype(where, argument, array, "input", p.dtype)
        grads.append(operand(f"grad_{name.removesuffix('_n')}", array))
    fixed = [o for o in p.operands if o.role != "lengths"]
    last = [o for o in p.operands if o.role == "lengths"]
    return replace(p, op=f"{mode}_grad", operands=(*fixed, *grads, *last), result=input.shape)


(lstm_backward,) = operation_family(
    _lstm, kinds("lstm", suffix="_backward"), _text, RnnGrads, module=GRAD, **ROW
)
gru_backward, rnn_tanh_backward, rnn_relu_backward = operation_family(
    _recurrent, kinds("gru", "rnn_tanh", "rnn_relu", suffix="_backward"), _text, StateGrads, module=GRAD, **ROW
)
