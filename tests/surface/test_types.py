"""Types that `mypy --strict` sees in a program that uses the public functions: arrays, named tuples and scopes, never Any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import backline

ARRAY = "numpy.ndarray[Any, Any]"
# An expression, and its type. A test below holds that none of the public operations is Any.
REVEALED = {
    "backline.matmul(a, b)": ARRAY,
    "backline.matmul(a, b, out=a)": ARRAY,
    "backline.einsum('ij,jk->ik', a, b)": ARRAY,
    "backline.cdist(a, b)": ARRAY,
    "backline.stft(a, 16)": ARRAY,
    "backline.matrix_exp(a)": ARRAY,
    "backline.trace(a)": ARRAY,
    "backline.tensordot(a, b)": ARRAY,
    "backline.linalg.cholesky(a)": ARRAY,
    "backline.linalg.svd(a).S": ARRAY,
    "backline.linalg.svd(a)": f"tuple[{ARRAY}, {ARRAY}, {ARRAY}, fallback=backline.problems.result_tuples.SVD]",
    "backline.linalg.eigh(a).eigenvalues": ARRAY,
    "backline.linalg.lstsq(a, b).rank": ARRAY,
    "backline.linalg.slogdet(a).logabsdet": ARRAY,
    "backline.linalg.norm(a)": ARRAY,
    "backline.linalg.det(a)": ARRAY,
    "backline.fft.rfft(a, dim=0)": ARRAY,
    "backline.nn.functional.conv2d(a, b, padding='same')": ARRAY,
    "backline.nn.functional.linear(a, b)": ARRAY,
    "backline.nn.functional.softmax(a, dim=-1)": ARRAY,
    "backline.nn.functional.scaled_dot_product_attention(a, a, a)": ARRAY,
    "backline.nn.functional.ctc_loss(a, a, [1], [1])": ARRAY,
    "backline.nn.gru(a, a, (a, a), False, 1, 0.0, False, False, False)[0]": ARRAY,
    "backline.sparse.matmul(backline.sparse.compress(a), b)": ARRAY,
    "backline.quantized.quantize(a, 0.5, 0)": "backline.quantized.arrays.QArray",
    "backline.use('mkl')": "backline.switches.snapshot.Scope",
    "backline.num_threads(2)": "backline.switches.snapshot.Scope",
    "backline.trace()": "backline.engine.events.Trace",
    "backline.explain(backline.matmul, a, b)": "backline.engine.choice.Choice",
}
# Calls that a type checker refuses, and a part of what it says.
REFUSED = {
    "backline.matmul(a)": 'Missing positional argument "other" in call to "matmul"',
    "backline.matmul(a, b, outt=a)": 'Unexpected keyword argument "outt" for "matmul"',
    "backline.linalg.cholesky(a, upper='yes')": 'Argument "upper" to "cholesky" has incompatible type "str"; expected "bool"',
    "backline.linalg.svd(a).V": '"SVD" has no attribute "V"',
}
HEAD = """\
from typing import Any

import numpy as np

import backline

a: np.ndarray[Any, Any] = np.eye(2)
b: np.ndarray[Any, Any] = np.eye(2)


@backline.num_threads(1)
def scoped(x: int) -> float:
    return x / 2


reveal_type(scoped)
"""


def mypy(folder: Path, text: str) -> list[str]:
    """The lines that mypy writes about a program, without the place."""
    program = folder / "program.py"
    program.write_text(text, encoding="utf-8")
    # The configuration of this project is not that of a program that uses it.
    config = folder / "mypy.ini"
    config.write_text("[mypy]\n", encoding="utf-8")
    arguments = ["--strict", "--python-executable", sys.executable, "--config-file", str(config), "--cache-dir", str(folder / "cache")]
    found = subprocess.run([sys.executable, "-m", "mypy", *arguments, str(program)], cwd=folder, capture_output=True, text=True)
    assert not found.stderr, found.stderr
    return [line.partition("program.py:")[2] for line in found.stdout.splitlines() if "program.py:" in line]


def test_types_of_a_program(tmp_path: Path) -> None:
    text = HEAD + "".join(f"reveal_type({expression})\n" for expression in REVEALED) + "\n".join(REFUSED) + "\n"
    lines = text.splitlines()
    said: dict[str, str] = {}
    for row in mypy(tmp_path, text):
        number, _, message = row.partition(": ")
        said.setdefault(lines[int(number) - 1], message)
    assert said.pop("reveal_type(scoped)") == 'note: Revealed type is "def (x: int) -> float"'
    wanted = {f"reveal_type({expression})": f'note: Revealed type is "{kind}"' for expression, kind in REVEALED.items()}
    refused = {expression: said.pop(expression, "") for expression in REFUSED}
    assert said == wanted
    for expression, part in REFUSED.items():
        assert part in refused[expression], expression


def test_no_public_function_is_untyped(tmp_path: Path) -> None:
    names = [f"backline.{name}" for name in backline.__all__]
    for module in ("linalg", "fft", "nn", "nn.functional", "nn.grad", "quantized", "sparse"):
        names += [f"backline.{module}.{name}" for name in __import__(f"backline.{module}", fromlist=["*"]).__all__]
    heads = "".join(f"import {name.rpartition('.')[0]}\n" for name in dict.fromkeys(name.rpartition(".")[0] + "." for name in names))
    text = heads + "".join(f"reveal_type({name})\n" for name in names)
    lines = text.splitlines()
    said = {lines[int(row.partition(": ")[0]) - 1]: row.partition(": ")[2] for row in mypy(tmp_path, text)}
    untyped = [name for name in names if said[f"reveal_type({name})"].endswith(('"Any"', '-> Any"')) and "_pool" not in name]
    assert not untyped
