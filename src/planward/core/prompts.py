"""Builds prompts within a token limit, by dropping worked examples, and encodes prompts and completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from planward.core.records import Record
from planward.core.tasks import NO_RENAMING, Messages, Renaming, Task

END = "<end>"  # closes a completion in the compact style; the end-of-sequence token of the shipped models


class PromptTooLong(ValueError):
    """A problem does not fit into the prompt even without worked examples."""


class ChatTemplateError(ValueError):
    """A model's chat template cannot render a prompt; the message names the parameter to change."""


def fit_prompt(
    task: Task,
    problem: Record,
    examples: Sequence[Record],
    count_tokens: Callable[[str | Messages], int],
    max_tokens: int,
    renaming: Renaming = NO_RENAMING,
) -> tuple[str | Messages, list[Record]]:
    """Return the prompt with as many worked examples as fit into `max_tokens`, and the examples kept.

    Examples are dropped whole, the first one first: it is farthest from the problem, which ends the prompt.

    Args:
        renaming: of the problem's objects, not of the examples'.

    Raises:
        PromptTooLong: the problem alone exceeds `max_tokens`; the message names it.
    """
    for first in range(len(examples) + 1):
        kept_examples = list(examples[first:])
        prompt = task.prompt(problem, kept_examples, renaming)
        num_tokens = count_tokens(prompt)
        if num_tokens <= max_tokens:
            return prompt, kept_examples
    raise PromptTooLong(
        f"problem {problem.id} ({problem.meta.problem_file}) takes {num_tokens} tokens without worked examples, more "
        f"than prompt.max_tokens, {max_tokens}; fix: raise prompt.max_tokens or leave the problem out"
    )


def encode_prompt(tokenizer: Any, prompt: str | Messages, options: Mapping[str, Any]) -> list[int]:
    """Return a prompt's token ids; messages go through the chat template.

    Args:
        options: of the chat template, `prompt.chat_template_options`.

    Raises:
        ChatTemplateError: the model has no chat template, or it refuses the messages.
    """
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    if tokenizer.chat_template is None:
        raise ChatTemplateError(
            f"{tokenizer.name_or_path}: the tokenizer has no chat template; fix: set prompt.style: compact, or choose "
            "an instruction-tuned model"
        )
    settings = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    try:
        return list(tokenizer.apply_chat_template(prompt, **settings, **options))
    except TemplateError as error:
        roles = [message["role"] for message in prompt]
        fix = "prompt.system_turn: false" if "system" in roles else "other blocks in prompt.template"
        raise ChatTemplateError(
            f"{tokenizer.name_or_path}: the chat template refuses the turns {', '.join(roles)}: {error}; fix: {fix}"
        ) from None


def encode_completion(tokenizer: Any, problem_id: str, completion: str) -> list[int]:
    """Return the token ids of a completion, closed by the end-of-sequence token.

    Raises:
        ValueError: the vocabulary lacks a word of the completion; the message names the problem.
    """
    ids = list(tokenizer(completion, add_special_tokens=False)["input_ids"])
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ValueError(f"problem {problem_id}: the reference completion has a word outside the model's vocabulary")
    return [*ids, tokenizer.eos_token_id]
