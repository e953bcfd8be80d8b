"""Draws docs/architecture.svg: the layers of the package, from pyproject.toml, with what each package says of itself.

    python docs/architecture_picture.py > docs/architecture.svg
"""

from __future__ import annotations

import ast
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "backline"
WIDTH, ROW, LEFT, CHARACTERS = 900, 34, 190, 96


def layers() -> list[list[str]]:
    """Returns the layers that the linter holds, top first; modules of a layer know nothing of each other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def sentence(name: str) -> str:
    """Returns the first sentence of a module's docstring."""
    file = PACKAGE / name / "__init__.py" if (PACKAGE / name).is_dir() else PACKAGE / f"{name}.py"
    text = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n\n")[0].replace("\n", " ")
    text = text.replace("`", "")
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 2].rsplit(" ", 1)[0] + " ..."


def picture() -> str:
    """Returns the SVG."""
    rows = [(index, name) for index, names in enumerate(layers()) for name in names if not name.startswith("_")]
    rows += [(rows[-1][0] + 1, "_core, _kernels")]
    lines, y, last = [], 10, -1
    for index, name in rows:
        if index != last:
            height = ROW * sum(i == index for i, _ in rows)
            shade = "#eef3f8" if index % 2 else "#ffffff"
            lines.append(f'<rect x="10" y="{y}" width="{WIDTH - 20}" height="{height}" fill="{shade}" stroke="#8aa0b4"/>')
            last = index
        compiled = "Compiled: what runs on every call, and numeric loops that no vendor library has."
        text = compiled if "," in name else sentence(name)
        lines.append(f'<text x="24" y="{y + 22}" font-weight="bold">{escape(name)}</text>')
        lines.append(f'<text x="{LEFT}" y="{y + 22}">{escape(text)}</text>')
        y += ROW
    style = 'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#1b2733"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 10}" {style}>'
    title = "<title>The layers of Backline: each imports only from layers below it</title>"
    return "\n".join([head, title, *lines, "</svg>", ""])


if __name__ == "__main__":
    print(picture(), end="")
