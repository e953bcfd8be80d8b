"""Arrays that begin at no multiple of what reads them: what libraries are given is aligned, and the results are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import fft, linalg, switches
from backline.libraries.cuda.common import alignment
from backline.nn import functional as F
from fakes.cupy_standin import ndarray
from fakes.device_memory import placed
from fakes.gpu_machine import GpuMachine
from fakes.recording import error
from fakes.solver_machine import real_types
from gpu.arrays import numbers
from support import clean

real_types()
pytestmark = pytest.mark.usefixtures("clean")
assert clean

ON_LT = {"cuda.preferred_blas_library": "cublaslt"}


def moved(host: np.ndarray[Any, Any], by: int = 1) -> ndarray:
    """The same numbers and strides on a device, so many bytes after a multiple of 512."""
    return ndarray(placed(host, by))


def test_what_counts_as_misaligned(machine: GpuMachine) -> None:
    for dtype, item in (("float16", 2), ("float32", 4), ("complex64", 8), ("complex128", 16)):
        for by in range(1, 17):
            assert alignment.misaligned(moved(numbers(4, dtype=dtype), by)) == bool(by % item), (dtype, by)
    empty = ndarray(np.ndarray((0,), np.float32, np.zeros(9, np.uint8), 1))
    assert not alignment.misaligned(empty)


@pytest.mark.parametrize("lay", ["C", "F", "steps", "negative", "broadcast"])
def test_a_copy_has_the_strides_and_the_numbers(machine: GpuMachine, lay: str) -> None:
    x = numbers(5, 6)
    laid = {
        "C": x, "F": np.asfortranarray(x), "steps": np.repeat(x, 3, 1)[:, ::3], "negative": x[::-1, ::-1],
        "broadcast": np.broadcast_to(x[0], (5, 6)),
    }[lay]  # fmt: skip
    given = ndarray(laid) if lay == "broadcast" else moved(laid, 3)
    for multiple in (16, 256):
        copy = alignment.copied(given, multiple)
        assert copy.strides == given.strides and copy.data.ptr % multiple == 0 and copy.data.ptr != given.data.ptr
        np.testing.assert_array_equal(copy.host, laid)
    target = moved(np.zeros_like(x), 1)
    alignment.put(given, target)
    np.testing.assert_array_equal(target.host, laid)


def test_only_what_is_misaligned_is_copied_and_what_is_written_is_put_back(machine: GpuMachine) -> None:
    x, y, out = moved(numbers(3), 1), ndarray(numbers(4)), moved(numbers(3), 2)
    seen: list[Any] = []

    def function(*arrays: Any) -> Any:
        seen.extend(arrays)
        arrays[2].host[...] = arrays[0].host + 1
        return arrays[2], arrays[1]

    kept = x.host.copy()
    result = alignment.called(function, (x, y, out))
    assert result[0] is out and result[1] is y is seen[1] and seen[0] is not x
    assert not any(array.data.ptr % 16 for array in (seen[0], seen[2]))
    np.testing.assert_array_equal(out.host, kept + 1)
    np.testing.assert_array_equal(x.host, kept)


OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray[Any, Any], ...]]] = {
    "matmul": (backline.matmul, (numbers(5, 6), numbers(6, 4))),
    "complex128": (backline.matmul, (numbers(5, 6, dtype="complex128"), numbers(6, 4, dtype="complex128"))),
    "stacks": (backline.matmul, (numbers(2, 1, 3, 4), numbers(5, 4, 2))),
    "addmm": (backline.addmm, (numbers(5, 4), numbers(5, 6), numbers(6, 4))),
    "halves": (backline.matmul, (numbers(5, 6, dtype="float16"), numbers(6, 4, dtype="float16"))),
    "linear": (lambda x, w, b: F.linear(x, w, b, activation="relu"), (numbers(5, 6), numbers(4, 6), numbers(4))),
    "gelu layer": (lambda x, w, b: F.linear(x, w, b, activation="gelu"), (numbers(5, 6), numbers(4, 6), numbers(4))),
    "conv": (lambda x, w, b: F.conv2d(x, w, b), (numbers(2, 4, 6, 6), numbers(8, 4, 3, 3), numbers(8))),
    "fft": (fft.fft2, (numbers(4, 6, dtype="complex64"),)),
    "ifft": (fft.ifft2, (numbers(4, 6, dtype="complex64"),)),
    "rfft": (fft.rfft, (numbers(4, 8),)),
    "solve": (linalg.solve, (numbers(5, 5) + 5 * np.eye(5, dtype=np.float32), numbers(5, 2))),
    "inv": (linalg.inv, (numbers(3, 5, 5) + 5 * np.eye(5, dtype=np.float32),)),
    "svdvals": (linalg.svdvals, (numbers(6, 4),)),
    "relu": (F.relu, (numbers(5, 7),)),
    "softmax": (lambda x: F.softmax(x, -1), (numbers(5, 7),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, 7, w, b), (numbers(5, 7), numbers(7), numbers(7))),
    "attention": (F.scaled_dot_product_attention, (numbers(1, 2, 5, 8), numbers(1, 2, 6, 8), numbers(1, 2, 6, 8))),
    "einsum": (lambda x, y, z: backline.einsum("ij,kj,kl->li", x, y, z), (numbers(3, 4), numbers(5, 4), numbers(5, 2))),
    "einsum sum": (lambda x: backline.einsum("iij->j", x), (numbers(4, 4, 3),)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_kind_of_operation_gives_the_same(machine: GpuMachine, name: str) -> None:
    op, hosts = OPERATIONS[name]
    wanted = op(*map(ndarray, hosts))
    for which in range(len(hosts)):
        found = op(*(moved(host, 1) if i == which else ndarray(host) for i, host in enumerate(hosts)))
        np.testing.assert_array_equal(found.host, wanted.host, err_msg=f"operand {which}")
    np.testing.assert_array_equal(op(*(moved(host, 3) for host in hosts)).host, wanted.host)


@pytest.mark.parametrize("given", [{}, ON_LT])
def test_addresses_that_products_are_given(machine: GpuMachine, given: dict[str, Any]) -> None:
    x, y = numbers(5, 6), numbers(6, 4)
    out = moved(np.full((5, 4), np.nan, np.float32), 2)
    with switches.scope(given):
        assert backline.matmul(moved(x, 1), moved(y, 3), out=out) is out
    np.testing.assert_allclose(out.host, x.astype(float) @ y, atol=1e-5)
    (call,) = machine.lt.calls("matmul") if given else machine.blas.calls("gemm_ex")
    assert not any(call[name] % 4 for name in (("a", "b", "d") if given else ("a", "b", "c")))


def test_outputs_with_gaps_keep_what_lies_between(machine: GpuMachine) -> None:
    memory = np.full(3 + 4 * 40, 7, np.uint8)
    begin = -memory.ctypes.data % 4 + 1
    out = ndarray(np.ndarray((3, 4), np.float32, memory, begin, (48, 8)))
    backline.matmul(ndarray(numbers(3, 5)), ndarray(numbers(5, 4)), out=out)
    np.testing.assert_allclose(out.host, numbers(3, 5) @ numbers(5, 4), atol=1e-5)
    between = np.ndarray((3, 4, 4), np.uint8, memory, begin + 4, (48, 8, 1))
    assert (between == 7).all()


def test_an_operand_that_the_output_is_too_may_be_misaligned(machine: GpuMachine) -> None:
    c = moved(numbers(5, 4), 1)
    wanted = 2 * c.host.astype(float) + numbers(5, 6).astype(float) @ numbers(6, 4)
    assert backline.addmm(c, ndarray(numbers(5, 6)), ndarray(numbers(6, 4)), beta=2, out=c) is c
    np.testing.assert_allclose(c.host, wanted, atol=1e-5)


# --- cuBLASLt: addresses of whole elements that no algorithm takes ----------------------------------------------------


def no_algorithm_below(machine: GpuMachine, least: int) -> None:
    """Let the heuristics have an algorithm only for addresses that are multiples of so many bytes."""
    name = int(machine.lt.module.MatmulPreferenceAttribute.MIN_ALIGNMENT_A_BYTES)

    def heuristic(**given: Any) -> None:
        if machine.lt.things[given["preference"]][name] < least:
            raise error(machine.lt.module.cuBLASLtError, "NOT_SUPPORTED (15)")
        machine.lt.heuristic(**given)

    machine.lt.answers["matmul_algo_get_heuristic"] = heuristic


@pytest.mark.parametrize("least", [16, 256])
@pytest.mark.parametrize("which", range(4))
def test_cublaslt_is_given_copies_where_it_has_no_algorithm_for_an_address(machine: GpuMachine, least: int, which: int) -> None:
    x, y, bias = numbers(5, 8, dtype="float16"), numbers(8, 8, dtype="float16"), numbers(8, dtype="float16")
    hosts = [x, y, bias, np.zeros((5, 8), np.float16)]
    try:
        no_algorithm_below(machine, least)
        a, w, b, out = (moved(host, 2 if i == which else 0) for i, host in enumerate(hosts))
        with switches.scope(ON_LT):
            assert F.linear(a, w, b, out=out) is out
    finally:
        machine.lt.answers["matmul_algo_get_heuristic"] = machine.lt.heuristic
    np.testing.assert_allclose(out.host, x.astype(float) @ y.T.astype(float) + bias, rtol=2e-3, atol=2e-2)
    (call,) = machine.lt.calls("matmul")
    assert not any(call[name] % least for name in ("a", "b", "d"))


def test_workspaces_are_aligned_whatever_allocator_a_program_has(machine: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = machine.cupy.cuda.alloc
    asked: list[int] = []

    def alloc(size: int) -> Any:
        asked.append(size)
        return whole(size + 16) + 16

    monkeypatch.setattr(machine.cupy.cuda, "alloc", alloc)
    memory = alignment.workspace(1000)
    assert memory.ptr % 256 == 0 and asked == [1000, 1256]
    result = backline.matmul(ndarray(numbers(300, 3)), ndarray(numbers(3, 2)))
    np.testing.assert_allclose(result.host, numbers(300, 3) @ numbers(3, 2), atol=1e-5)


def test_strides_that_are_no_whole_elements_are_refused(machine: GpuMachine) -> None:
    """CUDA cannot read them, nor can CuPy copy them."""
    host = np.ndarray((3, 4), np.float32, np.zeros(200, np.uint8), 0, (25, 5))
    with pytest.raises(backline.errors.BadValue, match="strides"):
        backline.matmul(ndarray(host), ndarray(numbers(4, 2)))
