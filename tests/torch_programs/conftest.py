"""Each test starts from untouched switches, and leaves none of its own. The tests may import ``torch_lines``, beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backline.switches import store

sys.path.insert(0, str(Path(__file__).parent))

# Pytest, looking for doctests, would import the rows under a second name: they would be declared twice.
collect_ignore_glob = ["rows_*.py"]


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    store._restart()
    yield
    store._restart()
