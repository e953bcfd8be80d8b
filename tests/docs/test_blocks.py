"""README.md and the pages of docs/: every block of Python runs as it stands, and the commands they name exist."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from doc_blocks import blocks, execute, stands_in

from backline.errors import BackendUnavailable
from support import clean, need, python

pytestmark = pytest.mark.usefixtures("clean")
assert clean
ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")])
LANGUAGES = {"python", "console", "toml", "sh", ""}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_pages_are_found() -> None:
    assert len(PAGES) > 12 and sum(block.language == "python" for page in PAGES for block in blocks(page)) >= 14


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_python_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    # There is no device here. The pages say nothing of CuPy's arrays that does not hold for NumPy's, but where they are computed.
    monkeypatch.setitem(sys.modules, "cupy", np)
    names: dict[str, object] = {"__name__": "__main__"}
    if page.name in ("architecture.md", "plugins.md"):  # what they add to the registries stays there
        apart(page, tmp_path / "site")
        return
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{page}:{block.line}: {block.language}"
        if block.language != "python":
            continue
        if block.excerpt:
            assert stands_in(block, ROOT / block.excerpt), f"{page}:{block.line} differs from {block.excerpt}"
        else:
            if "openblas" in block.text:
                need("openblas")
            with contextlib.suppress(*[BackendUnavailable] * block.device):
                execute(block, names)


def apart(page: Path, site: Path) -> None:
    """Run the blocks of a page in a process of their own, where the files that stand in the page are installed."""
    program = ""
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{page}:{block.line}: {block.language}"
        if block.file:
            path = site / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.excerpt:
            assert stands_in(block, ROOT / block.excerpt), f"{page}:{block.line} differs from {block.excerpt}"
        elif block.language == "python":
            program += block.text
    python(program, env={"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(site)])})


# The commands -----------------------------------------------------------------------------------------------------------

COMMAND = re.compile(r"(?:backline|python -m backline) (info|switches|explain|bench|tune|run|check)\b([^`\n]*)")


def commands() -> dict[str, set[str]]:
    """The options that the pages name, by command."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        for command, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
            own = re.split(r"\s\w+\.py\b", rest)[0]  # what follows a script is the script's
            found.setdefault(command, set()).update(re.findall(r"(?<![\w-])--[a-z][a-z-]+", own))
    return found


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "backline", *arguments],
        env=os.environ | {"COLUMNS": "200"}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", sorted(commands()))
def test_the_options_that_pages_name_exist(command: str) -> None:
    parts = [[command, each] for each in ("kernels", "errata", "determinism", "precision", "results")] if command == "check" else [[command]]
    said = "".join(run(*part, "--help") for part in parts)
    missing = [option for option in commands()[command] if not re.search(rf"{option}\b", said)]
    assert not missing


def test_the_problems_that_pages_explain_are_understood() -> None:
    texts = {text for page in PAGES for text in re.findall(r'backline explain "([^"]+)"', page.read_text(encoding="utf-8"))}
    assert texts
    for text in texts:
        assert run("explain", text).startswith("problem")


def test_a_console_block_of_the_launcher_runs_as_shown(tmp_path: Path) -> None:
    shutil.copy(os.devnull, tmp_path / "job.py")
    shown = [b.text.splitlines()[0] for b in blocks(ROOT / "docs/launcher.md") if b.language == "console"]
    assert any(line.startswith("$ backline run --ninstances 3 ") for line in shown)
    command = ["run", "--ninstances", "100000", "job.py"]
    done = subprocess.run([sys.executable, "-m", "backline", *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: --ninstances 100000: there ")
