"""The cap on vector instructions: what it is, that it really holds in libraries, and what is said where it does not."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backline import libraries, switches
from backline.errors import BadValue
from backline.libraries import capability
from backline.native.process_map import MappedFile
from backline.switches import cpu_capability as words


@pytest.fixture(autouse=True)
def _own_records(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(capability, "_held", {})
    for name in ("MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "OPENBLAS_CORETYPE"):
        monkeypatch.delenv(name, raising=False)
    yield


@pytest.fixture
def avx512(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if this processor had AVX-512, and no cap were set."""
    monkeypatch.setattr(words, "detected", lambda: "avx512")
    with capped("avx512"):
        yield


def capped(word: str) -> Any:
    return switches.scope({"cpu.capability": word})


class Native:
    """Stands for an opened library: functions with answers, and the calls made to them."""

    path = "/opt/mkl/lib/libmkl_rt.so.3"

    def __init__(self, **answers: int) -> None:
        self.answers, self.calls = answers, list[tuple[str, int]]()
        self.names = ["", *answers]

    def address(self, name: str) -> int:
        return self.names.index(name) if name in self.names else 0

    def call(self, address: int, *args: Any, restype: Any = None) -> int:
        name = self.names[address]
        self.calls.append((name, *(arg.value for arg in args)))
        return self.answers[name]


# --- what the cap is


def test_words_and_names() -> None:
    assert capability.detected() == words.NAMES[words.detected()]
    assert capability.effective() == capability.detected()
    assert capability.reachables() == words.legal_words()
    assert all(map(capability.reachable, capability.reachables()))
    assert not capability.reachable("AVX2") and not capability.reachable("nonsense")


@pytest.mark.usefixtures("avx512")
def test_the_switch_caps_it_within_a_scope() -> None:
    with capped("avx2"):
        assert capability.effective() == "AVX2"
        assert [capability.allows(isa) for isa in ("", "default", "avx2", "avx512", "sve256")] == [True, True, True, False, False]
        with capped("default"):
            assert capability.effective() == "DEFAULT"
            assert capability.allows("default") and not capability.allows("avx2")
    with capped("avx512"):
        assert capability.allows("avx512")


def test_a_word_that_the_processor_does_not_reach_caps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "detected", lambda: "avx2")
    monkeypatch.setattr(switches, "get", lambda name: "avx512")
    assert capability.effective() == "AVX2"
    assert not capability.allows("avx512")


def test_a_strange_instruction_set_is_refused() -> None:
    with pytest.raises(BadValue, match="'avx3' is no instruction set"):
        capability.allows("avx3")


# --- MKL


def mkl(branch: int) -> Native:
    return Native(MKL_Enable_Instructions=1, MKL_CBWR_Get_Auto_Branch=branch)


@pytest.mark.usefixtures("avx512")
@pytest.mark.parametrize(("cap", "code", "branch", "name"), [("avx2", 2, 10, "AVX2"), ("default", 0, 8, "DEFAULT")])
def test_mkl_is_told(cap: str, code: int, branch: int, name: str) -> None:
    native = mkl(branch)
    with capped(cap):
        assert capability.cap_mkl(native) == f"{name} at most"  # type: ignore[arg-type]  # a stand-in for a library
        assert capability.too_late("mkl") == ""
    assert native.calls == [("MKL_Enable_Instructions", code), ("MKL_CBWR_Get_Auto_Branch",)]


@pytest.mark.usefixtures("avx512")
def test_mkl_without_a_cap_is_left_alone_and_a_later_one_is_too_late() -> None:
    native = mkl(14)
    assert capability.cap_mkl(native) == ""  # type: ignore[arg-type]  # a stand-in for a library
    assert native.calls == []
    assert capability.too_late("mkl") == ""
    with capped("avx2"):
        said = capability.too_late("mkl")
    assert said.startswith("may use AVX512, above the cap AVX2: it was loaded before the cap was set")
    assert "BACKLINE_CPU_CAPABILITY=avx2" in said
    assert capability.too_late("mkl") == ""


@pytest.mark.usefixtures("avx512")
def test_mkl_that_ignores_the_cap_is_found_out() -> None:
    """It answers that it took the cap, and reports the branch it takes: the branch counts."""
    with capped("avx2"):
        assert capability.cap_mkl(mkl(2)).startswith("not capped: on processors of other makers")  # type: ignore[arg-type]  # a stand-in for a library
        assert "other makers" in capability.too_late("mkl")
        assert capability.cap_mkl(mkl(12)) == ""  # type: ignore[arg-type]  # a stand-in for a library
        assert "loaded before" in capability.too_late("mkl")
        assert "no function" in capability.cap_mkl(Native())  # type: ignore[arg-type]  # a stand-in for a library


@pytest.mark.usefixtures("avx512")
def test_mkl_in_use_already(monkeypatch: pytest.MonkeyPatch) -> None:
    native = mkl(10)
    files = [MappedFile(f"/opt/mkl/lib/{name}", "fe:00", 1, 0, 1) for name in ("libmkl_rt.so.3", "libmkl_vml_avx512.so.3")]
    monkeypatch.setattr(capability, "mapped_files", lambda: files)
    with capped("avx2"):
        assert capability.cap_mkl(native) == "AVX2 at most"  # type: ignore[arg-type]  # a stand-in for a library
        files.append(MappedFile("/other/libmkl_avx512.so.3", "fe:00", 1, 0, 1))  # another copy of MKL
        assert capability.cap_mkl(native) == "AVX2 at most"  # type: ignore[arg-type]  # a stand-in for a library
        files.append(MappedFile("/opt/mkl/lib/libmkl_avx512.so.3", "fe:00", 1, 0, 1))
        native.calls.clear()
        assert "in use before" in capability.cap_mkl(native)  # type: ignore[arg-type]  # a stand-in for a library
        assert "in use before" in capability.too_late("mkl")
    assert native.calls == []


@pytest.mark.usefixtures("avx512")
@pytest.mark.parametrize(
    ("value", "told"),
    [("SSE4_2", False), ("AVX", False), ("avx2", False), ("AVX2_E1", False), ("AVX512", True), ("AVX512_E1", True), ("x", True), ("", True)],
)  # fmt: skip
def test_mkl_keeps_to_a_lower_variable_of_the_users(value: str, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call would raise what the user has lowered."""
    monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", value)
    native = mkl(10)
    with capped("avx2"):
        capability.cap_mkl(native)  # type: ignore[arg-type]  # a stand-in for a library
    assert (("MKL_Enable_Instructions", 2) in native.calls) == told


# --- oneDNN


@pytest.mark.usefixtures("avx512")
@pytest.mark.parametrize(("cap", "mask"), [("avx2", 7), ("default", 1)])
def test_onednn_is_told(cap: str, mask: int) -> None:
    native = Native(dnnl_set_max_cpu_isa=0)
    with capped(cap):
        assert capability.cap_onednn(native).endswith("at most")  # type: ignore[arg-type]  # a stand-in for a library
        assert capability.too_late("onednn") == ""
    assert native.calls == [("dnnl_set_max_cpu_isa", mask)]
    native.calls.clear()
    assert capability.cap_onednn(native) == ""  # type: ignore[arg-type]  # a stand-in for a library
    assert native.calls == []


@pytest.mark.usefixtures("avx512")
@pytest.mark.parametrize(("status", "why"), [(2, "in use before"), (3, "built without caps"), (1, "status 1")])
def test_onednn_refuses(status: int, why: str) -> None:
    with capped("avx2"):
        assert why in capability.cap_onednn(Native(dnnl_set_max_cpu_isa=status))  # type: ignore[arg-type]  # a stand-in for a library
        assert why in capability.too_late("onednn")
        assert "no function" in capability.cap_onednn(Native())  # type: ignore[arg-type]  # a stand-in for a library


@pytest.mark.usefixtures("avx512")
@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_onednn_keeps_to_a_lower_variable_of_the_users(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native = Native(dnnl_set_max_cpu_isa=0)
    monkeypatch.setenv(variable, "SSE41")
    with capped("avx2"):
        assert capability.cap_onednn(native) == "AVX2 at most"  # type: ignore[arg-type]  # a stand-in for a library
    assert native.calls == []


def test_onednn_on_arm_has_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "detected", lambda: "sve256")
    native = Native(dnnl_set_max_cpu_isa=0)
    with capped("default"):
        assert "no function" in capability.cap_onednn(native)  # type: ignore[arg-type]  # a stand-in for a library
    assert native.calls == []


# --- OpenBLAS


def in_c(name: str) -> str | None:
    """Returns what the C library sees, which os.environ need not show."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_char_p, (ctypes.c_char_p,)
    found: bytes | None = getenv(name.encode())
    return None if found is None else found.decode()


@pytest.mark.parametrize(
    ("has", "cap", "core"),
    [("avx512", "avx2", "Haswell"), ("avx512", "default", "Nehalem"), ("avx2", "default", "Nehalem"), ("sve256", "default", "ARMV8"),
     ("zvector", "default", "ZARCH_GENERIC"), ("vsx", "default", None), ("avx512", "avx512", None)],
)  # fmt: skip
@pytest.mark.parametrize("before", [None, ""])
def test_the_variable_is_there_only_while_openblas_loads(
    has: str, cap: str, core: str | None, before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "detected", lambda: has)
    if before is not None:
        monkeypatch.setenv("OPENBLAS_CORETYPE", before)
    with capped(cap):
        with capability.cap_openblas():
            assert in_c("OPENBLAS_CORETYPE") == (core or before)
        assert in_c("OPENBLAS_CORETYPE") == os.environ.get("OPENBLAS_CORETYPE") == before
        with pytest.raises(OSError, match="broken"), capability.cap_openblas():
            raise OSError("broken file")
        assert in_c("OPENBLAS_CORETYPE") == os.environ.get("OPENBLAS_CORETYPE") == before


@pytest.mark.usefixtures("avx512")
def test_the_users_variable_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "SkylakeX")
    with capped("avx2"):
        with capability.cap_openblas():
            assert os.environ["OPENBLAS_CORETYPE"] == "SkylakeX"
        assert capability.loaded_openblas("SkylakeX") == "not capped: OPENBLAS_CORETYPE=SkylakeX is set"
        assert "OPENBLAS_CORETYPE=SkylakeX is set" in capability.too_late("openblas")
        assert capability.loaded_openblas("Zen") == "AVX2 at most"
        assert capability.too_late("openblas") == ""


@pytest.mark.usefixtures("avx512")
def test_the_kernels_that_openblas_took_count() -> None:
    with capped("default"):
        for core, held in (("Nehalem", True), ("Sandybridge", True), ("Haswell", False), ("SkylakeX", False), ("Newest", False)):
            said = capability.loaded_openblas(core)
            assert said == ("DEFAULT at most" if held else f"not capped: it was loaded before, or has no other kernels than {core}")
            assert (capability.too_late("openblas") == "") == held


@pytest.mark.usefixtures("avx512")
def test_libraries_that_are_not_loaded_are_not_late() -> None:
    with capped("default"):
        assert [capability.too_late(name) for name in ("mkl", "openblas", "onednn", "fftw")] == [""] * 4


@pytest.mark.usefixtures("avx512")
def test_numpys_own_openblas(monkeypatch: pytest.MonkeyPatch) -> None:
    for core, words_of in (("SkylakeX", ("AVX512", "SkylakeX kernels", "OPENBLAS_CORETYPE=Haswell")), ("", ("as it was imported",))):
        monkeypatch.setattr(capability, "_numpys_core", lambda core=core: core)
        with capped("avx2"):
            said = capability.too_late("numpy")
        assert all(word in said for word in words_of)
        assert capability.too_late("numpy") == ""
    monkeypatch.setattr(capability, "_numpys_core", lambda: "Haswell")
    with capped("avx2"):
        assert capability.too_late("numpy") == ""


# --- real libraries, each in a process of its own


def run(program: str, **variables: str) -> dict[str, Any]:
    """Run a program that ends with an answer in JSON, in an environment that caps nothing itself."""
    source = str(Path(capability.__file__).parents[2])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS_CORE", "MKL_", "ONEDNN_", "BACKLINE_CPU", "ATEN_"))}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**clean, "PYTHONPATH": source, **variables},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


OPENBLAS = """
import json, os
from backline import libraries
from backline.libraries import capability
library = libraries.get("openblas")
assert library.available(), library.reason()
print(json.dumps({"core": library.facts["core"], "said": library.facts.get("instructions", ""), "effective": capability.effective(),
                  "late": capability.too_late("openblas"), "numpy": capability.too_late("numpy"),
                  "numpys": capability._numpys_core(), "left": os.environ.get("OPENBLAS_CORETYPE")}))
"""

MKL = """
import json, re
from backline import libraries
from backline.libraries import capability; from backline.native import process_map as maps
library = libraries.get("mkl")
assert library.available(), library.reason()  # it has computed something by now
names = [re.match(r"libmkl_(def|mc3|avx[0-9]+)\\.", file.name) for file in maps.mapped_files()]
print(json.dumps({"kernels": [name[1] for name in names if name], "said": library.facts.get("instructions", ""),
                  "layer": library.facts["threading layer"], "late": capability.too_late("mkl")}))
"""


def test_openblas_really_takes_lower_kernels() -> None:
    free = run(OPENBLAS)
    assert (free["said"], free["late"], free["numpy"]) == ("", "", "")
    for word in [word for word in words.legal_words() if (words.detected(), word) in capability._OPENBLAS_CORES]:
        answer = run(OPENBLAS, BACKLINE_CPU_CAPABILITY=word)
        assert answer["effective"] == words.NAMES[word]
        assert answer["core"].lower() == capability._OPENBLAS_CORES[(words.detected(), word)].lower()
        assert answer["said"] == f"{words.NAMES[word]} at most"
        assert answer["late"] == ""
        assert answer["left"] is None
        if answer["numpys"]:  # NumPy's own copy came before us, and this says which kernels it has
            assert answer["numpys"] == free["numpys"]
            assert answer["numpys"] in answer["numpy"]


def test_mkl_really_takes_lower_kernels_or_it_is_said() -> None:
    if not libraries.get("mkl").available():
        pytest.skip("MKL is not installed")
    free = run(MKL)
    assert free["said"] == ""
    kernels = {"avx2": {"avx2"}, "default": {"mc3", "def"}}
    for word in words.legal_words()[:-1]:
        answer = run(MKL, BACKLINE_CPU_CAPABILITY=word)
        assert answer["layer"] == free["layer"]  # a cap put on first would have chosen the layer too
        if free["kernels"] == ["def"]:  # what it takes on processors of other makers, whatever they have
            assert "cannot be capped" in answer["said"] and "cannot be capped" in answer["late"]
        else:
            assert set(answer["kernels"]) <= kernels[word]
            assert answer["said"] == f"{words.NAMES[word]} at most"
            assert answer["late"] == ""
