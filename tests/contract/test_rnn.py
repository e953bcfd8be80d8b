"""Recurrent networks: every way of every library against a loop over single sequences in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, nn
from backline.errors import BadType, BadValue
from backline.libraries.capability import reachables
from backline.nn import grad
from recurrent import MODES, compare, make, oracle
from support import HALVES, clean, dtype_of, misaligned, problem_of, rng, run_each, seed

__all__ = ["clean", "rng", "seed"]

LIBRARIES = ("openblas", "mkl", "blis", "numpy")
Array = Any

pytestmark = pytest.mark.usefixtures("clean")


# Results ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_way_of_every_library(library: str, mode: str, rng: np.random.Generator) -> None:
    forms = itertools.product((1, 5), (1, 3), (False, True), (False, True))
    for steps, layers, bidirectional, batch_first in forms:
        for batch, hidden, biases in ((1, 9, True), (5, 3, False), (17, 33, True)):
            for dtype in (np.float32, np.float64):
                call = make(rng, mode, steps, batch, 4, hidden, layers=layers, bidirectional=bidirectional, biases=biases,
                            batch_first=batch_first, dtype=dtype)  # fmt: skip
                wanted = oracle(mode, call)
                for name, got in run_each(library, f"nn.{mode}", *call.values()):
                    compare(got, wanted, dtype, f"{library} {name} {mode} {steps=} {batch=} {hidden=} {layers=} {bidirectional=}")


@pytest.mark.parametrize("batch", [1, 4, 40])
@pytest.mark.parametrize("library", LIBRARIES)
def test_weights_larger_than_a_slab(library: str, batch: int, rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 3, batch, 8, 200, bidirectional=True, dtype=np.float32)
    wanted = oracle("lstm", call)
    for name, got in run_each(library, "nn.lstm", *call.values()):
        compare(got, wanted, np.float32, f"{library} {name}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", HALVES)
def test_halves(dtype: str, mode: str, rng: np.random.Generator) -> None:
    call = make(rng, mode, 4, 3, 5, 6, layers=2, dtype=dtype_of(dtype))
    compare(getattr(nn, mode)(*call.values()), oracle(mode, call), dtype_of(dtype), f"{mode} {dtype}")


@pytest.mark.parametrize("level", reachables())
def test_every_level_of_instructions(level: str, rng: np.random.Generator) -> None:
    for mode, dtype in itertools.product(MODES, (np.float32, np.float64)):
        call = make(rng, mode, 3, 9, 4, 21, dtype=dtype)
        with backline.backends.cpu.flags(capability=level):
            for name, got in run_each("openblas", f"nn.{mode}", *call.values()):
                compare(got, oracle(mode, call), dtype, f"{name} {mode} {level}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_lies_behind_a_length_is_not_read(library: str, mode: str, rng: np.random.Generator) -> None:
    lengths = np.array([3, 0, 6, 1, 4, 6, 2, 2, 5])
    for bidirectional, batch_first, dtype in itertools.product((False, True), (False, True), (np.int64, np.int32)):
        call = make(rng, mode, 6, len(lengths), 3, 4, layers=2, bidirectional=bidirectional, batch_first=batch_first)
        wanted = oracle(mode, call, lengths)
        for n, length in enumerate(lengths):
            (call["input"][n] if batch_first else call["input"][:, n])[length:] = np.nan
        for name, got in run_each(library, f"nn.{mode}", *call.values(), lengths=lengths.astype(dtype)):
            compare(got, wanted, np.float64, f"{library} {name} {mode} {bidirectional=} {batch_first=}")


@pytest.mark.parametrize("library", LIBRARIES)
def test_any_layout(library: str, rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 4, 5, 3, 6, bidirectional=True)
    wanted = oracle("lstm", call)
    for change in (misaligned, lambda a: np.array(a, order="F"), lambda a: np.repeat(a, 2, -1)[..., ::2], lambda a: a[::-1].copy()[::-1]):
        strange = {
            name: change(v) if isinstance(v, np.ndarray) else tuple(map(change, v)) if isinstance(v, tuple) else v
            for name, v in call.items()
        }
        for name, got in run_each(library, "nn.lstm", *strange.values()):
            compare(got, wanted, np.float64, f"{library} {name}")


def test_saturated_gates_and_what_is_not_finite(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 2, 8, 1, 5, biases=False)
    for value in (1e30, -1e30, 1e-30, np.nan, np.inf):
        call["input"][0, 3] = value
        with np.errstate(all="ignore"):
            wanted = oracle("lstm", call)
        for library in LIBRARIES:
            for name, got in run_each(library, "nn.lstm", *call.values()):
                compare(got, wanted, np.float64, f"{library} {name} {value}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("steps", "batch", "features", "hidden"), [(0, 2, 3, 4), (3, 0, 3, 4), (3, 2, 0, 4), (3, 2, 3, 0), (0, 0, 0, 0)])
def test_nothing_to_compute(mode: str, steps: int, batch: int, features: int, hidden: int, rng: np.random.Generator) -> None:
    call = make(rng, mode, steps, batch, features, hidden, layers=2, bidirectional=True)
    for library in LIBRARIES:
        for name, got in run_each(library, f"nn.{mode}", *call.values()):
            compare(got, oracle(mode, call), np.float64, f"{library} {name}")
    compare(getattr(nn, mode)(*call.values()), oracle(mode, call), np.float64, mode)


def test_arguments_are_left_alone_and_read_anew(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 3, 2, 4, 5, layers=2)
    before = [a.copy() for a in (call["input"], *call["hx"], *call["params"])]
    nn.lstm(**call)
    for a, b in zip((call["input"], *call["hx"], *call["params"]), before, strict=True):
        np.testing.assert_array_equal(a, b)
    call["params"][1][...] = rng.standard_normal(call["params"][1].shape)
    compare(nn.lstm(**call), oracle("lstm", call), np.float64, "changed weights")


def test_keywords_in_any_order(rng: np.random.Generator) -> None:
    call = make(rng, "gru", 3, 2, 4, 5)
    lengths = np.array([2, 3])
    turned = dict(reversed({**call, "lengths": lengths}.items()))
    compare(nn.gru(**turned), oracle("gru", call, lengths), np.float64, "reversed")


def test_a_plan_is_found_again(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 3, 2, 4, 5, layers=4, bidirectional=True)
    first = nn.lstm(*call.values())
    before = _core.memo_info()
    compare(nn.lstm(*call.values()), first, np.float64, "again")
    after = _core.memo_info()
    assert (after["lookups"] - before["lookups"], after["misses"] - before["misses"]) == (1, 0)
    assert backline.explain().problem.op == "lstm"


def test_more_arrays_than_the_memo_takes(rng: np.random.Generator) -> None:
    call = make(rng, "rnn_tanh", 2, 2, 3, 3, layers=24)
    compare(nn.rnn_tanh(*call.values()), oracle("rnn_tanh", call), np.float64, "many layers")


def test_threads_do_not_change_more_than_rounding(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 8, 32, 64, 64, bidirectional=True, dtype=np.float32)
    wanted = oracle("lstm", call)
    for threads in (1, 2):
        with backline.num_threads(threads):
            compare(nn.lstm(*call.values()), wanted, np.float32, f"{threads} threads")


def test_explain_says_family_and_switch(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 3, 2, 4, 5, dtype=np.float32)
    choice = backline.explain(nn.lstm, *call.values())
    assert choice.problem.family == "rnn"
    assert backline.explain("nn.lstm", *call.values()).problem == choice.problem
    assert "batch_first" in problem_of("nn.gru", *make(rng, "gru", 2, 3, 4, 5, batch_first=True).values()).key


@pytest.mark.parametrize("mode", MODES)
def test_measuring_finds_every_way_right(mode: str, rng: np.random.Generator) -> None:
    from backline.engine import choose
    from backline.engine.tuning import measure

    for dtype, further in ((np.float32, {}), (np.float64, {"lengths": np.array([3, 40, 0, 7])})):
        call = make(rng, mode, 40, 4, 30, 50, layers=2, dtype=dtype)
        problem = problem_of(f"nn.{mode}", *call.values(), **further)
        record = measure.measure_problem(problem, choose.eligible(problem, 2), 2, timing=False)
        assert not record.rejected


# Dropout --------------------------------------------------------------------------------------------------------------------


def test_dropout_between_layers(rng: np.random.Generator) -> None:
    call = make(rng, "gru", 4, 3, 5, 6, layers=2)
    one, two = ({**call, "num_layers": 1, "hx": call["hx"][i : i + 1], "params": call["params"][4 * i : 4 * i + 4]} for i in (0, 1))
    kept = np.random.default_rng(7).random((4, 3, 6)) >= 0.25
    two["input"] = oracle("gru", one)[0] * kept / 0.75
    wanted = oracle("gru", two)[0]
    call |= {"dropout": 0.25, "train": True}
    for library in LIBRARIES:
        for name, got in run_each(library, "nn.gru", *call.values(), seed=7):
            compare(got[:1], (wanted,), np.float64, f"{library} {name}")
    turned = {**call, "input": call["input"].swapaxes(0, 1), "batch_first": True}
    np.testing.assert_allclose(nn.gru(**turned, seed=7)[0].swapaxes(0, 1), wanted, rtol=1e-12, atol=1e-12)
    all_out = {**call, "dropout": 1.0}
    two["input"] = two["input"] * 0
    compare(nn.gru(**all_out, seed=7)[:1], oracle("gru", two)[:1], np.float64, "everything left out")
    with pytest.raises(BadValue, match="without a seed"):
        nn.gru(**call)
    call["train"] = False
    compare(nn.gru(**call), oracle("gru", call), np.float64, "not in training")


# What is refused ------------------------------------------------------------------------------------------------------------


def refused(error: type[Exception], words: str, call: dict[str, Any], mode: str = "lstm", **changes: Any) -> None:
    with pytest.raises(error, match=words):
        getattr(nn, mode)(**{**call, **changes})


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_arrays_in_lists(mode: str, rng: np.random.Generator) -> None:
    rows = {"lstm": 4, "gru": 3}.get(mode, 1) * 5
    x, h = rng.standard_normal((3, 2, 4)), rng.standard_normal((1, 2, 5))
    params = [rng.standard_normal(s) for s in ((rows, 4), (rows, 5), (rows,), (rows,))]
    hx: Any = [h, h] if mode == "lstm" else h
    settings = (True, 1, 0.0, False, False, False)
    function, back = getattr(nn, mode), getattr(grad, f"{mode}_backward")
    wanted = function(x, tuple(hx) if mode == "lstm" else hx, tuple(params), *settings)
    for result in (function(x, hx, params, *settings), function(input=x, params=params, hx=hx, has_biases=True, num_layers=1,
                   dropout=0.0, train=False, bidirectional=False, batch_first=False)):  # fmt: skip
        for a, b in zip(result, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    assert backline.explain(function, x, hx, params, *settings).problem.op == mode
    states = (None,) * (2 if mode == "lstm" else 1)
    one = back(x, hx, params, wanted[0], *states, *settings)
    two = back(x, tuple(hx) if mode == "lstm" else hx, tuple(params), wanted[0], *states, *settings)
    np.testing.assert_array_equal(one.input, two.input)


def test_errors_name_argument_and_sizes(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 3, 2, 4, 5, layers=2)
    x, hx, params = call["input"], call["hx"], call["params"]
    refused(BadType, "input must be a NumPy array, not list", call, input=[1])
    refused(BadType, "input has dtype int64", call, input=x.astype(int))
    refused(BadValue, r"input must have shape \(steps, batch, features\), it has \(2, 4\)", call, input=x[0])
    refused(BadType, "hx is a tuple of two arrays, h_0 and c_0, not ndarray", call, hx=hx[0])
    refused(BadType, "hx is a tuple of two arrays, h_0 and c_0, not a tuple of 1", call, hx=hx[:1])
    refused(BadValue, r"hx\[1\] has shape \(2, 2, 4\), it must be \(2, 2, 5\)", call, hx=(hx[0], hx[1][..., 1:]))
    refused(BadType, r"hx\[0\] has dtype float32, input has float64", call, hx=(hx[0].astype(np.float32), hx[1]))
    refused(BadType, "params is a tuple of arrays, not ndarray", call, params=params[0])
    refused(BadValue, "params has 7 arrays, it must have 8", call, params=params[1:])
    refused(BadValue, "projections are not there", call, params=(*params, *params[:2]))
    refused(BadType, r"params\[2\] must be a NumPy array, not int", call, params=(*params[:2], 3, *params[3:]))
    refused(BadType, r"params\[2\] has dtype float32", call, params=(*params[:2], params[2].astype(np.float32), *params[3:]))
    wrong = (*params[:4], params[4][:, 1:], *params[5:])
    refused(BadValue, r"params\[4\], weight_ih_l1, has shape \(20, 4\), it must be \(20, 5\)", call, params=wrong)
    wrong = (params[0], params[1][0], *params[2:])
    refused(BadValue, r"params\[0\], weight_ih_l0, .* it must be \(4 \* hidden, columns\)", call, params=wrong)
    refused(BadType, "has_biases is True or False, not 1", call, has_biases=1)
    refused(BadType, "num_layers is an int, not 2.0", call, num_layers=2.0)
    refused(BadValue, "num_layers=0", call, num_layers=0)
    refused(BadValue, "dropout=1.5", call, dropout=1.5)
    refused(BadType, "train is True or False", call, train=None)
    refused(BadValue, "seed=-1", call, seed=-1)
    refused(BadType, "lengths must be a NumPy array, not list", call, lengths=[1, 2])
    refused(BadType, "lengths has dtype float64", call, lengths=np.array([1.0, 2.0]))
    refused(BadValue, r"lengths has shape \(3,\), it must be \(2,\)", call, lengths=np.array([1, 2, 3]))
    for library, bad in itertools.product(LIBRARIES, (-1, 4)):
        with pytest.raises(BadValue, match=rf"lstm: lengths\[1\] = {bad}\n.*3 steps"):
            list(run_each(library, "nn.lstm", *call.values(), lengths=np.array([3, bad])))
    gru = make(rng, "gru", 3, 2, 4, 5, bidirectional=True)
    refused(BadType, "hx must be a NumPy array, not tuple", gru, "gru", hx=(gru["hx"],))
    wrong = (*gru["params"][:6], gru["params"][6][1:], gru["params"][7])
    refused(BadValue, r"params\[6\], bias_ih_l0_reverse, has shape \(14,\), it must be \(15,\)", gru, "gru", params=wrong)


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="lstm"):
        nn.lstmm  # noqa: B018  # reading it raises


# Beside PyTorch -------------------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("mode", MODES)
def test_torch_has_the_same_arguments_and_results(mode: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")

    def tensors(value: Any) -> Any:
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else tuple(map(torch.from_numpy, value))

    for layers, bidirectional, biases, batch_first in itertools.product((1, 2), *[(False, True)] * 3):
        call = make(rng, mode, 4, 3, 5, 6, layers=layers, bidirectional=bidirectional, biases=biases, batch_first=batch_first)
        x, hx, params, *rest = call.values()
        wanted = getattr(torch, mode)(tensors(x), tensors(hx), list(tensors(params)), *rest)
        compare(getattr(nn, mode)(*call.values()), tuple(part.numpy() for part in wanted), np.float64, mode)
