"""The documentation of every function has each of its parameters, and no other: texts are generated for whole families."""

from __future__ import annotations

import inspect

import pytest

from backline import fft, quantized
from backline.nn import functional, grad

FUNCTIONS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (fft, functional, grad, quantized)
    for name in module.__all__
    if not inspect.isclass(getattr(module, name))
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_documentation_has_every_parameter(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name])
    assert text and "{" not in text
    section = text.split("Parameters\n----------\n")[1].split("\n\n")[0]
    documented = [word.strip() for line in section.splitlines() if not line.startswith(" ") for word in line.split(",")]
    assert sorted(documented) == sorted(inspect.signature(FUNCTIONS[name]).parameters)
    assert max(map(len, text.splitlines())) <= 130
