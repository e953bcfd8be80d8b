"""Tests that memory comes filled where it is asked for, and as before afterwards."""

import ctypes

import pytest

from backline.native.filled_memory import filled_memory

SIZE = 50_000  # bytes: blocks of less than a kilobyte are not filled, and large ones come from the system
libc = ctypes.CDLL(None)
pytestmark = pytest.mark.skipif(not hasattr(libc, "mallopt"), reason="the C library has no mallopt")
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


def held():
    """The bytes that new memory holds: the same block as before, where nobody took it meanwhile."""
    address = libc.malloc(SIZE)
    found = ctypes.string_at(address, SIZE)
    ctypes.memset(address, 0x55, SIZE)
    libc.free(address)
    return set(found[16:])


def test_memory_holds_the_inverse_of_the_byte_while_it_is_asked_for():
    held()
    with filled_memory():
        assert held() == {0}
        with filled_memory(1):
            assert held() == {254}
        assert held() == {0}
        assert held() == {0}


def test_what_the_environment_asks_for_holds_again_afterwards(monkeypatch):
    from backline.native import filled_memory as module

    monkeypatch.setattr(module, "_asked", [7])
    try:
        with filled_memory():
            assert held() == {0}
        assert held() == {248}
    finally:
        libc.mallopt(module.M_PERTURB, 0)


@pytest.mark.parametrize(
    ("environment", "byte"),
    [({}, 0), ({"MALLOC_PERTURB_": "129"}, 129), ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.perturb=0x10"}, 16),
     ({"MALLOC_PERTURB_": "much"}, 0)],
)  # fmt: skip
def test_the_byte_of_the_user(monkeypatch, environment, byte):
    from backline.native import filled_memory as module

    for name in ("MALLOC_PERTURB_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert module._of_the_user() == byte
