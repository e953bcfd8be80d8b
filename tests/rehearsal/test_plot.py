"""The picture of a result of the check on a GPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def plot() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "plot_gpu.py"
    spec = importlib.util.spec_from_file_location("plot_gpu", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timing(library: str, median: float, algorithm: str = "", row: str = "PERF-1") -> dict[str, Any]:
    return {"op": "matmul", "shape": [64, 64], "dtype": "float32", "library": library, "algorithm": algorithm, "median_us": median, "row": row}


FOUND = {
    "machine": {"card": "An invented card"},
    "rows": [{"id": "BLAS-1", "outcome": "proved"}, {"id": "BLAS-2", "outcome": "refuted"}],
    "timings": [
        timing("backline", 10.0), timing("torch", 20.0), timing("cupy", 5.0), timing("backline", 9.0, "FLASH"), timing("torch", 3.0, "CUDNN"),
        timing("backline", 9.0, row="SDPA-6"),
    ],
}  # fmt: skip


def test_ratios_are_of_the_same_case(plot: Any) -> None:
    assert plot.ratios(FOUND) == [("matmul float32 64x64", "torch", 0.5), ("matmul float32 64x64", "cupy", 2.0)]


def test_a_picture(plot: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "gpu-card.json"
    source.write_text(json.dumps(FOUND))
    plot.main(str(source))
    assert capsys.readouterr().out.strip() == str(tmp_path / "gpu-card.png")
    image = plot.Image.open(tmp_path / "gpu-card.png")
    seen = [sum(image.getpixel((x, plot.TOP + plot.LINE * i + 10)) == colour for x in range(image.width)) for i, colour in enumerate(plot.PEERS.values())]
    assert 0 < 3.5 * seen[0] < seen[1] < 4.5 * seen[0], "the bar of a ratio that is four times as large is four times as long"
    assert plot.draw(FOUND | {"timings": []}).height > 0
