"""MIOpen: its first solution for a convolution, or a search for the fastest."""

import backline as torch

miopen = torch.backends.miopen
print(f"MIOpen available: {miopen.is_available()}, immediate mode: {miopen.immediate}")
with miopen.flags(immediate=True):
    print(f"inside the block: immediate mode {miopen.immediate}")
before = miopen.set_flags(_immediate=True)
print(f"set_flags returned {before}; immediate mode: {miopen.immediate}")
