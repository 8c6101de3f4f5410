"""Plans from a trained model, for one problem or a folder of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from planward.cli.execution import limit_threads, report_errors
from planward.params import ParamsError

if TYPE_CHECKING:
    from planward.planner import Planner, PlanResult, SearchConfig
    from planward.planner.problems import IdentifiedSelector


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(plan)


def plan(
    domain: Annotated[Path, typer.Argument(help="The domain's PDDL file.")],
    problem: Annotated[Path, typer.Argument(help="The problem's PDDL file, or a folder of them.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="A folder of weights, or a run in results/models.", show_default="the run with the most test successes"
        ),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(help="Worked examples: JSON lines as in results/score/train.jsonl; see --shots."),
    ] = None,
    shots: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --examples: how many stand in the prompt, random ones of the problem's domain.",
            show_default="1; with --selector as in its training",
        ),
    ] = None,
    selector: Annotated[
        Path | None,
        typer.Option(help="With --examples: a published selector chooses them instead (`planward publish`)."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Draw at most so many completions, in rounds, until one is a valid plan.")
    ] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="Of the samples; 0 is greedy decoding.", show_default="0, or 1.0 for several samples"),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Draw all samples and print the valid plan of the lowest cost.")
    ] = False,
    repair: Annotated[
        int, typer.Option(min=0, help="Tell a chat model what is wrong with its plan, and ask again, so many times.")
    ] = 0,
    repair_template: Annotated[
        Path | None, typer.Option(help="The words of that turn, a Jinja file.", show_default="built in")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of samples and examples.", show_default="params.yaml's")] = None,
    out: Annotated[Path | None, typer.Option(help="For a folder of problems: the folder of plans and results.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with all attempts.")] = False,
) -> None:
    """Ask a model for a plan and judge it with VAL.

    Prints the valid plan and its cost, in the format of planners; the verdict goes to standard error. A folder gets a
    file for each plan and one with all results; started again, the command continues.

    Exit status: 0 there is a valid plan (for all problems), 1 there is none (for some), 2 the input cannot be used.
    """
    if problem.is_dir() != (out is not None):
        wrong = "a folder of problems needs one" if out is None else "only for a folder of problems"
        raise typer.BadParameter(wrong, param_hint="--out")
    if examples is None and (shots is not None or selector is not None):
        raise typer.BadParameter("there are no examples to choose from; name their file", param_hint="--examples")
    limit_threads()
    with report_errors():
        from planward.planner import Planner
        from planward.planner.problems import RandomExamples, read_examples

        if not problem.exists() or not domain.is_file():
            raise ParamsError(f"{domain if problem.exists() else problem}: no such file")
        planner = Planner(model, repair_template=repair_template)
        search = planner.build_search(samples, temperature, best=best, repair=repair, seed=seed)
        pool: IdentifiedSelector | tuple[()] = ()
        if examples is not None and selector is not None:
            from planward.publication.selected_examples import load_selected_examples

            pool = load_selected_examples(selector, read_examples(examples), shots)
        elif examples is not None:
            pool = RandomExamples(read_examples(examples), shots or 1, search.seed, planner.task)
        if out is not None:
            success = _plan_folder(planner, domain, problem, out, search, pool, as_json=as_json)
        else:
            conversation = planner.start(domain, problem, pool)
            planner.solve([conversation], search)
            result = conversation.build_result()
            success = result.success
            _print_result(result, planner, as_json=as_json)
    raise typer.Exit(0 if success else 1)


def _plan_folder(
    planner: Planner,
    domain: Path,
    folder: Path,
    out: Path,
    search: SearchConfig,
    pool: IdentifiedSelector | tuple[()],
    *,
    as_json: bool,
) -> bool:
    """Plan for a folder, print the counts, and return whether every file got a valid plan."""
    from dataclasses import asdict

    from planward.planner.folders import plan_folder

    summary = plan_folder(planner, domain, folder, out, search, pool)
    if as_json:
        print(json.dumps(asdict(summary)))
    else:
        print(
            f"{out}: {summary.solved} valid plans, {summary.failed} problems without one, "
            f"{summary.quarantined} files not usable; {summary.known} known from before"
        )
    return not summary.failed and not summary.quarantined


def _print_result(result: PlanResult, planner: Planner, *, as_json: bool) -> None:
    """Print the plan on standard output, and the verdict on standard error; as JSON, both on standard output."""
    if as_json:
        print(json.dumps({"model": str(planner.folder), **result.as_dict()}))
        return
    print(result.format_plan(), end="", flush=True)  # before the verdict, where both go to one file
    lines = [f"model: {planner.folder}", f"label: {result.verdict.label}"]
    if result.verdict.detail:
        lines.append(f"detail: {result.verdict.detail}")
    lines.append(f"samples: {result.num_samples} ({result.num_tokens} tokens)")
    if result.stop_reason:
        lines.append(f"stopped: {result.stop_reason}")
    Console(stderr=True, soft_wrap=True).print("\n".join(lines), markup=False, highlight=False)
