"""Texts that commands quote from elsewhere cannot steer the terminal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from backline.printable import printable

ESCAPE = "\x1b[2J\x1b]0;title\x07"


@pytest.mark.parametrize("text", [ESCAPE, "a\rb", "\x9b31m", "\u202eabc", "\udcff", "\x00", "\x7f"])
def test_controls_become_escapes(text: str) -> None:
    shown = printable(text)
    assert all(letter.isprintable() for letter in shown)
    assert shown.isascii()


def test_text_stays() -> None:
    assert printable("Grüße\n\t漢字 é") == "Grüße\n\t漢字 é"


def command(*words: str) -> str:
    ended = subprocess.run([sys.executable, "-m", "backline", *words], capture_output=True, text=True, timeout=120, check=False)
    return ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("tune", ESCAPE + ".py"), ("explain", "matmul", "f32", ESCAPE), ("explain", ESCAPE), ("tune", "--import", ESCAPE),
        ("tune", "--deterministic", ESCAPE, "x.py"), ("run", ESCAPE + ".py"),
    ],
)  # fmt: skip
def test_commands_quote_without_obeying(words: tuple[str, ...]) -> None:
    said = command(*words)
    assert "\x1b[2J" not in said and "\x07" not in said
    assert "x1b" in said
