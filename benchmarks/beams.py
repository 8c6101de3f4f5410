"""Throughput of the beam search, compared with scoring one sequence at a time.

    OMP_NUM_THREADS=1 python benchmarks/beams.py [QUERIES]

Searches the beams of some training problems of this project's results (run the pipeline first), with the model and
settings of workflow/selectors/params.yaml, in both precisions. Then a sample of the scored sequences is scored one at a
time in float32, each by a forward pass over its whole text; the score without examples is computed once per query. The
scores must agree. Parsing PDDL is not timed. CPU time is that of all threads; on a busy machine it is the steadier
figure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from random import Random
from time import perf_counter, process_time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from planward.core import paths
from planward.core.prompts import encode_prompt
from planward.core.records import Record, read_records
from planward.core.registry import load_params, load_task
from planward.core.tasks import Task
from planward.selectors.config import load_selectors_config
from planward.selectors.info_scores import InfoScorer
from planward.selectors.pools import sample_pool
from planward.selectors.prompts import PromptParts
from planward.selectors.search import Indices, search_sequences

SAMPLE_SIZE = 300  # sequences scored one at a time


@torch.inference_mode()
def score_one_by_one(task: Task, model: Any, tokenizer: Any, prompts: Sequence[PromptParts]) -> list[float]:
    """Score sequences by forward passes over their whole texts."""
    without_examples: dict[str, float] = {}

    def compute_log_likelihood(query: Record, examples: Sequence[Record]) -> float:
        prompt = encode_prompt(tokenizer, task.prompt(query, examples))
        completion = tokenizer(task.reference_completion(query), add_special_tokens=False)["input_ids"]
        completion = [*completion, tokenizer.eos_token_id]
        logits = model(torch.tensor([prompt + completion]), logits_to_keep=len(completion) + 1).logits[0, :-1]
        return float(logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None]).sum())

    for query, _ in prompts:
        if query.id not in without_examples:
            without_examples[query.id] = compute_log_likelihood(query, [])
    return [compute_log_likelihood(query, examples) - without_examples[query.id] for query, examples in prompts]


def measure(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """Call `function`; returns its result, wall time and CPU time in seconds."""
    wall_start, cpu_start = perf_counter(), process_time()
    return function(), perf_counter() - wall_start, process_time() - cpu_start


def main() -> None:
    train_file = paths.results().score / "train.jsonl"
    if not train_file.exists():
        sys.exit(f"{train_file}: no such file; fix: run `make report` first")
    params, config, count = load_params(), load_selectors_config(), int(sys.argv[1]) if len(sys.argv) > 1 else 30
    task, rng = load_task(params), Random(params.seed)
    model = AutoModelForCausalLM.from_pretrained(config.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    training = list(read_records(train_file))
    queries = rng.sample(training, count)
    pools = [sample_pool(query, training, lambda record: record.id, config.pool, "0") for query in queries]
    for record in training:
        task.prompt(record, [])  # which parses and caches its PDDL
    sizes, limits = [len(pool) for pool in pools], (config.beams, config.shot_num, config.shortlist)
    print(
        f"{count} queries, pools of {config.pool}, {config.beams} beams of {config.shot_num}, "
        f"shortlist {config.shortlist}, {config.batch_tokens} tokens per batch, {torch.get_num_threads()} thread(s)"
    )
    rates: dict[str, tuple[float, float]] = {}
    score_logs: dict[str, list[tuple[PromptParts, float]]] = {}
    for precision in ("float32", "bfloat16"):
        settings = {"max_tokens": params.prompt.max_tokens, "batch_tokens": config.batch_tokens}
        scorer = InfoScorer(task, model, tokenizer, precision=precision, **settings)
        log = score_logs[precision] = list[tuple[PromptParts, float]]()

        def score(
            sequences: Sequence[tuple[int, Indices]], scorer: InfoScorer = scorer, log: list[Any] = log
        ) -> list[float]:
            prompts = [(queries[query], [pools[query][i] for i in indices]) for query, indices in sequences]
            values = scorer(prompts)
            log.extend(zip(prompts, values, strict=True))
            return values

        (beams, _), wall_s, cpu_s = measure(lambda score=score: search_sequences(sizes, score, *limits))
        rates[precision] = (len(log) / wall_s, len(log) / cpu_s)
        best = sum(query_beams[0][1] for query_beams in beams) / count
        print(f"search in {precision}: {len(log)} sequences, {wall_s:.1f} s; best beams score {best:.3f} nats")
    sample = rng.sample(score_logs["float32"], min(SAMPLE_SIZE, len(score_logs["float32"])))
    exact, wall_s, cpu_s = measure(lambda: score_one_by_one(task, model, tokenizer, [prompt for prompt, _ in sample]))
    rates["one at a time"] = (len(sample) / wall_s, len(sample) / cpu_s)
    difference = max(abs(score - value) for score, (_, value) in zip(exact, sample, strict=True))
    print(f"largest difference of {len(sample)} scores: {difference:.1e} nats")
    for name, (per_wall_s, per_cpu_s) in rates.items():
        speedups = per_wall_s / rates["one at a time"][0], per_cpu_s / rates["one at a time"][1]
        print(
            f"{name:13} {per_wall_s:5.0f} sequences/s ({per_cpu_s:.0f} per CPU second); "
            f"{speedups[0]:.1f} x one at a time, {speedups[1]:.1f} x in CPU time"
        )


if __name__ == "__main__":
    main()
