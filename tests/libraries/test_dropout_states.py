"""The state of cuDNN's dropout: what is asked of cuDNN, and that everything is given back; with stand-ins for it and for CuPy."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from backline.errors import BackendUnavailable
from backline.libraries import presence
from backline.libraries.cuda.common import dropout_states

SIZE = 1234


class CuDNN:
    """Stands for the library: notes its calls, and fails where it is told to."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[str] = []
        self.failing = failing
        self.seeded: tuple[float, int, int, int] | None = None

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.calls.append(name)
            if name == self.failing:
                return 4
            if name in ("cudnnCreate", "cudnnCreateDropoutDescriptor"):
                args[0]._obj.value = 0x1000 + len(self.calls)
            elif name == "cudnnDropoutGetStatesSize":
                args[1]._obj.value = SIZE
            elif name == "cudnnSetDropoutDescriptor":
                _, _, p, address, size, seed = args
                assert isinstance(p, ctypes.c_float) and isinstance(size, ctypes.c_size_t)
                self.seeded = p.value, address.value, size.value, seed.value
            return 0

        return call


class Array:
    def __init__(self, size: int) -> None:
        self.size = size
        self.data = type("Memory", (), {"ptr": 0xABC00})


class CuPy:
    """Stands for CuPy."""

    def __init__(self) -> None:
        self.synchronised = 0
        self.cuda = self.runtime = self

    def empty(self, size: int, dtype: str) -> Array:
        assert dtype == "uint8"
        return Array(size)

    def deviceSynchronize(self) -> None:
        self.synchronised += 1


def install(monkeypatch: pytest.MonkeyPatch, library: CuDNN) -> CuPy:
    found = presence.Found("", (), "/fake/libcudnn.so.9", {"version": 91500})
    monkeypatch.setitem(presence._presences, "cudnn", presence.Presence(presence.registry.LibraryInfo("cudnn", "cuDNN"), lambda row: found))
    cupy = CuPy()
    monkeypatch.setattr(dropout_states, "_library", lambda path: library)
    monkeypatch.setattr(dropout_states, "_cupy", lambda p: cupy)
    return cupy


def test_the_states_are_seeded_on_the_device_and_everything_is_given_back(monkeypatch):
    library = CuDNN()
    cupy = install(monkeypatch, library)
    states = dropout_states.make(0.25, 2**40 + 7)
    assert isinstance(states, Array) and states.size == SIZE and cupy.synchronised == 1
    assert library.seeded == (0.25, 0xABC00, SIZE, 2**40 + 7)
    assert library.calls == [
        "cudnnCreate", "cudnnCreateDropoutDescriptor", "cudnnDropoutGetStatesSize", "cudnnSetDropoutDescriptor",
        "cudnnDestroyDropoutDescriptor", "cudnnDestroy",
    ]  # fmt: skip


@pytest.mark.parametrize("failing", ["cudnnCreate", "cudnnCreateDropoutDescriptor", "cudnnDropoutGetStatesSize", "cudnnSetDropoutDescriptor"])
def test_a_refusal_names_the_function_and_leaves_nothing_open(failing, monkeypatch):
    library = CuDNN(failing)
    install(monkeypatch, library)
    with pytest.raises(BackendUnavailable, match=f"{failing}: status 4"):
        dropout_states.make(0.5, 1)
    made = {name for name in ("cudnnCreate", "cudnnCreateDropoutDescriptor") if name in library.calls and name != failing}
    assert ("cudnnDestroy" in library.calls) == ("cudnnCreate" in made)
    assert ("cudnnDestroyDropoutDescriptor" in library.calls) == ("cudnnCreateDropoutDescriptor" in made)


def test_without_cudnn_or_cupy_it_says_what_is_missing(monkeypatch):
    import sys

    absent = presence.Found("it is not installed", ("here",), remedy="install it")
    monkeypatch.setitem(presence._presences, "cudnn", presence.Presence(presence.registry.LibraryInfo("cudnn", "cuDNN"), lambda row: absent))
    with pytest.raises(BackendUnavailable, match="needs cuDNN"):
        dropout_states.make(0.5, 1)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailable, match=r"needs CuPy(?s:.*)pip install"):
        dropout_states._cupy(0.5)
