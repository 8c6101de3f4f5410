"""Figures as inline SVG whose colours are the page's CSS variables, so that dark mode works.

Every function returns a figure together with its data. The same input gives the same bytes.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, PercentFormatter

from planward.report.downloads import build_csv_address, build_csv_name, format_csv

Point = tuple[float, float]
Interval = tuple[float, float, float, float]  # x, y, low, high

# Colours of Okabe and Ito, safe for colour blindness; each becomes var(--c0) ... in the page.
PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a6761d", "#56b4e9", "#e69f00", "#5f5f66"]
INK, RULE, PAPER = "#010203", "#040506", "#070809"  # placeholders for the variables of the same name
LINES, MARKERS, HATCHES = ["-", "--", ":", "-."], "osD^vPX*", ["", "///", "...", "xxx", "---"]
_VARIABLES = {colour: f"var(--c{i})" for i, colour in enumerate(PALETTE)} | {INK: "var(--ink)", RULE: "var(--rule)"}
_VARIABLES[PAPER] = "var(--paper)"
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a domain may be named $x$
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "xtick.bottom": False,  # the grid marks the ticks
    "ytick.left": False,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "path.simplify": True,
    **dict.fromkeys(["text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"], INK),
    **dict.fromkeys(["axes.edgecolor", "grid.color"], RULE),
}
_COORDINATES = {"d", "x", "y", "width", "height", "transform"}
_LONG_NUMBER = re.compile(r"\d+\.\d{2,}")
PANEL_INCHES = (3.5, 2.4)  # width and height: readable at the width of a phone


@dataclass(frozen=True)
class Figure:
    """A figure and its data, one row per mark."""

    name: str
    svg: Markup
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    @property
    def csv(self) -> str:
        return format_csv(self.columns, self.rows)

    @property
    def file(self) -> str:
        """The name of the CSV file."""
        return build_csv_name(self.name)

    @property
    def address(self) -> str:
        """The CSV file as a data address."""
        return build_csv_address(self.csv)


def draw_intervals(
    name: str, series: Mapping[str, Sequence[Interval]], x_label: str, colours: Sequence[int], top: float = 1.0
) -> Figure:
    """Draw one panel of rates from 0 to `top` with their intervals by a whole number, one line per series."""
    figure, axes = _build_panel(name, x_label)
    for i, (label, points) in enumerate(series.items()):
        x = [point[0] + min(0.12, 0.6 / len(series)) * (i - (len(series) - 1) / 2) for point in points]
        y = [point[1] for point in points]
        errors = [[max(p[1] - p[2], 0.0) for p in points], [max(p[3] - p[1], 0.0) for p in points]]
        axes.errorbar(x, y, errors, label=label, color=PALETTE[colours[i]], marker=MARKERS[colours[i]], ms=4.5)
    axes.set_ylim(0, top)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    rows = ((label, *point) for label, points in series.items() for point in points)
    return _build_figure(figure, axes, name, ("series", x_label, "value", "low", "high"), rows)


def draw_lines(
    name: str,
    series: Mapping[str, Sequence[Point]],
    x_label: str,
    y_range: tuple[float, float] | None = None,
    dashes: Sequence[int] | None = None,
    colours: Sequence[int] | None = None,
    faint: Mapping[str, Sequence[Sequence[Point]]] | None = None,
    marked: Mapping[str, Sequence[Point]] | None = None,
) -> Figure:
    """Draw one panel of curves.

    Args:
        y_range: lowest and highest value, for panels with a common scale.
        dashes: number of each series' line style; by default its position. Likewise `colours`.
        faint: the curves behind each mean, by label.
        marked: points to mark, by label.
    """
    figure, axes = _build_panel(name, x_label, whole=x_label != "progress")
    for i, (label, points) in enumerate(series.items()):
        colour, dash = (colours or range(len(series)))[i], (dashes or range(len(series)))[i]
        style: Any = {"color": PALETTE[colour % len(PALETTE)], "linestyle": LINES[dash % len(LINES)]}
        for single in (faint or {}).get(label, ()):
            axes.plot([p[0] for p in single], [p[1] for p in single], **style | {"linewidth": 0.7, "alpha": 0.35})
        axes.plot([p[0] for p in points], [p[1] for p in points], label=label, **style)
        if marks := (marked or {}).get(label):
            axes.plot([p[0] for p in marks], [p[1] for p in marks], color=style["color"], marker="o", linestyle="none")
    if y_range and y_range[0] < y_range[1]:
        margin = 0.04 * (y_range[1] - y_range[0])
        axes.set_ylim(y_range[0] - margin, y_range[1] + margin)
    kinds = {"mean": {label: [points] for label, points in series.items()}, "single": faint or {}}
    kinds["marked"] = {label: [points] for label, points in (marked or {}).items()}
    rows = [
        (label, kind if len(curves) == 1 else f"{kind} {number}", *point)
        for kind, by_label in kinds.items()
        for label, curves in by_label.items()
        for number, points in enumerate(curves, 1)
        for point in points
    ]
    if not faint and not marked:
        return _build_figure(figure, axes, name, ("series", x_label, "value"), ((row[0], *row[2:]) for row in rows))
    return _build_figure(figure, axes, name, ("series", "curve", x_label, "value"), rows)


def draw_bars(
    name: str, shares: Mapping[str, Mapping[str, float]], order: Sequence[str], colours: Sequence[int]
) -> Figure:
    """Draw one panel of stacked horizontal bars: for each row the shares of the parts in `order`."""
    figure, axes = _build_panel(name, "", whole=False, height=1.1 + 0.26 * len(shares))
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
    return _build_figure(figure, axes, name, ("series", "part", "share"), rows)


def draw_histogram(
    name: str, series: Mapping[str, Sequence[float]], edges: Sequence[float], colours: Sequence[int]
) -> Figure:
    """Draw one panel of outlines: the share of each bin between `edges`, one outline per series."""
    figure, axes = _build_panel(name, "", whole=False)
    for i, (label, shares) in enumerate(series.items()):
        style: Any = {"color": PALETTE[colours[i]], "linestyle": LINES[i % len(LINES)]}
        axes.stairs(shares, edges, label=label, linewidth=1.3, **style)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    bins = list(pairwise(edges))
    rows = ((label, *bins[i], share) for label, shares in series.items() for i, share in enumerate(shares))
    return _build_figure(figure, axes, name, ("series", "from", "to", "share"), rows)


def draw_agreement(name: str, series: Mapping[str, Sequence[Interval]], x_label: str, colours: Sequence[int]) -> Figure:
    """Draw one panel from 0 to 1 on both axes: a value with its range by another value; the diagonal is agreement."""
    figure, axes = _build_panel(name, x_label, whole=False)
    axes.plot([0, 1], [0, 1], color=RULE, linewidth=1)
    for i, (label, points) in enumerate(series.items()):
        x, y, low, high = ([point[i] for point in points] for i in range(4))
        axes.fill_between(x, low, high, color=PALETTE[colours[i]], alpha=0.13, linewidth=0)
        style: Any = {"color": PALETTE[colours[i]], "linestyle": LINES[i % len(LINES)], "marker": MARKERS[colours[i]]}
        axes.plot(x, y, label=label, ms=3.5, **style)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    rows = ((label, *point) for label, points in series.items() for point in points)
    return _build_figure(figure, axes, name, ("series", x_label, "value", "low", "high"), rows)


def _build_panel(name: str, x_label: str, whole: bool = True, height: float = PANEL_INCHES[1]) -> tuple[Canvas, Axes]:
    """An empty panel; `whole`: ticks of x are whole numbers."""
    with matplotlib.rc_context(_STYLE):
        figure = Canvas(figsize=(PANEL_INCHES[0], height), layout="constrained", facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        axes.set_title(name, loc="left")
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))
    return figure, axes


def _build_figure(
    figure: Canvas, axes: Axes, name: str, columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]
) -> Figure:
    data = tuple(rows)
    return Figure(name, _render_svg(figure, axes, name, salt=f"{name}{data}"), columns, data)


def _render_svg(figure: Canvas, axes: Axes, name: str, salt: str) -> Markup:
    """Render the figure as inline SVG; its ids are unique on a page of figures with different data."""
    handles, labels = axes.get_legend_handles_labels()
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": salt}):
        if len(labels) > 1:
            columns = 2 if max(map(len, labels)) > 15 else 3
            figure.legend(
                handles, labels, loc="outside lower center", ncols=columns, handlelength=1.6, columnspacing=0.8
            )
        if axes.viewLim.contains(*axes.dataLim.min) and axes.viewLim.contains(*axes.dataLim.max):
            for artist in figure.findobj():
                artist.set_clip_on(False)  # or a marker at 100 % would be cut
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=dict.fromkeys(["Date", "Creator", "Format", "Type"]))
    svg = _make_inline(out.getvalue(), name)
    return Markup(re.sub("|".join(_VARIABLES), lambda colour: _VARIABLES[colour[0]], svg))


def _make_inline(svg: str, name: str) -> str:
    """Turn matplotlib's document into an element for an HTML page.

    Drops namespaces, the style sheet, fonts and ids of groups, and rounds coordinates to a tenth of a point.
    """
    root = ET.fromstring(svg)
    for defs in root.findall("{*}defs"):
        for sheet in defs.findall("{*}style"):
            defs.remove(sheet)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: " ".join(value.split()) for key, value in element.attrib.items()}
        if element.tag == "g":
            attributes.pop("id", None)
        if attributes.get("transform", "").startswith("rotate(-0 "):
            del attributes["transform"]
        if "style" in attributes:
            style = attributes["style"].replace(": ", ":").split("; ")
            attributes["style"] = ";".join(part for part in style if not part.startswith("font-family"))
        for key in _COORDINATES & attributes.keys():
            attributes[key] = _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.1f}", attributes[key])
        element.attrib = attributes
        element.tail = None
        if element.tag != "text":
            element.text = None
    root.attrib = {
        "role": "img",
        "aria-label": name,
        "viewBox": root.attrib["viewBox"],
        "style": "stroke-linejoin:round",
    }
    return ET.tostring(root, encoding="unicode")
