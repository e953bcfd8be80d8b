"""SciPy: its compiled transforms, with a cache of what was prepared; and Backline under scipy.fft."""

import numpy as np

import backline as torch

ours = torch.backends.scipy
x = np.random.default_rng(0).standard_normal((4, 1000))

print(f"SciPy: {ours.version() if ours.is_available() else 'not on this machine'}")
if ours.is_available():
    with torch.use("scipy", only=True):
        torch.fft.dct(x)
        print(f"a cosine transform ran on {torch.explain().library}")
    import scipy.fft

    with scipy.fft.set_backend(torch.interop.scipy_fft):
        spectrum = scipy.fft.rfft(x)
    print(f"scipy.fft.rfft ran on {torch.explain().library}")
with ours.flags(enabled=False):
    print(f"Without SciPy a cosine transform runs on {torch.explain(torch.fft.dct, x).library}")
