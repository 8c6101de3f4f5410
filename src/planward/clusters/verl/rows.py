"""The rows of verl's parquet files: problems as they are put to the model, and what the reward function is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from planward.clusters.verl.rewards import SOURCE, TRAINING
from planward.params import Params
from planward.records import Record
from planward.tasks.base import AS_IS, Alias, Messages, Task
from planward.tasks.fitting import encode, fit
from planward.tasks.visits import visit

Row = dict[str, Any]
VALIDATION = "validation"

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
                    ("alias", pa.string()),  # JSON: a struct would give every row the names of all of them
                    ("prompt_tokens", pa.int64()),
                    ("shots_dropped", pa.int64()),
                ]
            ),
        ),
    ]
)


class OtherTokens(ValueError):
    """verl would make other tokens of a prompt than training does; the message names the problem."""


def training_rows(
    task: Task, tokenizer: Any, records: Sequence[Record], schedule: Sequence[Mapping[str, Any]], params: Params
) -> Iterator[Row]:
    """The schedule's rows in its order: with the names, worked examples and tokens that `training.rollouts` gives them.

    Args:
        tokenizer: with the chat template that verl uses.
        records: the training set, of which `schedule` names problems and worked examples are drawn.
        params: of the run, `seed` the run's.

    Raises:
        PromptTooLong: a problem does not fit even without worked examples.
        OtherTokens: see there.
    """
    grpo, known = params.grpo, {record.id: record for record in records}
    for index, slot in enumerate(schedule):
        record = known[slot["id"]]
        asked = visit(
            task,
            tokenizer,
            record,
            records,
            f"{params.seed}:{slot['step']}:{slot['slot']}",
            shots=(grpo.shots, grpo.shots),
            renaming=grpo.renaming,
            limit=params.prompt.max_tokens,
        )
        own = {"split": TRAINING, "step": slot["step"], "slot": slot["slot"], "shots_dropped": asked.dropped}
        yield _row(task, tokenizer, record, asked.prompt, asked.ids, asked.alias, {"index": index} | own)


def validation_rows(task: Task, tokenizer: Any, problems: Sequence[Record], params: Params) -> Iterator[Row]:
    """Problems in their own names, without worked examples, as `training.validation` has them; raises as above."""
    for index, problem in enumerate(problems):
        prompt, _ = fit(task, problem, [], lambda text: len(encode(tokenizer, text)), params.prompt.max_tokens)
        ids, own = encode(tokenizer, prompt), {"split": VALIDATION, "step": -1, "slot": index, "shots_dropped": 0}
        yield _row(task, tokenizer, problem, prompt, ids, AS_IS, {"index": index} | own)


def as_messages(prompt: str | Messages) -> Messages:
    """A prompt as verl's chat messages: plain text is one message of the user."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _row(
    task: Task,
    tokenizer: Any,
    record: Record,
    prompt: str | Messages,
    ids: Sequence[int],
    alias: Alias,
    own: Row,
) -> Row:
    messages = as_messages(prompt)
    if encode(tokenizer, messages) != list(ids):
        raise OtherTokens(
            f"problem {record.id}: under the chat template, verl makes other tokens of the prompt than training does"
        )
    return {
        "data_source": SOURCE + task.name,
        "prompt": messages,
        "ability": task.name,
        "reward_model": {"style": "rule", "ground_truth": record.model_dump_json(exclude_none=True)},
        "extra_info": own
        | {"id": record.id, "domain": record.domain, "bucket": record.bucket, "prompt_tokens": len(ids)}
        | {"alias": json.dumps(dict(alias), sort_keys=True)},
    }
