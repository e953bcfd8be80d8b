"""Snapshots: one object per set of values; pickling; work in other processes."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import weakref

import pytest

from backline import backends, switches
from backline.errors import BadValue, UnknownName
from backline.switches import snapshot as module


def test_it_reads_like_a_mapping():
    snapshot = switches.current()
    assert dict(snapshot.items()) == {name: snapshot[name] for name in snapshot}
    assert [*snapshot.keys()] == [*snapshot] == [*switches.declared()]
    assert len(snapshot) == len([*snapshot.values()]) == len(switches.declared())
    assert "mkl.enabled" in snapshot and "mkl.enabeld" not in snapshot
    assert (snapshot.get("mkl.enabled"), snapshot.get("nothing", 3)) == (True, 3)
    with pytest.raises(UnknownName, match=r"mkl\.enabled"):
        snapshot["mkl.enabeld"]


def test_it_does_not_change():
    snapshot = switches.current()
    for attempt in (
        lambda: setattr(snapshot, "version", 2),
        lambda: setattr(snapshot, "_values", {}),
        lambda: delattr(snapshot, "_values"),
        lambda: switches.Snapshot(),
    ):
        with pytest.raises(TypeError):
            attempt()
    assert hash(snapshot) == hash(switches.current())
    assert copy.copy(snapshot) is copy.deepcopy(snapshot) is snapshot


def test_the_repr_names_what_is_not_at_its_default():
    with backends.mkl.flags(enabled=False):
        text = repr(switches.current())
    assert "mkl.enabled=False" in text and "fallback" not in text


def test_pickling_in_one_process_gives_the_same_object():
    with backends.flags(fallback="warn", prefer=["mkl"], max_error=1e-5):
        snapshot = switches.current()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(snapshot, protocol)) is snapshot


def test_unused_snapshots_are_freed():
    with backends.flags(max_error=0.123):
        reference = weakref.ref(switches.current())
    module._overlays.clear()
    gc.collect()
    assert reference() is None


def test_apply_puts_every_value_in_force():
    with backends.flags(fallback="warn"), backends.mkl.flags(enabled=False):
        snapshot = switches.current()
    backends.benchmark = True
    with backends.flags(benchmark_limit=1):
        with snapshot.apply() as scope:
            assert switches.current() is snapshot
            assert "snapshot.apply" in repr(scope)
        assert (backends.benchmark_limit, backends.benchmark) == (1, True)


def answer(snapshot: switches.Snapshot) -> tuple[object, ...]:
    import os

    outside = switches.get("fallback")
    with snapshot.apply():
        same = switches.current() is snapshot
        return os.getpid(), outside, same, switches.get("fallback"), switches.get("num_threads")


def test_a_spawned_worker_works_under_the_snapshot_it_is_sent():
    import os

    with backends.flags(fallback="error", num_threads=5):
        snapshot = switches.current()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        process, *rest = pool.apply(answer, (snapshot,))
    assert process != os.getpid()
    assert rest == ["allow", True, "error", 5]


@pytest.mark.parametrize(
    ("schema", "change", "reason"),
    [
        (module.SCHEMA + 1, {}, "schema"),
        (module.SCHEMA, {"cudnn.magic": True}, "cudnn.magic"),
        (module.SCHEMA, {"fallback": "panic"}, "fallback"),
        (module.SCHEMA, {"benchmark": 1}, "benchmark"),
    ],
)
def test_a_snapshot_of_another_version_is_refused_with_the_reason(schema, change, reason):
    values = {**dict(switches.current().items()), **change}
    with pytest.raises(BadValue, match=reason):
        module._restore(schema, tuple(values.items()))


def test_a_switch_the_sender_did_not_know_gets_its_default():
    values = dict(switches.current().items())
    del values["fallback"]
    assert module._restore(module.SCHEMA, tuple(values.items())) is switches.current()
