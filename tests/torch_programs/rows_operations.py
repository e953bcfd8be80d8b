"""Differences of names, of operations, and of the process around them."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from differences import difference, in_torch

import backline
from backline import backends, errors, fft
from backline.backends import cudnn
from backline.nn import functional
from support import BFLOAT16, python


@difference(
    "Names", "import lines",
    torch="`import torch.backends.cudnn as cudnn`, `mock.patch(\"torch.backends.mps.is_available\")`.",
    backline="`import backline.backends.cudnn as cudnn`, `mock.patch(\"backline.backends.mps.is_available\")`; `import backline as torch` covers lines "
    "that begin with `torch.`.",
    why="The module torch stays PyTorch's: both can be in one program.",
    remedy="The import lines, and names that are given as text.",
)  # fmt: skip
def imports() -> None:
    done = python("""
        import sys
        import backline as torch
        import backline.backends.opt_einsum
        from backline.backends import cudnn
        torch.backends.cudnn.benchmark = True
        assert cudnn.benchmark and "torch" not in sys.modules
    """)
    assert done.returncode == 0, done.stderr


@difference(
    "Names", "tensors, devices, autograd and modules",
    torch="`torch.tensor`, `torch.device`, `torch.nn.Module`, `backward()`.",
    backline="Not there: AttributeError. Operations take arrays of NumPy, CuPy, MLX, JAX and PyTorch, which carry their device; gradients are functions (`nn.grad`).",
    why="Backline is `torch.backends` and the operations it governs, without a framework.",
    remedy="`torch.tensor`: operations take tensors that need no gradient; `torch.ops.backline` has those that record one.",
)  # fmt: skip
def tensors() -> None:
    for name in ("tensor", "Tensor", "device", "float32", "no_grad", "compile"):
        assert not hasattr(backline, name), name
    with pytest.raises(AttributeError):
        _ = backline.tensor  # type: ignore[attr-defined]  # not there, on purpose


@difference(
    "Names", "`torch.cuda`",
    torch="Devices, streams, memory, generators.",
    backline="`is_available`, `device_count`, `manual_seed` and `manual_seed_all`, which programs call before they set switches; the seeds "
    "are those of `backline.manual_seed`.",
    why="The rest is CuPy's, whose arrays the operations take.",
    remedy="`cupy.cuda.Device(0)`, `cupy.cuda.Stream()`.",
)  # fmt: skip
def cuda_names() -> None:
    from backline import cuda

    assert sorted(cuda.__all__) == ["device_count", "is_available", "manual_seed", "manual_seed_all"]
    assert cuda.is_available() is backends.cuda.is_available()


@difference(
    "Names", "dtypes",
    torch="`torch.float32`; `cudnn.CUDNN_TENSOR_DTYPES` without bfloat16.",
    backline="NumPy's dtypes, and bfloat16 of ml_dtypes, which `CUDNN_TENSOR_DTYPES` has too.",
    why="Arrays have them; cuDNN takes bfloat16.",
    remedy="`np.float32`, `ml_dtypes.bfloat16`.",
)  # fmt: skip
def dtypes() -> None:
    assert {np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64), BFLOAT16} == {*cudnn.CUDNN_TENSOR_DTYPES}


@in_torch(dtypes)
def _(torch: Any) -> None:
    assert torch.bfloat16 not in torch.backends.cudnn.CUDNN_TENSOR_DTYPES


@difference(
    "Names", "modules can be pickled",
    torch="`pickle.dumps(torch.backends.cudnn)` raises; `dir()` hides the switches.",
    backline="Modules pickle by name and survive a reload; `dir()` lists the switches.",
    why="Work that is sent to another process may hold them.",
    remedy="Nothing.",
)  # fmt: skip
def modules() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(cudnn)) is cudnn and "benchmark" in dir(cudnn)


@in_torch(modules)
def _(torch: Any) -> None:
    import pickle

    with pytest.raises(TypeError):
        pickle.dumps(torch.backends.cudnn)
    assert "benchmark" not in dir(torch.backends.cudnn)


@difference(
    "Operations", "dropout without a seed",
    torch="Draws from a generator that the system seeds.",
    backline="Refused, unless `seed=` is given or `manual_seed` has been called. The numbers are NumPy's (PCG64), not torch's.",
    why="Results can always be repeated.",
    remedy="`backline.manual_seed(0)`, or `dropout(x, seed=0)`.",
)  # fmt: skip
def dropout() -> None:
    x = np.ones(100)
    with pytest.raises(errors.BadValue, match="manual_seed"):
        functional.dropout(x)
    backline.manual_seed(0)
    assert np.array_equal(functional.dropout(x), 2 * (np.random.default_rng(0).random(100) >= 0.5))


@difference(
    "Operations", "integers become float64",
    torch="`fft.rfft` of integers gives complex64, of `torch.get_default_dtype()`.",
    backline="complex128.",
    why="As everywhere in NumPy; there is no default dtype.",
    remedy="`x.astype(np.float32)`.",
)  # fmt: skip
def integers() -> None:
    assert fft.rfft(np.arange(4)).dtype == np.complex128


@in_torch(integers)
def _(torch: Any) -> None:
    assert torch.fft.rfft(torch.arange(4)).dtype is torch.complex64


@difference(
    "Operations", "16-bit floats and bools in more operations",
    torch="`fft.fft` of float16 and `matmul` of bools are refused on the CPU.",
    backline="float16 and bfloat16 are transformed in float32; a product of bools is one of bools, as in NumPy.",
    why="There is one right answer.",
    remedy="Nothing.",
)  # fmt: skip
def narrow() -> None:
    assert fft.fft(np.ones(4, np.float16)).dtype == np.complex64
    assert backline.matmul(np.ones((2, 2), bool), np.eye(2, dtype=bool)).dtype == bool


@in_torch(narrow)
def _(torch: Any) -> None:
    with pytest.raises(RuntimeError):
        torch.fft.fft(torch.ones(4, dtype=torch.float16))
    with pytest.raises(RuntimeError):
        torch.matmul(torch.ones(2, 2, dtype=torch.bool), torch.ones(2, 2, dtype=torch.bool))


@difference(
    "Operations", "results that are not unique",
    torch="Signs of singular vectors, eigenvectors and columns of Q, and the order of eigenvalues, are those of its LAPACK.",
    backline="Those of the library that runs, which may be another one.",
    why="Every library is right.",
    remedy="Compare products or absolute values; `backline.use(\"mkl\", only=True)` for the library of torch's binaries.",
)  # fmt: skip
def unique() -> None:
    a = np.random.default_rng(0).standard_normal((5, 3))
    for name in backline.explain(backline.linalg.svd, a).library, "numpy":
        with backline.use(name, only=True):
            u, s, vh = backline.linalg.svd(a, full_matrices=False)
        assert np.allclose((u * s) @ vh, a)


@difference(
    "Operations", "arguments of our own",
    torch="Without counterpart.",
    backline="`dropout(seed=)`, `scaled_dot_product_attention(seed=, return_lse=)`, `linear(activation=)`, `use_deterministic_algorithms(level=)`: by keyword alone.",
    why="What a library can do in the same call, a caller can ask for.",
    remedy="Leave them out where a program is to run on both.",
)  # fmt: skip
def arguments() -> None:
    attend = functional.scaled_dot_product_attention
    for function, name in ((functional.dropout, "seed"), (attend, "seed"), (attend, "return_lse"), (functional.linear, "activation")):
        parameter = inspect.signature(function).parameters[name]
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, name
    with backends.flags():
        backline.use_deterministic_algorithms(True, level="threads")


@difference(
    "Operations", "pools of arrays without elements",
    torch="`max_pool1d` of shape (0, 10) and `max_pool3d` of shape (0, 1, 2, 10) are refused.",
    backline="The result has no elements either.",
    why="Any number of channels is one, as any number of images.",
    remedy="Nothing.",
)  # fmt: skip
def empty_pools() -> None:
    assert functional.max_pool1d(np.ones((0, 10)), 2).shape == (0, 5)


@in_torch(empty_pools)
def _(torch: Any) -> None:
    with pytest.raises(RuntimeError):
        torch.nn.functional.max_pool1d(torch.ones(0, 10), 2)


@difference(
    "Operations", "determinism",
    torch="`use_deterministic_algorithms(True)` needs CUBLAS_WORKSPACE_CONFIG for cuBLAS, and says nothing of thread counts.",
    backline="No variable is needed; `level=\"threads\"` promises the same bits for any number of threads, and what nothing conforms to raises.",
    why="Summing in another order with more threads is the commonest reason for other bits.",
    remedy="Nothing.",
)  # fmt: skip
def determinism() -> None:
    a = np.random.default_rng(0).standard_normal((200, 300))
    results = []
    for threads in (1, 2):
        with backline.num_threads(threads), backends.flags(deterministic=True, determinism_level="threads"):
            results.append(backline.matmul(a, a.T))
    assert np.array_equal(*results)


@difference(
    "Environment", "torch's variables",
    torch="TORCH_CUDNN_V8_API_DISABLED, TORCH_CUDNN_SDPA_DEPRIORITIZED, TORCH_MKLDNN_ADDMM_MIN_DIM, PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK and others.",
    backline="Not read. Read are those that start a switch (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, TORCH_LINALG_PREFER_CUSOLVER, "
    "ATEN_CPU_CAPABILITY, OMP_NUM_THREADS ...) and `BACKLINE_` with the name of any switch, which comes first. A bad value warns and is ignored.",
    why="The others steer code that is not here.",
    remedy="`backline switches` lists the variables of each switch.",
)  # fmt: skip
def variables() -> None:
    program = """
        from backline import backends
        assert backends.cuda.matmul.allow_tf32 and not backends.cudnn.enabled
    """
    done = python(program, env={"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "BACKLINE_CUDNN_ENABLED": "0"})
    assert done.returncode == 0, done.stderr


@difference(
    "Environment", "import",
    torch="`import torch` loads its libraries and starts with the settings of its build.",
    backline="`import backline` loads NumPy and no numerical library; the first operation loads what it needs. `backends.xnnpack`, `.opt_einsum` and "
    "`.xeon` need no import of their own.",
    why="A program pays for what it uses.",
    remedy="Nothing.",
)  # fmt: skip
def importing() -> None:
    done = python("""
        import sys
        import backline
        assert "scipy" not in sys.modules and "opt_einsum" not in sys.modules
        assert backline.backends.xnnpack.enabled in (True, False) and backline.backends.xeon.run_cpu
    """)
    assert done.returncode == 0, done.stderr


@difference(
    "Environment", "the launcher's exit status",
    torch="`torch.backends.xeon.run_cpu` ends with 0 when an instance failed; cpusets, blank and multi-digit NUMA columns are read wrongly.",
    backline="It ends with the status of the first instance that failed, and binds to the CPUs that the process may use ([launcher](launcher.md)).",
    why="A failure must be seen by what started it.",
    remedy="Nothing.",
)  # fmt: skip
def launcher() -> None:
    import sys

    if sys.platform != "linux":
        return
    done = python(
        """
        import subprocess, sys
        words = ["-m", "backline.backends.xeon.run_cpu", "--disable-numactl", "--disable-taskset", "--no-python", "false"]
        sys.exit(subprocess.run([sys.executable, *words]).returncode + 40)
        """,
        check=False,
    )
    assert done.returncode == 41, done.stderr


@difference(
    "Environment", "threads",
    torch="`set_num_threads` is one number for the process; inter-operation threads run parallel branches.",
    backline="`num_threads(n)` is a scope as well; inter-operation threads run independent items of a batch, and are set before the first use.",
    why="Libraries in one process share the cores.",
    remedy="Nothing: `set_num_threads(n)` works as in torch.",
)  # fmt: skip
def threads() -> None:
    before = backline.get_num_threads()
    with backline.num_threads(1):
        assert backline.get_num_threads() == 1 and in_other_thread() == before
    backline.set_num_threads(2)
    assert backline.get_num_threads() == 2


def in_other_thread() -> int:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(backline.get_num_threads).result()


@difference(
    "Operations", "packed sequences",
    torch="`torch.nn.attention.varlen.varlen_attn`: float16 and bfloat16 on CUDA, positions on the device and both longest lengths; "
    "`window_size=(-1, 0)` for a causal mask, other windows; `return_aux=AuxRequest(lse=True)`; `seqused_k` and pages of keys.",
    backline="`nn.functional.varlen_attn`: every dtype and device; positions on the host, which are checked, or on the device, which then needs "
    "`max_q` and `max_k`; `is_causal=`, `return_lse=`. No other windows, no pages. Positions that decrease are refused, or leave rows out.",
    why="The words are those of `scaled_dot_product_attention`; without them a kernel follows wrong positions out of the array.",
    remedy="`is_causal=True`, `return_lse=True`; for a window, `scaled_dot_product_attention` with a mask.",
)  # fmt: skip
def packed_sequences() -> None:
    x = np.ones((4, 2, 8), np.float32)
    attended = functional.varlen_attn(x, x, x, [0, 1, 4], is_causal=True, return_lse=True)
    assert attended.output.shape == x.shape and attended.lse.shape == (4, 2)
    assert not {"window_size", "return_aux", "block_table"} & {*inspect.signature(functional.varlen_attn).parameters}
    with pytest.raises(errors.BadValue, match="decreases"):
        functional.varlen_attn(x, x, x, [0, 5, 4])


@in_torch(packed_sequences)
def _packed_sequences(torch: Any) -> None:
    from torch.nn.attention.varlen import varlen_attn

    names = {*inspect.signature(varlen_attn).parameters}
    assert {"window_size", "return_aux", "block_table", "seqused_k"} <= names and "is_causal" not in names
