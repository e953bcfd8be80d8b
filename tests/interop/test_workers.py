"""Settings in workers: threads, forked and fresh processes, joblib."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import joblib
import numpy as np
import pytest

import backline
from backline import backends, switches
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean
WANTED = (1, "bf16", ("numpy",))


def settings() -> tuple[Any, ...]:
    return switches.get("num_threads"), switches.get("fp32_precision"), switches.get("prefer")


def products() -> Any:
    with backline.trace() as events:
        backline.matmul(np.eye(64), np.eye(64))
    return [event.library for event in events]


@pytest.fixture
def scope() -> Any:
    return switches.scope(num_threads=1, fp32_precision="bf16", prefer=("numpy",))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes(scope: Any, method: str) -> None:
    context = multiprocessing.get_context(method)
    with scope:
        initializer, carried = backline.worker_initializer(), backline.carry(settings)
    with ProcessPoolExecutor(1, context, initializer) as pool:
        assert pool.submit(settings).result() == WANTED
        if method != "fork":  # a forked child warns that its libraries run on one thread
            assert pool.submit(products).result() == ["numpy"]
    with ProcessPoolExecutor(1, context) as pool:
        assert pool.submit(carried).result() == WANTED
        assert pool.submit(settings).result()[2] == ()


def test_threads(scope: Any) -> None:
    before = settings()
    with scope:
        initializer, carried = backline.worker_initializer(), backline.carry(settings)
    with ThreadPoolExecutor(2, initializer=initializer) as pool:
        assert {pool.submit(settings).result() for _ in range(8)} == {WANTED}
    with ThreadPoolExecutor(2) as pool:
        assert pool.submit(carried).result() == WANTED and pool.submit(settings).result() == before
    assert settings() == before


LOKY = """
import joblib
import backline
from backline import switches

def settings():
    return switches.get("num_threads"), switches.get("fp32_precision"), switches.get("prefer")

with switches.scope(num_threads=1, fp32_precision="bf16", prefer=("numpy",)):
    carried = backline.carry(settings)
print(set(joblib.Parallel(2, backend="loky")(joblib.delayed(carried)() for _ in range(4))))
"""


def test_joblib(scope: Any) -> None:
    with scope:
        carried = backline.carry(settings)
    assert joblib.Parallel(2, backend="threading")(joblib.delayed(carried)() for _ in range(4)) == [WANTED] * 4
    # Its processes outlive a call: they end with a program.
    done = subprocess.run([sys.executable, "-c", LOKY], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str({WANTED})


def test_a_carried_function_is_itself(scope: Any) -> None:
    with scope:
        carried = backline.carry(settings)
    assert carried.__name__ == "settings" and pickle.loads(pickle.dumps(carried))() == WANTED
    with backends.flags(fp32_precision="tf32"):
        assert carried() == WANTED and settings()[1] == "tf32"


def test_an_error_comes_through(scope: Any) -> None:
    def fail() -> None:
        raise KeyError("mine")

    before = settings()
    with pytest.raises(KeyError, match="mine"):
        backline.carry(fail)()
    assert settings() == before
