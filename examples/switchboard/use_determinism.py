"""use_deterministic_algorithms and what belongs to it: which algorithms may run, and what new memory holds."""

import numpy as np

import backline as torch

a = np.random.default_rng(0).standard_normal((500, 500))
torch.set_num_threads(2)


def show(when: str) -> None:
    choice = torch.explain(torch.matmul, a, a)
    promise = dict(choice.lines())["same bits"]
    print(f"  {when:<34} {choice.library} {choice.algorithm} x{choice.chosen.threads}: same bits {promise}")


print("Which algorithm runs a product on two threads, and what it promises")
show("nothing asked for")
torch.use_deterministic_algorithms(True)
print(f"  on: {torch.are_deterministic_algorithms_enabled()}, debug mode {torch.get_deterministic_debug_mode()}")
show("the same bits from run to run")
torch.use_deterministic_algorithms(True, warn_only=True, level="threads")
print(f"  warn only: {torch.is_deterministic_algorithms_warn_only_enabled()}, mode {torch.get_deterministic_debug_mode()}")
show("for any number of threads, too")

print("\nNew memory is filled while determinism is on, so that reading what nobody wrote shows")
print(f"  {torch.empty(3)}, {torch.empty(3, np.int8)}")
torch.utils.deterministic.fill_uninitialized_memory = False
torch.set_deterministic_debug_mode("default")
print(f"  off again: {torch.are_deterministic_algorithms_enabled()}")
