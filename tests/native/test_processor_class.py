"""Classes of processors, and which of them is near which."""

from __future__ import annotations

import pytest

from backline.native.processor_class import ProcessorClass, class_of, nearest_first, this_class


@pytest.mark.parametrize(
    ("maker", "flags", "capability", "cores", "name"),
    [
        ("GenuineIntel", "avx2 fma avx512f amx_tile amx_bf16", "avx512", 2, "intel-amx-2c"),
        ("GenuineIntel", "avx2 fma avx512f amx_tile amx_bf16", "avx2", 2, "intel-avx2-2c"),  # capped
        ("GenuineIntel", "avx2 fma avx512f", "avx512", 56, "intel-avx512-32c"),
        ("AuthenticAMD", "avx2 fma avx512f", "avx512", 3, "amd-avx512-2c"),
        ("HygonGenuine", "avx2 fma", "avx2", 32, "amd-avx2-32c"),
        ("CentaurHauls", "sse4_2", "default", 4, "other-sse-4c"),
        ("Ampere", "fp asimd", "default", 80, "arm-neon-64c"),
        ("Arm", "fp asimd sve", "sve256", 300, "arm-sve-128c"),
        ("", "", "default", 0, "other-sse-1c"),
    ],
)
def test_a_processor_has_one_class(maker: str, flags: str, capability: str, cores: int, name: str) -> None:
    found = class_of(maker, flags.split(), capability, cores)
    assert str(found) == name and ProcessorClass.parse(name) == found


@pytest.mark.parametrize("name", ["", "intel", "intel-amx", "intel-mmx-2c", "intel-amx-2", "Intel-amx-2c", "../intel-amx-2c"])
def test_other_names_are_no_classes(name: str) -> None:
    assert ProcessorClass.parse(name) is None


def test_maker_counts_before_instructions_and_those_before_cores() -> None:
    names = ("amd-avx512-2c", "intel-amx-2c", "intel-avx512-64c", "intel-avx512-8c", "arm-neon-4c")
    known = [found for name in names if (found := ProcessorClass.parse(name))]
    order = [str(found) for found in nearest_first(ProcessorClass("intel", "avx512", 4), known)]
    assert order == ["intel-avx512-8c", "intel-avx512-64c", "intel-amx-2c", "amd-avx512-2c", "arm-neon-4c"]


def test_this_machine_has_a_class() -> None:
    found = this_class("avx2")
    assert found.instructions in ("avx2", "neon") and ProcessorClass.parse(str(found)) == found
