"""Test problems of a published model: one for its card, and a few to compare completions of the folder with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planward.core import paths
from planward.core.prompts import encode_prompt
from planward.core.records import Prediction, read_predictions, read_records
from planward.core.registry import load_task
from planward.core.runs import Run
from planward.core.tasks import Messages
from planward.params import Params
from planward.publication.provenance import PublicationError


@dataclass(frozen=True)
class Example:
    """A prompt of evaluation and the completion that evaluation stored."""

    prompt: str | Messages
    completion: str
    success: bool


def select_examples(params: Params, run: Run, count: int) -> list[Example]:
    """Select answers of a run with the fewest worked examples: the shortest success first, then `count` - 1 others.

    Raises:
        PublicationError: the run has no predictions.
    """
    results = paths.results(params.task)
    file = results.answers(run)
    if not file.is_file():
        raise PublicationError(
            f"{file}: no such file; fix: planward evaluate --method {run.method} --size {run.size} --seed {run.seed}"
        )
    rows = list(read_predictions(file))
    fewest = min(row.shot_num for row in rows)
    rows = [row for row in rows if row.shot_num == fewest]
    first = min(rows, key=lambda row: (not row.success, len(row.prompt), row.id))
    others = [row for row in rows if row is not first]
    step = max(len(others) // max(count - 1, 1), 1)
    return _build_examples(params, [first, *others[::step][: max(count - 1, 0)]])


def count_equal_completions(folder: Path, examples: Sequence[Example], options: dict[str, Any]) -> int:
    """Count the examples that the model in a folder completes as evaluation did, used as anyone would use it.

    Args:
        options: of the chat template.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    from planward.inference.models import move_to_gpu

    disable_progress_bar()
    network = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    network.generation_config = GenerationConfig.from_pretrained(folder)  # with an adapter it is the base's
    move_to_gpu(network)
    network.eval()
    equal = 0
    for example in examples:
        ids = encode_prompt(tokenizer, example.prompt, options)
        equal += _complete(network, tokenizer, ids) == example.completion
    return equal


def _complete(network: Any, tokenizer: Any, ids: list[int]) -> str:
    import torch

    prompt = torch.tensor([ids], device=network.device)
    tokens = network.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt))
    return str(tokenizer.decode(tokens[0, len(ids) :], skip_special_tokens=True))


def _build_examples(params: Params, rows: Sequence[Prediction]) -> list[Example]:
    score = paths.results(params.task).score
    ids = {id for row in rows for id in (row.id, *row.shot_ids)}
    files = (score / f"{split}.jsonl" for split in ("train", "test"))
    records = {record.id: record for file in files for record in read_records(file) if record.id in ids}
    task = load_task(params)
    return [
        Example(task.prompt(records[row.id], [records[id] for id in row.shot_ids]), row.completion, row.success)
        for row in rows
    ]
