"""Things that importing Backline does not do. The time it takes is in benchmarks/import_time.py; here only counts decide."""

from __future__ import annotations

import json

from support import python

PROGRAM = """
import json, os, sys, warnings
warnings.simplefilter("error")
import numpy, numpy.linalg
def state():
    maps = sorted({line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if ".so" in line and len(line.split(maxsplit=5)) > 5})
    return {"maps": maps, "tasks": len(os.listdir("/proc/self/task")), "env": dict(os.environ), "modules": sorted(sys.modules),
            "files": sorted(os.listdir("/proc/self/fd")), "cwd": os.getcwd(), "path": list(sys.path)}
before = state()
import backline
AFTER
after = state()
print(json.dumps([before, after]))
"""

HEAVY = ("torch", "jax", "cupy", "mlx", "scipy", "scipy_openblas32", "mkl", "sqlite3", "json", "tomllib", "pathlib", "subprocess",
         "importlib.metadata", "platformdirs", "typer", "rich", "asyncio", "multiprocessing", "concurrent.futures", "unittest",
         "sklearn", "opt_einsum", "logging", "urllib.request", "socket")  # fmt: skip


def states(after: str = "") -> tuple[dict[str, object], dict[str, object]]:
    program = (
        PROGRAM.replace("AFTER", after).replace("import json, os", "import os").replace("print(json", "import json; print(json")
    )
    before, now = json.loads(python(program).stdout.splitlines()[-1])
    return before, now


def test_import_loads_no_library_and_changes_nothing() -> None:
    before, after = states()
    new = set(after["maps"]) - set(before["maps"])  # type: ignore[call-overload]  # JSON of a child process
    strange = {
        path
        for path in new
        if "backline/_core" not in path and "/lib-dynload/" not in path and "libstdc++" not in path and "libgcc_s" not in path
    }
    assert not strange, strange
    for what in ("tasks", "env", "files", "cwd", "path"):
        assert before[what] == after[what], what


def test_import_brings_in_nothing_heavy() -> None:
    before, after = states()
    new = sorted(set(after["modules"]) - set(before["modules"]))  # type: ignore[call-overload]  # JSON of a child process
    roots = [m for m in new for heavy in HEAVY if m == heavy or m.startswith(heavy + ".")]
    assert not roots, roots
    foreign = [m for m in new if not m.startswith("backline")]
    assert len(foreign) <= 12, foreign
    assert len(new) <= 45, f"{len(new)} modules: {new}"


def test_asking_what_is_available_never_raises_and_is_quiet() -> None:
    done = python(
        """
import os
os.environ["PATH"] = ""
import backline
for name in ("mkl", "openblas", "blis", "numpy"):
    assert getattr(backline.backends, name).is_available() in (True, False)
""",
        env={"BACKLINE_MKL_LIBRARY": "/nonexistent/libmkl_rt.so", "BACKLINE_OPENBLAS_LIBRARY": "/etc/hostname"},
    )
    assert not done.stderr and not done.stdout


def test_switches_and_explanations_of_numpy_load_no_vendor_library() -> None:
    _, after = states('with backline.use("numpy", only=True): backline.mm(numpy.eye(3), numpy.eye(3)); backline.explain()')
    assert not [p for p in after["maps"] if "mkl" in p or "scipy_openblas32" in p or "blis" in p]  # type: ignore[attr-defined]  # JSON of a child process


def test_the_environment_is_as_before_after_every_library_was_loaded() -> None:
    before, after = states(
        'from backline import libraries\nfor name in libraries.names(): libraries.get(name).available()'
    )  # fmt: skip
    assert before["env"] == after["env"]


def test_libraries_are_not_taken_from_the_working_directory() -> None:
    python(
        """
import os, tempfile
folder = tempfile.mkdtemp()
for name in ("libmkl_rt.so.3", "libopenblas.so.0", "libblis.so.4"):
    open(os.path.join(folder, name), "w").write("not a library")
os.chdir(folder)
from backline import libraries
for name in libraries.names():
    path = libraries.get(name).report().get("path")
    assert not path or not str(path).startswith(folder), path
"""
    )
