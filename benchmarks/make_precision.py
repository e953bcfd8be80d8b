"""Makes the shipped table of precision: the figures of `backline check precision` on this machine.

``python benchmarks/make_precision.py [OP ...]`` measures every algorithm of every CPU library here and writes
``src/backline/engine/precision_figures.json``. Where operations are named, the others stay (matmul and linear share figures: name
both). With ``--merge`` the figures that are there stay where they are worse: so those of several classes of processors are put
together, and those of other instruction sets (OPENBLAS_CORETYPE=Haswell MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
BACKLINE_CPU_CAPABILITY=avx2). Load of the machine does not matter.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["BACKLINE_CONFIG"] = os.environ["BACKLINE_TUNING"] = ""

from backline import check_precision, libraries
from backline.engine import precision_figures, ranking_files
from backline.native.machine import machine


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--merge"]
    report = check_precision(*words, progress=lambda *at: print(*at, file=sys.stderr, flush=True))
    figures: dict[str, dict[str, dict[str, precision_figures.Figure]]] = {}
    provenance: dict[str, dict[str, object]] = {}
    merges = "--merge" in sys.argv
    if merges or words:
        figures, provenance = precision_figures.figures(), precision_figures.provenance()
    for row in report.rows:
        here = figures.setdefault(row.operation, {}).setdefault(row.dtype, {})
        name = f"{row.library}.{row.algorithm}"
        here[name] = precision_figures.merged(here[name], row.figure) if merges and name in here else row.figure
    m = machine()
    names = ("OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "BACKLINE_CPU_CAPABILITY")
    cap = " ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
    processors = str(ranking_files.here())
    earlier = provenance.get(processors, {}).get("command", "")
    command = "; ".join(filter(None, [earlier, " ".join(filter(None, [cap, "python", *sys.argv]))]))
    provenance[processors] = {
        "cpu": m.cpu.model, "date": time.strftime("%Y-%m-%d"), "command": command,
        "libraries": {n: v for n in libraries.names() if "cpu" in libraries.get(n).devices and (v := libraries.get(n).version())},
    }  # fmt: skip
    blocks = []
    for op, dtypes in sorted(figures.items()):
        lines = []
        for dtype, rows in sorted(dtypes.items()):
            inner = ",\n".join(f'   "{name}": {json.dumps(_row(figure))}' for name, figure in sorted(rows.items()))
            lines.append(f'  "{dtype}": {{\n{inner}}}')
        blocks.append(f' "{op}": {{\n' + ",\n".join(lines) + "}")
    with open(precision_figures.FILE, "w", encoding="utf-8") as stream:
        stream.write('{"provenance": ' + json.dumps(provenance) + ',\n"figures": {\n' + ",\n".join(blocks) + "\n}}\n")
    for case, said in report.failures.items():
        print(f"failed: {case}: {said}")


def _row(figure: precision_figures.Figure) -> list[object]:
    return list(figure) if figure.loss else list(figure[:6])


if __name__ == "__main__":
    main()
