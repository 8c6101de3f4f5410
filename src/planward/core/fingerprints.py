"""Digests of what a resumed run must share with the one that it goes on from: data, settings, weights and code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import planward
from planward.core.records import Record

# Packages that a model trained by SFT or GRPO depends on.
PACKAGES = ("core", "curriculum", "evaluation", "inference", "pddl", "tasks", "training", "val")


def compute_fingerprint(
    settings: Mapping[str, Any],
    records: Iterable[Record],
    data: Iterable[Any],
    model: str | None,
    processes: int,
    packages: tuple[str, ...] = PACKAGES,
) -> str:
    """Return 16 hexadecimal digits over everything that a resumed run must share, Planward's code included.

    Args:
        data: what else is trained on, as JSON: the schedule, say.
        model: folder of the initial weights, if there are any.
        packages: those of Planward that the trained weights depend on.
    """
    digest = hashlib.sha256(compute_code_digest(packages))
    parts: list[Any] = [settings, [record.model_dump() for record in records], list(data), processes, model]
    digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
    for file in sorted(Path(model).iterdir()) if model and Path(model).is_dir() else []:
        if file.is_file():
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


@cache
def compute_code_digest(packages: tuple[str, ...] = PACKAGES) -> bytes:
    """Return a digest of the source files and prompt templates of `packages`, and of the trainers' versions."""
    digest = hashlib.sha256("".join(map(version, ("torch", "transformers", "trl", "peft"))).encode())
    root = Path(planward.__file__).parent
    for package in packages:
        for file in sorted(chain((root / package).rglob("*.py"), (root / package).rglob("*.jinja"))):
            digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return digest.digest()
