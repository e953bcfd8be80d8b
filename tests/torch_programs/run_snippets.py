"""Runs every snippet by torch or by Backline, each in a process of its own, and prints the results as JSON.

The process is forked when the library has been imported, so that a hundred programs start in a second and none sees the switches that
another has set. Called as ``python run_snippets.py torch`` or ``python run_snippets.py backline``.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import traceback
import warnings

from snippets import Snippet, snippets


def run(snippet: Snippet, library: str) -> dict[str, str | None]:
    """Returns the repr of the snippet's result, or what it raised."""
    code = snippet.for_torch() if library == "torch" else snippet.for_backline()
    names: dict[str, object] = {"__name__": "snippet"}
    try:
        exec(compile(code, f"<{snippet.title}>", "exec"), names)
    except BaseException as error:
        line = traceback.extract_tb(error.__traceback__)[1].line if error.__traceback__.tb_next else ""  # type: ignore[union-attr]  # there is one: it was raised
        return {"error": f"{type(error).__name__}: {error}", "line": line, "result": None}
    return {"error": None, "result": repr(names.get("result"))}


def in_child(snippet: Snippet, library: str) -> dict[str, str | None]:
    """Returns what `run` returns, of a forked process."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(there)
        text = json.dumps(_quiet(snippet, library)).encode()
        while text:
            text = text[os.write(here, text) :]
        os._exit(0)
    os.close(here)
    with os.fdopen(there, "rb") as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(text) if text else {"error": f"the process ended with status {status}", "result": None}


def _quiet(snippet: Snippet, library: str) -> dict[str, str | None]:
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(snippet, library)


if __name__ == "__main__":
    importlib.import_module(sys.argv[1])
    print(json.dumps({snippet.title: in_child(snippet, sys.argv[1]) for snippet in snippets()}))
