"""KleidiAI: products on Arm processors."""

import backline as torch

kleidiai = torch.backends.kleidiai
print(f"KleidiAI available: {kleidiai.is_available()}")
with kleidiai.flags(enabled=False):
    print(f"inside the block: enabled {kleidiai.enabled}")
print(f"after it: enabled {kleidiai.enabled}")
