"""Lines and short programs that set or read torch.backends, as public code writes them, each in a minimal form of its own.

The files beside this one hold them: ``== title``, the lines, and what is expected where it is not torch's result:
``| refused: row`` or ``| differs: row`` name a row of docs/differences.md, ``| torch: raises`` is one that torch
refuses, ``| machine: row`` one that is refused on some machines. A snippet may leave a value in ``result``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Snippet:
    """A short program for torch; ``refused``, ``differs`` and ``machine`` name the row that explains a deviation."""

    title: str
    code: str
    refused: str = ""
    differs: str = ""
    torch: str = ""
    machine: str = ""

    def for_backline(self) -> str:
        """Returns the program with Backline in the place of torch: its import lines and the names that mocks give as text differ."""
        lines = [_import(line) for line in self.code.splitlines()]
        return "import backline as torch\n" + re.sub(r"([\"'])torch\.", r"\1backline.", "\n".join(lines))

    def for_torch(self) -> str:
        """Returns the program as it is written for torch."""
        return "import torch\n" + self.code


def _import(line: str) -> str:
    # "import torch.backends.cudnn" binds the name torch, "import backline.backends.cudnn" does not: the line above them all does.
    return re.sub(r"^(\s*)(import|from) torch\b", r"\1\2 backline", line)


def snippets() -> list[Snippet]:
    """Returns the snippets of all files."""
    return [each for file in sorted(FOLDER.glob("*.txt")) for each in _parsed(file)]


def _parsed(file: Path) -> list[Snippet]:
    found = []
    for part in file.read_text(encoding="utf-8").split("\n== ")[1:]:
        title, body = part.split("\n", 1)
        lines = body.strip("\n").splitlines()
        notes = dict(line[2:].split(": ", 1) for line in lines if line.startswith("| "))
        code = "\n".join(line for line in lines if not line.startswith("| "))
        found.append(Snippet(f"{file.stem}: {title}", code, **notes))
    return found
