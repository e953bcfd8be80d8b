"""Fourier transforms by MKL's DFTI: right for every layout, accurate at every size, and freed."""

import ctypes
import gc
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fft_cases import (
    DTYPES,
    SHAPES,
    arrays_like,
    check_layouts,
    check_outputs,
    check_plans,
    error,
    plans_of,
    problem,
    wanted,
)

from backline import libraries
from backline.errors import BackendUnavailable, BadValue, LibraryFailed
from backline.libraries import errata
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.mkl import mkl_fft
from backline.native.filled_memory import filled_memory

mkl = libraries.get("mkl")
ROUNDING = 6.1e-8  # of a result that was computed in float64
MOST_ERROR = 2.5e-7  # of float32: 10 times NumPy's, which computes in float64
pytestmark = pytest.mark.skipif(not mkl.available(), reason="MKL is not installed")


def ways(p, threads=2):
    return plans_of(mkl, p, threads)


def check(p, x, out=None):
    check_plans(mkl, p, x, out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_every_operation_layout_and_length(dtype, shape, axes):
    check_layouts(mkl, dtype, shape, axes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_output_of_any_layout(dtype):
    check_outputs(mkl, dtype)


def test_input_that_is_no_half_of_a_mirror_image():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 10, 7)) + 1j * rng.standard_normal((6, 10, 7))
    check(problem("c2r", x, (0, 1, 2), (6, 10, 12)), x)


@pytest.mark.parametrize("power", range(10, 23))
@pytest.mark.parametrize("op", ["c2c", "r2c", "c2r", "real"])
def test_accuracy_at_every_size_that_matters(power, op):
    n = 1 << power
    rng = np.random.default_rng(power)
    if op in ("c2c", "c2r"):
        m = n if op == "c2c" else n // 2 + 1
        x = (rng.random(m, np.float32) - 0.5 + 1j * (rng.random(m, np.float32) - 0.5)).astype(np.complex64)
    else:
        x = rng.random(n, np.float32) - np.float32(0.5)
    p = problem("c2c" if op == "real" else op, x, scale=1 / n)
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    inverse = (np.fft.irfft, {"norm": "forward"}) if op == "c2r" else (np.fft.rfft if op == "r2c" else np.fft.fft, {})
    reference = inverse[0](wide, **({"n": n} if op == "c2r" else {}), **inverse[1]) / n
    for a, plan in ways(p):
        found = error(plan(x), reference)
        assert found <= MOST_ERROR, f"{a.key}: {found:.1e}"


def test_other_lengths_are_accurate():
    rng = np.random.default_rng(1)
    for n in (1000003, 3 * 5 * 7 * 11 * 13, 10**6, 65537):
        x = rng.random(n, np.float32) - np.float32(0.5)
        p = problem("r2c", x, scale=1 / n)
        reference = np.fft.rfft(x.astype(np.float64)) / n
        for _, plan in ways(p):
            assert error(plan(x), reference) <= MOST_ERROR


@pytest.fixture(params=["avx512", "unknown", "avx2"])
def kernels(request, monkeypatch):
    """MKL seems to have these kernels."""
    sets = {"avx512": ("avx2", "avx512"), "unknown": None, "avx2": ("avx2",)}[request.param]
    monkeypatch.setattr(mkl, "instruction_sets", lambda: sets, raising=False)
    errata.clear()
    yield request.param
    monkeypatch.undo()
    errata.clear()


@pytest.mark.parametrize(("n", "dtype"), [(8250, "complex64"), (65534, "complex64")])
def test_erratum_of_real_results(kernels, n, dtype):
    x = np.zeros((2, n // 2 + 1), dtype)
    for p in (problem("c2r", x, lengths=(n,)), problem("c2r", x, (0, 1), (2, n))):
        found = [f for f in mkl.algorithms(p, 2) if isinstance(f, Algorithm)]
        refused = {f.name: reason for f in found if (reason := errata.refusal(mkl, p, f))}
        if kernels == "avx2":
            assert not refused
        else:
            # It is listed nevertheless, so that `backline check kernels` runs it.
            assert list(refused) == ["dfti"] and refused["dfti"].startswith("erratum mkl-dft-tail: ")
            assert {"dfti", "dfti_double"} <= {f.name for f in found} <= {"dfti", "dfti_double", "dfti_chirp"}


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize(("shape", "axes"), [((137,), (0,)), ((3, 134), (1,)), ((134, 3), (0,)), ((53, 6, 59), (0, 2)), ((2, 139, 3, 3), (0, 1, 2, 3))])
def test_float32_computed_in_float64(dtype, shape, axes, monkeypatch):
    monkeypatch.setattr(mkl.transform_trials, "refusal", lambda *args: "loses digits")
    for x in arrays_like(shape, dtype).values():
        for op in ("c2c", "c2r", "r2c")[: 3 if dtype == "float32" else 2]:
            for sign in (-1, 1):
                lengths = [shape[a] for a in axes]
                p = problem(op, x, axes, lengths, sign, 0.37)
                for a, plan in ways(p):
                    assert a.name == "dfti_double" and a.precision == "f64"
                    got = plan(x)
                    assert got.dtype == p.result_dtype and error(got, wanted(p, x)) < ROUNDING
                out = np.full(p.result, np.nan, p.result_dtype)[..., ::-1]
                q = problem(op, x, axes, lengths, sign, 0.37, out=out)
                for _, plan in ways(q):
                    assert plan(x, out) is out and error(out, wanted(p, x)) < ROUNDING


STRIDED = """
import numpy as np, sys
sys.path.insert(0, sys.argv[1])
from backline import libraries
from fft_cases import arrays_like, plans_of, problem
mkl = libraries.get("mkl")
for shape in ((6, 300), (8, 251), (5, 1000), (6, 7, 300)):
    for dtype in ("complex64", "complex128"):
        x = np.ones((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
        p = problem("c2c", x, tuple(range(len(shape))))
        for _ in range(40):
            held = [bytearray(int(n)) for n in np.random.default_rng(0).integers(16, 6000, 60)]
            del held[::2]
            for a, plan in plans_of(mkl, p, 1):
                assert abs(plan(x).ravel()[0] - x.size) < 1e-3 * x.size
"""


def test_several_axes_of_strided_input_write_nowhere_else():
    # MKL's kernels for AVX2 and AVX-512 damaged the heap here, so a process of its own runs it.
    done = subprocess.run(
        [sys.executable, "-c", STRIDED, str(Path(__file__).parents[1])], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_same_bits_on_one_thread_wherever_the_input_lies():
    x = arrays_like((4096,), "complex64")["C"]
    p = problem("c2c", x)
    a, plan = ways(p, 1)[-1]
    assert (a.threads, a.level, a.basis) == (1, "threads", "construction")
    results = set()
    for offset in range(0, 64, 8):
        block = np.empty(x.nbytes + 128, np.uint8)
        begin = (-block.ctypes.data) % 64 + offset
        there = block[begin : begin + x.nbytes].view(np.complex64)
        there[...] = x
        results.add(plan(there).tobytes())
    assert len(results) == 1


def test_what_is_not_finite_and_what_is_tiny():
    x = np.zeros(64, np.complex64)
    x[3] = np.nan
    p = problem("c2c", x)
    for _, plan in ways(p):
        assert np.isnan(plan(x)).all()
        assert not np.isfinite(plan(np.full(64, np.inf, np.complex64))).all()
        tiny = plan(np.full(64, 1e-42, np.complex64))
        assert abs(tiny[0] - 6.4e-41) < 1e-42
        huge = plan(np.full(64, 1e36, np.complex64))
        assert np.isclose(huge[0], 6.4e37)


def test_empty_batch():
    x = np.zeros((0, 8), np.complex64)
    p = problem("c2c", x)
    ((_, plan),) = ways(p)
    assert plan(x).shape == (0, 8)


def test_refusals():
    real = np.zeros(8)
    (r,) = mkl.algorithms(problem("r2r", real, kind="dct2"), 1)
    assert isinstance(r, Refusal) and "cosine" in r.reason
    deep = np.zeros((2,) * 8, np.complex64)
    (r,) = mkl.algorithms(problem("c2c", deep, tuple(range(8))), 1)
    assert "up to 7 axes, not 8" in r.reason
    (r,) = mkl.algorithms(problem("c2c", np.zeros(8, np.float16)), 1)
    assert "not float16" in r.reason


def test_descriptor_that_cannot_be_made():
    with pytest.raises(mkl_fft.DftiError, match="Invalid configuration"):
        mkl_fft.Descriptor(mkl.traits.native, "s", mkl_fft.COMPLEX, (0,), ((1,), (1,)), (1, 0, 0), 1, 1.0)


def test_descriptors_are_committed_in_memory_that_holds_zeros(monkeypatch):
    """MKL computes with places of its tables that it never writes: with subnormal numbers there it takes three times as long."""
    held, call = [], mkl_fft._call

    def committed(native, name, *args):
        if name == "DftiCommitDescriptor":
            libc = ctypes.CDLL(None)
            libc.malloc.restype = ctypes.c_void_p
            address = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(50_000)))
            held.append(set(ctypes.string_at(address, 50_000)[16:]))
            libc.free(address)
        call(native, name, *args)

    monkeypatch.setattr(mkl_fft, "_call", committed)
    with filled_memory(0x7F):  # otherwise 0x80 in each byte: a subnormal number
        mkl_fft.Descriptor(mkl.traits.native, "s", mkl_fft.REAL, (48, 20), ((20, 1), (11, 1)), (1, 0, 0), 1, 1.0)
    assert held == [{0}] or not hasattr(ctypes.CDLL(None), "mallopt")


def test_failure_while_running_is_an_error_and_the_plan_is_not_used_again():
    x = np.ones(32, np.complex64)
    p = problem("c2c", x)
    _, plan = ways(p, 1)[-1]
    descriptor = plan.keep[0]
    set_value = mkl.traits.native.address("DftiSetValue")
    import ctypes

    # A changed descriptor is not committed any more.
    args = (ctypes.c_void_p(descriptor.address), ctypes.c_int(mkl_fft.NUMBER_OF_TRANSFORMS), ctypes.c_long(1))
    mkl.traits.native.call(set_value, *args, restype=ctypes.c_long)
    with pytest.raises(LibraryFailed, match="MKL failed to run fft") as caught:
        plan(x)
    assert "status " in str(caught.value) and plan.failed


def test_descriptors_are_freed():
    def held():
        gc.collect()
        return mkl_fft._held(mkl.traits.native)

    x = np.ones(4096, np.complex64)
    p = problem("c2c", x)
    mkl.prepare(p, Algorithm(library="mkl", name="dfti"))
    before = held()
    plans = [mkl.prepare(replace(p, scale=1.0 + i), Algorithm(library="mkl", name="dfti")) for i in range(100)]
    grown = held() - before
    assert grown > 100 * 4096 and all(plan.keep[0].nbytes > 0 for plan in plans)
    del plans
    for i in range(2000):
        mkl.prepare(replace(p, scale=1.0 + i), Algorithm(library="mkl", name="dfti"))
    assert held() - before < grown / 20


def test_one_plan_in_many_threads():
    x = arrays_like((64, 4096), "complex64")["C"]
    p = problem("c2c", x)
    for _, plan in ways(p):
        reference, wrong = plan(x).tobytes(), []

        def run(plan=plan, reference=reference, wrong=wrong):
            wrong += [1 for _ in range(5) if plan(x).tobytes() != reference]

        threads = [threading.Thread(target=run) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong


def test_overlapping_output_is_refused():
    block = np.zeros(100, np.complex64)
    x, out = block[:64], block[36:]
    for _, plan in ways(problem("c2c", x, out=out)):
        with pytest.raises(BadValue, match="overlap"):
            plan(x, out)


def test_it_ends_without_a_word():
    code = (
        "import numpy as np, sys; sys.path.insert(0, sys.argv[1]); from fft_cases import problem\n"
        "from backline import libraries; mkl = libraries.get('mkl')\n"
        "p = problem('c2c', np.ones(64, np.complex64)); plan = mkl.prepare(p, list(mkl.algorithms(p, 1))[-1])\n"
        "class Late:\n  def __del__(self): pass\nlate = Late(); late.plan = plan; late.self = late\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parents[1])], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_unavailable_is_said():
    assert issubclass(BackendUnavailable, Exception) and mkl.reason() == ""
