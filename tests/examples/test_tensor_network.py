"""The example of tensor trains: it compresses, contracts as NumPy does, and tells how."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import backline
from backline import libraries

FOLDER = Path(__file__).parents[2] / "examples"


def run(*arguments: str, **environment: str) -> str:
    source = str(Path(backline.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / "tensor_network.py"), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])} | environment,
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.stderr == ""
    return done.stdout


def test_photographs_become_trains(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    out = run("--short", "--out", str(sheet))
    rows = re.findall(r"^  (\S.*?)  +(\d+) +(\d+) ([\w+]+) +\S+ +[\d.]+ ms +[\d.]+ ms +[\d.]+x  (\de[-+]\d\d)$", out, re.MULTILINE)
    assert [row[:2] for row in rows] == [("put together", "5"), ("scalar product", "10"), ("blurred", "7")], out
    assert {name for row in rows for name in row[3].split("+")} <= set(libraries.names())
    assert all(float(row[4]) < 1e-4 for row in rows)
    assert all(float(times) > 2 for times in re.findall(r"([\d.]+) times fewer$", out, re.MULTILINE))
    error = re.search(r"Relative error of the train (\d\.\d+)", out)
    assert error and float(error[1]) <= 0.1
    assert "path found by opt_einsum" in out and "step 9" in out
    data = sheet.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (3 * 192 // 2, 128 // 2)


def test_without_opt_einsum_and_on_numpy_alone() -> None:
    out = run("--short", BACKLINE_OPT_EINSUM_ENABLED="0", BACKLINE_ONLY="numpy", OPENBLAS_NUM_THREADS="1")
    assert "from left to right: opt_einsum is not enabled" in out
    assert re.search(r"^  put together .* numpy ", out, re.MULTILINE)
