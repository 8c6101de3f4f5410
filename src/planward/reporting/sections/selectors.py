"""Demonstrations: how the selectors learnt, and what from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from planward.records import POINTERS, Run
from planward.reporting.figures import Figure, Point
from planward.reporting.results import Demonstrations
from planward.reporting.sections.elements import Table, key_values, number
from planward.reporting.sections.learning import curve_panel, extent

PHASES = {"pointer-sft": "SFT", "pointer-rce": "RCE", "pointer-grpo": "GRPO"}
PER_EPOCH = ("loss", "validation_success")
PER_STEP = (("pointer-rce", "temperature"), ("pointer-grpo", "kl"), ("pointer-grpo", "beta"))
CURVES = {"validation_success": "success on validation", "kl": "KL", "beta": "β"}  # whose name does not say enough
QUALITY = {
    "queries": "queries",
    "beams": "beams",
    "judged": "beams with a verdict",
    "correct": "of these, share under which the model's plan works",
    "score_mean": "info score, nats: mean",
    "score_spread": "info score, nats: standard deviation within a query, mean",
    "positive": "share of beams with a score above 0",
    "candidates": "different examples in all beams",
    "effective_candidates": "effective examples in all beams",
    "distinct_shots": "different examples in a query's beams, mean",
    "all_right": "share of queries, all of whose beams work",
    "mixed": "share of queries, some of whose beams work",
    "all_wrong": "share of queries, none of whose beams works",
    "without_signal": "share of queries, whose beams have one score and one verdict",
}  # what known measures are called; others go by their names


def training_panels(results: Demonstrations) -> list[list[Figure]]:
    """Loss and success on validation by epoch, a panel a phase; then what changes by step: temperature, KL, beta."""
    rows = [[_panel(results.epochs, method, "epoch", column) for method in POINTERS] for column in PER_EPOCH]
    rows.append([_panel(results.steps, method, "step", column) for method, column in PER_STEP])
    return _drawn(rows)


def further_panels(results: Demonstrations) -> list[list[Figure]]:
    """Every other curve by step, a row a phase."""
    rows = []
    for method in POINTERS:
        frames = [frame for run, frame in results.steps.items() if run.method == method]
        names = dict.fromkeys(str(column) for frame in frames for column in frame.columns)
        others = [name for name in names if name not in ("step", "epoch") and (method, name) not in PER_STEP]
        rows.append([_panel(results.steps, method, "step", name) for name in others])
    return _drawn(rows)


def epochs_table(epochs: Mapping[Run, pd.DataFrame]) -> Table | None:
    """For each run how many epochs it had and which one was kept."""
    rows = []
    for run in sorted(epochs, key=_order):
        frame, kept = epochs[run], _kept_rows(epochs[run])
        last = number(frame["epoch"].max())
        values = kept.iloc[-1] if len(kept) else None
        success = "" if values is None else number(100 * float(values["validation_success"]))
        kept_epoch = "" if values is None else number(values["epoch"])
        rows.append([f"{PHASES[run.method]}, N = {run.size}", run.seed, last, kept_epoch, success])
    head = ["phase", "seed", "epochs", "kept", "success on validation, percent"]
    return Table("Epochs of each phase", head, rows) if rows else None


def unmoved(epochs: Mapping[Run, pd.DataFrame]) -> list[str]:
    """A sentence on the phases that kept the weights they started from; none where there is no such phase."""
    still: dict[str, list[str]] = defaultdict(list)
    for run in sorted(epochs, key=_order):
        kept = _kept_rows(epochs[run])
        if len(kept) and not kept.iloc[-1]["epoch"]:
            still[run.method].append(str(run.size))
    if not still:
        return []
    parts = [f"{PHASES[method]} at N = {', '.join(dict.fromkeys(sizes))}" for method, sizes in still.items()]
    return [
        f"No epoch of {' and of '.join(parts)} did better on validation than the weights it had started from: "
        "these were kept, so the selector there is the one of the phase before."
    ]


def quality_table(metrics: Mapping[str, Any]) -> Table | None:
    """Measures of the training beams: of all queries, of each domain's, of those of each N."""
    parts = {"all": metrics.get("all", {})} | metrics.get("domains", {})
    parts |= {
        f"N = {size}": part for size, part in sorted(metrics.get("sizes", {}).items(), key=lambda each: int(each[0]))
    }
    known = list(QUALITY)
    keys = sorted(
        {key for part in parts.values() for key in part},
        key=lambda key: (known.index(key) if key in known else len(known), key),
    )
    rows = [
        [QUALITY.get(key, key.replace("_", " ")), *(number(part.get(key)) for part in parts.values())] for key in keys
    ]
    return Table("Beams of the training queries", ["measure", *parts], rows) if rows else None


def search_table(metrics: Mapping[str, Any]) -> Table | None:
    """All else that the metrics of the training beams hold."""
    return key_values("The beam search", {k: v for k, v in metrics.items() if k not in ("all", "domains", "sizes")})


def _panel(frames: Mapping[Run, pd.DataFrame], method: str, x: str, y: str) -> Figure | None:
    """A column of a phase against epoch or step; None where no run has it. Success has one scale in all phases."""
    curves = _curves(frames, method, x, y)
    if not curves:
        return None
    every = [curve for phase in POINTERS for runs in _curves(frames, phase, x, y).values() for curve in runs]
    y_range = extent(every) if y == "validation_success" else None
    heading = f"{PHASES[method]}: {CURVES.get(y, y.replace('_', ' '))}"
    return curve_panel(heading, curves, x, y_range, _kept(frames, method, y) if x == "epoch" else None)


def _drawn(rows: Iterable[Iterable[Figure | None]]) -> list[list[Figure]]:
    """The panels that there are, without empty rows."""
    found = ([panel for panel in row if panel] for row in rows)
    return [row for row in found if row]


def _curves(frames: Mapping[Run, pd.DataFrame], method: str, x: str, y: str) -> dict[int, list[list[Point]]]:
    """A column of a phase's runs against another, by N."""
    found: dict[int, list[list[Point]]] = defaultdict(list)
    for run in sorted(frames, key=_order):
        if run.method == method and y in frames[run]:
            values = frames[run][[x, y]].apply(pd.to_numeric, errors="coerce").dropna()
            if len(values):
                found[run.size].append(list(values.itertuples(index=False, name=None)))
    return dict(found)


def _kept(frames: Mapping[Run, pd.DataFrame], method: str, y: str) -> dict[int, list[Point]]:
    """The points of the epochs that were kept."""
    kept = {run: _kept_rows(frame).iloc[-1:] for run, frame in frames.items()}
    return {
        size: [point for curve in curves for point in curve]
        for size, curves in _curves(kept, method, "epoch", y).items()
    }


def _kept_rows(epochs: pd.DataFrame) -> pd.DataFrame:
    return epochs[epochs["kept"].astype(str) == "True"] if "kept" in epochs else epochs[:0]


def _order(run: Run) -> tuple[int, int, int]:
    return POINTERS.index(run.method), run.size, run.seed
