"""Where the time of a GRPO step goes, and what sharing prompts saves: python benchmarks/grpo_step.py [SIZE]

Trains a few steps of this run's schedule (so run the pipeline first) in a scratch folder: as TRL does it, with
micro-batches of 8 (its default), 40 and all completions of a step, and with each prompt computed once for all its
completions. Every variant trains on the same prompts from the same weights; start-up is left out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import pyarrow.parquet as pq
from transformers import TrainerCallback

from planward.params import Params, load_params
from planward.stages import grpo as stage
from planward.training import grpo
from planward.training.prefixes import SharedPrefixes
from planward.training.rollouts import Rollouts

STEPS = 10


class Stock(grpo._Trainer):
    """TRL's own generation and losses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shares = False


class Clock:
    """Adds up the time that a method takes."""

    def __init__(self, owner: type, method: str) -> None:
        self.seconds, original = 0.0, getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += perf_counter() - start

        setattr(owner, method, timed)


CLOCKS = {
    "all": Clock(SharedPrefixes, "training_step"),
    "generation": Clock(SharedPrefixes, "_generate_single_turn"),
    "reward": Clock(Rollouts, "__call__"),
    "of which verdicts in-process": Clock(Rollouts, "_verify"),
}


class LeaveOutTheFirst(TrainerCallback):
    """The first step also allocates memory and reads the problems."""

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == 1:
            for clock in CLOCKS.values():
                clock.seconds = 0.0


def seconds_a_step(params: Params, trainer: type, micro_batch_size: int, size: int) -> dict[str, float]:
    changes = {"steps": STEPS + 1, "micro_batch_size": micro_batch_size}
    params = params.model_copy(update={"grpo": params.grpo.model_copy(update=changes)})
    original, train = grpo._Trainer, grpo.train
    grpo._Trainer = trainer  # type: ignore[misc]
    grpo.train = lambda *args, **kwargs: train(*args, **kwargs, callbacks=[LeaveOutTheFirst()])
    try:
        stage.run(params, size)
    finally:
        grpo._Trainer, grpo.train = original, train  # type: ignore[misc]
    return {name: clock.seconds / STEPS for name, clock in CLOCKS.items()}


def main() -> None:
    root, params = Path.cwd(), load_params()
    size = int(sys.argv[1]) if len(sys.argv) > 1 else params.dataset_sizes[0]
    if not (root / f"results/schedules/{size}.parquet").exists():
        sys.exit(f"results/schedules/{size}.parquet is missing: run `make report` first")
    completions = params.grpo.batch_size * params.grpo.num_generations
    variants = {
        "TRL, micro-batches of 8": (Stock, 8),
        "TRL, micro-batches of 40": (Stock, 40),
        f"TRL, {completions} at once": (Stock, completions),
        f"prompts shared, {completions} at once": (grpo._Trainer, completions),
    }
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in ("problems", "score", f"models/sft-{size}"):
            link = Path("results", name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / "results" / name)
        Path("models").symlink_to(root / "models")
        Path("results/schedules").mkdir()
        whole = pq.read_table(root / f"results/schedules/{size}.parquet")
        pq.write_table(whole.slice(0, (STEPS + 1) * params.grpo.batch_size), f"results/schedules/{size}.parquet")
        rows = {name: seconds_a_step(params, *variant, size) for name, variant in variants.items()}
        os.chdir(root)
    print(f"seconds a step of {params.grpo.batch_size} prompts x {params.grpo.num_generations} completions")
    shared = list(rows.values())[-1]["all"]
    for name, row in rows.items():
        figures = ", ".join(f"{part} {seconds:.3f}" for part, seconds in row.items())
        print(f"{name:36} {figures}; {row['all'] / shared:.2f} x the last, reward {row['reward'] / row['all']:.2%}")


if __name__ == "__main__":
    main()
