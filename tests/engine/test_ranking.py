"""The shipped rankings: which file holds, what is predicted from it, what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.engine import predicted_times, ranking, ranking_files
from backline.engine.ranking import order_of
from backline.engine.tuning.record import current_key
from backline.libraries.base import Algorithm
from backline.native.processor_class import ProcessorClass
from backline.problems import Place, Problem
from backline.problems.op_registry import import_operations
from support import dtype_of, problem_of

FILES = sorted(Path(ranking_files.FOLDER).glob("*.json"))
AMD, AMD_AVX2, INTEL = (ProcessorClass.parse(f"{name}-2c") for name in ("amd-avx512", "amd-avx2", "intel-amx"))
CACHES = (
    ranking_files._classes, ranking_files._read, ranking_files._nearest, ranking_files.measured, ranking_files.table,
    predicted_times._points, predicted_times._ordered,
)  # fmt: skip
Here = Callable[[str, str, int], None]


@pytest.fixture
def as_on(monkeypatch: pytest.MonkeyPatch) -> Here:
    """Lets this machine pass for one of another class."""

    def use(maker: str, instructions: str, cores: int) -> None:
        monkeypatch.setattr(ranking_files, "here", lambda: ProcessorClass(maker, instructions, cores))

    return use


def forget() -> None:
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def rankings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of rankings of our own."""
    monkeypatch.setattr(ranking_files, "FOLDER", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def write(folder: Path, name: str, *entries: tuple[Any, ...]) -> None:
    """Writes a ranking: dtype, log2 of the work, times; and where that matters the class of shapes and the shapes."""
    write_entries(folder, name, *(
        {
            "op": "matmul", "dtype": dtype, "class": kind[0] if kind else "square", "size": size,
            "example": f"matmul {dtype} {kind[1] if kind else f'2^{size}'}",
            "order": list(times), "microseconds": list(times.values()),
        }
        for dtype, size, times, *kind in entries
    ))  # fmt: skip


def write_entries(folder: Path, name: str, *entries: dict[str, Any]) -> None:
    processors = ProcessorClass.parse(name)
    assert processors is not None
    made = ranking_files.Ranking.of(processors, {"cpu": f"the {name}"}, entries)
    (folder / f"{name}.json").write_text(made.text())
    forget()


def entry_of(problem: Problem, times: dict[str, float]) -> dict[str, Any]:
    place = problem.place()
    return {
        "op": place.op, "dtype": place.dtype, "class": place.shape_class, "size": place.work, "example": problem.key,
        "order": list(times), "microseconds": list(times.values()),
    }  # fmt: skip


def product(n: int, dtype: object = np.float32) -> Problem:
    x = np.ones((n, n), dtype)
    return problem_of("mm", x, x)


def batch(items: int, n: int) -> Problem:
    x = np.ones((items, n, n), np.float32)
    return problem_of("matmul", x, x)


def thin(n: int) -> Problem:
    return problem_of("mm", np.ones((n, max(n // 64, 1)), np.float32), np.ones((max(n // 64, 1), n), np.float32))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_well_formed_and_of_a_class(path: Path) -> None:
    content = json.loads(path.read_text())
    assert ProcessorClass.parse(path.stem)
    assert {"cpu", "cores", "threads", "date", "command", "libraries"} <= set(content["provenance"])
    known = set(libraries.names())
    for entry in content["entries"]:
        assert len(entry["order"]) == len(entry["microseconds"]) == len(set(entry["order"]))
        assert entry["microseconds"] == sorted(entry["microseconds"]) and all(t > 0 for t in entry["microseconds"])
        assert {key.partition(".")[0] for key in entry["order"]} <= known
        assert [current_key(key) for key in entry["order"]] == entry["order"]


@pytest.mark.parametrize("processors", ranking_files._classes(), ids=str)
def test_a_file_is_read_as_it_is_written(processors: ProcessorClass) -> None:
    """Entries of an operation are told by how their rows begin."""
    text = Path(ranking_files.file_name(processors)).read_text()
    found, content = ranking_files._read(processors), json.loads(text)
    assert found.text() == text and found.entries() == content["entries"] and found.provenance == content["provenance"]
    for op in {entry["op"] for entry in content["entries"]}:
        assert found.entries(op) == [entry for entry in content["entries"] if entry["op"] == op]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_entries_have_the_dtype_and_the_class_of_shapes_that_their_problems_have_now(path: Path) -> None:
    import_operations()
    checked = 0
    for entry in json.loads(path.read_text())["entries"]:
        if entry["op"].startswith("avg_pool") and entry["op"].endswith("_grad"):  # whose keys do not have the input's size
            continue
        place = Problem.parse(entry["example"]).place()
        assert (place.op, place.dtype, place.shape_class) == (entry["op"], entry["dtype"], entry["class"]), entry["example"]
        assert place.factors == place._replace(factors=()).sized_as(entry["example"]).factors
        assert abs(place.work - entry["size"]) < 0.01
        checked += 1
    assert checked > 0.99 * len(json.loads(path.read_text())["entries"])


def test_the_nearest_class_holds(as_on: Here) -> None:
    as_on("intel", "avx512", 16)
    assert ranking_files.shipped().processors == INTEL
    as_on("amd", "avx2", 64)
    assert ranking_files.shipped().processors == AMD_AVX2
    text = ranking.describe(product(256))
    assert "shipped ranking amd-avx2-2c" in text and "another machine" in text and "none was made for amd-avx2-64c" in text
    as_on("amd", "avx512", 2)
    assert ranking_files.shipped().processors == AMD
    assert "none was made" not in ranking.describe(product(256))


def test_for_16_bit_floats_a_class_with_their_instructions_or_without_comes_before_the_maker() -> None:
    there = ProcessorClass("intel", "avx2", 8)
    assert [ranking_files.nearest_classes(there, dtype)[0] for dtype in ("f32", "bf16", "f16")] == [INTEL, AMD_AVX2, AMD_AVX2]
    assert ranking_files.nearest_classes(ProcessorClass("other", "avx512", 8), "bf16") == (AMD, INTEL, AMD_AVX2)


def test_the_choice_says_whose_ranking_it_is() -> None:
    text = backline.explain(backline.mm, np.ones((37, 37)), np.ones((37, 37))).basis
    assert f"shipped ranking {ranking_files.shipped().processors}" in text


def test_nearer_measurements_count_more(rankings: Path, as_on: Here) -> None:
    as_on("amd", "avx2", 2)
    small, large = {"openblas.gemm@1": 1.0, "mkl.gemm@1": 8.0}, {"mkl.gemm@1": 100.0, "openblas.gemm@1": 800.0}
    write(rankings, "amd-avx2-2c", ("f32", 10, small), ("f32", 20, large))
    for n, first in ((8, "openblas"), (16, "openblas"), (40, "mkl"), (64, "mkl"), (300, "mkl")):
        assert order_of(product(n))[0] == f"{first}.gemm@1"


def test_sizes_count_beside_the_work(rankings: Path, as_on: Here) -> None:
    as_on("amd", "avx2", 2)
    many, one = {"a.x@1": 1.0, "b.x@1": 2.0}, {"b.x@1": 1.0, "a.x@1": 2.0}
    write(rankings, "amd-avx2-2c", ("f32", 14, many, "batch", "4096x2x2 4096x2x2"), ("f32", 16, one, "batch", "8x8x8 8x8x8"))
    assert order_of(batch(2048, 2))[0] == order_of(batch(4096, 3))[0] == "a.x@1" and order_of(batch(4, 8))[0] == "b.x@1"


def test_another_class_of_shapes_stands_in_where_nothing_is_near(rankings: Path, as_on: Here) -> None:
    as_on("amd", "avx2", 2)
    small, large = {"a.x@1": 1.0, "b.x@1": 4.0}, {"b.x@1": 1.0, "a.x@1": 4.0}
    write(rankings, "amd-avx2-2c", ("f32", 10, small, "square", "8x8 8x8"), ("f32", 30, large, "thin", "4096x32 32x4096"))
    assert order_of(thin(8))[0] == "a.x@1" and order_of(thin(2048))[0] == "b.x@1"


def test_what_a_class_lacks_comes_from_the_next_one_scaled_by_what_both_measured(rankings: Path, as_on: Here) -> None:
    as_on("amd", "avx512", 2)
    # There, a takes twice what b takes; here b takes four times as long, beside it, as there.
    both = [(10 + n / 8, n) for n in range(8, 18)]
    there = [("f32", size, {"b.x@1": 1.0, "a.x@1": 2.0}, "square", f"{n}x{n} {n}x{n}") for size, n in (*both, (22, 128))]
    here = [("f32", size, {"a.x@1": 2.0, "b.x@1": 4.0}, "square", f"{n}x{n} {n}x{n}") for size, n in both]
    write(rankings, "intel-amx-2c", *there)
    assert order_of(product(128)) == ("b.x@1", "a.x@1")
    write(rankings, "amd-avx512-2c", *here)
    assert order_of(product(128)) == ("a.x@1", "b.x@1") == order_of(product(8))
    write(rankings, "amd-avx512-2c", ("f32", 10, {"a.x@1": 1.0, "b.x@1": 1.01}, "square", "8x8 8x8"))
    assert order_of(product(128)) == ("b.x@1", "a.x@1")
    assert "intel-amx-2c, nearest entry matmul f32 128x128" in ranking.describe(product(128))


def test_general_libraries_come_last_where_nothing_was_measured(rankings: Path, as_on: Here) -> None:
    as_on("amd", "avx512", 2)
    write(rankings, "amd-avx512-2c")
    general, alone = Algorithm(library="numpy", name="matmul", scaled=True), Algorithm(library="openblas", name="gemm")
    assert ranking.sort(product(1000), [general, alone]) == [alone, general]


def test_entries_of_one_size_are_averaged(rankings: Path, as_on: Here) -> None:
    as_on("amd", "avx2", 2)
    write(rankings, "amd-avx2-2c", ("f32", 12, {"a.x@1": 1.0, "b.x@1": 2.0}), ("f32", 12, {"b.x@1": 2.0, "a.x@1": 16.0}))
    assert order_of(product(16)) == ("b.x@1", "a.x@1")


def test_a_dtype_that_is_missing_comes_from_the_next_class_that_has_it(rankings: Path, as_on: Here) -> None:
    import ml_dtypes

    as_on("amd", "avx512", 2)
    write(rankings, "amd-avx512-2c", ("f32", 20, {"openblas.gemm@1": 1.0, "mkl.gemm@1": 8.0}))
    write(rankings, "intel-amx-2c", ("bf16", 20, {"onednn.matmul@1": 1.0, "numpy.matmul@1": 8.0}))
    assert order_of(product(100))[0] == "openblas.gemm@1"
    halves = product(100, ml_dtypes.bfloat16)
    assert order_of(halves)[0] == "onednn.matmul@1" and "intel-amx-2c" in ranking.describe(halves)
    assert order_of(product(100, np.float64))[0] == "openblas.gemm@1"  # no class has it: another dtype of the nearest


def test_on_another_makers_processor_mkl_and_blis_are_expected_slower(rankings: Path, as_on: Here) -> None:
    write(rankings, "intel-amx-2c", ("f32", 20, {"mkl.gemm@1": 10.0, "openblas.gemm@1": 15.0}))
    for maker, first in (("intel", "mkl"), ("amd", "openblas"), ("other", "openblas")):
        as_on(maker, "avx512", 2)
        assert order_of(product(100))[0] == f"{first}.gemm@1"
    (rankings / "intel-amx-2c.json").unlink()
    write(rankings, "amd-avx512-2c", ("f32", 20, {"openblas.gemm@1": 10.0, "mkl.gemm@1": 15.0}))
    for maker, first in (("intel", "mkl"), ("amd", "openblas")):
        as_on(maker, "avx512", 2)
        assert order_of(product(100))[0] == f"{first}.gemm@1"
    write(rankings, "amd-avx512-2c", ("f32", 20, {"openblas.gemm@1": 10.0, "mkl.gemm@1": 13.0}))
    for instructions, first in (("avx512", "openblas"), ("avx2", "mkl")):  # with AVX2 alone they take the same instructions
        as_on("amd", instructions, 2)
        assert order_of(product(100))[0] == f"{first}.gemm@1"


def test_a_compiled_kernel_leads_only_where_none_was_measured(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    jit, plain = Algorithm(library="mkl", name="jit"), Algorithm(library="openblas", name="gemm")
    write(rankings, "intel-amx-2c", ("f32", 12, {"openblas.gemm@1": 1.0, "mkl.jit@1": 2.0}))
    assert ranking.sort(product(16), [jit, plain]) == [plain, jit]
    assert ranking.sooner(product(16), plain, {"mkl"}) == ""
    write(rankings, "intel-amx-2c", ("f32", 12, {"openblas.gemm@1": 1.0}))
    assert ranking.sort(product(16), [plain, jit]) == [jit, plain]
    assert ranking.sooner(product(16), plain, {"mkl"}) == "mkl"


def test_compiled_kernels_do_not_lead_on_large_problems(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    jit, divided = Algorithm(library="mkl", name="jit"), Algorithm(library="openblas", name="gemm_items", scaled=True)
    write(rankings, "intel-amx-2c", ("f32", 20, {"openblas.gemm_items@n": 1.0}, "batch", "500x8x8 500x8x8"))
    assert ranking.sort(batch(500, 8), [divided, jit]) == [jit, divided]
    assert ranking.sort(batch(500, 32), [jit, divided]) == [divided, jit]


def test_what_is_made_for_the_operation_leads_where_no_ranking_names_any_of_it(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    x = np.ones((64, 64))
    gelu = problem_of("nn.functional.gelu", x)
    loops, made = Algorithm(library="numpy", name="loops"), Algorithm(library="kernels", name="compiled")
    for times, first in (({"numpy.loops@1": 1.0}, made), ({"numpy.loops@1": 1.0, "kernels.compiled@n": 2.0}, loops)):
        write_entries(rankings, "intel-amx-2c", entry_of(gelu, times))
        assert ranking.sort(gelu, [loops, made])[0] is first
        assert ranking.leader(gelu, order_of(gelu)) == ("kernels" if first is made else "")


def test_without_avx512_batches_of_products_are_expected_to_cost_onednn_more(rankings: Path, as_on: Here) -> None:
    times = {"onednn.matmul@1": 10.0, "openblas.gemm@1": 15.0}
    batch = problem_of("matmul", np.ones((500, 8, 8), np.float32), np.ones((500, 8, 8), np.float32))
    write(rankings, "intel-amx-2c", ("f32", 19, times, "batch", "500x8x8 500x8x8"), ("f32", 20, times))
    for instructions, first in (("avx512", "onednn.matmul@1"), ("avx2", "openblas.gemm@1")):
        as_on("intel", instructions, 2)
        assert order_of(batch)[0] == first and order_of(product(100))[0] == "onednn.matmul@1"


def test_memory_bounds_what_another_makers_processor_costs(rankings: Path, as_on: Here) -> None:
    as_on("amd", "avx512", 2)
    times = {"mkl.gemv@1": 10.0, "openblas.gemv@1": 15.0}
    write(rankings, "intel-amx-2c", ("f32", 12, times, "gemv", "45x45 45x1"))
    assert order_of(problem_of("matmul", np.ones((45, 45), np.float32), np.ones((45, 1), np.float32)))[0] == "mkl.gemv@1"
    write(rankings, "intel-amx-2c", ("f32", 20, {key.replace("gemv", "gemm"): t for key, t in times.items()}))
    assert order_of(product(100))[0] == "openblas.gemm@1"


def test_on_another_class_all_threads_are_expected_to_bring_a_little_more(rankings: Path, as_on: Here) -> None:
    times = {"openblas.gemm@1": 10.0, "openblas.gemm@n": 11.0}
    write(rankings, "intel-amx-2c", ("f32", 12, times), ("f32", 24, times))
    for cores, first in ((2, "@1"), (4, "@n")):
        as_on("intel", "amx", cores)
        assert order_of(product(16))[0] == "openblas.gemm@1" and order_of(product(200))[0] == f"openblas.gemm{first}"


def test_a_class_of_shapes_is_nearer_to_one_of_the_same_kind(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    like, other = {"a.x@1": 1.0, "b.x@1": 4.0}, {"b.x@1": 1.0, "a.x@1": 4.0}
    for names, first in ((("batch of one", "thin"), "a.x@1"), (("thin", "batch of one"), "b.x@1")):
        shapes = "100x100 100x100", "100x101 101x100"
        entries = [("f32", 20, times, *kind) for times, *kind in zip((like, other), names, shapes, strict=True)]
        write(rankings, "intel-amx-2c", *entries)
        assert order_of(batch(64, 20))[0] == first


def test_small_products_of_16_bit_floats_take_what_float32_takes(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    write(rankings, "intel-amx-2c", ("f32", 10, {"openblas.gemm@1": 1.0, "onednn.matmul@1": 2.0}))
    converted, own = Algorithm(library="openblas", name="gemm_f32"), Algorithm(library="onednn", name="matmul")
    assert ranking.sort(product(8, np.float16), [own, converted]) == [converted, own]
    assert ranking.sort(product(200, np.float16), [converted, own]) == [own, converted]
    halves = {"onednn.matmul@1": 1.0, "openblas.gemm_f32@1": 2.0}
    write(rankings, "intel-amx-2c", ("f32", 10, {"openblas.gemm@1": 1.0}), ("f16", 10, halves))
    assert ranking.sort(product(8, np.float16), [converted, own]) == [own, converted]


def test_what_another_class_cannot_compute_in_float16_takes_what_it_took_in_bfloat16(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    both = {"numpy.matmul@1": 100.0, "onednn.matmul@1": 20.0}
    write(rankings, "amd-avx512-2c", ("f16", 24, {"numpy.matmul@1": 100.0}), ("bf16", 24, both))
    assert order_of(product(200, np.float16)) == ("onednn.matmul@1", "numpy.matmul@1")
    write(rankings, "amd-avx512-2c", ("f16", 24, {"numpy.matmul@1": 100.0, "onednn.matmul@1": 300.0}), ("bf16", 24, both))
    assert order_of(product(200, np.float16)) == ("numpy.matmul@1", "onednn.matmul@1")
    as_on("amd", "avx512", 2)  # its own measurements are not added to
    write(rankings, "amd-avx512-2c", ("f16", 24, {"numpy.matmul@1": 100.0}), ("bf16", 24, both))
    assert order_of(product(200, np.float16)) == ("numpy.matmul@1",)


@pytest.mark.parametrize(("instructions", "first"), [("amx", "onednn.matmul@1"), ("avx512", "openblas.gemm_f32@1")])
def test_amx_is_expected_to_help_in_bfloat16(instructions: str, first: str, rankings: Path, as_on: Here) -> None:
    as_on("intel", instructions, 2)
    write(rankings, "amd-avx512-2c", ("bf16", 24, {"openblas.gemm_f32@1": 1.0, "onednn.matmul@1": 1.1}))
    assert order_of(product(200, dtype_of("bfloat16")))[0] == first


def test_what_was_very_slow_nearby_is_not_chosen(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    steady, changing = {"a.x@1": 1.0, "b.x@1": 2.1}, {"b.x@1": 1.0, "a.x@1": 2.0}  # of a the logarithms have the lesser mean
    shapes = [("square", f"{n}x16 16x16") for n in (16, 17)]
    write(rankings, "intel-amx-2c", *[("f32", 13, t, *kind) for t, kind in zip((steady, changing), shapes, strict=True)])
    assert order_of(product(16))[0] == "a.x@1"
    rare, often = {"a.x@1": 1.0, "b.x@1": 1.3}, {"b.x@1": 1.0, "a.x@1": 8.0}
    shapes = [("square", f"{16 + n / 100}x16 16x16") for n in range(10)]
    write(rankings, "intel-amx-2c", *[("f32", 13, often if n == 9 else rare, *kind) for n, kind in enumerate(shapes)])
    assert order_of(product(16))[0] == "b.x@1"


def test_what_reduces_precision_loads_no_library_unless_permitted(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    times = {"onednn.bf16@n": 1.0, "onednn.nhwc_bf16@1": 1.5, "mkl.gemm@n": 2.0, "onednn.matmul@n": 3.0}
    write(rankings, "intel-amx-2c", ("f32", 20, times))
    chosen = Algorithm(library="mkl", name="gemm", scaled=True)
    assert ranking.sooner(product(100), chosen, {"onednn"}) == ""
    assert ranking.sooner(product(100), chosen, {"onednn"}, reduced=True) == "onednn"


def test_of_unknown_operations_the_libraries_order_decides(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    write(rankings, "intel-amx-2c")
    assert order_of(product(8)) == () and ranking.describe(product(8)).startswith("order of the libraries")


def test_a_file_of_an_earlier_version_is_read_under_the_names_of_now(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    old = {
        "numpy.compiled@1": 1.0,
        "mkl.depthwise@n": 2.0,
        "onednn.nhwc@n": 3.0,
        "blis.depthwise@n": 4.0,
        "openblas.depthwise@1": 5.0,
    }
    write(rankings, "intel-amx-2c", ("f32", 20, old))
    (entry,) = ranking_files.shipped().entries()
    assert entry["order"] == ["kernels.compiled@1", "kernels.depthwise@n", "onednn.nhwc@n", "kernels.depthwise@1"]
    assert entry["microseconds"] == [1.0, 2.0, 3.0, 5.0]


def test_what_was_measured_on_large_problems_alone_does_not_lead_on_small_ones(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    small, large = {"openblas.gemm@1": 0.2}, {"openblas.gemm@n": 4.0, "openblas.gemm@1": 6.0}
    write(
        rankings,
        "intel-amx-2c",
        ("f32", 10, small),
        ("f32", 19, large),
        ("f32", 22, {"openblas.gemm@n": 30.0, "openblas.gemm@1": 50.0}),
    )
    assert order_of(product(8)) == ("openblas.gemm@1", "openblas.gemm@n")
    assert order_of(product(64)) == ("openblas.gemm@n", "openblas.gemm@1")


def test_libraries_that_nothing_was_measured_of_come_in_the_order_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(intel: bool) -> str:
        monkeypatch.setattr(ranking, "by_intel", lambda: intel)
        able = [Algorithm(library=name, name="orgqr", level="run", basis="measured") for name in ("numpy", "openblas", "mkl")]
        return min(able, key=lambda a: ranking.place(a, (), False)).library

    assert (first(True), first(False)) == ("mkl", "openblas")


def test_few_rows_lead_where_they_are_large_or_of_16_bits() -> None:
    order = ("mkl.gemv@1", "openblas.gemv@1")
    for large, precision, leads in ((False, "", False), (True, "", True), (False, "f32 accumulation", True)):
        loop = Algorithm(library="kernels", name="few_rows", level="threads", basis="construction", precision=precision)
        assert (ranking.place(loop, order, large)[0] == -1) == leads


def test_what_no_entry_names_on_all_threads_takes_the_place_of_one(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    write(rankings, "intel-amx-2c", ("f32", 24, {"mkl.trsm@1": 10.0, "blis.trsm@1": 20.0, "blis.trsm@n": 15.0}))
    problem = product(200)
    threaded, items, other = (
        Algorithm(library=library, name=name, scaled=True)
        for library, name in (("mkl", "trsm"), ("mkl", "trsm_items"), ("blis", "trsm"))
    )
    assert ranking.sort(problem, [other, threaded]) == [threaded, other]
    assert ranking.sort(problem, [other, items]) == [items, other]
    assert ranking.named("mkl.trsm_items@n", order_of(problem)) == "mkl.trsm@1"
    assert ranking.named("openblas.trsm@n", order_of(problem)) == "openblas.trsm@n"  # nothing of it was measured


def test_gains_of_threads_on_another_class_are_nearer_to_the_usual_ones(rankings: Path, as_on: Here) -> None:
    usual = {"a.x@1": 8.0, "a.x@n": 5.0, "b.x@1": 7.0}
    shapes = [(22 + n / 8, usual, "square", f"{60 + n}x64 64x64") for n in range(6)]
    strange = (23.0, {"a.x@1": 8.0, "a.x@n": 16.0, "b.x@1": 7.0}, "square", "200x200 200x200")
    write(rankings, "intel-amx-2c", *[("f32", *entry) for entry in (*shapes, strange)])
    as_on("intel", "amx", 2)
    assert order_of(product(200))[0] == "b.x@1"
    as_on("intel", "amx", 8)
    assert order_of(product(200))[0] == "a.x@n"


def test_factorizations_are_not_expected_to_gain_from_threads_of_another_class(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 8)
    times = {"openblas.potrf@1": 10.0, "openblas.potrf@n": 10.5}
    write(rankings, "intel-amx-2c", ("f32", 24, times))
    product_first = order_of(product(200))[0]
    text = (rankings / "intel-amx-2c.json").read_text().replace('"op": "matmul"', '"op": "linalg.cholesky"')
    (rankings / "intel-amx-2c.json").write_text(text)
    forget()
    factorization = problem_of("linalg.cholesky", np.eye(300, dtype=np.float32))
    assert (product_first, order_of(factorization)[0]) == ("openblas.potrf@n", "openblas.potrf@1")


def test_threads_that_were_not_asked_for_are_taken_to_bring_nothing(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    write(
        rankings, "intel-amx-2c",
        ("f32", 14, {"a.x@1": 1.0, "b.x@1": 4.0}, "square", "20x20 20x20"),
        ("f32", 30, {"a.x@n": 50.0, "b.x@n": 52.0, "a.x@1": 100.0, "b.x@1": 110.0}, "square", "800x800 800x800"),
    )  # fmt: skip
    assert order_of(product(20)) == ("a.x@1", "a.x@n", "b.x@1", "b.x@n")


def test_what_was_not_worth_measuring_on_one_thread_is_slower_than_others_on_one(rankings: Path, as_on: Here) -> None:
    as_on("intel", "amx", 2)
    near, far = {"a.x@n": 1.0, "a.x@1": 4.0}, {"a.x@1": 1.0, "b.x@1": 1.1}
    write(
        rankings,
        "intel-amx-2c",
        ("f32", 20, near, "square", "80x80 80x80"),
        ("f32", 26, far, "square", "320x320 320x320"),
    )
    assert order_of(product(80)).index("b.x@1") > order_of(product(80)).index("a.x@1")


def test_recurrent_layers_with_a_batch_of_one_are_bound_by_memory(rankings: Path, as_on: Here) -> None:
    as_on("amd", "avx512", 2)
    times = {"mkl.steps@1": 10.0, "openblas.steps@1": 15.0}
    for shape_class, first in (("one", "mkl"), ("", "openblas")):
        entry = {"op": "lstm", "dtype": "f32", "class": shape_class, "size": 20, "example": "lstm f32 8x1x64"}
        entry |= {"order": list(times), "microseconds": list(times.values())}
        write_entries(rankings, "intel-amx-2c", entry)
        order = predicted_times.order_of(Place("lstm", "f32", shape_class, 20.0, (3.0, 0.0, 6.0)), own=False)
        assert order[0] == f"{first}.steps@1"


@pytest.mark.parametrize(("asked", "near", "far"), [
    ("fft.fft c128 997", "fft.fft c128 1009", "fft.fft c128 1001"),  # a prime, 7 x 11 x 13
    ("fft.rfft f64 999", "fft.rfft f64 1001", "fft.rfft f64 1000"),  # odd, even
    ("fft.fftn c128 60x62", "fft.fftn c128 60x58", "fft.fftn c128 58x60"),  # the prime of the last length, of the other one
    ("fft.fftn c128 48x57", "fft.fftn c128 64x51", "fft.fftn c128 63x51"),  # a power of two
])  # fmt: skip
def test_transforms_are_nearer_to_those_of_lengths_with_like_factors(
    rankings: Path, as_on: Here, asked: str, near: str, far: str
) -> None:
    as_on("intel", "amx", 2)
    like, other = {"a.x@1": 1.0, "b.x@1": 2.0}, {"b.x@1": 1.0, "a.x@1": 2.0}
    for first, times in (("a.x@1", (like, other)), ("b.x@1", (other, like))):
        entries = (entry_of(Problem.parse(key), each) for key, each in zip((near, far), times, strict=True))
        write_entries(rankings, "intel-amx-2c", *entries)
        assert predicted_times.order_of(Problem.parse(asked).place(), own=False)[0] == first


def test_convolutions_that_another_class_did_not_measure_are_expected_by_the_factors_of_the_length(
    rankings: Path, as_on: Here
) -> None:
    as_on("amd", "avx2", 2)

    def entry(length: int, more: dict[str, float]) -> dict[str, Any]:
        return entry_of(Problem.parse(f"fft.rfft f64 {length}"), {"mkl.dfti@1": 10.0, "fftw.estimate@1": 25.0, **more})

    def order(length: int, *entries: dict[str, Any]) -> tuple[str, ...]:
        write_entries(rankings, "intel-amx-2c", *entries)
        return predicted_times.order_of(Problem.parse(f"fft.rfft f64 {length}").place(), own=False)

    odd, even, smooth = 1009, 2018, 1024  # the first a prime, the second twice that
    assert order(odd, entry(odd, {}))[0] == "mkl.dfti_chirp@1"
    assert order(even, entry(even, {}))[0] == "mkl.dfti@1" and "mkl.dfti_chirp@1" in order(even, entry(even, {}))
    assert "mkl.dfti_chirp@1" not in order(smooth, entry(smooth, {}))
    assert order(odd, entry(odd, {"mkl.dfti_chirp@1": 40.0}))[0] == "mkl.dfti@1"  # what was measured counts
    refused = {**entry(odd, {}), "order": ["mkl.dfti_double@1", "fftw.estimate@1"], "microseconds": [20.0, 30.0]}
    assert order(odd, refused)[0] == "mkl.dfti_chirp@1"


@pytest.mark.parametrize("processors", ranking_files._classes(), ids=str)
def test_no_problem_is_ranked_twice(processors: ProcessorClass) -> None:
    keys = [entry["example"] for entry in ranking_files._read(processors).entries()]
    assert keys and len(keys) == len(set(keys))


def test_transforms_of_ours_lead_only_where_they_were_measured() -> None:
    ours, other = Algorithm(library="kernels", name="mixed_radix"), Algorithm(library="mkl", name="dfti")
    for large in (False, True):
        assert ranking.place(ours, ("mkl.dfti@1",), large) > ranking.place(other, ("mkl.dfti@1",), large)
        both = ("kernels.mixed_radix@1", "mkl.dfti@1")
        assert ranking.place(ours, both, large) < ranking.place(other, both, large)


@pytest.mark.parametrize(("instructions", "ours", "first"), [
    ("avx512", 4.0, "kernels.mixed_radix@1"),
    ("avx512", 9.0, "kernels.mixed_radix@1"),
    ("avx2", 9.0, "fftw.estimate@1"),  # lanes are half as many
    ("avx512", 12.0, "fftw.estimate@1"),
])  # fmt: skip
def test_what_a_ranking_was_made_without_takes_beside_the_others_what_it_took_on_the_next_class(
    rankings: Path, as_on: Here, instructions: str, ours: float, first: str
) -> None:
    as_on("amd", instructions, 2)
    problem = Problem.parse("fft.fft c128 53x79")
    own = {"fftw.estimate@1": 10.0, "scipy.c2c@1": 20.0}
    write_entries(rankings, f"amd-{instructions}-2c", entry_of(problem, own))
    elsewhere = {"kernels.mixed_radix@1": 10 * ours, "fftw.estimate@1": 100.0, "scipy.c2c@1": 200.0}
    write_entries(rankings, "intel-amx-2c", entry_of(problem, elsewhere))
    order = predicted_times.order_of(problem.place(), own=False)
    assert order[0] == first and set(order) == {*own, "kernels.mixed_radix@1"} and order[-1] == "scipy.c2c@1"
    # What was measured on this class counts.
    write_entries(rankings, f"amd-{instructions}-2c", entry_of(problem, own | {"kernels.mixed_radix@1": 30.0}))
    assert predicted_times.order_of(problem.place(), own=False)[-1] == "kernels.mixed_radix@1"


def test_what_a_ranking_takes_from_another_is_in_proportion_to_what_both_have(rankings: Path, as_on: Here) -> None:
    as_on("amd", "avx512", 2)
    problems = [Problem.parse(f"fft.fft c128 {lines}x{n}") for lines in (20, 50) for n in (26, 35, 51, 65, 77, 91)]
    own = {"fftw.estimate@1": 10.0, "scipy.c2c@1": 20.0}
    write_entries(rankings, "amd-avx512-2c", *(entry_of(p, own) for p in problems))
    elsewhere = {"kernels.mixed_radix@1": 8.0, "fftw.estimate@1": 20.0, "scipy.c2c@1": 40.0}
    write_entries(rankings, "intel-amx-2c", *(entry_of(p, elsewhere) for p in problems))
    expected = predicted_times.times_of(problems[0].place())
    assert expected["kernels.mixed_radix@1"] / expected["fftw.estimate@1"] == pytest.approx(0.4)
