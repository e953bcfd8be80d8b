"""FFTW's wisdom as text: what it found out by measuring, one block for each precision. Looked at before FFTW gets to see it."""

from __future__ import annotations

import re

from ...errors import BadValue
from ...native.whole_file import write_whole

__all__ = ["LARGEST", "blocks", "joined", "read", "write"]

LARGEST = 64 << 20  # bytes; all that FFTW ships and most programs collect is below one
_NUMBER = r"#x[0-9a-f]{1,16}"
_HEAD = re.compile(rf"\(fftw-(?P<version>[0-9A-Za-z.+_-]{{1,200}}) fftw(?P<letter>f|l|q|)_wisdom(?: {_NUMBER}){{4}}\s*")
_ENTRY = re.compile(rf"\(fftw[flq]?_[0-9A-Za-z_]{{1,200}} -?\d{{1,10}}(?: {_NUMBER}){{3}}(?: {_NUMBER}){{4}}\)\s*")
_NAMES = {"": "float64", "f": "float32", "l": "longdouble", "q": "quadruple precision"}


def blocks(text: str, versions: dict[str, str], where: str = "wisdom") -> dict[str, str]:
    """The blocks of a text by their precision's letter ("f" for float32, "" for float64), each as FFTW reads it.

    `versions` has the letters of the precisions that there are here, with FFTW's version; whether the build is the same FFTW sees
    itself. `where` says what the text is, for messages. Raises `BadValue` where it is not wisdom, is cut off, or comes from
    another FFTW.

    Examples
    --------
    >>> text = "(fftw-3.3.10 fftw_wisdom #x1 #x2 #x3 #x4\\n  (fftw_codelet_n1_16 0 #x1 #x1 #x0 #x5 #x6 #x7 #x8)\\n)\\n"
    >>> list(blocks(text, {"": "3.3.10"}))
    ['']
    >>> blocks(text[:-3], {"": "3.3.10"})
    Traceback (most recent call last):
    backline.errors.BadValue: wisdom is no wisdom of FFTW, or damaged
      cause : at character 93 it does not go on as wisdom does
      remedy: a file that export_wisdom wrote on this machine
    """
    remedy = "a file that export_wisdom wrote on this machine"

    def refuse(what: str, cause: str) -> BadValue:
        return BadValue(f"{where} {what}", cause=cause, remedy=remedy)

    if len(text) > LARGEST:
        raise refuse("is no wisdom of FFTW", f"it is longer than {LARGEST} bytes")
    found: dict[str, str] = {}
    at = len(text) - len(text.lstrip())
    while at < len(text) or not found:
        begin = at
        head = _HEAD.match(text, at)
        if head is None:
            raise refuse("is no wisdom of FFTW, or damaged", f"at character {at} no block begins")
        at = head.end()
        while entry := _ENTRY.match(text, at):
            at = entry.end()
        if not text.startswith(")", at):
            raise refuse("is no wisdom of FFTW, or damaged", f"at character {at} it does not go on as wisdom does")
        letter, version = head["letter"], head["version"]
        if letter not in versions:
            raise refuse(f"is for {_NAMES[letter]}", f"there is no FFTW of that precision here; there is {_listed(versions)}")
        if version != versions[letter]:
            raise refuse(f"is of FFTW {version}", f"here is FFTW {versions[letter]}, whose plans differ")
        if letter in found:
            raise refuse("is damaged", f"it has two blocks for {_NAMES[letter]}")
        at += 1
        found[letter] = text[begin:at] + "\n"
        at += len(text) - at - len(text[at:].lstrip())
    return found


def _listed(versions: dict[str, str]) -> str:
    return " and ".join(_NAMES[letter] for letter in versions) or "none"


def joined(texts: dict[str, str]) -> str:
    """The blocks as one text."""
    return "".join(texts[letter] if texts[letter].endswith("\n") else f"{texts[letter]}\n" for letter in sorted(texts))


def write(path: str, text: str) -> None:
    """Write a text to a file that is there whole or not at all; where an `OSError` is raised, what was there before still is."""
    write_whole(path, text.encode("ascii"))


def read(path: str) -> str:
    """The text of a file; raises `BadValue` where it is no text, or too long to be wisdom, `OSError` where it cannot be read."""
    with open(path, "rb") as stream:
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise BadValue(f"the file {path!r} is no wisdom of FFTW", cause=f"it is longer than {LARGEST} bytes")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise BadValue(f"the file {path!r} is no wisdom of FFTW, or damaged", cause=str(error)) from None
