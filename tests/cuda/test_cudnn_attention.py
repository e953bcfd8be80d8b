"""cuDNN's attention and its gradients, computed by a fake at the addresses that it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, libraries, switches
from backline.libraries.base import Algorithm
from backline.nn import functional, grad
from fakes.cupy_standin import ndarray, unwrap
from fakes.insert import inserted
from support import clean

pytest.importorskip("cudnn")
from fakes.cudnn_machine import Machine, aligned, same

pytestmark = pytest.mark.usefixtures("clean")
assert clean


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    with inserted(cupy=made.cupy, cudnn=made.cudnn):
        yield made

ONLY = {"cuda.flash_sdp": False, "cuda.mem_efficient_sdp": False, "cuda.math_sdp": False}


def qkv(machine: Machine, heads: int = 4, dim: int = 16, keys: int = 9) -> tuple[ndarray, ndarray, ndarray]:
    return (
        machine.array(2, 4, 7, 16, dtype=np.float16), machine.array(2, heads, keys, 16, dtype=np.float16),
        machine.array(2, heads, keys, dim, dtype=np.float16),
    )  # fmt: skip


def attend(machine: Machine, q: ndarray, k: ndarray, v: ndarray, mask: Any = None, **given: Any) -> None:
    """Attention and its gradients agree with those of the same arrays on the CPU."""
    wide = [x.host.astype(np.float32) for x in (q, k, v)]
    host_mask = unwrap(mask)
    if host_mask is not None and host_mask.dtype == np.float16:
        host_mask = host_mask.astype(np.float32)
    with switches.scope(ONLY):
        y = functional.scaled_dot_product_attention(q, k, v, mask, **given)
    same(y, functional.scaled_dot_product_attention(*wide, host_mask, **given), np.float16)
    if mask is not None and host_mask.dtype != bool:
        return  # a gradient of the mask is wanted then, which cuDNN is not asked for
    dy = machine.array(*y.shape, dtype=np.float16)
    with switches.scope(ONLY):
        found = grad.scaled_dot_product_attention_backward(q, k, v, dy, mask, **given)
        attended = functional.scaled_dot_product_attention(q, k, v, mask, **given, return_lse=True)
        known = grad.scaled_dot_product_attention_backward(q, k, v, dy, mask, **given, output=attended.output, lse=attended.lse)
    assert (attended.output.host == y.host).all() and attended.lse.dtype == np.float32
    lse = functional.scaled_dot_product_attention(*wide, host_mask, **given, return_lse=True).lse
    np.testing.assert_allclose(attended.lse.host, lse, atol=1e-4)
    wanted = grad.scaled_dot_product_attention_backward(*wide, dy.host.astype(np.float32), host_mask, **given)
    for name in ("query", "key", "value"):
        same(getattr(found, name), getattr(wanted, name), np.float16)
        same(getattr(known, name), getattr(wanted, name), np.float16)


@pytest.mark.parametrize("given", [{}, {"is_causal": True}, {"scale": 0.5}])
def test_attention(machine: Machine, given: dict[str, Any]) -> None:
    attend(machine, *qkv(machine), **given)
    assert [graph.node for graph in machine.cudnn.graphs] == ["sdpa", "sdpa", "sdpa_backward"], "those with statistics are kept"
    assert machine.cudnn.graphs[2].inputs["use_deterministic_algorithm"] is False


def test_heads_of_keys_that_several_queries_share(machine: Machine) -> None:
    attend(machine, *qkv(machine, heads=2, dim=8), enable_gqa=True)


@pytest.mark.parametrize("shape", [(7, 9), (1, 9), (7, 1), (2, 1, 7, 9), (1, 4, 1, 9)])
def test_masks_broadcast_and_a_query_that_may_look_at_nothing_gives_zeros(machine: Machine, shape: tuple[int, ...]) -> None:
    seen = machine.rng.random(shape) < 0.6
    seen[..., :1, :] = False
    attend(machine, *qkv(machine), ndarray(seen))
    attend(machine, *qkv(machine), ndarray(np.where(seen, machine.rng.random(shape), -np.inf).astype(np.float32)))
    attend(machine, *qkv(machine), ndarray(np.where(seen, 0.25, -np.inf).astype(np.float16)))


def test_dropout_reads_the_seed_from_the_device(machine: Machine) -> None:
    with switches.scope(ONLY):
        functional.scaled_dot_product_attention(*qkv(machine), dropout_p=0.25, seed=41)
    assert machine.cudnn.graphs[0].dropped == (0.25, 41, 0)


def test_a_hundred_steps_are_one_plan(machine: Machine) -> None:
    arrays = qkv(machine)
    with switches.scope(ONLY):
        functional.scaled_dot_product_attention(*arrays, dropout_p=0.25, seed=1000)
        before, plan = _core.memo_info(), _core.last_plan()
        for seed in (*range(100), 2**63 + 4):
            functional.scaled_dot_product_attention(*arrays, dropout_p=0.25, seed=seed)
            assert machine.cudnn.graphs[0].dropped == (0.25, seed % 2**63, 0)
        after = _core.memo_info()
    assert (after["misses"], after["size"]) == (before["misses"], before["size"])
    assert _core.last_plan() is plan and len(machine.cudnn.graphs) == 1


def test_gradients_from_the_log_sum_exp_run_one_graph(machine: Machine) -> None:
    arrays = qkv(machine)
    dy = machine.array(2, 4, 7, 16, dtype=np.float16)
    with switches.scope(ONLY):
        attended = functional.scaled_dot_product_attention(*arrays, return_lse=True)
        machine.log.clear()
        grad.scaled_dot_product_attention_backward(*arrays, dy, output=attended.output, lse=attended.lse)
    assert [name for name, _ in machine.log].count("execute") == 1


def test_rows_that_cudnn_does_not_take_are_copied(machine: Machine) -> None:
    q, k, v = qkv(machine)
    attend(machine, machine.array(2, 4, 7, 17, dtype=np.float16)[..., :16], k, v)
    attend(machine, q[..., ::-1, :], k[:, :1], v[:, :1], enable_gqa=True)
    swapped = ndarray(aligned(machine.array(2, 7, 4, 16, dtype=np.float16).host).host.swapaxes(1, 2))
    machine.log.clear()
    attend(machine, swapped, k, v)
    packs = [given["pack"] for name, given in machine.log if name == "execute"]
    assert swapped.data.ptr in packs[0].values(), "heads behind the length are taken as they lie"


def test_rows_that_are_not_aligned_are_copied_as_they_lie(machine: Machine) -> None:
    """The graph is told the strides of the call's arrays, so a copy has them too."""
    whole = aligned(machine.array(2 * 7 * 3 * 4 * 16 + 4, dtype=np.float16).host)[4:].reshape(2, 7, 3, 4, 16)
    q, k, v = (whole[:, :, i].swapaxes(1, 2) for i in range(3))
    assert q.data.ptr % 16 == 8 and q.strides[1] == 32
    attend(machine, q, k, v)
    attend(machine, q, k, v, is_causal=True)


def test_a_gradient_with_heads_behind_the_length_beside_a_mask(machine: Machine) -> None:
    """Rows of queries that see no key are made zero in a copy, which lies as the graph was told."""
    arrays = [aligned(machine.array(2, 7, 4, 16, dtype=np.float16).host) for _ in range(4)]
    q, k, v, dy = (ndarray(x.host.swapaxes(1, 2)) for x in arrays)
    seen = machine.rng.random((7, 7)) < 0.6
    seen[0] = False
    with switches.scope(ONLY):
        found = grad.scaled_dot_product_attention_backward(q, k, v, dy, ndarray(seen))
    wanted = grad.scaled_dot_product_attention_backward(*(x.host.astype(np.float32) for x in (q, k, v, dy)), seen)
    for name in ("query", "key", "value"):
        same(getattr(found, name), getattr(wanted, name), np.float16)


def test_gradients_in_any_order_only_where_nobody_minds(machine: Machine) -> None:
    q, k, v = qkv(machine)
    dy = machine.array(2, 4, 7, 16, dtype=np.float16)
    problem = backline.explain(grad.scaled_dot_product_attention_backward, q, k, v, dy).problem
    listed = {a.name: a.level for a in libraries.get("cudnn").algorithms(problem, 1)}
    assert listed == {"sdpa_backward": "off", "sdpa_backward_steady": "threads"}
    libraries.get("cudnn").prepare(problem, Algorithm(library="cudnn", name="sdpa_backward_steady"))(q, k, v, dy)
    assert machine.cudnn.graphs[1].inputs["use_deterministic_algorithm"] is True
