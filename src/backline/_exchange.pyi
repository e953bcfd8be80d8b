"""Addresses of functions in loaded objects, and functions that choose by size. The sources are in ``_exchange/``."""

from collections.abc import Sequence

# Whether the functions are there: on Linux with glibc, on x86-64 and AArch64.
supported: bool

def objects() -> list[tuple[str, int, int, int, int]]:
    """Loaded objects: path, base address, address of the dynamic section, first address, end."""

def slots(base: int, dynamic: int, /) -> list[tuple[int, str, str, int]]:
    """Slots of an object that may be BLAS or LAPACK: address, name, kind of relocation, value."""

def resolve(path: str, names: Sequence[str], /) -> list[int]:
    """Addresses of the functions that a loaded object finds by these names, 0 where there is none."""

def file_of(address: int, /) -> str:
    """The file that an address lies in."""

def read(slot: int, /) -> int:
    """The address in a slot."""

def write(changes: Sequence[tuple[int, int, int]], /) -> int:
    """Write (slot, expected, new) addresses, all or none; the index of one that differs, or -1."""

def shim(small: int, large: int, mode: int, sizes: bytes, threshold: int, checked: bytes, /) -> int:
    """A function that calls the second of two from a product of sizes on."""

def shim_calls(address: int, /) -> tuple[int, int] | None:
    """Numbers of calls that a shim sent to either function; None for an address that is not a shim's."""

def call_seconds(address: int, count: int, /) -> float:
    """Time of calling an address so many times; 0 is a function that does nothing."""

def no_function() -> int:
    """Address of a function that does nothing."""

def narrow_call(wide: int, narrow: int, kinds: str, largest: int, /) -> int:
    """A function that takes 64-bit integers by reference and calls a routine with 32-bit ones; 0 if none is left."""

def recorder(function: int, mode: int, flags: bytes, integers: bytes, query: int, arguments: int, name: str, /) -> int:
    """A function that notes each call of another under a name; 0 if none is left."""

def recorded_pause(pause: bool, /) -> bool:
    """Leaves calls of this thread unrecorded, or no longer; returns what held before."""

def record_in_file(path: str, /) -> None:
    """Notes calls in a new file, in this process and in the children that it forks."""

def recorded_fork() -> None:
    """Counts a forked child among the processes of its file."""

def recorded(
    path: str | None, /
) -> tuple[int, list[tuple[str, bytes, tuple[int, ...], bool, int, int, int]], list[tuple[str, int, int]]]:
    """Calls noted here or in a file: processes, rows with sizes, rows of name, calls and nanoseconds."""

def timed_calls(function: int, words: bytes, numbers: bytes, count: int, copies: Sequence[tuple[int, int, int]], /) -> float:
    """Seconds of so many calls; before each one (to, from, bytes) are copied."""
