"""Figure of the difficulty scores: how the problems of each domain divide into the three buckets."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence

import matplotlib
import matplotlib.patches
from matplotlib.figure import Figure

COLOURS = ("#56b4e9", "#e69f00", "#d55e00")  # easy, medium, hard (Okabe and Ito: safe for colour blindness)


def render_difficulty_svg(scores: Mapping[str, Sequence[float]], bounds: Mapping[str, tuple[float, float]]) -> str:
    """Render one panel per domain: problems by score, coloured by bucket. The same input gives the same text.

    Args:
        scores: domain -> score of each training problem.
        bounds: domain -> upper bounds of easy and medium.
    """
    with matplotlib.rc_context({"svg.hashsalt": "planward", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(2.6 * len(scores), 2.6), layout="constrained")
        panels = figure.subplots(1, len(scores), squeeze=False)[0]
        for axes, (domain, values) in zip(panels, sorted(scores.items()), strict=True):
            easy, medium = bounds[domain]
            for score, count in sorted(Counter(values).items()):
                bucket = 0 if score <= easy else 1 if score <= medium else 2
                axes.bar(score, count, width=0.8, color=COLOURS[bucket])
            axes.set_title(domain)
            axes.set_xlabel("difficulty score")
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("training problems")
        handles = [matplotlib.patches.Patch(color=colour) for colour in COLOURS]
        figure.legend(handles, ["easy", "medium", "hard"], loc="outside lower center", ncols=3, frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
