"""FFTW: how its plans are made, and how many are kept."""

import numpy as np

import backline as torch

fftw = torch.backends.fftw
x = np.random.default_rng(0).standard_normal((4, 1000))

print(f"FFTW: {fftw.version() if fftw.is_available() else 'not on this machine'}, planning by {fftw.planning}")
if fftw.is_available():
    with torch.use("fftw"):
        for _ in range(3):
            torch.fft.rfft(x)
        print(f"{fftw.fft_plan_cache}: {fftw.fft_plan_cache.hits} hits")
        with fftw.flags(planning="measure", plan_time_limit=1.0):
            torch.fft.rfft(x)
            print(f"inside the block: {torch.explain().algorithm}")
try:
    fftw.planning = "thorough"
except torch.errors.BadValue as error:
    print(f"refused: {error}")
with fftw.flags(enabled=False):
    print(f"Without FFTW a transform runs on {torch.explain(torch.fft.rfft, x).library}")
