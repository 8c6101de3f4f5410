"""Decisions by hash: the same for the same digest, whatever else there is."""

from __future__ import annotations

import hashlib


def hash_fraction(digest: str, salt: str) -> float:
    """A number in [0, 1) determined by a digest; different salts give independent numbers."""
    return int(hashlib.sha256(f"{salt}:{digest}".encode()).hexdigest()[:13], 16) / 16**13
