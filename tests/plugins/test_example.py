"""The example plug-in as a user has it: installed by pip, used in fresh processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Installed = Callable[..., Any]


def test_nothing_of_it_is_imported_before_it_is_needed(installed: Installed) -> None:
    installed(
        """
        import sys
        import backline
        import numpy as np
        from backline import backends, libraries, switches

        def imported():
            return sorted(name for name in sys.modules if name.startswith("backline_example"))

        assert "importlib.metadata" not in sys.modules and "tomllib" not in sys.modules
        assert "strassen" in libraries.names() and "kahan" in libraries.names()
        assert switches.get("strassen.cutoff") == 256 and switches.get("kahan.enabled") is True
        assert "strassen" in dir(backends) and "strassen" in switches.library_names()
        with switches.scope({"strassen.cutoff": 64}), backline.use("strassen"):
            assert switches.get("strassen.cutoff") == 64 and switches.get("prefer") == ("strassen",)
        assert imported() == [], imported()

        # Off, or not asked for: neither is needed for a product, nor is the one that serves products for another operation.
        a = np.eye(4)
        with switches.scope({"strassen.enabled": False, "kahan.enabled": False}):
            backline.mm(a, a)
        with backline.use("numpy", only=True):
            backline.mm(a, a)
        assert imported() == [], imported()
        with switches.scope({"kahan.enabled": False}):
            backline.linalg.inv(a)
            assert imported() == [], imported()
            backline.mm(a, a)
            assert imported() == [], imported()  # it could not come before what ran
            assert "strassen" in [c.library for c in backline.explain().candidates]
            assert imported() == ["backline_example", "backline_example.strassen"], imported()
        backline.explain(backline.mm, a, a)
        assert imported() == ["backline_example", "backline_example.kahan", "backline_example.strassen"], imported()
        """
    )


def test_its_switches_come_from_everywhere_switches_come_from(installed: Installed, tmp_path: Path) -> None:
    project = tmp_path / "backline.toml"
    project.write_text('prefer = ["strassen"]\n[strassen]\ncutoff = 32\n[kahan]\nlargest = 7\n')
    program = """
        import backline
        from backline import backends, switches
        print(backends.prefer, backends.strassen.cutoff, backends.kahan.largest)
        print(switches.origin("strassen.cutoff"), switches.origin("kahan.largest"))
        """
    values, origins = installed(program).stdout.splitlines()
    assert values == "('strassen',) 32 7"
    assert origins == f"project file ({project}:strassen.cutoff) project file ({project}:kahan.largest)"
    values, origins = installed(program, BACKLINE_STRASSEN_CUTOFF="64", BACKLINE_KAHAN_LARGEST="8").stdout.splitlines()
    assert values == "('strassen',) 64 8"
    assert origins == "environment (BACKLINE_STRASSEN_CUTOFF) environment (BACKLINE_KAHAN_LARGEST)"


def test_a_bad_value_in_a_file_is_one_error_that_names_everything(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "backline.toml").write_text("[strassen]\ncutoff = 3\ncutof = 64\n")
    program = """
        import backline
        try:
            backline.backends.strassen.cutoff
        except ValueError as error:
            print(str(error).replace("\\n", " "))
        assert backline.backends.strassen.cutoff == 256
        """
    (message,) = installed(program, PYTHONWARNINGS="default").stdout.splitlines()
    for part in (
        "backline.toml",
        "line 2: strassen.cutoff = 3",
        "16 (the nearest)",
        "line 3: 'strassen.cutof' = 64",
        "strassen.cutoff",
    ):
        assert part in message


def test_each_switch_changes_the_choice_and_the_result_says_so(installed: Installed) -> None:
    installed(
        """
        import numpy as np
        import backline
        from backline import backends

        from fractions import Fraction

        rng = np.random.default_rng(0)
        a, b = rng.standard_normal((200, 150)), rng.standard_normal((150, 170))
        some = [(i, 7 * i % 170) for i in range(0, 200, 5)]
        exact = [float(sum(Fraction(x) * Fraction(y) for x, y in zip(a[i], b[:, j]))) for i, j in some]

        def refusal(library):
            return next(c for c in backline.explain(backline.mm, a, b).candidates if c.library == library and c.verdict == "refused")

        with backline.use("strassen"):
            assert backline.explain(backline.mm, a, b).library != "strassen"
            assert refusal("strassen").switch == "strassen.cutoff" and "cutoff = 256" in refusal("strassen").reason
            with backends.strassen.flags(cutoff=40):
                choice = backline.explain(backline.mm, a, b)
                assert choice.library == "strassen" and "2 halvings" in choice.chosen.note
                result = backline.mm(a, b)
                assert backline.explain().library == "strassen"
                assert np.abs(result - a @ b).max() < 1e-11
                assert not np.array_equal(result, np.matmul(a, b)), "it does compute by itself"
                with backends.strassen.flags(enabled=False):
                    assert backline.explain(backline.mm, a, b).library != "strassen"
                    assert refusal("strassen").switch == "strassen.enabled" and "disabled by strassen.enabled" in refusal("strassen").reason
                with backends.numpy.flags(enabled=False):
                    assert refusal("strassen").switch == "numpy.enabled"
            assert backends.strassen.halvings(200, 170, 150) == 0

        with backline.use("kahan", only=True):
            result = backline.mm(a, b)
            assert backline.explain().library == "kahan"
            wrong = [abs(result[at] - right) / np.spacing(abs(right)) for at, right in zip(some, exact)]
            assert max(wrong) <= 1, "compensated sums round once"
            with backends.flags(deterministic=True, determinism_level="threads"):
                assert backline.explain(backline.mm, a, b).library == "kahan"
        with backline.use("kahan"), backends.kahan.flags(largest=100):
            assert refusal("kahan").switch == "kahan.largest"
        with backends.flags(deterministic=True, determinism_level="threads"), backends.strassen.flags(cutoff=40):
            assert refusal("strassen").switch == "determinism_level", "it promises no more than NumPy does"
        """
    )


def test_its_products_are_right_in_every_shape_it_takes(installed: Installed) -> None:
    installed(
        """
        import itertools
        import numpy as np
        import backline
        from backline import backends
        from backline.errors import BadValue, NoKernel

        rng = np.random.default_rng(1)
        with backline.use("strassen", only=True), backends.strassen.flags(cutoff=16):
            for m, k, n in itertools.product((17, 33, 64), (17, 40), (31, 65)):
                for dtype, bound in (("f4", 1e-3), ("f8", 1e-12), ("c8", 1e-3), ("c16", 1e-12)):
                    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
                    c = backline.mm(a, b)
                    assert c.dtype == a.dtype and np.abs(c - a @ b).max() < bound, (m, k, n, dtype)
                    out = np.empty((n, m), dtype).T
                    assert backline.mm(a, b, out=out) is out and np.array_equal(out, c)
            square = rng.standard_normal((20, 20))
            for bad in (np.inf, np.nan):
                a = square.copy()
                a[3, 4] = bad
                assert np.array_equal(np.isfinite(backline.mm(a, square)), np.isfinite(a @ square))
            try:
                backline.mm(square, square, out=square)
                raise AssertionError("an output that overlaps an operand was taken")
            except BadValue:
                pass
            for call in (lambda: backline.mm(square[:4], square), lambda: backline.bmm(square[None], square[None]),
                         lambda: backline.addmm(square, square, square), lambda: backline.linalg.inv(square)):
                try:
                    call()
                    raise AssertionError("it has only plain products of matrices above the cutoff")
                except NoKernel as error:
                    assert "strassen" in str(error) or "not among only" in str(error)

        with backline.use("kahan", only=True):
            for dtype in ("f4", "f8"):
                a, b = rng.standard_normal((2, 3, 5, 7)).astype(dtype), rng.standard_normal((3, 7, 4)).astype(dtype)
                x, y = a[0, 0, 0], b[0, :, 0]
                for got, want in ((backline.matmul(a, b), a @ b), (backline.dot(x, y), x @ y), (backline.mv(a[0, 0], y), a[0, 0] @ y),
                                  (backline.mm(a[0, 0, :, :0], b[0, :0]), np.zeros((5, 4), dtype))):
                    assert got.dtype == a.dtype and got.shape == want.shape
                    assert np.allclose(got, want, rtol=0, atol=100 * np.finfo(dtype).eps)
            # Sums that cancel: the usual product has no right digit left.
            x = np.array([1e16, 1.0, -1e16, 3.0])
            assert backline.dot(x, np.ones(4)) == 4.0
            big = np.array([[1e308, 1e308], [np.inf, 1.0]])
            assert np.array_equal(backline.mm(big, np.array([[1.0], [1.0]])), [[np.inf], [np.inf]])
        """
    )


def test_its_backend_modules_behave_like_others(installed: Installed) -> None:
    installed(
        """
        import importlib, pickle
        import backline
        from backline import backends
        from backline.errors import BadType, BadValue, ReadOnly, UnknownName
        from backline.backends import kahan, strassen
        import backline.backends.kahan as again

        assert again is kahan and backends.kahan is kahan and backends.strassen is strassen
        assert strassen.__name__ == "backline_example.backend" and kahan.__name__ == "backline.backends.kahan"
        uniform = {"enabled", "flags", "is_available", "is_enabled", "set_flags", "version"}
        assert uniform | {"cutoff", "halvings"} <= set(dir(strassen)) and uniform | {"largest", "plan_cache"} <= set(dir(kahan))
        for module, name, good, bad in ((strassen, "cutoff", 32, 15), (kahan, "largest", 0, -1)):
            assert module.is_available() and module.is_enabled() and module.version() == "1.0"
            with module.flags(enabled=False):
                assert not module.enabled and not module.is_enabled()
            before = getattr(module, name)
            setattr(module, name, good)
            assert getattr(module, name) == good
            assert module.set_flags(**{"_" + name: before}) == (True, good) and getattr(module, name) == before
            for value, kind in ((bad, BadValue), ("x", BadType), (True, BadType), (None, BadType)):
                try:
                    setattr(module, name, value)
                    raise AssertionError(f"{name} = {value!r} was taken")
                except kind as error:
                    assert name in str(error)
            for attempt, kind in ((lambda: module.enabeld, UnknownName), (lambda: setattr(module, "enabeld", False), UnknownName),
                                  (lambda: setattr(module, "flags", None), ReadOnly)):
                try:
                    attempt()
                    raise AssertionError(f"{module} took it")
                except kind:
                    pass
            assert pickle.loads(pickle.dumps(module)) is module
            assert importlib.reload(module) is module and getattr(module, name) == before
        assert "compensated" in kahan.flags.__doc__ and "backline-example-plugin 1.0" in kahan.__doc__
        for name in ("strasen", "no_such_backend"):
            try:
                getattr(backends, name)
                raise AssertionError(name)
            except UnknownName as error:
                assert name != "strasen" or "strassen" in str(error)
        try:
            import backline.backends.strasen
        except ModuleNotFoundError:
            pass
        """
    )


@pytest.mark.parametrize(
    "first",
    [
        "import backline_example.backend as strassen",
        "from backline.backends import strassen",
        "import backline; strassen = backline.backends.strassen",
        "import backline; backline.backends.strassen.cutoff = 64; strassen = backline.backends.strassen",
        "from backline import switches; switches.assign('strassen.cutoff', 64); from backline.backends import strassen",
        "from backline import libraries; libraries.get('strassen').available(); from backline.backends import strassen",
    ],
)
def test_whatever_is_asked_first_finds_it(installed: Installed, first: str) -> None:
    installed(f"{first}\nstrassen.cutoff = 48\nfrom backline import switches\nassert switches.get('strassen.cutoff') == 48")


@pytest.mark.parametrize(
    "first",
    [
        "switches.get('kahan.largest')",
        "switches.assign('kahan.largest', 5)",
        "switches.scope({'kahan.largest': 5})",
        "switches.origin('kahan.largest')",
        "backends.kahan.largest",
        "backends.kahan.flags(largest=5)",
        "backends.kahan.set_flags(_largest=5)",
        "setattr(backends.kahan, 'largest', 5)",
        "libraries.get('kahan').version()",
        "libraries.ready()",
    ],
)
def test_a_class_is_asked_for_its_switches_when_one_of_them_is_met(installed: Installed, first: str) -> None:
    installed(f"from backline import backends, libraries, switches\n{first}\nassert switches.get('kahan.largest') in (5, 10**7)")


def test_a_snapshot_with_its_switches_goes_to_a_process_that_did_not_look_yet(installed: Installed) -> None:
    installed(
        """
        import pickle, subprocess, sys
        from backline import backends, switches
        with backends.strassen.flags(cutoff=48), backends.kahan.flags(largest=9):
            data = pickle.dumps(switches.current())
        child = "import pickle, sys; s = pickle.loads(bytes.fromhex(sys.argv[1])); print(s['strassen.cutoff'], s['kahan.largest'])"
        done = subprocess.run([sys.executable, "-c", child, data.hex()], capture_output=True, text=True)
        assert done.stdout.split() == ["48", "9"], done
        """
    )


def test_first_use_in_many_threads_at_once_finds_it_in_each(installed: Installed) -> None:
    installed(
        """
        import sys, threading
        import numpy as np
        import backline
        from backline import backends, libraries, switches
        sys.setswitchinterval(1e-6)
        asks = [lambda: switches.get("strassen.cutoff"), lambda: switches.get("kahan.largest"), lambda: backends.kahan.largest,
                lambda: backends.strassen.cutoff, lambda: libraries.get("strassen").version(), lambda: backline.mm(np.eye(3), np.eye(3)),
                lambda: backline.use("kahan"), lambda: backline.explain(backline.mm, np.eye(3), np.eye(3)).chosen]
        barrier, errors = threading.Barrier(32), []
        def run(i):
            barrier.wait()
            try:
                asks[i % len(asks)]()
            except Exception as error:
                errors.append(repr(error))
        threads = [threading.Thread(target=run, args=(i,)) for i in range(32)]
        [t.start() for t in threads], [t.join() for t in threads]
        assert not errors, errors
        """
    )


def test_plugins_can_be_turned_off(installed: Installed) -> None:
    for word in ("0", "off", "False", "no"):
        installed(
            """
            from backline import backends, libraries, switches
            assert libraries.names()[-1:] != ("kahan",) and "strassen" not in libraries.names()
            assert not hasattr(backends, "strassen") and "kahan.enabled" not in switches.declared()
            """,
            BACKLINE_PLUGINS=word,
        )


def test_the_command_line_shows_it(site: Path) -> None:
    import backline

    path = os.pathsep.join([str(Path(backline.__file__).parents[1]), str(site)])

    def command(*words: str) -> str:
        run = [sys.executable, "-W", "error", "-m", "backline", *words]
        done = subprocess.run(
            run, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown = command("switches")
    assert re.search(r"^strassen\.cutoff +256 +default +matmul", shown, re.M) and "kahan.largest" in shown
    assert "Matrices are halved" in command("switches", "strassen.cutoff")
    assert json.loads(command("switches", "kahan", "--json"))[-1]["name"] == "kahan.largest"
    rows = {r["name"]: r for r in json.loads(command("info", "--json"))["libraries"]}
    assert rows["strassen"]["version"] == "1.0" and "backline-example-plugin 1.0" in rows["strassen"]["found by"]
    assert "kahan" in command("explain", "matmul f64 8x8 8x8")
