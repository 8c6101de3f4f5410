"""Lengths of prompts and reference completions in tokens, beside the limits that params.yaml sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planward.core.prompts import encode_prompt
from planward.core.records import Record
from planward.core.tasks import Task
from planward.params import Params, PromptConfig

MAX_LISTED = 5  # problems that a warning names


@dataclass(frozen=True)
class ProblemLengths:
    """Tokens of one problem."""

    problem: Record
    prompt: int  # without worked examples
    full_prompt: int  # with all of them
    reference: int  # end-of-sequence token included


def measure_lengths(
    task: Task, tokenizer: Any, problems: Sequence[Record], pool: Sequence[Record], params: Params, shot_num: int
) -> list[ProblemLengths]:
    """Encode each problem's prompt without and with `shot_num` worked examples of the pool, and its reference."""
    options = params.prompt.chat_template_options
    rows = []
    for problem in problems:
        examples = task.select_examples(problem, pool, shot_num, str(params.seed))
        prompt = len(encode_prompt(tokenizer, task.prompt(problem, []), options))
        full_prompt = len(encode_prompt(tokenizer, task.prompt(problem, examples), options)) if examples else prompt
        reference = len(tokenizer(task.reference_completion(problem), add_special_tokens=False)["input_ids"]) + 1
        rows.append(ProblemLengths(problem, prompt, full_prompt, reference))
    return rows


def list_long_references(lengths: Sequence[ProblemLengths], config: PromptConfig) -> list[Record]:
    """List the problems whose reference is longer than any completion that the model may generate."""
    return [row.problem for row in lengths if row.reference > config.max_completion_tokens]


def print_lengths(lengths: Sequence[ProblemLengths], config: PromptConfig, shot_num: int) -> None:
    """Print the lengths by domain, and what of them exceeds the limits, to standard error."""
    console = Console(stderr=True)
    console.print(build_table(lengths, config, shot_num))
    long_prompts = [row.problem for row in lengths if row.prompt > config.max_tokens]
    num_cut = sum(row.full_prompt > config.max_tokens for row in lengths) - len(long_prompts)
    for count, fault in (
        (
            len(long_prompts),
            f"prompt(s) exceed prompt.max_tokens without worked examples: {_format_names(long_prompts)}",
        ),
        (num_cut, "prompt(s) exceed prompt.max_tokens with worked examples, some of which are dropped"),
        (
            len(unreachable := list_long_references(lengths, config)),
            "reference completion(s) exceed prompt.max_completion_tokens, so GRPO and evaluation cannot reach them: "
            f"{_format_names(unreachable)}",
        ),
    ):
        if count:
            console.print(Text(f"{count} {fault}", style="yellow"), soft_wrap=True)


def _format_names(problems: Sequence[Record]) -> str:
    names = ", ".join(f"{problem.id} ({problem.meta.problem_file})" for problem in problems[:MAX_LISTED])
    return names + (f" and {len(problems) - MAX_LISTED} more" if len(problems) > MAX_LISTED else "")


def build_table(lengths: Sequence[ProblemLengths], config: PromptConfig, shot_num: int) -> Table:
    """Lay out the lengths: a row for each domain, and one for all of several."""
    title = "Tokens: median/95 %/maximum, and how many are over the limit"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("domain", no_wrap=True)
    over_prompt, over_reference = f"> {config.max_tokens}", f"> {config.max_completion_tokens}"
    for column in ("n", "prompt", over_prompt, f"+ {shot_num} example(s)", over_prompt, "reference", over_reference):
        table.add_column(column, justify="right", no_wrap=True)
    domains = sorted({row.problem.domain for row in lengths})
    for domain in [*domains, *(["all"] if len(domains) > 1 else [])]:
        rows = [row for row in lengths if domain in (row.problem.domain, "all")]
        cells = [str(len(rows))]
        for values, limit in (
            ([row.prompt for row in rows], config.max_tokens),
            ([row.full_prompt for row in rows], config.max_tokens),
            ([row.reference for row in rows], config.max_completion_tokens),
        ):
            cells += [_summarise(values), str(sum(value > limit for value in values))]
        table.add_row(domain, *cells)
    return table


def _summarise(values: Sequence[int]) -> str:
    """Format median, 95th percentile (both by nearest rank) and maximum."""
    sorted_values = sorted(values)
    return "/".join(str(sorted_values[ceil(share * len(sorted_values)) - 1]) for share in (0.5, 0.95, 1.0))
