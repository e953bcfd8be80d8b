"""The switches of backends.cuda: products, attention, the library for linear algebra, the cache of FFT plans.

What needs a GPU is asked for as a program does that must also run without one.
"""

import numpy as np

import backline as torch

cuda = torch.backends.cuda
there = cuda.is_available()
print(f"CUDA: built {cuda.is_built()}, available {there}")

print("\nProducts")
cuda.matmul.allow_tf32 = True
cuda.matmul.allow_fp16_reduced_precision_reduction = False
print(f"  allow_tf32 {cuda.matmul.allow_tf32}, so fp32_precision {cuda.matmul.fp32_precision}")
print(f"  float16 sums in float16: {cuda.matmul.allow_fp16_reduced_precision_reduction}")

print("\nWhat tf32 does to a product of random 512 x 512 matrices")
a = np.random.default_rng(0).standard_normal((512, 512), np.float32)
exact = a.astype(np.float64) @ a
if there and cuda.is_built():
    import cupy

    operand, back = cupy.asarray(a), cupy.asnumpy
else:
    print("  no CUDA device that can be used here: the CPU does it, and rounds the numbers as such a device would")
    operand, back = a, np.asarray
for word in ("highest", "high"):
    torch.set_float32_matmul_precision(word)
    with torch.backends.flags(emulate=operand is a):
        error = np.abs(back(torch.matmul(operand, operand)) - exact).max() / np.abs(exact).max()
    ran = torch.explain()
    print(f"  {word:<8} on {ran.library:<9} {ran.effective_precision:<16} largest error, of the largest element: {error:.0e}")

print("\nLinear algebra")
try:
    cuda.preferred_linalg_library("cusolver")
except torch.errors.BackendUnavailable as error:
    print(f"  refused: {str(error).splitlines()[0]}")
print(f"  preferred: {cuda.preferred_linalg_library()}")

print("\nThe cache of FFT plans")
if there:
    cuda.cufft_plan_cache[0].max_size = 10
    print(f"  device 0 keeps at most {cuda.cufft_plan_cache[0].max_size}")
    cuda.cufft_plan_cache.clear()
print(f"  {cuda.cufft_plan_cache.size} plans kept, at most {cuda.cufft_plan_cache.max_size}")

print("\nAttention, on arrays of every device")


def show(when: str) -> None:
    kernels = {
        "flash": cuda.flash_sdp_enabled(), "memory-efficient": cuda.mem_efficient_sdp_enabled(),
        "math": cuda.math_sdp_enabled(), "cuDNN": cuda.cudnn_sdp_enabled(),
    }  # fmt: skip
    print(f"  {when:<30} {', '.join(name for name, enabled in kernels.items() if enabled)}")


show("at the start")
cuda.enable_flash_sdp(False)
show("enable_flash_sdp(False)")
SDPBackend, sdpa_kernel = torch.nn.attention.SDPBackend, torch.nn.attention.sdpa_kernel
with sdpa_kernel(SDPBackend.MATH):
    show("sdpa_kernel(MATH)")
with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
    show("sdpa_kernel([FLASH, MATH])")
show("after the blocks")
