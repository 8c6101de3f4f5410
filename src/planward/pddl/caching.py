"""Caches of what is computed once for each domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import TypeVar

from planward.pddl.language import Domain

T = TypeVar("T")
MAX_DOMAINS = 256  # whose results are kept


@dataclass(frozen=True, eq=False)
class DomainKey:
    """A domain as part of a cache key: equal to the same object only, for domains are not hashable.

    Equal domain files are parsed once, so their problems share the object.
    """

    domain: Domain

    def __hash__(self) -> int:
        return id(self.domain)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DomainKey) and other.domain is self.domain


def cache_by_domain(function: Callable[[Domain], T]) -> Callable[[Domain], T]:
    """Cache a function's results for the most recent domains."""
    cached_function = lru_cache(maxsize=MAX_DOMAINS)(lambda key: function(key.domain))
    return wraps(function)(lambda domain: cached_function(DomainKey(domain)))
