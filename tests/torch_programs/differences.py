"""The table of deliberate differences from torch, and docs/differences.md, which is made from it.

A difference is declared together with the function that proves it; `in_torch` adds one that proves what torch does, where torch is
installed. The rows are in ``rows_*.py`` beside this file. The page is written by ::

    python tests/torch_programs/differences.py > docs/differences.md
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

SECTIONS = {
    "State": "Switches, scopes and the freeze.",
    "Errors": "Values, names and types that are refused.",
    "Preferences": "Libraries, kernels and precisions that a program asks for.",
    "Names": "Names that are not there, or stand for something else.",
    "Operations": "Arguments and results of operations.",
    "Environment": "Variables, the launcher, the process.",
}


@dataclass
class Row:
    """A deliberate difference: what torch does, what Backline does, why, what to write instead, and the function that proves it."""

    section: str
    title: str
    torch: str
    backline: str
    why: str
    remedy: str
    check: Callable[[], None]
    in_torch: list[Callable[[Any], None]] = field(default_factory=list)


_rows: dict[str, Row] = {}


def difference(section: str, title: str, *, torch: str, backline: str, why: str, remedy: str) -> Callable[[Callable[[], None]], Row]:
    """Decorates the check of a row: a function that fails where Backline does not do what the row says."""

    def add(check: Callable[[], None]) -> Row:
        assert section in SECTIONS and title not in _rows, title
        _rows[title] = Row(section, title, torch, backline, why, remedy, check)
        return _rows[title]

    return add


def in_torch(row: Row) -> Callable[[Callable[[Any], None]], None]:
    """Decorates a function of torch that fails where torch does not do what the row says."""
    return row.in_torch.append


def rows() -> list[Row]:
    """Returns the rows of all files, section by section."""
    if str(FOLDER.parent) not in sys.path:
        sys.path.append(str(FOLDER.parent))  # `support`, where this is run as a program
    for file in sorted(FOLDER.glob("rows_*.py")):
        importlib.import_module(file.stem)
    return sorted(_rows.values(), key=lambda row: [*SECTIONS].index(row.section))


def page() -> str:
    """Returns docs/differences.md."""
    from refused_samples import table

    parts = [_HEAD]
    for section, what in SECTIONS.items():
        parts += [f"## {section}", what, "\n".join([_COLUMNS, *(_line(row) for row in rows() if row.section == section)])]
    parts += [_SAMPLES, table()]
    return "\n\n".join(parts) + "\n"


def _line(row: Row) -> str:
    title = row.title if row.title.startswith("oneDNN") else row.title[0].upper() + row.title[1:]
    cells = (f"**{title}.** {row.torch}", row.backline, row.why, row.remedy)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_COLUMNS = "| in torch | in Backline | why | instead |\n|---|---|---|---|"

_HEAD = """# Differences from torch

What Backline does otherwise than PyTorch 2.13 on purpose. Everything else that differs in `torch.backends`, or in an operation of the same
name, is a defect: please report it.

A program for torch becomes one for Backline by its import lines:

```python
import backline as torch                     # import torch
import backline.backends.cudnn as cudnn      # import torch.backends.cudnn as cudnn
from backline.nn.attention import sdpa_kernel

cudnn.benchmark = False                      # as it stands
torch.manual_seed(0)
```

Arrays are NumPy's (or CuPy's, MLX's) instead of tensors. More than two hundred lines and short programs that set or read `torch.backends`, as
public code writes them, are run on Backline by its tests and, by `make test-torch`, beside torch; each that is refused here, or gives another
value, names a row of this page. The page is written from the table that holds the check of each row:
`python tests/torch_programs/differences.py > docs/differences.md`."""

_SAMPLES = """## Samples of operators

`make test-torch` also runs the samples of arguments that PyTorch's own tests use (`torch.testing._internal`), in seven dtypes, by torch and by
Backline, and compares the results. `python tests/torch_programs/samples.py linalg.norm` prints the counts of an operation, and without a name
those of all. None may be wrong; what is refused, or has another dtype, is one of these:"""


if __name__ == "__main__":
    # Under its own name as well: the rows import it.
    print(importlib.import_module("differences").page(), end="")
