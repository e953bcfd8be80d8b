"""Presence of the libraries behind backends: with stand-ins compiled for the test, and with what this machine has."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backline.errors import BackendUnavailable, BadValue
from backline.libraries import openmp_runtimes, presence, registry
from backline.libraries.presence import unavailable
from backline.libraries.probing import probe_process, probe_program
from backline.native import library_folders, library_search
from backline.native.process_map import MappedFile

Build = Callable[..., Path]

ROWS = {row.name: row for row in registry.ROWS if row.files and row.kind != "blas"}  # a BLAS is tested by computing with it

PROPERTY = """
int NAME(int which, int *value) { static const int numbers[3] = {NUMBERS}; *value = numbers[which]; return STATUS; }
"""


def properties(name: str, status: int = 0, numbers: str = "13, 1, 2") -> str:
    return PROPERTY.replace("NAME", name).replace("NUMBERS", numbers).replace("STATUS", str(status))


def driver(init: int = 0, count: int = 2) -> str:
    return f"""
    int cuInit(unsigned flags) {{ return {init}; }}
    int cuDeviceGetCount(int *count) {{ *count = {count}; return 0; }}
    int cuDriverGetVersion(int *version) {{ *version = 13000; return 0; }}
    int cuGetErrorString(int error, const char **text) {{ *text = "no CUDA-capable device is detected"; return error != 100; }}
    """


def onednn(version: str = "3, 5, 3", engines: int = 1) -> str:
    return f"""
    #include <stddef.h>
    struct version {{ int numbers[3]; const char *hash; unsigned cpu, gpu; }};
    const struct version *dnnl_version(void) {{ static struct version v = {{{{{version}}}, "abc", 2, 0}}; return &v; }}
    size_t dnnl_engine_get_count(int kind) {{ return kind == 1 ? {engines} : 0; }}
    """


def sized(name: str, numbers: tuple[int, int, int], status: int = 0) -> str:
    body = "".join(f"*{letter} = {number}; " for letter, number in zip("abc", numbers, strict=True))
    return f"#include <stddef.h>\nint {name}(size_t *a, size_t *b, size_t *c) {{ {body} return {status}; }}"


def returning(name: str, value: int, parameters: str = "void") -> str:
    return f"long {name}({parameters}) {{ return {value}; }}"


CUDART = "int cudaRuntimeGetVersion(int *version) {{ *version = 13000; return {status}; }}"
NVRTC = "int nvrtcVersion(int *major, int *minor) {{ *major = 13; *minor = 1; return {status}; }}"
MAGMA = "void magma_init(void) {} void magma_version(int *a, int *b, int *c) { *a = 2; *b = 9; *c = 0; }"
FFTW = "void fftw_plan_guru64_dft(void) {} void fftw_execute_dft(void) {}\n"
LIBMVEC = "void _ZGVbN2v_sin(void) {}"
KLEIDIAI = "void kai_run_lhs_quant_pack_qai8dxp_f32(void) {}"

# name -> source of a sound stand-in, its version, source of one that does not work, a part of the reason then
STANDINS: dict[str, tuple[str, object, str, str]] = {
    "cuda": (driver(), None, driver(init=100), "no CUDA-capable device is detected (cuInit: status 100)"),
    "cudart": (CUDART.format(status=0), 13000, CUDART.format(status=35), "status 35"),
    "nvrtc": (NVRTC.format(status=0), "13.1", NVRTC.format(status=3), "status 3"),
    "cublas": (properties("cublasGetProperty"), "13.1.2", properties("cublasGetProperty", 7), "status 7"),
    "cublaslt": (properties("cublasLtGetProperty"), "13.1.2", properties("cublasLtGetProperty", 7), "status 7"),
    "cusolver": (properties("cusolverGetProperty", numbers="12, 1, 2"), "12.1.2", properties("cusolverGetProperty", 7), "status 7"),
    "cufft": (properties("cufftGetProperty", numbers="12, 1, 2"), "12.1.2", properties("cufftGetProperty", 7), "status 7"),
    "cudnn": (returning("cudnnGetVersion", 91500), 91500, returning("cudnnGetVersion", 8907), "is cuDNN 8.9.7; 9 is needed"),
    "cusparselt": (properties("cusparseLtGetProperty", numbers="0, 6, 0"), 600, properties("cusparseLtGetProperty", 1), "status 1"),
    "magma": (MAGMA, "2.9.0", MAGMA + "__attribute__((constructor)) static void f(void) { __builtin_trap(); }", "crashes when"),
    "miopen": (sized("miopenGetVersion", (3, 4, 0)), "3.4.0", sized("miopenGetVersion", (0, 0, 0), 3), "status 3"),
    "composable_kernel": ("int ck;", None, "#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { exit(7); }",
                          "ends the process that tests it (status 7)"),
    "aotriton": ("int a;", None, "extern int elsewhere(void); int a(void) { return elsewhere(); }", "undefined symbol: elsewhere"),
    "onednn": (onednn(), "3.5.3", onednn("2, 6, 3"), "is oneDNN 2.6.3, which has another interface; 3 is needed"),
    "nnpack": (returning("nnp_initialize", 0), None, returning("nnp_initialize", 51), "it does not support this processor"),
    "xnnpack": (returning("xnn_initialize", 0, "void *allocator"), None, returning("xnn_initialize", 5, "void *a"), "not support this"),
    "libmvec": (LIBMVEC, None, LIBMVEC + "__attribute__((constructor)) static void f(void) { __builtin_trap(); }", "crashes when"),
    "kleidiai": (KLEIDIAI + 'const char *kai_get_version(void) { return "1.24.0"; }', "1.24.0",
                 KLEIDIAI + "__attribute__((constructor)) static void f(void) { __builtin_trap(); }", "crashes when"),
    "fftw": (FFTW + 'const char fftw_version[] = "fftw-3.3.10-sse2";', "3.3.10", FFTW, "does not tell its version"),
    "openmp": (returning("omp_get_max_threads", 4), None, returning("omp_get_max_threads", 0), "offers no thread"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _as_new(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing known yet, no file named, and each library on the machine that it is for."""
    for name in ROWS:
        monkeypatch.delenv(ROWS[name].variable, raising=False)
    machines = {"kleidiai": "aarch64"}
    here = platform.machine()
    looked = presence._look_for

    def look_for(row: registry.LibraryInfo) -> presence.Found:
        with monkeypatch.context() as inner:
            inner.setattr(presence.platform, "machine", lambda: machines.get(row.name, here))
            return looked(row)

    monkeypatch.setattr(presence, "_look_for", look_for)
    for name in presence.names():
        presence.presence(name).forget()
    yield
    for name in presence.names():
        presence.presence(name).forget()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As on a machine without any of the libraries; returns the one folder that is searched as the system's."""
    monkeypatch.setattr(library_folders, "site_folders", lambda: [str(tmp_path / "site")])
    monkeypatch.setattr(library_folders, "prefix_folders", lambda: [str(tmp_path / "lib")])
    monkeypatch.setattr(library_folders, "system_folders", lambda notes=None: [str(tmp_path)])
    monkeypatch.setattr(library_search, "mapped_files", lambda: ())
    monkeypatch.setattr(presence, "mapped_files", lambda: ())
    monkeypatch.setattr(openmp_runtimes, "loaded", lambda: ())
    monkeypatch.setattr(presence.os.path, "lexists", lambda path, real=os.path.lexists: str(path).startswith(str(tmp_path)) and real(path))
    return tmp_path


def named(monkeypatch: pytest.MonkeyPatch, name: str, path: Path | str) -> presence.Presence:
    monkeypatch.setenv(ROWS[name].variable, str(path))
    found = presence.presence(name)
    found.forget()
    return found


def test_every_row_has_a_stand_in_here() -> None:
    assert set(STANDINS) == set(ROWS)
    assert set(presence.names()) == {*ROWS, "mkl", "openblas", "blis", "mps", "opt_einsum"}
    assert {question.partition(".")[0] for question in probe_program.CHECKS} <= set(ROWS)


# --- found, broken, absent


@pytest.mark.parametrize("name", STANDINS)
def test_found(name: str, build: Build, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    path = build(f"lib{name}.so.1", STANDINS[name][0])
    found = named(monkeypatch, name, path)
    assert found.available(), found.reason()
    assert (found.reason(), found.path) == ("", str(path))
    if name not in ("cuda", "openmp"):  # they tell of others: the runtime, and what is loaded
        assert found.version() == STANDINS[name][1]
    assert found.searched() == (f"environment variable: found [{ROWS[name].variable}={path}]",)
    assert str(path) in repr(found)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", STANDINS)
def test_there_but_does_not_work(name: str, build: Build, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    path = build(f"lib{name}.so.1", STANDINS[name][2], ["-Wl,-z,lazy"])
    if name in ("composable_kernel", "aotriton"):
        assert not ROWS[name].spec.needs
    else:  # what it must export is there: it is the library itself that fails
        assert library_search.search(ROWS[name].spec, str(path))
    found = named(monkeypatch, name, path)
    assert not found.available()
    assert STANDINS[name][3] in found.reason()
    assert str(path) in found.reason()
    assert found.path == str(path)
    assert name in ("cuda", "openmp") or found.version() is None  # these tell of what is in the process already
    assert ROWS[name].install in found.remedy()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", STANDINS)
def test_named_files_that_are_no_library(name: str, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.so"
    text.write_text("INPUT(something)")
    cut = tmp_path / "cut.so"
    cut.write_bytes(build("libtiny.so.1", STANDINS[name][0]).read_bytes()[:5000])
    wrong = build("libwrong.so.1", "int nothing_of_it(void) { return 1; }")
    files = [(text, "a text file"), (cut, "truncated"), (tmp_path / "none.so", "no such file"), (tmp_path, "a folder")]
    files += [(wrong, "lacks symbol")] if ROWS[name].spec.needs else []
    for path, why in files:
        found = named(monkeypatch, name, path)
        assert not found.available()
        assert why in found.reason() and str(path) in found.reason() and ROWS[name].variable in found.reason()
        assert found.path is None
        assert name in ("cuda", "openmp") or found.version() is None  # these tell of what is in the process already
        assert "unset" in found.remedy()


@pytest.mark.parametrize("name", STANDINS)
def test_absent(name: str, nowhere: Path) -> None:
    found = presence.presence(name)
    assert not found.available()
    assert (found.version(), found.path, dict(found.facts)) == (None, None, {})
    row = ROWS[name]
    assert found.reason() == f"no file of this name was found ({', '.join(row.files)})"
    text = str(unavailable(name, "the_thing(1)"))
    assert text.startswith(f"the_thing(1) needs {row.title}, which is not available.")
    for word in (*row.files, row.variable, str(nowhere), *row.folders, *row.inside, row.install):
        assert word in text


def test_files_met_by_the_search(nowhere: Path, build: Build) -> None:
    path = nowhere / "libdnnl.so.3"
    path.write_bytes(build("libdnnl.so.3", onednn()).read_bytes())
    found = presence.presence("mkldnn")
    assert (found.available(), found.path, found.version()) == (True, str(path), "3.5.3")
    path.write_text("spoilt")
    assert found.available()  # the answer is kept
    found.forget()
    assert not found.available()
    assert "text file" in found.reason() and str(path) in found.reason()


def test_wheels_of_cuda(nowhere: Path, build: Build) -> None:
    for part in ("cublas", "cu13"):  # the layouts of CUDA 12 and 13
        shutil.rmtree(nowhere / "site", ignore_errors=True)
        folder = nowhere / "site" / "nvidia" / part / "lib"
        folder.mkdir(parents=True)
        (folder / "libcublas.so.13").write_bytes(build("libcublas.so.13", properties("cublasGetProperty")).read_bytes())
        found = presence.presence("cublas")
        found.forget()
        assert found.available() and found.path is not None and part in found.path


def test_relative_paths_and_the_working_directory(nowhere: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = nowhere / "here"
    folder.mkdir()
    (folder / "libdnnl.so.3").write_bytes(build("libdnnl.so.3", onednn()).read_bytes())
    monkeypatch.chdir(folder)
    assert not presence.presence("mkldnn").available()
    found = named(monkeypatch, "onednn", "libdnnl.so.3")
    assert not found.available()
    assert "is a relative path" in found.reason()


# --- questions


def test_a_library_that_prints_and_hangs(build: Build, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    noisy = '#include <stdio.h>\nint nnp_initialize(void) { puts("hello"); fputs("warning", stderr); fflush(stdout); return 0; }'
    assert named(monkeypatch, "nnpack", build("libnnpack.so", noisy)).available()
    monkeypatch.setattr(probe_process, "SECONDS", 0.3)
    slow = "#include <unistd.h>\nint nnp_initialize(void) { sleep(20); return 0; }"
    found = named(monkeypatch, "nnpack", build("libnnpack.so", slow))
    assert not found.available()
    assert "hangs when it is tested" in found.reason()
    assert capfd.readouterr() == ("", "")


def test_where_no_child_can_be_started(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    # They are loaded into this process, where libdnnl.so.3 would be found by later tests.
    good, bad = build("stand_in.so", onednn()), build("stand_in.so", onednn(engines=0))
    for executable in ("", "/no/such/python"):
        monkeypatch.setattr(sys, "executable", executable)
        found = named(monkeypatch, "onednn", good)
        assert (found.available(), found.version()) == (True, "3.5.3")
        found = named(monkeypatch, "onednn", bad)
        assert not found.available()
        assert "finds no engine" in found.reason()


def test_a_function_that_is_not_there(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search asks for the first functions only; what else is missing is a reason too, not an error."""
    path = build("libmagma.so", "void magma_init(void) {}")
    assert "lacks a function" in probe_process.ask("magma", str(path))[0]["reason"]


def test_search_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(spec: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(presence, "search", fails)
    found = presence.presence("mkldnn")
    assert not found.available()
    assert found.reason() == "PermissionError: not yours"
    assert found.version() is None and found.searched() == ()


def test_unknown_names() -> None:
    with pytest.raises(BadValue, match="there is no library 'cudn'"):
        presence.presence("cudn")
    assert isinstance(unavailable("kleidiai", "x"), BackendUnavailable)


def test_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(presence.platform, "machine", lambda: "riscv64")
    for name, wanted in (("kleidiai", "aarch64"),):
        found = presence.presence(name)
        found.forget()
        assert not found.available()
        assert f"is for {wanted}; this is riscv64" in found.reason()
        assert unavailable(name, "x").remedy == f"a machine with {wanted}"


# --- single facts


def test_cuda(build: Build, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (presence.cuda_devices(), presence.presence("cuda").version(), presence.cuda_is_built()) == (0, None, False)
    assert named(monkeypatch, "cuda", build("libcuda.so.1", driver())).available()
    assert presence.cuda_devices() == 2
    named(monkeypatch, "cudart", build("libcudart.so.13", CUDART.format(status=0)))
    assert presence.presence("cuda").version() == 13000
    found = named(monkeypatch, "cuda", build("libcuda.so.1", driver(count=0)))
    assert not found.available()
    assert "reports no device" in found.reason()
    assert presence.cuda_devices() == 0
    assert presence.presence("cuda").version() == 13000  # the runtime's, which needs no device


def test_cuda_is_built_without_driver_or_device(build: Build, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(nowhere), *sys.path])
    named(monkeypatch, "cublas", build("libcublas.so.13", properties("cublasGetProperty")))
    with monkeypatch.context() as alone:  # without a CuPy that is installed here
        alone.setattr(sys, "path", [str(nowhere)])
        assert not presence.cuda_is_built()
    (nowhere / "cupy").mkdir()
    (nowhere / "cupy" / "__init__.py").write_text("raise SystemExit('imported')")
    assert presence.cuda_is_built()
    assert "cupy" not in sys.modules
    named(monkeypatch, "cublas", nowhere / "none.so")
    assert not presence.cuda_is_built()


ALGORITHMS = """
#include <stdint.h>
int cusparseLtInit(char *h) {{ h[11023] = 1; return {init}; }}
int cusparseLtStructuredDescriptorInit(char *h, char *d, int64_t rows, int64_t columns, int64_t ld, uint32_t align, int type, int order,
                                       int sparsity)
{{ d[11023] = 1; return !(h[11023] && rows == 64 && columns == 64 && ld == 64 && align == 16 && type == 2 && order == 2 && !sparsity); }}
int cusparseLtDenseDescriptorInit(char *h, char *d, int64_t rows, int64_t columns, int64_t ld, uint32_t align, int type, int order)
{{ d[11023] = 1; return !(h[11023] && rows == 64 && columns == 64 && ld == 64 && align == 16 && type == 2 && order == 2); }}
int cusparseLtMatmulDescriptorInit(char *h, char *m, int ta, int tb, char *a, char *b, char *c, char *d, int compute)
{{ m[11023] = 1; return !(a[11023] && b[11023] && c[11023] && c == d && compute == {compute}); }}
int cusparseLtMatmulAlgSelectionInit(char *h, char *s, char *m, int algorithm) {{ s[11023] = 1; return !(m[11023] && algorithm == 0); }}
int cusparseLtMatmulAlgGetAttribute(char *h, char *s, int attribute, int *value, uint64_t size)
{{ *value = 45; return !(s[11023] && attribute == 1 && size == 4); }}
"""


@pytest.mark.parametrize(
    ("numbers", "source", "largest"),
    [
        ("0, 4, 0", "", 4), ("0, 5, 2", "", 5), ("0, 6, 2", "", 37), ("0, 7, 1", "", None),
        ("0, 7, 1", ALGORITHMS.format(init=0, compute=2), 45), ("0, 8, 0", ALGORITHMS.format(init=0, compute=4), 45),
        ("0, 8, 1", ALGORITHMS.format(init=1, compute=2), None), ("0, 8, 1", ALGORITHMS.format(init=0, compute=9), None),
    ],
)  # fmt: skip
def test_largest_algorithm_of_cusparselt(
    numbers: str, source: str, largest: int | None, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build("libcusparseLt.so.0", properties("cusparseLtGetProperty", numbers=numbers) + source)
    assert named(monkeypatch, "cusparselt", path).available()
    assert presence.max_alg_id() == largest
    assert presence.max_alg_id() == largest


def test_largest_algorithm_without_the_library(nowhere: Path) -> None:
    assert presence.max_alg_id() is None


def test_arm_compute_library(build: Build, monkeypatch: pytest.MonkeyPatch, nowhere: Path) -> None:
    def on(machine: str, path: Path | None) -> bool:
        if path is not None:
            named(monkeypatch, "onednn", path)
        presence.presence("mkldnn").available()
        with monkeypatch.context() as inner:
            inner.setattr(presence.platform, "machine", lambda: machine)
            return presence.acl_available()

    assert not on("aarch64", None)
    plain = build("libdnnl.so.3", onednn())
    inside = build("libdnnl.so.3", onednn() + 'const char *who(void) { return "arm_compute::NEGEMM"; }')
    acl = build("libarm_compute.so", "int acl(void) { return 1; }")
    linked = build("libdnnl.so.3", onednn() + "extern int acl(void); int use(void) { return acl(); }",
                   [f"-L{acl.parent}", "-Wl,--no-as-needed", "-larm_compute", f"-Wl,-rpath,{acl.parent}"])  # fmt: skip
    assert [on("aarch64", path) for path in (plain, inside, linked)] == [False, True, True]
    assert not on("x86_64", inside)


def test_words_across_two_pieces_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "big"
    file.write_bytes(b"x" * ((1 << 20) - 4) + b"arm_compute")
    assert presence.mentions(str(file), b"arm_compute")
    assert not presence.mentions(str(file), b"arm_computer")


def test_nnpack_inside_another_package_that_is_loaded(build: Build, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build("libtorch_cpu.so", returning("nnp_initialize", 0))
    file = MappedFile(str(path), "fe:00", 1, 0, 1)
    monkeypatch.setattr(presence.os.path, "lexists", os.path.exists)
    monkeypatch.setattr(presence, "mapped_files", lambda: (file,))
    found = presence.presence("nnpack")
    assert (found.available(), found.path) == (True, str(path))
    assert found.searched()[-1] == f"inside other packages: found [{path}]"
    lacking = build("libtorch_cpu.so", "int nothing(void) { return 0; }")
    monkeypatch.setattr(presence, "mapped_files", lambda: (MappedFile(str(lacking), "fe:00", 1, 0, 1),))
    found.forget()
    assert not found.available()
    assert "lacks symbol nnp_initialize" in found.reason()


# --- what this machine has


@pytest.mark.parametrize("name", presence.names())
def test_answers_agree_on_this_machine(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    found = presence.presence(name)
    assert found.available() == (found.reason() == "")
    assert found.available() <= (found.path is not None)
    assert found.version() is None or isinstance(found.version(), (int, str))
    assert str(unavailable(name, "x")).startswith(f"x needs {found.title}")
    assert capfd.readouterr() == ("", "")


def test_asking_leaves_nothing_behind() -> None:
    program = """
import ctypes, json, os, sys, threading
from backline.native import process_map as maps; from backline.libraries import presence
def state():
    loaded = sorted({file.name for file in maps.mapped_files() if "python" not in file.path.lower() and "lib-dynload" not in file.path})
    return loaded, dict(os.environ), len(os.listdir("/proc/self/task")), sorted(os.listdir("/proc/self/fd"))
import importlib.metadata, subprocess
before = state()
answers = {name: [presence.presence(name).available(), presence.presence(name).version()] for name in presence.names()}
presence.cuda_is_built(), presence.max_alg_id(), presence.acl_available(), presence.metal_facts(), presence.mlx_importable()
same = [a == b for a, b in zip(before, state())]
print(json.dumps([same, [name for name in ("torch", "mlx", "cupy", "opt_einsum", "jax") if name in sys.modules]]))
"""
    source = str(Path(presence.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env={**os.environ, "PYTHONPATH": source},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [[True] * 4, []]
