"""Figures: their data, its position in the drawing, and SVG that is safe inside a page."""

from __future__ import annotations

import base64
import csv
import io
import re
import xml.etree.ElementTree as ET

import pytest

from planward.report import figures
from planward.report.downloads import build_csv_address, build_csv_name, format_csv
from planward.report.figures import Figure

CURVES = {"N = 100": [(0, 0.25), (1, 1 / 3), (2, 0.5)], 'N = 200, "x"': [(0, 0.1), (2, 0.9)]}
RATES = {"base": [(0, 0.5, 0.4, 0.6), (4, 1.0, 0.9, 1.0)], "SFT": [(0, 0.25, 0.125, 0.5)]}


def read(figure: Figure) -> list[list[str]]:
    return list(csv.reader(io.StringIO(figure.csv)))


def draw_all() -> dict[str, Figure]:
    return {
        "lines": figures.draw_lines("curve", CURVES, "step"),
        "rates": figures.draw_intervals("rates", RATES, "shots", [7, 0]),
        "bars": figures.draw_bars(
            "labels", {"base": {"won": 0.75, "lost": 0.25}, "SFT": {"won": 1.0}}, ["won", "lost"], [2, 5]
        ),
        "histogram": figures.draw_histogram("work", {"SFT": [0.5, 0.25, 0.25]}, [0.0, 0.5, 0.75, 1.0], [0]),
        "agreement": figures.draw_agreement(
            "work", {"SFT": [(0.1, 0.2, 0.1, 0.3), (0.9, 0.8, 0.7, 1.0)]}, "reference", [0]
        ),
    }


def test_figures_have_the_data_that_they_draw() -> None:
    by_name = draw_all()
    assert by_name["lines"].columns == ("series", "step", "value")
    assert by_name["lines"].rows == tuple((label, x, y) for label, points in CURVES.items() for x, y in points)
    assert by_name["rates"].columns == ("series", "shots", "value", "low", "high")
    assert by_name["rates"].rows == tuple((label, *point) for label, points in RATES.items() for point in points)
    assert ("SFT", "lost", 0.0) in by_name["bars"].rows
    assert [row[1:] for row in by_name["histogram"].rows] == [
        (0.0, 0.5, 0.5),
        (0.5, 0.75, 0.25),
        (0.75, 1.0, 0.25),
    ]
    assert by_name["agreement"].rows[1] == ("SFT", 0.9, 0.8, 0.7, 1.0)


def test_single_runs_and_marked_points_are_distinguished_from_means() -> None:
    runs = {"N = 100": [[(0, 1.0), (1, 2.0)], [(0, 3.0), (1, 4.0)]]}
    figure = figures.draw_lines(
        "loss", {"N = 100": [(0, 2.0), (1, 3.0)]}, "step", faint=runs, marked={"N = 100": [(1, 3.0)]}
    )
    assert figure.columns == ("series", "curve", "step", "value")
    curves = [row[1] for row in figure.rows]
    assert curves == ["mean"] * 2 + ["single 1"] * 2 + ["single 2"] * 2 + ["marked"]
    assert figure.rows[-1] == ("N = 100", "marked", 1, 3.0)
    assert figure.svg.count("opacity") == 2


def test_csv_reads_back_to_six_digits() -> None:
    for figure in draw_all().values():
        head, *rows = read(figure)
        assert tuple(head) == figure.columns
        assert len(rows) == len(figure.rows)
        for read_row, row in zip(rows, figure.rows, strict=True):
            for text, value in zip(read_row, row, strict=True):
                assert text == value if isinstance(value, str) else float(text) == pytest.approx(value, rel=1e-5)
    assert format_csv(["a", "b"], [(1 / 3, None), (2_000_000, 'x,"y"\nz')]) == 'a,b\n0.333333,\n2000000,"x,""y""\nz"\n'


def test_csv_is_a_data_address() -> None:
    figure = draw_all()["lines"]
    media_type, _, text = figure.address.partition(",")
    assert media_type == "data:text/csv;base64"
    assert base64.b64decode(text).decode() == figure.csv
    assert build_csv_address("β\n") == "data:text/csv;base64,zrIK"
    assert build_csv_name("Success, N = 100/<b>") == "success-n-100-b.csv"
    assert build_csv_name("$$") == "data.csv"


def parse_path(path: str) -> list[tuple[float, float]]:
    """The points of a path of `M` and `L` commands."""
    commands = re.findall(r"([A-Za-z]) (\S+) (\S+)", path)
    assert [command for command, _, _ in commands] == ["M", *["L"] * (len(commands) - 1)]
    return [(float(x), float(y)) for _, x, y in commands]


def test_curves_are_drawn_where_their_numbers_are() -> None:
    values = [(i, (i * i) % 17 / 17) for i in range(60)]
    svg = ET.fromstring(figures.draw_lines("curve", {"one": values}, "step", (0, 1)).svg)
    [path] = [path for path in svg.iter("path") if "var(--c0)" in path.get("style", "")]
    points = parse_path(path.attrib["d"])
    assert len(points) == len(values)
    (x0, _), (x1, _) = points[0], points[-1]
    low, high = (next(p[1] for p, v in zip(points, values, strict=True) if v[1] == end) for end in (0, 16 / 17))
    for (x, y), (step, value) in zip(points, values, strict=True):
        assert x == pytest.approx(x0 + step * (x1 - x0) / 59, abs=0.11)
        assert y == pytest.approx(low + value * 17 / 16 * (high - low), abs=0.11)


def test_a_figure_takes_its_colours_from_the_page_and_has_a_name() -> None:
    for figure in draw_all().values():
        root = ET.fromstring(figure.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == figure.name
        assert not re.findall(r"#[0-9a-f]{6}\b", re.sub(r"[^ ]*(?:href|id|url)[^ ]*", "", figure.svg))
        assert "var(--ink)" in figure.svg
        ids = re.findall(r' id="([^"]+)"', figure.svg)
        assert len(ids) == len(set(ids))
        assert {*re.findall(r'href="#([^"]+)"', figure.svg), *re.findall(r"url\(#([^)]+)\)", figure.svg)} <= set(ids)


def test_only_points_out_of_view_are_clipped() -> None:
    assert "clip-path" not in figures.draw_intervals("rates", {"base": [(0, 1.0, 0.9, 1.0)]}, "shots", [7]).svg
    assert "clip-path" in figures.draw_intervals("rates", {"base": [(0, 0.9, 0.8, 1.0)]}, "shots", [7], top=0.5).svg


def test_hostile_names_stay_text() -> None:
    name = "<img src=x onerror=alert(1)> $\\frac & \"'"
    figure = figures.draw_lines(name, {name: [(0, 1.0), (1, 2.0)], "b": [(0, 1.0)]}, name)
    root = ET.fromstring(figure.svg)
    assert not list(root.iter("img"))
    assert [text.text for text in root.iter("text")].count(name) == 3
    assert read(figure)[1][0] == name


def test_the_same_data_give_the_same_bytes_and_others_share_no_ids() -> None:
    first, again = (figures.draw_intervals("rates", RATES, "shots", [7, 0]) for _ in range(2))
    assert first == again
    other = figures.draw_intervals("rates", {"base": RATES["base"]}, "shots", [7])
    ids = [set(re.findall(r' id="([^"]+)"', figure.svg)) for figure in (first, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
