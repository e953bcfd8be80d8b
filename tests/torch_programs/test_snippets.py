"""Lines of public code that use torch.backends run on Backline, and leave the switches as they do in torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from differences import rows

from snippets import Snippet, snippets

SNIPPETS = snippets()
RUNNER = Path(__file__).parent / "run_snippets.py"


def _run_by(library: str) -> dict[str, dict[str, Any]]:
    # Without cuDNN, as PyTorch's build for the CPU is, whatever is installed here.
    env = os.environ | {"BACKLINE_CUDNN_LIBRARY": os.devnull}
    done = subprocess.run([sys.executable, RUNNER, library], capture_output=True, text=True, timeout=220, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def by_backline() -> dict[str, dict[str, Any]]:
    return _run_by("backline")


@pytest.fixture(scope="module")
def by_torch() -> dict[str, dict[str, Any]]:
    pytest.importorskip("torch")
    return _run_by("torch")


def test_there_are_many() -> None:
    assert len({each.title for each in SNIPPETS}) == len(SNIPPETS) > 200


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda each: each.title)
def test_runs(snippet: Snippet, by_backline: dict[str, dict[str, Any]]) -> None:
    error = by_backline[snippet.title]["error"]
    if snippet.refused:
        assert error and "remedy" in error, f"docs/differences.md says that this is refused, with a remedy: {error}"
    elif not snippet.machine:
        assert error is None
    else:
        assert error is None or "remedy" in error


@pytest.mark.torch
@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda each: each.title)
def test_as_in_torch(snippet: Snippet, by_backline: dict[str, dict[str, Any]], by_torch: dict[str, dict[str, Any]]) -> None:
    ours, theirs = by_backline[snippet.title], by_torch[snippet.title]
    assert bool(theirs["error"]) == (snippet.torch == "raises"), theirs["error"]
    if not theirs["error"] and not snippet.refused and not (snippet.machine and ours["error"]):
        assert (ours["result"] == theirs["result"]) != bool(snippet.differs), f"{ours}, in torch {theirs}"


def test_every_deviation_is_documented() -> None:
    titles = {row.title for row in rows()}
    assert not {title for each in SNIPPETS for title in (each.refused, each.differs, each.machine) if title} - titles
