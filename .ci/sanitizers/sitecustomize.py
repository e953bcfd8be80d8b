"""Puts a core that was built for a sanitizer in the place of the installed one, in this process and those it starts.

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
        core = os.environ.get("BACKLINE_TEST_CORE", "")
        return importlib.util.spec_from_file_location(name, core) if name == "backline._core" and core else None


sys.meta_path.insert(0, _Finder())
# AddressSanitizer ends a process that opens a library this way.
os.RTLD_DEEPBIND = 0
