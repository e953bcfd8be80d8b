"""The exponential of the attention kernel, and what the core refuses of a description."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backline import _kernels

LEVELS = range(_kernels.instruction_level + 1)
LOWEST = {"float32": -87.3365447504, "float64": -708.39641853226408}  # below, the result is less than the smallest normal number


def exponential(x: Any, level: int) -> Any:
    result = np.full_like(x, 7)
    _kernels.attention_exp(x.ctypes.data, result.ctypes.data, x.size, x.itemsize, level)
    return result


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_error_below_one_and_a_half_units_in_the_last_place(dtype: str, level: int) -> None:
    lowest = LOWEST[dtype]
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [np.linspace(lowest, 0, 400_001), -np.logspace(-20, np.log10(-lowest), 100_001), rng.uniform(-3, 0, 200_000)]
    )
    x = np.maximum(x.astype(dtype), np.dtype(dtype).type(lowest))
    wanted = np.exp(x.astype(np.longdouble))
    unit = np.spacing(np.maximum(wanted.astype(dtype), np.finfo(dtype).tiny)).astype(np.longdouble)
    assert np.max(np.abs(exponential(x, level) - wanted) / unit) < 1.5


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_of_their_own(dtype: str, level: int) -> None:
    x = np.array([0, -0.0, -np.inf, np.nan, 1.001 * LOWEST[dtype], np.finfo(dtype).min, -np.finfo(dtype).tiny], dtype)
    assert np.array_equal(exponential(x, level), np.array([1, 1, 0, np.nan, 0, 0, 1], dtype), equal_nan=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_length_and_nothing_beyond(dtype: str, level: int) -> None:
    whole = np.linspace(-5, 0, 40).astype(dtype)
    wanted = exponential(whole, level)
    for n in range(40):
        result = np.full(41, 9, dtype)
        _kernels.attention_exp(whole.ctypes.data, result.ctypes.data, n, whole.itemsize, level)
        assert np.array_equal(result[:n], wanted[:n]) and (result[n:] == 9).all()


def test_levels_and_descriptions_that_cannot_be() -> None:
    x = np.zeros(1)
    for itemsize, level in ((2, 0), (8, -1), (8, _kernels.instruction_level + 1)):
        with pytest.raises(ValueError, match="levels up to"):
            _kernels.attention_exp(x.ctypes.data, x.ctypes.data, 1, itemsize, level)
    with pytest.raises(ValueError, match="bytes describe an attention"):
        _kernels.attention_workspace(b"")
    with pytest.raises(TypeError):
        _kernels.attention_workspace("")  # type: ignore[arg-type]  # wrong on purpose
    size = next(n for n in range(0, 1000, 8) if accepted(n))
    with pytest.raises(ValueError, match="cannot be"):
        _kernels.attention_workspace(bytes(size))
    assert _kernels.addresses["attention"] != 0


def accepted(size: int) -> bool:
    """Tells whether a description of so many bytes is looked at."""
    try:
        _kernels.attention_workspace(bytes(size))
    except ValueError as error:
        return "bytes describe" not in str(error)
    return True
