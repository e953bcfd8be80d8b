"""Wrong arguments of every public operation: a result, or an error of `backline.errors`, and nothing else."""

from __future__ import annotations

import resource
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from valid_calls import NO_OPERATIONS, arguments, call, operations, public_names

from backline.errors import BacklineError, LinAlgError
from support import clean

pytestmark = pytest.mark.usefixtures("clean", "little_memory")
assert clean  # fixture: imported to be found by pytest
ROOM = 6 << 30


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A few GB more than the process has: a size that was not checked shows as a MemoryError, however large the machine is."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def garbage() -> list[Any]:
    """Values that at least one parameter of every kind refuses."""
    return [
        None, True, False, 0, 1, -1, 3, 0.5, 1e300, float("nan"), float("inf"), 1j, 2**31 - 1, 2**31, 2**40, 2**63, -(2**63) - 1, 10**400,
        "", "no", "relu", b"no", [], (), {}, set(), [None], (None,), (0.5,), ("no",), [[]], (1, 2), (0, 0), (2**63, 1), (-1, -2, -3),
        (True, False), [[0], [0]], [[0.5], [None]], object(), object, len, lambda: None, iter(()), range(2), slice(None), Ellipsis,
        np.float64(0.5), np.int8(1), np.bool_(True), np.str_("no"), np.datetime64("now"), np.dtype(float), np.float32,
        np.zeros(()), np.zeros(0), np.zeros((0, 0)), np.ones(7), np.ones((2, 7)), np.ones((1,) * 8), np.full((3, 4), np.nan), np.ones((3, 4), int),
        np.ones((3, 4), bool), np.ones((3, 4), complex), np.ones((3, 4), np.float16), np.ones((3, 4), np.longdouble), np.ones((3, 4), ">f8"),
        np.array(["no"]), np.array([None]), np.zeros(2, [("a", int)]), np.zeros(2, "m8[s]"), np.ma.ones(3), memoryview(b"no"),
    ]  # fmt: skip


def wrong_calls(given: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """The call with one argument replaced, and with one part of an argument that is a list or tuple replaced."""
    for name, value in given.items():
        for wrong in garbage():
            if name.startswith("*"):
                yield f"{name} = ({wrong!r},)", wrong, given | {name: (wrong,)}
            else:
                yield f"{name} = {wrong!r}", wrong, given | {name: wrong}
            if isinstance(value, (tuple, list)):
                for i in range(len(value)):
                    parts = [wrong if i == j else part for j, part in enumerate(value)]
                    yield f"{name}[{i}] = {wrong!r}", wrong, given | {name: type(value)(parts)}


def test_every_public_operation_has_a_valid_call() -> None:
    assert not NO_OPERATIONS - set(public_names())
    for name in operations():
        call(name, arguments(name))


@pytest.mark.parametrize("name", operations())
def test_a_wrong_argument_raises_our_errors(name: str) -> None:
    found = []
    for text, _wrong, given in wrong_calls(arguments(name)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", "Implicit dimension choice", UserWarning)  # dim=None is legal, and warns as in torch
                call(name, given)
        except (BacklineError, LinAlgError) as error:
            if not str(error).strip():
                found.append(f"{text}: an error without a text")
        except Exception as error:  # whatever else is the fault that is looked for
            found.append(f"{text}: {type(error).__name__}: {str(error)[:150]}")
    assert not found, f"{len(found)} of {name}:\n" + "\n".join(found)
