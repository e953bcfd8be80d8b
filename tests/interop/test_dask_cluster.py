"""Settings on the workers of Dask clusters: in this process, in processes of their own, under nannies; a scheduler that is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from typer.testing import CliRunner

import backline
from backline import switches
from backline.cli import app
from backline.engine import ranking_files
from backline.engine.tuning import record_store
from backline.errors import BackendUnavailable, BadType, BadValue
from backline.interop import dask as blocks
from backline.interop import numpy as exchange
from backline.interop.dask import cluster_tuning, connection, worker_facts, worker_settings
from backline.interop.dask.plugins import BacklineNanny, BacklineWorker
from processes import started
from support import clean, rng, seed

pytestmark = [pytest.mark.usefixtures("clean", "limited"), pytest.mark.filterwarnings("ignore:.*:ResourceWarning")]
assert clean and rng and seed
LIMIT = 150  # seconds of a test
SCRIPT = """
import numpy as np, backline
a = np.ones((40, 40), np.float32)
for n in (40, 32, 24):
    backline.matmul(a[:n], a)
"""


@pytest.fixture
def limited() -> Iterator[None]:
    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"the test took more than {LIMIT} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextmanager
def in_this_process(workers: int = 2) -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=workers, processes=False, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def worker(address: str, name: str, **environment: str) -> Iterator[subprocess.Popen[Any]]:
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        address,
        "--no-nanny",
        "--no-dashboard",
        "--nthreads",
        "1",
        "--name",
        name,
    ]
    quiet = {"DASK_LOGGING__DISTRIBUTED": "critical", "PYTHONWARNINGS": "ignore"}
    with started(command, env=os.environ | quiet | environment, stderr=subprocess.DEVNULL) as process:
        yield process


@contextmanager
def in_processes(*environments: dict[str, str]) -> Iterator[tuple[LocalCluster, Client]]:
    """A scheduler here, and a worker in a process of its own for each environment."""
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0", silence_logs=50))
        client = stack.enter_context(Client(cluster, set_as_default=False))
        for number, environment in enumerate(environments):
            stack.enter_context(worker(cluster.scheduler_address, f"w{number}", **environment))
        if environments:
            client.wait_for_workers(len(environments), timeout=LIMIT)
        yield cluster, client


def some(snapshot: Any) -> tuple[Any, ...]:
    return snapshot["num_threads"], snapshot["fp32_precision"], snapshot["prefer"]


def of_tasks(client: Client, count: int = 1, **how: Any) -> set[tuple[Any, ...]]:
    """The settings that tasks see. What runs on workers is of the package: they do not find the tests."""
    return {some(each) for each in client.gather([client.submit(switches.current, pure=False, **how) for _ in range(count)])}


def of_processes(client: Client) -> set[tuple[Any, ...]]:
    return {some(each) for each in client.run(switches.current).values()}


WANTED = (1, "bf16", ("numpy",))


def scope() -> Any:
    return switches.scope(num_threads=1, fp32_precision="bf16", prefer=("numpy",))


# In this process ----------------------------------------------------------------------------------------------------------


def test_tasks_in_this_process_have_the_settings_and_the_process_keeps_its_own() -> None:
    before = some(switches.current())
    with in_this_process() as client:
        assert of_tasks(client) == {before}
        with scope():
            table = blocks.register(client)
        assert table.mismatches == () and len(table.rows) == 2 and "workers of" in str(table)
        assert of_tasks(client, 6) == {WANTED}
        assert some(switches.current()) == before
        client.cluster.scale(3)  # one that comes later
        client.wait_for_workers(3, timeout=LIMIT)
        assert all(of_tasks(client, workers=[w]) == {WANTED} for w in client.nthreads())
        blocks.register(client)  # takes the place of the former
        assert of_tasks(client) == {before}
        with scope():
            blocks.register(client)
        blocks.unregister(client)
        blocks.unregister(client)
        assert of_tasks(client) == {before}
        with pytest.raises(BadValue, match="no_such"):
            blocks.tune(client, ["no_such.py"])
        cells = [str(cell) for column in table.__rich__().columns for cell in column._cells]
        assert table.rows[0].address in cells


def test_errors_of_clients() -> None:
    with pytest.raises(BadType, match="not a client"):
        blocks.workers("tcp://127.0.0.1:1")
    with pytest.raises(BadType, match="no client of Dask"):
        blocks.register()
    with pytest.raises(BadType, match="OMP_NUM_THREADS"):
        BacklineNanny({"OMP_NUM_THREADS": 2})  # type: ignore[dict-item]  # wrong on purpose
    with in_this_process(0) as client, pytest.raises(BackendUnavailable, match="no workers"):
        blocks.register(client)
    with pytest.raises(connection.SchedulerLost, match="closed"):
        blocks.workers(client)


def test_no_scheduler_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECTING", 0.2)
    for command in (["info"], ["tune"]):
        arguments = [*command, "--scheduler", "tcp://127.0.0.1:9", *([__file__] if command == ["tune"] else [])]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 1 and "no scheduler answers" in result.output
    result = CliRunner().invoke(app, ["tune", "--scheduler", "tcp://127.0.0.1:9", "--list"])
    assert result.exit_code == 2 and "--budget" in result.output


def test_settings_of_another_version_are_refused() -> None:
    plugin = BacklineWorker({**worker_settings.collect(), "backline": "0.0.1"})
    with in_this_process(1) as client, pytest.raises(BadValue, match=r"0\.0\.1"):
        client.register_plugin(plugin)


def test_what_is_collected_is_plain_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.engine.tuning.record import TuningRecord
    from backline.native.machine import fingerprint

    record = TuningRecord(
        "matmul f32 8x8 8x8",
        1,
        medians={"mkl.gemm@1": 2e-7},
        machine=fingerprint(),
        backline="0",
        created="2026-11-21T03:00:00.000000Z",
    )
    with switches.scope({"cuda.matmul.allow_fp16_reduced_precision_reduction": False}):
        content = worker_settings.collect([record])
    assert worker_settings.unpacked(content["records"]) == [record]
    before = switches.get("cuda.matmul.allow_fp16_reduced_precision_reduction")
    applied = worker_settings.Applied({**content, "process": "another"})  # as in a worker's process
    try:
        assert switches.get("cuda.matmul.allow_fp16_reduced_precision_reduction") is False
        assert record_store.find_key(record.key, 1) is not None
    finally:
        applied.withdraw()
        record_store.reload()
    assert switches.get("cuda.matmul.allow_fp16_reduced_precision_reduction") == before


# In processes of their own -------------------------------------------------------------------------------------------------


def of_facts(client: Client, name: str) -> set[Any]:
    return {each[name] for each in client.run(worker_facts.facts, False).values()}


def test_two_workers_with_different_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = (
        {"BACKLINE_PREFER": "numpy", "ATEN_CPU_CAPABILITY": "default"},
        {"BACKLINE_NUM_THREADS": "2", "BACKLINE_FALLBACK": "warn"},
    )
    file = tmp_path / "tuning.sqlite"
    monkeypatch.setenv("BACKLINE_TUNING", str(file))
    record_store.reload()
    with in_processes(here, there) as (cluster, client):
        address = cluster.scheduler_address
        result = CliRunner().invoke(app, ["info", "--scheduler", address, "--json"])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        texts = " ".join(found["mismatches"])
        assert all(word in texts for word in ("prefer", "fallback")) and len(found["workers"]) == 2
        kinds = len({each["arithmetic"] for each in found["workers"].values()})
        assert ("processor" in texts) == (kinds == 2)
        assert kinds == 2 or ranking_files.here().instructions not in ("avx2", "avx512", "amx")
        assert all(each["libraries"]["numpy"] == np.__version__ for each in found["workers"].values())

        # The same bits are refused to workers whose libraries have other kernels; nothing is in force then. The worker that the
        # error names may be the other one, whose MKL `info` has loaded before the same bits were asked for.
        if kinds == 2:
            with (
                backline.backends.flags(deterministic=True, determinism_level="threads"),
                pytest.raises(blocks.WorkerMismatch, match=r"arithmetic|strict"),
            ):
                blocks.register(client)
        assert {value[2] for value in of_processes(client)} == {("numpy",), ()}

        warned = pytest.warns(RuntimeWarning, match="workers differ: .*processor") if kinds == 2 else nullcontext()
        with scope(), exchange.use("numpy"), warned:
            table = blocks.register(client)
        assert not any("prefer" in text or "fallback" in text for text in table.mismatches)
        assert of_processes(client) == {WANTED}
        assert of_facts(client, "exchange") == {"numpy"}
        assert of_tasks(client) == {WANTED}

        script = tmp_path / "job.py"
        script.write_text(SCRIPT)
        result = CliRunner().invoke(app, ["tune", "--scheduler", address, "--budget", "20", "--threads", "1", str(script)])
        assert result.exit_code == 0, result.output
        assert f"{3 * kinds} problems" in result.stdout and f"{2 // kinds} of {2 // kinds} workers" in result.stdout
        assert len(record_store.every()) == 3
        assert of_facts(client, "records") == {3}
        report = blocks.tune(client, [str(script)], threads=1)  # what was timed beside other programs is timed again
        assert {each.known + len(each.records) for each in report.machines} == {3} and not any(
            each.left_out for each in report.machines
        )
        blocks.unregister(client)
        assert {value[2] for value in of_processes(client)} == {("numpy",), ()}
        assert of_facts(client, "exchange") == {""}
    record_store.reload()


def test_a_worker_of_another_version(tmp_path: Path) -> None:
    folder = tmp_path / "backline-9.9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: backline\nVersion: 9.9.9\n")
    with in_processes({"PYTHONPATH": str(tmp_path)}) as (_, client):
        for call in (blocks.register, blocks.workers):
            with pytest.raises(blocks.WorkerMismatch, match=r"has 9\.9\.9"):
                call(client)
        assert of_processes(client)


def test_a_worker_that_joins_and_refuses_the_settings_ends() -> None:
    with in_processes() as (cluster, client):
        client.register_plugin(BacklineWorker({**worker_settings.collect(), "backline": "0.0.1"}))
        with worker(cluster.scheduler_address, "w0") as process:
            assert process.wait(LIMIT) is not None
        assert client.nthreads() == {}


def test_the_same_bits_as_one_process(rng: np.random.Generator) -> None:
    switches.withdraw("num_threads")  # what tests set: each worker has its own
    a = rng.standard_normal((300, 60)).astype(np.float32)
    x = da.from_array(a, chunks=(50, 20))
    tall = x.rechunk({1: -1})
    with backline.backends.flags(deterministic=True, determinism_level="threads"):
        expressions = [blocks.matmul(x, x.T), *blocks.linalg.svd(tall), blocks.fft.rfft(tall)]
        # Not in this process, in which other tests may have used MKL before it was asked: then its last bits are others, and
        # the workers would be refused.
        with in_processes({"OMP_NUM_THREADS": "1"}) as (_, client):
            blocks.register(client, strict=False)
            alone = client.gather(client.compute(expressions))
        with in_processes({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}) as (_, client):
            table = blocks.register(client, strict=False)
            assert {row.facts["num_threads"] for row in table.rows} == {1, 2} and not any(row.differs for row in table.rows)
            # At once: graphs that Dask optimises one by one have tasks of the same name that differ, which it warns of.
            together = client.gather(client.compute(expressions))
    different = [i for i, (one, other) in enumerate(zip(alone, together, strict=True)) if not (one == other).all()]
    assert not different


def test_the_same_bits_are_refused_where_mkl_was_loaded_before_they_were_asked_for() -> None:
    flags = backline.backends.flags(deterministic=True, determinism_level="threads")
    with in_processes({}, {}) as (_, client), flags:
        late, in_time = sorted(client.scheduler_info()["workers"])
        if "mkl" not in client.run(worker_facts.facts, True, workers=[late])[late]["libraries"]:
            pytest.skip("MKL is not there")
        blocks.register(client, strict=False)
        table = blocks.workers(client)
        versions = {row.address: row.facts["libraries"]["mkl"] for row in table.rows}
        assert "strict" not in versions[late]
        if "strict" not in versions[in_time]:  # no MKL can be asked on such a processor
            assert not any("mkl" in text for text in table.mismatches)
            return
        assert "strict" in " ".join(table.mismatches)
        # Whether this process was in time or not, one worker is as it is and the other is not.
        with pytest.raises(blocks.WorkerMismatch, match=r"mkl [\d.]+( strict)?, [\d.]+( strict)? there") as refused:
            blocks.register(client)
        assert "start the process anew" in str(refused.value)


def test_a_nanny_starts_its_worker_with_what_has_to_be_there_before() -> None:
    with (
        patch.dict(os.environ),  # a nanny in this process leaves in its environment what its workers were started with
        LocalCluster(n_workers=1, processes=True, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        before = next(iter(client.run(os.getpid).values()))
        with scope():
            table = blocks.register(client, environment={"BACKLINE_TEST_WORD": "there"})
        assert table.mismatches == ()
        assert next(iter(client.run(os.getpid).values())) != before
        for name, value in (("BACKLINE_TEST_WORD", "there"), ("OPENBLAS_NUM_THREADS", "1")):
            assert list(client.run(os.getenv, name).values()) == [value]
        assert of_processes(client) == {WANTED}
    without, warned = in_this_process(1), pytest.warns(RuntimeWarning, match="only a nanny can set it")
    with without as client, warned:
        blocks.register(client, environment={"BACKLINE_TEST_WORD": "there"})


# A scheduler that is lost ---------------------------------------------------------------------------------------------------


def test_what_was_measured_outlives_the_worker_and_the_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLINE_TUNING", str(tmp_path / "tuning.sqlite"))
    record_store.reload()
    script, place = tmp_path / "job.py", tmp_path / "scheduler.json"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--dashboard-address",
        ":0",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--scheduler-file",
        place,
    ]
    with started(command, stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONWARNINGS": "ignore"}) as scheduler:
        while not place.exists() or not place.read_text().strip().endswith("}"):
            assert scheduler.poll() is None
        address = json.loads(place.read_text())["address"]

        with worker(address, "w0") as one, worker(address, "w1") as other, connection.connected(address) as client:
            client.wait_for_workers(2, timeout=LIMIT)
            first = sorted(client.run(os.getpid).items())[0][1]  # which measures
            (measuring,) = [process for process in (one, other) if process.pid == first]

            def progress(done: int, total: int, key: str) -> None:
                if done == 1 and measuring.poll() is None:  # then the other one goes on
                    measuring.kill()
                    measuring.wait()
                elif done == 2:
                    scheduler.kill()
                    scheduler.wait()

            with pytest.raises(blocks.SchedulerLost, match="2 records that had come in are kept"):
                cluster_tuning.tune(client, [str(script)], threads=1, progress=progress)
    record_store.reload()
    assert len(record_store.every()) == 2
    record_store.reload()
