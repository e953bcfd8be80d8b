"""The true CuPy with arrays that begin anywhere, and what a call launches: tables of addresses, scaling, einsum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import fft, linalg, switches
from backline.libraries.cuda.common import alignment, pointer_tables
from backline.nn import functional as F
from gpu.arrays import moved, numbers

pytestmark = pytest.mark.cupy


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_copies_of_views_that_begin_anywhere(here: Any, dtype: str) -> None:
    xp = here.xp
    for host in (numbers(5, 6, dtype=dtype), numbers(3, dtype=dtype), numbers(dtype=dtype), numbers(2, 0, dtype=dtype)):
        given = moved(xp, host, 1)
        for view in (given, given.T, given[::-1] if host.ndim else given, given[..., None]):
            assert alignment.misaligned(view) == (host.size > 0)
            copy = alignment.copied(view, 256)
            assert copy.strides == view.strides and (copy.data.ptr % 256 == 0 or not host.size)
            np.testing.assert_array_equal(copy.get(), np.asarray(view.get()))
        back = moved(xp, np.zeros_like(host), 3)
        alignment.put(given, back)
        np.testing.assert_array_equal(back.get(), host)


OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "matmul": (backline.matmul, ((6, 6), (6, 6))), "solve": (linalg.solve, ((6, 6), (6, 2))), "fft": (fft.fft2, ((6, 6),)), "ifft": (fft.ifft, ((6, 6),)),
    "relu": (F.relu, ((6, 7),)), "softmax": (lambda x: F.softmax(x, 1), ((6, 7),)), "conv": (F.conv2d, ((2, 4, 7, 7), (6, 4, 3, 3))),
    "linear": (lambda x, w: F.linear(x, w, activation="relu"), ((5, 6), (4, 6))), "einsum": (lambda x, y: backline.einsum("ij,kj->ki", x, y), ((6, 6), (6, 6))),
}  # fmt: skip


@pytest.mark.parametrize("given", [{}, {"cuda.preferred_blas_library": "cublaslt"}], ids=["", "cublaslt"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_views_that_begin_anywhere(here: Any, name: str, given: dict[str, Any]) -> None:
    op, shapes = OPERATIONS[name]
    hosts = [numbers(*shape) for shape in shapes]
    with switches.scope(given):
        wanted = op(*map(here.xp.asarray, hosts)).get()
        np.testing.assert_array_equal(op(*(moved(here.xp, host, 1) for host in hosts)).get(), wanted)
        if name in ("matmul", "linear", "fft"):
            out = moved(here.xp, np.zeros_like(wanted), 2)
            assert op(*map(here.xp.asarray, hosts), **({"out": out} if name != "linear" else {})) is out or name == "linear"
            np.testing.assert_array_equal(out.get(), wanted if name != "linear" else 0)


def test_nan_through_relu(here: Any) -> None:
    x, weight, bias = numbers(5, 6), numbers(4, 6), numbers(4)
    x[2, 3] = bias[1] = np.nan
    for library in ("cublas", "cublaslt"):
        with switches.scope({"cuda.preferred_blas_library": library}):
            found = F.linear(*map(here.xp.asarray, (x, weight, bias)), activation="relu").get()
        expected = np.zeros((5, 4), bool)
        expected[2], expected[:, 1] = True, True
        np.testing.assert_array_equal(np.isnan(found), expected)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_tables_are_one_kernel_and_right(here: Any, rank: int) -> None:
    rng = np.random.default_rng(rank)
    for count in (1, 2, 3):
        sizes = [int(n) for n in rng.integers(2, 5, rank)]
        steps = tuple((n, tuple(int(s) for s in rng.integers(-(1 << 40), 1 << 40, count))) for n in sizes)
        bases = [int(b) for b in rng.integers(1 << 50, 1 << 60, count)]
        pointer_tables.tables(bases, steps)
        launched = here.device.hollow_launches()
        found = pointer_tables.tables(bases, steps)
        assert here.device.hollow_launches() == launched + 1
        index = np.indices(sizes).reshape(rank, -1)
        expected = [base + sum(index[axis] * each[t] for axis, (_, each) in enumerate(steps)) for t, base in enumerate(bases)]
        np.testing.assert_array_equal(found.get(), np.array(expected))


def test_launches(here: Any) -> None:
    """Of a call whose kernels are compiled; the libraries' own are not counted here."""
    xp = here.xp
    a, b = xp.asarray(numbers(2, 1, 4, 5)), xp.asarray(numbers(3, 5, 6))
    c = xp.asarray(numbers(6, 8, dtype="complex64"))
    x, y = xp.asarray(numbers(4, 5)), xp.asarray(numbers(5, 6))
    rows: dict[str, tuple[Callable[[], Any], int]] = {
        "a product of irregular batches": (lambda: backline.matmul(a, b), 1), "an inverse transform": (lambda: fft.ifft2(c), 1),
        "a transform": (lambda: fft.fft2(c), 0), "einsum": (lambda: backline.einsum("ij,jk->ik", x, y), 0),
        "a layer with relu": (lambda: F.linear(x, y.T, activation="relu"), 1),
    }  # fmt: skip
    for name, (run, most) in rows.items():
        run()
        launched = here.device.hollow_launches()
        run()
        assert here.device.hollow_launches() - launched == most, name


def test_an_einsum_that_was_planned_finds_nothing_anew(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.ops.einsum import device

    x, y, z = (here.xp.asarray(numbers(*shape)) for shape in ((4, 5), (5, 6), (3, 6)))
    equation, wanted = "ij,jk,lk->li", (z.get() @ (x.get() @ y.get()).T)
    np.testing.assert_allclose(backline.einsum(equation, x, y, z).get(), wanted, atol=1e-4)
    monkeypatch.setattr(device, "_namespace", None)
    monkeypatch.setattr(device, "DeviceContraction", None)
    np.testing.assert_allclose(backline.einsum(equation, x, y, z).get(), wanted, atol=1e-4)
