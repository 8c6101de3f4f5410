"""GRPO over a materialised schedule, or problems that success puts in its place, on TRL.

Method: Shao et al., "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", 2024
(arXiv:2402.03300); `loss_type` and `scale_rewards` choose the later variants that TRL implements.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset
from transformers import TrainerCallback, set_seed
from trl import GRPOConfig

from planward.curriculum.decks import Slot
from planward.curriculum.sampling import sampler_of
from planward.params import Params
from planward.records import Record
from planward.tasks.base import Task
from planward.tasks.fitting import encode, fit
from planward.training import models
from planward.training.batching import Batching, training_state
from planward.training.checkpoints import ROOT, Journal, Keeper, fingerprint, resume
from planward.training.curves import Curves, show_progress
from planward.training.examples import check_references
from planward.training.prefixes import TEMPERATURES, SharedPrefixes
from planward.training.rollouts import Rollouts, Row
from planward.training.validation import Validation

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
        ("replayed", pa.int64()),
    ]
)
TRAINED = {name: name for name in ("loss", "kl", "learning_rate", "grad_norm", "entropy")}
SHOWN = {"reward": "reward"}


class _Trainer(SharedPrefixes):
    """Takes its prompts from the rollouts when it generates.

    The dataset's rows tell step and slot only: TRL fetches a batch ahead, when it is not yet known what is due.
    """

    def __init__(self, *args: Any, rollouts: Rollouts, **kwargs: Any) -> None:
        super().__init__(*args, reward_funcs=rollouts, **kwargs)
        self.rollouts = rollouts
        self.asked: list[Row] = []

    def _generate_and_score_completions(self, inputs: list[Row]) -> dict[str, Any]:
        self.asked = self.rollouts.asked(inputs)
        by_bucket = self.rollouts.params.grpo.temperatures
        if by_bucket is None:
            return cast(dict[str, Any], super()._generate_and_score_completions(self.asked))
        values = [getattr(by_bucket, row["bucket"]) for row in self.asked]
        self.temperatures = torch.tensor(values, device=self.accelerator.device)
        output = cast(dict[str, Any], super()._generate_and_score_completions(self.asked))
        return output | {TEMPERATURES: self.temperatures}

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        completions, logps = super()._generate_single_turn(*args, **kwargs)
        entropies = None if self.entropies is None else self.entropies.tolist()
        return self.rollouts.written(self.asked, completions, entropies), logps

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
    validation: Sequence[Record] = (),
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Train the weights at `base` on the schedule, as `grpo.adaptive` has it; write `model`/ and `training`/.

    An interrupted run goes on from its last checkpoint, and with `grpo.extendable` so does a finished one that gets
    more steps. Under several processes (`accelerate launch`) the main one writes. `training`/ gets metrics.json,
    curves/**.tsv and consumed.parquet: the prompts that the trainer really consumed, with the rewards and labels of
    their completions. Rewards are the verdicts', also where `grpo.reward` gives the trainer others.

    Args:
        schedule: rows in order of consumption; `grpo.batch_size` rows for each of `grpo.steps` steps.
        validation: problems, of which `validation.problems` are completed every `validation.steps` steps.

    Raises:
        ValueError: the schedule was made for other parameters or problems, or the batch cannot be cut evenly.
        WrongReferences: a reference answer is no success.
        VerifierError, Disagreement, ScheduleViolated: see `rollouts`.
    """
    state = training_state()
    rows = _checked(schedule, records, params)
    domains = len({row["domain"] for row in rows}) if params.grpo.balanced else 1
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
    for problem in records:  # any may come, and none may stop the run for its length
        fit(task, problem, [], lambda prompt: len(encode(tokenizer, prompt)), limits.max_tokens)
    problems = [*records, *validation]
    folder = ROOT / f"{name}-{_fingerprint(problems, rows, params, base, state.num_processes)}"
    checkpoint, journal = resume(folder, params.grpo.steps)
    sampler = sampler_of([Slot(**row) for row in rows], records, params)
    rollouts = Rollouts(task, tokenizer, records, sampler, params, journal.consumed, training / "disagreement.json")
    curves = Curves(training, journal, TRAINED, rollouts.measured)
    validated = Validation(task, tokenizer, validation, params, curves)
    if params.grpo.report_to:
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", f"runs/{name}")
    trainer = _Trainer(
        model=network,
        rollouts=rollouts,
        args=_arguments(params, batching, folder, name),
        train_dataset=Dataset.from_list([{"step": row["step"], "slot": row["slot"], "prompt": ""} for row in rows]),
        processing_class=tokenizer,
        peft_config=models.lora_config(params.model, network),
        callbacks=[curves, validated, Keeper(folder, journal), *callbacks],
    )
    show_progress(trainer, SHOWN)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    if len(journal.consumed) != len(rows):
        raise RuntimeError(f"{len(journal.consumed)} of the schedule's {len(rows)} prompts were consumed")
    if state.is_main_process:
        network = trainer.accelerator.unwrap_model(trainer.model)
        models.save(network, tokenizer, model, adapter=params.model.keeps_adapter)
        _write_consumed(training / "consumed.parquet", journal)
        curves.close(
            {
                "prompts": len(rows),
                "completions": len(rows) * params.grpo.num_generations,
                "audited": sum(row["audited"] for row in journal.consumed),
                "shots_dropped": sum(row["shots_dropped"] for row in journal.consumed),
                **validated.summary(),
            }
        )
        if not params.grpo.extendable:
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
        temperature=grpo.temperature if grpo.temperatures is None else 1.0,  # rows have their own then
        top_p=grpo.top_p,
        top_k=grpo.top_k,
        learning_rate=grpo.learning_rate,
        lr_scheduler_type=grpo.lr_scheduler_type,
        beta=grpo.beta,
        entropy_coef=grpo.entropy_coef,
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
    longer = {"steps"} if params.grpo.extendable else set[str]()  # another number of steps is the same run
    settings = {
        "seed": params.seed,
        "prompt": params.prompt.model_dump(),
        "model": params.model.model_dump(),
        "grpo": params.grpo.model_dump(exclude={"save_steps", "report_to", *longer}),  # these change no result
        "validation": params.validation.model_dump(),
        "phases": [params.model_dump()[key] for key in ("curriculum", "curriculum_by_domain")],
    }
    return fingerprint(settings, records, [] if longer else rows, base, processes)


def _write_consumed(path: Path, journal: Journal) -> None:
    partial = path.with_name(path.name + ".partial")
    pq.write_table(pa.Table.from_pylist(journal.consumed, CONSUMED), partial)
    partial.replace(path)
