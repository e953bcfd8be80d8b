"""Programs that call NumPy and SciPy, as they are and tuned: ``python benchmarks/tuned_programs.py [SCRIPT ...]``.

Each script is tuned once, into a tuning file of its own; then it runs in turn as it is and tuned, and the least time of each
counts: of all its calls of BLAS and LAPACK, and of the whole script with the exchange. Without scripts there are four small
programs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import random
import tempfile

PROGRAMS = {
    "least squares and PCA": """
import numpy as np
rng = np.random.default_rng(0)
x = rng.standard_normal((1500, 120))
for _ in range(6):
    u, s, v = np.linalg.svd(x - x.mean(0), full_matrices=False)
    w = np.linalg.lstsq(x, x @ np.ones(120), rcond=None)[0]
    c = np.linalg.eigh(x.T @ x)[0]
print(round(float(s[0]), 6), round(float(w.sum()), 6), round(float(c[-1]), 3))
""",
    "Gaussian process": """
import numpy as np, scipy.linalg
rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 10, 400))
for length in np.linspace(0.5, 2, 8):
    k = np.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 0.1 * np.eye(400)
    factor = scipy.linalg.cho_factor(k, lower=True)
    alpha = scipy.linalg.cho_solve(factor, np.sin(x))
    v = scipy.linalg.solve_triangular(factor[0], k, lower=True)
    print(round(float(alpha @ np.sin(x)), 5), round(float(np.trace(v.T @ v)), 3))
""",
    "Kalman filter of 8 states": """
import numpy as np
rng = np.random.default_rng(0)
a, q, h = np.eye(8) * 0.99 + 0.01 * rng.standard_normal((8, 8)), np.eye(8) * 0.1, rng.standard_normal((3, 8))
p, x = np.eye(8), np.zeros(8)
for z in rng.standard_normal((20000, 3)):
    x, p = a @ x, a @ p @ a.T + q
    k = p @ h.T @ np.linalg.inv(h @ p @ h.T + np.eye(3))
    x, p = x + k @ (z - h @ x), p - k @ h @ p
print(round(float(x[0]), 6))
""",
    "matrix functions": """
import numpy as np, scipy.linalg
a = np.random.default_rng(0).standard_normal((250, 250)) / 16
for _ in range(5):
    e = scipy.linalg.expm(a)
    r = scipy.linalg.sqrtm(a @ a.T + np.eye(250))
    q, t = scipy.linalg.qr(a, pivoting=True)[:2]
print(round(float(np.trace(e)), 6), round(float(np.trace(r)), 6), round(float(abs(t[0, 0])), 6))
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("scripts", nargs="*", help="scripts without arguments, instead of the programs here")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of measuring for each script")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BACKLINE_SHARE_PROCESSORS"] = "0"
        scripts = {os.path.basename(name): name for name in args.scripts}
        for title, text in {} if scripts else PROGRAMS.items():
            scripts[title] = os.path.join(folder, f"program{len(scripts)}.py")
            with open(scripts[title], "w", encoding="utf-8") as file:
                file.write(text)
        print(f"{'seconds':28}{'calls':>9}{'tuned':>9}{'':8}{'script':>9}{'tuned':>9}{'':8}output")
        gains = [row(title, path, os.path.join(folder, f"{i}.sqlite"), args) for i, (title, path) in enumerate(scripts.items())]
        print(f"geometric mean, of the calls: {math.exp(sum(map(math.log, gains)) / len(gains)):.2f}x")


def row(title: str, path: str, tuning: str, args: argparse.Namespace) -> float:
    """Prints the row of one script, and returns the gain of its calls."""
    os.environ["BACKLINE_TUNING"] = tuning
    from backline.engine.tuning import record_store
    from backline.interop import program_runs, tune_program
    from backline.interop.output_comparison import compare

    record_store.reload()
    with contextlib.redirect_stdout(io.StringIO()):  # the script's own output
        report = tune_program.tune_program([path], tune_program.recorded([path]), budget=args.budget)
    least: dict[str, list[float]] = {"numpy": [math.inf, math.inf], "tuned": [math.inf, math.inf]}
    outputs = {}
    for _ in range(args.rounds):
        for choice in random.sample(list(least), 2):
            run = program_runs.run(choice, [path], {}, show=False)
            least[choice] = [min(least[choice][0], run.in_calls), min(least[choice][1], run.seconds)]
            outputs[choice] = run.output
    cells = "".join(
        f"{least['numpy'][i]:9.3f}{least['tuned'][i]:9.3f}{least['numpy'][i] / least['tuned'][i]:7.2f}x" for i in (0, 1)
    )
    compared = compare(outputs["numpy"], outputs["tuned"])
    print(f"{title:28}{cells}  {report.choice.home or 'stays'}; {compared}", flush=True)
    return least["numpy"][0] / least["tuned"][0]


if __name__ == "__main__":
    main()
