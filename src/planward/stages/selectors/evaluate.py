"""Stages `evaluate-rules` and `evaluate`: solve test problems with the examples that each selector chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from planward.core import paths
from planward.core.files import write_json, write_jsonl
from planward.core.records import Record, read_records
from planward.core.runs import POINTERS, RULES, Run
from planward.core.tasks import Task
from planward.curriculum.training_sets import select_balanced
from planward.selectors.config import SelectorsConfig
from planward.selectors.dialects import load_track_task
from planward.tasks.planning.config import PlanningParams


def run(params: PlanningParams, config: SelectorsConfig, size: int, seed: int) -> None:
    """Write results/selectors/predictions/RUN.jsonl and RUN.json for the three pointers of a size and seed.

    With size 0 for the selectors that are rules instead. All choose from the same candidates for the same problems;
    equal prompts are completed and judged once.
    """
    from planward.evaluation.scoring import build_evaluation_prompts, build_predictions, complete_and_judge
    from planward.selectors.frozen_model import load_frozen_model
    from planward.selectors.selection import order_for_prompt

    results, task = paths.SELECTORS, load_track_task(params, config)
    problems = select_balanced(read_records(results.dialects / "test.jsonl"), config.test)
    if not problems:
        raise ValueError(f"{results.dialects}/test.jsonl is empty; fix: provide more problems or raise split.test")
    runs = [Run(method, size, seed) for method in (POINTERS if size else RULES)]
    counts = range(1, config.shot_num + 1)
    model, tokenizer = load_frozen_model(params, config)
    prompts = {
        run: build_evaluation_prompts(task, tokenizer, problems, order_for_prompt(choices), counts, params)
        for run, choices in select_examples(runs, problems, task, params, config).items()
    }
    all_prompts = [prompt for run in runs for prompt in prompts[run]]
    judged_completions = iter(complete_and_judge(task, model, tokenizer, all_prompts, params))
    for run in runs:
        row_seed = run.seed if size else params.seed
        rows, metrics = build_predictions(list(islice(judged_completions, len(prompts[run]))), tokenizer, run, row_seed)
        write_jsonl(results.answers(run), (row.model_dump() for row in rows))
        write_json(results.answers(run).with_suffix(".json"), {"run": run.as_dict("selectors"), **metrics})


def select_examples(
    runs: Sequence[Run], queries: Sequence[Record], task: Task, params: PlanningParams, config: SelectorsConfig
) -> dict[Run, dict[str, list[Record]]]:
    """Select the examples of each selector for each query, by the query's id."""
    from planward.selectors.beams import BeamsError, read_beams
    from planward.selectors.embeddings import read_embeddings
    from planward.selectors.pointer import load_pointer
    from planward.selectors.pools import sample_pool
    from planward.selectors.selection import select_by_pointer, select_random, select_similar

    results, shot_num, seed = paths.SELECTORS, config.shot_num, str(params.seed)
    training = list(read_records(results.dialects / "train.jsonl"))
    pools = {q.id: sample_pool(q, training, task.core_digest, config.pool, seed) for q in queries}
    by_id = {record.id: record for record in [*training, *queries]}
    embeddings = read_embeddings(results.embeddings, by_id)

    def select_best_beams() -> dict[str, list[Record]]:
        path = results.beams / "test.json"
        best = {row.query: row.beams[0].examples for row in read_beams(path, by_id)}
        if missing := [query.id for query in queries if len(best.get(query.id, ())) < shot_num]:
            raise BeamsError(
                f"{path}: no beam of {shot_num} examples for {len(missing)} queries, such as {missing[0]}; "
                "fix: raise prompt.max_tokens or lower shot_num where prompts are too long, then run "
                "`planward selectors beams --split test` again"
            )
        return {query.id: [by_id[example] for example in reversed(best[query.id])] for query in queries}

    rules: dict[str, Callable[[], dict[str, list[Record]]]] = {
        "random": lambda: {q.id: select_random(q, pools[q.id], shot_num, seed) for q in queries},
        "similarity": lambda: {q.id: select_similar(q, pools[q.id], embeddings, shot_num) for q in queries},
        "oracle": select_best_beams,
    }

    def select_for(run: Run) -> dict[str, list[Record]]:
        if run.method in rules:
            return rules[run.method]()
        return select_by_pointer(load_pointer(results.model(run)), queries, pools, embeddings, shot_num)

    return {run: select_for(run) for run in runs}
