"""The attention kernels that may run, and their order: the scope, its errors, and what the engine makes of it."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.backends import cuda
from backline.engine.choose import choose
from backline.errors import BadType, BadValue, NoKernel, UnknownName
from backline.libraries import Algorithm, Library
from backline.libraries.attention_constraints import SWITCHES, order
from backline.nn.attention import SDPBackend, sdpa_kernel
from backline.problems.attention_problem import attention_problem
from backline.switches.definitions import KERNELS

MEMBERS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION, SDPBackend.OVERRIDEABLE]


class Kernels(Library):
    """Has every kernel, for arrays of every device."""

    name = "five_kernels"
    title = "Five kernels"
    families = ("attention",)
    devices = ("cpu", "cuda", "mps")
    kernels = KERNELS

    def reason(self) -> str:
        return ""

    def version(self) -> str:
        return "1"

    def algorithms(self, problem: Any, threads: int) -> Iterator[Algorithm]:
        for kernel in KERNELS:
            yield Algorithm(library=self.name, name=kernel, traits=(kernel,))


@pytest.fixture
def five(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A library with all five kernels, and no other beside it."""
    library = Kernels()
    libraries.register(library)
    monkeypatch.setattr(libraries, "names", lambda: (library.name,))
    yield
    libraries.unregister("five_kernels")


def enabled() -> list[SDPBackend]:
    return [member for member, switch in zip(MEMBERS, (SWITCHES[k] for k in KERNELS), strict=True) if switches.get(switch)]


def problem(device: str = "cpu") -> Any:
    from dataclasses import replace

    x = np.zeros((1, 2, 4, 8), np.float32)
    return replace(attention_problem(x, x, x), device=device)


def test_the_enumeration_has_the_models_members_and_numbers():
    assert {m.name: m.value for m in SDPBackend} == {
        "ERROR": -1, "MATH": 0, "FLASH_ATTENTION": 1, "EFFICIENT_ATTENTION": 2, "CUDNN_ATTENTION": 3, "OVERRIDEABLE": 4,
    }  # fmt: skip
    assert cuda.SDPBackend is SDPBackend and pickle.loads(pickle.dumps(SDPBackend.MATH)) is SDPBackend.MATH
    assert tuple(m.name.lower() for m in MEMBERS) == KERNELS


def test_it_is_reached_without_an_import_of_its_own():
    program = """
        import sys, backline
        assert "backline.nn" not in sys.modules and "backline.nn.attention" not in sys.modules
        assert backline.nn.attention.sdpa_kernel and "attention" in dir(backline.nn)
    """
    path = str(Path(backline.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {path!r})\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(UnknownName, match="attention"):
        _ = backline.nn.atention
    with pytest.raises(AttributeError):
        _ = backline.nn.__path_of_nobody__


def test_the_signature():
    assert str(inspect.signature(sdpa_kernel)).startswith("(backends: ") and [
        (p.name, p.default) for p in inspect.signature(sdpa_kernel).parameters.values()
    ] == [("backends", inspect.Parameter.empty), ("set_priority", False)]


@pytest.mark.parametrize("member", MEMBERS)
def test_one_member_allows_that_kernel_only(member):
    before = switches.current()
    with sdpa_kernel(member):
        assert enabled() == [member]
    assert switches.current() is before and enabled() == MEMBERS


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("pair", list(itertools.combinations(MEMBERS, 2)))
def test_several_are_given_as_a_list_or_a_tuple(kind, pair):
    with sdpa_kernel(kind(pair)):
        assert enabled() == [m for m in MEMBERS if m in pair]
        assert switches.get("sdp_priority") == ()


def test_duplicates_are_dropped_and_the_order_given_is_tried():
    asked = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(asked, set_priority=True):
        assert switches.get("sdp_priority") == ("math", "flash_attention")
    with sdpa_kernel(asked, np.True_):
        assert switches.get("sdp_priority") == ("math", "flash_attention")
    assert switches.get("sdp_priority") == ()


@pytest.mark.parametrize("permutation", list(itertools.permutations(MEMBERS, 3))[::7])
def test_after_any_priority_scope_each_kernel_is_in_the_order_exactly_once(permutation):
    with sdpa_kernel(list(permutation), set_priority=True):
        inside = order(switches.get("sdp_priority"))
        assert sorted(inside) == sorted(KERNELS) and inside[:3] == tuple(m.name.lower() for m in permutation)
    assert order(switches.get("sdp_priority")) == KERNELS


@pytest.mark.parametrize(
    ("backends", "error", "text"),
    [
        ([], BadValue, "allows no kernel at all"),
        ((), BadValue, "allows no kernel at all"),
        (SDPBackend.ERROR, BadValue, "SDPBackend.ERROR"),
        ([SDPBackend.MATH, SDPBackend.ERROR], BadValue, "SDPBackend.ERROR"),
        ("math", BadType, "not str: 'math'"),
        (["math"], BadType, "not str: 'math'"),
        (0, BadType, "not int: 0"),
        ([1], BadType, "not int: 1"),
        (None, BadType, "NoneType"),
        ([None], BadType, "NoneType"),
        ({SDPBackend.MATH}, BadType, "not set"),
        (SDPBackend, BadType, "not EnumType"),
        ([cuda.BlasBackend.Cublas], BadType, "not BlasBackend"),
    ],
)
def test_what_is_no_list_of_members_is_refused(backends, error, text):
    before = switches.current()
    with pytest.raises(error) as caught:
        sdpa_kernel(backends)
    assert text in str(caught.value) and "sdpa_kernel" in str(caught.value)
    assert all(f"SDPBackend.{m.name}" in str(caught.value) for m in MEMBERS)
    assert switches.current() is before


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_set_priority_is_a_bool(value):
    with pytest.raises(BadType, match="set_priority"):
        sdpa_kernel(SDPBackend.MATH, value)


def test_a_scope_without_priority_keeps_the_order_and_other_switches():
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], True), backline.backends.flags(fallback="warn"):
        with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
            assert switches.get("sdp_priority") == ("cudnn_attention", "math") and switches.get("fallback") == "warn"
        assert enabled() == [SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION]


def test_as_a_decorator_and_in_tasks():
    @sdpa_kernel(SDPBackend.MATH)
    def inside() -> list[SDPBackend]:
        return enabled()

    async def main() -> list[Any]:
        async def task(member: SDPBackend) -> bool:
            with sdpa_kernel(member):
                await asyncio.sleep(0)
                return enabled() == [member]

        return await asyncio.gather(*map(task, MEMBERS * 4))

    assert inside() == [SDPBackend.MATH] and enabled() == MEMBERS
    assert all(asyncio.run(main()))


def test_scopes_work_after_the_base_is_frozen():
    program = """
        from backline import backends
        from backline.errors import Frozen
        from backline.nn.attention import SDPBackend, sdpa_kernel
        backends.disable_global_flags()
        with sdpa_kernel(SDPBackend.MATH, True):
            assert not backends.cuda.flash_sdp_enabled() and backends.cuda.math_sdp_enabled()
            backends.cuda.enable_flash_sdp(True)
            assert backends.cuda.flash_sdp_enabled()
        try:
            backends.cuda.enable_flash_sdp(False)
        except Frozen as error:
            assert "with backline.backends.cuda.flags(flash_sdp=False)" in str(error), error
        else:
            raise SystemExit("not refused")
    """
    path = str(Path(backline.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {path!r})\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- what the engine makes of it ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("five")
@pytest.mark.parametrize("device", ["cpu", "cuda:0", "mps"])
def test_the_choice_follows_the_standing_order_on_every_device(device):
    assert [c.algorithm for c in choose(problem(device)).candidates if c.verdict != "refused"] == list(KERNELS)


@pytest.mark.usefixtures("five")
@pytest.mark.parametrize("device", ["cpu", "cuda:0", "mps"])
@pytest.mark.parametrize("member", MEMBERS)
def test_the_choice_follows_the_priority_on_every_device(device, member):
    with sdpa_kernel([member, *MEMBERS], set_priority=True):
        assert choose(problem(device)).chosen.name == member.name.lower()


@pytest.mark.usefixtures("five")
@pytest.mark.parametrize("member", MEMBERS)
def test_a_disabled_kernel_is_no_fallback(member):
    with sdpa_kernel(member):
        choice = choose(problem())
        assert choice.chosen.name == member.name.lower()
        refused = {c.algorithm: c.switch for c in choice.candidates if c.verdict == "refused" and c.library == "five_kernels"}
    assert refused == {kernel: SWITCHES[kernel] for kernel in KERNELS if kernel != member.name.lower()}


@pytest.mark.usefixtures("five")
def test_all_disabled_gives_one_error_with_every_kernel():
    off = dict.fromkeys(("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp", "overrideable_sdp"), False)
    with cuda.flags(**off), pytest.raises(NoKernel) as caught:
        choose(problem())
    assert all(kernel in str(caught.value) and SWITCHES[kernel] in str(caught.value) for kernel in KERNELS)
