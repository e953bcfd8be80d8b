"""CuPy's ElementwiseKernel without a device: the C++ of a kernel is compiled for the CPU, and run over the elements in C order.

Halves are widened to float32 before and rounded after, which is what the kernels do inside.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {"float32": "float", "float64": "double", "uint64": "unsigned long long", "int64": "long long", "int32": "int"}
_HEAD = """
#include <cmath>
#include <cstddef>
using namespace std;
#define __device__
"""
_loaded: dict[str, Any] = {}


def _library(source: str) -> Any:
    """The compiled source; kept between processes, for there are many kernels and each takes a while."""
    if source not in _loaded:
        folder = Path(tempfile.gettempdir()) / f"backline-kernels-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        target = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:24]}.so"
        if not target.exists():
            made = folder / f"{target.stem}.{os.getpid()}"
            made.with_suffix(".cpp").write_text(source)
            command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wno-unused-local-typedefs", "-Werror"]
            subprocess.run([*command, "-o", str(made), str(made.with_suffix(".cpp"))], check=True)
            made.rename(target)
            made.with_suffix(".cpp").unlink()
        _loaded[source] = ctypes.CDLL(str(target))
    return _loaded[source]


class ElementwiseKernel:
    """A kernel as ``cupy.ElementwiseKernel`` makes it; `unwrap` and `wrap` turn arrays of the device into NumPy's and back."""

    def __init__(self, machine: Any, in_params: str, out_params: str, operation: str, name: str = "kernel", *, preamble: str = "") -> None:
        self.machine, self.operation, self.name, self.preamble = machine, operation, name, preamble
        words = [each.split() for each in in_params.split(",")]
        self.raw = {each[-1] for each in words if each[0] == "raw"}  # whole arrays, in C order, which the kernel indexes itself
        self.inputs = [(each[-2], each[-1]) for each in words]
        words = [each.split() for each in out_params.split(",")]
        ((kind, name),) = [each[-2:] for each in words]
        self.output, self.writes_raw = (kind, name), words[0][0] == "raw"

    def __call__(self, *args: Any, size: int | None = None) -> Any:
        from fakes.cupy_standin import ndarray, unwrap

        given, rest = args[: len(self.inputs)], args[len(self.inputs) :]
        assert len(given) == len(self.inputs) and len(rest) <= 1
        types: dict[str, np.dtype[Any]] = {}
        for (kind, _), value in zip((*self.inputs, self.output), (*given, *rest), strict=False):
            if kind in _TYPES:
                assert not isinstance(value, ndarray), "numbers are passed as such"
            else:
                assert isinstance(value, ndarray), "a type that an array gives"
                assert types.setdefault(kind, value.dtype) == value.dtype, f"{self.name}: {kind} is {types[kind]} and {value.dtype}"
        dtype = types[self.output[0]]
        arrays = [np.asarray(unwrap(value), types.get(kind, kind)) for (kind, _), value in zip(self.inputs, given, strict=True)]
        walked = [a.shape for (_, name), a in zip(self.inputs, arrays, strict=True) if name not in self.raw]
        assert (size is not None) == self.writes_raw, "who writes where it likes says for how many indices"
        alone = self.raw or not any(isinstance(v, ndarray) for v in given)  # the output says how many elements there are
        shape = rest[0].shape if self.writes_raw else np.broadcast_shapes(*walked, *((rest[0].shape,) if alone else ()))
        walked_over = () if self.writes_raw else shape
        wide = {kind: np.dtype(np.float32 if t.itemsize == 2 else t) for kind, t in types.items()}
        flat = [
            np.ascontiguousarray(np.broadcast_to(a.astype(wide.get(kind, a.dtype)), a.shape if name in self.raw else walked_over))
            for (kind, name), a in zip(self.inputs, arrays, strict=True)
        ]
        made = np.empty(shape, wide[self.output[0]])
        _library(self._source(wide)).run(ctypes.c_ssize_t(made.size if size is None else size), *(ctypes.c_void_p(a.ctypes.data) for a in (*flat, made)))
        device = next(v.device.id for v in (*given, *rest) if isinstance(v, ndarray))
        out = rest[0] if rest else ndarray(np.empty(shape, dtype), device)
        assert out.shape == shape
        with np.errstate(all="ignore"):
            out.host[...] = made.astype(dtype)
        return out

    def _source(self, wide: dict[str, np.dtype[Any]]) -> str:
        named = [*self.inputs, self.output]
        kinds = "".join(f"typedef {_TYPES[t.name]} {kind};\n" for kind, t in wide.items())
        types = [kind if kind in wide else _TYPES[kind] for kind, _ in named]
        pointers = ", ".join(f"{'const ' if i < len(self.inputs) else ''}{t} *_{name}" for i, (t, (_, name)) in enumerate(zip(types, named, strict=True)))
        where = "0" if self.writes_raw else "i"
        values = " ".join(
            f"const {t} *{name} = _{name};" if name in self.raw else f"const {t} {name} = _{name}[{where}];"
            for t, (_, name) in zip(types, self.inputs, strict=False)
        )
        name = self.output[1]
        result = f"{types[-1]} *{name} = _{name};" if self.writes_raw else f"{types[-1]} &{name} = _{name}[i];"
        loop = f"for (ptrdiff_t i = 0; i < n; ++i) {{ {values} {result} {self.operation}; }}"
        return f'{_HEAD}{kinds}{self.preamble}\nextern "C" void run(ptrdiff_t n, {pointers}) {{ {loop} }}\n'
