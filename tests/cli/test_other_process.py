"""``backline info --process``: libraries of another process, and of a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from backline.cli import app, other_process
from backline.errors import BackendUnavailable, BadValue
from processes import started

runner = CliRunner()
SCRIPT = "import sys, numpy\nnumpy.linalg.inv(numpy.eye(3))\nprint('mine', sys.argv[1:])\n"


def test_a_process_by_its_number() -> None:
    code = "import numpy, sys; print('ready', flush=True); sys.stdin.read()"
    with started([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        found = other_process.gather(str(child.pid))
        shown = runner.invoke(app, ["info", "--process", str(child.pid)])
    owners = {(library["family"], library["owner"]) for library in found["mapped"]}
    assert ("openblas", "numpy") in owners or not any(name == "openblas" for name, _ in owners)
    assert found["executable"] == os.path.realpath(sys.executable)
    assert shown.exit_code == 0 and f"process {child.pid}" in shown.output and "conflicts" in shown.output


def test_a_script_and_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "backline", "info", "--json", "--process", str(script), "--", "--deep", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    content = json.loads(done.stdout)
    assert content["what"] == str(script) and {"mapped", "conflicts"} <= content.keys()
    assert "mine ['--deep', '1']" in done.stderr


def test_a_script_that_fails_is_shown_with_its_status(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import numpy\nraise SystemExit(7)\n")
    assert other_process.gather(str(script))["what"] == f"{script} (ended with status 7)"
    script.write_text("import os\nos._exit(5)\n")
    with pytest.raises(other_process.ScriptEnded, match="status 5"):
        other_process.gather(str(script))


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable, match="cannot be read"):
        other_process.gather("4194304999")
    with pytest.raises(BadValue, match="no number of a process and no file"):
        other_process.gather("nowhere.py")
    assert runner.invoke(app, ["info", "stray"]).exit_code == 2
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(BackendUnavailable, match="darwin"):
        other_process.gather("1")


def test_another_process_shows_versions_packages_and_thread_scopes() -> None:
    code = "import numpy.linalg, sys; print('ready', flush=True); sys.stdin.read()"
    variables = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "3"}
    with started([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        found = other_process.gather(str(child.pid))
    for library in found["mapped"]:
        if library["family"] == "openblas" and library["owner"] == "numpy":
            assert library["release"] == np.__version__ and library["version"]
            if library["threading"] == "pthreads":
                assert (
                    library["threads"] == 1 and "OPENBLAS_NUM_THREADS=1" in library["scope"] and "this copy" in library["scope"]
                )
    assert not [c for c in found["conflicts"] if c["kind"] == "several pools that wait by spinning"]


def test_a_script_is_run_without_changing_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KMP_DUPLICATE_LIB_OK above all is the user's: to allow two OpenMP runtimes only hides that they clash."""
    monkeypatch.delenv("KMP_DUPLICATE_LIB_OK", raising=False)
    script = tmp_path / "shows.py"
    script.write_text("import json, os\nopen('variables.json', 'w').write(json.dumps(dict(os.environ)))\nimport numpy\n")
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    found = other_process.gather("shows.py")
    seen = json.loads((tmp_path / "variables.json").read_text())
    assert seen == before == dict(os.environ)
    assert not [c for c in found["conflicts"] if c["kind"] == "KMP_DUPLICATE_LIB_OK is set"]
    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "TRUE")
    (conflict,) = [c for c in other_process.gather("shows.py")["conflicts"] if c["kind"] == "KMP_DUPLICATE_LIB_OK is set"]
    assert conflict["remedy"]


def test_a_script_that_a_signal_ends_is_said_so(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text("import os\nos.kill(os.getpid(), 9)\n")
    with pytest.raises(other_process.ScriptEnded, match="ended by signal SIGKILL before its libraries were listed"):
        other_process.gather(str(script))
