"""The cap on vector instructions: what it is here and now, and how it is put on libraries that read it once.

A library takes its kernels when it is loaded and keeps them. A cap that holds at that moment is handed on, by call where the
library has one; a cap that comes later cannot reach it, and `too_late` says so. What a library kept to is asked of the
library where it tells, not assumed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from .. import switches
from ..errors import BadValue
from ..native import loading
from ..native.process_map import mapped_files
from ..switches import cpu_capability as words

if TYPE_CHECKING:
    from ..native.shared_library import NativeLibrary

__all__ = [
    "allowed", "allows", "cap_mkl", "cap_onednn", "cap_openblas", "detected", "effective", "loaded_openblas", "mkl_kernels",
    "openblas_kernels", "reachable", "reachables", "too_late",
]  # fmt: skip

#: Library -> the word it keeps to, and why that is not the cap it met, if it is not.
_held: dict[str, tuple[str, str]] = {}

_MKL_CODES = {"default": 0, "avx2": 2}  # SSE4.2 is the least that MKL can be told to keep to
_MKL_OTHERS = 2  # the branch it reports on processors of other makers
_MKL_BRANCHES = ((10, "default"), (11, "avx2"))  # branches below 10 are SSE and AVX, 10 is AVX2, those above AVX-512
_MKL_KERNELS = {"def": (), "mc3": (), "avx": (), "avx2": ("avx2",), "avx512": ("avx2", "avx512")}  # by the name of their file
_ONEDNN_MASKS = {"default": 0x1, "avx2": 0x7}
_TOO_LATE, _UNIMPLEMENTED = 2, 3
# (what the processor has, the cap) -> the name under which OpenBLAS has kernels for that.
_OPENBLAS_CORES = {
    ("avx512", "avx2"): "Haswell", ("avx512", "default"): "Nehalem", ("avx2", "default"): "Nehalem",
    ("sve256", "default"): "ARMV8", ("zvector", "default"): "ZARCH_GENERIC",
}  # fmt: skip
#: Kernels of OpenBLAS and what they use. A name that is not here may use anything.
_CORE_WORDS = {
    "avx2": "haswell zen",
    "default": "sandybridge nehalem westmere penryn dunnington core2 atom nano prescott banias northwood katmai coppermine "
    "athlon opteron opteron_sse3 barcelona bobcat bulldozer piledriver steamroller excavator generic unknown armv8 cortexa53 "
    "cortexa57 cortexa72 cortexa73 cortexa76 falkor thunderx thunderx2t99 tsv110 emag8180 neoversen1 vortex zarch_generic",
}
_VARIABLES = {"mkl": ("MKL_ENABLE_INSTRUCTIONS",), "onednn": ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")}


def detected() -> str:
    """Returns the instruction set of this processor: "DEFAULT", "AVX2", "AVX512", "SVE256", "VSX" or "Z VECTOR".

    Examples
    --------
    >>> detected() in ("DEFAULT", "AVX2", "AVX512", "SVE256", "VSX", "Z VECTOR")
    True
    """
    return words.NAMES[words.detected()]


def effective() -> str:
    """Returns the instruction set that libraries may use here and now: `detected`, capped by the switch ``cpu.capability``.

    Examples
    --------
    >>> with switches.scope({"cpu.capability": "default"}):
    ...     effective()
    'DEFAULT'
    """
    return words.NAMES[_effective()]


def _effective() -> str:
    asked = str(switches.get("cpu.capability"))
    return asked if reachable(asked) else words.detected()


def reachable(word: str) -> bool:
    """Tells whether this processor has an instruction set, so that it can be a cap.

    Examples
    --------
    >>> reachable("default"), reachable("AVX2")
    (True, False)
    """
    return words.at_most(word, words.detected())


def reachables() -> tuple[str, ...]:
    """Returns the words that can be a cap here, the lowest first."""
    return words.legal_words()


def allows(isa: str) -> bool:
    """Tells whether code that needs this instruction set may run here and now: it is there, and the cap is not below it.

    Parameters
    ----------
    isa : str
        "avx2", "avx512", "sve256", "vsx", "zvector" or "default"; "" for code that needs nothing.

    Raises
    ------
    BadValue
        For another word.

    Examples
    --------
    >>> allows("")
    True
    """
    if not isa:
        return True
    if isa not in words.NAMES:
        raise BadValue(f"{isa!r} is no instruction set.", remedy=f"one of: {', '.join(words.NAMES)}")
    return words.at_most(isa, _effective())


def allowed(isas: tuple[str, ...]) -> tuple[str, ...]:
    """Returns those instruction sets that `allows` lets code use, of words that it knows.

    >>> allowed(())
    ()
    """
    most = _effective()
    return tuple(isa for isa in isas if words.at_most(isa, most))


# --- put on libraries as they are loaded ----------------------------------------------------------------


def cap_mkl(native: NativeLibrary) -> str:
    """Cap MKL. To be called after its threading layer is set (which a cap would choose too) and before it computes.

    Returns
    -------
    str
        What it keeps to, for reports; "" if nothing is capped.
    """
    cap = _cap()
    if not cap:
        return _keeps("mkl", words.detected())
    enable, branch_of = native.address("MKL_Enable_Instructions"), native.address("MKL_CBWR_Get_Auto_Branch")
    if not enable or not branch_of:
        return _keeps("mkl", words.detected(), "this MKL has no function to cap it")
    if _mkl_in_use(native.path):
        return _keeps("mkl", words.detected(), "MKL was in use before Backline came to it")
    if not _users_own("mkl", cap):  # a lower one would be raised by the call
        native.call(enable, ctypes.c_int(_MKL_CODES[cap]), restype=ctypes.c_int)
    branch = native.call(branch_of, restype=ctypes.c_int)
    if branch <= _MKL_OTHERS:
        return _keeps("mkl", words.detected(), "on processors of other makers than Intel, MKL cannot be capped")
    return _keeps("mkl", next((word for limit, word in _MKL_BRANCHES if branch < limit), "avx512"))


def _mkl_in_use(path: str) -> bool:
    """Tells whether this copy has opened its kernels: then its answers follow a cap, and its kernels do not."""
    folder = os.path.dirname(os.path.realpath(path))
    kernels = tuple(os.path.join(folder, f"libmkl_{name}") for name in ("def.", "mc3.", "avx"))
    return any(os.path.realpath(file.path).startswith(kernels) for file in mapped_files())


def mkl_kernels(path: str) -> tuple[str, ...] | None:
    """Instruction sets of the kernels that an MKL opened: it loads one file of them with its first computation.

    Parameters
    ----------
    path : str
        Its ``libmkl_rt``. One that is linked into another library does not show its kernels: None.

    Examples
    --------
    >>> mkl_kernels("/nowhere/libmkl_rt.so.3") is None
    True
    """
    folder = os.path.dirname(os.path.realpath(path))
    for file in mapped_files():
        word = file.name.partition(".")[0].removeprefix("libmkl_")
        if word in _MKL_KERNELS and os.path.dirname(os.path.realpath(file.path)) == folder:
            return _MKL_KERNELS[word]
    return None


@contextmanager
def cap_openblas() -> Iterator[None]:
    """Cap an OpenBLAS that is loaded inside the block. To be followed by `loaded_openblas`.

    It reads OPENBLAS_CORETYPE as it is loaded and knows no other way. The variable is set for as long as the block takes, and
    not at all if the user has set it.
    """
    core = _OPENBLAS_CORES.get((words.detected(), _cap()), "")
    if not core or os.environ.get("OPENBLAS_CORETYPE"):
        yield
        return
    with loading.variable("OPENBLAS_CORETYPE", core):
        yield


def loaded_openblas(core: str) -> str:
    """Put on record which kernels the OpenBLAS took that was loaded within `cap_openblas`; returns what `cap_mkl` does."""
    word, cap = _word_of_core(core), _cap()
    if not cap or words.at_most(word, cap):
        return _keeps("openblas", word)
    own = os.environ.get("OPENBLAS_CORETYPE")
    why = f"OPENBLAS_CORETYPE={own} is set" if own else f"it was loaded before, or has no other kernels than {core}"
    return _keeps("openblas", word, why)


def openblas_kernels(core: str) -> tuple[str, ...] | None:
    """Instruction sets of the kernels that an OpenBLAS has for a core; None for a core that is not known to need less.

    Examples
    --------
    >>> openblas_kernels("Haswell"), openblas_kernels("Nehalem")
    (('avx2',), ())
    """
    word = next((word for word, cores in _CORE_WORDS.items() if core.lower() in cores.split()), "")
    if word:
        return () if word == "default" else (word,)
    return ("avx2", "avx512") if core.lower() in ("skylakex", "cooperlake", "sapphirerapids") else None


def cap_onednn(native: NativeLibrary) -> str:
    """Cap oneDNN. To be called before anything else of it; returns what `cap_mkl` does."""
    cap = _cap()
    if not cap:
        return _keeps("onednn", words.detected())
    if _users_own("onednn", cap):
        return _keeps("onednn", cap)
    function = native.address("dnnl_set_max_cpu_isa")
    if not function or cap not in _ONEDNN_MASKS or not words.at_most("avx2", words.detected()):
        return _keeps("onednn", words.detected(), "this oneDNN has no function to cap it")
    status = native.call(function, ctypes.c_int(_ONEDNN_MASKS[cap]), restype=ctypes.c_int)
    if status == 0:
        return _keeps("onednn", cap)
    reasons = {_TOO_LATE: "oneDNN was in use before Backline came to it", _UNIMPLEMENTED: "this oneDNN is built without caps"}
    return _keeps("onednn", words.detected(), reasons.get(status, f"oneDNN refused the cap (status {status})"))


def _cap() -> str:
    """The word to cap with, or "" if the cap is all that the processor has."""
    word = _effective()
    return "" if word == words.detected() else word


def _users_own(library: str, cap: str) -> str:
    """The variable of the library's own by which the user has capped it already, as low or lower; else ""."""
    for variable in _VARIABLES[library]:
        value = os.environ.get(variable, "").strip().upper()
        if value.startswith(("AVX512", "AVX10")):
            word = "avx512"
        elif value.startswith("AVX2"):
            word = "avx2"
        elif value == "AVX" or value.startswith("SSE"):
            word = "default"
        else:
            continue
        return variable if words.at_most(word, cap) else ""
    return ""


def _keeps(library: str, word: str, why: str = "") -> str:
    _held[library] = word, why
    if why:
        return f"not capped: {why}"
    return "" if word == words.detected() else f"{words.NAMES[word]} at most"


# --- and what a cap did not reach -----------------------------------------------------------------------


def too_late(library: str) -> str:
    """Say that a library uses more than the cap that holds here, and why; "" if it does not or is not loaded.

    Parameters
    ----------
    library : str
        "mkl", "openblas", "onednn"; "numpy" for the OpenBLAS inside NumPy.

    Examples
    --------
    >>> too_late("mkl")
    ''
    """
    cap = _cap()
    if not cap:
        return ""
    if library == "numpy":
        word, why = _numpys(cap)
    elif library in _held:
        word, why = _held[library]
    else:
        return ""
    if words.at_most(word, cap):
        return ""
    return f"may use {words.NAMES[word]}, above the cap {words.NAMES[cap]}: {why or _loaded_before(cap)}"


def _loaded_before(cap: str) -> str:
    return f"it was loaded before the cap was set; start the program with BACKLINE_CPU_CAPABILITY={cap}"


def _numpys(cap: str) -> tuple[str, str]:
    core = _numpys_core()
    if not core:
        return words.detected(), "NumPy loaded its BLAS as it was imported"
    why = f"NumPy loaded its OpenBLAS as it was imported, and that took its {core} kernels"
    lower = _OPENBLAS_CORES.get((words.detected(), cap))
    return _word_of_core(core), f"{why}; start the program with OPENBLAS_CORETYPE={lower}" if lower else why


@lru_cache(maxsize=1)
def _numpys_core() -> str:
    """The kernels that NumPy's own OpenBLAS took; "" if it has none or does not tell."""
    path = next((f.path for f in mapped_files() if "numpy.libs" in f.path and "openblas" in f.name and not f.deleted), "")
    if not path:
        return ""
    library = ctypes.CDLL(path)  # mapped already: this is another handle to it
    for name in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename", "openblas_get_corename64_"):
        function = getattr(library, name, None)
        if function is not None:
            function.restype, function.argtypes = ctypes.c_char_p, ()
            return (function() or b"").decode("ascii", "replace")
    return ""


def _word_of_core(core: str) -> str:
    for word, cores in _CORE_WORDS.items():
        if core.lower() in cores.split():
            return word if reachable(word) else words.detected()
    return words.detected()
