"""Numbers of the recorded calls: each is computed by NumPy, with the addresses, leading dimensions and steps it was given."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from backline import libraries
from backline.engine import accuracy
from backline.libraries.base import Algorithm
from backline.problems.op_registry import operations
from fakes.computing import Blas, Lt
from fakes.cupy_standin import H100, CuPy, ndarray
from fakes.insert import inserted
from support import LAYOUTS, clean, dtype_of, new_seed, random_array, spread

real = pytest.importorskip("nvmath.bindings.cublas")
real_lt = pytest.importorskip("nvmath.bindings.cublasLt")
pytestmark = pytest.mark.usefixtures("clean", "machine")
assert clean

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
LIBRARIES = ("cublas", "cublaslt")
OPS: dict[str, tuple[tuple[int, ...], ...]] = {
    "mm": ((5, 4), (4, 3)),
    "mv": ((5, 4), (4,)),
    "dot": ((7,), (7,)),
    "vdot": ((7,), (7,)),
    "outer": ((5,), (3,)),
    "bmm": ((3, 5, 4), (3, 4, 2)),
    "matmul": ((2, 3, 5, 4), (4, 2)),
}


@pytest.fixture
def machine() -> Iterator[None]:
    with inserted(cupy=CuPy(H100), cublas=Blas(real), cublasLt=Lt(real_lt)):
        yield


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(new_seed())


def expected_of(problem: Any, hosts: list[Any], size: bool = False) -> Any:
    """The result in float64 or complex128, from the operands as the Problem sees them; of their sizes, how large its terms are together."""
    kind = np.complex128 if problem.dtype.kind == "c" else np.float64
    seen = {o.role: np.lib.stride_tricks.as_strided(h, o.shape, o.strides).astype(kind) for o, h in zip(problem.operands, hosts, strict=True)}
    alpha, beta = problem.parameter("alpha", 1), problem.parameter("beta", 0)
    if size:
        seen, alpha, beta = {role: np.abs(array) for role, array in seen.items()}, abs(alpha), abs(beta)
    a = seen["a"].conj() if problem.parameter("conj") else seen["a"]
    total = alpha * (a @ seen["b"])
    if beta != 0:
        total = total + beta * seen["c"].reshape(total.shape)
    for role in ("bias", "residual"):
        total = total + seen[role] if role in seen else total
    activation = problem.parameter("activation") if not size else None
    if activation == "relu":
        total = np.maximum(total, 0)
    elif activation == "gelu_tanh":
        total = 0.5 * total * (1 + np.tanh(np.sqrt(2 / np.pi) * (total + 0.044715 * total**3)))
    return total.reshape(problem.result)


def check(op: str, library: str, *args: Any, **kwargs: Any) -> int:
    """Every algorithm that a library lists for a call, against float64; how many there are."""

    def on_device(value: Any) -> Any:
        return ndarray(value) if isinstance(value, np.ndarray) else value

    given, named = tuple(map(on_device, args)), {name: on_device(value) for name, value in kwargs.items()}
    problem = operations[op].build(*given, **named)
    hosts = [v for v in (*args, *kwargs.values()) if isinstance(v, np.ndarray)]
    expected = expected_of(problem, hosts)
    # Of the terms, not of their sum: that may be next to nothing.
    scale = max(float(np.max(expected_of(problem, hosts, size=True), initial=0)), 1e-30)
    found = [a for a in libraries.get(library).algorithms(problem, 1) if isinstance(a, Algorithm)]
    before = [h.copy() for h in hosts]
    for algorithm in found:
        plan = libraries.get(library).prepare(problem, algorithm)
        for host, copy in zip(hosts, before, strict=True):
            if host.flags.writeable:
                host[...] = copy
        result = plan(*(v for v in (*given, *named.values()) if isinstance(v, ndarray)))
        assert type(result) is ndarray and result.dtype == problem.dtype and result.shape == np.shape(expected)
        host = result.host
        wide = host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)
        error = float(np.max(np.abs(wide - expected), initial=0)) / scale
        assert error <= accuracy.bound(problem, algorithm.precision), f"{algorithm.key}: {error}"
        for each, copy in zip(hosts, before, strict=True):
            if each is not kwargs.get("out"):
                assert np.array_equal(each, copy, equal_nan=True), "operands stay as they are"
    return len(found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_operation_and_layout(op: str, dtype: str, library: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    left, right = (random_array(rng, shape, kind) for shape in OPS[op])
    layouts = [name for name in LAYOUTS if name != "misaligned"]
    pairs = product(layouts, layouts) if dtype == "float32" else zip(layouts, reversed(layouts), strict=True)
    for one, two in pairs:
        assert check(op, library, LAYOUTS[one](left), LAYOUTS[two](right)) >= 1
    assert check(op, library, spread(left), right) and check(op, library, left, spread(right, 0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_outputs_of_every_layout(dtype: str, library: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for op, shapes in OPS.items():
        left, right = (random_array(rng, shape, kind) for shape in shapes)
        result = np.outer(left, right) if op == "outer" else np.asarray(left @ right)
        for name, lay in LAYOUTS.items():
            if name != "misaligned":
                assert check(op, library, left, right, out=lay(np.zeros(result.shape, kind)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 4, 3), (5, 1, 3), (5, 4, 1), (1, 1, 4), (0, 4, 3), (5, 0, 3), (5, 4, 0)])
def test_sizes_of_one_and_none(dtype: str, library: str, sizes: tuple[int, int, int], rng: np.random.Generator) -> None:
    kind, (m, n, k) = dtype_of(dtype), sizes
    left, right = random_array(rng, (m, k), kind), random_array(rng, (k, n), kind)
    for lay in ("C", "F", "negative rows", "steps"):
        assert check("mm", library, LAYOUTS[lay](left), LAYOUTS[lay](right))
    assert check("matmul", library, random_array(rng, (2, m, k), kind), right)
    c = random_array(rng, (n,), kind)
    if min(m, n, k):  # an empty bias is the one thing that cuBLASLt leaves to the other library
        assert check("addmm", library, c, left, right, beta=1)
    assert check("addmm", library, random_array(rng, (m, n), kind), left, right, beta=2, alpha=0.5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128"])
@pytest.mark.parametrize(
    ("left", "right", "lt"),
    [((5, 4, 3), (3, 2), True), ((4, 3), (5, 3, 2), True), ((2, 5, 4, 3), (1, 1, 3, 2), True), ((2, 1, 4, 3), (5, 3, 2), False),
     ((2, 5, 4, 3), (5, 3, 2), False), ((1, 4, 3), (6, 3, 2), True), ((2, 1, 3, 4, 3), (2, 1, 3, 2), False)],
)  # fmt: skip
def test_batches_that_broadcast(dtype: str, left: Any, right: Any, lt: bool, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    x, y = random_array(rng, left, kind), random_array(rng, right, kind)
    for lay in ("C", "F", "batch last", "steps"):
        assert check("matmul", "cublas", LAYOUTS[lay](x), LAYOUTS[lay](y))
    assert bool(check("matmul", "cublaslt", x, y)) is lt
    shape = np.matmul(x, y).shape
    assert check("matmul", "cublas", x, y, out=np.zeros(shape, kind)[::-1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("shape", [(5, 3), (3,), (5, 1), (1, 3), (1,)])
def test_c_of_every_shape(dtype: str, library: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    left, right, c = (random_array(rng, s, kind) for s in ((5, 4), (4, 3), shape))
    for beta, alpha in ((1, 1), (0.5, 2), (0, 1)):
        for lay in ("C", "F", "negative columns", "steps"):
            assert check("addmm", library, LAYOUTS[lay](c) if c.ndim > 1 else c, LAYOUTS[lay](left), right, beta=beta, alpha=alpha)
            out = LAYOUTS[lay](np.zeros((5, 3), kind))
            assert check("addmm", library, c, left, right, beta=beta, alpha=alpha, out=out)
    if dtype.startswith("complex"):
        assert check("addmm", library, c, left, right, beta=1 - 2j, alpha=0.5j)
    batch = random_array(rng, (2, 5, 4), kind), random_array(rng, (2, 4, 3), kind)
    assert check("baddbmm", library, c, *batch, beta=0.5, alpha=-1)


@pytest.mark.parametrize("library", LIBRARIES)
def test_c_that_does_not_count_may_hold_anything(library: str, rng: np.random.Generator) -> None:
    left, right = (random_array(rng, s, dtype_of("float32")) for s in ((5, 4), (4, 3)))
    for c in (np.full((5, 3), np.nan, np.float32), np.full(3, np.inf, np.float32)):
        assert check("addmm", library, c, left, right, beta=0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("leading", [(), (6,), (2, 3)])
def test_gelu_after_a_product(dtype: str, leading: tuple[int, ...], rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    x, weight, bias, residual = (random_array(rng, s, kind) for s in ((*leading, 4), (5, 4), (5,), (*leading, 5)))
    op = "nn.functional.linear"
    for more in ({}, {"residual": residual}):
        assert check(op, "cublaslt", x, weight, bias, activation="gelu_tanh", **more)
        assert check(op, "cublaslt", x, weight, activation="gelu_tanh", **more)
    assert not check(op, "cublaslt", *(each.astype(np.float32) for each in (x, weight, bias)), activation="gelu_tanh")
    assert not check(op, "cublaslt", x, weight, bias, activation="gelu"), "the library has the formula with tanh"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("leading", [(), (6,), (2, 3)])
def test_linear_layers(dtype: str, activation: str | None, leading: tuple[int, ...], rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    x, weight, bias, residual = (random_array(rng, s, kind) for s in ((*leading, 4), (5, 4), (5,), (*leading, 5)))
    op = "nn.functional.linear"
    for lay in ("C", "F", "steps", "negative columns"):
        assert check(op, "cublaslt", LAYOUTS[lay](x), LAYOUTS[lay](weight), LAYOUTS[lay](bias), activation=activation)
        named = {"activation": activation, "residual": LAYOUTS[lay](residual)}
        assert check(op, "cublaslt", x, weight, bias, **named)
        assert check(op, "cublaslt", x, weight, **named, out=LAYOUTS[lay](np.zeros_like(residual)))
        assert check(op, "cublaslt", x, weight, bias, activation=activation, out=LAYOUTS[lay](np.zeros_like(residual)))
    if activation is None:
        assert check(op, "cublas", x, weight, bias) and check(op, "cublas", x, weight)
