"""The registry of libraries: one row for each, with all that is known of it before its code is imported.

From a row follow the search for its file, its availability, how its file is recognised in a process, its place among the
candidates, its module in `backends`, its lines in `info` and on the status page. A row without an `implementation` is a library
that is recognised or looked for, and that runs no calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..records import Record

if TYPE_CHECKING:
    from ..native.library_search import LibrarySpec
    from ..switches import Switch

__all__ = ["ROWS", "LibraryInfo", "add", "changed", "changes", "enabling_switch", "find", "implemented_by", "remove", "rows"]


class LibraryInfo(Record):
    """The row of one library.

    Attributes
    ----------
    name
        Its name, in ``prefer``, ``only``, `info` and tuning files; of a part of a larger library "mkl.core".
    title
        Its name as its makers write it.
    implementation
        The class that runs calls on it, "package.module:Class"; empty for a library that runs none.
    backend
        Its module in `backends`; empty for none.
    switch
        The switch that allows it; empty for none.
    families
        Operation families that it may have something for; empty for any.
    devices
        Kinds of device whose arrays it takes.
    kernels
        Attention kernels that it has, in lower case: "math", "flash_attention".
    engines
        Engines of ``quantized.engine`` whose operations it has.
    openmp
        Whether its threads are those of an OpenMP runtime.
    caches
        Caches of plans that its module in `backends` shows: "plan_cache", "fft_plan_cache".
    returned
        Switches whose old values ``set_flags`` of that module returns; all where empty.
    install
        How a user gets it: a command, or where it comes with.
    about
        First sentences of the documentation of its module in `backends`.
    seen_running
        What of it has been run, where that is less than the whole library on the device it is for; empty otherwise.
    files
        File names in the system's folders, best first.
    prefix_files
        Patterns of file names in the environment's ``lib`` folder; `files` unless given.
    wheels
        Folders in site-packages, each with a pattern below it.
    subfolders
        Subfolders of the system's folders, looked in before the folders themselves.
    folders
        Where its makers' installer puts it, looked in last.
    inside
        Files of other packages that contain it; used where such a package has loaded them already.
    needs
        Functions that its file must export; "a|b" is met by either.
    machines
        Processors that it is for; empty for all.
    reuse_mapped
        Whether a copy that this process has loaded is used rather than a second one.
    newest
        Whether the newest of several files is used, by the version in its name.
    version_of
        The row whose version is this one's, where it has none of its own.
    kind
        Its kind in the list of a process's libraries: "blas", "fft", "nn", "openmp", "threads", "cuda".
    patterns
        Shell patterns of file names by which it is recognised in a process; empty where it is not.
    markers
        Functions that only this library exports; any one of them is proof. Empty: the file's name decides.
    distribution
        The package that puts its file into the environment's ``lib`` folder.
    shown_as
        Its name in the list of a process's libraries.
    switches
        Its switches beside the one that allows it, for a library that is added to those of Backline.

    Examples
    --------
    >>> find("fftw").families, find("mkldnn").name, find("cublas").backend
    (('fft',), 'onednn', '')
    """

    name: str
    title: str = "{name}"
    implementation: str = ""
    backend: str = "{name}"
    switch: str = "{backend}.enabled"
    families: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    kernels: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    openmp: bool = False
    caches: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    install: str = ""
    about: str = "{title}."
    seen_running: str = ""
    # where its file is looked for
    files: tuple[str, ...] = ()
    prefix_files: tuple[str, ...] | None = None
    wheels: tuple[tuple[str, str], ...] = ()
    subfolders: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    reuse_mapped: bool = True
    newest: bool = False
    version_of: str = ""
    # how it is recognised in a process
    kind: str = ""
    patterns: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    distribution: str = ""
    shown_as: str = "{name}"
    switches: tuple[Switch, ...] = ()

    def __post_init__(self) -> None:
        for field in ("title", "backend", "switch", "about", "shown_as"):  # in this order: defaults name earlier fields
            text = getattr(self, field)
            if "{" in text:
                vars(self)[field] = text.format(name=self.name, title=self.title, backend=self.backend or self.name)

    @property
    def loads_file(self) -> bool:
        """True where its file has to be loaded before it lists algorithms; CUDA's libraries are loaded by their bindings."""
        return bool(self.files) and self.devices == ("cpu",)

    @property
    def variable(self) -> str:
        """The environment variable that names its file."""
        return f"BACKLINE_{(self.backend or self.name).upper()}_LIBRARY"

    @cached_property
    def spec(self) -> LibrarySpec:
        """The description of its file for the search."""
        from ..native.library_search import LibrarySpec  # importing backline searches nothing

        return LibrarySpec(
            self.backend or self.name, self.variable, self.wheels,
            self.files if self.prefix_files is None else self.prefix_files, self.files, self.subfolders, self.needs,
            self.reuse_mapped, self.newest,
        )  # fmt: skip


_CUDA13 = "pip install 'backline[cuda13]'"
_SEEN = (
    "by hand, the rows of `make gpu-check` about it on an H100; in CI its decisions, and its calls against the signatures of the "
    "real bindings, with NumPy in place of the GPU"
)
_ROCM: dict[str, Any] = {"backend": "", "install": "it comes with AMD's ROCm", "folders": ("/opt/rocm/lib",)}


def _nvidia(
    name: str, title: str, stem: str, versions: tuple[int, ...], needs: tuple[str, ...] = (), **more: Any
) -> LibraryInfo:
    """Returns the row of a library of CUDA: wheels keep it in a folder of `nvidia`, the toolkit in /usr/local/cuda."""
    files = tuple(f"lib{stem}.so.{version}" for version in versions)
    defaults = {
        "backend": "", "switch": "", "devices": ("cuda",), "install": _CUDA13,
        "wheels": tuple(("nvidia", f"*/lib/{file}") for file in files),
        "folders": ("/usr/local/cuda/lib64",), "kind": "cuda", "patterns": (f"lib{stem}.so*",),
        "seen_running": _SEEN if "implementation" in more else "",
    }  # fmt: skip
    return LibraryInfo(name, title, files=files, needs=needs, **{**defaults, **more})


def _recognised(name: str, kind: str, *patterns: str, markers: tuple[str, ...] = (), distribution: str = "") -> LibraryInfo:
    """Returns the row of a library that other packages bring, listed where it is in the process."""
    return LibraryInfo(name, backend="", switch="", kind=kind, patterns=patterns, markers=markers, distribution=distribution)


def _mkl_part(part: str, *stems: str) -> LibraryInfo:
    return _recognised(f"mkl.{part}", "blas", *(f"lib{stem}.so*" for stem in stems), distribution="mkl")


ROWS: tuple[LibraryInfo, ...] = (
    # In the order in which candidates are listed.
    LibraryInfo(
        "mkl", "MKL", "backline.libraries.mkl.library:MKL", kernels=("flash_attention", "math"),
        install="pip install 'backline[mkl]'", files=("libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so"),
        prefix_files=("libmkl_rt.so*",), needs=("MKL_Set_Num_Threads_Local", "cblas_sgemm"),
        kind="blas", patterns=("libmkl_rt.so*", "libmkl_rt-*.so*"), markers=("MKL_Get_Version_String",), distribution="mkl",
    ),
    LibraryInfo(
        "openblas", "OpenBLAS", "backline.libraries.openblas.library:OpenBLAS", kernels=("flash_attention", "math"),
        caches=("plan_cache",), install="pip install scipy-openblas32",
        about="OpenBLAS, loaded directly: free, fast, and installed with backline.\n\n"
        "The copy inside NumPy is another one; NumPy's routines use that whatever is set here.",
        files=("libopenblas.so.0", "libopenblas.so"), prefix_files=(),
        wheels=(("scipy_openblas32", "lib/libscipy_openblas*.so"), ("scipy_openblas64", "lib/libscipy_openblas*.so"),
                ("numpy.libs", "libscipy_openblas*.so")),
        subfolders=("openblas-openmp", "openblas-pthread"),
        needs=("scipy_cblas_sgemm|scipy_cblas_sgemm64_|cblas_sgemm|cblas_sgemm64_",), reuse_mapped=False,
        kind="blas", patterns=("lib*openblas*.so*",), distribution="scipy-openblas32",
        markers=("openblas_get_config", "scipy_openblas_get_config", "openblas_get_config64_", "scipy_openblas_get_config64_"),
    ),
    LibraryInfo(
        "blis", "BLIS", "backline.libraries.blis.library:BLIS", caches=("plan_cache",),
        install="on Debian: apt install libblis4-openmp",
        about="BLIS: matrix products, from the system's own package.\n\nIt has no linear algebra beyond the products.",
        files=("libblis.so.4", "libblis.so.5"), prefix_files=(), subfolders=("blis-openmp", "blis-pthread"),
        needs=("cblas_sgemm", "bli_thread_set_num_threads"),
        kind="blas", patterns=("libblis*.so*",), markers=("bli_info_get_version_str",),
    ),
    LibraryInfo(
        "onednn", "oneDNN", "backline.libraries.onednn.library:OneDNN", backend="mkldnn",
        families=("matmul", "conv", "neural", "rnn", "quantized"), engines=("x86", "onednn", "fbgemm", "qnnpack"), openmp=True,
        install="pip install onednn-cpu-gomp", files=("libdnnl.so.3",), wheels=(("paddle", "libs/libdnnl.so.3"),),
        needs=("dnnl_version", "dnnl_engine_get_count"), newest=True,
        kind="nn", patterns=("libdnnl*.so*", "libmkldnn*.so*"), markers=("dnnl_version",), distribution="onednn",
    ),
    LibraryInfo(
        "xnnpack", "XNNPACK", "backline.libraries.xnnpack.library:XNNPACK", families=("matmul", "conv"),
        install="on Debian: apt install libxnnpack0",
        about="XNNPACK: linear layers and convolution on the CPU, in float32.\n\n"
        "``enabled`` reads False while the library is absent, and cannot be set to True then.",
        files=("libXNNPACK.so.0", "libXNNPACK.so"), needs=("xnn_initialize",),
        kind="nn", patterns=("libXNNPACK*.so*",), markers=("xnn_initialize",),
    ),
    LibraryInfo(
        "nnpack", "NNPACK", "backline.libraries.nnpack.library:NNPACK", families=("conv",),
        install="a build of NNPACK; PyTorch contains one, which is used while PyTorch is imported",
        about="NNPACK: convolution on the CPU by Winograd and FFT.",
        seen_running="a stand-in compiled in the tests; by hand, the copy inside PyTorch",
        files=("libnnpack.so.0", "libnnpack.so"), inside=("libtorch_cpu.so",), needs=("nnp_initialize",),
        kind="nn", patterns=("libnnpack*.so*",), markers=("nnp_initialize",),
    ),
    LibraryInfo(
        "libmvec", "libmvec", "backline.libraries.libmvec.library:Libmvec", families=("neural",),
        install="part of the GNU C library 2.22 and newer on x86-64",
        about="libmvec: elementary functions on the CPU, by the vectors of the GNU C library.",
        files=("libmvec.so.1",), prefix_files=(), needs=("_ZGVbN2v_sin",), machines=("x86_64", "amd64"),
    ),
    LibraryInfo(
        "python_native", "Python kernels", "backline.libraries.python_kernels:PythonKernels", switch="",
        devices=("cpu", "cuda", "mps"),
    ),
    LibraryInfo(
        "fftw", "FFTW", "backline.libraries.fftw.library:FFTW", families=("fft",), openmp=True,
        install="on Debian: apt install libfftw3-single3 libfftw3-double3",
        files=("libfftw3.so.3", "libfftw3f.so.3", "libfftw3.so", "libfftw3f.so"),
        needs=("fftw_plan_guru64_dft|fftwf_plan_guru64_dft", "fftw_execute_dft|fftwf_execute_dft"),
        kind="fft", patterns=("libfftw3*.so*",),
        markers=("fftw_version", "fftwf_version", "fftwl_version", "fftw_init_threads", "fftwf_init_threads",
                 "fftwl_init_threads"),
    ),
    LibraryInfo(
        "scipy", "SciPy", "backline.libraries.scipy.library:SciPy", families=("fft",), caches=("fft_plan_cache",),
        install="pip install scipy",
        about="SciPy's own Fourier transforms: DUCC or pocketfft, as its release has it.\n\n"
        "The module is not SciPy; it only holds what a user may set about it.",
    ),
    LibraryInfo(
        "kernels", "Backline's kernel library", "backline.libraries.kernels.library:Kernels",
        families=("matmul", "conv", "fft", "neural", "attention", "linalg", "einsum", "quantized"),
        engines=("x86", "onednn", "fbgemm", "qnnpack"), caches=("plan_cache", "fft_plan_cache"),
        about="Backline's own compiled loops, for what no vendor library has: always there.\n\n"
        "Turning it off leaves these operations to the other libraries, NumPy among them.",
    ),
    LibraryInfo(
        "numpy", "NumPy", "backline.libraries.numpy.library:NumPy", kernels=("math",),
        engines=("reference", "fbgemm", "qnnpack"), caches=("plan_cache", "fft_plan_cache"),
        about="NumPy's own routines: the library that is always there, and the reference for the others.\n\n"
        "Turning it off leaves calls that no other library can run without one; they raise ``NoKernel``.",
    ),
    _nvidia(
        "cudnn", "cuDNN", "cudnn", (9,), ("cudnnGetVersion",), implementation="backline.libraries.cuda.cudnn.library:CuDNN",
        backend="cudnn", switch="cudnn.enabled", families=("conv", "attention", "rnn"), kernels=("cudnn_attention",),
        install="pip install 'backline[cudnn]'", patterns=("libcudnn*.so*",),
        seen_running="by hand, the rows of `make gpu-check` about 9.19 on an H100, and the plans that 9.28 lists without a "
        "device (`make test-cudnn`); not packed sequences, which need 9.25; in CI its decisions, its graphs as recorded calls, "
        "and its recurrent networks as a stand-in compiled in the tests",
    ),
    _nvidia(
        "cublas", "cuBLAS", "cublas", (13, 12), ("cublasGetProperty",),
        implementation="backline.libraries.cuda.cublas.library:CuBLAS", families=("matmul", "conv", "quantized"),
    ),
    _nvidia(
        "cublaslt", "cuBLASLt", "cublasLt", (13, 12), ("cublasLtGetProperty",),
        implementation="backline.libraries.cuda.cublaslt.library:CuBLASLt", families=("matmul", "quantized"),
    ),
    _nvidia(
        "cufft", "cuFFT", "cufft", (12, 11), ("cufftGetProperty",),
        implementation="backline.libraries.cuda.cufft.library:CuFFT", families=("fft",),
    ),
    _nvidia(
        "cusparselt", "cuSPARSELt", "cusparseLt", (0,), ("cusparseLtGetProperty",),
        implementation="backline.libraries.cuda.cusparselt.library:CuSPARSELt", families=("sparse",), backend="cusparselt",
        switch="cusparselt.enabled", install="pip install 'backline[sparse]'",
    ),
    LibraryInfo(
        "emulated", "Emulated", "backline.libraries.emulated.library:Emulated", backend="", switch="emulate",
        families=("matmul",),
    ),
    _nvidia(
        "cusolver", "cuSOLVER", "cusolver", (12, 11), ("cusolverGetProperty",),
        implementation="backline.libraries.cuda.cusolver.library:CuSOLVER", families=("linalg",),
    ),
    LibraryInfo(
        "triton", "attention kernels in Triton", "backline.libraries.cuda.attention.library:Triton", backend="",
        switch="python_native.triton.enabled", families=("attention",), devices=("cuda",),
        kernels=("flash_attention", "efficient_attention"), install="pip install triton",
        seen_running="by hand, the rows of `make gpu-check` about it on an H100; the kernels in Triton's interpreter, and "
        "compiled for sm_80, sm_90 and sm_100 (`make test-triton`); in CI its decisions and launches as recorded calls",
    ),
    LibraryInfo(
        "magma", "MAGMA", "backline.libraries.cuda.magma.library:MAGMA", backend="", switch="", families=("linalg",),
        devices=("cuda",), install="a build of MAGMA for CUDA, such as conda-forge's package libmagma",
        seen_running="a stand-in compiled in the tests; no MAGMA", files=("libmagma.so.2", "libmagma.so"),
        needs=("magma_init", "magma_version"), kind="cuda", patterns=("libmagma.so*",),
    ),
    LibraryInfo(
        "cupy", "CuPy", "backline.libraries.cuda.cupy.library:CuPy", backend="", switch="",
        families=("neural", "einsum", "attention", "rnn", "quantized"), devices=("cuda",), kernels=("math",), install=_CUDA13,
        seen_running="by hand, the rows of `make gpu-check` about it on an H100, and the kernels compiled by g++ for the CPU "
        "(`make test-cupy`); in CI its formulas with NumPy in CuPy's place",
    ),
    LibraryInfo(
        "mlx", "MLX", "backline.libraries.mlx.library:MLX", backend="", switch="", devices=("mps",),
        install="pip install mlx on a Mac, pip install 'mlx[cpu]' on Linux",
        seen_running="on MLX's own CPU under Linux; nothing on Metal",
    ),

    # Looked for, but no calls run on these.
    _nvidia(
        "cuda", "the CUDA driver", "cuda", (1,), ("cuInit", "cuDeviceGetCount"), backend="cuda", wheels=(), prefix_files=(),
        install="install NVIDIA's driver for the GPU", folders=("/usr/lib/wsl/lib",), version_of="cudart", shown_as="cuda driver",
    ),
    _nvidia("cudart", "the CUDA runtime", "cudart", (13, 12), ("cudaRuntimeGetVersion",)),
    _nvidia("nvrtc", "CUDA's run-time compiler", "nvrtc", (13, 12), ("nvrtcVersion",)),
    LibraryInfo(
        "miopen", "MIOpen", families=("conv", "rnn"), devices=("rocm",), returned=("immediate",),
        **{**_ROCM, "backend": "miopen"}, about="MIOpen: convolution and recurrent networks on AMD's GPUs.",
        files=("libMIOpen.so.1", "libMIOpen.so"), needs=("miopenGetVersion",),
    ),
    LibraryInfo(
        "composable_kernel", "the Composable Kernel library", devices=("rocm",), **_ROCM,
        files=("libdevice_gemm_operations.so.1", "libdevice_gemm_operations.so"),
    ),
    LibraryInfo("aotriton", "AOTriton", devices=("rocm",), files=("libaotriton_v2.so",), **_ROCM),
    LibraryInfo(
        "kleidiai", "KleidiAI", families=("matmul",), install="a build of KleidiAI as a shared library",
        about="KleidiAI: matrix products on Arm processors.", files=("libkleidiai.so",),
        needs=("kai_run_lhs_quant_pack_qai8dxp_f32",), machines=("aarch64", "arm64"),
    ),
    LibraryInfo(
        "openmp", "an OpenMP runtime", install="on Debian: apt install libgomp1",
        files=("libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so", "libomp.dylib"), needs=("omp_get_max_threads",),
    ),
    LibraryInfo("mps", "MLX with a Metal device", devices=("mps",), install="pip install mlx, on a Mac with Apple silicon",
                version_of="mlx"),
    LibraryInfo("opt_einsum", "opt_einsum", install="pip install opt_einsum"),

    # Recognised where they are in the process.
    _mkl_part("core", "mkl_core"),
    _mkl_part("intel_thread", "mkl_intel_thread"),
    _mkl_part("gnu_thread", "mkl_gnu_thread"),
    _mkl_part("tbb_thread", "mkl_tbb_thread"),
    _mkl_part("sequential", "mkl_sequential"),
    _mkl_part("interface", "mkl_intel_lp64", "mkl_intel_ilp64", "mkl_gf_lp64", "mkl_gf_ilp64"),
    _mkl_part("kernels", "mkl_def", "mkl_mc3", "mkl_avx*", "mkl_vml_*"),
    _recognised("flexiblas", "blas", "libflexiblas*.so*", markers=("flexiblas_get_version",)),
    _recognised("atlas", "blas", "libatlas*.so*", "libsatlas*.so*", "libtatlas*.so*", markers=("ATL_buildinfo",)),
    _recognised("armpl", "blas", "libarmpl*.so*", markers=("armplversion",)),
    _recognised("nvpl", "blas", "libnvpl_blas*.so*", "libnvpl_lapack*.so*"),
    _recognised("blas", "blas", "libblas.so*", "libcblas.so*", "liblapack.so*", "liblapacke.so*"),
    _recognised("libgomp", "openmp", "libgomp.so*", "libgomp-*.so*", markers=("GOACC_parallel_keyed", "GOACC_parallel")),
    _recognised("libiomp5", "openmp", "libiomp5*.so*", distribution="intel-openmp"),
    _recognised("libomp", "openmp", "libomp.so*", "libomp-*.so*", "libomp5*.so*", markers=("__kmpc_fork_call",)),
    _recognised("cusparse", "cuda", "libcusparse.so*"),
    _recognised("tbb", "threads", "libtbb.so*", "libtbb-*.so*", markers=("TBB_runtime_interface_version",), distribution="tbb"),
    _recognised("pthreadpool", "threads", "libpthreadpool.so*", markers=("pthreadpool_create",)),
)  # fmt: skip
"""The libraries that Backline knows."""

_rows: dict[str, LibraryInfo] = {row.name: row for row in ROWS}
_shipped = dict(_rows)
_changes = 0


def rows() -> Iterator[LibraryInfo]:
    """Yields every row: those of Backline, then those that were added."""
    yield from tuple(_rows.values())


def find(name: str) -> LibraryInfo | None:
    """Returns the row of a library, by its name or by that of its module in `backends`; None where there is none."""
    row = _rows.get(name)
    return row if row is not None else next((row for row in tuple(_rows.values()) if name and row.backend == name), None)


def changes() -> int:
    """Returns how often a library was registered or unregistered; what was derived from the libraries before is out of date.

    >>> changes() >= 0
    True
    """
    return _changes


def changed() -> None:
    """Counts one more time."""
    global _changes
    _changes += 1


def add(row: LibraryInfo) -> None:
    """Adds a row at the end, or replaces the one with its name."""
    _rows[row.name] = row


def remove(name: str) -> None:
    """Undoes `add`: a row of Backline gets its place back."""
    if name in _shipped:
        _rows[name] = _shipped[name]
    else:
        _rows.pop(name, None)


def implemented_by(reference: str) -> LibraryInfo | None:
    """Returns the row whose implementation is a class, given as "package.module:Class"; None for any other class."""
    return next((row for row in tuple(_rows.values()) if row.implementation == reference), None)


def enabling_switch(row: LibraryInfo) -> Switch:
    """Returns the switch that allows a library."""
    from ..switches.switch import FAMILIES, Switch

    return Switch(row.switch, bool, True, None, f"{row.title} may run calls.", row.families or FAMILIES, library=row.name)
