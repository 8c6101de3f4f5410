"""Stage `demonstrate`: the language model on every test problem with the examples that selectors chose, under VAL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from planward.curriculum.sets import balanced
from planward.params import Params
from planward.records import POINTERS, RULES, Record, Run, read_records, write_json, write_jsonl
from planward.stages.beams import OUT as BEAMS
from planward.stages.dialects import OUT as DIALECTS
from planward.stages.dialects import PROBLEMS
from planward.stages.embed import EMBEDDINGS, frozen_model
from planward.stages.selector import SELECTORS
from planward.tasks import load_task
from planward.tasks.base import Task

OUT = Path("results/demonstrations/predictions")


def run(params: Params, size: int, seed: int) -> None:
    """Write results/demonstrations/predictions/RUN.jsonl and RUN.json for the three pointers of a size and seed.

    With size 0 for the selectors that are rules instead. All choose from the same candidates for the same problems,
    and an answer under the same examples is asked for, and judged, once.
    """
    from planward.demonstrations.selection import prompt_order
    from planward.evaluation.scoring import answers, predictions, queries

    settings, task = params.demonstrations, load_task(params, PROBLEMS)
    problems = balanced(read_records(DIALECTS / "test.jsonl"), settings.test)
    if not problems:
        raise ValueError(f"{DIALECTS}/test.jsonl is empty: bring more problems or raise split.test")
    runs = [Run(method, size, seed) for method in (POINTERS if size else RULES)]
    counts = range(1, settings.shot_num + 1)
    model, tokenizer = frozen_model(params)
    wanted = {
        run: queries(task, tokenizer, problems, prompt_order(choices), counts, params)
        for run, choices in choices_of(runs, problems, task, params).items()
    }
    answered = iter(answers(task, model, tokenizer, [query for own in wanted.values() for query in own], params))
    for run, own in wanted.items():
        rows, metrics = predictions(list(islice(answered, len(own))), tokenizer, run, run.seed if size else params.seed)
        write_jsonl(OUT / f"{run.name}.jsonl", (row.model_dump() for row in rows))
        write_json(OUT / f"{run.name}.json", metrics)


def choices_of(
    runs: Sequence[Run], queries: Sequence[Record], task: Task, params: Params
) -> dict[Run, dict[str, list[Record]]]:
    """The examples that each selector takes for each query, by the query's id."""
    from planward.demonstrations.beams import BeamsError, read_beams
    from planward.demonstrations.embeddings import read_embeddings
    from planward.demonstrations.pointer import load_pointer
    from planward.demonstrations.pools import candidate_pool
    from planward.demonstrations.selection import pointer_shots, random_shots, similar_shots

    most, seed = params.demonstrations.shot_num, str(params.seed)
    training = list(read_records(DIALECTS / "train.jsonl"))
    pools = {q.id: candidate_pool(q, training, task.core, params.demonstrations.pool, seed) for q in queries}
    by_id = {record.id: record for record in [*training, *queries]}
    embeddings = read_embeddings(EMBEDDINGS, by_id)

    def best_beams() -> dict[str, list[Record]]:
        found = {beams.query: beams.beams[0].shots for beams in read_beams(BEAMS / "test.json", by_id)}
        if missing := [query.id for query in queries if len(found.get(query.id, ())) < most]:
            raise BeamsError(
                f"{BEAMS}/test.json has no beam of {most} examples for {len(missing)} queries, such as {missing[0]}: "
                "run `planward beams --split test` anew"
            )
        return {query.id: [by_id[shot] for shot in reversed(found[query.id])] for query in queries}

    rules: dict[str, Callable[[], dict[str, list[Record]]]] = {
        "random": lambda: {q.id: random_shots(q, pools[q.id], most, seed) for q in queries},
        "similarity": lambda: {q.id: similar_shots(q, pools[q.id], embeddings, most) for q in queries},
        "oracle": best_beams,
    }

    def chosen(run: Run) -> dict[str, list[Record]]:
        if run.method in rules:
            return rules[run.method]()
        return pointer_shots(load_pointer(SELECTORS / run.name), queries, pools, embeddings, most)

    return {run: chosen(run) for run in runs}
