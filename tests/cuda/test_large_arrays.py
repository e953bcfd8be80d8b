"""Arrays of 2**31 elements and more: what counts with 32 bits is not given them. They only claim such shapes; nothing is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import backline
from backline import fft, libraries, linalg, switches
from backline.errors import LibraryFailed
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.cuda.cublas import library as cublas
from backline.libraries.cuda.cudnn import large_tensors
from backline.libraries.cuda.cufft.transform_sequence import half_refusal
from backline.libraries.cuda.cusolver import workspace_sizes
from backline.libraries.cuda.cusolver.matrix_stacks import LEFT, PLAIN, UPPER, Settings
from backline.libraries.cuda.cusolver.routine_table import Recipe
from backline.libraries.cuda.cusolver.routines import Solver
from backline.libraries.cuda.cusparselt.library import refusal as sparse_refusal
from backline.libraries.cuda.magma import library as magma
from backline.nn import functional as F
from backline.nn import grad as G
from backline.problems.op_registry import operations
from backline.problems.sparse_problem import SparseProblem
from fakes.cupy_standin import ndarray
from fakes.gpu_machine import GpuMachine
from fakes.solver_machine import real_types
from support import clean

real_types()
pytestmark = pytest.mark.usefixtures("clean")
assert clean

BILLION = 1 << 30


def claims(*shape: int, dtype: Any = np.float32, order: tuple[int, ...] = ()) -> ndarray:
    """An array that says it has this shape, contiguous with its axes in an order. There is one element."""
    steps, step = [0] * len(shape), np.dtype(dtype).itemsize
    for axis in reversed(order or range(len(shape))):
        steps[axis] = step
        step *= shape[axis]
    return ndarray(np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, steps))


def problem_of(op: Any, *args: Any, **kwargs: Any) -> Any:
    name = f"{op.__module__}.{op.__qualname__}".removeprefix("backline.")
    return operations[name].build(*args, **kwargs)


def listed(library: str, problem: Any) -> tuple[list[str], dict[str, str]]:
    """Names of the algorithms, and reasons of the refusals by name, that a library lists."""
    found = list(libraries.get(library).algorithms(problem, 1))
    return [a.name for a in found if isinstance(a, Algorithm)], {r.name: r.reason for r in found if isinstance(r, Refusal)}


# --- products ---------------------------------------------------------------------------------------------------------

PRODUCTS: list[tuple[str, tuple[int, ...], tuple[int, ...], str]] = [
    ("sizes", (2 * BILLION, 2), (2, 2), "gemm_ex_64"),
    ("elements", (1 << 16, 1 << 15), (1 << 15, 2), "gemm_ex_64"),
    ("one less", ((1 << 16) - 1, 1 << 15), (1 << 15, 2), "gemm_ex"),
    ("a batch", (2 * BILLION, 2, 2), (2 * BILLION, 2, 2), "gemm_strided_batched_ex_64"),
    ("many small", (BILLION, 2, 2), (BILLION, 2, 2), "gemm_strided_batched_ex"),
]


@pytest.mark.parametrize(("name", "a", "b", "routine"), PRODUCTS, ids=[row[0] for row in PRODUCTS])
def test_cublas_is_called_with_64_bits_where_32_do_not_do(
    machine: GpuMachine, name: str, a: tuple[int, ...], b: tuple[int, ...], routine: str
) -> None:
    problem = problem_of(backline.matmul, claims(*a), claims(*b))
    made = cublas.recipe(problem, "gemm", switches.current(), (9, 0))
    assert made.routine == routine and hasattr(machine.blas.module, routine)


def test_cublaslt_is_not_given_batches_that_it_cannot_count(machine: GpuMachine) -> None:
    problem = problem_of(backline.matmul, claims(2 * BILLION, 2, 2), claims(2 * BILLION, 2, 2))
    algorithms, refused = listed("cublaslt", problem)
    assert not algorithms and refused == {"": f"it counts the items of a batch with 32 bits, and there are {2 * BILLION}"}
    assert listed("cublas", problem)[0]
    assert listed("cublaslt", problem_of(backline.matmul, claims(BILLION, 2, 2), claims(BILLION, 2, 2)))[0]


# --- convolutions and attention ---------------------------------------------------------------------------------------

IMAGES, WEIGHT = (8, 64, 4096, 4096), (8, 64, 3, 3)  # 2**30 elements of an image
LAST = (0, 2, 3, 1)
CONVOLUTIONS: list[tuple[str, Callable[[], Any], str, int]] = [
    ("forward", lambda: problem_of(F.conv2d, claims(*IMAGES), claims(*WEIGHT), padding=1), "", 1),
    ("last", lambda: problem_of(F.conv2d, claims(*IMAGES, order=LAST), claims(*WEIGHT)), "", 1),
    ("the result", lambda: problem_of(F.conv2d, claims(4, 1, 8192, 8192), claims(16, 1, 1, 1)), "", 1),
    ("small enough", lambda: problem_of(F.conv2d, claims(4, 4, 8192, 8191), claims(4, 4, 1, 1)), "", 0),
    ("in threes", lambda: problem_of(F.conv2d, claims(9, 32, 4096, 4096), claims(*WEIGHT[:1], 32, 3, 3)), "", 3),
    ("input's gradient", lambda: problem_of(G.conv2d_input, IMAGES, claims(*WEIGHT), claims(8, 8, 4094, 4094)), "", 1),
    ("transposed", lambda: problem_of(F.conv_transpose2d, claims(4, 16, 4096, 4096), claims(16, 16, 2, 2), stride=2), "", 1),
    ("one image", lambda: problem_of(F.conv2d, claims(2, 128, 4096, 4096), claims(8, 128, 1, 1)), "an image, or its result, has", 0),
    ("a padded image", lambda: problem_of(F.conv2d, claims(1, 127, 4096, 4096), claims(8, 127, 3, 3), padding=64), "an image", 0),
    ("a weight", lambda: problem_of(F.conv2d, claims(1, 1 << 16, 8, 8), claims(1 << 15, 1 << 16, 1, 1)), "the weight has", 0),
    ("weight's gradient", lambda: problem_of(G.conv2d_weight, claims(*IMAGES), WEIGHT, claims(8, 8, 4094, 4094)), "summed over the batch", 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "why", "at_once"), CONVOLUTIONS, ids=[row[0] for row in CONVOLUTIONS])
def test_cudnn_is_given_a_part_of_the_batch_or_nothing(
    machine: GpuMachine, name: str, make: Callable[[], Any], why: str, at_once: int
) -> None:
    problem = make()
    algorithms, refused = listed("cudnn", problem)
    if why:
        assert not algorithms and why in refused[""] and "32 bits" in refused[""]
        assert "im2col" in listed("cublas", problem)[0], "the next library takes over"
        return
    assert algorithms and large_tensors.images_at_once(problem) == at_once
    if at_once:
        cut = large_tensors.part(problem, at_once)
        assert large_tensors.images_at_once(cut) == 0 and cut.batch == at_once and cut.operands[-1].role == "out"
        assert cut.last == problem.last


def test_explain_says_why_cudnn_has_no_part_in_it(machine: GpuMachine) -> None:
    choice = backline.explain(F.conv2d, claims(2, 128, 4096, 4096), claims(8, 128, 1, 1))
    assert choice.chosen.library == "cublas"
    assert any(c.library == "cudnn" and "32 bits" in c.reason for c in choice.candidates)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", ["forward", "transposed", "input's gradient"])
def test_parts_of_a_batch_come_to_the_same(
    machine: GpuMachine, monkeypatch: pytest.MonkeyPatch, name: str, given: bool, last: bool
) -> None:
    rng = np.random.default_rng(3)

    def images(*shape: int) -> ndarray:
        x = rng.integers(-4, 5, shape).astype(np.float32)
        return ndarray(np.ascontiguousarray(x.transpose(LAST)).transpose(0, 3, 1, 2) if last else x)

    def run(out: Any) -> Any:
        more = {} if out is None else {"out": out}
        if name == "forward":
            return F.conv2d(x, w, b, padding=1, activation="relu", residual=r, **more)
        if name == "transposed":
            return F.conv_transpose2d(x, ndarray(w.host.swapaxes(0, 1).copy()), **more)
        return G.conv2d_input((5, 4, 6, 6), w, r, padding=1, **more)

    x, w, b = images(5, 4, 6, 6), ndarray(rng.integers(-4, 5, (3, 4, 3, 3)).astype(np.float32)), ndarray(np.ones(3, np.float32))
    r = images(5, 3, 6, 6)
    wanted = run(None)
    machine.log.clear()
    monkeypatch.setattr(large_tensors, "LARGEST", 2 * 4 * 8 * 8)  # two images of a padded size
    backline.engine.plan_caches.clear()
    out = images(*wanted.shape) if given and name != "input's gradient" else None
    found = run(out)
    assert out is None or found is out
    np.testing.assert_array_equal(found.host, wanted.host)
    assert len([n for n, _ in machine.log if n == "execute"]) == 3


ATTENTION: list[tuple[str, Callable[[], Any], str]] = [
    ("queries", lambda: problem_of(F.scaled_dot_product_attention, *(claims(64, 64, 8192, 64, dtype=np.float16),) * 3), "query spans"),
    ("a mask", lambda: problem_of(
        F.scaled_dot_product_attention, *(claims(4, 8, 16384, 64, dtype=np.float16),) * 3, claims(4, 1, 16384, 32768, dtype=bool)[..., :16384],
    ), ""),
    ("a larger mask", lambda: problem_of(
        F.scaled_dot_product_attention, *(claims(16, 8, 16384, 64, dtype=np.float16),) * 3, claims(16, 1, 16384, 16384, dtype=bool),
    ), "mask spans"),
    ("enough", lambda: problem_of(F.scaled_dot_product_attention, *(claims(63, 32, 8192, 64, dtype=np.float16),) * 3), ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "why"), ATTENTION, ids=[row[0] for row in ATTENTION])
def test_attention_of_such_sizes_is_not_given_to_cudnn(machine: GpuMachine, name: str, make: Callable[[], Any], why: str) -> None:
    reason = large_tensors.attention_refusal(make())
    assert (why in reason and "32 bits" in reason) if why else not reason
    if why:
        algorithms, refused = listed("cudnn", make())
        assert not algorithms and reason in refused.values()


def test_depthwise_kernels_count_along_an_axis_with_32_bits(machine: GpuMachine) -> None:
    long = problem_of(F.conv1d, claims(1, 2, 2 * BILLION), claims(2, 1, 3), groups=2)
    assert listed("cublas", long)[0] == ["im2col_tf32", "im2col"]
    wide = problem_of(F.conv2d, claims(1, 2, 1 << 16, 1 << 16), claims(2, 1, 3, 3), groups=2)
    assert "depthwise" in listed("cublas", wide)[0], "it counts elements with 64"


# --- linear algebra ---------------------------------------------------------------------------------------------------

SOLVERS: list[tuple[str, Callable[[], Any], list[str], set[str]]] = [
    ("cholesky", lambda: problem_of(linalg.cholesky, claims(2, 50000, 50000)), ["potrf"], {"potrf_batched"}),
    ("solve", lambda: problem_of(linalg.solve, claims(50000, 50000), claims(50000, 3)), ["getrf+trsm+trsm", "getrf+getrs"], {"getrs_batched"}),
    ("triangle", lambda: problem_of(linalg.solve_triangular, claims(50000, 50000), claims(50000, 3), upper=True), ["trsm", "trsm_batched"], set()),
    ("qr", lambda: problem_of(linalg.qr, claims(1 << 20, 1 << 12)), [], {"orgqr"}),
    ("r", lambda: problem_of(linalg.qr, claims(1 << 20, 1 << 12), mode="r"), ["geqrf", "geqrf_any_order"], set()),
    ("complete", lambda: problem_of(linalg.qr, claims(50000, 8), mode="complete"), [], {"orgqr"}),
    ("reduced", lambda: problem_of(linalg.qr, claims(50000, 8)), ["geqrf+orgqr", "geqrf+orgqr_any_order"], set()),
    ("eigh", lambda: problem_of(linalg.eigh, claims(50000, 50000)), ["syevd", "syevd_any_order"], set()),
    ("batch of eigh", lambda: problem_of(linalg.eigh, claims(1 << 21, 32, 32)), ["syevd", "syevd_any_order"], {"syevj_batched"}),
    ("svd", lambda: problem_of(linalg.svd, claims(50000, 50000)), ["gesvd"], {"gesvdj"}),
    ("tall", lambda: problem_of(linalg.svd, claims(50000, 8), full_matrices=False), ["gesvdj", "gesvdj_any_order", "gesvd"], set()),
    ("batch of svd", lambda: problem_of(linalg.svdvals, claims(1 << 21, 32, 32)), ["gesvdj", "gesvdj_any_order", "gesvd"], {"gesvdj_batched"}),
    ("gesvda", lambda: problem_of(linalg.svd, claims(1 << 20, 64, 64), full_matrices=False, driver="gesvda"), [], {"gesvda"}),
    ("lstsq", lambda: problem_of(linalg.lstsq, claims(1 << 20, 1 << 12), claims(1 << 20, 1)), [], {"ormqr"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "left", "without"), SOLVERS, ids=[row[0] for row in SOLVERS])
def test_routines_with_32_bit_integers_are_not_given_more_elements(
    machine: GpuMachine, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[], Any], left: list[str], without: set[str]
) -> None:
    from backline.libraries.cuda.cusolver.library import listed as solvers

    found = list(solvers(make(), (11, 6, 0), "default"))
    names = [a.name for a in found if isinstance(a, Algorithm)]
    assert names == left
    refused = {r.name: r.reason for r in found if isinstance(r, Refusal)}
    assert without <= set(refused) and all("32 bits" in refused[name] for name in without)
    assert not any(way in algorithm.split("+") for way in refused for algorithm in names)


def test_triangles_with_so_many_elements_are_solved_with_64_bit_integers(machine: GpuMachine) -> None:
    called: list[str] = []
    for name in ("strsm", "strsm_64", "strsm_batched", "strsm_batched_64"):
        machine.blas.answers[name] = lambda name=name, **_: called.append(name)
    try:
        for n, columns, batched in ((50000, 3, False), (40000, 3, False), (3, 2 * BILLION - 1, False), (50000, 3, True), (40000, 3, True)):
            solver = Solver(Settings(Recipe((), ()), 0, np.dtype(np.float32), False, 0))
            solver.trsm(LEFT, UPPER, PLAIN, False, 4096, 0, n, claims(1, columns, n), batched=batched)
    finally:
        for name in ("strsm", "strsm_64", "strsm_batched", "strsm_batched_64"):
            machine.blas.answers.pop(name)
        machine.blas.answers |= {n: a for n, a in machine.numbers.blas.items() if "trsm" in n}
    assert called == ["strsm_64", "strsm", "strsm_64", "strsm_batched_64", "strsm_batched"]


def test_a_workspace_whose_size_overflowed_is_an_error() -> None:
    with pytest.raises(LibraryFailed, match=r"cannot tell the size of its workspace[\s\S]*-2147"):
        workspace_sizes.size_of(object(), 0, "dorgqr", (1,), lambda: -2147483000)


def test_magma_with_32_bit_integers_is_not_given_them(machine: GpuMachine) -> None:
    there, wide = (lambda name: True), np.dtype(np.int64)
    rows = [
        (problem_of(linalg.lu_factor, claims(50000, 50000)), False), (problem_of(linalg.lu_factor, claims(40000, 40000)), True),
        (problem_of(linalg.eigh, claims(40000, 40000)), False), (problem_of(linalg.eigh, claims(32000, 32000)), True),
        (problem_of(linalg.svdvals, claims(40000, 40000)), False), (problem_of(linalg.svd, claims(50000, 2)), False),
        (problem_of(linalg.svd, claims(50000, 2), full_matrices=False), True),
        (problem_of(linalg.solve, claims(4, 4), claims(4, BILLION)), False),
    ]  # fmt: skip
    for problem, able in rows:
        (first, *_) = magma.listed(problem, there)
        assert isinstance(first, Algorithm) == able, problem.key
        assert able or "32 bits" in first.reason
        assert isinstance(next(magma.listed(problem, there, wide)), Algorithm)


# --- transforms and sparse matrices -----------------------------------------------------------------------------------


def test_float16_transforms_span_no_more_than_nvidia_says(machine: GpuMachine) -> None:
    small, large = (problem_of(fft.fft, claims(n, 1 << 16, dtype=np.float16)) for n in (1 << 15, 1 << 16))
    assert not half_refusal(small, (9, 0)) and "4000000000 elements" in half_refusal(large, (9, 0))
    assert listed("cufft", large)[0] == ["plan"], "in float32 it is not limited"


@pytest.mark.parametrize(("dtype", "m", "k", "n", "why"), [
    ("float16", 1 << 16, 1 << 15, 64, "the sparse matrix has"), ("float16", 1 << 14, 1 << 15, 1 << 16, "the dense matrix has"),
    ("float16", 1 << 15, 64, 1 << 16, "the result has"), ("int8", 1 << 16, 1 << 15, 64, ""), ("int8", 1 << 16, 1 << 16, 64, "the sparse matrix"),
    ("int8", 1 << 15, 64, 1 << 15, "the result has"), ("float16", 1 << 15, 1 << 15, 1 << 15, ""),
])  # fmt: skip
def test_cusparselt_is_not_given_more_than_it_says_it_takes(dtype: str, m: int, k: int, n: int, why: str) -> None:
    b = replace(backline.problems.operand("b", np.zeros((1, 1), dtype)), shape=(k, n), strides=(n * np.dtype(dtype).itemsize, np.dtype(dtype).itemsize))
    reason = sparse_refusal(SparseProblem("sparse.matmul", (b,), m=m, k=k, n=n, device="cuda:0"), (9, 0), 800)
    assert (why in reason) if why else not reason
