"""Section "Ablations": each variant of the GRPO run against the default."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from planward.analysis.names import ALL, format_method, format_rate, format_shot_num
from planward.analysis.tables import TIED
from planward.core.runs import Run
from planward.params import AblationsConfig
from planward.report import figures
from planward.report.figures import Figure, Point
from planward.report.sections.elements import Table, format_difference, format_p, format_pair_note
from planward.report.sections.learning import compute_mean_curve, downsample_curve


def list_ablation_findings(table: pd.DataFrame) -> list[str]:
    """One sentence per variant, over all numbers of worked examples."""
    default = format_method("grpo")
    return [
        f"{row.variant}: {row.result} {'with' if row.result == TIED else 'than'} {default}, "
        f"{format_difference(row.difference, row.difference_low, row.difference_high)} points, "
        f"p {format_p(row.p_holm)}."
        for row in _select_pooled(table).itertuples()
    ]


def build_ablation_table(table: pd.DataFrame, ablations: AblationsConfig) -> Table | None:
    """The default and the variants, all numbers of worked examples pooled; None where no variant was run."""
    pooled_rows = _select_pooled(table)
    if pooled_rows.empty:
        return None
    default = next(pooled_rows.itertuples())
    rows: list[list[Any]] = [
        [
            f"{format_method('grpo')}, default",
            format_rate(default.default_success_rate, default.default_ci_low, default.default_ci_high),
            *[""] * 6,
        ]
    ]
    for row in pooled_rows.itertuples():
        rows.append(
            [
                row.variant,
                format_rate(row.success_rate, row.ci_low, row.ci_high),
                format_difference(row.difference, row.difference_low, row.difference_high),
                *(f"{row.p:.2g}", f"{row.p_holm:.2g}", row.result, f"{row.detectable_difference:.1f}"),
                json.dumps(ablations.variants[row.variant]),
            ]
        )
    head = ["variant", "success, percent", "difference, points", "p", "p (Holm)", "result"]
    caption = f"Variants at N = {ablations.dataset_size}, all numbers of worked examples pooled"
    return Table(caption, [*head, "detectable, points", "changed parameters"], rows)


def build_ablation_examples_table(table: pd.DataFrame) -> Table | None:
    """Success and difference of each variant by the number of worked examples."""
    single = table[table["shot_num"].astype(str) != ALL]
    if single.empty:
        return None
    numbers = sorted(set(single["shot_num"].astype(int)))
    rows = [
        [
            variant,
            *(
                f"{format_rate(row.success_rate, row.ci_low, row.ci_high)}, {row.difference:+.1f} ({row.result})"
                for row in part.assign(shot_num=part["shot_num"].astype(int)).sort_values("shot_num").itertuples()
            ),
        ]
        for variant, part in single.groupby("variant", sort=False)
    ]
    head = ["variant", *map(format_shot_num, numbers)]
    caption = "Success in percent, difference in points (Holm's correction over the variants, per column)"
    return Table(caption, head, rows, note=format_pair_note(single["detectable_difference"]))


def draw_ablation_panels(
    curves: Mapping[Run, Mapping[str, Sequence[Point]]], ablations: AblationsConfig, curve: str = "success"
) -> list[Figure]:
    """Success in training by step: the default and as many variants per panel as the palette has colours."""
    seeds: dict[str, list[Sequence[Point]]] = defaultdict(list)
    for run, by_name in curves.items():
        if run.size == ablations.dataset_size and run.method in ("grpo", *ablations.run) and curve in by_name:
            seeds[run.method].append(by_name[curve])
    series = {method: downsample_curve(compute_mean_curve(points)) for method, points in seeds.items()}
    variants = [name for name in ablations.run if name in series]
    width, panels = len(figures.PALETTE) - 1, []
    for start in range(0, len(variants), width):
        names = ["grpo"] * ("grpo" in series) + variants[start : start + width]
        lines = {format_method(name): series[name] for name in names}
        panels.append(figures.draw_lines(f"{curve} in training, N = {ablations.dataset_size}", lines, "step", (0, 1)))
    return panels


def _select_pooled(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["shot_num"].astype(str) == ALL]
