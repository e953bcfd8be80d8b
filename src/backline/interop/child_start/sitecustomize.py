"""Runs at the start of Python processes that a program under an exchange has started: `child_processes` has it found there.

It must not import Backline: a process that never imports NumPy goes on without it. It runs in Pythons of other versions, too.
"""

import os
import sys

__all__ = ()

_NAME = "sitecustomize"
_HERE = os.path.dirname(os.path.abspath(__file__))


def _import_next() -> None:
    """Imports the environment's own module of this name, which this one stands before."""
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    this = sys.modules.pop(_NAME)
    try:
        __import__(_NAME)
    except ImportError as error:
        if error.name != _NAME:
            raise
    finally:
        sys.modules.setdefault(_NAME, this)  # Python wants to find one


def _wait_for_numpy() -> None:
    """Has Backline imported with NumPy, if this is the Python that the settings come from."""
    if os.environ.get("BACKLINE_CHILD_PREFIX") != sys.prefix:
        return
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("_backline_on_import", os.path.join(os.path.dirname(_HERE), "on_import.py"))
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.when_imported("numpy", _begin)


def _begin(numpy: object) -> None:
    try:
        from backline.interop import child_processes
    except Exception as error:  # an import of NumPy must not fail for this
        sys.stderr.write(f"process {os.getpid()} runs NumPy as it is: Backline cannot be imported: {error}\n")
        return
    child_processes.begin()


if __name__ == _NAME:
    try:
        _import_next()
    finally:
        _wait_for_numpy()
