"""Plug-ins in processes of their own: what is imported, what the command line says, threads, tuning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from plugin_files import CODE, files

import backline
from support import python

Maker = Callable[..., Path]


STATES = {"BACKLINE_CONFIG": "", "BACKLINE_TUNING": ""}


def path_of(*folders: Path) -> dict[str, str]:
    return {**STATES, "PYTHONPATH": os.pathsep.join([str(Path(backline.__file__).parents[1]), *map(str, folders)])}


def test_importing_backline_looks_for_nothing(make: Maker) -> None:
    folder = make("some-plugin", {"thing": "some_package.row:ROW", "numpy": "some_package:thing.toml"}, files("some_package"))
    python(
        """
        import sys
        import backline
        import backline.backends.mkl
        from backline.backends import blis
        assert not [name for name in sys.modules if name.startswith(("some_package", "backline.libraries.plugin", "importlib.metadata"))]
        """,
        env={**path_of(folder), "PYTHONWARNINGS": "error"},
    )


def test_info_and_switches_say_what_is_wrong(make: Maker) -> None:
    broken = {**files("broken_package", "broken"), "broken_package/code.py": "1 / 0"}
    folder = make("odd-plugin", {"numpy": "x:Y", "old": "x:y.toml", "broken": "broken_package.row:ROW", "Odd": "x:Y"}, broken)
    good = make("good-plugin", {"good": "good_package.row:ROW"}, files("good_package", "good"))
    env = os.environ | path_of(folder, good)

    def command(*words: str) -> tuple[str, str]:
        run = [sys.executable, "-m", "backline", *words]
        done = subprocess.run(run, capture_output=True, text=True, env=env, timeout=120, check=True)
        return done.stdout, done.stderr

    whole, warned = command("info", "--json")
    content = json.loads(whole)
    assert [text.split(":")[0] for text in content["plug-ins"]] == [
        "plug-in Odd of odd-plugin 1.0 is refused", "plug-in numpy of odd-plugin 1.0 is refused",
        "plug-in old of odd-plugin 1.0 is unusable",
    ]  # fmt: skip
    assert all("BACKLINE_PLUGINS=0" in text and f"backline: {text}" in warned for text in content["plug-ins"])
    rows = {row["name"]: row for row in content["libraries"]}
    assert rows["good"]["available"] and rows["good"]["found by"] == "plug-in good of good-plugin 1.0"
    assert "leads to a TOML file" in rows["old"]["reason"] and "ZeroDivisionError" in rows["broken"]["reason"]
    shown, _ = command("info")
    assert "\nplug-ins that cannot be used\n" in shown and "leads to a TOML file" in shown and "good-plugin 1.0" in shown
    listed, warned = command("switches")
    assert all(f"{name}.enabled" in listed for name in ("old", "broken", "good")) and "good.size" in listed
    assert "plug-in old of odd-plugin 1.0 is unusable" in warned
    assert "good.size" in command("switches", "good")[0]


def test_a_choice_and_an_import_of_a_row_in_two_threads_wait_for_neither(make: Maker) -> None:
    """The row's module is slow, and uses switches while another thread that is choosing waits for its import."""
    slow = "import time\ntime.sleep(1)\nfrom backline import switches\nswitches.get('fallback'), switches.library_names()\n"
    content = files("slow_package")
    content["slow_package/row.py"] = slow + content["slow_package/row.py"]
    folder = make("some-plugin", {"thing": "slow_package.row:ROW"}, content)
    python(
        """
        import importlib, threading
        import numpy as np
        import backline
        from backline import libraries, switches

        errors = []

        def guarded(function, *arguments):
            try:
                function(*arguments)
            except Exception as error:
                errors.append(repr(error))

        def run(*arguments):
            thread = threading.Thread(target=guarded, args=arguments, daemon=True)
            thread.start()
            return thread

        a = np.eye(3)
        threads = [run(importlib.import_module, "slow_package.row")]
        threads += [run(backline.mm, a, a) for _ in range(4)]
        threads += [run(switches.get, "thing.size"), run(libraries.get, "thing")]
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads) and not errors, errors
        assert libraries.get("thing").available() and switches.get("thing.size") == 3
        """,
        env={**path_of(folder), "PYTHONWARNINGS": "error"},
    )


def test_it_is_measured_and_its_record_is_used(make: Maker, tmp_path: Path) -> None:
    code = CODE.replace("np.full(problem.result, 7.0)", "np.matmul(a, b)")
    folder = make("some-plugin", {"thing": "tuned_package.row:ROW"}, files("tuned_package", code=code))
    python(
        """
        import numpy as np
        import backline
        from backline.engine import choose
        from backline.engine.tuning import measure
        a = np.ones((8, 8))
        with backline.use("thing", only=True):
            problem = backline.explain(backline.mm, a, a).problem
            record = measure.measure_problem(problem, choose.eligible(problem, 1), 1, budget=0.1)
        assert list(record.errors) == ["thing.only@1"] and record.errors["thing.only@1"] < 1e-12, record
        """,
        env=path_of(folder),
    )
