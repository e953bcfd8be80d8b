"""Sparse matrices by cuSPARSELt, plans for a described device, and MAGMA where there is none."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import linalg, sparse, switches
from backline.backends import cuda, cusparselt
from backline.errors import BackendUnavailable, BadValue
from backline.libraries.cuda.common import bindings
from backline.libraries.cuda.cudnn import graphs
from backline.libraries.cuda.cudnn.conv_graphs import Graph, conv_recipe
from backline.libraries.cuda.cudnn.sdpa_graphs import attention_recipe
from backline.nn import functional, grad
from backline.sparse import ProductWay
from gpu.arrays import described

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


# --- sparse ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="SP-1")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_prune_compress_search_multiply(row: Any, xp: Any, size: Any, dtype: str) -> None:
    row.expect("a pruned, compressed matrix multiplies like the dense one, by the library's way and by the one that is found")
    kind, rng = np.dtype(BFLOAT16 if dtype == "bfloat16" else dtype), np.random.default_rng(1)
    m, k, n = size((2048, 4096, 1024), (64, 128, 96))

    def numbers(*shape: int) -> Any:
        return rng.integers(-20, 20, shape).astype(kind) if dtype == "int8" else rng.standard_normal(shape).astype(kind)

    whole, b = numbers(m, k), numbers(k, n)
    pruned = sparse.prune_2_4(xp.asarray(whole))
    kept = xp.asnumpy(pruned)
    wide = np.int64 if dtype == "int8" else np.float64
    assert (np.count_nonzero(kept.reshape(m, -1, 4).astype(wide), axis=-1) <= 2).all()
    assert ((kept == whole) | (kept == 0)).all()
    held = sparse.compress(pruned)
    # float64 holds these products exactly enough, and those of int8 exactly.
    expected = kept.astype(np.float64) @ b.astype(np.float64)
    on_device = xp.asarray(b)
    way = sparse.search(held, on_device)
    bound = {"float16": 1e-3, "bfloat16": 8e-3, "int8": 0.0}[dtype]
    errors = []
    for given in (None, way):
        found = xp.asnumpy(sparse.matmul(held, on_device, way=given)).astype(np.float64)
        errors.append(float(np.linalg.norm(found - expected) / np.linalg.norm(expected)))
    assert backline.explain().library == "cusparselt"
    row.observe(f"{dtype}: {way}", f"relative error {errors[0]:.2g}, by the way found {errors[1]:.2g}")
    assert max(errors) <= bound
    assert way.alg_id >= 0


@pytest.mark.gpu(row="SP-1")
def test_what_is_not_sparse_is_refused(row: Any, xp: Any) -> None:
    row.expect("a matrix that is not 2:4 sparse is refused by the library's own check")
    with pytest.raises(BadValue, match="not 2:4 sparse"):
        sparse.compress(xp.asarray(np.ones((64, 64), np.float16)))
    row.observe("refused")


@pytest.mark.gpu(row="SP-1")
def test_version_and_largest_algorithm(row: Any, xp: Any) -> None:
    row.expect("version() is the library's; get_max_alg_id() is what the library tells; an algorithm beyond a product's is refused")
    lt = bindings.cusparseLt()
    told = sum(factor * int(lt.get_property(part)) for part, factor in enumerate((1000, 100, 1)))
    assert cusparselt.version() == told
    largest = _largest(lt)
    row.observe(f"version {told}, {largest} algorithms", f"get_max_alg_id() {cusparselt.get_max_alg_id()}")
    assert cusparselt.get_max_alg_id() == largest
    held = sparse.compress(sparse.prune_2_4(xp.asarray(np.eye(64, dtype=np.float16))))
    with pytest.raises(backline.errors.NoKernel, match=f"for this product it has {largest}"):
        sparse.matmul(held, xp.asarray(np.ones((64, 64), np.float16)), way=ProductWay(alg_id=largest))


def _largest(lt: Any) -> int:
    """The number of algorithms for a small product, asked through the binding."""
    handle, half, by_rows = int(lt.init()), 2, 2
    shape = (64, 64, 64, 16, half, by_rows)
    a = lt.structured_descriptor_init(handle, *shape, lt.Sparsity.SPARSITY_50_PERCENT)
    b, c = (lt.dense_descriptor_init(handle, *shape) for _ in range(2))
    product = lt.matmul_descriptor_init(handle, 0, 0, a, b, c, c, lt.ComputeType.COMPUTE_32F)
    choice = lt.matmul_alg_selection_init(handle, product, lt.MatmulAlg.DEFAULT)
    attribute = lt.MatmulAlgAttribute.CONFIG_MAX_ID
    cell = np.zeros(1, lt.get_matmul_alg_attribute_dtype(attribute))
    lt.matmul_alg_get_attribute(handle, choice, attribute, cell.ctypes.data, cell.nbytes)
    return int(cell[0])


# --- a device that is described -------------------------------------------------------------------------------------


def _graphs(xp: Any) -> dict[str, Graph]:
    """Graphs of convolutions and attention, as Backline makes them."""
    made: dict[str, Graph] = {}
    for dtype in ("float32", "float16"):
        x, w, y = (xp.zeros(shape, dtype) for shape in ((16, 64, 56, 56), (64, 64, 3, 3), (16, 64, 56, 56)))
        problems = {
            "forward": backline.explain(functional.conv2d, x, w, padding=1).problem,
            "input": backline.explain(grad.conv2d_input, x.shape, w, y, padding=1).problem,
            "weight": backline.explain(grad.conv2d_weight, x, w.shape, y, padding=1).problem,
        }
        for name, problem in problems.items():
            for way in ("conv_tf32", "conv_ieee") if dtype == "float32" else ("conv",):
                graph = conv_recipe(problem, way, switches.current()).graph
                assert graph is not None
                made[f"convolution {name} {dtype} {way}"] = graph
    for dims in (64, 128):
        q = xp.zeros((2, 8, 128, dims), "float16")
        forward = backline.explain(functional.scaled_dot_product_attention, q, q, q, is_causal=True).problem
        backward = backline.explain(grad.scaled_dot_product_attention_backward, q, q, q, q, is_causal=True).problem
        made[f"attention {dims}"] = attention_recipe(forward, "sdpa").forward
        last = attention_recipe(backward, "sdpa").backward
        assert last is not None
        made[f"attention backward {dims}"] = last
    return made


@pytest.mark.gpu(row="DEV-1")
def test_plans_for_the_described_device_are_those_of_the_device(row: Any, xp: Any, device: Any) -> None:
    row.expect("plans for the saved description are among those for the live handle; which are not, and in what order, is told")
    module = bindings.cudnn()
    description = module.create_device_properties(0).serialize()
    by_text, handle = module.create_device_properties(description), graphs.handle_for(module, 0)
    different, missing, orders, count = [], [], [], 0
    for name, graph in _graphs(xp).items():
        sides = []
        for given in ({"handle": handle}, {"device_property": by_text}):
            made = graphs.build(module, graph, device.capability, **given)
            sides.append([made.get_plan_name_at_index(index) for index in graphs.own_plans(made)])
        count += len(sides[0])
        only = [sorted({*sides[i]} - {*sides[1 - i]}) for i in (0, 1)]
        if only[1]:
            different.append(f"{name}: of the description only {only[1]}")
        if only[0]:
            missing.append(f"{name}: of the device only {only[0]}")
        if [each for each in sides[0] if each not in only[0]] != sides[1]:
            orders.append(name)
        assert sides[0], f"{name} has no plan"
    text = f"{count} plans; " + ("; ".join((*different, *missing)) or "the same")
    text += f"; in another order: {', '.join(orders)}" if orders else ""
    row.observe(text)
    row.finding(8, text + "; the device says " + json.dumps(described(description), sort_keys=True))
    assert not different


# --- MAGMA ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="MAG-1")
def test_without_magma(row: Any, xp: Any) -> None:
    row.expect("MAGMA is absent: preferring it is refused, what was preferred stays, cuSOLVER runs")
    before = cuda.preferred_linalg_library()
    with pytest.raises(BackendUnavailable) as refused:
        cuda.preferred_linalg_library("magma")
    assert cuda.preferred_linalg_library() == before
    a = np.random.default_rng(2).standard_normal((96, 96)) + 96 * np.eye(96)
    inverse = xp.asnumpy(linalg.inv(xp.asarray(a)))
    error = float(np.abs(inverse @ a - np.eye(96)).max())
    row.observe(f"{refused.value.message}", f"inv by {backline.explain().library} {backline.explain().algorithm}, error {error:.2g}")
    assert backline.explain().library == "cusolver" and error < 1e-12
