"""The command line: one command a stage, and a few for people."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from planward.params import PARAMS_FILE, Params, ParamsError, load_params, merged_params
from planward.pddl.expressions import PddlError
from planward.pddl.search import SearchLimit
from planward.records import METHODS, Run, VerifierError, write_json, written

if TYPE_CHECKING:
    from planward.tasks import base as tasks

CLUSTER = "On a cluster"
app = typer.Typer(
    help="Post-train language models to plan, reproducibly. Every stage of dvc.yaml is a command here; "
    "`snakemake --cores 8 results/report.html` or `dvc repro` runs them all.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


export = typer.Typer(help="Write a run for another trainer.", no_args_is_help=True)
launch = typer.Typer(help="Submit an exported run to a cluster.", no_args_is_help=True)
app.add_typer(export, name="export", rich_help_panel=CLUSTER)
app.add_typer(launch, name="launch", rich_help_panel=CLUSTER)


class Task(StrEnum):
    planning = "planning"
    economy = "economy"


class Compared(StrEnum):
    planning = "planning"
    economy = "economy"
    demonstrations = "demonstrations"


class Engine(StrEnum):
    local = "local"
    ray = "ray"


class Split(StrEnum):
    train = "train"
    test = "test"


Size = Annotated[int, typer.Option(help="Training problems in all, one of dataset_sizes in params.yaml.")]
Seed = Annotated[int, typer.Option(help="The run's seed, one of seeds in params.yaml.")]
Variant = Annotated[str, typer.Option(help="grpo, or a variant under `ablations` in params.yaml.")]
OfTask = Annotated[
    Task, typer.Option("--task", help="The task to serve; results of the economy lie in results/economy/.")
]
OnEngine = Annotated[
    Engine,
    typer.Option("--engine", envvar="PLANWARD_ENGINE", help="Where bulk work is done: here, or on a Ray cluster."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", envvar="PLANWARD_ADDRESS", help="The Ray cluster's: auto, local, HOST:PORT or ray://HOST:PORT."
    ),
]
TIMING = Path("results/timing")
STAGES = "Stages"
EXPECTED = (ParamsError, PddlError, SearchLimit, VerifierError, ValueError, OSError)


@app.command(rich_help_panel=STAGES)
def problems(task: OfTask = Task.planning, engine: OnEngine = Engine.local, address: Address = None) -> None:
    """Bring problems from any source into results/problems."""
    from planward.stages import problems as stage

    _run("problems", _engaged(stage.run, engine, address), task)


@app.command(rich_help_panel=STAGES)
def split(task: OfTask = Task.planning) -> None:
    """Check every line, set bad ones apart, divide the rest into train, validation and test."""
    from planward.stages import split as stage

    _run("split", stage.run, task)


@app.command(rich_help_panel=STAGES)
def score(task: OfTask = Task.planning) -> None:
    """Score the difficulty of every problem and bucket each domain."""
    from planward.stages import score as stage

    _run("score", stage.run, task)


@app.command(rich_help_panel=STAGES)
def schedule(size: Size, seed: Seed, method: Variant = "grpo", task: OfTask = Task.planning) -> None:
    """Write down which problem is trained on at which step."""
    from planward.stages import schedule as stage

    run = Run(method, size, seed)
    _run(_of_run("schedule", run), lambda params: stage.run(params, run), task)


@app.command(rich_help_panel=STAGES)
def sft(size: Size, seed: Seed, task: OfTask = Task.planning) -> None:
    """Fine-tune the base model on reference plans."""
    from planward.stages import sft as stage

    run = Run("sft", size, seed)
    _run(_of_run("sft", run), lambda params: stage.run(params, run), task)


@app.command(rich_help_panel=STAGES)
def grpo(size: Size, seed: Seed, method: Variant = "grpo", task: OfTask = Task.planning) -> None:
    """Train the SFT model by curriculum GRPO, rewarded by the plan verifier."""
    from planward.stages import grpo as stage

    run = Run(method, size, seed)
    _run(_of_run("grpo", run), lambda params: stage.run(params, run), task)


@app.command(rich_help_panel=STAGES)
def evaluate(
    method: Annotated[str, typer.Option(help="base, sft, grpo, or a variant under `ablations` in params.yaml.")],
    size: Annotated[int, typer.Option(help="The model's dataset size; 0 for base.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The model's seed; base has none of its own.")] = None,
    task: OfTask = Task.planning,
    engine: OnEngine = Engine.local,
    address: Address = None,
) -> None:
    """Complete every test problem with 0 to 4 worked examples; VAL gives the verdicts."""
    from planward.stages import evaluate as stage

    if seed is None and method != "base":
        raise typer.BadParameter(f"{method} was trained once for each seed: which one?", param_hint="--seed")
    run = Run(method, size, seed or 0)
    judged = _engaged(lambda params, judge: stage.run(params, run, judge), engine, address)
    _run(_of_run("evaluate", run), judged, task)


@app.command(rich_help_panel=STAGES)
def dialects() -> None:
    """Put the problems of each split into dialects of their domains, for the selectors of worked examples."""
    from planward.stages import dialects as stage

    _run("dialects", stage.run)


@app.command(rich_help_panel=STAGES)
def embed() -> None:
    """Turn every problem into a vector."""
    from planward.stages import embed as stage

    _run("embed", stage.run)


@app.command(rich_help_panel=STAGES)
def beams(
    split: Annotated[Split, typer.Option(help="train, or test for the oracle.")],
) -> None:
    """Search for the worked examples under which each query's reference plan is likeliest."""
    from planward.stages import beams as stage

    _run(f"beams@{split}", lambda params: stage.run(params, split.value))


@app.command(rich_help_panel=STAGES)
def selector(
    method: Annotated[str, typer.Option(help="pointer-sft, pointer-rce or pointer-grpo, each after the one before.")],
    size: Size,
    seed: Seed,
) -> None:
    """Train the pointer network that chooses worked examples."""
    from planward.stages import selector as stage

    run = Run(method, size, seed)
    _run(f"selector-{method.removeprefix('pointer-')}@{size}-{seed}", lambda params: stage.run(params, run))


@app.command(rich_help_panel=STAGES)
def demonstrate(
    size: Annotated[int, typer.Option(help="The pointers' dataset size; 0 for random, similarity and oracle.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The pointers' seed; rules have none of their own.")] = None,
) -> None:
    """Complete every test problem with the worked examples that selectors choose; VAL gives the verdicts."""
    from planward.stages import demonstrate as stage

    if (seed is None) != (size == 0):
        raise typer.BadParameter("pointers have a size and a seed, rules have neither", param_hint="--seed")
    name = f"demonstrate@{size}-{seed}" if size else "demonstrate-rules"
    _run(name, lambda params: stage.run(params, size, seed or 0))


@app.command(rich_help_panel=STAGES)
def compare(task: OfTask = Task.planning) -> None:
    """Compute every table from the stored predictions."""
    from planward.stages import compare as stage

    _run("compare", stage.run, task)


@app.command(rich_help_panel=STAGES)
def analyse(task: OfTask = Task.economy) -> None:
    """Say what the models' answers decide: what can be read, how it spreads, what it is worth."""
    from planward.stages import analyse as stage

    _run("analyse", stage.run, task)


@app.command(rich_help_panel=STAGES)
def report() -> None:
    """Write results/report.html."""
    from planward.stages import report as stage

    _run("report", stage.run, timed=False)


@app.command(rich_help_panel=STAGES)
def base() -> None:
    """Train models/base from nothing (about thirty-five minutes on one core; see models/base/README.md)."""
    from planward.stages import base as stage

    _threads()
    with _errors():
        stage.run()


@app.command(rich_help_panel=STAGES)
def adapter() -> None:
    """Train models/economy, the adapter that teaches models/base the economy's words (see its README.md)."""
    from planward.stages import adapter as stage

    _threads()
    with _errors():
        stage.run(load_params())


@export.command("verl")
def export_verl(
    size: Size,
    seed: Seed,
    method: Variant = "grpo",
    task: OfTask = Task.planning,
    out: Annotated[Path | None, typer.Option(help="The folder to write; by default results/verl/RUN.")] = None,
) -> None:
    """Write a GRPO run as a folder that verl trains from on a Ray cluster."""
    from planward.clusters.verl.export import exported

    with _errors():
        folder = exported(load_params().of(task.value), Run(method, size, seed), out)
        print(f"{folder}: planward launch verl {folder} --address http://HEAD:8265")


@launch.command("verl")
def launch_verl(
    folder: Annotated[Path, typer.Argument(help="What `planward export verl` wrote.")],
    address: Annotated[
        str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="The cluster's: http://HOST:8265 or ray://HOST:10001.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted.")] = False,
) -> None:
    """Train an exported run on a Ray cluster, and follow the job.

    Exit status: 0 succeeded, 1 failed or stopped, 130 interrupted (the job goes on).
    """
    from planward.clusters.verl.jobs import launched

    with _errors():
        status = launched(folder, address, dry_run=dry_run)
    raise typer.Exit(status)


@app.command()
def merge(
    model: Annotated[Path, typer.Argument(help="A folder that holds a LoRA adapter and names its base.")],
    out: Annotated[Path, typer.Argument(help="Where the full weights go.")],
) -> None:
    """Write a LoRA adapter and its base as one model."""
    from planward.training import models

    with _errors():
        if not (model / "adapter_config.json").exists():
            raise ParamsError(f"{model}: holds no adapter_config.json, so it is no adapter's folder")
        settings = load_params().model.model_copy(update={"backend": "transformers", "load_in_4bit": False})
        models.save(*models.load(settings, str(model), max_tokens=0, seed=0), out)
        print(f"{out}: full weights")


@app.command()
def validate(
    domain: Annotated[Path, typer.Argument(help="The domain's PDDL file.")],
    problem: Annotated[Path, typer.Argument(help="The problem's PDDL file.")],
    plan: Annotated[Path, typer.Argument(help="A plan, or a model's whole answer; - for standard input.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds VAL may take.")] = 10.0,
) -> None:
    """Judge a plan with VAL. Exit status: 0 it works, 1 it fails, 2 the input cannot be used."""
    from planward.tasks.planning.judgement import judged_text

    with _errors():
        text = (sys.stdin.buffer.read() if str(plan) == "-" else plan.read_bytes()).decode("utf-8", "replace")
        verdict = judged_text(domain, problem, text, timeout)
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


@app.command()
def diff(
    revisions: Annotated[
        list[str],
        typer.Argument(help="Commits, branches, tags, DVC experiments, or workspace."),
    ],
    task: Annotated[
        Compared, typer.Option("--task", help="What to compare; demonstrations: the selectors of worked examples.")
    ] = Compared.planning,
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
        int, typer.Option(min=0, help="Print so many problems that flipped each way, of every cell, with both plans.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write one HTML page to this file as well.")] = None,
) -> None:
    """Compare two experiments on the same problems, or rank three and more.

    Differences are the second minus the first. Predictions, parameters and costs come from Git and DVC's cache; the
    workspace is not touched. Narrow the comparison before you look: Holm's correction is over what is compared.
    """
    from planward.experiments.comparison import compared
    from planward.experiments.document import document
    from planward.experiments.experiment import read_experiments, uncertainty
    from planward.experiments.ranking import ranked

    _threads()
    with _errors():
        experiments = read_experiments(revisions, task.value, method or (), size or ())
        by, asked = uncertainty(own.revision for own in experiments), shots or ()
        found = (
            compared(experiments[0], experiments[1], task.value, by, asked)
            if len(experiments) == 2
            else ranked(experiments, task.value, by, asked)
        )
        if as_json:
            print(json.dumps(document(found)))
        else:
            from planward.experiments.terminal import print_compared

            print_compared(found, Console(), flips)
        if html is not None:
            from planward.experiments.page import page

            with written(html) as out:
                out.write(page(found))
            Console(stderr=True, soft_wrap=True).print(f"{html}: the same as a page", markup=False, highlight=False)


@app.command()
def power(
    difference: Annotated[
        float | None,
        typer.Option(min=0.01, max=100, help="A true difference, in points of a hundred; without, 1, 2, 3, 5 and 10."),
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(min=0.5, max=0.9999, help="Of the test; without, compare.confidence in params.yaml.")
    ] = None,
    power: Annotated[float, typer.Option(min=0.5, max=0.9999, help="With which the difference is to be found.")] = 0.8,
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
    from planward.reporting import sample_size
    from planward.reporting.answers import Answers
    from planward.stages.compare import PREDICTIONS, read_outcomes

    if problems is not None and discordance is None:
        raise typer.BadParameter("the results say how many problems there are", param_hint="--problems")
    asked = sample_size.DIFFERENCES if difference is None else (difference / 100,)
    with _errors():
        settings = load_params()
        confidence = settings.compare.confidence if confidence is None else confidence
        alpha = (1 - confidence) / comparisons
        if discordance is None:
            answers = Answers.of(read_outcomes(settings.placed(PREDICTIONS), settings))
            known = sample_size.evidence(answers, a, b, confidence)
            answer = sample_size.answer_from(known, asked, alpha, power)
        else:
            answer = sample_size.answer_by_hand(discordance, problems, asked, alpha, power)
    if as_json:
        print(json.dumps(answer.json))
        return
    console = Console()
    for part in sample_size.printed(answer):
        console.print(part, highlight=False)


@app.command()
def doctor(
    deep: Annotated[bool, typer.Option("--deep", help="Ask DVC as well which stages are out of date.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Check this machine and this folder, and say what to do. Exit status: 1 where something stops a run."""
    from planward import doctor

    found = list(doctor.findings(deep))
    if as_json:
        print(doctor.as_json(found))
    else:
        Console().print(doctor.as_table(found))
    raise typer.Exit(doctor.exit_status(found))


@app.command()
def params(
    overlays: Annotated[list[Path] | None, typer.Argument(help="Profiles to lay over params.yaml, in order.")] = None,
) -> None:
    """Check params.yaml; with profiles, write their values into it, comments kept."""
    with _errors():
        for overlay in overlays or []:
            merged_params(PARAMS_FILE, overlay)
            print(f"{PARAMS_FILE}: now with {overlay}")
        load_params()
        print(f"{PARAMS_FILE}: good")


def _run(name: str, stage: Callable[[Params], None], task: Task = Task.planning, timed: bool = True) -> None:
    _threads()
    with _errors():
        start, params = time.perf_counter(), load_params().of(task.value)
        stage(params)
        if timed and os.environ.get("RANK", "0") == "0":  # of several processes, the first
            own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
            command, at, key = name.partition("@")
            name = name if task == Task.planning else f"{command}-{task}{at}{key}"
            figures = {
                "stage": name,
                "wall_s": round(time.perf_counter() - start, 2),
                "cpu_s": round(own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, 2),
                "peak_rss_mb": round(own.ru_maxrss / 1024),
            }
            write_json(TIMING / f"{name}.json", figures)


def _engaged(
    stage: Callable[[Params, tasks.Task], None], engine: Engine, address: str | None
) -> Callable[[Params], None]:
    """The stage with a task whose bulk work is done by the engine."""

    def run(params: Params) -> None:
        from planward.clusters.engine import engaged_task

        with engaged_task(params, engine.value, address) as task:
            stage(params, task)

    return run


def _of_run(command: str, run: Run) -> str:
    """The name that dvc.yaml gives the stage which runs a command for a run."""
    if run.method == "base":
        return f"{command}-base"
    ending = "" if run.method in METHODS else "-ablation"
    key = run.name if command == "evaluate" or ending else f"{run.size}-{run.seed}"
    return f"{command}{ending}@{key}"


def _threads() -> None:
    """Torch takes as many threads as the stage was given; one where nothing says."""
    os.environ.setdefault("OMP_NUM_THREADS", os.environ.get("PLANWARD_THREADS", "1"))


@contextmanager
def _errors() -> Iterator[None]:
    """Faults of input, configuration and machine in plain words, with exit status 2."""
    try:
        yield
    except EXPECTED as error:
        if os.environ.get("PLANWARD_TRACEBACK"):
            raise
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"[bold red]{type(error).__name__}[/]: ", end="")
        console.print(str(error), markup=False, highlight=False)
        console.print("(PLANWARD_TRACEBACK=1 shows where)", style="dim")
        raise typer.Exit(2) from None


def main() -> None:
    app()
