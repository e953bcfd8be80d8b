"""The examples made of layers do what they say: a network learns, with the same bits again, and a photograph gets cleaner."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import backline
from backline import libraries

FOLDER = Path(__file__).parents[2] / "examples"
LAYERS = ("conv2d", "max_pool2d", "batch_norm_train", "linear", "log_softmax")
GRADIENTS = (
    "conv2d_weight", "conv2d_input", "relu_input", "max_pool2d_input", "batch_norm_gradients", "matmul", "log_softmax_input",
)  # fmt: skip


def run(script: str, *arguments: str, threads: int = 1, **environment: str) -> str:
    source = str(Path(backline.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / script), *arguments],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]), "BACKLINE_NUM_THREADS": str(threads)}
        | environment,
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.stderr == ""
    return done.stdout


def accuracy(out: str) -> float:
    found = re.search(r"held-out accuracy (\d\.\d{4})", out)
    assert found, out
    return float(found[1])


def ran(out: str) -> dict[str, set[str]]:
    """Operation -> libraries, from the table of layers."""
    found: dict[str, set[str]] = {}
    for op, library in re.findall(r"^    .{20}  (\w+) +(\w+) .*x\d +\d+ us$", out, re.MULTILINE):
        found.setdefault(op, set()).add(library)
    return found


def digests(out: str) -> list[str]:
    """Fingerprints of the weights: of the training that is shown, and of the two that are compared."""
    return re.findall(r"\b[0-9a-f]{16}\b", out)


def test_a_network_learns_digits_and_tells_what_ran_its_layers() -> None:
    out = run("digits_cnn.py", "--epochs", "6")
    assert accuracy(out) >= 0.97
    table = ran(out)
    assert set(table) == {*LAYERS, *GRADIENTS}
    assert set().union(*table.values()) <= set(libraries.names())
    lost = re.search(r"^Quantized to int8: accuracy \d\.\d{4}, (-?\d\.\d\d) points lost$", out, re.MULTILINE)
    assert lost and float(lost[1]) < 4  # after three epochs a network in seven lost 4.7, as its roundings fell
    _, one, other = digests(out)
    assert one == other


def test_deterministic_trainings_agree_bit_for_bit() -> None:
    runs = [run("digits_cnn.py", "--deterministic", "--epochs", "1", threads=2) for _ in range(2)]
    seen = [digest for out in runs for digest in digests(out)]
    assert len(seen) == 6
    assert len(set(seen)) == 1


def test_a_network_learns_digits_on_numpy_alone() -> None:
    out = run("digits_cnn.py", "--epochs", "1", BACKLINE_ONLY="numpy", OPENBLAS_NUM_THREADS="1")
    assert accuracy(out) >= 0.9
    assert set().union(*ran(out).values()) == {"numpy"}


def test_a_photograph_is_filtered_and_cleaned(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    out = run("photo_filters.py", "--short", "--out", str(sheet))
    rows = re.findall(r"^  (\S.*?)  +(\w+) \w+ x\d +[\d.]+ ms +[\d.]+ ms +[\d.]+x +(\de-\d\d)$", out, re.MULTILINE)
    assert [row[0] for row in rows] == ["24 filters of 9x9", "half the size", "attention in 96 windows"], out
    assert {row[1] for row in rows} <= set(libraries.names())
    assert all(float(row[2]) < 1e-5 for row in rows)
    noisy, clean = map(float, re.findall(r"([\d.]+) dB", out))
    assert clean > noisy + 3
    data = sheet.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (192, 128)
