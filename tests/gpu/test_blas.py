"""Products on CUDA arrays: which routine runs under which switch, with which mode and workspace, and how exact it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.backends import cuda
from backline.errors import BacklineError, BadValue, LibraryFailed, NoKernel
from backline.libraries.base import Algorithm
from backline.libraries.cuda.common import bindings
from backline.switches import starting_values
from gpu.arrays import dtype_of, error, normal, wide
from gpu.watch import watched

TF32 = {"cuda.matmul.fp32_precision": "tf32"}
ON_LT = {"cuda.preferred_blas_library": "cublaslt"}
HALVES = ("float16", "bfloat16")
REDUCED = {"float16": "cuda.matmul.allow_fp16_reduced_precision_reduction", "bfloat16": "cuda.matmul.allow_bf16_reduced_precision_reduction"}
ACCUMULATE = "cuda.matmul.allow_fp16_accumulation"
FINE, COARSE = 2e-6, 1e-3
ROUNDED = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # of a result that is stored so

Size = Callable[[Any, Any], Any]


class Square:
    """A product of standard normal numbers, and what it comes to in float64."""

    def __init__(self, xp: Any, n: int, dtype: str = "float32", shape: tuple[int, ...] = ()) -> None:
        hosts = [normal((*shape, n, n), dtype, seed) for seed in (1, 2)]
        self.expected = wide(hosts[0]) @ wide(hosts[1])
        self.a, self.b = map(xp.asarray, hosts)

    def run(self) -> Any:
        return backline.matmul(self.a, self.b)

    def error(self) -> float:
        return error(self.run(), self.expected)


@pytest.fixture
def square(xp: Any, size: Size) -> Square:
    return Square(xp, size(1024, 192))


# --- float32 ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="BLAS-1")
@pytest.mark.parametrize("precision", ["none", "ieee"])
def test_float32_as_ieee_has_it(row: Any, square: Square, precision: str) -> None:
    row.expect(f"{precision}: gemm_ex, default mode, compute type 68, error below {FINE}")
    with switches.scope({"cuda.matmul.fp32_precision": precision}), watched("cublas", fresh=True) as calls:
        found = square.error()
        (call,) = calls.of("gemm_ex")
        modes = calls.of("set_math_mode")
        order = [name for name in calls.names() if name in ("set_stream", "set_workspace", "gemm_ex")]
    row.observe(found, f"{precision}: {backline.explain().chosen.key}, compute type {call['compute_type']}")
    assert found < FINE and call["compute_type"] == 68 and not modes
    assert order == ["set_stream", "set_workspace", "gemm_ex"]
    assert (call["transa"], call["transb"]) == (0, 0), "what is contiguous is not transposed"


@pytest.mark.gpu(row="BLAS-1")
def test_operands_in_any_order_of_memory_are_taken_as_they_lie(row: Any, xp: Any, size: Size) -> None:
    n = size(512, 64)
    left, right = normal((n, n), seed=1), normal((n, n), seed=2)
    a, b = xp.asarray(left), xp.asarray(right)
    expected = wide(left) @ wide(right)
    with watched("cublas") as calls:
        for x, y, ops in ((a, b, (0, 0)), (a.T.copy().T, b, (0, 1)), (a, b.T.copy().T, (1, 0)), (a.T.copy().T, b.T.copy().T, (1, 1))):
            found = error(backline.matmul(x, y), expected)
            call = calls.of("gemm_ex")[-1]
            row.observe(found, f"operations {call['transa']}, {call['transb']}")
            assert found < FINE and (call["transa"], call["transb"]) == ops
            assert {call["a"], call["b"]} == {int(x.data.ptr), int(y.data.ptr)}, "nothing is copied"


@pytest.mark.gpu(row="BLAS-2")
def test_tf32_inside_a_scope_and_float32_after_it(row: Any, square: Square) -> None:
    row.expect(f"inside the scope an error between 1e-4 and {COARSE}, after it below {FINE}; also after an exception")
    with watched("cublas") as calls:
        with switches.scope(TF32):
            coarse = square.error()
        modes = [each["mode"] for each in calls.of("set_math_mode")]
        after = square.error()
        with pytest.raises(ZeroDivisionError), switches.scope(TF32):
            square.run()
            raise ZeroDivisionError
        last = square.error()
        handle = calls.of("gemm_ex")[-1]["handle"]
        left = calls.cublas.get_math_mode(handle)
    row.observe(f"tf32 {coarse:.3g}, after the scope {after:.3g}, after an exception {last:.3g}", f"modes {modes}, left at {int(left)}")
    assert 1e-4 < coarse < COARSE and after < FINE and last < FINE
    assert modes == [3, 0] and int(left) == 0


@pytest.mark.gpu(row="BLAS-2")
def test_the_mode_is_set_back_where_the_routine_fails(row: Any, square: Square) -> None:
    with watched("cublas") as calls:
        calls.cublas.fails["gemm_ex"] = RuntimeError("a failure that the check made")
        with switches.scope(TF32), pytest.raises(LibraryFailed):
            square.run()
        assert [each["mode"] for each in calls.of("set_math_mode")] == [3, 0]
        assert int(calls.cublas.get_math_mode(calls.of("gemm_ex")[-1]["handle"])) == 0
        calls.cublas.fails.clear()
        found = square.error()
    row.observe(found, "float32 after a failed tf32 product")
    assert found < FINE


@contextmanager
def handle_of(xp: Any, *, workspace: int = 32 << 20, before_the_stream: bool = False) -> Iterator[tuple[Any, int, Any]]:
    """A handle of cuBLAS that nothing of Backline has touched, with a workspace; it is destroyed afterwards."""
    module = bindings.cublas()
    handle = module.create()
    memory = xp.zeros((workspace + 256,), np.uint8)
    memory = memory[-int(memory.data.ptr) % 256 :][:workspace]  # as cuBLAS wants it aligned
    try:
        for what in ("workspace", "stream") if before_the_stream else ("stream", "workspace"):
            if what == "workspace":
                module.set_workspace(handle, int(memory.data.ptr), workspace)
            else:
                module.set_stream(handle, int(xp.cuda.get_current_stream().ptr))
        yield module, handle, memory
    finally:
        xp.cuda.get_current_stream().synchronize()
        module.destroy(handle)


def raw(module: Any, handle: int, a: Any, b: Any, out: Any, compute: int = 68) -> None:
    """A product of contiguous float32 matrices by cuBLAS itself."""
    (m, k), n = a.shape, b.shape[1]
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    module.gemm_ex(
        handle, 0, 0, n, m, k, one.ctypes.data, int(b.data.ptr), 0, n, int(a.data.ptr), 0, k, zero.ctypes.data, int(out.data.ptr),
        0, n, compute, -1,
    )  # fmt: skip


@pytest.mark.gpu(row="BLAS-3")
def test_emulation_by_bfloat16(row: Any, xp: Any, square: Square) -> None:
    """No switch asks for it: what the library does of it is recorded."""
    row.expect("whether mode 4 and compute type 78 are refused, computed, or plain float32; afterwards products are as before")
    row.record()
    plain = square.run()
    problem = backline.explain(backline.matmul, square.a, square.b).problem
    said = []
    try:
        result = libraries.get("cublas").prepare(problem, Algorithm(library="cublas", name="gemm_bf16x9"))(square.a, square.b)
        said.append(("as Backline prepares it, eager", result))
    except BacklineError as failure:
        said.append((f"as Backline prepares it, eager: {failure}", None))
    for mode, compute in ((4, 68), (0, 78), (4, 78)):
        with handle_of(xp) as (module, handle, _):
            out = xp.empty(square.expected.shape, np.float32)
            try:
                module.set_math_mode(handle, mode)
                raw(module, handle, square.a, square.b, out, compute)
                said.append((f"mode {mode}, compute type {compute}", out))
            except module.cuBLASError as failure:
                said.append((f"mode {mode}, compute type {compute}: {failure}", None))
    for words, result in said:
        if result is None:
            text = f"{words}: refused"
        else:
            found = error(result, square.expected)
            same = np.array_equal(result.get(), plain.get())
            text = f"{words}: accepted, error {found:.3g}, {'the same bits as plain float32' if same else 'other bits than plain float32'}"
            assert found < COARSE
        row.observe(text)
        row.finding(4, text)
    after = square.error()
    assert after < FINE, "what was tried leaves nothing behind"


# --- half types -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="BLAS-4")
@pytest.mark.parametrize("dtype", HALVES)
def test_half_types_with_reductions_in_reduced_precision(row: Any, xp: Any, size: Size, dtype: str) -> None:
    row.expect("default mode, compute type 68, an error of the type's own rounding")
    square = Square(xp, size(1024, 192), dtype)
    with watched("cublas") as calls:
        found = square.error()
        (call,) = calls.of("gemm_ex")
        assert not calls.of("set_math_mode")
    row.observe(found, f"{dtype}: compute type {call['compute_type']}, default mode")
    assert call["compute_type"] == 68 and found < ROUNDED[dtype]


@pytest.mark.gpu(row="BLAS-5")
@pytest.mark.parametrize("dtype", HALVES)
def test_half_types_without_reduced_sums_but_with_split_k(row: Any, xp: Any, size: Size, dtype: str) -> None:
    row.expect("cuBLAS: mode 16; cuBLASLt: a reduction in the compute type or none")
    square = Square(xp, size(1024, 192), dtype)
    with switches.scope({REDUCED[dtype]: False}):
        with watched("cublas") as calls:
            found = square.error()
            modes = [each["mode"] for each in calls.of("set_math_mode")]
        row.observe(found, f"{dtype}: cuBLAS modes {modes}")
        assert modes == [16, 0] and found < ROUNDED[dtype]
        with switches.scope(ON_LT):
            found = square.error()
            assert backline.explain().chosen.key.startswith("cublaslt.matmul_wide_sums")
        row.observe(found, f"{dtype}: {backline.explain().chosen.key}")
        assert found < ROUNDED[dtype]
    schemes = schemes_of(xp, size, dtype, "matmul_wide_sums")
    row.finding(11, f"{dtype} mask COMPUTE_TYPE (2), (split-k, scheme) by shape: {schemes}")
    assert all(scheme in (0, 2) for _, scheme in schemes.values())


@pytest.mark.gpu(row="BLAS-6")
@pytest.mark.parametrize("dtype", HALVES)
def test_half_types_without_split_k(row: Any, xp: Any, size: Size, dtype: str) -> None:
    row.expect("cuBLASLt alone has it, with no reduction at all; cuBLAS refuses and names the switch")
    square = Square(xp, size(1024, 192), dtype)
    with switches.scope({REDUCED[dtype]: (False, False)}):
        with switches.scope({"only": ("cublas",)}), pytest.raises(NoKernel, match=r"cuda\.preferred_blas_library = 'cublaslt'"):
            square.run()
        with switches.scope(ON_LT), watched("cublas", "cublasLt") as calls:
            found = square.error()
            assert len(calls.of("matmul")) == 1 and not calls.of("gemm_ex")
        row.observe(found, f"{dtype}: {backline.explain().chosen.key}")
        assert found < ROUNDED[dtype] and backline.explain().chosen.name == "matmul_unsplit"
    with pytest.raises(BadValue):
        switches.scope({REDUCED[dtype]: (True, False)}).__enter__()
    schemes, free = (schemes_of(xp, size, dtype, name) for name in ("matmul_unsplit", "matmul"))
    row.finding(11, f"{dtype} mask NONE (0), (split-k, scheme) by shape: {schemes}; mask ANY (7): {free}")
    assert all(scheme == 0 and split <= 1 for split, scheme in schemes.values())


def schemes_of(xp: Any, size: Size, dtype: str, name: str) -> dict[str, tuple[int, int]]:
    """Returns how often the algorithm that cuBLASLt's heuristics name first splits k, and how it adds up the parts, by shape."""
    lt = bindings.cublasLt()
    kind = lt.MatmulAlgoConfigAttribute
    found = {}
    for m, k in ((size(1024, 32), size(1024, 32)), (size(128, 16), size(65536, 64)), (64, size(16384, 64))):
        a, b = xp.zeros((m, k), dtype_of(dtype)), xp.zeros((k, m), dtype_of(dtype))
        with switches.scope(ON_LT):
            problem = backline.explain(backline.matmul, a, b).problem
        plan = libraries.get("cublaslt").prepare(problem, Algorithm(library="cublaslt", name=name))
        algorithm = plan.function.found[plan.function.made.alignments[0]].address
        values = []
        # As cublasLt.h has them.
        for attribute, dtype_of_it in ((kind.SPLITK_NUM, np.int32), (kind.REDUCTION_SCHEME, np.uint32)):
            value, written = np.zeros(1, dtype_of_it), np.zeros(1, np.uint64)
            lt.matmul_algo_config_get_attribute(algorithm, attribute, value.ctypes.data, 4, written.ctypes.data)
            values.append(int(value[0]))
        found[f"{m}x{k}x{m}"] = (values[0], values[1])
    return found


@pytest.mark.gpu(row="BLAS-7")
def test_float16_accumulated_in_float16(row: Any, xp: Any, size: Size, device: Any) -> None:
    row.expect("uniform numbers, K = 8192: compute type 64 where the switch permits it; how much that loses is recorded")
    m, k = size((1024, 8192), (48, 8192))
    rng = np.random.default_rng(7)
    left, right = (rng.random(shape).astype(np.float16) for shape in ((m, k), (k, m)))
    a, b, expected = xp.asarray(left), xp.asarray(right), wide(left) @ wide(right)
    errors, computes = {}, {}
    for allowed in (False, True):
        with switches.scope({ACCUMULATE: allowed}), watched("cublas") as calls:
            errors[allowed] = error(backline.matmul(a, b), expected)
            computes[allowed] = calls.of("gemm_ex")[-1]["compute_type"]
    factor = errors[True] / errors[False]
    text = f"sums in float16 {errors[True]:.3g}, in float32 {errors[False]:.3g}: {factor:.3g} times, compute types {computes}"
    row.observe(text, f"factor {factor:.3g}")
    row.finding(10, f"{device.name}: {text}")
    # A kernel may sum in more than it must: the factor is the library's affair.
    assert computes == {False: 68, True: 64} and errors[False] < ROUNDED["float16"] and errors[True] < 0.1


@pytest.mark.gpu(row="BLAS-8")
@pytest.mark.parametrize("dtype", HALVES)
def test_batches_of_half_types(row: Any, xp: Any, size: Size, dtype: str) -> None:
    row.expect("strided batches; tables of addresses only where a batch does not lie in regular steps; never float32 copies")
    n = size(128, 24)
    square = Square(xp, n, dtype, (6,))
    with watched("cublas") as calls:
        found = square.error()
        (call,) = calls.of("gemm_strided_batched_ex")
        row.observe(found, f"{dtype} regular: gemm_strided_batched_ex, types {call['atype']}, {call['ctype']}")
        assert found < ROUNDED[dtype] and call["batch_count"] == 6 and call["atype"] == call["ctype"] == {"float16": 2, "bfloat16": 14}[dtype]
        # Items along two axes, of which one repeats: no fixed step reaches them.
        left, right = normal((2, 3, n, n), dtype, 3), normal((2, 1, n, n), dtype, 4)
        result = backline.matmul(xp.asarray(left), xp.asarray(right))
        (call,) = calls.of("gemm_batched_ex")
    found = error(result, wide(left) @ wide(right))
    row.observe(found, f"{dtype} broadcast: gemm_batched_ex of {call['batch_count']}")
    assert found < ROUNDED[dtype] and call["batch_count"] == 6


# --- workspaces, preferences, bits ------------------------------------------------------------------------------------


@pytest.mark.gpu(row="BLAS-9")
def test_sizes_of_workspaces(row: Any, square: Square, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recommended = 32 << 20 if device.capability == (9, 0) else 8519680
    told = starting_values.starting_cublas()[0]  # by the variable as it was when the process began
    at_first = recommended if told == starting_values.RECOMMENDED else told
    row.expect(f"{at_first} bytes unless a size is set, which beats CUBLAS_WORKSPACE_CONFIG; set after the stream")
    row.finding(9, f"Backline sets {recommended} bytes on compute capability {'.'.join(map(str, device.capability))}")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with watched("cublas", "cublasLt", fresh=True) as calls:
        for given in (None, 1 << 20, 0):
            with switches.scope({} if given is None else {"cuda.cublas_workspace_size": given}):
                found = square.error()
            size = calls.of("set_workspace")[-1]["workspace_size_in_bytes"]
            row.observe(f"asked {given}: set {size} bytes", f"error {found:.3g}")
            assert size == (at_first if given is None else given) and found < FINE
        for given in (recommended, 1 << 20):
            with switches.scope({**ON_LT, "cuda.cublas_workspace_size": recommended, "cuda.cublaslt_workspace_size": given}):
                found = square.error()
            used = calls.of("matmul")[-1]["workspace_size_in_bytes"]
            row.observe(f"cuBLASLt may take {given}: takes {used} bytes", f"error {found:.3g}")
            assert used <= given and found < FINE


@pytest.mark.gpu(row="BLAS-12")
def test_what_cublas_does_with_a_workspace_by_itself(row: Any, xp: Any, size: Size) -> None:
    """Nothing follows from the answers, for Backline says both anew for each call."""
    row.expect("what cuBLAS writes to a workspace that is set before the stream, or after it; what a handle takes by itself")
    row.record()
    runtime = xp.cuda.runtime
    m, k = 64, size(1 << 18, 256)
    left, right = normal((m, k), seed=5), normal((k, m), seed=6)
    a, b, out = xp.asarray(left), xp.asarray(right), xp.empty((m, m), np.float32)
    module = bindings.cublas()
    with handle_of(xp) as (_, handle, memory):  # kernels are loaded now
        raw(module, handle, a, b, out)
        used = int(np.count_nonzero(memory.get()))
    found = error(out, wide(left) @ wide(right))
    row.observe(f"stream, then workspace: {used} bytes of it were written to", f"64 x {k} x 64, error {found:.3g}")
    runtime.deviceSynchronize()
    with handle_of(xp, before_the_stream=True) as (_, handle, memory):
        try:
            raw(module, handle, a, b, out)
            reset = f"{int(np.count_nonzero(memory.get()))} bytes of the workspace were written to"
        except AssertionError as taken:  # a stand-in refuses it
            reset = str(taken)
    row.finding(9, f"workspace then stream: {reset}; stream then workspace: {used} bytes")
    runtime.deviceSynchronize()
    free = runtime.memGetInfo()[0]
    handle = module.create()
    try:
        with_handle = free - runtime.memGetInfo()[0]
    finally:
        module.destroy(handle)
    row.finding(9, f"a handle without a workspace of its own takes {with_handle} bytes of the device (as far as the driver tells)")
    assert found < 1e-4, "long sums"


@pytest.mark.gpu(row="BLAS-10")
def test_the_preferred_library_runs(row: Any, xp: Any, square: Square) -> None:
    row.expect("default: cuBLAS, and cuBLASLt for a bias only; names of HIP are aliases")
    n = square.a.shape[0]
    bias = normal((n,), seed=9)
    there = xp.asarray(bias)

    def ran(function: Any) -> tuple[str, Any]:
        with watched("cublas", "cublasLt") as calls:
            result = function()
            found = {"gemm_ex": "cublas", "matmul": "cublaslt"}
            names = [found[name] for name in calls.names() if name in found]
        return "+".join(names), result

    for preferred, expected in (
        ("default", "cublas"), ("cublas", "cublas"), ("hipblas", "cublas"), ("cublaslt", "cublaslt"), ("hipblaslt", "cublaslt"),
    ):  # fmt: skip
        with switches.scope({"cuda.preferred_blas_library": preferred}):
            library, result = ran(square.run)
            again = cuda.preferred_blas_library().name.lower()
        found = error(result, square.expected)
        row.observe(f"{preferred} (reads {again}): {library}", f"error {found:.3g}")
        assert library == expected and found < FINE
    with_bias = square.expected + wide(bias)
    for preferred, expected in (("default", "cublaslt"), ("cublas", "cublas")):
        with switches.scope({"cuda.preferred_blas_library": preferred}):
            library, result = ran(lambda: backline.addmm(there, square.a, square.b))
        found = error(result, with_bias)
        row.observe(f"{preferred}, with a bias: {library}", f"error {found:.3g}")
        assert library == expected and found < FINE


@pytest.mark.gpu(row="BLAS-11")
@pytest.mark.parametrize(("dtype", "given"), [("float32", {}), ("float32", TF32), ("float16", {}), ("bfloat16", {})])
def test_the_same_bits_on_two_streams(row: Any, xp: Any, size: Size, dtype: str, given: dict[str, Any]) -> None:
    row.expect("20 equal runs; each stream has its own handle and workspace, and atomics are off")
    m, k = size((96, 32768), (16, 256))  # a shape whose sums are best split
    a, b = xp.asarray(normal((m, k), dtype, 1)), xp.asarray(normal((k, m), dtype, 2))
    streams = [xp.cuda.Stream(non_blocking=True) for _ in range(2)]
    xp.cuda.get_current_stream().synchronize()
    results = []
    with switches.scope({"deterministic": True, **given}), watched("cublas", fresh=True) as calls:
        for i in range(20):
            with streams[i % 2]:
                results.append(backline.matmul(a, b))
        for stream in streams:
            stream.synchronize()
        handles = {(each["handle"], each["stream_id"]) for each in calls.of("set_stream")}
        workspaces = {each["workspace"] for each in calls.of("set_workspace")}
        runs = len(calls.of("gemm_ex"))
    bits = {each.get().tobytes() for each in results}
    row.observe(f"{dtype} {given or ''}: {len(bits)} result(s) of {runs} runs", f"{len(handles)} handles, {len(workspaces)} workspaces")
    assert len(bits) == 1 and runs == 20
    assert len(handles) == 2 and len({handle for handle, _ in handles}) == 2 and len({stream for _, stream in handles}) == 2
    modes = {int(bindings.cublas().get_atomics_mode(handle)) for handle, _ in handles}
    row.observe(f"atomics mode {modes}")
    assert modes == {0}
