"""The general switches: precision of float32 inputs, scopes, where a value comes from, and freezing them all.

Written as for torch.backends; lines marked "own" use what Backline has besides.
"""

import numpy as np

import backline as torch

backends = torch.backends

print("One setting for every backend, and exceptions below it")
backends.fp32_precision = "tf32"
backends.mkldnn.fp32_precision = "ieee"
for name, node in (
    ("fp32_precision", backends),
    ("cuda.matmul.fp32_precision", backends.cuda.matmul),
    ("cudnn.conv.fp32_precision", backends.cudnn.conv),
    ("mkldnn.fp32_precision", backends.mkldnn),
    ("mkldnn.matmul.fp32_precision", backends.mkldnn.matmul),
):
    print(f"  {name:<30} {node.fp32_precision}")

print("\nset_flags returns what was there; flags holds for a block and changes only what it names")
before = backends.set_flags("ieee")
print(f"  set_flags('ieee') returned {before}")
with backends.flags(fp32_precision="none"):
    print(f"  inside the block   {backends.fp32_precision}")
print(f"  after it           {backends.fp32_precision}")

print("\nOwn: the precision in effect, for each library of this machine")
print("\n".join(f"  {line}" for line in str(backends.effective_precision()).splitlines()[:6]))

print("\nOwn: threads, determinism and preferences are switches of the same kind")
a = np.ones((256, 256), np.float32)
with backends.flags(num_threads=1, prefer=("numpy",)):
    print(f"  {torch.explain(torch.matmul, a, a).lines()[1][1]}")

print("\nA slip of the pen does not pass for a setting")
try:
    backends.fp32_precison = "ieee"
except AttributeError as error:
    print(f"  {str(error).splitlines()[0]}")

print("\nFrozen: the process keeps its values, and blocks still work")
backends.disable_global_flags()
try:
    backends.fp32_precision = "tf32"
except RuntimeError as error:
    print(f"  {str(error).splitlines()[0]}")
with backends.flags(fp32_precision="tf32"):
    print(f"  inside a block     {backends.fp32_precision}, frozen: {backends.flags_frozen()}")
