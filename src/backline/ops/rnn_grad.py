"""Gradients of LSTM."""

from __future__ import annotations

from dataclasses import replace

from ..errors import BadType, BadValue
from ..problems import operand
from ..problems.rnn import RnnGrads, RnnProblem
from .bind import operation
from .layer_checks import Array, as_input
from .rnn import rnn_call

__all__ = ["RnnGrads", "lstm_backward"]

WHERE = "lstm_backward"


@operation(WHERE, module="backline.nn.grad", family="rnn")
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
    p = rnn_call(
        "lstm", input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, lengths, seed, where=WHERE
    )  # fmt: skip
    given = {"output": grad_output, "h": grad_h_n, "c": grad_c_n}
    if all(array is None for array in given.values()):
        raise BadValue(f"{WHERE}: grad_output, grad_h_n and grad_c_n are all None", remedy="at least one of them")
    grads = []
    for name, array in given.items():
        if array is None:
            continue
        argument, shape = ("grad_output", p.result) if name == "output" else (f"grad_{name}_n", hx[0].shape)
        if as_input(WHERE, argument, array).shape != shape:
            raise BadValue(f"{WHERE}: {argument} has shape {array.shape}, it must be {shape}")
        if array.dtype != p.dtype:
            raise BadType(
                f"{WHERE}: {argument} has dtype {array.dtype}, input has {p.dtype}",
                remedy=f"{argument}.astype(np.{p.dtype.name})",
            )
        grads.append(operand(f"grad_{name}", array))
    fixed = [o for o in p.operands if o.role != "lengths"]
    last = [o for o in p.operands if o.role == "lengths"]
    return replace(p, op="lstm_grad", operands=(*fixed, *grads, *last), result=input.shape)
