"""A GRPO run to start with `torchrun --nproc_per_node 2`: two_process_run.py BASE PARAMS [STEP].

Writes out/ and training/. The second process gets SIGTERM during STEP.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import letters
from planward.core.runs import Run
from planward.training import grpo
from planward.training.batching import init_processes
from training_runs import TerminateIn

if __name__ == "__main__":
    torch.set_num_threads(1)
    processes = init_processes()
    assert processes.num_processes == 2
    base, sections = sys.argv[1], json.loads(sys.argv[2])
    records = letters.build_problems(16)
    params = letters.build_params(**sections)
    grpo.train(
        letters.LettersTask(),
        records,
        letters.build_schedule(records, params.grpo.steps, params.grpo.batch_size),
        params,
        base=base,
        model=Path("out"),
        training=Path("training"),
        run=Run("grpo", len(records), params.seed),
        validation=letters.build_problems(8),
        callbacks=[TerminateIn(int(sys.argv[3]))] if sys.argv[3:] and not processes.is_main_process else [],
    )
