"""MKL: its own account of what it does, around a computation."""

import numpy as np

import backline as torch

mkl = torch.backends.mkl
rng = np.random.default_rng(0)
a = rng.standard_normal((200, 100), np.float32)

print(f"MKL: {mkl.version() if mkl.is_available() else 'not on this machine'}")
if mkl.is_available():
    print("\nThe lines of MKL itself:", flush=True)
    with torch.use("mkl"), mkl.verbose(mkl.VERBOSE_ON) as log:
        gram = torch.matmul(a.T, a)
        with mkl.verbose(mkl.VERBOSE_OFF):
            gram = torch.matmul(a.T, a)  # scopes nest: this one is silent
        torch.linalg.cholesky(gram + np.eye(100, dtype=np.float32))
    print("\nThe same calls, collected:")
    print(log.table())

with mkl.flags(enabled=False):
    print(f"\nWithout MKL a product runs on {torch.explain(torch.matmul, a.T, a).library}")
