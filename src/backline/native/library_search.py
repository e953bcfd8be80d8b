"""The search for the file of a native library, with every step recorded.

The order is always the same: a path the caller names, the library's environment variable, a copy already mapped into this
process, a wheel in this interpreter's own packages or its prefix, the folders of the system's loader. The working directory
is never searched, and no relative path is taken: what a program runs must not depend on where it was started.

A path that a user names and that does not work is refused. It is not passed over in favour of another file, for the user
would then measure one library and believe it to be another. Other files are passed over, with the reason kept.

Nothing is loaded and no package is imported. On Linux each file is checked first (`elf.inspect`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from backline.errors import BackendUnavailable
from backline.native import elf, library_folders
from backline.native.process_map import MappedFile, mapped_files

__all__ = ["EXPLICIT", "MAPPED", "SYSTEM", "VARIABLE", "WHEEL", "Finding", "LibrarySpec", "Step", "search"]

#: Names of the steps, as reports show them.
EXPLICIT = "explicit path"
VARIABLE = "environment variable"
MAPPED = "already in this process"
WHEEL = "packages of this interpreter"
SYSTEM = "system loader's folders"


@dataclass(frozen=True, slots=True)
class LibrarySpec:
    """The description of a library's file before it is found.

    Attributes
    ----------
    name : str
        "openblas".
    env : str
        The environment variable that names its file.
    wheels : tuple of (str, str)
        A folder in site-packages and a pattern below it:
        ``("scipy_openblas32", "lib/libscipy_openblas*.so")``.
    prefix_globs : tuple of str
        Patterns in ``<sys.prefix>/lib``: ``"libmkl_rt.so*"``.
    system_names : tuple of str
        File names for the system's folders, best first: ``"libblis.so.4"``.
    folders : tuple of str
        Subfolders of each system folder, looked in before the folder itself: ``"blis-openmp"``.
    needs : tuple of str
        Functions it must export; ``"a|b"`` is met by either.
    reuse_mapped : bool
        Whether a copy that is already mapped is taken rather than a second one mapped beside it.
    newest : bool
        Whether of several files that the search meets by itself the newest is taken, wherever it is, by the version in its name.
    """

    name: str
    env: str = ""
    wheels: tuple[tuple[str, str], ...] = ()
    prefix_globs: tuple[str, ...] = ()
    system_names: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    reuse_mapped: bool = True
    newest: bool = False

    def bears_name(self, filename: str) -> bool:
        """Tells whether a file name is one of this library's; a longer version (``.so.4.0.0``) still is."""
        patterns = [pattern.rpartition("/")[2] for _, pattern in self.wheels]
        patterns += [pattern.rpartition("/")[2] for pattern in self.prefix_globs]
        patterns += self.system_names
        return any(fnmatchcase(filename, p) or fnmatchcase(filename, f"{p}.*") for p in patterns)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a search.

    Attributes
    ----------
    name : str
        Which step: one of the constants of this module.
    looked_at : tuple of str
        Files, patterns or folders.
    outcome : str
        What came of it, in words.
    """

    name: str
    looked_at: tuple[str, ...]
    outcome: str

    def __str__(self) -> str:
        where = f" [{', '.join(self.looked_at)}]" if self.looked_at else ""
        return f"{self.name}: {self.outcome}{where}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a search: a path, or the reason why there is none.

    Attributes
    ----------
    spec : LibrarySpec
        What was searched for.
    path : str or None
        The file, absolute.
    step : str
        The step that found it, or that refused; "" if every step came to nothing.
    steps : tuple of Step
        Everything that was looked at, in order.
    reason : str
        Why there is no path; "" if there is one.
    remedy : str
        What would help; "" if there is a path.
    info : Elf or None
        What the file says about itself; None where files are found by name only.
    others : tuple of Finding
        Where the newest of several files was taken: the others, newer ones first.
    """

    spec: LibrarySpec
    path: str | None
    step: str
    steps: tuple[Step, ...]
    reason: str = ""
    remedy: str = ""
    info: elf.Elf | None = field(default=None, compare=False)
    others: tuple[Finding, ...] = field(default=(), compare=False)

    def __bool__(self) -> bool:
        return self.path is not None

    def __str__(self) -> str:
        head = f"{self.spec.name}: {self.path or 'not found'}" + (f" ({self.step})" if self.path else "")
        lines = [f"  {step}" for step in self.steps]
        return "\n".join([head, *lines, *([f"  reason: {self.reason}"] if self.reason else [])])

    def require(self) -> str:
        """Returns the path.

        Raises
        ------
        BackendUnavailable
            There is none; the error names every place looked in.
        """
        if self.path is not None:
            return self.path
        looked = "; ".join(str(step) for step in self.steps)
        raise BackendUnavailable(
            f"The library {self.spec.name!r} is not available: {self.reason}.",
            cause=f"looked in {looked}",
            remedy=self.remedy,
        )


def search(spec: LibrarySpec, path: str | None = None) -> Finding:
    """Finds a library's file.

    Parameters
    ----------
    spec : LibrarySpec
        What to look for.
    path : str, optional
        A file the caller names. Nothing else is looked at then.

    Returns
    -------
    Finding
        With a path, or with the reason why there is none. This function does not raise for a library that is
        missing or unfit.

    Notes
    -----
    Costs about a millisecond; callers keep the result. Nothing is loaded.

    Examples
    --------
    >>> finding = search(LibrarySpec("nosuch", system_names=("libnosuch.so.1",)))
    >>> finding.path is None, finding.reason
    (True, 'no file of this name was found')
    >>> search(LibrarySpec("blis"), path="libblis.so.4").reason
    "'libblis.so.4' is a relative path"
    """
    if path is not None:
        return _named(spec, EXPLICIT, os.fspath(path), "", ())
    steps: list[Step] = []
    if spec.env:
        value = os.environ.get(spec.env)
        if value:
            return _named(spec, VARIABLE, value, spec.env, ())
        steps.append(Step(VARIABLE, (spec.env,), "not set" if value is None else "set to nothing: ignored"))
    if spec.reuse_mapped:
        candidates = _mapped(spec, mapped_files())
        found = _first(spec, MAPPED, ("/proc/self/maps",) if elf.supported() else (), candidates, steps)
        if found:
            return found
    found = _newest(spec, steps) if spec.newest else None
    if found:
        return found
    found = _first(spec, WHEEL, *_in_packages(spec), steps)
    if found:
        return found
    notes: list[str] = []
    folders = tuple(library_folders.system_folders(notes=notes))
    found = _first(spec, SYSTEM, folders, _in_folders(spec, folders), steps, notes)
    if found:
        return found
    # What was met and refused says more than that nothing was left.
    refused = [step.outcome for step in steps if step.outcome.startswith("refused")]
    reason = "; ".join(refused) if refused else "no file of this name was found"
    remedy = "install it in this environment"
    if spec.env:
        remedy += f", or set {spec.env} to the file's absolute path"
    return Finding(spec, None, "", tuple(steps), reason, remedy)


def _named(spec: LibrarySpec, step: str, path: str, variable: str, before: tuple[Step, ...]) -> Finding:
    """Checks a file that was asked for by name: it is used, or refused with the reason, and never replaced by another."""
    whose = f"{variable}={path!r}" if variable else repr(path)
    looked = (f"{variable}={path}" if variable else path,)
    if not os.path.isabs(path):
        reason, remedy = f"{whose} is a relative path", "give an absolute path"
    else:
        try:
            info = _check(path, spec.needs)
        except elf.Refused as refusal:
            reason = f"{whose} was refused: {refusal}"
            remedy = f"name another file, or unset {variable}" if variable else "name another file, or none"
        else:
            return Finding(spec, path, step, (*before, Step(step, looked, "found")), info=info)
    return Finding(spec, None, step, (*before, Step(step, looked, f"refused: {reason}")), reason, remedy)


def _check(path: str, needs: tuple[str, ...]) -> elf.Elf | None:
    if elf.supported():
        return elf.inspect(path, needs)
    # Not ELF here: all that can be said without loading it is that the file is there.
    if not os.path.isfile(path):
        raise elf.Refused("no such file")
    return None


def _first(
    spec: LibrarySpec,
    step: str,
    looked: tuple[str, ...],
    candidates: Iterable[str],
    steps: list[Step],
    notes: Iterable[str] = (),
) -> Finding | None:
    """Returns the first sound file among the candidates; the step is recorded in any case."""
    refused = []
    for path in candidates:
        try:
            info = _check(path, spec.needs)
        except elf.Refused as refusal:
            refused.append(f"{path}: {refusal}")
            continue
        passed = f"found; passed over {'; '.join(refused)}" if refused else "found"
        steps.append(Step(step, (path,), passed))
        return Finding(spec, path, step, tuple(steps), info=info)
    if refused:
        outcome = f"refused {'; '.join(refused)}"
    else:
        outcome = "nothing" if looked else "no place known to look in"
    extra = "".join(f"; {note}" for note in notes)
    steps.append(Step(step, looked, outcome + extra))
    return None


def _newest(spec: LibrarySpec, steps: list[Step]) -> Finding | None:
    """Returns the newest of several sound files; None if there are not several."""
    places: dict[str, tuple[str, str]] = {}
    for step, paths in ((WHEEL, _in_packages(spec)[1]), (SYSTEM, _in_folders(spec, library_folders.system_folders()))):
        for path in paths:
            places.setdefault(os.path.realpath(path), (path, step))
    sound = []
    for path, step in places.values():
        try:
            sound.append((path, step, _check(path, spec.needs)))
        except elf.Refused:
            continue  # a search for one file says why, and there is one if this was the second
    if len(sound) < 2:
        return None
    sound.sort(key=lambda file: version_in_name(file[0]), reverse=True)  # of one version, the one that is met first
    told = [f"{path} ({'.'.join(map(str, version_in_name(path))) or 'no version in its name'})" for path, _, _ in sound]
    outcome = f"found; the newest of several: {', '.join(told)}"
    found = [Finding(spec, path, step, (*steps, Step(step, (path,), outcome)), info=info) for path, step, info in sound]
    return replace(found[0], others=tuple(found[1:]))


def version_in_name(path: str) -> tuple[int, ...]:
    """Returns the numbers after ``.so`` in the name of the file that a path leads to, or () where they only say the interface.

    Packages often hold copies in the place of links: then the longer name of a file of the same size beside it counts.

    Examples
    --------
    >>> version_in_name("/nowhere/libdnnl.so.3.6"), version_in_name("/nowhere/libdnnl.so.3")
    ((3, 6), ())
    """
    real = os.path.realpath(path)
    folder, name = os.path.split(real)
    names = [name]
    try:
        size = os.path.getsize(real)
        with os.scandir(folder) as entries:
            names += [e.name for e in entries if e.name.startswith(f"{name}.") and e.is_file() and e.stat().st_size == size]
    except OSError:
        pass  # its own name has to do
    numbers = max(tuple(int(n) for n in re.findall(r"\d+", each.partition(".so")[2])) for each in names)
    return numbers if len(numbers) > 1 else ()


def _mapped(spec: LibrarySpec, files: Iterable[MappedFile]) -> list[str]:
    """Returns the copies in this process, by name; a file that was replaced since cannot be reached by its path."""
    found = [file.path for file in files if spec.bears_name(file.name) and not file.deleted]
    # Of two generations the one that is looked for first, as a program's other packages take it; the rest stays where it is.
    place = {name: n for n, name in enumerate(spec.system_names)}
    known = iter(sorted((p for p in found if os.path.basename(p) in place), key=lambda p: place[os.path.basename(p)]))
    return [next(known) if os.path.basename(p) in place else p for p in found]


def _newest_first(paths: Iterable[str]) -> list[str]:
    """Sorts paths by the numbers in the file name, highest first: ``.so.3`` before ``.so.2`` before ``.so``."""

    def key(path: str) -> tuple[list[int], str]:
        version = os.path.basename(path).partition(".so")[2]
        return [int(number) for number in re.findall(r"\d+", version)], path

    return sorted(paths, key=key, reverse=True)


def _in_packages(spec: LibrarySpec) -> tuple[tuple[str, ...], list[str]]:
    """Returns the patterns looked at, and the files that fit: wheels in site-packages, then the prefix's lib folder."""
    import glob

    looked, paths = [], []
    for site in library_folders.site_folders() if spec.wheels else ():
        for package, pattern in spec.wheels:
            looked.append(os.path.join(site, package, pattern))
            paths += _newest_first(glob.glob(os.path.join(glob.escape(site), glob.escape(package), pattern)))
    for prefix in library_folders.prefix_folders() if spec.prefix_globs else ():
        for pattern in spec.prefix_globs:
            looked.append(os.path.join(prefix, pattern))
            paths += _newest_first(glob.glob(os.path.join(glob.escape(prefix), pattern)))
    return tuple(looked), paths


def _in_folders(spec: LibrarySpec, folders: Iterable[str]) -> Iterator[str]:
    for name in spec.system_names:
        for folder in folders:
            for subfolder in (*spec.folders, ""):
                path = os.path.join(folder, subfolder, name)
                if os.path.lexists(path):
                    yield path
