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

from ..engine import choice as engine_choice
from ..engine import events
from ..errors import BadValue
from .exchange import exchange_state, exchange_status, routine_explanation, traced_calls, tuned_choice
from .exchange.choices import ORIGINAL, Choice, parse
from .exchange.exchange_status import RoutineStatus, Status

__all__ = ["Exchange", "RoutineStatus", "Status", "explain", "restore", "status", "use"]

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
        (``"dgesdd"``), patterns (``"?gesdd"``), the families ``"blas"``, ``"lapack"``, ``"level1"`` and ``"fft"`` (transforms, on
        "mkl", "fftw" or "kernels", which are Backline's own loops), and ``"*"`` for the rest. A name counts before a pattern, a
        pattern before a family. Routines of level 1 go together: patterns and names pass them over.
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
    layer = _layer(library, small, keep_pools)
    exchange_state.push(layer)
    if library == "tuned" and not layer.choice.libraries():
        exchange_state.notes.append(_NOT_TUNED)
    return Exchange(layer)


def _layer(
    library: str | Mapping[str, str], small: Mapping[str, int] | None = None, keep_pools: bool = False
) -> exchange_state.Layer:
    return _tuned(small, keep_pools) if library == "tuned" else exchange_state.Layer(parse(library, small), keep_pools=keep_pools)


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


def explain(
    routine: str, /, library: str | Mapping[str, str] | None = None, *, package: str | None = None, **sizes: int
) -> engine_choice.Choice:
    """Tells which library runs a routine of BLAS or LAPACK for calls of some sizes, and why, without running it.

    Parameters
    ----------
    routine
        Its name, such as "dgemm".
    library
        The exchange that is asked about: what `use` takes. By default the one that holds now, if any.
    package
        Who calls it, "numpy" or "scipy". By default NumPy, and SciPy for what NumPy does not call.
    **sizes
        The sizes whose product tells small calls from large ones: m, n and k of a product, n and nrhs of a system of equations, m
        and n of a factorization. The error for wrong ones names them.

    Returns
    -------
    Choice
        As of `backline.explain`, printed as a table: the library taken and every other with the reason that it was not; for a
        tuned exchange with the measured times of this class of sizes. What NumPy and SciPy brought along is named by the package.

    Raises
    ------
    BadValue
        Nothing that is imported calls the routine, or the sizes are not those that it has.
    BackendUnavailable
        This system or this build of NumPy does not allow an exchange.

    Examples
    --------
    >>> choice = explain("dgemm", m=300, n=300, k=300)
    >>> choice.library, choice.algorithm, choice.basis
    ('numpy', 'dgemm', 'nothing is exchanged: NumPy and SciPy run on what they brought along')
    """
    layer = exchange_state.layer() if library is None else _layer(library)
    return routine_explanation.explain(routine, layer, package, sizes)
