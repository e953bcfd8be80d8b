"""Threads that find no memory to start with: a typed error, and the process goes on."""

from __future__ import annotations

from support import python


def test_memory_that_ends_while_threads_start() -> None:
    """Some threads run when the memory of the next one is refused by the allocator, not by the system."""
    python(
        """
import ctypes, resource
from backline import _core

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
limit = resource.getrlimit(resource.RLIMIT_AS)

def allow(more):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, limit[1]))

assert _core.team_check(3) == (3, 7)  # the C library keeps their stacks for the next threads
# The first C++ exception allocates what the later ones use, too.
allow(8 << 20)
try:
    _core.team_check(64)
except RuntimeError:
    resource.setrlimit(resource.RLIMIT_AS, limit)
else:
    raise AssertionError("64 threads were started")

table, states = libc.malloc(64 * 8), [libc.malloc(32) for _ in range(2)]  # the list of threads, and what two of them need
allow(0)
for size in (1 << 20, 1 << 16, 4096, 1024, 512, 256, 128, 64, 32, 16):
    while libc.malloc(size):
        pass
for address in (table, *states):
    libc.free(address)
try:
    _core.team_check(64)
except (MemoryError, RuntimeError):
    resource.setrlimit(resource.RLIMIT_AS, limit)
else:
    raise AssertionError("64 threads were started")
assert _core.team_check(2) == (2, 3)
"""
    )
