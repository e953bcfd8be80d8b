"""Determinism level "threads": every operation has it, with the same bits on any number of threads and in buffers elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from valid_calls import arguments, arrays_in, call, operations

import backline
from backline import backends
from backline.engine.run_hashes import hash_of
from backline.native.moved_memory import moved_copies
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

# Calls that draw anew each time, or return nothing that was computed.
DRAWN = ("manual_seed", "empty")


@pytest.mark.parametrize("name", [name for name in operations() if name not in DRAWN])
def test_every_operation_has_it(name: str) -> None:
    given, found = arguments(name), set[Any]()
    with backends.flags(deterministic=True, determinism_level="threads"):
        for number, threads in enumerate((1, 3)):
            with backline.num_threads(threads):
                found.add(hash_of(list(arrays_in(call(name, moved_copies(given, number))))))
    assert len(found) == 1
