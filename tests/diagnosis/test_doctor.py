"""The doctor: five broken environments, each check on planted facts, the list of findings and the command."""

from __future__ import annotations

import json
import os
import string
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import backline
from backline.cli import app, other_process
from backline.diagnosis import facts as facts_module
from backline.diagnosis import known_defects, measurements
from backline.diagnosis import table as doctor_table
from backline.diagnosis.facts import Copy, Facts, Worker
from backline.diagnosis.finding import LEVELS, Check, Finding, Findings
from backline.diagnosis.measurements import LIBRARIES, Products, Shipped
from backline.diagnosis.table import TABLE, diagnose
from backline.errors import BadValue
from backline.libraries.in_process import LoadedLibrary
from backline.libraries.recognition import families
from processes import started
from stand_ins import compiled
from support import need, python

runner = CliRunner()
DOCS = Path(__file__).parents[2] / "docs"
KNOWN = {
    "problem": "", "measured here": 7, "dropped": {}, "path": "/t", "class": "a", "shipped for": "a", "measured on": "a processor",
}  # fmt: skip
SOUND: dict[str, Any] = {
    "environ": {}, "started_with": {}, "copies": {}, "imported": {}, "mapped": (), "workers": [], "flushes": False, "cpus": 4,
    "online": 4, "amx": "", "stolen": (0.0, ""), "tuning": KNOWN, "products": Products({}, LIBRARIES), "shipped": {},
    "subnormal_cost": 1.0, "first_touch": 1.0,
}  # fmt: skip


def planted(root: Path, files: dict[str, str] | None = None, **given: Any) -> Facts:
    """Facts of a sound machine but for what is given, with a stand-in for the root of the kernel's files."""
    for name, text in (files or {}).items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Facts(str(root), **{**SOUND, **given})


def library(family: str, path: str = "", **facts: Any) -> LoadedLibrary:
    kind = next(known.kind for known in families() if known.shown_as == family)
    return LoadedLibrary(family, kind, path or f"/x/{family}.so", **{"owner": "test", "threads": 4, **facts})


def found(check: str, facts: Facts) -> list[Finding]:
    return [each for each in diagnose(facts) if each.id == check]


# Five broken environments -------------------------------------------------------------------------------------------------


def test_a_sound_environment_has_no_finding(tmp_path: Path) -> None:
    sound = diagnose(planted(tmp_path))
    assert list(sound) == [] and sound.skipped == {} and sound.checked == tuple(check.id for check in TABLE)
    assert str(sound) == f"nothing found by {len(TABLE)} checks"


def test_two_openmp_runtimes_in_a_process_come_first(tmp_path: Path) -> None:
    """Two stand-ins are really loaded, into a process of their own."""
    source = "int omp_get_max_threads(void) { return 3; }"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    files = [str(compiled(tmp_path / "one", "libgomp.so.1", source)), str(compiled(tmp_path / "two", "libiomp5.so", source))]
    plain = json.dumps({name: value for name, value in SOUND.items() if name not in ("products", "mapped")})
    program = f"""
        import ctypes, json
        from backline.diagnosis.facts import Facts
        from backline.diagnosis.measurements import Products
        from backline.diagnosis.table import diagnose
        loaded = [ctypes.CDLL(file) for file in {files!r}]
        sound = json.loads({plain!r})
        found = diagnose(Facts({str(tmp_path)!r}, products=Products({{}}, ()), **sound))
        print(json.dumps(found.as_dict()))
    """
    content = json.loads(python(program, env={"OPENBLAS_NUM_THREADS": "1"}).stdout.splitlines()[-1])
    first = content["findings"][0]
    assert first["id"] == "runtimes" and first["level"] == "slow" and "libgomp beside an LLVM" in first["text"]
    assert all(file in first["proof"] for file in files) and first["remedy"]


def test_a_quota_of_the_control_group_comes_first(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/job/cpu.stat": "usage_usec 1\nnr_periods 200\nnr_throttled 90\nthrottled_usec 4500000\n",
    }  # fmt: skip
    facts = planted(tmp_path, files, cpus=8, online=8, mapped=(library("openblas", threads=8, threading="pthreads"),))
    first = diagnose(facts)[0]
    assert (first.id, first.level) == ("cgroup-quota", "slow") and first.cost == pytest.approx(8 / 1.5)
    assert "8 threads, a quota of 1.5 processors" in first.proof and "90 of 200 periods, for 4.5 s" in first.proof
    assert "OMP_NUM_THREADS=1 " in first.remedy
    # In the form of version 1, and without any library: what one would take counts.
    (tmp_path / "one").mkdir()
    old = {
        "proc/self/cgroup": "4:cpu,cpuacct:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }  # fmt: skip
    assert diagnose(planted(tmp_path / "one", old))[0].proof == "4 threads, a quota of 2 processors, 4 processors visible"
    assert found("cgroup-quota", planted(tmp_path, cpus=1, online=1)) == []


def test_oversubscription_comes_first(tmp_path: Path) -> None:
    facts = planted(tmp_path, environ={"OMP_NUM_THREADS": "16,2"}, mapped=(library("libgomp", threads=16),))
    first = diagnose(facts)[0]
    assert (first.id, first.level, first.cost) == ("oversubscription", "slow", 4.0)
    assert first.proof == "16 threads on 4 processors" and "OMP_NUM_THREADS=4" in first.remedy
    workers = [Worker(number, None) for number in range(4)]
    pool = (library("openblas", threads=4, threading="pthreads"),)
    first = diagnose(planted(tmp_path, mapped=pool, workers=workers))[0]
    assert first.proof == "4 processes x 4 threads = 16 threads on 4 processors" and "OMP_NUM_THREADS=1 " in first.remedy
    assert found("oversubscription", planted(tmp_path, mapped=pool, workers=[Worker(1, 1), Worker(2, 1)])) == []


def test_workers_are_seen() -> None:
    """A process that this one started and that computes, with the threads that its environment asks for."""
    code = "import numpy, sys; print('ready', flush=True); sys.stdin.read()"
    environment = os.environ | {"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "2"}
    with started(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        seen = {worker.process: worker.threads for worker in Facts().workers}
        assert seen.get(child.pid, 3) == 3
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        listed = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # not every kernel has it
        assert (child.pid in seen) == (listed and bool(facts_module._MATHS.search(maps)))


def test_a_slow_blas_that_is_planted_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's product waits for a fifth of a second: the process that measures finds it so."""
    need("openblas")
    (tmp_path / "sitecustomize.py").write_text(
        "import time, numpy\n"
        "fast = numpy.matmul\n"
        "def slow(*args, **kwargs):\n"
        "    time.sleep(0.2)\n"
        "    return fast(*args, **kwargs)\n"
        "numpy.matmul = slow\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    measured = measurements.products()
    assert measured.problem == "" and "openblas" in measured.libraries and measured.seconds["float64"]["numpy"] >= 0.2
    first = diagnose(planted(tmp_path, products=measured))[0]
    assert (first.id, first.level) == ("slow-blas", "slow") and first.cost is not None and first.cost >= 1.3
    assert f"{measurements.SIZE} x" in first.proof and "--blas" in first.remedy


@pytest.mark.parametrize(
    ("family", "version", "flags", "defect"),
    [
        ("openblas", "0.3.5", "avx2 avx512f", "openblas-avx512-dgemm"),
        ("openblas", "0.3.11", "avx512f", "openblas-sgemm-direct"),
        ("mkl", "2020.0.2", "avx2", "mkl-2020-gesvd"),
        ("onednn", "3.14.0", "amx_bf16 amx_tile", "onednn-amx-inner-tail"),
    ],
)
def test_a_release_with_a_known_defect_comes_first(family: str, version: str, flags: str, defect: str, tmp_path: Path) -> None:
    files = {"proc/cpuinfo": f"processor : 0\nvendor_id : GenuineIntel\nflags : fpu {flags}\n"}
    used = library(family, version=version, threads=1)
    first = diagnose(planted(tmp_path, files, mapped=(used,)))[0]
    assert (
        (first.id, first.level) == ("known-defect", "wrong") and defect in first.proof and first.reference.startswith("https://")
    )
    assert f"{family} {version}" in first.text and used.path in first.proof and "install" in first.remedy
    for sound in (library(family, version="99.0", threads=1), library(family, version="", threads=1)):
        assert found("known-defect", planted(tmp_path, files, mapped=(sound,))) == []


# Each other check -----------------------------------------------------------------------------------------------------------

POOL = (library("openblas", threads=4, threading="pthreads"),)
CPU0 = "sys/devices/system/cpu/cpu0/cpufreq"


@pytest.mark.parametrize(
    ("check", "level", "proof", "files", "given"),
    [
        ("runtimes", "fatal", "2 files", {}, {"mapped": (library("libomp"), library("libiomp5"))}),
        ("runtimes", "note", "variable", {}, {"environ": {"KMP_DUPLICATE_LIB_OK": "TRUE"}}),
        ("variable-too-late", "slow", "OPENBLAS_NUM_THREADS=1 now, not set when", {}, {"environ": {"OPENBLAS_NUM_THREADS": "1"}, "mapped": POOL}),
        ("variable-without-effect", "note", "no older MKL", {}, {"environ": {"MKL_DEBUG_CPU_TYPE": "5"}}),
        ("variable-without-effect", "note", "libgomp.so", {}, {"environ": {"KMP_AFFINITY": "compact"}, "mapped": (library("libgomp"),)}),
        ("variable-without-effect", "note", "libomp.so", {}, {"environ": {"GOMP_CPU_AFFINITY": "0"}, "mapped": (library("libomp"),)}),
        ("variable-without-effect", "note", "integer", {}, {"environ": {"OMP_NUM_THREADS": "many"}}),
        ("variable-without-effect", "note", "TBB", {}, {"environ": {"MKL_THREADING_LAYER": "INTEL64"}}),
        ("variables-contradict", "note", "1 and 4", {}, {"environ": {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "4"}}),
        ("instructions-capped", "note", "avx2", {"proc/cpuinfo": "flags : avx2\n"}, {"environ": {"OPENBLAS_CORETYPE": "Prescott"}}),
        ("package-twice", "wrong", "/a/numpy (2.0); /b/numpy (1.26)", {}, {"copies": {"numpy": [Copy("/a/numpy", "2.0"), Copy("/b/numpy", "1.26")]}}),
        ("package-twice", "note", "/b/numpy", {}, {"copies": {"numpy": [Copy("/a/numpy", "2.0"), Copy("/b/numpy", "2.0")]}}),
        ("package-twice", "wrong", "is imported", {}, {"copies": {"numpy": [Copy("/a/numpy", "2.0")]}, "imported": {"numpy": Copy("/b/numpy", "1.9")}}),
        ("faster-library", "note", "1.50 times", {}, {"shipped": {"mkl": Shipped(1.5, 9, "intel-amx-2c", "Xeon", "2026-11-01")}}),
        ("errata", "note", "mkl-qr-small", {"proc/cpuinfo": "flags : avx2\n"}, {"mapped": (library("mkl", version="2026.2", threads=1),)}),
        ("subnormals-flushed", "wrong", "/x/fast.so", {}, {"flushes": True, "flushing_files": ["/x/fast.so"]}),
        ("subnormals-slow", "note", "80 times", {}, {"subnormal_cost": 80.0}),
        ("frequency", "slow", "1.20 GHz of 3.60", {f"{CPU0}/scaling_max_freq": "1200000\n", f"{CPU0}/cpuinfo_max_freq": "3600000\n"}, {}),
        ("frequency", "slow", "powersave of acpi-cpufreq", {f"{CPU0}/scaling_governor": "powersave\n", f"{CPU0}/scaling_driver": "acpi-cpufreq\n"}, {}),
        ("steal", "slow", "20 % in 0.3 s", {}, {"stolen": (0.2, "in 0.3 s")}),
        ("amx-permission", "slow", "Operation not permitted", {}, {"amx": "Operation not permitted"}),
        ("huge-pages", "slow", "6.5 times", {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"}, {"first_touch": 6.5}),
        ("affinity", "note", "4 of 8", {}, {"online": 8}),
        ("affinity", "slow", "1 of 8", {}, {"online": 8, "cpus": 1, "environ": {"OMP_PROC_BIND": "true"}}),
        ("untuned", "note", "0 problems", {}, {"tuning": {**KNOWN, "measured here": 0}}),
        ("untuned", "note", "0 problems", {}, {"tuning": {**KNOWN, "measured here": 0, "path": "", "class": "b"}}),
        ("untuned", "note", "it is damaged", {}, {"tuning": {**KNOWN, "problem": "it is damaged"}}),
        ("untuned", "note", "measured with mkl 1", {}, {"tuning": {**KNOWN, "dropped": {"matmul, mkl": "measured with mkl 1, 2 is here now"}}}),
    ],
)  # fmt: skip
def test_each_check(check: str, level: str, proof: str, files: dict[str, str], given: dict[str, Any], tmp_path: Path) -> None:
    cases = found(check, planted(tmp_path, files, **given))
    assert [each.level for each in cases][:1] == [level] and any(proof in each.proof for each in cases), cases
    assert all(each.text and each.remedy and "{" not in str(each) for each in cases)


@pytest.mark.parametrize(
    ("check", "files", "given"),
    [
        ("variable-too-late", {}, {"environ": {"OPENBLAS_NUM_THREADS": "1"}, "started_with": {"OPENBLAS_NUM_THREADS": "1"}, "mapped": POOL}),
        ("variable-too-late", {}, {"environ": {"OPENBLAS_NUM_THREADS": "64"}, "mapped": POOL}),
        ("variable-without-effect", {}, {"environ": {"MKL_DEBUG_CPU_TYPE": "5"}, "mapped": (library("mkl", version="2019.0.4"),)}),
        ("variable-without-effect", {}, {"environ": {"KMP_AFFINITY": "compact"}, "mapped": (library("libgomp"), library("libiomp5"))}),
        ("subnormals-slow", {}, {"subnormal_cost": 80.0, "flushes": True, "flushing_files": []}),
        ("frequency", {f"{CPU0}/scaling_governor": "powersave\n", f"{CPU0}/scaling_driver": "intel_pstate\n"}, {}),
        ("huge-pages", {"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"}, {"first_touch": 6.5}),
        ("faster-library", {}, {"products": Products({}, problem="it failed"), "shipped": {"mkl": Shipped(1.5, 9, "a", "b", "c")}}),
        ("slow-blas", {}, {"products": Products({"float64": {"numpy": 1.0, "openblas": 0.9}}, ("openblas",))}),
    ],
)  # fmt: skip
def test_what_is_sound_is_not_found(check: str, files: dict[str, str], given: dict[str, Any], tmp_path: Path) -> None:
    assert found(check, planted(tmp_path, files, **given)) == []


# Tables -------------------------------------------------------------------------------------------------------------------


def test_the_table_is_complete_and_documented() -> None:
    ids = [check.id for check in TABLE]
    text = (DOCS / "doctor.md").read_text()
    assert len(ids) == len(set(ids)) and all(f"`{name}`" in text for name in ids)
    for check in TABLE:
        assert check.level in LEVELS and check.looks_at
        assert list(string.Formatter().parse(check.text + check.proof + check.remedy))


def test_known_defects_name_their_library_and_page() -> None:
    rows = known_defects.TABLE
    known = {family.shown_as for family in families()}
    text = (DOCS / "doctor.md").read_text()
    assert len({row.id for row in rows}) == len(rows)
    for row in rows:
        assert row.family in known and row.reference.startswith("https://") and (row.since or row.before) and row.id in text


# The list -------------------------------------------------------------------------------------------------------------------


def test_findings_are_sorted_by_level_and_cost_and_print() -> None:
    made = [Finding("a", "note", "t", "p", "r"), Finding("b", "slow", "t", "p", "r", 1.5), Finding("c", "slow", "t", "<p>", "r", 9.0),
            Finding("d", "wrong", "t", "p", "r", reference="https://x")]  # fmt: skip
    listed = Findings(made, ("a", "b"), {"e": "it measures"})
    assert [each.id for each in listed] == ["d", "c", "b", "a"] and [each.id for each in listed.at_least("slow")] == [
        "d",
        "c",
        "b",
    ]
    assert "slow: c, 9 times" in str(listed) and "see   : https://x" in str(listed) and repr(listed) == str(listed)
    assert listed.summary() == "4 found by 2 checks; left out: e (it measures)"
    assert "&lt;p&gt;" in listed._repr_html_() and json.loads(json.dumps(listed.as_dict()))["skipped"] == {"e": "it measures"}


def test_a_check_that_fails_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(facts: Facts) -> Any:
        raise OSError("no such device")

    row = Check(id="odd", level="note", looks_at="x", text="t", proof="p", remedy="r", find=fails)
    monkeypatch.setattr(doctor_table, "TABLE", (row, *TABLE))
    done = diagnose(planted(tmp_path))
    assert done.skipped == {"odd": "OSError: no such device"} and len(done.checked) == len(TABLE)


def test_quick_leaves_out_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "products", lambda: pytest.fail("it was measured"))
    given = {
        name: value
        for name, value in SOUND.items()
        if name not in ("products", "shipped", "first_touch", "stolen", "subnormal_cost")
    }
    done = diagnose(Facts(str(tmp_path), **given), quick=True)
    assert set(done.skipped) == {check.id for check in TABLE if check.measured} and "slow-blas" in done.skipped


def test_facts_that_are_none_are_refused() -> None:
    with pytest.raises(TypeError, match="no fact"):
        Facts(read=3)


# The function and the command -------------------------------------------------------------------------------------------------


def test_the_function_lists_findings_of_this_process() -> None:
    done = backline.doctor(quick=True)
    assert (
        isinstance(done, list) and "runtimes" in done.checked and not [why for why in done.skipped.values() if "quick" not in why]
    )
    assert all(each.proof and each.remedy for each in done)
    assert [each for each in backline.doctor(level="fatal", quick=True) if each.level != "fatal"] == []
    with pytest.raises(BadValue, match="fatal, wrong, slow, note"):
        backline.doctor(level="bad")


def test_the_figures_are_measured() -> None:
    assert measurements.subnormal_cost() > 0 and measurements.first_touch() > 0
    assert isinstance(measurements.amx_refused(), str)
    assert measurements.flushes_subnormals() is False
    part, over = Facts().stolen
    assert 0.0 <= part <= 1.0 and over in ("", "in 0.3 s", "since the machine was started")
    gains = measurements.shipped(("openblas",))
    assert "openblas" not in gains and all(each.gain > 0 and each.entries and each.date for each in gains.values())


def test_flushed_subnormals_are_seen_and_the_file_that_does_it(tmp_path: Path) -> None:
    """A library like one that was linked with -ffast-math: its start-up code changes the mode of the thread that loads it."""
    source = (
        "#include <xmmintrin.h>\n"
        "__attribute__((constructor)) static void set_fast_math(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }\n"
    )
    if os.uname().machine != "x86_64":
        pytest.skip("the mode is another one on this architecture")
    file = compiled(tmp_path, "libfastmath_like.so", source)
    program = f"""
        import ctypes, backline, json
        before = [each.id for each in backline.doctor(quick=True)]
        library = ctypes.CDLL({str(file)!r})
        found = [each for each in backline.doctor(quick=True) if each.id == "subnormals-flushed"]
        print(json.dumps(["subnormals-flushed" in before, [each.level for each in found], found[0].proof]))
    """
    before, levels, proof = json.loads(python(program).stdout.splitlines()[-1])
    assert not before and levels == ["wrong"] and str(file) in proof


def run(*words: str, status: int = 0, **more: str) -> Any:
    program = f"import sys; sys.argv = ['backline', *{list(words)!r}]; from backline.cli import app; app()"
    done = python(program, env=more, check=False)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done


def test_the_command_looks_at_what_a_script_leaves(tmp_path: Path) -> None:
    source = "int omp_get_max_threads(void) { return 1; }"
    llvm = [str(compiled(tmp_path, name, source)) for name in ("libiomp5.so", "libomp.so")]
    script = tmp_path / "job.py"
    script.write_text(f"import ctypes, sys, numpy\nkept = [ctypes.CDLL(f) for f in {llvm!r}]\nprint('mine', sys.argv[1:])\n")
    done = run("doctor", "--quick", "--json", str(script), "--deep", status=1)
    content = json.loads(done.stdout)
    first = content["findings"][0]
    assert (
        (first["id"], first["level"]) == ("runtimes", "fatal")
        and content["what"] == str(script)
        and "mine ['--deep']" in done.stderr
    )
    module = run("doctor", "--quick", "--level", "fatal", "-m", "job", status=1, PYTHONPATH=str(tmp_path))
    assert "fatal: runtimes" in module.stdout and "proof" in module.stdout
    script.write_text("import numpy\nraise SystemExit(3)\n")
    assert "ended with status 3" in run("doctor", "--quick", "--level", "fatal", str(script)).stdout


def test_the_command_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    bad = runner.invoke(app, ["doctor", "--level", "awful"])
    assert bad.exit_code == 2
    assert runner.invoke(app, ["doctor", str(tmp_path / "none.py")]).exit_code == 2
    with pytest.raises(BadValue, match="there is no script"):
        other_process.at_the_end_of([str(tmp_path / "none.py")], "doctor", {"quick": True})
    missing = runner.invoke(app, ["doctor", "-m", "no_such_module"])
    assert missing.exit_code == 2 and "there is no module 'no_such_module'" in missing.output
    with pytest.raises(BadValue, match="is not a level of findings"):
        Findings().at_least("awful")


def test_the_doctor_writes_nothing(tmp_path: Path) -> None:
    """The whole of it, measurements too: the folders of the user are as they were, and so is the working directory."""
    home = tmp_path / "home"
    home.mkdir()
    places = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "CACHE", "DATA", "STATE")}
    program = textwrap.dedent(f"""
        import os; os.chdir({str(home)!r})
        import backline
        found = backline.doctor()
        print(len(found.checked), found.skipped)
    """)
    variables = {**places, "HOME": str(home), "BACKLINE_TUNING": str(home / "tuning.sqlite"), "PYTHONDONTWRITEBYTECODE": "1"}
    said = python(program, env=variables).stdout.split(maxsplit=1)
    assert int(said[0]) >= len(TABLE) - 1 and [*home.rglob("*")] == []


def test_numpy_is_found_where_it_is_imported_from() -> None:
    copies = Facts().copies["numpy"]
    assert os.path.realpath(os.path.dirname(np.__file__)) in [copy.folder for copy in copies]


def test_a_file_that_hides_a_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scipy.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    copies = Facts().copies
    assert copies["scipy"][0].folder == str(tmp_path / "scipy.py")
