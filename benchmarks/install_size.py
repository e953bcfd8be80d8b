"""Measures what an installation takes on disk, by package, for each way to install Backline: the table in docs/dependencies.md.

    python benchmarks/install_size.py                 # `pip install backline`, and with the extra mkl; needs a package index
    python benchmarks/install_size.py mlx triton      # other extras, one environment each

Each choice is installed into a fresh virtual environment, which is deleted afterwards. A size is the sum of the files that the
installed packages list, without byte code; a file with two names that share one place on disk counts once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Runs inside the environment: the sizes in bytes by package, and what files of the same content take beside the first of them.
LISTING = """
import hashlib, importlib.metadata, json, os
sizes, seen, contents, double = {}, set(), set(), 0
for package in importlib.metadata.distributions():
    name = package.metadata["Name"]
    for file in package.files or ():
        path = file.locate()
        if path.suffix == ".pyc" or not path.is_file():
            continue
        status = os.stat(path)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        sizes[name] = sizes.get(name, 0) + status.st_size
        if status.st_size > 1 << 20:
            with open(path, "rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").digest()
            double += status.st_size * (digest in contents)
            contents.add(digest)
print(json.dumps({"sizes": sizes, "double": double}))
"""
TOOLS = ("pip", "setuptools")  # of the environment itself


def measure(what: str) -> dict[str, object]:
    """Install `what` into an environment of its own, and list what that took."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "bin", "python"))
        command = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", what]
        subprocess.run(command, check=True)
        done = subprocess.run([python, "-c", LISTING], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    found["sizes"] = {name: size for name, size in found["sizes"].items() if name not in TOOLS}
    return dict(found)


def main() -> None:
    """Print a table for each choice."""
    parser = argparse.ArgumentParser(description="What an installation takes on disk.")
    parser.add_argument("extras", nargs="*", default=["mkl"], help="extras, each in an environment of its own")
    parser.add_argument("--package", default=str(ROOT), help="what to install: a folder, a wheel, a name")
    options = parser.parse_args()
    for extra in ["", *options.extras]:
        what = f"{options.package}[{extra}]" if extra else options.package
        found = measure(what)
        sizes: dict[str, int] = found["sizes"]  # type: ignore[assignment]  # a list of named facts of several types
        print(f"{'backline' + (f'[{extra}]' if extra else ''):<28}{sum(sizes.values()) / 1e6:8.1f} MB")
        for name, size in sorted(sizes.items(), key=lambda row: -row[1]):
            print(f"  {name:<26}{size / 1e6:8.1f} MB")
        print(f"  {'files that are there twice':<26}{found['double'] / 1e6:8.1f} MB", flush=True)  # type: ignore[operator]  # a list of named facts of several types


if __name__ == "__main__":
    sys.exit(main())
