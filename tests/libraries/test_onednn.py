"""oneDNN as it is found, refused, capped and made to talk; its objects, and what becomes of them."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.errors import LibraryFailed
from backline.libraries import capability
from backline.libraries.base import Algorithm
from backline.libraries.onednn import abi
from backline.libraries.onednn.plan_writer import NOT_FINITE, Writer, fits
from backline.libraries.onednn.primitives import DnnlError, Engine, Handle, why
from backline.native import thread_team
from backline.problems import Problem, operand
from backline.problems.matmul_problem import MatmulProblem

FAKE = """
#include <stdlib.h>
typedef struct {{ int major, minor, patch; const char *hash; unsigned cpu, gpu; }} version_t;
static version_t version = {{ {major}, {minor}, 0, "", {runtime}, 0 }};
const version_t *dnnl_version(void) {{ return &version; }}
unsigned long dnnl_engine_get_count(int kind) {{ return kind == 1; }}
void omp_set_num_threads(int n) {{ (void)n; }}
int omp_get_max_threads(void) {{ return 1; }}
int dnnl_engine_create(void **made, int kind, unsigned long index) {{ {create} }}
int dnnl_get_effective_cpu_isa(void) {{ return 0; }}
"""


@pytest.fixture(scope="module")
def library() -> Any:
    found = libraries.get("onednn")
    if not found.available():
        pytest.skip(f"onednn is not available: {found.reason()}")
    return found


def run(program: str, **variables: str) -> str:
    """Output of a program in a fresh interpreter."""
    source = str(Path(backline.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, **variables}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def product(n: int) -> MatmulProblem:
    a = np.ones((n, n), np.float32)
    return MatmulProblem("matmul", (operand("a", a), operand("b", a)), (), "matmul", m=n, n=n, k=n, result=(n, n))


def listed(problem: Problem, threads: int = 2) -> list[Algorithm]:
    return [a for a in libraries.get("onednn").algorithms(problem, threads) if isinstance(a, Algorithm)]


# Finding and refusing ---------------------------------------------------------------------------------------------------


def test_it_says_what_it_is(library: Any) -> None:
    report = library.report()
    assert report["available"] and report["reason"] == ""
    assert report["version"] == library.version() and library.version().startswith("3.")
    assert os.path.isabs(report["path"]) and report["runtime"] in ("OPENMP", "SEQUENTIAL")
    assert backline.backends.mkldnn.version() == library.version()


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    run(
        """
        import backline
        from backline import libraries
        assert "libdnnl" not in open("/proc/self/maps").read()
        libraries.get("onednn")
        assert "libdnnl" not in open("/proc/self/maps").read()
        """
    )


REASON = "from backline import libraries; print(libraries.get('onednn').reason())"


@pytest.mark.parametrize(
    ("major", "minor", "runtime", "words"),
    [
        (2, 6, 2, "is oneDNN 2.6.0, which has another interface"),
        (3, 1, 2, "is oneDNN 3.1.0, which has another interface"),
        (4, 0, 2, "is oneDNN 4.0.0, which has another interface"),
        (3, 5, 512, "built on SYCL, which takes no thread count"),
        (3, 5, 4, "built on TBB, which takes no thread count"),
        (3, 5, 99, "built on runtime 99"),
    ],
)
def test_other_releases_and_builds_are_refused(
    build: Callable[..., Path], major: int, minor: int, runtime: int, words: str
) -> None:
    source = FAKE.format(major=major, minor=minor, runtime=runtime, create="return 5;")
    path = build("libdnnl.so.3", source)
    assert words in run(REASON, BACKLINE_MKLDNN_LIBRARY=str(path))


@pytest.mark.parametrize(
    ("create", "words"),
    [("return 5;", "dnnl_engine_create failed (status 5, runtime error)"), ("abort();", "crashes when it is tested (SIGABRT)")],
)
def test_one_that_does_not_work_is_refused(build: Callable[..., Path], create: str, words: str) -> None:
    path = build("libdnnl.so.3", FAKE.format(major=3, minor=5, runtime=2, create=create))
    assert words in run(REASON, BACKLINE_MKLDNN_LIBRARY=str(path))


def test_a_build_on_sycl_is_not_even_loaded(build: Callable[..., Path]) -> None:
    sycl = build("libsycl.so.9")
    path = build("libdnnl.so.3", FAKE.format(major=3, minor=9, runtime=512, create="abort();"), ["-Wl,--no-as-needed", str(sycl)])
    said = run(REASON, BACKLINE_MKLDNN_LIBRARY=str(path))
    assert "is built on SYCL, which takes no thread count" in said and "--no-deps onednn-cpu-gomp brings a build on OpenMP" in said


def test_a_file_that_is_named_and_not_there_is_refused() -> None:
    assert "no such file" in run(REASON, BACKLINE_MKLDNN_LIBRARY="/nowhere/libdnnl.so.3")


def test_another_file_of_the_same_library_is_asked_in_a_child(library: Any, tmp_path: Path) -> None:
    path = tmp_path / "libdnnl.so.3"
    path.symlink_to(library.report()["path"])
    said = run(
        """
        from backline import libraries
        library = libraries.get("onednn")
        print(repr(library.reason()), library.report()["path"])
        """,
        BACKLINE_MKLDNN_LIBRARY=str(path),
    )
    assert said.split() == ["''", str(path)]


def test_switched_off_it_is_refused(library: Any) -> None:
    a = np.ones((4, 4), np.float32)
    with switches.scope({"mkldnn.enabled": False}):
        found = [c for c in backline.explain(backline.matmul, a, a).candidates if c.library == "onednn"]
    assert [c.verdict for c in found] == ["refused"] and found[0].switch == "mkldnn.enabled"


def test_an_operation_it_has_not_is_refused_with_the_reason(library: Any) -> None:
    problem = Problem("lstm", (operand("a", np.ones(3, np.float32)),), (), "rnn")
    (refused,) = library.algorithms(problem, 2)
    assert "lstm" in refused.reason
    with pytest.raises(RuntimeError, match="lstm"):
        library.prepare(problem, Algorithm(library="onednn", name="none"))


# Threads and instruction sets --------------------------------------------------------------------------------------------


def test_a_thread_count_holds_for_one_thread_and_ends(library: Any) -> None:
    thread_guard, native = library.traits.engine.thread_guard, library.traits.native
    count = ctypes.CFUNCTYPE(ctypes.c_int)(native.address("omp_get_max_threads"))
    seen: list[int] = []

    def other() -> None:
        before = count()
        former = thread_guard.enter(1)
        seen.extend([former - before, count()])
        thread_guard.leave(former)
        seen.append(count() - before)

    before = count()
    former = thread_guard.enter(3)
    assert (former, count()) == (before, 3)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [0, 1, 0] and count() == 3
    thread_guard.leave(former)
    assert count() == before


def test_a_gate_takes_a_getter_for_one_thread_only(library: Any) -> None:
    from backline import _core

    setter, getter = thread_team.address("omp_set_num_threads"), thread_team.address("omp_get_max_threads")
    assert setter and getter
    for kind in (thread_team.PROCESS, thread_team.PROCESS64):
        with pytest.raises(ValueError, match="get=0"):
            _core.ThreadCountGuard(setter, kind, getter)


def test_a_cap_on_instructions_reaches_it(library: Any) -> None:
    said = run(
        """
        import numpy as np
        from backline import libraries
        from backline.problems import operand
        from backline.problems.matmul_problem import MatmulProblem
        library = libraries.get("onednn")
        assert not library.reason(), library.reason()
        a = np.ones((64, 64), np.float32)
        p = MatmulProblem("matmul", (operand("a", a), operand("b", a)), (), "matmul", m=64, n=64, k=64, result=(64, 64))
        found = list(library.algorithms(p, 1))
        assert [f.name for f in found] == ["matmul", "bf16"] and "no instructions for bfloat16" in found[1].reason
        assert np.array_equal(library.prepare(p, found[0])(a, a), np.full((64, 64), 64))
        print(library.report().get("instructions"), found[0].note)
        """,
        BACKLINE_CPU_CAPABILITY="avx2",
    )
    # A processor that has no more needs no cap.
    assert ("AVX2 at most" in said) == (capability.detected() == "AVX512") and "avx512" not in said


# Verbose -------------------------------------------------------------------------------------------------------------------

TALK = """
import numpy as np, backline
from backline.backends import mkldnn
a = np.ones((32, 32), np.float32)
with backline.use("onednn", only=True):
    backline.mm(a, a)
"""


def test_a_verbose_scope_shows_the_librarys_lines() -> None:
    said = run(
        TALK
        + """
    print("before")
    with mkldnn.verbose(1) as log:
        backline.mm(a, a)
        with mkldnn.verbose(0):
            backline.mm(a, a)
    print("after")
    backline.mm(a, a)
    with mkldnn.verbose(2) as created:
        backline.mm(a[:16], a)
(event,) = log
assert event.library == "onednn" and event.details[-1]["primitive"] == "matmul", event.details
assert {e.phase for e in created} == {"creation", "execution"}
"""
    )
    before, _, rest = said.partition("before\n")
    inside, _, after = rest.partition("after\n")
    assert "exec" not in before
    lines = [line for line in inside.splitlines() if line.startswith("onednn_verbose") and ",exec," in line]
    assert len(lines) == 1 and ",matmul," in lines[0]
    assert "create" in after


def test_the_environments_level_comes_back() -> None:
    said = run(
        TALK
        + """
    print("silence")
    with mkldnn.verbose(0):
        backline.mm(a, a)
    print("again")
    backline.mm(a, a)
""",
        ONEDNN_VERBOSE="1",
    )
    silent, _, again = said.partition("silence\n")[2].partition("again\n")
    assert "onednn_verbose" not in silent and ",exec,cpu,matmul," in again


def test_set_verbose_tells_the_former_level(library: Any) -> None:
    assert library.set_verbose(0) == 0
    assert [library.set_verbose(level) for level in (0, 0)] == [0, 0]


# Objects -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(library: Any) -> Engine:
    made: Engine = library.traits.engine
    return made


def test_descriptors(engine: Engine) -> None:
    f32 = np.dtype(np.float32)
    rows, same, columns = (engine.desc((3, 4), f32, s) for s in ((4, 1), (4, 1), (1, 3)))
    assert rows == same and rows != columns and rows.nbytes == columns.nbytes == 48
    assert engine.clone(rows.address) == rows
    with pytest.raises(DnnlError, match=r"dnnl_memory_desc_create_with_strides failed \(status 2, invalid arguments\)") as caught:
        engine.desc((3, 4), f32, (1, 1))
    assert caught.value.status == 2 and not caught.value.unimplemented
    with pytest.raises(RuntimeError, match="up to 12 dimensions, not 13"):
        engine.desc((1,) * 13, f32, (1,) * 13)


def test_what_is_not_implemented_is_told_apart(engine: Engine) -> None:
    half = engine.desc((4, 4), np.dtype(np.float64), (4, 1))
    with pytest.raises(DnnlError) as caught:
        engine.primitive_desc("matmul", half, half, None, half, attr=engine.attributes())
    assert caught.value.unimplemented and why(caught.value, "this") == "oneDNN has no implementation for this"


def test_the_environments_precision_has_no_say(library: Any) -> None:
    """Products named float32 are float32: what the processor could do with bfloat16 is asked for by switches."""
    run(
        TALK
        + """
    b = np.full((32, 32), 1 + 2.0**-9, np.float32)
    assert np.array_equal(backline.mm(b, a), np.full((32, 32), 32 * (1 + 2.0**-9), np.float32))
""",
        ONEDNN_DEFAULT_FPMATH_MODE="BF16",
    )


def test_a_function_it_does_not_export(engine: Engine) -> None:
    with pytest.raises(RuntimeError, match="exports no dnnl_fly"):
        engine.call("dnnl_fly")


def test_objects_are_freed_with_their_plan(library: Any) -> None:
    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(x), Handle) for x in gc.get_objects())  # isinstance would ask objects of others for __class__

    problem = product(8)
    (first, *_) = listed(problem, 1)
    library.prepare(problem, first)  # takes what was described when it was listed
    before = alive()
    plan = library.prepare(problem, first)
    assert alive() > before
    del plan
    assert alive() == before


@pytest.mark.parametrize("strides", [(16, 4), (4, 16), (64, 4), (-16, 4), (16, -4), (0, 4), (2, 4), (4, 4), (17, 4)])
def test_what_fits_is_what_a_descriptor_can_be_made_of(engine: Engine, strides: tuple[int, int]) -> None:
    base = np.zeros(400, np.float32)
    array = np.lib.stride_tricks.as_strided(base[200:], (4, 4), strides)
    taken = fits(operand("a", array))
    assert taken == (strides in ((16, 4), (4, 16), (64, 4)))
    if taken:
        engine.desc((4, 4), base.dtype, tuple(s // 4 for s in strides))


def test_a_status_that_is_not_success_is_an_error_with_its_text(library: Any, engine: Engine) -> None:
    """An execution without arguments: oneDNN computes nothing and says so by a status."""
    problem = product(4)
    w = Writer(engine, problem, 1)
    desc = engine.desc((4, 4), np.dtype(np.float32), (4, 1))
    primitive = engine.primitive(engine.primitive_desc("matmul", desc, desc, None, desc, attr=engine.attributes()))
    w.b.keep.append(primitive)
    execute = library.traits.native.address("dnnl_primitive_execute")
    w.b.call(execute, [primitive.address, w.stream.address, 0, 0], returns=3, to=w.status)
    plan = w.plan(w.result((4, 4), np.dtype(np.float32), (4, 1)), release_gil=False)
    a = np.ones((4, 4), np.float32)
    for _ in range(2):
        with pytest.raises(LibraryFailed, match=r"oneDNN failed to run matmul f32 4x4 4x4\s+cause : status 2, invalid arguments"):
            plan(a, a)
    assert plan.failed


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("alone", [False, True])
def test_looking_finds_every_place(engine: Engine, threads: int, alone: bool) -> None:
    for size in (1, 17, 70_001):
        x = np.ones(size, np.float32)
        w = Writer(engine, Problem("look", (operand("a", x),), (), "matmul"), threads)
        w.look(w.argument("a"), size, alone=alone)
        plan = w.plan(w.argument("a"), release_gil=False, exact=lambda arrays, result: NOT_FINITE)
        assert plan(x) is x
        for place in {0, size // 2, size - 1}:
            for value in (np.nan, np.inf, -np.inf):
                x[place] = value
                assert plan(x) == NOT_FINITE
            x[place] = 1
        assert plan(x) is x


def test_numbers_of_the_interface() -> None:
    assert ctypes.sizeof(abi.ExecArg) == 16 and ctypes.sizeof(abi.Version) == 32
    assert abi.post_op_arg(1, abi.Arg.WEIGHTS) == 65536 | 33
    assert abi.status_text(77) == "status 77, not known"


def test_the_interpreter_ends_without_a_word() -> None:
    """Plans that are left are freed after the names of modules are gone."""
    code = """
import gc
import numpy as np, backline
from backline.engine import plan_caches
from backline.nn import functional
from backline.libraries.onednn import primitives as engine
x, w = np.ones((1, 3, 16, 16), np.float32), np.ones((4, 3, 3, 3), np.float32)
functional.conv2d(x, w, padding=1)
assert backline.explain().library == "onednn"
backline.mm(np.eye(3), np.eye(3))  # the last plan of a thread is kept
vars(engine).update(ctypes=None)  # as the interpreter leaves it when it ends
plan_caches.clear()
gc.collect()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# Several files ------------------------------------------------------------------------------------------------------------

SEVERAL = """
    import numpy as np, backline
    from backline import libraries
    library = libraries.get("onednn")
    report = library.report()
    a = np.ones((64, 64), np.float32)
    with backline.use("onednn"):
        assert (backline.mm(a, a) == 64).all()
    assert backline.backends.mkldnn.version() == library.version()
    print(report["path"], "|", report.get("older"), "|", report.get("passed over"), "|", *report["search"])
"""


def test_the_newest_of_several_is_taken_and_the_others_are_told(library: Any, tmp_path: Path) -> None:
    ours = library.report()["path"]
    for version, there in (("3.99", True), ("3.1", False)):
        folder = tmp_path / version
        folder.mkdir()
        (folder / f"libdnnl.so.{version}").write_bytes(Path(ours).read_bytes())
        (folder / "libdnnl.so.3").symlink_to(f"libdnnl.so.{version}")
        path, older, passed, told = run(SEVERAL, LD_LIBRARY_PATH=str(folder)).strip().split(" | ")
        assert path == (str(folder / "libdnnl.so.3") if there else ours)
        assert (ours if there else str(folder / "libdnnl.so.3")) in older.split(", ") and passed == "None"
        assert f"the newest of several: {path} (" in told and f"{folder / 'libdnnl.so.3'} ({version})" in told


def test_a_newer_one_that_cannot_be_used_is_passed_over(library: Any, build: Callable[..., Path], tmp_path: Path) -> None:
    path = build("libdnnl.so.3", FAKE.format(major=3, minor=98, runtime=4, create="return 5;"))
    (path.parent / "libdnnl.so.3.98").write_bytes(path.read_bytes())
    taken, older, passed, told = run(SEVERAL, LD_LIBRARY_PATH=str(path.parent)).strip().split(" | ")
    assert taken == library.report()["path"] and str(path) not in older
    assert "3.98.0 built on TBB" in passed and str(path) in told
    assert str(path) not in run("import backline; from backline import libraries; libraries.get('onednn').reason(); "
                                "print(open('/proc/self/maps').read())", LD_LIBRARY_PATH=str(path.parent))  # fmt: skip
