"""Arguments of the routines of BLAS and LAPACK in which programs spend their time.

Of each routine: their order, what each is, and how large arrays are.

From a row follow the positions that a recorder of calls looks at, the work of a call, and operands for measuring it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .routines import SIZED, letter

__all__ = ["Call", "Signature", "call_of", "find", "usual_call", "work_names"]

FLAGS = frozenset((
    "transa", "transb", "trans", "uplo", "side", "diag", "jobz", "jobu", "jobvt", "jobvl", "jobvr", "range",
))  # fmt: skip
INTEGERS = frozenset((
    "itype", "m", "n", "k", "nrhs", "lda", "ldb", "ldc", "ldu", "ldvt", "ldvl", "ldvr", "ldz", "incx", "incy", "il", "iu",
    "ilo", "ihi",
))  # fmt: skip
WORKSPACE = frozenset(("lwork", "lrwork", "liwork"))  # a library's own affair: not part of what is asked
RESULTS = frozenset(("info", "rank", "found"))  # integers that the routine sets
INTEGER_ARRAYS = frozenset(("ipiv", "iwork", "jpvt", "isuppz", "ifail"))
SCALARS = frozenset(("alpha", "beta"))
REAL_SCALARS = frozenset(("ralpha", "rbeta", "vlow", "vup", "abstol", "rcond"))
REAL_ARRAYS = frozenset(("s", "w", "rwork"))

# Name, also of a complex type where that differs; arguments, "{real|complex}" where they differ; extents of arrays, rows and
# columns of a matrix or the length of a vector: "m/n:side" is m where the flag has its first value and n otherwise,
# "m/n:jobz=A" is m where the flag is A; arrays that are filled so that a matrix has a dominant diagonal; arrays that are
# overwritten and read; the array that is the same whichever library computes it, but for rounding.
_TABLE = """
gemm ; transa transb m n k alpha a lda b ldb beta c ldc ; a=m/k:transa,k/m:transa b=k/n:transb,n/k:transb c=m,n ; ; ; c
gemv ; trans m n alpha a lda x incx beta y incy ; a=m,n x=n/m:trans y=m/n:trans ; ; ; y
symm hemm ; side uplo m n alpha a lda b ldb beta c ldc ; a=m/n:side,m/n:side b=m,n c=m,n ; ; ; c
syrk ; uplo trans n k alpha a lda beta c ldc ; a=n/k:trans,k/n:trans c=n,n ; ; ; c
herk ; uplo trans n k ralpha a lda rbeta c ldc ; a=n/k:trans,k/n:trans c=n,n ; ; ; c
syr2k ; uplo trans n k alpha a lda b ldb beta c ldc ; a=n/k:trans,k/n:trans b=n/k:trans,k/n:trans c=n,n ; ; ; c
her2k ; uplo trans n k alpha a lda b ldb rbeta c ldc ; a=n/k:trans,k/n:trans b=n/k:trans,k/n:trans c=n,n ; ; ; c
trmm ; side uplo transa diag m n alpha a lda b ldb ; a=m/n:side,m/n:side b=m,n ; a ; b ; b
trsm ; side uplo transa diag m n alpha a lda b ldb ; a=m/n:side,m/n:side b=m,n ; a ; b ; b
trmv ; uplo trans diag n a lda x incx ; a=n,n x=n ; a ; x ; x
trsv ; uplo trans diag n a lda x incx ; a=n,n x=n ; a ; x ; x
symv hemv ; uplo n alpha a lda x incx beta y incy ; a=n,n x=n y=n ; ; ; y
ger geru ; m n alpha x incx y incy a lda ; a=m,n x=m y=n ; ; a ; a
gerc ; m n alpha x incx y incy a lda ; a=m,n x=m y=n ; ; a ; a
gesv ; n nrhs a lda ipiv b ldb info ; a=n,n b=n,nrhs ; a ; a b ; b
getrf ; m n a lda ipiv info ; a=m,n ; a ; a ; a
getrs ; trans n nrhs a lda ipiv b ldb info ; a=n,n b=n,nrhs ; a ; b ; b
getri ; n a lda ipiv work lwork info ; a=n,n ; a ; a ; a
potrf ; uplo n a lda info ; a=n,n ; a ; a ; a
potri ; uplo n a lda info ; a=n,n ; a ; a ; a
potrs ; uplo n nrhs a lda b ldb info ; a=n,n b=n,nrhs ; a ; b ; b
posv ; uplo n nrhs a lda b ldb info ; a=n,n b=n,nrhs ; a ; a b ; b
trtrs ; uplo trans diag n nrhs a lda b ldb info ; a=n,n b=n,nrhs ; a ; b ; b
trtri ; uplo diag n a lda info ; a=n,n ; a ; a ; a
sysv ; uplo n nrhs a lda ipiv b ldb work lwork info ; a=n,n b=n,nrhs ; a ; a b ; b
hesv ; uplo n nrhs a lda ipiv b ldb work lwork info ; a=n,n b=n,nrhs ; a ; a b ; b
sytrf ; uplo n a lda ipiv work lwork info ; a=n,n ; a ; a ;
hetrf ; uplo n a lda ipiv work lwork info ; a=n,n ; a ; a ;
geqrf ; m n a lda tau work lwork info ; a=m,n ; ; a ;
gelqf ; m n a lda tau work lwork info ; a=m,n ; ; a ;
geqp3 ; m n a lda jpvt tau work lwork {|rwork} info ; a=m,n ; ; a jpvt ;
orgqr ungqr ; m n k a lda tau work lwork info ; a=m,n ; ; a ; a
ormqr unmqr ; side trans m n k a lda tau c ldc work lwork info ; a=m/n:side,k c=m,n ; ; c ; c
gesdd ; jobz m n a lda s u ldu vt ldvt work lwork {|rwork} iwork info ; a=m,n u=m,m/least:jobz=A vt=n,n ; ; a ; s
gesvd ; jobu jobvt m n a lda s u ldu vt ldvt work lwork {|rwork} info ; a=m,n u=m,m/least:jobu=A vt=n,n ; ; a ; s
syev heev ; jobz uplo n a lda w work lwork {|rwork} info ; a=n,n ; ; a ; w
syevd heevd ; jobz uplo n a lda w work lwork {|rwork lrwork} iwork liwork info ; a=n,n ; ; a ; w
syevr heevr ; jobz range uplo n a lda vlow vup il iu abstol found w z ldz isuppz work lwork {|rwork lrwork} iwork liwork info \
; a=n,n z=n,n ; ; a ; w
syevx heevx ; jobz range uplo n a lda vlow vup il iu abstol found w z ldz work lwork {|rwork} iwork ifail info \
; a=n,n z=n,n ; ; a ; w
sygv hegv ; itype jobz uplo n a lda b ldb w work lwork {|rwork} info ; a=n,n b=n,n ; b ; a b ; w
sygvd hegvd ; itype jobz uplo n a lda b ldb w work lwork {|rwork lrwork} iwork liwork info ; a=n,n b=n,n ; b ; a b ; w
geev ; jobvl jobvr n a lda {wr wi|values} vl ldvl vr ldvr work lwork {|rwork} info ; a=n,n vl=n,n vr=n,n ; ; a ;
gelsd ; m n nrhs a lda b ldb s rcond rank work lwork {|rwork} iwork info ; a=m,n b=most,nrhs ; ; a b ; s
gelss ; m n nrhs a lda b ldb s rcond rank work lwork {|rwork} info ; a=m,n b=most,nrhs ; ; a b ; s
gelsy ; m n nrhs a lda b ldb jpvt rcond rank work lwork {|rwork} info ; a=m,n b=most,nrhs ; ; a b jpvt ;
gehrd ; n ilo ihi a lda tau work lwork info ; a=n,n ; ; a ;
"""

# Flags of the C interface as the Fortran interface has them.
_C_FLAGS = {111: "N", 112: "T", 113: "C", 121: "U", 122: "L", 131: "N", 132: "U", 141: "L", 142: "R"}
ROW_MAJOR = 101


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a routine in one interface.

    Attributes
    ----------
    routine, interface : str
        As `Symbol` has them.
    arguments : tuple of str
        Names, in order; "order" is the first one of the C interface.
    extents : mapping
        Rows and columns of a matrix, or the length of a vector, as the table writes them.
    dominant, overwritten : tuple of str
        Arrays that get a dominant diagonal, and those that have to be filled again before every call.
    unique : str
        The array in which all libraries agree but for rounding, "" where there is none.
    """

    routine: str
    interface: str
    arguments: tuple[str, ...]
    extents: Mapping[str, tuple[str, ...]]
    dominant: tuple[str, ...]
    overwritten: tuple[str, ...]
    unique: str

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of the flags, in order."""
        return tuple(name for name in self.arguments if name in FLAGS or name == "order")

    @property
    def integers(self) -> tuple[str, ...]:
        """Names of the integers that belong to the problem, in order."""
        return tuple(name for name in self.arguments if name in INTEGERS)

    def position(self, name: str) -> int:
        """Returns the place of an argument among integers and pointers, from 0."""
        by_value = frozenset[str]()
        if self.interface == "cblas":
            by_value = REAL_SCALARS | SCALARS if letter(self.routine) in "sd" else REAL_SCALARS
        return [other for other in self.arguments if other not in by_value].index(name)

    def words(self) -> int:
        """Returns how many integers and pointers there are, with the hidden lengths of text behind the Fortran interface's."""
        hidden = len(self.flags) if self.interface == "fortran" else 0
        return self.position(self.arguments[-1]) + 1 + hidden


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a routine without its data: flags and integers by name.

    Examples
    --------
    >>> call = Call(find("dgemm", "cblas"), {"order": "101", "transa": "N", "transb": "T"}, {"m": 4, "n": 5, "k": 6, "lda": 6})
    >>> call.extent("a"), call.work, str(call)
    ((4, 6), 120, 'order=101 transa=N transb=T m=4 n=5 k=6 lda=6')
    """

    signature: Signature
    flags: Mapping[str, str]
    integers: Mapping[str, int]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in {**self.flags, **self.integers}.items())

    def dimension(self, text: str) -> int:
        """Returns a number of rows, columns or elements that the table writes so."""
        choice, _, flag = text.partition(":")
        first, _, second = choice.partition("/")
        if flag:
            name, _, value = flag.partition("=")
            first = first if self.flags[name] in (value or "NL") else second
        sizes = [self.integers[name] for name in ("m", "n") if name in self.integers]
        return min(sizes) if first == "least" else max(sizes) if first == "most" else self.integers[first]

    def extent(self, array: str) -> tuple[int, ...]:
        """Returns rows and columns of a matrix, or the length of a vector."""
        return tuple(self.dimension(text) for text in self.signature.extents[array])

    @property
    def work(self) -> int:
        """The product of the sizes, by which small calls are told from large ones."""
        product = 1
        for name in work_names(self.signature.routine):
            product *= self.integers[name]
        return product


def work_names(routine: str) -> tuple[str, ...]:
    """Returns the names of the sizes whose product is a routine's work; these are what thresholds are about.

    Examples
    --------
    >>> work_names("dgemm"), work_names("zgesdd"), work_names("dpotrf"), work_names("daxpy")
    (('m', 'n', 'k'), ('m', 'n'), ('n',), ('n',))
    """
    signature = find(routine, "fortran")
    sized = SIZED.get(routine[1:]) if routine[:1] in tuple("sdcz") else None
    if sized is None:
        return ()
    if signature is None:  # a routine on vectors, or one on a matrix of n rows and columns
        return ("n", "nrhs")[: len(sized[0])]
    return tuple(signature.arguments[position] for position in sized[0])


@lru_cache(maxsize=1)
def _rows() -> dict[str, list[str]]:
    rows = {}
    for line in _TABLE.strip().splitlines():
        names, *rest = (part.strip() for part in line.split(";"))
        for name in names.split():
            rows[name] = rest
    return rows


@lru_cache(maxsize=512)
def find(routine: str, interface: str) -> Signature | None:
    """Returns a routine's signature; None for one that is not in the table.

    Examples
    --------
    >>> find("zgesdd", "fortran").arguments[-3:], find("dgemm", "cblas").position("lda"), find("dlaswp", "fortran")
    (('rwork', 'iwork', 'info'), 7, None)
    """
    row = _rows().get(routine[1:])
    if row is None or routine[0] not in "sdcz":
        return None
    arguments, extents, dominant, overwritten, unique = row
    is_complex = routine[0] in "cz"
    named = re.sub(r"\{([^|]*)\|([^}]*)\}", lambda match: match[2 if is_complex else 1], arguments).split()
    if interface == "cblas":
        if "info" in named:
            return None
        named = ["order", *named]
    shapes = {name: tuple(shape.split(",")) for name, _, shape in (part.partition("=") for part in extents.split())}
    return Signature(
        routine, interface, tuple(named), shapes, tuple(dominant.split()), tuple(overwritten.split()), unique.strip()
    )


def call_of(signature: Signature, flags: bytes, integers: tuple[int, ...]) -> Call | None:
    """Returns the call that a recorder noted; None where a flag is none that there is."""
    named = {}
    for name, value in zip(signature.flags, flags, strict=True):
        text = str(value) if name == "order" else _C_FLAGS.get(value, "") if signature.interface == "cblas" else chr(value)
        if not (text.isalnum() and text.isascii()):
            return None
        named[name] = text
    return Call(signature, named, dict(zip(signature.integers, integers, strict=True)))


_USUAL = {"order": "101", "side": "L", "uplo": "L", "diag": "N", "jobz": "V", "range": "A", "jobu": "S", "jobvt": "S",
          "jobvl": "N", "jobvr": "V"}  # fmt: skip


def usual_call(signature: Signature, sizes: Mapping[str, int]) -> Call:
    """Returns a call with the flags that most programs pass, and arrays without gaps; sizes that are not given are 1.

    Examples
    --------
    >>> print(usual_call(find("dgemm", "fortran"), {"m": 4, "n": 5, "k": 6}))
    transa=N transb=N m=4 n=5 k=6 lda=4 ldb=6 ldc=4
    """
    flags = {name: _USUAL.get(name, "N") for name in signature.flags}
    integers = dict.fromkeys(signature.integers, 1) | {name: sizes[name] for name in signature.integers if name in sizes}
    call = Call(signature, flags, integers)
    lines = 1 if flags.get("order") == str(ROW_MAJOR) else 0
    for name in signature.integers:
        if name.startswith("ld") and name[2:] in signature.extents:
            integers[name] = max(call.extent(name[2:])[lines], 1)
    return call
