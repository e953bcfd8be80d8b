"""LSTM and GRU over sequences, forward, against PyTorch: ``python benchmarks/rnn.py [--threads N] [--rounds N]``.

Every way of every library is timed once for the choice, as a tuned program would have it. Weights are given anew to every call on
both sides. Without ``--threads``, once on one thread and once on two. PyTorch runs its modules in inference mode; the results are
compared before anything is timed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

import backline
from backline import backends, nn
from side_by_side import Table, compare, torch_or_none

Array = np.ndarray[Any, Any]

rng = np.random.default_rng(1)


@dataclass(frozen=True)
class Case:
    mode: str
    steps: int
    batch: int
    features: int
    hidden: int
    layers: int = 1
    bidirectional: bool = False

    @property
    def label(self) -> str:
        more = f" {self.layers} layers, both ways" if self.layers > 1 else ""
        return f"{self.mode} T{self.steps} N{self.batch} {self.features}-{self.hidden}{more}"


CASES = (
    Case("lstm", 32, 16, 256, 256),
    Case("lstm", 128, 1, 512, 512),
    Case("lstm", 64, 32, 512, 512),
    Case("lstm", 20, 8, 128, 128, 2, True),
    Case("lstm", 4, 1, 16, 16),
    Case("gru", 32, 16, 256, 256),
    Case("gru", 128, 1, 512, 512),
    Case("gru", 64, 32, 512, 512),
)


def normal(*shape: int) -> Array:
    return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)


def arguments(case: Case) -> tuple[Any, ...]:
    """Of the operation, in its order."""
    directions, rows = (2 if case.bidirectional else 1), {"lstm": 4, "gru": 3}[case.mode] * case.hidden
    params: list[Array] = []
    for cell in range(case.layers * directions):
        columns = case.features if cell < directions else directions * case.hidden
        params += [normal(rows, columns), normal(rows, case.hidden), normal(rows), normal(rows)]
    states = tuple(normal(case.layers * directions, case.batch, case.hidden) for _ in "hc")
    hx = states if case.mode == "lstm" else states[0]
    x = normal(case.steps, case.batch, case.features)
    return x, hx, tuple(params), True, case.layers, 0.0, False, case.bidirectional, False


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def plain(case: Case, args: tuple[Any, ...]) -> Array:
    """The network as one writes it with NumPy alone: the product of the input once, then a loop over the steps."""
    x, hx, params = args[:3]
    directions, n = (2 if case.bidirectional else 1), case.hidden
    states = hx if isinstance(hx, tuple) else (hx,)
    for layer in range(case.layers):
        output = np.empty((case.steps, case.batch, directions * n), np.float32)
        for d in range(directions):
            cell = layer * directions + d
            w_ih, w_hh, b_ih, b_hh = params[4 * cell : 4 * cell + 4]
            by_input, h, c = x @ w_ih.T + b_ih, states[0][cell], states[-1][cell]
            for t in reversed(range(case.steps)) if d else range(case.steps):
                by_state = h @ w_hh.T + b_hh
                if case.mode == "lstm":
                    i, f, g, o = np.split(by_input[t] + by_state, 4, -1)
                    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                    h = sigmoid(o) * np.tanh(c)
                else:
                    (a_r, a_z, a_n), (b_r, b_z, b_n) = np.split(by_input[t], 3, -1), np.split(by_state, 3, -1)
                    z = sigmoid(a_z + b_z)
                    h = (1 - z) * np.tanh(a_n + sigmoid(a_r + b_r) * b_n) + z * h
                output[t, :, d * n : (d + 1) * n] = h
        x = output
    return x


def theirs(torch: Any, case: Case, args: tuple[Any, ...]) -> Any:
    kind = torch.nn.LSTM if case.mode == "lstm" else torch.nn.GRU
    module = kind(case.features, case.hidden, case.layers, bidirectional=case.bidirectional)
    with torch.no_grad():
        for weight, given in zip(module.parameters(), args[2], strict=True):
            weight.copy_(torch.from_numpy(given))
    x, hx = torch.from_numpy(args[0]), args[1]
    states = tuple(map(torch.from_numpy, hx)) if isinstance(hx, tuple) else torch.from_numpy(hx)

    def run() -> Any:
        with torch.inference_mode():
            return module(x, states)

    return run


def row(table: Table, case: Case, threads: int, rounds: int, torch: Any) -> None:
    args, function = arguments(case), getattr(nn, case.mode)
    with backends.flags(benchmark=True, benchmark_limit=0):
        function(*args)

    def ours() -> Any:
        return function(*args)

    result, wanted = ours()[0], plain(case, args)
    choice = backline.explain()
    contestants: dict[str, Any] = {"backline": ours}
    if torch:
        contestants["torch"] = theirs(torch, case, args)
        np.testing.assert_allclose(contestants["torch"]()[0].numpy(), wanted, atol=1e-5)
    np.testing.assert_allclose(result, wanted, atol=1e-5, err_msg=case.label)
    contestants["numpy"] = lambda: plain(case, args)
    note = f"{choice.library} {choice.algorithm} x{choice.chosen.threads}"
    table.add(f"{case.label} T{threads}", compare(contestants, rounds=rounds), note)


def number(flag: str, default: int | None) -> int | None:
    return int(sys.argv[sys.argv.index(flag) + 1]) if flag in sys.argv else default


def main() -> None:
    asked = number("--threads", None)
    rounds = number("--rounds", 9) or 9
    torch = torch_or_none(asked or 1)
    table = Table("rnn", ["numpy", *(["torch"] if torch else [])])
    for threads in (asked,) if asked else (1, 2):
        if torch:
            torch.set_num_threads(threads)
        with backline.num_threads(threads):
            for case in CASES:
                row(table, case, threads, rounds, torch)
    summary: dict[str, Any] = {"threads": [asked] if asked else [1, 2], "rounds": rounds}
    if torch:
        for r in table.rows:
            r["of_torch"] = r["seconds"]["backline"] / r["seconds"]["torch"]
        over, worst = table.speed_over("torch"), max(r["of_torch"] for r in table.rows)
        print(f"\ngeometric mean of the speed over torch {over:.2f}, worst row {worst:.2f} of its time")
        summary |= {"speed_over_torch": over, "worst_of_torch": worst}
    summary["speed_over_numpy"] = table.speed_over("numpy")
    table.save(**summary)


if __name__ == "__main__":
    main()
