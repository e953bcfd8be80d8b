"""Attention kernels that are played: a module made of their code computes with NumPy, on the memory that the launch names.

Pointers, strides, sizes and constants are taken as they come, so a wrong one gives a wrong result. What Triton would have compiled
is a description here; the PTX that comes with Backline is known by its text.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from backline.libraries.cuda.attention import kernel_compiler as compiler
from backline.libraries.cuda.attention import packaged_kernels as packaged
from backline.libraries.cuda.attention.kernel_launcher import SCALARS
from backline.libraries.cuda.attention.launch_sequence import KERNELS, Tile, Variant, parameters
from fakes import philox

__all__ = ["RawModule", "build", "played"]

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32), "bool": np.dtype(bool)}
SHARED = 70000
Array = np.ndarray[Any, Any]


def build(variant: Variant, tile: Tile) -> compiler.Compiled:
    """In the place of Triton's work."""
    text = json.dumps({"variant": asdict(variant), "tile": asdict(tile)}).encode()
    return compiler.Compiled(variant.kernel, tile.warps, SHARED, b"\x7fELF" + text, b"//" + text)


def _described(code: bytes) -> tuple[Variant, Tile, int]:
    """Returns what a code was compiled for, and its shared memory."""
    for magic in (b"\x7fELF", b"//"):
        if code.startswith(magic + b"{"):
            told = json.loads(code.removeprefix(magic))
            constants = tuple((name, value) for name, value in told["variant"].pop("constants"))
            return Variant(**told["variant"] | {"constants": constants}), Tile(**told["tile"]), SHARED
    for name, (tile, made) in packaged.read().kernels.items():
        if made.ptx == code:
            kernel, dtype, bias, *rest = name.split()
            values = (part.split("=") for part in rest)
            constants = tuple((key, value == "True" if value in ("True", "False") else int(value) if value.isdigit() else value) for key, value in values)
            return Variant(kernel, dtype, bias.strip("-"), constants, packaged.DIVISOR, packaged.CAPABILITY), tile, made.shared
    raise RuntimeError("CUDA_ERROR_INVALID_IMAGE")


class _Function:
    """A kernel of a module, as CuPy's RawKernel is."""

    def __init__(self, cupy: Any, path: str, name: str) -> None:
        self.cupy, self.path, self.name = cupy, path, name
        self.told: tuple[Variant, Tile, int] | None = None
        self.allowed = 48 * 1024

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self.allowed

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        self._load()
        self.allowed = size

    def _load(self) -> tuple[Variant, Tile, int]:
        if self.told is None:  # the file is read when something is first asked
            self.told = _described(Path(self.path).read_bytes())
            if self.told[0].kernel != self.name:
                raise RuntimeError("CUDA_ERROR_NOT_FOUND: named symbol not found")
        return self.told

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0) -> None:
        variant, tile, shared = self._load()
        if block != (32 * tile.warps,) or shared_mem < shared or shared_mem > self.allowed:
            raise RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument")
        stream = self.cupy.cuda.get_current_stream().ptr
        self.cupy.written.append((self.name, {"grid": grid, "stream": stream, "kind": Path(self.path).suffix[1:]}))
        pointers, scalars, _ = KERNELS[variant.kernel]
        assert [int(a) for a in args[-2:]] == [0, 0] and all(a.nbytes == 8 for a in args[-2:]), "scratch memories"
        kinds = [kind for _, kind, _ in parameters(variant)]
        for kind, a in zip(kinds, args[:-2], strict=True):
            assert type(a) is (np.uint64 if kind.startswith("*") else SCALARS[kind]), (kind, type(a))
        values = dict(zip((*pointers, *scalars), args[:-2], strict=True))
        fixed = dict(variant.fixed(tile))
        given = {name: value.item() for name, value in values.items()} | fixed
        with np.errstate(all="ignore"):
            PLAYS[variant.kernel](_Launch(variant, given, grid[0]))


class _Launch:
    """The arguments of a launch, and the arrays that they describe."""

    def __init__(self, variant: Variant, given: dict[str, Any], programs: int) -> None:
        self.variant, self.given, self.programs = variant, given, programs
        self.dtype, heads = DTYPES[variant.dtype], given["heads"]
        lines, size = (given["Lk"], given["BN"]) if variant.kernel == "attention_backward_keys" else (given["Lq"], given["BM"])
        if variant.kernel == "attention_backward_keys":
            heads //= given["each_k"]
        tiles = -(-lines // size)
        assert programs % (tiles * heads) == 0, "a program for each tile of each head"
        self.batch = programs // (tiles * heads)

    def __getattr__(self, name: str) -> Any:
        return self.given[name]

    def at(self, pointer: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory as an array; strides in elements."""
        assert self.given[pointer], pointer
        steps = tuple(s * dtype.itemsize for s in strides)
        low = sum(min((n - 1) * s, 0) for n, s in zip(shape, steps, strict=True))
        high = sum(max((n - 1) * s, 0) for n, s in zip(shape, steps, strict=True))
        memory = (ctypes.c_char * (high - low + dtype.itemsize)).from_address(self.given[pointer] + low)
        return np.ndarray(shape, dtype, memory, -low, steps)

    def dense(self, pointer: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.ndarray(shape, dtype, (ctypes.c_char * (int(np.prod(shape)) * dtype.itemsize)).from_address(self.given[pointer]))

    def operand(self, pointer: str, letter: str, heads: int, lines: int, dim: int) -> Array:
        """Query, key, value or gradient, one head for each of the query's."""
        strides = (*(self.given[f"{axis}_{letter}"] for axis in "BHM"), 1)
        assert self.given[pointer] % 16 == 0, "loads are of 16 bytes"
        found = self.at(pointer, (self.batch, heads, lines, dim), strides, self.dtype).astype(np.float64)
        return np.repeat(found, self.heads // heads, axis=1)

    def weights(self) -> tuple[Array, Array]:
        """Scores of base 2, and the keys' values that dropout multiplies weights with."""
        key_heads = self.heads // self.each_k
        q = self.operand("Q", "q", self.heads, self.Lq, self.D)
        k = self.operand("K", "k", key_heads, self.Lk, self.D)
        scores = q @ k.swapaxes(-1, -2) * self.qk_scale
        if self.BIAS:
            strides = tuple(self.given[f"{axis}_bias"] for axis in "BHMN")
            bias = self.at("Bias", scores.shape, strides, DTYPES[self.variant.bias])
            if self.BIAS == 1:
                scores = np.where(bias, scores, -np.inf)
            else:
                scores = np.where(bias == -np.inf, -np.inf, scores + bias.astype(np.float64) * np.log2(np.e))
        if self.CAUSAL:
            scores = np.where(np.tri(self.Lq, self.Lk, dtype=bool), scores, -np.inf)
        kept = np.ones((1, 1, 1, 1))
        if self.DROPOUT:
            kept = philox.kept(scores.shape, self.seed, float(np.float32(self.dropout)))
        return scores, kept


def _forward(a: _Launch) -> None:
    scores, kept = a.weights()
    v = a.operand("V", "v", a.heads // a.each_v, a.Lk, a.DV)
    most = scores.max(-1, keepdims=True)
    weights = np.exp2(scores - np.where(most == -np.inf, 0, most))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    a.dense("O", (a.batch, a.heads, a.Lq, a.DV), a.dtype)[...] = ((weights * kept) @ v).astype(a.dtype)
    if a.SAVE:
        lse = np.where(total == 0, -np.inf, (most + np.log2(np.where(total == 0, 1, total))) * np.log(2))
        a.dense("LSE", (a.batch, a.heads, a.Lq), DTYPES["float32"])[...] = lse[..., 0]


def _delta(a: _Launch) -> None:
    o = a.dense("O", (a.batch, a.heads, a.Lq, a.DV), a.dtype).astype(np.float64)
    g = a.operand("G", "g", a.heads, a.Lq, a.DV)
    a.dense("Delta", (a.batch, a.heads, a.Lq), DTYPES["float32"])[...] = (o * g).sum(-1)


def _slopes(a: _Launch) -> tuple[Array, Array, Array]:
    """Weights that were used, slopes of the scores, and the gradient that comes in."""
    scores, kept = a.weights()
    lines = (a.batch, a.heads, a.Lq)
    lse, delta = (a.dense(name, lines, DTYPES["float32"]).astype(np.float64)[..., None] for name in ("LSE", "Delta"))
    weights = np.exp2(scores - np.where(lse == -np.inf, np.inf, lse * np.log2(np.e)))
    g = a.operand("G", "g", a.heads, a.Lq, a.DV)
    v = a.operand("V", "v", a.heads // a.each_k, a.Lk, a.DV)
    changed = g @ v.swapaxes(-1, -2) * kept
    return weights * kept, np.where(scores == -np.inf, 0, weights * (changed - delta)), g


def _keys(a: _Launch) -> None:
    used, slopes, g = _slopes(a)
    heads = a.heads // a.each_k

    def written(pointer: str, found: Array) -> None:
        summed = found.reshape(a.batch, heads, a.each_k, *found.shape[-2:]).sum(2)
        a.dense(pointer, summed.shape, a.dtype)[...] = summed.astype(a.dtype)

    written("DK", slopes.swapaxes(-1, -2) @ a.operand("Q", "q", a.heads, a.Lq, a.D) * a.scale)
    written("DV_", used.swapaxes(-1, -2) @ g)


def _queries(a: _Launch) -> None:
    _, slopes, _ = _slopes(a)
    k = a.operand("K", "k", a.heads // a.each_k, a.Lk, a.D)
    a.dense("DQ", (a.batch, a.heads, a.Lq, a.D), a.dtype)[...] = (slopes @ k * a.scale).astype(a.dtype)


PLAYS = {
    "attention_forward": _forward, "attention_backward_delta": _delta, "attention_backward_keys": _keys,
    "attention_backward_queries": _queries,
}  # fmt: skip


class RawModule:
    """CuPy's, of a file."""

    def __init__(self, cupy: Any, path: str) -> None:
        self.cupy, self.path = cupy, path

    def get_function(self, name: str) -> _Function:
        return _Function(self.cupy, self.path, name)


@contextmanager
def played(cupy: Any, folder: Path) -> Iterator[None]:
    """Let a stand-in for CuPy have modules, and let Triton be there, which compiles in no time."""
    cupy.RawModule = lambda *, path: RawModule(cupy, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "reason", lambda: "")
        patch.setattr(compiler, "version", lambda: "3.6.0")
        patch.setattr(compiler, "build", build)
        patch.setattr(compiler, "folder", lambda: str(folder / "triton"))
        patch.setattr(compiler, "_chosen", {})
        yield
