"""The initializer of workers as the setup hook of Ray's worker processes, where Ray is installed: ``make test-ray``."""

from __future__ import annotations

import pytest

from support import python

PROGRAM = """
import ray

import backline
from backline import switches

with switches.scope(num_threads=1, fp32_precision="bf16", prefer=("numpy",)):
    hook = backline.worker_initializer()
ray.init(
    num_cpus=2, include_dashboard=False, logging_level="error",
    runtime_env={"worker_process_setup_hook": hook, "env_vars": {"OPENBLAS_NUM_THREADS": "1"}},
)


def told():
    import os

    from backline import switches

    values = switches.get("num_threads"), switches.get("fp32_precision"), switches.get("prefer")
    return *values, os.environ["OPENBLAS_NUM_THREADS"], os.getpid()


@ray.remote
class Actor:
    def told(self):
        return told()


import os

found = [*ray.get([ray.remote(told).remote() for _ in range(4)]), ray.get(Actor.remote().told.remote())]
assert {each[:4] for each in found} == {(1, "bf16", ("numpy",), "1")}, found
assert os.getpid() not in {each[4] for each in found} and switches.get("prefer") == ()
ray.shutdown()
print("kept")
"""


@pytest.mark.ray
def test_settings_in_the_workers_of_ray() -> None:
    pytest.importorskip("ray")
    assert python(PROGRAM, env={"BACKLINE_TUNING": "", "RAY_USAGE_STATS_ENABLED": "0"}).stdout.split()[-1] == "kept"
