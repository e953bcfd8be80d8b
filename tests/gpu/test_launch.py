"""Kernels that Triton compiled, loaded and launched by CuPy: as a cubin, and as PTX that the driver translates."""

from __future__ import annotations

from typing import Any

import pytest

from backline.engine import plan_caches
from backline.libraries.cuda.attention import kernel_compiler as compiler
from backline.libraries.cuda.attention import kernel_launcher as launch
from backline.libraries.cuda.attention import packaged_kernels as packaged
from backline.libraries.cuda.attention.launch_sequence import recipe
from backline.nn.attention import SDPBackend
from gpu.variants import Case, deviation

CASE = Case(causal=True, lengths=((300, 300), (70, 70)))
ATTRIBUTES = ("num_regs", "local_size_bytes", "max_dynamic_shared_size_bytes", "ptx_version", "binary_version")


def _launched(row: Any, xp: Any, rehearsed: bool, device: Any, kind: str, tile: Any, compiled: compiler.Compiled) -> float:
    """The error of a kernel that is launched on a stream of its own, on arrays that were made there."""
    object.__setattr__(CASE, "rehearsed", rehearsed)
    (problem,) = CASE.problems()
    made = recipe(problem, device.capability)
    (step,) = made.steps
    function = launch._load(compiled, kind)
    stream = xp.cuda.Stream(non_blocking=True)
    with stream:
        arrays = [*CASE.arrays(xp).values()]
        run = launch.Run(problem, made)
        (first,) = run.launches
        # The very function, whatever the library would have chosen.
        block = (32 * compiled.warps,)
        run.launches = (first._replace(function=function, grid=(step.programs(tile),), block=block, shared=compiled.shared),)
        found = run(*arrays)
    stream.synchronize()
    if not rehearsed:
        row.observe(f"{kind}: " + ", ".join(f"{name} {getattr(function, name)}" for name in ATTRIBUTES))
        assert function.max_dynamic_shared_size_bytes == compiled.shared
    return deviation(found, CASE.wanted[0])


@pytest.mark.gpu(row="TRI-1")
def test_a_kernel_compiled_here(row: Any, xp: Any, rehearsed: bool, device: Any) -> None:
    row.expect("Triton's cubin and its PTX run, with two scratch arguments of 0, on a stream that is not the default one")
    object.__setattr__(CASE, "rehearsed", rehearsed)
    (step,) = CASE.steps(device.capability)
    tile, compiled = compiler.chosen(step)
    texts = []
    for kind in ("cubin", "ptx"):
        error = _launched(row, xp, rehearsed, device, kind, tile, compiled)
        assert error <= CASE.allowed, kind
        texts.append(f"{kind} runs, error {error:.2g}")
    written = _version(compiled.ptx)
    row.observe("; ".join(texts), f"Triton {compiler.version()}, {tile}, {compiled.shared} bytes shared, PTX {written}")
    row.finding(2, f"Triton {compiler.version()}, capability {device.capability}, PTX {written}: {'; '.join(texts)}")


@pytest.mark.gpu(row="TRI-2")
@pytest.mark.parametrize(("dtype", "dim"), [("float16", 64), ("bfloat16", 128)])
def test_a_packaged_kernel(row: Any, xp: Any, rehearsed: bool, device: Any, monkeypatch: pytest.MonkeyPatch, dtype: str, dim: int) -> None:
    row.expect("the PTX that comes with Backline runs where there is no Triton, in both directions")
    monkeypatch.setattr(compiler, "reason", lambda: "Triton is left out of this row")
    monkeypatch.setattr(compiler, "build", None)
    case = Case(dtype, dim, causal=True, grad=True, lengths=CASE.lengths)
    object.__setattr__(case, "rehearsed", rehearsed)
    plan_caches.clear()
    try:
        first, back, choice = case.run(xp, SDPBackend.FLASH_ATTENTION)
    finally:
        plan_caches.clear()
    assert choice.algorithm == "flash" and "packaged kernel" in choice.candidates[0].reason
    row.observe(f"{case}: {first:.2g}, gradients {back:.2g}")
    assert first <= case.allowed and back <= 4 * case.allowed


@pytest.mark.gpu(row="TRI-2")
def test_a_packaged_kernel_on_another_stream(row: Any, xp: Any, rehearsed: bool, device: Any) -> None:
    row.expect("packaged PTX, on a stream that is not the default one")
    object.__setattr__(CASE, "rehearsed", rehearsed)
    (step,) = CASE.steps(device.capability)
    found = packaged.find(step)
    assert found is not None
    error = _launched(row, xp, rehearsed, device, "ptx", *found)
    row.observe(f"error {error:.2g}", f"written by Triton {packaged.version()}, PTX {_version(found[1].ptx)}")
    row.finding(7, f"PTX {_version(found[1].ptx)} that Triton {packaged.version()} wrote is translated by the driver; error {error:.2g}")
    assert error <= CASE.allowed


def _version(ptx: bytes) -> str:
    """".version 8.7" of the text."""
    found = [line for line in ptx.decode(errors="replace").splitlines() if line.startswith(".version")]
    return found[0].removeprefix(".version ").strip() if found else "of no version"
