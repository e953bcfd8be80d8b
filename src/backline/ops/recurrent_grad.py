"""Gradients of recurrent networks: lstm_backward, gru_backward, rnn_tanh_backward, rnn_relu_backward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import BadType, BadValue
from ..problems import operand
from ..problems.rnn_problem import RnnGrads, RnnProblem, StateGrads
from .layer_checks import Array, as_input
from .operation import operation
from .recurrent import rnn_call

__all__ = ["RnnGrads", "StateGrads", "gru_backward", "lstm_backward", "rnn_relu_backward", "rnn_tanh_backward"]

MODULE = "backline.nn.grad"


@operation("lstm_backward", module=MODULE, family="rnn", lists=("hx", "params"), results=RnnGrads)
def lstm_backward(
    input: Array,
    hx: tuple[Array, Array],
    params: tuple[Array, ...],
    grad_output: Array | None,
    grad_h_n: Array | None,
    grad_c_n: Array | None,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: Array | None = None,
    seed: int | None = None,
) -> RnnProblem:
    """Gradients of `lstm` with respect to its arrays.

    Parameters
    ----------
    input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, lengths, seed
        What the operation was given; the same seed leaves out the same elements.
    grad_output, grad_h_n, grad_c_n
        Gradients with respect to its three results, of their shapes and dtype; None for zeros.

    Returns
    -------
    RnnGrads
        A tuple: the gradients of `input`, h_0 and c_0, then of every array of `params`; also by name, as ``input``, ``h_0``,
        ``c_0`` and ``params``, which is a tuple.

    Raises
    ------
    BadValue, BadType
        As the operation; a gradient of another shape or dtype, or none at all.

    Notes
    -----
    Computes the forward pass again and holds the gates of all steps. Halves are computed in float32.

    Examples
    --------
    >>> import numpy as np, backline
    >>> x, h = np.ones((3, 1, 2)), np.zeros((1, 1, 1))
    >>> w = np.zeros((4, 2)), np.zeros((4, 1)), np.full(4, 9.0), np.zeros(4)
    >>> grads = backline.nn.grad.lstm_backward(x, (h, h), w, None, None, h + 1, True, 1, 0.0, False, False, False)
    >>> np.round(grads.c_0, 2), grads.params[0].shape
    (array([[[1.]]]), (4, 2))
    """
    return _backward(
        "lstm", hx, {"output": grad_output, "h_n": grad_h_n, "c_n": grad_c_n}, input, params, has_biases, num_layers, dropout,
        train, bidirectional, batch_first, lengths, seed,
    )  # fmt: skip


@operation("gru_backward", module=MODULE, family="rnn", lists=("hx", "params"), results=StateGrads)
def gru_backward(
    input: Array,
    hx: Array,
    params: tuple[Array, ...],
    grad_output: Array | None,
    grad_h_n: Array | None,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: Array | None = None,
    seed: int | None = None,
) -> RnnProblem:
    """Gradients of `gru` with respect to its arrays.

    Parameters
    ----------
    input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, lengths, seed
        What the operation was given; the same seed leaves out the same elements.
    grad_output, grad_h_n
        Gradients with respect to its two results, of their shapes and dtype; None for zeros.

    Returns
    -------
    StateGrads
        A tuple: the gradients of `input` and h_0, then of every array of `params`; also by name, as ``input``, ``h_0`` and
        ``params``, which is a tuple.

    Raises
    ------
    BadValue, BadType
        As `lstm_backward`.

    Notes
    -----
    As `lstm_backward`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> x, h = np.ones((1, 1, 2)), np.full((1, 1, 1), 8.0)
    >>> w = np.zeros((3, 2)), np.zeros((3, 1))
    >>> backline.nn.grad.gru_backward(x, h, w, None, h, False, 1, 0.0, False, False, False).h_0
    array([[[4.]]])
    """
    return _backward(
        "gru", hx, {"output": grad_output, "h_n": grad_h_n}, input, params, has_biases, num_layers, dropout, train, bidirectional,
        batch_first, lengths, seed,
    )  # fmt: skip


@operation("rnn_tanh_backward", module=MODULE, family="rnn", lists=("hx", "params"), results=StateGrads)
def rnn_tanh_backward(
    input: Array,
    hx: Array,
    params: tuple[Array, ...],
    grad_output: Array | None,
    grad_h_n: Array | None,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: Array | None = None,
    seed: int | None = None,
) -> RnnProblem:
    """Gradients of `rnn_tanh` with respect to its arrays.

    Parameters
    ----------
    input, hx, params, grad_output, grad_h_n, has_biases, num_layers, dropout, train, bidirectional, batch_first, lengths, seed
        As in `gru_backward`.

    Returns
    -------
    StateGrads
        As `gru_backward`.

    Raises
    ------
    BadValue, BadType
        As `lstm_backward`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> x, h = np.zeros((2, 1, 1)), np.zeros((1, 1, 1))
    >>> one = np.eye(1)
    >>> backline.nn.grad.rnn_tanh_backward(x, h, (one, 3 * one), None, h + 1, False, 1, 0.0, False, False, False).h_0
    array([[[9.]]])
    """
    return _backward(
        "rnn_tanh", hx, {"output": grad_output, "h_n": grad_h_n}, input, params, has_biases, num_layers, dropout, train,
        bidirectional, batch_first, lengths, seed,
    )  # fmt: skip


@operation("rnn_relu_backward", module=MODULE, family="rnn", lists=("hx", "params"), results=StateGrads)
def rnn_relu_backward(
    input: Array,
    hx: Array,
    params: tuple[Array, ...],
    grad_output: Array | None,
    grad_h_n: Array | None,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    lengths: Array | None = None,
    seed: int | None = None,
) -> RnnProblem:
    """Gradients of `rnn_relu` with respect to its arrays.

    Parameters
    ----------
    input, hx, params, grad_output, grad_h_n, has_biases, num_layers, dropout, train, bidirectional, batch_first, lengths, seed
        As in `gru_backward`.

    Returns
    -------
    StateGrads
        As `gru_backward`.

    Raises
    ------
    BadValue, BadType
        As `lstm_backward`.

    Notes
    -----
    Where the state is 0, so is its gradient by what relu was given.

    Examples
    --------
    >>> import numpy as np, backline
    >>> x, h = np.ones((3, 1, 1)), np.zeros((1, 1, 1))
    >>> one = np.eye(1)
    >>> backline.nn.grad.rnn_relu_backward(x, h, (one, one), None, h + 1, False, 1, 0.0, False, False, False).input.ravel()
    array([1., 1., 1.])
    """
    return _backward(
        "rnn_relu", hx, {"output": grad_output, "h_n": grad_h_n}, input, params, has_biases, num_layers, dropout, train,
        bidirectional, batch_first, lengths, seed,
    )  # fmt: skip


def _backward(mode: str, hx: Any, given: dict[str, Array | None], input: Array, params: Any, *settings: Any) -> RnnProblem:
    """The Problem of a call; `given` are the gradients by its results."""
    where = f"{mode}_backward"
    p = rnn_call(mode, input, hx, params, *settings, where=where)
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
        if array.dtype != p.dtype:
            raise BadType(
                f"{where}: {argument} has dtype {array.dtype}, input has {p.dtype}",
                remedy=f"{argument}.astype(np.{p.dtype.name})",
            )
        grads.append(operand(f"grad_{name.removesuffix('_n')}", array))
    fixed = [o for o in p.operands if o.role != "lengths"]
    last = [o for o in p.operands if o.role == "lengths"]
    return replace(p, op=f"{mode}_grad", operands=(*fixed, *grads, *last), result=input.shape)
