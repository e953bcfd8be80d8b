"""Lets the tests here import the helpers that several folders share, and the valid calls of ``edges``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "edges")]
