"""Lets the tests here import ``valid_calls`` beside them and ``support``, the helpers that several folders share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
