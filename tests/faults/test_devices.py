"""Faults of a GPU, its driver and its libraries, and what a user is told: with stand-ins that are at fault."""

from __future__ import annotations

import contextlib
import gc
import re
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.engine.tuning import record_store
from backline.errors import BadValue, DeviceLost, LibraryFailed, NoKernel, OutOfMemory
from backline.libraries import array_kinds, availability, conflicts, presence, registry
from backline.libraries.array_kinds import ArrayKind
from backline.libraries.base import Algorithm, Library, RefusedForNow
from backline.libraries.cuda.common import bindings, device_plan
from backline.libraries.cuda.common.device_plan import DevicePlan
from backline.libraries.in_process import LoadedLibrary
from backline.native import library_search
from backline.native.process_map import MappedFile
from backline.problems import Problem
from fakes.cupy_standin import H100, CuPy, ndarray
from fakes.insert import inserted
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean


class LibError(Exception):
    """As the bindings' own: not a RuntimeError."""


class CudaError(RuntimeError):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


ILLEGAL = CudaError(700, "cudaErrorIllegalAddress: an illegal memory access was encountered")


class Machine:
    """A CuPy of two devices, and what the device answers to those who wait for it."""

    def __init__(self) -> None:
        self.cupy = CuPy(H100, H100)
        self.answers: list[Exception] = []  # the last one stays
        self.forever = False
        self.cupy.cuda.runtime.deviceSynchronize = self.wait

    def wait(self) -> None:
        if self.answers:
            raise self.answers[0] if self.forever else self.answers.pop(0)

    def plan(self, *outcomes: Any) -> DevicePlan:
        """A Plan on device 1 whose calls come out like this, one after the other."""
        left = list(outcomes)

        def function(*arrays: Any) -> Any:
            assert self.cupy.cuda.runtime.getDevice() == 1
            found = left.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        return DevicePlan(function, 1, "cuBLAS gemm_ex", (LibError,))


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    with inserted(cupy=made.cupy):
        yield made


# --- memory


def test_where_cupy_has_no_memory_the_error_says_how_much_was_wanted_and_is_free(machine: Machine) -> None:
    error = type("OutOfMemoryError", (MemoryError,), {})("Out of memory allocating 100 bytes")
    plan = machine.plan(error, "done")
    with pytest.raises(OutOfMemory, match="cuBLAS gemm_ex found no memory on cuda:1") as caught:
        plan()
    assert caught.value.__cause__ is error and "allocating 100 bytes" in str(caught.value)
    assert re.search(r"17,179,869,184 of [\d,]+ bytes are free on the device, and 0 in CuPy's pool", str(caught.value))
    assert plan() == "done" and not plan.failed  # with less in use, the same Plan works


def test_an_error_of_memory_leaves_nothing_held(machine: Machine) -> None:
    class Array:
        size, dtype = 4, np.dtype(np.float32)
        data = type("Pointer", (), {"ptr": 4096})()

    kept: list[Any] = []

    def function(array: Any) -> Any:
        made = Array()
        kept.append(weakref.ref(made))
        raise MemoryError("Out of memory allocating 100 bytes")

    plan = DevicePlan(function, 1, "cuBLAS gemm_ex", (LibError,))
    gc.disable()
    try:
        with pytest.raises(OutOfMemory):
            plan(Array())
        with contextlib.suppress(MemoryError):
            plan(Array())
        assert kept[-1]() is None, "not even until the garbage collector runs"
    finally:
        gc.enable()


@pytest.mark.parametrize("text", ["ALLOC_FAILED (3)", "NOT_INITIALIZED (1)", "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
                                  "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"])  # fmt: skip
def test_a_library_without_memory_is_asked_again_when_the_pool_gave_back_what_it_kept(machine: Machine, text: str) -> None:
    plan = machine.plan(LibError(text), "done")
    assert plan() == "done"
    assert machine.cupy.pool.freed == 1 and not plan.failed
    assert machine.cupy.cuda.runtime.getDevice() == 0


def test_out_of_memory_after_all_is_a_memory_error_too(machine: Machine) -> None:
    plan = machine.plan(LibError("ALLOC_FAILED (3)"), LibError("ALLOC_FAILED (3)"))
    with pytest.raises(MemoryError, match="cuBLAS gemm_ex found no memory on cuda:1") as caught:
        plan()
    assert isinstance(caught.value, OutOfMemory) and isinstance(caught.value, LibraryFailed) and plan.failed
    assert "ALLOC_FAILED (3), also after CuPy's pool gave back what it kept" in str(caught.value)
    assert machine.cupy.pool.freed == 1


def test_what_only_may_be_a_lack_of_memory_is_not_called_that(machine: Machine) -> None:
    with pytest.raises(LibraryFailed, match=r"NOT_INITIALIZED \(1\); the device can be used") as caught:
        machine.plan(LibError("NOT_INITIALIZED (1)"), LibError("NOT_INITIALIZED (1)"))()
    assert not isinstance(caught.value, MemoryError)


def test_the_second_try_may_fail_in_its_own_way(machine: Machine) -> None:
    with pytest.raises(OutOfMemory, match="MemoryError: 2"):
        machine.plan(LibError("ALLOC_FAILED"), MemoryError("2"))()
    with pytest.raises(BadValue):
        machine.plan(LibError("ALLOC_FAILED"), BadValue("2"))()


# --- kernels that fail


@pytest.mark.parametrize("error", [LibError("EXECUTION_FAILED (13)"), CudaError(701, "cudaErrorLaunchOutOfResources")])
def test_a_launch_that_fails_is_translated_and_the_device_can_be_used(machine: Machine, error: Exception) -> None:
    plan = machine.plan(error)
    with pytest.raises(LibraryFailed, match="cuBLAS gemm_ex failed") as caught:
        plan()
    assert type(caught.value) is LibraryFailed and caught.value.__cause__ is error and plan.failed
    assert "the device can be used; the next call prepares everything anew" in str(caught.value)


def test_an_error_that_is_told_once_is_not_the_end(machine: Machine) -> None:
    machine.answers = [CudaError(1, "cudaErrorInvalidValue")]
    with pytest.raises(LibraryFailed, match="can be used"):
        machine.plan(LibError("EXECUTION_FAILED (13)"))()


@pytest.mark.parametrize("raised", [ILLEGAL, LibError("EXECUTION_FAILED (13)"), LibraryFailed("all of cuDNN's plans failed")])
def test_an_error_that_stays_means_that_the_device_is_lost(machine: Machine, raised: Exception) -> None:
    machine.answers, machine.forever = [ILLEGAL], True
    plan = machine.plan(raised)
    with pytest.raises(DeviceLost, match="cuda:1 is lost to this process") as caught:
        plan()
    text = str(caught.value)
    assert "CUDA now answers everything with CudaError: cudaErrorIllegalAddress" in text and "An earlier kernel" in text
    assert "start the process anew" in text and "CUDA_LAUNCH_BLOCKING=1" in text
    assert plan.failed and caught.value.__cause__ is raised


def test_a_stream_that_records_a_graph_cannot_be_asked_and_is_not_lost(machine: Machine) -> None:
    machine.answers, machine.forever = [CudaError(900, "cudaErrorStreamCaptureUnsupported")], True
    with pytest.raises(LibraryFailed, match="can be used"):
        machine.plan(LibError("EXECUTION_FAILED"))()


@pytest.mark.parametrize("error", [TypeError("a mistake"), BadValue("out overlaps"), KeyError("x")])
def test_other_errors_pass_and_nobody_waits(machine: Machine, error: Exception) -> None:
    machine.answers = [AssertionError("asked")]
    plan = machine.plan(error)
    with pytest.raises(type(error)) as caught:
        plan()
    assert caught.value is error and not plan.failed and machine.cupy.cuda.runtime.getDevice() == 0


# --- operations, and measuring them


class Faulty(Library):
    """A library of which each algorithm does what `does` says."""

    name = "faulty"
    devices = ("cuda",)
    does: dict[str, Callable[..., Any]]
    prepared = 0

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return "1"

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm]:
        yield from (Algorithm(library=self.name, name=name) for name in self.does if problem.op == "matmul")

    def prepare(self, problem: Problem, algorithm: Algorithm) -> DevicePlan:
        Faulty.prepared += 1
        return DevicePlan(self.does[algorithm.name], 0, f"faulty {algorithm.name}", (LibError,))


def product(a: ndarray, b: ndarray) -> ndarray:
    return ndarray(a.host @ b.host)


def raising(error: Exception) -> Callable[..., Any]:
    def function(*arrays: Any) -> Any:
        raise error

    return function


@pytest.fixture
def faulty(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Faulty]]:
    kept = array_kinds._KINDS["cupy"]
    array_kinds.register(
        ArrayKind(
            "CuPy", "cupy", "ndarray", lambda a: a.host.dtype, lambda a: a.host.strides, lambda a: f"cuda:{a.device.id}", "cuda",
            lambda a, device: ndarray(a), lambda a: a.get(), lambda device: machine.wait(),
        )
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", machine.cupy)
    libraries.register(Faulty())
    Faulty.prepared = 0
    for name in ("cublas", "cublaslt"):
        monkeypatch.setattr(type(libraries.get(name)), "reason", lambda self: "not in this test")
    yield Faulty
    libraries.unregister("faulty")
    array_kinds.register(kept)


def call() -> Any:
    return backline.matmul(ndarray(np.eye(3, dtype=np.float32)), ndarray(np.ones((3, 4), np.float32)))


def test_a_plan_that_failed_is_dropped(faulty: type[Faulty]) -> None:
    outcomes = [LibError("EXECUTION_FAILED")]
    faulty.does = {"one": lambda a, b: raising(outcomes.pop())() if outcomes else product(a, b)}
    with pytest.raises(LibraryFailed):
        call()
    assert np.array_equal(call().host, np.ones((3, 4))) and faulty.prepared == 2
    call()
    assert faulty.prepared == 2


def test_while_measuring_what_has_no_memory_is_left_out(faulty: type[Faulty]) -> None:
    faulty.does = {"large": raising(MemoryError("no")), "library": raising(LibError("ALLOC_FAILED")), "small": product, "other": product}
    with backline.backends.flags(benchmark=True):
        call()
        choice = backline.explain()
    assert choice.basis.startswith("measured now") and choice.algorithm in ("small", "other")
    assert {c.algorithm for c in choice.candidates if c.seconds} == {"small", "other"}
    assert not [c for c in choice.candidates if c.verdict == "refused" and c.library == "faulty"]  # it may have memory next time


def test_memory_that_runs_out_between_the_rounds_leaves_one_out(faulty: type[Faulty]) -> None:
    runs = iter(range(3))
    faulty.does = {"fades": lambda a, b: product(a, b) if next(runs, None) is not None else raising(MemoryError("no"))(), "one": product,
                   "two": product}  # fmt: skip
    with backline.backends.flags(benchmark=True):
        call()
        assert backline.explain().algorithm in ("one", "two")


def test_where_nothing_can_be_measured_for_lack_of_memory_that_is_said(faulty: type[Faulty]) -> None:
    runs = iter(range(2))
    short = {name: lambda a, b: raising(MemoryError("no"))() if next(runs, None) is not None else product(a, b) for name in ("one", "two")}
    faulty.does = short
    with backline.backends.flags(benchmark=True):
        call()
        choice = backline.explain()
        assert "there is not enough memory to measure it" in choice.basis
        assert record_store.find(choice.problem, choice.threads) is None
        backline.engine.plan_caches.clear()
        call()
        assert backline.explain().basis.startswith("measured now")


def test_a_device_that_is_lost_while_measuring_puts_nothing_on_record(faulty: type[Faulty], machine: Machine) -> None:
    def ruin(*arrays: Any) -> Any:
        machine.answers, machine.forever = [ILLEGAL], True
        return product(*arrays)  # it is noticed by who waits

    faulty.does = {"ruins": ruin, "sound": product}
    with backline.backends.flags(benchmark=True), pytest.raises(DeviceLost, match=r"faulty\.ruins@1 failed, and cuda:0 is lost"):
        call()
    machine.answers = []
    choice = backline.explain(backline.matmul, ndarray(np.eye(3, dtype=np.float32)), ndarray(np.ones((3, 4), np.float32)))
    assert record_store.find(choice.problem, choice.threads) is None


def test_a_device_that_is_lost_while_preparing_is_no_reason_for_another_library(
    faulty: type[Faulty], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(self: Faulty, problem: Problem, algorithm: Algorithm) -> DevicePlan:
        Faulty.prepared += 1
        raise DeviceLost("lost")

    faulty.does = {"one": product, "two": product}
    monkeypatch.setattr(Faulty, "prepare", prepare)
    with pytest.raises(DeviceLost):
        call()
    assert faulty.prepared == 1


# --- drivers and libraries that do not fit

PROPERTY = "int {name}(int which, int *value) {{ static const int n[3] = {{{numbers}}}; *value = n[which]; return 0; }}\n"
DRIVER = """
int cuInit(unsigned flags) {{ return {init}; }}
int cuDeviceGetCount(int *count) {{ *count = 1; return 0; }}
int cuDriverGetVersion(int *version) {{ *version = {version}; return 0; }}
int cuGetErrorString(int error, const char **text) {{ *text = "as it is"; return 0; }}
"""
CUDNN = "#include <stddef.h>\nsize_t cudnnGetVersion(void) {{ return {version}; }}"
SOURCES = {
    "cuda": DRIVER, "cudnn": CUDNN, **dict.fromkeys(("cublas", "cublaslt", "cusolver", "cufft"), PROPERTY),
}  # fmt: skip
SAYS = {"cublas": "cublasGetProperty", "cublaslt": "cublasLtGetProperty", "cusolver": "cusolverGetProperty", "cufft": "cufftGetProperty"}

Put = Callable[..., Path]
ROWS = {row.name: row for row in registry.ROWS if row.files}
_compiled: dict[str, bytes] = {}  # by source


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Puts a stand-in for a library in its place; CuPy and the bindings are empty packages."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None
    for package in ("cupy", "nvmath", "cudnn"):
        (tmp_path / "site" / package).mkdir(parents=True)
        (tmp_path / "site" / package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "cudnn", raising=False)
    monkeypatch.delitem(sys.modules, "nvmath", raising=False)

    def make(name: str, **values: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        source, target = SOURCES[name].format(name=SAYS.get(name, ""), **values), folder / f"lib{name}.so"
        if source not in _compiled:
            (folder / "source.c").write_text(source)
            subprocess.run([compiler, "-shared", "-fPIC", "-o", target, folder / "source.c"], check=True)
            _compiled[source] = target.read_bytes()
        target.unlink(missing_ok=True)
        target.write_bytes(_compiled[source])
        monkeypatch.setenv(ROWS[name].variable, str(target))
        presence.presence(name).forget()
        return target

    for name in ROWS:
        presence.presence(name).forget()
    yield make
    monkeypatch.undo()
    for name in ROWS:
        presence.presence(name).forget()


def of_cuda(put: Put, major: int, driver: int = 13000) -> None:
    put("cuda", init=0, version=driver)
    for name in ("cublas", "cublaslt"):
        put(name, numbers=f"{major}, 1, 2")


def test_a_driver_that_is_too_old_for_the_libraries(put: Put) -> None:
    of_cuda(put, 13, driver=12040)
    reason = bindings.reason("cupy", "cublas")
    assert reason == "the driver is too old: it goes up to CUDA 12.4, and cuBLASLt 13.1.2 is of CUDA 13"
    assert availability._remedies[reason] == "NVIDIA's driver 580 or newer; or packages for CUDA 12, such as cupy-cuda12x"
    of_cuda(put, 12, driver=12040)
    assert bindings.reason("cupy", "cublas") == ""
    of_cuda(put, 12, driver=13000)  # a newer driver serves older libraries
    assert bindings.reason("cupy", "cublas") == ""


@pytest.mark.parametrize(("name", "numbers", "said"), [
    ("cublas", "11, 4, 0", "is cuBLAS 11.4.0; 12 or 13 is needed"), ("cublaslt", "14, 0, 0", "is cuBLASLt 14.0.0; 12 or 13 is needed"),
    ("cusolver", "10, 0, 0", "is cuSOLVER 10.0.0; 11 or 12 is needed"), ("cufft", "13, 0, 0", "is cuFFT 13.0.0; 11 or 12 is needed"),
])  # fmt: skip
def test_a_library_of_a_major_version_that_is_not_known(put: Put, name: str, numbers: str, said: str) -> None:
    path = put(name, numbers=numbers)
    found = presence.presence(name)
    assert not found.available() and found.reason() == f"{path} {said}"
    assert found.remedy().startswith(f"name another file, or unset {ROWS[name].variable}; pip install")


@pytest.mark.parametrize(("version", "said"), [(8907, "is cuDNN 8.9.7; 9 is needed"), (100102, "is cuDNN 10.1.2; 9 is needed")])
def test_a_cudnn_of_another_major_version(put: Put, version: int, said: str) -> None:
    assert put("cudnn", version=version) and presence.presence("cudnn").reason().endswith(said)


def test_cudnn_beside_a_cublaslt_of_another_cuda_is_refused_before_it_ends_the_process(put: Put) -> None:
    of_cuda(put, 13)
    path = put("cudnn", version=91900)
    part = path.parent / "libcudnn_adv.so.9"
    part.write_bytes(b"\0libcublasLt.so.12\0")
    reason = bindings.reason("cupy", "cudnn")
    assert reason.startswith("cuDNN was built for CUDA 12 and the cuBLASLt that is there is of CUDA 13")
    assert availability._remedies[reason] == "pip install nvidia-cudnn-cu13 in the place of nvidia-cudnn-cu12"
    fits = put("cudnn", version=91900).rename(path.parent / "libcudnn.so.9")
    part.write_bytes(b"\0libcublasLt.so.13\0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ROWS["cudnn"].variable, str(fits))
        presence.presence("cudnn").forget()
        assert bindings.reason("cupy", "cudnn") == ""


@pytest.mark.parametrize(("init", "hint"), [(34, "take its folder, stubs, out"), (100, "CUDA_VISIBLE_DEVICES"), (803, "start the machine anew"),
                                            (999, "as it is")])  # fmt: skip
def test_a_driver_that_does_not_start(put: Put, init: int, hint: str) -> None:
    put("cuda", init=init, version=13000)
    reason = presence.presence("cuda").reason()
    assert f"(cuInit: status {init})" in reason and hint in reason
    assert not backline.backends.cuda.is_available()


def test_a_library_that_is_there_without_cupy_is_told_apart_from_one_that_is_missing(
    put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_cuda(put, 13)
    path = put("cudnn", version=91900)
    real = presence.python_packages.find
    monkeypatch.setattr(presence.python_packages, "find", lambda name, part="": (None, (), "no package cupy") if name == "cupy" else real(name, part))
    text = str(presence.unavailable("cudnn", "x"))
    assert text == (
        f"x needs cuDNN, which is not available.\n  cause : cuDNN is at {path}, but cannot be used: no package cupy "
        "(pip install 'backline[cuda13]')\n  remedy: pip install 'backline[cuda13]'"
    )


def test_what_everything_lacks_is_the_remedy(put: Put) -> None:
    of_cuda(put, 13, driver=12040)
    with pytest.raises(NoKernel, match="remedy: NVIDIA's driver 580 or newer"):
        call()


def cuda_file(family: str, version: str) -> LoadedLibrary:
    return LoadedLibrary(family, "cuda", f"/x/lib{family}.so.{version}", "pack", version=version)


def test_two_cudas_in_one_process_are_worth_a_note() -> None:
    mixed = [cuda_file("cublas", "12"), cuda_file("cusolver", "12"), cuda_file("cudnn", "9")]
    (found,) = conflicts.conflicts(mixed, {})
    assert (found.kind, found.severity) == ("libraries of CUDA 12 and 13", "note") and found.libraries == tuple(mixed[:2])
    assert conflicts.conflicts([cuda_file("cublas", "13"), cuda_file("cusolver", "12"), cuda_file("cufft", "12.0.1")], {}) == []


def test_of_two_mapped_generations_the_newest_is_taken() -> None:
    files = [MappedFile(f"/x/{name}", "", 1, 0, 1) for name in ("libcublas.so.12", "libcublas.so.13")]
    assert library_search._mapped(ROWS["cublas"].spec, files) == ["/x/libcublas.so.13", "/x/libcublas.so.12"]


# --- graphs


def test_a_stream_that_records_a_graph_is_refused_before_anything_is_called(machine: Machine) -> None:
    plan, stream = machine.plan("done", "done again"), machine.cupy.cuda.Stream()
    with machine.cupy.cuda.stream(stream):
        stream.capturing = True
        with pytest.raises(BadValue, match="cuBLAS gemm_ex cannot be recorded in a CUDA graph") as caught:
            plan()
        assert "memory pool" in str(caught.value) and not plan.failed
        stream.capturing = False
        assert plan() == "done"
    assert plan() == "done again"


def test_nothing_is_prepared_while_a_graph_is_recorded(machine: Machine) -> None:
    """Making a plan may load files or wait, which ends a recording; other libraries would do it as well."""
    problem, stream = Problem("matmul", (), device="cuda:1"), machine.cupy.cuda.Stream()
    made: list[int] = []

    def make() -> Callable[[], str]:
        made.append(1)
        return lambda: "done"

    with machine.cupy.cuda.stream(stream):
        stream.capturing = True
        with pytest.raises(RefusedForNow, match="cuBLAS gemm_ex cannot be recorded"):
            device_plan.prepared(problem, make, "cuBLAS gemm_ex")
        assert not made
        x = machine.cupy.asarray(np.ones((8, 8), np.float32))
        with pytest.raises(BadValue, match="CuPy, relu cannot be recorded in a CUDA graph") as caught:
            backline.nn.functional.relu(x)
        assert not isinstance(caught.value, NoKernel)
        with backline.backends.flags(benchmark=True), pytest.raises(BadValue, match="cannot be recorded in a CUDA graph"):
            backline.nn.functional.relu(x)
        stream.capturing = False
        assert backline.nn.functional.relu(x).get().sum() == 64
        assert device_plan.prepared(problem, make, "cuBLAS gemm_ex")() == "done"
