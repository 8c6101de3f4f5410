"""Beams: sequences of worked examples that a search found for a query, and the files that hold them.

A file is one JSON object: a query's id -> `id_list`, a list of beams, each the ids of its shots followed by the query's
own, and `score_list`, their info scores. Beside them may stand, and in files from elsewhere need not: `success_list`,
the verifier's verdict on each beam (null: none); `pool_list`, the ids of the candidates searched; and
`pool_score_list`, the info score of each of these by itself (null: its prompt is too long).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from planward.records import written

REQUIRED = ("id_list", "score_list")


class BeamsError(ValueError):
    """A file of beams cannot be used; the message names file, query, beam and what to change."""


@dataclass(frozen=True)
class Beam:
    """A sequence of worked examples."""

    shots: tuple[str, ...]  # ids in the prompt's order: the first stands farthest from the query
    score: float  # info score, nats: log-likelihood of the reference answer with the shots, minus without
    success: bool | None = None  # the verifier's verdict on the model's own answer behind these shots; None: unknown


@dataclass(frozen=True)
class QueryBeams:
    query: str
    pool: tuple[str, ...]  # ids of the candidates; every shot is one of them
    beams: tuple[Beam, ...]  # best first
    pool_scores: tuple[float | None, ...] | None = None  # of each candidate by itself, nats; None: unknown, impossible


def write_beams(path: Path, rows: Sequence[QueryBeams]) -> None:
    """Write the queries in their order, one a line; equal rows give equal bytes.

    Raises:
        BeamsError: a score is no finite number.
    """
    lines = []
    for row in rows:
        entry = {
            "id_list": [[*beam.shots, row.query] for beam in row.beams],
            "score_list": [beam.score for beam in row.beams],
            "success_list": [beam.success for beam in row.beams],
            "pool_list": list(row.pool),
        }
        if row.pool_scores is not None:
            entry["pool_score_list"] = list(row.pool_scores)
        if not all(isfinite(beam.score) for beam in row.beams):
            raise BeamsError(f"{path}: query {row.query!r} has a score that is no finite number: leave its beam out")
        lines.append(f"{json.dumps(row.query, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}")
    with written(path) as out:
        out.write("{\n" + ",\n".join(lines) + "\n}\n")


def read_beams(
    path: Path, known: Container[str], pool_of: Callable[[str], Sequence[str]] | None = None
) -> list[QueryBeams]:
    """Read the queries in the file's order, the beams of each best first; equal scores stay in the file's order.

    Args:
        known: the ids of all problems.
        pool_of: the candidates of a query that has no `pool_list`; those of its shots that are not among them are put
            behind. None: its shots alone.

    Raises:
        BeamsError: see there.
    """
    try:
        data = json.loads(path.read_bytes(), object_pairs_hook=_once)
    except ValueError as error:  # of JSON, of UTF-8, or our own
        raise BeamsError(f"{path} cannot be read as JSON ({error}): write it again, as an object by query id") from None
    if not isinstance(data, dict) or not data:
        raise BeamsError(f"{path} must be an object by query id, with one query at least")
    return [_Reader(f"{path}: query {query!r}", query, known).row(entry, pool_of) for query, entry in data.items()]


@dataclass(frozen=True)
class _Reader:
    """Reads the beams of one query."""

    place: str
    query: str
    known: Container[str]

    def row(self, entry: Any, pool_of: Callable[[str], Sequence[str]] | None) -> QueryBeams:
        if self.query not in self.known:
            raise self.fault("is no known problem: drop it, or bring the problems that the beams were made for")
        if not isinstance(entry, dict) or not entry.keys() >= set(REQUIRED):
            raise self.fault(f"must be an object with {' and '.join(REQUIRED)}")
        columns = [self.listed(entry, name) for name in REQUIRED]
        successes = self.listed(entry, "success_list") if "success_list" in entry else [None] * len(columns[0])
        counts = {"id_list": len(columns[0]), "score_list": len(columns[1]), "success_list": len(successes)}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{name} {count}" for name, count in counts.items() if name in entry)
            raise self.fault(f"has lists of different length ({told}): give every beam one entry in each")
        if not columns[0]:
            raise self.fault("has no beams: give it one or drop it")
        beams = [self.beam(*cells) for cells in enumerate(zip(*columns, successes, strict=True), 1)]
        if len({len(beam.shots) for beam in beams}) > 1:
            number, odd = next((n, b) for n, b in enumerate(beams, 1) if len(b.shots) != len(beams[0].shots))
            raise self.fault(
                f"has {len(odd.shots)} shots, beam 1 has {len(beams[0].shots)}: "
                "beams of a query are compared, so make them equally long",
                number,
            )
        chosen = list(dict.fromkeys(shot for beam in beams for shot in beam.shots))
        if "pool_list" in entry:
            pool = self.pool(self.listed(entry, "pool_list"), beams)
        else:
            others = [other for other in pool_of(self.query) if other != self.query] if pool_of else []
            pool = tuple(dict.fromkeys([*others, *chosen]))
        scores = self.pool_scores(entry, len(pool)) if "pool_score_list" in entry else None
        return QueryBeams(self.query, pool, tuple(sorted(beams, key=lambda beam: -beam.score)), scores)

    def beam(self, number: int, cells: tuple[Any, Any, Any]) -> Beam:
        ids, score, success = cells
        if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
            raise self.fault("must be a list of ids, in quotes", number)
        if not ids or ids[-1] != self.query:
            raise self.fault("must end in the query's own id: put it behind the shots", number)
        shots = tuple(ids[:-1])
        if not shots:
            raise self.fault("has no shots: put at least one before the query's id", number)
        if self.query in shots:
            raise self.fault("has the query among its own shots: take it out", number)
        if repeated := [shot for shot, count in Counter(shots).items() if count > 1]:
            raise self.fault(f"repeats the shot {repeated[0]!r}: keep it once", number)
        if unknown := [shot for shot in shots if shot not in self.known]:
            raise self.fault(
                f"has the shot {unknown[0]!r}, which is no known problem: bring it or drop the beam", number
            )
        if not _is_score(score):
            raise self.fault(f"has the score {score!r}: it must be a finite number", number)
        if success is not None and not isinstance(success, bool):
            raise self.fault(f"has the verdict {success!r}: it must be true, false or null", number)
        return Beam(shots, float(score), success)

    def pool(self, ids: list[Any], beams: Sequence[Beam]) -> tuple[str, ...]:
        for one in ids:
            if not isinstance(one, str) or one not in self.known:
                raise self.fault(f"has {one!r} in pool_list, which is no known problem's id: bring it or drop it")
        if repeated := [one for one, count in Counter(ids).items() if count > 1]:
            raise self.fault(f"repeats {repeated[0]!r} in pool_list: keep it once")
        if self.query in ids:
            raise self.fault("has itself in pool_list: take it out")
        for number, beam in enumerate(beams, 1):
            if outside := [shot for shot in beam.shots if shot not in ids]:
                raise self.fault(f"has the shot {outside[0]!r}, which is not in pool_list: add it there", number)
        return tuple(ids)

    def pool_scores(self, entry: dict[str, Any], size: int) -> tuple[float | None, ...]:
        scores = self.listed(entry, "pool_score_list")
        if "pool_list" not in entry or len(scores) != size:
            raise self.fault("has a pool_score_list that does not fit its pool_list: give every candidate one entry")
        for score in scores:
            if score is not None and not _is_score(score):
                raise self.fault(f"has {score!r} in pool_score_list: it must be a finite number or null")
        return tuple(None if score is None else float(score) for score in scores)

    def listed(self, entry: dict[str, Any], name: str) -> list[Any]:
        if not isinstance(entry[name], list):
            raise self.fault(f"has a {name} that is no list: give it one entry a beam")
        return list(entry[name])

    def fault(self, told: str, beam: int | None = None) -> BeamsError:
        return BeamsError(f"{self.place}{'' if beam is None else f', beam {beam},'} {told}")


def _is_score(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if repeated := [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]:
        raise ValueError(f"the key {repeated[0]!r} stands there twice")
    return dict(pairs)
