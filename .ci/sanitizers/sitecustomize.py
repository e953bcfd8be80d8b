"""Puts compiled modules that were built for a sanitizer in the place of the installed ones, in this process and those it starts.

Python imports it at start where this folder is on PYTHONPATH; `.ci/sanitize` sets both variables.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        folder = os.environ.get("BACKLINE_TEST_COMPILED", "")
        if not folder or name not in ("backline._core", "backline._kernels"):
            return None
        file = f"{folder}/{name.rpartition('.')[2]}{importlib.machinery.EXTENSION_SUFFIXES[0]}"
        # A build of the core alone leaves the installed kernels.
        return importlib.util.spec_from_file_location(name, file) if os.path.exists(file) else None


sys.meta_path.insert(0, _Finder())
# AddressSanitizer ends a process that opens a library this way.
os.RTLD_DEEPBIND = 0
