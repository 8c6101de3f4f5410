"""Hashes of files, and decisions by hash: the same for the same digest, whatever else there is."""

from __future__ import annotations

import hashlib
from pathlib import Path


def hash_fraction(digest: str, salt: str) -> float:
    """A number in [0, 1) determined by a digest; different salts give independent numbers."""
    return int(hashlib.sha256(f"{salt}:{digest}".encode()).hexdigest()[:13], 16) / 16**13


def list_files(folder: Path) -> list[Path]:
    """The files below a folder, sorted, without hidden ones: Snakemake leaves `.snakemake_timestamp`, DVC does not."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def compute_md5(path: Path) -> str:
    """The MD5 of a file, by which DVC knows it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
