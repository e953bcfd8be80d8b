"""The compiled loops of Backline itself: depthwise convolutions, relu, softmax, pooling gradients; and calls without them."""

import numpy as np

import backline as torch

ours = torch.backends.kernels
functional, grad = torch.nn.functional, torch.nn.grad
rng = np.random.default_rng(0)
x = rng.standard_normal((64, 1000))
images, weights = rng.standard_normal((2, 8, 32, 32)), rng.standard_normal((8, 1, 3, 3))

with torch.use("kernels", only=True):
    for name, operation, args, keywords in (
        ("log_softmax", functional.log_softmax, (x, 1), {}),
        ("relu's gradient", grad.relu_input, (x, x), {}),
        ("conv2d", functional.conv2d, (images, weights), {"groups": 8}),
    ):
        operation(*args, **keywords)
        print(f"{name:<16} {torch.explain().library} {torch.explain().algorithm}")

with torch.use("numpy", only=True):
    print(f"NumPy alone: {torch.explain(grad.relu_input, x, x).library}")
with ours.flags(enabled=False):
    print(f"Without the loops a gradient runs on {torch.explain(grad.relu_input, x, x).library}")
print(torch.explain(functional.conv2d, images, weights, groups=8))
