"""The spectrogram's example finds in a real record what is known to be in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from PIL import Image

import backline
from backline import libraries

SCRIPT = Path(__file__).parents[2] / "examples" / "spectrogram.py"


def run(*arguments: str, **environment: str) -> str:
    source = str(Path(backline.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])} | environment,
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.stderr == ""
    return done.stdout


def test_the_great_el_ninos_are_found(tmp_path: Path) -> None:
    picture = tmp_path / "spectrogram.png"
    out = run("--out", str(picture))
    periods = [float(p) for p in re.findall(r"^ +(\d+\.\d\d) years", out, re.MULTILINE)]
    assert periods[0] == 1.0 and all(2 < p < 7 for p in periods[1:])
    years = [int(y) for y in re.findall(r"^ +\w{3}-\w{3} (\d{4}) +\d\.\d\d$", out, re.MULTILINE)]
    assert len(years) == 6 and {1997, 1987, 1983, 1972} <= set(years)
    ran = re.findall(r"^(rfft|dct|idct) +[\dx]+ float32 +(\w+) [\w]+, x\d$", out, re.MULTILINE)
    assert [op for op, _ in ran] == ["rfft", "rfft", "dct", "idct"] and {lib for _, lib in ran} <= set(libraries.names())
    with Image.open(picture) as image:
        assert image.size == (1056, 480) and len(image.getcolors(1 << 20)) > 1000


def test_any_library_finds_the_same() -> None:
    """All but the difference from NumPy and the names of the libraries."""
    one, other = (run(BACKLINE_ONLY=name).partition("\nlargest")[0] for name in ("numpy", "scipy"))
    assert one == other and "1997" in one
