"""Section "Choosing worked examples": training of the selectors, and the beams they were trained on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from planward.core.runs import POINTERS, Run
from planward.report.data import SelectorData
from planward.report.figures import Figure, Point
from planward.report.sections.elements import Table, build_key_value_table, format_number
from planward.report.sections.learning import compute_value_range, draw_curve_panel

PHASES = {"pointer-sft": "SFT", "pointer-rce": "RCE", "pointer-grpo": "GRPO"}
PER_EPOCH = ("loss", "validation_success")
PER_STEP = (("pointer-rce", "temperature"), ("pointer-grpo", "kl"), ("pointer-grpo", "beta"))
CURVE_TITLES = {"validation_success": "success on validation", "kl": "KL", "beta": "β"}
QUALITY_TITLES = {
    "queries": "queries",
    "beams": "beams",
    "judged": "beams with a verdict",
    "correct": "of these, share with a valid plan",
    "score_mean": "info score, nats: mean",
    "score_spread": "info score, nats: standard deviation within a query, mean",
    "positive": "share of beams with a score above 0",
    "candidates": "different examples in all beams",
    "effective_candidates": "effective examples in all beams",
    "distinct_shots": "different examples in a query's beams, mean",
    "all_right": "share of queries with a valid plan under all beams",
    "mixed": "share of queries with a valid plan under some beams",
    "all_wrong": "share of queries with a valid plan under no beam",
    "without_signal": "share of queries whose beams have equal scores and equal verdicts",
}  # any other measure is shown by its name


def draw_training_panels(data: SelectorData) -> list[list[Figure]]:
    """Loss and success on validation by epoch, one panel per phase; then temperature, KL and beta by step."""
    rows = [[_draw_panel(data.epochs, method, "epoch", column) for method in POINTERS] for column in PER_EPOCH]
    rows.append([_draw_panel(data.steps, method, "step", column) for method, column in PER_STEP])
    return _drop_empty(rows)


def draw_further_panels(data: SelectorData) -> list[list[Figure]]:
    """Every other curve by step, one row per phase."""
    rows = []
    for method in POINTERS:
        frames = [frame for run, frame in data.steps.items() if run.method == method]
        names = dict.fromkeys(str(column) for frame in frames for column in frame.columns)
        others = [name for name in names if name not in ("step", "epoch") and (method, name) not in PER_STEP]
        rows.append([_draw_panel(data.steps, method, "step", name) for name in others])
    return _drop_empty(rows)


def build_epochs_table(epochs: Mapping[Run, pd.DataFrame]) -> Table | None:
    """For each run its number of epochs and the one that was kept."""
    rows = []
    for run in sorted(epochs, key=_rank_run):
        frame, kept_rows = epochs[run], _select_kept(epochs[run])
        epochs_run = format_number(frame["epoch"].max())
        values = kept_rows.iloc[-1] if len(kept_rows) else None
        success = "" if values is None else format_number(100 * float(values["validation_success"]))
        kept_epoch = "" if values is None else format_number(values["epoch"])
        rows.append([f"{PHASES[run.method]}, N = {run.size}", run.seed, epochs_run, kept_epoch, success])
    head = ["phase", "seed", "epochs", "kept", "success on validation, percent"]
    return Table("Epochs of each phase", head, rows) if rows else None


def list_unchanged_phases(epochs: Mapping[Run, pd.DataFrame]) -> list[str]:
    """A sentence on the phases that kept their initial weights, if there are any."""
    unchanged_sizes: dict[str, list[str]] = defaultdict(list)
    for run in sorted(epochs, key=_rank_run):
        kept_rows = _select_kept(epochs[run])
        if len(kept_rows) and not kept_rows.iloc[-1]["epoch"]:
            unchanged_sizes[run.method].append(str(run.size))
    if not unchanged_sizes:
        return []
    parts = [f"{PHASES[method]} at N = {', '.join(dict.fromkeys(sizes))}" for method, sizes in unchanged_sizes.items()]
    return [
        f"No epoch of {' and of '.join(parts)} did better on validation than its initial weights. These were kept, so "
        "the selector is that of the phase before."
    ]


def build_beam_quality_table(metrics: Mapping[str, Any]) -> Table | None:
    """Measures of the training beams: over all queries, by domain and by N."""
    parts = {"all": metrics.get("all", {})} | metrics.get("domains", {})
    parts |= {
        f"N = {size}": part for size, part in sorted(metrics.get("sizes", {}).items(), key=lambda item: int(item[0]))
    }
    order = list(QUALITY_TITLES)
    keys = sorted(
        {key for part in parts.values() for key in part},
        key=lambda key: (order.index(key) if key in order else len(order), key),
    )
    rows = [
        [QUALITY_TITLES.get(key, key.replace("_", " ")), *(format_number(part.get(key)) for part in parts.values())]
        for key in keys
    ]
    return Table("Beams of the training queries", ["measure", *parts], rows) if rows else None


def build_search_table(metrics: Mapping[str, Any]) -> Table | None:
    """The other metrics of the training beams."""
    return build_key_value_table(
        "The beam search", {k: v for k, v in metrics.items() if k not in ("all", "domains", "sizes")}
    )


def _draw_panel(frames: Mapping[Run, pd.DataFrame], method: str, x: str, y: str) -> Figure | None:
    """A column of a phase by epoch or step; None where no run has it. Success has the same scale in all phases."""
    curves = _list_curves(frames, method, x, y)
    if not curves:
        return None
    all_phases = [curve for phase in POINTERS for runs in _list_curves(frames, phase, x, y).values() for curve in runs]
    y_range = compute_value_range(all_phases) if y == "validation_success" else None
    heading = f"{PHASES[method]}: {CURVE_TITLES.get(y, y.replace('_', ' '))}"
    return draw_curve_panel(heading, curves, x, y_range, _list_kept_points(frames, method, y) if x == "epoch" else None)


def _drop_empty(rows: Iterable[Iterable[Figure | None]]) -> list[list[Figure]]:
    panels = ([panel for panel in row if panel] for row in rows)
    return [row for row in panels if row]


def _list_curves(frames: Mapping[Run, pd.DataFrame], method: str, x: str, y: str) -> dict[int, list[list[Point]]]:
    """Column `y` of a phase's runs against column `x`, by N."""
    curves: dict[int, list[list[Point]]] = defaultdict(list)
    for run in sorted(frames, key=_rank_run):
        if run.method == method and y in frames[run]:
            values = frames[run][[x, y]].apply(pd.to_numeric, errors="coerce").dropna()
            if len(values):
                curves[run.size].append(list(values.itertuples(index=False, name=None)))
    return dict(curves)


def _list_kept_points(frames: Mapping[Run, pd.DataFrame], method: str, y: str) -> dict[int, list[Point]]:
    """The points of the epochs that were kept, by N."""
    kept_frames = {run: _select_kept(frame).iloc[-1:] for run, frame in frames.items()}
    return {
        size: [point for curve in curves for point in curve]
        for size, curves in _list_curves(kept_frames, method, "epoch", y).items()
    }


def _select_kept(epochs: pd.DataFrame) -> pd.DataFrame:
    return epochs[epochs["kept"].astype(str) == "True"] if "kept" in epochs else epochs[:0]


def _rank_run(run: Run) -> tuple[int, int, int]:
    return POINTERS.index(run.method), run.size, run.seed
