"""Recorded calls of BLAS and LAPACK: signatures, recorders, operands, what is measured and what is chosen from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import backline
from backline import _exchange, errors, switches
from backline.engine import predicted_times
from backline.engine.tuning.record import TuningRecord
from backline.interop import numpy as exchange
from backline.interop.exchange import (
    layouts,
    loaded_objects,
    measured_calls,
    recorded_calls,
    routines,
    signatures,
    targets,
    tuned_choice,
)
from backline.interop.exchange.recorded_calls import Recorded
from backline.interop.exchange.sample_calls import Operands, Prepared
from backline.interop.exchange.signatures import Call, Signature
from backline.interop.exchange.tuned_choice import Sample, choose
from backline.interop.output_comparison import compare
from processes import wrapped
from support import need

WHY_NOT = layouts.unsupported()
ELSEWHERE = [s.symbol.routine for m in ([] if WHY_NOT else loaded_objects.modules()) for s in m.slots if not s.symbol.bundled]
pytestmark = pytest.mark.skipif(bool(WHY_NOT or ELSEWHERE), reason="NumPy is no wheel for Linux with glibc here")
NAMES = [f"{letter}{name}" for name in signatures._rows() for letter in "sdcz"]


def test_the_choice_of_a_library_calls_no_blas() -> None:
    """Products that Backline computes to choose would be listed among the calls of the program."""
    factors = np.random.default_rng(7).random((50, 30))
    points = object.__new__(predicted_times.Points)
    points.powers, points.added = factors, np.zeros(30)
    distances = np.arange(50.0)
    with recorded_calls.recording() as record:
        found = points.predicted(distances)
        weights = np.exp(-distances / predicted_times.WIDTH)
        assert record.calls() == []
        wanted = np.log2(weights @ factors / weights.sum()) / predicted_times.POWER
        assert len(record.calls()) == 1
    assert np.allclose(found, wanted, rtol=1e-12, atol=1e-12)


# Signatures -----------------------------------------------------------------------------------------------------------


def declared() -> dict[str, list[tuple[str, str]]]:
    """The arguments of routines as SciPy declares them: type and name."""
    found = {}
    for name in ("cython_blas", "cython_lapack"):
        file = Path(scipy.linalg.__file__).with_name(f"{name}.pxd")
        for match in re.finditer(r"cdef \w+ (\w+)\(([^)]*)\)", file.read_text()):
            rows = [part.strip().rpartition(" ") for part in match[2].split(",")]
            found[match[1]] = [(kind, argument.lstrip("*")) for kind, _, argument in rows]
    return found


def kind_of(argument: str, letter: str) -> str:
    if argument in signatures.FLAGS:
        return "char"
    integers = signatures.INTEGERS | signatures.WORKSPACE | signatures.RESULTS | signatures.INTEGER_ARRAYS
    if argument in integers:
        return "int"
    real = {"c": "s", "z": "d"}.get(letter, letter)
    reals = signatures.REAL_SCALARS | signatures.REAL_ARRAYS
    return real if argument in reals else letter


def test_signatures_are_those_that_scipy_declares() -> None:
    found, checked = declared(), set()
    for name in NAMES:
        signature = signatures.find(name, "fortran")
        if name not in found or signature is None:
            continue  # of some routines there is a real or a complex version only
        wanted = [kind for kind, _ in found[name]]
        assert [kind_of(a, name[0]) for a in signature.arguments] == wanted, name
        same = [
            (a, b)
            for a, (_, b) in zip(signature.arguments, found[name], strict=True)
            if a in signatures.INTEGERS | signatures.FLAGS
        ]
        assert all(a == b or a.startswith("trans") for a, b in same), (name, same)
        checked.add(name[1:])
    assert checked == set(signatures._rows())


def test_every_routine_with_a_signature_has_a_threshold_for_sizes() -> None:
    for name in signatures._rows():
        assert name in routines.SIZED and signatures.work_names(f"d{name}"), name
    for name, (positions, _, _) in routines.SIZED.items():
        signature = signatures.find(f"d{name}", "fortran")
        if signature is not None:
            assert all(signature.arguments[p] in ("m", "n", "k", "nrhs") for p in positions), name
    assert signatures.find("dlaswp", "fortran") is None and signatures.find("dgesv", "cblas") is None


def call_for(signature: Signature, n: int) -> Call:
    """A call of a routine with sizes of about n, all different."""
    flags = {
        "order": "101",
        "side": "R",
        "uplo": "L",
        "diag": "N",
        "jobz": "V",
        "range": "A",
        "jobu": "S",
        "jobvt": "S",
        "jobvl": "N",
        "jobvr": "V",
    }
    flags |= dict.fromkeys(("trans", "transa", "transb"), "N")
    if "jobz" in signature.flags and "ldvt" in signature.integers:
        flags["jobz"] = "S"
    sizes = {"m": n + 3, "n": n, "k": n - 2, "nrhs": 3, "itype": 1, "il": 1, "iu": n, "ilo": 1, "ihi": n, "incx": 2, "incy": 1}
    sizes |= {name: n + 5 for name in signature.integers if name.startswith("ld")}
    return Call(signature, {f: flags[f] for f in signature.flags}, {i: sizes[i] for i in signature.integers})


def slots(package: str) -> dict[tuple[str, str], Any]:
    import importlib

    for name in ("scipy.linalg.cython_blas", "scipy.linalg.cython_lapack"):
        importlib.import_module(name)
    return {(s.symbol.routine, s.symbol.interface): s for m in loaded_objects.modules([package]) for s in m.slots if s.function}


@pytest.mark.parametrize(("package", "interface"), [("numpy", "cblas"), ("numpy", "fortran"), ("scipy", "fortran")])
def test_routines_are_called_again_with_random_operands(package: str, interface: str) -> None:
    """In the package's own library and in every other that is here: each does its work, and all agree."""
    called, names = set(), [name for name in ("mkl", "openblas", "blis") if here(name)]
    for (routine, how), slot in slots(package).items():
        signature = signatures.find(routine, how)
        if signature is None or how != interface:
            continue
        call = call_for(signature, 12)
        row = Recorded(package, slot.symbol, "numpy", call, 1, 1.0)
        functions, _ = measured_calls.candidates(row, names)
        assert functions and functions[0].address == slot.function
        run = measured_calls._Run(call, slot.symbol.width, functions, seed=3)
        run.check()
        assert not run.rejected, (routine, run.rejected)
        stock = run.candidates[0].prepared
        assert stock is not None and stock.info == 0, routine
        result = run.operands.result()
        if result is not None:
            assert np.isfinite(result).all() and np.any(result), routine
        called.add(routine[1:])
    assert called >= {"gemm"} if interface == "cblas" else called >= {"gesv", "gesdd", "geqrf"}


def here(name: str) -> bool:
    try:
        targets.load(name)
    except errors.BackendUnavailable:
        return False
    return True


@pytest.mark.parametrize(("interface", "package"), [("cblas", "numpy"), ("fortran", "scipy")])
def test_a_product_called_again_is_the_product(interface: str, package: str) -> None:
    slot = slots(package)["dgemm", interface]
    signature = signatures.find("dgemm", interface)
    assert signature is not None
    call = call_for(signature, 9)
    operands = Operands(call, slot.symbol.width, 1)
    assert Prepared(slot.function, operands).run() > 0
    m, n, k, ld = (call.integers[name] for name in ("m", "n", "k", "lda"))

    def matrix(name: str, rows: int, columns: int) -> Any:
        values = operands.arrays[name].reshape(-1, ld)
        return (values if interface == "cblas" else values.T)[:rows, :columns]

    a, b, c = matrix("a", m, k), matrix("b", k, n), matrix("c", m, n)
    assert np.allclose(c, np.einsum("ik,kj->ij", a, b), rtol=1e-12, atol=1e-13)


# Recording ------------------------------------------------------------------------------------------------------------


def work() -> list[Any]:
    rng = np.random.default_rng(4)
    a = rng.standard_normal((30, 30)) + 30 * np.eye(30)
    z, f = a + 1j * a.T, a.astype(np.float32)
    return [
        a @ a, f @ f.T, z @ z, a @ a[0], a[0] @ a[1], np.vdot(z[0], z[1]), np.linalg.svd(z, compute_uv=False), np.linalg.solve(a, a),
        np.linalg.eigvalsh(a + a.T), scipy.linalg.blas.zdotu(z[0], z[1]), scipy.linalg.blas.cdotu(f[0], f[1]), scipy.linalg.blas.snrm2(f[0]),
        scipy.linalg.lapack.dlange("f", a), scipy.linalg.schur(a, sort="lhp")[0], scipy.linalg.qz(a, a.T)[0], scipy.linalg.expm(a / 90),
        scipy.linalg.svd(z)[0], scipy.linalg.eigh(a + a.T, np.eye(30), subset_by_index=[0, 3])[0], scipy.linalg.lu(f)[2],
    ]  # fmt: skip


def held() -> dict[int, int]:
    return {slot.address: _exchange.read(slot.address) for module in loaded_objects.modules() for slot in module.slots}


def test_calls_have_the_same_bits_when_they_are_recorded() -> None:
    wanted, before = work(), held()
    with recorded_calls.recording() as record:
        got = work()
        rows = record.calls()
    assert all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(wanted, got, strict=True))
    functions = {slot.address: slot.function for module in loaded_objects.modules() for slot in module.slots}
    after = held()
    assert all(after[slot] in (value, functions[slot]) for slot, value in before.items())  # as it was, or bound meanwhile
    found = {(r.package, r.symbol.routine): r for r in rows}
    svd, product = found["numpy", "zgesdd"], found["numpy", "zgemm"]
    assert svd.call is not None and svd.call.flags == {"jobz": "N"} and svd.call.integers["lda"] == 30 and svd.count == 1
    assert product.call is not None and product.call.work == 30**3 and product.library == "numpy" and not product.rounded
    assert 0 < product.least <= product.seconds and found["scipy", "zdotu"].call is None
    assert [r.seconds for r in rows] == sorted((r.seconds for r in rows), reverse=True)


def test_calls_of_all_threads_are_counted() -> None:
    a = np.random.default_rng(4).standard_normal((21, 22))

    def multiply() -> None:
        for _ in range(200):
            np.dot(a, a.T[:, :20])

    with recorded_calls.recording() as record:
        threads = [threading.Thread(target=multiply) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        before = recorded_calls.paused(True)
        np.dot(a, a.T[:, :20])
        assert before is False and recorded_calls.paused(False) is True
        (row,) = [r for r in record.calls() if r.call is not None and r.call.integers.get("m") == 21]
    assert row.count == 800
    with recorded_calls.recording() as record:
        assert not [r for r in record.calls() if r.call is not None and r.call.integers.get("m") == 21]


def test_an_exchange_is_recorded_and_holds_on() -> None:
    need("openblas")
    a = np.random.default_rng(4).standard_normal((90, 90))
    with exchange.use("openblas"):
        with recorded_calls.recording() as record:
            a @ a
            assert exchange.status().library("dgemm") == "openblas"
            assert {r.library for r in record.calls() if r.symbol.routine == "dgemm"} == {"openblas"}
        slots_in_use = exchange.status().slots
        assert slots_in_use > 0
    assert exchange.status().slots == 0


def test_a_trace_shows_exchanged_calls() -> None:
    need("openblas")
    a = np.random.default_rng(4).standard_normal((90, 90))
    with exchange.use("openblas"), backline.trace() as events:
        backline.matmul(a.astype(np.float32), a.astype(np.float32))
        a @ a[:, :50]
        a @ a[:, :50]
        np.linalg.det(a)
    assert events[0].op == "matmul"
    (product,) = [e for e in events if e.op == "exchanged.dgemm" and e.choice.problem.parameter("n") == 50]
    assert product.library == "openblas" and product.choice.problem.parameter("calls") == 2 and product.seconds > 0
    assert "90x90" in str(product) and "exchanged for openblas" in str(product.choice) and product.bytes > 8 * 90 * 90
    assert {"exchanged.dgemm", "exchanged.dgetrf"} <= {e.op for e in events} and "openblas" in events.by_library()
    assert "exchanged.dgemm" in events._repr_html_() or "dgemm" in str(events)
    with backline.trace() as nothing:
        a @ a
    assert list(nothing) == [] and exchange.status().slots == 0


def child(text: str, *, status: int = 0, **more: str) -> str:
    """Returns what a program prints, in a process of its own."""
    command = wrapped([sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(text)])
    environment = os.environ | {"BACKLINE_SHARE_PROCESSORS": "0"} | more
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_the_memory_of_a_recorder_is_bounded() -> None:
    """More sizes than it has room for: they are rounded, and no call is lost."""
    text = """
        import numpy as np
        from backline.interop.exchange import recorded_calls
        big, calls = np.ones((2, 9000)), 0
        with recorded_calls.recording() as record:
            for k in range(2, 9000):
                np.dot(big[:, :k], big[:, :k].T[:, :1])
                calls += 1
            rows = [r for r in record.calls() if r.symbol.routine in ("dgemm", "dgemv")]
        assert sum(r.count for r in rows) == calls, (sum(r.count for r in rows), calls)
        assert any(r.rounded for r in rows) and len(rows) < 8192
        print("done")
    """
    assert "done" in child(text)


def test_a_forked_child_records_for_itself() -> None:
    text = """
        import os, numpy as np
        from backline.interop.exchange import recorded_calls
        a = np.ones((40, 40))
        with recorded_calls.recording() as record:
            a @ a
            pid = os.fork()
            if pid == 0:
                a @ a
                os._exit(sum(r.count for r in record.calls() if r.symbol.routine in ("dgemm", "dsyrk")))
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
            assert sum(r.count for r in record.calls() if r.symbol.routine in ("dgemm", "dsyrk")) == 1
        print("done")
    """
    assert "done" in child(text)


# Choosing -------------------------------------------------------------------------------------------------------------


def record_of(key: str, calls: int = 1, rejected: dict[str, str] | None = None, **seconds: float) -> TuningRecord:
    routine = key.split()[1].partition(".")[2]
    medians = {f"{name}.{routine}@n": value for name, value in seconds.items() if name != "one"}
    if "one" in seconds:
        medians[f"numpy.{routine}@1"] = seconds["one"]
    return TuningRecord(key, 2, medians=medians, rejected=rejected or {}, calls=calls)


def test_records_are_read_as_samples() -> None:
    small = record_of(
        "exchanged numpy.dgemm cblas64 order=101 transa=N transb=N m=8 n=8 k=9 lda=8 ldb=8 ldc=8", 5, numpy=1.0, mkl=2.0
    )
    other = record_of(
        "exchanged numpy.dgesv fortran64 n=100 nrhs=3 lda=100 ldb=100",
        numpy=4.0,
        one=6.0,
        mkl=2.0,
        rejected={"mkl.dgesv@n": "wrong"},
    )
    foreign = record_of("exchanged numpy.dnothing fortran64 n=100", numpy=4.0)
    damaged = record_of("exchanged numpy.dgesv fortran64 n=many nrhs=3", numpy=4.0)
    one, two = tuned_choice.samples([small, other, foreign, damaged])[:2]
    assert (one.routine, one.work, one.calls, one.stock, one.stock_on_one) == ("dgemm", 512, 5, 1.0, 1.0)
    assert (two.work, two.stock_on_one, two.unusable) == (256, 6.0, {"mkl"})
    inexact = TuningRecord(small.key, 2, medians=small.medians, errors={"mkl.dgemm@n": 1e-9})
    with switches.scope(max_error=1e-12):
        assert tuned_choice.samples([inexact])[0].unusable == {"mkl"}
    assert not tuned_choice.samples([inexact])[0].unusable


def test_a_threshold_keeps_small_calls_where_they_are() -> None:
    group = [
        Sample("dgemm", work, 100, stock, stock, {"mkl": mkl})
        for work, stock, mkl in ((64, 1e-6, 2e-6), (4096, 4e-6, 4e-6), (2**20, 1e-3, 5e-4))
    ]
    found = choose(group, ["mkl"])
    assert found.home == "mkl" and [(r.routine, r.library, r.threshold) for r in found.routines] == [("dgemm", "mkl", 2**20)]
    assert found.choice is not None and found.choice.small == (("dgemm", 2**20),) and str(found.choice) == "tuned"
    assert found.choice.library("dgemm", "blas") == ("mkl", False) and found.choice.threshold("dgemm", 5) == 2**20
    assert found.choice.threshold("sgemm", 5) == 5


def test_a_gain_below_three_per_cent_changes_nothing() -> None:
    assert choose([Sample("dgemm", 2**20, 1, 1.0, 1.0, {"mkl": 0.98})], ["mkl"]).home == ""
    assert choose([Sample("dgemm", 2**20, 1, 1.0, 1.0, {"mkl": 0.9})], ["mkl"]).home == "mkl"
    assert choose([Sample("dgemm", 2**20, 1, 1.0, 1.0, {"mkl": 0.5}, frozenset({"mkl"}))], ["mkl"]).choice is None
    assert choose([Sample("dgemm", 2**20, 1, 1.0, 1.0, {"mkl": 0.5})], []).home == ""  # it lacks what others need
    assert choose([], ["mkl"]).home == ""


def test_what_stays_has_one_thread_beside_what_goes() -> None:
    """The gain of one routine must make up for what another loses with the threads of its own library."""
    gemm = Sample("dgemm", 2**20, 10, 1.0, 1.5, {"mkl": 0.8})
    eig = Sample("dgeev", 256, 10, 2.0, 3.0, {})
    assert choose([gemm, eig], ["mkl"]).home == ""
    mild = Sample("dgeev", 256, 10, 2.0, 2.05, {})
    found = choose([gemm, mild], ["mkl"])
    assert found.home == "mkl" and {r.routine: r.library for r in found.routines} == {"dgemm": "mkl", "dgeev": "numpy"}
    second = Sample("dgesdd", 2**12, 10, 2.0, 2.0, {"mkl": 1.0, "openblas": 0.9})
    assert {r.library for r in choose([gemm, second], ["mkl"]).routines} == {"mkl"}  # a second pool has to be clearly faster
    clear = Sample("dgesdd", 2**12, 10, 2.0, 2.0, {"mkl": 1.0, "openblas": 0.5})
    assert {r.library for r in choose([gemm, clear], ["mkl"]).routines} == {"mkl", "openblas"}


def test_outputs_are_compared() -> None:
    assert compare("", "").same and "nothing that could be compared" in str(compare("", ""))
    assert str(compare("a 1\n", "a 1\nb\n")) == "the output differs: it had 1 line and has 2"
    assert (
        str(compare("pi 3.14159\nx\n", "pi 3.14160\nx\n"))
        == "the output is the same but for 1 number, which differ by 3.2e-06 at most"
    )
    assert compare("n = 1e-3 nan\n", "n = 2e-3 nan\n").largest == pytest.approx(1e-3)
    assert compare("yes 1\n", "no 1\n").text.startswith("line 1 was 'yes 1'")
