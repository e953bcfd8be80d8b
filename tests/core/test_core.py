"""The compiled core by itself: plans as data, copies, triangles, checks, gates, the pool of memory, Operations."""

from __future__ import annotations

import ctypes
import gc
import itertools
import pickle
import sys
import threading
import time
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from guarded import placed

import backline
from backline import _core, linalg
from backline.errors import BadValue
from backline.native.plan_builder import ELEMENT, TRIANGLE
from support import clean, misaligned, python, rng, seed

pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed
Array = Any


def copy(source: Array, target: Array, element: Any) -> Array:
    """Run one Copy2D from one array to another."""
    step = ("copy", ELEMENT[element], *source.shape, *source.strides, *target.strides, (0, 0, 0), (1, 0, 0))
    plan = _core.PreparedCall(2, [("argument", 0), ("argument", 1)], [(1, 1, [step])], [1], [])
    assert plan(source, target) is target
    return target


def views(shape: tuple[int, int], dtype: Any) -> list[Array]:
    """Arrays of one shape in the layouts that a copy may meet."""
    m, n = shape
    dtype = np.dtype(dtype)
    return [
        np.zeros((m, n), dtype), np.zeros((n, m), dtype).T, np.zeros((m, n), dtype)[::-1], np.zeros((m, n), dtype)[:, ::-1],
        np.zeros((2 * m, 3 * n), dtype)[::2, ::3], np.zeros((m, n + 7), dtype)[:, 3 : 3 + n], misaligned(np.zeros((m, n), dtype)),
        np.zeros((n + 5, m), dtype).T[:, :n],
    ]  # fmt: skip


SHAPES = ((1, 1), (1, 9), (9, 1), (3, 5), (17, 33), (64, 65), (40, 150), (0, 4), (4, 0))


@pytest.mark.parametrize("dtype", ["u2", "u4", "u8"])
def test_transposes_write_nothing_else(dtype: str, rng: np.random.Generator) -> None:
    for m, n in (*itertools.product((1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33), repeat=2), (100, 67), (5, 200), (200, 5)):
        values = rng.integers(1, 1 << 15, (m, n)).astype(dtype)
        for gap, beside in itertools.product((0, 3), (0, 5)):
            whole, given = np.zeros((n + 2, m + gap), dtype), np.full((m, n + beside), 7, dtype)
            given[:, :n] = values
            wanted = whole.copy()
            wanted[1:-1, :m] = values.T
            copy(given[:, :n], whole[1:-1, :m].T, values.itemsize)
            assert np.array_equal(whole, wanted), (m, n, gap, beside)


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("dtype", ["u2", "u4", "u8"])
def test_transposes_read_nothing_else(dtype: str, at_end: bool, rng: np.random.Generator) -> None:
    """A read beyond either end would be one of memory that may not be touched, which ends the process."""
    for m, n in (*itertools.product((1, 2, 3, 5, 8, 17), repeat=2), (100, 3), (3, 100), (67, 130)):
        values = rng.integers(1, 1 << 15, (m, n)).astype(dtype)
        source, before = placed(values, values.strides, at_end=at_end)
        target, after = placed(np.zeros((n, m), dtype), (m * values.itemsize, values.itemsize), at_end=at_end)
        copy(source, target.T, values.itemsize)
        assert np.array_equal(target, values.T), (m, n)
        before.release()
        after.release()


@pytest.mark.parametrize("dtype", ["i2", "f4", "f8", "c16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_copies_and_transposes(shape: tuple[int, int], dtype: str, rng: np.random.Generator) -> None:
    data = np.frombuffer(rng.bytes(shape[0] * shape[1] * np.dtype(dtype).itemsize), np.uint8)
    values = data.view(dtype).reshape(shape)
    for source, target in itertools.product(views(shape, dtype), views(shape, dtype)):
        source[...] = values
        copy(source, target, np.dtype(dtype).itemsize)
        assert np.array_equal(np.ascontiguousarray(target).view(np.uint8), np.ascontiguousarray(values).view(np.uint8))
    wide = np.broadcast_to(values[:1], shape)  # a stride of 0 in the source
    assert np.array_equal(
        np.ascontiguousarray(copy(wide, np.zeros(shape, dtype), np.dtype(dtype).itemsize)).view(np.uint8),
        np.ascontiguousarray(wide).view(np.uint8),
    )


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_conjugating_copies(dtype: str, rng: np.random.Generator) -> None:
    values = (rng.standard_normal((7, 19)) + 1j * rng.standard_normal((7, 19))).astype(dtype)
    for source, target in itertools.product(views((7, 19), dtype), views((7, 19), dtype)):
        source[...] = values
        assert np.array_equal(copy(source, target, ("conj", np.dtype(dtype).itemsize)), values.conj())


def test_integers_of_both_widths(rng: np.random.Generator) -> None:
    values = rng.integers(-(2**31), 2**31, (5, 7))
    assert np.array_equal(copy(values, np.zeros((5, 7), np.int32), ("int64", "int32")), values)
    assert np.array_equal(copy(values.astype(np.int32), np.zeros((5, 7), np.int64), ("int32", "int64")), values)


HALVES = np.arange(65536, dtype=np.uint16)


def same(x: Array, y: Array) -> bool:
    """Bit for bit, but any NaN for any NaN."""
    kind = {2: np.uint16, 4: np.uint32}[x.dtype.itemsize]
    nan = np.isnan(x.astype(np.float32)) & np.isnan(y.astype(np.float32))
    return bool((nan | (x.view(kind) == y.view(kind))).all())


def three_ways(values: Array, dtype: Any, element: Any) -> tuple[Array, Array, Array]:
    """The conversion in rows and in columns (vector instructions), and by single elements (transposed)."""
    flat = values.reshape(1, -1)
    row = copy(flat, np.zeros(flat.shape, dtype), element)[0]
    square = np.ascontiguousarray(values.reshape(-1, 16))
    single = copy(square, np.zeros((16, len(square)), dtype).T, element)
    columns = copy(square.T, np.zeros(square.shape, dtype).T, element)
    return row, columns.T.reshape(-1), np.ascontiguousarray(single).reshape(-1)


@pytest.mark.parametrize(("name", "kind"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_every_half_widens_exactly(name: str, kind: Any) -> None:
    halves = HALVES.view(kind)
    for result in three_ways(halves, np.float32, (name, "float32")):
        assert same(result, halves.astype(np.float32))


@pytest.mark.parametrize(("name", "kind"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_narrowing_rounds_to_nearest_even(name: str, kind: Any, rng: np.random.Generator) -> None:
    exact = HALVES.view(kind).astype(np.float32)
    ordered = np.sort(exact[np.isfinite(exact)])
    ties = (ordered[:-1].astype(np.float64) + ordered[1:]) / 2  # half way between neighbours
    near = [np.nextafter(ties.astype(np.float32), np.float32(s)) for s in (np.inf, -np.inf)]
    edges = np.array(
        [65504, 65519.996, 65520, 65536, 3.4028235e38, 3.3961775e38, 1e-45, -1e-45, 2**-25, 2**-24, 0, -0.0], np.float32
    )
    anything = rng.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    for values in (exact, ties.astype(np.float32), *near, edges, -edges, anything):
        padded = np.concatenate([values, np.zeros(-len(values) % 16, np.float32)])
        with np.errstate(all="ignore"):
            reference = padded.astype(kind)
        for result in three_ways(padded, kind, ("float32", name)):
            assert same(result, reference)
    nan = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0xFFFFFFFF] * 8, np.uint32).view(np.float32)
    for result in three_ways(nan, kind, ("float32", name)):
        assert np.isnan(result.astype(np.float32)).all()
        assert np.array_equal(np.signbit(result.astype(np.float32)), np.signbit(nan))


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (33, 33), (4, 9), (9, 4), (0, 0)], ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_triangles(shape: tuple[int, int], dtype: str, rng: np.random.Generator) -> None:
    start = (
        (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype, casting="unsafe")
        if dtype[0] == "c"
        else rng.standard_normal(shape).astype(dtype)
    )
    expected = {"zero_upper": np.tril(start), "zero_lower": np.triu(start), "unit_diagonal": start.copy()}
    np.fill_diagonal(expected["unit_diagonal"], 1)
    if shape[0] == shape[1]:
        expected["mirror_lower"] = np.tril(start) + np.tril(start, -1).conj().T
        expected["mirror_upper"] = np.triu(start) + np.triu(start, 1).conj().T
    for mode, wanted in expected.items():
        for array in views(shape, dtype):
            array[...] = start
            step = ("triangle", TRIANGLE[mode], *shape, *array.strides, array.itemsize, int(dtype[0] == "c"), (0, 0, 0))
            _core.PreparedCall(1, [("argument", 0)], [(1, 1, [step])], [0], [])(array)
            assert np.array_equal(array, wanted), mode


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_finite_sees_every_element(dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    infos: list[list[int]] = []
    for array in views((5, 7), dtype):
        step = ("finite", 5, 7, *array.strides, size, -77, (0, 0, 0), (1, 0, 4))
        clear = ("copy", ELEMENT[4], 1, 1, 0, 0, 0, 0, (2, 0, 0), (1, 0, 4))
        plan = _core.PreparedCall(
            1, [("argument", 0), ("work", 4), ("constant", bytes(8))], [(1, 1, [clear, step])], [0], [], info=(1, 4, 1),
            on_info=lambda plan, found, arrays, results: infos.append(found) or None,
        )  # fmt: skip
        array[...] = np.finfo(dtype).max
        assert plan(array) is array and not infos
        for value in (np.nan, np.inf, -np.inf):
            for i, j in itertools.product(range(5), range(7)):
                array[i, j] = value
                plan(array)
                array[i, j] = 1
        assert infos == [[-77]] * 105
        infos.clear()


def test_indices_out_of_range_stop_the_native_calls() -> None:
    infos: list[Any] = []
    clear = ("copy", ELEMENT[4], 1, 1, 0, 0, 0, 0, (2, 0, 0), (1, 0, 4))
    step = ("range", 3, 4, 1, 3, -5, (0, 0, 0), (1, 0, 4))
    plan = _core.PreparedCall(
        1, [("argument", 0), ("work", 4), ("constant", bytes(8))], [(1, 1, [clear, step])], [0], [], info=(1, 4, 1),
        on_info=lambda plan, found, arrays, results: infos.extend(found),
    )  # fmt: skip
    plan(np.array([1, 3, 2], np.int32))
    assert not infos
    for bad in ([0, 1, 1], [1, 1, 4], [1, -(2**31), 1]):
        plan(np.array(bad, np.int32))
    assert infos == [-5, -5, -5]


# Plans ----------------------------------------------------------------------------------------------------------------

ARGUMENT = [("argument", 0)]
COPY = ("copy", 2, 1, 1, 8, 8, 8, 8, (0, 0, 0), (0, 0, 0))


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((1, [("argument", 1)], [], [], []), "argument that is not there"),
        ((1, [("argument", -1)], [], [], []), "argument that is not there"),
        ((1, [("nonsense", 1)], [], [], []), "kind is argument, result, work, constant or kept"),
        ((1, [("result", "f8", (1,), "C")], [], [], []), "needs a dtype"),
        ((1, [("result", np.dtype("f8"), (1, 2), (8,))], [], [], []), "differ in length"),
        ((1, [("argument", 0)] * 25, [], [], []), "too many buffers"),
        ((1, ARGUMENT, [(1, 0, [COPY])], [], []), "at least one thread"),
        ((1, ARGUMENT, [(1, 1, [("copy", 99, *COPY[2:])])], [], []), "unknown element kind"),
        ((1, ARGUMENT, [(1, 1, [COPY[:-1]])], [], []), "with all its fields"),
        ((1, ARGUMENT, [(1, 1, [(*COPY[:-1], (5, 0, 0))])], [], []), "buffer that is not there"),
        ((1, ARGUMENT, [(1, 1, [(*COPY[:-1], (0, 0))])], [], []), "a pointer is"),
        ((1, ARGUMENT, [(3, 1, [(*COPY[:-1], (0, 0, (0, 8)))])], [], []), "shorter than the group"),
        ((1, ARGUMENT, [(1, 1, [("call", 0, [], 0, None)])], [], []), "needs an address"),
        ((1, ARGUMENT, [(1, 1, [("call", 1, [0] * 25, 0, None)])], [], []), "more integer arguments"),
        ((1, ARGUMENT, [(1, 1, [("call", 1, [0.0] * 5, 0, None)])], [], []), "more floating arguments"),
        ((1, ARGUMENT, [(1, 1, [("call", 1, [], 4, None)])], [], []), "returns nothing"),
        ((1, ARGUMENT, [(1, 1, [("triangle", 9, 1, 1, 8, 8, 8, 0, (0, 0, 0))])], [], []), "unknown triangle"),
        ((1, ARGUMENT, [(1, 1, [("finite", 1, 1, 8, 8, 3, 0, (0, 0, 0), (0, 0, 0))])], [], []), "4- or 8-byte"),
        ((1, ARGUMENT, [], [1], []), "a result names a buffer"),
        ((1, [("work", 8)], [], [0], []), "only arguments and results"),
        ((1, ARGUMENT, [], [0], [(0, 0, 8, 1, 0, 8, False)]), "overlap names an argument"),
    ],
)
def test_descriptions_that_make_no_plan(args: tuple[Any, ...], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        _core.PreparedCall(*args)


def test_plans_check_what_they_are_given() -> None:
    plan = _core.PreparedCall(1, ARGUMENT, [(1, 1, [COPY])], [0], [])
    for wrong in ((), (np.ones(1), np.ones(1))):
        with pytest.raises(TypeError, match=f"takes 1 arrays, {len(wrong)} were given"):
            plan(*wrong)
    with pytest.raises(TypeError, match="NumPy arrays"):
        plan([1.0])
    with pytest.raises(TypeError, match="by position only"):
        plan(a=np.ones(1))
    with pytest.raises(TypeError, match="ThreadCountGuard or None"):
        _core.PreparedCall(1, ARGUMENT, [], [0], [], thread_guard=3)  # type: ignore[arg-type]  # wrong on purpose
    x = np.zeros(4)
    guarded = _core.PreparedCall(2, [("argument", 0), ("argument", 1)], [(1, 1, [COPY])], [1], [(1, 0, 8, 0, 0, 8, False)])
    with pytest.raises(BadValue, match="overlaps"):
        guarded(x[:1], x[:1])
    assert guarded(x[:1], x[1:2]) is not None


def test_memory_that_cannot_be_had_is_a_memory_error() -> None:
    huge = _core.PreparedCall(0, [("result", np.dtype("f8"), (2**45,), "C")], [], [0], [])
    with pytest.raises(MemoryError):
        huge()


def test_plans_are_collected_in_cycles_and_release_what_they_keep() -> None:
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    plan = _core.PreparedCall(1, ARGUMENT, [(1, 1, [COPY])], [0], [], keep=thing)
    plan.choice = [plan]  # a cycle
    del plan, thing
    gc.collect()
    assert gone() is None


def test_calls_do_not_leak_references_or_memory(rng: np.random.Generator) -> None:
    a = rng.standard_normal((30, 30))
    bad = np.zeros((3, 3))
    nan = np.full((3, 3), np.nan)

    def everything() -> None:
        backline.mm(a, a)
        linalg.svd(a)
        linalg.eig(a)
        linalg.inv_ex(bad)
        out = a.copy()  # np.empty leaks a reference to its dtype in NumPy 2.4
        backline.mm(a, a, out=out)
        for call in (
            lambda: linalg.inv(bad),
            lambda: linalg.eigh(nan),
            lambda: backline.mm(out, a, out=out),
            lambda: backline.mm(a, bad),
        ):
            with pytest.raises((ValueError, np.linalg.LinAlgError)):
                call()

    for _ in range(3):
        everything()
    gc.collect()
    before = sys.getrefcount(a), sys.getrefcount(a.dtype), len(gc.get_objects())
    for _ in range(50):
        everything()
    gc.collect()
    after = sys.getrefcount(a), sys.getrefcount(a.dtype), len(gc.get_objects())
    assert after[0] == before[0] and abs(after[1] - before[1]) < 10 and after[2] - before[2] < 200, (before, after)


# Gates ----------------------------------------------------------------------------------------------------------------


class Setter:
    """A stand-in for a library's function that sets its number of threads."""

    def __init__(self, kind: int) -> None:
        self.asked: list[int] = []
        self.value = 7
        local = kind == 0

        def set_threads(n: int) -> int | None:
            former, self.value = self.value, n
            self.asked.append(n)
            return former if local else None

        number = ctypes.c_int64 if kind == 2 else ctypes.c_int
        self.function = ctypes.CFUNCTYPE(ctypes.c_int if local else None, number)(set_threads)
        self.thread_guard = _core.ThreadCountGuard(ctypes.cast(self.function, ctypes.c_void_p).value or 0, kind)


@pytest.mark.parametrize("kind", [1, 2])
def test_calls_on_one_thread_run_together_and_others_wait(kind: int) -> None:
    setter = Setter(kind)
    thread_guard = setter.thread_guard
    assert thread_guard.enter(1) == 1 and thread_guard.enter(1) == 1
    assert setter.asked == [1] and thread_guard.active == 2 and thread_guard.value == 1
    order: list[str] = []
    entered = threading.Event()

    def other(name: str) -> None:
        former = thread_guard.enter(3)
        order.append(f"{name} in")
        entered.set()
        time.sleep(0.02)
        order.append(f"{name} out")
        thread_guard.leave(former)

    threads = [threading.Thread(target=other, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    assert not entered.wait(0.05), "a call with another count did not wait"
    thread_guard.leave(1)
    assert not entered.wait(0.05)
    thread_guard.leave(1)
    for thread in threads:
        thread.join(10)
    # Those on several threads have the library to themselves.
    assert [x.split()[1] for x in order] == ["in", "out", "in", "out"] and order[0][0] == order[1][0]
    assert setter.asked == [1, 3] and thread_guard.active == 0, "it was asked again for what is in force"
    thread_guard.enter(3)
    thread_guard.forked()
    assert thread_guard.active == 0 and thread_guard.value == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_a_gate_is_held_around_a_fork(threads: int) -> None:
    setter = Setter(1)
    thread_guard = setter.thread_guard
    thread_guard.leave(thread_guard.enter(threads))
    thread_guard.hold()
    entered = threading.Event()

    def other() -> None:
        former = thread_guard.enter(threads)
        entered.set()
        thread_guard.leave(former)

    thread = threading.Thread(target=other)
    thread.start()
    assert not entered.wait(0.05), "a call began in the middle of a fork"
    thread_guard.release()
    thread.join(10)
    assert entered.is_set() and thread_guard.value == threads and thread_guard.active == 0 and setter.asked == [threads]


def test_overlapping_calls_do_not_starve_others() -> None:
    """Two threads that keep one-thread calls running without a gap: a call on two threads gets its turn."""
    thread_guard = Setter(1).thread_guard
    stop, turn = threading.Event(), threading.Event()

    def overlap() -> None:
        while not stop.is_set():
            former = thread_guard.enter(1)
            time.sleep(0.002)
            thread_guard.leave(former)

    threads = [threading.Thread(target=overlap) for _ in range(4)]
    for thread in threads:
        thread.start()

    def other() -> None:
        thread_guard.leave(thread_guard.enter(2))
        turn.set()

    waiting = threading.Thread(target=other)
    waiting.start()
    got_in = turn.wait(20)
    stop.set()
    for thread in (*threads, waiting):
        thread.join(10)
    assert got_in


def test_a_local_gate_puts_the_former_count_back() -> None:
    setter = Setter(0)
    former = setter.thread_guard.enter(2)
    assert (former, setter.value) == (7, 2)
    inner = setter.thread_guard.enter(4)
    setter.thread_guard.leave(inner)
    assert setter.value == 2
    setter.thread_guard.leave(former)
    assert setter.value == 7 and setter.thread_guard.calls == 2


def test_gates_need_an_address_and_a_kind() -> None:
    for args in ((0, 1), (1, 9), (1, -1)):
        with pytest.raises(ValueError, match="a function address and"):
            _core.ThreadCountGuard(*args)


# Memory ---------------------------------------------------------------------------------------------------------------


def big(n: int = 600) -> Array:
    return backline.mm(np.ones((n, n)), np.ones((n, n)))


def test_large_results_are_used_again_and_stay_within_the_bound() -> None:
    limit = _core.pool_info()["limit_bytes"]
    try:
        with backline.num_threads(1):
            big()
            before = _core.pool_info()
            for _ in range(10):
                big()
            after = _core.pool_info()
        assert after["reused"] - before["reused"] >= 9
        assert after["idle_bytes"] <= limit
        _core.pool_limit(4 << 20)
        kept = [big() for _ in range(5)]
        del kept
        assert _core.pool_info()["idle_bytes"] <= 4 << 20
        _core.pool_limit(0)
        assert _core.pool_info()["idle_bytes"] == _core.pool_info()["idle_blocks"] == 0
        big()
        assert _core.pool_info()["idle_blocks"] == 0
    finally:
        _core.pool_limit(limit)
    with pytest.raises(ValueError, match="0 or more"):
        _core.pool_limit(-1)


def test_empty_takes_large_arrays_from_the_pool() -> None:
    before = _core.pool_info()["taken"]
    small, large = _core.empty((3, 2), np.dtype(np.float32)), _core.empty((512, 1024), np.dtype(np.float64))
    assert _core.pool_info()["taken"] > before
    assert (small.shape, small.dtype, small.flags.c_contiguous) == ((3, 2), np.float32, True)
    assert (large.shape, large.dtype, large.flags.owndata) == ((512, 1024), np.float64, True)
    large[:] = 1
    large.resize((600, 1024), refcheck=False)  # memory of the pool moves like any other
    assert large[:512].min() == 1
    assert _core.empty(5, np.dtype(object)).tolist() == [None] * 5
    assert _core.empty((0, 1 << 40), np.dtype(np.int8)).shape == (0, 1 << 40)
    for shape in (-1, (1 << 40, 1 << 40), (1,) * 100):
        with pytest.raises(ValueError):
            _core.empty(shape, np.dtype(np.float64))
    with pytest.raises(TypeError):
        _core.empty("3", np.dtype(np.float64))


def test_arrays_of_the_pool_are_ordinary_arrays() -> None:
    a = big()
    assert (a == 600).all() and a.flags.owndata and a.ctypes.data % 64 == 0
    again = pickle.loads(pickle.dumps(a))
    assert np.array_equal(again, a)
    view = a[::2]
    del a
    gc.collect()
    other = big()  # must not get the memory that the view holds
    other[...] = -1
    assert (view == 600).all()
    for size in ((900, 900), (10, 10), (700, 700)):
        b = big()
        b.resize(size, refcheck=False)
        assert b.ravel()[0] == 600 and b.shape == size
        b[...] = 3
        del b
    c = big().astype(np.float32).copy()
    assert (c == 600).all()


def test_results_outlive_everything_at_exit() -> None:
    python(
        "import numpy as np, backline\nkept = backline.mm(np.ones((600, 600)), np.ones((600, 600)))\nimport builtins; builtins.kept = kept"
    )


# Operations -----------------------------------------------------------------------------------------------------------

OPERATIONS = [x for module in (backline, linalg) for n in module.__all__ if isinstance(x := getattr(module, n), _core.Operation)]
NO_ARGUMENTS = (backline.trace,)  # which is a scope then


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: op.__name__)
def test_operations_look_like_functions(operation: Any) -> None:
    import inspect

    signature = inspect.signature(operation)
    named = (p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    assert tuple(named) == operation.parameters
    assert operation.__doc__ and "Examples" in operation.__doc__ and inspect.getdoc(operation)
    assert operation.__qualname__ == operation.__name__ and operation.__module__ in ("backline", "backline.linalg")
    assert pickle.loads(pickle.dumps(operation)) is operation
    assert weakref.ref(operation)() is operation and callable(operation)
    assert operation.__name__ in repr(operation)

    class Holder:
        held = operation

    assert Holder().held is operation, "it binds like a method"
    if operation in NO_ARGUMENTS:
        return
    with pytest.raises((TypeError, BadValue)):
        operation()


def test_an_operation_knows_the_plan_of_its_thread() -> None:
    a, b = np.ones((3, 3)), np.ones((4, 4))
    backline.mm(a, a)
    mine = _core.last_plan()
    seen: list[Any] = []

    def work() -> None:
        seen.append(_core.last_plan())
        backline.mm(b, b)
        seen.append(_core.last_plan())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen[0] is None and seen[1] is not mine and _core.last_plan() is mine


@pytest.mark.parametrize("jobs", [0, 65, -1])
def test_team_check_takes_1_to_64_jobs(jobs: int) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        _core.team_check(jobs)
