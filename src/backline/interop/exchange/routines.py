"""The routines of BLAS and LAPACK: how libraries spell their names, which belong together, and where their sizes are.

A routine is its name as the reference has it, such as ``dgemm``. An interface is how it is called: "fortran" (everything by
reference) or "cblas" (sizes by value).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["FAMILIES", "SIZED", "Naming", "Sizes", "Symbol", "family", "letter", "parse", "sizes"]


@dataclass(frozen=True, slots=True)
class Naming:
    """Prefix and suffix of the names of a library's routines: ``scipy_`` and ``64_`` in ``scipy_dgemm_64_``."""

    prefix: str = ""
    suffix: str = ""

    def spelt(self, interface: str, routine: str) -> tuple[str, ...]:
        """Returns the names that a routine may have."""
        if interface == "cblas":
            return (f"{self.prefix}cblas_{routine}{self.suffix}",)
        stem = f"{self.prefix}{routine}"
        if not self.suffix:
            return (f"{stem}_",)
        suffix = self.suffix.strip("_")
        return (f"{stem}_{suffix}_", f"{stem}_{suffix}")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A routine as an extension module asks for it.

    Attributes
    ----------
    routine : str
        Name of the routine: ``dgemm``, ``zdotc_sub``.
    interface : str
        "fortran" or "cblas".
    width : int
        Bytes of its integers.
    bundled : bool
        Whether the name is one of the OpenBLAS that wheels of NumPy and SciPy bring along.
    """

    routine: str
    interface: str
    width: int
    bundled: bool


_FORM = re.compile(
    r"(?P<wheel>scipy_)?(?:(?P<c>cblas_)(?P<cname>[a-z0-9_]+?)(?P<c64>_?64_?)?|(?P<name>[a-z][a-z0-9]*?)(?P<f64>_64)?_)"
)


@lru_cache(maxsize=4096)
def parse(name: str) -> Symbol | None:
    """Returns what a symbol's name says; None for one that is not a routine's.

    Examples
    --------
    >>> parse("scipy_cblas_dgemm64_")
    Symbol(routine='dgemm', interface='cblas', width=8, bundled=True)
    >>> parse("scipy_zgesdd_").routine, parse("scipy_dgetrf_64_").width
    ('zgesdd', 8)
    >>> parse("PyErr_Format_") is None
    True
    """
    match = _FORM.fullmatch(name)
    if match is None:
        return None
    c = match["c"] is not None
    width = 8 if match["c64" if c else "f64"] else 4
    return Symbol(match["cname" if c else "name"], "cblas" if c else "fortran", width, match["wheel"] is not None)


FAMILIES = {
    "blas": "matrix products and triangular systems (levels 2 and 3 of BLAS)",
    "level1": "vectors (level 1 of BLAS)",
    "lapack": "factorizations, eigenvalues, singular values",
    "fft": "Fourier transforms of `numpy.fft` and `scipy.fft`, which are no routines",
    "complex result": "functions that return a complex number",
    "utility": "constants of the machine, error messages, block sizes",
}
"""The families of routines, and what is in them. The first four can be exchanged."""


def _words(text: str) -> list[str]:
    return text.split()


_REAL_VECTORS = _words("asum axpy axpby copy dot nrm2 rot rotg rotm rotmg scal swap sum")
_COMPLEX_VECTORS = _words("axpy axpyc axpby copy dotu_sub dotc_sub rotg scal swap")
_LEVEL1 = frozenset(
    [f"{x}{n}" for x in "sd" for n in _REAL_VECTORS]
    + [f"{x}{n}" for x in "cz" for n in _COMPLEX_VECTORS]
    + [f"i{x}{n}" for x in "sdcz" for n in ("amax", "amin", "max", "min")]
    + [f"{x}{n}" for x in ("s", "d", "sc", "dz") for n in ("amax", "amin", "max", "min")]
    + _words("scasum dzasum scnrm2 dznrm2 scsum dzsum csscal zdscal csrot zdrot sdsdot dsdot scabs1 dcabs1")
)
# In registers (GNU) or through a hidden first argument (Intel): a call that is right for one is a crash in the other.
_COMPLEX_RESULT = frozenset(_words("cdotu cdotc zdotu zdotc cladiv zladiv"))
# Nothing to gain, and what they answer belongs to the library that asks.
_UTILITIES = frozenset(
    _words(
        "lsame lsamen xerbla xerbla_array chla_transtype ilaenv ilaenv2stage ilaver ieeeck iparmq iparam2stage ilatrans iladiag "
        "ilaprec ilauplo slamch dlamch slamc1 slamc2 slamc3 slamc4 slamc5 dlamc1 dlamc2 dlamc3 dlamc4 dlamc5 sroundup_lwork "
        "droundup_lwork second dsecnd sisnan disnan slaisnan dlaisnan"
    )
)
_PRODUCTS = frozenset(
    f"{x}{n}"
    for x in "sdcz"
    for n in _words(
        "gemm gemmt gemmtr gemm3m symm hemm syrk herk syr2k her2k trmm trsm gemv gbmv symv hemv sbmv hbmv spmv hpmv trmv tbmv "
        "tpmv trsv tbsv tpsv ger geru gerc syr her spr hpr syr2 her2 spr2 hpr2 omatcopy imatcopy geadd"
    )
)


def family(symbol: Symbol) -> str:
    """Returns the key of `FAMILIES` that a routine belongs to.

    >>> family(parse("scipy_zdotc_")), family(parse("scipy_cblas_zdotc_sub")), family(parse("scipy_dgesdd_"))
    ('complex result', 'level1', 'lapack')
    """
    name = symbol.routine
    if symbol.interface == "fortran" and name in _COMPLEX_RESULT:
        return "complex result"
    if name in _UTILITIES:
        return "utility"
    return "level1" if name in _LEVEL1 else "blas" if name in _PRODUCTS else "lapack"


def letter(routine: str) -> str:
    """Returns the letter of the type that a routine computes in, "" where its name has none.

    >>> letter("zgesdd"), letter("idamax"), letter("ilaslc")
    ('z', 'd', '')
    """
    if routine in _LEVEL1 and routine[0] == "i":
        return routine[1]
    return routine[0] if routine[0] in "sdcz" else ""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Positions of the sizes among the arguments of a call, and the product below which the former library is kept.

    Attributes
    ----------
    positions : tuple of int
        Arguments that are multiplied, counted from 0 without floating-point numbers by value.
    integers : tuple of int
        All arguments that are integers by value; empty in the Fortran interface.
    small : int
        Product of the sizes from which on the exchanged function is called.
    """

    positions: tuple[int, ...]
    integers: tuple[int, ...]
    small: int


# Positions of the sizes in the Fortran interface, and the product below which the cost of a call outweighs what another library
# gains (MKL, on one thread). Of what NumPy calls through the C interface there are also the arguments behind the sizes: "p" a
# pointer, "i" an integer, "a" a scalar, which is a pointer for complex types.
SIZED: dict[str, tuple[tuple[int, ...], int, str]] = {
    "gemm": ((2, 3, 4), 100_000, "a pi pi a pi"),
    "gemv": ((1, 2), 10_000, "a pi pi a pi"),
    "syrk": ((2, 3), 1_000, "a pi a pi"),
    "herk": ((2, 3), 1_000, ""),
    "symm": ((2, 3), 1_000, ""),
    "hemm": ((2, 3), 1_000, ""),
    "trmm": ((4, 5), 1_000, ""),
    "trsm": ((4, 5), 1_000, ""),
    "gesv": ((0, 1), 60, ""),
    "getrf": ((0, 1), 10_000, ""),
    "potrf": ((1,), 40, ""),
    "trtrs": ((3, 4), 60, ""),
    "gesdd": ((1, 2), 400, ""),
    "syevd": ((2,), 14, ""),
    "heevd": ((2,), 14, ""),
    "gelsd": ((0, 1), 2_000, ""),
    # Vectors: what OpenBLAS runs on one thread stays there, so that no pool of threads wakes up for it.
    "dot": ((0,), 10_000, "pi pi"),
    "dotu_sub": ((0,), 10_000, "pi pi"),
    "dotc_sub": ((0,), 10_000, "pi pi"),
    "axpy": ((0,), 10_000, "a pi pi"),
    "scal": ((0,), 10_000, ""),
    "copy": ((0,), 10_000, ""),
    "swap": ((0,), 10_000, ""),
    "nrm2": ((0,), 10_000, ""),
    "asum": ((0,), 10_000, ""),
    "rot": ((0,), 10_000, ""),
    # Exchanged whatever the size, unless a program was tuned.
    "syr2k": ((2, 3), 0, ""),
    "her2k": ((2, 3), 0, ""),
    "trmv": ((3,), 0, ""),
    "trsv": ((3,), 0, ""),
    "symv": ((1,), 0, ""),
    "hemv": ((1,), 0, ""),
    "ger": ((0, 1), 0, ""),
    "geru": ((0, 1), 0, ""),
    "gerc": ((0, 1), 0, ""),
    "getrs": ((1, 2), 0, ""),
    "getri": ((0,), 0, ""),
    "potri": ((1,), 0, ""),
    "potrs": ((1, 2), 0, ""),
    "posv": ((1, 2), 0, ""),
    "trtri": ((2,), 0, ""),
    "sysv": ((1, 2), 0, ""),
    "hesv": ((1, 2), 0, ""),
    "sytrf": ((1,), 0, ""),
    "hetrf": ((1,), 0, ""),
    "geqrf": ((0, 1), 0, ""),
    "gelqf": ((0, 1), 0, ""),
    "geqp3": ((0, 1), 0, ""),
    "orgqr": ((0, 1), 0, ""),
    "ungqr": ((0, 1), 0, ""),
    "ormqr": ((2, 3, 4), 0, ""),
    "unmqr": ((2, 3, 4), 0, ""),
    "gesvd": ((2, 3), 0, ""),
    "syev": ((2,), 0, ""),
    "heev": ((2,), 0, ""),
    "syevr": ((3,), 0, ""),
    "heevr": ((3,), 0, ""),
    "syevx": ((3,), 0, ""),
    "heevx": ((3,), 0, ""),
    "sygv": ((3,), 0, ""),
    "hegv": ((3,), 0, ""),
    "sygvd": ((3,), 0, ""),
    "hegvd": ((3,), 0, ""),
    "geev": ((2,), 0, ""),
    "gelss": ((0, 1), 0, ""),
    "gelsy": ((0, 1), 0, ""),
    "gehrd": ((0,), 0, ""),
}
"""By the name of a routine without its letter."""


@lru_cache(maxsize=256)
def sizes(routine: str, interface: str) -> Sizes | None:
    """Returns where a routine has its sizes; None for one without a threshold.

    >>> sizes("dgemm", "fortran").positions, sizes("dgemm", "cblas").positions, sizes("dgemm", "cblas").integers
    ((2, 3, 4), (3, 4, 5), (3, 4, 5, 7, 9, 11))
    >>> sizes("zgemm", "cblas").integers
    (3, 4, 5, 8, 10, 13)
    """
    row = SIZED.get(routine[1:])
    if row is None or routine[0] not in "sdcz":
        return None
    positions, small, rest = row
    if interface == "fortran":
        return Sizes(positions, (), small)
    if not rest:
        return None
    if positions != (0,):
        positions = tuple(p + 1 for p in positions)  # the layout comes first
    integers, at = list(positions), positions[-1] + 1
    for kind in rest.replace(" ", ""):
        if kind == "i":
            integers.append(at)
        # Real scalars travel in registers of their own; complex ones are pointers.
        at += kind in "pi" or routine[0] in "cz"
    return Sizes(positions, tuple(integers), small)
