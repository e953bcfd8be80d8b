"""The loss of connectionist temporal classification, as torch.nn.functional.ctc_loss has it.

Reference: A. Graves, S. Fernandez, F. Gomez, J. Schmidhuber, Connectionist temporal classification: labelling unsegmented
sequence data with recurrent neural networks, ICML 2006: the forward variables of section 4.1, here as logarithms in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries.host_arrays import taking_host_arrays
from ..switches.switch import show
from .array_arguments import check_array
from .layer_checks import MODULE
from .linalg_checks import enough_memory, flag, whole, word

__all__ = ["ctc_loss"]

Array = np.ndarray[Any, Any]
LARGEST = 2**62  # beyond any length and any label
LARGEST_FLOAT = np.float64(2**53)  # up to which a float holds every whole number; of NumPy, as a float16 holds no 2**53


@taking_host_arrays
def ctc_loss(
    log_probs: Array, targets: Array, input_lengths: Array | Sequence[int], target_lengths: Array | Sequence[int],
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
) -> Array:  # fmt: skip
    """Negative logarithm of the probability of label sequences, summed over all their alignments with the inputs.

    Parameters
    ----------
    log_probs
        Logarithms of the probabilities of C labels at T times, (T, N, C), or (T, C) for one sequence; float32 or float64.
    targets
        Labels: (N, S), or (the sum of `target_lengths`,) one sequence after the other; whole numbers.
    input_lengths, target_lengths
        How many times and how many labels each sequence has: N ints.
    blank
        The label that stands for none.
    reduction
        "none"; "sum"; "mean", of losses divided by the lengths of their targets (by 1 where there are no labels).
    zero_infinity
        Whether losses of targets that do not fit into their inputs are 0 instead of infinite.

    Returns
    -------
    scalar or ndarray
        (N,) for the reduction "none" of a batch.

    Raises
    ------
    BadValue
        Shapes, lengths or labels that do not fit.
    BadType
        Other dtypes.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.nn.functional import ctc_loss
    >>> even = np.log(np.full((2, 1, 2), 0.5))
    >>> bool(np.isclose(ctc_loss(even, np.array([[1]]), [2], [1]), -np.log(0.75)))
    True
    """
    x = check_array(log_probs, "ctc_loss: log_probs")
    if x.dtype.name not in ("float32", "float64"):
        cause = "it takes float32 and float64"
        raise BadType(f"ctc_loss: log_probs has dtype {x.dtype}", cause=cause, remedy="x.astype(np.float32)")
    if x.ndim not in (2, 3):
        raise BadValue(f"ctc_loss: log_probs must have 3 dimensions, (T, N, C), or 2 for one sequence; it has shape {x.shape}")
    single = x.ndim == 2
    x = x[:, None] if single else x
    if not x.size:
        raise BadValue("ctc_loss: log_probs tensor must not be empty", cause=f"it has shape {log_probs.shape}")
    times, count, labels = x.shape
    word("ctc_loss", "reduction", reduction, ("none", "mean", "sum"))
    zero = flag("ctc_loss", "zero_infinity", zero_infinity)
    blank = whole("ctc_loss", "blank", blank)
    if not 0 <= blank < labels:
        raise BadValue(f"ctc_loss: blank must be in label range. It is {blank}, and there are {labels} labels")
    inputs = _lengths("input_lengths", input_lengths, count, times)
    wanted = _lengths("target_lengths", target_lengths, count, None)
    rows = _rows(targets, wanted, count, labels, blank)
    with np.errstate(all="ignore"):
        losses: Any = _losses(x, rows, inputs, wanted, blank)
        if zero:
            losses = np.where(losses == np.inf, 0.0, losses)
        if reduction == "mean":
            losses = np.mean(losses / np.maximum(wanted, 1))
        elif reduction == "sum":
            losses = np.sum(losses)
        elif single:
            losses = losses[0]
        result: Array = np.asarray(losses).astype(x.dtype.newbyteorder("="))[()]
    return result


def _whole(name: str, value: Any) -> Array:
    """An array of whole numbers as int64."""
    given = value
    if isinstance(value, (tuple, list)):
        if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in value):
            raise BadType(f"ctc_loss: {name} must be integral, not {show(value)}")
        given = np.array([max(min(int(n), LARGEST), -LARGEST) for n in value], np.int64)
    elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        given = np.array(max(min(int(value), LARGEST), -LARGEST))
    given = check_array(given, f"ctc_loss: {name}")
    if given.dtype.kind not in "iu":
        raise BadType(f"ctc_loss: {name} must be integral, not {given.dtype}", remedy="x.astype(np.int64)")
    return given.astype(np.int64)


def _lengths(name: str, value: Any, count: int, most: int | None) -> Array:
    found = _whole(name, value)
    if found.ndim > 1 or found.size != count:
        raise BadValue(f"ctc_loss: {name} must be of size batch_size, {count}. It has shape {found.shape}")
    found = found.reshape(count)
    if found.min() < 0:
        raise BadValue(f"ctc_loss: Expected {name} to have value at least 0, but got value {found.min()}")
    if most is not None and found.max() > most:
        raise BadValue(f"ctc_loss: Expected {name} to have value at most {most}, but got value {found.max()}")
    return found


def _rows(targets: Any, wanted: Array, count: int, labels: int, blank: int) -> Array:
    """Labels of every sequence in a row of its own, blanks behind them."""
    given = check_array(targets, "ctc_loss: targets")
    if given.dtype.kind == "f" and np.array_equal(given, np.trunc(given)) and np.all(np.abs(given) < LARGEST_FLOAT):
        given = given.astype(np.int64)  # whole numbers, as torch takes them
    given = _whole("targets", given)
    longest, total = int(wanted.max()), sum(wanted.tolist())
    if given.ndim == 1:
        if given.size != total:
            raise BadValue(
                f"ctc_loss: Expected targets to have size {total} at dimension 0, but got size {given.size}",
                cause="that is the sum of target_lengths",
            )
    elif given.ndim == 2:
        if given.shape[0] != count or given.shape[1] < longest:
            raise BadValue(
                f"ctc_loss: Expected targets of shape ({count}, {longest}) or longer, but got size {given.shape}",
                cause=f"there are {count} sequences, the longest of {longest} labels",
            )
    else:
        raise BadValue(f"ctc_loss: targets must have 1 or 2 dimensions, it has shape {given.shape}")
    enough_memory("ctc_loss", (count, 2 * longest + 1), np.dtype(np.float64), f"a target of {longest} labels")
    inside = np.arange(longest) < wanted[:, None]
    rows = np.full((count, longest), blank, np.int64)
    rows[inside] = given if given.ndim == 1 else given[:, :longest][inside]
    if rows.size and (rows.min() < 0 or rows.max() >= labels):
        raise BadValue(f"ctc_loss: targets holds a label that is not from 0 to {labels - 1}")
    return rows


def _losses(x: Array, rows: Array, inputs: Array, wanted: Array, blank: int) -> Array:
    """Forward variables of all sequences, time by time: labels with a blank before, between and after them."""
    count, longest = rows.shape
    path = np.full((count, 2 * longest + 1), blank, np.int64)
    path[:, 1::2] = rows
    apart = path[:, 2:] != path[:, :-2]  # only then may the blank between two labels be left out
    alpha = np.full(path.shape, -np.inf)
    alpha[:, :2] = np.take_along_axis(x[0], path[:, :2], axis=1)
    for t in range(1, int(inputs.max())):
        following = alpha.copy()
        following[:, 1:] = np.logaddexp(alpha[:, 1:], alpha[:, :-1])
        following[:, 2:] = np.where(apart, np.logaddexp(following[:, 2:], alpha[:, :-2]), following[:, 2:])
        following += np.take_along_axis(x[t], path, axis=1)
        alpha = np.where((t < inputs)[:, None], following, alpha)
    last = 2 * wanted[:, None]
    ends = np.take_along_axis(alpha, last, axis=1), np.take_along_axis(alpha, np.maximum(last - 1, 0), axis=1)
    losses = -np.where(wanted > 0, np.logaddexp(*ends)[:, 0], ends[0][:, 0])
    return np.where(inputs == 0, np.where(wanted == 0, 0.0, np.inf), losses)


ctc_loss.__module__ = MODULE
