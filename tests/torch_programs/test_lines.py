"""The lines of `torch_lines`: none raises here that torch runs, and each reads what it reads in torch."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch_lines as lines

import backline
from backline.errors import UnknownName
from backline.libraries import presence
from backline.switches import store

# Expressions that read what is there on the machine, which no line has set; and one that reads a bool here and None in torch.
MACHINE = ("is_available()", "is_built()", "is_macos", "quantized.", "engines")
ALLOW_TF32 = "torch.backends.mkldnn.allow_tf32"
ROWS = lines.rows()


def run(torch: Any, statement: str, expression: str) -> Any:
    space: dict[str, Any] = {"torch": torch}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(statement, space)
        return eval(expression, space)


@pytest.fixture
def as_torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """So that ``from torch.backends import cudnn`` finds Backline."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", backline)
    for name in ("backends", "backends.cudnn", "backends.cuda", "nn", "nn.attention"):
        monkeypatch.setitem(sys.modules, f"torch.{name}", importlib.import_module(f"backline.{name}"))
    return backline


@pytest.mark.parametrize(("statement", "expression"), [row for row in ROWS if row[0] not in lines.DIFFERENT])
def test_a_line_runs(statement: str, expression: str, as_torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if "quantized.engine = '" in statement:
        from backline.libraries import quantized_engines

        monkeypatch.setattr(quantized_engines, "reason", lambda name: "")
    run(as_torch, statement, expression)


@pytest.mark.parametrize("statement", lines.DIFFERENT)
def test_a_line_is_refused_that_torch_runs(statement: str) -> None:
    with pytest.raises(UnknownName):
        run(backline, statement, "None")


def test_there_are_a_hundred_lines() -> None:
    assert len(ROWS) == len(set(ROWS)) >= 100
    assert {*lines.DIFFERENT} <= {statement for statement, _ in ROWS}


BESIDE = """
import json, os, sys, warnings
sys.path.insert(0, sys.argv[1])
import torch
import torch_lines as lines

def run(statement, expression):
    space = {"torch": torch}
    exec(statement, space)
    return eval(expression, space)

warnings.simplefilter("ignore")
found = []
for statement, expression in lines.rows():
    reading, writing = os.pipe()
    child = os.fork()  # each line from the state that torch starts in
    if not child:
        try:
            answer = repr(run(statement, expression))
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        found.append(stream.read().decode())
    os.waitpid(child, 0)
print(json.dumps(found))
"""


@pytest.mark.torch
def test_each_line_reads_what_it_reads_in_torch(as_torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch's build for the CPU has no cuDNN, whatever is installed here.
    monkeypatch.setattr(presence.presence("cudnn"), "_found", presence.Found("left out of this test", ()))
    done = subprocess.run([sys.executable, "-c", BESIDE, str(Path(__file__).parent)], capture_output=True, text=True, check=False)
    if "No module named 'torch'" in done.stderr:
        pytest.skip("PyTorch is not installed")
    assert done.returncode == 0, done.stderr
    different = {}
    for (statement, expression), theirs in zip(ROWS, json.loads(done.stdout), strict=True):
        if statement in lines.DIFFERENT or expression == ALLOW_TF32 or any(word in expression for word in MACHINE):
            continue
        store._restart()
        try:
            ours = repr(run(as_torch, statement, expression))
        except Exception as error:
            ours = f"{type(error).__name__}: {error}"
        if ours != theirs:
            different[f"{statement} => {expression}"] = (ours, theirs)
    assert not different
