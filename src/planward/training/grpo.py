"""GRPO over a materialised schedule, on TRL.

Method: Shao et al., "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", 2024
(arXiv:2402.03300); `loss_type` and `scale_rewards` choose the later variants that TRL implements.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset
from transformers import TrainerCallback, set_seed
from trl import GRPOConfig

from planward.params import Params
from planward.records import Record
from planward.tasks.base import Task
from planward.training import models
from planward.training.batching import Batching, training_state
from planward.training.checkpoints import ROOT, Journal, Keeper, fingerprint, resume
from planward.training.curves import Curves, show_progress
from planward.training.examples import check_references, draw_shots, fitted_prompt
from planward.training.prefixes import SharedPrefixes
from planward.training.rollouts import Rollouts, Row

SCHEDULE = ("step", "slot", "id", "domain", "bucket", "wanted_bucket")
CONSUMED = pa.schema(
    [
        ("step", pa.int64()),
        ("slot", pa.int64()),
        ("index", pa.int64()),
        ("id", pa.string()),
        ("domain", pa.string()),
        ("bucket", pa.string()),
        ("wanted_bucket", pa.string()),
        ("rewards", pa.list_(pa.float64())),
        ("labels", pa.list_(pa.string())),
        ("audited", pa.int64()),
    ]
)
TRAINED = {name: name for name in ("loss", "reward", "kl", "learning_rate", "grad_norm", "entropy")}
SHOWN = {"reward": "reward", "entropy": "entropy"}


class _Trainer(SharedPrefixes):
    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Checkpoints are scratch: no model card."""


def train(
    task: Task,
    records: Sequence[Record],
    schedule: Sequence[Row],
    params: Params,
    *,
    base: str,
    model: Path,
    training: Path,
    name: str = "grpo",
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Train the weights at `base` on the schedule; write `model`/ and `training`/.

    An interrupted run goes on from its last checkpoint. Under several processes (`accelerate launch`) the
    main one writes. `training`/ gets metrics.json, curves/**.tsv and consumed.parquet: the prompts that the
    trainer really consumed, with the rewards and labels of their completions.

    Args:
        schedule: rows in order of consumption; `grpo.batch_size` rows for each of `grpo.steps` steps.

    Raises:
        ValueError: the schedule was made for other parameters or problems, or the batch cannot be cut evenly.
        WrongReferences: a reference answer is not worth 1.
        VerifierError, Disagreement, ScheduleViolated: see `rollouts`.
    """
    state = training_state()
    rows = _checked(schedule, records, params)
    domains = len({row["domain"] for row in rows})
    batching = Batching.of(
        "grpo.batch_size",
        params.grpo.batch_size,
        params.grpo.num_generations,
        params.grpo.micro_batch_size,
        state.num_processes,
        domains,
    )
    check_references(task, records)

    set_seed(params.seed)
    limits = params.prompt
    network, tokenizer = models.load(params.model, base, limits.max_tokens + limits.max_completion_tokens, params.seed)
    examples, prompt_tokens, dropped = _examples(task, tokenizer, records, rows, params)
    folder = ROOT / f"{name}-{_fingerprint(records, rows, params, base, state.num_processes)}"
    checkpoint, journal = resume(folder)
    rollouts = Rollouts(task, records, rows, prompt_tokens, params, journal.consumed, training / "disagreement.json")
    curves = Curves(training, journal, TRAINED, rollouts.measured)
    if params.grpo.report_to:
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", f"runs/{name}")
    trainer = _Trainer(
        model=network,
        reward_funcs=rollouts,
        args=_arguments(params, batching, folder, name),
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer,
        peft_config=models.lora_config(params.model, network),
        callbacks=[curves, Keeper(folder, journal), *callbacks],
    )
    show_progress(trainer, SHOWN)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    if len(journal.consumed) != len(rows):
        raise RuntimeError(f"{len(journal.consumed)} of the schedule's {len(rows)} prompts were consumed")
    if state.is_main_process:
        models.save(trainer.accelerator.unwrap_model(trainer.model), tokenizer, model)
        _write_consumed(training / "consumed.parquet", journal)
        curves.close(
            {
                "prompts": len(rows),
                "completions": len(rows) * params.grpo.num_generations,
                "audited": sum(row["audited"] for row in journal.consumed),
                "shots_dropped": dropped,
            }
        )
        shutil.rmtree(folder)
    state.wait_for_everyone()


def _checked(schedule: Sequence[Row], records: Sequence[Record], params: Params) -> list[Row]:
    """Return the schedule's rows, known to fit the parameters and the problems."""
    rows = [{column: row[column] for column in SCHEDULE} for row in schedule]
    steps = [step for step in range(params.grpo.steps) for _ in range(params.grpo.batch_size)]
    if [row["step"] for row in rows] != steps:
        raise ValueError(
            f"the schedule holds {len(rows)} rows, which are not {params.grpo.steps} steps of "
            f"{params.grpo.batch_size} prompts: it was made for other parameters"
        )
    unknown = sorted({row["id"] for row in rows} - {record.id for record in records})
    if unknown:
        raise ValueError(f"the schedule names {len(unknown)} problem(s) outside the set, {unknown[0]} among them")
    return rows


def _examples(
    task: Task, tokenizer: Any, records: Sequence[Record], rows: Sequence[Row], params: Params
) -> tuple[list[Row], list[int], int]:
    """Return TRL's dataset, one row a scheduled prompt, the prompts' lengths, and the shots dropped in all."""
    problems = {record.id: record for record in records}
    shots = params.grpo.shots
    examples, lengths, dropped = [], [], 0
    fitted: dict[str, Any] = {}
    for row in rows:
        place = f"{params.seed}:{row['step']}:{row['slot']}" if shots else ""  # other shots each time
        key = f"{place}:{row['id']}"
        if key not in fitted:
            problem = problems[row["id"]]
            drawn = draw_shots(problem, records, shots, shots, place)
            fitted[key] = fitted_prompt(task, tokenizer, problem, drawn, params.prompt.max_tokens)
        prompt, ids, fewer = fitted[key]
        examples.append(row | {"prompt": prompt})
        lengths.append(len(ids))
        dropped += fewer
    return examples, lengths, dropped


def _arguments(params: Params, batching: Batching, folder: Path, name: str) -> GRPOConfig:
    grpo = params.grpo
    cuda = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(folder),
        run_name=name,
        project="planward",
        seed=params.seed,
        max_steps=grpo.steps,
        shuffle_dataset=False,
        # One generation is one optimizer step: steps_per_generation is gradient_accumulation_steps, TRL's default.
        per_device_train_batch_size=batching.micro_batch,
        gradient_accumulation_steps=batching.accumulation,
        steps_per_generation=batching.accumulation,
        num_generations=grpo.num_generations,
        num_iterations=1,
        max_completion_length=params.prompt.max_completion_tokens,
        temperature=grpo.temperature,
        top_p=grpo.top_p,
        top_k=grpo.top_k,
        learning_rate=grpo.learning_rate,
        beta=grpo.beta,
        loss_type=grpo.loss_type,
        scale_rewards=grpo.scale_rewards,
        max_grad_norm=grpo.max_grad_norm,
        gradient_checkpointing=params.model.gradient_checkpointing,
        bf16=cuda,
        use_cpu=not cuda,
        ddp_backend=None if cuda or batching.processes == 1 else "gloo",
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=cuda,
        logging_steps=1,
        save_steps=grpo.save_steps,
        report_to=list(grpo.report_to) or "none",
        disable_tqdm=False,
    )


def _fingerprint(records: Sequence[Record], rows: Sequence[Row], params: Params, base: str, processes: int) -> str:
    settings = {
        "seed": params.seed,
        "prompt": params.prompt.model_dump(),
        "model": params.model.model_dump(),
        "grpo": params.grpo.model_dump(exclude={"save_steps", "report_to"}),  # these change no result
    }
    return fingerprint(settings, records, rows, base, processes)


def _write_consumed(path: Path, journal: Journal) -> None:
    partial = path.with_name(path.name + ".partial")
    pq.write_table(pa.Table.from_pylist(journal.consumed, CONSUMED), partial)
    partial.replace(path)
