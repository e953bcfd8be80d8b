"""The page of a report: one file that parses, needs nothing else, and shows what it is given as text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from backline.launch.saved_report import MARK
from backline.report import plots
from backline.report.page import page
from report_samples import operation, sample

VOID = {"meta", "link", "br", "hr", "img", "input"}
ADDRESSES = {"src", "href", "xlink:href", "action", "srcset", "poster", "data"}


class Parsed(HTMLParser):
    """Returns the parts that a page consists of; raises where tags are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ADDRESSES]
        self.ids += [value or "" for name, value in attributes if name == "id"]
        self.handlers += [name for name, _ in attributes if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


def test_the_page_parses_and_needs_nothing_else() -> None:
    text = page(sample())
    found = Parsed(text)
    assert found.tags.count("script") == 1 and not found.handlers and "iframe" not in found.tags
    assert all(address.startswith(("#", "data:")) for address in found.addresses), found.addresses
    assert "http:" not in text and "https:" not in text and "@import" not in text
    assert len(found.ids) == len(set(found.ids)), "names in a page are its own"
    assert all(address[1:] in found.ids for address in found.addresses if address.startswith("#"))


def test_every_part_is_there() -> None:
    found = Parsed(page(sample()))
    for words in ("matmul", "linalg.svd", "mkl", "0123456789abcdef", "two OpenMP runtimes", "prefer: blis is not there", "no file of this name", "fallback",
                  "environment (BACKLINE_FALLBACK)", "scope (job.py:8, backends.flags)", "200 GFLOP/s", "ended with status 3", "a sum in another order",
                  "numpy.dgesv", "backline run --from", "2026.2", "OMP_NUM_THREADS=2", "A processor"):  # fmt: skip
        assert words in found.text, words


def test_plots_are_drawn_and_say_what_they_show() -> None:
    assert not plots.available()
    found = Parsed(page(sample()))
    assert found.tags.count("svg") == found.tags.count("figure") == found.tags.count("figcaption") == 3
    svg = "".join(re.findall(r"<svg.*?</svg>", page(sample()), re.S))
    assert svg.count('role="img" aria-label="') == 3 and "currentColor" in svg and plots.TEXT not in svg
    assert "matmul" in svg and "roofline" in svg.lower() and "<metadata" not in svg


def test_without_matplotlib_the_page_has_its_tables_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "available", lambda: "Matplotlib is not installed, so there are no plots")
    found = Parsed(page(sample()))
    assert "svg" not in found.tags and "there are no plots" in found.text and "matmul f32 96x96 96x96" in found.text


NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[2J\u202e$x_1$"


def _spoiled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _spoiled(each) if key not in ("level", "unit", "created") else each for key, each in value.items()}
    if isinstance(value, list):
        return [_spoiled(each) for each in value]
    return value + NASTY if isinstance(value, str) else value


def test_text_of_users_is_shown_and_not_obeyed() -> None:
    spoiled = _spoiled(sample())
    text = page(spoiled)
    found = Parsed(text)
    assert found.tags.count("script") == 1 and "img" not in found.tags and not found.handlers
    assert "\x1b" not in text and "\u202e" not in text and "alert(1)" in found.text
    data = json.loads(text.partition(MARK)[2].partition("</script>")[0])
    assert data["command"][0].startswith("job.py</script><script>")


def test_extreme_reports_make_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = sample() | {
        "operations": [], "exchanged": [], "records": [], "refusals": [], "mapped": [], "libraries": [], "switches": [], "conflicts": [],
        "determinism": None, "plans": {}, "notes": [], "seconds": 0.0, "status": 0, "ending": "",
        "peak": {"gflops": {}, "gigabytes": None, "by": {}, "threads": 0, "created": "", "disturbed": ""},
    }  # fmt: skip
    found = Parsed(page(empty))
    assert "Nothing ran" in found.text and "Every switch has its default." in found.text
    unmeasured = sample() | {"peak": empty["peak"]}
    assert "was not measured" in Parsed(page(unmeasured)).text
    many = sample()
    many["operations"] = [
        operation(f"op{i}", f"library{i % 11}", 1 + i, 10.0 ** -(i % 9), gflops=None if i % 3 else 1e-6) for i in range(300)
    ]
    many["records"] = [
        many["records"][0] | {"medians": {f"lib.algorithm{i}@n": 1e-6 + i for i in range(30)}, "minima": {}} for _ in range(8)
    ]
    found = Parsed(page(many))
    assert "and 240 more" in found.text and found.tags.count("svg") == 3
    monkeypatch.setattr(plots, "available", lambda: "no plots")
    for checked, words in ({"failed": "it never ended"}, "it never ended"), (None, "Not checked"):
        assert words in Parsed(page(sample() | {"determinism": checked})).text
