"""OpenMP: which runtimes are in the process, how many threads they use, and one thread for a block."""

import numpy as np

import backline as torch

openmp = torch.backends.openmp
a = np.ones((1000, 1000), np.float32)
torch.set_num_threads(2)

print(f"OpenMP available: {openmp.is_available()}")
torch.matmul(a, a)  # libraries load when they are first needed, and bring their runtimes along
print(f"version {openmp.version()}; in this process:")
for runtime in openmp.runtimes():
    print(f"  {runtime}: {runtime.threads or 'an unknown number of'} threads")


def show(when: str) -> None:
    with torch.use("openblas"):
        choice = torch.explain(torch.matmul, a, a)
    print(f"  {when:<20} {choice.library} on {choice.chosen.threads} thread{'s' if choice.chosen.threads > 1 else ''}")


print("A product of 1000x1000")
show("as it is")
with openmp.num_threads(1):
    show("num_threads(1)")
with openmp.flags(enabled=False):
    show("enabled = False")
print(torch.__config__.parallel_info())
