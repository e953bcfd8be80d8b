"""Linear algebra and sums that are made of other operations: on the device, against NumPy's own functions in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, linalg
from backline.errors import BadType, NoKernel
from gpu.arrays import normal, wide
from gpu.layers import EQUATIONS, LAYOUTS, NEAR, away, laid

DTYPES = ("float32", "float64", "complex64", "complex128")


def norms(a: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields what is asked, the call on the device, and what NumPy makes of it."""
    for order in (2, 1, 0, np.inf, -np.inf, 3, -1):
        yield f"vector_norm {order}", lambda x, order=order: linalg.vector_norm(x, order, -1), np.linalg.norm(a, order, -1)
    yield "vector_norm of all", lambda x: linalg.vector_norm(x), np.linalg.norm(a.ravel())
    for order in ("fro", "nuc", 2, -2, 1, -1, np.inf, -np.inf):
        kept = np.linalg.norm(a, order, (-2, -1), True)
        yield f"matrix_norm {order}", lambda x, order=order: linalg.matrix_norm(x, order, (-2, -1), True), kept
        yield (
            f"matrix_norm {order}, axes",
            lambda x, order=order: linalg.matrix_norm(x, order, (2, 0)),
            np.linalg.norm(a, order, (2, 0)),
        )


def algebra(a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    """As `norms`: of square matrices that are far from singular, and of others."""
    yield "det", lambda x, y: linalg.det(x), np.linalg.det(a)
    yield "slogdet", lambda x, y: tuple(linalg.slogdet(x)), tuple(np.linalg.slogdet(a))
    yield "pinv", lambda x, y: linalg.pinv(y), np.linalg.pinv(b)
    for p in (None, 2, -2, "fro", 1, np.inf):
        yield f"cond {p}", lambda x, y, p=p: linalg.cond(x, p), np.linalg.cond(a, p)
    for n in (0, 1, 5, -2):
        yield f"matrix_power {n}", lambda x, y, n=n: linalg.matrix_power(x, n), np.linalg.matrix_power(a, n)
    yield "matrix_rank", lambda x, y: linalg.matrix_rank(y), np.linalg.matrix_rank(b)
    yield "lu", lambda x, y: _product(linalg.lu(y)), b
    chain = [a[0], a[0, :, :3], b[0, :3]]
    yield "multi_dot", lambda x, y: linalg.multi_dot([x[0], x[0, :, :3], y[0, :3]]), np.linalg.multi_dot(chain)
    yield "tensordot", lambda x, y: backline.tensordot(x, y, ([0, 2], [0, 1])), np.tensordot(a, b, ([0, 2], [0, 1]))


def _product(factors: Any) -> Any:
    return backline.matmul(backline.matmul(factors.P, factors.L), factors.U)


@pytest.mark.gpu(row="ELEM-2")
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_algebra(row: Any, xp: Any, size: Any, dtype: str) -> None:
    row.expect(
        "norms, det, slogdet, pinv, cond, matrix_rank, matrix_power, lu, multi_dot and tensordot are near NumPy's in float64"
    )
    n, k = size((48, 20), (6, 4))
    a, b = normal((3, n, n), dtype, 1) / (2 * n**0.5), normal((3, n, k), dtype, 2)
    a = (a + np.eye(n)).astype(b.dtype)
    worst, where = 0.0, ""
    for given, cases in (((b,), norms(wide(b))), ((a, b), algebra(wide(a), wide(b)))):
        for name, call, expected in cases:
            found = call(*map(xp.asarray, given))
            far = away(found, expected, dtype, f"{name} {dtype}")
            worst, where = max((worst, where), (far, name))
            assert far < 10 * n, f"{name} {dtype}: {far}"
    row.observe(f"{dtype}: farthest {where}", f"{worst:.2g} of {10 * n}, in units of {NEAR[dtype]:g}")


@pytest.mark.gpu(row="ELEM-2")
def test_special_matrices(row: Any, xp: Any) -> None:
    row.expect("singular, empty and huge matrices have the values that NumPy's have")
    ones = xp.ones((3, 3), np.float32)
    assert float(linalg.det(ones)) == 0 and float(linalg.slogdet(ones).logabsdet) == -np.inf
    assert float(linalg.cond(xp.zeros((2, 2), np.float32), 1)) == np.inf and int(linalg.matrix_rank(ones)) == 1
    empty = xp.zeros((2, 0, 0))
    expected = {
        linalg.det: np.ones(2),
        linalg.pinv: np.zeros((2, 0, 0)),
        linalg.matrix_rank: np.zeros(2),
        linalg.cond: np.zeros(2),
    }
    for function, of_nothing in expected.items():
        assert away(function(empty), of_nothing, "float64", function.__name__) == 0
    assert away(tuple(linalg.slogdet(empty)), (np.ones(2), np.zeros(2)), "float64", "slogdet") == 0
    huge = np.array([3e38 / 4, 1e38], np.float32)
    assert away(linalg.vector_norm(xp.asarray(huge)), np.linalg.norm(wide(huge)), "float32", "huge") < 4
    tolerances = linalg.matrix_rank(xp.asarray(np.stack([np.diag([1.0, 0.1])] * 2)), atol=xp.asarray(np.array([0.5, 0.0])))
    assert tolerances.get().tolist() == [1, 2]
    row.observe("as NumPy's")


@pytest.mark.gpu(row="ELEM-2")
@pytest.mark.parametrize(
    ("dtype", "layout"), [(d, "C") for d in (*DTYPES, "float16", "bfloat16")] + [("float32", lay) for lay in LAYOUTS[1:]]
)
def test_einsum(row: Any, xp: Any, dtype: str, layout: str) -> None:
    row.expect("einsum's steps are products of cuBLAS, and sums and products of elements; near NumPy's einsum in float64")
    worst, where = 0.0, ""
    for equation, *shapes in EQUATIONS:
        arrays = [normal(shape, dtype, i) for i, shape in enumerate(shapes)]
        found = backline.einsum(equation, *(laid(xp, x, layout) for x in arrays))
        far = away(found, np.einsum(equation, *map(wide, arrays)), dtype, f"{equation} {dtype} {layout}")
        worst, where = max((worst, where), (far, equation))
        assert far < 8, f"{equation} {dtype} {layout}: {far}"
    row.observe(f"{dtype} {layout}: {len(EQUATIONS)} equations, farthest {where}", f"{worst:.2g} of 8")


@pytest.mark.gpu(row="ELEM-2")
def test_einsum_of_many_operands(row: Any, xp: Any, size: Any) -> None:
    row.expect(
        "a chain is contracted in the order that opt_einsum finds; the second call makes no new plan; an output is written to"
    )
    n = size(96, 6)
    arrays = [normal(shape, "float32", i) for i, shape in enumerate(((n, 8), (8, n), (n, 2, n), (2, n)))]
    there = [xp.asarray(x) for x in arrays]
    equation = "ab,bc,cde,de->ae"
    expected = np.einsum(equation, *map(wide, arrays), optimize=True)
    assert away(backline.einsum(equation, *there) / n, expected / n, "float32", equation) < 16
    first = backline.explain()
    out = xp.zeros((n, n), np.float32)
    assert backline.einsum(equation, *there, out=out) is out and away(out / n, expected / n, "float32", "out") < 16
    before = _core.memo_info()["misses"]
    assert away(backline.einsum(equation, *there) / n, expected / n, "float32", equation) < 16
    assert _core.memo_info()["misses"] == before and "product" in {step.kind for step in first.steps}
    square = xp.asarray(arrays[3][:, :2].copy())
    turned = square.get().T
    assert np.array_equal(backline.einsum("ij->ji", square, out=square).get(), turned), "an operand that is the output"
    row.observe(f"path {first.path}, {first.chosen.name}", first.basis)


@pytest.mark.gpu(row="ELEM-2")
def test_what_is_refused(row: Any, xp: Any) -> None:
    row.expect("integers, and arrays of two kinds, are refused: nothing goes to the host behind anybody's back")
    whole, real = xp.ones((2, 2), np.int32), xp.ones((2, 2), np.float32)
    for call in (lambda: backline.einsum("ij,jk", whole, whole), lambda: backline.tensordot(whole, whole, 1)):
        with pytest.raises(NoKernel):
            call()
    mixed = lambda: backline.einsum("ij,jk", real, real.get()), lambda: linalg.vector_norm(real, out=np.zeros((), np.float32))
    for call in (lambda: linalg.det(whole), lambda: linalg.vector_norm(whole), *mixed):
        with pytest.raises(BadType):
            call()
    row.observe("refused")
