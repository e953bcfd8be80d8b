"""Texts shared by docstrings: every one is shared, and help() shows none by its name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import backline
from backline.ops.doc_fragments import FRAGMENTS, filled

SOURCES = [path.read_text(encoding="utf-8") for path in Path(inspect.getfile(backline)).parent.rglob("*.py")]


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_fragment_is_shared(name: str) -> None:
    assert sum(source.count(f"{{{name}}}") for source in SOURCES) > 1


def test_help_shows_the_whole_text() -> None:
    for module in ("linalg", "fft", "nn", "nn.functional", "nn.grad", "quantized", "sparse"):
        found = __import__(f"backline.{module}", fromlist=["*"])
        for name in found.__all__:
            marker = re.search(r"\{[a-z][a-z0-9_]*\}", getattr(found, name).__doc__ or "")
            assert marker is None, (module, name, marker)
    assert "Array for the result." in (backline.linalg.vecdot.__doc__ or "")


def test_a_name_without_a_text_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing_of_the_kind"):
        filled("Sum.\n\n    {nothing_of_the_kind}\n")
