"""Beams: the search, candidate pools, files and data quality; scores are in test_info_scores.py."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import letters
from planward.demonstrations.beams import Beam, BeamsError, QueryBeams, read_beams, write_beams
from planward.demonstrations.pools import candidate_pool
from planward.demonstrations.prefixes import groups
from planward.demonstrations.quality import beam_quality, quality
from planward.demonstrations.search import best_sequences, sequences_tried

IDS = [f"p{number}" for number in range(12)]
FILE = Path("beams.json")


# Files


@st.composite
def query_beams(draw: st.DrawFn, query: str) -> QueryBeams:
    """A query's beams, best first."""
    pool = draw(st.permutations([one for one in IDS if one != query]))[: draw(st.integers(4, 8))]
    length = draw(st.integers(1, 4))
    scores = draw(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
    beams = [
        Beam(tuple(draw(st.permutations(pool))[:length]), score, draw(st.none() | st.booleans()))
        for score in sorted(scores, reverse=True)
    ]
    finite = st.floats(allow_nan=False, allow_infinity=False)
    alone = draw(st.none() | st.tuples(*[st.none() | finite for _ in pool]))
    return QueryBeams(query, tuple(pool), tuple(beams), alone)


@st.composite
def files(draw: st.DrawFn) -> list[QueryBeams]:
    queries = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=4, unique=True))
    return [draw(query_beams(query)) for query in queries]


@given(files())
def test_beams_are_read_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, rows: list[QueryBeams]) -> None:
    folder = tmp_path_factory.getbasetemp()
    write_beams(folder / FILE, rows)
    assert read_beams(folder / FILE, set(IDS)) == rows


def entry(**changes: Any) -> dict[str, Any]:
    """Two beams of the query p0 as other systems write them."""
    plain = {"id_list": [["p1", "p2", "p0"], ["p3", "p1", "p0"]], "score_list": [0.045, 0.046]}
    return {name: value for name, value in (plain | changes).items() if value is not None}


def read(tmp_path: Path, data: Any, **arguments: Any) -> list[QueryBeams]:
    (tmp_path / FILE).write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return read_beams(tmp_path / FILE, set(IDS), **arguments)


def test_beams_of_another_system_are_read_best_first(tmp_path: Path) -> None:
    best, second = Beam(("p3", "p1"), 0.046), Beam(("p1", "p2"), 0.045)
    assert read(tmp_path, {"p0": entry()}) == [QueryBeams("p0", ("p1", "p2", "p3"), (best, second))]
    found = read(tmp_path, {"p0": entry()}, pool_of=lambda _: ["p7", "p3", "p0"])
    assert found == [QueryBeams("p0", ("p7", "p3", "p1", "p2"), (best, second))]  # what the pool lacks stands behind


def test_equal_scores_stay_in_the_files_order(tmp_path: Path) -> None:
    [row] = read(tmp_path, {"p0": entry(score_list=[1, 1.0])})
    assert [beam.shots for beam in row.beams] == [("p1", "p2"), ("p3", "p1")]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"score_list": [0.1]}, "lists of different length (id_list 2, score_list 1)"),
        ({"success_list": [True]}, "success_list 1"),
        ({"score_list": None}, "id_list and score_list"),
        ({"score_list": 0.1}, "score_list that is no list"),
        ({"id_list": [], "score_list": []}, "no beams"),
        ({"id_list": [["p1", "p2", "p0"], ["p0", "p3", "p1"]]}, "beam 2, must end in the query's own id"),
        ({"id_list": [["p1", "p2", "p0"], []]}, "beam 2, must end in the query's own id"),
        ({"id_list": [["p1", "p2", "p0"], ["p0"]]}, "beam 2, has no shots"),
        ({"id_list": [["p1", "p2", "p0"], ["p0", "p3", "p0"]]}, "beam 2, has the query among its own shots"),
        ({"id_list": [["p1", "p2", "p0"], ["p3", "p3", "p0"]]}, "beam 2, repeats the shot 'p3'"),
        ({"id_list": [["p1", "p2", "p0"], ["p3", "x", "p0"]]}, "beam 2, has the shot 'x', which is no known problem"),
        ({"id_list": [["p1", "p2", "p0"], ["p3", "p0"]]}, "beam 2, has 1 shots, beam 1 has 2"),
        ({"id_list": [["p1", 2, "p0"], ["p3", "p1", "p0"]]}, "beam 1, must be a list of ids"),
        ({"score_list": [0.1, float("nan")]}, "beam 2, has the score nan"),
        ({"score_list": [0.1, float("-inf")]}, "beam 2, has the score -inf"),
        ({"score_list": [10**400, 0.1]}, "beam 1, has the score 1000"),
        ({"score_list": [0.1, "0.2"]}, "beam 2, has the score '0.2'"),
        ({"score_list": [True, 0.2]}, "beam 1, has the score True"),
        ({"success_list": [True, 1]}, "beam 2, has the verdict 1"),
        ({"pool_list": ["p1", "p3"]}, "beam 1, has the shot 'p2', which is not in pool_list"),
        ({"pool_list": ["p1", "p2", "p3", "p1"]}, "repeats 'p1' in pool_list"),
        ({"pool_list": ["p1", "p2", "p3", "p0"]}, "itself in pool_list"),
        ({"pool_list": ["p1", "p2", "p3", ["p4"]]}, "['p4'] in pool_list"),
        ({"pool_score_list": [1.0, 2.0, 3.0]}, "a pool_score_list that does not fit its pool_list"),
        ({"pool_list": ["p1", "p2", "p3"], "pool_score_list": [1.0]}, "a pool_score_list that does not fit"),
        ({"pool_list": ["p1", "p2", "p3"], "pool_score_list": [1.0, "2", None]}, "has '2' in pool_score_list"),
    ],
)
def test_a_fault_is_told_with_its_file_query_and_beam(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(BeamsError) as raised:
        read(tmp_path, {"p0": entry(**changes)})
    assert f"{tmp_path / FILE}: query 'p0'" in str(raised.value)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must be an object"),
        ("{}", "one query at least"),
        ('{"p0": {}, "p0": {}}', "'p0' stands there twice"),
        ({"p0": [1]}, "query 'p0' must be an object"),
        ({"x": entry()}, "query 'x' is no known problem"),
    ],
)
def test_what_is_no_file_of_beams_is_told(tmp_path: Path, data: Any, told: str) -> None:
    with pytest.raises(BeamsError) as raised:
        read(tmp_path, data)
    assert str(tmp_path / FILE) in str(raised.value)
    assert told in str(raised.value)


def test_a_score_that_is_no_number_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BeamsError, match="query 'p0'"):
        write_beams(tmp_path / FILE, [QueryBeams("p0", ("p1",), (Beam(("p1",), math.nan),))])
    assert not (tmp_path / FILE).exists()


# Candidate pools

PROBLEMS = letters.problems(24)


@given(st.permutations(PROBLEMS), st.sampled_from(PROBLEMS), st.integers(1, 30), st.text(max_size=3))
def test_a_pool_is_drawn_without_the_query_and_its_renamings(
    training: list[Any], query: Any, size: int, seed: str
) -> None:
    def core(problem: Any) -> str:
        return f"{problem.domain} {len(problem.prompt)}"

    pool = candidate_pool(query, training, core, size, seed)
    allowed = {problem.id for problem in PROBLEMS if core(problem) != core(query)}
    assert len({problem.id for problem in pool}) == len(pool) == min(size, len(allowed))
    assert {problem.id for problem in pool} <= allowed
    assert pool == candidate_pool(query, PROBLEMS, core, size, seed)


def test_pools_differ_by_query_and_by_seed() -> None:
    pools = [candidate_pool(query, PROBLEMS, lambda p: p.id, 8, seed) for query in PROBLEMS[:2] for seed in "ab"]
    assert len({tuple(problem.id for problem in pool) for pool in pools}) == 4


# The search


def scoring(values: Sequence[dict[tuple[int, ...], float]]) -> Any:
    return lambda asked: [values[query][places] for query, places in asked]


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int, dict[tuple[int, ...], float]]:
    """A pool's size, a number of shots, and a score for every sequence of up to so many; many are equal."""
    size = draw(st.integers(1, 4))
    shot_num = draw(st.integers(1, min(size, 3)))
    some = [places for length in range(1, shot_num + 1) for places in permutations(range(size), length)]
    values = draw(st.lists(st.integers(-3, 3), min_size=len(some), max_size=len(some)))
    return size, shot_num, dict(zip(some, map(float, values), strict=True))


@given(st.lists(tables(), min_size=1, max_size=3))
def test_a_wide_search_finds_the_best_sequences(queries: list[tuple[int, int, dict[tuple[int, ...], float]]]) -> None:
    shot_num = min(most for _, most, _ in queries)
    tables = [table for *_, table in queries]
    found, alone = best_sequences(
        [size for size, *_ in queries], scoring(tables), beams=100, shot_num=shot_num, shortlist=None
    )
    for (size, _, table), kept, own in zip(queries, found, alone, strict=True):
        assert own == [table[(shot,)] for shot in range(size)]
        everything = sorted((table[places] for places in permutations(range(size), shot_num)), reverse=True)
        assert [value for _, value in kept] == everything
        assert len({places for places, _ in kept}) == len(kept)
        assert all(table[places] == value for places, value in kept)


@given(tables(), st.integers(1, 4), st.integers(1, 4))
def test_a_narrow_search_follows_the_best(
    query: tuple[int, int, dict[tuple[int, ...], float]], beams: int, shortlist: int
) -> None:
    """Against the same search in a few plain words."""
    size, shot_num, table = query
    asked: list[tuple[int, tuple[int, ...]]] = []

    def score(now: Sequence[tuple[int, tuple[int, ...]]]) -> list[float]:
        asked.extend(now)
        return [table[places] for _, places in now]

    limits = {"beams": beams, "shot_num": shot_num, "shortlist": shortlist}
    [found], _ = best_sequences([size], score, **limits)
    alone = sorted(range(size), key=lambda shot: -table[(shot,)])
    kept: list[tuple[int, ...]] = [(shot,) for shot in alone][:beams]
    for _ in range(shot_num - 1):
        longer = [(s, *k) for k in kept for s in [s for s in alone if s not in k][:shortlist]]
        kept = sorted(longer, key=lambda places: -table[places])[:beams]
    assert found == [(places, table[places]) for places in kept]
    assert len(asked) == len(set(asked)) == sequences_tried(size, **limits)


def test_impossible_sequences_are_never_kept() -> None:
    """Shots 0 and 1 of the second query are too long together, and shot 2 by itself."""

    def score(asked: Sequence[tuple[int, tuple[int, ...]]]) -> list[float]:
        return [
            -math.inf if query and (2 in places or len(places) > 1) else float(sum(places)) for query, places in asked
        ]

    found, alone = best_sequences([3, 3], score, beams=2, shot_num=2, shortlist=2)
    assert found == [[((1, 2), 3.0), ((2, 1), 3.0)], [((1,), 1.0), ((0,), 0.0)]]
    assert alone == [[0.0, 1.0, 2.0], [0.0, 1.0, -math.inf]]
    nothing = best_sequences([2], lambda asked: [-math.inf] * len(asked), beams=2, shot_num=2, shortlist=2)
    assert nothing == ([[]], [[-math.inf, -math.inf]])


# Common beginnings


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=8), st.integers(1, 5))
def test_common_beginnings_are_computed_once(sequences: list[list[int]], length: int) -> None:
    found = groups([np.array(one, dtype=np.int32) for one in sequences])
    assert sorted(place for group in found for place in group.members) == list(range(len(sequences)))
    for group in found:
        assert len({tuple(sequences[place][: group.length]) for place in group.members}) == 1
        assert all(len(sequences[place]) > group.length for place in group.members)
    saved = sum((len(group.members) - 1) * group.length for group in found)
    alike = Counter(tuple(one[:length]) for one in sequences if len(one) > length)
    assert saved >= sum((count - 1) * length for count in alike.values())  # no length for all saves more


def test_beginnings_are_as_long_as_is_worth_it() -> None:
    pairs = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 7, 7, 7, 8], [1, 7, 7, 7, 9]]
    found = groups([np.array(one, dtype=np.int32) for one in [*pairs, [2, 2]]])
    assert [(group.members, group.length) for group in found] == [([0, 1], 4), ([2, 3], 4), ([4], 0)]
    found = groups([np.array([*[1] * 9, number, *tail], dtype=np.int32) for number in (2, 3) for tail in ([4], [5])])
    assert [(group.members, group.length) for group in found] == [([0, 1, 2, 3], 9)]


# Data quality


def test_quality_of_beams() -> None:
    rows = [
        QueryBeams("p0", ("p1", "p2"), (Beam(("p1",), 3.0, True), Beam(("p2",), 1.0, False))),
        QueryBeams("p3", ("p1", "p4"), (Beam(("p4",), -1.0, False), Beam(("p1",), -1.0, False))),
        QueryBeams("p5", ("p1", "p2"), (Beam(("p2",), 0.5), Beam(("p4",), 0.0))),
    ]
    found = quality(rows)
    assert found == {
        "queries": 3,
        "beams": 6,
        "judged": 4,
        "correct": 0.25,
        "score_mean": pytest.approx(2.5 / 6),
        "score_spread": pytest.approx((1 + 0 + 0.25) / 3),
        "positive": 0.5,
        "candidates": 3,
        "effective_candidates": pytest.approx(3),  # p1, p2 and p4 twice each
        "distinct_shots": 2,
        "all_right": 0,
        "all_wrong": 0.5,
        "mixed": 0.5,
        "without_signal": pytest.approx(1 / 3),
    }
    assert json.loads(json.dumps(found)) == found
    by_domain = beam_quality(rows, {"p0": "ferry", "p3": "ferry", "p5": "spanner"})
    assert by_domain == {"all": found, "domains": {"ferry": quality(rows[:2]), "spanner": quality(rows[2:])}}
    assert by_domain["domains"]["spanner"]["correct"] is None


def test_one_frequent_example_is_less_than_two_effective_ones() -> None:
    beams = tuple(Beam((shot,), 1.0) for shot in ["p1"] * 9 + ["p2"])
    found = quality([QueryBeams("p0", ("p1", "p2"), beams)])["effective_candidates"]
    assert found == pytest.approx(math.exp(-0.9 * math.log(0.9) - 0.1 * math.log(0.1)))
