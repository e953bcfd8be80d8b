"""Handles: whose they are, and that stream and workspace stay set until another is wanted."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from backline.libraries.cuda.common.streams import Handles
from fakes.cupy_standin import CuPy
from fakes.insert import inserted


class Library:
    """A binding that writes its calls down."""

    def __init__(self) -> None:
        self.made, self.calls, self.refused = 0, [], False  # type: int, list[tuple[Any, ...]], bool

    def create(self) -> int:
        self.made += 1
        return self.made

    def set_stream(self, handle: int, stream: int) -> None:
        self.calls.append(("stream", handle, stream))

    def set_workspace(self, handle: int, address: int, nbytes: int) -> None:
        if self.refused:
            raise RuntimeError("NOT_SUPPORTED")
        self.calls.append(("workspace", handle, nbytes))

    def asked(self) -> list[tuple[Any, ...]]:
        found, self.calls = self.calls, []
        return found


@pytest.fixture
def cupy() -> Iterator[CuPy]:
    made = CuPy()
    with inserted(cupy=made):
        yield made


def test_stream_and_workspace_are_set_when_they_are_others(cupy: CuPy) -> None:
    handles, library, other = Handles(lambda module: module.create()), Library(), cupy.cuda.Stream()
    for _ in range(3):
        assert handles.ready(library, 0, 64) == 1
    assert library.asked() == [("stream", 1, 0), ("workspace", 1, 64)]
    handles.ready(library, 0, 128)
    assert library.asked() == [("stream", 1, 0), ("workspace", 1, 128)]
    with cupy.cuda.stream(other):
        handles.ready(library, 0, 128)
        handles.ready(library, 0, 128)
    handles.ready(library, 0, 128)
    assert library.asked() == [("stream", 1, other.ptr), ("workspace", 1, 128), ("stream", 1, 0), ("workspace", 1, 128)]


def test_wrappers_of_one_stream_of_another_package_are_one_stream(cupy: CuPy) -> None:
    handles, library = Handles(lambda module: module.create()), Library()
    for address in (0x77, 0x77, 0x88):
        foreign = cupy.cuda.Stream()
        foreign.ptr = address
        for stream in (cupy.cuda.ExternalStream(address), foreign):  # by the class of before CuPy 14, and by Stream.from_external
            with cupy.cuda.stream(stream):
                handles.ready(library, 0, 64)
    assert library.asked() == [("stream", 1, 0x77), ("workspace", 1, 64), ("stream", 1, 0x88), ("workspace", 1, 64)]


def test_what_failed_is_set_again(cupy: CuPy) -> None:
    handles, library = Handles(lambda module: module.create()), Library()
    handles.ready(library, 0, 64)
    library.refused = True
    with pytest.raises(RuntimeError, match="NOT_SUPPORTED"):
        handles.ready(library, 0, 128)
    library.refused, library.calls = False, []
    handles.ready(library, 0, 64)
    assert library.asked() == [("stream", 1, 0), ("workspace", 1, 64)]


def test_a_handle_with_its_own_stream(cupy: CuPy) -> None:
    handles, library, streams = Handles(lambda module: module.create()), Library(), [cupy.cuda.Stream() for _ in range(2)]
    for _ in range(2):
        for number, stream in enumerate(streams, 1):
            with cupy.cuda.stream(stream):
                assert handles.ready(library, 0, 64, own=True) == number
    assert [call for call in library.asked() if call[0] == "stream"] == [("stream", 1, streams[0].ptr), ("stream", 2, streams[1].ptr)]


def test_a_thread_leaves_its_handle_and_takes_its_workspace_along(cupy: CuPy) -> None:
    handles, library = Handles(lambda module: module.create()), Library()
    kept: list[Any] = []
    alloc = cupy.cuda.alloc

    def noted(nbytes: int) -> Any:
        memory = alloc(nbytes)
        kept.append(weakref.ref(memory))
        return memory

    cupy.cuda.alloc = noted  # type: ignore[method-assign]  # a double
    for _ in range(2):
        thread = threading.Thread(target=handles.ready, args=(library, 0, 64))
        thread.start()
        thread.join()
        gc.collect()
        assert kept[-1]() is None
    assert library.made == 1
    assert library.asked() == [("stream", 1, 0), ("workspace", 1, 64)] * 2, "the next thread's own stream and workspace"
