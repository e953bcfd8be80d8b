"""Reads the headers of a shared library before the loader is asked to open it.

The loader's own refusals are late and terse, and a truncated file can end the process with SIGBUS when a page
behind its end is touched. So a candidate is looked at first: is it a whole ELF shared object for this
machine, what does it need, and does it export the functions wanted.

Only the bytes needed are read (`os.pread`): headers, the dynamic section, and for each symbol one walk
through the hash table that the loader itself would use. Nothing is mapped, so a file that shrinks meanwhile
gives a refusal and not a signal. What this module is not: a general ELF reader, or a promise that the file
does what its symbols say.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Elf", "Refused", "exports", "inspect", "supported"]

_MACHINES = {
    3: "x86 (32-bit)", 8: "MIPS", 20: "PowerPC", 21: "PowerPC 64", 22: "S/390", 40: "Arm (32-bit)",
    62: "x86-64", 183: "aarch64", 243: "RISC-V", 258: "LoongArch",
}  # fmt: skip
_PLATFORM_MACHINES = {
    "x86_64": 62, "amd64": 62, "aarch64": 183, "arm64": 183, "ppc64le": 21, "s390x": 22, "riscv64": 243,
    "loongarch64": 258,
}  # fmt: skip
_TYPES = {1: "an object file (.o)", 2: "a program", 4: "a core dump"}

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME = 1, 4, 5, 6, 10, 14
_DT_GNU_HASH = 0x6FFFFEF5
_SYM_SIZE = 24
_SHN_UNDEF, _SHN_ABS = 0, 0xFFF1
_STB_GLOBAL, _STB_WEAK, _STB_GNU_UNIQUE = 1, 2, 10
_STV_HIDDEN, _STV_INTERNAL = 2, 1
#: More links than this in one bucket of a hash table means rubbish, not a long chain.
_CHAIN_LIMIT = 65536
#: Bounds on what a header may claim before it is called damaged; real files stay far below.
_DYNAMIC_LIMIT = 1 << 20
_NAME_LIMIT = 4096


class Refused(ValueError):
    """A file that must not be handed to the loader; the text is the reason, fit to follow the file's name."""


@dataclass(frozen=True, slots=True)
class Elf:
    """The headers of a shared library.

    Attributes
    ----------
    path : str
        The file that was read.
    soname : str
        The name it gives itself, or "" if it gives none.
    needed : tuple of str
        Libraries the loader will open with it, in the order in which they are named.
    size : int
        Size of the file in bytes.
    """

    path: str
    soname: str
    needed: tuple[str, ...]
    size: int


def supported() -> bool:
    """Tells if files can be checked here: ELF is what Linux and the BSDs use; macOS and Windows do not."""
    return sys.platform.startswith(("linux", "freebsd", "netbsd", "openbsd"))


@lru_cache(maxsize=1)
def _own_machine() -> int:
    """The ELF machine number of this process: the running program's own, else the system's."""
    # Not platform.machine() first: it names the kernel, which may run programs of other machines.
    for program in ("/proc/self/exe", sys.executable):
        try:
            with open(program, "rb") as file:
                head = file.read(20)
        except OSError:
            continue
        if head[:4] == b"\x7fELF" and len(head) == 20:
            return int.from_bytes(head[18:20], sys.byteorder)
    import platform

    return _PLATFORM_MACHINES.get(platform.machine().lower(), 0)


def machine_name(number: int) -> str:
    """The common name of an ELF machine number.

    >>> machine_name(183)
    'aarch64'
    """
    return _MACHINES.get(number, f"machine number {number}")


class _File:
    """An open file that is read in pieces; every read outside it is a refusal."""

    def __init__(self, path: str) -> None:
        try:
            # O_NONBLOCK: opening a pipe that happens to bear the name must not wait for its writer.
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            if os.path.islink(path):
                raise Refused(f"a link to {os.readlink(path)}, which is missing") from None
            raise Refused("no such file") from None
        except NotADirectoryError:
            raise Refused("no such file (a part of the path is not a folder)") from None
        except PermissionError:
            raise Refused("not readable by this user") from None
        except (OSError, ValueError) as error:
            raise Refused(f"cannot be opened: {getattr(error, 'strerror', None) or error}") from None
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.fd)
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise Refused(f"{kind}, not a library")
        self.size = status.st_size

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self, offset: int, count: int, what: str) -> bytes:
        if offset + count > self.size:
            raise Refused(f"truncated: {what} ends at byte {offset + count}, the file has {self.size}")
        try:
            data = os.pread(self.fd, count, offset)
        except (OSError, OverflowError) as error:
            raise Refused(f"cannot be read ({what}): {error}") from None
        if len(data) != count:
            raise Refused(f"truncated while it was read ({what})")
        return data

    def read_up_to(self, offset: int, count: int) -> bytes:
        count = min(count, self.size - offset)
        return self.read(offset, count, "a name") if count > 0 else b""


class _Object:
    """A shared object whose headers have been found sound."""

    def __init__(self, file: _File) -> None:
        self.file = file
        self.loads: list[tuple[int, int, int]] = []  # (address, offset in the file, size in the file)
        self.tags: dict[int, int] = {}
        self.needed_offsets: list[int] = []
        dynamic = self._read_headers()
        self._read_dynamic(*dynamic)

    def _read_headers(self) -> tuple[int, int]:
        file = self.file
        if file.size == 0:
            raise Refused("an empty file")
        head = file.read_up_to(0, 64)
        if head[:4] != b"\x7fELF":
            # Development packages put linker scripts, and compilers text stubs, where a library is expected.
            text = all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)
            raise Refused("a text file (a linker script?), not a library" if text else "not an ELF file")
        if len(head) < 64:
            raise Refused(f"truncated: the ELF header has 64 bytes, the file {file.size}")
        own = _own_machine()
        wanted_bits = 64 if sys.maxsize > 2**32 else 32
        bits = {1: 32, 2: 64}.get(head[4])
        if bits is None:
            raise Refused(f"damaged: ELF class {head[4]} does not exist")
        if bits != wanted_bits or bits == 32:
            raise Refused(f"{bits}-bit, this process is {wanted_bits}-bit")
        if head[5] not in (1, 2):
            raise Refused(f"damaged: byte order {head[5]} does not exist")
        if (head[5] == 1) != (sys.byteorder == "little"):
            order = "little" if head[5] == 1 else "big"
            raise Refused(f"{order} endian, this process is {sys.byteorder} endian")
        self.order = "<" if head[5] == 1 else ">"
        (kind, machine, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, _) = struct.unpack_from(
            self.order + "HHIQQQIHHHHHH", head, 16
        )
        if own and machine != own:
            raise Refused(f"for {machine_name(machine)}, this process is {machine_name(own)}")
        if kind != 3:
            raise Refused(f"{_TYPES.get(kind, f'ELF type {kind}')}, not a shared library")
        if phnum == 0 or phentsize != 56:
            raise Refused(f"damaged: {phnum} program headers of {phentsize} bytes")
        if shnum and shoff + shnum * shentsize > file.size:
            # The section table is the last thing in most files: a partial download or copy shows here first.
            end = shoff + shnum * shentsize
            raise Refused(f"truncated: the section headers end at byte {end}, the file has {file.size}")
        table = file.read(phoff, phnum * phentsize, "the table of program headers")
        dynamic = None
        for index, entry in enumerate(struct.iter_unpack(self.order + "IIQQQQQQ", table)):
            kind, _, offset, address, _, size, _, _ = entry
            if kind not in (_PT_LOAD, _PT_DYNAMIC):
                continue
            if offset + size > file.size:
                end = offset + size
                raise Refused(f"truncated: segment {index} ends at byte {end}, the file has {file.size}")
            if kind == _PT_LOAD:
                self.loads.append((address, offset, size))
            else:
                dynamic = (offset, size)
        if dynamic is None:
            raise Refused("damaged: no dynamic section (a file of debugging symbols?)")
        return dynamic

    def _read_dynamic(self, offset: int, size: int) -> None:
        if size > _DYNAMIC_LIMIT:
            raise Refused(f"damaged: the dynamic section claims {size} bytes")
        table = self.file.read(offset, size - size % 16, "the dynamic section")
        for tag, value in struct.iter_unpack(self.order + "QQ", table):
            if tag == 0:
                break
            if tag == _DT_NEEDED:
                self.needed_offsets.append(value)
            else:
                self.tags[tag] = value
        if _DT_STRTAB not in self.tags or _DT_SYMTAB not in self.tags:
            raise Refused("damaged: no dynamic symbols")
        self.strings = self._offset(self.tags[_DT_STRTAB], "the names")
        self.strings_size = self.tags.get(_DT_STRSZ, 0)
        self.symbols = self._offset(self.tags[_DT_SYMTAB], "the symbols")

    def _offset(self, address: int, what: str) -> int:
        """Returns the offset in the file of the byte that will be at this address."""
        for start, offset, size in self.loads:
            if start <= address < start + size:
                return offset + address - start
        raise Refused(f"damaged: {what} lie at address {address:#x}, outside every segment")

    def name(self, offset: int) -> str:
        if offset >= self.strings_size:
            raise Refused(f"damaged: a name lies at {offset} of {self.strings_size} bytes of names")
        text = self.file.read_up_to(self.strings + offset, _NAME_LIMIT)
        return text.partition(b"\0")[0].decode("utf-8", "replace")

    def _defined(self, index: int, name: bytes) -> bool:
        """Tells if the symbol at this index has the name and can be looked up by the loader."""
        entry = self.file.read(self.symbols + index * _SYM_SIZE, _SYM_SIZE, f"symbol {index}")
        at, info, other, section = struct.unpack_from(self.order + "IBBH", entry)
        if section == _SHN_UNDEF or info >> 4 not in (_STB_GLOBAL, _STB_WEAK, _STB_GNU_UNIQUE):
            return False
        if other & 3 in (_STV_HIDDEN, _STV_INTERNAL):
            return False
        return self.file.read_up_to(self.strings + at, len(name) + 1) == name + b"\0"

    def exports(self, name: str) -> bool:
        """Tells if the loader would find this function or variable here."""
        wanted = name.encode()
        if _DT_GNU_HASH in self.tags:
            return self._find_gnu(wanted)
        if _DT_HASH in self.tags:
            return self._find_sysv(wanted)
        raise Refused("damaged: no hash table of symbols")

    def _words(self, offset: int, count: int, form: str, what: str) -> tuple[int, ...]:
        width = 4 if form == "I" else 8
        return struct.unpack(f"{self.order}{count}{form}", self.file.read(offset, count * width, what))

    def _find_gnu(self, name: bytes) -> bool:
        what = "the hash table"
        value = 5381
        for byte in name:
            value = (value * 33 + byte) & 0xFFFFFFFF
        start = self._offset(self.tags[_DT_GNU_HASH], what)
        buckets, first, bloom, shift = self._words(start, 4, "I", what)
        if buckets == 0 or bloom == 0:
            return False
        (word,) = self._words(start + 16 + 8 * ((value // 64) % bloom), 1, "Q", what)
        # Two bits a name: without both the name is surely not there, and most absent names end here.
        if not (word >> (value % 64)) & (word >> ((value >> (shift % 64)) % 64)) & 1:
            return False
        start += 16 + 8 * bloom
        (index,) = self._words(start + 4 * (value % buckets), 1, "I", what)
        if index < first:
            return False
        start += 4 * buckets - 4 * first
        for at in range(index, index + _CHAIN_LIMIT):
            (link,) = self._words(start + 4 * at, 1, "I", what)
            if link | 1 == value | 1 and self._defined(at, name):
                return True
            if link & 1:
                return False
        raise Refused("damaged: a chain of the hash table does not end")

    def _find_sysv(self, name: bytes) -> bool:
        what = "the hash table"
        value = 0
        for byte in name:
            value = (value << 4) + byte
            value = (value ^ ((value & 0xF0000000) >> 24)) & 0x0FFFFFFF
        start = self._offset(self.tags[_DT_HASH], what)
        buckets, chains = self._words(start, 2, "I", what)
        if buckets == 0:
            return False
        (index,) = self._words(start + 8 + 4 * (value % buckets), 1, "I", what)
        for _ in range(min(chains, _CHAIN_LIMIT)):
            if index == 0:
                return False
            if self._defined(index, name):
                return True
            (index,) = self._words(start + 8 + 4 * (buckets + index), 1, "I", what)
        if index:
            raise Refused("damaged: a chain of the hash table does not end")
        return False


def inspect(path: str, needs: Iterable[str] = ()) -> Elf:
    """Check that a file is a whole shared library for this process that exports what is needed.

    Parameters
    ----------
    path : str
        The file.
    needs : iterable of str
        Functions that must be exported. ``"a|b"`` is met by either name.

    Returns
    -------
    Elf
        What the library says about itself.

    Raises
    ------
    Refused
        The file must not be loaded; the text says why.

    Examples
    --------
    >>> inspect("/dev/null")
    Traceback (most recent call last):
        ...
    backline.native.elf.Refused: not a regular file, not a library
    """
    with _File(path) as file:
        library = _Object(file)
        for need in needs:
            names = need.split("|")
            if not any(library.exports(name) for name in names):
                raise Refused(f"lacks symbol {' or '.join(names)}")
        soname = library.name(library.tags[_DT_SONAME]) if _DT_SONAME in library.tags else ""
        needed = tuple(library.name(offset) for offset in library.needed_offsets)
        return Elf(path, soname, needed, file.size)


def exports(path: str, names: Iterable[str]) -> frozenset[str]:
    """Returns those of these names that a library exports; raises `Refused` as `inspect` does."""
    with _File(path) as file:
        library = _Object(file)
        return frozenset(name for name in names if library.exports(name))
