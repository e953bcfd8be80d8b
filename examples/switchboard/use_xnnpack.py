"""XNNPACK: `enabled` says whether it may run and is there; turning on what is not there is refused."""

import backline as torch

xnnpack = torch.backends.xnnpack
print(f"XNNPACK available: {xnnpack.is_available()}, enabled: {xnnpack.enabled}")
try:
    xnnpack.enabled = True
    print("turned on")
except torch.errors.BackendUnavailable as error:
    print(f"not turned on: {error}")
with xnnpack.flags(enabled=False):
    print(f"inside the block: enabled {xnnpack.enabled}")
