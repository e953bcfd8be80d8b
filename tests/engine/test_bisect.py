"""Bisection of scripts: planted faults of a plug-in are found in few runs; what cannot be found is said."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from erring import script
from typer.testing import CliRunner

from backline import switches
from backline.cli import app
from backline.engine import bisect as module
from backline.engine.bisect import BisectReport, NothingToBisect, Run, bisect_script
from backline.engine.bisect_search import BAD, GOOD, SKIP, Call, middle, search
from backline.engine.tune_script import ScriptFailed
from backline.errors import BadValue
from support import clean, new_seed

pytestmark = pytest.mark.usefixtures("clean")
assert clean and script

# 200 products, of which 15 have the shape that the plug-in errs for; the last line says what came of it.
SCRIPT = """
import sys
import numpy as np, backline
a, b, c = np.ones((7, 5)), np.ones((5, 6)), np.ones((4, 12))
total, wrong = 0.0, False
with backline.use("erring"):
    for i in range(150):
        found = backline.matmul(a, b) if i % 10 == 7 else backline.matmul(a.T, a) if i % 2 else backline.matmul(c.T, c)
        wrong |= bool((found != found.flat[0]).any())
        total += float(found.sum())
for i in range(50):
    total += float(backline.matmul(b, b.T).sum())
open(sys.argv[1], "w").write("wrong" if wrong else "right")
print("a word")
"""
ERRS = "c = a @ b; c[1, 2] += 1; return c"
VERIFY = "import sys; sys.exit(open(sys.argv[1]).read() != 'right')"


def test_a_wrong_kernel_among_200_calls(script: Callable[..., str], tmp_path: Path) -> None:
    path, out, verify = script(SCRIPT, ERRS), tmp_path / "out", tmp_path / "verify.py"
    verify.write_text(VERIFY)
    steps: list[Run] = []
    report = bisect_script([path, str(out)], test=f"{sys.executable} {verify} {out}", step=steps.append)
    assert steps == report.runs and len(report.runs) <= 12
    assert [run.outcome for run in report.runs[:2]] == [BAD, GOOD] and report.runs[0].number == 1
    (found,) = report.suspects
    assert (found.library, found.algorithm, found.shape) == ("erring", "narrow", "matmul f64 7x5 5x6") and 1 <= found.number <= 15
    assert report.alone is False and report.without_library is True
    text = str(report)
    assert "backline run --set erring.enabled=False" in text and "which is good" in text
    assert "call" in text and len(text.splitlines()) == len(report.runs) + len(report.rows())


def test_the_command_and_one_call(script: Callable[..., str]) -> None:
    """By the script's own status; one call alone is wrong."""
    path = script("""
        import sys
        import numpy as np, backline
        a, b = np.ones((7, 5)), np.ones((5, 6))
        with backline.use("erring"):
            for i in range(4):
                backline.matmul(a.T, a)
            found = backline.matmul(a, b)
        sys.exit(int(found[1, 2] != 5))
    """, ERRS)
    done = CliRunner().invoke(app, ["bisect", path])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "run 1: every call as chosen: bad" and lines[1] == "run 2: every call by numpy: good"
    for part in ("matmul f64 7x5 5x6", "erring", "narrow", "number 1 of this problem", "that call alone", "--set erring.enabled=False"):
        assert part in done.output, part


def test_a_crash(script: Callable[..., str]) -> None:
    path = script(
        """
        import numpy as np, backline
        a, b = np.ones((7, 5)), np.ones((5, 6))
        with backline.use("erring"):
            backline.matmul(a.T, a)
            backline.matmul(a, b)
        """,
        "import resource, signal; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.SIGSEGV)",
    )
    report = bisect_script([path])
    assert [call.shape for call in report.suspects] == ["matmul f64 7x5 5x6"] and report.alone is True


def test_nothing_to_find(script: Callable[..., str], tmp_path: Path) -> None:
    product = "import sys, numpy as np, backline\nwith backline.use('erring'): backline.matmul(np.eye(3), np.eye(3))\n"
    done = CliRunner().invoke(app, ["bisect", script(product)])
    assert done.exit_code == 3 and "it is good as it is" in done.output and "--test" in done.output
    path = tmp_path / "job.py"
    path.write_text(product + "sys.exit(3)")
    with pytest.raises(NothingToBisect, match="bad on numpy alone as well"):
        bisect_script([str(path)])
    path.write_text("1 // 0")
    with pytest.raises(NothingToBisect, match="calls no operation of Backline") as caught:
        bisect_script([str(path)])
    assert "ZeroDivisionError" in str(caught.value)
    path.write_text(product + "sys.exit(200)")
    with pytest.raises(ScriptFailed, match="status 200"):
        bisect_script([str(path)])
    for words in (["nowhere.py"], ["--against", "nothing", str(path)], [], ["-m"]):
        assert CliRunner().invoke(app, ["bisect", *words]).exit_code == 2, words


def test_what_was_printed_is_shown(script: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    product = "import sys, numpy as np, backline\nwith backline.use('erring'): backline.matmul(np.eye(3), np.eye(3))\n"
    path = script(product)
    with pytest.raises(NothingToBisect) as caught:
        bisect_script([path], test=f"{sys.executable} {tmp_path / 'missing.py'}")
    assert "bad on numpy alone as well" in str(caught.value) and "the test printed: " in str(caught.value)
    assert "missing.py" in str(caught.value) and "--test names" not in str(caught.value)
    Path(path).write_text(product + "raise ValueError('a word')")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bisect", "-m", "job"])
    assert done.exit_code == 3 and "the script printed: " in done.output and "ValueError: a word" in done.output
    Path(path).write_text(product + "sys.exit(125)")
    with pytest.raises(NothingToBisect, match="cannot tell whether it is good or bad"):
        bisect_script([path])
    for test in ("no-such-command x", "'unclosed", " "):
        done = CliRunner().invoke(app, ["bisect", "--test", test, path])
        assert done.exit_code == 2 and "--test" in done.output and "run 1" not in done.output, test


def test_stopped_it_leaves_nothing(script: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = script("import sys, numpy as np, backline\nbackline.matmul(np.eye(3), np.eye(3))\n")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = switches.current(), dict(os.environ)

    def stop(run: Run) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bisect_script([path], step=stop)
    assert not list(folder.iterdir()) and (switches.current(), dict(os.environ)) == before and switches.tracer() is None


# The search ----------------------------------------------------------------------------------------------------------------


def made(random_: random.Random, count: int) -> list[Call]:
    found = [Call(random_.choice("abc"), random_.choice("xy"), random_.choice("pq"), i) for i in range(count)]
    return sorted(found)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 65, 200, 1000])
def test_as_few_runs_as_halving_takes(count: int) -> None:
    random_ = random.Random(new_seed())
    for _ in range(20):
        calls, wrong = made(random_, count), random_.randrange(count)
        runs: list[int] = []

        def outcome(at: int, wrong: int = wrong, runs: list[int] = runs) -> str:
            runs.append(at)
            return BAD if at > wrong else GOOD

        assert search(calls, outcome) == (wrong, wrong + 1)
        assert len(runs) <= (count - 1).bit_length()


def test_borders_come_first() -> None:
    calls = [Call("a", "x", "p", i) for i in range(90)] + [Call("b", "x", "p", i) for i in range(110)]
    assert middle(calls, 0, 200) == 90 and middle(calls, 0, 90) == 45
    calls = [Call("a", "x", "p", i) for i in range(3)] + [Call("a", "y", "p", i) for i in range(3)] + [Call("a", "y", "q", 1)]
    assert middle(calls, 0, 7) == 3 and middle(calls, 3, 7) == 5 and middle(calls, 0, 2) == 1
    assert middle([Call("a", "x", "p", 0)] + [Call("b", "x", "p", i) for i in range(199)], 0, 200) == 100  # one run more otherwise


def test_runs_that_tell_nothing() -> None:
    calls = [Call("a", "x", "p", i) for i in range(16)]
    for skipped in range(1, 16):
        found = search(calls, lambda at, skipped=skipped: SKIP if at == skipped else BAD if at > 8 else GOOD)  # type: ignore[misc]  # no type is inferred for a lambda with a default
        assert found == {8: (7, 9), 9: (8, 10)}.get(skipped, (8, 9))
    assert search(calls, lambda at: SKIP) == (0, 16)


# What the runs say -----------------------------------------------------------------------------------------------------------


class Played:
    """Plays the runs of a script: the calls that are wrong, and the seconds that each takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[Call]) -> None:
        self.calls, self.wrong, self.slow = calls, set[Call](), set[Call]()
        self.skips: Callable[[int], bool] = lambda count: False
        (tmp_path / "job.py").write_text("")
        self.argv = [str(tmp_path / "job.py")]
        played = self

        def child(bisection: object, chosen: list[Call] | None, more: dict[str, str]) -> tuple[int, float, str]:
            running = set(played.calls if chosen is None else chosen)
            if more:
                assert more == {"BACKLINE_MKL_ENABLED": "0"}
                running = {call for call in running if call.library != "mkl"}
            status = 125 if chosen and played.skips(len(chosen)) else int(bool(running & played.wrong))
            return status, 1.0 + 10 * len(running & played.slow), "said"

        monkeypatch.setattr(module._Bisection, "_child", child)
        monkeypatch.setattr(module._Bisection, "_recorded", lambda bisection: list(played.calls))

    def report(self, *, slow: bool = False) -> BisectReport:
        return bisect_script(self.argv, slow=slow)


CALLS = [Call(library, "x", f"matmul {i}", 1) for library in ("mkl", "numpy", "openblas") for i in range(10)]


def test_what_is_concluded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played = Played(monkeypatch, tmp_path, CALLS)
    played.wrong = {CALLS[4]}
    report = played.report()
    assert report.suspects == [CALLS[4]] and report.calls == 20 and (report.alone, report.without_library) == (True, True)
    assert "that call alone" in str(report)
    played.wrong = {CALLS[4], CALLS[25]}
    report = played.report()
    assert report.suspects == [CALLS[4]] and (report.alone, report.without_library) == (False, False)
    assert "--set" not in report.remedy() and "backline.use('numpy')" in report.remedy()  # the switch does not help
    played.wrong, played.skips = {CALLS[4]}, lambda count: count < 15
    report = played.report()
    assert len(report.suspects) > 1 and CALLS[4] in report.suspects and report.alone is None
    assert "the runs that would tell were skipped" in str(report)


def test_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played = Played(monkeypatch, tmp_path, CALLS)
    played.wrong = {CALLS[4]}
    content = json.loads(CliRunner().invoke(app, ["bisect", "--json", *played.argv]).output)
    assert content["alone"] is True and content["without_library"] is True and content["calls"] == 20
    assert content["suspects"] == [{"library": "mkl", "algorithm": "x", "shape": "matmul 4", "number": 1}]
    assert content["runs"][0] == {"number": 1, "what": "every call as chosen", "outcome": "bad", "seconds": 1.0}
    assert content["remedy"].startswith("backline run --set mkl.enabled=False")


def test_what_is_slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played = Played(monkeypatch, tmp_path, CALLS)
    with pytest.raises(NothingToBisect, match=r"take 1 s, and 1 s on numpy alone"):
        played.report(slow=True)
    played.slow = {CALLS[7]}
    report = played.report(slow=True)
    assert report.suspects == [CALLS[7]] and report.alone is True and report.without_library is True
    played.wrong = {CALLS[7]}
    with pytest.raises(ScriptFailed, match="ended with status 1"):
        played.report(slow=True)


def test_statuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bisection = module._Bisection(BisectReport("job.py", "numpy"), ["job.py"], [], False, str(tmp_path), lambda run: None)
    assert [bisection._judged(status, 0.0) for status in (0, 1, 124, 125, 126, 127, -11, -6)] == [GOOD, BAD, BAD, SKIP, BAD, BAD, BAD, BAD]
    for status in (128, 255, -2, -9, -15, -64):
        with pytest.raises(ScriptFailed):
            bisection._judged(status, 0.0)
    bisection.test = [sys.executable, "-c", "import sys; sys.exit(125)"]
    assert bisection._judged(0, 0.0) == SKIP and bisection._judged(1, 0.0) == BAD
    with pytest.raises(BadValue):
        bisect_script([str(tmp_path / "nowhere.py")])
