"""PTX that a driver is too old for: what it is, which driver there is, and which one it takes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backline import switches
from backline.errors import LibraryFailed
from backline.libraries.attention_constraints import Facts
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.cuda.attention import packaged_kernels as packaged
from backline.libraries.cuda.attention.library import listed
from backline.libraries.cuda.common import ptx_versions
from backline.problems.op_registry import operations
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean


class Driver:
    """A driver that goes up to a CUDA version."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, release: str = "") -> None:
        there = type("Presence", (), {"facts": {"driver": number} if number else {}})()
        monkeypatch.setattr(ptx_versions, "presence", lambda name: there)
        monkeypatch.setattr(ptx_versions, "_release", lambda: release)


PTX = b"//\n// Generated\n//\n\n.version 8.7\n.target sm_80\n.address_size 64\n"


def test_the_tables_go_on_without_gaps() -> None:
    """NVIDIA's: every version of PTX is newer than the one before, and so are its CUDA and its driver."""
    cudas = [ptx_versions.CUDA_OF_PTX[each] for each in sorted(ptx_versions.CUDA_OF_PTX)]
    assert cudas == sorted(set(cudas))
    drivers = [tuple(map(int, ptx_versions.DRIVERS[each].split("."))) for each in sorted(ptx_versions.DRIVERS)]
    assert drivers == sorted(set(drivers))
    assert {ptx_versions.needed(each)[1] for each in ptx_versions.CUDA_OF_PTX} <= set(ptx_versions.DRIVERS.values())


def test_they_are_those_of_nvidias_own_package() -> None:
    utils = pytest.importorskip("cuda.bindings.utils")
    told = getattr(utils, "get_minimal_required_cuda_ver_from_ptx_ver", None)
    if told is None:
        pytest.skip("cuda-bindings that tell nothing of PTX")
    for (major, minor), cuda in ptx_versions.CUDA_OF_PTX.items():
        try:
            expected = told(f"{major}.{minor}")
        except ValueError:  # newer than the package
            continue
        assert expected == 1000 * cuda[0] + 10 * cuda[1]


@pytest.mark.parametrize(("ptx", "cuda", "driver"), [
    ((7, 0), (11, 0), "450.51.05"), ((8, 0), (12, 0), "525.60.13"), ((8, 6), (12, 7), "570.26"), ((8, 7), (12, 8), "570.26"),
    ((8, 8), (12, 9), "575.51.03"), ((9, 0), (13, 0), "580.65.06"), ((9, 2), (13, 2), "595.45.04"), ((9, 5), (13, 5), ""),
])  # fmt: skip
def test_what_a_version_takes(ptx: tuple[int, int], cuda: tuple[int, int], driver: str) -> None:
    assert ptx_versions.needed(ptx) == (cuda, driver)


@pytest.mark.parametrize(("number", "release", "ptx", "refused", "remedy"), [
    (12080, "570.26", (8, 7), "", ""), (13000, "", (8, 7), "", ""), (0, "", (8, 7), "", ""),
    (12040, "550.54.15", (8, 7), "PTX 8.7, of CUDA 12.8, and there is NVIDIA's driver 550.54.15, which goes up to CUDA 12.4", "NVIDIA's driver 570.26 or newer"),
    (12040, "", (8, 7), "there is a driver that goes up to CUDA 12.4", "NVIDIA's driver 570.26 or newer"),
    (12090, "", (9, 0), "PTX 9.0, of CUDA 13.0", "NVIDIA's driver 580.65.06 or newer"),
    (13000, "", (9, 5), "PTX 9.5, of CUDA 13.5", "a driver of NVIDIA's that goes up to CUDA 13.5"),
])  # fmt: skip
def test_a_driver_that_is_too_old_is_known_beforehand(
    monkeypatch: pytest.MonkeyPatch, number: int, release: str, ptx: tuple[int, int], refused: str, remedy: str
) -> None:
    Driver(monkeypatch, number, release)
    why, what = ptx_versions.driver_refuses_ptx(f".version {ptx[0]}.{ptx[1]}\n".encode())
    assert refused in why and bool(refused) == bool(why) and what == remedy


def test_the_error_names_version_driver_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(monkeypatch, 12040, "550.54.15")
    error = ptx_versions.refused("the kernel attention_forward", PTX, RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION"))
    assert isinstance(error, LibraryFailed)
    for part in ("attention_forward", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "PTX 8.7", "550.54.15", "CUDA 12.4", "570.26 or newer"):
        assert part in str(error)
    Driver(monkeypatch, 0)
    assert "does not tell its version" in str(ptx_versions.refused("it", PTX, RuntimeError("no")))
    assert "a newer driver" in str(ptx_versions.refused("it", b"nothing", RuntimeError("no")))


def test_the_release_is_read_from_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    lines = {
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n": "550.54.15",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.26  Release Build\n": "570.26", "something else\n": "",
    }  # fmt: skip
    for line, release in lines.items():
        path = tmp_path / "version"
        path.write_text(line)
        with monkeypatch.context() as patch:
            patch.setattr(ptx_versions, "open", lambda *_, path=path, **__: path.open(), raising=False)
            assert ptx_versions._release() == release


def test_the_packaged_kernels_say_what_they_are() -> None:
    kernels = packaged.read().kernels
    assert kernels
    versions = {ptx_versions.version_of(made.ptx) for _, made in kernels.values()}
    assert None not in versions and all(version >= (7, 0) for version in versions if version)


def test_packaged_kernels_are_refused_where_the_driver_is_too_old_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((1, 2, 64, 64), np.float16)
    problem = replace(operations["nn.functional.scaled_dot_product_attention"].build(x, x, x), device="cuda:0")
    for number, able in ((13020, True), (11000, False)):
        Driver(monkeypatch, number)
        found = listed(problem, Facts((9, 0)), switches.current(), "there is no Triton")
        flash = next(each for each in found if each.name == "flash")
        assert isinstance(flash, Algorithm) == able
        if isinstance(flash, Refusal):
            assert re.search(r"no Triton.*PTX \d\.\d, of CUDA \d+\.\d.*up to CUDA 11\.0: NVIDIA's driver [\d.]+ or newer", flash.reason)
