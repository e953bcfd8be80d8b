"""Calls of a plan of cuDNN's: by the frontend's compiled half, and by what it documents where there is no such half."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline.libraries.cuda.cudnn import graph_cache, graphs, plan_calls
from backline.nn import functional, grad
from fakes.graphs import Plan
from fakes.insert import inserted
from support import clean

pytest.importorskip("cudnn")
from fakes.cudnn_machine import Machine, same

pytestmark = pytest.mark.usefixtures("clean")
assert clean


@pytest.fixture(params=[True, False], ids=["compiled", "documented"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    made = Machine()
    made.cudnn.compiled = request.param
    graph_cache._failed.clear()
    with inserted(cupy=made.cupy, cudnn=made.cudnn):
        yield made


def packs(machine: Machine) -> list[dict[str, Any]]:
    return [given for name, given in machine.log if name == "execute"]


def test_results_and_what_is_given_to_a_run(machine: Machine) -> None:
    machine.cudnn.plans = [Plan("python", python=True), Plan("eng3", workspace=256)]
    x, w, out = machine.array(2, 4, 6, 6), machine.array(8, 4, 3, 3), machine.array(2, 8, 4, 4)
    for _ in range(2):
        assert functional.conv2d(x, w, out=out) is out
    same(out, functional.conv2d(x.host, w.host))
    first, second = packs(machine)
    assert first["pack"] == second["pack"] == {1: x.data.ptr, 2: w.data.ptr, 3: out.data.ptr}
    assert first["workspace"] and first["name"] == "eng3" and first["handle"] is second["handle"] is machine.cudnn.handles[0]


@pytest.mark.parametrize("last", [False, True])
def test_operands_that_are_copied_are_there_until_the_call_is_made(machine: Machine, last: bool) -> None:
    x, w, dy = machine.array(2, 4, 6, 6, last=last), machine.array(8, 4, 3, 3, last=last), machine.array(2, 8, 6, 6, last=last)
    wide = machine.array(2, 4, 6, 12, last=last)[..., ::2]
    for images in (x, wide):
        same(functional.conv2d(images, w, padding=1), functional.conv2d(images.host, w.host, padding=1))
        same(
            grad.conv2d_weight(images, (8, 4, 3, 3), dy, padding=1),
            grad.conv2d_weight(images.host, (8, 4, 3, 3), dy.host, padding=1),
        )
    same(grad.conv2d_input((2, 4, 6, 6), w, dy, padding=1), grad.conv2d_input((2, 4, 6, 6), w.host, dy.host, padding=1))


def test_each_plan_that_is_tried_has_its_own_call(machine: Machine) -> None:
    machine.cudnn.plans = [Plan("wrong", wrong="no"), Plan("fails", fails=True), Plan("works")]
    plan, arrays = machine.prepared()
    for _ in range(2):
        plan(*arrays)
    assert machine.cudnn.used() == ["fails", "works", "works"]
    assert {*plan.function.run.plans.calls} == {1, 2}


def test_attention_with_dropout_is_given_its_numbers(machine: Machine) -> None:
    q, k, v = (machine.array(1, 2, 128, 64, dtype=np.float16) for _ in range(3))
    with backline.use("cudnn", only=True):
        functional.scaled_dot_product_attention(q, k, v, dropout_p=0.25, seed=7)
    (pack,) = packs(machine)
    assert len(pack["pack"]) >= 6 and machine.cudnn.graphs[-1].dropped[:2] == (0.25, 7)


def test_a_graph_of_which_the_compiled_half_is_other_than_expected_is_called_as_documented(machine: Machine) -> None:
    functional.conv2d(machine.array(2, 4, 6, 6), machine.array(8, 4, 3, 3))
    (graph,) = machine.cudnn.graphs
    assert next(name for name, _ in machine.log if "graph" in name) == ("backend_graph" if machine.cudnn.compiled else "pygraph")
    assert (plan_calls.compiled_call(graph, 0) is None) is not machine.cudnn.compiled
    python = graphs.build(machine.cudnn, graph_cache._kept._entries.popitem()[1].value.spec, (9, 0), compiled=False)
    assert (plan_calls.compiled_call(python, 0) is None) is not machine.cudnn.compiled
    assert plan_calls.compiled_call(python, 99) is None, "no such plan"
    python.all[0].cpp_index = None
    assert plan_calls.compiled_call(python, 0) is None, "a plan that the compiled half does not know"


def test_plans_that_are_listed_twice_are_tried_once(machine: Machine) -> None:
    machine.cudnn.plans = [Plan("eng1", fails=True), Plan("eng2", wrong="no"), Plan("eng1"), Plan("eng2"), Plan("eng3"), Plan("eng3")]
    plan, arrays = machine.prepared()
    plan(*arrays)
    assert machine.cudnn.used() == ["eng1", "eng3"]
    assert [given["name"] for name, given in machine.log if name == "build"] == ["eng1", "eng2", "eng3"]
