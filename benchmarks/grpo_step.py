"""Where the time of a GRPO step goes, against TRL's own way and against the arithmetic: python benchmarks/grpo_step.py

    python benchmarks/grpo_step.py [SIZE [STEPS]]

Trains a few steps of this run's schedule (so run the pipeline first) in a scratch folder: as TRL does it, with
micro-batches of 8 (its default), 40 and all completions of a step, and as Planward does it. Every variant trains on
the same prompts from the same weights; start-up and the first step are left out. Processor time is that of all
threads; where other programs run, it is the steadier figure.

The floor is the time that the step's own matrix products, attention included, would take at the rate of a large one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import pyarrow.parquet as pq
import torch
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula
from transformers import TrainerCallback

from planward.params import Params, load_params
from planward.records import Run
from planward.stages import grpo as stage
from planward.training import grpo
from planward.training.prefixes import SharedPrefixes
from planward.training.rollouts import Rollouts

SQUARE = 1024  # the side of the large product


class Stock(grpo._Trainer):
    """TRL's own generation and losses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shares = False


class Clock:
    """Adds up the time that a method takes."""

    def __init__(self, owner: type, method: str, time: Callable[[], float] = perf_counter) -> None:
        self.seconds, original = 0.0, getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time() - start

        setattr(owner, method, timed)


CLOCKS = {
    "all": Clock(SharedPrefixes, "training_step"),
    "generation": Clock(SharedPrefixes, "_generate_single_turn"),
    "loss": Clock(SharedPrefixes, "_compute_loss"),
    "backward": Clock(torch.Tensor, "backward"),
    "reward": Clock(Rollouts, "__call__"),
    "prompts": Clock(Rollouts, "asked"),
    "processor": Clock(SharedPrefixes, "training_step", process_time),
}


class LeaveOutTheFirst(TrainerCallback):
    """The first step also allocates memory and reads the problems. Counts the operations of the last, which is no
    longer timed."""

    def __init__(self, steps: int) -> None:
        self.steps, self.counter, self.seconds = steps, FlopCounterMode(display=False), dict[str, float]()

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == 1:
            for clock in CLOCKS.values():
                clock.seconds = 0.0
        elif state.global_step == self.steps + 1:
            self.seconds = {name: clock.seconds / self.steps for name, clock in CLOCKS.items()}
            self.counter.__enter__()
        elif state.global_step == self.steps + 2:
            self.counter.__exit__(None, None, None)


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    rows, heads, length, size = query
    return int(2 * rows * heads * length * key[-2] * (size + value[-1]))


def _attention_backward(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
    return 5 * _attention(query, key, value) // 2  # five products for two, scores computed again


register_flop_formula(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu)(_attention)
register_flop_formula(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward)(_attention_backward)


def matrix_rate() -> float:
    """Floating-point operations a second of a large matrix product, at its best of many."""
    left, right = torch.rand(SQUARE, SQUARE), torch.rand(SQUARE, SQUARE)
    best = float("inf")
    for _ in range(20):
        start = perf_counter()
        left @ right
        best = min(best, perf_counter() - start)
    return 2 * SQUARE**3 / best


def a_step(params: Params, run: Run, steps: int, trainer: type, micro_batch_size: int) -> tuple[dict[str, float], int]:
    """Seconds a step of each part, and the floating-point operations of one."""
    changes = {"steps": steps + 2, "micro_batch_size": micro_batch_size}
    params = params.model_copy(update={"grpo": params.grpo.model_copy(update=changes)})
    original, train, watch = grpo._Trainer, grpo.train, LeaveOutTheFirst(steps)
    grpo._Trainer = trainer  # type: ignore[misc]
    grpo.train = lambda *args, **kwargs: train(*args, **kwargs, callbacks=[watch])
    try:
        stage.run(params, run)
    finally:
        grpo._Trainer, grpo.train = original, train  # type: ignore[misc]
    return watch.seconds, watch.counter.get_total_flops()


def main() -> None:
    root, params = Path.cwd(), load_params()
    size = int(sys.argv[1]) if len(sys.argv) > 1 else params.dataset_sizes[0]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    run, base = Run("grpo", size, params.seeds[0]), Run("sft", size, params.seeds[0])
    table = Path(f"results/schedules/{run.name}.parquet")
    if not (root / table).exists():
        sys.exit(f"{table} is missing: run `make report` first")
    completions = params.grpo.batch_size * params.grpo.num_generations
    variants = {
        "TRL, micro-batches of 8": (Stock, 8),
        "TRL, micro-batches of 40": (Stock, 40),
        f"TRL, {completions} at once": (Stock, completions),
        f"Planward, {completions} at once": (grpo._Trainer, completions),
    }
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in ("problems", "score", f"models/{base.name}"):
            link = Path("results", name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / "results" / name)
        Path("models").symlink_to(root / "models")
        table.parent.mkdir()
        pq.write_table(pq.read_table(root / table).slice(0, (steps + 2) * params.grpo.batch_size), table)
        rows = {name: a_step(params, run, steps, *variant) for name, variant in variants.items()}
        os.chdir(root)
    rate = matrix_rate()
    print(f"seconds a step of {params.grpo.batch_size} prompts x {params.grpo.num_generations} completions")
    print(f"{torch.get_num_threads()} thread(s), {rate / 1e9:.0f} GFLOP/s in a product of {SQUARE} x {SQUARE} matrices")
    ours, _ = list(rows.values())[-1]
    for name, (row, flops) in rows.items():
        figures = ", ".join(f"{part} {seconds:.3f}" for part, seconds in row.items())
        ratios = (
            f"{row['all'] / ours['all']:.2f} x the last, {row['processor'] / ours['processor']:.2f} x in processor time"
        )
        print(f"{name:28} {figures}; {ratios}; {flops / 1e9:.1f} GFLOP, {row['all'] * rate / flops:.1f} x the floor")


if __name__ == "__main__":
    main()
