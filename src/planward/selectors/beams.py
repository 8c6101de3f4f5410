"""Beams: sequences of worked examples that a search found for a query, and their file format.

A file is one JSON object: query id -> `id_list`, a list of beams, each the ids of its examples followed by the query's
own, and `score_list`, their info scores. Optional, and absent from files of other systems: `success_list`, the
verifier's verdict on each beam (null: none); `pool_list`, the ids of the candidates searched; and `pool_score_list`,
the info score of each candidate by itself (null: its prompt is too long).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from planward.core.files import open_atomic

REQUIRED_KEYS = ("id_list", "score_list")


class BeamsError(ValueError):
    """A file of beams cannot be used; the message names file, query and beam, and how to fix it."""


@dataclass(frozen=True)
class Beam:
    """A sequence of worked examples for a query."""

    examples: tuple[str, ...]  # ids in the prompt's order: the last stands next to the query
    score: float  # info score, nats: log-likelihood of the reference plan with the examples, minus without
    success: bool | None = None  # the verifier's verdict on the model's completion with these examples; None: unknown


@dataclass(frozen=True)
class QueryBeams:
    """A query's candidates and the beams found among them."""

    query: str
    pool: tuple[str, ...]  # ids of the candidates; every example of a beam is one of them
    beams: tuple[Beam, ...]  # best first
    pool_scores: tuple[float | None, ...] | None = None  # of each candidate by itself, nats; None: unknown or too long


def write_beams(path: Path, rows: Sequence[QueryBeams]) -> None:
    """Write the queries in their order, one per line; equal rows give equal bytes.

    Raises:
        BeamsError: a score is not finite.
    """
    lines = []
    for row in rows:
        entry = {
            "id_list": [[*beam.examples, row.query] for beam in row.beams],
            "score_list": [beam.score for beam in row.beams],
            "success_list": [beam.success for beam in row.beams],
            "pool_list": list(row.pool),
        }
        if row.pool_scores is not None:
            entry["pool_score_list"] = list(row.pool_scores)
        if not all(isfinite(beam.score) for beam in row.beams):
            raise BeamsError(f"{path}: query {row.query!r}: a score is not finite; fix: leave its beam out")
        lines.append(f"{json.dumps(row.query, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}")
    with open_atomic(path) as out:
        out.write("{\n" + ",\n".join(lines) + "\n}\n")


def read_beams(
    path: Path, known_ids: Container[str], find_pool: Callable[[str], Sequence[str]] | None = None
) -> list[QueryBeams]:
    """Read the queries in the file's order, each one's beams best first; equal scores keep the file's order.

    Args:
        known_ids: the ids of all problems.
        find_pool: returns the candidates of a query that has no `pool_list`; examples of its beams that are not among
            them are appended. None: the pool is these examples alone.

    Raises:
        BeamsError: the file is not in the format above, or names an unknown problem.
    """
    try:
        data = json.loads(path.read_bytes(), object_pairs_hook=_reject_duplicate_keys)
    except ValueError as error:  # invalid JSON or UTF-8, or a duplicate key
        raise BeamsError(f"{path}: not valid JSON: {error}; fix: write it again, as an object by query id") from None
    if not isinstance(data, dict) or not data:
        raise BeamsError(f"{path}: must be a JSON object by query id, with at least one query")
    return [
        _QueryParser(f"{path}: query {query!r}", query, known_ids).parse(entry, find_pool)
        for query, entry in data.items()
    ]


@dataclass(frozen=True)
class _QueryParser:
    """Parses and checks the entry of one query."""

    source: str  # for messages
    query: str
    known_ids: Container[str]

    def parse(self, entry: Any, find_pool: Callable[[str], Sequence[str]] | None) -> QueryBeams:
        if self.query not in self.known_ids:
            raise self.error("unknown problem; fix: drop it, or add the problems that the beams were made for")
        if not isinstance(entry, dict) or not entry.keys() >= set(REQUIRED_KEYS):
            raise self.error(f"must be an object with {' and '.join(REQUIRED_KEYS)}")
        columns = [self.parse_list(entry, name) for name in REQUIRED_KEYS]
        successes = self.parse_list(entry, "success_list") if "success_list" in entry else [None] * len(columns[0])
        counts = {"id_list": len(columns[0]), "score_list": len(columns[1]), "success_list": len(successes)}
        if len(set(counts.values())) > 1:
            lengths = ", ".join(f"{name} {count}" for name, count in counts.items() if name in entry)
            raise self.error(f"lists of different length ({lengths}); fix: give every beam one entry in each")
        if not columns[0]:
            raise self.error("no beams; fix: add one or drop the query")
        beams = [self.parse_beam(*cells) for cells in enumerate(zip(*columns, successes, strict=True), 1)]
        for number, beam in enumerate(beams, 1):
            if len(beam.examples) != len(beams[0].examples):
                raise self.error(
                    f"{len(beam.examples)} examples, but beam 1 has {len(beams[0].examples)}; "
                    "fix: make all beams of a query equally long, so that they can be compared",
                    number,
                )
        if "pool_list" in entry:
            pool = self.parse_pool(self.parse_list(entry, "pool_list"), beams)
        else:
            candidates = [problem for problem in find_pool(self.query) if problem != self.query] if find_pool else []
            examples = (example for beam in beams for example in beam.examples)
            pool = tuple(dict.fromkeys([*candidates, *examples]))
        scores = self.parse_pool_scores(entry, len(pool)) if "pool_score_list" in entry else None
        return QueryBeams(self.query, pool, tuple(sorted(beams, key=lambda beam: -beam.score)), scores)

    def parse_beam(self, number: int, cells: tuple[Any, Any, Any]) -> Beam:
        ids, score, success = cells
        if not isinstance(ids, list) or not all(isinstance(problem, str) for problem in ids):
            raise self.error("must be a list of ids, in quotes", number)
        if not ids or ids[-1] != self.query:
            raise self.error("must end in the query's own id; fix: append it to the examples", number)
        examples = tuple(ids[:-1])
        if not examples:
            raise self.error("no examples; fix: put at least one before the query's id", number)
        if self.query in examples:
            raise self.error("the query is one of its own examples; fix: remove it", number)
        if duplicates := _find_duplicates(examples):
            raise self.error(f"example {duplicates[0]!r} is repeated; fix: keep it once", number)
        if unknown := [example for example in examples if example not in self.known_ids]:
            raise self.error(
                f"example {unknown[0]!r} is not a known problem; fix: add the problem or drop the beam", number
            )
        if not _is_score(score):
            raise self.error(f"score {score!r} is not a finite number", number)
        if success is not None and not isinstance(success, bool):
            raise self.error(f"verdict {success!r} is not true, false or null", number)
        return Beam(examples, float(score), success)

    def parse_pool(self, ids: list[Any], beams: Sequence[Beam]) -> tuple[str, ...]:
        for problem in ids:
            if not isinstance(problem, str) or problem not in self.known_ids:
                raise self.error(
                    f"{problem!r} in pool_list is not a known problem's id; fix: add the problem or drop it"
                )
        if duplicates := _find_duplicates(ids):
            raise self.error(f"{duplicates[0]!r} is repeated in pool_list; fix: keep it once")
        if self.query in ids:
            raise self.error("the query is in its own pool_list; fix: remove it")
        for number, beam in enumerate(beams, 1):
            if missing := [example for example in beam.examples if example not in ids]:
                raise self.error(f"example {missing[0]!r} is not in pool_list; fix: add it there", number)
        return tuple(ids)

    def parse_pool_scores(self, entry: dict[str, Any], size: int) -> tuple[float | None, ...]:
        scores = self.parse_list(entry, "pool_score_list")
        if "pool_list" not in entry or len(scores) != size:
            raise self.error("pool_score_list does not match pool_list; fix: give every candidate one entry")
        for score in scores:
            if score is not None and not _is_score(score):
                raise self.error(f"{score!r} in pool_score_list is not a finite number or null")
        return tuple(None if score is None else float(score) for score in scores)

    def parse_list(self, entry: dict[str, Any], name: str) -> list[Any]:
        if not isinstance(entry[name], list):
            raise self.error(f"{name} is not a list; fix: give it one entry per beam")
        return list(entry[name])

    def error(self, message: str, beam: int | None = None) -> BeamsError:
        return BeamsError(f"{self.source}{'' if beam is None else f', beam {beam}'}: {message}")


def _is_score(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _find_duplicates(values: Sequence[Any]) -> list[Any]:
    return [value for value, count in Counter(values).items() if count > 1]


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if duplicates := _find_duplicates([key for key, _ in pairs]):
        raise ValueError(f"duplicate key {duplicates[0]!r}")
    return dict(pairs)
