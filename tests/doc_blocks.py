"""Code in Markdown: which blocks a page has, and how one of Python is run.

The blocks of a page share their names, as in a session into which a reader pastes one after the other. A block that begins with
``>>>`` is run line by line; results that stand in it are compared. A comment before a block says more of it:

    <!-- an excerpt of FILE -->     its lines stand in that file, which other tests run; "..." stands for any lines
    <!-- needs a device -->         without one it may raise BackendUnavailable
    <!-- the file FILE -->          it is that file, which is there when the other blocks of the page are run
"""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Block", "blocks", "execute", "stands_in"]

EXCERPT = re.compile(r"<!-- an excerpt of (\S+) -->")
FILE = re.compile(r"<!-- the file (\S+) -->")
DEVICE = "<!-- needs a device -->"


@dataclass(frozen=True)
class Block:
    """A fenced block: the page, the line of its first line of code, its language, its text, and what a comment says of it."""

    page: Path
    line: int
    language: str
    text: str
    excerpt: str = ""
    device: bool = False
    file: str = ""


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if opened is None:
            opened = number + 1, line[3:].strip(), lines[number - 1] if number else ""
        else:
            start, language, before = opened
            excerpt, file = EXCERPT.match(before), FILE.match(before)
            text = "\n".join(lines[start:number]) + "\n"
            yield Block(
                page, start + 1, language, text, excerpt[1] if excerpt else "", before == DEVICE, file[1] if file else ""
            )  # fmt: skip
            opened = None
    assert opened is None, f"{page}: the block of line {opened and opened[0]} does not end"


def execute(block: Block, names: dict[str, Any]) -> None:
    """Run a block; a traceback shows the lines of the page."""
    if not block.text.startswith(">>>"):
        tree = ast.parse(block.text, str(block.page))
        ast.increment_lineno(tree, block.line - 1)
        exec(compile(tree, str(block.page), "exec"), names)
        return
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for example in doctest.DocTestParser().get_examples(block.text, str(block.page)):
        if not example.want:  # what it prints stands in the next block, as on the machine where the page was written
            tree = ast.parse(example.source, str(block.page))
            ast.increment_lineno(tree, block.line - 1 + example.lineno)
            exec(compile(tree, str(block.page), "exec"), names)
            continue
        code = compile(example.source, str(block.page), "eval")
        got = f"{eval(code, names)!r}\n"
        assert checker.check_output(example.want, got, flags), f"{block.page}:{block.line + example.lineno}: {got}"


def stands_in(block: Block, file: Path) -> bool:
    """True if the lines of an excerpt stand in a file, in this order."""
    rest = iter(file.read_text(encoding="utf-8").splitlines())
    return all(line in rest for line in block.text.splitlines() if line not in ("...", ""))
