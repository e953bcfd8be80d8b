"""Helpers of the tests of recurrent networks on CUDA arrays: calls on the device, and gradients and comparison in float64 on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

import backline
from backline import nn
from backline.nn import grad as nn_grad
from fakes.cupy_standin import ndarray
from recurrent import compare, oracle, tolerance

Array = Any


def there(value: Any) -> Any:
    """A value with arrays of the host on the device."""
    if isinstance(value, tuple):
        return tuple(there(v) for v in value)
    return ndarray(np.array(value)) if isinstance(value, np.ndarray) else value


def run(mode: str, call: dict[str, Any], **further: Any) -> tuple[Array, ...]:
    """The results of a call on the device, on the host."""
    results = getattr(nn, mode)(*map(there, call.values()), **{name: there(v) for name, v in further.items()})
    return tuple(r.get() for r in results)


def run_grad(mode: str, call: dict[str, Any], grads: list[Array], **further: Any) -> tuple[Array, ...]:
    """The gradients of a call on the device, on the host; `grads` are those by its results."""
    values = list(map(there, call.values()))
    given = {name: there(v) for name, v in further.items()}
    results = getattr(nn_grad, f"{mode}_backward")(*values[:3], *map(there, grads), *values[3:], **given)
    assert type(results).__name__ == ("RnnGrads" if mode == "lstm" else "StateGrads")
    return tuple(r.get() for r in results)


def host_grad(mode: str, call: dict[str, Any], grads: list[Array], **further: Any) -> tuple[Array, ...]:
    """The same gradients by NumPy in float64."""

    def wide(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(wide, value))
        return value.astype(np.float64) if isinstance(value, np.ndarray) else value

    values = list(map(wide, call.values()))
    with backline.use("numpy"):
        return tuple(getattr(nn_grad, f"{mode}_backward")(*values[:3], *map(wide, grads), *values[3:], **further))


def ones(mode: str, rng: np.random.Generator, call: dict[str, Any], lengths: Any = None) -> list[Array]:
    """Random gradients with respect to the results of a call."""
    return [rng.standard_normal(part.shape).astype(call["input"].dtype) for part in oracle(mode, call, lengths)]


def forms(*networks: tuple[int, bool]) -> list[tuple[Any, ...]]:
    """Layers, bidirectional, biases, batch first and lengths of calls of each network, which is its layers and whether it is bidirectional."""
    calls = ((True, False, None), (False, True, (4, 2, 1)), (True, True, (3, 0, 4)), (True, False, (0, 0, 0)))
    return [(*network, *call) for network in networks for call in calls]


def close(got: tuple[Array, ...], wanted: tuple[Array, ...], dtype: Any) -> None:
    """Asserts that gradients, or the results of several layers, are those of float64 within rounding."""
    assert len(got) == len(wanted)
    bound = 30 * tolerance(dtype)
    for i, (found, right) in enumerate(zip(got, wanted, strict=True)):
        assert found.dtype == dtype and found.shape == right.shape
        np.testing.assert_allclose(found.astype(np.float64), right, rtol=bound, atol=bound, err_msg=str(i))


def agree(mode: str, rng: np.random.Generator, call: dict[str, Any], lengths: Any = None) -> Any:
    """Asserts that the results and gradients of a call are those of float64; returns the choice of what gave the results."""
    dtype, further = call["input"].dtype, {} if lengths is None else {"lengths": np.array(lengths)}
    compare(run(mode, call, **further), oracle(mode, call, lengths), dtype, f"{mode} {dtype}")
    chosen = backline.explain()
    grads = ones(mode, rng, call, lengths)
    close(run_grad(mode, call, grads, **further), host_grad(mode, call, grads, **further), dtype)
    return chosen
