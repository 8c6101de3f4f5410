"""Commands that hand out what was trained: models and selectors as folders, and a selector's choices."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planward.cli.execution import limit_threads, report_errors
from planward.cli.options import TaskName
from planward.core import paths
from planward.core.files import write_jsonl

if TYPE_CHECKING:
    from planward.publication.problem_files import ProblemFile


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (publish, choose):
        app.command()(command)


def publish(
    run: Annotated[str, typer.Argument(help="A run's name, such as grpo-400-3407 or pointer-grpo-400-3407.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write; it must be empty or absent.")],
    task: TaskName = "planning",
    adapter: Annotated[
        bool, typer.Option("--adapter", help="The LoRA adapter alone, of a run with model.lora.merge: false.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option(
            help="What the hub calls the base, ORG/NAME; an adapter then names it.", show_default="what its card says"
        ),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            "--license", help="The card's licence, such as apache-2.0.", show_default="that of the base's card"
        ),
    ] = None,
    gguf: Annotated[
        str | None,
        typer.Option(metavar="CONVERTER", help="Write GGUF as well: llama.cpp's convert_hf_to_gguf.py, by its path."),
    ] = None,
    check: Annotated[
        int, typer.Option(min=0, help="Test problems on which the folder's completions are compared with stored ones.")
    ] = 4,
    copy_model: Annotated[
        bool, typer.Option("--copy-model/--name-model", help="Of a selector: copy its language model, or only name it.")
    ] = True,
) -> None:
    """Write a trained model, or a selector, as a folder for other people, with a card made from its results.

    The folder holds safetensors, tokenizer, generation settings, planward.json (what prompts are made of), the
    parameter files and README.md. Transformers and vLLM load it, and it can be `model.path`.
    """
    limit_threads()
    with report_errors():
        from planward.core.registry import load_params
        from planward.publication.folders import find_run, list_runs
        from planward.publication.models import ModelOptions, publish_model
        from planward.publication.provenance import PublicationError
        from planward.publication.selectors import publish_selector
        from planward.selectors.config import load_selectors_config

        if trained_run := find_run(run, paths.results(task)):
            options = ModelOptions(adapter, base, licence, gguf, check)
            result = publish_model(load_params(task), trained_run, folder, options)
            print(f"{folder}: {result.equal} of {result.total} completions are those that evaluation stored")
        elif trained_run := find_run(run, paths.SELECTORS):
            params: Any = load_params()  # of planning
            publish_selector(
                params, load_selectors_config(), trained_run, folder, licence=licence, copy_model=copy_model
            )
            print(f"{folder}: written; planward choose POOL QUERIES --selector {folder}")
        else:
            runs = [*list_runs(paths.results(task)), *list_runs(paths.SELECTORS)]
            if not runs:
                load_params(task)  # its error says that this folder is no checkout
            names = ", ".join(each.name for each in runs) or "none"
            raise PublicationError(f"{run}: no trained run of this name; there are: {names}")


def choose(
    pool: Annotated[Path, typer.Argument(help="Solved problems to choose from, JSON lines.")],
    queries: Annotated[Path, typer.Argument(help="Problems to choose examples for, JSON lines.")],
    selector: Annotated[Path, typer.Option(help="A folder that `planward publish` wrote.")],
    count: Annotated[
        int | None, typer.Option(min=1, help="Examples for each query.", show_default="shot_num of its training")
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            min=0, help="Sample so many of the pool for each query; 0: all of it.", show_default="pool of its training"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write.", show_default="standard output")] = None,
    quarantine: Annotated[Path, typer.Option(help="Where lines that cannot be used go.")] = Path("quarantine.jsonl"),
    problems: Annotated[
        Path | None,
        typer.Option(help="The folder of the PDDL files.", show_default="problems beside the file, or the file's own"),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The language model, where the selector does not hold it.")] = None,
    embeddings: Annotated[
        Path | None, typer.Option(help="Vectors of all problems, for a selector trained on such a file.")
    ] = None,
) -> None:
    """Choose worked examples of a pool for new problems with a published selector.

    Writes a JSON line for each query: `id`, and `examples`, the ids in the prompt's order, the best one last. A line
    holds what those of results/score/*.jsonl hold: `prompt`, `meta` with the PDDL files, in the pool `response`; `id`
    may be missing.
    """
    limit_threads()
    with report_errors():
        from planward.publication.problem_files import read_problem_file
        from planward.publication.provenance import PublicationError
        from planward.publication.selectors import load_selector

        loaded_selector = load_selector(selector, model=model, embeddings=embeddings)
        pool_file = read_problem_file(pool, loaded_selector.task, problems, solved=True)
        query_file = read_problem_file(queries, loaded_selector.task, problems)
        _set_aside([pool_file, query_file], quarantine)
        for path, file in ((pool, pool_file), (queries, query_file)):
            if not file.problems:
                reason = (
                    f"line {file.bad_lines[0]['line']}: {file.bad_lines[0]['reason']}" if file.bad_lines else "empty"
                )
                raise PublicationError(f"{path}: no line can be used; {reason}")
        size = (loaded_selector.config.pool if candidates is None else candidates) or None
        choices = loaded_selector.choose(
            query_file.problems, pool_file.problems, count or loaded_selector.config.shot_num, size
        )
        rows = ({"id": id, "examples": examples} for id, examples in choices)
        if out is not None:
            write_jsonl(out, rows)
            return
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))


def _set_aside(files: list[ProblemFile], quarantine: Path) -> None:
    """Write the bad lines of files, and say how many there are."""
    if bad_lines := [line for file in files for line in file.bad_lines]:
        write_jsonl(quarantine, bad_lines)
        first = bad_lines[0]
        print(
            f"{len(bad_lines)} bad lines, now in {quarantine}; the first: {first['file']}:{first['line']}: "
            f"{first['reason']}",
            file=sys.stderr,
        )
