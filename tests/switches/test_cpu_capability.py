"""The word that a processor gets, from texts of several of them, and the words that can be a cap."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from backline.switches import cpu_capability
from backline.switches.switch import Switch

AVX512 = "avx avx2 fma avx512f avx512bw avx512dq avx512vl"
LADDER = {"default": ("default",), "avx2": ("default", "avx2"), "avx512": ("default", "avx2", "avx512"),
          "sve256": ("default", "sve256"), "vsx": ("default", "vsx"), "zvector": ("default", "zvector")}  # fmt: skip


@pytest.fixture(autouse=True)
def _look_again() -> Iterator[None]:
    cpu_capability.detected.cache_clear()
    yield
    cpu_capability.detected.cache_clear()


@pytest.mark.parametrize(
    ("flags", "architecture", "vector", "word"),
    [
        (AVX512, "x86_64", None, "avx512"),
        (AVX512, "AMD64", None, "avx512"),
        *((AVX512.replace(f" {part}", ""), "x86_64", None, "avx2") for part in ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
        ("avx avx2 fma avx512f", "x86_64", None, "avx2"),
        ("avx avx2", "x86_64", None, "default"),
        ("avx fma", "x86_64", None, "default"),
        ("asimd sve", "aarch64", 32, "sve256"),
        ("asimd sve", "aarch64", 16, "default"),
        ("asimd sve", "aarch64", 64, "default"),
        ("asimd sve", "aarch64", None, "default"),
        ("asimd", "arm64", 32, "default"),
        ("esan3 vx vxd", "s390x", None, "zvector"),
        ("esan3", "s390x", None, "default"),
        ("", "ppc64le", None, "vsx"),
        (AVX512, "riscv64", None, "default"),
    ],
)
def test_word_of_a_processor(flags: str, architecture: str, vector: int | None, word: str) -> None:
    assert cpu_capability.word_of(flags.split(), architecture, vector) == word


def test_a_cap_is_on_the_same_ladder_and_not_above() -> None:
    for limit, below in LADDER.items():
        assert [word for word in LADDER if cpu_capability.at_most(word, limit)] == list(below)
    assert not cpu_capability.at_most("nonsense", "avx2")
    assert not cpu_capability.at_most("avx2", "nonsense")


def machine(monkeypatch: pytest.MonkeyPatch, text: str | None, architecture: str, **facts: Any) -> None:
    def opened(path: str, *args: Any, **kwargs: Any) -> io.StringIO:
        assert path == "/proc/cpuinfo"
        if text is None:
            raise FileNotFoundError(path)
        return io.StringIO(text)

    monkeypatch.setattr(cpu_capability, "open", opened, raising=False)
    monkeypatch.setattr(cpu_capability, "_architecture", lambda: architecture)
    for name, value in facts.items():
        monkeypatch.setattr(cpu_capability, name, lambda value=value: value)


def test_the_first_processor_of_the_kernels_list_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, f"processor\t: 0\nflags\t\t: {AVX512}\n\nprocessor\t: 1\nflags\t\t: sse\n", "x86_64")
    assert cpu_capability.detected() == "avx512"
    assert cpu_capability.starting_capability() == ("avx512", "this processor")
    assert cpu_capability.legal_words() == ("default", "avx2", "avx512")


def test_arm_asks_for_the_length_of_its_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "processor\t: 0\nBogoMIPS\t: 50\nFeatures\t: fp asimd sve bf16\n"
    for length, word in ((32, "sve256"), (16, "default"), (None, "default")):
        cpu_capability.detected.cache_clear()
        machine(monkeypatch, text, "aarch64", _sve_bytes=length)
        assert cpu_capability.detected() == word


def test_ibm_z_lists_features_before_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "vendor_id       : IBM/S390\nfeatures\t: esan3 zarch vx vxd\nprocessor 0: version = FF\n", "s390x")
    assert cpu_capability.detected() == "zvector"


def test_power_needs_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "ppc64le")
    assert cpu_capability.detected() == "vsx"


def test_without_the_kernels_list_numpy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy._core._multiarray_umath as core

    names = ("AVX2", "FMA3", "AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL")
    machine(monkeypatch, None, "AMD64")
    monkeypatch.setattr(core, "__cpu_features__", dict.fromkeys(names, True))
    assert cpu_capability.detected() == "avx512"
    cpu_capability.detected.cache_clear()
    monkeypatch.setattr(core, "__cpu_features__", {**dict.fromkeys(names, True), "AVX512VL": False})
    assert cpu_capability.detected() == "avx2"
    cpu_capability.detected.cache_clear()
    monkeypatch.delattr(core, "__cpu_features__")
    assert cpu_capability.detected() == "default"


def test_the_length_of_vectors_is_the_kernels_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    class Libc:
        answer = 32 | 1 << 17  # inherited on exec: above the sixteen bits of the length

        def __init__(self, name: object) -> None:
            assert name is None

        def prctl(self, operation: int, *rest: int) -> int:
            assert (operation, rest) == (51, (0, 0, 0, 0))
            return self.answer

    monkeypatch.setattr(cpu_capability.sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", Libc)
    assert cpu_capability._sve_bytes() == 32
    monkeypatch.setattr(Libc, "answer", -1)
    assert cpu_capability._sve_bytes() is None
    monkeypatch.setattr(cpu_capability.sys, "platform", "darwin")
    assert cpu_capability._sve_bytes() is None


def test_legal_values_are_those_the_processor_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "flags : avx avx2 fma\n", "x86_64")
    switch = Switch("test.capability", str, cpu_capability.starting_capability, cpu_capability.UpToDetected(), doc="A test.")  # type: ignore[arg-type]  # a rule that is asked when it is needed
    assert switch.starting() == ("avx2", "this processor")
    assert [switch.check(word) for word in ("default", "avx2")] == ["default", "avx2"]
    for word in ("avx512", "sve256", "AVX2", ""):
        with pytest.raises(ValueError, match=r"'avx2', 'default'|'default', 'avx2'"):
            switch.check(word)
    assert "reaches 'avx2'" in switch.legal_text("avx512")
    assert cpu_capability.UpToDetected() == cpu_capability.UpToDetected() and cpu_capability.UpToDetected() != "x"
    assert hash(cpu_capability.UpToDetected()) == hash(cpu_capability.UpToDetected())


def test_this_machine() -> None:
    assert cpu_capability.detected() in cpu_capability.NAMES
    assert cpu_capability.legal_words()[0] == "default"
    assert cpu_capability.legal_words()[-1] == cpu_capability.detected()
