"""Rows of verl's parquet files: the prompt of a problem and the input of the reward function."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from planward.core.prompts import encode_prompt, fit_prompt
from planward.core.records import Record
from planward.core.tasks import NO_RENAMING, Messages, Renaming, Task
from planward.core.training_prompts import sample_training_prompt
from planward.integrations.verl.rewards import SOURCE_PREFIX, TRAINING_SPLIT
from planward.params import Params

Row = dict[str, Any]
VALIDATION_SPLIT = "validation"

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("index", pa.int64()),
                    ("split", pa.string()),
                    ("id", pa.string()),
                    ("domain", pa.string()),
                    ("bucket", pa.string()),
                    ("step", pa.int64()),
                    ("slot", pa.int64()),
                    ("alias", pa.string()),  # JSON: a struct would give every row the keys of all rows
                    ("prompt_tokens", pa.int64()),
                    ("shots_dropped", pa.int64()),
                ]
            ),
        ),
    ]
)


class TokenMismatch(ValueError):
    """verl would encode a prompt differently from training; the message names the problem."""


def build_training_rows(
    task: Task, tokenizer: Any, records: Sequence[Record], schedule: Sequence[Mapping[str, Any]], params: Params
) -> Iterator[Row]:
    """Rows of the schedule in its order, with the renaming, worked examples and tokens of `training.rollouts`.

    Args:
        tokenizer: with the chat template that verl uses.
        records: the training set; `schedule` holds ids of its problems, and worked examples come from it.
        params: of the run; `seed` is the run's.

    Raises:
        PromptTooLong: a problem does not fit even without worked examples.
        TokenMismatch: verl would encode a prompt differently.
    """
    grpo, records_by_id = params.grpo, {record.id: record for record in records}
    for index, slot in enumerate(schedule):
        record = records_by_id[slot["id"]]
        training_prompt = sample_training_prompt(
            task,
            tokenizer,
            record,
            records,
            f"{params.seed}:{slot['step']}:{slot['slot']}",
            shot_range=(grpo.shots, grpo.shots),
            rename=grpo.renaming,
            config=params.prompt,
        )
        info = {
            "index": index,
            "split": TRAINING_SPLIT,
            "step": slot["step"],
            "slot": slot["slot"],
            "shots_dropped": training_prompt.num_dropped,
        }
        yield _build_row(
            task, tokenizer, record, training_prompt.prompt, training_prompt.ids, training_prompt.renaming, info, params
        )


def build_validation_rows(task: Task, tokenizer: Any, problems: Sequence[Record], params: Params) -> Iterator[Row]:
    """Rows of problems without renaming and worked examples, as in `training.validation`; raises as above."""

    def encode(prompt: str | Messages) -> list[int]:
        return encode_prompt(tokenizer, prompt, params.prompt.chat_template_options)

    for index, problem in enumerate(problems):
        prompt, _ = fit_prompt(task, problem, [], lambda text: len(encode(text)), params.prompt.max_tokens)
        info = {"index": index, "split": VALIDATION_SPLIT, "step": -1, "slot": index, "shots_dropped": 0}
        yield _build_row(task, tokenizer, problem, prompt, encode(prompt), NO_RENAMING, info, params)


def build_messages(prompt: str | Messages) -> Messages:
    """A prompt as chat messages; plain text becomes one user message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _build_row(
    task: Task,
    tokenizer: Any,
    record: Record,
    prompt: str | Messages,
    ids: Sequence[int],
    renaming: Renaming,
    info: Row,
    params: Params,
) -> Row:
    messages = build_messages(prompt)
    if encode_prompt(tokenizer, messages, params.prompt.chat_template_options) != list(ids):
        raise TokenMismatch(f"problem {record.id}: through the chat template, verl encodes the prompt differently")
    return {
        "data_source": SOURCE_PREFIX + task.name,
        "prompt": messages,
        "ability": task.name,
        "reward_model": {"style": "rule", "ground_truth": record.model_dump_json(exclude_none=True)},
        "extra_info": info
        | {"id": record.id, "domain": record.domain, "bucket": record.bucket, "prompt_tokens": len(ids)}
        | {"alias": json.dumps(dict(renaming), sort_keys=True)},
    }
