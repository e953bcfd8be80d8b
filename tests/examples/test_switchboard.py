"""Every script of examples/switchboard runs, warns of nothing, and shows what it is about."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import backline
from backline import backends

FOLDER = Path(__file__).parents[2] / "examples" / "switchboard"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
RECIPES = ("go_faster", "same_result", "which_library")
# One script shows the libraries that have a module and nothing else.
TOGETHER = {"openblas": "use_numpy", "blis": "use_numpy"}

# What the output of each script must match. Nothing here depends on which libraries are installed.
SHOWS = {
    "use_backends": r"set_flags\('ieee'\) returned \('tf32',\)\n  inside the block +none\n  after it +ieee\n(?s:.*)was refused: the base is frozen"
    r"(?s:.*)inside a block +tf32, frozen: True",
    "use_cpu": r"capped, for a block: DEFAULT\n(?s:.*)cpu.capability = '\w+' is not a legal value",
    "use_cuda": r"allow_tf32 True, so fp32_precision tf32\n(?s:.*)highest .* \de-0[67]\n +high .*tf32.* \de-04\n(?s:.*)sdpa_kernel\(MATH\) +math\n(?s:.*)after the blocks +memory-efficient, math, cuDNN\n",
    "use_cudnn": r"inside flags\(...\) +enabled=True, benchmark=True, deterministic=True, allow_tf32=False\n"
    r" +after the block +enabled=True, benchmark=True, deterministic=False, allow_tf32=True\n",
    "use_cusparselt": r"inside the block: enabled False",
    "use_determinism": r"on: True, debug mode 2\n(?s:.*)warn only: True, mode 1\n.*same bits for any thread count(?s:.*)\[nan nan nan\], \[127 127 127\]",
    "use_float32_matmul_precision": r"high +tf32 +tf32.*\n +medium +bf16 +bf16",
    "use_fftw": r"refused: fftw.planning = 'thorough' is not a legal value(?s:.*)\nWithout FFTW a transform runs on (?!fftw)\w+",
    "use_scipy": r"\nWithout SciPy a cosine transform runs on (?!scipy)\w+",
    "use_kernels": r"conv2d +kernels depthwise\nNumPy alone: numpy\nWithout the loops a gradient runs on (?!kernels)\w+\n(?s:.*)kernels +depthwise",
    "use_libmvec": r"sin +(libmvec vectors|(mkl|numpy) \w+), at most \d units(?s:.*)Without it sines run on (?!libmvec)\w+",
    "use_kleidiai": r"inside the block: enabled False\nafter it: enabled True",
    "use_mha": r"fused: True\n.*: False\ninside the block: True\nrefused: mha.fastpath takes a bool",
    "use_miopen": r"returned \(False,\); immediate mode: True",
    "use_mkl": r"Without MKL a product runs on (?!mkl)\w+",
    "use_mkldnn": r"mkldnn.matmul.fp32_precision +bf16\n.*conv.fp32_precision +ieee\n(?s:.*)cudnn.fp32_precision is none\n(?s:.*)allow_tf32 True, matmul tf32(?s:.*)in the silent block: no calls",
    "use_mps": r"inside the block MLX arrays compute on the CPU: enabled False",
    "use_nnpack": r"set_flags\(False\) returned \(True,\); enabled: False",
    "use_numpy": r"All of them off but NumPy's own:\nproblem +linalg.solve f64(?s:.*)\nrefused +openblas +disabled by openblas.enabled",
    "use_openmp": r"num_threads\(1\) +\w+ on 1 thread\n",
    "use_opt_einsum": r"enabled = False +3,000,000 multiplications(?s:.*)strategy = 'optimal' +1,016,000(?s:.*)opt_einsum.strategy = 'best' is not a legal value",
    "use_python_native": r"triton disabled: True\nfor a block: True\nafter it: False\n",
    "use_quantized": r"set to: reference\nrefused: quantized.engine = 'none' is not a legal value",
    "use_xeon": r"instances: 2, cores for each: 1\nprogram: train.py --epochs 3\n(?s:.*)hardware threads: \d+",
    "use_xnnpack": r"(turned on|not turned on: xnnpack.enabled = True(?s:.*))\ninside the block: enabled False",
    "go_faster": r"\d of 6 run another way now(?s:.*)before:  shipped ranking(?s:.*)now:     tuning record(?s:.*)what was timed:\n    chosen ",
    "same_result": r"of 5 were the same by themselves; now all of them are(?s:.*)same bits for any thread count"
    r"(?s:.*)determinism_level = 'threads', scope \(same_result.py:\d+",
    "which_library": r"wrong\n(?s:.*)without swift .*right\n(?s:.*)swift is at fault(?s:.*)refused swift +disabled by swift.enabled",
}  # fmt: skip


def run(script: str) -> str:
    source = str(Path(backline.__file__).parents[1])
    done = subprocess.run(
        # The machine may be busy, which is said in a warning.
        [sys.executable, "-W", "error", "-W", "ignore:timed on a busy machine", str(FOLDER / f"{script}.py")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]), "BACKLINE_NUM_THREADS": "2", "BACKLINE_SHARE_PROCESSORS": "0"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.stderr == ""
    return done.stdout


def test_each_backend_has_a_script() -> None:
    modules = [name for name in backends._MODULES if name not in TOGETHER]
    assert {f"use_{name}" for name in modules} <= set(SCRIPTS)
    assert set(TOGETHER.values()) | set(RECIPES) <= set(SCRIPTS)


def test_each_script_has_an_expectation() -> None:
    assert set(SHOWS) == set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_shows_what_it_is_about(script: str) -> None:
    out = run(script)
    assert re.search(SHOWS[script], out), out


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_written_as_for_torch(script: str) -> None:
    text = (FOLDER / f"{script}.py").read_text()
    assert re.search(r"^import backline as torch$", text, re.MULTILINE)
    assert text.startswith('"""') and "import torch\n" not in text


@pytest.mark.parametrize(("before", "after", "words"), [
    (0.067, 21.9, "326.9 times as slow"), (21.9, 0.067, "326.9 times as fast"), (1.0, 1.05, "about as fast"),
    (1.0, 0.95, "about as fast"), (1.0, 0.5, "2.0 times as fast"), (None, 1.0, "not compared"), (1.0, None, "not compared"),
])  # fmt: skip
def test_how_a_change_of_time_is_called(before: float | None, after: float | None, words: str) -> None:
    assert runpy.run_path(str(FOLDER / "go_faster.py"))["words"](before, after) == words


def test_a_library_that_is_there_tells_of_its_calls() -> None:
    out = run("use_mkl")
    if "not on this machine" not in out:
        assert re.search(r"The same calls, collected:\nlibrary +op +implementation .*\nmkl +matmul ", out), out
        assert "MKL_VERBOSE" in out
