"""The command that judges completions from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from planward.cli.execution import limit_threads, report_errors
from planward.core import paths
from planward.core.parallel import count_processors
from planward.judgement.verdicts import Settings, Verifier


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(judge)


def judge(
    answers: Annotated[Path, typer.Argument(metavar="ANSWERS.jsonl", help="JSON lines, one completion each.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write.", show_default="ANSWERS-judged, beside the file")
    ] = None,
    problems: Annotated[
        list[Path] | None,
        typer.Option(
            help="A problem file whose ids the lines use; may be repeated.", show_default="results/score/*.jsonl"
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            help="The folder of all PDDL files that lines and problem files name.",
            show_default="results/problems if it exists, else the current folder",
        ),
    ] = None,
    verifier: Annotated[
        Verifier,
        typer.Option(help="val: VAL, some hundred plans a second; fast: the in-process checker, audited by VAL."),
    ] = Verifier.val,
    audit_share: Annotated[
        float, typer.Option(min=0, max=1, help="With --verifier fast: the share of plans that VAL judges too.")
    ] = 0.01,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="as many as processors")] = None,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of intervals and tests.")] = 0.95,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds VAL may take for a plan.")] = 10.0,
) -> None:
    """Judge completions from anywhere: verdicts, success with intervals, paired tests between models, a page.

    A line holds `id`, or `domain_file` and `problem_file`; `completion` or `plan`; and, if you like, `model` and
    `shot_num`. The plan is extracted as in evaluation. Lines that cannot be used go to quarantine.jsonl with a reason.
    Exit status: 0, or 2 where no line could be judged, VAL is broken, or the verifiers disagree.
    """
    limit_threads()
    from planward.judgement.judgement import judge_file
    from planward.judgement.problems import ProblemIndex
    from planward.judgement.terminal import print_judgement

    with report_errors():
        problem_files = sorted(paths.results().score.glob("*.jsonl")) if problems is None else problems
        if root is None:
            root = paths.results().problems if paths.results().problems.is_dir() else Path()
        folder = out or answers.with_name(f"{answers.stem}-judged")
        settings = Settings(verifier, audit_share, timeout)
        columns = (TextColumn("judging"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("", total=answers.stat().st_size)
            judgement = judge_file(
                answers,
                folder,
                ProblemIndex(problem_files, root),
                settings,
                workers=workers or count_processors(),
                confidence=confidence,
                advance=lambda size: progress.advance(bar, size),
            )
        print_judgement(judgement, Console())
        print(f"{folder / 'page.html'}: the same as a page; verdicts are in {folder / 'verdicts.jsonl'}")
