"""Eigenvalues and singular values of CUDA arrays: which routine runs on each side of every threshold, and how exact it is.

Everything runs while products may use TF32: linear algebra must not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backline import linalg
from backline.libraries.cuda.cusolver.library import CuSOLVER
from gpu.arrays import normal, wide
from gpu.proofs import Proof, far, h, largest, routines
from gpu.watch import watched

pytestmark = pytest.mark.usefixtures("tf32_is_permitted_to_products")
BATCHED = pytest.mark.gpu(needs=("cusolver >= 11.7.1",))


@pytest.mark.gpu(row="LA-9")
@pytest.mark.parametrize(("shape", "dtype", "expected"), [
    pytest.param((2, 32, 32), "float64", {"syev_batched": 1}, marks=BATCHED),
    pytest.param((2, 32, 32), "complex64", {"syev_batched": 1}, marks=BATCHED), ((2, 33, 33), "float64", {"syevd": 2}),
    ((31, 31), "float32", {"syevd": 1}), ((32, 32), "float32", {"syevj": 1}), ((512, 512), "float32", {"syevj": 1}),
    ((513, 513), "float32", {"syevd": 1}), ((64, 64), "float64", {"syevd": 1}), ((2, 40, 40), "float32", {"syevj": 2}),
])  # fmt: skip
def test_eigh(proof: Proof, shape: tuple[int, ...], dtype: str, expected: dict[str, int]) -> None:
    _eigh(proof, shape, dtype, expected)


@pytest.mark.gpu(row="LA-9")
@pytest.mark.parametrize(("dtype", "routine"), [("float32", "syevj_batched"), ("complex128", "heevj_batched")])
def test_eigh_of_batches_by_an_older_library(proof: Proof, dtype: str, routine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CuSOLVER, "version", lambda self: "11.7.0")
    _eigh(proof, (5, 24, 24), dtype, {routine: 1})


def _eigh(proof: Proof, shape: tuple[int, ...], dtype: str, expected: dict[str, int]) -> None:
    a = wide(normal(shape, dtype))
    a = ((a + h(a)) / 2).astype(dtype)
    n, name = shape[-1], f"{shape} {dtype}"
    w, v = proof.run(name, linalg.eigh, a, expected=expected)
    proof.near(name, far(wide(a) @ v, v * w[..., None, :], largest(a)), n, dtype)
    proof.near("V^H V", far(h(v) @ v, np.eye(n), 1), n, dtype)
    assert np.all(np.diff(w, axis=-1) >= 0), "ascending"
    proof.near("values", far(proof.run(f"{name}, values", linalg.eigvalsh, a, expected=expected), w, largest(a)), n, dtype)


@pytest.mark.gpu(row="LA-10")
@pytest.mark.parametrize(("shape", "dtype"), [((48, 48), "float32"), ((2, 24, 24), "float64"), ((3, 24, 24), "complex64"), ((40, 40), "complex128")])
def test_eig(proof: Proof, shape: tuple[int, ...], dtype: str) -> None:
    a, n, items = normal(shape, dtype), shape[-1], int(np.prod(shape[:-2]))
    w, v = proof.run(f"{shape} {dtype}", linalg.eig, a, expected={"geev": items})
    proof.near(f"{shape} {dtype}", far(wide(a) @ v, v * w[..., None, :], largest(a)), n, dtype)
    proof.near("lengths", far(np.linalg.norm(v, axis=-2), 1, 1), n, dtype)
    values = proof.run(f"{shape} {dtype}, values", linalg.eigvals, a, expected={"geev": items})
    traces = np.trace(wide(a), axis1=-2, axis2=-1)
    proof.near("their sums", max(far(each.sum(-1), traces, largest(a)) for each in (values, w)), n, dtype)


def _svd(proof: Proof, a: Any, expected: dict[str, int], full: bool = False, **more: Any) -> None:
    dtype, (m, n) = a.dtype.name, a.shape[-2:]
    name = f"{a.shape} {dtype}{f' {more}' if more else ''}{', full' if full else ''}"
    u, s, vh = proof.run(name, linalg.svd, a, full_matrices=full, expected=expected, **more)
    k = min(m, n)
    assert u.shape[-2:] == (m, m if full else k) and vh.shape[-2:] == (n if full else k, n)
    proof.near(name, far((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], wide(a), largest(a)), max(m, n), dtype)
    proof.near("U^H U", far(h(u) @ u, np.eye(u.shape[-1]), 1), max(m, n), dtype)
    proof.near("V^H V", far(vh @ h(vh), np.eye(vh.shape[-2]), 1), max(m, n), dtype)
    assert np.all(np.diff(s, axis=-1) <= 0), "descending"
    values = proof.run(f"{name}, values", linalg.svdvals, a, expected=expected, **more)
    proof.near("values", far(values, s, largest(a)), max(m, n), dtype)


@pytest.mark.gpu(row="LA-11")
@pytest.mark.parametrize(("shape", "dtype", "expected"), [
    ((2, 32, 32), "float32", {"gesvdj_batched": 1}), ((3, 20, 32), "complex128", {"gesvdj_batched": 1}), ((2, 33, 32), "float32", {"gesvdj": 2}),
    ((2, 32, 33), "float64", {"gesvdj": 2}), ((32, 32), "complex64", {"gesvdj": 1}), ((90, 60), "float32", {"gesvdj": 1}),
])  # fmt: skip
@pytest.mark.parametrize("full", [False, True])
def test_svd(proof: Proof, shape: tuple[int, ...], dtype: str, expected: dict[str, int], full: bool) -> None:
    _svd(proof, normal(shape, dtype), expected, full)


@pytest.mark.gpu(row="LA-11")
def test_what_did_not_converge_is_done_again(proof: Proof) -> None:
    """With one sweep allowed the method gives up, but not on a matrix that is diagonal already."""
    proof.row.expect("only the matrices that did not converge are run again, by gesvd")
    a = normal((3, 48, 40), "float32")
    a[1] = np.eye(48, 40) * np.linspace(2, 1, 40)
    there = proof.xp.asarray(a)
    with watched("cublas", "cusolverDn") as calls:
        linalg.svd(there, full_matrices=False)
        (rotations,) = {each["params"] for each in calls.of("sgesvdj")}
        calls.forget()
        calls.cusolverDn.xgesvdj_set_max_sweeps(rotations, 1)
        try:
            u, s, vh = map(wide, linalg.svd(there, full_matrices=False))
            ran = routines(calls)
        finally:
            calls.cusolverDn.xgesvdj_set_max_sweeps(rotations, 100)
    proof.row.observe(f"{ran} for two random matrices and a diagonal one")
    assert ran["gesvdj"] == 3 and ran["gesvd"] in (2, 3)
    proof.near("all of them", far((u * s[:, None, :]) @ vh, wide(a), largest(a)), 48, "float32")


@pytest.mark.gpu(row="LA-12")
def test_svd_by_a_named_driver(proof: Proof) -> None:
    for shape, dtype in (((48, 32), "float32"), ((2, 20, 36), "complex128"), ((2, 32, 32), "float64")):
        items = int(np.prod(shape[:-2]))
        for full in (False, True):
            _svd(proof, normal(shape, dtype), {"gesvd": items}, full, driver="gesvd")
    _svd(proof, normal((2, 32, 24), "float32"), {"gesvdj_batched": 1}, driver="gesvdj")
    for shape, dtype in (((4, 120, 16), "float32"), ((2, 16, 120), "complex128")):
        _svd(proof, normal(shape, dtype), {"gesvda_strided_batched": 1}, driver="gesvda")
