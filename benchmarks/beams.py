"""Sequences of worked examples scored a second, by the search and one at a time: python benchmarks/beams.py

    OMP_NUM_THREADS=1 python benchmarks/beams.py [QUERIES]

Searches for the beams of some training problems of this run (so run the pipeline first), under the model and the
settings of params.yaml, in both precisions. A sample of the sequences that the search scored is then scored one at a
time in float32, by a forward pass over its whole text each, the score without examples computed once a query; the
scores must agree. Reading of PDDL is left out of both. Processor time is that of all threads; where other programs run,
it is the steadier figure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from planward.demonstrations.pools import candidate_pool
from planward.demonstrations.prompts import Asked
from planward.demonstrations.scores import InfoScores
from planward.demonstrations.search import Places, best_sequences
from planward.params import load_params
from planward.records import Record, read_records
from planward.tasks import load_task
from planward.tasks.base import Task
from planward.tasks.fitting import encode

SPLIT = Path("results/score/train.jsonl")
SAMPLE = 300  # sequences scored one at a time


@torch.inference_mode()
def one_at_a_time(task: Task, model: Any, tokenizer: Any, asked: Sequence[Asked]) -> list[float]:
    without: dict[str, float] = {}

    def likelihood(query: Record, shots: Sequence[Record]) -> float:
        prompt = encode(tokenizer, task.prompt(query, shots))
        answer = [*tokenizer(task.answer(query), add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        logits = model(torch.tensor([prompt + answer]), logits_to_keep=len(answer) + 1).logits[0, :-1]
        return float(logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None]).sum())

    for query, _ in asked:
        if query.id not in without:
            without[query.id] = likelihood(query, [])
    return [likelihood(query, shots) - without[query.id] for query, shots in asked]


def timed(act: Callable[[], Any]) -> tuple[Any, float, float]:
    """What `act` returns, its seconds and its processor seconds."""
    start, processor = perf_counter(), process_time()
    return act(), perf_counter() - start, process_time() - processor


def main() -> None:
    if not SPLIT.exists():
        sys.exit(f"{SPLIT} is missing: run `make report` first")
    params, count = load_params(), int(sys.argv[1]) if len(sys.argv) > 1 else 30
    settings, task, random = params.demonstrations, load_task(params), Random(params.seed)
    model = AutoModelForCausalLM.from_pretrained(settings.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    training = list(read_records(SPLIT))
    queries = random.sample(training, count)
    pools = [candidate_pool(query, training, lambda record: record.id, settings.pool, "0") for query in queries]
    for record in training:
        task.prompt(record, [])  # which reads its PDDL
    sizes, widths = [len(pool) for pool in pools], (settings.beams, settings.shot_num, settings.shortlist)
    print(
        f"{count} queries, pools of {settings.pool}, {settings.beams} beams of {settings.shot_num}, "
        f"shortlist {settings.shortlist}, {settings.batch_tokens} tokens a batch, {torch.get_num_threads()} thread(s)"
    )
    rates: dict[str, tuple[float, float]] = {}
    scored: dict[str, list[tuple[Asked, float]]] = {}
    for precision in ("float32", "bfloat16"):
        limits = {"max_tokens": params.prompt.max_tokens, "batch_tokens": settings.batch_tokens}
        scores = InfoScores(task, model, tokenizer, precision=precision, **limits)
        kept = scored[precision] = list[tuple[Asked, float]]()

        def score(asked: Sequence[tuple[int, Places]], scores: InfoScores = scores, kept: list[Any] = kept) -> Any:
            sequences = [(queries[query], [pools[query][place] for place in places]) for query, places in asked]
            values = scores(sequences)
            kept.extend(zip(sequences, values, strict=True))
            return values

        (found, _), *seconds = timed(lambda score=score: best_sequences(sizes, score, *widths))
        rates[precision] = (len(kept) / seconds[0], len(kept) / seconds[1])
        best = sum(beams[0][1] for beams in found) / count
        print(f"search in {precision}: {len(kept)} sequences, {seconds[0]:.1f} s; best beams score {best:.3f} nats")
    sample = random.sample(scored["float32"], min(SAMPLE, len(scored["float32"])))
    alone, *seconds = timed(lambda: one_at_a_time(task, model, tokenizer, [asked for asked, _ in sample]))
    rates["one at a time"] = (len(sample) / seconds[0], len(sample) / seconds[1])
    worst = max(abs(one - value) for one, (_, value) in zip(alone, sample, strict=True))
    print(f"largest difference of {len(sample)} scores: {worst:.1e} nats")
    for name, (wall, processor) in rates.items():
        ratios = wall / rates["one at a time"][0], processor / rates["one at a time"][1]
        print(
            f"{name:13} {wall:5.0f} sequences a second ({processor:.0f} a processor second); "
            f"{ratios[0]:.1f} x one at a time, {ratios[1]:.1f} x in processor time"
        )


if __name__ == "__main__":
    main()
