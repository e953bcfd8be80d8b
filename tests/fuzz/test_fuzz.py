"""The fuzzer in short: some hundred cases, every operation has a generator, and planted faults are found."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline.problems.op_registry import composites
from backline.problems.op_registry import operations as rows
from fuzz import driver
from fuzz.__main__ import Run
from fuzz.arrays import Draw, Plain
from fuzz.call import GENERATORS
from fuzz.faults import FAULTS

# Public operations without a generator, each for a reason.
EXCLUDED = {
    "sparse.compress": "compressed matrices are for CUDA devices: there is no kernel on the CPU",
    "sparse.matmul": "compressed matrices are for CUDA devices: there is no kernel on the CPU",
    "sparse.search": "measures kernels of cuSPARSELt",
    "sparse.to_sparse_semi_structured": "compressed matrices are for CUDA devices: there is no kernel on the CPU",
    "nn.grad.layer_norm_gradients": "the compiled part of nn.grad.layer_norm_backward, which has a generator",
    "nn.grad.batch_norm_gradients": "the compiled part of nn.grad.batch_norm_backward, which has a generator",
    "quantized.linear_prepack": "the generator of quantized.linear calls it",
    "nn.functional.packed_attention": "a part of nn.functional.varlen_attn that is for CUDA devices: there is no kernel on the CPU",
    "nn.grad.packed_attention_backward": "a part of nn.grad.varlen_attn_backward that is for CUDA devices: there is no kernel on the CPU",
    "quantized.conv2d_prepack": "the generator of quantized.conv2d calls it",
}
MODULES = ("linalg", "fft", "nn", "nn.functional", "nn.grad", "quantized", "sparse")
TOP_LEVEL = (
    "addbmm", "addmm", "baddbmm", "bmm", "cdist", "chain_matmul", "cholesky_inverse", "cholesky_solve", "cos", "cross",
    "diagonal", "dot", "einsum", "exp", "expm1", "inner", "kron", "log", "log1p", "matmul", "mm", "mv", "outer", "prepack", "sin", "stft",
    "tensordot", "trace", "vander", "vdot",
)  # fmt: skip
# What is public and takes no arrays, or is a class.
NOT_OPERATIONS = {"empty", "explain", "num_threads", "use", "use_deterministic_algorithms"}


def operations() -> set[str]:
    """Every operation that a user can call, by the package's own lists."""
    found = {*TOP_LEVEL, *composites}
    for name in MODULES:
        module = importlib.import_module(f"backline.{name}")
        for each in module.__all__:
            value = getattr(module, each)
            if callable(value) and not inspect.isclass(value):
                found.add(f"{name}.{each}")
    return found | set(rows)


def test_every_operation_has_a_generator_or_a_reason() -> None:
    missing = operations() - set(GENERATORS) - set(EXCLUDED)
    assert not missing, f"write generators in tests/fuzz/families for {sorted(missing)}, or give the reason in EXCLUDED"
    assert not set(EXCLUDED) & set(GENERATORS)
    assert not set(EXCLUDED) - operations(), "excluded, but no operation any more"


def test_every_generator_makes_calls() -> None:
    for op, (_, generator, _) in GENERATORS.items():
        for index in range(4):
            call = generator(Draw(3, index))
            assert call.op == op and callable(call.check)


def test_a_seed_and_a_number_give_the_same_case() -> None:
    choice = driver.Choice()
    for index in range(50):
        one, two = driver.Case(choice, 5, index), driver.Case(choice, 5, index)
        assert driver.code_of(one) == driver.code_of(two)
        assert one.op == two.op


@pytest.mark.parametrize("text", ["0", "4LVO", "17V", "0LO"])
def test_shrunk_cases_are_written_and_read(text: str) -> None:
    assert Plain.parse(text).text() == text


def test_no_case_of_a_short_run_finds_anything(tmp_path: Path) -> None:
    run = Run(tmp_path, seed=1)
    run.run(seconds=300, last=1500)
    summary = run.summary()
    assert not summary["findings"], "\n".join(
        f"{f['op']} by {f['by']}: {f['kind']}: {f['text'][-600:]}\n  make fuzz CASE={f['case']}\n{f['code']}" for f in summary["findings"]
    )
    assert summary["counts"]["cases"] == 1500 and summary["calls"] > 8000


KINDS = {
    "one element": "value", "not written": "not finite", "bare error": "exception TypeError", "crash": "crash", "hang": "hang",
    "reads further": "crash", "writes operand": "memory", "wrong shape": "shape",
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    planted = f"from fuzz import faults\nfaults.plant({fault!r})"
    run = Run(tmp_path, seed=1, families="matmul", libraries="numpy", limit=5 if fault == "hang" else 60, prelude=planted, shrink=False)
    run.run(seconds=200, last=3 if fault == "hang" else 30)
    found = run.summary()["findings"]
    assert any(f["kind"].startswith(KINDS[fault]) and f["op"] in ("matmul", "linalg.matmul", "mm") for f in found), found
    assert all(f["by"].startswith(("numpy.", "only numpy")) for f in found)
    assert any(f["kind"].startswith(KINDS[fault]) and f["case"] for f in found)


def test_a_program_repeats_the_call() -> None:
    case = driver.Case(driver.Choice("mm"), 5, 1)
    lines: dict[str, Any] = {}
    text = driver.code_of(case)
    exec(text[: text.rindex("print(")] + "result = " + text[text.rindex("print(") + 6 : -1], lines)
    assert np.shape(lines["result"]) == (case.call.args[0].shape[0], case.call.args[1].shape[1])
    assert backline.mm is driver.function_of("mm")
