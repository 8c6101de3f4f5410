"""Runs `split` on problems of benchmarks/hostile_problems.py within a limit of memory; a process of its own."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import cast

from hostile_problems import DOMAIN, SHAPES, write_shape
from planward.core.registry import load_params
from planward.stages import split
from planward.tasks.planning.config import PlanningParams
from support import ROOT, merge_values

MAX_MEMORY_BYTES = 1 << 30


def main() -> None:
    raw = cast(PlanningParams, load_params(root=ROOT)).model_dump(mode="json")
    changes = {"split": {"held_out_domains": []}, "val": {"timeout": 4}}
    params = PlanningParams.model_validate(
        merge_values(raw, changes) | {"difficulty": {**raw["difficulty"], DOMAIN: {}}}
    )
    folder = Path("results/problems")
    lines = [write_shape(folder, name) for name in SHAPES]
    (folder / "problems.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, resource.RLIM_INFINITY))
    split.run(params)


if __name__ == "__main__":
    sys.exit(main())
