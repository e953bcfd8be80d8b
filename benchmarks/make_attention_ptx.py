"""Make the attention kernels that come with Backline: src/backline/libraries/cuda/attention_sm80.json.xz.

    python benchmarks/make_attention_ptx.py            compile and write; a minute or two, without a GPU
    python benchmarks/make_attention_ptx.py --check    compile, and say whether the file holds the same

Needs Triton (pip install 'triton>=3.8'). The same Triton writes the same file. It has to be made anew when
attention_kernels.py changes: a test compares the digests.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # names of files are no part of a kernel
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import ml_dtypes
import numpy as np

from backline.libraries.cuda.attention import kernel_compiler as compiler
from backline.libraries.cuda.attention import packaged_kernels as packaged
from backline.libraries.cuda.attention.launch_sequence import Step, Tile, recipe
from backline.problems import operand
from backline.problems.attention_problem import attention_problem


def steps() -> dict[str, Step]:
    """Every launch of the Problems that are to run without Triton, by the name of its kernel."""
    found: dict[str, Step] = {}
    for dtype in packaged.DTYPES:
        for dim in packaged.DIMS:
            x = np.zeros((1, 1, 256, dim), np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))
            for causal in (False, True):
                forward = replace(attention_problem(x, x, x, is_causal=causal), device="cuda:0")
                backward = replace(forward, operands=(*forward.operands, operand("grad", x)))
                for problem in (forward, backward):
                    for step in recipe(problem, packaged.CAPABILITY).steps:
                        step = replace(step, variant=replace(step.variant, divisor=packaged.DIVISOR))
                        found.setdefault(packaged.name_of(step.variant), step)
    return found


def compiled(step: Step) -> tuple[Tile, compiler.Compiled]:
    """The first of a step's tiles that fits on every device, and its kernel."""
    for tile in step.tiles:
        made = compiler.build(step.variant, tile)
        if made.shared <= packaged.SHARED:
            return tile, made
    raise SystemExit(f"nothing of {step.variant} fits")


def main() -> None:
    if "torch" in sys.modules:
        raise SystemExit("PyTorch was imported")
    rows = []
    for name, step in sorted(steps().items()):
        tile, made = compiled(step)
        print(f"{name}: {tile}, {made.shared} bytes shared, {len(made.ptx)} of PTX", flush=True)
        rows.append((step.variant, tile, made))
    content = packaged.packed(compiler.version(), rows)
    size = sum(len(made.ptx) for *_, made in rows)
    print(f"{len(rows)} kernels, {size} bytes, {len(content)} compressed, Triton {compiler.version()}")
    path = Path(packaged.FILE)
    if "--check" in sys.argv[1:]:
        same = path.is_file() and path.read_bytes() == content
        raise SystemExit(0 if same else f"{path} holds something else")
    path.write_bytes(content)


if __name__ == "__main__":
    main()
