"""The examples in the docstrings of operations run. (Those of functions and classes run by pytest's own collection.)"""

from __future__ import annotations

import doctest

import numpy as np
import pytest

import backline
from backline import _core, linalg

OPERATIONS = {
    f"{place.__name__}.{name}": value
    for place in (backline, linalg)
    for name in place.__all__
    if isinstance(value := getattr(place, name), _core.Operation)
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_examples_of_an_operation(name):
    text = OPERATIONS[name].__doc__
    examples = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert len(examples.examples) >= 2, f"{name} has no example"
    with np.printoptions(legacy=False):
        failed = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples).failed
    assert failed == 0
