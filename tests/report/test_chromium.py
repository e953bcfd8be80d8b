"""The page of a report in a real Chromium: no errors, plots that can be seen, a phone's width, paper. `make test-report` runs these."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backline.report.page import page
from report_samples import sample

pytestmark = pytest.mark.chromium
PHONE, DESK = 390, 1280

# Written to the page's title: what a reader sees, as Chromium laid it out.
PROBE = """<script>addEventListener("load", () => {
  const seen = [...document.querySelectorAll("figure svg")].map(e => e.getBoundingClientRect()).map(r => [r.width, r.height]);
  const small = [...document.querySelectorAll("td, p, dd, a")].filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length;
  const beyond = [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1).length;
  document.title = JSON.stringify({width: innerWidth, scroll: document.documentElement.scrollWidth, seen, small, beyond,
    colour: getComputedStyle(document.body).color, page: getComputedStyle(document.body).backgroundColor});
});</script>"""


def chromium(folder: Path, *words: str) -> tuple[str, str]:
    """Runs Chromium without a screen; returns what it wrote to both outputs."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    command = [
        program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=5000", *words,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | {"HOME": str(folder)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def written(tmp_path: Path) -> Path:
    file = tmp_path / "report.html"
    file.write_text(page(sample()), encoding="utf-8")
    return file


def test_chromium_has_nothing_to_complain_of_and_loads_nothing(written: Path, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    out, said = chromium(tmp_path, "--dump-dom", f"--log-net-log={log}", written.as_uri())
    assert "CONSOLE" not in said, said
    assert out.count("<svg") == 3 and "Where the time went" in out
    requests = re.findall(r'"url":"(https?:[^"]*)"', log.read_text(encoding="utf-8")) if log.exists() else []
    assert not [url for url in requests if "report" in url]


# A window is never made narrower than 500 pixels, so the page stands in a frame of a phone's width.
@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_its_width_in_light_and_in_dark(width: int, scheme: str, written: Path, tmp_path: Path) -> None:
    text = written.read_text(encoding="utf-8").replace("</body>", f"{PROBE}</body>")
    written.write_text(text, encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text(
        f"""<!doctype html><iframe src="{written.as_uri()}" style="width:{width}px;height:4000px;border:0"></iframe><script>
        addEventListener("load", () => setTimeout(() => document.title = document.querySelector("iframe").contentDocument.title, 300));</script>"""
    )
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else ["--blink-settings=preferredColorScheme=1"]
    out, _ = chromium(tmp_path, "--dump-dom", "--allow-file-access-from-files", "--window-size=1500,4200", *dark, outer.as_uri())
    found: dict[str, Any] = json.loads(re.search(r"<title>(\{.*?\})</title>", out)[1])  # type: ignore[index]  # the page has a title
    assert found["width"] == width and found["scroll"] <= width and found["beyond"] == 0, found
    assert found["small"] == 0 and len(found["seen"]) == 3
    assert all(300 <= seen[0] <= width and seen[1] > 80 for seen in found["seen"]), found
    assert found["page"] == ("rgb(20, 23, 27)" if scheme == "dark" else "rgb(255, 255, 255)")


def test_it_prints_to_pdf(written: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    chromium(tmp_path, f"--print-to-pdf={file}", "--no-pdf-header-footer", written.as_uri())
    content = file.read_bytes()
    assert (
        content.startswith(b"%PDF-")
        and len(content) > 20_000
        and content.count(b"/Type /Page\n") + content.count(b"/Type /Page/") >= 1
    )


def test_it_is_a_picture(written: Path, tmp_path: Path) -> None:
    from PIL import Image

    file = tmp_path / "report.png"
    chromium(tmp_path, f"--screenshot={file}", "--window-size=900,1400", written.as_uri())
    with Image.open(file) as image:
        colours = image.convert("RGB").getcolors(1 << 24)
        assert image.size == (900, 1400) and colours is not None and len(colours) > 50
