"""The libraries behind the backends: where each is looked for, what it must export, and how to get it.

One row a library; what a found file is then asked is in `probe_program`, under the same name.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..native.library_search import LibrarySpec

__all__ = ["KNOWN", "Known"]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a library before it is looked for.

    Attributes
    ----------
    title : str
        Its name as its makers write it.
    how_to_get : str
        A command, or where it comes with.
    spec : LibrarySpec
        Where its file is looked for.
    machines : tuple of str
        Processors it is for; empty for all.
    inside : tuple of str
        Files of other packages that contain it; taken only where such a package has loaded them already.
    folders : tuple of str
        Where its makers' installer puts it, looked in last.
    version_of : str
        The row whose version is this one's, if it has none of its own.
    """

    title: str
    how_to_get: str
    spec: LibrarySpec
    machines: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    version_of: str = ""


_ROCM = ("/opt/rocm/lib",)


def _row(
    name: str,
    title: str,
    how_to_get: str,
    files: tuple[str, ...],
    needs: tuple[str, ...] = (),
    *,
    wheels: tuple[tuple[str, str], ...] = (),
    prefix: bool = True,
    machines: tuple[str, ...] = (),
    inside: tuple[str, ...] = (),
    folders: tuple[str, ...] = (),
    version_of: str = "",
    newest: bool = False,
) -> tuple[str, Known]:
    spec = LibrarySpec(
        name, f"BACKLINE_{name.upper()}_LIBRARY", wheels, files if prefix else (), files, needs=needs, reuse_mapped=True,
        newest=newest,
    )  # fmt: skip
    return name, Known(title, how_to_get, spec, machines, inside, folders, version_of)


def _cuda(name: str, title: str, stem: str, versions: tuple[int, ...], needs: tuple[str, ...], wheel: str) -> tuple[str, Known]:
    """A library of the CUDA toolkit: wheels keep it in a folder of `nvidia`, the toolkit's installer in /usr/local/cuda."""
    files = tuple(f"lib{stem}.so.{version}" for version in versions)
    return _row(
        name, title, f"pip install {wheel}", files, needs, wheels=tuple(("nvidia", f"*/lib/{file}") for file in files),
        folders=("/usr/local/cuda/lib64",),
    )  # fmt: skip


KNOWN: dict[str, Known] = dict(
    (
        _row("cuda", "the CUDA driver", "install NVIDIA's driver for the GPU", ("libcuda.so.1",),
             ("cuInit", "cuDeviceGetCount"), prefix=False, folders=("/usr/lib/wsl/lib",), version_of="cudart"),
        _cuda("cudart", "the CUDA runtime", "cudart", (13, 12), ("cudaRuntimeGetVersion",), "nvidia-cuda-runtime"),
        _cuda("nvrtc", "CUDA's run-time compiler", "nvrtc", (13, 12), ("nvrtcVersion",), "nvidia-cuda-nvrtc"),
        _cuda("cublas", "cuBLAS", "cublas", (13, 12), ("cublasGetProperty",), "nvidia-cublas"),
        _cuda("cublaslt", "cuBLASLt", "cublasLt", (13, 12), ("cublasLtGetProperty",), "nvidia-cublas"),
        _cuda("cusolver", "cuSOLVER", "cusolver", (12, 11), ("cusolverGetProperty",), "nvidia-cusolver"),
        _cuda("cufft", "cuFFT", "cufft", (12, 11), ("cufftGetProperty",), "nvidia-cufft"),
        _cuda("cudnn", "cuDNN", "cudnn", (9,), ("cudnnGetVersion",), "nvidia-cudnn-cu13"),
        _cuda("cusparselt", "cuSPARSELt", "cusparseLt", (0,), ("cusparseLtGetProperty",), "nvidia-cusparselt-cu13"),
        _row("magma", "MAGMA", "a build of MAGMA for CUDA, such as conda-forge's package libmagma",
             ("libmagma.so.2", "libmagma.so"), ("magma_init", "magma_version")),
        _row("miopen", "MIOpen", "it comes with AMD's ROCm", ("libMIOpen.so.1", "libMIOpen.so"), ("miopenGetVersion",),
             folders=_ROCM),
        _row("composable_kernel", "the Composable Kernel library", "it comes with AMD's ROCm",
             ("libdevice_gemm_operations.so.1", "libdevice_gemm_operations.so"), folders=_ROCM),
        _row("aotriton", "AOTriton", "it comes with AMD's ROCm", ("libaotriton_v2.so",), folders=_ROCM),
        _row("mkldnn", "oneDNN 3", "pip install onednn-cpu-gomp", ("libdnnl.so.3",), ("dnnl_version", "dnnl_engine_get_count"),
             wheels=(("paddle", "libs/libdnnl.so.3"),), newest=True),
        _row("nnpack", "NNPACK", "a build of NNPACK; PyTorch contains one, which is used while PyTorch is imported",
             ("libnnpack.so.0", "libnnpack.so"), ("nnp_initialize",), inside=("libtorch_cpu.so",)),
        _row("xnnpack", "XNNPACK", "on Debian: apt install libxnnpack0", ("libXNNPACK.so.0", "libXNNPACK.so"),
             ("xnn_initialize",)),
        _row("kleidiai", "KleidiAI", "a build of KleidiAI as a shared library", ("libkleidiai.so",),
             ("kai_run_lhs_quant_pack_qai8dxp_f32",), machines=("aarch64", "arm64")),
        _row("fftw", "FFTW", "on Debian: apt install libfftw3-single3 libfftw3-double3",
             ("libfftw3.so.3", "libfftw3f.so.3", "libfftw3.so", "libfftw3f.so"),
             ("fftw_plan_guru64_dft|fftwf_plan_guru64_dft", "fftw_execute_dft|fftwf_execute_dft")),
        _row("openmp", "an OpenMP runtime", "on Debian: apt install libgomp1",
             ("libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so", "libomp.dylib"), ("omp_get_max_threads",)),
    )
)  # fmt: skip
"""Every library that has a row, by the name of its backend."""
