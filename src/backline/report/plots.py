"""The plots of a report, drawn by Matplotlib as SVG that stands inside of a page: text stays text, colours follow the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from ..engine.text_table import in_words

__all__ = ["available", "roofline", "time_by_operation", "tuning"]

WIDTH = 4.2  # inches: less than a phone shows, so that text is not made smaller there
MOST = 12  # bars
RECORDS = 6
ALGORITHMS = 8
#: Colours that can be told apart by the colour-blind (Okabe and Ito), on white and on black.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#9a8f1f", "#888888")
MARKS, LINES = "os^DvPX*", ("-", "--", "-.", ":")
TEXT = "#010203"  # stands for the colour of the page's text
SETTINGS = {
    "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif", "axes.spines.top": False, "axes.spines.right": False,
    "text.color": TEXT, "axes.labelcolor": TEXT, "axes.edgecolor": TEXT, "xtick.color": TEXT, "ytick.color": TEXT,
    "grid.color": "#88888860", "legend.frameon": False, "legend.fontsize": 8, "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
}  # fmt: skip

Draw = Callable[[Any], None]


def available() -> str:
    """Returns an empty string if Matplotlib can be imported, else why there are no plots."""
    try:
        import matplotlib.figure
    except ImportError:
        return "Matplotlib is not installed, so there are no plots: pip install 'backline[report]'"
    del matplotlib
    return ""


def _drawn(name: str, height: float, caption: str, draw: Draw) -> str:
    """Returns a figure of HTML with what a function draws on axes. Nothing of Matplotlib's global state is used."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True)
    return f'<figure id="{name}">{_inline(stream.getvalue(), name, caption)}<figcaption>{escape(caption)}</figcaption></figure>'


def _inline(svg: str, name: str, caption: str) -> str:
    """Returns an SVG as it stands in a page: as wide as there is room, with names of its own, in the page's colours and fonts."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]*)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'(xlink:)?href="#([^"]*)"', rf'href="#{name}-\2"', svg)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # a page needs none, and it names no other place then
    svg = svg.replace(TEXT, "currentColor")
    head = f'<svg role="img" aria-label="{escape(caption, quote=True)}"'
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (width|height)="[^"]*"', "", opening).replace("<svg", head, 1)
    return f"{opening}>{rest}"


def _logarithmic(axes: Any, name: str, numbers: Sequence[int]) -> None:
    """Makes an axis logarithmic, with plain numbers at its ticks: powers of ten times these."""
    from matplotlib.ticker import LogLocator, NullFormatter

    getattr(axes, f"set_{name}scale")("log")
    axis = getattr(axes, f"{name}axis")
    axis.set_major_locator(LogLocator(subs=numbers, numticks=9))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _colour(names: Sequence[str]) -> dict[str, str]:
    return {name: COLOURS[min(i, len(COLOURS) - 1)] for i, name in enumerate(dict.fromkeys(names))}


def time_by_operation(rows: Sequence[tuple[str, str, float]]) -> str:
    """Returns bars of the seconds of operations, by library: rows are operation, library, seconds."""
    totals: dict[str, float] = {}
    for op, _, seconds in rows:
        totals[op] = totals.get(op, 0.0) + seconds
    shown = sorted(totals, key=totals.__getitem__)[-MOST:]
    libraries = sorted({library for _, library, _ in rows})
    colours = _colour(libraries)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        left = dict.fromkeys(shown, 0.0)
        for library in libraries:
            mine = {op: sum(s for o, lib, s in rows if (o, lib) == (op, library)) for op in shown}
            if not any(mine.values()):
                continue
            axes.barh([_short(op) for op in shown], [mine[op] for op in shown], left=[left[op] for op in shown],
                      color=colours[library], label=library)  # fmt: skip
            for op in shown:
                left[op] += mine[op]
        for number, op in enumerate(shown):
            axes.annotate(f" {in_words(totals[op])}", (totals[op], number), va="center", fontsize=8)
        axes.set_xlabel("seconds")
        axes.margins(x=0.24)
        figure.legend(loc="outside upper left", ncols=3)

    return _drawn("time", 0.9 + 0.26 * len(shown), "Time of operations, by the library that ran them.", draw)


def roofline(rows: Sequence[dict[str, Any]], peak: dict[str, Any]) -> str:
    """Returns the roofline: operations a second over operations a byte, and what the machine reaches at the most."""
    points = [row for row in rows if row["gflops"] and row["bytes"] and row["flops"]]
    roofs = {unit: rate for unit, rate in (peak.get("gflops") or {}).items() if any(p["unit"] == unit for p in points)}
    memory = peak.get("gigabytes")
    colours = _colour([p["library"] for p in points])
    total = sum(p["seconds"] for p in points) or 1.0

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        low, high = 2.0**-6, max([2.0**10, *(2 * p["flops"] / p["bytes"] for p in points)])
        for number, (unit, rate) in enumerate(roofs.items()):
            start = rate / memory if memory else low
            axes.plot([min(start, high), high], [rate, rate], color=TEXT, linewidth=1, linestyle=LINES[number % len(LINES)])
            side = "top" if number % 2 else "bottom"  # of lines: two may be nearly as high
            axes.annotate(f"{unit} {rate:.0f} GFLOP/s", (high, rate), ha="right", va=side, fontsize=8)
            if memory:
                axes.plot([low, start], [low * memory, rate], color=TEXT, linewidth=1)
        if memory and roofs:
            at = (low * 3, low * 3 * memory)
            axes.annotate(f"memory {memory:.0f} GB/s", at, (6, -4), textcoords="offset points", va="top", fontsize=8)
        for number, library in enumerate(colours):
            mine = [p for p in points if p["library"] == library]
            axes.scatter(
                [p["flops"] / p["bytes"] for p in mine], [p["gflops"] for p in mine], label=library, color=colours[library],
                s=[15 + 150 * p["seconds"] / total for p in mine], marker=MARKS[number % len(MARKS)], alpha=0.8, linewidths=0,
            )  # fmt: skip
        _logarithmic(axes, "x", (1,))
        _logarithmic(axes, "y", (1,))
        axes.set_xlim(low, high)
        axes.set_xlabel("floating-point operations for each byte of the arrays")
        axes.set_ylabel("GFLOP/s")
        axes.grid(True, linewidth=0.5)
        figure.legend(loc="outside upper left", ncols=3, markerscale=0.8)

    caption = "Roofline: each mark is a problem, larger where more time went; lines are what this machine reaches at the most."
    return _drawn("roofline", 3.6, caption, draw)


def tuning(records: Sequence[dict[str, Any]]) -> str:
    """Returns the times of algorithms for the first problems: from the least time to the median; what runs is filled."""
    shown = records[:RECORDS]
    colours = _colour(sorted({key.partition(".")[0] for r in shown for key in r["medians"]}))

    def draw(figure: Any) -> None:
        heights = [1 + min(len(r["medians"]), ALGORITHMS) for r in shown]
        panels = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, record in zip(panels, shown, strict=True):
            best = sorted(record["medians"], key=record["medians"].__getitem__)[:ALGORITHMS][::-1]
            for number, key in enumerate(best):
                median, least = record["medians"][key] * 1e6, record["minima"].get(key, record["medians"][key]) * 1e6
                colour = colours[key.partition(".")[0]]
                axes.plot([least, median], [number, number], color=colour, linewidth=2)
                axes.plot([least], [number], marker="|", color=colour, markersize=8)
                face = colour if key == record["chosen"] else "none"
                axes.plot([median], [number], marker="o", markerfacecolor=face, markeredgecolor=colour, markersize=6)
            axes.set_yticks(range(len(best)), [_short(key, 24) for key in best])
            axes.set_title(_short(record["problem"], 48), fontsize=8, loc="left")
            _logarithmic(axes, "x", (1, 2, 5))
            axes.margins(y=0.15)
            axes.grid(True, axis="x", linewidth=0.5)
        panels[-1].set_xlabel("microseconds")

    height = 0.4 + sum(0.5 + 0.2 * min(len(r["medians"]), ALGORITHMS) for r in shown)
    caption = "Measured times: a line from the least to the median, a circle at the median, filled for what runs."
    return _drawn("tuning", height, caption, draw)
