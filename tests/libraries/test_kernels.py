"""The compiled loops as a library: their name in `explain` and `trace`, their switch, and what runs without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline import _kernels, backends, libraries, switches
from backline.errors import NoKernel
from backline.libraries.kernels.vector_level import vector_level
from backline.nn import functional as F
from backline.nn import grad as G
from support import clean, problem_of, python

pytestmark = pytest.mark.usefixtures("clean")
assert clean

X = np.random.default_rng(0).standard_normal((6, 40), np.float32)
IMAGES = np.random.default_rng(1).standard_normal((2, 3, 8, 8), np.float32)
LOOPS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "relu gradient": (G.relu_input, (X, X)),
    "log_softmax": (F.log_softmax, (X, 1)),
    "softmax of columns": (F.softmax, (X, 0)),
    "gelu": (F.gelu, (X,)),
    "silu gradient": (G.silu_input, (X, X)),
    "layer_norm": (F.layer_norm, (X, 40)),
    "batch_norm": (F.batch_norm, (IMAGES, X[0, :3], abs(X[1, :3]))),
    "max_pool gradient": (G.max_pool2d_input, (IMAGES, IMAGES[:, :, ::2, ::2], 2)),
    "avg_pool gradient": (G.avg_pool2d_input, (IMAGES.shape, IMAGES[:, :, ::2, ::2], 2)),
}


@pytest.mark.parametrize("case", LOOPS)
def test_a_loop_has_its_librarys_name(case: str) -> None:
    operation, args = LOOPS[case]
    with backline.use("kernels"), backline.trace() as events:
        result = operation(*args)
    assert [event.library for event in events] == ["kernels"]
    done = backline.explain()
    assert done.library == "kernels" and done.chosen is not None and done.chosen.level == "threads"
    with backline.use("numpy", only=True):  # NumPy, and no loop that is not NumPy's
        np.testing.assert_allclose(result, operation(*args), rtol=1e-5, atol=1e-6)
        done = backline.explain()
    assert done.library == "numpy" and {c.library for c in done.candidates if c.verdict != "refused"} == {"numpy"}
    with backline.use("kernels", only=True):
        assert (operation(*args) == result).all()


@pytest.mark.parametrize("case", LOOPS)
def test_without_its_switch_no_loop_runs(case: str) -> None:
    operation, args = LOOPS[case]
    with backends.kernels.flags(enabled=False):
        choice = backline.explain(operation, *args)
        assert choice.library != "kernels"
        (refused,) = [c for c in choice.candidates if c.library == "kernels"]
        assert refused.verdict == "refused" and refused.switch == "kernels.enabled" and "disabled by kernels.enabled" in refused.reason
        with backline.use("kernels", only=True), pytest.raises(NoKernel, match=r"kernels\.enabled"):
            operation(*args)
    with backends.numpy.flags(enabled=False):
        assert "numpy" not in {c.library for c in backline.explain(operation, *args).candidates if c.verdict != "refused"}


def test_numpy_is_preferred_as_any_library() -> None:
    operation, args = LOOPS["relu gradient"]
    for first, then in (("numpy", "kernels"), ("kernels", "numpy")):
        with backline.use(first, then):
            choice = backline.explain(operation, *args)
            assert [c.library for c in choice.candidates if c.verdict != "refused"][:2] == [first, then]


@pytest.mark.parametrize(
    ("op", "args", "reason"),
    [
        ("nn.functional.adaptive_avg_pool2d", (IMAGES, 3), "there is no compiled loop for adaptive_avg_pool"),
        ("nn.functional.relu", (np.arange(6),), "its loops are for float32, float64, not int64"),
        ("nn.functional.gelu", (X[:, ::2],), "there are gaps between elements, or arrays lie in different orders"),
        ("nn.functional.layer_norm", (X.T, 6), "the axes that are normalised are not the innermost in memory, in order"),
        ("nn.functional.relu", (X[:0],), "an array without elements, or without axes, needs no loop"),
        ("nn.functional.relu", (np.zeros((4,) * 6)[::2, ::2, ::2, ::2, ::2, ::2],), "the layout needs more than 4 axes, or too many items"),
        ("nn.functional.softmax", (X[::2], 0), "the axis is not the innermost in memory, or there are gaps between elements"),
    ],
)  # fmt: skip
def test_a_call_without_a_loop_is_refused_with_the_reason(op: str, args: tuple[Any, ...], reason: str) -> None:
    (refused,) = [c for c in backline.explain(op, *args).candidates if c.library == "kernels"]
    assert (refused.verdict, refused.reason) == ("refused", reason)
    with backline.use("kernels", only=True), pytest.raises(NoKernel, match=reason):
        backline.explain(op, *args)
    with backline.use("kernels"), backends.flags(fallback="warn"), pytest.warns(RuntimeWarning, match=f"kernels was preferred: {reason}"):
        backline.explain(op, *args)


def test_what_is_reported() -> None:
    library = libraries.get("kernels")
    report = library.report()
    assert report["available"] and report["version"] == backline.__version__ and report["path"] == _kernels.__file__
    assert library.loaded() and backends.kernels.is_available() and backends.kernels.version() is not None
    for word, level in (("default", 0), ("avx2", 1)):
        if level <= _kernels.instruction_level:
            with backends.cpu.flags(capability=word):
                assert vector_level() == level and library.instruction_sets() == ("avx2", "avx512")[:level]


def test_plans_are_kept_in_its_cache() -> None:
    cache = backends.kernels.plan_cache
    cache.clear()
    with backline.use("kernels", only=True):
        F.log_softmax(X, 1)
    assert cache.size == 1


def test_the_switch_is_set_by_the_environment_too() -> None:
    program = """
        import numpy as np
        import backline
        from backline import backends
        from backline.nn import grad
        assert not backends.kernels.enabled and not backends.kernels.is_enabled()
        choice = backline.explain(grad.relu_input, np.ones(5), np.ones(5))
        assert choice.library == "numpy" and choice.switches["kernels.enabled"][0] == "False", choice
    """
    python(program, env={"BACKLINE_KERNELS_ENABLED": "0", "BACKLINE_TUNING": ""})


def test_importing_backline_does_not_import_it() -> None:
    python("import sys, backline; assert 'backline.libraries.kernels.library' not in sys.modules")


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    x = np.random.default_rng(2).standard_normal((1 << 9, 1 << 10), np.float32)
    library = libraries.get("kernels")
    problem = problem_of("nn.grad.relu_input", x, x)
    found = {a.key: library.prepare(problem, a)(x, x) for a in library.algorithms(problem, 2)}  # type: ignore[arg-type]  # no refusal
    assert set(found) == {"kernels.compiled@n", "kernels.compiled@1"}
    assert (found["kernels.compiled@n"] == found["kernels.compiled@1"]).all()
    with switches.scope({"deterministic": True, "determinism_level": "threads", "only": ("kernels",)}):
        assert backline.explain(G.relu_input, x, x).library == "kernels"
