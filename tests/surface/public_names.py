"""Public names with their parameters, as text: what a change of the package's insides must leave as it is.

    python tests/surface/public_names.py > tests/surface/data/public_names.txt

One line a name: the functions and classes of every public module, the switches, the environment variables. A line that goes away or
changes is a change that users see; tests/surface/test_public_names.py holds the file.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

MODULES = (
    "backline", "backline.backends", "backline.cuda", "backline.errors", "backline.fft", "backline.interop", "backline.linalg", "backline.nn",
    "backline.nn.attention", "backline.nn.functional", "backline.nn.grad", "backline.numpy.fft", "backline.numpy.linalg", "backline.quantized", "backline.sparse", "backline.utils",
    "backline.utils.deterministic", "backline.libraries",
)  # fmt: skip


def lines() -> list[str]:
    """Returns the lines of the file."""
    from backline import switches

    found: list[str] = []
    for name in MODULES:
        module = importlib.import_module(name)
        found += [_line(f"{name}.{each}", getattr(module, each)) for each in sorted(set(module.__all__))]
    backends = importlib.import_module("backline.backends")
    for name in sorted(set(backends.__all__)):
        module = getattr(backends, name)
        if isinstance(module, ModuleType):
            names = sorted(each for each in dir(module) if not each.startswith("_"))
            found += [_line(f"backline.backends.{name}.{each}", getattr(module, each)) for each in names]
    for name, switch in switches.declared().items():
        found.append(f"switch {name} {switch.env}")
    return found


def _line(name: str, value: Any) -> str:
    if isinstance(value, ModuleType):
        return f"{name} module"
    if not callable(value):
        return f"{name} value"
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return f"{name} callable"
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    spelled = [stars.get(p.kind, "") + p.name + "=" * (p.default is not p.empty) for p in parameters]
    return f"{name}({', '.join(spelled)})"


if __name__ == "__main__":
    print("\n".join(lines()))
