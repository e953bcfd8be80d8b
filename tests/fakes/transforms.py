"""A cuFFT without a device: it checks each call as the library does, and transforms by NumPy what lies at the addresses."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np

from fakes.recording import Recording, error

DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
XT_TYPES = {2: "real", 6: "complex"}


class Transforms(Recording):
    """``nvmath.bindings.cufft``, computing.

    Attributes
    ----------
    plans
        Handle -> what its plan was made of.
    live
        Handles that were created and not destroyed.
    fails
        Name of a function -> what it fails with.
    """

    def __init__(self, module: Any, log: list[tuple[str, dict[str, Any]]] | None = None) -> None:
        super().__init__(module, log=log)
        self.plans: dict[int, dict[str, Any]] = {}
        self.live: set[int] = set()
        self.fails: dict[str, str] = {}
        self._next = itertools.count(100)
        names = ("create", "destroy", "set_auto_allocation", "make_plan_many64", "xt_make_plan_many", "set_stream", "set_work_area")
        executors = [f"exec_{kind.name.lower()}" for kind in module.Type]
        for name in (*names, *executors, "xt_exec"):
            self.answers[name] = self._guarded(name, getattr(self, f"_{name}", None) or self._exec)

    def _guarded(self, name: str, function: Any) -> Any:
        def answer(**given: Any) -> Any:
            if name in self.fails:
                raise error(self.module.cuFFTError, self.fails[name])
            if "plan" in given:
                assert given["plan"] in self.live
            return function(**given) if function != self._exec else function(name, **given)

        return answer

    def _create(self) -> int:
        handle = next(self._next)
        self.live.add(handle)
        self.plans[handle] = {"automatic": True, "stream": None, "area": None}
        return handle

    def _destroy(self, plan: int) -> None:
        self.live.remove(plan)

    def _set_auto_allocation(self, plan: int, auto_allocate: int) -> None:
        assert "sizes" not in self.plans[plan], "before the plan is made"
        self.plans[plan]["automatic"] = bool(auto_allocate)

    def _set_stream(self, plan: int, stream: int) -> None:
        self.plans[plan]["stream"] = stream

    def _set_work_area(self, plan: int, work_area: int) -> None:
        assert work_area % 16 == 0
        self.plans[plan]["area"] = work_area

    def _make_plan_many64(self, plan: int, type: int, **given: Any) -> int:
        name = self.module.Type(type).name
        kind = {"Z2Z": "C2C", "D2Z": "R2C", "Z2D": "C2R"}.get(name, name)
        return self._made(plan, kind, "f64" if name != kind else "f32", **given)

    def _xt_make_plan_many(self, plan: int, inputtype: int, outputtype: int, executiontype: int, **given: Any) -> int:
        assert executiontype == 6
        kind = {("real", "complex"): "R2C", ("complex", "real"): "C2R", ("complex", "complex"): "C2C"}[XT_TYPES[inputtype], XT_TYPES[outputtype]]
        assert all(n & (n - 1) == 0 for n in given["n"]), "powers of two"
        if kind == "R2C":
            assert given["istride"] == 1 and given["inembed"][1:] == given["n"][1:], "no strides on the real side"
        return self._made(plan, kind, "f16", **given)

    def _made(self, plan: int, kind: str, value: str, **given: Any) -> int:
        assert not self.plans[plan]["automatic"]
        rank, n = given["rank"], tuple(given["n"])
        assert 1 <= rank <= 3 and len(n) == len(given["inembed"]) == len(given["onembed"]) == rank
        halves = (*n[:-1], n[-1] // 2 + 1)
        shapes = (halves if kind == "C2R" else n, halves if kind == "R2C" else n)
        sides = []
        for shape, letter in zip(shapes, "io", strict=True):
            embed, stride, dist = given[f"{letter}nembed"], given[f"{letter}stride"], given[f"{letter}dist"]
            assert stride > 0 and dist > 0 and all(e >= m for e, m in zip(embed[1:], shape[1:], strict=True))
            steps = [stride]
            for room in reversed(embed[1:]):
                steps.insert(0, steps[0] * room)
            sides.append(((given["batch"], *shape), (dist, *steps)))
        size = 64 * given["batch"] * int(np.prod(n))
        self.plans[plan] |= {"sizes": n, "kind": kind, "value": value, "sides": sides, "size": size, "batch": given["batch"]}
        return size

    def _exec(self, name: str, plan: int, direction: int = 0, **given: int) -> None:
        made = self.plans[plan]
        kind, real = made["kind"], np.dtype(DTYPES[made["value"]])
        assert made["stream"] is not None and made["area"] is not None
        source, target = given.values()
        if name == "xt_exec":
            assert made["value"] == "f16"
        else:
            letter = {"f32": {"C2C": "c2c", "R2C": "r2c", "C2R": "c2r"}, "f64": {"C2C": "z2z", "R2C": "d2z", "C2R": "z2d"}}
            assert name == f"exec_{letter[made['value']][kind]}"
        assert source % (2 * real.itemsize) == target % (2 * real.itemsize) == 0, "aligned to complex numbers"
        assert source != target or (kind == "C2C" and made["sides"][0] == made["sides"][1])
        x = _view(source, *made["sides"][0], real, pairs=kind != "R2C")
        y = _view(target, *made["sides"][1], real, pairs=kind != "C2R")
        axes = tuple(range(1, x.ndim - (kind != "R2C")))
        numbers = x.astype(np.float64) if kind == "R2C" else x[..., 0].astype(np.float64) + 1j * x[..., 1]
        if kind == "C2C":
            assert direction in (-1, 1)
            transform = np.fft.fftn if direction < 0 else np.fft.ifftn
            result = transform(numbers, axes=axes, norm="backward" if direction < 0 else "forward")
        elif kind == "R2C":
            result = np.fft.rfftn(numbers, axes=axes)
        else:
            assert len(axes) == 1, "several axes would have to be mirrored together"
            n = made["sizes"][-1]
            ends = numbers[..., [0, n // 2] if n % 2 == 0 else [0]].imag
            assert not ends[np.isfinite(ends)].any(), "the library's kernels take these parts into account, some of them"
            result = np.fft.irfft(numbers, n, axis=1, norm="forward")
            x[...] = np.nan  # such a transform destroys its input
        with np.errstate(over="ignore", invalid="ignore"):
            if kind == "C2R":
                y[...] = result
            else:
                y[..., 0], y[..., 1] = result.real, result.imag


def _view(address: int, shape: tuple[int, ...], steps: tuple[int, ...], real: np.dtype[Any], *, pairs: bool) -> Any:
    item = real.itemsize * (2 if pairs else 1)
    strides = tuple(step * item for step in steps)
    if pairs:
        shape, strides = (*shape, 2), (*strides, real.itemsize)
    extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + real.itemsize
    memory = (ctypes.c_char * extent).from_address(address)
    return np.ndarray(shape, real, memory, 0, strides)
