"""Beam search for the sequences of worked examples that make a query's reference answer most likely.

All queries search in lockstep, one shot a step, so that the model is asked for thousands of sequences at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf

from tqdm import tqdm

from planward.demonstrations.beams import Beam, QueryBeams
from planward.demonstrations.decoder import Precision
from planward.demonstrations.prompts import Asked
from planward.demonstrations.scores import InfoScores
from planward.params import Demonstrations, Prompt
from planward.records import Record
from planward.tasks.base import Task

Places = tuple[int, ...]  # of a sequence's shots in the query's pool, in the prompt's order
Found = tuple[Places, float]  # with its score
Score = Callable[[Sequence[tuple[int, Places]]], Sequence[float]]  # of (query, sequence) pairs; -inf: impossible


def best_sequences(
    pools: Sequence[int], score: Score, beams: int, shot_num: int, shortlist: int | None
) -> tuple[list[list[Found]], list[list[float]]]:
    """Return up to `beams` sequences of `shot_num` shots for each query, best first, and each candidate's own score.

    A step puts one more shot before each sequence kept so far, farther from the query, and keeps the `beams` best. The
    first step tries the whole pool; later ones try, before each sequence, the `shortlist` shots (None: all) that it
    does not hold yet and that scored best by themselves. Of equal scores the one tried first stands first: from the
    better sequence, then by the better shot, then by the place in the pool.

    Impossible sequences are never kept. Where no sequence can be continued they stay as short as they are; where no
    shot is possible there is none.

    Args:
        pools: the number of candidates of each query.
    """
    beam: list[list[Found]] = [[((), 0.0)] for _ in pools]
    ranked, alone = [list(range(size)) for size in pools], [[-inf] * size for size in pools]
    for step in range(shot_num):
        asked = [
            (query, (shot, *places))
            for query, kept in enumerate(beam)
            for places, _ in kept
            if len(places) == step
            for shot in [shot for shot in ranked[query] if shot not in places][: shortlist if step else None]
        ]
        found: list[list[Found]] = [[] for _ in pools]
        for (query, places), value in zip(asked, score(asked), strict=True):
            if value > -inf:
                found[query].append((places, value))
        for query, tried in enumerate(found):
            tried.sort(key=lambda one: -one[1])
            if step == 0:
                ranked[query] = [places[0] for places, _ in tried]
                for (place,), value in tried:
                    alone[query][place] = value
            if tried:
                beam[query] = tried[:beams]
    return [[one for one in kept if one[0]] for kept in beam], alone


def sequences_tried(pool: int, beams: int, shot_num: int, shortlist: int | None) -> int:
    """How many sequences `best_sequences` scores for a query, where none is impossible."""
    total, kept = 0, 1
    for step in range(shot_num):
        left = pool - step
        tried = kept * (min(shortlist, left) if step and shortlist else left)
        total, kept = total + tried, min(beams, tried)
    return total


def found_beams(
    task: Task,
    model: object,
    tokenizer: object,
    queries: Sequence[Record],
    pools: Mapping[str, Sequence[Record]],
    settings: Demonstrations,
    prompt: Prompt,
    *,
    precision: Precision = "float32",
    tally: Counter[str] | None = None,
) -> list[QueryBeams]:
    """Search for the beams of every query in its pool, under a model that stays as it is; verdicts are unknown.

    Args:
        pools: the candidates of each query, by its id.
        precision: of the search's matrix products. bfloat16 changes a score by some hundredths of a nat, so it takes
            other sequences where several are about as good; the scores of those it found are float32's all the same.
        tally: gets the number of `sequences` scored and of those `too_long` for `prompt.max_tokens`.

    Raises:
        PromptTooLong: a query does not fit into `prompt.max_tokens` even without a shot.
        ValueError: a pool holds fewer than `shot_num` candidates, or none that fits.
    """
    for query in queries:
        if len(pools[query.id]) < settings.shot_num:
            raise ValueError(
                f"query {query.id} has {len(pools[query.id])} candidates for {settings.shot_num} shots: "
                "bring more training problems or lower demonstrations.shot_num"
            )

    def scorer(precision: Precision) -> InfoScores:
        limits = {"max_tokens": prompt.max_tokens, "batch_tokens": settings.batch_tokens}
        return InfoScores(task, model, tokenizer, **limits, precision=precision)

    def records(asked: Sequence[tuple[int, Places]]) -> list[Asked]:
        return [(queries[query], [pools[queries[query].id][place] for place in places]) for query, places in asked]

    sizes = [len(pools[query.id]) for query in queries]
    limits = settings.beams, settings.shot_num, settings.shortlist
    scores = scorer(precision)
    with tqdm(total=sum(sequences_tried(size, *limits) for size in sizes), desc="searching", unit="sequence") as bar:

        def score(asked: Sequence[tuple[int, Places]]) -> list[float]:
            values = scores(records(asked), bar.update)
            if tally is not None:
                tally.update(sequences=len(values), too_long=values.count(-inf))
            return values

        found, alone = best_sequences(sizes, score, *limits)
    if precision != "float32":
        exact = iter(scorer("float32")(records([(query, one[0]) for query, kept in enumerate(found) for one in kept])))
        found = [sorted(((one[0], next(exact)) for one in kept), key=lambda one: -one[1]) for kept in found]
    return [
        _query_beams(query, pools[query.id], kept, own) for query, kept, own in zip(queries, found, alone, strict=True)
    ]


def _query_beams(query: Record, pool: Sequence[Record], kept: Sequence[Found], alone: Sequence[float]) -> QueryBeams:
    if not kept:
        raise ValueError(
            f"no candidate of query {query.id} fits into its prompt: raise prompt.max_tokens or bring smaller problems"
        )
    beams = tuple(Beam(tuple(pool[place].id for place in places), value) for places, value in kept)
    scores = tuple(None if value == -inf else value for value in alone)
    return QueryBeams(query.id, tuple(record.id for record in pool), beams, scores)
