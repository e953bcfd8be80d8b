"""`backends.cudnn.rnn`: its precision, modes, and the state of dropout."""

from __future__ import annotations

import importlib
import inspect
import pickle
from typing import Any

import numpy as np
import pytest

from backline import backends, switches
from backline.backends.cudnn import rnn
from backline.errors import BackendUnavailable, BadType, BadValue, Frozen, ReadOnly, UnknownName
from backline.libraries import devices, presence
from backline.libraries.cuda.common import dropout_states
from backline.switches import store

SIGNATURES = {
    "Unserializable": "(inner)",
    "get_cudnn_mode": "(mode)",
    "init_dropout_state": "(dropout, train, dropout_seed, dropout_state)",
    "flags": "(fp32_precision=None)",
    "set_flags": "(_fp32_precision=None)",
}


@pytest.fixture(autouse=True)
def no_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = presence.Found("it is not installed", ("here", "there"), remedy="install cuDNN")
    monkeypatch.setitem(presence._presences, "cudnn", presence.Presence(presence.registry.LibraryInfo("cudnn", "cuDNN"), lambda row: absent))


@pytest.mark.parametrize(("name", "wanted"), SIGNATURES.items())
def test_a_name_is_there_with_its_signature(name, wanted):
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(getattr(rnn, name)).parameters.values()]
    assert str(inspect.Signature(parameters)) == wanted and getattr(rnn, name).__doc__


def test_the_module():
    assert backends.cudnn.rnn is rnn and pickle.loads(pickle.dumps(rnn)) is rnn
    assert {n for n in dir(rnn) if not n.startswith("__")} == {*SIGNATURES, "fp32_precision"} == {*rnn.__all__}
    for attempt in (lambda: rnn.fp32_precison, lambda: setattr(rnn, "fp32_precison", "ieee")):
        with pytest.raises(UnknownName, match="fp32_precision"):
            attempt()
    with pytest.raises(ReadOnly, match="fp32_precision"):
        rnn.get_cudnn_mode = 2
    rnn.fp32_precision = "ieee"
    assert importlib.reload(rnn) is rnn and rnn.fp32_precision == "ieee"


# --- precision ----------------------------------------------------------------------------------------------------


def test_the_precision_starts_as_tf32_and_follows_what_is_above():
    assert rnn.fp32_precision == "tf32"
    with backends.cudnn.flags(fp32_precision="ieee"):
        assert rnn.fp32_precision == "ieee"
    with backends.flags(fp32_precision="bf16"):
        assert rnn.fp32_precision == "none"


@pytest.mark.parametrize("word", ["none", "ieee", "tf32"])
def test_the_precision_round_trips(word):
    rnn.fp32_precision = word
    assert rnn.fp32_precision == word == backends.cudnn.rnn.fp32_precision
    assert backends.cudnn.conv.fp32_precision == "tf32"


@pytest.mark.parametrize(("value", "error"), [("bf16", BadValue), ("IEEE", BadValue), ("", BadValue), ("factory", BadValue), (None, BadType), (True, BadType)])
def test_other_precisions_are_refused(value, error):
    with pytest.raises(error, match=r"cudnn\.rnn\.fp32_precision(?s:.*)'ieee'"):
        rnn.fp32_precision = value
    assert rnn.fp32_precision == "tf32"


def test_the_precision_has_a_scope_that_gives_back_the_factory_state():
    with rnn.flags(fp32_precision="ieee"):
        assert (rnn.fp32_precision, backends.cudnn.allow_tf32) == ("ieee", False)
        rnn.fp32_precision = "none"
        assert rnn.fp32_precision == "none"
    assert rnn.fp32_precision == "tf32"
    backends.fp32_precision = "ieee"
    assert rnn.fp32_precision == "ieee"  # nobody wrote it, so it follows
    rnn.set_flags("tf32")
    assert rnn.fp32_precision == "tf32" and rnn.set_flags() == ("tf32",)
    with rnn.flags(), rnn.flags(None):
        assert rnn.fp32_precision == "tf32"


def test_a_frozen_base_refuses_and_scopes_work(monkeypatch):
    monkeypatch.setattr(store, "_is_frozen", True)
    for write in (lambda: setattr(rnn, "fp32_precision", "ieee"), lambda: rnn.set_flags("ieee")):
        with pytest.raises(Frozen, match=r"with backline\.backends\.cudnn\.rnn\.flags\(fp32_precision='ieee'\)"):
            write()
    with rnn.flags():
        rnn.fp32_precision = "ieee"
        assert rnn.fp32_precision == "ieee"
    assert rnn.fp32_precision == "tf32"


# --- Unserializable, get_cudnn_mode ---------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [None, 3, [1], open])
def test_what_it_holds_is_not_pickled(inner):
    held = rnn.Unserializable(inner)
    assert held.get() is inner
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        packed = pickle.dumps(held, protocol)
        assert b"<unserializable>" in packed and pickle.loads(packed).get() is None
    assert held.get() is inner


@pytest.mark.parametrize(("mode", "number"), [("RNN_RELU", 0), ("RNN_TANH", 1), ("LSTM", 2), ("GRU", 3)])
def test_modes_have_cudnns_numbers_without_cudnn(mode, number):
    assert rnn.get_cudnn_mode(mode) == number and type(rnn.get_cudnn_mode(mode)) is int


@pytest.mark.parametrize(("mode", "error", "nearest"), [("lstm", BadValue, "'LSTM'"), ("RNN", BadValue, "'RNN_RELU'"), ("", BadValue, "'GRU'"), (2, BadType, "'GRU'"), (None, BadType, "'LSTM'")])
def test_other_modes_are_refused(mode, error, nearest):
    with pytest.raises(error) as caught:
        rnn.get_cudnn_mode(mode)
    assert repr(mode) in str(caught.value) and nearest in str(caught.value) and "get_cudnn_mode" in str(caught.value)


# --- init_dropout_state ---------------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Stands for cuDNN; what it was asked for."""
    asked: list[tuple[float, int]] = []

    def make(p: float, seed: int) -> str:
        asked.append((p, seed))
        return f"state {len(asked)}"

    monkeypatch.setattr(dropout_states, "make", make)
    return asked


@pytest.mark.parametrize(("p", "train"), [(0.5, False), (0, True), (0.0, False), (np.float32(0), np.True_)])
def test_without_dropout_none_is_stored_and_cudnn_is_not_needed(p, train):
    states: dict[str, Any] = {}
    assert rnn.init_dropout_state(p, train, 1, states) is None
    assert [*states] == ["desc_0"] and states["desc_0"].get() is None


def test_with_dropout_cudnn_is_needed_and_nothing_is_stored_without_it():
    states: dict[str, Any] = {}
    with pytest.raises(BackendUnavailable, match=r"dropout=0\.5(?s:.*)here; there(?s:.*)install cuDNN"):
        rnn.init_dropout_state(0.5, True, 1, states)
    assert states == {}


def test_a_state_is_made_once_for_each_device(made, monkeypatch):
    states: dict[str, Any] = {}
    assert rnn.init_dropout_state(0.5, True, 7, states) == "state 1" == rnn.init_dropout_state(0.25, True, 8, states)
    assert rnn.init_dropout_state(0.5, False, 7, states) == "state 1"
    monkeypatch.setattr(devices, "current", lambda: 3)
    assert rnn.init_dropout_state(np.float64(0.25), np.True_, np.int64(9), states) == "state 2"
    assert [*states] == ["desc_0", "desc_3"] and made == [(0.5, 7), (0.25, 9)]


def test_an_empty_one_is_filled_when_it_is_needed(made):
    states: dict[str, Any] = {}
    assert rnn.init_dropout_state(0.5, False, 7, states) is None
    assert rnn.init_dropout_state(0.5, True, 7, states) == "state 1"
    again = pickle.loads(pickle.dumps(states))
    assert rnn.init_dropout_state(0.5, True, 7, again) == "state 2"


@pytest.mark.parametrize(
    ("place", "name", "value", "error"),
    [
        (0, "dropout", -0.1, BadValue), (0, "dropout", 1.5, BadValue), (0, "dropout", float("nan"), BadValue), (0, "dropout", "0.5", BadType),
        (0, "dropout", True, BadType), (1, "train", 1, BadType), (1, "train", None, BadType), (2, "dropout_seed", 1.5, BadType),
        (2, "dropout_seed", True, BadType), (3, "dropout_state", [], BadType), (3, "dropout_state", None, BadType),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(place, name, value, error, made):
    arguments: list[Any] = [0.5, True, 1, {}]
    arguments[place] = value
    with pytest.raises(error) as caught:
        rnn.init_dropout_state(*arguments)
    assert f"{name} = {value!r}" in str(caught.value) and "init_dropout_state" in str(caught.value) and not made
    assert switches.get("cudnn.enabled") is True
