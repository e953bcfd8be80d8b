"""Sizes of cuSOLVER's workspaces, asked of it once for each routine, sizes, dtype and device, and then kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from ....errors import LibraryFailed
from ....native.bounded_cache import BoundedCache

__all__ = ["MOST", "size_of"]

MOST = 4096  # that are kept

_kept = BoundedCache(lambda: MOST)


def size_of(module: Any, device: int, routine: str, key: tuple[Hashable, ...], ask: Callable[[], Any]) -> Any:
    """Returns what `ask` gives, which is asked for once: a size, or those on the device and on the host.

    The `key` has all numbers that the answer depends on; addresses are not among them. A negative size is one that a routine with
    32-bit integers could not count: `LibraryFailed`.
    """
    found = _kept.get((module, device, routine, key), ask)
    sizes = found if isinstance(found, tuple | list) else (found,)
    if min(int(size) for size in sizes) < 0:
        raise LibraryFailed(
            f"{routine} cannot tell the size of its workspace", cause=f"it says {found}: more than its 32-bit integers count to",
            remedy="fewer or smaller matrices at a time, or another algorithm: backline.explain lists them",
        )  # fmt: skip
    return found
