"""Errors as they are reported, against true ones that are known otherwise; and wrong results that a weaker check would let pass."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from backline import libraries
from backline.engine import accuracy, accuracy_linalg, accuracy_products, accuracy_wide
from backline.engine.double_double import Pair, difference, pair, product
from backline.engine.tuning import sample_operands
from backline.libraries.base import Algorithm
from backline.problems.op_registry import operations

Array = Any
EPS = float(np.finfo(np.float64).eps)


def numpy_result(problem: Any, arrays: list[Array]) -> Any:
    return libraries.get("numpy").prepare(problem, Algorithm(library="numpy", name="linalg"))(*arrays)


def relative(got: Array, right: Pair) -> float:
    return float(np.max(difference(pair(got), right)) / np.max(np.abs(right.high)))


# Products -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False])
def test_the_error_of_a_product_is_the_true_one(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        monkeypatch.setattr(accuracy_wide, "WIDE", 0)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((6, 50)), rng.standard_normal((50, 5))
    right = [[sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(row, column, strict=True)) for column in b.T] for row in a]
    rounded = np.array([[float(x) for x in row] for row in right])
    wrong = rounded.copy()
    wrong[2, 3] += 1e-13
    size = np.maximum(np.abs(rounded), np.sqrt((a * a) @ (b * b)))
    problem = operations["matmul"].build(a, b)
    for got in (rounded, wrong, np.matmul(a, b)):
        true = max(abs(float(Fraction(float(got[i, j])) - right[i][j])) / size[i, j] for i, j in np.ndindex(6, 5))
        found = accuracy.error(problem, [a, b], got)
        # Products with random vectors may show a little more than the largest error of an element.
        assert 0.999 * true <= found <= (1.001 if whole else 2) * true
        assert found > 0


def test_zero_is_said_of_exact_results_only() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-100, 100, (30, 30)).astype(np.float64) for _ in "ab")
    assert accuracy.error(operations["matmul"].build(a, b), [a, b], a @ b) == 0.0
    almost = a @ b
    almost[3, 4] = np.nextafter(almost[3, 4], np.inf)
    assert 0 < accuracy.error(operations["matmul"].build(a, b), [a, b], almost) < EPS


def test_numpy_is_judged_like_any_other() -> None:
    calls: dict[str, list[Array]] = {
        "matmul": [np.ones((40, 40))] * 2, "linalg.inv": [np.ones((40, 40))], "linalg.cholesky": [np.ones((40, 40))],
        "linalg.eigvalsh": [np.ones((40, 40))], "linalg.svdvals": [np.ones((40, 30))], "linalg.eigvals": [np.ones((40, 40))],
        "linalg.solve": [np.ones((40, 40)), np.ones((40, 3))], "linalg.lstsq": [np.ones((40, 20)), np.ones((40, 3))],
        "fft.fft": [np.ones(1000)], "nn.functional.gelu": [np.ones(1000)],
        "nn.functional.conv2d": [np.ones((1, 3, 9, 9)), np.ones((4, 3, 3, 3))],
    }  # fmt: skip
    for text, arrays in calls.items():
        problem = operations[text].build(*arrays)
        operands = sample_operands.arrays_for(problem, 2)
        assert 0 < accuracy.error(problem, operands, numpy_result(problem, operands)) < 1e-13, text


def test_a_sum_that_cancels_is_judged_by_its_terms() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(1000).astype(np.float32), rng.standard_normal(1000).astype(np.float32)
    b[-1] = -float(a[:-1].astype(float) @ b[:-1].astype(float)) / a[-1]
    problem = operations["dot"].build(a, b)
    rounded = [(x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32).astype(float) for x in (a, b)]  # tf32
    got, right = np.float32(rounded[0] @ rounded[1]), float(a.astype(float) @ b.astype(float))
    assert abs(got - right) > 10 * abs(right)
    assert accuracy.error(problem, [a, b], got) <= accuracy.bound(problem, "tf32")
    assert accuracy.error(problem, [a, b], np.float32(50.0)) > accuracy.bound(problem, "tf32")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_long_sums_that_are_zeros_are_wrong(dtype: str) -> None:
    """Judged by the sum of absolute terms they would pass: that outgrows the result as sums get longer."""
    problem = operations["matmul"].build(*(np.ones(shape, dtype) for shape in ((2, 1 << 17), (1 << 17, 2))))
    arrays = sample_operands.arrays_for(problem, 1)
    zeros = np.zeros((2, 2), dtype)
    assert accuracy.error(problem, arrays, zeros) > 10 * accuracy.bound(problem)


def test_one_wrong_element_of_a_large_product_is_seen() -> None:
    problem = operations["matmul"].build(np.ones((700, 700)), np.ones((700, 700)))
    arrays = sample_operands.arrays_for(problem, 1)
    reference = accuracy.Reference(problem, arrays)
    got = arrays[0] @ arrays[1]
    assert isinstance(reference.error(got), float) and not reference._reference.whole  # type: ignore[union-attr]  # the reference of this Problem is one by parts
    assert EPS / 10 < reference.error(got) < 1e-13
    got[345, 432] += 1e-9
    assert reference.error(got) > 1e-13
    got = arrays[0] @ arrays[1]
    got[345, [1, 2]] = got[345, [2, 1]]  # the sum of the row is still right
    assert reference.error(got) > 1e-3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("first", "second"), [(1e160, 1e100), (1e-160, 1e-100), (1e-160, 1e160), (1e300, 1e-300)])
def test_products_near_the_ends_of_the_format(
    first: float, second: float, dtype: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:
        monkeypatch.setattr(accuracy_wide, "WIDE", 0)
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(s).astype(dtype) * x for s, x in (((4, 30), first), ((30, 5), second), ((4, 5), first * second)))
    for problem, arrays, right in (
        (operations["matmul"].build(a, b), [a, b], a @ b),
        (operations["addmm"].build(c, a, b, beta=0.5), [c, a, b], a @ b + 0.5 * c),
    ):
        reference = accuracy.Reference(problem, arrays)
        assert 0 < reference.error(right) <= accuracy.bound(problem)
        wrong = right.copy()
        wrong[2, 3] *= 1.01
        assert reference.error(wrong) > 1e-5
        assert reference.error(right * 0) > 0.1


def test_factors_are_those_of_the_dtype() -> None:
    """A tenth in float32 is what a float32 product is multiplied with."""
    a, b, c = (np.ones((8, 8), np.float32) * x for x in (3, 5, 7))
    problem = operations["addmm"].build(c, a, b, alpha=0.1, beta=0.7)
    right = (np.float64(np.float32(0.1)) * 120 + np.float64(np.float32(0.7)) * 7).astype(np.float32)
    assert accuracy.error(problem, [c, a, b], np.full((8, 8), right)) < 2.0**-24


def test_longdouble_products_have_errors_of_their_own() -> None:
    problem = operations["matmul"].build(*[np.ones((9, 9), np.longdouble)] * 2)
    arrays = sample_operands.arrays_for(problem, 1)
    assert accuracy.error(problem, arrays, numpy_result(problem, arrays)) < 8 * float(np.finfo(np.longdouble).eps)
    assert accuracy.error(problem, arrays, (arrays[0] @ arrays[1]).astype(np.float64).astype(np.longdouble)) > 1e-18


# Solutions and factors ----------------------------------------------------------------------------------------------------


def improved_inverse(a: Array) -> Array:
    x = np.linalg.inv(a)
    return x + x @ (pair(np.eye(len(a))) - product(a, x)).high


def test_the_more_accurate_inverse_is_called_so() -> None:
    """300 x 300: two libraries whose true errors are known, beside NumPy."""
    rng = np.random.default_rng(4)
    u, v = rng.integers(-1, 2, 300).astype(float), rng.integers(-1, 2, 300).astype(float)
    u[0], v[0] = 1, 1
    v[0] += 1 - u @ v  # now u @ v is 1, and the inverse of 1 + u v^T is 1 - u v^T / 2, exactly
    a, right = np.eye(300) + np.outer(u, v), np.eye(300) - np.outer(u, v) / 2
    problem = operations["linalg.inv"].build(a)
    reference = accuracy.Reference(problem, [a])
    noise = rng.choice((-1.0, 1.0), (300, 300)) * np.max(np.abs(right))
    assert reference.error(right) < 1e-25
    for known in (2.1e-14, 2.8e-14, 1e-9):
        got = right + known * noise
        true = np.max(np.abs(got - right)) / np.max(np.abs(right))
        assert reference.error(got) == pytest.approx(true, rel=1e-3)
    mine = numpy_result(problem, [a])
    assert reference.error(mine) == pytest.approx(np.max(np.abs(mine - right)) / np.max(np.abs(right)), rel=1e-3)


def test_a_bound_on_the_error_keeps_the_more_accurate_library() -> None:
    problem = operations["linalg.inv"].build(np.ones((300, 300)))
    (a,) = sample_operands.arrays_for(problem, 11)
    reference = accuracy.Reference(problem, [a])
    better, worse = improved_inverse(a), np.linalg.inv(a) * (1 + 1e-13)
    errors = [reference.error(x) for x in (better, numpy_result(problem, [a]), worse)]
    assert 0 < errors[0] < errors[1] < errors[2] and errors[0] < EPS


@pytest.mark.parametrize("n", [12, 14])
@pytest.mark.parametrize("name", ["linalg.inv", "linalg.solve"])
def test_what_is_too_ill_conditioned_to_be_known_is_judged_by_its_backward_error(name: str, n: int) -> None:
    a = 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)  # Hilbert's, with a condition number of 1e16 and more
    arrays = [a, np.ones((n, 2))][: 1 if name == "linalg.inv" else 2]
    problem = operations[name].build(*arrays)
    reference = accuracy.Reference(problem, arrays)
    right = numpy_result(problem, arrays)
    assert reference.error(right) <= accuracy.bound(problem)
    assert reference.error(right * 0) > 1e-3
    assert reference.error(np.ones_like(right)) > 1e-3


@pytest.mark.parametrize("op", ["linalg.inv", "linalg.eigvals"])
def test_no_library_is_rejected_for_what_cannot_be_known(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.engine.choose import eligible
    from backline.engine.tuning import measure

    hard = 1 / (np.arange(14)[:, None] + np.arange(14) + 1.0) if op == "linalg.inv" else np.eye(14) + np.eye(14, k=1)
    problem = operations[op].build(hard)
    monkeypatch.setattr(sample_operands, "arrays_for", lambda problem, seed: [hard.copy()])
    record = measure.measure_problem(problem, eligible(problem, 1), 1, timing=False, seed=1)
    assert record.errors and not record.rejected, record


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_a_least_squares_solution_of_a_lower_rank(shape: tuple[int, int]) -> None:
    m, n = shape
    for a in (np.ones(shape), np.outer(np.arange(1.0, m + 1), np.linspace(1, 0.3, n))):
        arrays = [a, np.arange(1.0, m + 1)[:, None]]
        problem = operations["linalg.lstsq"].build(*arrays)
        reference = accuracy.Reference(problem, arrays)
        x, *rest = numpy_result(problem, arrays)
        assert reference.error((x, *rest)) <= accuracy.bound(problem)
        assert reference.error((x * 1.01, *rest)) > 1e-4


@pytest.mark.filterwarnings("error")
def test_a_solution_that_is_zero() -> None:
    arrays = [2 * np.eye(3), np.zeros((3, 2))]
    problem = operations["linalg.solve"].build(*arrays)
    assert accuracy.error(problem, arrays, np.zeros((3, 2))) == 0
    assert accuracy.error(problem, arrays, np.ones((3, 2))) == math.inf


SOLVING: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("linalg.cholesky", [(24, 24)], {}),
    ("linalg.cholesky", [(3, 24, 24)], {"upper": True}),
    ("linalg.inv", [(3, 24, 24)], {}),
    ("linalg.solve", [(24, 24), (24, 5)], {}),
    ("linalg.solve", [(24, 24), (24,)], {}),
    ("linalg.solve", [(24, 24), (5, 24)], {"left": False}),
    ("linalg.lu_solve", [(24, 24), (24,), (24, 5)], {}),
    ("linalg.lu_solve", [(24, 24), (24,), (24, 5)], {"adjoint": True}),
    ("linalg.lu_solve", [(24, 24), (24,), (5, 24)], {"left": False}),
    ("linalg.lu_solve", [(24, 24), (24,), (5, 24)], {"left": False, "adjoint": True}),
    ("linalg.solve_triangular", [(24, 24), (24, 5)], {"upper": True}),
    ("linalg.solve_triangular", [(24, 24), (5, 24)], {"upper": False, "left": False, "unitriangular": True}),
    ("linalg.lstsq", [(24, 13), (24, 5)], {}),
    ("linalg.lstsq", [(13, 24), (13, 5)], {}),
    ("linalg.lstsq", [(24, 13), (24,)], {}),
    ("cholesky_solve", [(24, 5), (24, 24)], {"upper": True}),
    ("cholesky_inverse", [(24, 24)], {}),
    ("cholesky_inverse", [(24, 24)], {"upper": True}),
]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("name", "shapes", "keywords"), SOLVING)
def test_references_of_solutions_are_known_far_beyond_float64(name: str, shapes: Any, keywords: Any, dtype: str) -> None:
    arrays = [np.ones(s, dtype) for s in shapes]
    if name == "linalg.lu_solve":
        arrays[1] = np.ones(shapes[1], np.int32)
    problem = operations[name].build(*arrays, **keywords)
    arrays = sample_operands.arrays_for(problem, 5)
    reference = accuracy.Reference(problem, arrays)
    result = numpy_result(problem, arrays)
    first = result[0] if isinstance(result, tuple) else result
    assert reference.error(result) < 1e-13
    _, (wanted, unknown) = reference._reference._wanted  # type: ignore[union-attr]  # the reference of this Problem is one by parts
    assert unknown < 2.0**-60 and np.any(wanted.low)
    moved = first + 1e-10 * np.max(np.abs(first))
    assert reference.error((moved, *result[1:]) if isinstance(result, tuple) else moved) == pytest.approx(1e-10, rel=1e-3)


# Spectra ----------------------------------------------------------------------------------------------------------------


def test_eigenvalues_that_are_known() -> None:
    n = 60
    a = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    # 2 - 2 cos t, without the cancellation, and with an angle of more digits.
    pi = 4 * np.arctan(np.longdouble(1))
    right = 4 * np.sin(np.arange(1, n + 1) * pi / (2 * (n + 1))) ** 2
    wide = Pair(right.astype(float), (right - right.astype(float)).astype(float))
    for name in ("linalg.eigvalsh", "linalg.svdvals"):
        known = wide if name == "linalg.eigvalsh" else wide.each(lambda x: x[::-1])
        problem = operations[name].build(a)
        reference = accuracy.Reference(problem, [a])
        for got in (numpy_result(problem, [a]), known.high, known.high + 1e-14):
            assert reference.error(got) == pytest.approx(relative(got, known), rel=0.02, abs=1e-19)


def test_eigenvalues_of_a_circulant_matrix() -> None:
    """They are the transform of its first column, and those of any order are right."""
    rng = np.random.default_rng(0)
    column = rng.standard_normal(31)
    a = np.array([np.roll(column, i) for i in range(31)]).T
    right = np.fft.fft(column)
    problem = operations["linalg.eigvals"].build(a)
    reference = accuracy.Reference(problem, [a])
    for got in (right, right[::-1], numpy_result(problem, [a])):
        assert reference.error(got) < 20 * EPS
    wrong = right.copy()
    wrong[4] += 1e-9
    size = np.max(np.abs(right))
    assert reference.error(wrong) == pytest.approx(1e-9 / size, rel=0.05)
    twice = right.copy()
    twice[4] = twice[5]
    assert reference.error(twice) == pytest.approx(np.abs(right[4] - right[5]) / size, rel=0.7)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_eigenvalues_of_a_defective_matrix(value: float, dtype: str) -> None:
    a = (value * np.eye(6) + np.eye(6, k=1)).astype(dtype)
    problem = operations["linalg.eigvals"].build(a)
    reference = accuracy.Reference(problem, [a])
    near = value + np.finfo(dtype).eps ** (1 / 6) * np.exp(2j * np.pi * np.arange(6) / 6)  # those with one corner at a rounding
    for right in (numpy_result(problem, [a]), near):
        assert reference.error(right) <= accuracy.bound(problem)
    for wrong in (near + 0.5, np.where(np.arange(6) == 2, value + 1.0, near)):
        assert reference.error(wrong) > 1e-3


SCALED = ("inv", "solve", "lstsq", "cholesky", "eigvalsh", "svdvals", "eigvals", "eig", "eigh", "svd", "qr")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [2.0**665, 2.0**-665])
@pytest.mark.parametrize("name", SCALED)
def test_matrices_near_the_ends_of_the_format(name: str, scale: float) -> None:
    root = np.random.default_rng(3).standard_normal((6, 6))
    arrays = [(root @ root.T + np.eye(6)) * scale]
    if name in ("solve", "lstsq"):
        arrays.append(np.ones((6, 2)))
    problem = operations["linalg." + name].build(*arrays)
    reference = accuracy.Reference(problem, arrays)
    right = numpy_result(problem, arrays)
    assert 0 < reference.error(right) <= accuracy.bound(problem)
    wrong = tuple(1.01 * x for x in right) if isinstance(right, tuple) else 1.01 * right
    assert reference.error(wrong) > 1e-3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["linalg.eigvalsh", "linalg.svdvals", "linalg.eigvals"])
def test_values_of_a_large_matrix_of_ones(name: str) -> None:
    a = np.full((3, 3), 1e200)
    problem = operations[name].build(a)
    right = numpy_result(problem, [a])
    assert accuracy.error(problem, [a], right) <= accuracy.bound(problem)
    assert accuracy.error(problem, [a], right * 1.01) > 1e-3


def turned(values: Array, angle: float) -> Array:
    """Three values changed such that their sum and the sum of their squares stay."""
    changed = values.astype(np.result_type(values, np.float64))
    part, axis = changed[..., [0, 4, 9]], np.ones(3) / math.sqrt(3)
    across = np.stack([np.cross(axis, p) for p in part.reshape(-1, 3)]).reshape(part.shape)
    changed[..., [0, 4, 9]] = (
        part * math.cos(angle) + across * math.sin(angle) + axis * (part @ axis)[..., None] * (1 - math.cos(angle))
    )
    assert np.allclose(changed.sum(-1), values.sum(-1)) and np.allclose((changed**2).sum(-1), (values**2).sum(-1))
    return changed.astype(values.dtype)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("name", ["linalg.eigvals", "linalg.eigvalsh", "linalg.svdvals"])
def test_wrong_values_with_right_sums_are_wrong(name: str, dtype: str, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not small:
        monkeypatch.setattr(accuracy_wide, "WIDE", 0)
    problem = operations[name].build(np.ones((2, 24, 24), dtype))
    arrays = sample_operands.arrays_for(problem, 3)
    reference = accuracy.Reference(problem, arrays)
    right = numpy_result(problem, arrays)
    most = accuracy.bound(problem)
    assert reference.error(right) <= most
    assert reference.error(turned(right, 0.05)) > 10 * most
    one = right.copy()
    one[1, 5] *= 1.02
    assert reference.error(one) > 2 * most
    assert reference.error(right[:, :-1]) == math.inf


def test_a_pair_many_times_over_is_not_all_eigenpairs() -> None:
    problem = operations["linalg.eig"].build(np.ones((12, 12)))
    arrays = sample_operands.arrays_for(problem, 3)
    reference = accuracy.Reference(problem, arrays)
    values, vectors = numpy_result(problem, arrays)
    assert reference.error((values, vectors)) <= accuracy.bound(problem)
    assert reference.error((np.full_like(values, values[0]), np.repeat(vectors[:, :1], 12, 1))) > 1e-3
    assert reference.error((values, vectors * 0)) == math.inf


def test_numbers_are_matched_each_once() -> None:
    rng = np.random.default_rng(0)
    wanted = rng.standard_normal((3, 40)) + 1j * rng.standard_normal((3, 40))
    order = np.stack([rng.permutation(40) for _ in range(3)])
    got = np.take_along_axis(wanted, order, -1) + 1e-9
    assert np.array_equal(accuracy_linalg.matched(got, wanted), order)
    assert sorted(accuracy_linalg.matched(np.zeros(5), np.arange(5.0))) == [0, 1, 2, 3, 4]


# Layers and transforms ---------------------------------------------------------------------------------------------------


def test_the_wide_error_function() -> None:
    known = {
        "0.5": "0.479500122186953462317253346108035471263548424242",
        "2": "0.00467773498104726583793074363274707139",
        "5": "1.53745979442803485018834348538337889e-12",
        "-1": "1.84270079294971486934122063508260925930",
        "3": "0.0000220904969985854413727761295823203798477",
    }
    found = accuracy_wide._erfc(np.array([np.longdouble(x) for x in known]))
    for got, right in zip(found, known.values(), strict=True):
        size = float(right) if right.endswith("e-12") else max(float(right), 0.25)
        assert abs(got - np.longdouble(right)) < 4 * np.finfo(np.longdouble).eps * size, right


def exact_convolution(x: Array, w: Array) -> Array:
    points = len(x) - len(w) + 1
    return np.array([sum(Fraction(float(x[i + t])) * Fraction(float(w[t])) for t in range(len(w))) for i in range(points)])


def test_the_error_of_a_convolution_is_the_true_one() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(40), rng.standard_normal(9)
    right = exact_convolution(x, w)
    problem = operations["nn.functional.conv1d"].build(x.reshape(1, 1, -1), w.reshape(1, 1, -1))
    arrays = [x.reshape(1, 1, -1), w.reshape(1, 1, -1)]
    size = max(max(abs(float(r)) for r in right), 3.0)
    for got in (np.array([float(r) for r in right]), np.correlate(x, w)):
        true = max(abs(float(Fraction(float(g)) - r)) for g, r in zip(got, right, strict=True)) / size
        assert accuracy.error(problem, arrays, got.reshape(1, 1, -1)) == pytest.approx(true, rel=1e-3)


def test_the_error_of_a_transform_is_the_true_one() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(101) + 1j * rng.standard_normal(101)
    turns = np.outer(np.arange(101), np.arange(101)) % 101
    angles = turns * (-8 * np.arctan(np.longdouble(1)) / 101)
    right = (x * (np.cos(angles) + 1j * np.sin(angles))).sum(-1)
    got = np.fft.fft(x)
    true = float(np.max(np.abs(got - right)) / np.max(np.abs(right)))
    assert accuracy.error(operations["fft.fft"].build(x), [x], got) == pytest.approx(true, rel=0.05 if accuracy_wide.LONGER else 10)


def test_many_transforms_are_compared_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = operations["fft.irfft"].build(np.ones((5, 3, 9), np.complex128), dim=1)
    arrays = sample_operands.arrays_for(problem, 1)
    monkeypatch.setitem(accuracy_wide.LONG_FLOPS, "fft", problem.flops / 2)
    reference = accuracy.Reference(problem, arrays)
    right = numpy_result(problem, arrays)
    assert 0 < reference.error(right) < 1e-14 and len(reference._reference.compared) == 4
    right[4, 1, 1] += 1e-8
    assert reference.error(right) > 1e-10


@pytest.mark.parametrize("op", ["nn.functional.gelu", "nn.functional.softmax", "fft.fft"])
def test_without_a_longer_format_nothing_below_its_rounding_is_claimed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy_wide, "LONGER", False)
    problem = operations[op].build(np.ones((3, 50)), *([1] if "softmax" in op else []))
    arrays = sample_operands.arrays_for(problem, 1)
    right = numpy_result(problem, arrays)
    assert accuracy.error(problem, arrays, right) == EPS
    right[0, 0] += 1e-6
    assert accuracy.error(problem, arrays, right) > 1e-8


def test_operands_that_a_call_overwrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each candidate is given the operands anew, and the reference has them too."""
    from backline.engine.choose import eligible
    from backline.engine.tuning import measure

    x = np.ones((64, 64), np.complex128)
    problem = operations["fft.fft"].build(x, overwrite_input=True)
    able = eligible(problem, 1)
    record = measure.measure_problem(problem, able, 1, timing=False, seed=1)
    assert not record.rejected and all(e < 1e-14 for e in record.errors.values()), record


def test_whole_products_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of a product that is compared does not grow with it."""
    sizes: list[int] = []

    def counted(a: Any, b: Any) -> Pair:
        sizes.append(pair(a).high.size + pair(b).high.size)
        return product(a, b)

    monkeypatch.setattr(accuracy_products, "product", counted)
    problem = operations["matmul"].build(np.ones((3, 1500, 1500)), np.ones((3, 1500, 1500)))
    arrays = sample_operands.arrays_for(problem, 1)
    reference = accuracy.Reference(problem, arrays)
    assert reference.error(arrays[0] @ arrays[1]) < 1e-13
    assert max(sizes) < 2e6 and len(sizes) <= accuracy_products.ITEMS


