"""Files in the working directory are not run, however the program was started: neither modules nor libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import backline
from broken_libraries import compiled, variable
from support import need

MODULES = (
    "backline/__init__.py", "backline/libraries/__init__.py", "numpy/__init__.py", "ctypes/__init__.py", "random.py", "json.py",
    "resource.py", "signal.py", "struct.py", "platformdirs.py", "sitecustomize.py", "usercustomize.py", "probe_program.py",
)  # fmt: skip

PROGRAM = """
import sys
sys.path[:0] = SOURCES_
import numpy as np
import backline
from backline import libraries
ones = np.ones((80, 80), np.float32)
for name in libraries.names():
    if libraries.info(name).devices == ("cpu",):
        libraries.get(name).available()
for backend in (backline.backends.mkldnn, backline.backends.cudnn, backline.backends.xnnpack, backline.backends.openmp):
    backend.is_available()
assert (backline.mm(ones, ones) == 80).all()
print([name for name in libraries.names() if libraries.get(name).available()])
"""


@pytest.fixture
def planted(tmp_path: Path) -> tuple[Path, Path]:
    """A folder with modules that leave a mark when they are run, and the mark."""
    folder, mark = tmp_path / "work", tmp_path / "mark"
    for name in MODULES:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"open({str(mark)!r}, 'a').write({name!r} + '\\n')\nraise ImportError('planted')\n")
    return folder, mark


def sources() -> list[str]:
    """Returns where this installation is, for a program that is started without site-packages of the tests' environment."""
    return [str(Path(backline.__file__).parents[1])]


def start(folder: Path, cache: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"XDG_CACHE_HOME": str(cache), **variables}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("way", ["-I", "-P", "script"])
def test_modules_in_the_working_directory(way: str, planted: tuple[Path, Path], tmp_path: Path) -> None:
    folder, mark = planted
    program = PROGRAM.replace("SOURCES_", repr(sources()))
    script = tmp_path / "program.py"  # elsewhere: its own folder is where a script imports from
    script.write_text(program)
    arguments = {"-I": ("-I", "-c", program), "-P": ("-P", "-c", program), "script": (str(script),)}[way]
    done = start(folder, tmp_path / "cache", *arguments)
    assert done.returncode == 0, done.stderr
    assert not mark.exists(), mark.read_text()
    assert "openblas" in done.stdout or not backline.libraries.get("openblas").available()


def test_a_verdict_of_the_working_directory_does_not_hold_elsewhere(planted: tuple[Path, Path], tmp_path: Path) -> None:
    """An answer of the child that planted modules prevented was kept, and the library was off in every program after it."""
    need("openblas")
    folder, mark = planted
    program = "import sys\nsys.path[:0] = " + repr(sources()) + "\nfrom backline import libraries\nprint(libraries.get('openblas').reason())"
    path = tmp_path / "libopenblas.so"
    shutil.copy(need("openblas").report()["path"], path)
    for place in (folder, tmp_path):
        done = start(place, tmp_path / "cache", "-I", "-c", program, BACKLINE_OPENBLAS_LIBRARY=str(path))
        assert done.returncode == 0 and not done.stdout.strip(), (done.stdout, done.stderr)
    assert not mark.exists(), mark.read_text()


@pytest.mark.parametrize("entry", [":", ":/nowhere", "lib", "./lib:/nowhere"])
def test_libraries_in_the_working_directory(entry: str, tmp_path: Path) -> None:
    """An empty or relative entry of LD_LIBRARY_PATH means the working directory to the system's loader; not to Backline."""
    mark = tmp_path / "mark"
    folder = tmp_path / "work" / "lib"
    folder.mkdir(parents=True)
    spoilt = compiled(folder, "openblas", f'fclose(fopen("{mark}", "a"));')
    for name in ("libgomp.so.1", "libomp.so.5", "libmkl_rt.so.2", "libblis.so.4", "libdnnl.so.3", "libXNNPACK.so.0", "libfftw3.so.3"):
        shutil.copy(spoilt, folder / name)
        shutil.copy(spoilt, folder.parent / name)
    # Libraries that need libgomp would have the loader look for it: it is in the process before them, as it always is.
    program = "import sys\nsys.path[:0] = " + repr(sources()) + """
from backline import libraries
from backline.native import thread_team as team
assert team.bind() in (True, False)
for name in ("openblas", "mkl", "blis", "onednn", "xnnpack", "fftw"):
    path = libraries.get(name).report().get("path")
    assert not path or "FOLDER/" not in path, path
"""
    done = start(folder.parent, tmp_path / "cache", "-I", "-c", program.replace('"FOLDER/"', repr(str(folder.parent))), LD_LIBRARY_PATH=entry)
    assert done.returncode == 0, done.stderr
    assert not mark.exists()


def test_variables_name_files_by_absolute_paths_only(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = compiled(tmp_path, "openblas", f'fclose(fopen("{mark}", "a"));')
    program = "import sys\nsys.path[:0] = " + repr(sources()) + "\nfrom backline import libraries\nprint(libraries.get('openblas').reason())"
    done = start(tmp_path, tmp_path / "cache", "-I", "-c", program, **{variable("openblas"): path.name})
    assert "is a relative path" in done.stdout and not mark.exists()
