"""Runs compared bit for bit: planted differences are found, named and told apart; sound programs pass."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import backline
from backline import _core, backends, libraries
from backline.cli import app
from backline.engine.run_hashes import RunHashes, events_of, hash_of
from backline.engine.verify_determinism import verify_script
from backline.errors import BadType, BadValue
from backline.libraries.base import Algorithm, Library, PythonPlan
from backline.native import filled_memory, moved_memory
from backline.nn import functional
from backline.problems.matmul_problem import MatmulProblem
from support import clean, rng, seed

pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed


class Planted(Library):
    """Takes the place of NumPy: products in which something is planted, a function of the right one and the threads allowed."""

    name = "numpy"
    title = "Planted"

    def __init__(self, plant: Callable[[Any, int], Any], level: str) -> None:
        super().__init__()
        self.plant, self.level, self.names = plant, level, ["sum"]

    def reason(self) -> str:
        return ""

    def version(self) -> str:
        return "1"

    def algorithms(self, problem: Any, threads: int) -> Iterator[Algorithm]:
        if isinstance(problem, MatmulProblem):
            yield Algorithm(library=self.name, name=self.names[-1], threads=threads, scaled=threads > 1, level=self.level)

    def prepare(self, problem: Any, algorithm: Algorithm) -> PythonPlan:
        return PythonPlan(lambda a, b: self.plant(a @ b, algorithm.threads))


def sound(product: Any, threads: int) -> Any:
    return product


@pytest.fixture
def plant() -> Iterator[Callable[..., Planted]]:
    """Registers a library with a planted difference."""

    def register(function: Callable[[Any, int], Any] = sound, level: str = "run") -> Planted:
        made = Planted(function, level)
        libraries.register(made)
        return made

    yield register
    libraries.unregister("numpy")
    _core.memo_clear()


def product(a: Any, b: Any) -> Any:
    with backline.use("numpy"):
        return backline.matmul(a, b)


def test_a_sum_that_depends_on_the_threads_is_named(plant: Callable[..., Planted], rng: np.random.Generator) -> None:
    plant(lambda product, threads: product * (1 + 2.0**-52 * threads))
    x = rng.integers(-4, 5, (20, 20)).astype(float)  # of integers sums are exact, whatever their order
    with backends.flags(deterministic=True):  # the load of the machine has no say in the threads
        report = backline.verify_determinism(lambda x: functional.relu(product(x, x)), x, runs=2)
        one = backline.verify_determinism(lambda x: product(x, x), x, runs=2, threads=(2,))
    found = report.difference
    assert not report and report.level == "run" and report.threads == (1, 2) and found is not None
    assert found.what == "result" and found.after is not None and found.after.op == "matmul" and found.number == 1
    assert (found.after.library, found.after.level, found.after.asked) == ("numpy", "run", "run")
    assert "level='threads'" in found.remedy and "numpy" not in found.remedy
    assert "numpy sum, 1 thread; then numpy sum, 2 threads" in str(report)
    assert report.reaches("run") and not report.reaches("threads")
    assert one and one.level == "run" and one.difference is None


def test_bits_that_change_from_call_to_call_are_named(plant: Callable[..., Planted]) -> None:
    calls: list[int] = []
    plant(lambda product, threads: calls.append(0) or product + len(calls), level="off")
    report = backline.verify_determinism(lambda x: product(x, x), np.eye(3), runs=2, threads=(1,))
    found = report.difference
    assert report.level == "off" and not report.reaches("run") and found is not None and found.what == "result"
    assert "in another run" in found.cause and "use_deterministic_algorithms(True, level='run')" in found.remedy


def test_a_sum_in_the_order_in_which_threads_end_is_named(plant: Callable[..., Planted]) -> None:
    terms, runs = (1e16, -1e16, 1.0), itertools.count()

    def add_up(product: Any, threads: int) -> Any:
        order = (0, 1, 2) if next(runs) % 2 else (2, 1, 0)  # as if threads were not equally fast in every run
        turns, total = [threading.Event() for _ in range(len(terms) + 1)], [0.0]

        def add(term: float, turn: int) -> None:
            turns[turn].wait()
            total[0] += term
            turns[turn + 1].set()

        workers = [threading.Thread(target=add, args=(terms[i], turn)) for turn, i in enumerate(order)]
        for worker in workers:
            worker.start()
        turns[0].set()
        for worker in workers:
            worker.join()
        return product + total[0]

    plant(add_up, level="off")
    report = backline.verify_determinism(lambda x: product(x, x), np.eye(3), runs=2, threads=(2,))
    found = report.difference
    assert report.level == "off" and found is not None and found.what == "result" and found.after is not None
    assert (found.after.library, found.after.op) == ("numpy", "matmul") and "in another run" in found.cause


def test_a_choice_by_measured_times_is_named(plant: Callable[..., Planted]) -> None:
    """Two algorithms with other bits, of which the one is taken that was faster in the run: the clock here runs as it likes."""
    made, clock = plant(), itertools.cycle([(1.0, 2.0), (2.0, 1.0)])

    def run(x: Any) -> Any:
        first, second = next(clock)
        made.names[-1] = "dot" if first < second else "blocks"
        made.plant = lambda product, threads: product * (1 + 2.0**-52 * (first < second))
        _core.memo_clear()
        return product(x, x)

    report = backline.verify_determinism(run, np.eye(4), runs=2, threads=(1,))
    found = report.difference
    assert report.level == "off" and found is not None and found.before is not None and found.after is not None
    assert {found.before.algorithm, found.after.algorithm} == {"numpy.dot@1", "numpy.blocks@1"}
    assert "measured times or the load of the machine decided" in found.cause and "neither has a say then" in found.remedy


def test_a_promise_that_is_broken_is_a_defect(plant: Callable[..., Planted]) -> None:
    calls: list[int] = []
    plant(lambda product, threads: calls.append(0) or product + len(calls), level="threads")
    with backends.flags(deterministic=True, determinism_level="threads"):
        report = backline.verify_determinism(lambda x: product(x, x), np.eye(3), runs=2)
    assert report.difference is not None
    assert "defect" in report.difference.cause and "another library than numpy" in report.difference.remedy


def test_memory_that_is_read_before_it_is_written_shows(plant: Callable[..., Planted]) -> None:
    if filled_memory._mallopt() is None:
        pytest.skip("the C library is not glibc")
    plant(lambda product, threads: np.empty(product.shape), level="threads")
    x = np.zeros((300, 300))
    report = backline.verify_determinism(lambda x: product(x, x), x, runs=3, threads=(1,))
    assert report.difference is not None and report.difference.what == "result"


def test_a_result_that_depends_on_the_address_shows_where_arrays_are_moved(plant: Callable[..., Planted]) -> None:
    seen: list[int] = []
    x = np.eye(8)

    def run(x: Any) -> Any:
        seen.append(x.ctypes.data % 64)
        return product(x, x) + x.ctypes.data % 64

    plant()
    report = backline.verify_determinism(run, x, runs=2, threads=(1,))
    assert report.difference is not None and report.difference.what == "returned" and len(set(seen)) == 2
    assert backline.verify_determinism(run, x, runs=2, threads=(1,), moved=False)


def test_a_choice_that_changes_is_told_from_a_library_that_does(plant: Callable[..., Planted]) -> None:
    made = plant()

    def run(x: Any) -> Any:
        made.names.append(f"{made.names[-1]} again")
        made.plant = lambda product, threads: product + len(made.names)
        _core.memo_clear()
        return product(x, x)

    report = backline.verify_determinism(run, np.eye(4), runs=2, threads=(1,))
    found = report.difference
    assert found is not None and found.before is not None and found.after is not None
    assert found.after.algorithm == found.before.algorithm.replace("@", " again@")
    assert "another algorithm" in found.cause and "use_deterministic_algorithms" in found.remedy


def test_the_programs_own_randomness_is_not_blamed_on_a_library() -> None:
    draw = np.random.default_rng().standard_normal
    report = backline.verify_determinism(lambda: backline.matmul(draw((5, 5)), np.eye(5)), runs=2, threads=(1,))
    assert report.level == "off" and report.difference is not None
    assert report.difference.what == "inputs" and "random numbers" in report.difference.remedy
    turns: list[int] = []

    def fewer() -> None:
        turns.append(0)
        for _ in range(3 - len(turns)):
            backline.matmul(np.eye(5), np.eye(5))

    report = backline.verify_determinism(fewer, runs=2, threads=(1,))
    assert report.difference is not None and report.difference.what == "missing" and report.operations == 2
    report = backline.verify_determinism(lambda: draw(3), runs=2, threads=(1,))
    assert report.difference is not None and report.difference.what == "returned" and report.operations == 0


def test_what_is_overwritten_and_what_threads_call_is_followed(rng: np.random.Generator) -> None:
    x, out = rng.integers(-4, 5, (6, 6)).astype(float), np.zeros((6, 6))  # every sum below is exact

    def run(x: Any, out: Any) -> Any:
        worker = threading.Thread(target=lambda: backline.matmul(x, x.T))
        worker.start()
        worker.join()
        for _ in range(3):
            backline.matmul(x, x, out=out)
            x += out
        return x

    kept = x.copy()
    with backends.flags(deterministic=True, determinism_level="threads"):
        report = backline.verify_determinism(run, x, out, runs=2)
    assert report, str(report)
    assert report.operations == 4 and np.array_equal(x, kept) and not out.any()


def test_what_compares_nothing_is_refused() -> None:
    for words in ({"runs": 1, "threads": (1,)}, {"runs": 0}, {"threads": ()}, {"threads": (0,)}):
        with pytest.raises(BadValue):
            backline.verify_determinism(lambda: None, **words)
    with pytest.raises(BadType, match="takes a function"):
        backline.verify_determinism(3)  # type: ignore[arg-type]  # wrong on purpose

    def nested() -> None:
        backline.verify_determinism(lambda: None)

    with pytest.raises(BadValue, match="running already"):
        backline.verify_determinism(nested)
    with pytest.raises(ZeroDivisionError):
        backline.verify_determinism(lambda: 1 // 0)
    assert backline.verify_determinism(lambda: None)  # an error before left nothing behind


def test_events_go_through_json(plant: Callable[..., Planted]) -> None:
    plant()
    hashes = RunHashes()
    _core.set_tracer(hashes)
    try:
        product(np.eye(3), np.eye(3))
        product(np.eye(3), np.eye(3))
    finally:
        _core.set_tracer(None)
    entries = json.loads(json.dumps(hashes.entries()))
    assert [entry["problem"] is None for entry in entries] == [False, True]
    assert events_of(entries) == tuple(hashes.events)


def test_hashes_tell_bits_apart() -> None:
    x = np.array([[0.0, 1.0], [np.nan, -0.0]])
    y = x.copy()
    y[1, 0] = -y[1, 0]  # another NaN
    values = [
        x, y, x.T, x.astype(np.float32), -x, x.ravel(), x[:0], x.astype(complex), (x, x), [x], {"x": x}, 1, 1.0, True, None, "1",
        np.float64(1), np.zeros(0), np.zeros((0, 3)), (), "", object(),
    ]  # fmt: skip
    assert len({hash_of(value) for value in values}) == len(values)
    assert hash_of(x) == hash_of(np.asfortranarray(x)) == hash_of(np.repeat(x, 2, 1)[:, ::2])


@pytest.mark.parametrize("number", range(1, 9))
def test_copies_lie_elsewhere_and_are_equal(number: int) -> None:
    wide = np.arange(60.0).reshape(6, 10)
    unaligned = np.frombuffer(bytearray(65), np.uint8)[1:].view(np.float64)
    arrays = [
        wide, wide.T, wide[::-1, ::-2], wide[:, 3], np.broadcast_to(wide[0], (4, 10)), np.zeros(0), np.float32(3) + np.zeros(()),
        np.arange(5, dtype=np.int8), wide.astype(complex), unaligned, np.asfortranarray(wide),
    ]  # fmt: skip
    for array, copy in zip(arrays, moved_memory.moved_copies(arrays, number), strict=True):
        assert np.array_equal(array, copy) and copy.strides == array.strides and copy.flags.aligned == array.flags.aligned
        assert not array.size or not np.shares_memory(array, copy)
    copies = moved_memory.moved_copies({"x": wide, "y": [wide, "text"]}, number)
    assert copies["x"] is copies["y"][0] and copies["y"][1] == "text"


# Scripts --------------------------------------------------------------------------------------------------------------

SOUND = """
import sys
import numpy as np, backline
assert __name__ == "__main__" and sys.argv[1:] == ["--runs", "x y"]
backline.use_deterministic_algorithms(True, level="threads")
x = np.random.default_rng(0).integers(-4, 5, (64, 64)).astype(float)
for _ in range(2):
    x = backline.matmul(x, x)
"""
PLANTED = """
import numpy as np, backline
from backline import libraries
from backline.libraries.base import Algorithm, Library, PythonPlan

class Planted(Library):
    name = title = "numpy"
    def reason(self): return ""
    def version(self): return "1"
    def algorithms(self, problem, threads):
        yield Algorithm(library="numpy", name="sum", threads=threads, scaled=threads > 1)
    def prepare(self, problem, algorithm):
        return PythonPlan(lambda a, b: a @ b + algorithm.threads)

libraries.register(Planted())
x = np.eye(4)
with backline.backends.flags(deterministic=True):
    backline.linalg.inv(x)
    with backline.use("numpy"):
        backline.matmul(x, x)
"""


def check(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", "determinism", *words])
    return done.exit_code, done.output


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "job.py"
        path.write_text(text)
        return str(path)

    return write


def test_a_sound_script_passes(script: Callable[[str], str]) -> None:
    steps: list[str] = []
    report = verify_script([script(SOUND), "--runs", "x y"], runs=1, step=steps.append)
    assert report and report.level == "threads" and report.operations == 2
    assert steps == ["run 1 on 1 thread", "run 1 on 2 threads"]


def test_a_planted_difference_in_a_script_is_named(script: Callable[[str], str]) -> None:
    path = script(PLANTED)
    status, text = check("--runs", "1", path)
    assert status == 1 and "matmul f64 4x4 4x4" in text and "numpy sum, 1 thread; then numpy sum, 2 threads" in text
    status, text = check("--runs", "1", "--level", "run", "--json", path)
    content = json.loads(text[text.index("{") :])
    assert status == 0 and content["level"] == "run" and content["threads"] == [1, 2]
    found = content["difference"]
    assert found["what"] == "result" and found["after"]["library"] == "numpy" and found["number"] == 2
    assert found["before"]["result"] != found["after"]["result"] and found["before"]["inputs"] == found["after"]["inputs"]


def test_a_module_is_compared(script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(script(SOUND)).parent)
    status, text = check("--runs", "1", "-m", "job", "--runs", "x y")
    assert status == 0 and "threads" in text, text


def test_scripts_that_cannot_be_compared(script: Callable[[str], str]) -> None:
    status, text = check("--runs", "2", "--threads", "1", script("import numpy as np\nnp.eye(3) @ np.eye(3)\n"))
    assert status == 3 and "called no operation" in text
    status, text = check("--runs", "2", "--threads", "1", script("1 // 0\n"))
    assert status == 1 and "ZeroDivisionError" in text
    for words in (
        ("nowhere.py",),
        ("-m", "no_such_module"),
        ("--threads", "two", "x.py"),
        ("--level", "off", "x.py"),
        ("--threads", "1", "--runs", "1", __file__),
        (),
    ):
        assert check(*words)[0] == 2, words
