"""Figures: they hold the data that they draw, draw it where it belongs, and are small and safe on a page."""

from __future__ import annotations

import base64
import csv
import io
import re
import xml.etree.ElementTree as ET

import pytest

from planward.reporting import figures
from planward.reporting.downloads import csv_address, csv_file, csv_text
from planward.reporting.figures import Figure

CURVES = {"N = 100": [(0, 0.25), (1, 1 / 3), (2, 0.5)], 'N = 200, "x"': [(0, 0.1), (2, 0.9)]}
RATES = {"base": [(0, 0.5, 0.4, 0.6), (4, 1.0, 0.9, 1.0)], "SFT": [(0, 0.25, 0.125, 0.5)]}


def read(figure: Figure) -> list[list[str]]:
    return list(csv.reader(io.StringIO(figure.csv)))


def drawn() -> dict[str, Figure]:
    return {
        "lines": figures.lines("curve", CURVES, "step"),
        "rates": figures.intervals("rates", RATES, "shots", [7, 0]),
        "bars": figures.bars(
            "labels", {"base": {"won": 0.75, "lost": 0.25}, "SFT": {"won": 1.0}}, ["won", "lost"], [2, 5]
        ),
        "histogram": figures.histogram("work", {"SFT": [0.5, 0.25, 0.25]}, [0.0, 0.5, 0.75, 1.0], [0]),
        "agreement": figures.agreement("work", {"SFT": [(0.1, 0.2, 0.1, 0.3), (0.9, 0.8, 0.7, 1.0)]}, "reference", [0]),
    }


def test_figures_hold_what_they_draw() -> None:
    found = drawn()
    assert found["lines"].columns == ("series", "step", "value")
    assert found["lines"].rows == tuple((label, x, y) for label, points in CURVES.items() for x, y in points)
    assert found["rates"].columns == ("series", "shots", "value", "low", "high")
    assert found["rates"].rows == tuple((label, *point) for label, points in RATES.items() for point in points)
    assert ("SFT", "lost", 0.0) in found["bars"].rows
    assert [row[1:] for row in found["histogram"].rows] == [(0.0, 0.5, 0.5), (0.5, 0.75, 0.25), (0.75, 1.0, 0.25)]
    assert found["agreement"].rows[1] == ("SFT", 0.9, 0.8, 0.7, 1.0)


def test_single_runs_and_marked_points_are_told_from_means() -> None:
    runs = {"N = 100": [[(0, 1.0), (1, 2.0)], [(0, 3.0), (1, 4.0)]]}
    figure = figures.lines(
        "loss", {"N = 100": [(0, 2.0), (1, 3.0)]}, "step", faint=runs, marked={"N = 100": [(1, 3.0)]}
    )
    assert figure.columns == ("series", "curve", "step", "value")
    kinds = [row[1] for row in figure.rows]
    assert kinds == ["mean"] * 2 + ["single 1"] * 2 + ["single 2"] * 2 + ["marked"]
    assert figure.rows[-1] == ("N = 100", "marked", 1, 3.0)
    assert figure.svg.count("opacity") == 2


def test_csv_reads_back_to_six_digits() -> None:
    for figure in drawn().values():
        head, *rows = read(figure)
        assert tuple(head) == figure.columns
        assert len(rows) == len(figure.rows)
        for read_row, row in zip(rows, figure.rows, strict=True):
            for text, value in zip(read_row, row, strict=True):
                assert text == value if isinstance(value, str) else float(text) == pytest.approx(value, rel=1e-5)
    assert csv_text(["a", "b"], [(1 / 3, None), (2_000_000, 'x,"y"\nz')]) == 'a,b\n0.333333,\n2000000,"x,""y""\nz"\n'


def test_csv_stands_in_an_address_of_its_own() -> None:
    figure = drawn()["lines"]
    kind, _, text = figure.address.partition(",")
    assert kind == "data:text/csv;base64"
    assert base64.b64decode(text).decode() == figure.csv
    assert csv_address("β\n") == "data:text/csv;base64,zrIK"
    assert csv_file("Success, N = 100/<b>") == "success-n-100-b.csv"
    assert csv_file("$$") == "data.csv"


def numbers(path: str) -> list[tuple[float, float]]:
    """The points of a path in relative coordinates, from the SVG specification's grammar."""
    points, x, y = [], 0.0, 0.0
    for command, text in re.findall(r"([MlhvzcqLHV])([^A-Za-z]*)", path):
        found = [float(number) for number in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", text)]
        if command == "M":
            x, y = found
        assert command in "Mlhv"
        steps = {"l": list(zip(found[::2], found[1::2], strict=False)), "h": [(f, 0.0) for f in found]}
        steps["v"] = [(0.0, f) for f in found]
        for dx, dy in steps.get(command, [(0.0, 0.0)]):
            x, y = x + dx, y + dy
            points.append((x, y))
    return points


def test_curves_are_drawn_where_their_numbers_are() -> None:
    values = [(i, (i * i) % 17 / 17) for i in range(60)]
    svg = ET.fromstring(figures.lines("curve", {"one": values}, "step", (0, 1)).svg)
    [path] = [path for path in svg.iter("path") if "var(--c0)" in path.get("style", "")]
    points = numbers(path.attrib["d"])
    assert len(points) == len(values)
    (x0, _), (x1, _) = points[0], points[-1]
    low, high = (next(p[1] for p, v in zip(points, values, strict=True) if v[1] == wanted) for wanted in (0, 16 / 17))
    for (x, y), (step, value) in zip(points, values, strict=True):
        assert x == pytest.approx(x0 + step * (x1 - x0) / 59, abs=0.11)
        assert y == pytest.approx(low + value * 17 / 16 * (high - low), abs=0.11)


def test_a_figure_takes_its_colours_from_the_page_and_has_a_name() -> None:
    for figure in drawn().values():
        root = ET.fromstring(figure.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == figure.name
        assert not re.findall(r"#[0-9a-f]{6}\b", re.sub(r"[^ ]*(?:href|id|url)[^ ]*", "", figure.svg))
        assert "var(--ink)" in figure.svg
        ids = re.findall(r' id="([^"]+)"', figure.svg)
        assert len(ids) == len(set(ids))
        assert {*re.findall(r'href="#([^"]+)"', figure.svg), *re.findall(r"url\(#([^)]+)\)", figure.svg)} <= set(ids)


def test_points_out_of_view_are_clipped_and_others_are_whole() -> None:
    assert "clip-path" not in figures.intervals("rates", {"base": [(0, 1.0, 0.9, 1.0)]}, "shots", [7]).svg
    assert "clip-path" in figures.intervals("rates", {"base": [(0, 0.9, 0.8, 1.0)]}, "shots", [7], top=0.5).svg


def test_hostile_names_stay_text() -> None:
    name = "<img src=x onerror=alert(1)> $\\frac & \"'"
    figure = figures.lines(name, {name: [(0, 1.0), (1, 2.0)], "b": [(0, 1.0)]}, name)
    root = ET.fromstring(figure.svg)
    assert not list(root.iter("img"))
    assert [text.text for text in root.iter("text")].count(name) == 3
    assert read(figure)[1][0] == name


def test_the_same_data_give_the_same_bytes_and_others_share_no_ids() -> None:
    first, again = (figures.intervals("rates", RATES, "shots", [7, 0]) for _ in range(2))
    assert first == again
    other = figures.intervals("rates", {"base": RATES["base"]}, "shots", [7])
    ids = [set(re.findall(r' id="([^"]+)"', figure.svg)) for figure in (first, other)]
    assert not ids[0] & ids[1]
