"""A GRPO run to start with `accelerate launch`: two_process_run.py BASE PARAMS; writes out/ and training/."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import letters
from planward.core.runs import Run
from planward.training import grpo

if __name__ == "__main__":
    torch.set_num_threads(1)
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
    )
