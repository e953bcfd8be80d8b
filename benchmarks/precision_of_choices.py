"""The precision of what is chosen, on random shapes: ``python benchmarks/precision_of_choices.py [--count N] [--seed N]``.

Each case is a Problem of a random operation, dtype and shape. What is chosen for it under the default switches, with nothing
tuned, and every other algorithm that those permit run on the same random operands; their errors against a wider format are
counted as equivalent mantissa bits (docs/precision.md). Printed are the cases in which the choice loses most against the best
algorithm, and how many lose how much. The exit status is 1 where one loses more than its family's bound (2 bits).
``--case N`` runs one alone, and lists all its algorithms.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections import Counter
from collections.abc import Callable

os.environ["BACKLINE_CONFIG"] = os.environ["BACKLINE_TUNING"] = ""  # nothing that is set or tuned on this machine

WORST = 25  # cases that are printed
FLOATS, HALVES = ("f32", "f64"), ("f16", "bf16")
COMPLEX = ("c64", "c128")


def size(rng: random.Random, most: int) -> int:
    """A size up to `most`, small ones as often as large ones."""
    return round(2 ** rng.uniform(0, math.log2(most)))


def sizes(rng: random.Random, most: int, number: int) -> list[int]:
    """Several sizes whose product is at most `most`, in any order."""
    found, left = [], float(most)
    for _ in range(number):
        found.append(size(rng, max(int(left), 1)))
        left /= found[-1]
    rng.shuffle(found)
    return found


def product(rng: random.Random, dtype: str) -> list[int]:
    """Sizes of a product whose operands and result are not large; of 16-bit floats NumPy takes long."""
    most = 1 << (16 if dtype in HALVES else 20)
    while True:
        m, k, n = sizes(rng, most, 3)
        if max(m * k, k * n, m * n) <= 1 << 16:
            return [m, k, n]


def matmul(rng: random.Random) -> str:
    dtype = rng.choice((*FLOATS, *FLOATS, *COMPLEX, *HALVES))
    m, k, n = product(rng, dtype)
    a, b = rng.choice(("", ":F")), rng.choice(("", ":F"))
    kind = rng.random()
    if kind < 0.1:
        return f"matmul {dtype} {m * k}  {m * k}"
    if kind < 0.2:
        return f"matmul {dtype} {m}x{k}{a} {k}"
    if kind < 0.35:
        items, m, k, n = sizes(rng, 1 << 16, 4)
        return f"matmul {dtype} {items}x{m}x{k} {items}x{k}x{n}"
    return f"matmul {dtype} {m}x{k}{a} {k}x{n}{b}"


def linear(rng: random.Random) -> str:
    dtype = rng.choice((*FLOATS, *HALVES))
    m, k, n = product(rng, dtype)
    bias, activation = rng.choice(("", f" {n}")), rng.choice(("", " activation=relu"))
    return f"linear {dtype} {m}x{k} {n}x{k}{bias}{activation}"


def conv(rng: random.Random) -> str:
    dtype, rank = rng.choice((*FLOATS, *FLOATS, *HALVES)), rng.choice((1, 2, 2, 2, 3))
    groups = rng.choice((1, 1, 1, 2, 4))
    c, o, batch = size(rng, 64), size(rng, 64), rng.choice((1, 1, 2))
    if rng.random() < 0.15:
        groups, c, o = size(rng, 96), 1, 1
    image = [size(rng, {1: 200, 2: 20, 3: 7}[rank]) for _ in range(rank)]
    kernel = [rng.choice((1, 2, 3, 3, 5, 7)) for _ in range(rank)]
    stride, padding = rng.choice((1, 1, 2)), [n // 2 for n in kernel]
    points = [(n + 2 * p - k) // stride + 1 for n, k, p in zip(image, kernel, padding, strict=True)]
    rest = f"stride={_x([stride] * rank)} padding={_x(padding)} groups={groups}{rng.choice(('', ' last'))}"
    images, grads = f"{batch}x{c * groups}x{_x(image)}", f"{batch}x{o * groups}x{_x(points)}"
    weights = f"{o * groups}x{c}x{_x(kernel)}"
    kind = rng.random()
    if kind < 0.1 and dtype in FLOATS:
        return f"conv_grad_input {dtype} {weights} {grads} {rest} result={images}"
    if kind < 0.2 and dtype in FLOATS:
        return f"conv_grad_weight {dtype} {images} {grads} {rest} result={weights}"
    return f"conv {dtype} {images} {weights} {rest}"


def _x(numbers: list[int]) -> str:
    return "x".join(map(str, numbers))


def linalg(rng: random.Random) -> str:
    dtype, n = rng.choice((*FLOATS, *COMPLEX)), size(rng, 100)
    m, k, batch = n + size(rng, 60), size(rng, 40), rng.choice(("", "", "", f"{size(rng, 10)}x"))
    if batch:
        n, m = min(n, 40), min(m, 60) if min(m, 60) >= min(n, 40) else min(n, 40)
    square, tall, sides = f"{batch}{n}x{n}", f"{batch}{m}x{n}", f"{batch}{n}x{k}"
    return rng.choice((
        f"linalg.cholesky {dtype} {square}", f"linalg.lu_factor {dtype} {square}", f"linalg.inv {dtype} {square}",
        f"linalg.solve {dtype} {square} {sides}", f"linalg.qr {dtype} {tall}", f"linalg.eigh {dtype} {square}",
        f"linalg.eigvalsh {dtype} {square}", f"linalg.eig {dtype} {square}", f"linalg.eigvals {dtype} {square}",
        f"linalg.svd {dtype} {tall}", f"linalg.svdvals {dtype} {tall}", f"linalg.lstsq {dtype} {tall} {batch}{m}x{k}",
        f"cholesky_solve {dtype} {sides} {square}", f"cholesky_inverse {dtype} {square}",
        f"linalg.solve_triangular {dtype} {square} {sides} upper={rng.choice((True, False))}",
        f"linalg.ldl_factor {dtype} {square}", f"linalg.householder_product {dtype} {tall} {batch}{n}",
    ))  # fmt: skip


def fft(rng: random.Random) -> str:
    real, n, rows = rng.choice(FLOATS), size(rng, 1 << 15), rng.choice((1, 1, 2, 5))
    if rng.random() < 0.3:
        n = next(p for p in range(max(n, 2), 2 * n + 3) if all(p % q for q in range(2, math.isqrt(p) + 1)))
    wide = "c64" if real == "f32" else "c128"
    if rng.random() < 0.25:
        shape = _x(sizes(rng, 1 << 13, rng.choice((2, 3))))
        return rng.choice((f"fft.fftn {wide} {shape}", f"fft.rfftn {real} {shape}"))
    return rng.choice((
        f"fft.fft {wide} {rows}x{n}", f"fft.ifft {wide} {rows}x{n}", f"fft.rfft {real} {rows}x{n}",
        f"fft.irfft {wide} {rows}x{n // 2 + 1} n={n}", f"fft.dct {real} {rows}x{max(n, 2)} type={rng.choice((2, 3, 4))}",
    ))  # fmt: skip


def layer(rng: random.Random) -> str:
    rows, n = sizes(rng, 1 << 14, 2)
    dtype = rng.choice((*FLOATS, *FLOATS, *HALVES))
    op = rng.choice(("gelu", "silu", "tanh", "sigmoid", "softmax", "log_softmax", "layer_norm", "batch_norm", "avg_pool2d"))
    if op.endswith("softmax"):
        return f"{op} {dtype} {rows}x{n} dim={rng.choice((0, 1))}"
    if op == "layer_norm":
        return f"{op} {dtype} {rows}x{n} normalized_shape=({n},)"
    if op == "batch_norm":
        c, h = size(rng, 32), size(rng, 20)
        return f"{op} {dtype} {size(rng, 6)}x{c}x{h}x{h + 1} {c} {c}{rng.choice(('', ' training=True'))}"
    if op == "avg_pool2d":
        image, kernel = f"{8 + size(rng, 30)}x{8 + size(rng, 30)}", f"{size(rng, 8)}x{size(rng, 8)}"
        return f"{op} {rng.choice(FLOATS)} 1x{size(rng, 16)}x{image} kernel_size={kernel}"
    if rng.random() < 0.25:
        return f"nn.grad.{op}_input {rng.choice(FLOATS)} {rows}x{n} {rows}x{n}"
    return f"{op} {dtype} {rows}x{n}"


def attention(rng: random.Random) -> str:
    lead, q, k, d = f"1x{size(rng, 4)}", size(rng, 200), size(rng, 300), size(rng, 80)
    causal = rng.choice(("", " is_causal=True")) if q <= k else ""
    return f"scaled_dot_product_attention {rng.choice((*FLOATS, *HALVES))} {lead}x{q}x{d} {lead}x{k}x{d} {lead}x{k}x{d}{causal}"


def recurrent(rng: random.Random) -> str:
    mode = rng.choice(("lstm", "gru", "rnn_tanh", "rnn_relu"))
    return f"{mode} {rng.choice(FLOATS)} {size(rng, 40)}x{size(rng, 6)}x{size(rng, 60)} hidden={size(rng, 60)}"


FAMILIES: dict[Callable[[random.Random], str], int] = {
    matmul: 30, linear: 8, conv: 16, linalg: 18, fft: 11, layer: 11, attention: 3, recurrent: 3,
}  # fmt: skip


def text(seed: int, number: int) -> str:
    """The Problem of a case."""
    rng = random.Random(f"{seed}:{number}")
    return rng.choices(list(FAMILIES), list(FAMILIES.values()))[0](rng)


def main() -> int:
    from backline.engine.check_precision import loss_of_choice
    from backline.engine.precision_figures import BOUND, BOUNDS
    from backline.problems import Problem

    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    numbers = range(options.count) if options.case is None else [options.case]
    lost, failed, buckets = [], 0, Counter()
    for number in numbers:
        described = text(options.seed, number)
        problem = Problem.parse(described)
        loss, made = loss_of_choice(problem, options.seed * 1_000_003 + number)
        if not made.samples:
            buckets["exact, or nothing to measure"] += 1
            continue
        chosen, best = made.samples[0], made.best()
        above = loss > BOUNDS.get(problem.family, BOUND)
        failed += above
        buckets[f"{math.floor(loss * 2) / 2:.1f} to {math.floor(loss * 2) / 2 + 0.5:.1f} bits"] += 1
        against = f"{best.algorithm.key} {best.bits:.1f}, plain arithmetic {made.plain:.1f}" if best else "-"
        line = f"{loss:5.2f}  case {number:5}  {described}: {chosen.algorithm.key} {chosen.bits:.1f}, {against}"
        lost.append((loss, line))
        if above:
            print(line, flush=True)
        if options.case is not None:
            for sample in sorted(made.samples, key=lambda s: -s.bits):
                a = sample.algorithm
                print(f"  {sample.bits:6.2f}  {sample.error:.2e}  {a.key} {a.precision} {sample.failed}")
        if number % 100 == 99:
            print(f"{number + 1} of {len(numbers)}", file=sys.stderr, flush=True)
    print(f"\nlargest losses of {len(lost)} cases, seed {options.seed}; bits of the choice and of the best:")
    for _, line in sorted(lost, reverse=True)[:WORST]:
        print(line)
    for bucket, count in sorted(buckets.items()):
        print(f"{count:6}  {bucket}")
    print(f"{failed} choices lose more than their family may")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
