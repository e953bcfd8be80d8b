"""Engines for int8: which are there, which is used."""

import backline as torch

quantized = torch.backends.quantized
print(f"engines here, the best first: {quantized.supported_engines}")
print(f"in use: {quantized.engine}")
quantized.engine = quantized.supported_engines[-1]
print(f"set to: {quantized.engine}")
for wrong in ("none", "fbgem"):
    try:
        quantized.engine = wrong
    except ValueError as error:
        print(f"refused: {str(error).splitlines()[0]}")
with quantized.flags(engine=quantized.supported_engines[0]):
    print(f"inside the block: {quantized.engine}")
