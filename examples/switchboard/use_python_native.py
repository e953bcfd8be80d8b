"""Kernels written in Python: languages, operations and kinds of device that may use them."""

import backline as torch

python_native = torch.backends.python_native
print(f"languages: {python_native.all_dsls}, of which are here: {python_native.available_dsls}")
for name in python_native.all_dsls:
    print(f"  {getattr(python_native, name)!r}, operations: {python_native.get_dsl_operations(name)}")

python_native.triton.disable()
print(f"\ntriton disabled: {python_native.is_dsl_disabled('triton')}")
python_native.triton.enable()
with python_native.triton.disabled():
    print(f"for a block: {python_native.is_dsl_disabled('triton')}")
print(f"after it: {python_native.is_dsl_disabled('triton')}")

python_native.disable_operations("matmul")
with python_native.operations_disabled("scaled_dot_product_attention"):
    names = ("matmul", "scaled_dot_product_attention", "softmax")
    print(f"\noperations disabled in the block: {[n for n in names if python_native.is_operation_disabled(n)]}")
python_native.enable_operations("matmul")
python_native.disable_dispatch_keys("CUDA")
