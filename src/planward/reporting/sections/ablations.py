"""Ablations: each variant of the GRPO run against the run as it stands."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from planward.params import Ablations
from planward.records import Run
from planward.reporting import figures
from planward.reporting.figures import Figure, Point
from planward.reporting.names import ALL, method_title, percent, shots_title
from planward.reporting.sections.elements import Table, p_text, pair_note, points
from planward.reporting.sections.learning import mean_curve, thinned
from planward.reporting.tables import TIED


def ablation_findings(table: pd.DataFrame) -> list[str]:
    """A sentence on each variant, over all numbers of worked examples."""
    default = method_title("grpo")
    return [
        f"{row.variant}: {row.result} {'with' if row.result == TIED else 'than'} {default}, "
        f"{points(row.difference, row.difference_low, row.difference_high)} points, p {p_text(row.p_holm)}."
        for row in _pooled(table).itertuples()
    ]


def ablation_table(table: pd.DataFrame, ablations: Ablations) -> Table | None:
    """Variants beside the default run, all numbers of worked examples pooled; None where no variant was run."""
    pooled = _pooled(table)
    if pooled.empty:
        return None
    default = next(pooled.itertuples())
    rows: list[list[Any]] = [
        [
            f"{method_title('grpo')} as it stands",
            percent(default.default_success_rate, default.default_ci_low, default.default_ci_high),
            *[""] * 6,
        ]
    ]
    for row in pooled.itertuples():
        rows.append(
            [
                row.variant,
                percent(row.success_rate, row.ci_low, row.ci_high),
                points(row.difference, row.difference_low, row.difference_high),
                *(f"{row.p:.2g}", f"{row.p_holm:.2g}", row.result, f"{row.detectable_difference:.1f}"),
                json.dumps(ablations.variants[row.variant]),
            ]
        )
    head = ["variant", "success, percent", "difference, points", "p", "p (Holm)", "result"]
    caption = f"Variants at N = {ablations.dataset_size}, all numbers of worked examples pooled"
    return Table(caption, [*head, "detectable, points", "what it changes"], rows)


def ablation_shots(table: pd.DataFrame) -> Table | None:
    """Success and difference of each variant by the number of worked examples."""
    single = table[table["shot_num"].astype(str) != ALL]
    if single.empty:
        return None
    numbers = sorted(set(single["shot_num"].astype(int)))
    rows = [
        [
            variant,
            *(
                f"{percent(row.success_rate, row.ci_low, row.ci_high)}, {row.difference:+.1f} ({row.result})"
                for row in part.assign(shot_num=part["shot_num"].astype(int)).sort_values("shot_num").itertuples()
            ),
        ]
        for variant, part in single.groupby("variant", sort=False)
    ]
    head = ["variant", *map(shots_title, numbers)]
    caption = "Success in percent, difference in points (Holm over the variants, each column apart)"
    return Table(caption, head, rows, note=pair_note(single["detectable_difference"]))


def ablation_panels(
    curves: Mapping[Run, Mapping[str, Sequence[Point]]], ablations: Ablations, curve: str = "success"
) -> list[Figure]:
    """Success in training by step: the default and up to as many variants a panel as the palette has colours."""
    runs: dict[str, list[Sequence[Point]]] = defaultdict(list)
    for run, found in curves.items():
        if run.size == ablations.dataset_size and run.method in ("grpo", *ablations.run) and curve in found:
            runs[run.method].append(found[curve])
    series = {method: thinned(mean_curve(found)) for method, found in runs.items()}
    variants = [name for name in ablations.run if name in series]
    width, panels = len(figures.PALETTE) - 1, []
    for start in range(0, len(variants), width):
        names = ["grpo"] * ("grpo" in series) + variants[start : start + width]
        shown = {method_title(name): series[name] for name in names}
        panels.append(figures.lines(f"{curve} in training, N = {ablations.dataset_size}", shown, "step", (0, 1)))
    return panels


def _pooled(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["shot_num"].astype(str) == ALL]
