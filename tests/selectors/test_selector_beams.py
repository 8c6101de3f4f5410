"""Beams: files, candidate pools, search, prefix groups and statistics; scores are in test_selector_info_scores.py."""

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
from planward.selectors.beam_quality import compute_quality, compute_quality_by_domain
from planward.selectors.beams import Beam, BeamsError, QueryBeams, read_beams, write_beams
from planward.selectors.pools import sample_pool
from planward.selectors.prefix_groups import group_by_prefix
from planward.selectors.search import count_sequences, search_sequences

IDS = [f"p{number}" for number in range(12)]
FILE = Path("beams.json")


# Files


@st.composite
def query_beams(draw: st.DrawFn, query: str) -> QueryBeams:
    """A query's beams, best first."""
    pool = draw(st.permutations([problem for problem in IDS if problem != query]))[: draw(st.integers(4, 8))]
    length = draw(st.integers(1, 4))
    scores = draw(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
    beams = [
        Beam(tuple(draw(st.permutations(pool))[:length]), score, draw(st.none() | st.booleans()))
        for score in sorted(scores, reverse=True)
    ]
    finite = st.floats(allow_nan=False, allow_infinity=False)
    pool_scores = draw(st.none() | st.tuples(*[st.none() | finite for _ in pool]))
    return QueryBeams(query, tuple(pool), tuple(beams), pool_scores)


@st.composite
def beam_files(draw: st.DrawFn) -> list[QueryBeams]:
    queries = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=4, unique=True))
    return [draw(query_beams(query)) for query in queries]


@given(beam_files())
def test_written_beams_are_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, rows: list[QueryBeams]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    write_beams(folder / FILE, rows)
    assert read_beams(folder / FILE, set(IDS)) == rows


def build_entry(**changes: Any) -> dict[str, Any]:
    """Two beams of the query p0 as other systems write them."""
    values = {"id_list": [["p1", "p2", "p0"], ["p3", "p1", "p0"]], "score_list": [0.045, 0.046]}
    return {name: value for name, value in (values | changes).items() if value is not None}


def read_data(tmp_path: Path, data: Any, **arguments: Any) -> list[QueryBeams]:
    (tmp_path / FILE).write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return read_beams(tmp_path / FILE, set(IDS), **arguments)


def test_beams_of_another_system_are_read_best_first(tmp_path: Path) -> None:
    best, second = Beam(("p3", "p1"), 0.046), Beam(("p1", "p2"), 0.045)
    assert read_data(tmp_path, {"p0": build_entry()}) == [QueryBeams("p0", ("p1", "p2", "p3"), (best, second))]
    rows = read_data(tmp_path, {"p0": build_entry()}, find_pool=lambda _: ["p7", "p3", "p0"])
    pool = ("p7", "p3", "p1", "p2")  # examples that the pool lacks are appended
    assert rows == [QueryBeams("p0", pool, (best, second))]


def test_equal_scores_keep_the_order_of_the_file(tmp_path: Path) -> None:
    [row] = read_data(tmp_path, {"p0": build_entry(score_list=[1, 1.0])})
    assert [beam.examples for beam in row.beams] == [("p1", "p2"), ("p3", "p1")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score_list": [0.1]}, "lists of different length (id_list 2, score_list 1)"),
        ({"success_list": [True]}, "success_list 1"),
        ({"score_list": None}, "id_list and score_list"),
        ({"score_list": 0.1}, "score_list is not a list"),
        ({"id_list": [], "score_list": []}, "no beams"),
        ({"id_list": [["p1", "p2", "p0"], ["p0", "p3", "p1"]]}, "beam 2: must end in the query's own id"),
        ({"id_list": [["p1", "p2", "p0"], []]}, "beam 2: must end in the query's own id"),
        ({"id_list": [["p1", "p2", "p0"], ["p0"]]}, "beam 2: no examples"),
        ({"id_list": [["p1", "p2", "p0"], ["p0", "p3", "p0"]]}, "beam 2: the query is one of its own examples"),
        ({"id_list": [["p1", "p2", "p0"], ["p3", "p3", "p0"]]}, "beam 2: example 'p3' is repeated"),
        ({"id_list": [["p1", "p2", "p0"], ["p3", "x", "p0"]]}, "beam 2: example 'x' is not a known problem"),
        ({"id_list": [["p1", "p2", "p0"], ["p3", "p0"]]}, "beam 2: 1 examples, but beam 1 has 2"),
        ({"id_list": [["p1", 2, "p0"], ["p3", "p1", "p0"]]}, "beam 1: must be a list of ids"),
        ({"score_list": [0.1, float("nan")]}, "beam 2: score nan is not"),
        ({"score_list": [0.1, float("-inf")]}, "beam 2: score -inf is not"),
        ({"score_list": [10**400, 0.1]}, "beam 1: score 1000"),
        ({"score_list": [0.1, "0.2"]}, "beam 2: score '0.2' is not"),
        ({"score_list": [True, 0.2]}, "beam 1: score True is not"),
        ({"success_list": [True, 1]}, "beam 2: verdict 1 is not"),
        ({"pool_list": ["p1", "p3"]}, "beam 1: example 'p2' is not in pool_list"),
        ({"pool_list": ["p1", "p2", "p3", "p1"]}, "'p1' is repeated in pool_list"),
        ({"pool_list": ["p1", "p2", "p3", "p0"]}, "the query is in its own pool_list"),
        ({"pool_list": ["p1", "p2", "p3", ["p4"]]}, "['p4'] in pool_list"),
        ({"pool_score_list": [1.0, 2.0, 3.0]}, "pool_score_list does not match pool_list"),
        ({"pool_list": ["p1", "p2", "p3"], "pool_score_list": [1.0]}, "pool_score_list does not match"),
        ({"pool_list": ["p1", "p2", "p3"], "pool_score_list": [1.0, "2", None]}, "'2' in pool_score_list is not"),
    ],
)
def test_errors_name_file_query_and_beam(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BeamsError) as error:
        read_data(tmp_path, {"p0": build_entry(**changes)})
    assert f"{tmp_path / FILE}: query 'p0'" in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "at least one query"),
        ('{"p0": {}, "p0": {}}', "duplicate key 'p0'"),
        ({"p0": [1]}, "query 'p0': must be an object"),
        ({"x": build_entry()}, "query 'x': unknown problem"),
    ],
)
def test_files_in_another_format_raise(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(BeamsError) as error:
        read_data(tmp_path, data)
    assert str(tmp_path / FILE) in str(error.value)
    assert message in str(error.value)


def test_writing_a_score_of_nan_raises(tmp_path: Path) -> None:
    with pytest.raises(BeamsError, match="query 'p0'"):
        write_beams(tmp_path / FILE, [QueryBeams("p0", ("p1",), (Beam(("p1",), math.nan),))])
    assert not (tmp_path / FILE).exists()


# Candidate pools

PROBLEMS = letters.build_problems(24)


@given(st.permutations(PROBLEMS), st.sampled_from(PROBLEMS), st.integers(1, 30), st.text(max_size=3))
def test_pools_hold_neither_the_query_nor_its_renamings(training: list[Any], query: Any, size: int, seed: str) -> None:
    def core_digest(problem: Any) -> str:
        return f"{problem.domain} {len(problem.prompt)}"

    pool = sample_pool(query, training, core_digest, size, seed)
    allowed_ids = {problem.id for problem in PROBLEMS if core_digest(problem) != core_digest(query)}
    assert len({problem.id for problem in pool}) == len(pool) == min(size, len(allowed_ids))
    assert {problem.id for problem in pool} <= allowed_ids
    assert pool == sample_pool(query, PROBLEMS, core_digest, size, seed)


def test_pools_differ_by_query_and_by_seed() -> None:
    pools = [sample_pool(query, PROBLEMS, lambda p: p.id, 8, seed) for query in PROBLEMS[:2] for seed in "ab"]
    assert len({tuple(problem.id for problem in pool) for pool in pools}) == 4


# The search


def build_score(tables: Sequence[dict[tuple[int, ...], float]]) -> Any:
    return lambda sequences: [tables[query][indices] for query, indices in sequences]


@st.composite
def score_tables(draw: st.DrawFn) -> tuple[int, int, dict[tuple[int, ...], float]]:
    """A pool's size, a shot_num, and a score for every sequence of up to so many examples; many are equal."""
    size = draw(st.integers(1, 4))
    shot_num = draw(st.integers(1, min(size, 3)))
    sequences = [indices for length in range(1, shot_num + 1) for indices in permutations(range(size), length)]
    values = draw(st.lists(st.integers(-3, 3), min_size=len(sequences), max_size=len(sequences)))
    return size, shot_num, dict(zip(sequences, map(float, values), strict=True))


@given(st.lists(score_tables(), min_size=1, max_size=3))
def test_a_wide_search_finds_the_best_sequences(queries: list[tuple[int, int, dict[tuple[int, ...], float]]]) -> None:
    shot_num = min(limit for _, limit, _ in queries)
    tables = [table for *_, table in queries]
    beams, pool_scores = search_sequences(
        [size for size, *_ in queries], build_score(tables), beams=100, shot_num=shot_num, shortlist=None
    )
    for (size, _, table), best_beams, scores in zip(queries, beams, pool_scores, strict=True):
        assert scores == [table[(example,)] for example in range(size)]
        expected = sorted((table[indices] for indices in permutations(range(size), shot_num)), reverse=True)
        assert [value for _, value in best_beams] == expected
        assert len({indices for indices, _ in best_beams}) == len(best_beams)
        assert all(table[indices] == value for indices, value in best_beams)


@given(score_tables(), st.integers(1, 4), st.integers(1, 4))
def test_a_narrow_search_keeps_the_best_at_each_step(
    query: tuple[int, int, dict[tuple[int, ...], float]], beams: int, shortlist: int
) -> None:
    """Compared with a simple implementation."""
    size, shot_num, table = query
    scored_sequences: list[tuple[int, tuple[int, ...]]] = []

    def score(sequences: Sequence[tuple[int, tuple[int, ...]]]) -> list[float]:
        scored_sequences.extend(sequences)
        return [table[indices] for _, indices in sequences]

    limits = {"beams": beams, "shot_num": shot_num, "shortlist": shortlist}
    [sequences], _ = search_sequences([size], score, **limits)
    order = sorted(range(size), key=lambda example: -table[(example,)])
    best_sequences: list[tuple[int, ...]] = [(example,) for example in order][:beams]
    for _ in range(shot_num - 1):
        longer = [(e, *k) for k in best_sequences for e in [e for e in order if e not in k][:shortlist]]
        best_sequences = sorted(longer, key=lambda indices: -table[indices])[:beams]
    assert sequences == [(indices, table[indices]) for indices in best_sequences]
    assert len(scored_sequences) == len(set(scored_sequences)) == count_sequences(size, **limits)


def test_sequences_that_are_too_long_are_never_kept() -> None:
    """For the second query examples 0 and 1 are too long together, and example 2 by itself."""

    def score(sequences: Sequence[tuple[int, tuple[int, ...]]]) -> list[float]:
        return [
            -math.inf if query and (2 in indices or len(indices) > 1) else float(sum(indices))
            for query, indices in sequences
        ]

    beams, pool_scores = search_sequences([3, 3], score, beams=2, shot_num=2, shortlist=2)
    assert beams == [[((1, 2), 3.0), ((2, 1), 3.0)], [((1,), 1.0), ((0,), 0.0)]]
    assert pool_scores == [[0.0, 1.0, 2.0], [0.0, 1.0, -math.inf]]
    none_fits = search_sequences([2], lambda trials: [-math.inf] * len(trials), beams=2, shot_num=2, shortlist=2)
    assert none_fits == ([[]], [[-math.inf, -math.inf]])


def test_the_search_ends_with_the_step_in_which_a_query_cannot_be_extended() -> None:
    """For the second query example 0 alone fits."""
    steps = list[int]()

    def score(sequences: Sequence[tuple[int, tuple[int, ...]]]) -> list[float]:
        steps.append(len(sequences[0][1]))
        return [-math.inf if query and indices != (0,) else 0.0 for query, indices in sequences]

    beams, _ = search_sequences([5, 5], score, beams=2, shot_num=4, shortlist=2)
    assert [len(sequences[0][0]) for sequences in beams] == [2, 1]
    assert steps == [1, 2]


# Prefix groups


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=8), st.integers(1, 5))
def test_groups_share_their_prefix_and_save_tokens(sequences: list[list[int]], length: int) -> None:
    groups = group_by_prefix([np.array(tokens, dtype=np.int32) for tokens in sequences])
    assert sorted(i for group in groups for i in group.members) == list(range(len(sequences)))
    for group in groups:
        assert len({tuple(sequences[i][: group.length]) for i in group.members}) == 1
        assert all(len(sequences[i]) > group.length for i in group.members)
    saved_tokens = sum((len(group.members) - 1) * group.length for group in groups)
    alike = Counter(tuple(tokens[:length]) for tokens in sequences if len(tokens) > length)
    assert saved_tokens >= sum((count - 1) * length for count in alike.values())  # no common length saves more


def test_prefixes_have_the_length_that_saves_most() -> None:
    pairs = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 7, 7, 7, 8], [1, 7, 7, 7, 9]]
    groups = group_by_prefix([np.array(tokens, dtype=np.int32) for tokens in [*pairs, [2, 2]]])
    assert [(group.members, group.length) for group in groups] == [([0, 1], 4), ([2, 3], 4), ([4], 0)]
    tails = [[number, last] for number in (2, 3) for last in (4, 5)]
    groups = group_by_prefix([np.array([*[1] * 9, *tail], dtype=np.int32) for tail in tails])
    assert [(group.members, group.length) for group in groups] == [([0, 1, 2, 3], 9)]


# Statistics


def test_quality_of_beams() -> None:
    rows = [
        QueryBeams("p0", ("p1", "p2"), (Beam(("p1",), 3.0, True), Beam(("p2",), 1.0, False))),
        QueryBeams("p3", ("p1", "p4"), (Beam(("p4",), -1.0, False), Beam(("p1",), -1.0, False))),
        QueryBeams("p5", ("p1", "p2"), (Beam(("p2",), 0.5), Beam(("p4",), 0.0))),
    ]
    quality = compute_quality(rows)
    assert quality == {
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
    assert json.loads(json.dumps(quality)) == quality
    by_domain = compute_quality_by_domain(rows, {"p0": "ferry", "p3": "ferry", "p5": "spanner"})
    domains = {"ferry": compute_quality(rows[:2]), "spanner": compute_quality(rows[2:])}
    assert by_domain == {"all": quality, "domains": domains}
    assert by_domain["domains"]["spanner"]["correct"] is None


def test_unequal_use_lowers_the_number_of_effective_candidates() -> None:
    beams = tuple(Beam((example,), 1.0) for example in ["p1"] * 9 + ["p2"])
    effective = compute_quality([QueryBeams("p0", ("p1", "p2"), beams)])["effective_candidates"]
    assert effective == pytest.approx(math.exp(-0.9 * math.log(0.9) - 0.1 * math.log(0.1)))
