"""The libraries: found on this machine, probed once, driven through one interface.

Nothing is loaded by importing this package. `get` makes the object that stands for a library; the library itself is
searched, loaded and probed when something first asks whether it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

from .base import Algorithm, Library, PythonPlan, Refusal

__all__ = [
    "Algorithm", "Library", "Outline", "PythonPlan", "Refusal", "all_libraries", "get", "names", "outline", "ready", "register",
    "unregister",
]  # fmt: skip

# name -> where its class is. The order is the order in which candidates are listed; plug-ins are added at the end.
_WHERE: dict[str, str] = {
    "mkl": "backline.libraries.mkl.library:MKL",
    "openblas": "backline.libraries.openblas.library:OpenBLAS",
    "blis": "backline.libraries.blis.library:BLIS",
    "onednn": "backline.libraries.onednn.library:OneDNN",
    "xnnpack": "backline.libraries.xnnpack.library:XNNPACK",
    "nnpack": "backline.libraries.nnpack.library:NNPACK",
    "python_native": "backline.libraries.python_kernels:PythonKernels",
    "fftw": "backline.libraries.fftw.library:FFTW",
    "scipy": "backline.libraries.scipy.library:SciPy",
    "numpy": "backline.libraries.numpy.library:NumPy",
    "cudnn": "backline.libraries.cuda.cudnn.library:CuDNN",
    "cublas": "backline.libraries.cuda.cublas.library:CuBLAS",
    "cublaslt": "backline.libraries.cuda.cublaslt.library:CuBLASLt",
    "cufft": "backline.libraries.cuda.cufft.library:CuFFT",
    "cusparselt": "backline.libraries.cuda.cusparselt.library:CuSPARSELt",
    "emulated": "backline.libraries.emulated.library:Emulated",
    "cusolver": "backline.libraries.cuda.cusolver.library:CuSOLVER",
    "triton": "backline.libraries.cuda.attention.library:Triton",
    "magma": "backline.libraries.cuda.magma.library:MAGMA",
    "cupy": "backline.libraries.cuda.cupy.library:CuPy",
    "mlx": "backline.libraries.mlx.library:MLX",
}
_BUILT_IN = frozenset(_WHERE)


class Outline(NamedTuple):
    """What decides whether a library is asked at all; the class says the same, but has to be imported for it.

    Attributes
    ----------
    families
        Op families it may have something for; empty for any.
    devices
        Kinds of device whose arrays it takes.
    switch
        The switch that allows it.
    loaded
        Whether asking it anything costs no more than the answer.
    """

    families: tuple[str, ...]
    devices: tuple[str, ...]
    switch: str
    loaded: bool


# Those that most calls have no use for; a test holds the rows against the classes.
_OUTLINES = {
    "mkl": Outline((), ("cpu",), "mkl.enabled", False),
    "openblas": Outline((), ("cpu",), "openblas.enabled", False),
    "blis": Outline((), ("cpu",), "blis.enabled", False),
    "onednn": Outline(("matmul", "conv", "neural", "rnn", "quantized"), ("cpu",), "mkldnn.enabled", False),
    "xnnpack": Outline(("matmul", "conv"), ("cpu",), "xnnpack.enabled", False),
    "nnpack": Outline(("conv",), ("cpu",), "nnpack.enabled", False),
    "fftw": Outline(("fft",), ("cpu",), "fftw.enabled", False),
    "scipy": Outline(("fft",), ("cpu",), "scipy.enabled", True),
    "emulated": Outline(("matmul",), ("cpu",), "emulate", True),
    "cublas": Outline(("matmul", "conv"), ("cuda",), "cublas.enabled", True),
    "cublaslt": Outline(("matmul",), ("cuda",), "cublaslt.enabled", True),
    "cufft": Outline(("fft",), ("cuda",), "cufft.enabled", True),
    "cusparselt": Outline(("sparse",), ("cuda",), "cusparselt.enabled", True),
    "cudnn": Outline(("conv", "attention"), ("cuda",), "cudnn.enabled", True),
    "cusolver": Outline(("linalg",), ("cuda",), "cusolver.enabled", True),
    "triton": Outline(("attention",), ("cuda",), "python_native.triton.enabled", True),
    "magma": Outline(("linalg",), ("cuda",), "magma.enabled", True),
    "cupy": Outline(("neural", "einsum", "attention", "rnn"), ("cuda",), "cupy.enabled", True),
    "mlx": Outline((), ("mps",), "mlx.enabled", True),
}
_MADE: dict[str, Library] = {}


def names() -> tuple[str, ...]:
    """Names of the libraries known here, found or not, those of plug-ins included.

    >>> "numpy" in names()
    True
    """
    _meet_plugins()
    return tuple(_WHERE)


def _meet_plugins() -> None:
    from ..switches import plugins

    plugins.discover()
    for name, plugin in plugins.found().items():
        _WHERE.setdefault(name, plugin.library)  # a library that the program registered before stays in its place


def ready() -> None:
    """Have every switch declared that a library which is on may read: called before a Snapshot is taken.

    Plug-ins are looked for; those whose switches only their class knows are imported, unless they are off.
    """
    from ..switches import plugins

    _meet_plugins()
    for name, plugin in plugins.found().items():
        if not plugin.file:
            from .plugin_library import Plugged

            library = get(name)
            if isinstance(library, Plugged) and library.allowed():
                library.load()


def get(name: str) -> Library:
    """The library with this name; it may turn out not to be available.

    Raises
    ------
    BadValue
        For a name that is not known.
    """
    if name not in _MADE:
        if name not in _WHERE:
            _meet_plugins()
        _check(name)
        _MADE.setdefault(name, _make(name))
    return _MADE[name]


def _check(name: str) -> None:
    if name not in _WHERE:
        from ..errors import BadValue

        raise BadValue(f"there is no library {name!r}", remedy=f"one of: {', '.join(_WHERE)}")


def _make(name: str) -> Library:
    from ..switches import plugins

    plugin = plugins.found().get(name)
    if plugin is not None and plugin.library == _WHERE[name]:
        from .plugin_library import Plugged

        return Plugged(plugin)
    module, _, attribute = _WHERE[name].partition(":")
    made: Library = getattr(import_module(module), attribute)()
    return made


def register(library: Library) -> None:
    """Add a library, or put another object in the place of one. The engine considers it from the next call on."""
    from .. import _core

    _WHERE.setdefault(library.name, f"{type(library).__module__}:{type(library).__qualname__}")
    _MADE[library.name] = library
    _core.memo_clear()


def unregister(name: str) -> None:
    """Undo `register`: a library of Backline's or of a plug-in's gets its place back, another one is forgotten.

    Raises
    ------
    BadValue
        For a name that is not known.

    Examples
    --------
    >>> from backline.libraries.numpy.library import NumPy
    >>> mine = NumPy()
    >>> register(mine); get("numpy") is mine
    True
    >>> unregister("numpy"); get("numpy") is mine
    False
    """
    from .. import _core
    from ..switches import plugins

    _check(name)
    _MADE.pop(name, None)
    if name in plugins.found() and name not in _BUILT_IN:
        _WHERE[name] = plugins.found()[name].library
    elif name not in _BUILT_IN:
        del _WHERE[name]
    _core.memo_clear()


def outline(name: str) -> Outline:
    """What decides whether a library is asked: known of many without importing them.

    >>> outline("fftw").families, outline("numpy").devices
    (('fft',), ('cpu',))
    """
    if name in _OUTLINES and name not in _MADE:
        return _OUTLINES[name]
    library = get(name)
    return Outline(library.families, library.devices, library.switch, library.loaded())


def all_libraries() -> Iterator[Library]:
    """Every known library, in order."""
    for name in names():
        yield get(name)
