"""Every row of docs/differences.md holds: for Backline always, for torch where it is installed; and the page is what the rows say."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from differences import Row, page, rows

from support import clean

assert clean
ROWS = rows()
PAGE = Path(__file__).parents[2] / "docs" / "differences.md"


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_in_backline(row: Row) -> None:
    row.check()


@pytest.mark.torch
@pytest.mark.parametrize("row", [row for row in ROWS if row.in_torch], ids=lambda row: row.title)
def test_in_torch(row: Row) -> None:
    torch = pytest.importorskip("torch")
    for check in row.in_torch:
        assert _in_child(lambda check=check: check(torch)) == ""


def _in_child(function: Callable[[], Any]) -> str:
    """Returns what a function raises in a forked process: torch's switches are the process's, and the freeze is for good."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            function()
        except BaseException:
            text = traceback.format_exc()
        os.write(here, text.encode()[:60000])
        os._exit(0)
    os.close(here)
    with os.fdopen(there) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def test_the_page_is_made_of_the_rows() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/torch_programs/differences.py > docs/differences.md"


def test_each_row_says_all_there_is_to_say() -> None:
    assert len(ROWS) > 30
    for row in ROWS:
        assert all(len(text) >= 8 and text[-1] in ".)`" for text in (row.torch, row.backline, row.why, row.remedy)), row.title
