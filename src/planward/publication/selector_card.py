"""The card of a published selector."""

from __future__ import annotations

from huggingface_hub import ModelCard, ModelCardData

from planward.analysis.names import ALL, DIALECTS, PLAIN, describe_intervals
from planward.core import paths
from planward.core.runs import Run
from planward.publication import cards
from planward.publication.provenance import Provenance, PublicationError
from planward.selectors.config import SelectorsConfig

COMPARED = ("random", "similarity", "oracle")


def render_selector_card(
    run: Run, name: str, config: SelectorsConfig, provenance: Provenance, licence: str | None
) -> ModelCard:
    """Render the card from results/selectors/tables; raises PublicationError where they lack the run."""
    fix = "`dvc repro workflow/selectors/dvc.yaml:compare`"
    table = cards.read_table(paths.SELECTORS.tables / "cells.csv", fix)
    rates = table[(table["selector"] == run.method) & (table["dataset_size"] == run.size)]
    if rates.empty:
        raise PublicationError(f"{paths.SELECTORS.tables}: has no rows of {run.name}; fix: {fix}")
    groups = [group for group in (ALL, PLAIN, DIALECTS) if group in set(rates["dialect"])]
    texts = {}
    for group in groups:
        rows = table[table["dialect"] == group]
        cells = {(row.selector, row.dataset_size, row.shot_num): row for row in rows.itertuples()}
        shots = sorted(rates["shot_num"].unique())
        methods = [method for method in COMPARED if (method, 0, shots[0]) in cells]
        texts[group] = cards.render_table(
            ("worked examples", "n", *methods, "this selector"),
            [
                (
                    shot_num,
                    cells[run.method, run.size, shot_num].n,
                    *(cards.format_row_rate(cells[method, 0, shot_num]) for method in methods),
                    cards.format_row_rate(cells[run.method, run.size, shot_num]),
                )
                for shot_num in shots
            ],
        )
    data = ModelCardData(license=licence, library_name="planward", tags=["planward", "in-context-examples"])
    body = cards.render_card(
        "selector.md.j2",
        name=name,
        run=run,
        config=config,
        provenance=provenance,
        licence=licence,
        tables=texts,
        seeds=int(rates["seeds"].max()),
        intervals=describe_intervals(rates),
    )
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}")
