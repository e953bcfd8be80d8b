"""MKL's transforms that may lose digits are tried before they are used, each once, and refused where they do."""

import os
import signal
import threading

import numpy as np
import pytest
import scipy.fft
from fft_cases import arrays_like, error, plans_of, problem, wanted

import backline
from backline import libraries
from backline.errors import LibraryFailed
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.mkl import transform_trials
from backline.libraries.mkl.transform_trials import ALLOWED, Trials, chance_factor, doubtful
from backline.libraries.reference import reference_fft

mkl = libraries.get("mkl")
MOST_ERROR = {"float32": 2.5e-7, "float64": 1.5e-15}
ONE = Algorithm(library="mkl", name="dfti")
TWO = Algorithm(library="mkl", name="dfti", threads=2)
IN_PIECES = Algorithm(library="mkl", name="dfti_parts", threads=2)


def transform(op, n, dtype, rows=()):
    return problem(op, np.zeros((*rows, n // 2 + 1 if op == "c2r" else n), dtype), lengths=(n,))


@pytest.mark.parametrize(
    ("op", "n", "dtype"),
    [
        ("c2r", 8256, "complex64"), ("c2c", 16807, "complex64"), ("c2c", 34, "complex64"), ("r2c", 31250, "float32"),
        ("c2c", 1030, "complex128"), ("r2c", 68, "float64"), ("c2r", 2060, "complex128"), ("c2c", 1022, "float64"),
        ("c2c", 1 << 21, "complex64"),
    ],
)  # fmt: skip
def test_doubtful_by_kernels_for_avx512(op, n, dtype):
    for p in (transform(op, n, dtype), transform(op, n, dtype, (2, 3))):
        assert doubtful(p, True) and not doubtful(p, False)


@pytest.mark.parametrize(
    ("op", "n", "dtype"),
    [("c2c", 134, "complex64"), ("r2c", 134, "float32"), ("r2c", 1 << 16, "float32"), ("c2c", 1 << 20, "float32"), ("c2r", 1 << 24, "complex64")],
)  # fmt: skip
def test_doubtful_by_any_kernels(op, n, dtype):
    assert doubtful(transform(op, n, dtype), False)


@pytest.mark.parametrize(
    ("op", "n", "dtype"),
    [
        ("c2r", 8192, "complex64"), ("c2r", 1000, "complex64"), ("c2c", 1 << 20, "complex64"), ("r2c", 48000, "float32"),
        ("c2c", 3003, "complex64"), ("c2c", 1031, "complex128"), ("c2c", 100000, "complex128"), ("r2c", 15015, "float64"),
    ],
)  # fmt: skip
def test_not_doubtful(op, n, dtype):
    assert not doubtful(transform(op, n, dtype), True) and not doubtful(transform(op, n, dtype), False)


def test_short_ones_with_a_large_factor_are_doubtful_by_kernels_for_avx512_alone():
    assert doubtful(transform("c2c", 67, "complex64"), True) and not doubtful(transform("c2c", 67, "complex64"), False)


def scaled(p, factor):
    """NumPy's plan with results that are wrong by a factor."""
    right = reference_fft.plan(p)
    return lambda *arrays: right(*arrays) * p.real.type(1 + factor)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_what_is_allowed(dtype):
    p = transform("c2c", 1030, dtype)
    allowed = ALLOWED[p.real.name]
    assert not Trials().refusal(p, ONE, reference_fft.plan)
    assert not Trials().refusal(p, ONE, lambda p: scaled(p, 0.7 * allowed))
    reason = Trials().refusal(p, ONE, lambda p: scaled(p, 3 * allowed))
    assert reason.startswith("loses digits at 1030 points: relative error ") and f"in {p.real.name}, tried now" in reason


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_results_that_are_no_numbers_are_refused(value):
    def make(p):
        return lambda *arrays: np.full(p.result, value, p.result_dtype)

    assert "relative error inf" in Trials().refusal(transform("c2c", 134, "complex64"), ONE, make)


def test_one_trial_for_each_problem_and_way():
    made = []

    def make(p):
        made.append(p)
        return reference_fft.plan(p)

    trials = Trials()
    x = np.zeros((4, 1030), np.complex128)
    for _ in range(2):
        assert not trials.refusal(problem("c2c", x), TWO, make)
    assert len(made) == 1
    for algorithm, array in ((ONE, x), (TWO, x[:, ::-1]), (TWO, x[1:])):
        assert not trials.refusal(problem("c2c", array), algorithm, make)
    assert len(made) == 4
    assert not trials.refusal(problem("c2c", x), IN_PIECES, make)  # all of them, and one
    assert [p.items for p in made[4:]] == [4, 1]
    assert not trials.refusal(problem("c2c", x, scale=1 / 1030), TWO, make)  # which MKL rounds to float32
    assert len(made) == 7


def test_the_latest_results_are_kept(monkeypatch):
    monkeypatch.setattr(transform_trials, "KEPT", 3)
    trials, made = Trials(), []

    def make(p):
        made.append(p.points)
        return reference_fft.plan(p)

    for n in (34, 38, 46, 58, 34):
        trials.refusal(transform("c2c", n, "complex64"), ONE, make)
    assert made == [34, 38, 46, 58, 34] and len(trials._found) == 3


def test_many_transforms_are_tried_by_fewer(monkeypatch):
    monkeypatch.setattr(transform_trials, "MOST_AT_ONCE", 2000)
    tried = []

    def make(p):
        tried.append((p.operands[0].shape, p.operands[0].strides, p.result))
        return reference_fft.plan(p)

    x = np.zeros((5, 134, 7, 3), np.complex64)
    assert not Trials().refusal(problem("c2c", x, (1,)), ONE, make)
    assert tried == [((1, 134, 4, 3), x.strides, (1, 134, 4, 3))]
    assert not Trials().refusal(problem("r2c", x.real, (1,)), ONE, make)
    assert tried[1] == ((1, 134, 4, 3), x.strides, (1, 68, 4, 3))


@pytest.mark.parametrize(("threads", "items"), [(1, 2), (2, 2), (3, 3), (8, 7)])
def test_of_large_transforms_as_many_are_tried_as_threads_and_two_at_least(threads, items, monkeypatch):
    monkeypatch.setattr(transform_trials, "MOST_AT_ONCE", 200)
    tried = []

    def make(p):
        tried.append(p.items)
        return reference_fft.plan(p)

    algorithm = Algorithm(library="mkl", name="dfti", threads=threads)
    for shape in ((7, 134), (1, 7, 134), (7, 1, 134)):
        assert not Trials().refusal(problem("c2c", np.zeros(shape, np.complex64)), algorithm, make)
    assert tried == [items] * 3


def test_one_bad_transform_among_many_is_found():
    def make(p):
        right = reference_fft.plan(p)

        def run(x):
            y = right(x)
            y[-1] *= 1 + 2 * ALLOWED["float64"]
            return y

        return run

    p = problem("c2c", np.zeros((100, 1030), np.complex128))
    assert "loses digits at 1030 points" in Trials().refusal(p, ONE, make)


def test_what_is_too_large_is_refused_untried():
    p = transform("c2c", (1 << 25) + 2, "complex64")

    def make(p):
        raise AssertionError

    assert doubtful(p, True) and "33554434 points is too large to be tried" in Trials().refusal(p, ONE, make)


def test_a_trial_that_fails_refuses_until_one_succeeds():
    def make(p):
        raise LibraryFailed("MKL failed to run it", cause="out of memory")

    trials, p = Trials(), transform("c2c", 134, "complex64")
    reason = trials.refusal(p, ONE, make)
    assert reason.startswith("whether it loses digits could not be tried: LibraryFailed: MKL failed to run it")
    assert not trials.refusal(p, ONE, reference_fft.plan)


def test_a_later_draw_that_is_no_number_refuses():
    drawn = []

    def make(p):
        right = reference_fft.plan(p)

        def run(*arrays):
            drawn.append(1)
            return right(*arrays) * (np.float32(np.nan) if len(drawn) == 3 else 1)

        return run

    assert "relative error inf" in Trials().refusal(transform("c2c", 134, "complex64"), ONE, make) and len(drawn) == 4


def test_an_input_without_elements_is_zeros():
    p = problem("c2c", np.zeros((3, 0), np.complex64), lengths=(134,))
    assert not Trials().refusal(p, ONE, reference_fft.plan)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_was_forked_during_a_trial_makes_its_own():
    began, ends = threading.Event(), threading.Event()
    trials, p = Trials(), transform("c2c", 134, "complex64")

    def make(p):
        began.set()
        ends.wait(60)
        return reference_fft.plan(p)

    thread = threading.Thread(target=trials.refusal, args=(p, ONE, make))
    thread.start()
    assert began.wait(60)
    child = os.fork()
    if not child:
        status = 2
        try:
            signal.alarm(30)
            status = int(bool(trials.refusal(p, ONE, reference_fft.plan)))
        finally:
            os._exit(status)
    ends.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("op", ["c2c", "r2c", "c2r"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_inputs_and_outputs_of_any_layout_are_measured(op, sign):
    """The reference computes what the Problem says: NumPy's plan in the same precision agrees with it to its rounding."""
    for x in arrays_like((3, 34), "complex64" if op == "c2r" else "float32").values():
        for axes, lengths in (((1,), (34,)), ((0, 1), (3, 38))):
            for out in (None, np.empty(problem(op, x, axes, lengths, sign).result, problem(op, x).result_dtype)[..., ::-1]):
                p = problem(op, x, axes, lengths, sign, 0.3, out=out)
                assert Trials().measure(p, reference_fft.plan) < 2e-7


@pytest.mark.skipif(not mkl.available(), reason="MKL is not installed")
class TestMKL:
    @pytest.fixture
    def bad(self, monkeypatch):
        """A processor with kernels that lose digits at even lengths is imitated."""
        trials = Trials()
        monkeypatch.setattr(trials, "measure", lambda p, make: 4.2e-6 if p.points % 2 == 0 else 2e-7)
        monkeypatch.setattr(mkl, "transform_trials", trials)

    @pytest.mark.parametrize("op", ["r2c", "c2r", "c2c"])
    @pytest.mark.parametrize("sign", [-1, 1])
    def test_refused_and_replaced(self, bad, op, sign):
        n = 1 << 16
        rng = np.random.default_rng(2)
        x = rng.random(n, np.float32) - np.float32(0.5)
        if op == "c2r":
            x = np.fft.rfft(x.astype(np.float64)).astype(np.complex64)
            x[0] += 3j  # has no say
        p = problem(op, x, lengths=(n,), sign=sign)
        found = list(mkl.algorithms(p, 2))
        refused = [f for f in found if isinstance(f, Refusal)]
        assert {r.name for r in refused} == {"dfti"} and "4.2e-06" in refused[0].reason and "65536 points" in refused[0].reason
        able = [f for f in found if isinstance(f, Algorithm)]
        assert {(a.name, a.precision) for a in able} == {("dfti_double", "f64")}
        for a in able:
            assert error(mkl.prepare(p, a)(x), wanted(p, x)) <= MOST_ERROR["float32"]

    def test_float64_is_refused_and_not_replaced(self, bad, monkeypatch):
        monkeypatch.setattr(mkl, "instruction_sets", lambda: ("avx2", "avx512"))
        found = list(mkl.algorithms(transform("c2c", 1032, "complex128"), 1))
        assert [type(f) for f in found] == [Refusal] and "relative error 4.2e-06 in float64" in found[0].reason

    def test_what_passes_is_used_in_its_own_precision(self, bad):
        found = list(mkl.algorithms(transform("c2c", 10007, "complex64"), 2))
        assert found and all(isinstance(f, Algorithm) and f.name == "dfti" for f in found)

    @pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
    def test_what_was_tried_is_right_for_other_numbers(self, dtype):
        """Lengths of every kind that is doubtful anywhere; whatever is listed keeps what is promised."""
        rng = np.random.default_rng(3)
        for n in (34, 134, 1006, 1030, 2042, 6356, 16807, 93750, 187527):
            for rows in ((), (3,)):
                shape = (*rows, n)
                x = rng.standard_normal(shape) * 100
                x = (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)
                p = problem("c2c" if np.dtype(dtype).kind == "c" else "r2c", x)
                if dtype in ("float32", "complex64") or any(isinstance(f, Algorithm) for f in mkl.algorithms(p, 2)):
                    for a, plan in plans_of(mkl, p):
                        assert error(plan(x), wanted(p, x)) <= MOST_ERROR[p.real.name] * chance_factor(n), (a.key, n, rows)

    @pytest.mark.parametrize(("rows", "n", "dtype"), [(33, 38930, "complex128"), (161, 30209, "complex128"), (33, 47121, "complex64")])
    def test_each_of_many_in_pieces_is_right(self, rows, n, dtype):
        """On an Intel Xeon with AVX-512 the last one, a piece of its own, lost a digit where the others did not."""
        rng = np.random.default_rng(4)
        x = (rng.random((rows, n)) + 1j * rng.random((rows, n)) - (0.5 + 0.5j)).astype(dtype)
        p = problem("c2c", x)
        reference = scipy.fft.fft(x.astype(np.complex128))
        with backline.backends.flags(deterministic=True, determinism_level="threads"):
            for a, plan in plans_of(mkl, p):
                got = plan(x)
                assert max(error(got[i], reference[i]) for i in (0, rows // 2, rows - 1)) <= 1.1 * MOST_ERROR[p.real.name], a.key
