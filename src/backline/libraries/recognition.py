"""The libraries that matter to a numerical process, and how to know one by its file.

A file name is a hint: distributions let `libblas.so.3` be any BLAS, wheels rename what they bundle. The
exported functions decide where they can be read. A large library may contain several others (PyTorch's
contains MKL), so one file can give several answers.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase

from backline.native import elf

__all__ = ["FAMILIES", "Family", "Match", "classify", "owner"]


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of library.

    Attributes
    ----------
    name : str
        "openblas"; for a part of a larger library the part follows a dot: "mkl.core".
    kind : str
        What it is for: "blas", "fft", "nn", "openmp", "threads", "cuda".
    patterns : tuple of str
        File names, as shell patterns.
    markers : tuple of str
        Functions only this family exports; any one of them is proof. Empty: the name has to do.
    wheel : str
        The distribution that puts it into the environment's `lib` folder, if there is one.
    """

    name: str
    kind: str
    patterns: tuple[str, ...]
    markers: tuple[str, ...] = ()
    wheel: str = ""


def _mkl(part: str, *stems: str) -> Family:
    return Family(f"mkl.{part}", "blas", tuple(f"lib{stem}.so*" for stem in stems), wheel="mkl")


def _cuda(name: str, *stems: str) -> Family:
    return Family(name, "cuda", tuple(f"lib{stem}.so*" for stem in stems or (name,)))


FAMILIES: tuple[Family, ...] = (
    Family(
        "openblas", "blas", ("lib*openblas*.so*",),
        ("openblas_get_config", "scipy_openblas_get_config", "openblas_get_config64_",
         "scipy_openblas_get_config64_"), "scipy-openblas32",
    ),
    Family("mkl", "blas", ("libmkl_rt.so*", "libmkl_rt-*.so*"), ("MKL_Get_Version_String",), "mkl"),
    _mkl("core", "mkl_core"),
    _mkl("intel_thread", "mkl_intel_thread"),
    _mkl("gnu_thread", "mkl_gnu_thread"),
    _mkl("tbb_thread", "mkl_tbb_thread"),
    _mkl("sequential", "mkl_sequential"),
    _mkl("interface", "mkl_intel_lp64", "mkl_intel_ilp64", "mkl_gf_lp64", "mkl_gf_ilp64"),
    _mkl("kernels", "mkl_def", "mkl_mc3", "mkl_avx*", "mkl_vml_*"),
    Family("blis", "blas", ("libblis*.so*",), ("bli_info_get_version_str",)),
    Family("flexiblas", "blas", ("libflexiblas*.so*",), ("flexiblas_get_version",)),
    Family("atlas", "blas", ("libatlas*.so*", "libsatlas*.so*", "libtatlas*.so*"), ("ATL_buildinfo",)),
    Family("armpl", "blas", ("libarmpl*.so*",), ("armplversion",)),
    Family("nvpl", "blas", ("libnvpl_blas*.so*", "libnvpl_lapack*.so*")),
    Family("blas", "blas", ("libblas.so*", "libcblas.so*", "liblapack.so*", "liblapacke.so*")),
    Family("libgomp", "openmp", ("libgomp.so*", "libgomp-*.so*"), ("GOACC_parallel_keyed", "GOACC_parallel")),
    Family("libiomp5", "openmp", ("libiomp5*.so*",), (), "intel-openmp"),
    Family("libomp", "openmp", ("libomp.so*", "libomp-*.so*", "libomp5*.so*"), ("__kmpc_fork_call",)),
    Family("tbb", "threads", ("libtbb.so*", "libtbb-*.so*"), ("TBB_runtime_interface_version",), "tbb"),
    Family("pthreadpool", "threads", ("libpthreadpool.so*",), ("pthreadpool_create",)),
    Family("fftw", "fft", ("libfftw3*.so*",),
           ("fftw_version", "fftwf_version", "fftwl_version", "fftw_init_threads", "fftwf_init_threads",
            "fftwl_init_threads")),
    Family("onednn", "nn", ("libdnnl*.so*", "libmkldnn*.so*"), ("dnnl_version",), "onednn"),
    Family("xnnpack", "nn", ("libXNNPACK*.so*",), ("xnn_initialize",)),
    Family("nnpack", "nn", ("libnnpack*.so*",), ("nnp_initialize",)),
    _cuda("cuda driver", "cuda"),
    _cuda("cudart"), _cuda("cublas"), _cuda("cublaslt", "cublasLt"), _cuda("cusolver"), _cuda("cufft"),
    _cuda("cusparse"), _cuda("cusparselt", "cusparseLt"), _cuda("cudnn", "cudnn*"), _cuda("nvrtc"),
    _cuda("magma"),
)  # fmt: skip

# The C library, the compilers' runtimes and Python's extension modules: many, and not worth opening.
_NEVER = re.compile(
    r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libgfortran|libquadmath|ld-linux|ld-musl|libpython|"
    r"libffi|libz|libssl|libcrypto|liblzma|libbz2|libuuid|libutil|libresolv|libnss_)[-.\d_]|"
    r".*\.cpython-|.*\.abi3\.so|(?!.*\.so)"
)


@dataclass(frozen=True, slots=True)
class Match:
    """What a file was taken for, and on which evidence ("name and symbols", "name", "symbols")."""

    family: Family
    evidence: str
    exported: frozenset[str] = frozenset()


def classify(path: str, read: bool = True) -> tuple[Match, ...]:
    """What this file is: nothing, one family, or several that it contains.

    Parameters
    ----------
    path : str
        A file.
    read : bool
        Whether it may be read. If it may not or cannot be, its name decides alone.

    Returns
    -------
    tuple of Match

    Examples
    --------
    >>> [match.family.name for match in classify("/nowhere/libmkl_core.so.3")]
    ['mkl.core']
    >>> classify("/nowhere/libpng.so.16")
    ()
    """
    name = os.path.basename(path)
    named = next((f for f in FAMILIES if any(fnmatchcase(name, p) for p in f.patterns)), None)
    if named is None and _NEVER.match(name):
        return ()
    if named is not None and not named.markers and named.name != "blas":
        return (Match(named, "name"),)
    markers = [marker for family in FAMILIES for marker in family.markers]
    try:
        exported = elf.exports(path, markers) if read and elf.supported() else None
    except elf.Refused:
        exported = None
    if exported is None:
        return (Match(named, "name"),) if named else ()
    if named is not None and exported.intersection(named.markers):
        return (Match(named, "name and symbols", exported),)
    matches = [f for f in FAMILIES if exported.intersection(f.markers)]
    if matches:
        return tuple(Match(family, "symbols", exported) for family in matches)
    return (Match(named, "name"),) if named else ()


def owner(path: str, family: Family, prefix: str = sys.prefix) -> str:
    """Who brought a file: a package, the environment, or the system.

    Examples
    --------
    >>> blas = FAMILIES[0]
    >>> owner("/v/lib/python3.11/site-packages/numpy.libs/libscipy_openblas64_-32a4b2a6.so", blas)
    'numpy'
    >>> owner("/usr/lib/x86_64-linux-gnu/libopenblas.so.0", blas, prefix="/v")
    'system'
    """
    match = re.search(r"/(?:site|dist)-packages/([^/]+)/", path)
    if match:
        package = match[1].removesuffix(".libs").replace("_", "-")
        return "scikit-learn" if package == "sklearn" else package
    if re.match(r"(/usr)?/lib(32|64|x32)?/", path):
        return "system"
    if path.startswith(os.path.join(os.path.realpath(prefix), "")) or path.startswith(
        os.path.join(prefix, "")
    ):
        return family.wheel or "environment"
    return os.path.dirname(path)
