"""The calls to cuBLAS and cuBLASLt: order, arguments that the true bindings take, what is set is set back, errors, streams, threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.errors import BackendUnavailable, BadValue, LibraryFailed
from backline.libraries.base import Algorithm
from backline.libraries.cuda.common import bindings, device_facts, device_plan
from fakes.computing import Blas, Lt
from fakes.cupy_standin import H100, T4, CuPy, ndarray
from fakes.insert import inserted
from fakes.recording import error
from support import clean

real = pytest.importorskip("nvmath.bindings.cublas")
real_lt = pytest.importorskip("nvmath.bindings.cublasLt")
pytestmark = pytest.mark.usefixtures("clean")
assert clean

ON_LT = {"prefer": ("cublaslt",)}
TF32 = {"cuda.matmul.fp32_precision": "tf32"}


class Machine:
    """Fakes that share one log."""

    def __init__(self) -> None:
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.cupy, self.cublas, self.lt = CuPy(H100, T4, log=self.log), Blas(real, log=self.log), Lt(real_lt, log=self.log)

    def array(self, *shape: int, dtype: Any = np.float32, device: int = 0) -> ndarray:
        rng = np.random.default_rng(len(shape))
        return ndarray(rng.standard_normal(shape).astype(dtype), device)

    def names(self) -> list[str]:
        """Names of the calls since this was last asked; making a handle is left out."""
        found = [name for name, _ in self.log if name not in ("create", "set_atomics_mode")]
        self.log.clear()
        return found


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    with inserted(cupy=made.cupy, cublas=made.cublas, cublasLt=made.lt):
        yield made


def test_stream_then_workspace_then_routine(machine: Machine) -> None:
    backline.matmul(machine.array(3, 4), machine.array(4, 5))
    calls = dict(machine.log)
    assert calls["set_atomics_mode"]["mode"] == real.AtomicsMode.NOT_ALLOWED
    assert calls["set_workspace"]["workspace_size_in_bytes"] == 32 << 20 == calls["alloc"]["size"]
    assert calls["set_workspace"]["workspace"] == calls["alloc"]["ptr"]
    assert (calls["gemm_ex"]["compute_type"], calls["gemm_ex"]["algo"]) == (real.ComputeType.COMPUTE_32F, real.GemmAlgo.DFALT)
    assert machine.names() == ["alloc", "set_stream", "set_workspace", "gemm_ex"]
    backline.matmul(machine.array(3, 4), machine.array(4, 5))
    assert "create" not in dict(machine.log), "the handle is kept"


def test_the_mode_is_set_for_the_call_and_set_back(machine: Machine) -> None:
    with switches.scope(TF32):
        backline.matmul(machine.array(3, 4), machine.array(4, 5))
    modes = [given["mode"] for given in machine.cublas.calls("set_math_mode")]
    assert modes == [real.Math.TF32_TENSOR_OP_MATH, real.Math.DEFAULT_MATH]
    assert machine.names() == ["alloc", "set_stream", "set_workspace", "set_math_mode", "gemm_ex", "set_math_mode"]
    backline.matmul(machine.array(3, 4), machine.array(4, 5))
    assert machine.names() == ["gemm_ex"], "after the scope nothing of it is left; stream and workspace are those of the last call"


@pytest.mark.parametrize(("dtype", "given", "mode"), [
    ("float16", {"cuda.matmul.allow_fp16_reduced_precision_reduction": False}, 16), ("float32", TF32, 3),
])  # fmt: skip
def test_what_is_set_is_set_back_after_a_failure_too(machine: Machine, dtype: str, given: dict[str, Any], mode: int) -> None:
    def fail(**_: Any) -> None:
        raise error(real.cuBLASError, "EXECUTION_FAILED (13)")

    x, y = machine.array(4, 4, dtype=dtype), machine.array(4, 4, dtype=dtype)
    machine.cublas.answers["gemm_ex"] = fail
    with switches.scope(given), pytest.raises(LibraryFailed, match="cuBLAS gemm_ex failed") as caught:
        backline.matmul(x, y)
    assert "EXECUTION_FAILED" in str(caught.value)
    assert [each["mode"] for each in machine.cublas.calls("set_math_mode")] == [mode, 0]
    assert {state["mode"] for state in machine.cublas.state.values()} == {0}
    machine.names()
    machine.cublas.answers["gemm_ex"] = machine.cublas.gemm
    with switches.scope(given):
        result = backline.matmul(x, y)
    assert np.allclose(result.get(), x.host.astype(float) @ y.host.astype(float), atol=1e-2), "the next call prepares anew"


def test_emulation_and_its_strategy_are_set_back(machine: Machine) -> None:
    problem = backline.explain(backline.matmul, machine.array(3, 4), machine.array(4, 5)).problem
    plan = libraries.get("cublas").prepare(problem, Algorithm(library="cublas", name="gemm_bf16x9"))
    machine.names()
    plan(machine.array(3, 4), machine.array(4, 5))
    log = [(name, list(given.values())[1]) for name, given in machine.log if name.startswith(("set_math", "set_em"))]
    assert log == [("set_math_mode", 4), ("set_emulation_strategy", 2), ("set_emulation_strategy", 0), ("set_math_mode", 0)]
    assert dict(machine.log)["gemm_ex"]["compute_type"] == real.ComputeType.COMPUTE_32F_EMULATED_16BFX9


def test_a_failed_plan_is_not_used_again(machine: Machine) -> None:
    problem = backline.explain(backline.matmul, machine.array(3, 4), machine.array(4, 5)).problem
    plan = libraries.get("cublas").prepare(problem, Algorithm(library="cublas", name="gemm"))
    machine.cublas.answers["set_stream"] = lambda **_: (_ for _ in ()).throw(RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS"))
    with pytest.raises(LibraryFailed, match="ILLEGAL_ADDRESS"):
        plan(machine.array(3, 4), machine.array(4, 5))
    assert plan.failed


def test_work_goes_to_the_callers_stream(machine: Machine) -> None:
    stream = machine.cupy.cuda.Stream()
    x, y = machine.array(3, 4), machine.array(4, 5)
    for given in ({}, ON_LT):
        with switches.scope(given):
            with machine.cupy.cuda.stream(stream):
                backline.matmul(x, y)
            backline.matmul(x, y)
    assert [each["stream_id"] for each in machine.cublas.calls("set_stream")] == [stream.ptr, 0]
    assert [each["stream"] for each in machine.lt.calls("matmul")] == [stream.ptr, 0]
    assert stream.synchronized == machine.cupy.cuda.null_stream.synchronized == 0


def test_while_the_same_bits_are_asked_for_each_stream_has_its_own_handle(machine: Machine) -> None:
    x, y = machine.array(3, 4), machine.array(4, 5)
    streams = [machine.cupy.cuda.Stream() for _ in range(2)]
    results = []
    with switches.scope({"deterministic": True}):
        for _ in range(10):
            for stream in streams:
                with machine.cupy.cuda.stream(stream):
                    results.append(backline.matmul(x, y).get().tobytes())
    assert len(set(results)) == 1
    used = {(each["handle"], each["stream_id"]) for each in machine.cublas.calls("set_stream")}
    assert len(used) == 2 and len({handle for handle, _ in used}) == 2
    assert len(machine.cublas.calls("set_workspace")) == 2, "a workspace for every handle"
    assert all(each["mode"] == 0 for each in machine.cublas.calls("set_atomics_mode"))


def test_streams_that_come_and_go_leave_no_handles_behind(machine: Machine) -> None:
    with switches.scope({"deterministic": True}):
        for _ in range(50):
            with machine.cupy.cuda.stream(machine.cupy.cuda.Stream()):
                backline.matmul(machine.array(3, 4), machine.array(4, 5))
    assert len(machine.cublas.calls("create")) <= 17


def test_threads_have_handles_of_their_own_and_leave_them_to_others(machine: Machine) -> None:
    x, y = machine.array(3, 4), machine.array(4, 5)
    meet = threading.Barrier(3)

    def work() -> None:
        backline.matmul(x, y)
        meet.wait()

    for _ in range(3):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
    assert len(machine.cublas.calls("create")) == 3


def test_arrays_of_another_device_are_worked_on_there(machine: Machine) -> None:
    seen: list[int] = []
    compute = machine.cublas.gemm
    machine.cublas.answers["gemm_ex"] = lambda **given: (seen.append(machine.cupy.cuda.runtime.getDevice()), compute(**given))
    for device in (0, 1):
        result = backline.matmul(machine.array(3, 4, device=device), machine.array(4, 5, device=device))
        assert result.device.id == device
    assert seen == [0, 1] and machine.cupy.cuda.runtime.getDevice() == 0
    sizes = [each["workspace_size_in_bytes"] for each in machine.cublas.calls("set_workspace")]
    assert sizes == [32 << 20, 8519680], "each device's own recommendation"
    assert len(machine.cublas.calls("create")) == 2


def test_a_workspace_of_no_bytes_is_passed_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.backends import _validators

    monkeypatch.setattr(_validators, "_there", lambda name: True)
    with switches.scope({"cuda.cublas_workspace_size": 0}):
        backline.matmul(machine.array(3, 4), machine.array(4, 5))
    assert machine.cublas.calls("set_workspace")[-1] | {"handle": 0} == {"handle": 0, "workspace": 0, "workspace_size_in_bytes": 0}


# --- results and outputs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["cublas", "cublaslt"])
def test_out_is_written_and_returned(machine: Machine, library: str) -> None:
    x, y = machine.array(3, 4), machine.array(4, 5)
    with switches.scope({"only": (library,)}):
        for out in (np.zeros((3, 5), np.float32), np.zeros((3, 5), np.float32, "F"), np.zeros((6, 10), np.float32)[::2, ::2]):
            given = ndarray(out)
            assert backline.matmul(x, y, out=given) is given
            assert np.allclose(out, x.host @ y.host)


@pytest.mark.parametrize("library", ["cublas", "cublaslt"])
def test_out_may_be_c_and_nothing_else_of_the_call(machine: Machine, library: str) -> None:
    x, y, c = machine.array(4, 4), machine.array(4, 4), machine.array(4, 4)
    want = 0.5 * c.host + x.host @ y.host
    with switches.scope({"only": (library,)}):
        assert backline.addmm(c, x, y, beta=0.5, out=c) is c
        assert np.allclose(c.host, want)
        for operand in (x, y):
            with pytest.raises(BadValue, match="overlaps"):
                backline.matmul(x, y, out=operand)
        memory = ndarray(np.zeros((5, 4), np.float32))
        with pytest.raises(BadValue, match="overlaps"):
            backline.addmm(memory[1:], x, y, out=memory[:-1])
        steps = ndarray(np.ones((4, 8), np.float32))
        backline.matmul(steps[:, ::2], y, out=steps[:, 1::2])  # interleaved, without a common element
        assert np.allclose(steps.host[:, 1::2], np.ones((4, 4)) @ y.host, atol=1e-6)


@pytest.mark.parametrize("library", ["cublas", "cublaslt"])
def test_products_without_terms_or_elements_call_no_routine(machine: Machine, library: str) -> None:
    with switches.scope({"only": (library,)}):
        assert backline.matmul(machine.array(3, 0), machine.array(0, 5)).get().tolist() == np.zeros((3, 5)).tolist()
        assert backline.matmul(machine.array(0, 3), machine.array(3, 5)).shape == (0, 5)
        assert backline.matmul(machine.array(2, 0, 3), machine.array(2, 3, 0)).shape == (2, 0, 0)
        c = machine.array(3, 5)
        assert np.allclose(backline.addmm(c, machine.array(3, 0), machine.array(0, 5), beta=2).get(), 2 * c.host)
    assert not any(name.startswith(("gemm", "matmul")) for name in machine.names())


def test_a_call_is_traced_as_others_are(machine: Machine) -> None:
    with backline.trace() as trace:
        backline.matmul(machine.array(3, 4), machine.array(4, 5))
    (event,) = trace
    assert event.library == "cublas" and "on cuda:0" in str(event)


def test_the_tables_of_a_batch_without_a_step_are_of_the_call(machine: Machine) -> None:
    """They are made for each call, so that no other stream's work can be reading them when they are freed."""
    x, y = machine.array(2, 1, 3, 4), machine.array(5, 4, 2)
    for _ in range(2):
        assert np.allclose(backline.matmul(x, y).get(), x.host @ y.host, atol=1e-6)
    first, _ = machine.cublas.calls("gemm_batched_ex")
    assert first["batch_count"] == 10 and (first["transa"], first["m"], first["n"], first["k"]) == (0, 2, 3, 4)


def test_the_arrays_come_in_the_order_of_the_call(machine: Machine) -> None:
    x, y, out = machine.array(3, 4), machine.array(4, 5), ndarray(np.zeros((3, 5), np.float32))
    assert backline.matmul(other=y, out=out, input=x) is out
    assert np.allclose(out.host, x.host @ y.host)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_contiguous_operands_are_given_as_they_lie(machine: Machine, dtype: str) -> None:
    """No copy, no conversion: the routine reads the caller's memory, and says of what lies by columns that it does."""
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x, y = machine.array(6, 6, dtype=kind), machine.array(6, 6, dtype=kind)
    for left, right, ops in ((x, y, (0, 0)), (x.T, y, (0, 1)), (x, y.T, (1, 0)), (x.T, y.T, (1, 1))):
        machine.log.clear()
        result = backline.matmul(left, right)
        (call,) = machine.cublas.calls("gemm_ex")
        assert (call["transa"], call["transb"]) == ops
        assert (call["a"], call["b"], call["c"]) == (right.data.ptr, left.data.ptr, result.data.ptr)


# --- cuBLASLt ------------------------------------------------------------------------------------------------------


def test_what_the_heuristics_are_asked(machine: Machine) -> None:
    with switches.scope(ON_LT):
        backline.matmul(machine.array(3, 4, dtype=np.float16), machine.array(4, 5, dtype=np.float16))
        with switches.scope({"cuda.matmul.allow_fp16_reduced_precision_reduction": (False, False)}):
            backline.matmul(machine.array(3, 4, dtype=np.float16), machine.array(4, 5, dtype=np.float16))
    aligned = {f"MIN_ALIGNMENT_{each}_BYTES": 256 for each in "ABCD"}
    assert machine.lt.asked[0] == {"MAX_WORKSPACE_BYTES": 32 << 20, "REDUCTION_SCHEME_MASK": 7, **aligned}
    assert [each["REDUCTION_SCHEME_MASK"] for each in machine.lt.asked] == [7, 7, 7, 0, 0, 0]
    assert [each["MIN_ALIGNMENT_A_BYTES"] for each in machine.lt.asked] == [256, 16, 2] * 2
    assert [each["size"] for name, each in machine.log if name == "alloc"] == [machine.lt.workspace] * 2, "what the algorithm takes"


def test_views_that_are_less_aligned_run_the_algorithm_for_them(machine: Machine) -> None:
    memory = machine.cupy.cuda.alloc(4096)
    offset = memory.ptr - memory.mem.ctypes.data
    block = memory.mem[offset : offset + 4096].view(np.float32)
    block[:] = 1
    with switches.scope(ON_LT):
        for start in (0, 1, 4, 64):
            x = ndarray(block[start : start + 16].reshape(4, 4))
            out = ndarray(block[256:272].reshape(4, 4))
            backline.matmul(x, x, out=out)
            assert (out.host == 4).all()
    addresses = [each["algo"] for each in machine.lt.calls("matmul")]
    assert len(set(addresses)) == 3 and addresses[0] == addresses[3], "of 256 bytes, of an element, of 16 bytes"


def test_heuristics_that_say_no_by_an_error_make_room_for_the_other_library(machine: Machine) -> None:
    def refuse(**given: Any) -> None:
        raise error(real_lt.cuBLASLtError, "NOT_SUPPORTED (15)")

    machine.lt.answers["matmul_algo_get_heuristic"] = refuse
    with switches.scope(ON_LT):
        result = backline.matmul(machine.array(3, 4), machine.array(4, 5))
        assert backline.explain().library == "cublas"
        assert any("NOT_SUPPORTED" in c.reason for c in backline.explain().candidates)
    assert np.allclose(result.get(), machine.array(3, 4).host @ machine.array(4, 5).host)
    assert not machine.lt.things, "what was described is freed"


def test_an_algorithm_for_aligned_addresses_only_serves_those(machine: Machine) -> None:
    heuristic, asked = machine.lt.heuristic, machine.lt.asked

    def only_aligned(**given: Any) -> None:
        heuristic(**given)
        if asked[-1]["MIN_ALIGNMENT_A_BYTES"] < 16:
            raise error(real_lt.cuBLASLtError, "NOT_SUPPORTED (15)")

    machine.lt.answers["matmul_algo_get_heuristic"] = only_aligned
    memory = machine.cupy.cuda.alloc(4096)
    offset = memory.ptr - memory.mem.ctypes.data
    block = memory.mem[offset : offset + 4096].view(np.float32)
    block[:] = 1
    aligned, out = ndarray(block[:16].reshape(4, 4)), ndarray(block[256:272].reshape(4, 4))
    with switches.scope(ON_LT):
        problem = backline.explain(backline.matmul, aligned, aligned, out=out).problem
        plan = libraries.get("cublaslt").prepare(problem, Algorithm(library="cublaslt", name="matmul"))
        plan(aligned, aligned, out)
        assert (out.host == 4).all()
        out.host[...] = 0
        plan(ndarray(block[1:17].reshape(4, 4)), aligned, out)
    assert (out.host == 4).all()
    first, second = machine.lt.calls("matmul")
    assert second["algo"] == first["algo"] and not any(second[each] % 16 for each in "abd"), "it is given copies"


def test_the_first_algorithm_that_works_is_taken(machine: Machine) -> None:
    machine.lt.refuses = [15, 15]
    with switches.scope(ON_LT):
        result = backline.matmul(machine.array(3, 4), machine.array(4, 5))
    assert np.allclose(result.get(), machine.array(3, 4).host @ machine.array(4, 5).host)


def test_where_it_has_no_algorithm_the_other_library_runs(machine: Machine) -> None:
    machine.lt.refuses = None
    with switches.scope(ON_LT):
        backline.matmul(machine.array(3, 4), machine.array(4, 5))
        assert backline.explain().library == "cublas"
        assert any("no algorithm" in c.reason for c in backline.explain().candidates)
    assert not machine.lt.things, "what was described is freed"


def test_descriptions_are_freed_with_their_plan(machine: Machine) -> None:
    problem = backline.explain(backline.matmul, machine.array(3, 4), machine.array(4, 5)).problem
    plan = libraries.get("cublaslt").prepare(problem, Algorithm(library="cublaslt", name="matmul"))
    assert len(machine.lt.things) == 4, "a product and three matrices; what was preferred is freed at once"
    plan(machine.array(3, 4), machine.array(4, 5))
    del plan
    gc.collect()
    assert not machine.lt.things


def test_a_failure_of_cublaslt_is_said_in_its_words(machine: Machine) -> None:
    def fail(**_: Any) -> None:
        raise error(real_lt.cuBLASLtError, "NOT_SUPPORTED (15)")

    machine.lt.answers["matmul"] = fail
    with switches.scope(ON_LT), pytest.raises(LibraryFailed, match="NOT_SUPPORTED"):
        backline.matmul(machine.array(3, 4), machine.array(4, 5))


@pytest.mark.parametrize("bias", [np.arange(5), np.arange(10)[::2], np.arange(5)[::-1], np.full(1, 3)])
def test_the_address_of_the_bias_is_that_of_the_call(machine: Machine, bias: Any) -> None:
    x, weight = machine.array(3, 4), machine.array(5, 4)
    for shift in (0.0, 1.0):
        whole = bias.astype(np.float32) + np.float32(shift)
        view = whole if bias.flags.c_contiguous else np.repeat(whole, 2)[::2] if bias.strides[0] > 0 else whole[::-1].copy()[::-1]
        if len(view) == 1:
            result = backline.addmm(ndarray(view), x, ndarray(weight.host.T))
        else:
            result = backline.nn.functional.linear(x, weight, ndarray(view))
        assert np.allclose(result.get(), x.host @ weight.host.T + view, atol=1e-6)
    assert backline.explain().library == "cublaslt"


def test_threads_that_share_a_plan_do_not_mix_up_their_biases(machine: Machine) -> None:
    x, weight = machine.array(3, 4), machine.array(5, 4)
    wrong: list[Any] = []

    def work(value: float) -> None:
        for _ in range(40):
            result = backline.nn.functional.linear(x, weight, ndarray(np.full(5, value, np.float32)))
            if not np.allclose(result.get(), x.host @ weight.host.T + value, atol=1e-5):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- what the fakes stand on ---------------------------------------------------------------------------------------


def test_a_call_that_the_true_binding_would_not_take_is_refused(machine: Machine) -> None:
    with pytest.raises(TypeError):
        machine.cublas.set_stream(1)
    with pytest.raises(TypeError):
        machine.cublas.gemm_ex(1, 2, 3)
    with pytest.raises(AttributeError):
        _ = machine.cublas.no_such_function


def test_the_numbers_written_here_are_those_of_the_bindings() -> None:
    from backline.libraries.cuda.common import gemm_layout
    from backline.libraries.cuda.cublas import library as cublas
    from backline.libraries.cuda.cublaslt import library as cublaslt

    assert (cublas.DEFAULT, cublas.TF32, cublas.BF16X9, cublas.NO_REDUCED_SUMS) == (
        real.Math.DEFAULT_MATH, real.Math.TF32_TENSOR_OP_MATH, real.Math.FP32_EMULATED_BF16X9_MATH,
        real.Math.DISALLOW_REDUCED_PRECISION_REDUCTION,
    )  # fmt: skip
    kind = real.ComputeType
    assert (cublas.IN_F16, cublas.IN_F32, cublas.IN_F64) == (kind.COMPUTE_16F, kind.COMPUTE_32F, kind.COMPUTE_64F)
    assert (cublas.IN_BF16X9, cublaslt.IN_TF32) == (kind.COMPUTE_32F_EMULATED_16BFX9, kind.COMPUTE_32F_FAST_TF32)
    assert (cublaslt.IN_F16, cublaslt.IN_F32, cublaslt.IN_F64) == (cublas.IN_F16, cublas.IN_F32, cublas.IN_F64)
    assert (cublas.DEFAULT_STRATEGY, cublas.EAGER) == (real.EmulationStrategy.DEFAULT, real.EmulationStrategy.EAGER)
    assert real.GemmAlgo.DFALT == cublas.LIBRARY_CHOOSES
    assert (gemm_layout.N, gemm_layout.T, gemm_layout.C) == (real.Operation.N, real.Operation.T, real.Operation.C)
    reduction, epilogue = real_lt.ReductionScheme, real_lt.Epilogue
    assert (cublaslt.NONE, cublaslt.COMPUTE_TYPE, cublaslt.ANY) == (reduction.NONE, reduction.COMPUTE_TYPE, reduction.MASK)
    assert (cublaslt.PLAIN, cublaslt.BIAS) == (epilogue.DEFAULT, epilogue.BIAS)
    assert cublaslt.GELU == epilogue.GELU and epilogue.GELU_BIAS == cublaslt.GELU | cublaslt.BIAS


def test_cuda_has_the_types_that_are_written_here() -> None:
    nvmath = pytest.importorskip("nvmath")
    from backline.libraries.cuda.common.gemm_layout import DTYPES

    names = {"float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF", "float32": "CUDA_R_32F", "float64": "CUDA_R_64F",
             "complex64": "CUDA_C_32F", "complex128": "CUDA_C_64F"}  # fmt: skip
    assert {name: int(nvmath.CudaDataType[value]) for name, value in names.items()} == DTYPES


# --- what others build on ------------------------------------------------------------------------------------------


def test_a_device_is_what_cupy_tells(machine: Machine) -> None:
    assert device_facts.device_info(0) == device_facts.DeviceInfo(0, (9, 0), 132, "NVIDIA H100 80GB HBM3", 52428800, 85028765696)
    assert device_facts.device_info(1).capability == (7, 5) == device_facts.capability(1)


def test_the_capability_is_asked_without_importing_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.libraries import devices

    monkeypatch.setattr(devices, "capability", lambda index: {0: (9, 0)}.get(index))
    monkeypatch.delitem(__import__("sys").modules, "cupy", raising=False)
    assert device_facts.capability(0) == (9, 0) and device_facts.capability(1) == (0, 0)


def test_a_module_that_cannot_be_imported_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> Any:
        raise ImportError(f"No module named {path!r}")

    monkeypatch.setattr(bindings, "import_module", fail)
    monkeypatch.setattr(bindings, "_imported", {})
    for get in (bindings.cupy, bindings.cublas, bindings.cusolverDn, bindings.cufft, bindings.cusparseLt, bindings.cudnn):
        with pytest.raises(BackendUnavailable, match="cannot be imported") as caught:
            get()
        assert caught.value.remedy.startswith("pip install 'backline[")


def test_a_library_is_loaded_from_where_it_was_found_before_its_binding_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.libraries import presence

    order: list[str] = []
    for name in ("cublaslt", "cublas", "nvrtc", "cudnn"):
        found = presence.Found("", (), f"/found/lib{name}.so.13")
        monkeypatch.setitem(presence._presences, name, presence.Presence(presence.registry.LibraryInfo(name, name), lambda row, found=found: found))
    monkeypatch.setattr(bindings.ctypes, "CDLL", lambda path, mode: order.append(path))
    monkeypatch.setattr(bindings, "import_module", lambda path: order.append(path) or object())
    monkeypatch.setattr(bindings, "_imported", {})
    monkeypatch.setattr(bindings, "_loaded", {})
    assert bindings.cublas() is bindings.cublas()
    assert order == ["/found/libcublaslt.so.13", "/found/libcublas.so.13", "nvmath.bindings.cublas"]
    order.clear()
    assert bindings.cudnn() is not None
    assert order == ["/found/libnvrtc.so.13", "/found/libcudnn.so.13", "cudnn"], "what is loaded is not loaded again"


def test_overlaps_are_told_by_elements(machine: Machine) -> None:
    from backline.problems import operand

    base = np.zeros((6, 6), np.float32)

    def refuses(out: Any, other: Any) -> bool:
        try:
            device_plan.refuse_overlaps(ndarray(out), operand("out", out), [(ndarray(other), operand("a", other))])
        except BadValue:
            return True
        return False

    cases = [(base[:3], base[3:]), (base[:3], base[2:]), (base[::2], base[1::2]), (base[:, ::2], base[:, 1:3]), (base[::-1], base)]
    assert [refuses(*pair) for pair in cases] == [np.shares_memory(*pair) for pair in cases] == [False, True, False, True, True]
    assert not refuses(np.zeros((0, 3), np.float32), base)
