"""The GPUs, told by a stand-in for the driver that is compiled for the test, and by a stand-in for CuPy."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import backline
from backline.libraries import devices, presence
from backline.libraries.probing.probe_process import ask

Build = Callable[..., Path]

DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 3; return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "?"; return 0; }
int cuDeviceGet(int *device, int index) { *device = 10 + index; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
    static const int known[3][2] = {{9, 0}, {8, 6}, {12, 1}};
    if (device == 11) return 999;
    *value = known[device - 10][which - 75];
    return 0;
}
"""


@pytest.fixture
def driver(build: Build, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = build("libcuda.so.1", DRIVER)
    found = presence.Found("", (), str(path), {"devices": 3, "driver": 13000})
    monkeypatch.setitem(presence._presences, "cuda", presence.Presence(presence.registry.LibraryInfo("cuda", "the CUDA driver"), lambda row: found))
    return path


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = presence.Found("none", ())
    monkeypatch.setitem(presence._presences, "cuda", presence.Presence(presence.registry.LibraryInfo("cuda", "the CUDA driver"), lambda row: absent))


def use_cupy(monkeypatch: pytest.MonkeyPatch, current: int = 0, name: object = b"gfx942:sramecc+:xnack-", hip: bool = False) -> None:
    runtime = types.SimpleNamespace(getDevice=lambda: current, is_hip=hip, getDeviceProperties=lambda index: {"gcnArchName": name})
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(runtime=runtime)  # type: ignore[attr-defined]  # a module of the test's own
    monkeypatch.setitem(sys.modules, "cupy", cupy)


def test_the_driver_tells_the_capability_of_every_device(driver):
    assert ask("cuda.capabilities", str(driver))[0] == {"reason": "", "capabilities": [[9, 0], None, [12, 1]]}
    assert devices.count() == 3
    assert [devices.capability(index) for index in (0, 1, 2, 3, -1)] == [(9, 0), None, (12, 1), None, None]


def test_it_is_asked_in_another_process(driver):
    assert devices.capability(0) == (9, 0)
    if os.path.exists("/proc/self/maps"):
        assert str(driver) not in Path("/proc/self/maps").read_text()


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_there_is_no_device(monkeypatch):
    assert (devices.count(), devices.current(), devices.capability(0)) == (0, 0, None)
    use_cupy(monkeypatch, current=3)
    assert devices.current() == 0


@pytest.mark.usefixtures("driver")
def test_the_current_device_is_cupys(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert devices.current() == 0
    use_cupy(monkeypatch, current=2)
    assert devices.current() == 2


@pytest.mark.parametrize(("name", "hip", "wanted"), [(b"gfx942:sramecc+", True, "gfx942"), ("gfx1100", True, "gfx1100"), (b"", True, ""), (b"gfx942", False, "")])
def test_amds_devices_have_an_architecture(name, hip, wanted, monkeypatch):
    use_cupy(monkeypatch, name=name, hip=hip)
    assert devices.amd_architecture(0) == wanted


def test_asking_imports_no_array_package():
    code = "import sys; from backline.libraries import devices as d; d.count(), d.current(), d.capability(0), d.amd_architecture(0); assert 'cupy' not in sys.modules"
    environment = os.environ | {"PYTHONPATH": str(Path(backline.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
