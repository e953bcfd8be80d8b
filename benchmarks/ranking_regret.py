"""The quality of predicted choices on shapes that nobody measured: the time of what is chosen over that of the best.

``python benchmarks/ranking_regret.py measure [COUNT] [SEED]`` draws COUNT problems of each kind (default 12) whose sizes are
uniform on a logarithmic scale, measures every algorithm on them, and keeps the times in ``results/regret_shapes_CLASS.json``. Run
it where nothing else runs. Reduced precision takes no part.

``python benchmarks/ranking_regret.py`` compares on those times what several rules would choose: the nearest entry of the shipped
ranking, the predicted times, those with this machine's class left out, those with all but every fourth entry of its file left
out, and, where the tuning file of the user has a calibration, corrected by it. Nothing is run for it.

``python benchmarks/ranking_regret.py entries`` predicts entries of each shipped ranking from the others': with that class left
out, and from every fourth entry of it, with the other classes and without them. Of those over 2 with the class left out it prints
what is known of them; a time is marked where all threads took over 2.5 times what one took, which measuring now repeats.
``python benchmarks/ranking_regret.py neighbours`` predicts each entry from all others of its own ranking that have other sizes.

``python benchmarks/ranking_regret.py repeated FIRST SECOND`` judges on each of two files of one class, whole rankings that one
machine made at two times, what is fastest by the other. Backline's own loops take no part, for they may have changed meanwhile.

``python benchmarks/ranking_regret.py constants`` tells what the constants of the prediction owe to the entries that they are
judged on, the class left out: one of them is set anew to what is best on one half of the entries and judged on the other half,
both ways, where the halves are other operations, other sizes, or drawn.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

import backline
from backline.engine import other_classes, predicted_times, ranking, ranking_files
from backline.engine.algorithm_keys import on_one_thread
from backline.engine.calibration import ALONE, least
from backline.engine.choose import eligible, planner
from backline.engine.tuning import record_store
from backline.engine.tuning.measure import measure_problem
from backline.libraries.base import Algorithm
from backline.native.machine import machine
from backline.problems import Place, Problem, short
from backline.problems.op_registry import import_operations, operations

SMALLEST, LARGEST = 4, 1500
FEWEST = 30  # entries of a family that a line is printed for
WORST = 10  # choices that are printed
ROUNDS = 3  # times that a problem is measured, of which the least times count
RESULTS = Path(__file__).parent / "results"


def drawn(kind: str, rng: random.Random):
    """One problem of a kind, with sizes that are no powers of two."""

    def size(low=SMALLEST, high=LARGEST):
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    dtype = np.dtype(rng.choice(("float32", "float64")))
    n = size()
    if kind == "products":
        return "matmul", (np.empty((n, n), dtype), np.empty((n, n), dtype)), {}
    if kind == "thin products":
        m, k, n = (size() for _ in range(3))
        return "matmul", (np.empty((m, k), dtype), np.empty((k, n), dtype)), {}
    if kind == "matrix times vector":
        return "matmul", (np.empty((size(16, 3000), n), dtype), np.empty((n, 1), dtype)), {}
    if kind == "batches":
        n, items = size(4, 100), size(8, 2000)
        items = min(items, 4_000_000 // (n * n) + 1)
        return "matmul", (np.empty((items, n, n), dtype), np.empty((items, n, n), dtype)), {}
    if kind == "linear algebra":
        op = "linalg." + rng.choice(("cholesky", "lu_factor", "inv", "solve", "qr", "eigh", "svd"))
        n = size(4, 700)
        a = np.empty((n, n), dtype)
        return op, (a, np.empty((n, 16), dtype)) if op == "linalg.solve" else (a,), {}
    if kind == "transforms":
        kind = rng.choice((np.float32, np.float64, np.complex64, np.complex128))
        x = np.empty((rng.choice((1, 1, 40)), size(16, 200_000)), kind)
        return "fft.rfftn" if x.dtype.kind == "f" else "fft.fftn", (x,), {"dim": (1,)}
    if kind == "layers":
        op = rng.choice(("relu", "gelu", "tanh", "softmax", "layer_norm"))
        x = np.empty((size(8, 4000), size(8, 2000)), dtype)
        more = ((x.shape[1],),) if op == "layer_norm" else ()
        return f"nn.functional.{op}", (x, *more), {"dim": -1} if op == "softmax" else {}
    channels, features, side = size(4, 200), size(4, 200), size(7, 60)
    kernel = rng.choice((1, 3, 5))
    x = np.empty((rng.choice((1, 4)), channels, side, side), np.float32)
    return "nn.functional.conv2d", (x, np.empty((features, channels, kernel, kernel), np.float32)), {"padding": kernel // 2}


KINDS = (
    "products", "thin products", "matrix times vector", "batches", "linear algebra", "transforms", "layers", "convolutions",
)  # fmt: skip


def shapes_file() -> Path:
    return RESULTS / f"regret_shapes_{ranking_files.here()}.json"


def measure(count: int, seed: int) -> None:
    """Measures drawn problems; each several times, far apart, for the machine may be busy for a while."""
    import_operations()
    threads, rng = backline.get_num_threads(), random.Random(seed)
    problems = []
    for kind in KINDS:
        for _ in range(count):
            op, arguments, keywords = drawn(kind, rng)
            problem = operations[op].build(*arguments, **keywords)
            problems.append((kind, problem, eligible(problem, threads)))
    records = {}
    for turn in range(ROUNDS):
        for _, problem, able in problems:
            made = measure_problem(problem, able, threads, budget=0.1, limit=5.0, seed=1 + turn, tries=2, planner=planner)
            records[problem.key] = least(made, records[problem.key], able) if problem.key in records else made
        print(f"round {turn + 1} of {ROUNDS}", flush=True)
    rows = [
        {"kind": kind, "problem": problem.key, "busy": record.disturbed,
         "microseconds": {key: round(s * 1e6, 2) for key, s in sorted(record.medians.items(), key=lambda item: item[1])}}
        for kind, problem, _ in problems if len((record := records[problem.key]).medians) > 1
    ]  # fmt: skip
    content = {"machine": machine().cpu.model, "threads": threads, "count": count, "seed": seed}
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    shapes_file().write_text(json.dumps(content)[:-1] + ',\n "rows": [\n  ' + lines + "\n ]}\n", encoding="utf-8")


def nearest_entry(problem: Problem) -> tuple[str, ...]:
    """The order of the entry of the same operation, dtype and class of shapes that is nearest in size."""
    op, dtype, shape_class, work = problem.place()[:4]
    for processors in ranking_files.nearest_classes(ranking_files.here()):
        found = [m for m in ranking_files.measured(processors, op) if m.place[1:3] == (dtype, shape_class)]
        if found:
            return tuple(min(found, key=lambda m: abs(m.place.work - work)).times)
    return ()


def forget() -> None:
    for cache in (
        ranking_files._nearest, ranking_files._read, ranking_files.measured, ranking_files.table, predicted_times._points,
        predicted_times._ordered,
    ):  # fmt: skip
        cache.cache_clear()


@contextmanager
def without_this_class() -> Iterator[None]:
    """The shipped rankings as they would be if nobody had measured this class."""
    others = tuple(c for c in ranking_files._classes() if c != ranking_files.here())
    forget()
    with mock.patch.object(ranking_files, "_classes", lambda: others):
        yield
    forget()


@contextmanager
def with_a_quarter() -> Iterator[None]:
    """The shipped rankings with every fourth entry of this class."""
    read, here = ranking_files._read.__wrapped__, ranking_files.here()

    def sparse(processors):
        found = read(processors)
        return found._replace(rows=found.rows[::4]) if processors == here else found

    forget()
    with mock.patch.object(ranking_files, "_read", sparse):
        yield
    forget()


@contextmanager
def as_they_are() -> Iterator[None]:
    yield


Rule = tuple[Callable[[Problem], tuple[str, ...]], Callable[[], object]]
RULES: dict[str, Rule] = {
    "nearest entry": (nearest_entry, as_they_are),
    "predicted": (partial(ranking.order_of, own=False), as_they_are),
    "class left out": (partial(ranking.order_of, own=False), without_this_class),
    "a quarter of it": (partial(ranking.order_of, own=False), with_a_quarter),
    "calibrated": (ranking.order_of, as_they_are),
}


def taken(flops: float, dtype: str, keys, order) -> str:
    """The first of the candidates by an order, by the rules that hold beside it."""
    precision = "f32 accumulation" if dtype in ranking_files.HALVES else ""
    able = [
        Algorithm(library=k.partition(".")[0], name=k.partition(".")[2][:-2], scaled=k.endswith("@n"), precision=precision)
        for k in keys
    ]
    return min(able, key=lambda a: ranking.place(a, order, flops >= ranking.LARGE)).key


def compare() -> None:
    content = json.loads(shapes_file().read_text(encoding="utf-8"))
    known = sum(bool(r.place) for r in record_store.every())
    rules = {name: rule for name, rule in RULES.items() if name != "calibrated" or known}
    if ranking_files.here() not in ranking_files._classes():
        print("no ranking of this class is shipped: every rule uses those of others")
    problems = [(row, Problem.parse(row["problem"])) for row in content["rows"]]
    found = defaultdict(lambda: defaultdict(list))
    worst = defaultdict(list)
    for name, (rule, context) in rules.items():
        with context():
            for row, problem in problems:
                times = row["microseconds"]
                key = taken(problem.flops, short(problem.dtype), times, rule(problem))
                regret = times[key] / min(times.values())
                found[name][row["kind"]].append(regret)
                worst[name].append((round(regret, 2), problem.key, key, min(times, key=times.get)))
    print(f"{ranking_files.here()}: time of what is chosen over the best; geometric mean, largest, part over 1.1, number over 2")
    print(f"{'':<22}" + "".join(f"{name:>26}" for name in rules))
    for kind in (*KINDS, "all"):
        cells = []
        for name in rules:
            values = found[name][kind] if kind != "all" else [v for k in KINDS for v in found[name][k]]
            cells.append(summary(values))
        print(f"{kind:<22}" + "".join(f"{cell:>26}" for cell in cells))
    for name in rules:
        print(f"worst, {name}:")
        for regret, key, ran, best in sorted(worst[name])[:-6:-1]:
            print(f"  {regret:6.2f}  {key}: {ran}, best {best}")
    kept = {name: content[name] for name in ("machine", "threads", "count", "seed")}
    kept |= {
        "records": known,
        "regret": {name: {k: [round(v, 3) for v in vs] for k, vs in by.items()} for name, by in found.items()},
    }
    (RESULTS / f"ranking_regret_{ranking_files.here()}.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")


def entries() -> None:
    """Prints the regret on the entries of each shipped ranking, predicted from the other classes and from a part of its own."""
    names = ("class left out", "a quarter and others", "a quarter alone")
    print(f"{'':<34}" + "".join(f"{name:>26}" for name in names))
    worst, kept = {}, {}
    for here in ranking_files._classes():
        own, others = ranking_files._read(here).entries(), [c for c in ranking_files._classes() if c != here]
        every = {c: ranking_files._read(c).entries() for c in others}
        rest = [e for i, e in enumerate(own) if i % 4]
        found = [judged(here, every, own), judged(here, {here: own[::4], **every}, rest), judged(here, {here: own[::4]}, rest)]
        families = Counter(j.family for j in found[0])
        for family in [*sorted(f for f, count in families.items() if count >= FEWEST), "all"]:
            columns = [[j.regret for j in each if family in (j.family, "all")] or [1.0] for each in found]
            print(f"{f'{here} {family}':<34}" + "".join(f"{summary(values):>26}" for values in columns))
        for name, each in zip(names, found, strict=True):
            shown = sum(j.regret > 2 for j in each) if name == names[0] else WORST
            worst[f"{here}, {name}"] = sorted(each, reverse=True)[:shown]
            kept[f"{here}, {name}"] = kept_of(each)
    for name, each in worst.items():
        print(f"worst, {name}:")
        for j in each:
            print(f"  {j.regret:6.2f}  {j.problem}: {j.chosen}, best {j.best}{marked(j)}")
    (RESULTS / "ranking_regret_entries.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def neighbours() -> None:
    """Prints the regret on each entry of a shipped ranking, predicted from its entries of other sizes."""
    kept = {}
    for here in ranking_files._classes():
        found = defaultdict(list)
        forget()
        with mock.patch.object(ranking_files, "here", lambda here=here: here):
            for op, dtype in sorted({(e["op"], e["dtype"]) for e in ranking_files._read(here).entries()}):
                points = predicted_times._points(here, op, dtype, predicted_times.SHIPPED_ONLY, 1)
                for m in ranking_files.measured(here, op, dtype):
                    distances = points.distances(m.place)
                    distances[[p.sizes == m.place.sizes for p in points.places]] = math.inf
                    times = {k: t for k, t in m.times.items() if ranking.fineness(k) == 2}
                    if len(times) > 1 and distances.min() < math.inf:
                        order = tuple(points.keys[i] for i in points.predicted(distances).argsort(kind="stable"))
                        family = op.partition(".")[0].partition("_")[0]
                        found[family].append(times[taken(2**m.place.work, dtype, times, order)] / min(times.values()))
        forget()
        every = [value for values in found.values() for value in values]
        shown = {family: values for family, values in sorted(found.items()) if len(values) >= FEWEST}
        for family, values in {**shown, "all": every}.items():
            kept[f"{here} {family}"] = regrets(values)
            print(f"{f'{here} {family}':<34}{summary(values):>26}")
    (RESULTS / "ranking_regret_neighbours.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


class Judged(NamedTuple):
    """Returns the choice for an entry of a ranking."""

    regret: float
    problem: str
    chosen: str
    best: str
    family: str  # the part of the operation's name before the dot
    work: float  # log2 of the operations
    times: dict[str, float]  # those recorded, in microseconds
    expected: dict[str, float]  # those predicted, in proportion to each other


def judged(here, known, test) -> list[Judged]:
    """Returns the choices for entries of a class where these entries of classes are known."""

    def read(processors):
        return ranking_files.Ranking.of(processors, {"cpu": ""}, known[processors])

    found = []
    forget()
    with (
        mock.patch.object(ranking_files, "_read", read), mock.patch.object(ranking_files, "_classes", lambda: tuple(known)),
        mock.patch.object(ranking_files, "here", lambda: here),
        mock.patch.object(ranking, "by_intel", lambda: here.maker == "intel"),
    ):  # fmt: skip
        for e in test:
            times = {k: t for k, t in zip(e["order"], e["microseconds"], strict=True) if ranking.fineness(k) == 2}
            if len(times) > 1:
                place = Place(e["op"], e["dtype"], e["class"], e["size"]).sized_as(e["example"])
                key = taken(2 ** e["size"], e["dtype"], times, predicted_times.order_of(place, own=False))
                family = e["op"].partition(".")[0].partition("_")[0]
                best = min(times, key=times.get)
                regret = times[key] / times[best]
                found.append(Judged(regret, e["example"], key, best, family, e["size"], times, predicted(place)))
    forget()
    return found


def predicted(place: Place) -> dict[str, float]:
    """The times that the rankings alone predict, in proportion to each other."""
    points, distances = predicted_times._near(ranking_files.here(), place, predicted_times.SHIPPED_ONLY)
    return dict(zip(points.keys, (2.0 ** points.predicted(distances)).tolist(), strict=True)) if points else {}


def doubtful(j: Judged) -> bool:
    """Tells whether what was chosen took much longer on all threads than on one: measuring now repeats such a time."""
    return j.times[j.chosen] > ALONE * j.times.get(on_one_thread(j.chosen), math.inf)


def marked(j: Judged) -> str:
    """Recorded and predicted times of what was chosen and of what was best."""
    told = []
    for key in (j.chosen, j.best):
        expected = j.expected.get(ranking.named(key, tuple(j.expected)))
        told.append(f"{j.times[key]:.4g} us, {f'predicted {expected:.2f}' if expected else 'not known'}")
    return f" ({' and '.join(told)}){' doubtful' * doubtful(j)}"


def repeated(first: str, second: str) -> None:
    """Prints the regret of what is fastest by one ranking of this class on the entries of another, both ways."""
    rankings = [json.loads(Path(file).read_text(encoding="utf-8")) for file in (first, second)]
    if {each["provenance"]["cpu"] for each in rankings} != {machine().cpu.model}:
        sys.exit("both files are to be of this machine's processor: the figures are kept by its class")
    known = [{e["example"]: dict(zip(e["order"], e["microseconds"], strict=True)) for e in each["entries"]} for each in rankings]
    kept = {"processor": rankings[1]["provenance"]["cpu"]}
    for name, chooser, judge in (("first on second", *known), ("second on first", *reversed(known))):
        found = []
        for problem in chooser.keys() & judge.keys():
            both = chooser[problem].keys() & judge[problem].keys()
            keys = [k for k in both if ranking.fineness(k) == 2 and not k.startswith("kernels.")]
            if len(keys) > 1:
                times = judge[problem]
                found.append(times[min(keys, key=chooser[problem].get)] / min(times[k] for k in keys))
        kept[name] = regrets(found)
        print(f"{name:<34}{summary(found):>26}")
    (RESULTS / f"ranking_repeated_{ranking_files.here()}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def left_out() -> list[Judged]:
    """The choices for the entries of all classes, each class left out in turn."""
    every = {c: ranking_files._read(c).entries() for c in ranking_files._classes()}
    return [j for here in every for j in judged(here, {c: e for c, e in every.items() if c != here}, every[here])]


CONSTANTS = {
    "KEPT_GAIN": (0.2, 0.6, 1.0), "ALL_THREADS": (0.0, 0.4), "OWN_THREADS": (0.0, 0.6), "NUMPY": (0.0, 0.6), "ABSENT": (0.5, 2.0),
    "UNLISTED": (0.3, 1.0), "POWER": (0.25, 1.0), "WIDTH": (0.35, 1.4), "SIZES": (0.2, 0.8), "LIKE_SHAPE": (1.75, 5.0),
    "OTHER_LENGTH": (1.5, 6.0), "NEAR": (1.5, 6.0), "MANY": (16.0, 21.0),
    "FACTORS": ((0.8, 0.8, 1.5, 0.12), (3.2, 3.2, 6.0, 0.5)),
}  # fmt: skip


def constants() -> None:
    """Prints the regret where each constant is chosen on other entries than it is judged on."""
    settings = {"as they are": left_out()}
    for name, values in CONSTANTS.items():
        for value in values:
            with ExitStack() as patched:
                for module in (predicted_times, other_classes):
                    if hasattr(module, name):
                        patched.enter_context(mock.patch.object(module, name, value))
                settings[f"{name} = {value}"] = left_out()
    regrets = {name: np.log([j.regret for j in found]) for name, found in settings.items()}
    base = settings["as they are"]
    for name, values in sorted(regrets.items(), key=lambda item: item[1].mean()):
        print(f"{name:<36}{math.exp(values.mean()):8.4f} {sum(values > math.log(2)):>4} over 2")
    rng = random.Random(1)
    middle = sorted(j.work for j in base)[len(base) // 2]
    splits = {
        "operations": np.array([sum(map(ord, j.problem.partition(" ")[0])) % 2 == 0 for j in base]),
        "sizes": np.array([j.work < middle for j in base]),
        "drawn": np.array([rng.random() < 0.5 for _ in base]),
    }
    for name, half in splits.items():
        judged_on = np.zeros(len(base))
        chosen = []
        for part in (half, ~half):
            best = min(regrets, key=lambda setting, part=part: regrets[setting][part].mean())
            judged_on[~part] = regrets[best][~part]
            chosen.append(best)
        over = sum(judged_on > math.log(2))
        print(f"halves by {name}: {' and '.join(chosen)}; judged on the others {math.exp(judged_on.mean()):.4f}, {over} over 2")


def kept_of(found) -> dict[str, object]:
    """The figures that are kept of choices."""
    return regrets([j.regret for j in found]) | {"of them doubtful": sum(j.regret > 2.0 and doubtful(j) for j in found)}


def regrets(values) -> dict[str, float]:
    return {
        "entries": len(values), "mean": round(mean(values), 3), "largest": round(max(values), 2),
        **{f"over {bound:g}": sum(v > bound for v in values) for bound in (1.1, 1.3, 2.0)},
    }  # fmt: skip


def mean(values) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(values) -> str:
    over = [sum(v > bound for v in values) for bound in (1.1, 2.0)]
    return f"{mean(values):.2f} {max(values):6.2f} {over[0] / len(values):4.0%} {over[1]:>4}"


def main() -> None:
    if sys.argv[1:2] == ["entries"]:
        return entries()
    if sys.argv[1:2] == ["neighbours"]:
        return neighbours()
    if sys.argv[1:2] == ["repeated"]:
        if len(sys.argv) != 4:
            sys.exit("ranking_regret.py repeated FIRST SECOND: two rankings of this machine")
        return repeated(*sys.argv[2:])
    if sys.argv[1:2] == ["constants"]:
        return constants()
    if sys.argv[1:2] == ["measure"]:
        measure(*(int(n) for n in [*sys.argv[2:4], *("12", "1")[len(sys.argv[2:4]) :]]))
    compare()


if __name__ == "__main__":
    main()
