"""Info scores: what shares, pads and batches computations gives the scores of one sequence at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, MistralConfig, MistralForCausalLM

import letters
from conftest import ROOT
from planward.demonstrations.pools import candidate_pool
from planward.demonstrations.scores import InfoScores
from planward.demonstrations.search import found_beams
from planward.params import Params
from planward.records import Record, read_records
from planward.stages import problems, split
from planward.tasks import load_task
from planward.tasks.base import AS_IS, Alias, Messages, Task
from planward.tasks.fitting import PromptTooLong, encode

TASK = letters.Letters()
RECORDS = letters.problems(24)
Asked = list[tuple[Record, list[Record]]]


class Chat(letters.Letters):
    """Begins with the query's domain, as chat prompts begin with its PDDL, so that prompts are not their parts."""

    def prompt(self, problem: Record, shots: Sequence[Record], _: Alias = AS_IS) -> Messages:
        turns = [{"role": "system", "content": problem.domain}]
        for shot in shots:
            turns += [{"role": "user", "content": shot.prompt}, {"role": "assistant", "content": self.answer(shot)}]
        return [*turns, {"role": "user", "content": problem.prompt}]


TEMPLATE = (
    "{% for message in messages %}{{ message.content }} {{ ':' if message.role == 'user' else ';' }} {% endfor %}"
)


@pytest.fixture
def network(tmp_path: Path) -> tuple[Any, Any]:
    torch.set_num_threads(1)
    letters.write_base(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.chat_template = TEMPLATE
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)  # so that what stands in the prompt matters
    return model, tokenizer


def sequences(queries: Sequence[Record], pool: Sequence[Record]) -> Asked:
    """One to three shots before every query, many of them beginning alike."""
    found: Asked = []
    for place, query in enumerate(queries):
        others = [shot for shot in pool if shot.id != query.id]
        found += [(query, [shot]) for shot in others[:6]]
        found += [(query, [others[place], shot]) for shot in others[place + 1 : place + 5]]
        found += [(query, [shot, others[place]]) for shot in others[place + 1 : place + 5]]
        found += [(query, [*others[place : place + 2], shot]) for shot in others[place + 2 : place + 5]]
    return found


@torch.no_grad()
def one_by_one(task: Task, model: Any, tokenizer: Any, asked: Asked) -> list[float]:
    """A forward pass of the whole text for every sequence, with its shots and without."""

    def likelihood(query: Record, shots: list[Record]) -> float:
        prompt = encode(tokenizer, task.prompt(query, shots))
        answer = [*tokenizer(task.answer(query), add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        logps = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return float(logps.gather(-1, torch.tensor(answer)[:, None]).sum())

    return [likelihood(query, shots) - likelihood(query, []) for query, shots in asked]


@pytest.mark.parametrize("task", [TASK, Chat()], ids=["text", "chat"])
@pytest.mark.parametrize("batch_tokens", [1, 40, 100_000])
def test_scores_are_those_of_one_sequence_at_a_time(
    network: tuple[Any, Any], task: letters.Letters, batch_tokens: int
) -> None:
    model, tokenizer = network
    asked = sequences(RECORDS[:4], RECORDS)
    told: list[int] = []
    found = InfoScores(task, model, tokenizer, max_tokens=64, batch_tokens=batch_tokens)(asked, told.append)
    assert found == pytest.approx(one_by_one(task, model, tokenizer, asked), abs=1e-4)
    assert max(found) - min(found) > 0.1
    assert sum(told) == len(asked)


def test_common_beginnings_are_forwarded_once(network: tuple[Any, Any]) -> None:
    model, tokenizer = network
    forwarded: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: forwarded.append(inputs[0].numel()))
    query, *shots = RECORDS[:10]
    asked = [(query, [*shots[:3], shot]) for shot in shots[3:]]
    scores = InfoScores(TASK, model, tokenizer, max_tokens=64, batch_tokens=1000)
    scores(asked)
    lengths = [len(encode(tokenizer, TASK.prompt(query, shots))) for query, shots in asked]
    shared = len(encode(tokenizer, TASK.prompt(shots[2], shots[:2])))
    assert sum(forwarded) < sum(lengths) - (len(asked) - 1) * shared / 2


def test_a_model_that_forgets_is_scored_as_well(network: tuple[Any, Any]) -> None:
    """Keys and values of a sliding window cannot be kept for others."""
    config = MistralConfig(
        vocab_size=len(network[1]),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
        sliding_window=4,
    )
    torch.manual_seed(0)
    model, asked = MistralForCausalLM(config).eval(), sequences(RECORDS[:2], RECORDS)
    found = InfoScores(TASK, model, network[1], max_tokens=64, batch_tokens=80)(asked)
    assert found == pytest.approx(one_by_one(TASK, model, network[1], asked), abs=1e-4)


@pytest.mark.usefixtures("project")
def test_scores_of_the_shipped_model_on_real_problems(small: Callable[..., Params]) -> None:
    torch.set_num_threads(1)
    params, base = small(), ROOT / "models/base"
    problems.run(params)
    split.run(params)
    task, records = load_task(params), list(read_records(Path("results/split/train.jsonl")))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    asked = sequences(records[::5], records)
    exact = one_by_one(task, model, tokenizer, asked)
    found = InfoScores(task, model, tokenizer, max_tokens=768, batch_tokens=1000)(asked)
    assert found == pytest.approx(exact, abs=1e-4)
    half = InfoScores(task, model, tokenizer, max_tokens=768, batch_tokens=1000, precision="bfloat16")(asked)
    errors = [abs(one - other) for one, other in zip(half, exact, strict=True)]
    assert 0 < sum(errors) / len(errors) < 0.05


def test_the_order_of_shots_matters(network: tuple[Any, Any]) -> None:
    query, one, other = RECORDS[:3]
    scores = InfoScores(TASK, *network, max_tokens=64, batch_tokens=100)
    first, second = scores([(query, [one, other]), (query, [other, one])])
    assert abs(first - second) > 1e-3


def test_sequences_that_are_too_long_are_no_candidates(network: tuple[Any, Any]) -> None:
    model, tokenizer = network
    asked = sequences(RECORDS[:4], RECORDS)
    lengths = [len(encode(tokenizer, TASK.prompt(query, shots))) for query, shots in asked]
    limit = sorted(lengths)[len(lengths) // 2]
    found = InfoScores(TASK, model, tokenizer, max_tokens=limit, batch_tokens=100)(asked)
    assert [value == -math.inf for value in found] == [length > limit for length in lengths]
    with pytest.raises(PromptTooLong, match=r"p00 .* prompt\.max_tokens is 1"):
        InfoScores(TASK, model, tokenizer, max_tokens=1, batch_tokens=100)(asked)


def test_an_answer_outside_the_vocabulary_is_told(network: tuple[Any, Any]) -> None:
    odd = RECORDS[0].model_copy(update={"response": "z"})
    with pytest.raises(ValueError, match=r"p00.*outside the model's vocabulary"):
        InfoScores(TASK, *network, max_tokens=64, batch_tokens=100)([(odd, [RECORDS[1]])])


# The search over real scores


@pytest.fixture
def demonstrations(shipped: Params) -> Callable[..., Any]:
    small = {"pool": 6, "beams": 3, "shot_num": 2, "shortlist": 3, "batch_tokens": 200}
    return lambda **changes: shipped.demonstrations.model_copy(update=small | changes)


def test_beams_of_many_queries_are_those_of_one_at_a_time(
    network: tuple[Any, Any], demonstrations: Callable[..., Any], shipped: Params
) -> None:
    queries = RECORDS[:5]
    pools = {query.id: candidate_pool(query, RECORDS, lambda record: record.id, 6, "0") for query in queries}
    tally = Counter[str]()
    arguments = (demonstrations(), shipped.prompt.model_copy(update={"max_tokens": 64}))
    found = found_beams(TASK, *network, queries, pools, *arguments, tally=tally)
    assert tally == {"sequences": 5 * (6 + 3 * 3), "too_long": 0}
    by_id = {record.id: record for record in RECORDS}
    for query, row in zip(queries, found, strict=True):
        [alone] = found_beams(TASK, *network, [query], pools, *arguments)
        assert (row.query, row.pool) == (query.id, tuple(record.id for record in pools[query.id]))
        assert [beam.shots for beam in row.beams] == [beam.shots for beam in alone.beams]
        asked = [(query, [by_id[shot] for shot in beam.shots]) for beam in row.beams]
        assert [beam.score for beam in row.beams] == pytest.approx(one_by_one(TASK, *network, asked), abs=1e-4)
        assert [beam.score for beam in row.beams] == sorted((beam.score for beam in row.beams), reverse=True)
        assert {beam.success for beam in row.beams} == {None}
        assert all(len(set(beam.shots)) == 2 for beam in row.beams)


def test_a_search_in_half_precision_tells_exact_scores(
    network: tuple[Any, Any], demonstrations: Callable[..., Any], shipped: Params
) -> None:
    query, by_id = RECORDS[0], {record.id: record for record in RECORDS}
    prompt = shipped.prompt.model_copy(update={"max_tokens": 64})
    pools = {query.id: RECORDS[1:9]}
    [row] = found_beams(TASK, *network, [query], pools, demonstrations(), prompt, precision="bfloat16")
    asked = [(query, [by_id[shot] for shot in beam.shots]) for beam in row.beams]
    scores = [beam.score for beam in row.beams]
    assert scores == pytest.approx(one_by_one(TASK, *network, asked), abs=1e-4)
    assert scores == sorted(scores, reverse=True)


def test_a_pool_too_small_to_choose_from_is_told(
    network: tuple[Any, Any], demonstrations: Callable[..., Any], shipped: Params
) -> None:
    pools = {"p00": RECORDS[1:2]}
    with pytest.raises(ValueError, match=r"query p00 has 1 candidates for 2 shots: .*demonstrations\.shot_num"):
        found_beams(TASK, *network, RECORDS[:1], pools, demonstrations(), shipped.prompt)


def test_a_prompt_too_short_for_any_shot_is_told(
    network: tuple[Any, Any], demonstrations: Callable[..., Any], shipped: Params
) -> None:
    limit = len(encode(network[1], TASK.prompt(RECORDS[0], [])))
    prompt = shipped.prompt.model_copy(update={"max_tokens": limit})
    with pytest.raises(ValueError, match=r"query p00 .* raise prompt\.max_tokens"):
        found_beams(TASK, *network, RECORDS[:1], {"p00": RECORDS[1:7]}, demonstrations(), prompt)
