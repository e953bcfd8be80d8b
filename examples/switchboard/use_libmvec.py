"""libmvec: exponentials, logarithms and sines by the vector functions of the C library; and how far they are from NumPy's."""

import numpy as np

import backline as torch

libmvec = torch.backends.libmvec
print(f"libmvec available: {libmvec.is_available()}, of the C library {libmvec.version()}")
x = np.linspace(0.1, 30.0, 100_000)

for name in ("exp", "log", "sin"):
    with torch.use("libmvec"):
        result = getattr(torch, name)(x)
    ran = torch.explain()
    expected = getattr(np, name)(x)
    units = np.max(np.abs(result - expected) / np.spacing(np.abs(expected)))
    print(f"{name:<4} {ran.library} {ran.algorithm}, at most {units:.0f} units in the last place from NumPy's")

with libmvec.flags(enabled=False):
    print(f"Without it sines run on {torch.explain(torch.sin, x).library}")
