"""The true cuDNN without what takes a device: handles are made of nothing, and a plan that is to run is written down instead.

Everything else is cuDNN's own: descriptors, heuristics, plans, and the packs of addresses, which it checks.
"""

from __future__ import annotations

import ctypes
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Idle", "idle"]

# Numbers are those of cudnn_graph_v9.h.
SOURCE = """
#include <stdint.h>
int cudnnBackendGetAttribute(void *, int, int, int64_t, int64_t *, void *);
struct seen { void *handle; int64_t count, uids[32]; void *addresses[32], *workspace; long runs; } seen;
int look; /* at what is in a pack, which takes a while */

int cudnnCreate(void **handle) { *handle = (void *)0x1000; return 0; }
int cudnnDestroy(void *handle) { return 0; }
int cudnnSetStream(void *handle, void *stream) { return 0; }
int cudnnGetStream(void *handle, void **stream) { *stream = 0; return 0; }
int cudnnBackendExecute(void *handle, void *plan, void *pack) {
    int64_t one;
    seen.runs++;
    if (!look) return 0;
    seen.handle = handle;
    int status = cudnnBackendGetAttribute(pack, 1000, 3, 32, &seen.count, seen.uids);
    if (!status) status = cudnnBackendGetAttribute(pack, 1001, 6, 32, &one, seen.addresses);
    if (!status) status = cudnnBackendGetAttribute(pack, 1003, 6, 1, &one, &seen.workspace);
    return status;
}
"""


class _Seen(ctypes.Structure):
    _fields_ = (
        ("handle", ctypes.c_void_p), ("count", ctypes.c_int64), ("uids", ctypes.c_int64 * 32), ("addresses", ctypes.c_void_p * 32),
        ("workspace", ctypes.c_void_p), ("runs", ctypes.c_long),
    )  # fmt: skip


class Run(NamedTuple):
    """A run of a plan: its handle, the addresses by uid, and that of the workspace."""

    handle: int
    pointers: dict[int, int]
    workspace: int


class Idle:
    """The library that stands in front of cuDNN."""

    def __init__(self, library: Any) -> None:
        self._seen, self._look = _Seen.in_dll(library, "seen"), ctypes.c_int.in_dll(library, "look")

    def look(self, at: bool) -> None:
        """Has what is given to runs read, or not."""
        self._look.value = at

    @property
    def runs(self) -> int:
        return int(self._seen.runs)

    @property
    def last(self) -> Run:
        """The last run that was looked at."""
        seen, count = self._seen, self._seen.count
        pointers = {int(uid): int(at or 0) for uid, at in zip(seen.uids[:count], seen.addresses[:count], strict=True)}
        return Run(int(seen.handle or 0), pointers, int(seen.workspace or 0))


def idle(folder: Path, module: Any) -> Idle:
    """Puts the library in front of the cuDNN that a frontend, the module ``cudnn``, calls; it is written to a folder."""
    (true,) = (Path(import_module("nvidia.cudnn").__path__[0]) / "lib").glob("libcudnn.so.9")
    source, path = folder / "idle_cudnn.c", folder / "libidle_cudnn.so"
    source.write_text(SOURCE)
    # What it has not itself is looked for in the libraries that it needs.
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", str(source), "-Wl,--no-as-needed", str(true), "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))
    module._pybind_module._set_dlhandle_cudnn(library._handle)
    return Idle(library)
