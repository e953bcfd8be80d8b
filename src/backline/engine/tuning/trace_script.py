"""Runs a script and writes down every Problem it has solved: the child process of `backline tune`.

Called as ``python trace_script.py OUTPUT PARENT [-m] SCRIPT [ARGUMENTS]``. The script runs as if Python had been given it;
when it ends, however it ends, OUTPUT holds one JSON object. The exit status is the script's. On Linux it is terminated when
the process PARENT ends.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # this folder is no place to import from

import json
import time
from dataclasses import fields, replace
from typing import Any, cast

import numpy as np

from backline import _core, switches
from backline.engine.tuning import machine_load
from backline.problems import Operand, Problem
from backline.problems.dtypes import bfloat16

__all__ = ["Recorder", "end_with", "pack", "unpack"]

# Where the classes of Problems are that can be measured again from their description; imported as they are met.
CLASSES = {
    "MatmulProblem": "backline.problems.matmul_problem",
    "LinalgProblem": "backline.problems.linalg_problem",
    "ConvProblem": "backline.problems.conv_problem",
    "NeuralProblem": "backline.problems.neural_problem",
    "LinearProblem": "backline.problems.linear_problem",
    "AttentionProblem": "backline.problems.attention_problem",
    "RnnProblem": "backline.problems.rnn_problem",
    "FftProblem": "backline.problems.fft_problem",
    "MultiHeadProblem": "backline.problems.multi_head_problem",
}
COMMON = {field.name for field in fields(Problem)}


def pack(problem: Problem) -> dict[str, Any] | None:
    """All that a Problem is, as JSON takes it; None for one that cannot be measured again from that."""
    name = type(problem).__name__
    if name not in CLASSES:
        return None
    return {
        "class": name,
        "op": problem.op,
        "family": problem.family,
        "device": problem.device,
        "operands": [[o.role, o.dtype.name, list(o.shape), list(o.strides), o.aligned] for o in problem.operands],
        "parameters": [[k, {"complex": [v.real, v.imag]} if isinstance(v, complex) else v] for k, v in problem.parameters],
        "fields": {f.name: getattr(problem, f.name) for f in fields(problem) if f.name not in COMMON},
    }


def unpack(packed: dict[str, Any]) -> Problem:
    """The Problem that `pack` took apart."""
    from importlib import import_module

    cls: type[Problem] = getattr(import_module(CLASSES[packed["class"]]), packed["class"])
    operands = tuple(
        Operand(role, _dtype(dtype), tuple(shape), tuple(strides), aligned)
        for role, dtype, shape, strides, aligned in packed["operands"]
    )
    parameters = tuple((k, complex(*v["complex"]) if isinstance(v, dict) else _tuples(v)) for k, v in packed["parameters"])
    given = {name: _tuples(value) for name, value in packed["fields"].items()}
    return cls(packed["op"], operands, parameters, packed["family"], device=packed["device"], **given)


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        return bfloat16()
    return np.dtype(name)


class Recorder:
    """Counts and times what runs, by Plan. Its instances are called with every Event of the process."""

    def __init__(self) -> None:
        self.seen: dict[int, list[Any]] = {}

    def __call__(self, op: str, plan: Any, nanoseconds: int) -> None:
        entry = self.seen.get(id(plan))
        if entry is None:  # the entry holds the plan: its id stays its own
            entry = self.seen[id(plan)] = [plan, plan.choice, op, 0, 0]
        entry[3] += 1
        entry[4] += nanoseconds

    def entries(self) -> list[dict[str, Any]]:
        """The operations that ran: one entry for each Problem, algorithm and number of threads."""
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        parts = [part for seen in self.seen.values() for part in _steps(*seen[1:])]
        for choice, op, count, nanoseconds in parts:
            chosen = choice.chosen
            name = (choice.problem.key, chosen.key, choice.threads, op)
            entry = found.get(name)
            if entry is None:
                found[name] = entry = {
                    "problem": pack(choice.problem), "key": choice.problem.key, "op": op, "library": chosen.library,
                    "algorithm": chosen.key, "used": chosen.threads, "threads": choice.threads, "basis": choice.basis,
                    "count": 0, "seconds": 0.0,
                }  # fmt: skip
            entry["count"] += count
            entry["seconds"] += nanoseconds * 1e-9
        return list(found.values())


def _steps(choice: Any, op: str, count: int, nanoseconds: float) -> list[tuple[Any, str, int, float]]:
    """Returns what ran as it can be measured: the steps of a contraction, each with its share of the time by its operations."""
    inner = [step.choice for step in getattr(choice, "steps", ()) if step.choice is not None and step.choice.chosen is not None]
    if not inner:
        return [(choice, op, count, nanoseconds)]
    total = sum(max(each.problem.flops, 1.0) for each in inner)
    return [(each, op, count, nanoseconds * max(each.problem.flops, 1.0) / total) for each in inner]


def end_with(parent: int) -> None:
    """Ends this process with `backline tune`, even where that is killed: nobody reads the record any more."""
    if sys.platform != "linux":
        return
    import ctypes
    import signal

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit(128 + signal.SIGTERM)


def _disturbed(before: machine_load.Reading) -> str:
    """Describes other load on the machine. Threads of the script's own libraries interrupt each other, which tells nothing."""
    after = replace(machine_load.read(), switches=None)
    return machine_load.between(before, after, cast(int, switches.get("num_threads"))).disturbed


def main(output: str, parent: int, script: str, arguments: list[str], recorder: Any = None) -> None:
    """Run the script and write what was seen: the entries of a `Recorder`, or of another recorder, which may have a `tracer`."""
    import runpy

    end_with(parent)
    recorder = recorder or Recorder()
    here = os.getpid()
    module = script == "-m"
    if module:
        script, *arguments = arguments
    sys.argv = [script, *arguments]
    sys.path.insert(0, "" if module else os.path.dirname(os.path.abspath(script)))
    _core.set_tracer(getattr(recorder, "tracer", recorder))
    before = machine_load.read()
    start = time.perf_counter()
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != script:
            trace = trace.tb_next  # what is above the script is not the user's
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)
    finally:
        seconds = time.perf_counter() - start
        _core.set_tracer(None)
        if os.getpid() == here:  # a forked child of the script comes by here too
            with open(output, "w", encoding="utf-8") as stream:
                json.dump({"seconds": seconds, "entries": recorder.entries(), "disturbed": _disturbed(before)}, stream)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
