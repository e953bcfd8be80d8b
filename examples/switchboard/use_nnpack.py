"""NNPACK: on or off, for the process or for a block."""

import backline as torch

nnpack = torch.backends.nnpack
print(f"NNPACK available: {nnpack.is_available()}, enabled: {nnpack.enabled}")
with nnpack.flags(enabled=False):
    print(f"inside the block: enabled {nnpack.enabled}")
before = nnpack.set_flags(False)
print(f"set_flags(False) returned {before}; enabled: {nnpack.enabled}")
