"""Arrays of the other byte order: every operation converts them alike, and returns none of that order."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np
import pytest
from valid_calls import arguments, arrays_in, call, operations

from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean  # fixture: imported to be found by pytest
OTHER = "<" if sys.byteorder == "big" else ">"


def swapped(value: Any) -> Any:
    """The same numbers in the other byte order."""
    if isinstance(value, np.ndarray) and value.dtype.itemsize > 1:
        return value.astype(value.dtype.newbyteorder(OTHER))
    if type(value) in (tuple, list):
        return type(value)(swapped(part) for part in value)
    return value


def has_array(value: Any) -> bool:
    return any(a.dtype.itemsize > 1 for a in arrays_in(value))


def parts_of(result: Any) -> list[Any]:
    return [np.asarray(part) for part in arrays_in(result if isinstance(result, (tuple, list)) else [result])]


@pytest.mark.parametrize("name", [name for name in operations() if any(has_array(value) for value in arguments(name).values())])
def test_the_other_byte_order_is_converted_and_never_returned(name: str) -> None:
    given = arguments(name)
    names = [key for key, value in given.items() if has_array(value)]
    wanted = parts_of(call(name, copy.deepcopy(given)))
    for changed in [[key] for key in names] + [names]:
        other = copy.deepcopy(given) | {key: swapped(given[key]) for key in changed}
        got = parts_of(call(name, other))
        assert len(got) == len(wanted), changed
        for mine, right in zip(got, wanted, strict=True):
            assert mine.dtype.isnative and mine.dtype == right.dtype, changed
            np.testing.assert_allclose(mine, right, rtol=1e-12 if right.dtype.itemsize >= 8 else 1e-5, err_msg=str(changed))
