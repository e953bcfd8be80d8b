"""cuSPARSELt: products of operands of which two in four elements are zero."""

import backline as torch

cusparselt = torch.backends.cusparselt
print(f"cuSPARSELt available: {cusparselt.is_available()}")
print(f"version {cusparselt.version()}, largest number of an algorithm {cusparselt.get_max_alg_id()}")
with cusparselt.flags(enabled=False):
    print(f"inside the block: enabled {cusparselt.enabled}")
