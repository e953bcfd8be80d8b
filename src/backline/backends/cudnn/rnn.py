"""Recurrent networks of cuDNN: their precision, and what its C interface needs."""

from __future__ import annotations

from collections.abc import MutableMapping as _MutableMapping
from typing import Any, Literal

import numpy as _numpy

from ...errors import BadType as _BadType
from ...errors import BadValue as _BadValue
from ...switches.switch import nearest as _nearest
from ...switches.switch import show as _show
from .. import _module_factory

__all__ = ["Unserializable", "flags", "fp32_precision", "get_cudnn_mode", "init_dropout_state", "set_flags"]

fp32_precision: Literal["none", "ieee", "tf32"]
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags

_MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}


class Unserializable:
    """Holds something that must not be pickled: after unpickling it holds None.

    Parameters
    ----------
    inner
        The object that `get` returns.

    Examples
    --------
    >>> import pickle
    >>> from backline.backends.cudnn.rnn import Unserializable
    >>> held = Unserializable("on the device")
    >>> held.get(), pickle.loads(pickle.dumps(held)).get()
    ('on the device', None)
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def get(self) -> Any:
        """Returns the object it holds."""
        return self.inner

    def __getstate__(self) -> str:
        return "<unserializable>"

    def __setstate__(self, state: object) -> None:
        self.inner = None


def get_cudnn_mode(mode: str) -> int:
    """Returns cuDNN's number of a kind of recurrent network; cuDNN itself is not needed.

    Parameters
    ----------
    mode
        "RNN_RELU", "RNN_TANH", "LSTM" or "GRU".

    Raises
    ------
    BadValue
        Another word.
    BadType
        Not a text.

    Examples
    --------
    >>> get_cudnn_mode("LSTM")
    2
    """
    if not isinstance(mode, str):
        raise _BadType(
            f"cudnn.rnn.get_cudnn_mode takes a str, not {type(mode).__name__}: {_show(mode)}",
            remedy=f"one of: {', '.join(map(repr, _MODES))}",
        )
    if mode not in _MODES:
        raise _BadValue(
            f"cudnn.rnn.get_cudnn_mode({_show(mode)}): there is no such kind of network.",
            remedy=f"legal values, the nearest first: {', '.join(map(repr, _nearest(mode, _MODES)))}",
        )
    return _MODES[mode]


def init_dropout_state(dropout: float, train: bool, dropout_seed: int, dropout_state: _MutableMapping[str, Any]) -> Any:
    """Returns the state of dropout on the current device, made and kept in a dict at first need.

    Parameters
    ----------
    dropout
        Probability, 0 to 1.
    train
        Without training nothing is dropped.
    dropout_seed
        Seed of the random numbers.
    dropout_state
        Dict in which the state is kept, as an `Unserializable` under "desc_" and the device's index. One that is not
        empty is used.

    Returns
    -------
    state
        An array of bytes on the device; None where nothing is dropped and none was made before.

    Raises
    ------
    BadType, BadValue
        An argument is not what it should be.
    BackendUnavailable
        Something is to be dropped, and cuDNN is absent.

    Examples
    --------
    >>> states = {}
    >>> init_dropout_state(0.5, False, 1, states) is None, list(states)
    (True, ['desc_0'])
    """
    _check("dropout", dropout, (int, float, _numpy.integer, _numpy.floating), "a number from 0 to 1")
    _check("dropout_seed", dropout_seed, (int, _numpy.integer), "a whole number")
    if not isinstance(train, (bool, _numpy.bool_)):
        raise _wrong("train", train, "a bool")
    if not isinstance(dropout_state, _MutableMapping):
        raise _wrong("dropout_state", dropout_state, "a dict")
    if not 0 <= dropout <= 1:
        raise _BadValue(f"cudnn.rnn.init_dropout_state: dropout = {_show(dropout)} is no probability.", remedy="0 to 1")
    from ...libraries import devices

    name = f"desc_{devices.current()}"
    kept = dropout_state.get(name)
    if kept is None or kept.get() is None:
        p = dropout if train else 0
        kept = dropout_state[name] = Unserializable(_made(float(p), int(dropout_seed)) if p else None)
    return kept.get()


def _made(p: float, seed: int) -> Any:
    from ...libraries.cuda.common import dropout_states as dropout

    return dropout.make(p, seed)


def _check(name: str, value: object, kinds: tuple[type, ...], wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise _wrong(name, value, wanted)


def _wrong(name: str, value: object, wanted: str) -> _BadType:
    return _BadType(
        f"cudnn.rnn.init_dropout_state: {name} = {_show(value)} is {type(value).__name__}.", remedy=f"{name} takes {wanted}"
    )


_module_factory.install(__name__, prefix="cudnn.rnn", present=False)
