"""Each test starts from untouched switches, without configuration files and without variables of ours or of other programs.

The tests here may import ``names``, the table of names beside them, and ``support``, which several folders share.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backline import switches
from backline.switches import store
from backline.switches.scope_state import states

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

_OTHERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_VERBOSE", "ONEDNN_VERBOSE", "DNNL_VERBOSE", "CUBLAS_WORKSPACE_CONFIG",
           "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE")  # fmt: skip


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [*os.environ]:
        if name.startswith("BACKLINE_") or name in _OTHERS or any(name in each.variables for each in switches.all_switches().values()):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BACKLINE_CONFIG", "")
    (tmp_path / ".git").mkdir()  # the search for a project file stops here
    monkeypatch.chdir(tmp_path)
    store._restart()
    yield
    frame = states.get(None)
    leaked = frame.layers if frame is not None else ()
    for layer in reversed(leaked):
        layer[0].__exit__(None, None, None)
    store._restart()
    assert not leaked, f"the test left scopes open: {[layer[0] for layer in leaked]}"
