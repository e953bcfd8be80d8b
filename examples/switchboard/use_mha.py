"""Multi-head attention: as one fused operation, or as products and softmax one by one."""

import backline as torch

mha = torch.backends.mha
print(f"fused: {mha.get_fastpath_enabled()}")
mha.set_fastpath_enabled(False)
print(f"set_fastpath_enabled(False): {mha.get_fastpath_enabled()}")
with mha.flags(fastpath=True):
    print(f"inside the block: {mha.get_fastpath_enabled()}")
try:
    mha.set_fastpath_enabled("no")
except TypeError as error:
    print(f"refused: {str(error).splitlines()[0]}")
