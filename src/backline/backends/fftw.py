"""FFTW: Fourier, cosine and sine transforms, by the system's own copy of the library.

``planning`` sets how it plans. The results of its timing are its wisdom: text that can be kept in a file and read by a later
process, which then need not time anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..switches.switch_module import FftPlanCache
from . import _module_factory

if TYPE_CHECKING:
    import os

    from ..libraries.fftw.library import FFTW

__all__ = [
    "enabled", "export_wisdom", "fft_plan_cache", "flags", "import_wisdom", "is_available", "is_enabled", "plan_time_limit",
    "planning", "set_flags", "version",
]  # fmt: skip

enabled: bool
planning: Literal["estimate", "measure", "patient"]
plan_time_limit: float
fft_plan_cache: FftPlanCache
is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


def export_wisdom(path: str | os.PathLike[str]) -> None:
    """Writes FFTW's wisdom, which is what it learned by timing, to a file, as text.

    The file is there whole or not at all: it is written beside its place and moved.

    Parameters
    ----------
    path
        A file to be written, or to be replaced.

    Raises
    ------
    BackendUnavailable
        FFTW is absent.
    BadValue
        There is nothing to write: nothing was timed in this process or learned.
    BadType
        `path` is no path.
    OSError
        The file cannot be written.

    Examples
    --------
    >>> import backline
    >>> backline.backends.fftw.export_wisdom(3)
    Traceback (most recent call last):
    ...
    backline.errors.BadType: ...
    """
    from ..errors import BadValue
    from ..libraries.fftw.wisdom import write

    name = _path(path, "export_wisdom")
    text = _library("export_wisdom").export_wisdom()
    if not text:
        raise BadValue(
            f"export_wisdom({name!r}) has nothing to write.",
            cause="nothing was timed in this process, and no wisdom was read",
            remedy="plan with planning = 'measure' or 'patient' first",
        )
    write(name, text)


def import_wisdom(path: str | os.PathLike[str]) -> None:
    """Reads a file that `export_wisdom` wrote. FFTW then knows what was timed; nothing is timed for that again.

    Parameters
    ----------
    path
        The file. It is read whole and looked at before FFTW learns from it: all of it, or nothing.

    Raises
    ------
    BackendUnavailable
        FFTW is absent.
    BadValue
        The file is damaged, no wisdom, or that of another FFTW.
    BadType
        `path` is no path.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> import backline
    >>> backline.backends.fftw.import_wisdom(3)
    Traceback (most recent call last):
    ...
    backline.errors.BadType: ...
    """
    from ..libraries.fftw.wisdom import read

    name = _path(path, "import_wisdom")
    library = _library("import_wisdom")
    library.import_wisdom(read(name), f"the file {name!r}")


def _path(path: object, function: str) -> str:
    import os

    from ..errors import BadType, BadValue

    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise BadType(f"{function} takes a path, not {type(path).__name__}: {path!r}")
    name = os.fspath(path)
    if not name or "\0" in name:
        raise BadValue(f"{function}({name!r}): this is no path")
    return str(name)


def _library(function: str) -> FFTW:
    from typing import cast

    from .. import libraries

    library = cast("FFTW", libraries.get("fftw"))
    if not library.available():
        raise _module_factory.unavailable("fftw", f"fftw.{function}()")
    return library


_module_factory.install(__name__, transforms="fftw")
