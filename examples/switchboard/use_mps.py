"""MLX on Apple silicon: is it there, and on what."""

import backline as torch

mps = torch.backends.mps
print(f"MLX importable: {mps.is_built()}")
print(f"Metal available: {mps.is_available()}")
print(f"macOS 14 or newer: {mps.is_macos_or_newer(14, 0)}")
if mps.is_available():
    print(f"{mps.get_name()}, {mps.get_core_count()} cores")
else:
    try:
        mps.get_name()
    except torch.errors.BackendUnavailable as error:
        print(f"no name: {str(error).splitlines()[0]}")
with mps.flags(enabled=False):
    print(f"inside the block MLX arrays compute on the CPU: enabled {mps.enabled}")
