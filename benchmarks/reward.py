"""The verifier's share of a GRPO step: python benchmarks/reward.py [SIZE]

Trains on this run's schedule (so run the pipeline first) in a scratch folder, for a few steps, without and with the
audit by VAL that params.yaml asks for.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from planward.params import Params, load_params
from planward.stages import grpo
from planward.training.rollouts import Rollouts

STEPS = 15


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


def shortened(params: Params, audit_share: float) -> Params:
    """The parameters with fewer steps; the curriculum's phases stay those of the whole schedule."""
    changes = {"steps": STEPS, "audit_share": audit_share}
    return params.model_copy(update={"grpo": params.grpo.model_copy(update=changes)})


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else load_params().dataset_sizes[0]
    root, params = Path.cwd(), load_params()
    clocks = {"whole reward function": Clock(Rollouts, "__call__"), "in-process verdicts": Clock(Rollouts, "_verify")}
    if not (root / f"results/schedules/{size}.parquet").exists():
        sys.exit(f"results/schedules/{size}.parquet is missing: run `make report` first")
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("results/models").mkdir(parents=True)
        Path("models").symlink_to(root / "models")
        for name in ("problems", "score", "schedules", f"models/sft-{size}"):
            Path("results", name).symlink_to(root / "results" / name)
        import pyarrow.parquet as pq

        whole = pq.read_table(f"results/schedules/{size}.parquet")
        Path("results/schedules").unlink()
        Path("results/schedules").mkdir()
        pq.write_table(whole.slice(0, STEPS * params.grpo.batch_size), f"results/schedules/{size}.parquet")
        for audit_share in (0.0, params.grpo.audit_share):
            for clock in clocks.values():
                clock.seconds = 0.0
            start = perf_counter()
            grpo.run(shortened(params, audit_share), size)
            step = (perf_counter() - start) / STEPS
            completions = params.grpo.batch_size * params.grpo.num_generations
            print(f"audit_share {audit_share:g}: {step:.2f} s a step of {completions} completions, start-up included")
            for name, clock in clocks.items():
                seconds = clock.seconds / STEPS
                print(f"  {name}: {1000 * seconds:.1f} ms a step, {seconds / step:.2%} of it")
        os.chdir(root)


if __name__ == "__main__":
    main()
