"""Calls of native functions by a plan: arguments of all types in any order, and what is returned."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backline import _core

SOURCE = r"""
#include <stdint.h>
typedef int64_t I;
float first(float x) { return x * 2; }
double few(double x, I a, float y, const double *p) { return x + 10 * a + 100 * y + 1000 * p[0]; }
/* More integers than any calling convention has registers for; a float and a double on both sides of them. */
double many(I a, I b, float x, I c, I d, I e, I f, double y, I g, I h, const double *p, I i, float z, I j, I k, I l, double w, I m) {
    I n[] = {a, b, c, d, e, f, g, h, i, j, k, l, m};
    double sum = x + 2 * y + 3 * z + 4 * w + 5 * p[0];
    for (int at = 0; at < 13; ++at) sum += (10 + at) * n[at];
    return sum;
}
void most(double *out, I a, I b, I c, I d, I e, I f, I g, I h, I i, I j, I k, I l, I m, I n, I o, I p, I q, I r, I s, I t, I u, I v, I w) {
    out[0] = a + 2*b + 3*c + 4*d + 5*e + 6*f + 7*g + 8*h + 9*i + 10*j + 11*k + 12*l + 13*m + 14*n + 15*o + 16*p + 17*q + 18*r
             + 19*s + 20*t + 21*u + 22*v + 23*w;
}
int status(int32_t negative, float x) { return negative == -7 && x == 0.5f ? 0 : 9; }
"""
ARRAY, RESULT = (0, 0, 0), (1, 0, 0)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("calls")
    (folder / "calls.c").write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", "libcalls.so", "calls.c"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "libcalls.so"))


def run(function: Any, arguments: list[Any], returns: int, dtype: str = "f8", value: float = 3.0) -> Any:
    """Calls it with an array that holds the value in the place of ARRAY; the result lies in an array of its own."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    out = ("result", np.dtype(dtype), (), "C")
    step = ("call", address, arguments, returns, RESULT if returns else None)
    return _core.PreparedCall(1, [("argument", 0), out], [(1, 1, [step])], [1] if returns else [0], [])(np.array([value]))


def test_floats_are_passed_by_their_type(library: Any) -> None:
    assert run(library.first, [np.float32(1.25)], 1, "f4") == 2.5
    assert run(library.few, [0.5, 7, np.float32(0.25), ARRAY], 2) == 0.5 + 70 + 25 + 3000
    assert run(library.few, [np.float64(0.5), -7, np.float32(0.25), ARRAY], 2) == 0.5 - 70 + 25 + 3000


def test_integers_and_floats_in_any_order(library: Any) -> None:
    numbers = [3, -5, 2**40, 11, -13, 17, 19, -23, 29, 31, -37, 41, 43]
    a, b, c, d, e, f, g, h, i, j, k, l, m = numbers
    x, y, z, w = np.float32(0.5), 0.25, np.float32(0.125), 2.0
    expected = 0.5 + 2 * 0.25 + 3 * 0.125 + 4 * 2.0 + 5 * 3.0 + sum((10 + at) * n for at, n in enumerate(numbers))
    assert run(library.many, [a, b, x, c, d, e, f, y, g, h, ARRAY, i, z, j, k, l, w, m], 2) == expected


def test_as_many_integers_as_a_call_may_have(library: Any) -> None:
    numbers = list(range(101, 124))
    assert run(library.most, [ARRAY, *numbers], 0)[0] == sum((at + 1) * n for at, n in enumerate(numbers))


def test_a_status_of_negative_integers(library: Any) -> None:
    for negative, told in ((-7, 0), (-8, 9)):
        address = ctypes.cast(library.status, ctypes.c_void_p).value
        step = ("call", address, [negative, np.float32(0.5)], 3, RESULT)
        plan = _core.PreparedCall(
            1, [("argument", 0), ("work", 8)], [(1, 1, [step])], [0], [], info=(1, 8, 1),
            on_info=lambda plan, infos, arrays, results: infos,
        )  # fmt: skip
        out = plan(np.zeros(1))
        assert (out == [told]) if told else isinstance(out, np.ndarray)


def test_values_of_items(library: Any) -> None:
    """A list holds one integer for every item of a group, beside floats."""
    address = ctypes.cast(library.few, ctypes.c_void_p).value
    step = ("call", address, [0.5, [1, 2, 3], np.float32(0), (0, 0, 8)], 2, (1, 0, 8))
    plan = _core.PreparedCall(1, [("argument", 0), ("result", np.dtype("f8"), (3,), "C")], [(3, 1, [step])], [1], [])
    np.testing.assert_array_equal(plan(np.array([1.0, 2.0, 3.0])), [1010.5, 2020.5, 3030.5])


def test_the_convention_is_told() -> None:
    assert _core.call_convention in ("direct", "libffi")
