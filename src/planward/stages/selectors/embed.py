"""Stage `embed`: compute the embedding of every problem."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from planward.core import paths
from planward.core.files import write_json
from planward.core.prompts import encode_prompt, fit_prompt
from planward.core.records import Record, read_records
from planward.core.tasks import Messages, Task
from planward.params import PromptConfig
from planward.selectors.config import SelectorsConfig
from planward.selectors.dialects import get_dialect, load_track_task
from planward.tasks.planning.config import PlanningParams

if TYPE_CHECKING:
    import torch


def run(params: PlanningParams, config: SelectorsConfig) -> None:
    """Write results/selectors/embeddings.{safetensors,json}: vectors standardised on the training split, and metrics.

    Raises:
        EmbeddingsError: the file of embeddings cannot be used, or all training problems have the same.
        PromptTooLong: a problem does not fit into the model's prompt even without examples.
    """
    from planward.selectors.embeddings import find_nearest, standardise, write_embeddings

    splits = {split: list(read_records(paths.SELECTORS.dialects / f"{split}.jsonl")) for split in paths.SPLITS}
    problems = [record for records in splits.values() for record in records]
    num_training = len(splits["train"])
    vectors = standardise(compute_raw_embeddings(problems, num_training, params, config), num_training)
    embeddings = {record.id: vector for record, vector in zip(problems, vectors, strict=True)}
    write_embeddings(paths.SELECTORS.embeddings, embeddings)
    pairs = zip(problems, (problems[i] for i in find_nearest(vectors, num_training)), strict=True)
    metrics = {
        "source": config.embeddings,
        "problems": len(vectors),
        "dimension": vectors.shape[1],
        "nearest": {
            split: compute_agreement(list(islice(pairs, len(records)))) for split, records in splits.items() if records
        },
    }
    write_json(paths.SELECTORS.embeddings.with_suffix(".json"), metrics)


def compute_raw_embeddings(
    problems: Sequence[Record], num_training: int, params: PlanningParams, config: SelectorsConfig
) -> torch.Tensor:
    """Compute vectors [n, D], or several for each problem [n, L, D], from the source that `config.embeddings` names.

    Args:
        num_training: the number of problems, the first ones, that are of the training split.
    """
    from planward.selectors import embeddings

    if config.embeddings_file is not None and config.embeddings == "file":
        import torch

        vectors = embeddings.read_embeddings(config.embeddings_file, [record.id for record in problems])
        return torch.stack(list(vectors.values()))
    task = load_track_task(params, config)
    if config.embeddings == "tfidf":
        texts = [get_problem_text(task.prompt(record, [])) for record in problems]
        return embeddings.compute_tfidf_embeddings(texts[:num_training], texts)
    from planward.selectors.frozen_model import load_frozen_model

    model, tokenizer = load_frozen_model(params, config)
    prompts = [encode_problem(task, record, tokenizer, params.prompt) for record in problems]
    return embeddings.compute_model_embeddings(model, prompts, config.batch_tokens, config.layers)


def encode_problem(task: Task, problem: Record, tokenizer: Any, config: PromptConfig) -> list[int]:
    """Encode the problem's prompt without examples; raises PromptTooLong where it is too long."""

    def encode(prompt: str | Messages) -> list[int]:
        return encode_prompt(tokenizer, prompt, config.chat_template_options)

    prompt, _ = fit_prompt(task, problem, [], lambda text: len(encode(text)), config.max_tokens)
    return encode(prompt)


def get_problem_text(prompt: str | Messages) -> str:
    """The part of a prompt that holds the problem and not the domain."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def compute_agreement(pairs: Sequence[tuple[Record, Record]]) -> dict[str, float]:
    """Compute the shares of pairs of the same domain, and of the same dialect of the same domain."""
    domain = [first.domain == second.domain for first, second in pairs]
    dialect = [get_dialect(first) == get_dialect(second) for first, second in pairs]
    both = [a and b for a, b in zip(domain, dialect, strict=True)]
    return {"domain": sum(domain) / len(pairs), "dialect": sum(both) / len(pairs)}
