"""The launcher: how its options are read, and what it knows of this machine. Nothing is started here.

To start two instances of a script, each on its own cores:

    python -m backline.backends.xeon.run_cpu --ninstances 2 script.py
"""

import backline as torch

run_cpu = torch.backends.xeon.run_cpu
arguments = run_cpu.create_args().parse_args(["--ninstances", "2", "--ncores-per-instance", "1", "train.py", "--epochs", "3"])
print(f"instances: {arguments.ninstances}, cores for each: {arguments.ncores_per_instance}")
print(f"program: {arguments.program} {' '.join(arguments.program_args)}")

here = run_cpu.CPUInfo()
print(f"this machine: {here.node_nums} NUMA node{'s' if here.node_nums > 1 else ''}")
print(f"physical cores that may be used: {len(here.get_all_physical_cores())}")
print(f"hardware threads: {len(here.get_all_logical_cores())}")
