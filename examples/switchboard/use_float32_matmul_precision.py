"""set_float32_matmul_precision, and what it does to a result: tf32 and bf16 on any machine, by rounding the inputs.

On hardware that has tf32 or bf16 a product becomes faster and its error larger. How much larger can be measured before there is
such hardware: with `emulate` on, the inputs are rounded as it would round them.
"""

import numpy as np

import backline as torch

N = 512
rng = np.random.default_rng(0)
a = rng.standard_normal((N, N), np.float32)
b = rng.standard_normal((N, N), np.float32)
exact = a.astype(np.float64) @ b.astype(np.float64)
size = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
ROUNDING = {"tf32": 2.0**-11, "bf16": 2.0**-8}  # of one input, at most

print(f"Product of two float32 matrices, {N}x{N}; errors against float64")
print(f"  {'word':<8} {'asked for':<10} {'computed in':<17} {'largest error':>13} {'relative':>9} {'bound':>9}")
for word in ("highest", "high", "medium"):
    torch.set_float32_matmul_precision(word)
    with torch.backends.flags(emulate=True):
        choice = torch.explain(torch.matmul, a, b)
        error = np.abs(torch.matmul(a, b) - exact)
    rounding = ROUNDING.get(choice.requested_precision, 0.0)
    bound = 2 * rounding + rounding**2 + N * 2.0**-24  # both inputs, and float32 sums
    assert (error <= bound * size).all()
    print(
        f"  {word:<8} {choice.requested_precision:<10} {choice.effective_precision:<17} {error.max():13.1e} "
        f"{(error / size).max():9.1e} {bound:9.1e}"
    )

assert torch.get_float32_matmul_precision() == "medium"
choice = torch.explain(torch.matmul, a, b)
used = choice.effective_precision == choice.requested_precision
print(f"\nWithout emulate, asked for {choice.requested_precision}, this machine computes in {choice.effective_precision}.")
print("A precision is a permission; " + ("here it is made use of." if used else "no library here can make use of it."))
