"""Lets the tests here import ``machines``; no variable that the launcher reads comes from outside."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

READ = (
    "CONDA_PREFIX", "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_PRELOAD", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MALLOC_CONF",
    "OMP_NUM_THREADS", "VIRTUAL_ENV",
)  # fmt: skip


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in READ:
        monkeypatch.delenv(name, raising=False)
