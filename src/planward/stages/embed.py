"""Stage `embed`: a vector for every problem, by which selectors know it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planward.params import Params, ParamsError
from planward.records import Record, read_records, write_json
from planward.stages.dialects import OUT as DIALECTS
from planward.stages.dialects import PROBLEMS, dialect_name
from planward.stages.split import SIDES
from planward.tasks import load_task
from planward.tasks.base import Messages, Task
from planward.tasks.fitting import encode, fit

if TYPE_CHECKING:
    import torch

EMBEDDINGS = Path("results/demonstrations/embeddings.safetensors")
METRICS = Path("results/demonstrations/embeddings.json")


def run(params: Params) -> None:
    """Write a vector for every problem of results/dialects, standardised on the training split, and metrics.

    Raises:
        EmbeddingsError: the user's file cannot be used, or nothing can be told by the embeddings.
        PromptTooLong: a problem does not fit into the model's prompt by itself.
    """
    from planward.demonstrations.embeddings import standardised, write_embeddings

    splits = {side: list(read_records(DIALECTS / f"{side}.jsonl")) for side in SIDES}
    problems = [record for side in SIDES for record in splits[side]]
    training = len(splits[SIDES[0]])
    vectors = standardised(raw_embeddings(problems, training, params), training)
    write_embeddings(EMBEDDINGS, {record.id: vector for record, vector in zip(problems, vectors, strict=True)})
    pairs = zip(problems, (problems[place] for place in nearest(vectors, training)), strict=True)
    metrics = {
        "source": params.demonstrations.embeddings,
        "problems": len(vectors),
        "dimension": vectors.shape[1],
        "nearest": {side: agreement(list(islice(pairs, len(own)))) for side, own in splits.items() if own},
    }
    write_json(METRICS, metrics)


def raw_embeddings(problems: Sequence[Record], training: int, params: Params) -> torch.Tensor:
    """Vectors [n, D], or several for each problem [n, L, D], of the kind that params.yaml names.

    Args:
        training: how many of the problems, the first ones, are of the training split.
    """
    from planward.demonstrations import embeddings

    settings = params.demonstrations
    if settings.embeddings_file is not None and settings.embeddings == "file":
        import torch

        vectors = embeddings.read_embeddings(settings.embeddings_file, [record.id for record in problems])
        return torch.stack(list(vectors.values()))
    task = load_task(params, PROBLEMS)
    if settings.embeddings == "tfidf":
        texts = [text(task.prompt(record, [])) for record in problems]
        return embeddings.tfidf_embeddings(texts[:training], texts)
    model, tokenizer = frozen_model(params)
    prompts = [prompt_tokens(task, record, tokenizer, params.prompt.max_tokens) for record in problems]
    return embeddings.model_embeddings(model, prompts, settings.batch_tokens, settings.layers)


def frozen_model(params: Params) -> tuple[Any, Any]:
    """The language model that examples are chosen for, and its tokenizer; raises ParamsError where there is none."""
    from planward.training import models

    folder, limits = params.demonstrations.model, params.prompt
    if not folder.is_dir():
        raise ParamsError(
            f"params.yaml: demonstrations.model: there is no folder {folder}; name one that holds a model, "
            "or run the stage that trains it"
        )
    return models.load(params.model, str(folder), limits.max_tokens + limits.max_completion_tokens, params.seed)


def prompt_tokens(task: Task, problem: Record, tokenizer: Any, limit: int) -> list[int]:
    """The problem's prompt without worked examples; raises PromptTooLong where it is too long."""
    prompt, _ = fit(task, problem, [], lambda asked: len(encode(tokenizer, asked)), limit)
    return encode(tokenizer, prompt)


def text(prompt: str | Messages) -> str:
    """The part of a prompt that the problem alone stands in."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def nearest(vectors: torch.Tensor, training: int) -> list[int]:
    """For each vector [n, D] the place of the nearest of the first `training` ones, by cosine and not itself."""
    from torch.nn.functional import normalize

    directions, found = normalize(vectors, dim=-1), list[int]()
    for place, direction in enumerate(directions):
        cosines = directions[:training] @ direction
        if place < training:
            cosines[place] = -2
        found.append(int(cosines.argmax()))
    return found


def agreement(pairs: Sequence[tuple[Record, Record]]) -> dict[str, float]:
    """Shares of pairs of one domain, and of one dialect of it."""
    domain = [one.domain == other.domain for one, other in pairs]
    dialect = [dialect_name(one) == dialect_name(other) for one, other in pairs]
    both = [a and b for a, b in zip(domain, dialect, strict=True)]
    return {"domain": sum(domain) / len(pairs), "dialect": sum(both) / len(pairs)}
