"""Our attention kernels compiled for devices that are not here: instructions, parameters, shared memory, and no PyTorch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from backline.libraries.cuda.attention import kernel_compiler as compiler
from backline.libraries.cuda.attention import triton_kernels
from backline.libraries.cuda.attention.launch_sequence import KERNELS, Recipe, parameters, recipe, shared_limit
from backline.problems import operand
from backline.problems.attention_problem import attention_problem

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]


def made(dim: int, dtype: Any, capability: tuple[int, int], grad: bool = False, mask: bool = False, **parameters: Any) -> Recipe:
    x = np.zeros((1, 4, 256, dim), dtype)
    p = attention_problem(x, x, x, np.zeros((256, 256), bool) if mask else None, **parameters)
    if grad:
        p = replace(p, operands=(*p.operands, operand("grad", x)))
    return recipe(replace(p, device="cuda:0"), capability)


# Capability, what PTX names it, the instruction of its tensor cores.
DEVICES = [((8, 0), "sm_80", b"mma.sync"), ((9, 0), "sm_90a", b"wgmma.mma_async"), ((10, 0), "sm_100a", b"tcgen05.mma")]


@pytest.mark.parametrize(("capability", "target", "instruction"), DEVICES)
@pytest.mark.parametrize(("dim", "dtype", "grad", "options"), [
    (64, np.float16, True, {"is_causal": True}),
    (128, ml_dtypes.bfloat16, False, {"is_causal": True}),
    (256, np.float16, False, {}),
    (16, np.float16, True, {"mask": True, "dropout_p": 0.1}),
])  # fmt: skip
def test_half_precisions_run_on_tensor_cores(
    capability: tuple[int, int], target: str, instruction: bytes, dim: int, dtype: Any, grad: bool, options: dict[str, Any]
) -> None:
    steps = made(dim, dtype, capability, grad, **options).steps
    assert len(steps) == (4 if grad else 1)
    dropout = "dropout_p" in options
    for step in steps:
        tile, kernel = compiler.chosen(step)
        assert kernel.shared <= shared_limit(capability) and kernel.warps == tile.warps
        assert kernel.entry == step.variant.kernel
        assert f".target {target}".encode() in kernel.ptx and b".version 8.7" in kernel.ptx
        # With dropout the tiles may be smaller than the newest instructions take.
        on_tensor_cores = instruction in kernel.ptx or (dropout and b"mma.sync" in kernel.ptx)
        assert on_tensor_cores == (step.variant.kernel != "attention_backward_delta")
        entry = kernel.ptx[kernel.ptx.index(b".entry " + kernel.entry.encode()) :]
        declared = re.findall(rb"\.param \.(\w+)", entry[: entry.index(b"{")])
        assert len(declared) == len(list(parameters(step.variant))) + 2
        assert declared[-2:] == [b"u64", b"u64"], "the scratch memories"
        assert kernel.cubin.startswith(b"\x7fELF")


def test_the_first_tiles_are_taken_on_large_devices() -> None:
    for dim in (64, 128, 256):
        (step,) = made(dim, np.float16, (9, 0)).steps
        assert compiler.chosen(step)[0] == step.tiles[0]


@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (12, 0)])
def test_smaller_devices_get_tiles_that_fit(capability: tuple[int, int]) -> None:
    for step in made(128, np.float16, capability, grad=capability == (8, 6)).steps:
        assert compiler.chosen(step)[1].shared <= shared_limit(capability)


@pytest.mark.parametrize(("capability", "tf32"), [((8, 0), False), ((8, 0), True)])
def test_float32_in_its_own_precision_or_tf32(capability: tuple[int, int], tf32: bool) -> None:
    x = np.zeros((1, 4, 256, 64), np.float32)
    (step,) = recipe(replace(attention_problem(x, x, x), device="cuda:0"), capability, tf32).steps
    assert (b"mma.sync" in compiler.chosen(step)[1].ptx) == tf32


def test_tables_of_parameters_are_those_of_the_kernels() -> None:
    for name, (pointers, scalars, fixed) in KERNELS.items():
        assert getattr(triton_kernels, name).arg_names == [*pointers, *scalars, *fixed]


def test_what_was_compiled_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    (step,) = made(16, np.float16, (8, 0)).steps
    tile, kernel = compiler.chosen(step)
    compiler._chosen.clear()
    monkeypatch.setattr(compiler, "build", None)  # calling it would fail
    again = compiler.chosen(step)
    assert again[0] == tile and (again[1].cubin, again[1].ptx) == (kernel.cubin, kernel.ptx)


PROGRAM = """
import json, sys
import numpy as np
from backline.problems.attention_problem import attention_problem
from backline.libraries.cuda.attention import kernel_compiler as compiler
from backline.libraries.cuda.attention.launch_sequence import recipe
assert "triton" not in sys.modules
x = np.zeros((1, 1, 64, 32), np.float16)
(step,) = recipe(attention_problem(x, x, x), (8, 0)).steps
compiler.chosen(step)
print(json.dumps([name for name in ("torch", "triton") if name in sys.modules]))
"""


def test_compiling_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["triton"]
