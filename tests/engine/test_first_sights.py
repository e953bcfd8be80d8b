"""Shapes that keep changing: first calls of convolutions and poolings run on what is prepared soon, later ones on what is fastest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, backends, libraries, quantized
from backline.engine import first_sights, plan_caches, ranking
from backline.libraries.onednn.library import CONV_COMPILED_AFTER, INT8_COMPILED_AFTER, POOL_COMPILED_AFTER, POOL_COMPILED_FLOPS
from backline.nn import functional
from support import clean, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean

SEED = int(os.environ.get("BACKLINE_TEST_SEED", "0"))
Array = Any


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing was seen before, and oneDNN comes first, on any machine."""
    need("onednn")
    names = "onednn.nhwc", "openblas.im2col", "mkl.im2col", "blis.im2col", "onednn.primitive", "numpy.loops"
    keys = tuple(f"{name}@{count}" for name in names for count in "n1")
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: keys)
    first_sights.clear()
    plan_caches.clear()
    _core.memo_clear()
    yield
    plan_caches.clear()


def operands(n: int, dtype: str = "float32") -> tuple[Array, Array, Array]:
    rng = np.random.default_rng([SEED, n])
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in ((2, 3, 9 + n, 8), (5, 3, 3, 3), (5,)))  # type: ignore[return-value]  # there are three shapes


def exact(x: Array, w: Array, b: Array) -> Array:
    with backends.flags(only=("numpy",)):
        return functional.conv2d(*(a.astype(np.float64) for a in (x, w, b)), padding=1)


def test_a_shape_is_worth_code_of_its_own_after_so_many_calls() -> None:
    for n in range(first_sights.CHANGING):
        functional.conv2d(*operands(n), padding=1)
        assert backline.explain().library == "onednn", n
    given = operands(first_sights.CHANGING)
    wanted = exact(*given)
    for call in range(CONV_COMPILED_AFTER + 2):
        found = functional.conv2d(*given, padding=1)
        choice = backline.explain()
        assert (choice.library == "onednn") is (call >= CONV_COMPILED_AFTER), call
        assert np.abs(found - wanted).max() <= 27 * 2.0**-22 * np.abs(wanted).max()
        if call == 0:
            told = next(c for c in choice.candidates if c.library == "onednn")
            assert f"tried after {CONV_COMPILED_AFTER} calls" in str(told.reason)
    functional.conv2d(*operands(100), padding=1)
    assert backline.explain().library != "onednn"


@pytest.mark.parametrize(
    "switches",
    [{"deterministic": True}, {"mkldnn_deterministic": True}, {"preferred_linalg_library": "default", "use": "onednn"}],
)
def test_where_more_than_the_ranking_decides_nothing_changes(switches: dict[str, Any]) -> None:
    preferred = switches.pop("use", None)
    for n in range(first_sights.CHANGING + 3):
        if preferred is not None:
            with backends.flags(only=(preferred,)):
                functional.conv2d(*operands(n), padding=1)
        elif "mkldnn_deterministic" in switches:
            with backends.mkldnn.flags(deterministic=True):
                functional.conv2d(*operands(n), padding=1)
        else:
            with backends.flags(**switches):
                functional.conv2d(*operands(n), padding=1)
        assert backline.explain().library == "onednn", n


def test_a_large_convolution_is_compiled_at_once() -> None:
    rng = np.random.default_rng(SEED)
    for n in range(first_sights.CHANGING + 1):
        functional.conv2d(*operands(n), padding=1)
    functional.conv2d(rng.standard_normal((1, 64, 40, 40), np.float32), rng.standard_normal((64, 64, 3, 3), np.float32))
    assert backline.explain().library == "onednn"


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_sights, "MOST", 5)
    for n in range(12):
        functional.conv2d(*operands(n), padding=1)
    assert len(first_sights._known) == 5


@pytest.fixture
def without_loops(clean: Any) -> None:
    """Backline's own loops have plans at once; `clean` lets them run again."""
    backends.kernels.enabled = False


@pytest.mark.parametrize("pool", [functional.max_pool2d, functional.avg_pool2d])
@pytest.mark.usefixtures("without_loops")
def test_a_pooling_is_worth_a_primitive_after_some_calls(pool: Any) -> None:
    rng = np.random.default_rng(SEED)
    images = [rng.standard_normal((2, 3, 9 + n, 8), np.float32) for n in range(first_sights.CHANGING + 1)]
    wanted = pool(images[-1].astype(np.float64), 2)
    for n, x in enumerate(images[:-1]):
        pool(x, 2)
        assert backline.explain().library == "onednn", n
    for call in range(POOL_COMPILED_AFTER + 3):
        found = pool(images[-1], 2)
        choice = backline.explain()
        assert (choice.library == "onednn") is (call >= POOL_COMPILED_AFTER), call
        assert np.abs(found - wanted).max() <= 4 * 2.0**-22 * np.abs(wanted).max()
        if call == 0:
            told = next(c for c in choice.candidates if c.library == "onednn")
            assert f"tried after {POOL_COMPILED_AFTER} calls" in str(told.reason)
    side = 2 * round((POOL_COMPILED_FLOPS / 4) ** 0.5)
    pool(rng.standard_normal((1, 4, side, side), np.float32), 2)
    assert backline.explain().library == "onednn", "a large one is worth it at once"


@pytest.mark.usefixtures("without_loops")
def test_a_plan_that_is_not_kept_gives_way_for_other_arrays_too() -> None:
    """Calls are counted by what they ask, whichever arrays they bring, and those of another Problem do not count."""
    rng = np.random.default_rng(SEED)
    for n in range(first_sights.CHANGING):
        functional.max_pool2d(rng.standard_normal((1, 2, 20 + n, 6), np.float32), 2)
    taken = []
    for _ in range(POOL_COMPILED_AFTER + 1):
        functional.max_pool2d(rng.standard_normal((1, 2, 50, 6), np.float32), 2)
        taken.append(str(backline.explain().library))
        functional.max_pool2d(rng.standard_normal((1, 2, 50, 7), np.float32), 3)
    assert taken == [*["numpy"] * POOL_COMPILED_AFTER, "onednn"]


# Packed layers ----------------------------------------------------------------------------------------------------------


def packed(max_plans: int = 8) -> tuple[Any, Array, Array]:
    _, w, b = operands(0)
    return functional.prepack_conv2d(w, b, padding=1, max_plans=max_plans), w, b


def test_packed_layers_count_their_own_calls() -> None:
    """Layers that are alike see the same shapes: none of them compiles at first sight because the others have seen one."""
    layers = [packed() for _ in range(3)]
    for n in range(first_sights.CHANGING):
        layers[0][0](operands(n)[0])
        assert backline.explain().library == "onednn", n
    for n in (50, 51):
        x = operands(n)[0]
        for layer, w, b in layers:
            wanted = exact(x, w, b)
            for call in range(CONV_COMPILED_AFTER + 2):
                found = layer(x)
                assert (backline.explain().library == "onednn") is (call >= CONV_COMPILED_AFTER), call
                assert np.abs(found - wanted).max() <= 27 * 2.0**-22 * np.abs(wanted).max()


def test_a_packed_layer_that_has_no_room_for_its_shapes_does_not_compile_each_again() -> None:
    layer, *_ = packed(max_plans=2)
    for n in range(first_sights.CHANGING):
        layer(operands(n)[0])
    for _ in range(CONV_COMPILED_AFTER + 2):
        for n in (50, 51, 52):
            layer(operands(n)[0])
            assert backline.explain().library != "onednn"
            assert layer.plans <= 2


def test_a_packed_layer_takes_turns_on_one_image_too() -> None:
    """The Plan of a call without a batch, which is kept beside, gives way as well; so does that of a plain convolution."""
    layer, w, b = packed()
    for n in range(first_sights.CHANGING):
        layer(operands(n)[0][0])
        functional.conv2d(operands(n)[0][0], w, b, padding=1)
    x = operands(60)[0][0]
    wanted = exact(x[None], w, b)[0]
    for run in (layer, lambda x: functional.conv2d(x, w, b, padding=1)):
        for call in range(CONV_COMPILED_AFTER + 2):
            found = run(x)
            assert (backline.explain().library == "onednn") is (call >= CONV_COMPILED_AFTER), call
            assert found.shape == wanted.shape and np.abs(found - wanted).max() <= 27 * 2.0**-22 * np.abs(wanted).max()


@pytest.mark.parametrize("packs", [False, True])
def test_without_a_blas_a_convolution_is_compiled_or_run_by_numpy(packs: bool) -> None:
    """A Plan in Python counts no calls: a packed layer would keep it."""
    layer, w, b = packed()
    with backends.flags(only=("onednn", "numpy")):
        for n in range(first_sights.CHANGING + 2):
            x = operands(n)[0]
            for image in (x, x[0]):
                found = layer(image) if packs else functional.conv2d(image, w, b, padding=1)
                assert backline.explain().library == "onednn" or not packs
                wanted = exact(x, w, b)
                assert np.abs(found - (wanted if image is x else wanted[0])).max() <= 27 * 2.0**-22 * np.abs(wanted).max()


def test_operands_that_are_converted_get_the_better_plan_too() -> None:
    x, w, b = operands(70)
    with backends.flags(promote="numpy"):
        for n in range(first_sights.CHANGING):
            functional.conv2d(operands(n)[0], w.astype(np.float16), b, padding=1)
        taken = []
        for _ in range(CONV_COMPILED_AFTER + 2):
            functional.conv2d(x, w.astype(np.float16), b, padding=1)
            taken.append(backline.explain().library == "onednn")
    assert taken == [False] * CONV_COMPILED_AFTER + [True] * 2


def test_a_packed_linear_layer_reads_its_weights_as_they_are_at_first() -> None:
    rng = np.random.default_rng(SEED)
    w = rng.standard_normal((128, 128), np.float32)
    layer = functional.prepack_linear(w)
    for n in range(first_sights.CHANGING + 1):
        x = rng.standard_normal((20 + n, 128), np.float32)
        wanted = x.astype(np.float64) @ w.astype(np.float64).T
        for call in range(CONV_COMPILED_AFTER + 2):
            found = layer(x)
            soon = n == first_sights.CHANGING and call < CONV_COMPILED_AFTER
            assert (backline.explain().library == "onednn") is not soon, (n, call)
            assert np.abs(found - wanted).max() <= 128 * 2.0**-22 * np.abs(wanted).max()


def test_shapes_are_known_for_each_number_of_threads() -> None:
    """A call that has fewer threads on a busy machine has a Plan of its own, which is made soon as well."""
    for threads in (2, 1):
        with backends.flags(num_threads=threads):
            for n in range(first_sights.CHANGING + 2):
                functional.conv2d(*operands(n), padding=1)
                assert (backline.explain().library == "onednn") is (n < first_sights.CHANGING), (threads, n)


# int8 ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.cpu_kernel
def test_int8_takes_a_product_at_first_and_gives_the_same_integers() -> None:
    if libraries.get("onednn").engine_reason("x86"):  # type: ignore[attr-defined]  # oneDNN has it
        pytest.skip("the processor does not add up int8 exactly")
    rng = np.random.default_rng(SEED)
    weight = quantized.quantize_weights(rng.standard_normal((5, 3, 3, 3), np.float32))
    with backends.quantized.flags(engine="x86"):
        layer = quantized.conv2d_prepack(weight, rng.standard_normal(5, np.float32), padding=1)
    with backends.quantized.flags(engine="reference"):
        reference = quantized.conv2d_prepack(weight, layer.unpack()[1], padding=1)
    for n in range(first_sights.CHANGING + 2):
        x = quantized.quantize(operands(n)[0], 0.05, 60, dtype=np.uint8)
        with backends.flags(only=("numpy",)):  # so it is no shape of those that are counted
            wanted = quantized.conv2d(x, reference, 0.1, 50).int_repr
        for call in range(INT8_COMPILED_AFTER + 2):
            found = quantized.conv2d(x, layer, 0.1, 50).int_repr
            soon = n >= first_sights.CHANGING and call < INT8_COMPILED_AFTER
            assert backline.explain().algorithm == ("int8_gemm" if soon else "int8"), (n, call)
            np.testing.assert_array_equal(found, wanted)
    told = {c.algorithm: c.reason for c in backline.explain(quantized.conv2d, x, layer, 0.1, 50).candidates}
    assert "dnnl_gemm_u8s8s32" in told["int8_gemm"]


@pytest.mark.cpu_kernel
def test_linear_int8_takes_a_product_at_first_and_gives_the_same_integers() -> None:
    if libraries.get("onednn").engine_reason("x86"):  # type: ignore[attr-defined]  # oneDNN has it
        pytest.skip("the processor does not add up int8 exactly")
    rng = np.random.default_rng(SEED)
    weight = quantized.quantize_weights(rng.standard_normal((7, 20), np.float32))
    with backends.quantized.flags(engine="x86"):
        layer = quantized.linear_prepack(weight)
    with backends.quantized.flags(engine="reference"):
        reference = quantized.linear_prepack(weight)
    for n in range(first_sights.CHANGING + 1):
        given = rng.standard_normal((3 + n, 20), np.float32)
        x = quantized.quantize(given, 0.05, 60, dtype=np.uint8)
        with backends.flags(only=("numpy",)):
            wanted = quantized.linear(x, reference, 0.1, 50).int_repr
        for call in range(INT8_COMPILED_AFTER + 1):
            soon = n >= first_sights.CHANGING and call < INT8_COMPILED_AFTER
            name = "int8_gemm" if soon else "int8"
            found, dynamic = quantized.linear(x, layer, 0.1, 50).int_repr, quantized.linear_dynamic(given, layer)
            assert backline.explain().algorithm == name, (n, call)
            np.testing.assert_array_equal(found, wanted)
            assert np.abs(dynamic - given @ weight.dequantize().T).max() <= 20 * 0.02
