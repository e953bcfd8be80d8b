"""Attention on CUDA arrays: what each kernel takes, and what it says of the rest."""

from __future__ import annotations

from typing import Any

import pytest

import backline
from backline import switches
from backline.backends import cuda
from backline.errors import NoKernel
from backline.libraries import attention_constraints
from backline.nn.attention import SDPBackend, sdpa_kernel
from gpu.arrays import normal, wide
from gpu.variants import ALLOWED, attend, deviation, only, plans_of, slopes

FLASH, EFFICIENT, CUDNN, MATH = (SDPBackend[f"{n}_ATTENTION" if n != "MATH" else n] for n in ("FLASH", "EFFICIENT", "CUDNN", "MATH"))


def asked(q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, gqa: bool = False) -> cuda.SDPAParams:
    return cuda.SDPAParams(q, k, v, mask, dropout, causal, gqa)


@pytest.mark.gpu(row="SDPA-1")
def test_what_no_fused_kernel_takes(row: Any, xp: Any) -> None:
    row.expect("FLASH, EFFICIENT and CUDNN refuse with the first constraint that fails; MATH runs what has a meaning")
    x = xp.asarray(normal((2, 4, 64, 64), "float16"))
    short = x[:, :, :0]
    cases: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "4-D": ((x[0], x[0], x[0]), {}),
        "no length may be zero": ((x, short, short), {}),
        "one batch size": ((x, x[:1], x[:1]), {}),
        "as many heads": ((x, x[:, :1], x[:, :1]), {}),
        "contiguous along the head dim": ((x[..., ::2], x[..., ::2], x[..., ::2]), {}),
    }
    for words, (arrays, options) in cases.items():
        for kernel in (FLASH, EFFICIENT, CUDNN):
            with only(kernel), pytest.raises(NoKernel, match=words):
                attend(*arrays, **options)
        with only(MATH):
            found = attend(*arrays, **options)
            wanted = attend(*(wide(a) for a in arrays), **options)
            assert deviation(found, wanted) <= ALLOWED["float16"]
        row.observe(words)
    for kernel, can in ((FLASH, cuda.can_use_flash_attention), (EFFICIENT, cuda.can_use_efficient_attention), (CUDNN, cuda.can_use_cudnn_attention)):
        assert can(asked(x, x, x)), kernel
        assert not can(asked(x[0], x[0], x[0]))
        with pytest.warns(UserWarning, match="4-D"):
            can(asked(x[0], x[0], x[0]), debug=True)


@pytest.mark.gpu(row="SDPA-2")
def test_what_flash_takes(row: Any, xp: Any, device: Any) -> None:
    row.expect("its rule, constraint by constraint; what it accepts runs")
    x = xp.asarray(normal((2, 4, 64, 64), "float16"))
    single, long = x.astype("float32"), xp.asarray(normal((1, 1, 16, 264), "float16"))
    mask = xp.ones((64, 64), bool)
    refused: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "no mask": ((x, x, x, mask), {}),
        "one head dim": ((x, x, x[..., :32].copy()), {}),
        "at most 256": ((long, long, long), {}),
        "float16 or bfloat16": ((single, single, single), {}),
        "as many queries as keys": ((x, x[:, :, :40], x[:, :, :40]), {"is_causal": True}),
        "cuda.flash_sdp": ((x, x, x), {"off": "cuda.flash_sdp"}),
    }
    for words, (arrays, given) in refused.items():
        options = {**given}
        off = {options.pop("off"): False} if "off" in options else {}
        with only(FLASH), switches.scope(off), pytest.raises(NoKernel, match=words):
            attend(*arrays, **options)
        row.observe(words)
    with only(FLASH):
        for arrays, options in (((x, x, x), {}), ((x, x[:, :1], x[:, :1]), {"enable_gqa": True}), ((x, x, x), {"is_causal": True})):
            assert xp.asnumpy(xp.isfinite(attend(*arrays, **options).astype("float32"))).all()
            assert backline.explain().algorithm == "flash"
    row.observe(f"accepted on capability {device.capability}")


@pytest.mark.gpu(row="SDPA-3")
def test_what_efficient_takes(row: Any, xp: Any) -> None:
    row.expect("its rule, constraint by constraint; masks, float32, other keys and another head dim of the value run")
    x = xp.asarray(normal((2, 4, 64, 72), "float16"))
    plain = x[..., :64].copy()
    single = plain.astype("float32")
    double = plain.astype("float64")
    refused: dict[str, tuple[Any, ...]] = {
        "multiples of 8": (x[..., :60].copy(), x[..., :60].copy(), plain),
        "of 4": (single[..., :6].copy(), single[..., :6].copy(), single),
        "float16, float32": (double, double, double),
    }
    for words, arrays in refused.items():
        with only(EFFICIENT), pytest.raises(NoKernel, match=words):
            attend(*arrays)
        row.observe(words)
    odd = x[..., 1:65]
    assert not cuda.can_use_efficient_attention(asked(odd, odd, odd)) and cuda.can_use_efficient_attention(asked(plain, plain, plain))
    with pytest.warns(UserWarning, match="start at such a multiple"):
        cuda.can_use_efficient_attention(asked(odd, odd, odd), debug=True)
    for kernel in (EFFICIENT, FLASH):
        with only(kernel):
            found = attend(odd, odd, odd)
        with only(MATH):
            assert deviation(found, wide(attend(*(odd.astype("float64") for _ in range(3))))) <= ALLOWED["float16"]
    row.observe("arrays that start anywhere: said to be none for it, and copied to where they are if it is called")
    added = xp.zeros((64, 64), "float32")
    with only(EFFICIENT), pytest.raises(NoKernel, match="no gradient of a mask"):
        slopes(plain, plain, plain, plain, added)
    with sdpa_kernel([EFFICIENT, MATH]):  # the next kernel has it
        assert slopes(plain, plain, plain, plain, added).attn_mask.shape == (64, 64)
        assert backline.explain().algorithm == "math"
    row.observe("the gradient of a mask is MATH's")


# 6 questions for cuDNN -> arrays: queries, keys, head dim, dim of the value, dtype.
QUESTIONS: dict[str, tuple[int, int, int, int, str]] = {
    "d 64": (128, 128, 64, 64, "float16"), "d 60": (128, 128, 60, 60, "float16"), "d 128": (128, 128, 128, 128, "bfloat16"),
    "d 192 and 128": (128, 128, 192, 128, "float16"), "d 256": (128, 128, 256, 256, "float16"), "one query": (1, 128, 64, 64, "float16"),
    "500 x 333": (500, 333, 64, 64, "float16"), "one key": (128, 1, 64, 64, "float16"), "float32": (128, 128, 64, 64, "float32"),
}  # fmt: skip


@pytest.mark.gpu(row="SDPA-4")
@pytest.mark.parametrize("name", QUESTIONS)
def test_what_cudnn_takes(row: Any, xp: Any, device: Any, name: str) -> None:
    row.expect("what the rule accepts cuDNN accepts, and computes; where the rule is stricter, cuDNN's answer is recorded")
    queries, keys, dim, vdim, dtype = QUESTIONS[name]
    hosts = [normal((2, 8, n, d), dtype, i) for i, (n, d) in enumerate(((queries, dim), (keys, dim), (keys, vdim)))]
    q, k, v = map(xp.asarray, hosts)
    accepted = cuda.can_use_cudnn_attention(asked(q, k, v))
    with sdpa_kernel(MATH):
        problem = backline.explain(backline.nn.functional.scaled_dot_product_attention, q, k, v).problem
        wanted = attend(*map(wide, hosts))
    plans, why = plans_of(problem, device)
    reason = attention_constraints.refusal("cudnn_attention", problem, attention_constraints.facts_of("cuda:0"))
    row.observe(f"{name}: rule {'yes' if accepted else 'no'}, cuDNN {'yes' if plans else 'no'}", f"{len(plans)} plans {why or reason}")
    assert bool(reason) != accepted
    if accepted:
        assert plans, why
        with only(CUDNN):
            found = attend(q, k, v)
            assert backline.explain().library == "cudnn"
        assert deviation(found, wanted) <= ALLOWED[dtype]
    else:
        with only(CUDNN), pytest.raises(NoKernel):
            attend(q, k, v)
