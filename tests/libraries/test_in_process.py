"""Files mapped into a process: understood from the kernel's list, and judged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backline.libraries import in_process
from backline.libraries.conflicts import SEVERITIES, conflicts
from backline.libraries.in_process import LoadedLibrary, copies
from backline.libraries.recognition import classify, families, owner
from backline.native import library_search
from backline.native.process_map import parse_maps

Build = Callable[..., Path]

SITE = "/v/lib/python3.11/site-packages"

RECORDED = f"""\
00400000-00401000 r-xp 00000000 fe:00 11                         /usr/bin/python3.11
7f0000000000-7f0000100000 r--p 00000000 fe:00 501                {SITE}/numpy.libs/libscipy_openblas64_.so
7f0000100000-7f0000900000 r-xp 00100000 fe:00 501                {SITE}/numpy.libs/libscipy_openblas64_.so
7f0000900000-7f0000a00000 rw-p 00900000 fe:00 501                {SITE}/numpy.libs/libscipy_openblas64_.so
7f0001000000-7f0001001000 rw-p 00000000 00:00 0
7f0002000000-7f0002040000 r-xp 00000000 fe:00 502                {SITE}/torch/lib/libgomp.so.1
7f0003000000-7f0003040000 r-xp 00000000 fe:00 503                /opt/my libs/libiomp5.so (deleted)
7f0004000000-7f0004040000 r--p 00000000 fe:00 504                /data/libblis.so.4
7f0005000000-7f0005040000 r-xp 00000000 fe:00 505                /odd/line\\012break.so
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                  [stack]
7ffc00021000-7ffc00022000 r-xp 00000000 00:00 0                  [vdso]
ffff-zzzz nonsense
"""


def library(family: str, path: str = "", **facts: object) -> LoadedLibrary:
    kind = next(known.kind for known in families() if known.shown_as == family)
    facts = {"owner": "test", "threads": 4, **facts}
    return LoadedLibrary(family, kind, path or f"/x/{family}.so", **facts)  # type: ignore[arg-type]  # facts of several types


def kinds(*libraries: LoadedLibrary, **environ: str) -> dict[str, str]:
    return {conflict.kind: conflict.severity for conflict in conflicts(libraries, environ)}


# --- the kernel's list


def test_recorded_list() -> None:
    files = parse_maps(RECORDED)
    assert [file.name for file in files] == [
        "python3.11", "libscipy_openblas64_.so", "libgomp.so.1", "libiomp5.so", "line\nbreak.so",
    ]  # fmt: skip
    openblas = files[1]
    assert (openblas.start, openblas.end, openblas.inode) == (0x7F0000000000, 0x7F0000A00000, 501)
    assert (files[3].path, files[3].deleted) == ("/opt/my libs/libiomp5.so", True)
    assert parse_maps("") == ()


def test_data_files_are_not_libraries_in_use() -> None:
    assert "/data/libblis.so.4" not in [file.path for file in parse_maps(RECORDED)]


# --- what a file is


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("libscipy_openblas64_-32a4b2a6.so", "openblas"), ("libopenblasp-r0.3.21.so", "openblas"),
        ("libopenblas.so.0", "openblas"), ("libmkl_rt.so.3", "mkl"), ("libmkl_core.so.2", "mkl.core"),
        ("libmkl_intel_thread.so.3", "mkl.intel_thread"), ("libmkl_gnu_thread.so.3", "mkl.gnu_thread"),
        ("libmkl_avx512.so.3", "mkl.kernels"), ("libmkl_intel_lp64.so.3", "mkl.interface"),
        ("libblis.so.4", "blis"), ("libblas.so.3", "blas"), ("libgomp.so.1.0.0", "libgomp"),
        ("libgomp-e985bcbb.so.1.0.0", "libgomp"), ("libgomp-a34b3233.so.1", "libgomp"),
        ("libiomp5.so", "libiomp5"), ("libiomp5-ab12.so", "libiomp5"), ("libomp.so.5", "libomp"),
        ("libtbb.so.12", "tbb"), ("libfftw3f.so.3.5.8", "fftw"), ("libfftw3_omp.so.3", "fftw"),
        ("libdnnl.so.3", "onednn"), ("libXNNPACK.so.0", "xnnpack"), ("libcudart.so.13", "cudart"),
        ("libcublas.so.13.1.0", "cublas"), ("libcublasLt.so.13", "cublaslt"), ("libcudnn_ops.so.9", "cudnn"),
        ("libcufft.so.12", "cufft"), ("libcuda.so.1", "cuda driver"),
    ],
)  # fmt: skip
def test_known_by_name(name: str, family: str) -> None:
    assert [match.family.shown_as for match in classify(f"/nowhere/{name}")] == [family]


@pytest.mark.parametrize(
    "name",
    ["libc.so.6", "libm.so.6", "libpng16.so", "libtbbmalloc.so.2", "_blas.cpython-311-x86_64-linux-gnu.so",
     "libblistering.txt", "libgompertz.so", "libcudadebugger.so.1", "python3.11"],
)  # fmt: skip
def test_others_are_left_out(name: str) -> None:
    assert classify(f"/nowhere/{name}") == ()


def test_symbols_decide_over_the_name(build: Build) -> None:
    """Distributions let libblas.so.3 be any BLAS."""
    text = 'const char *openblas_get_config(void) { return "OpenBLAS 0.3.21"; }'
    (match,) = classify(str(build("libblas.so.3", text)))
    assert (match.family.name, match.evidence) == ("openblas", "symbols")
    (match,) = classify(str(build("libopenblas.so.0", text)))
    assert (match.family.name, match.evidence) == ("openblas", "name and symbols")
    (match,) = classify(str(build("libblis.so.4", "int nothing(void) { return 0; }")))
    assert (match.family.name, match.evidence) == ("blis", "name")


def test_one_file_with_several_libraries(build: Build) -> None:
    text = "void MKL_Get_Version_String(void) {} int nnp_initialize(void) { return 0; }"
    assert {m.family.name for m in classify(str(build("libbig_cpu.so", text)))} == {"mkl", "nnpack"}


@pytest.mark.parametrize(
    ("path", "who"),
    [
        (f"{SITE}/numpy.libs/libx.so", "numpy"), (f"{SITE}/scipy.libs/libx.so", "scipy"),
        (f"{SITE}/torch/lib/libgomp.so.1", "torch"), (f"{SITE}/scikit_learn.libs/libx.so", "scikit-learn"),
        (f"{SITE}/sklearn/x.so", "scikit-learn"), (f"{SITE}/scipy_openblas32/lib/x.so", "scipy-openblas32"),
        (f"{SITE}/nvidia/cublas/lib/libcublas.so.13", "nvidia"), ("/usr/lib/x86_64-linux-gnu/x.so", "system"),
        ("/usr/lib64/x.so", "system"), ("/lib/x.so", "system"), ("/v/lib/libx.so", "wheel"),
        ("/usr/lib/python3/dist-packages/numpy/x.so", "numpy"), ("/opt/intel/libx.so", "/opt/intel"),
    ],
)  # fmt: skip
def test_who_brought_it(path: str, who: str) -> None:
    assert owner(path, families()[0].replaced(distribution="wheel"), prefix="/v") == who
    if who == "wheel":
        assert owner(path, families()[0].replaced(distribution=""), prefix="/v") == "environment"


# --- this process and others


def test_numpys_openblas_here() -> None:
    import numpy

    assert numpy.ones((2, 2)) @ numpy.ones(2) is not None
    here = [lib for lib in in_process.loaded() if lib.family == "openblas" and lib.owner == "numpy"]
    if not here:
        pytest.skip("this NumPy does not bring an OpenBLAS of its own")
    (openblas,) = here
    assert openblas.evidence == "name and symbols"
    assert openblas.version[0].isdigit()
    assert openblas.integers == "ILP64"
    assert openblas.threading == "pthreads"
    assert openblas.threads is not None and openblas.threads >= 1


def run(program: str) -> dict[str, object]:
    """Run a program in a fresh process; it ends with what is mapped, in JSON."""
    tail = """
import ctypes, json, os
from dataclasses import asdict
from backline.native import process_map as maps
from backline.libraries.conflicts import conflicts
from backline.libraries.in_process import loaded
state = lambda: ([file.path for file in maps.mapped_files()], len(os.listdir("/proc/self/task")))
before = state()
libraries, kinds = loaded(), [conflict.kind for conflict in conflicts()]
unchanged = state() == before
# NumPy's own library comes with the package itself and is not what these tests are about.
libraries = [asdict(library) for library in libraries if library.owner != "numpy"]
print(json.dumps({"libraries": libraries, "kinds": kinds, "unchanged": unchanged}))
"""
    source = str(Path(library_search.__file__).parents[2])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "KMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", program + tail],
        env={**clean, "PYTHONPATH": os.pathsep.join([source, clean.get("PYTHONPATH", "")]), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def by_family(answer: dict[str, object]) -> dict[str, dict[str, object]]:
    return {library["family"]: library for library in answer["libraries"]}  # type: ignore[attr-defined]  # JSON of a child process


def mkl_path() -> str:
    spec = library_search.LibrarySpec("mkl", prefix_globs=("libmkl_rt.so*",), system_names=("libmkl_rt.so",))
    path = library_search.search(spec).path
    if path is None:
        pytest.skip("MKL is not installed")
    return path


def test_asking_starts_nothing() -> None:
    """MKL's entry library alone: to ask it for a version would make it choose and open its layers."""
    answer = run(f"import ctypes; ctypes.CDLL({mkl_path()!r})")
    assert list(by_family(answer)) == ["mkl"]
    assert by_family(answer)["mkl"]["version"] == ""
    assert answer["unchanged"]


def test_mkl_in_use_on_libgomp() -> None:
    mkl = f"mkl = ctypes.CDLL({mkl_path()!r})"
    answer = run(f"import ctypes; {mkl}; mkl.MKL_Set_Threading_Layer(3); mkl.MKL_Get_Max_Threads()")
    here = by_family(answer)
    assert here["mkl"]["version"][:2] == "20"  # type: ignore[index]  # JSON of a child process
    assert here["mkl"]["threads"] is not None
    assert here["mkl.gnu_thread"]["threading"] == "openmp (GNU)"
    assert here["libgomp"]["threads"] is not None
    assert answer["kinds"] == []
    assert answer["unchanged"]


def test_intel_runtime_is_not_asked_before_it_has_started() -> None:
    folder = os.path.dirname(mkl_path())
    if not os.path.exists(f"{folder}/libiomp5.so"):
        pytest.skip("Intel's OpenMP runtime is not installed beside MKL")
    load = f"import ctypes; runtime = ctypes.CDLL({folder!r} + '/libiomp5.so')"
    assert by_family(run(load))["libiomp5"]["threads"] is None
    assert by_family(run(load + "; runtime.omp_get_max_threads()"))["libiomp5"]["threads"] is not None


def test_two_intel_runtimes_are_reported_and_not_touched(tmp_path: Path) -> None:
    """Asking the second for a thread count would end the process: the report must come first."""
    runtime = os.path.join(os.path.dirname(mkl_path()), "libiomp5.so")
    if not os.path.exists(runtime):
        pytest.skip("Intel's OpenMP runtime is not installed beside MKL")
    other = tmp_path / "libiomp5.so"
    shutil.copy(runtime, other)
    answer = run(
        f"import ctypes; ctypes.CDLL({runtime!r}).omp_get_max_threads(); ctypes.CDLL({str(other)!r})"
    )
    assert answer["kinds"] == ["two LLVM OpenMP runtimes"]


def torch_program(order: str) -> str:
    pytest.importorskip("torch")
    mkl = f"mkl = ctypes.CDLL({mkl_path()!r}); mkl.MKL_Set_Threading_Layer(0); mkl.MKL_Get_Max_Threads()"
    parts = {"torch": "import torch", "mkl": mkl}
    return "import ctypes\n" + "\n".join(parts[part] for part in order.split())


@pytest.mark.torch
def test_wrong_layer_is_known_by_the_order_of_loading() -> None:
    wrong = "MKL's Intel layer while libgomp serves the process"
    assert wrong in run(torch_program("torch mkl"))["kinds"]  # type: ignore[operator]  # JSON of a child process
    assert wrong not in run(torch_program("mkl torch"))["kinds"]  # type: ignore[operator]  # JSON of a child process


@pytest.mark.torch
def test_mkl_inside_torch_is_found() -> None:
    pytest.importorskip("torch")
    owners = {lib["family"]: lib["owner"] for lib in run("import torch")["libraries"]}  # type: ignore[attr-defined]  # JSON of a child process
    # The package, or the folder of one that PYTHONPATH names.
    assert owners["libgomp"].removesuffix("/lib").endswith("torch")
    if sys.platform == "linux" and os.uname().machine == "x86_64":
        assert owners["mkl"] == owners["libgomp"]


def test_deleted_library_is_reported_not_read(build: Build) -> None:
    path = build("libblis.so.4", 'const char *bli_info_get_version_str(void) { return "9.9"; }')
    answer = run(f"import ctypes, os; ctypes.CDLL({str(path)!r}); os.unlink({str(path)!r})")
    (blis,) = answer["libraries"]  # type: ignore[misc]  # JSON of a child process
    assert (blis["family"], blis["deleted"], blis["version"]) == ("blis", True, "")
    assert answer["kinds"] == ["a library was replaced under this process"]


def test_library_with_another_interface_says_less(build: Build) -> None:
    """A file that lacks a function we would ask is listed without the answer."""
    path = build("libblis.so.4", 'const char *bli_info_get_version_str(void) { return "9.9"; }')
    answer = run(f"import ctypes; ctypes.CDLL({str(path)!r})")
    (blis,) = answer["libraries"]  # type: ignore[misc]  # JSON of a child process
    assert (blis["family"], blis["evidence"], blis["threads"]) == ("blis", "name and symbols", None)


# --- judging a list


def test_nothing_wrong() -> None:
    assert kinds() == {}
    assert kinds(library("openblas", threading="pthreads")) == {}
    assert kinds(library("mkl"), library("mkl.gnu_thread"), library("libgomp", serves_openmp=True)) == {}
    assert kinds(library("mkl"), library("mkl.intel_thread"), library("libiomp5", serves_openmp=True)) == {}


def test_two_of_the_llvm_family() -> None:
    for pair in (("libiomp5", "libiomp5"), ("libiomp5", "libomp"), ("libomp", "libomp")):
        found = kinds(*(library(family, f"/{n}/x.so", threads=None) for n, family in enumerate(pair)))
        assert found == {"two LLVM OpenMP runtimes": "fatal"}


def test_the_remedy_never_is_to_allow_duplicates() -> None:
    (conflict,) = conflicts(
        [library("libomp", "/a", threads=None), library("libiomp5", "/b", threads=None)], {}
    )
    assert "Do not set KMP_DUPLICATE_LIB_OK" in conflict.remedy
    assert "/a (from test)" in str(conflict)


def test_gnu_beside_intel() -> None:
    found = kinds(library("libgomp"), library("libiomp5", threads=None))
    assert found == {"libgomp beside an LLVM OpenMP runtime": "slow"}


def test_copies_of_libgomp() -> None:
    pools = library("libgomp", "/a", threads=1), library("libgomp", "/b", threads=1)
    assert kinds(*pools) == {"several copies of libgomp": "slow"}
    assert copies(pools) == {"libgomp": 2}


def test_copies_of_openblas() -> None:
    copies_of = [library("openblas", f"/{n}", threads=2, threading="pthreads") for n in range(3)]
    assert kinds(*copies_of)["several copies of OpenBLAS"] == "slow"
    on_one_thread = [replace(each, threads=1) for each in copies_of]
    assert kinds(*on_one_thread) == {} and kinds(copies_of[0], *on_one_thread) == {}


def test_a_copy_on_the_team_is_no_conflict() -> None:
    numpys = replace(library("openblas", "/1", threading="pthreads"), owner="numpy")
    driven = library("openblas", "/2", threading="team")
    assert kinds(numpys, driven) == {}
    # NumPy's pool beside the team is what every process has: worth knowing, no fault.
    assert kinds(numpys, driven, library("libgomp")) == {"several pools that wait by spinning": "note"}
    third = library("openblas", "/3", threading="pthreads")
    assert kinds(numpys, driven, third)["several copies of OpenBLAS"] == "slow"


def test_the_copy_that_backline_drives_is_known() -> None:
    answer = run("import backline, numpy\nbackline.libraries.get('openblas').available()")
    ours = [x for x in answer["libraries"] if x["owner"] == "scipy-openblas32"]  # type: ignore[attr-defined]  # JSON of a child process
    assert all(x["threading"] in ("team", "openmp", "none") for x in ours) and len(ours) <= 1
    assert "several copies of OpenBLAS" not in answer["kinds"]  # type: ignore[operator]  # JSON of a child process


def test_intel_layer_under_a_global_libgomp() -> None:
    layer, gomp = library("mkl.intel_thread", threads=None), library("libgomp", serves_openmp=True)
    assert kinds(layer, gomp) == {"MKL's Intel layer while libgomp serves the process": "wrong"}
    assert kinds(layer, replace(gomp, serves_openmp=False)) == {}


def test_spinning_pools() -> None:
    pools = library("openblas", threading="pthreads"), library("libgomp")
    assert kinds(*pools) == {"several pools that wait by spinning": "slow"}
    assert kinds(*pools, OMP_WAIT_POLICY="passive") == {}
    assert kinds(*pools, GOMP_SPINCOUNT="0") == {}
    assert kinds(replace(pools[0], threads=1), pools[1]) == {}
    assert kinds(replace(pools[0], threading="openmp"), pools[1]) == {}


@pytest.mark.parametrize("value", ["TRUE", "1", "true", "yes", "on"])
def test_duplicates_allowed_is_reported(value: str) -> None:
    assert kinds(KMP_DUPLICATE_LIB_OK=value) == {"KMP_DUPLICATE_LIB_OK is set": "note"}
    assert kinds(KMP_DUPLICATE_LIB_OK="FALSE") == {}


def test_worst_first() -> None:
    everything = [
        library("mkl", "/1"),
        library("mkl", "/2"),
        library("mkl.intel_thread"),
        library("libgomp", serves_openmp=True),
        library("libiomp5", "/3"),
        library("libomp", "/4"),
        library("openblas", "/5", deleted=True),
    ]
    found = [conflict.severity for conflict in conflicts(everything, {"KMP_DUPLICATE_LIB_OK": "1"})]
    assert found == sorted(found, key=SEVERITIES.index)
    assert {"fatal", "wrong", "slow", "note"} == set(found)
    for conflict in conflicts(everything, {}):
        assert conflict.meaning and conflict.remedy


def test_table_prints() -> None:
    text = in_process.describe([library("openblas", version="0.3.30"), library("libgomp", threads=None)])
    assert text.splitlines()[0].split() == [
        "library", "version", "integers", "threading", "threads", "from", "file",
    ]  # fmt: skip
    assert len(text.splitlines()) == 3
