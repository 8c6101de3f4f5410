"""Section "Learning": training curves, averaged over seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from planward.analysis.names import format_method, sort_key
from planward.core.runs import Run
from planward.params import METHODS
from planward.report import figures
from planward.report.figures import Figure, Point
from planward.report.sections.elements import Table, flatten, format_number

MAX_POINTS = 50  # a curve with more steps is averaged over neighbours
MAIN_CURVES = [
    *("validation_success", "validation_loss", "loss", "reward", "success", "kl", "completion_length", "truncated"),
    *("zero_spread", "reward_by_domain"),
]
TITLES = {  # of curves whose name says too little
    "validation_success": "success on validation",
    "validation_loss": "loss on validation",
    "truncated": "share cut off at the length limit",
}
Curves = Mapping[str, Sequence[Point]]  # by name


def build_learning_panels(curves: Mapping[Run, Curves]) -> list[dict[str, Any]]:
    """For each method its rows of panels, divided into `main` and `rest`; variants are left out.

    Single curves share a row: one panel each, with a line per N (the mean over seeds) and a faint line per seed.
    A folder of curves is a row of its own: one panel of means per N.
    """
    methods: dict[str, dict[int, list[Curves]]] = defaultdict(lambda: defaultdict(list))
    for run, by_name in curves.items():
        if by_name and run.method in METHODS:
            methods[run.method][run.size].append(by_name)
    return [
        {
            "method": format_method(method),
            "main": _draw_rows(methods[method], lambda group: group in MAIN_CURVES),
            "rest": _draw_rows(methods[method], lambda group: group not in MAIN_CURVES),
        }
        for method in sorted(methods, key=lambda name: sort_key("method", name))
    ]


def compute_mean_curve(runs: Sequence[Sequence[Point]]) -> list[Point]:
    """The mean over runs at each step that any of them has."""
    values: dict[float, list[float]] = defaultdict(list)
    for step, value in (point for run in runs for point in run):
        values[step].append(value)
    return [(step, sum(values[step]) / len(values[step])) for step in sorted(values)]


def downsample_curve(points: Sequence[Point], max_points: int = MAX_POINTS) -> list[Point]:
    """Average equally many neighbours until at most `max_points` are left, each at the last step of its group."""
    width = -(-len(points) // max_points)
    groups = [points[i : i + width] for i in range(0, len(points), max(width, 1))]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def draw_curve_panel(
    heading: str,
    runs: Mapping[int, Sequence[Sequence[Point]]],
    x_label: str = "step",
    y_range: Point | None = None,
    marked: Mapping[int, Sequence[Point]] | None = None,
) -> Figure:
    """Draw one curve: for each N the mean over its runs, and a faint line per run where there are several.

    Args:
        runs: curves by N.
        marked: points to mark, by N.
    """
    single = {f"N = {size}": [downsample_curve(curve) for curve in curves] for size, curves in runs.items() if curves}
    means = {f"N = {size}": downsample_curve(compute_mean_curve(curves)) for size, curves in runs.items() if curves}
    faint = {label: curves for label, curves in single.items() if len(curves) > 1}
    y_range = y_range or compute_value_range(
        [*means.values(), *(curve for curves in faint.values() for curve in curves)]
    )
    marked_by_label = {f"N = {size}": points for size, points in (marked or {}).items()}
    return figures.draw_lines(heading, means, x_label, y_range, faint=faint, marked=marked_by_label)


def compute_value_range(curves: Iterable[Sequence[Point]]) -> Point:
    """The lowest and the highest value of several curves."""
    values = [y for points in curves for _, y in points] or [0.0]
    return min(values), max(values)


def build_training_table(
    metrics: Mapping[Run, Mapping[str, Any]], methods: Sequence[str] = METHODS, caption: str = "Training metrics"
) -> Table | None:
    """The metrics of training for each of `methods` and N, means over seeds."""
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run, values in metrics.items():
        if run.method in methods:
            runs[f"{run.method}-{run.size}"].append(dict(flatten(values)))
    keys = sorted({key for seeds in runs.values() for values in seeds for key in values})
    rows = [[key, *(_format_mean(key, seeds) for seeds in runs.values())] for key in keys]
    return Table(f"{caption}, means over seeds", ["metric", *runs], rows) if rows else None


def _draw_rows(runs: Mapping[int, Sequence[Curves]], is_included: Callable[[str], bool]) -> list[list[Figure]]:
    single: list[Figure] = []
    rows = [single]
    groups = {name.split("/")[0] for seeds in runs.values() for run in seeds for name in run}
    order = {name: place for place, name in enumerate(MAIN_CURVES)}
    for group in sorted(filter(is_included, groups), key=lambda name: (order.get(name, len(order)), name)):
        names = {name for seeds in runs.values() for run in seeds for name in run if name.split("/")[0] == group}
        curve_names = sorted(names, key=lambda name: (sort_key("bucket", name.split("/")[-1]), name))
        by_size = {
            size: {name: [run[name] for run in runs[size] if name in run] for name in curve_names}
            for size in sorted(runs)
        }
        means = {
            size: {name: downsample_curve(compute_mean_curve(points)) for name, points in lines.items() if points}
            for size, lines in by_size.items()
        }
        heading = TITLES.get(group, group.replace("_", " "))
        if curve_names == [group]:
            single.append(draw_curve_panel(heading, {size: lines[group] for size, lines in by_size.items()}))
            continue
        y_range = compute_value_range(points for lines in means.values() for points in lines.values())
        rows.append([])
        for size, lines in means.items():
            colours = [place for place, name in enumerate(curve_names) if name in lines]
            series = {curve_names[place].removeprefix(f"{group}/"): lines[curve_names[place]] for place in colours}
            if series:
                rows[-1].append(figures.draw_lines(f"{heading}, N = {size}", series, "step", y_range, colours, colours))
    return [row for row in rows if row]


def _format_mean(key: str, seeds: Sequence[Mapping[str, Any]]) -> str:
    values = [values[key] for values in seeds if isinstance(values.get(key), (int, float))]
    mean = sum(values) / len(values) if values else None
    return format_number(int(mean) if mean is not None and mean == int(mean) else mean)
