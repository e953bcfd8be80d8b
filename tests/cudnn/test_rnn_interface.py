"""Recurrent networks: our signatures and the stand-in's against NVIDIA's header, and what the true cuDNN takes without a device."""

from __future__ import annotations

import ctypes
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backline.libraries.cuda.cudnn import rnn_recipe
from backline.libraries.cuda.cudnn.rnn_interface import SIGNATURES, CudnnError, Interface
from backline.libraries.cuda.cudnn.rnn_recipe import ALGOS, MODES, TYPES
from backline.libraries.presence import presence
from fakes import cudnn_rnn

pytestmark = pytest.mark.cudnn

ENUMS = {
    "CUDNN_RNN_ALGO_STANDARD": ALGOS["rnn"], "CUDNN_RNN_ALGO_PERSIST_STATIC": ALGOS["rnn_persist"],
    "CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H": ALGOS["rnn_small"], "CUDNN_RNN_RELU": MODES["rnn_relu"],
    "CUDNN_RNN_TANH": MODES["rnn_tanh"], "CUDNN_LSTM": MODES["lstm"], "CUDNN_GRU": MODES["gru"],
    "CUDNN_RNN_NO_BIAS": rnn_recipe.NO_BIAS, "CUDNN_RNN_DOUBLE_BIAS": rnn_recipe.DOUBLE_BIAS,
    "CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED": rnn_recipe.SEQ_MAJOR_UNPACKED,
    "CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED": rnn_recipe.BATCH_MAJOR_UNPACKED,
    "CUDNN_DATA_FLOAT": TYPES["float32"], "CUDNN_DATA_DOUBLE": TYPES["float64"], "CUDNN_DATA_HALF": TYPES["float16"],
    "CUDNN_DATA_BFLOAT16": TYPES["bfloat16"], "CUDNN_DEFAULT_MATH": rnn_recipe.DEFAULT_MATH,
    "CUDNN_TENSOR_OP_MATH": rnn_recipe.TENSOR_OP_MATH, "CUDNN_FMA_MATH": rnn_recipe.FMA_MATH, "CUDNN_WGRAD_MODE_ADD": 0,
    "CUDNN_FWD_MODE_INFERENCE": 0, "CUDNN_FWD_MODE_TRAINING": 1, "CUDNN_LINEAR_INPUT": 0, "CUDNN_UNIDIRECTIONAL": 0,
    "CUDNN_BIDIRECTIONAL": 1, "CUDNN_STATUS_NOT_SUPPORTED": 3000, "CUDNN_STATUS_INTERNAL_ERROR": 4000,
}  # fmt: skip


@pytest.fixture(scope="module")
def includes() -> Path:
    path = presence("cudnn").path
    assert path is not None
    found = Path(path).resolve().parents[1] / "include"
    if not (found / "cudnn_adv.h").exists():
        pytest.skip("this cuDNN comes without headers")
    return found


@pytest.fixture(scope="module")
def header(includes: Path) -> str:
    text = "\n".join((includes / name).read_text() for name in ("cudnn_graph.h", "cudnn_ops.h", "cudnn_adv.h"))
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def letter(argument: str) -> str:
    """The letter of `SIGNATURES` for a parameter as C declares it."""
    if "*" in argument or "[" in argument or re.search(r"\bcudnn\w*(Handle|Descriptor)_t\b|\bcudaStream_t\b", argument):
        return "p"
    for word, found in (("unsigned long long", "q"), ("size_t", "z"), ("uint32_t", "u"), ("float", "f"), ("int32_t", "i"), ("int", "i")):
        if re.search(rf"\b{word}\b", argument):
            return found
    assert re.search(r"\bcudnn\w+_t\b", argument), argument
    return "i"  # an enum


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_that_of_the_header(name: str, header: str) -> None:
    (declared,) = re.findall(rf"cudnnStatus_t\s+CUDNNWINAPI\s+{name}\((.*?)\);", header, re.S)
    assert "".join(letter(argument) for argument in declared.split(",")) == SIGNATURES[name]


@pytest.mark.parametrize("name", ENUMS)
def test_a_number_is_that_of_the_header(name: str, header: str) -> None:
    (number,) = re.findall(rf"\b{name}\s*=\s*(\d+)", header)
    assert int(number) == ENUMS[name]
    assert re.search(r"CUDNN_RNN_PADDED_IO_ENABLED \(1U << 0\)", header)


def test_the_stand_in_has_the_headers_prototypes(includes: Path, tmp_path: Path) -> None:
    cuda = [path for path in includes.parents[1].glob("cu*/include") if (path / "cuda_runtime_api.h").exists()]
    if not cuda:
        pytest.skip("there are no headers of the CUDA runtime")
    command = ["cc", "-DTRUE_HEADER", "-c", "-std=gnu11", f"-I{includes}", f"-I{cuda[0]}", str(cudnn_rnn.SOURCE), "-o", str(tmp_path / "out.o")]
    subprocess.run(command, check=True)


# --- the true library ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def c(deviceless: Any) -> Interface:
    path = presence("cudnn").path
    assert path is not None
    return Interface(ctypes.CDLL(path))


@pytest.fixture
def described(c: Interface) -> Iterator[Any]:
    """A function that describes a network to cuDNN and returns its status."""
    network = c.created("cudnnCreateRNNDescriptor")

    def describe(algo: int, mode: int, dtype: int, compute: int, math: int, bias: int = 2, directions: int = 0, hidden: int = 128) -> int:
        try:
            c.call("cudnnSetRNNDescriptor_v8", network, algo, mode, bias, directions, 0, dtype, compute, math, 64, hidden, hidden, 2, None, 1)
        except CudnnError as error:
            return error.status
        return 0

    yield describe
    c.call("cudnnDestroyRNNDescriptor", network)


def test_networks_that_it_takes(described: Any) -> None:
    from backline.libraries.base import Algorithm
    from backline.libraries.cuda.common.device_facts import DeviceInfo
    from backline.problems import Operand
    from backline.problems.rnn_problem import RnnProblem
    from support import dtype_of

    device = DeviceInfo(0, (9, 0), 132, "", 0, 0)
    seen = set()
    for mode, dtype, biases, directions in itertools.product(MODES, TYPES, (False, True), (1, 2)):
        x = Operand.contiguous("input", dtype_of(dtype), (16, 8, 64))
        p = RnnProblem(mode, (x,), (), "rnn", steps=16, batch=8, features=64, hidden=128, directions=directions, biases=biases)
        for a in rnn_recipe.rnn_algorithms(p, device, 91300):
            if isinstance(a, Algorithm):
                made = rnn_recipe.rnn_recipe(p, a.name)
                seen.add((a.name, dtype))
                assert described(made.algo, made.mode, made.dtype, made.compute, made.math, made.biases, made.directions - 1) == 0, (a.name, dtype)
    assert len(seen) >= 8


def test_sequences_that_it_takes(c: Interface) -> None:
    data = c.created("cudnnCreateRNNDataDescriptor")
    zero = ctypes.c_double(0.0)

    def set_lengths(lengths: list[int], layout: int) -> int:
        try:
            of = (ctypes.c_int * len(lengths))(*lengths)
            c.call("cudnnSetRNNDataDescriptor", data, 0, layout, 4, len(lengths), 8, of, ctypes.byref(zero))
        except CudnnError as error:
            return error.status
        return 0

    for layout in (rnn_recipe.SEQ_MAJOR_UNPACKED, rnn_recipe.BATCH_MAJOR_UNPACKED):
        assert set_lengths([1, 4, 2], layout) == 0  # in any order
        assert set_lengths([1, 5], layout) and set_lengths([-1, 2], layout)
    c.call("cudnnDestroyRNNDataDescriptor", data)


def test_the_descriptor_of_states(c: Interface) -> None:
    tensor = c.created("cudnnCreateTensorDescriptor")
    numbers = ctypes.c_int * 3
    c.call("cudnnSetTensorNdDescriptor", tensor, 0, 3, numbers(2, 3, 4), numbers(12, 4, 1))
    c.call("cudnnDestroyTensorDescriptor", tensor)


# It asks nothing of a handle for this but that there is one; memory of zeros takes its place, and a crash would be the child's.
PLACES = """
import ctypes, json, sys
from backline.libraries.cuda.cudnn.rnn_interface import Interface

path, networks, *before = sys.argv[1], json.loads(sys.argv[2]), *sys.argv[3:]
kept = [ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL) for file in before if file != "standin"]
c, room = Interface(ctypes.CDLL(path)), ctypes.create_string_buffer(1 << 20)
true = "standin" not in sys.argv
handle = ctypes.addressof(room) + 4096 if true else c.created("cudnnCreate")
dropout = c.created("cudnnCreateDropoutDescriptor")
if not true:
    c.call("cudnnSetDropoutDescriptor", dropout, handle, 0.0, None, 0, 0)
network, matrix, bias = (c.created(f"cudnnCreate{kind}Descriptor") for kind in ("RNN", "Tensor", "Tensor"))
found = []
for algo, mode, biases, directions, dtype, compute, math, features, hidden, layers, gates in networks:
    given = algo, mode, biases, directions, 0, dtype, compute, math, features, hidden, hidden, layers
    c.call("cudnnSetRNNDescriptor_v8", network, *given, None if true else dropout, 1)
    (size,) = c.sizes("cudnnGetRNNWeightSpaceSize", handle, network)
    cells = range(layers * (directions + 1))
    asked = [c.places(handle, network, cell, size, 1 << 40, which, matrix, bias) for cell in cells for which in range(2 * gates)]
    found.append([size, [(m - (1 << 40), b and b - (1 << 40)) for m, b in asked]])
print(json.dumps(found))
"""


def test_the_places_of_weights_are_those_of_the_stand_in(deviceless: Any, answered: dict[str, Any]) -> None:
    networks = [
        (0, mode, biases, directions, dtype, int(dtype == 1), {0: 3, 1: 0}.get(dtype, 1), features, 6, layers, {2: 4, 3: 3}.get(mode, 1))
        for mode, biases, directions, (dtype, features, layers) in itertools.product(
            range(4), (0, 2), (0, 1), ((0, 5, 1), (1, 3, 3), (2, 8, 2), (9, 5, 2))
        )
    ]
    path = presence("cudnn").path
    assert path is not None
    told = []
    for file, more in ((path, [str(presence(name).path) for name in ("cublaslt", "cublas")]), (cudnn_rnn.library()._name, ("standin",))):
        command = [sys.executable, "-c", PLACES, str(file), json.dumps(networks), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        told.append(json.loads(done.stdout))
    answered["recurrent networks, weights"] = f"{len(networks)} networks have their gates where the stand-in has them"
    assert told[0] == told[1]
