"""Beam search for the sequences of worked examples that make a query's reference plan most likely.

All queries advance in lockstep, one example per step, so that the model scores thousands of sequences at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf

from tqdm import tqdm

from planward.core.records import Record
from planward.core.tasks import Task
from planward.inference.precision import Precision
from planward.params import PromptConfig
from planward.selectors.beams import Beam, QueryBeams
from planward.selectors.config import SelectorsConfig
from planward.selectors.info_scores import InfoScorer
from planward.selectors.prompts import PromptParts

Indices = tuple[int, ...]  # of a sequence's examples in the query's pool, in the prompt's order
ScoredIndices = tuple[Indices, float]
ScoreFunction = Callable[[Sequence[tuple[int, Indices]]], Sequence[float]]  # of (query, sequence) pairs; -inf: too long


def search_sequences(
    pool_sizes: Sequence[int], score: ScoreFunction, beams: int, shot_num: int, shortlist: int | None
) -> tuple[list[list[ScoredIndices]], list[list[float]]]:
    """Search up to `beams` sequences of `shot_num` examples per query.

    Each step prepends one more example to the sequences kept so far, farther from the query, and keeps the `beams`
    best. The first step tries the whole pool; later ones try, for each sequence, the `shortlist` examples (None: all)
    that it does not hold yet and that scored best by themselves. Ties are broken by the order of trial: by the rank of
    the sequence, then of the example, then by the index in the pool.

    Sequences that are too long are never kept. The search ends with the first step in which no sequence of some query
    can be extended: that query's stay as short as they are; where no example fits there is none.

    Returns:
        The sequences of each query with their scores, best first; and the score of each candidate by itself.
    """
    beam: list[list[ScoredIndices]] = [[((), 0.0)] for _ in pool_sizes]
    rankings, pool_scores = [list(range(size)) for size in pool_sizes], [[-inf] * size for size in pool_sizes]
    for step in range(shot_num):
        limit = shortlist if step else None
        trials = [
            (query, (example, *indices))
            for query, kept_sequences in enumerate(beam)
            for indices, _ in kept_sequences
            if len(indices) == step
            for example in [example for example in rankings[query] if example not in indices][:limit]
        ]
        extensions: list[list[ScoredIndices]] = [[] for _ in pool_sizes]
        for (query, indices), value in zip(trials, score(trials), strict=True):
            if value > -inf:
                extensions[query].append((indices, value))
        for query, sequences in enumerate(extensions):
            sequences.sort(key=lambda sequence: -sequence[1])
            if step == 0:
                rankings[query] = [indices[0] for indices, _ in sequences]
                for (example,), value in sequences:
                    pool_scores[query][example] = value
            if sequences:
                beam[query] = sequences[:beams]
        if not all(extensions):
            break
    return [[sequence for sequence in kept_sequences if sequence[0]] for kept_sequences in beam], pool_scores


def count_sequences(pool_size: int, beams: int, shot_num: int, shortlist: int | None) -> int:
    """Count the sequences that `search_sequences` scores for a query, if none is too long."""
    total, num_kept = 0, 1
    for step in range(shot_num):
        remaining = pool_size - step
        num_scored = num_kept * (min(shortlist, remaining) if step and shortlist else remaining)
        total, num_kept = total + num_scored, min(beams, num_scored)
    return total


def search_beams(
    task: Task,
    model: object,
    tokenizer: object,
    queries: Sequence[Record],
    pools: Mapping[str, Sequence[Record]],
    config: SelectorsConfig,
    prompt: PromptConfig,
    *,
    precision: Precision = "float32",
    tally: Counter[str] | None = None,
) -> list[QueryBeams]:
    """Search the beams of every query in its pool, with a frozen model; verdicts are left unknown.

    Args:
        pools: the candidates of each query, by its id.
        precision: of the search's matrix products. bfloat16 changes a score by some hundredths of a nat, so it finds
            other sequences where several are about equally good; the scores of those it returns are float32's.
        tally: counts the `sequences` scored and those `too_long` for `prompt.max_tokens`.

    Raises:
        PromptTooLong: a query does not fit into `prompt.max_tokens` even without an example.
        ValueError: a pool holds fewer than `shot_num` candidates, or the search has no prompt of so many that fits.
    """
    for query in queries:
        if len(pools[query.id]) < config.shot_num:
            raise ValueError(
                f"query {query.id}: {len(pools[query.id])} candidates for {config.shot_num} examples; "
                "fix: add training problems or lower shot_num in workflow/selectors/params.yaml"
            )

    def build_scorer(precision: Precision) -> InfoScorer:
        return InfoScorer(
            task,
            model,
            tokenizer,
            max_tokens=prompt.max_tokens,
            batch_tokens=config.batch_tokens,
            precision=precision,
            options=prompt.chat_template_options,
        )

    def select_records(sequences: Sequence[tuple[int, Indices]]) -> list[PromptParts]:
        return [(queries[query], [pools[queries[query].id][i] for i in indices]) for query, indices in sequences]

    sizes = [len(pools[query.id]) for query in queries]
    limits = config.beams, config.shot_num, config.shortlist
    scorer = build_scorer(precision)
    with tqdm(total=sum(count_sequences(size, *limits) for size in sizes), desc="searching", unit="sequence") as bar:

        def score(sequences: Sequence[tuple[int, Indices]]) -> list[float]:
            values = scorer(select_records(sequences), bar.update)
            if tally is not None:
                tally.update(sequences=len(values), too_long=values.count(-inf))
            return values

        beams, pool_scores = search_sequences(sizes, score, *limits)
    _check_lengths(queries, beams, config.shot_num, prompt.max_tokens)
    if precision != "float32":
        sequences = [(query, indices) for query, kept_sequences in enumerate(beams) for indices, _ in kept_sequences]
        exact = iter(build_scorer("float32")(select_records(sequences)))
        beams = [
            sorted(((indices, next(exact)) for indices, _ in kept_sequences), key=lambda sequence: -sequence[1])
            for kept_sequences in beams
        ]
    return [
        _build_query_beams(query, pools[query.id], kept_sequences, scores)
        for query, kept_sequences, scores in zip(queries, beams, pool_scores, strict=True)
    ]


def _check_lengths(
    queries: Sequence[Record], beams: Sequence[Sequence[ScoredIndices]], shot_num: int, max_tokens: int
) -> None:
    """Raise ValueError where the search ended early; the query whose prompt is too long has the shortest sequences."""
    lengths = [len(sequences[0][0]) if sequences else 0 for sequences in beams]
    if (shortest := min(lengths, default=shot_num)) < shot_num:
        raise ValueError(
            f"query {queries[lengths.index(shortest)].id}: found no prompt of {shortest + 1} example(s) "
            f"within prompt.max_tokens ({max_tokens}), but shot_num is {shot_num}; fix: raise prompt.max_tokens in "
            "params.yaml, lower shot_num in workflow/selectors/params.yaml or provide smaller problems"
        )


def _build_query_beams(
    query: Record, pool: Sequence[Record], sequences: Sequence[ScoredIndices], pool_scores: Sequence[float]
) -> QueryBeams:
    beams = tuple(Beam(tuple(pool[i].id for i in indices), value) for indices, value in sequences)
    scores = tuple(None if value == -inf else value for value in pool_scores)
    return QueryBeams(query.id, tuple(record.id for record in pool), beams, scores)
