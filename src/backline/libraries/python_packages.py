"""Python packages behind backends, found without importing them; and the Metal device, as MLX reports it."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

from .probing.probe_process import ask

__all__ = ["ask_mlx", "cores_in", "find", "gpu_cores", "version"]


SPECS = 64  # most that are kept
# What was found, by package and where it was looked for: each Choice on a device asks, and looking reads every folder.
_specs: dict[tuple[str, tuple[str, ...], tuple[int, ...]], Any] = {}


def find(name: str, part: str = "") -> tuple[str | None, tuple[str, ...], str]:
    """Returns the folder that a package would be imported from.

    Parameters
    ----------
    name : str
        A top-level package.
    part : str, optional
        A module in it that must be there too.

    Returns
    -------
    folder : str or None
        None if it is absent.
    searched : tuple of str
        Where it was looked for.
    reason : str
        Why there is none, or "".

    Examples
    --------
    >>> find("nosuchpackage")[2]
    'there is no package nosuchpackage in this environment'
    """
    searched = (f"packages of this interpreter [{', '.join(folder or '.' for folder in sys.path)}]",)
    absent = f"there is no package {name} in this environment"
    try:
        spec = _spec(name)
    except (ImportError, ValueError) as error:  # an import hook that fails, a module that denies where it is from
        return None, searched, f"{absent}: {error}"
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if spec is None or not places:
        return None, searched, absent
    if part:
        from importlib.machinery import PathFinder

        if PathFinder.find_spec(f"{name}.{part}", places) is None:
            return None, searched, f"the package {name} in {places[0]} has no module {part}"
    elif spec.origin is None:
        return None, searched, f"{places[0]} is a folder of that name, not the package"
    return places[0], searched, ""


def _spec(name: str) -> Any:
    from importlib.util import find_spec

    module = sys.modules.get(name)
    if module is not None and getattr(module, "__spec__", None) is None:
        raise ValueError(f"a module {name} without a specification is imported")
    if module is not None:
        return find_spec(name)
    key = name, tuple(sys.path), tuple(map(id, sys.meta_path))
    found = _specs.get(key)
    if found is None:
        found = find_spec(name)
        if found is not None:  # what is not there may be installed later
            if len(_specs) >= SPECS:
                _specs.clear()
            _specs[key] = found
    return found


def version(name: str) -> str | None:
    """Returns the version of a package that is there: its own word if it is imported, else that of its installation."""
    said = getattr(sys.modules.get(name), "__version__", None)
    if isinstance(said, str):
        return said
    return _installed(name, tuple(sys.path))


@lru_cache(maxsize=64)
def _installed(name: str, path: tuple[str, ...]) -> str | None:
    """Returns the version of an installation in the folders of a path; it is read from a file, and each Choice may ask."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed(name)
    except PackageNotFoundError:
        return None  # a folder put there by hand


def ask_mlx() -> dict[str, Any]:
    """Returns MLX's facts of the Metal device, from a child process: "reason", and "version" and "name" if there is one."""
    import json

    return ask("mlx", json.dumps([entry for entry in sys.path if os.path.isabs(entry)]))[0]


@lru_cache(maxsize=1)
def gpu_cores() -> int:
    """Returns the number of cores of this Mac's GPU; 0 if the system does not tell."""
    import subprocess

    command = ["/usr/sbin/system_profiler", "-json", "SPDisplaysDataType"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return cores_in(done.stdout.decode("utf-8", "replace"))


def cores_in(text: str) -> int:
    """Returns the number of GPU cores in what macOS's system profiler writes; 0 if it is not there.

    Examples
    --------
    >>> cores_in('{"SPDisplaysDataType": [{"sppci_model": "Apple M2", "sppci_cores": "10"}]}')
    10
    """
    import json

    try:
        cards = json.loads(text)["SPDisplaysDataType"]
        return max((int(card["sppci_cores"]) for card in cards if "sppci_cores" in card), default=0)
    except (ValueError, KeyError, TypeError):
        return 0
