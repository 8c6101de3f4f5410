"""Runs: one trained model or selector, identified by method, dataset size and seed.

A run's files are named after it for people; programs read its identity from the JSON file beside them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planward.params import METHODS, Params

RULES = ("random", "similarity", "oracle")  # selectors that are not learned
POINTERS = ("pointer-sft", "pointer-rce", "pointer-grpo")
SELECTORS = ("random", "similarity", *POINTERS, "oracle")  # all of them, in the order of every table


@dataclass(frozen=True)
class Run:
    """One trained model or selector, or an untrained one."""

    method: str
    size: int  # training problems of all domains together; 0 for base and for selectors that are rules
    seed: int  # of training; 0 for an untrained run

    @property
    def name(self) -> str:
        """`grpo-400-3407`; `base-0`, since there is one base."""
        return f"{self.method}-{self.size}-{self.seed}" if self.size else f"{self.method}-0"

    def as_dict(self, task: str) -> dict[str, Any]:
        """The identity that every JSON file of the run's results holds under `run`."""
        return {"task": task, "method": self.method, "size": self.size, "seed": self.seed}

    @classmethod
    def from_dict(cls, identity: Mapping[str, Any]) -> Run:
        return cls(str(identity["method"]), int(identity["size"]), int(identity["seed"]))


BASE = Run("base", 0, 0)


def is_requested(run: Run, params: Params, methods: Collection[str] = METHODS) -> bool:
    """Whether params.yaml asks for a run: results of sizes, seeds and variants that it no longer names stay on disk.

    Args:
        methods: those that are trained at every dataset size; any other is a variant.
    """
    if run.size == 0:
        return run.method in methods
    if run.method in methods:
        return run.size in params.dataset_sizes and run.seed in params.seeds
    ablations = params.ablations
    return run.method in ablations.run and run.size == ablations.dataset_size and run.seed in params.seeds


def read_run(path: Path) -> Run | None:
    """The run that a JSON file of results says it is of; None where it holds no identity."""
    identity = json.loads(path.read_text(encoding="utf-8")).get("run")
    return Run.from_dict(identity) if identity else None


def iter_run_files(
    folder: Path, pattern: str, params: Params, methods: Collection[str] = METHODS
) -> Iterator[tuple[Run, Path]]:
    """Runs that params.yaml asks for, with the JSON files below `folder` that hold their identities, by path."""
    for path in sorted(folder.glob(pattern)):
        run = read_run(path)
        if run is not None and is_requested(run, params, methods):
            yield run, path
