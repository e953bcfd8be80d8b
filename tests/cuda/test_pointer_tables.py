"""Tables of addresses and sizes of workspaces: made on the device, or kept, so that a call does not have to copy or ask."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

import backline
from backline import fft, linalg
from backline.libraries.cuda.common import pointer_tables
from backline.problems.memory_layout import batch_offsets
from fakes.cupy_standin import ndarray
from fakes.gpu_machine import GpuMachine
from fakes.solver_machine import real_types
from gpu.arrays import numbers
from support import clean

real_types()
pytestmark = pytest.mark.usefixtures("clean")
assert clean


@pytest.mark.parametrize("batch", [(1,), (7,), (2, 3), (3, 1, 2), (2, 3, 4), (5, 1), (1, 1), (2, 2, 2, 2)])
def test_the_kernel_gives_the_address_of_every_item(machine: GpuMachine, batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        # Each table broadcasts along some axes, and has any strides along the others, negative ones too.
        offsets = []
        for _ in range(3):
            shape = tuple(n if rng.random() < 0.6 else 1 for n in batch)
            steps = tuple(int(s) for s in rng.integers(-(1 << 40), 1 << 40, len(batch)))
            offsets.append(batch_offsets(batch, shape, steps))
        bases = [int(b) for b in rng.integers(1 << 50, 1 << 60, 3)]
        found = pointer_tables.tables(bases, pointer_tables.steps_of(batch, offsets))
        assert found.shape == (3, prod(batch)) and found.dtype == np.int64
        for base, each, got in zip(bases, offsets, found.host, strict=True):
            expected = [base + (i * each if isinstance(each, int) else each[i]) for i in range(prod(batch))]
            assert got.tolist() == expected


def test_axes_that_lie_one_inside_the_other_are_one(machine: GpuMachine) -> None:
    assert pointer_tables.steps_of((4, 5, 6), (8, 24)) == ((120, (8, 24)),)
    assert pointer_tables.steps_of((1, 1), (0, 0)) == ((1, (0, 0)),)


@pytest.fixture
def uploads(machine: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what copies from the host, as it is called."""
    seen: list[str] = []
    for name in ("asarray", "array", "arange"):
        whole = getattr(machine.cupy, name)
        monkeypatch.setattr(machine.cupy, name, lambda *a, name=name, whole=whole, **k: (seen.append(name), whole(*a, **k))[1], raising=False)
    return seen


def test_a_product_of_irregular_batches_copies_nothing_from_the_host(machine: GpuMachine, uploads: list[str]) -> None:
    x, y = ndarray(numbers(2, 1, 3, 4)), ndarray(numbers(5, 4, 2))
    np.testing.assert_allclose(backline.matmul(x, y).host, x.host @ y.host, atol=1e-5)
    turned = ndarray(numbers(3, 4, 2, 5).transpose(1, 0, 3, 2))
    z = ndarray(numbers(4, 3, 2, 2))
    np.testing.assert_allclose(backline.matmul(turned, z).host, turned.host @ z.host, atol=1e-5)
    assert len(machine.blas.calls("gemm_batched_ex")) == 2 and not uploads


def test_solvers_of_batches_make_their_tables_by_one_kernel(
    machine: GpuMachine, uploads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    whole = pointer_tables.tables
    monkeypatch.setattr(pointer_tables, "tables", lambda *args: (made.append(len(args[0])), whole(*args))[1])
    a = numbers(9, 5, 5) + 5 * np.eye(5, dtype=np.float32)
    found = linalg.solve(ndarray(a), ndarray(numbers(9, 5, 2)))
    np.testing.assert_allclose(found.host, np.linalg.solve(a, numbers(9, 5, 2)), atol=1e-4)
    assert made == [1, 2] and not uploads, "factors; factors and right-hand sides"


# --- sizes of workspaces ----------------------------------------------------------------------------------------------


def asked(machine: GpuMachine) -> list[str]:
    found = [name for name, _ in machine.log if name.endswith("buffer_size")]
    machine.log.clear()
    return found


def test_sizes_of_workspaces_are_asked_for_once(machine: GpuMachine) -> None:
    rows: list[tuple[Any, Any, list[str]]] = [
        (linalg.cholesky, np.eye(11) * 3, ["xpotrf_buffer_size"]),
        (linalg.qr, numbers(31, 7), ["xgeqrf_buffer_size", "sorgqr_buffer_size"]),
        (linalg.eigvalsh, np.eye(13), ["xsyevd_buffer_size"]),
        (linalg.svdvals, numbers(4, 9, 6), ["sgesvdj_batched_buffer_size"]),
        (linalg.svdvals, numbers(5, 9, 6), ["sgesvdj_batched_buffer_size"]),
        (linalg.svdvals, numbers(9, 6, dtype="complex64"), ["cgesvdj_buffer_size"]),
        (linalg.inv, numbers(70, 70) + 20 * np.eye(70, dtype=np.float32), ["xgetrf_buffer_size"]),
    ]
    for op, a, expected in rows:
        op(ndarray(a))
        assert asked(machine) == expected, (op, a.shape)
        backline.engine.plan_caches.clear()
        op(ndarray(a.copy()))
        assert asked(machine) == [], "neither by this plan again, nor by another one"
    linalg.qr(ndarray(numbers(31, 7)), mode="r")
    assert asked(machine) == [], "the same routine for the same sizes"
    linalg.qr(ndarray(numbers(31, 7).astype(np.float64)))
    assert asked(machine) == ["xgeqrf_buffer_size", "dorgqr_buffer_size"], "another dtype"


def test_each_device_is_asked(machine: GpuMachine) -> None:
    a = numbers(37, 5)
    linalg.qr(ndarray(a, 0))
    assert len(asked(machine)) == 2
    linalg.qr(ndarray(a, 1))
    assert len(asked(machine)) == 2


# --- scaling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float32"])
@pytest.mark.parametrize("laid", ["C", "F", "steps"])
def test_an_inverse_transform_is_scaled_by_one_kernel_in_its_place(
    machine: GpuMachine, monkeypatch: pytest.MonkeyPatch, dtype: str, laid: str
) -> None:
    calls: list[tuple[Any, Any]] = []
    whole = machine.cupy.multiply
    monkeypatch.setattr(machine.cupy, "multiply", lambda x, y, **k: (calls.append((x, k["out"])), whole(x, y, **k))[1], raising=False)
    x = numbers(6, 10, dtype=dtype)
    shape, kind = ((6, 10), x.dtype) if dtype != "float32" else ((6, 10), np.dtype(np.float32))
    out = np.full((6, 20), np.nan, kind)[:, ::2] if laid == "steps" else np.full(shape, np.nan, kind, order=laid)  # type: ignore[call-overload]  # an order of a parametrized test
    if dtype == "float32":
        found, wanted = fft.irfft2(ndarray(numbers(6, 6, dtype="complex64")), s=shape), np.fft.irfft2(numbers(6, 6, dtype="complex64"), s=shape)
    else:
        found, wanted = fft.ifft2(ndarray(x), out=ndarray(out)), np.fft.ifft2(x)
    np.testing.assert_allclose(found.host, wanted, atol=1e-6)
    ((source, target),) = calls
    assert source is target and np.shares_memory(source.host, found.host)


def test_scaling_keeps_infinities_apart_from_zeros(machine: GpuMachine) -> None:
    """A part that is infinite does not make the other one NaN, as a product of complex numbers would."""
    x = np.array([1 + 1j, complex(np.inf, 0), 2, complex(0, -np.inf)], np.complex64)
    from backline.libraries.cuda.cufft.library import _scale
    from backline.libraries.cuda.cufft.transform_steps import Scale

    array = ndarray(x.copy())
    _scale(machine.cupy, array, Scale(0, 0.5))
    np.testing.assert_array_equal(array.host, np.array([0.5 + 0.5j, complex(np.inf, 0), 1, complex(0, -np.inf)], np.complex64))
