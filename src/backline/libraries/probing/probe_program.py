"""The program that tests a library in a process of its own: is it what its name says, does it initialise, does it compute.

`probe_process` starts it, by the path of this file, with an interpreter that imports nothing but the standard library. A library
that crashes then takes this process with it and no other, one that prints prints where nobody takes it for an answer, and nothing
stays behind in the program that asked: no mapped file, no thread, no CUDA context that a fork could not carry over.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["CHECKS", "Facts", "Unfit", "answer", "check_factor", "check_products", "integer_bytes"]

Facts: TypeAlias = dict[str, Any]
Check: TypeAlias = Callable[[ctypes.CDLL], Facts]


class Unfit(Exception):
    """The library is not what is wanted; the text says why."""


class Untested(Unfit):
    """The test could not be finished; a later one may say otherwise, when memory or threads can be had again."""


def answer(question: str, subject: str) -> Facts:
    """Returns what testing a library says: "reason" is empty if it is fit, and there may be more, such as "version".

    There is "passing" if a later test may say otherwise. The question is a key of `CHECKS`, or of `PROGRAMS`; any other word asks
    only whether the file can be loaded. The subject is the file's absolute path; for a key of `PROGRAMS` what that takes, in
    JSON.
    """
    try:
        if question in PROGRAMS:
            import json

            return {"reason": "", **PROGRAMS[question](json.loads(subject))}
        library = ctypes.CDLL(subject, mode=os.RTLD_NOW | os.RTLD_LOCAL if os.name == "posix" else 0)
        check = CHECKS.get(question)
        return {"reason": "", **(check(library) if check else {})}
    except Untested as error:
        return {"reason": str(error), "passing": True}
    except Unfit as error:
        return {"reason": str(error)}
    except OSError as error:
        return {"reason": f"cannot be loaded: {error}"}
    except AttributeError as error:
        return {"reason": f"lacks a function: {error}"}


def main(token: str, question: str, subject: str, seconds: str) -> None:
    """Tests, and writes the answer where the library cannot write: with the token, so that an early end is no answer."""
    import json
    import resource
    import signal

    answers = os.dup(1)
    os.dup2(2, 1)  # what the library prints is kept apart, for the reason if it ends the process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(int(float(seconds)) + 5)  # should the process that asked be killed meanwhile
    text = json.dumps({"token": token, **answer(question, subject)})
    os.write(answers, text.encode() + b"\n")
    os._exit(0)  # not by the libraries' own ways out: they may wait for threads, or crash


# --- the questions ------------------------------------------------------------------------------------------------


def _text(function: Any, *args: Any) -> str:
    function.restype = ctypes.c_char_p
    return (function(*args) or b"").decode("utf-8", "replace")


def _properties(name: str) -> Callable[[ctypes.CDLL], tuple[int, ...]]:
    """Major, minor and patch as CUDA's libraries tell them, which takes no device."""

    def ask(library: ctypes.CDLL) -> tuple[int, ...]:
        numbers, number = [], ctypes.c_int()
        for which in range(3):
            status = getattr(library, name)(which, ctypes.byref(number))
            if status:
                raise Unfit(f"does not tell its version ({name}: status {status})")
            numbers.append(number.value)
        return tuple(numbers)

    return ask


def _dotted(name: str, title: str, *majors: int) -> Check:
    """The version of a library of CUDA's, whose interface is that of certain major versions."""
    ask = _properties(name)

    def check(library: ctypes.CDLL) -> Facts:
        numbers = ask(library)
        version = ".".join(map(str, numbers))
        if numbers[0] not in majors:
            raise Unfit(f"is {title} {version}; {' or '.join(map(str, majors))} is needed")
        return {"version": version}

    return check


# What is behind some of the driver's answers.
_DRIVER_HINTS = {
    34: "this file is the toolkit's, for linking only: take its folder, stubs, out of LD_LIBRARY_PATH",
    100: "is there a GPU, does CUDA_VISIBLE_DEVICES hide it, was the container started with it (--gpus)?",
    803: "the file and the kernel's module are of different versions: start the machine anew after an update",
    804: "the files for forward compatibility serve data-center GPUs only",
}


def _driver(library: ctypes.CDLL) -> Facts:
    def check(name: str, *args: Any) -> None:
        status = getattr(library, name)(*args)
        if status:
            text = ctypes.c_char_p()
            known = library.cuGetErrorString(status, ctypes.byref(text)) == 0 and text.value
            told = text.value.decode("utf-8", "replace") if known and text.value else "unknown error"
            hint = _DRIVER_HINTS.get(status, "")
            raise Unfit(f"the CUDA driver says: {told} ({name}: status {status})" + (f"; {hint}" if hint else ""))

    count, version = ctypes.c_int(), ctypes.c_int()
    check("cuInit", 0)
    check("cuDeviceGetCount", ctypes.byref(count))
    check("cuDriverGetVersion", ctypes.byref(version))
    if count.value < 1:
        raise Unfit("the CUDA driver reports no device")
    return {"devices": count.value, "driver": version.value}


def _capabilities(library: ctypes.CDLL) -> Facts:
    """The compute capability of every device."""
    found = []
    for index in range(_driver(library)["devices"]):
        device, pair = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
        failed = library.cuDeviceGet(ctypes.byref(device), index)
        for number, attribute in zip(pair, (75, 76), strict=True):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
            failed = failed or library.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        found.append(None if failed else [number.value for number in pair])
    return {"capabilities": found}


def _told(name: str, kind: type[ctypes.c_int] | type[ctypes.c_size_t], count: int, *, checked: bool = True) -> Check:
    """The version as a function writes it to so many numbers; `checked` where the function returns a status."""

    def check(library: ctypes.CDLL) -> Facts:
        numbers = [kind() for _ in range(count)]
        status = getattr(library, name)(*map(ctypes.byref, numbers))
        if checked and status:
            raise Unfit(f"does not tell its version ({name}: status {status})")
        return {"version": numbers[0].value if count == 1 else ".".join(str(number.value) for number in numbers)}

    return check


def _initialises(name: str, statuses: dict[int, str], *args: None) -> Check:
    """Calls a function that initialises the library, and tells nothing of it."""

    def check(library: ctypes.CDLL) -> Facts:
        status = getattr(library, name)(*args)
        if status:
            raise Unfit(f"does not initialise: {statuses.get(status, 'unknown error')} ({name}: status {status})")
        return {}

    return check


def _cudnn(library: ctypes.CDLL) -> Facts:
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = library.cudnnGetVersion()
    step = 1000 if number < 90000 else 10000  # before 9 it was 1000 * major + 100 * minor + patch
    if number // 10000 != 9:
        raise Unfit(f"is cuDNN {number // step}.{number % step // 100}.{number % 100}; 9 is needed")
    return {"version": number}


def _cusparselt(library: ctypes.CDLL) -> Facts:
    major, minor, patch = _properties("cusparseLtGetProperty")(library)
    if major != 0:
        raise Unfit(f"is cuSPARSELt {major}.{minor}.{patch}; 0 is needed")
    return {"version": 1000 * major + 100 * minor + patch}


def _cusparselt_largest(library: ctypes.CDLL) -> Facts:
    """The number of algorithms, as the selection for a small product has it, which takes a device."""
    handle, a, b, c, product, selection = (ctypes.create_string_buffer(16384) for _ in range(6))
    half, row_order, half_of_it, alignment, size = 2, 2, 0, ctypes.c_uint32(16), ctypes.c_int64(64)
    plain, default, largest_id = 0, 0, 1

    def fails(name: str, *args: Any) -> int:
        return int(getattr(library, name)(handle, *args))

    shape = (size, size, size, alignment, half, row_order)
    if (
        library.cusparseLtInit(handle)
        or fails("cusparseLtStructuredDescriptorInit", a, *shape, half_of_it)
        or fails("cusparseLtDenseDescriptorInit", b, *shape)
        or fails("cusparseLtDenseDescriptorInit", c, *shape)
    ):
        return {}
    for compute_type in (2, 3, 4):  # numbered anew between versions: one of them has sums of float32, and 0 and 1 have not
        if not fails("cusparseLtMatmulDescriptorInit", product, plain, plain, a, b, c, c, compute_type):
            break
    else:
        return {}
    number = ctypes.c_int()
    if fails("cusparseLtMatmulAlgSelectionInit", selection, product, default):
        return {}
    if fails("cusparseLtMatmulAlgGetAttribute", selection, largest_id, ctypes.byref(number), ctypes.c_size_t(4)):
        return {}
    return {"max_alg_id": number.value}


def _kleidiai(library: ctypes.CDLL) -> Facts:
    function = getattr(library, "kai_get_version", None)  # inline in most builds
    return {"version": _text(function)} if function is not None else {}


class _DnnlVersion(ctypes.Structure):
    _fields_ = (("numbers", ctypes.c_int * 3), ("hash", ctypes.c_char_p), ("cpu_runtime", ctypes.c_uint))


def _onednn(library: ctypes.CDLL) -> Facts:
    library.dnnl_version.restype = ctypes.POINTER(_DnnlVersion)
    said = library.dnnl_version().contents
    version = ".".join(map(str, said.numbers))
    if said.numbers[0] != 3:
        raise Unfit(f"is oneDNN {version}, which has another interface; 3 is needed")
    cpu = 1
    library.dnnl_engine_get_count.restype = ctypes.c_size_t
    if library.dnnl_engine_get_count(cpu) < 1:
        raise Unfit(f"is oneDNN {version} but finds no engine for the processor")
    return {"version": version}


_NNPACK_STATUS = {51: "it does not support this processor", 52: "out of memory"}
_XNNPACK_STATUS = {1: "uninitialized", 2: "invalid parameter", 5: "it does not support this processor", 6: "out of memory"}


def _fftw(library: ctypes.CDLL) -> Facts:
    for letter in ("", "f"):
        try:
            text = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, f"fftw{letter}_version")))  # data, no function
        except ValueError:
            continue
        return {"version": text.decode("ascii", "replace").removeprefix("fftw-").partition("-")[0]}
    raise Unfit("does not tell its version")


def _openmp(library: ctypes.CDLL) -> Facts:
    if library.omp_get_max_threads() < 1:
        raise Unfit("offers no thread")
    return {}


def _mlx(folders: list[str]) -> Facts:
    """Import MLX, which only a user's program does otherwise, and ask it about Metal."""
    from importlib import import_module

    sys.path[:] = folders
    try:
        mx: Any = import_module("mlx.core")
    except Exception as error:  # a stranger's module may raise anything
        raise Unfit(f"cannot be imported: {type(error).__name__}: {error}") from None
    facts: Facts = {"version": getattr(mx, "__version__", None)}
    if not mx.metal.is_available():
        raise Unfit("MLX finds no Metal device")
    ask = getattr(mx, "device_info", None) or mx.metal.device_info
    try:
        told = ask(mx.gpu)
    except TypeError:
        told = ask()  # before it took a device
    return {**facts, "name": str(told.get("device_name", ""))}


# --- libraries that compute ---------------------------------------------------------------------------------------

LARGE = 512
"""Large enough that a BLAS uses all the threads it is given."""
BLAS_NAMES = (("scipy_", ""), ("scipy_", "64_"), ("", ""), ("", "64_"))


def _blas(options: Facts) -> Facts:
    """Does what loading a BLAS does, and the first products and a factorization, on one thread and on all."""
    if options["libgomp"]:
        ctypes.CDLL(options["libgomp"], mode=os.RTLD_NOW | os.RTLD_LOCAL)
    library = ctypes.CDLL(options["path"], mode=os.RTLD_NOW | options["mode"])
    names = ((options["prefix"], options["suffix"]),) if "suffix" in options else BLAS_NAMES
    prefix, suffix = next((pair for pair in names if hasattr(library, f"{pair[0]}cblas_sgemm{pair[1]}")), names[-1])

    def function(name: str, restype: Any = None) -> Any:
        found = getattr(library, f"{prefix}{name}{suffix}")
        found.restype = restype
        return found

    for name, value in options["setup"]:
        getattr(library, name)(ctypes.c_int(value))
    integer_bytes(function(_fortran("isamax", suffix), ctypes.c_int32))
    setter = options["set threads"].format(prefix=prefix, suffix=suffix)
    for threads in dict.fromkeys((1, options["threads"])):
        if hasattr(library, setter):
            getattr(library, setter)(ctypes.c_int64(threads))
        check_products(lambda letter: function(f"cblas_{letter}gemm"), threads)
    if options["lapack"]:
        if not hasattr(library, f"{prefix}{_fortran('dpotrf', suffix)}{suffix}"):
            raise Unfit("has no LAPACK (no dpotrf_)")
        check_factor(function(_fortran("dpotrf", suffix)))
    return {}


def _fortran(name: str, suffix: str) -> str:
    return name if suffix.startswith("_") else f"{name}_"


def integer_bytes(isamax: Callable[..., int]) -> int:
    """Returns the width of a BLAS's integers: a length with rubbish in its upper half is 3 where they have 32 bits, else none."""
    x = (ctypes.c_float * 3)(1, 5, 2)
    length, one = ctypes.c_int64(3 - 2**63), ctypes.c_int64(1)
    found = isamax(ctypes.byref(length), x, ctypes.byref(one))
    if found not in (0, 2):
        raise Unfit(f"gives a strange answer to isamax ({found})")
    return 4 if found == 2 else 8


def check_products(gemm: Callable[[str], Callable[..., None]], threads: int) -> None:
    """Raises `Unfit` where a product of ones is wrong; `gemm` gives the function for a letter, which returns nothing."""
    for letter, real, kind in (("s", ctypes.c_float, "f"), ("d", ctypes.c_double, "d")):
        for n in (3, LARGE):
            ones = ctypes.create_string_buffer(struct.pack(kind, 1.0) * (n * n), n * n * ctypes.sizeof(real))
            # beta is 0: what is there must not matter
            result = ctypes.create_string_buffer(struct.pack(kind, float("nan")) * (n * n), len(ones))
            i = ctypes.c_int64
            gemm(letter)(i(101), i(111), i(111), i(n), i(n), i(n), real(1), ones, i(n), ones, i(n), real(0), result, i(n))
            if result.raw != struct.pack(kind, float(n)) * (n * n):
                raise Unfit(f"computes a wrong {letter}gemm of {n} x {n} ones on {threads} threads")


def check_factor(potrf: Callable[..., None]) -> None:
    """Raises `Unfit` where the Cholesky factor of 4 times the identity is wrong."""
    n, info = ctypes.c_int64(3), (ctypes.c_int64 * 2)(-1, -1)
    a = (ctypes.c_double * 9)(4, 0, 0, 0, 4, 0, 0, 0, 4)
    potrf(ctypes.c_char_p(b"L"), ctypes.byref(n), a, ctypes.byref(n), info, ctypes.c_size_t(1))
    if list(a) != [2, 0, 0, 0, 2, 0, 0, 0, 2]:
        raise Unfit("computes a wrong Cholesky factor")


def _own_test(options: Facts) -> Facts:
    """Has the class of a library test the file, by this installation's own code and NumPy."""
    import importlib.util

    sys.path[:0] = options["folders"]
    for name, path in options["compiled"].items():  # an editable installation keeps them apart from the package
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    libraries: Any = importlib.import_module("backline.libraries")
    try:
        facts: Facts = libraries.get(options["name"]).test(options["path"])
    except MemoryError as error:
        raise Untested(f"finds too little memory when it is tested{f': {error}' if str(error) else ''}") from None
    except (RuntimeError, ValueError) as error:
        # Threads that cannot be started and calls that fail for want of memory are RuntimeErrors, too.
        kind = Untested if isinstance(error, RuntimeError) else Unfit
        raise kind(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from None
    return facts


PROGRAMS: dict[str, Callable[[Any], Facts]] = {"blas": _blas, "library": _own_test, "mlx": lambda folders: _mlx(folders)}
"""Question -> a test that loads the library itself."""

CHECKS: dict[str, Check] = {
    "cublas": _dotted("cublasGetProperty", "cuBLAS", 12, 13),
    "cublaslt": _dotted("cublasLtGetProperty", "cuBLASLt", 12, 13),
    "cuda": _driver,
    "cuda.capabilities": _capabilities,
    "cudart": _told("cudaRuntimeGetVersion", ctypes.c_int, 1),
    "cudnn": _cudnn,
    "cufft": _dotted("cufftGetProperty", "cuFFT", 11, 12),
    "cusolver": _dotted("cusolverGetProperty", "cuSOLVER", 11, 12),
    "cusparselt": _cusparselt,
    "cusparselt.max_alg_id": _cusparselt_largest,
    "fftw": _fftw,
    "kleidiai": _kleidiai,
    "magma": _told("magma_version", ctypes.c_int, 3, checked=False),
    "miopen": _told("miopenGetVersion", ctypes.c_size_t, 3),
    "nnpack": _initialises("nnp_initialize", _NNPACK_STATUS),
    "nvrtc": _told("nvrtcVersion", ctypes.c_int, 2),
    "onednn": _onednn,
    "openmp": _openmp,
    "xnnpack": _initialises("xnn_initialize", _XNNPACK_STATUS, None),
}
"""Question -> what is asked of the loaded library. It raises `Unfit`, or returns what the library says."""


if __name__ == "__main__":
    main(*sys.argv[1:5])
