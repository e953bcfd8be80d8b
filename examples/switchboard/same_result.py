"""Recipe: the same result every time, whatever the number of threads, and what it costs in choice.

A sum depends on the order of its terms, and libraries divide sums among threads. So the last bits of a result can change with the
number of threads. `deterministic` with the level "threads" allows only what gives the same bits for any number of them.
"""

import hashlib

import numpy as np

import backline as torch

THREADS = (1, 2, 3)
rng = np.random.default_rng(0)
tall = rng.standard_normal((20000, 12), np.float32)
square = rng.standard_normal((500, 500), np.float32)
CALLS = {
    "matmul, long sums": (torch.matmul, tall.T, tall),
    "matmul": (torch.matmul, square, square),
    "linalg.cholesky": (torch.linalg.cholesky, square @ square.T + 500 * np.eye(500, dtype=np.float32)),
    "linalg.solve": (torch.linalg.solve, square, square[:, :50]),
    "linalg.svdvals": (torch.linalg.svdvals, square[:, :120]),
}


def bits(*call) -> str:
    """A short digest of every bit of a result."""
    function, *arrays = call
    return hashlib.sha256(np.ascontiguousarray(function(*arrays)).tobytes()).hexdigest()[:8]


def table() -> dict[str, bool]:
    print(f"  {'operation':<18} " + " ".join(f"{f'{n} thread' + 's' * (n > 1):<10}" for n in THREADS) + " bits       run on")
    same = {}
    for name, call in CALLS.items():
        found, ways = [], []
        for n in THREADS:
            with torch.num_threads(n):
                found.append(bits(*call))
                choice = torch.explain()
                ways.append(f"{choice.library} {choice.algorithm} x{choice.chosen.threads}")
        same[name] = len(set(found)) == 1
        verdict = "the same" if same[name] else "DIFFERENT"
        digests, who = " ".join(f"{digest:<10}" for digest in found), ", ".join(dict.fromkeys(ways))
        print(f"  {name:<18} {digests} {verdict:<9}  {who}")
    return same


def main() -> None:
    print("As it is")
    free = table()

    print('\ndeterministic = True, determinism_level = "threads"')
    with torch.backends.flags(deterministic=True, determinism_level="threads"):
        held = table()
        choice = torch.explain(*CALLS["matmul"])
    assert all(held.values())
    print(f"\n{sum(free.values())} of {len(CALLS)} were the same by themselves; now all of them are.")

    print("\nWhat it did to one of them (matmul):")
    print(f"  runs on {choice.library} {choice.algorithm}: same bits {dict(choice.lines())['same bits']}")
    for name, (value, origin) in choice.switches.items():
        print(f"  {name} = {value}, {origin.replace(__file__, 'same_result.py')}")
    refused = [c for c in choice.candidates if c.switch == "determinism_level"]
    if refused:
        print(f"  refused, as another number of threads would change the bits: {len(refused)} candidates")
        print(f"    {', '.join(dict.fromkeys(f'{c.library} {c.algorithm}' for c in refused))}")
        print(f"    the first of them {refused[0].reason}")
    else:
        print("  nothing was refused: every candidate keeps that promise")


if __name__ == "__main__":
    main()
