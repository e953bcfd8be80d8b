"""The processor: which instructions it has, and how much of that libraries may use."""

import backline as torch

cpu = torch.backends.cpu
print(f"Libraries may use {cpu.get_cpu_capability()}")
with cpu.flags(capability="default"):
    print(f"capped, for a block: {cpu.get_cpu_capability()}")
print(f"and again {cpu.get_cpu_capability()}")
elsewhere = "avx512" if cpu.get_cpu_capability() == "Z VECTOR" else "zvector"  # of another architecture
try:
    with cpu.flags(capability=elsewhere):
        pass
except ValueError as error:
    print(f"\n{error}")
