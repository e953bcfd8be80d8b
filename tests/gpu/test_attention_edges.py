"""Attention where cuDNN was reported wrong, and what its dropout leaves out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline.errors import NoKernel
from backline.libraries import errata_of_devices
from backline.nn.attention import SDPBackend, sdpa_kernel
from gpu.arrays import normal, wide
from gpu.rows import AMPERE, CUDNN_ATTENTION
from gpu.variants import ALLOWED, Case, attend, deviation, only, slopes

CUDNN = SDPBackend.CUDNN_ATTENTION
OTHERS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
HALF_TILE = "cudnn-attention-masked-half-tile"
NEEDS = {
    SDPBackend.FLASH_ATTENTION: ("triton", AMPERE), SDPBackend.EFFICIENT_ATTENTION: ("triton",), CUDNN: ("cudnn", AMPERE),
    SDPBackend.MATH: (),
}  # fmt: skip
KERNELS = [pytest.param(kernel, id=kernel.name, marks=pytest.mark.gpu(needs=needs)) for kernel, needs in NEEDS.items()]


@pytest.mark.gpu(row="SDPA-12")
def test_what_dropout_of_cudnn_leaves_out(row: Any, xp: Any) -> None:
    row.expect(
        "weights are left out or divided by what is kept, as many as asked; one seed the same, another others; gradients leave out the same"
    )
    n, p, heads = 64, 0.25, 32
    q, v = np.zeros((2, heads, n, n), np.float16), np.broadcast_to(np.eye(n, dtype=np.float16), (2, heads, n, n))
    g = normal((2, heads, n, n), "float16", 3)
    on_device = [xp.asarray(np.ascontiguousarray(each)) for each in (q, q, v)]
    with only(CUDNN):
        first, again, other = (wide(attend(*on_device, dropout_p=p, seed=seed)) for seed in (11, 11, 12))
        assert backline.explain().library == "cudnn"
        grads = slopes(*on_device, xp.asarray(g), dropout_p=p, seed=11)
    # All scores are equal and the values are unit vectors: the result is the weights themselves.
    kept = first != 0
    weight = 1 / (n * (1 - p))
    share, sigma = 1 - kept.mean(), (p * (1 - p) / kept.size) ** 0.5
    row.observe(f"{share:.5f} of {kept.size} weights are left out, {abs(share - p) / sigma:.2g} standard deviations from {p}")
    assert abs(share - p) < 1 / 256 + 6 * sigma, "a library may compare 8 bits"
    assert np.abs(first[kept] - weight).max() <= ALLOWED["float16"] * weight
    assert np.array_equal(first, again) and 0.2 < np.mean((other != 0) != kept) < 0.55, "another seed leaves out others"
    of_value = (kept * weight).swapaxes(-1, -2) @ wide(g)
    apart = deviation(grads.value, of_value) / max(1.0, float(np.abs(of_value).max()))
    row.observe(f"gradient of the value: {apart:.2g} from what the same weights give")
    assert apart <= 4 * ALLOWED["float16"]


@pytest.mark.gpu(row="SDPA-13")
@pytest.mark.parametrize("queries", [64, 192])
def test_gradients_with_a_mask_where_64_queries_are_left(row: Any, xp: Any, queries: int, _check: Any) -> None:
    row.expect(
        "scores of about -100: no NaN in any gradient, whichever kernel is preferred; CUDNN is right, or refused by an erratum"
    )
    shape = (2, 4, queries, 64)
    hosts = [(0.1 * wide(normal(shape, "float16", seed)) + at).astype(np.float16) for seed, at in enumerate((-3.5, 3.5))]
    hosts += [(0.5 * wide(normal(shape, "float16", seed))).astype(np.float16) for seed in (2, 3)]
    mask = np.random.default_rng(4).random((2, 1, queries, queries)) < 0.7
    mask[:, :, 5] = False
    with sdpa_kernel(SDPBackend.MATH), backline.use("numpy", only=True):
        expected = slopes(*map(wide, hosts), mask)
    on_device = [*map(xp.asarray, hosts), xp.asarray(mask)]

    def apart() -> float:
        found = slopes(*on_device)
        return max(
            deviation(one, of) / max(1.0, float(np.abs(of).max())) for one, of in zip(found[:3], expected[:3], strict=True)
        )

    with sdpa_kernel([CUDNN, *OTHERS], set_priority=True):
        errors = {"preferring CUDNN": apart()}
        choice = backline.explain()
    row.observe(f"{queries} queries: by {choice.library} {choice.algorithm}, error {errors['preferring CUDNN']:.2g}")
    if not any(map(_check.lacks, CUDNN_ATTENTION)):
        (erratum,) = (each for each in errata_of_devices.ROWS if each.id == HALF_TILE)
        with only(CUDNN):
            try:
                errors["CUDNN"] = apart()
            except NoKernel as refused:
                assert erratum.condition in str(refused), "nothing else is against it"
                row.observe("CUDNN is refused", erratum.condition)
    assert max(errors.values()) <= 4 * ALLOWED["float16"], errors


@pytest.mark.gpu(row="SDPA-11")
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_from_the_log_sum_exp(row: Any, xp: Any, rehearsed: bool, kernel: SDPBackend) -> None:
    row.expect("gradients that are given the output and the log-sum-exp are those that are not, to rounding")
    case = Case(causal=True, grad=True, rehearsed=rehearsed)
    given = case.arrays(xp, grad=True)
    arrays = given["query"], given["key"], given["value"]
    with only(kernel):
        attended = attend(*arrays, **case.options, return_lse=True)
        found = slopes(*arrays, given["grad_output"], **case.options, output=attended.output, lse=attended.lse)
    with sdpa_kernel(SDPBackend.MATH):
        lse = attend(*(wide(x) for x in arrays), **case.options, return_lse=True).lse
    errors = [deviation(one, of) for one, of in zip(found[:3], case.wanted[1][:3], strict=True)]
    row.observe(f"{kernel.name}: gradients {max(errors):.2g}, log-sum-exp {deviation(attended.lse, lse):.2g}")
    assert max(errors) <= 4 * case.allowed and deviation(attended.lse, lse) <= 1e-3
