"""Time of a GRPO step by part, compared with TRL's implementation and with the arithmetic.

    python benchmarks/grpo_step.py [SIZE [STEPS [MICRO_BATCH]]]

Run the pipeline first: this trains a few steps of a run's schedule in a temporary folder, with TRL's own generation and
loss in micro-batches of 8 (its default), 40 and all completions of a step, and with Planward's. With MICRO_BATCH, for a
model that needs the memory, both use that. Every variant trains on the same prompts from the same weights; start-up and
the first step are excluded. Processor time is that of all threads; it is the steadier figure if other programs run.
Tokens a second are those of completions: sampled, and in the loss and its gradient, where Planward leaves out
completions without advantage but counts them.

The floor is the time of the step's matrix products, attention included, at the rate of a large matrix product.
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

from planward.core import paths
from planward.core.registry import load_params
from planward.core.runs import Run
from planward.params import Params
from planward.stages import grpo as stage
from planward.training import grpo
from planward.training.rollouts import Rollouts
from planward.training.shared_prefixes import SharedPrefixTrainer

MATRIX_SIZE = 1024  # rows and columns of the large matrix product


class TrlTrainer(grpo.SharedPrefixRolloutTrainer):
    """TRL's own generation and loss."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shares = False


class MethodTimer:
    """Sums the time spent in a method."""

    def __init__(self, owner: type, method: str, time: Callable[[], float] = perf_counter) -> None:
        self.seconds, original = 0.0, getattr(owner, method)

        def timed_method(*args: Any, **kwargs: Any) -> Any:
            start = time()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time() - start

        setattr(owner, method, timed_method)


class TokenCounter:
    """Counts the tokens of sampled completions."""

    def __init__(self) -> None:
        self.count, sample = 0, grpo.SharedPrefixRolloutTrainer._generate_single_turn

        def count_tokens(*args: Any, **kwargs: Any) -> Any:
            completions, logps = sample(*args, **kwargs)
            self.count += sum(map(len, completions))
            return completions, logps

        grpo.SharedPrefixRolloutTrainer._generate_single_turn = count_tokens  # type: ignore[method-assign]


SAMPLED = TokenCounter()
TIMERS = {
    "all": MethodTimer(SharedPrefixTrainer, "training_step"),
    "generation": MethodTimer(SharedPrefixTrainer, "_generate_single_turn"),
    "loss": MethodTimer(SharedPrefixTrainer, "_compute_loss"),
    "backward": MethodTimer(torch.Tensor, "backward"),
    "reward": MethodTimer(Rollouts, "__call__"),
    "prompts": MethodTimer(Rollouts, "build_prompts"),
    "processor": MethodTimer(SharedPrefixTrainer, "training_step", process_time),
}


class StepStatistics(TrainerCallback):
    """Times all steps but the first, which also allocates memory and reads the problems.

    One more step, not timed, counts floating-point operations.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.counter, self.seconds = steps, FlopCounterMode(display=False), dict[str, float]()
        self.tokens = 0.0  # of the completions of a step

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == 1:
            SAMPLED.count = 0
            for timer in TIMERS.values():
                timer.seconds = 0.0
        elif state.global_step == self.steps + 1:
            self.tokens = SAMPLED.count / self.steps
            self.seconds = {name: timer.seconds / self.steps for name, timer in TIMERS.items()}
            self.counter.__enter__()
        elif state.global_step == self.steps + 2:
            self.counter.__exit__(None, None, None)


def _count_attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    rows, heads, length, size = query
    return int(2 * rows * heads * length * key[-2] * (size + value[-1]))


def _count_attention_backward(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
    return 5 * _count_attention(query, key, value) // 2  # five matrix products instead of two


register_flop_formula(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu)(_count_attention)
register_flop_formula(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward)(_count_attention_backward)


def measure_matrix_rate() -> float:
    """Return the floating-point operations per second of a large matrix product, the best of 20."""
    left, right = torch.rand(MATRIX_SIZE, MATRIX_SIZE), torch.rand(MATRIX_SIZE, MATRIX_SIZE)
    best = float("inf")
    for _ in range(20):
        start = perf_counter()
        left @ right
        best = min(best, perf_counter() - start)
    return 2 * MATRIX_SIZE**3 / best


def measure_step(
    params: Params, run: Run, steps: int, trainer: type, micro_batch_size: int
) -> tuple[dict[str, float], float, int]:
    """Return the seconds per step of each part, and the tokens and floating-point operations of a step."""
    changes = {"steps": steps + 2, "micro_batch_size": micro_batch_size}
    params = params.model_copy(update={"grpo": params.grpo.model_copy(update=changes)})
    original, train, statistics = grpo.SharedPrefixRolloutTrainer, grpo.train, StepStatistics(steps)
    grpo.SharedPrefixRolloutTrainer = trainer  # type: ignore[misc]
    grpo.train = lambda *args, **kwargs: train(*args, **kwargs, callbacks=[statistics])
    try:
        stage.run(params, run)
    finally:
        grpo.SharedPrefixRolloutTrainer, grpo.train = original, train  # type: ignore[misc]
    return statistics.seconds, statistics.tokens, statistics.counter.get_total_flops()


def main() -> None:
    root, params, results = Path.cwd(), load_params(), paths.results()
    size = int(sys.argv[1]) if len(sys.argv) > 1 else params.dataset_sizes[0]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    run, base = Run("grpo", size, params.seeds[0]), Run("sft", size, params.seeds[0])
    table = results.schedule(run)
    if not (root / table).exists():
        sys.exit(f"{table} is missing; fix: run `make report` first")
    completions = params.grpo.batch_size * params.grpo.num_generations
    micro_batches = [int(sys.argv[3])] if len(sys.argv) > 3 else [8, 40, completions]
    variants = {f"TRL, {count} at once": (TrlTrainer, count) for count in micro_batches}
    variants[f"Planward, {micro_batches[-1]} at once"] = (grpo.SharedPrefixRolloutTrainer, micro_batches[-1])
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        for link in (results.problems, results.score, results.model(base)):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / link)
        for name in ("models", "workflow"):  # weights and prompt templates
            Path(name).symlink_to(root / name)
        table.parent.mkdir()
        pq.write_table(pq.read_table(root / table).slice(0, (steps + 2) * params.grpo.batch_size), table)
        rows = {name: measure_step(params, run, steps, *variant) for name, variant in variants.items()}
        os.chdir(root)
    rate = measure_matrix_rate()
    print(f"seconds per step of {params.grpo.batch_size} prompts x {params.grpo.num_generations} completions")
    size_text = f"{MATRIX_SIZE} x {MATRIX_SIZE}"
    print(f"{torch.get_num_threads()} thread(s), {rate / 1e9:.0f} GFLOP/s in a product of {size_text} matrices")
    ours, _, _ = list(rows.values())[-1]
    for name, (row, tokens, flops) in rows.items():
        figures = ", ".join(f"{part} {seconds:.3f}" for part, seconds in row.items())
        ratios = (
            f"{row['all'] / ours['all']:.2f} x the last, {row['processor'] / ours['processor']:.2f} x in processor time"
        )
        speeds = f"{tokens / row['generation']:.0f} tokens/s sampled, "
        speeds += f"{tokens / (row['loss'] + row['backward']):.0f} in loss and gradient"
        print(
            f"{name:28} {figures}; {speeds}; {ratios}; {flops / 1e9:.1f} GFLOP, "
            f"{row['all'] * rate / flops:.1f} x the floor"
        )


if __name__ == "__main__":
    main()
