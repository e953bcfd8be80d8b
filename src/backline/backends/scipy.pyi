# Made by `backline.cli.docs.write_stubs` from the row of the library. Do not edit.
from ..switches.switch_module import FftPlanCache
from ._library_module import *  # noqa: F403

fft_plan_cache: FftPlanCache
