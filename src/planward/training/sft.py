"""Supervised fine-tuning on reference completions, on TRL; the loss is over completions only."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

from planward.core import paths
from planward.core.fingerprints import compute_fingerprint
from planward.core.prompt_templates import identify_prompts
from planward.core.records import Record
from planward.core.runs import Run
from planward.core.tasks import Task
from planward.core.training_prompts import sample_training_prompt
from planward.inference import models
from planward.loggers import check_installed, open_loggers
from planward.params import Params
from planward.training.batching import Batching, init_processes
from planward.training.checkpoints import CheckpointCallback, restore_checkpoint, run_trainer
from planward.training.curves import CurveLogger, replace_progress_bar
from planward.training.lengths import list_long_references, measure_lengths, print_lengths
from planward.training.references import check_references, encode_reference
from planward.training.validation import ValidationCallback

IGNORED_LABEL = -100  # of a token that is left out of the loss
TRAINER_CURVES = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "mean_token_accuracy": "token_accuracy",
}
PROGRESS_LABELS = {"loss": "loss", "mean_token_accuracy": "accuracy"}


class SftTrainer(SFTTrainer):
    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: checkpoints are temporary."""


def train(
    task: Task,
    records: Sequence[Record],
    params: Params,
    *,
    base: str,
    model: Path,
    training: Path,
    run: Run,
    validation: Sequence[Record] = (),
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Train the weights at `base` on the records' reference completions; write `model`/ and `training`/.

    Every epoch has each problem once, in its own order and with its own worked examples from the other records; with
    `sft.renaming`, also with other object names. An interrupted run resumes from its last checkpoint. `model`/ gets the
    weights of the best validation, or the last ones (`validation.keep`), `training`/ metrics.json and curves/*.tsv.

    Args:
        run: names the checkpoints; its identity goes to metrics.json.
        validation: problems, of which `validation.problems` are completed every `sft.validation_steps` steps.

    Raises:
        ValueError: `sft.batch_size` is not a multiple of the processes, or a completion cannot be tokenised.
        PromptTooLong: a problem does not fit.
        InvalidReferences: a reference completion is rejected.
        ParamsError: a logger's package is missing.
    """
    state = init_processes()
    check_installed(params.logging)
    sft = params.sft
    batching = Batching.compute("sft.batch_size", sft.batch_size, 1, sft.micro_batch_size, state.num_processes)
    check_references(task, records)

    set_seed(params.seed)
    limits = params.prompt
    network, tokenizer = models.load_model(
        params.model, base, limits.max_tokens + limits.max_completion_tokens, params.seed
    )
    lengths = measure_lengths(task, tokenizer, records, records, params, sft.shots[1])
    if state.is_main_process:
        print_lengths(lengths, limits, sft.shots[1])
    rows, num_dropped = _build_rows(task, tokenizer, records, params)
    fingerprint = _compute_fingerprint([*records, *validation], params, base, state.num_processes)
    folder = paths.CHECKPOINTS / f"{run.name}-{fingerprint}"
    checkpoint, journal = restore_checkpoint(folder)
    loggers = open_loggers(params.logging, run.as_dict(task.name), folder.name, params) if state.is_main_process else []
    curves = CurveLogger(training, journal, TRAINER_CURVES, loggers=loggers)
    validation_callback = ValidationCallback(
        task,
        tokenizer,
        validation,
        params,
        curves,
        folder,
        interval=sft.validation_steps,
        compute_metrics=lambda network, problems: {
            "validation_loss": compute_reference_loss(task, network, tokenizer, problems, params)
        },
    )
    stop = validation_callback.stop_step
    trainer = SftTrainer(
        model=network,
        args=_build_arguments(params, batching, len(rows), folder),
        train_dataset=Dataset.from_list(rows if stop is None else rows[: stop * sft.batch_size]),
        processing_class=tokenizer,
        peft_config=models.build_lora_config(params.model, network),
        callbacks=[curves, validation_callback, CheckpointCallback(folder, journal), *callbacks],
    )
    models.cast_adapter(trainer.model)
    replace_progress_bar(trainer, PROGRESS_LABELS)
    run_trainer(trainer, folder, checkpoint)

    if state.is_main_process:
        network = trainer.accelerator.unwrap_model(trainer.model)
        validation_callback.restore_best(network)
        models.save_model(network, tokenizer, model, adapter=params.model.keeps_adapter)
        longest = max(sum(label != IGNORED_LABEL for label in row["labels"]) for row in rows)
        summary = {
            "problems": len(records),
            "shots_dropped": num_dropped,
            "longest_answer": longest,
            "references_too_long": len(list_long_references(lengths, limits)),
        }
        curves.close({"run": run.as_dict(task.name)} | summary | validation_callback.summarize())
        shutil.rmtree(folder)
    state.wait_for_everyone()


@torch.no_grad()
def compute_reference_loss(task: Task, model: Any, tokenizer: Any, problems: Sequence[Record], params: Params) -> float:
    """Return the mean loss per token of the problems' reference completions, without worked examples or renaming.

    Raises:
        ValueError: a completion cannot be tokenised.
    """
    rows = []
    for problem in problems:
        prompt = sample_training_prompt(
            task, tokenizer, problem, (), "", shot_range=(0, 0), rename=False, config=params.prompt
        )
        rows.append(_build_row(prompt.ids, encode_reference(task, tokenizer, problem, prompt)))
    loss, num_tokens = 0.0, 0
    for start in range(0, len(rows), params.sft.micro_batch_size):
        batch = rows[start : start + params.sft.micro_batch_size]
        ids, labels, mask = (
            pad_sequence(list(map(torch.tensor, sequences)), batch_first=True, padding_value=padding).to(model.device)
            for sequences, padding in (
                ([row["input_ids"] for row in batch], tokenizer.pad_token_id),
                ([row["labels"] for row in batch], IGNORED_LABEL),
                ([[1] * len(row["labels"]) for row in batch], 0),
            )
        )
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
        loss += cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="sum", ignore_index=IGNORED_LABEL).item()
        num_tokens += int((labels[:, 1:] != IGNORED_LABEL).sum())
    return loss / num_tokens


def _build_rows(
    task: Task, tokenizer: Any, records: Sequence[Record], params: Params
) -> tuple[list[dict[str, list[int]]], int]:
    """Return token ids and labels of all epochs, in training's order, and the total of dropped worked examples."""
    rows, num_dropped = [], 0
    for epoch in range(params.sft.epochs):
        seed = f"{params.seed}:{epoch}"
        for problem in Random(f"{seed}:order").sample(records, len(records)):
            prompt = sample_training_prompt(
                task,
                tokenizer,
                problem,
                records,
                f"{seed}:{problem.id}",
                shot_range=params.sft.shots,
                rename=params.sft.renaming,
                config=params.prompt,
            )
            rows.append(_build_row(prompt.ids, encode_reference(task, tokenizer, problem, prompt)))
            num_dropped += prompt.num_dropped
    return rows, num_dropped


def _build_row(prompt: list[int], completion: list[int]) -> dict[str, list[int]]:
    return {"input_ids": prompt + completion, "labels": [IGNORED_LABEL] * len(prompt) + completion}


def _build_arguments(params: Params, batching: Batching, num_rows: int, folder: Path) -> SFTConfig:
    sft = params.sft
    steps = math.ceil(num_rows / sft.batch_size)
    cuda = torch.cuda.is_available()
    return SFTConfig(
        output_dir=str(folder),
        seed=params.seed,
        num_train_epochs=1,  # the rows are those of all epochs, in order
        train_sampling_strategy="sequential",
        per_device_train_batch_size=batching.micro_batch,
        gradient_accumulation_steps=batching.accumulation,
        learning_rate=sft.learning_rate,
        warmup_steps=math.ceil(sft.warmup_ratio * steps),
        max_grad_norm=sft.max_grad_norm,
        optim="adamw_torch_fused",  # TRL's defaults: Unsloth has others
        weight_decay=0.0,
        max_length=None,  # prompts are fitted, never truncated
        gradient_checkpointing=params.model.gradient_checkpointing,
        bf16=models.uses_bfloat16(params.model),
        use_cpu=not cuda,
        ddp_backend=None if cuda or batching.processes == 1 else "gloo",
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=cuda,
        logging_steps=1,
        save_steps=sft.save_steps,
        report_to="none",
        disable_tqdm=False,
    )


def _compute_fingerprint(records: Sequence[Record], params: Params, base: str, processes: int) -> str:
    settings = {
        "seed": params.seed,
        "prompt": identify_prompts(params.prompt),
        "model": params.model.model_dump(),
        "sft": params.sft.model_dump(exclude={"save_steps"}),  # changes no result
        "validation": params.validation.model_dump(exclude={"steps"}),  # of GRPO
    }
    return compute_fingerprint(settings, records, (), base, processes)
