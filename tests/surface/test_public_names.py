"""Nothing public is lost: names and parameters are those of the file, which a deliberate change writes anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_public_names_and_parameters_are_those_on_record() -> None:
    recorded = (HERE / "data" / "public_names.txt").read_text(encoding="utf-8").splitlines()
    program = [sys.executable, str(HERE / "public_names.py")]  # in a process of its own: no plug-in of another test
    found = subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(recorded) > 500
    assert [line for line in recorded if line not in set(found)] == [], "gone or changed"
    assert [line for line in found if line not in set(recorded)] == [], "new: write the file anew"
