"""oneDNN, under the name it had before: precision on the CPU, determinism, and its own account of what it does."""

import numpy as np

import backline as torch

mkldnn = torch.backends.mkldnn

print(f"oneDNN: {mkldnn.version() if mkldnn.is_available() else 'not on this machine'}")

print("\nPrecision of float32 inputs on the CPU, whichever library runs")
mkldnn.fp32_precision = "bf16"
mkldnn.conv.fp32_precision = "ieee"
for name in ("matmul", "conv", "rnn"):
    print(f"  mkldnn.{name}.fp32_precision  {getattr(mkldnn, name).fp32_precision}")
print(f"  CUDA is left alone: cudnn.fp32_precision is {torch.backends.cudnn.fp32_precision}")

print("\nThe older switch reads the same tree")
mkldnn.set_flags(_fp32_precision="none", _allow_tf32=True)
print(f"  allow_tf32 {mkldnn.allow_tf32}, matmul {mkldnn.matmul.fp32_precision}")

with mkldnn.flags(enabled=True, deterministic=True):
    print(f"\nInside the block: deterministic {mkldnn.deterministic}, allow_tf32 still {mkldnn.allow_tf32}")

print("\nIts own account of what it does, around a computation", flush=True)
try:
    with mkldnn.verbose(mkldnn.VERBOSE_ON) as log:
        torch.matmul(np.eye(3), np.eye(3))
    print(log.table())
except torch.errors.BackendUnavailable as error:
    print(f"  {error}")
with mkldnn.verbose(mkldnn.VERBOSE_OFF) as log:  # silence can always be had
    torch.matmul(np.eye(3), np.eye(3))
print(f"  in the silent block: {log.table()}")
