"""Each test starts from untouched switches, without configuration files and without variables of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backline.switches import store
from backline.switches.scope_state import states


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [*os.environ]:
        if name.startswith("BACKLINE_") or name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
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
