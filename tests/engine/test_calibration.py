"""Calibration: what is measured, what is measured again, and that it decides about other shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import backline
from backline.engine import calibration, predicted_times, ranking, ranking_files
from backline.engine.choose import eligible
from backline.engine.ranking import order_of
from backline.engine.tuning import designed_problems, record_store
from backline.engine.tuning.record import TuningRecord, parse
from backline.native.machine import fingerprint
from backline.problems import Problem
from support import clean, problem_of

pytestmark = pytest.mark.usefixtures("clean")
assert clean


def product(n: int) -> Problem:
    x = np.ones((n, n), np.float32)
    return problem_of("mm", x, x)


def record_of(problem: Problem, times: dict[str, float], **fields: Any) -> TuningRecord:
    return TuningRecord(
        problem.key, 2, medians=times, minima=times, place=str(problem.place()), machine=fingerprint(),
        created="2026-11-23T03:00:00.000000Z", covered=tuple(times), **fields,
    )  # fmt: skip


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Three small products are all that is to be measured."""
    sizes = [48, 8, 24]
    monkeypatch.setattr(calibration, "SHARES", {"products": 2})
    monkeypatch.setattr(designed_problems, "problems", lambda part: (product(n) for n in sizes))
    yield sizes


def test_coarse_first_and_the_parts_in_turn() -> None:
    found = list(calibration._in_turn(1e7))
    assert {part for part, _ in found} == set(calibration.SHARES) == set(designed_problems.PARTS)
    assert all(p.flops <= 1e7 for _, p in found) and len({p.key for _, p in found}) == len(found)
    assert {part for part, _ in found[: sum(calibration.SHARES.values())]} == set(calibration.SHARES)
    for part in calibration.SHARES:
        problems = [p for its, p in found if its == part]
        first = problems[: len({p.place()[:2] for p in problems})]
        assert len({p.place()[:2] for p in first}) >= 0.5 * len(first), "other operations and dtypes come before other sizes"
    order = calibration._coarse_first([product(n) for n in (8, 16, 24, 32, 48, 64, 96)])
    assert [p.m for p in order] == [32, 16, 64, 8, 24, 48, 96]


def test_what_was_measured_is_kept_and_not_measured_again(few: list[int]) -> None:
    seen: list[str] = []
    done = calibration.calibrate(60.0, progress=lambda number, total, text: seen.append(f"{number}/{total} {text}"))
    assert done.measured == 3 and done.known == done.left == 0 and len(done.gains["products"]) == 3
    assert seen[0].startswith("0/3 matmul f32 24x24") and seen[2].startswith("2/3 matmul f32 48x48")
    for record in done.records["products"].values():
        found = record_store.find_key(record.key, record.threads)
        assert found is not None and found.medians and found.place.startswith("matmul|f32|square|")
        assert parse(found.line()) == found
    quiet = 3 - len(done.disturbed)
    more = calibration.calibrate(60.0)
    assert more.known >= quiet and more.measured == 3 - more.known
    assert calibration.calibrate(60.0, again=True).measured == 3


def test_without_time_nothing_is_measured_and_all_is_left(few: list[int]) -> None:
    done = calibration.calibrate(1e-2)
    assert done.measured + done.left <= 3 and done.measured <= 1


def test_an_interrupted_run_keeps_what_it_measured(few: list[int]) -> None:
    def stop(number: int, total: int, text: str) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibration.calibrate(60.0, progress=stop)
    kept = [record_store.find(product(n), backline.get_num_threads()) for n in (24, 8, 48)]
    assert kept[0] is not None and kept[1] is not None and kept[2] is None


def test_what_was_measured_here_decides_about_other_shapes() -> None:
    problem = product(100)
    able = eligible(problem, 2)
    order = ranking.sort(problem, able)
    last = next(a for a in reversed(order) if a.scaled and a.key in order_of(problem))
    times = {a.key: 1e-3 for a in order} | {last.key: 1e-9}
    record_store.keep_all([record_of(product(90), times), record_of(product(120), times)], file=False)
    assert ranking.sort(problem, able)[0].key == last.key
    assert ranking.sort(problem, able, own=False)[0].key == order[0].key
    choice = backline.explain(backline.mm, np.ones((100, 100), np.float32), np.ones((100, 100), np.float32))
    assert f"{choice.library}.{choice.algorithm}" == last.key.partition("@")[0]
    assert choice.basis.startswith("2 problems like it measured on this machine")
    with backline.backends.flags(deterministic=True):
        choice = backline.explain(backline.mm, np.ones((100, 100), np.float32), np.ones((100, 100), np.float32))
    assert "measured on this machine" not in choice.basis


def test_times_of_a_busy_machine_and_of_fewer_threads_do_not_count() -> None:
    problem = product(100)
    before = order_of(problem)
    times = dict.fromkeys(before, 0.001) | {before[-1]: 1e-9}
    record_store.keep(record_of(product(90), times, disturbed="the load average was 9"), file=False)
    assert order_of(problem) == before
    alone = {key: t for key, t in times.items() if key.endswith("@n")}
    few = TuningRecord(
        product(90).key,
        1,
        medians=alone,
        place=str(product(90).place()),
        machine=fingerprint(),
        created="2026-11-23T04:00:00.000000Z",
    )
    record_store.keep_all([record_of(product(80), {before[0]: 1e-5})], file=False)
    known = order_of(problem)
    record_store.keep_all([few], file=False)
    assert order_of(problem) == known


def test_what_was_measured_here_corrects_what_was_not() -> None:
    n, far = 100, 1500
    able = eligible(product(far), 2)
    before = [key for key in order_of(product(far)) if key in {a.key for a in able}]
    slow = before[0].partition(".")[0]
    others = [key for key in before if not key.startswith(f"{slow}.")]
    # Everything of one library takes 30 times as long here as the others' times let expect.
    measured = {key: (30.0 if key.startswith(f"{slow}.") else 1.0) * 1e-3 for key in order_of(product(n))}
    ranked = ranking_files.measured(ranking_files.shipped().processors, "matmul", "f32")  # what both measured tells the ratio
    near = [m for m in ranked if m.place.shape_class == "square" and abs(m.place.work - product(n).place().work) < 3]
    assert len(near) > 3
    record_store.keep_all([record_of(Problem.parse(m.key), measured) for m in near], file=False)
    assert order_of(product(far))[0].partition(".")[0] != slow and others


def test_a_record_of_one_operation_leaves_what_is_known_of_the_others() -> None:
    problem, other = product(90), problem_of("linalg.cholesky", np.eye(90, dtype=np.float32))

    def known(p: Problem) -> Any:
        return predicted_times._near(ranking_files.here(), p.place(), record_store.generation())[0]

    before = known(problem), known(other)
    record_store.keep_all([record_of(problem, {"mkl.gemm@1": 1e-6})], file=False)
    assert known(problem) is not before[0] and known(other) is before[1] is not None


def test_a_record_without_an_algorithm_says_nothing_about_it() -> None:
    first, *rest = order_of(product(100))
    record_store.keep(record_of(product(100), dict.fromkeys(rest[:3], 1e-3)), file=False)
    assert order_of(product(100))[0] == first


def test_a_record_whose_key_is_no_transform_harms_no_transform() -> None:
    transform = Problem.parse("fft.fft c128 1000")
    before = order_of(transform)
    broken = record_of(Problem.parse("fft.fft c128 64"), dict.fromkeys(before[:2], 1e-3))
    record_store.keep_all([replace(broken, key=key) for key in ("nonsense", "fft.fft c128", "fft.fft c128 4x4 dim=9")], file=False)
    assert set(order_of(transform)) == set(before)


def test_implausible_times_are_told() -> None:
    large, small = product(200), product(20)
    sound = record_of(large, {"mkl.gemm@1": 4e-4, "mkl.gemm@n": 2e-4})
    assert not calibration.implausible(large, sound, [sound])
    assert calibration.implausible(large, record_of(large, {"mkl.gemm@1": 4e-4, "mkl.gemm@n": 2e-3}), [])
    assert calibration.implausible(large, record_of(large, {"mkl.gemm@1": 4e-4}, disturbed="busy"), [])
    assert calibration.implausible(small, record_of(small, {"mkl.gemm@1": 4e-3}), [sound])
    assert not calibration.implausible(small, record_of(small, {"mkl.gemm@1": 4e-5, "mkl.gemm@n": 4e-3}), [])
    assert not calibration.implausible(small, record_of(small, {"openblas.gemm@1": 4e-3}), [sound])


@pytest.mark.parametrize("length, expected", [(1024, True), (1009, False)])
def test_times_of_transforms_are_compared_where_their_factors_are_alike(length: int, expected: bool) -> None:
    larger, smaller = Problem.parse("fft.fft c128 4096"), Problem.parse(f"fft.fft c128 {length}")
    others = [record_of(larger, {"mkl.dfti@1": 1e-5})]
    assert calibration.implausible(smaller, record_of(smaller, {"mkl.dfti@1": 1e-4}), others) == expected


def test_of_two_measurements_the_lesser_times_stay() -> None:
    problem = product(200)
    able = eligible(problem, 2)
    one = record_of(problem, {"mkl.gemm@1": 4e-4, "openblas.gemm@1": 9e-4})
    two = record_of(problem, {"mkl.gemm@1": 5e-4, "openblas.gemm@1": 3e-4})
    assert dict(calibration.least(two, one, able).medians) == {"mkl.gemm@1": 4e-4, "openblas.gemm@1": 3e-4}
    busy = record_of(problem, {"mkl.gemm@1": 1e-9}, disturbed="busy")
    assert calibration.least(busy, one, able) is one and calibration.least(two, busy, able) is two


def test_an_order_far_from_the_shipped_one_is_measured_again(few: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first measurement of each problem has the shipped ranking's first choice take ten times as long as it does."""
    seen: dict[str, int] = {}

    def measured(problem: Problem, candidates: list[Any], threads: int, **_: Any) -> TuningRecord:
        seen[problem.key] = seen.get(problem.key, 0) + 1
        times = {a.key: 2e-3 for a in candidates} | {candidates[0].key: 1e-2 if seen[problem.key] == 1 else 1e-3}
        return record_of(problem, times)

    monkeypatch.setattr(calibration, "measure_problem", measured)
    monkeypatch.setattr(calibration.ranking, "sort", lambda problem, algorithms, own=True: algorithms)
    done = calibration.calibrate(60.0)
    assert done.repeated == 3 and set(seen.values()) == {2}
    assert all(min(r.medians.values()) == 1e-3 for r in done.records["products"].values())


def test_what_the_ranking_of_the_class_says_nearer_by_outweighs_one_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product was measured here with the order of its class turned round: far from it, in any dimension, the class's order stays."""
    shapes = [(n, m) for n in (64, 256, 1024) for m in (64, 256, 1024)]

    def wide(rows: int, columns: int) -> Problem:
        return problem_of("mm", np.ones((rows, 64), np.float32), np.ones((64, columns), np.float32))

    here = ranking_files.here()
    listed = tuple(
        ranking_files.Measured(wide(*shape).key, wide(*shape).place(), {"mkl.gemm@1": 1.0, "openblas.gemm@1": 1.5}) for shape in shapes
    )  # fmt: skip
    monkeypatch.setattr(ranking_files, "nearest_classes", lambda *_: (here,))
    monkeypatch.setattr(ranking_files, "measured", lambda processors, op, dtype="": listed if op == "matmul" else ())
    for cache in (predicted_times._points, predicted_times._ordered):
        cache.cache_clear()
    try:
        turned = {"mkl.gemm@1": 2e-3, "openblas.gemm@1": 1e-3}
        record_store.keep(record_of(wide(64, 1024), turned), file=False)
        for shape in ((300, 80), (900, 900), (70, 70), (1000, 60)):
            assert order_of(wide(*shape))[0] == "mkl.gemm@1", shape
        assert order_of(wide(64, 1024))[0] == order_of(wide(66, 1000))[0] == "openblas.gemm@1"
    finally:
        for cache in (predicted_times._points, predicted_times._ordered):
            cache.cache_clear()
