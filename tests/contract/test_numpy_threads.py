"""NumPy's BLAS on one thread: what may use one thread runs there, and the count is afterwards what it was before."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg
from backline.libraries.reference import numpy_threads, reference_linalg
from backline.nn import functional
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean
A = np.random.default_rng(0).standard_normal((200, 200))
F = A.astype(np.float32)


class Fake:
    """An OpenBLAS that says how many threads it was told to use."""

    def __init__(self) -> None:
        self.value, self.seen = 4, [4]

    def get(self) -> int:
        return self.value

    def put(self, count: int) -> None:
        self.value = count
        self.seen.append(count)


@pytest.fixture
def blas(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    count = numpy_threads._Count(fake.get, fake.put)
    monkeypatch.setattr(numpy_threads, "_count", lambda: count)
    monkeypatch.setattr(reference_linalg, "blas_threads", lambda: 4)
    return fake


IMAGES, WEIGHT = np.ones((2, 3, 32, 32), np.float32), np.ones((16, 3, 3, 3), np.float32)
CALLS: dict[str, Any] = {
    "matmul": (backline.matmul, A, A), "matmul f32": (backline.matmul, F, F), "svd": (linalg.svdvals, A), "solve": (linalg.solve, A, A),
    "attention": (functional.scaled_dot_product_attention, F[None, None], F[None, None], F[None, None]),
    "linear": (functional.linear, F, F), "conv2d": (functional.conv2d, IMAGES, WEIGHT),
}  # fmt: skip


@pytest.mark.parametrize("what", CALLS)
def test_one_thread_and_a_preference_run_numpy_on_one_thread(blas: Fake, what: str) -> None:
    op, *args = CALLS[what]
    with backline.use("numpy", only=True), backline.num_threads(2):
        expected = op(*args)
    assert blas.seen == [4]
    with backline.num_threads(1), backline.use("numpy"):
        choice = backline.explain(op, *args)
        assert choice.library == "numpy" and choice.chosen is not None and choice.chosen.threads == 1 and not choice.fallbacks
        result = op(*args)
    assert blas.seen == [4, 1, 4]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", [functional.relu, functional.gelu, backline.fft.fft])
def test_what_uses_no_blas_leaves_the_count_alone(blas: Fake, op: Any) -> None:
    with backline.num_threads(1), backline.use("numpy"):
        op(np.ones((2000, 1000)))
        ran = backline.explain().chosen
    assert blas.seen == [4] and ran is not None and "meanwhile" not in ran.note


def test_without_a_preference_others_come_first(blas: Fake) -> None:
    with backline.num_threads(1):
        choice = backline.explain(backline.matmul, A, A)
    names = [c.library for c in choice.candidates if c.verdict != "refused"]
    assert "numpy" in names and (names[-1] == "numpy" or names == ["numpy"])
    assert any("one thread meanwhile" in c.reason for c in choice.candidates if c.library == "numpy")


def test_the_count_comes_back_after_an_error(blas: Fake) -> None:
    with backline.num_threads(1), backline.use("numpy", only=True), pytest.raises(np.linalg.LinAlgError):
        linalg.solve(np.zeros((200, 200)), A)
    assert blas.value == 4


def test_calls_of_several_threads_share_the_limit(blas: Fake) -> None:
    count = numpy_threads._count()
    assert count is not None
    inside, leave = threading.Barrier(3), threading.Event()

    def call() -> None:
        with count:
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=call) for _ in range(2)]
    for each in threads:
        each.start()
    inside.wait()
    assert blas.value == 1
    leave.set()
    for each in threads:
        each.join()
    assert blas.seen == [4, 1, 4]


def test_a_blas_that_is_not_known_is_refused(blas: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_threads, "_count", lambda: None)
    with backline.num_threads(1):
        rows = backline.explain(backline.matmul, A, A).rows()
    assert any(row[0] == "refused" and row[1] == "numpy" and "takes no thread count" in row[4] for row in rows)


def test_numpys_own_openblas_is_told() -> None:
    import threadpoolctl

    def counts() -> list[int]:
        return [info["num_threads"] for info in threadpoolctl.threadpool_info() if "numpy.libs" in info["filepath"]]

    before = counts()
    if not before:
        assert numpy_threads._count() is None
        return
    count = numpy_threads._count()
    assert count is not None
    with count:
        assert counts() == [1]
    assert counts() == before
