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
from transformers import TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

from planward.core import paths
from planward.core.records import Record
from planward.core.runs import Run
from planward.core.tasks import Task
from planward.core.training_prompts import sample_training_prompt
from planward.inference import models
from planward.params import Params
from planward.training.batching import Batching, init_processes
from planward.training.checkpoints import CheckpointCallback, compute_fingerprint, restore_checkpoint
from planward.training.curves import CurveLogger, replace_progress_bar
from planward.training.references import check_references, encode_reference

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
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Train the weights at `base` on the records' reference completions; write `model`/ and `training`/.

    Every epoch has each problem once, in its own order and with its own worked examples from the other records; with
    `sft.renaming`, also with other object names. An interrupted run resumes from its last checkpoint. `training`/ gets
    metrics.json and curves/*.tsv.

    Args:
        run: names the checkpoints; its identity goes to metrics.json.

    Raises:
        ValueError: `sft.batch_size` is not a multiple of the processes, or a completion cannot be tokenised.
        PromptTooLong: a problem does not fit.
        InvalidReferences: a reference completion is rejected.
    """
    state = init_processes()
    sft = params.sft
    batching = Batching.compute("sft.batch_size", sft.batch_size, 1, sft.micro_batch_size, state.num_processes)
    check_references(task, records)

    set_seed(params.seed)
    limits = params.prompt
    network, tokenizer = models.load_model(
        params.model, base, limits.max_tokens + limits.max_completion_tokens, params.seed
    )
    rows, num_dropped = _build_rows(task, tokenizer, records, params)
    folder = paths.CHECKPOINTS / f"{run.name}-{_compute_fingerprint(records, params, base, state.num_processes)}"
    checkpoint, journal = restore_checkpoint(folder)
    curves = CurveLogger(training, journal, TRAINER_CURVES)
    trainer = SftTrainer(
        model=network,
        args=_build_arguments(params, batching, len(rows), folder, run),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=models.build_lora_config(params.model, network),
        callbacks=[curves, CheckpointCallback(folder, journal), *callbacks],
    )
    replace_progress_bar(trainer, PROGRESS_LABELS)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    if state.is_main_process:
        network = trainer.accelerator.unwrap_model(trainer.model)
        models.save_model(network, tokenizer, model, adapter=params.model.keeps_adapter)
        longest = max(sum(label != IGNORED_LABEL for label in row["labels"]) for row in rows)
        summary = {"problems": len(records), "shots_dropped": num_dropped, "longest_answer": longest}
        curves.close({"run": run.as_dict(task.name)} | summary)
        shutil.rmtree(folder)
    state.wait_for_everyone()


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
                max_tokens=params.prompt.max_tokens,
            )
            completion = encode_reference(task, tokenizer, problem, prompt)
            labels = [IGNORED_LABEL] * len(prompt.ids) + completion
            rows.append({"input_ids": prompt.ids + completion, "labels": labels})
            num_dropped += prompt.num_dropped
    return rows, num_dropped


def _build_arguments(params: Params, batching: Batching, num_rows: int, folder: Path, run: Run) -> SFTConfig:
    sft = params.sft
    steps = math.ceil(num_rows / sft.batch_size)
    cuda = torch.cuda.is_available()
    return SFTConfig(
        output_dir=str(folder),
        run_name=run.name,
        project="planward",
        seed=params.seed,
        num_train_epochs=1,  # the rows are those of all epochs, in order
        train_sampling_strategy="sequential",
        per_device_train_batch_size=batching.micro_batch,
        gradient_accumulation_steps=batching.accumulation,
        learning_rate=sft.learning_rate,
        warmup_steps=math.ceil(sft.warmup_ratio * steps),
        max_grad_norm=sft.max_grad_norm,
        max_length=None,  # prompts are fitted, never truncated
        gradient_checkpointing=params.model.gradient_checkpointing,
        bf16=cuda,
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
        "prompt": params.prompt.model_dump(),
        "model": params.model.model_dump(),
        "sft": params.sft.model_dump(exclude={"save_steps"}),  # changes no result
    }
    return compute_fingerprint(settings, records, (), base, processes)
