"""Reference completions: checks and tokens for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerate import PartialState

from planward.core.prompts import encode_completion, encode_prompt
from planward.core.records import Record
from planward.core.tasks import Task
from planward.core.training_prompts import TrainingPrompt

MAX_LISTED = 5  # problems in an error message


class InvalidReferences(ValueError):
    """The task's own verifiers reject reference completions; the message names the first few."""


def encode_reference(task: Task, tokenizer: Any, problem: Record, prompt: TrainingPrompt) -> list[int]:
    """Return the token ids of the reference completion in the prompt's names, closed by the end-of-sequence token.

    Prompt and completion are tokenised separately, as in generation.

    Raises:
        ValueError: the vocabulary lacks a word of the completion, or prompt and completion joined tokenise
            differently, so that the model would learn a text that it never generates.
    """
    completion = task.reference_completion(problem, prompt.renaming)
    ids = encode_completion(tokenizer, problem.id, completion)
    if isinstance(prompt.prompt, str):
        joined_ids = (encode_prompt(tokenizer, prompt.prompt + separator + completion, {}) for separator in ("", " "))
        if prompt.ids + ids[:-1] not in joined_ids:
            raise ValueError(f"problem {problem.id}: prompt and reference completion tokenise differently when joined")
    return ids


def check_references(task: Task, records: Sequence[Record]) -> None:
    """Check every reference completion by `verify` and `judge`; the main process does it for all.

    Raises:
        InvalidReferences: one of the verifiers rejects a reference completion.
        VerifierError: no verdict could be reached.
    """
    state = PartialState()
    if state.is_main_process:
        pairs = [(record, task.undo_renaming(record, task.reference_completion(record))) for record in records]
        verify_verdicts = [task.verify(record, completion) for record, completion in pairs]
        faults = [
            f"  {record.id} ({record.meta.problem_file}): {verifier} says {verdict.label}, "
            f"reward {verdict.reward:g} {verdict.detail}".rstrip()
            for verifier, verdicts in (("verify", verify_verdicts), ("judge", task.judge(pairs)))
            for record, verdict in zip(records, verdicts, strict=True)
            if not verdict.success
        ]
        if faults:
            summary = f"{len(faults)} reference completion(s) rejected; fix: correct or remove these problems:"
            raise InvalidReferences("\n".join([summary, *faults[:MAX_LISTED]]))
    state.wait_for_everyone()
