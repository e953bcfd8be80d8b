"""The check of a file before it is loaded: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backline.native import elf

Build = Callable[..., Path]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ELF is what Linux uses")


def spoil(source: Path, target: Path, offset: int, data: bytes) -> Path:
    """A copy with some bytes written over."""
    content = bytearray(source.read_bytes())
    content[offset : offset + len(data)] = data
    target.write_bytes(content)
    return target


def reason(path: Path | str, *needs: str) -> str:
    with pytest.raises(elf.Refused) as refusal:
        elf.inspect(str(path), needs)
    return str(refusal.value)


# --- what is accepted


def test_sound_library_says_what_it_is(tiny: Path) -> None:
    info = elf.inspect(str(tiny))
    assert info.soname == "libtiny.so.1"
    assert info.needed == ()
    assert info.size == tiny.stat().st_size


def test_what_it_needs(build: Build) -> None:
    path = build(flags=["-Wl,--no-as-needed", "-lm", "-lc"])
    assert elf.inspect(str(path)).needed[:2] == ("libm.so.6", "libc.so.6")


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_exports_by_either_hash_table(build: Build, style: str) -> None:
    path = build("libstyle.so", flags=[f"-Wl,--hash-style={style}"])
    names = ["backline_test_answer", "backline_test_data", "backline_test_hidden", "backline_test_wanted",
             "unseen", "backline_test", "", "backline_test_answer_"]  # fmt: skip
    # Exported: functions and data. Not exported: hidden, static, merely used, and parts of a name.
    assert elf.exports(str(path), names) == {"backline_test_answer", "backline_test_data"}


def test_needs_are_met_by_either_name(tiny: Path) -> None:
    elf.inspect(str(tiny), ["backline_test_answer", "no_such_name|backline_test_data"])


def test_real_library(openblas: Path) -> None:
    info = elf.inspect(str(openblas), ["scipy_cblas_sgemm", "scipy_dgetrf_", "scipy_openblas_get_config"])
    assert info.size > 1 << 20
    assert elf.exports(str(openblas), ["cblas_sgemm", "scipy_cblas_sgemm64_"]) == set()


def test_agrees_with_the_loader(openblas: Path) -> None:
    import ctypes

    names = [
        "scipy_cblas_dgemm",
        "scipy_sgesdd_",
        "scipy_openblas_set_num_threads",
        "cblas_dgemm",
        "nonsense",
    ]
    library = ctypes.CDLL(str(openblas))
    assert elf.exports(str(openblas), names) == {name for name in names if hasattr(library, name)}


def test_stripped_of_section_headers(tiny: Path, tmp_path: Path) -> None:
    """The loader does not need them, so neither do we."""
    content = bytearray(tiny.read_bytes())
    content[40:48] = bytes(8)
    content[58:64] = bytes(6)
    path = tmp_path / "nosections.so"
    path.write_bytes(content)
    elf.inspect(str(path), ["backline_test_answer"])


# --- what is refused


def test_missing(tmp_path: Path) -> None:
    assert reason(tmp_path / "none.so") == "no such file"
    assert "not a folder" in reason("/dev/null/libx.so")


def test_dangling_link_names_its_target(tmp_path: Path) -> None:
    link = tmp_path / "libx.so"
    link.symlink_to(tmp_path / "gone.so.1")
    assert reason(link) == f"a link to {tmp_path}/gone.so.1, which is missing"


def test_folder(tmp_path: Path) -> None:
    assert reason(tmp_path) == "a folder, not a library"


def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "libpipe.so"
    os.mkfifo(path)
    assert reason(path) == "not a regular file, not a library"


def test_name_that_no_file_can_have() -> None:
    assert "cannot be opened" in reason("/tmp/lib\0x.so")
    assert "cannot be opened" in reason("/tmp/" + "x" * 5000)


def test_empty(tmp_path: Path) -> None:
    path = tmp_path / "empty.so"
    path.touch()
    assert reason(path) == "an empty file"


def test_text(tmp_path: Path) -> None:
    path = tmp_path / "libtext.so"
    path.write_text("/* GNU ld script */\nINPUT ( libtext.so.1 )\n")
    assert reason(path) == "a text file (a linker script?), not a library"


def test_other_content(tmp_path: Path) -> None:
    path = tmp_path / "libzip.so"
    path.write_bytes(b"PK\x03\x04" + bytes(range(256)))
    assert reason(path) == "not an ELF file"
    path.write_bytes(b"\x7fELF\x02\x01")
    assert reason(path) == "truncated: the ELF header has 64 bytes, the file 6"


def test_unreadable(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "locked.so"
    shutil.copy(tiny, path)
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything: be somebody else for a moment
    try:
        text = reason(path)
    finally:
        os.seteuid(user)
    assert text == "not readable by this user"


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_truncated_real_library(openblas: Path, tmp_path: Path, part: float) -> None:
    path = tmp_path / "cut.so"
    size = int(openblas.stat().st_size * part)
    with open(openblas, "rb") as source:
        path.write_bytes(source.read(size))
    text = reason(path)
    assert text.startswith("truncated: ")
    assert str(size) in text


def test_truncated_behind_sections_names_the_segment(tiny: Path, tmp_path: Path) -> None:
    """A file without section headers is still known to be cut short, by its segments."""
    content = bytearray(tiny.read_bytes()[:0x2000])
    content[40:48] = bytes(8)
    content[58:64] = bytes(6)
    path = tmp_path / "cut.so"
    path.write_bytes(content)
    text = reason(path)
    assert text.startswith("truncated: segment ")
    assert text.endswith("the file has 8192")


def test_other_machine(tiny: Path, tmp_path: Path) -> None:
    other, name = (183, "aarch64") if elf._own_machine() != 183 else (62, "x86-64")
    path = spoil(tiny, tmp_path / "other.so", 18, struct.pack("<H", other))
    own = elf.machine_name(elf._own_machine())
    assert reason(path) == f"for {name}, this process is {own}"


def test_other_width(tiny: Path, tmp_path: Path) -> None:
    assert reason(spoil(tiny, tmp_path / "narrow.so", 4, b"\1")) == "32-bit, this process is 64-bit"
    assert "class 9" in reason(spoil(tiny, tmp_path / "odd.so", 4, b"\x09"))


def test_other_byte_order(tiny: Path, tmp_path: Path) -> None:
    other = b"\2" if sys.byteorder == "little" else b"\1"
    assert "endian, this process is" in reason(spoil(tiny, tmp_path / "big.so", 5, other))


def test_other_type(tiny: Path, tmp_path: Path) -> None:
    assert reason(spoil(tiny, tmp_path / "o.so", 16, b"\1\0")) == "an object file (.o), not a shared library"
    assert reason(spoil(tiny, tmp_path / "x.so", 16, b"\2\0")) == "a program, not a shared library"


def test_debugging_symbols_are_no_library(tiny: Path, tmp_path: Path) -> None:
    if shutil.which("objcopy") is None:
        pytest.skip("needs objcopy")
    path = tmp_path / "libtiny.so.1.debug"
    subprocess.run(["objcopy", "--only-keep-debug", str(tiny), str(path)], check=True)
    assert reason(path, "backline_test_answer")


def test_lacking_symbols(tiny: Path) -> None:
    assert reason(tiny, "backline_test_answer", "cblas_sgemm") == "lacks symbol cblas_sgemm"
    assert reason(tiny, "cblas_sgemm|sgemm_") == "lacks symbol cblas_sgemm or sgemm_"
    # Used but not defined, and defined but hidden: the loader would not find them here either.
    assert reason(tiny, "backline_test_wanted") == "lacks symbol backline_test_wanted"
    assert reason(tiny, "backline_test_hidden") == "lacks symbol backline_test_hidden"


def test_no_descriptor_is_left_open(tiny: Path, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in (tiny, tmp_path, tmp_path / "none.so", "/dev/null", "/etc/passwd"):
        with pytest.raises(elf.Refused):
            elf.inspect(str(path), ["nonsense"])
    assert len(os.listdir("/proc/self/fd")) == before


# --- rubbish: any file gives an answer


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_corrupted_bytes_never_crash(tiny: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(tiny.read_bytes())
    interesting = st.one_of(st.integers(0, 63), st.integers(64, 1024), st.integers(0, len(content) - 1))
    for position in data.draw(st.lists(interesting, min_size=1, max_size=12)):
        content[position] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    path = tmp_path / "rubbish.so"
    path.write_bytes(content[:end])
    try:
        info = elf.inspect(str(path), ["backline_test_answer"])
        elf.exports(str(path), ["a", "backline_test_data", "no_such_name"])
    except elf.Refused as refusal:
        assert str(refusal)
    else:
        assert info.size == end


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tail=st.binary(max_size=600), head=st.booleans())
def test_any_bytes_never_crash(tiny: Path, tmp_path: Path, tail: bytes, head: bool) -> None:
    path = tmp_path / "rubbish.so"
    path.write_bytes((tiny.read_bytes()[:64] if head else b"") + tail)
    with pytest.raises(elf.Refused):
        elf.inspect(str(path), ["backline_test_answer"])


@pytest.mark.parametrize("word", [0, 1, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("slot", range(4))
def test_hash_table_of_rubbish(tiny: Path, tmp_path: Path, slot: int, word: int) -> None:
    """Counts of buckets, first symbol, filter words and shift, each at its extremes."""
    with elf._File(str(tiny)) as file:
        library = elf._Object(file)
        table = library._offset(library.tags[elf._DT_GNU_HASH], "")
    path = spoil(tiny, tmp_path / "rubbish.so", table + 4 * slot, struct.pack("=I", word))
    try:
        elf.inspect(str(path), ["backline_test_answer", "backline_test_data"])
    except elf.Refused as refusal:
        assert str(refusal)
