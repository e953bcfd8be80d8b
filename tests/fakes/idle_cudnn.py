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

# Numbers are those of cudnn_graph_v9.h: attributes of a pack of addresses.
SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
struct seen { void *handle; int64_t count, uids[32]; void *addresses[32], *workspace; long runs; } seen;

int cudnnCreate(void **handle) { *handle = (void *)0x1000; return 0; }
int cudnnDestroy(void *handle) { return 0; }
int cudnnSetStream(void *handle, void *stream) { return 0; }
int cudnnGetStream(void *handle, void **stream) { *stream = 0; return 0; }
int cudnnBackendExecute(void *handle, void *plan, void *pack) {
    seen.runs++;
    seen.handle = handle;
    return 0;
}
int cudnnBackendSetAttribute(void *of, int name, int type, int64_t count, const void *values) {
    static int (*set)(void *, int, int, int64_t, const void *);
    if (!set) set = dlsym(RTLD_NEXT, "cudnnBackendSetAttribute");
    if (name == 1000 && count <= 32) memcpy(seen.uids, values, 8 * (seen.count = count));
    if (name == 1001 && count <= 32) memcpy(seen.addresses, values, 8 * count);
    if (name == 1003) memcpy(&seen.workspace, values, 8);
    return set(of, name, type, count, values);
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
        self._seen = _Seen.in_dll(library, "seen")

    @property
    def runs(self) -> int:
        return int(self._seen.runs)

    @property
    def last(self) -> Run:
        """The last run."""
        seen, count = self._seen, self._seen.count
        pointers = {int(uid): int(at or 0) for uid, at in zip(seen.uids[:count], seen.addresses[:count], strict=True)}
        return Run(int(seen.handle or 0), pointers, int(seen.workspace or 0))


def idle(folder: Path, module: Any) -> Idle:
    """Puts the library in front of the cuDNN that a frontend, the module ``cudnn``, calls; it is written to a folder."""
    (true,) = (Path(import_module("nvidia.cudnn").__path__[0]) / "lib").glob("libcudnn.so.9")
    source, path = folder / "idle_cudnn.c", folder / "libidle_cudnn.so"
    source.write_text(SOURCE)
    # What it has not itself is looked for in the libraries that it needs.
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O2", str(source), "-Wl,--no-as-needed", str(true), "-o", str(path), "-ldl"], check=True
    )
    library = ctypes.CDLL(str(path))
    module._pybind_module._set_dlhandle_cudnn(library._handle)
    return Idle(library)
