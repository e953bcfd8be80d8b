"""Elementary functions: every library, dtype and layout against NumPy in a wider format."""

from __future__ import annotations

import math
import pickle
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from layers import DTYPES, LAYOUTS, assert_near, by_each, order

import backline
from backline import libraries
from backline.errors import BadType, BadValue
from backline.libraries.mkl.vector_math import VectorMath
from backline.problems.neural_problem import ELEMENTARY
from support import THREADS, algorithms, clean, dtype_of, problem_of, rng, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

UNITS = 4  # in the last place: what NumPy says of its logarithms of float32
POSITIVE = ("log", "log1p")
# Ends of the range, neighbours of the zeros of functions, subnormal numbers, arguments that have to be reduced by many periods.
SPECIAL = [
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-300, -1e-300, 5e-324, 1e-40, -1e-40, 1e-10, -1e-10, 88.5, 88.8,
    -87.5, -103.9, -104.1, 709.5, 709.9, -708.5, -745.0, -745.2, 3.0, math.pi, -math.pi / 2, 22.0, 355.0, 1e5, 1e10, 1e22, -1e300, 65504.0,
]  # fmt: skip


def exact(name: str, x: Array) -> Array:
    """In longdouble, where it is wider than float64; infinite where the dtype has no such number."""
    with np.errstate(all="ignore"):
        wanted = getattr(np, name)(x.astype(np.float64).astype(np.longdouble)).astype(np.float64)
        return np.where(np.isinf(wanted.astype(x.dtype).astype(np.float64)), np.copysign(np.inf, wanted), wanted)


def drawn(rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: str) -> Array:
    x = np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 2, shape)).astype(dtype_of(dtype))
    if name in POSITIVE:
        x[...] = np.abs(x)
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ELEMENTARY)
def test_functions(name: str, dtype: str, rng: np.random.Generator) -> None:
    for shape in ((), (0,), (1,), (5,), (7, 300), (2, 0, 3), (2, 3, 4, 5), (1, 40000)):
        x = drawn(rng, name, shape, dtype)
        for what, result in by_each(name, x):
            assert_near(result, exact(name, x), dtype, what, UNITS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ELEMENTARY)
def test_numbers_at_the_ends(name: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        x = np.tile(np.array(SPECIAL).astype(dtype_of(dtype)), 40)
    for what, result in by_each(name, x):
        assert_near(result, exact(name, x), dtype, what, UNITS)
    if dtype == "float64":
        signs = np.signbit(getattr(backline, name)(np.array([0.0, -0.0])))
        with np.errstate(all="ignore"):
            assert signs.tolist() == np.signbit(getattr(np, name)(np.array([0.0, -0.0]))).tolist()


@pytest.mark.parametrize("dtype", ("complex64", "complex128"))
@pytest.mark.parametrize("name", [name for name in ELEMENTARY if name != "log1p"])
def test_complex_numbers(name: str, dtype: str, rng: np.random.Generator) -> None:
    """Whose real and imaginary parts may cancel: the error is relative to the whole number."""
    for shape in ((), (0,), (1,), (7, 300), (2, 3, 4, 5), (1, 40000)):
        x = np.asarray(rng.standard_normal(shape) * 3 + 1j * rng.standard_normal(shape) * 3).astype(dtype)
        wanted = np.asarray(getattr(np, name)(x.astype(np.clongdouble)))
        for layout in ("C", "F", "stepped", "backwards") if shape else ("C",):
            for what, result in by_each(name, LAYOUTS[layout](x)):
                assert np.asarray(result).dtype == x.dtype and np.shape(result) == shape, what
                assert (np.abs(result - wanted) <= 8 * np.finfo(dtype).eps * np.abs(wanted)).all(), f"{what} {layout}"
    with np.errstate(all="ignore"):
        parts = np.array(SPECIAL).astype("f4" if dtype == "complex64" else "f8")
    ends = np.empty((len(parts), len(parts)), dtype)
    ends.real, ends.imag = parts[:, None], parts
    with np.errstate(all="ignore"), backline.backends.flags(only=("numpy",)):
        assert np.array_equal(getattr(backline, name)(ends), getattr(np, name)(ends), equal_nan=True)
        assert backline.explain().algorithm == "ufunc"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ELEMENTARY)
def test_layouts(name: str, dtype: str, layout: str, rng: np.random.Generator) -> None:
    for shape in ((3, 4, 5, 6), (70, 90), (2, 3, 2, 3, 2, 3)):
        x = LAYOUTS[layout](drawn(rng, name, shape, dtype))
        for what, result in by_each(name, x):
            assert_near(result, exact(name, x), dtype, f"{what} {shape}", UNITS)
            assert order(result) == order(x) and abs(np.array(result.strides)).min() == x.itemsize, what
    repeated = np.broadcast_to(drawn(rng, name, (70, 1), dtype), (70, 90))
    for what, result in by_each(name, repeated):
        assert_near(result, exact(name, repeated), dtype, f"{what} repeated", UNITS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_result_in_an_array_of_the_caller(layout: str, dtype: str, rng: np.random.Generator) -> None:
    for shape in ((6, 70), (300, 90)):
        x = drawn(rng, "exp", shape, dtype)
        for made in LAYOUTS.values():
            out = made(np.zeros_like(x))
            given = LAYOUTS[layout](x)
            for what, result in by_each("exp", given, out=out):
                assert result is out
                assert_near(out, exact("exp", x), dtype, what, UNITS)
        for what, _ in by_each("exp", x):
            name, _, key = what.rpartition(" ")[2].partition(".")
            here = LAYOUTS[layout](x)
            problem = problem_of("exp", here, out=here)
            for algorithm in algorithms(name, problem, THREADS):
                if f"{name}.{key}" == algorithm.key:
                    again = here.copy(order="K")
                    result = libraries.get(name).prepare(problem, algorithm)(here, here)
                    assert result is here
                    assert_near(here, exact("exp", again), dtype, f"{what} in place", UNITS)
                    here[...] = again


def test_results_do_not_depend_on_where_elements_are_nor_on_threads(rng: np.random.Generator) -> None:
    """Which is what `level` says: vendors' loops have other code for the ends of arrays, and for addresses."""
    for dtype in ("float32", "float64"):
        for name in ELEMENTARY:
            x = drawn(rng, name, (70001,), dtype)
            base = {what.split("@")[0]: result for what, result in by_each(name, x)}
            for what, result in by_each(name, x):
                assert np.array_equal(result, base[what.split("@")[0]]), what
            for start, stop in ((1, 70001), (3, 69990), (17, 40000), (64, 70), (5, 6), (1000, 1003)):
                for what, result in by_each(name, x[start:stop]):
                    if not what.startswith(f"{name} by numpy.loops"):
                        assert np.array_equal(result, base[what.split("@")[0]][start:stop]), f"{what} {start}:{stop}"


def test_results_do_not_depend_on_the_layout(rng: np.random.Generator) -> None:
    """Arrays that have gaps, lie in another order or are misaligned are copied side by side and computed by the same loops."""
    for dtype in DTYPES:
        for name in ELEMENTARY:
            for shape in ((3, 4, 5, 6), (70, 90), (2, 3, 2, 3, 2, 3, 2)):
                x = drawn(rng, name, shape, dtype)
                base = {what.split("@")[0]: result for what, result in by_each(name, x)}
                for layout, made in LAYOUTS.items():
                    for out in ({}, {"out": LAYOUTS["stepped"](np.zeros_like(x))}, {"out": np.zeros_like(x, order="F")}):
                        found = {what: result.copy() for what, result in by_each(name, made(x), **out)}
                        assert any("numpy.ufunc" in what for what in found), f"{name} {layout} {dtype} {shape}"
                        for what, result in found.items():
                            if "numpy.loops" not in what:  # NumPy's own call
                                assert np.array_equal(result, base[what.split("@")[0]]), f"{what} {layout} {dtype} {shape}"


def test_without_axes_it_is_an_array_too() -> None:
    for dtype in (*DTYPES, "complex128"):
        for name in ELEMENTARY if dtype != "complex128" else ("exp", "sin"):
            x = np.array(0.5).astype(dtype_of(dtype))
            result = getattr(backline, name)(x)
            assert type(result) is np.ndarray and result.shape == () and result.dtype == x.dtype
            assert type(getattr(backline, name)(result)) is np.ndarray


def test_the_loops_of_numpy_give_its_bits(rng: np.random.Generator) -> None:
    for dtype in ("float32", "float64"):
        for name in ELEMENTARY:
            for x in (drawn(rng, name, (300, 70), dtype), drawn(rng, name, (300, 70), dtype)[::2, 1::3].T):
                with backline.backends.flags(only=("numpy",)):
                    result = getattr(backline, name)(x)
                assert backline.explain().algorithm == "ufunc"
                assert np.array_equal(result, getattr(np, name)(np.ascontiguousarray(x))), f"{name} {dtype}"


def test_nothing_is_warned_about() -> None:
    x = np.tile(np.array(SPECIAL), 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ELEMENTARY:
            for _ in by_each(name, x):
                pass


def test_what_is_refused() -> None:
    x = np.ones((3, 4))
    for value in (np.ones(3, int), np.ones(3, bool), [1.0], np.ma.array([1.0])):
        with pytest.raises(BadType):
            backline.exp(value)
    with pytest.raises(BadType, match="complex128") as caught:
        backline.log1p(np.ones(3, complex))
    assert caught.value.remedy == "np.log1p(x), or x.real"
    windows = np.lib.stride_tricks.as_strided(np.linspace(-1, 1, 5000), (4937, 64), (8, 8))
    for given in (windows, windows.T, windows[:, ::-1], np.ones((4937, 64))):
        with pytest.raises(BadValue, match="share memory"):
            backline.exp(given, out=windows if given.shape == windows.shape else windows.T)
    with pytest.raises(BadValue, match="shape"):
        backline.exp(x, out=np.ones(3))
    with pytest.raises(BadType, match="float32"):
        backline.exp(x, out=np.ones((3, 4), np.float32))
    memory = np.ones(50)
    for limit in ((), ("numpy",)):
        with backline.backends.flags(only=limit) if limit else backline.backends.flags():
            for given, out in ((memory[:40], memory[1:41]), (memory[:40], memory[39::-1]), (memory[None, :40:2], memory[None, 1:21])):
                with pytest.raises(BadValue, match="overlap"):
                    backline.exp(given, out=out)
    read_only = np.ones((3, 4))
    read_only.flags.writeable = False
    with pytest.raises(BadValue, match="read-only"):
        backline.exp(x, out=read_only)


def test_integers_are_promoted_where_that_is_allowed() -> None:
    with backline.backends.flags(promote="numpy"):
        result = backline.exp(np.arange(3))
    assert result.dtype == np.float64
    assert_near(result, np.exp(np.arange(3)), "float64", "exp of integers", UNITS)


def test_operations_are_functions_of_their_module() -> None:
    for name in ELEMENTARY:
        function = getattr(backline, name)
        assert function.__module__ == "backline" and function.__name__ == name
        assert pickle.loads(pickle.dumps(function)) is function
        assert str(backline.explain(function, np.ones((2, 3), np.float32)).problem) == f"{name} f32 2x3"


def test_a_folder_that_cannot_be_listed_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> list[str]:
        raise PermissionError(path)

    monkeypatch.setattr("backline.libraries.mkl.vector_math.os.listdir", refused)
    native = SimpleNamespace(path="/nowhere/libmkl_rt.so.3")
    assert "libmkl_vml_def is not beside this MKL" in VectorMath(SimpleNamespace(native=native)).missing  # type: ignore[arg-type]


def test_an_mkl_without_its_vector_kernels_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the process with a message of its own."""
    mkl = libraries.get("mkl")
    if not mkl.available():
        pytest.skip("MKL is not here")
    problem = problem_of("exp", np.ones(5))
    assert [a.name for a in algorithms("mkl", problem, 1)] == ["vector_math"]
    monkeypatch.setattr("backline.libraries.mkl.vector_math.os.listdir", lambda path: ["libmkl_rt.so.2", "libmkl_avx2.so.2"])
    (refusal,) = VectorMath(mkl.blas).algorithms(problem, 1)
    assert "libmkl_vml_avx2 is not beside this MKL" in refusal.reason
