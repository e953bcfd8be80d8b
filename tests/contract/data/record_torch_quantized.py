"""Writes torch_quantized.json: what PyTorch's engines fbgemm and qnnpack compute. To be run from `tests` where PyTorch is installed.

    PYTHONPATH=.:contract python contract/data/record_torch_quantized.py
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

SEED, COUNT = 20, 120


def main() -> None:
    import torch  # here, because the tests look for examples in every file
    from test_quantized_float32 import RECORDED, as_text, problems, theirs

    assert platform.machine() == "x86_64", "on other processors PyTorch saturates and rounds otherwise"
    results = [as_text(theirs(torch, p)) for p in problems(SEED, COUNT)]
    Path(RECORDED).write_text(json.dumps({"torch": torch.__version__, "seed": SEED, "results": results}, indent=0) + "\n")


if __name__ == "__main__":
    main()
