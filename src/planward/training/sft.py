"""Supervised fine-tuning on reference answers, on TRL; the loss counts the answer only."""

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

from planward.params import Params
from planward.records import Record
from planward.tasks.base import Task
from planward.tasks.visits import visit
from planward.training import models
from planward.training.batching import Batching, training_state
from planward.training.checkpoints import ROOT, Keeper, fingerprint, resume
from planward.training.curves import Curves, show_progress
from planward.training.examples import answer_ids, check_references

IGNORED = -100  # the label of a token that is not learnt
TRAINED = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "mean_token_accuracy": "token_accuracy",
}
SHOWN = {"loss": "loss", "mean_token_accuracy": "accuracy"}


class _Trainer(SFTTrainer):
    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Checkpoints are scratch: no model card."""


def train(
    task: Task,
    records: Sequence[Record],
    params: Params,
    *,
    base: str,
    model: Path,
    training: Path,
    name: str = "sft",
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Train the weights at `base` on the records' reference answers; write `model`/ and `training`/.

    Every epoch visits each problem once, in an order and with shots from the other records that are its own; with
    `sft.renaming` under other names, too. An interrupted run goes on from its last checkpoint. `training`/ gets
    metrics.json and curves/*.tsv.

    Raises:
        ValueError: `sft.batch_size` is no multiple of the processes, or an answer cannot be tokenised.
        PromptTooLong: a problem does not fit.
        WrongReferences: a reference answer is no success.
    """
    state = training_state()
    batching = Batching.of("sft.batch_size", params.sft.batch_size, 1, params.sft.micro_batch_size, state.num_processes)
    check_references(task, records)

    set_seed(params.seed)
    limits = params.prompt
    network, tokenizer = models.load(params.model, base, limits.max_tokens + limits.max_completion_tokens, params.seed)
    examples, dropped = _examples(task, tokenizer, records, params)
    folder = ROOT / f"{name}-{_fingerprint(records, params, base, state.num_processes)}"
    checkpoint, journal = resume(folder)
    curves = Curves(training, journal, TRAINED)
    trainer = _Trainer(
        model=network,
        args=_arguments(params, batching, len(examples), folder, name),
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer,
        peft_config=models.lora_config(params.model, network),
        callbacks=[curves, Keeper(folder, journal), *callbacks],
    )
    show_progress(trainer, SHOWN)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    if state.is_main_process:
        network = trainer.accelerator.unwrap_model(trainer.model)
        models.save(network, tokenizer, model, adapter=params.model.keeps_adapter)
        longest = max(sum(label != IGNORED for label in example["labels"]) for example in examples)
        curves.close({"problems": len(records), "shots_dropped": dropped, "longest_answer": longest})
        shutil.rmtree(folder)
    state.wait_for_everyone()


def _examples(
    task: Task, tokenizer: Any, records: Sequence[Record], params: Params
) -> tuple[list[dict[str, list[int]]], int]:
    """Return token ids and labels of every visit, epoch by epoch in training's order, and the shots dropped in all."""
    examples, dropped = [], 0
    for epoch in range(params.sft.epochs):
        seed = f"{params.seed}:{epoch}"
        for problem in Random(f"{seed}:order").sample(records, len(records)):
            asked = visit(
                task,
                tokenizer,
                problem,
                records,
                f"{seed}:{problem.id}",
                shots=params.sft.shots,
                renaming=params.sft.renaming,
                limit=params.prompt.max_tokens,
            )
            answer = answer_ids(task, tokenizer, problem, asked)
            examples.append({"input_ids": asked.ids + answer, "labels": [IGNORED] * len(asked.ids) + answer})
            dropped += asked.dropped
    return examples, dropped


def _arguments(params: Params, batching: Batching, examples: int, folder: Path, name: str) -> SFTConfig:
    sft = params.sft
    steps = math.ceil(examples / sft.batch_size)
    cuda = torch.cuda.is_available()
    return SFTConfig(
        output_dir=str(folder),
        run_name=name,
        project="planward",
        seed=params.seed,
        num_train_epochs=1,  # the examples are all epochs', in order
        train_sampling_strategy="sequential",
        per_device_train_batch_size=batching.micro_batch,
        gradient_accumulation_steps=batching.accumulation,
        learning_rate=sft.learning_rate,
        warmup_steps=math.ceil(sft.warmup_ratio * steps),
        max_grad_norm=sft.max_grad_norm,
        max_length=None,  # prompts are fitted, never cut
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


def _fingerprint(records: Sequence[Record], params: Params, base: str, processes: int) -> str:
    settings = {
        "seed": params.seed,
        "prompt": params.prompt.model_dump(),
        "model": params.model.model_dump(),
        "sft": params.sft.model_dump(exclude={"save_steps"}),  # changes no result
    }
    return fingerprint(settings, records, (), base, processes)
