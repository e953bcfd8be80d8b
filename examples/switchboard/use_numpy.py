"""The libraries that run products and linear algebra on the CPU, each with its own module: numpy, openblas, blis and mkl."""

import numpy as np

import backline as torch

NAMES = ("numpy", "openblas", "blis", "mkl")
a = np.random.default_rng(0).standard_normal((100, 100))

for name in NAMES:
    module = getattr(torch.backends, name)
    if module.is_available():
        with torch.use(name, only=True):
            torch.matmul(a, a)
            print(f"{name:<9} {module.version():<10} {torch.explain().library} {torch.explain().algorithm}")
    else:
        print(f"{name:<9} not on this machine")

print("\nAll of them off but NumPy's own:")
for name in ("openblas", "blis", "mkl"):
    getattr(torch.backends, name).enabled = False
print(torch.explain(torch.linalg.solve, a, a))
