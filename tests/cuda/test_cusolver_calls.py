"""The calls to cuSOLVER and cuBLAS: their order, what is set and set back, what waits, streams, devices, errors, switches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, linalg, switches
from backline.errors import BackendUnavailable, LibraryFailed, LinAlgError, NoKernel
from backline.libraries.cuda.common import bindings
from fakes.cupy_standin import Stream, ndarray
from fakes.insert import inserted
from fakes.matrices import numbers, positive, there, well
from fakes.recording import error
from fakes.solver_machine import SolverMachine, real_types
from support import clean

real_types()
pytestmark = pytest.mark.usefixtures("clean")
assert clean

SETUP = ("create", "create_params", "create_syevj_info", "create_gesvdj_info", "set_atomics_mode", "alloc")


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolverMachine]:
    made = SolverMachine(tmp_path_factory.getbasetemp())
    with inserted(**made.modules()):
        yield made


def names(machine: SolverMachine) -> list[str]:
    """Calls since this was last asked, the making of handles left out."""
    found = [name for name, _ in machine.log if name not in SETUP]
    machine.forget()
    return found


def test_streams_come_first_then_workspace_then_routines(machine: SolverMachine) -> None:
    a = there(well((9, 5, 5), "float32"))
    linalg.inv(a)
    names(machine)
    linalg.inv(a)
    # The first stream is cuSOLVER's; cuBLAS has one, which takes its workspace away, before that.
    assert names(machine) == ["set_stream", "set_stream", "set_workspace", "sgetrf_batched", "sgetrs_batched"]
    linalg.cholesky(there(positive((5, 5), "complex64")))
    assert names(machine) == ["set_stream", "xpotrf_buffer_size", "xpotrf"]
    linalg.qr(there(numbers((2, 300, 4), "complex128")))
    assert names(machine) == [
        "set_stream", "xgeqrf_buffer_size", "xgeqrf", "xgeqrf", "zungqr_buffer_size", "zungqr", "zungqr",
    ]  # fmt: skip
    linalg.solve(there(well((200, 200), "float64")), there(numbers((200, 3), "float64")))
    assert names(machine) == [
        "set_stream", "xgetrf_buffer_size", "xgetrf", "interchanges", "set_stream", "set_workspace", "dtrsm", "dtrsm",
    ]  # fmt: skip
    linalg.lstsq(there(numbers((300, 3), "float64")), there(numbers((300, 2), "float64")))
    assert names(machine) == [
        "set_stream", "xgeqrf_buffer_size", "xgeqrf", "dormqr_buffer_size", "dormqr", "set_stream", "set_workspace", "dtrsm_batched",
    ]  # fmt: skip
    linalg.lstsq(there(numbers((3, 300), "complex64")), there(numbers((3, 2), "complex64")))
    assert names(machine) == [
        "set_stream", "xgeqrf_buffer_size", "xgeqrf", "set_stream", "set_workspace", "ctrsm_batched", "cunmqr_buffer_size", "cunmqr",
    ]  # fmt: skip


def test_handles_are_made_for_plain_float32_and_the_same_bits(machine: SolverMachine) -> None:
    with switches.scope({"cuda.matmul.fp32_precision": "tf32"}):
        linalg.solve(there(well((9, 5, 5), "float32")), there(numbers((9, 5, 1), "float32")))
    modes = [given for name, given in machine.log if name == "set_math_mode"]
    assert modes == [{"handle": modes[0]["handle"], "mode": 0}]
    from nvmath.bindings.cublas import AtomicsMode, Math
    from nvmath.bindings.cusolver import DeterministicMode

    assert int(Math.DEFAULT_MATH) == 0 and int(AtomicsMode.NOT_ALLOWED) == 0
    assert machine.blas.calls("set_atomics_mode") == [{"handle": modes[0]["handle"], "mode": 0}]
    (bits,) = machine.solver.calls("set_deterministic_mode")
    assert bits["mode"] == DeterministicMode.DETERMINISTIC_RESULTS


def test_any_order_is_set_for_the_call_and_set_back_whatever_happens(machine: SolverMachine) -> None:
    from nvmath.bindings.cusolver import DeterministicMode, cuSOLVERError

    a = there(positive((40, 40), "float64"))
    linalg.eigh(a)
    machine.forget()
    machine.run("syevd_any_order", linalg.eigh, a)
    modes = [given["mode"] for given in machine.solver.calls("set_deterministic_mode")]
    assert modes == [DeterministicMode.ALLOW_NON_DETERMINISTIC_RESULTS, DeterministicMode.DETERMINISTIC_RESULTS]
    assert names(machine) == ["set_stream", "set_deterministic_mode", "xsyevd_buffer_size", "xsyevd", "set_deterministic_mode"]

    def fail(**given: Any) -> None:
        raise error(cuSOLVERError, "CUSOLVER_STATUS_EXECUTION_FAILED")

    for name, n in (("xsyevd", 40), ("xsyevd_buffer_size", 41)):  # which is asked of another size
        before = machine.solver.answers[name]
        machine.solver.answers[name] = fail
        with pytest.raises(LibraryFailed, match="cuSOLVER syevd_any_order failed") as caught:
            machine.run("syevd_any_order", linalg.eigh, there(positive((n, n), "float64")))
        assert "EXECUTION_FAILED" in str(caught.value)
        machine.solver.answers[name] = before
        assert machine.solver.calls("set_deterministic_mode")[-1]["mode"] == DeterministicMode.DETERMINISTIC_RESULTS


def test_a_failure_drops_the_plan(machine: SolverMachine) -> None:
    from nvmath.bindings.cublas import cuBLASError

    a = there(well((9, 5, 5), "float32"))
    before = machine.blas.answers["sgetrf_batched"]

    def fail(**given: Any) -> None:
        raise error(cuBLASError, "CUBLAS_STATUS_EXECUTION_FAILED")

    machine.blas.answers["sgetrf_batched"] = fail
    with pytest.raises(LibraryFailed, match="EXECUTION_FAILED"):
        linalg.inv(a)
    machine.blas.answers["sgetrf_batched"] = before
    assert np.allclose(linalg.inv(a).host @ a.host, np.eye(5), atol=1e-4)




@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    get, true = ndarray.get, ndarray.__bool__

    def counted(self: ndarray) -> Any:
        found.append(1)
        return get(self)

    def asked(self: ndarray) -> bool:
        found.append(1)
        return true(self)

    monkeypatch.setattr(ndarray, "get", counted)
    monkeypatch.setattr(ndarray, "__bool__", asked)
    return found


def test_only_what_may_raise_waits_and_once(machine: SolverMachine, waits: list[int]) -> None:
    a, b = there(well((9, 5, 5), "float64")), there(numbers((9, 5, 2), "float64"))
    lu, pivots, _ = linalg.lu_factor_ex(a)
    p = there(positive((9, 5, 5), "float64"))
    for call in (
        lambda: linalg.inv_ex(a), lambda: linalg.lu_factor_ex(a), lambda: linalg.solve_ex(a, b), lambda: linalg.cholesky_ex(p),
        lambda: linalg.solve_triangular(a, b, upper=True), lambda: backline.cholesky_solve(b, a), lambda: linalg.qr(a),
    ):  # fmt: skip
        call()
        assert not waits
    for call in (
        lambda: linalg.inv(a), lambda: linalg.lu_factor(a), lambda: linalg.solve(a, b), lambda: linalg.cholesky(p),
        lambda: linalg.eigh(p), lambda: linalg.eigvalsh(p), lambda: linalg.eig(a), lambda: linalg.svd(a), lambda: linalg.svdvals(a),
        lambda: linalg.lstsq(a, b), lambda: backline.cholesky_inverse(p), lambda: linalg.lu_solve(lu, pivots, b),
    ):  # fmt: skip
        waits.clear()
        call()
        assert len(waits) == 1


def test_explain_says_what_runs_and_that_it_waits(machine: SolverMachine) -> None:
    choice = backline.explain(linalg.svd, there(numbers((2, 5, 5), "float32")))
    assert choice.library == "cusolver" and choice.algorithm == "gesvdj_batched"
    assert "waits: info is read back, because the method may not converge" in str(choice)
    assert [c.algorithm for c in choice.candidates if c.library == "cusolver"] == ["gesvdj_batched", "gesvdj", "gesvdj_any_order", "gesvd"]


def test_the_preference_has_its_own_rule(machine: SolverMachine) -> None:
    a = there(well((100, 100), "float64"))
    assert backline.explain(linalg.inv, a).algorithm == "getrf+trsm+trsm"
    with switches.scope({"cuda.preferred_linalg_library": "cusolver"}):
        assert backline.explain(linalg.inv, a).algorithm == "getrf+getrs"
        machine.forget()
        linalg.inv(a)
    assert names(machine)[-1] == "xgetrs"


def test_without_the_bindings_nothing_else_takes_its_place(machine: SolverMachine) -> None:
    bindings.inserted.pop("cusolverDn")
    if libraries.get("cusolver").available():
        pytest.fail("cuSOLVER is here: this test is for a machine without a device")
    with pytest.raises(NoKernel, match="cusolver: not available"):
        linalg.inv(there(np.eye(3)))
    with pytest.raises(BackendUnavailable, match="cuSOLVER"):
        backline.backends.cuda.preferred_linalg_library("cusolver")


def test_work_goes_to_the_current_stream_of_the_arrays_device(machine: SolverMachine) -> None:
    a = well((5, 5), "float64")
    linalg.inv(ndarray(a, 1))
    machine.forget()
    seen: list[int] = []
    before = machine.numbers.solver["xgetrf"]

    def at(**given: Any) -> Any:
        seen.append(machine.cupy.cuda.runtime.getDevice())
        return before(**given)

    machine.solver.answers["xgetrf"] = at
    stream = Stream(0x7700)
    with machine.cupy.cuda.stream(stream):
        found = linalg.inv(ndarray(a, 1))
    assert seen == [1] and found.device.id == 1 and machine.cupy.cuda.runtime.getDevice() == 0
    assert {given["stream_id"] for name, given in machine.log if name == "set_stream"} == {0x7700}


def test_for_the_same_bits_each_stream_has_its_own_cublas_handle(machine: SolverMachine) -> None:
    a = there(well((9, 5, 5), "float64"))

    def handles() -> set[int]:
        machine.forget()
        for pointer in (0x100, 0x200):
            with machine.cupy.cuda.stream(Stream(pointer)):
                linalg.inv(a)
        return {given["handle"] for given in machine.blas.calls("set_workspace")}

    assert len(handles()) == 1
    with switches.scope({"deterministic": True}):
        assert len(handles()) == 2


def test_the_workspace_has_the_size_of_the_switch(machine: SolverMachine) -> None:
    a = there(well((9, 5, 5), "float64"))
    linalg.inv(a)
    assert machine.blas.calls("set_workspace")[-1]["workspace_size_in_bytes"] == 32 << 20


def test_threads_share_plans_and_not_handles(machine: SolverMachine) -> None:
    a = there(well((9, 5, 5), "float64"))
    expected = linalg.inv(a).host
    machine.forget()
    wrong: list[Any] = []
    gate = threading.Barrier(3)

    def work() -> None:
        gate.wait(10)
        for _ in range(5):
            if not np.array_equal(linalg.inv(a).host, expected):
                wrong.append(1)
        gate.wait(10)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len({given["handle"] for given in machine.blas.calls("dgetrf_batched")}) == 3


def test_what_a_call_was_given_is_left_alone(machine: SolverMachine) -> None:
    a, b = there(positive((3, 5, 5), "complex128")), there(numbers((3, 5, 2), "complex128"))
    kept = a.host.copy(), b.host.copy()
    lu, pivots = linalg.lu_factor(a)
    for call in (
        lambda: linalg.inv(a), lambda: linalg.solve(a, b), lambda: linalg.cholesky(a), lambda: linalg.qr(a), lambda: linalg.eigh(a),
        lambda: linalg.eig(a), lambda: linalg.svd(a), lambda: linalg.lstsq(a, b), lambda: linalg.lu_solve(lu, pivots, b),
        lambda: linalg.solve_triangular(a, b, upper=True), lambda: backline.cholesky_solve(b, a), lambda: backline.cholesky_inverse(a),
    ):  # fmt: skip
        call()
        assert np.array_equal(a.host, kept[0]) and np.array_equal(b.host, kept[1])


def test_a_matrix_in_columns_is_not_copied_to_be_read(machine: SolverMachine) -> None:
    lu, pivots = linalg.lu_factor(there(well((100, 100), "float64")))
    b = there(numbers((100, 2), "float64"))
    machine.forget()
    linalg.lu_solve(lu, pivots, b)
    (call,) = machine.solver.calls("xgetrs")
    assert call["a"] == lu.data.ptr and call["lda"] == 100
    rows = there(np.triu(well((100, 100), "float64")))
    machine.forget()
    linalg.solve_triangular(rows, b, upper=True)
    (call,) = machine.blas.calls("dtrsm")
    assert (call["a"], call["uplo"], call["trans"]) == (rows.data.ptr, 0, 1)  # as its transpose, a lower triangle


def test_singular_matrices_raise_what_numpys_do(machine: SolverMachine) -> None:
    a = np.diag([1.0, 0.0])
    for call in (linalg.inv, linalg.lu_factor):
        with pytest.raises(LinAlgError) as here:
            call(a)
        with pytest.raises(LinAlgError) as there_:
            call(there(a))
        assert str(here.value) == str(there_.value)
