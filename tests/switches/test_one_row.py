"""A new switch is one row of ``switches/definitions.py``: a row is added there, and everything that shows switches has it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import python

# The module of the definitions is loaded from its own text with one more row, as if somebody had written it there.
PROGRAM = """
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path

ROW = 'Switch("mkl.toy_limit", int, 5, AtLeast(0), "Most toys at a time.", ("matmul",)),'
PATH = Path(find_spec("backline").origin).parent / "switches" / "definitions.py"

class Edited(SourceFileLoader):
    def get_code(self, name):
        text = PATH.read_text()
        assert text.count("_CPU = (") == 1
        return compile(text.replace("_CPU = (", "_CPU = (" + ROW), str(PATH), "exec", dont_inherit=True)

class Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "backline.switches.definitions":
            return spec_from_file_location(name, PATH, loader=Edited(name, str(PATH)))

sys.meta_path.insert(0, Finder())

from backline import backends, switches
from typer.testing import CliRunner
from backline.cli import app

def printed(*arguments):
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output

# environment variable, attribute, scope keyword
assert backends.mkl.toy_limit == 7 and str(switches.origin("mkl.toy_limit")) == "environment (BACKLINE_MKL_TOY_LIMIT)"
backends.mkl.toy_limit = 8
with backends.mkl.flags(toy_limit=9):
    assert backends.mkl.toy_limit == switches.current()["mkl.toy_limit"] == 9
assert backends.mkl.toy_limit == 8 and "toy_limit" in dir(backends.mkl) and "toy_limit" in backends.mkl.__all__

# help
assert "toy_limit\\n    Most toys at a time." in backends.mkl.__doc__ and "Most toys at a time." in backends.mkl.flags.__doc__

# command line and page
assert "mkl.toy_limit" in printed("switches", "mkl") and '"name": "mkl.toy_limit"' in printed("switches", "mkl", "--json")
(row,) = [line for line in printed("switches", "--docs").splitlines() if "BACKLINE_MKL_TOY_LIMIT" in line]
assert all(part in row for part in ("`mkl.toy_limit`", "int, 0 or more", "`5`", "matmul", "Most toys at a time."))
"""


def test_a_row_is_all_that_a_new_switch_needs() -> None:
    python(PROGRAM, env={"BACKLINE_MKL_TOY_LIMIT": "7", "BACKLINE_CONFIG": "", "BACKLINE_TUNING": ""})
