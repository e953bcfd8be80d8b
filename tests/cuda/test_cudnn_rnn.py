"""Recurrent networks by cuDNN's C interface: a library in C takes its place, which checks every argument and computes the numbers.

The stand-in knows cuDNN's documented formulas and order of gates and reads the weights from where it said they lie, so a wrong
argument, gate, place or length is a wrong result or an error.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_recurrent import agree, close, forms, host_grad, ones, run, run_grad, there

import backline
from backline import nn, switches
from backline.backends import cudnn
from backline.engine import plan_caches
from backline.errors import BadValue, LibraryFailed, NoKernel, NotDeterministic
from backline.libraries import rnn_layers
from backline.libraries.base import Algorithm
from backline.libraries.cuda.common import bindings
from backline.libraries.cuda.common.device_facts import DeviceInfo
from backline.libraries.cuda.cudnn import rnn_interface, rnn_run
from backline.libraries.cuda.cudnn.rnn_recipe import rnn_algorithms, rnn_recipe
from backline.libraries.reference import reference_rnn_grad
from backline.nn import grad as nn_grad
from fakes import cudnn_rnn
from fakes.cupy_standin import A100, H100, T4, CuPy, ndarray
from fakes.insert import inserted
from recurrent import MODES, compare, make, oracle
from support import HALVES, clean, dtype_of, rng, seed

__all__ = ["clean", "rng", "seed"]

pytestmark = pytest.mark.usefixtures("clean", "native")
Array = Any
CONFIG = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture
def native() -> Iterator[Any]:
    """cuDNN's stand-in, with CuPy's; no other library takes arrays of the device."""
    library = cudnn_rnn.library()
    library.standin_scatter(0)
    rnn_run.forget()
    module = types.SimpleNamespace(backend_version=lambda: 92800)
    with inserted(cupy=CuPy(H100), cudnn=module, cudnn_file=library):
        yield library
    library.standin_scatter(0)


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("layers", "bidirectional", "biases", "batch_first", "lengths"), forms((1, False), (1, True), (3, True)))
def test_numbers(
    layers: int, bidirectional: bool, biases: bool, batch_first: bool, lengths: Any, mode: str, rng: np.random.Generator
) -> None:
    for dtype in (np.float32, np.float64):
        call = make(rng, mode, 4, 3, 5, 6, layers=layers, bidirectional=bidirectional, biases=biases, batch_first=batch_first, dtype=dtype)
        assert agree(mode, rng, call, lengths).library == "cudnn"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", HALVES)
def test_halves(dtype: str, mode: str, native: Any, rng: np.random.Generator) -> None:
    call = make(rng, mode, 3, 2, 5, 4, layers=2, dtype=dtype_of(dtype))
    assert agree(mode, rng, call).effective_precision == "f32 accumulation" and (native.standin_math(), native.standin_compute()) == (1, 0)


@pytest.mark.parametrize("mode", MODES)
def test_gates_that_lie_by_themselves(mode: str, native: Any, rng: np.random.Generator) -> None:
    native.standin_scatter(1)
    call = make(rng, mode, 3, 2, 4, 5, layers=2, bidirectional=True)
    agree(mode, rng, call)


@pytest.mark.parametrize("mode", MODES)
def test_missing_gradients_are_zeros(mode: str, rng: np.random.Generator) -> None:
    call = make(rng, mode, 3, 2, 4, 5, layers=2)
    grads = ones(mode, rng, call)
    for given in itertools.product((True, False), repeat=len(grads)):
        if any(given):
            some = [g if has else None for g, has in zip(grads, given, strict=True)]
            for lengths in (None, np.array([0, 2])):
                further = {} if lengths is None else {"lengths": lengths}
                close(run_grad(mode, call, some, **further), host_grad(mode, call, some, **further), np.float64)


@pytest.mark.parametrize("lengths", [np.array([2, 0, 3], np.uint8), np.array([1, 4, 2], np.int32)])
@pytest.mark.parametrize("batch_first", [False, True])
def test_what_lies_behind_the_end_is_not_read(batch_first: bool, lengths: Array, rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 4, 3, 2, 3, layers=2, bidirectional=True, batch_first=batch_first)
    grads = ones("lstm", rng, call, lengths)
    wanted, wanted_grads = run("lstm", call, lengths=lengths), run_grad("lstm", call, grads, lengths=lengths)
    behind = np.arange(4)[:, None] >= lengths[None, :]
    behind = behind.T if batch_first else behind
    call["input"] = call["input"].copy()
    call["input"][behind], grads[0][behind] = np.nan, np.nan
    found, found_grads = run("lstm", call, lengths=lengths), run_grad("lstm", call, grads, lengths=lengths)
    for one, other in zip((*found, *found_grads), (*wanted, *wanted_grads), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not found[0][behind].any() and not found_grads[0][behind].any()


def test_operands_in_any_layout(rng: np.random.Generator) -> None:
    call = make(rng, "gru", 4, 3, 5, 6, dtype=np.float32)
    wanted = oracle("gru", call)

    def strange(array: Array) -> Iterator[Array]:
        yield np.asfortranarray(array)
        yield np.ascontiguousarray(array[..., ::-1])[..., ::-1]
        room = np.empty(array.nbytes + 4, np.uint8)
        moved = np.ndarray(array.shape, array.dtype, room, 4 if room.ctypes.data % 16 == 0 else 0)
        moved[...] = array
        yield moved

    for change in range(3):
        forms = dict(call)
        forms["input"], forms["hx"] = (ndarray(list(strange(call[name]))[change]) for name in ("input", "hx"))
        forms["params"] = tuple(ndarray(list(strange(p))[change]) for p in call["params"])
        results = nn.gru(*forms.values())
        compare(tuple(r.get() for r in results), wanted, np.float32, f"{change}")


# --- dropout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", [None, np.array([2, 4, 0])])
def test_dropout(lengths: Any, mode: str, native: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    call = make(rng, mode, 4, 3, 5, 6, layers=3, bidirectional=True) | {"dropout": 0.25, "train": True}
    further = {} if lengths is None else {"lengths": lengths}
    drawn = np.array(cudnn_rnn.mask(77, 2 * 4 * 3 * 12, 0.25)).reshape(2, 4, 3, 12)

    def kept(p: Any, dtype: Any) -> Iterator[Array]:
        return iter(drawn.astype(dtype))

    # What NumPy makes of the elements that the stand-in leaves out.
    with monkeypatch.context() as patch:
        patch.setattr(rnn_layers, "kept_elements", kept)
        patch.setattr(reference_rnn_grad, "kept_elements", kept)
        plan_caches.clear()
        with backline.use("numpy"):
            wanted = getattr(nn, mode)(*call.values(), seed=77, **further)
        grads = [rng.standard_normal(part.shape) for part in wanted]
        wanted_grads = host_grad(mode, call, grads, seed=77, **further)
    plan_caches.clear()
    seedings = native.standin_seedings()
    for _ in range(2):  # the same seed, the same elements
        close(run(mode, call, seed=77, **further), wanted, np.float64)
        close(run_grad(mode, call, grads, seed=77, **further), wanted_grads, np.float64)
    assert native.standin_seedings() == seedings + 1  # gradients take the states that were seeded for the network
    other = run(mode, call, seed=78, **further)
    assert not np.allclose(other[0], wanted[0]) and "dropout by cuDNN" in str(backline.explain())
    assert native.standin_seedings() == seedings + 2
    call["train"] = False
    compare(run(mode, call, seed=77, **further), oracle(mode, call, lengths), np.float64, mode)


def test_states_of_many_seeds_and_streams(native: Any, rng: np.random.Generator) -> None:
    call = make(rng, "rnn_tanh", 2, 2, 3, 4, layers=2) | {"dropout": 0.5, "train": True}
    first = [run("rnn_tanh", call, seed=n)[0] for n in range(8)]
    again = [run("rnn_tanh", call, seed=n)[0] for n in range(8)]
    np.testing.assert_array_equal(first, again)
    seedings = native.standin_seedings()
    cupy = bindings.cupy()
    with cupy.cuda.Stream() as stream:  # states are of one stream: nobody waits for another one
        np.testing.assert_array_equal(run("rnn_tanh", call, seed=7)[0], first[7])
        assert native.standin_stream() == stream.ptr
    assert native.standin_seedings() == seedings + 1
    run("rnn_tanh", call, seed=7)
    assert native.standin_stream() is None


# --- switches and refusals ----------------------------------------------------------------------------------------------


def problem(mode: str = "lstm", backward: bool = False, **given: Any) -> Any:
    """A Problem of the device."""
    sizes = {"steps": 4, "batch": 8, "features": 128, "hidden": 128} | {n: given.pop(n) for n in ("steps", "batch", "features", "hidden") if n in given}
    more = {n: given.pop(n) for n in ("lengths", "seed") if n in given}
    switched = {n: given.pop(n) for n in ("dropout", "train") if n in given}
    call = make(np.random.default_rng(0), mode, *sizes.values(), **given) | switched
    values = list(map(there, call.values()))
    operation = getattr(nn_grad, f"{mode}_backward") if backward else getattr(nn, mode)
    if backward:
        grads = [there(part) for part in (*oracle(mode, call),)]
        values[3:3] = [ndarray(g.host.astype(call["input"].dtype)) for g in grads]
    return backline.explain(operation, *values, **{n: there(v) for n, v in more.items()}).problem


def names(p: Any, card: dict[str, Any] = H100, version: int = 91300) -> list[str]:
    device = DeviceInfo(0, (card["major"], card.get("minor", 0)), card["multiProcessorCount"], "", 0, 0)
    return [a.name for a in rnn_algorithms(p, device, version) if isinstance(a, Algorithm)]


def test_algorithms_in_their_order() -> None:
    small = problem(dtype=np.float32)
    assert names(small) == ["rnn_small_tf32", "rnn_small", "rnn_tf32", "rnn"] and names(small, T4) == ["rnn_small", "rnn"]
    large = {"hidden": 256, "features": 256}
    assert names(problem(dtype=np.float32, **large)) == ["rnn_tf32", "rnn"]
    assert names(problem(dtype=np.float16, **large)) == ["rnn_persist", "rnn"] == names(problem(dtype=np.float16, **large), A100)
    assert names(problem(dtype=np.float16, **large), T4) == ["rnn"]
    assert names(problem("gru", dtype=np.float16, **large)) == ["rnn"] == names(problem(dtype=np.float16, layers=2, **large))
    assert names(problem()) == ["rnn"]  # float64
    assert names(problem(dtype=np.float32, lengths=np.full(8, 4))) == ["rnn_tf32", "rnn"] == names(problem(dtype=np.float32, batch_first=True))
    assert names(problem(dtype=np.float32, layers=2, dropout=0.5, train=True, seed=1)) == ["rnn_tf32", "rnn"]
    assert names(problem(dtype=dtype_of("bfloat16")), T4) == []
    at = {mode: [names(problem(mode, dtype=np.float32, hidden=h, backward=b))[0].startswith("rnn_small") for b in (False, True) for h in hiddens]
          for mode, hiddens in {"lstm": (128, 129, 192, 193), "rnn_relu": (256, 257, 384, 385)}.items()}  # fmt: skip
    assert set(map(tuple, at.values())) == {(True, True, True, False, True, False, False, False)}


def test_numbers_that_describe_a_network() -> None:
    p = problem("gru", dtype=np.float32, layers=2, bidirectional=True, dropout=0.25, train=True, seed=3, batch_first=True, biases=False)
    made = rnn_recipe(p, "rnn_tf32")
    assert (made.mode, made.algo, made.biases, made.directions, made.dtype, made.compute, made.math) == (3, 0, 0, 2, 0, 0, 0)
    assert (made.layout, made.training, made.dropout) == (2, True, 0.25)
    assert (rnn_recipe(p, "rnn").math, rnn_recipe(p, "rnn_small").algo, rnn_recipe(p, "rnn_persist").algo) == (3, 3, 1)
    assert (made.biases, rnn_recipe(p, "rnn_small").biases) == (0, 2)
    double = rnn_recipe(problem("rnn_relu"), "rnn")
    assert (double.mode, double.dtype, double.compute, double.math, double.layout, double.training, double.biases) == (0, 1, 1, 0, 0, False, 2)
    assert rnn_recipe(problem("rnn_tanh", backward=True), "rnn").training


@pytest.mark.parametrize(("word", "math", "algorithm"), [("tf32", 0, "rnn_tf32"), ("ieee", 3, "rnn"), ("none", 3, "rnn")])
def test_the_precision_switch_governs_them(word: str, math: int, algorithm: str, native: Any, rng: np.random.Generator) -> None:
    call = make(rng, "gru", 2, 2, 3, 4, dtype=np.float32)
    lengths = np.array([2, 2])
    with cudnn.rnn.flags(fp32_precision=word):
        run("gru", call, lengths=lengths)
        assert native.standin_math() == math and backline.explain().algorithm == algorithm
        assert backline.explain().effective_precision == ("tf32" if word == "tf32" else "f32")
        run_grad("gru", call, ones("gru", rng, call), lengths=lengths)
        assert native.standin_math() == math and backline.explain().algorithm == algorithm
    with cudnn.flags(allow_tf32=False):
        run("gru", call, lengths=lengths)
        assert native.standin_math() == 3
    with switches.scope({"cudnn.conv.fp32_precision": "ieee"}):
        run("gru", call, lengths=lengths)
        assert native.standin_math() == 0  # that of convolutions has no part in it


def test_the_small_kernels_run_first(native: Any, rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 2, 2, 3, 4, dtype=np.float32)
    run("lstm", call)
    assert (native.standin_algo(), backline.explain().algorithm) == (3, "rnn_small_tf32")
    run("lstm", make(rng, "lstm", 2, 2, 3, 193, dtype=np.float32))
    assert (native.standin_algo(), backline.explain().algorithm) == (0, "rnn_tf32")
    for mode in MODES:  # they add biases always: zeros, where a call has none
        call = make(rng, mode, 3, 2, 4, 5, layers=2, bidirectional=True, biases=False, dtype=np.float32)
        compare(run(mode, call), oracle(mode, call), np.float32, mode)
        assert native.standin_algo() == 3
        grads = ones(mode, rng, call)
        close(run_grad(mode, call, grads), host_grad(mode, call, grads), np.float32)


def test_disabled(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 2, 2, 3, 4)
    with cudnn.flags(enabled=False), pytest.raises(NoKernel, match=r"cudnn\.enabled"):
        run("lstm", call)


@pytest.mark.parametrize(("config", "promised"), [("", False), (":4096:2", True), (":16:8", True), (":16:8:4096:2", False), ("x", False)])
def test_the_same_bits(config: str, promised: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG, config)
    plan_caches.clear()
    call = make(rng, "lstm", 2, 2, 3, 4)
    for switch in ({"deterministic": True}, {"deterministic": True, "determinism_level": "threads"}, {"cudnn.deterministic": True}):
        with switches.scope(switch):
            if promised:
                compare(run("lstm", call), oracle("lstm", call), np.float64, config)
            else:
                with pytest.raises((NotDeterministic, NoKernel), match=CONFIG):
                    run("lstm", call)


def test_refusals() -> None:
    def reason(p: Any, card: dict[str, Any] = H100, version: int = 91300) -> str:
        device = DeviceInfo(0, (card["major"], card.get("minor", 0)), card["multiProcessorCount"], "", 0, 0)
        (only,) = rnn_algorithms(p, device, version)
        assert not isinstance(only, Algorithm)
        return only.reason

    assert "empty" in reason(problem(steps=0))
    assert "8.0" in reason(problem(dtype=dtype_of("bfloat16")), T4)
    assert "91300" in reason(problem(dtype=dtype_of("bfloat16")), version=91200) and names(problem(dtype=np.float16), version=91200)
    assert "dropout of 1" in reason(dataclasses.replace(problem(layers=2), parameters=(("dropout", 1.0), ("seed", 1))))
    assert "2147483647" in reason(dataclasses.replace(problem(), steps=1 << 20, batch=1 << 6))


def test_lengths_out_of_range(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 3, 2, 3, 4)
    for lengths in ([4, 1], [-1, 2]):
        with pytest.raises(BadValue, match=r"lengths\[0\]"):
            run("lstm", call, lengths=np.array(lengths))
    run("lstm", call, lengths=np.array([3, 1]))  # and nothing is broken by that


# --- what is kept -------------------------------------------------------------------------------------------------------


def forgotten() -> None:
    """Nothing holds a plan of cuDNN."""
    plan_caches.clear()
    with backline.use("numpy"):  # so that the last plan is none of them
        backline.matmul(np.eye(2), np.eye(2))
    gc.collect()


def test_descriptors_are_given_back(native: Any, rng: np.random.Generator) -> None:
    forgotten()
    before = native.standin_live()
    for lengths in (None, *(np.array([n % 4, 3]) for n in range(40))):
        further = {} if lengths is None else {"lengths": lengths}
        call = make(rng, "gru", 3, 2, 3, 4, layers=2) | {"dropout": 0.5, "train": True}
        run("gru", call, seed=1, **further)
        call["train"] = False
        run("gru", call, **further)
        run_grad("gru", call, ones("gru", rng, call), **further)
    assert native.standin_live() < before + 400
    forgotten()
    assert native.standin_live() == before


def test_a_new_set_of_lengths_needs_no_new_plan(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 5, 3, 3, 4)
    for lengths in ((5, 5, 5), (1, 2, 3), (0, 5, 1), (1, 2, 3)):
        compare(run("lstm", call, lengths=np.array(lengths)), oracle("lstm", call, lengths), np.float64, str(lengths))
    assert plan_caches.cache("cudnn").size == 1


def test_threads_share_a_plan(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 5, 3, 3, 4, layers=2)
    wanted = {lengths: oracle("lstm", call, lengths) for lengths in itertools.product((1, 3, 5), repeat=3)}
    wrong: list[Any] = []

    def work() -> None:
        for lengths, right in wanted.items():
            found = run("lstm", call, lengths=np.array(lengths))
            if not all(np.allclose(a, b, atol=1e-10) for a, b in zip(found, right, strict=True)):
                wrong.append(lengths)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- errors -------------------------------------------------------------------------------------------------------------


def test_an_error_has_cudnns_own_words(native: Any) -> None:
    c = rnn_interface.interface()
    assert rnn_interface.interface() is c
    with pytest.raises(rnn_interface.CudnnError, match=r"cudnnSetStream: CUDNN_STATUS_BAD_PARAM \(2000\): .*magic") as caught:
        c.call("cudnnSetStream", None, None)
    assert caught.value.status == 2000 and not caught.value.unsupported
    assert rnn_interface.CudnnError("", 3002).unsupported


def test_a_failure_drops_the_plan(native: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    call = make(rng, "lstm", 2, 2, 3, 4)
    run("lstm", call)
    true = rnn_interface.Interface.call

    def failing(self: Any, name: str, *arguments: Any) -> None:
        if name == "cudnnRNNForward":
            raise rnn_interface.CudnnError(f"{name}: CUDNN_STATUS_EXECUTION_FAILED (5000)", 5000)
        true(self, name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(rnn_interface.Interface, "call", failing)
        with pytest.raises(LibraryFailed, match=r"cudnnRNNForward: CUDNN_STATUS_EXECUTION_FAILED"):
            run("lstm", call)
    compare(run("lstm", call), oracle("lstm", call), np.float64, "again")


def test_without_its_functions_it_is_refused(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 2, 2, 3, 4)

    class Old:
        def __getitem__(self, name: str) -> Any:
            raise AttributeError(f"undefined symbol: {name}")

    module = types.SimpleNamespace(backend_version=lambda: 92800)
    with inserted(cupy=CuPy(H100), cudnn=module, cudnn_file=Old()), pytest.raises(NoKernel, match="no recurrent networks in its C interface"):
        run("lstm", call)
    with inserted(cupy=CuPy(H100), cudnn=module):

        bindings.inserted.pop("cudnn_file")
        with pytest.raises(NoKernel, match="C interface cannot be called"):
            run("lstm", call)
