"""The command line: one command per stage, and a few for people."""

from __future__ import annotations

import typer

from planward.cli import (
    benchmarks,
    cluster,
    endpoints,
    judge,
    plan,
    preflight,
    publishing,
    selectors,
    stages,
    tools,
    transfer,
)
from planward.cli.sources import use_project_sources

app = typer.Typer(
    help="Post-train language models to plan, reproducibly. Every stage of dvc.yaml is a command here; "
    "`snakemake --cores 8` or `dvc repro` runs them all.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
stages.register(app)
app.add_typer(transfer.app, name="transfer", rich_help_panel=stages.PANEL)
app.add_typer(endpoints.app, name="endpoints", rich_help_panel=stages.PANEL)
app.add_typer(selectors.app, name="selectors", rich_help_panel=stages.PANEL)
plan.register(app)
tools.register(app)
judge.register(app)
preflight.register(app)
publishing.register(app)
app.add_typer(cluster.export, name="export", rich_help_panel=cluster.PANEL)
app.add_typer(benchmarks.import_, name="import", rich_help_panel=benchmarks.PANEL)
app.add_typer(cluster.launch, name="launch", rich_help_panel=cluster.PANEL)


def main() -> None:
    use_project_sources()
    app()
