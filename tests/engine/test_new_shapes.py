"""The first call of a new shape: the way from its Problem to its Plan is short, and `explain` still knows everything."""

from __future__ import annotations

import math
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import libraries, linalg, quantized, switches
from backline.engine import choose, plan_caches, problem_class, ranking
from backline.kernel_check import cases
from backline.libraries import overrides
from backline.libraries.base import Library
from backline.libraries.onednn.primitives import Engine
from backline.nn import functional
from backline.problems import Problem
from backline.problems.length_factors import lengths_in
from support import clean, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean

ROOT = os.path.dirname(backline.__file__)
F32, F64 = np.float32, np.float64


@pytest.fixture
def loaded() -> None:
    for library in libraries.all_libraries():
        if "cpu" in library.devices:
            library.available()


def way(call: Callable[[], object]) -> list[str]:
    """The file of every function of Backline that receives a Problem during a call, in order."""
    files: list[str] = []

    def entered(frame: Any, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT):
            return
        named, local = code.co_argcount + code.co_kwonlyargcount, frame.f_locals
        given = [local.get(name) for name in code.co_varnames[:named]]
        if code.co_flags & 0x04:  # *args
            given += local.get(code.co_varnames[named], ())
        if any(isinstance(value, Problem) for value in given):
            files.append(code.co_filename)

    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def returns(files: list[str]) -> int:
    """Returns how often a way comes back to a file that it has left."""
    seen: set[str] = set()
    found = 0
    for before, file in zip(["", *files], files, strict=False):
        found += file != before and file in seen
        seen.add(file)
    return found


CALLS: dict[str, tuple[tuple[str, ...], Callable[[Any], object], Any, int, int]] = {
    # What comes first, a call of a square array, its dtype, and the most files and returns.
    "matmul f32": (("openblas.gemm@n", "openblas.gemm@1"), lambda a: backline.matmul(a, a), F32, 11, 13),
    "matmul f64": (("openblas.gemm@n", "openblas.gemm@1"), lambda a: backline.matmul(a, a), F64, 11, 13),
    "matmul f64 by mkl": (("mkl.gemm@n", "mkl.gemm@1"), lambda a: backline.matmul(a, a), F64, 12, 20),  # it has a handler of its own
    "cholesky": (("openblas.potrf@1", "openblas.potrf@n"), linalg.cholesky, F32, 11, 12),
    "softmax": (("kernels.compiled@1", "kernels.compiled@n"), lambda a: functional.softmax(a, -1), F32, 10, 18),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_problem_passes_through_few_files(name: str, loaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, call, dtype, most, back = CALLS[name]
    need(keys[0].partition(".")[0])
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: keys)  # whatever is fastest on this machine
    for n in (80, 200):
        for known in (n, n + 1):
            call(np.eye(known, dtype=dtype))  # what holds for all shapes is known now
        new = np.eye(n + 2, dtype=dtype)
        files = way(lambda new=new: call(new))
        assert files, "nothing was seen"
        assert len(set(files)) <= most and returns(files) <= back, [os.path.relpath(f, ROOT) for f in files]


def test_libraries_that_cannot_come_first_are_asked_only_when_somebody_wants_to_know(
    loaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("openblas", "mkl"):
        need(name)
    asked: list[str] = []
    real = Library.algorithms

    def algorithms(self: Library, *arguments: Any) -> Any:
        asked.append(self.name)
        return real(self, *arguments)

    monkeypatch.setattr(Library, "algorithms", algorithms)
    a = np.ones((70, 70))
    backline.matmul(a, a)
    assert asked == [backline.explain().library]
    told = {c.library for c in backline.explain().candidates}
    assert {"openblas", "mkl", "numpy"} <= told and {"openblas", "mkl", "numpy"} <= set(asked)
    before = len(asked)
    assert str(backline.explain()).count("\n") > 3 and len(asked) == before, "they are asked once"


def problems() -> Iterator[Problem]:
    rng = random.Random(3)
    for write in (cases.matmul, cases.linalg, cases.conv, cases.pooling, cases.neural, cases.fft, cases.attention):
        for text in islice(write(rng), 25):
            yield Problem.parse(text)
    for size in (1, 2, 20, 64, 65, 200, 700):
        for dtype in ("f32", "f64", "c64", "bf16"):
            for shapes in (f"{size}x{size} {size}x{size}", f"1x{size} {size}x8", f"6x{size}x{size} 6x{size}x{size}"):
                yield Problem.parse(f"matmul {dtype} {shapes}")
    for steps, batch, n in ((3, 2, 8), (20, 4, 32), (40, 16, 128)):
        for op, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
            states = " ".join([f"1x{batch}x{n}"] * (1 + (op == "lstm")))
            for dtype in ("f32", "f64", "bf16"):
                yield Problem.parse(f"{op} {dtype} {steps}x{batch}x{n} {states} {gates * n}x{n} {gates * n}x{n} {gates * n} {gates * n}")


@pytest.mark.parametrize("threads", [1, 2])
def test_the_choice_is_the_one_that_asking_everybody_gives(threads: int, loaded: None) -> None:
    backline.set_num_threads(threads)
    seen = 0
    for problem in problems():
        everybody = choose.choose(problem, measure=False)
        quick = choose._by_ranking(problem, switches.current())
        assert quick is not None or problem.family not in problem_class.BY_RANK, problem.key
        if quick is None:
            continue
        assert quick.chosen == everybody.chosen and str(quick) == str(everybody)
        seen += 1
    assert seen > 150


def test_the_choice_is_the_same_for_packed_and_quantized_layers(loaded: None) -> None:
    rng = np.random.default_rng(1)
    weight, kernel = rng.standard_normal((24, 16), F32), rng.standard_normal((8, 4, 3, 3), F32)
    x, images = rng.standard_normal((20, 16), F32), rng.standard_normal((2, 4, 9, 9), F32)
    integers = quantized.quantize(x, 0.05, 100, dtype=np.uint8), quantized.quantize(images, 0.05, 100, dtype=np.uint8)
    linear, conv = functional.prepack_linear(weight), functional.prepack_conv2d(kernel)
    linear8 = quantized.linear_prepack(quantized.quantize_weights(weight), np.zeros(24, F32))
    conv8 = quantized.conv2d_prepack(quantized.quantize_weights(kernel), np.zeros(8, F32))
    for call in (
        lambda: linear(x), lambda: linear(x[:1]), lambda: conv(images), lambda: quantized.linear_dynamic(x, linear8),
        lambda: quantized.linear(integers[0], linear8, 0.1, 100), lambda: quantized.conv2d(integers[1], conv8, 0.1, 100),
    ):  # fmt: skip
        call()
        problem = backline.explain().problem
        everybody, quick = choose.choose(problem, measure=False), choose._by_ranking(problem, switches.current())
        assert quick is not None and quick.chosen == everybody.chosen and str(quick) == str(everybody), problem.key


def test_sixteen_bit_products_whose_rows_fill_no_tiles_have_choices_of_their_own(
    loaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    need("openblas")
    first = {"square": "numpy.matmul@n", "square ragged": "openblas.gemm_f32@n"}
    # Loops of ours come first where an order names none of them.
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: [first[problem.shape_class()], *first.values(), "kernels.tiles@n"])
    rng = np.random.default_rng(1)
    for k in (*range(320, 640, 32), *range(325, 645, 32), 640, 645):
        a, b = rng.standard_normal((300, k), F32).astype(ml_dtypes.bfloat16), np.ones((k, 280), ml_dtypes.bfloat16)
        backline.matmul(a, b)
        made = backline.explain()
        assert made.problem.shape_class() == ("square ragged" if k % 32 else "square")
        assert made.chosen is not None and made.chosen.key == first[made.problem.shape_class()], made.problem.key
        again = choose.choose(made.problem, measure=False).chosen
        assert again is not None and (made.library, made.algorithm) == (again.library, again.name), made.problem.key


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_layers_of_few_rows_have_choices_of_their_own(loaded: None, dtype: Any) -> None:
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((192, 320), F32).astype(dtype)
    for rows in (*range(2, 14), 5, 11):
        functional.linear(rng.standard_normal((rows, 320), F32).astype(dtype), weight, np.ones(192, dtype))
        made = backline.explain()
        assert made.problem.shape_class() == ("few added" if rows <= 8 else "thin added")
        again = choose.choose(made.problem, measure=False).chosen
        assert again is not None and (made.library, made.algorithm) == (again.library, again.name), made.problem.key


def test_plain_products_of_wider_floats_are_one_class() -> None:
    classes = [Problem.parse(f"matmul {dtype} {rows}x640 640x640").shape_class() for dtype in ("f32", "bf16") for rows in (4, 9)]
    assert classes == ["thin", "thin", "few", "thin"]


@pytest.mark.parametrize("rows, outputs, shape_class", [(4, 640, "few"), (640, 4, "thin"), (6, 3, "thin"), (3, 3, "few"), (9, 640, "thin")])
def test_few_outputs_of_a_layer_are_not_few_rows(loaded: None, rows: int, outputs: int, shape_class: str) -> None:
    functional.linear(np.ones((rows, 64), F32), np.ones((outputs, 64), F32), np.ones(outputs, F32), activation="relu")
    assert backline.explain().problem.shape_class() == shape_class


@pytest.mark.parametrize("points, factor, odd", [(363, 8, 1.0), (364, 8, 0.0), (26 * 17, 17, 0.0), (1009, 1009, 1.0)])
def test_factors_of_a_transforms_length_are_part_of_its_place(loaded: None, points: int, factor: int, odd: float) -> None:
    x = np.random.default_rng(3).standard_normal(points)
    half = backline.fft.rfft(x)
    assert np.allclose(half, np.fft.rfft(x))
    places = [backline.explain().problem.place()]
    backline.fft.irfft(half, points)
    places.append(backline.explain().problem.place())
    for place in (*places, Problem.parse(f"fft.fft c128 {points}").place()):
        assert place.shape_class == "1d" and place.factors == (math.log2(factor / 8), 0.0, odd, 0.0)


@pytest.mark.parametrize("name, shape, options", [
    ("rfft", (6, 100), {}), ("ihfft", (101,), {"n": 90}), ("irfft", (4, 65), {}), ("hfft", (65, 4), {"dim": 0}),
    ("ifft", (30, 7, 2), {"dim": 1, "n": 32}), ("fftn", (4, 5, 6), {"dim": (2, 0)}), ("irfft2", (3, 8, 33), {}),
    ("irfftn", (8, 33), {"s": (7, 63)}), ("dct", (5, 20), {"dim": 0}), ("dstn", (5, 20), {"type": 3}), ("fft", (4, 6), {"dim": 0}),
])  # fmt: skip
def test_lengths_are_read_from_the_key(loaded: None, name: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    getattr(backline.fft, name)(np.ones(shape), **options)
    problem = backline.explain().problem
    assert lengths_in(problem.key) == problem.lengths
    assert problem.place() == problem.place()._replace(factors=()).sized_as(problem.key)


def test_reasons_are_those_of_the_moment_of_the_call(loaded: None) -> None:
    need("mkl")
    a = np.ones((71, 71))
    with backline.backends.mkl.flags(enabled=False):
        backline.matmul(a, a)
    refused = [c for c in backline.explain().candidates if c.library == "mkl"]
    assert [c.switch for c in refused] == ["mkl.enabled"] and "scope" in refused[0].reason
    assert "test_new_shapes.py" in refused[0].reason and "mkl.enabled" in backline.explain().switches
    backline.backends.fallback = "warn"
    backline.matmul(a, a)
    assert [c.verdict for c in backline.explain().candidates if c.library == "mkl"] != ["refused"]


def test_scopes_of_one_value_at_several_places_are_told_apart(loaded: None) -> None:
    need("mkl")
    flags = backline.backends.mkl.flags
    said = []
    for n in (74, 75, 76):
        a = np.ones((n, n))
        with flags(enabled=False):
            backline.matmul(a, a)
        said.append(str(backline.explain().switches["mkl.enabled"][1]))
    with flags(enabled=False):
        backline.matmul(np.ones((77, 77)), np.ones((77, 77)))
        said.append(str(backline.explain().switches["mkl.enabled"][1]))
    with flags(enabled=True):
        backline.backends.mkl.enabled = False
        backline.matmul(np.ones((78, 78)), np.ones((78, 78)))
        said.append(str(backline.explain().switches["mkl.enabled"][1]))
    assert said[0] == said[1] == said[2] and len({*said}) == 3, said
    assert "assign" not in said[3] and "inside the scope of" in said[4]


def test_an_override_comes_before_what_the_ranking_has(loaded: None) -> None:
    assert isinstance(backline.matmul(np.ones((72, 72)), np.ones((72, 72))), np.ndarray)
    mine = overrides.register("triton", "matmul", "CPU", lambda x, y: "mine", lambda problem: problem.m == 73)
    try:
        found = [backline.matmul(np.ones((n, n)), np.ones((n, n))) for n in (73, 74)]
        assert isinstance(found[0], str) and isinstance(found[1], np.ndarray)
    finally:
        overrides.unregister(mine)
    assert isinstance(backline.matmul(np.ones((73, 73)), np.ones((73, 73))), np.ndarray)


def test_a_primitive_is_described_once_for_a_plan_that_onednn_runs(loaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    need("onednn")
    made: list[str] = []
    real = Engine.call

    def call(self: Engine, name: str, *arguments: Any) -> None:
        made.append(name)
        real(self, name, *arguments)

    monkeypatch.setattr(Engine, "call", call)
    with backline.backends.flags(only=("onednn",)):
        for n in (40, 41):  # the first finds out that nothing may be reduced to bfloat16
            made.clear()
            a = np.ones((n, n), F32)
            assert (backline.matmul(a, a) == n).all()
        assert made.count("dnnl_matmul_primitive_desc_create") <= 2 and made.count("dnnl_primitive_create") == 1
        problem = Problem.parse("matmul f32 90x90 90x90")
        choose.choose(problem, measure=False)  # leaves descriptors behind
        plans = [libraries.get("onednn").prepare(problem, libraries.Algorithm(library="onednn", name="matmul")) for _ in "ab"]
        b = np.ones((90, 90), F32)
        assert all((plan(b, b) == 90).all() for plan in plans), "one is used up by one plan"


def test_plans_of_many_shapes_are_bounded(loaded: None) -> None:
    need("openblas")
    kept = plan_caches.cache("openblas")
    most = kept.max_size
    try:
        kept.max_size = 8
        with backline.use("openblas"):
            for n in range(2, 40):
                a = np.ones((3, n))
                assert (backline.matmul(a, a.T) == n).all()
        assert kept.size == 8
    finally:
        kept.max_size = most


def test_a_problem_travels_without_its_hash() -> None:
    problem = Problem.parse("matmul f32 90x90 90x90")
    known = hash(problem)
    assert problem.__dict__["_hash"] == known
    other = pickle.loads(pickle.dumps(problem))
    assert "_hash" not in other.__dict__ and other == problem and hash(other) == known
