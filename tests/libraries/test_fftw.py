"""FFTW: right for every layout, planned as asked and in bounded time, its wisdom kept whole or not at all, and freed."""

import gc
import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from fft_cases import DTYPES, SHAPES, allowed, arrays_like, check_layouts, check_outputs, error, plans_of, problem, wanted

import processes
from backline import backends, libraries
from backline.errors import BackendUnavailable, BadType, BadValue
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.fftw import wisdom
from backline.libraries.fftw.planner import Planner
from support import python

fftw = libraries.get("fftw")
pytestmark = pytest.mark.skipif(not fftw.available(), reason="FFTW is not installed")


@pytest.fixture(autouse=True)
def nothing_learned():
    fftw.forget_wisdom()
    yield
    fftw.forget_wisdom()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_every_operation_layout_and_length(dtype, shape, axes):
    check_layouts(fftw, dtype, shape, axes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_output_of_any_layout(dtype):
    check_outputs(fftw, dtype)


@pytest.mark.parametrize("power", range(10, 21, 2))
@pytest.mark.parametrize("op", ["c2c", "r2c", "c2r"])
def test_accuracy(power, op):
    n = 1 << power
    x = arrays_like((n if op != "c2r" else n // 2 + 1,), "float32" if op == "r2c" else "complex64")["C"]
    p = problem(op, x, scale=1 / n)
    wide = x.astype(np.float64 if op == "r2c" else np.complex128)
    reference = {"c2c": lambda: np.fft.fft(wide), "r2c": lambda: np.fft.rfft(wide), "c2r": lambda: np.fft.irfft(wide, n) * n}[op]()
    for a, plan in plans_of(fftw, p):
        assert error(plan(x), reference / n) <= allowed(p), a.key


@pytest.mark.parametrize("kind", ["dct1", "dct2", "dct3", "dct4", "dst1", "dst2", "dst3", "dst4"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ortho", [False, True])
def test_cosine_and_sine_transforms(kind, dtype, ortho):
    numpy = libraries.get("numpy")
    for shape, axes in (((8,), (0,)), ((3, 7), (1,)), ((6, 4, 5), (0, 2))):
        for name, x in arrays_like(shape, dtype).items():
            for extra in (0, 2) if name in ("C", "backwards") else (0,):
                lengths = [shape[a] + extra for a in axes]
                p = problem("r2r", x, axes, lengths, scale=0.5, kind=kind, ortho=ortho)
                wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
                q = problem("r2r", wide, axes, lengths, scale=0.5, kind=kind, ortho=ortho)
                reference = numpy.prepare(q, next(iter(numpy.algorithms(q, 1))))(wide)
                before = x.copy()
                for a, plan in plans_of(fftw, p):
                    got = plan(x)
                    assert got.shape == p.result and got.dtype == x.dtype and np.array_equal(before, x)
                    assert error(got, reference) <= 3 * np.finfo(p.real).eps, (a.key, kind, name, shape)


def test_arrays_that_begin_anywhere_have_a_plan_of_their_own():
    x = arrays_like((4096,), "complex64")["C"]
    p = problem("c2c", x)
    _, plan = plans_of(fftw, p, 1)[-1]
    for offset in (0, 8, 16, 24):
        block = np.empty(x.nbytes + 128, np.uint8)
        begin = (-block.ctypes.data) % 64 + offset
        there = block[begin : begin + x.nbytes].view(np.complex64)
        there[...] = x
        assert error(plan(there), wanted(p, x)) <= allowed(p)


class TestPlanning:
    def test_estimate_unless_asked(self):
        x = np.ones(512, np.complex64)
        found = [a for a in fftw.algorithms(problem("c2c", x), 2) if isinstance(a, Algorithm)]
        assert [(a.key, a.level) for a in found] == [("fftw.estimate@1", "threads")]

    @pytest.mark.parametrize("planning", ["measure", "patient"])
    def test_by_timing(self, planning):
        x = arrays_like((512,), "complex64")["C"]
        p = problem("c2c", x)
        with backends.fftw.flags(planning=planning, plan_time_limit=2.0):
            found = [a for a in fftw.algorithms(p, 1) if isinstance(a, Algorithm)]
            assert [(a.key, a.level) for a in found] == [(f"fftw.{planning}@1", "off"), ("fftw.estimate@1", "threads")]
            for a in found:
                assert error(fftw.prepare(p, a)(x), wanted(p, x)) <= allowed(p)

    def test_time_is_bounded(self):
        x = np.ones((64, 20011), np.complex128)
        p = problem("c2c", x)
        with backends.fftw.flags(planning="patient", plan_time_limit=0.2):
            begin = time.perf_counter()
            fftw.prepare(p, Algorithm(library="fftw", name="patient"))
            assert time.perf_counter() - begin < 20  # without a limit it is minutes

    def test_estimate_does_not_depend_on_what_was_timed(self):
        x = arrays_like((3, 1000), "complex64")["C"]
        p = problem("c2c", x)
        before = plans_of(fftw, p, 1)[-1][1](x).tobytes()
        with backends.fftw.flags(planning="measure"):
            fftw.prepare(p, Algorithm(library="fftw", name="measure"))(x)
        assert fftw.prepare(p, Algorithm(library="fftw", name="estimate"))(x).tobytes() == before

    def test_wisdom_is_used_where_it_is(self):
        x = arrays_like((512,), "complex64")["C"]
        p = problem("c2c", x)
        with backends.fftw.flags(planning="measure"):
            fftw.prepare(p, Algorithm(library="fftw", name="measure"))
        keys = [a.key for a in fftw.algorithms(p, 1)]
        assert keys == ["fftw.measure@1", "fftw.estimate@1"]
        other = problem("c2c", np.ones(509, np.complex64))
        assert [a.key for a in fftw.algorithms(other, 1)] == ["fftw.estimate@1"]

    def test_illegal_values(self):
        with pytest.raises(BadValue, match="planning"):
            backends.fftw.planning = "exhaustive"
        with pytest.raises(BadValue, match="plan_time_limit"):
            backends.fftw.plan_time_limit = -1.0


class TestWisdom:
    @pytest.fixture
    def file(self, tmp_path):
        with backends.fftw.flags(planning="measure"):
            for dtype in (np.complex64, np.complex128):
                fftw.prepare(problem("c2c", np.ones(256, dtype)), Algorithm(library="fftw", name="measure"))
        path = tmp_path / "wisdom"
        backends.fftw.export_wisdom(path)
        return path

    def test_comes_back(self, file):
        fftw.forget_wisdom()
        p = problem("c2c", np.ones(256, np.complex64))
        assert [a.key for a in fftw.algorithms(p, 1)] == ["fftw.estimate@1"]
        backends.fftw.import_wisdom(file)
        assert [a.key for a in fftw.algorithms(p, 1)] == ["fftw.measure@1", "fftw.estimate@1"]
        assert os.listdir(file.parent) == ["wisdom"]

    @pytest.mark.parametrize("damage", [
        lambda t: t[: len(t) // 2], lambda t: "", lambda t: t + "(", lambda t: t.replace("#x", "#y", 1),
        lambda t: "#!/bin/sh\n" + t, lambda t: t.replace("wisdom", "wisdom)", 1), lambda t: t + t, lambda t: t + "\0",
        lambda t: t.replace("fftw-3.3", "fftw-2.1"), lambda t: t.replace("fftwf_wisdom", "fftwl_wisdom"), lambda t: "\xff" + t,
    ])  # fmt: skip
    def test_damaged_or_foreign(self, file, damage):
        before = fftw.export_wisdom()
        file.write_text(damage(file.read_text()), encoding="latin-1")
        with pytest.raises(BadValue, match="wisdom"):
            backends.fftw.import_wisdom(file)
        assert fftw.export_wisdom() == before

    def test_of_another_build_nothing_is_learned(self, file):
        text = file.read_text()
        fftw.forget_wisdom()
        # The numbers behind the head tell builds apart; the second block is changed, the first would be accepted.
        at = text.rindex("_wisdom #x") + len("_wisdom #x")
        file.write_text(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :])
        with pytest.raises(BadValue, match="FFTW 3"):
            backends.fftw.import_wisdom(file)
        assert fftw.export_wisdom() == ""

    def test_nothing_to_write(self, tmp_path):
        with pytest.raises(BadValue, match="nothing to write"):
            backends.fftw.export_wisdom(tmp_path / "wisdom")
        assert not os.listdir(tmp_path)

    def test_what_was_there_stays_if_writing_fails(self, file, monkeypatch):
        before = file.read_text()

        def fail(*args):
            raise OSError("no space left on device")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            backends.fftw.export_wisdom(file)
        assert file.read_text() == before and os.listdir(file.parent) == ["wisdom"]

    def test_paths(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            backends.fftw.import_wisdom(tmp_path / "nothing")
        for path in (1, None, b"x"):
            with pytest.raises(BadType, match="path"):
                backends.fftw.import_wisdom(path)
        with pytest.raises(BadValue, match="no path"):
            backends.fftw.import_wisdom("")

    def test_too_long(self, tmp_path, monkeypatch):
        monkeypatch.setattr(wisdom, "LARGEST", 10)
        (tmp_path / "w").write_text("(" * 100)
        with pytest.raises(BadValue, match="longer than 10 bytes"):
            backends.fftw.import_wisdom(tmp_path / "w")

    def test_without_fftw(self, tmp_path, monkeypatch):
        monkeypatch.setattr(libraries.get("fftw"), "_reason", "it is not there")
        with pytest.raises(BackendUnavailable, match=r"fftw\.export_wisdom"):
            backends.fftw.export_wisdom(tmp_path / "w")
        with pytest.raises(BackendUnavailable, match="FFTW"):
            libraries.get("fftw").import_wisdom("")


def test_plans_are_destroyed():
    planner = fftw.planners["f"]
    x = np.ones(4096, np.complex64)
    p = problem("c2c", x)
    gc.collect()
    before = planner.alive
    plans = [fftw.prepare(replace(p, scale=1.0 + i), Algorithm(library="fftw", name="estimate")) for i in range(50)]
    assert planner.alive == before + 100  # for aligned arrays, and for any
    assert all(kept.nbytes > 4096 for plan in plans for kept in plan.keep)
    del plans
    for i in range(2000):
        fftw.prepare(replace(p, scale=1.0 + i), Algorithm(library="fftw", name="estimate"))
    gc.collect()
    assert planner.alive == before


def test_planner_in_many_threads():
    x = arrays_like((7, 240), "complex64")["C"]
    wrong = []

    def run(scale):
        for i in range(10):
            p = problem("c2c", x, scale=scale + i)
            for _, plan in plans_of(fftw, p):
                if error(plan(x), np.fft.fft(x.astype(np.complex128)) * p.scale) > allowed(p):
                    wrong.append(p)

    threads = [threading.Thread(target=run, args=(float(n),)) for n in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_on_threads():
    x = arrays_like((64, 1024), "complex64")["C"]
    p = problem("c2c", x)
    found = plans_of(fftw, p, 2)
    assert [a.key for a, _ in found] == ["fftw.estimate@n", "fftw.estimate@1"]
    assert found[0][0].pool == "gomp"
    for _, plan in found:
        assert error(plan(x), wanted(p, x)) <= allowed(p)


@pytest.mark.parametrize(
    ("shape", "axes", "own"),
    [
        ((600, 75), (1,), 1), ((600, 75), (0, 1), 1), ((43, 32, 33), (0, 1, 2), 1), ((7, 16875), (1,), 1),
        ((1 << 17,), (0,), 2), ((3, 1 << 16), (1,), 2),
    ],
)
def test_a_batch_is_divided_among_our_threads(shape, axes, own, monkeypatch):
    """FFTW's own threads begin anew for every row of some: 600 of 75 points took 16 times as long."""
    asked = []
    make = Planner.plan

    def plan(self, request, *args, **keywords):
        asked.append(request.threads)
        return make(self, request, *args, **keywords)

    monkeypatch.setattr(Planner, "plan", plan)
    for dtype in ("float32", "float64"):
        x = arrays_like(shape, dtype)["C"]
        p = problem("r2c", x, axes)
        a = next(a for a in fftw.algorithms(p, 2) if a.key == "fftw.estimate@n")
        assert error(fftw.prepare(p, a)(x), wanted(p, x)) <= allowed(p)
    assert set(asked) == {own}


def test_in_a_forked_child():
    x = arrays_like((64, 1024), "complex64")["C"]
    p = problem("c2c", x)
    for _, plan in plans_of(fftw, p, 2):
        plan(x)
    assert processes.forked(lambda: error(plans_of(fftw, p, 1)[0][1](x), wanted(p, x)) <= allowed(p)) == 0


def test_a_fork_while_another_thread_plans():
    """It does not wait for a measurement, and the child leaves alone the planner that was copied half-changed."""
    python(
        """
        import os, signal, threading
        import numpy as np
        import backline
        from backline import libraries
        from backline.native import loading
        from backline.libraries.fftw.planner import Planner

        loading.FORK_SECONDS = 0.2
        fftw = libraries.get("fftw")
        assert fftw.available()
        begun, end, make = threading.Event(), threading.Event(), Planner._make

        def slow(*args):
            begun.set()
            end.wait(60)
            return make(*args)

        def transform(n):
            x = np.random.default_rng(0).standard_normal(n) + 0j
            return bool(np.allclose(backline.fft.fft(x), np.fft.fft(x)))

        def prefer():
            with backline.use("fftw"):
                transform(48)

        Planner._make = slow
        thread = threading.Thread(target=prefer)
        thread.start()
        assert begun.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            status = 3
            try:
                with backline.use("fftw", "numpy"):
                    status = 0 if transform(56) else 4
                try:
                    fftw.forget_wisdom()
                    status = 5
                except RuntimeError as error:
                    status = status if "forked while another thread was planning" in str(error) else 6
            finally:
                os._exit(status)
        assert thread.is_alive(), "the fork waited for the plan"
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == 0, status
        end.set()
        thread.join(60)
        assert transform(40)
        """
    )


def test_mkl_does_not_stand_in_for_it():
    mkl = libraries.get("mkl")
    if mkl.available():
        x = arrays_like((512,), "complex64")["C"]
        p = problem("c2c", x)
        mkl.prepare(p, Algorithm(library="mkl", name="dfti"))(x)
        assert fftw.planners["f"].version.startswith("3.") and fftw.planners["f"].identity
        assert error(plans_of(fftw, p, 1)[-1][1](x), wanted(p, x)) <= allowed(p)


def test_refusals():
    (r,) = fftw.algorithms(problem("r2r", np.ones(1), kind="dct1"), 1)
    assert isinstance(r, Refusal) and "2 points" in r.reason
    (r,) = fftw.algorithms(problem("c2c", np.ones(4, np.longdouble)), 1)
    assert "not longdouble" in r.reason or "not float128" in r.reason


def test_report():
    facts = fftw.report()
    assert facts["available"] and facts["version"] == backends.fftw.version() and "float32" in facts["precisions"]
    assert backends.fftw.is_available()
