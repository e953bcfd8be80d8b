"""Compiled attention kernels as they are kept, loaded and launched: on a CuPy that writes down, without Triton."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import switches
from backline.errors import LibraryFailed
from backline.libraries.cuda.attention import kernel_compiler as compiler
from backline.libraries.cuda.attention import kernel_launcher as launch
from fakes.cupy_standin import H100, CuPy, ndarray
from fakes.device_memory import placed
from fakes.insert import inserted
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

MADE = compiler.Compiled("attention_forward", 4, 70000, b"\x7fELF code", b"// PTX")


class Function:
    """A function of a module: `calls` has what it was launched with, and what was current then."""

    def __init__(self, cupy: Recorder, path: str, name: str) -> None:
        self.cupy, self.path, self.name = cupy, path, name

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self.shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        self.shared = size
        code = Path(self.path).read_bytes()  # the module is read now
        if code in self.cupy.refused:
            raise RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU")
        self.cupy.codes.append(code)

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
        if self.cupy.fails:
            raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED")
        self.cupy.calls.append((self.name, grid, block, args, shared_mem))


class Recorder(CuPy):
    """A CuPy that has modules."""

    def __init__(self) -> None:
        super().__init__(H100, H100)
        self.codes: list[bytes] = []
        self.calls: list[tuple[Any, ...]] = []
        self.refused: tuple[bytes, ...] = ()
        self.fails = False

    def RawModule(self, *, path: str) -> Any:
        module = type("Module", (), {})()
        module.get_function = lambda name: Function(self, path, name)
        return module


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Recorder]:
    monkeypatch.setattr(compiler, "reason", lambda: "")
    monkeypatch.setattr(compiler, "version", lambda: "3.9.0")
    monkeypatch.setattr(compiler, "folder", lambda: str(tmp_path / "kept"))

    def build(variant: Any, tile: Any) -> compiler.Compiled:
        return compiler.Compiled(variant.kernel, tile.warps, 70000, MADE.cubin, MADE.ptx)

    monkeypatch.setattr(compiler, "build", build)
    made = Recorder()
    with inserted(cupy=made):
        yield made


def array(*shape: int, dtype: Any = np.float16, device: int = 0) -> ndarray:
    return ndarray(np.zeros(shape, dtype), device)


def attend(*args: Any, **kwargs: Any) -> Any:
    return backline.nn.functional.scaled_dot_product_attention(*args, **kwargs)


def test_one_launch_with_everything_the_kernel_wants(cupy: Recorder) -> None:
    q, k = array(2, 4, 100, 64), array(2, 4, 100, 64)
    result = attend(q, k, k)
    assert isinstance(result, ndarray) and result.shape == (2, 4, 100, 64) and result.dtype == np.float16
    ((name, grid, block, args, shared),) = cupy.calls
    assert (name, grid, block, shared) == ("attention_forward", (8,), (128,), 70000)
    assert len(args) == 28 + 2
    assert [int(a) for a in args[:6]] == [q.data.ptr, k.data.ptr, k.data.ptr, 0, result.data.ptr, 0]
    assert [type(a) for a in args[:6]] == [np.uint64] * 6
    assert [type(a) for a in args[6:9]] == [np.int64, np.int64, np.int32] and list(args[6:9]) == [25600, 6400, 64]
    assert type(args[-6]) is np.float32 or type(args[-5]) is np.float32
    assert type(args[-3]) is np.int64 and list(args[-2:]) == [0, 0] and args[-1].nbytes == 8
    assert cupy.codes == [MADE.cubin]
    attend(q, k, k)
    assert len(cupy.calls) == 2 and len(cupy.codes) == 1, "it is loaded once"


def test_a_backward_pass_is_four_launches(cupy: Recorder) -> None:
    q, k = array(1, 4, 40, 64), array(1, 2, 50, 64)
    found = backline.nn.grad.scaled_dot_product_attention_backward(q, k, k, q, enable_gqa=True)
    assert [call[0] for call in cupy.calls] == [
        "attention_forward", "attention_backward_delta", "attention_backward_keys", "attention_backward_queries",
    ]  # fmt: skip
    assert (found.query.shape, found.key.shape, found.value.shape, found.attn_mask) == (q.shape, k.shape, k.shape, None)
    forward, delta, keys, queries = (call[3] for call in cupy.calls)
    assert forward[4] == delta[0], "the result"
    assert forward[5] == keys[5] == queries[5] and delta[2] == keys[6] == queries[6], "sums that later launches read"
    assert (keys[7], keys[8], queries[7]) == (found.key.data.ptr, found.value.data.ptr, found.query.data.ptr)


def test_ptx_where_the_driver_refuses_the_cubin(cupy: Recorder) -> None:
    cupy.refused = (MADE.cubin,)
    x = array(1, 1, 16, 16)
    attend(x, x, x)
    assert cupy.codes == [MADE.ptx]


def test_an_array_that_starts_anywhere_is_copied(cupy: Recorder) -> None:
    memory = np.zeros(2 * 16 * 16 + 64, np.float16)
    skipped = next(n for n in range(1, 64) if (memory.ctypes.data + 2 * n) % 16)
    host = memory[skipped : skipped + 256].reshape(1, 1, 16, 16)
    host[...] = np.arange(256).reshape(host.shape)
    copy = launch._aligned(ndarray(host))
    assert copy.data.ptr % 16 == 0 and copy.strides == host.strides and (copy.host == host).all()
    turned = host[:, :, ::-1]
    copy = launch._aligned(ndarray(turned))
    assert copy.strides == turned.strides and (copy.host == turned).all()
    aligned = ndarray(placed(array(1, 1, 16, 16).host))
    assert launch._aligned(aligned) is aligned


def test_another_seed_compiles_nothing(cupy: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    x = array(1, 1, 16, 16)
    attend(x, x, x, None, 0.5, seed=1)
    monkeypatch.setattr(compiler, "build", None)
    attend(x, x, x, None, 0.5, seed=2)
    assert [int(call[3][-3]) for call in cupy.calls] == [1, 2] and len(cupy.codes) == 1


def test_a_failure_is_an_error_of_the_library(cupy: Recorder) -> None:
    x = array(1, 1, 16, 32)
    cupy.fails = True
    with pytest.raises(LibraryFailed, match="Triton flash failed"):
        attend(x, x, x)


def test_a_compiler_that_fails_makes_room(cupy: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(variant: Any, tile: Any) -> compiler.Compiled:
        raise ValueError("no")

    monkeypatch.setattr(compiler, "build", build)
    x = array(1, 1, 16, 48)
    with switches.scope({"cuda.math_sdp": False, "cuda.cudnn_sdp": False}), pytest.raises(Exception, match="cannot compile attention_forward"):
        attend(x, x, x)


# --- on disk -----------------------------------------------------------------------------------------------------------------


def test_kept_and_read(cupy: Recorder) -> None:
    assert compiler.read("a") is None
    compiler.keep("a", MADE)
    found = compiler.read("a")
    assert found is not None
    assert (found.entry, found.warps, found.shared, found.cubin, found.ptx) == (MADE.entry, 4, 70000, MADE.cubin, MADE.ptx)
    assert sorted(p.suffix for p in Path(compiler.folder()).iterdir()) == [".cubin", ".json", ".ptx"], "nothing temporary is left"


@pytest.mark.parametrize("change", [
    {"format": 2}, {"key": "b"}, {"entry": "no name"}, {"entry": 3}, {"warps": 0}, {"warps": True}, {"shared": -1}, {"shared": 2**21},
    {"cubin": "0" * 64}, {"ptx": None},
])  # fmt: skip
def test_what_is_not_as_written_is_not_used(cupy: Recorder, change: dict[str, Any]) -> None:
    compiler.keep("a", MADE)
    path = Path(compiler.folder()) / "a.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert compiler.read("a") is None


@pytest.mark.parametrize(("name", "content"), [("a.json", b"{"), ("a.json", b"[]"), ("a.json", b"\xff\xfe"), ("a.cubin", b"\x7fELF other"), ("a.ptx", b"")])
def test_damaged_files_are_not_used(cupy: Recorder, name: str, content: bytes) -> None:
    compiler.keep("a", MADE)
    (Path(compiler.folder()) / name).write_bytes(content)
    assert compiler.read("a") is None


def test_a_folder_that_cannot_be_made_is_no_error(cupy: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(compiler, "folder", lambda: str(tmp_path / "file" / "kept"))
    compiler.keep("a", MADE)
    assert compiler.read("a") is None


def test_without_triton_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.python_packages, "find", lambda name: (None, (), "there is no package triton in this environment"))
    assert "no package triton" in compiler.reason() and "pip install triton" in compiler.reason()
    monkeypatch.setattr(compiler.python_packages, "find", lambda name: ("/x", (), ""))
    for version, fits in (("3.6.0", True), ("3.10.1", True), ("3.5.1", False), ("", False)):
        monkeypatch.setattr(compiler, "version", lambda version=version: version)
        assert (compiler.reason() == "") == fits
