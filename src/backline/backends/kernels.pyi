# Made by `backline.cli.docs.write_stubs` from the row of the library. Do not edit.
from ..switches.switch_module import FftPlanCache, PlanCache
from ._library_module import *  # noqa: F403

plan_cache: PlanCache
fft_plan_cache: FftPlanCache
