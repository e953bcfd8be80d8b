"""2:4 sparse matrices: what they mean, by NumPy; what cuSPARSELt takes; the calls to it, and with a fake that computes, layouts."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import backline
from backline import _core, libraries, sparse, switches
from backline.backends import cusparselt as backend
from backline.errors import BadType, BadValue, LibraryFailed, NoKernel
from backline.libraries import presence
from backline.libraries.base import Refusal
from backline.libraries.cuda.cusparselt.library import VALUES, recipe, refusal
from backline.libraries.reference import reference_sparse
from backline.problems import operand
from backline.problems.sparse_problem import SparseProblem
from backline.sparse import CompressedMatrix, ProductWay
from fakes.cupy_standin import H100, T4, CuPy, ndarray
from fakes.device_memory import placed
from fakes.insert import inserted
from fakes.sparsity import Sparsity
from support import BFLOAT16, clean

real = pytest.importorskip("nvmath.bindings.cusparseLt")
pytestmark = pytest.mark.usefixtures("clean")
assert clean

ALL = ["float16", BFLOAT16, "float32", "float64", "int8"]
ON_DEVICE = ["float16", BFLOAT16, "int8"]


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "i":
        return rng.integers(-128, 128, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def pruned(shape: tuple[int, int], dtype: Any, seed: int = 0) -> np.ndarray:
    result: np.ndarray = sparse.prune_2_4(numbers(shape, dtype, seed))
    return result


# --- meaning, by NumPy ----------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.sampled_from([0, 1, -1, 2, -2, 3, -3.5, 7, -0.0, np.inf, np.nan]), min_size=4, max_size=4), min_size=1, max_size=6))
def test_the_two_largest_of_four_stay(groups: list[list[float]]) -> None:
    x = np.array(groups, float).reshape(1, -1)
    got = sparse.prune_2_4(x).reshape(-1, 4)
    for before, after in zip(groups, got, strict=True):
        size = [np.inf if np.isnan(v) else abs(v) for v in before]
        best = max(combinations(range(4), 2), key=lambda pair: (size[pair[0]] + size[pair[1]], -pair[0], -pair[1])) if np.isfinite(size).all() else None
        stays = [i for i in range(4) if after[i] != 0]
        assert len(stays) <= 2
        assert all(np.array_equal(after[i], before[i], equal_nan=True) for i in stays)
        left = [size[i] for i in range(4) if i not in stays]
        if best is not None:
            assert sum(size[i] for i in stays) == sum(size[i] for i in best)
        assert not left or not stays or max(left) <= min(size[i] for i in stays) or len(stays) < 2


def test_of_equal_ones_the_first_stay_and_a_nan_before_all() -> None:
    x = np.array([[1.0, -1, 1, 1], [1, np.inf, np.nan, np.inf], [0, 0, 0, 5], [-2, 1, -3, 2]])
    assert np.array_equal(sparse.prune_2_4(x), [[1, -1, 0, 0], [0, np.inf, np.nan, 0], [0, 0, 0, 5], [-2, 0, -3, 0]], equal_nan=True)
    low = np.array([[-128, 127, 126, -127]], np.int8)
    assert sparse.prune_2_4(low).tolist() == [[-128, 127, 0, 0]]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(1, 4), (3, 12), (16, 32), (5, 64), (0, 8), (4, 0)])
def test_a_compressed_matrix_has_all_that_is_not_zero(dtype: Any, shape: tuple[int, int]) -> None:
    x = pruned(shape, dtype)
    assert x.dtype == dtype and x.flags.c_contiguous
    a = sparse.compress(x)
    values, metadata = a.parts
    assert (a.shape, a.dtype, values.dtype, metadata.dtype) == (shape, np.dtype(dtype), x.dtype, np.uint8)
    assert values.shape == (shape[0], shape[1] // 2) and metadata.shape == (shape[0], (shape[1] // 4 + 1) // 2)
    assert a.nbytes == values.nbytes + metadata.nbytes
    columns = reference_sparse.places(metadata, shape[1])
    assert (np.diff(columns.reshape(shape[0], shape[1] // 4, 2)) > 0).all(), "in order, and no place twice"
    back = np.zeros_like(x)
    np.put_along_axis(back, columns, values, -1)
    assert np.array_equal(back, x)


@pytest.mark.parametrize("dtype", ALL)
def test_every_pattern_of_two_in_four(dtype: Any) -> None:
    patterns = [list(c) for n in range(3) for c in combinations(range(4), n)]
    x = np.zeros((len(patterns), 4), dtype)
    for row, where in zip(x, patterns, strict=True):
        row[where] = 3
    b = numbers((4, 5), dtype)
    exact = 3 * (x.astype(np.float64) != 0) @ b.astype(np.float64)
    got = (sparse.compress(x) @ b).astype(np.float64)
    rounding = {"int8": 0, "float16": 2**-11, "float32": 2**-24, "float64": 2**-51}.get(str(dtype), 2**-8)
    assert (np.abs(got - exact) <= rounding * np.abs(exact)).all() or (dtype == "float64" and np.abs(got - exact).max() < 1e-14)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("layout", ["C", "F", "steps", "backwards"])
def test_a_product_is_that_of_the_matrix(dtype: Any, layout: str) -> None:
    x = pruned((6, 40), dtype)
    b = {"C": numbers((40, 7), dtype), "F": np.asfortranarray(numbers((40, 7), dtype)), "steps": numbers((80, 14), dtype)[::2, ::2],
         "backwards": numbers((40, 7), dtype)[::-1, ::-1]}[layout]  # fmt: skip
    wide = np.int64 if dtype == "int8" else np.float64
    exact = x.astype(wide) @ b.astype(wide)
    a = sparse.compress(x[:, ::1] if layout == "C" else np.asfortranarray(x))
    got = sparse.matmul(a, b)
    assert got.dtype == (np.int32 if dtype == "int8" else np.dtype(dtype)) and got.flags.c_contiguous
    rounding = {"int8": 0, "float16": 2**-11, "float32": 2**-24, "float64": 2**-49}.get(str(dtype), 2**-8)
    assert np.abs(got.astype(wide) - exact).max() <= rounding * np.abs(exact).max()
    out = np.zeros((12, 7), got.dtype)[::2]
    assert sparse.matmul(a, b, out=out) is out and np.array_equal(out, got)


def test_what_was_left_out_takes_no_part() -> None:
    x = np.array([[1.0, 0, 2, 0]])
    b = np.array([[1.0], [np.inf], [2.0], [np.nan]])
    assert sparse.matmul(sparse.compress(x), b).tolist() == [[5.0]]


def test_nothing_to_compute() -> None:
    assert sparse.matmul(sparse.compress(np.zeros((0, 8))), np.zeros((8, 3))).shape == (0, 3)
    assert sparse.matmul(sparse.compress(np.zeros((2, 0))), np.zeros((0, 3))).tolist() == [[0] * 3] * 2
    assert sparse.matmul(sparse.compress(np.zeros((2, 4))), np.zeros((4, 0))).shape == (2, 0)


def test_a_copy_is_made_of_everything() -> None:
    x = pruned((4, 8), "float32")
    a = sparse.compress(x)
    before = a.parts[0].copy()
    x[...] = 9
    assert np.array_equal(a.parts[0], before) and repr(a) == "<2:4 sparse f32 4x8>"
    assert sparse.to_sparse_semi_structured(before * 0).shape == (4, 4)


@pytest.mark.parametrize(("call", "kind", "words"), [
    (lambda: sparse.prune_2_4(np.zeros((4, 6))), BadValue, "6 columns"),
    (lambda: sparse.prune_2_4(np.zeros(8)), BadValue, "must be a matrix"),
    (lambda: sparse.prune_2_4(np.zeros((4, 4), complex)), BadType, "complex128"),
    (lambda: sparse.prune_2_4([[1.0] * 4]), BadType, "must be a NumPy array"),
    (lambda: sparse.compress(np.ones((4, 8))), BadValue, "row 0 more than two of columns 0 to 3"),
    (lambda: sparse.compress(np.array([[1.0, 0, 0, 0, 1, 1, 0, 1]])), BadValue, "row 0 more than two of columns 4 to 7"),
    (lambda: sparse.compress(np.array([[1.0, np.nan, np.nan, 0]])), BadValue, "not 2:4 sparse"),
    (lambda: sparse.compress(np.zeros((4, 8)), check=1), BadType, "check"),
    (lambda: sparse.matmul(np.zeros((4, 8)), np.zeros((8, 2))), BadType, "CompressedMatrix"),
    (lambda: sparse.matmul(A, np.zeros((4, 2))), BadValue, "do not fit"),
    (lambda: sparse.matmul(A, np.zeros(8)), BadValue, "must be a matrix"),
    (lambda: sparse.matmul(A, np.zeros((8, 2), np.float32)), BadType, "float32"),
    (lambda: sparse.matmul(A, np.zeros((8, 2)), out=np.zeros((4, 3))), BadValue, "out"),
    (lambda: sparse.matmul(A, np.zeros((8, 2)), way=(0, 1, 2)), BadType, "ProductWay"),
    (lambda: sparse.matmul(A, np.zeros((8, 2)), way=ProductWay(-1)), BadValue, "alg_id"),
    (lambda: sparse.matmul(A, np.zeros((8, 2)), way=ProductWay(0, 0)), BadValue, "split_k"),
    (lambda: sparse.matmul(A, np.zeros((8, 2)), way=ProductWay(3)), NoKernel, "cuSPARSELt"),
    (lambda: np.zeros((2, 4)) @ A, TypeError, "unsupported operand"),
])  # fmt: skip
def test_what_is_wrong_is_refused(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


A = CompressedMatrix((np.zeros((4, 4)), np.full((4, 1), 0x44, np.uint8)), (4, 8), np.dtype(float))


def test_an_output_that_overlaps_is_refused() -> None:
    b = np.zeros((8, 8))
    with pytest.raises(BadValue, match="overlap"):
        sparse.matmul(A, b, out=b[:4])


def test_explain_takes_what_the_functions_take() -> None:
    b = np.zeros((8, 2))
    choice = backline.explain(sparse.matmul, A, b)
    assert (choice.library, choice.problem.op, choice.problem.family) == ("numpy", "sparse.matmul", "sparse")
    assert backline.explain(sparse.search, A, b).problem.op == "sparse.search"
    assert backline.explain(sparse.compress, b.T).problem.op == "sparse.compress"
    assert backline.explain("sparse.prune_2_4", b.T).library == "numpy"
    assert sparse.search(A, b) == ProductWay(0, 1, 2) and sparse.matmul(A, b, way=ProductWay()).shape == (4, 2)


# --- decisions ------------------------------------------------------------------------------------------------------


def problem(m: int, k: int, b: np.ndarray | None = None, dtype: Any = "float16", out: np.ndarray | None = None, **parameters: int) -> SparseProblem:
    if b is None:
        return SparseProblem("sparse.compress", (operand("input", np.zeros((m, k), dtype)),), (), "sparse", m=m, k=k, device="cuda:0")
    operands = [operand("part", np.zeros(8, np.uint8)), operand("b", b), *([] if out is None else [operand("out", out)])]
    return SparseProblem(
        "sparse.matmul", tuple(operands), tuple(parameters.items()), "sparse", m=m, k=k, n=b.shape[1], device="cuda:0"
    )


@pytest.mark.parametrize(("asked", "capability", "version", "words"), [
    (problem(16, 32), (9, 0), 800, ""),
    (problem(16, 32), (8, 0), None, ""),
    (problem(16, 32), (7, 5), 800, "8.0"),
    (problem(16, 32), (0, 0), 800, "8.0"),
    (problem(16, 32), (9, 0), 400, "502"),
    (problem(16, 32, dtype=BFLOAT16), (9, 0), 800, ""),
    (problem(8, 32), (9, 0), 800, "rows of a sparse matrix of float16 are a multiple of 16, not 8"),
    (problem(16, 24), (9, 0), 800, "columns of a sparse matrix of float16 are a multiple of 16, not 24"),
    (problem(32, 64, dtype="int8"), (9, 0), 800, ""),
    (problem(16, 64, dtype="int8"), (9, 0), 800, "multiple of 32, not 16"),
    (problem(16, 32, dtype="float32"), (9, 0), 800, "every second element"),
    (problem(16, 32, dtype="float64"), (9, 0), 800, "not float64"),
])  # fmt: skip
def test_what_the_library_takes(asked: Any, capability: tuple[int, int], version: int | None, words: str) -> None:
    found = refusal(asked, capability, version)
    assert words in found and bool(found) == bool(words)


HALF = np.zeros((32, 24), np.float16)
BYTES = np.zeros((32, 16), np.int8)


@pytest.mark.parametrize(("asked", "n", "order", "copies", "leading"), [
    (problem(16, 32, HALF), 24, "C", (), (24, 24)),
    (problem(16, 32, np.asfortranarray(HALF)), 24, "F", (), (32, 24)),
    (problem(16, 32, np.zeros((32, 48), np.float16)[:, :24]), 24, "C", (), (48, 24)),
    (problem(16, 32, np.zeros((32, 27), np.float16)[:, :24]), 24, "C", ("b",), (24, 24)),
    (problem(16, 32, HALF[::-1]), 24, "C", ("b",), (24, 24)),
    (problem(16, 32, HALF[:, ::2]), 16, "C", ("b", "out"), (16, 16)),
    (problem(16, 32, HALF[:, :1]), 8, "C", ("b", "out"), (8, 8)),
    (problem(16, 32, HALF, out=np.zeros((16, 24), np.float16)), 24, "C", (), (24, 24)),
    (problem(16, 32, HALF, out=np.zeros((16, 48), np.float16)[:, :24]), 24, "C", (), (24, 48)),
    (problem(16, 32, HALF, out=np.zeros((24, 16), np.float16).T), 24, "C", ("out",), (24, 24)),
    (problem(32, 32, BYTES), 16, "F", ("b",), (32, 16)),
    (problem(32, 32, np.asfortranarray(BYTES)), 16, "F", (), (32, 16)),
])  # fmt: skip
def test_how_operands_must_lie(asked: Any, n: int, order: str, copies: tuple[str, ...], leading: tuple[int, int]) -> None:
    made = recipe(asked)
    assert (made.n, made.order, made.copies, made.leading) == (n, order, copies, leading)
    assert made.value is VALUES[asked.dtype.name] and made.workspace and not made.attributes


def test_the_ways_of_a_product() -> None:
    assert recipe(problem(16, 32, HALF, alg_id=5)).attributes == (("CONFIG_ID", 5),)
    assert recipe(problem(16, 32, HALF, alg_id=0, split_k=1, split_k_mode=1)).attributes == ()
    assert recipe(problem(16, 32, HALF, alg_id=2, split_k=4, split_k_mode=1)).attributes == (
        ("CONFIG_ID", 2), ("SPLIT_K", 4), ("SPLIT_K_MODE", 1)
    )  # fmt: skip
    assert {n for n, _ in recipe(problem(16, 32, HALF, alg_id=2, split_k=4, split_k_mode=1)).attributes} <= set(
        real.MatmulAlgAttribute.__members__
    )
    assert (real.SplitKMode.ONE_KERNEL, real.SplitKMode.TWO_KERNELS) == (1, 2)


# --- calls ----------------------------------------------------------------------------------------------------------


class Machine:
    """Fakes that share one log."""

    def __init__(self, *properties: dict[str, Any]) -> None:
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.cupy, self.lt = CuPy(*(properties or (H100, H100)), log=self.log), Sparsity(real, log=self.log)

    def names(self) -> list[str]:
        found = [name for name, _ in self.log]
        self.log.clear()
        return found


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    with inserted(cupy=made.cupy, cusparseLt=made.lt):
        yield made
    _core.memo_clear()
    backline.matmul(np.eye(2), np.eye(2))  # the plan that ran last is remembered
    gc.collect()
    assert made.lt.left() == [], "descriptors and plans are freed"


def on_device(array: np.ndarray, device: int = 0) -> ndarray:
    return ndarray(placed(array), device)


def compressed(x: np.ndarray, device: int = 0) -> CompressedMatrix:
    return sparse.compress(on_device(x, device))


@pytest.mark.parametrize("dtype", ON_DEVICE)
@pytest.mark.parametrize("n", [16, 64, 1, 13])
@pytest.mark.parametrize("layout", ["C", "F", "backwards", "shifted"])
def test_a_device_gives_what_numpy_gives(machine: Machine, dtype: Any, n: int, layout: str) -> None:
    x, b = numbers((32, 64), dtype), numbers((64, n), dtype, 1)
    p = sparse.prune_2_4(on_device(x))
    assert np.array_equal(p.host, sparse.prune_2_4(x)) and type(p) is ndarray
    a = sparse.compress(p)
    assert type(a.parts[0]) is ndarray and a.parts[0].shape == (32 * 64 // 2 * x.itemsize + 32 * 64 // 8,)
    given = {"C": placed(b), "F": placed(np.asfortranarray(b)), "backwards": placed(b)[:, ::-1][:, ::-1][::-1], "shifted": placed(b, b.itemsize)}[layout]
    reference = sparse.matmul(sparse.compress(p.host), np.ascontiguousarray(given))
    got = a @ ndarray(given)
    assert got.shape == (32, n) and got.host.flags.c_contiguous and np.array_equal(got.host, reference)
    for out in (placed(reference * 0), placed(reference * 0, reference.itemsize), np.zeros((32, n + 16), reference.dtype)[:, :n],
                np.asfortranarray(reference * 0)):  # fmt: skip
        held = ndarray(out)
        assert sparse.matmul(a, ndarray(given), out=held) is held and np.array_equal(out, reference)


def test_the_calls_and_their_order(machine: Machine) -> None:
    a = compressed(pruned((16, 32), "float16"))
    assert machine.names() == [
        "init", "structured_descriptor_init", "sp_mma_prune_check2", "sp_mma_compressed_size2", "alloc", "sp_mma_compress2"
    ]  # fmt: skip
    stream = machine.cupy.cuda.Stream()
    b = on_device(numbers((32, 8), "float16"))
    with machine.cupy.cuda.stream(stream):
        a @ b
    calls = dict(machine.log)
    assert calls["structured_descriptor_init"]["value_type"] == 2 and calls["matmul"]["workspace"] == calls["alloc"]["ptr"]
    assert machine.lt.stream == stream.ptr and stream.synchronized == 0
    assert machine.names() == [
        "structured_descriptor_init", "dense_descriptor_init", "dense_descriptor_init", "matmul_descriptor_init",
        "matmul_alg_selection_init", "matmul_plan_init", "matmul_get_workspace", "alloc", "matmul",
    ]  # fmt: skip
    a @ b
    assert machine.names() == ["alloc", "matmul"], "the plan is kept"


def test_a_way_that_is_asked_for(machine: Machine) -> None:
    a, b = compressed(pruned((16, 32), "float16")), on_device(numbers((32, 8), "float16"))
    machine.names()
    assert sparse.search(a, b) == (7, 3, 2)
    names = machine.names()
    assert ("matmul_search" in names and names[-3:] == ["matmul_alg_get_attribute"] * 3) or names.count("matmul_alg_get_attribute") == 3
    sparse.matmul(a, b, way=ProductWay(7, 3, 2))
    (choice,) = [t for t in machine.lt.things.values() if t["kind"] == "choice" and t["attributes"] and t["attributes"].get("CONFIG_ID") == 7][-1:]
    assert choice["attributes"] == {"CONFIG_ID": 7, "SPLIT_K": 3, "SPLIT_K_MODE": 2}
    machine.lt.fastest = (2, 1, 0)
    assert sparse.search(a, b) == (2, 1, 2)


def test_divided_sums_of_halves_are_what_a_switch_forbids(machine: Machine) -> None:
    a, b = compressed(pruned((16, 32), "float16")), on_device(numbers((32, 8), "float16"))
    with switches.scope({"cuda.matmul.allow_fp16_reduced_precision_reduction": (False, False)}):
        a @ b
        with pytest.raises(NoKernel, match="splits k"):
            sparse.matmul(a, b, way=ProductWay(0, 2, 2))


def test_an_algorithm_that_there_is_not_for_a_product(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "max_alg_id", lambda: 47)  # of another product
    machine.lt.largest = 4
    a, b = compressed(pruned((16, 32), "float16")), on_device(numbers((32, 8), "float16"))
    sparse.matmul(a, b, way=ProductWay(3))
    with pytest.raises(NoKernel, match="asks for algorithm 4; for this product it has 4"):
        sparse.matmul(a, b, way=ProductWay(4))
    assert backend.get_max_alg_id() == 47


def test_a_matrix_that_is_not_sparse(machine: Machine) -> None:
    x = on_device(numbers((16, 32), "float16"))
    with pytest.raises(BadValue, match="not 2:4 sparse"):
        sparse.compress(x)
    machine.names()
    sparse.compress(x, check=False)
    assert "sp_mma_prune_check2" not in machine.names()


def test_the_switch_and_the_device_decide(machine: Machine) -> None:
    a, b = compressed(pruned((16, 32), "float16")), on_device(numbers((32, 8), "float16"))
    assert backline.explain(sparse.matmul, a, b).library == "cusparselt"
    with backend.flags(enabled=False), pytest.raises(NoKernel, match=r"disabled by cusparselt\.enabled"):
        a @ b
    old = Machine(T4)
    with inserted(cupy=old.cupy, cusparseLt=old.lt), pytest.raises(NoKernel, match=r"compute capability 8\.0.*7\.5"):
        a @ b
    with pytest.raises(NoKernel, match="every second element"):
        sparse.prune_2_4(on_device(numbers((16, 32), "float32")))
    (found,) = libraries.get("cusparselt").algorithms(backline.explain(backline.matmul, np.eye(2), np.eye(2)).problem, 1)
    assert isinstance(found, Refusal)


def test_arrays_of_one_call_are_of_one_kind_on_one_device(machine: Machine) -> None:
    a = compressed(pruned((16, 32), "float16"))
    with pytest.raises(BadType, match="CuPy and NumPy"):
        a @ numbers((32, 8), "float16")
    with pytest.raises(BadValue, match="cuda:0 and cuda:1"):
        a @ on_device(numbers((32, 8), "float16"), 1)
    other = compressed(pruned((16, 32), "float16"), 1)
    assert (other @ on_device(numbers((32, 8), "float16"), 1)).device.id == 1
    assert len([t for t in machine.lt.things.values() if t["kind"] == "handle"]) == 2


def test_nothing_to_compute_on_a_device(machine: Machine) -> None:
    a = compressed(np.zeros((0, 32), np.float16))
    assert (a @ on_device(np.zeros((32, 8), np.float16))).shape == (0, 8)
    full = compressed(pruned((16, 32), "float16"))
    assert (full @ on_device(np.zeros((32, 0), np.float16))).shape == (16, 0)
    assert sparse.search(full, on_device(np.zeros((32, 0), np.float16))) == (0, 1, 2)


@pytest.mark.parametrize("name", ["matmul_plan_init", "matmul", "matmul_get_workspace"])
def test_a_call_that_fails_leaves_nothing(machine: Machine, name: str) -> None:
    a, b = compressed(pruned((16, 32), "float16")), on_device(numbers((32, 8), "float16"))
    machine.lt.fails[name] = "NOT_SUPPORTED"
    with pytest.raises((LibraryFailed, NoKernel), match="NOT_SUPPORTED"):
        a @ b
    machine.lt.fails.clear()
    assert (a @ b).shape == (16, 8)


def test_an_output_that_overlaps_on_a_device(machine: Machine) -> None:
    a = compressed(pruned((16, 32), "float16"))
    memory = placed(np.zeros((32, 8), np.float16))
    with pytest.raises(BadValue, match="overlap"):
        sparse.matmul(a, ndarray(memory), out=ndarray(memory[:16]))


def test_threads_share_a_plan(machine: Machine) -> None:
    x = pruned((16, 32), "float16")
    a, b = compressed(x), numbers((32, 8), "float16")
    reference, wrong = sparse.matmul(sparse.compress(x), b), []

    def work() -> None:
        for _ in range(40):
            if not np.array_equal((a @ on_device(b)).host, reference):
                wrong.append(1)
        backline.matmul(np.eye(2), np.eye(2))  # a thread remembers the plan that it ran last, also when it has ended

    threads = [threading.Thread(target=work) for _ in range(6)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert len([t for t in machine.lt.things.values() if t["kind"] == "handle"]) == 1


def test_without_the_library() -> None:
    assert not libraries.get("cusparselt").available()
    with pytest.raises(NoKernel, match="cusparselt"):
        sparse.prune_2_4(ndarray(np.zeros((16, 32), np.float16)))
