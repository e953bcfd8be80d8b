"""cuDNN's switches, as they stand at the top of many training scripts. They are all there on a machine without a GPU, too."""

import numpy as np

import backline as torch

cudnn = torch.backends.cudnn


def show(when: str) -> None:
    values = ", ".join(f"{name}={getattr(cudnn, name)}" for name in ("enabled", "benchmark", "deterministic", "allow_tf32"))
    print(f"  {when:<24} {values}")


print(f"cuDNN: {cudnn.version() if cudnn.is_available() else 'not on this machine'}")
show("at the start")

cudnn.benchmark = True  # time the plans of a convolution once per shape
cudnn.benchmark_limit = 5
show("benchmark = True")

# For one block, the same result every time. What is not named stays as it is.
with cudnn.flags(deterministic=True, allow_tf32=False):
    show("inside flags(...)")
show("after the block")

print("\nPrecision, for convolutions and recurrent networks apart")
cudnn.conv.fp32_precision = "ieee"
cudnn.rnn.fp32_precision = "tf32"
print(f"  conv {cudnn.conv.fp32_precision}, rnn {cudnn.rnn.fp32_precision}: both tf32 (allow_tf32)? {cudnn.allow_tf32}")
with cudnn.conv.flags(fp32_precision="tf32"):
    print(f"  conv {cudnn.conv.fp32_precision}, rnn {cudnn.rnn.fp32_precision}: both tf32 (allow_tf32)? {cudnn.allow_tf32}")

array = np.zeros((8, 3, 32, 32), np.float32)
print(f"\nWould cuDNN take an array of NumPy? {cudnn.is_acceptable(array)}")

cudnn.enabled = False
show("enabled = False")
