"""Draw a result of the check on a GPU: Backline's times over those of PyTorch and CuPy, and what became of the rows.

python benchmarks/plot_gpu.py benchmarks/results/gpu-CARD-DATE.json [picture.png]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

PEERS = {"torch": (214, 96, 77), "cupy": (67, 147, 195)}
PASSED = ("proved", "recorded")
WIDTH, LINE, LEFT, TOP, RIGHT = 1000, 26, 430, 92, 110
INK, PALE = (30, 30, 30), (205, 205, 205)


def ratios(found: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Returns the cases, the peer, and Backline's median over the peer's, in the order of the file."""
    cases: dict[str, dict[str, float]] = {}
    for timing in found["timings"]:
        if str(timing.get("row", "")).startswith("PERF"):
            shape = "x".join(map(str, timing["shape"]))
            name = " ".join(part for part in (timing["op"], timing["dtype"], shape, timing["algorithm"]) if part)
            cases.setdefault(name, {})[timing["library"]] = timing["median_us"]
    return [
        (name, peer, times["backline"] / times[peer])
        for name, times in cases.items() for peer in PEERS if times.get(peer) and "backline" in times
    ]  # fmt: skip


def draw(found: dict[str, Any]) -> Image.Image:
    """The picture: a bar for each ratio, and a line where both take as long."""
    bars = ratios(found)
    image = Image.new("RGB", (WIDTH, TOP + LINE * max(len(bars), 1) + 40), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    machine, outcomes = found["machine"], [row["outcome"] for row in found["rows"]]
    rehearsed = " - a rehearsal, no device" if machine.get("rehearsed") else ""
    pen.text((12, 10), f"{machine.get('card', 'no card')}{rehearsed}", INK, ImageFont.load_default(18))
    counts = ", ".join(f"{outcomes.count(kind)} {kind.replace('_', ' ')}" for kind in (*PASSED, "refuted", "not_reached"))
    pen.text((12, 36), f"rows: {counts}", INK, font)
    pen.text((12, 58), "time of Backline over that of its peer: shorter is better", INK, font)
    for i, (peer, colour) in enumerate(PEERS.items()):
        pen.rectangle((LEFT + 130 * i, 60, LEFT + 130 * i + 14, 74), colour)
        pen.text((LEFT + 130 * i + 20, 58), peer, INK, font)
    room = WIDTH - LEFT - RIGHT
    most = max([2.0, *(min(ratio, 4.0) for _, _, ratio in bars)])
    for i, (name, peer, ratio) in enumerate(bars):
        y = TOP + LINE * i
        pen.text((12, y + 3), name, INK, font)
        end = LEFT + room * min(ratio, most) / most
        pen.rectangle((LEFT, y + 4, max(end, LEFT + 1), y + LINE - 5), PEERS[peer])
        pen.text((end + 6, y + 3), f"{ratio:.2f}", INK, font)
    if not bars:
        pen.text((12, TOP), "no peer was timed", INK, font)
    equal = LEFT + room / most
    pen.line((equal, TOP - 4, equal, TOP + LINE * len(bars)), PALE, 2)
    pen.text((equal - 4, TOP + LINE * max(len(bars), 1) + 6), "1", INK, font)
    return image


def main(source: str, target: str = "") -> None:
    """Draw a file of results; beside it if no other place is named."""
    found = json.loads(Path(source).read_text(encoding="utf-8"))
    path = Path(target) if target else Path(source).with_suffix(".png")
    draw(found).save(path)
    print(path)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
