"""Learning: the curves of training, averaged over seeds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from planward.records import METHODS, Run
from planward.reporting import figures
from planward.reporting.figures import Figure, Point
from planward.reporting.names import method_title, rank
from planward.reporting.sections.elements import Table, flat, number

POINTS = 50  # a curve with more steps is averaged over neighbours
MAIN_CURVES = [
    *("validation_success", "loss", "reward", "success", "kl", "completion_length"),
    *("zero_spread", "reward_by_domain"),
]
TITLES = {"validation_success": "success on validation"}  # of curves whose name does not say enough
TRAINING = re.compile(r"results/(?:demonstrations/)?training/([^/]+)/metrics\.json")
Curves = Mapping[str, Sequence[Point]]  # by name


def learning(curves: Mapping[Run, Curves]) -> list[dict[str, Any]]:
    """For each method its rows of panels, split into the main ones and the rest; variants are left out.

    Single curves share a row, one panel each with a line for each N, the mean over seeds, and each seed's lightly;
    a folder of curves is a row of its own, one panel of means for each N.
    """
    methods: dict[str, dict[int, list[Curves]]] = defaultdict(lambda: defaultdict(list))
    for run, found in curves.items():
        if found and run.method in METHODS:
            methods[run.method][run.size].append(found)
    return [
        {
            "method": method_title(method),
            "main": _rows(methods[method], lambda group: group in MAIN_CURVES),
            "rest": _rows(methods[method], lambda group: group not in MAIN_CURVES),
        }
        for method in sorted(methods, key=lambda name: rank("method", name))
    ]


def mean_curve(runs: Sequence[Sequence[Point]]) -> list[Point]:
    """The mean of several runs' curves at each step that any of them has."""
    values: dict[float, list[float]] = defaultdict(list)
    for step, value in (point for run in runs for point in run):
        values[step].append(value)
    return [(step, sum(values[step]) / len(values[step])) for step in sorted(values)]


def thinned(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most `most` points: means over equally many neighbours, at the last step of each group."""
    width = -(-len(points) // most)
    groups = [points[i : i + width] for i in range(0, len(points), max(width, 1))]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def curve_panel(
    heading: str,
    runs: Mapping[int, Sequence[Sequence[Point]]],
    x_label: str = "step",
    y_range: Point | None = None,
    marked: Mapping[int, Sequence[Point]] | None = None,
) -> Figure:
    """One panel of a curve: for each N the mean over the runs, and each run lightly where there are several.

    `runs` holds the curves and `marked` the points to mark, both by N.
    """
    each = {f"N = {size}": [thinned(curve) for curve in curves] for size, curves in runs.items() if curves}
    means = {f"N = {size}": thinned(mean_curve(curves)) for size, curves in runs.items() if curves}
    faint = {label: curves for label, curves in each.items() if len(curves) > 1}
    y_range = y_range or extent([*means.values(), *(curve for curves in faint.values() for curve in curves)])
    at = {f"N = {size}": found for size, found in (marked or {}).items()}
    return figures.lines(heading, means, x_label, y_range, faint=faint, marked=at)


def extent(curves: Iterable[Sequence[Point]]) -> Point:
    """The lowest and the highest value of several curves."""
    values = [y for points in curves for _, y in points] or [0.0]
    return min(values), max(values)


def training_table(
    metrics: Mapping[str, Mapping[str, Any]], methods: Sequence[str] = METHODS, caption: str = "Training in numbers"
) -> Table | None:
    """What the metrics files of training hold, for each of `methods` and N, means over seeds."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path, values in metrics.items():
        run = Run.parsed(found[1]) if (found := TRAINING.fullmatch(path)) else None
        if run and run.method in methods:
            runs[f"{run.method}-{run.size}"].append(dict(flat(values)))
    keys = sorted({key for seeds in runs.values() for values in seeds for key in values})
    rows = [[key, *(_mean(key, seeds) for seeds in runs.values())] for key in keys]
    return Table(f"{caption}, means over seeds", ["metric", *runs], rows) if rows else None


def _rows(runs: Mapping[int, Sequence[Curves]], wanted: Callable[[str], bool]) -> list[list[Figure]]:
    single: list[Figure] = []
    rows = [single]
    groups = {name.split("/")[0] for seeds in runs.values() for run in seeds for name in run}
    known = {name: place for place, name in enumerate(MAIN_CURVES)}
    for group in sorted(filter(wanted, groups), key=lambda name: (known.get(name, len(known)), name)):
        names = sorted({n for seeds in runs.values() for run in seeds for n in run if _is_of(n, group)}, key=_by_bucket)
        each = {
            size: {name: [run[name] for run in runs[size] if name in run] for name in names} for size in sorted(runs)
        }
        shown = {
            size: {name: thinned(mean_curve(found)) for name, found in lines.items() if found}
            for size, lines in each.items()
        }
        heading = TITLES.get(group, group.replace("_", " "))
        if names == [group]:
            single.append(curve_panel(heading, {size: lines[group] for size, lines in each.items()}))
            continue
        span = extent(points for lines in shown.values() for points in lines.values())
        rows.append([])
        for size, lines in shown.items():
            colours = [place for place, name in enumerate(names) if name in lines]
            series = {names[place].removeprefix(f"{group}/"): lines[names[place]] for place in colours}
            if series:
                rows[-1].append(figures.lines(f"{heading}, N = {size}", series, "step", span, colours, colours))
    return [row for row in rows if row]


def _mean(key: str, seeds: Sequence[Mapping[str, Any]]) -> str:
    values = [values[key] for values in seeds if isinstance(values.get(key), (int, float))]
    mean = sum(values) / len(values) if values else None
    return number(int(mean) if mean is not None and mean == int(mean) else mean)


def _is_of(name: str, group: str) -> bool:
    return name.split("/")[0] == group


def _by_bucket(name: str) -> tuple[int, Any]:
    return rank("bucket", name.split("/")[-1])
