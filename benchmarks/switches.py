"""The cost of a change of switches: opening and leaving a scope, and reading one switch.

    python benchmarks/switches.py

Prints the median, and the lowest and highest, of repeated short loops, in nanoseconds; the cost of the empty
loop is taken off.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from backline import backends, switches

REPEATS = 31
TURNS = 2000


def scope_from_flags(turns: int) -> None:
    for _ in range(turns):
        with backends.mkl.flags(enabled=False):
            pass


def scope_reentered(turns: int) -> None:
    scope = backends.mkl.flags(enabled=False)
    for _ in range(turns):
        with scope:
            pass


def scope_nested(turns: int) -> None:
    with backends.flags(fallback="warn"), backends.flags(num_threads=1):
        scope_from_flags(turns)


def read_attribute(turns: int) -> None:
    mkl = backends.mkl
    for _ in range(turns):
        mkl.enabled  # noqa: B018  (the reading is what is timed)


def read_by_name(turns: int) -> None:
    get = switches.get
    for _ in range(turns):
        get("mkl.enabled")


def read_inside_a_scope(turns: int) -> None:
    with backends.flags(fallback="warn"):
        read_attribute(turns)


def read_node(turns: int) -> None:
    conv = backends.cudnn.conv
    for _ in range(turns):
        conv.fp32_precision  # noqa: B018  # the reading is what is timed


def read_view(turns: int) -> None:
    cudnn = backends.cudnn
    for _ in range(turns):
        cudnn.allow_tf32  # noqa: B018  # the reading is what is timed


def read_view_inside_a_scope(turns: int) -> None:
    with backends.flags(fp32_precision="tf32"):
        read_view(turns)


def scope_with_view(turns: int) -> None:
    for _ in range(turns):
        with backends.cudnn.flags(allow_tf32=False):
            pass


def scope_with_view_reentered(turns: int) -> None:
    scope = backends.cudnn.flags(allow_tf32=False)
    for _ in range(turns):
        with scope:
            pass


def empty(turns: int) -> None:
    for _ in range(turns):
        pass


def timed(function: Callable[[int], None]) -> float:
    start = time.perf_counter_ns()
    function(TURNS)
    return (time.perf_counter_ns() - start) / TURNS


def main() -> None:
    rows = {
        "open and leave a scope: with mkl.flags(enabled=False)": scope_from_flags,
        "  the same scope object again": scope_reentered,
        "  two scopes deep already": scope_nested,
        "  with a view: with cudnn.flags(allow_tf32=False)": scope_with_view,
        "    the same scope object again": scope_with_view_reentered,
        "read a switch: mkl.enabled": read_attribute,
        "  inside a scope": read_inside_a_scope,
        '  by name: switches.get("mkl.enabled")': read_by_name,
        "read a node of precision: cudnn.conv.fp32_precision": read_node,
        "read a view of two nodes: cudnn.allow_tf32": read_view,
        "  inside a scope of the root's node": read_view_inside_a_scope,
    }
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(REPEATS):  # in turn, so that a change of the machine's clock meets all alike
        loop = timed(empty)
        for name, function in rows.items():
            times[name].append(timed(function) - loop)
    print(f"{'':56} {'median':>9} {'lowest':>9} {'highest':>9}   nanoseconds")
    for name, row in times.items():
        print(f"{name:56} {statistics.median(row):9.0f} {min(row):9.0f} {max(row):9.0f}")


if __name__ == "__main__":
    main()
