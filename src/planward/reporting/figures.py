"""Figures as inline SVG that takes its colours from the page's CSS variables, so that dark mode works.

Every function returns a figure with the data it draws, the same for the same input.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, PercentFormatter

from planward.reporting.compaction import compacted
from planward.reporting.downloads import csv_address, csv_file, csv_text

Point = tuple[float, float]
Interval = tuple[float, float, float, float]  # x, y, low, high

# Okabe and Ito's colours, told apart by the colour-blind; each becomes var(--c0) ... in the page.
PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a6761d", "#56b4e9", "#e69f00", "#5f5f66"]
INK, RULE, PAPER = "#010203", "#040506", "#070809"  # stand-ins for the variables of the same name
LINES, MARKERS, HATCHES = ["-", "--", ":", "-."], "osD^vPX*", ["", "///", "...", "xxx", "---"]
_VARIABLES = {colour: f"var(--c{i})" for i, colour in enumerate(PALETTE)} | {INK: "var(--ink)", RULE: "var(--rule)"}
_VARIABLES[PAPER] = "var(--paper)"
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a domain may be called $x$
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "xtick.bottom": False,  # the grid tells where they are
    "ytick.left": False,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "path.simplify": True,
    **dict.fromkeys(["text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"], INK),
    **dict.fromkeys(["axes.edgecolor", "grid.color"], RULE),
}
PANEL = (3.5, 2.4)  # inches: fills a phone's width at a readable size


@dataclass(frozen=True)
class Figure:
    """A figure and the data drawn in it, a row a mark."""

    name: str
    svg: Markup
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def csv(self) -> str:
        return csv_text(self.columns, self.rows)

    @property
    def file(self) -> str:
        """What the CSV file is called."""
        return csv_file(self.name)

    @property
    def address(self) -> str:
        """The CSV file as a data address."""
        return csv_address(self.csv)


def intervals(
    name: str, series: Mapping[str, Sequence[Interval]], x_label: str, colours: Sequence[int], top: float = 1.0
) -> Figure:
    """One panel: a rate from 0 to `top` with its interval against a whole number, one line a series, side by side."""
    figure, axes = _panel(name, x_label)
    for i, (label, points) in enumerate(series.items()):
        x = [point[0] + min(0.12, 0.6 / len(series)) * (i - (len(series) - 1) / 2) for point in points]
        y = [point[1] for point in points]
        errors = [[max(p[1] - p[2], 0.0) for p in points], [max(p[3] - p[1], 0.0) for p in points]]
        axes.errorbar(x, y, errors, label=label, color=PALETTE[colours[i]], marker=MARKERS[colours[i]], ms=4.5)
    axes.set_ylim(0, top)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    rows = ((label, *point) for label, points in series.items() for point in points)
    return _drawn(figure, axes, name, ("series", x_label, "value", "low", "high"), rows)


def lines(
    name: str,
    series: Mapping[str, Sequence[Point]],
    x_label: str,
    y_range: tuple[float, float] | None = None,
    dashes: Sequence[int] | None = None,
    colours: Sequence[int] | None = None,
    faint: Mapping[str, Sequence[Sequence[Point]]] | None = None,
    marked: Mapping[str, Sequence[Point]] | None = None,
) -> Figure:
    """One panel of curves.

    `y_range` lets panels share a scale; `dashes` and `colours` override the order's own; `faint` holds, by label, the
    curves of which a line is the mean, and `marked` the points to put a mark at.
    """
    figure, axes = _panel(name, x_label, whole=x_label != "progress")
    for i, (label, points) in enumerate(series.items()):
        colour, dash = (colours or range(len(series)))[i], (dashes or range(len(series)))[i]
        style: Any = {"color": PALETTE[colour % len(PALETTE)], "linestyle": LINES[dash % len(LINES)]}
        for single in (faint or {}).get(label, ()):
            axes.plot([p[0] for p in single], [p[1] for p in single], **style | {"linewidth": 0.7, "alpha": 0.35})
        axes.plot([p[0] for p in points], [p[1] for p in points], label=label, **style)
        if at := (marked or {}).get(label):
            axes.plot([p[0] for p in at], [p[1] for p in at], color=style["color"], marker="o", linestyle="none")
    if y_range and y_range[0] < y_range[1]:
        margin = 0.04 * (y_range[1] - y_range[0])
        axes.set_ylim(y_range[0] - margin, y_range[1] + margin)
    kinds = {"mean": {label: [points] for label, points in series.items()}, "single": faint or {}}
    kinds["marked"] = {label: [points] for label, points in (marked or {}).items()}
    rows = [
        (label, kind if len(curves) == 1 else f"{kind} {number}", *point)
        for kind, found in kinds.items()
        for label, curves in found.items()
        for number, points in enumerate(curves, 1)
        for point in points
    ]
    if not faint and not marked:
        return _drawn(figure, axes, name, ("series", x_label, "value"), ((row[0], *row[2:]) for row in rows))
    return _drawn(figure, axes, name, ("series", "curve", x_label, "value"), rows)


def bars(name: str, shares: Mapping[str, Mapping[str, float]], order: Sequence[str], colours: Sequence[int]) -> Figure:
    """One panel of stacked horizontal bars: for each row the shares of the parts in `order`."""
    figure, axes = _panel(name, "", whole=False, height=1.1 + 0.26 * len(shares))
    left = [0.0] * len(shares)
    for i, part in enumerate(order):
        widths = [row.get(part, 0.0) for row in shares.values()]
        style: Any = {"color": PALETTE[colours[i]], "hatch": HATCHES[i % len(HATCHES)]}
        axes.barh(list(shares), widths, left=left, label=part, edgecolor=PAPER, linewidth=0.4, **style)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    rows = ((label, part, row.get(part, 0.0)) for label, row in shares.items() for part in order)
    return _drawn(figure, axes, name, ("series", "part", "share"), rows)


def histogram(
    name: str, series: Mapping[str, Sequence[float]], edges: Sequence[float], colours: Sequence[int]
) -> Figure:
    """One panel of outlines: the share of each bin between `edges`, one outline a series."""
    figure, axes = _panel(name, "", whole=False)
    for i, (label, shares) in enumerate(series.items()):
        style: Any = {"color": PALETTE[colours[i]], "linestyle": LINES[i % len(LINES)]}
        axes.stairs(shares, edges, label=label, linewidth=1.3, **style)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    bins = list(pairwise(edges))
    rows = ((label, *bins[i], share) for label, shares in series.items() for i, share in enumerate(shares))
    return _drawn(figure, axes, name, ("series", "from", "to", "share"), rows)


def agreement(name: str, series: Mapping[str, Sequence[Interval]], x_label: str, colours: Sequence[int]) -> Figure:
    """One panel from 0 to 1 both ways: a value with what lies about it against another; the diagonal is agreement."""
    figure, axes = _panel(name, x_label, whole=False)
    axes.plot([0, 1], [0, 1], color=RULE, linewidth=1)
    for i, (label, points) in enumerate(series.items()):
        x, y, low, high = ([point[place] for point in points] for place in range(4))
        axes.fill_between(x, low, high, color=PALETTE[colours[i]], alpha=0.13, linewidth=0)
        style: Any = {"color": PALETTE[colours[i]], "linestyle": LINES[i % len(LINES)], "marker": MARKERS[colours[i]]}
        axes.plot(x, y, label=label, ms=3.5, **style)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    rows = ((label, *point) for label, points in series.items() for point in points)
    return _drawn(figure, axes, name, ("series", x_label, "value", "low", "high"), rows)


def _panel(name: str, x_label: str, whole: bool = True, height: float = PANEL[1]) -> tuple[Canvas, Axes]:
    """An empty panel; `whole`: the ticks of x are whole numbers."""
    with matplotlib.rc_context(_STYLE):
        figure = Canvas(figsize=(PANEL[0], height), layout="constrained", facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        axes.set_title(name, loc="left")
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))
    return figure, axes


def _drawn(figure: Canvas, axes: Axes, name: str, columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Figure:
    return Figure(name, _svg(figure, axes, name), columns, tuple(rows))


def _svg(figure: Canvas, axes: Axes, name: str) -> Markup:
    """The figure as inline SVG markup."""
    handles, labels = axes.get_legend_handles_labels()
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": name}):
        if len(labels) > 1:
            columns = 2 if max(map(len, labels)) > 15 else 3
            figure.legend(
                handles, labels, loc="outside lower center", ncols=columns, handlelength=1.6, columnspacing=0.8
            )
        if axes.viewLim.contains(*axes.dataLim.min) and axes.viewLim.contains(*axes.dataLim.max):
            for artist in figure.findobj():
                artist.set_clip_on(False)  # a marker at 100 % is drawn whole
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=dict.fromkeys(["Date", "Creator", "Format", "Type"]))
    svg = compacted(out.getvalue(), name, INK, f"{_STYLE['font.size']}px")
    return Markup(re.sub("|".join(_VARIABLES), lambda colour: _VARIABLES[colour[0]], svg))
