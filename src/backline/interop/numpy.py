"""The exchange: NumPy's and SciPy's own calls of BLAS and LAPACK run on the library you choose.

``use("mkl")`` gives ``np.matmul``, ``np.linalg``, ``scipy.linalg`` and whatever calls BLAS through SciPy (scikit-learn) to
another library, in this process and reversibly; no program has to be changed. It is for Linux, and for the wheels of NumPy and
SciPy from PyPI.

Examples
--------
>>> import numpy as np, backline
>>> a = np.arange(16.0).reshape(4, 4) + 9 * np.eye(4)
>>> with backline.interop.numpy.use("numpy"):  # or "mkl", "openblas", "blis"
...     bool(np.allclose(np.linalg.inv(a) @ a, np.eye(4)))
True
>>> str(backline.interop.numpy.status()).splitlines()[0]
'nothing is exchanged: NumPy and SciPy run on what they brought along'
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from ..engine import events
from ..errors import BadValue
from .exchange import exchange_state, exchange_status, traced_calls, tuned_choice
from .exchange.choices import ORIGINAL, Choice, parse
from .exchange.exchange_status import RoutineStatus, Status

__all__ = ["Exchange", "RoutineStatus", "Status", "restore", "status", "use"]

if traced_calls.begin not in events.sources:  # the module may be imported anew
    events.sources.append(traced_calls.begin)


class Exchange:
    """An exchange that holds: what `use` returns. As a context manager it ends with its block.

    Examples
    --------
    >>> with use("numpy") as exchange:
    ...     exchange
    <Exchange for numpy>
    """

    def __init__(self, layer: exchange_state.Layer) -> None:
        self._layer = layer

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        exchange_state.pop(self._layer)

    def __repr__(self) -> str:
        return f"<Exchange for {self._layer.choice}>"

    def restore(self) -> None:
        """Takes this choice back; one that was made before and still holds is in force again.

        Examples
        --------
        >>> exchange = use("numpy")
        >>> exchange.restore()
        """
        exchange_state.refuse_if_frozen("restore()")
        exchange_state.pop(self._layer)


def use(library: str | Mapping[str, str], *, small: Mapping[str, int] | None = None, keep_pools: bool = False) -> Exchange:
    """Lets NumPy's and SciPy's BLAS and LAPACK routines run on another library: from now on, or within a ``with`` block.

    Parameters
    ----------
    library
        "mkl", "openblas" or "blis"; "numpy" is what NumPy and SciPy brought along; "tuned" is, by routine and size, what was
        measured to be fastest here by `backline tune`. Or a mapping from routines to libraries: keys are names of routines
        (``"dgesdd"``), patterns (``"?gesdd"``), the families ``"blas"``, ``"lapack"``, ``"level1"`` and ``"fft"`` (transforms,
        which MKL has), and ``"*"`` for the rest. A name counts before a pattern, a pattern before a family. Routines of level 1
        go together: patterns and names pass them over.
    small
        Products of sizes below which a call stays with the former library, by routine without its letter: ``{"gemm": 100000}`` is
        what is shipped for m * n * k; 0 gives every call to the new library.
    keep_pools
        Leave the thread counts of the copies that NumPy and SciPy brought along as they are. By default a copy whose products
        were exchanged has one thread meanwhile, because two pools of threads that alternate slow each other down.

    Returns
    -------
    Exchange
        A context manager; its ``restore()`` does the same as the end of the block.

    Raises
    ------
    BadValue, BadType
        A library or a routine that there is none of.
    BackendUnavailable
        The library is not there, or this system or this build of NumPy does not allow an exchange.
    LibraryFailed
        Results before and after did not agree, or the addresses could not be written. All is as it was.
    Frozen
        After ``disable_global_flags()``.
    NotDeterministic
        Where ``deterministic`` is on.

    Notes
    -----
    The exchange is one of the process: it holds in all threads, and in children that are forked. Modules of NumPy and SciPy that
    are imported later are exchanged as they are imported. The new library uses as many threads as ``backline.set_num_threads``
    says.

    Examples
    --------
    >>> import numpy as np
    >>> with use({"?gesdd": "numpy", "*": "numpy"}):
    ...     np.linalg.svd(np.eye(2), compute_uv=False)
    array([1., 1.])
    """
    exchange_state.refuse_if_frozen(f"use({library!r})")
    layer = (
        _tuned(small, keep_pools) if library == "tuned" else exchange_state.Layer(parse(library, small), keep_pools=keep_pools)
    )
    exchange_state.push(layer)
    if library == "tuned" and not layer.choice.libraries():
        exchange_state.notes.append(_NOT_TUNED)
    return Exchange(layer)


_NOT_TUNED = "no routine was measured to be faster elsewhere, so all stay: `backline tune SCRIPT` measures what a script calls"


def _tuned(small: Mapping[str, int] | None, keep_pools: bool) -> exchange_state.Layer:
    if small or keep_pools:
        raise BadValue('use("tuned") takes nothing else', cause="thresholds and pools are part of what was measured")
    return tuned_choice.layer() or exchange_state.Layer(Choice((("*", ORIGINAL),), title="tuned"), keep_pools=True)


def restore() -> None:
    """Gives NumPy and SciPy back what they brought along, whatever was chosen and however often.

    Raises
    ------
    Frozen
        After ``disable_global_flags()``.

    Examples
    --------
    >>> restore()
    """
    exchange_state.refuse_if_frozen("restore()")
    exchange_state.pop()


def status() -> Status:
    """Returns which library runs which of NumPy's and SciPy's routines now, and why some stayed where they were.

    Returns
    -------
    Status
        A table when printed, by ``print`` or `rich.print`.

    Examples
    --------
    >>> status().library("dgesdd")
    'numpy'
    """
    return exchange_status.gather()
