"""Info scores: shared prefixes, padding and batches give the scores of one sequence at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

import letters
from planward.core.prompts import PromptTooLong, encode_prompt
from planward.core.records import Record, read_records
from planward.core.registry import load_task
from planward.core.tasks import NO_RENAMING, Messages, Renaming, Task
from planward.inference import precision
from planward.inference.continuation import PrefixDecoder, PrefixStates
from planward.params import Params
from planward.selectors.config import SelectorsConfig
from planward.selectors.info_scores import InfoScorer
from planward.selectors.pools import sample_pool
from planward.selectors.search import search_beams
from planward.stages import problems, split
from support import ROOT

TASK = letters.LettersTask()
RECORDS = letters.build_problems(24)
Prompts = list[tuple[Record, list[Record]]]


class ChatTask(letters.LettersTask):
    """Begins with the query's domain, as chat prompts begin with its PDDL, so that prompts are not their parts."""

    def prompt(self, problem: Record, examples: Sequence[Record], _: Renaming = NO_RENAMING) -> Messages:
        turns = [{"role": "system", "content": problem.domain}]
        for example in examples:
            completion = self.reference_completion(example)
            turns += [{"role": "user", "content": example.prompt}, {"role": "assistant", "content": completion}]
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
            weight.mul_(2)  # so that the content of the prompt matters
    return model, tokenizer


def build_prompts(queries: Sequence[Record], pool: Sequence[Record]) -> Prompts:
    """One to three examples before every query, many with common prefixes."""
    prompts: Prompts = []
    for i, query in enumerate(queries):
        others = [record for record in pool if record.id != query.id]
        prompts += [(query, [example]) for example in others[:6]]
        prompts += [(query, [others[i], example]) for example in others[i + 1 : i + 5]]
        prompts += [(query, [example, others[i]]) for example in others[i + 1 : i + 5]]
        prompts += [(query, [*others[i : i + 2], example]) for example in others[i + 2 : i + 5]]
    return prompts


@torch.no_grad()
def score_one_by_one(task: Task, model: Any, tokenizer: Any, prompts: Prompts) -> list[float]:
    """Score every sequence by forward passes over its whole text, with its examples and without."""

    def compute_log_likelihood(query: Record, examples: list[Record]) -> float:
        prompt = encode_prompt(tokenizer, task.prompt(query, examples), {})
        completion = tokenizer(task.reference_completion(query), add_special_tokens=False)["input_ids"]
        completion = [*completion, tokenizer.eos_token_id]
        log_probs = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return float(log_probs.gather(-1, torch.tensor(completion)[:, None]).sum())

    return [compute_log_likelihood(query, examples) - compute_log_likelihood(query, []) for query, examples in prompts]


@pytest.mark.parametrize("task", [TASK, ChatTask()], ids=["text", "chat"])
@pytest.mark.parametrize("batch_tokens", [1, 40, 100_000])
def test_scores_are_those_of_one_sequence_at_a_time(
    network: tuple[Any, Any], task: letters.LettersTask, batch_tokens: int
) -> None:
    model, tokenizer = network
    prompts = build_prompts(RECORDS[:4], RECORDS)
    progress: list[int] = []
    scorer = InfoScorer(task, model, tokenizer, max_tokens=64, batch_tokens=batch_tokens)
    scores = scorer(prompts, progress.append)
    assert scores == pytest.approx(score_one_by_one(task, model, tokenizer, prompts), abs=1e-4)
    assert max(scores) - min(scores) > 0.1
    assert sum(progress) == len(prompts)


@pytest.mark.parametrize("settings", [{"logits_scaling": 4.0}, {"logit_scale": 0.25}, {"final_logit_softcapping": 2.0}])
def test_logits_are_scaled_as_the_model_does(settings: dict[str, float]) -> None:
    """Granite divides, Cohere multiplies, Gemma 2 caps."""
    classes = {
        "logits_scaling": (GraniteConfig, GraniteForCausalLM),
        "logit_scale": (CohereConfig, CohereForCausalLM),
        "final_logit_softcapping": (Gemma2Config, Gemma2ForCausalLM),
    }
    [(config, network_class)] = [classes[name] for name in settings]
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 20}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    model = network_class(config(**sizes, **heads, **settings)).eval()
    ids = torch.tensor([[3, 4, 5, 6]])
    states = PrefixStates([], torch.zeros(1, dtype=torch.long))
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        decoder = PrefixDecoder(model, "float32")
        logits = decoder.compute_logits(ids, states, torch.zeros(1, dtype=torch.long), everywhere)
        torch.testing.assert_close(logits, model(ids).logits[0])
        assert not torch.allclose(logits, model.get_output_embeddings()(model.get_decoder()(ids).last_hidden_state[0]))


@pytest.mark.parametrize("attention", ["flash_attention_2", "sdpa"])
def test_flash_attention_shares_no_prefixes(network: tuple[Any, Any], attention: str) -> None:
    model, _ = network
    model.config._attn_implementation = attention
    assert PrefixDecoder(model, "bfloat16").shares == (attention == "sdpa")


def test_common_prefixes_are_computed_once(network: tuple[Any, Any]) -> None:
    model, tokenizer = network
    token_counts: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: token_counts.append(inputs[0].numel()))
    query, *examples = RECORDS[:10]
    prompts = [(query, [*examples[:3], example]) for example in examples[3:]]
    InfoScorer(TASK, model, tokenizer, max_tokens=64, batch_tokens=1000)(prompts)
    lengths = [len(encode_prompt(tokenizer, TASK.prompt(query, examples), {})) for query, examples in prompts]
    prefix_length = len(encode_prompt(tokenizer, TASK.prompt(examples[2], examples[:2]), {}))
    assert sum(token_counts) < sum(lengths) - (len(prompts) - 1) * prefix_length / 2


def test_models_with_a_sliding_window_are_scored_without_sharing(network: tuple[Any, Any]) -> None:
    """Keys and values of a sliding window cannot be reused."""
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
    model, prompts = MistralForCausalLM(config).eval(), build_prompts(RECORDS[:2], RECORDS)
    scores = InfoScorer(TASK, model, network[1], max_tokens=64, batch_tokens=80)(prompts)
    assert scores == pytest.approx(score_one_by_one(TASK, model, network[1], prompts), abs=1e-4)


@pytest.mark.usefixtures("project")
def test_scores_of_the_shipped_model_on_real_problems(small: Callable[..., Params]) -> None:
    torch.set_num_threads(1)
    params, base = small(), ROOT / "models/base"
    problems.run(params)
    split.run(params)
    task, records = load_task(params), list(read_records(Path("results/split/train.jsonl")))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    prompts = build_prompts(records[::5], records)
    exact = score_one_by_one(task, model, tokenizer, prompts)
    limits = {"max_tokens": 768, "batch_tokens": 1000}
    assert InfoScorer(task, model, tokenizer, **limits)(prompts) == pytest.approx(exact, abs=1e-4)
    half = InfoScorer(task, model, tokenizer, **limits, precision="bfloat16")(prompts)
    errors = [abs(score - exact_score) for score, exact_score in zip(half, exact, strict=True)]
    assert 0 < fmean(errors) < 0.1 * stdev(exact)  # too small to change many ranks


def test_the_order_of_examples_matters(network: tuple[Any, Any]) -> None:
    query, first, second = RECORDS[:3]
    scorer = InfoScorer(TASK, *network, max_tokens=64, batch_tokens=100)
    in_order, reversed_order = scorer([(query, [first, second]), (query, [second, first])])
    assert abs(in_order - reversed_order) > 1e-3


def test_sequences_that_are_too_long_score_minus_infinity(network: tuple[Any, Any]) -> None:
    model, tokenizer = network
    prompts = build_prompts(RECORDS[:4], RECORDS)
    lengths = [len(encode_prompt(tokenizer, TASK.prompt(query, examples), {})) for query, examples in prompts]
    limit = sorted(lengths)[len(lengths) // 2]
    scores = InfoScorer(TASK, model, tokenizer, max_tokens=limit, batch_tokens=100)(prompts)
    assert [score == -math.inf for score in scores] == [length > limit for length in lengths]
    with pytest.raises(PromptTooLong, match=r"p00 .* prompt\.max_tokens is 1"):
        InfoScorer(TASK, model, tokenizer, max_tokens=1, batch_tokens=100)(prompts)


def test_a_completion_outside_the_vocabulary_raises(network: tuple[Any, Any]) -> None:
    query = RECORDS[0].model_copy(update={"response": "z"})
    with pytest.raises(ValueError, match=r"p00.*outside the model's vocabulary"):
        InfoScorer(TASK, *network, max_tokens=64, batch_tokens=100)([(query, [RECORDS[1]])])


# The search with real scores


@pytest.fixture
def config(shipped_selectors: SelectorsConfig) -> SelectorsConfig:
    small = {"pool": 6, "beams": 3, "shot_num": 2, "shortlist": 3, "batch_tokens": 200}
    return shipped_selectors.model_copy(update=small)


def test_beams_of_many_queries_are_those_of_one_at_a_time(
    network: tuple[Any, Any], config: SelectorsConfig, shipped_params: Params
) -> None:
    queries = RECORDS[:5]
    pools = {query.id: sample_pool(query, RECORDS, lambda record: record.id, 6, "0") for query in queries}
    tally = Counter[str]()
    prompt_config = shipped_params.prompt.model_copy(update={"max_tokens": 64})
    rows = search_beams(TASK, *network, queries, pools, config, prompt_config, tally=tally)
    assert tally == {"sequences": 5 * (6 + 3 * 3), "too_long": 0}
    by_id = {record.id: record for record in RECORDS}
    for query, row in zip(queries, rows, strict=True):
        [single] = search_beams(TASK, *network, [query], pools, config, prompt_config)
        assert (row.query, row.pool) == (query.id, tuple(record.id for record in pools[query.id]))
        assert [beam.examples for beam in row.beams] == [beam.examples for beam in single.beams]
        prompts = [(query, [by_id[example] for example in beam.examples]) for beam in row.beams]
        scores = [beam.score for beam in row.beams]
        assert scores == pytest.approx(score_one_by_one(TASK, *network, prompts), abs=1e-4)
        assert scores == sorted(scores, reverse=True)
        assert {beam.success for beam in row.beams} == {None}
        assert all(len(set(beam.examples)) == 2 for beam in row.beams)


def test_a_search_in_bfloat16_returns_float32_scores(
    network: tuple[Any, Any], config: SelectorsConfig, shipped_params: Params
) -> None:
    query, by_id = RECORDS[0], {record.id: record for record in RECORDS}
    prompt_config = shipped_params.prompt.model_copy(update={"max_tokens": 64})
    pools = {query.id: RECORDS[1:9]}
    [row] = search_beams(TASK, *network, [query], pools, config, prompt_config, precision="bfloat16")
    prompts = [(query, [by_id[example] for example in beam.examples]) for beam in row.beams]
    scores = [beam.score for beam in row.beams]
    assert scores == pytest.approx(score_one_by_one(TASK, *network, prompts), abs=1e-4)
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("has_instructions", [True, False])
def test_auto_precision_is_bfloat16_only_where_the_device_has_it(
    monkeypatch: pytest.MonkeyPatch, has_instructions: bool
) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda _: has_instructions)
    assert precision.choose_precision("auto", "cpu") == ("bfloat16" if has_instructions else "float32")
    assert precision.choose_precision("bfloat16", "cpu") == "bfloat16"
    assert precision.choose_precision("float32", "cpu") == "float32"


def test_a_pool_that_is_too_small_raises(
    network: tuple[Any, Any], config: SelectorsConfig, shipped_params: Params
) -> None:
    pools = {"p00": RECORDS[1:2]}
    with pytest.raises(ValueError, match=r"query p00: 1 candidates for 2 examples; fix: .*shot_num"):
        search_beams(TASK, *network, RECORDS[:1], pools, config, shipped_params.prompt)


def test_a_prompt_limit_too_low_for_any_example_raises(
    network: tuple[Any, Any], config: SelectorsConfig, shipped_params: Params
) -> None:
    limit = len(encode_prompt(network[1], TASK.prompt(RECORDS[0], []), {}))
    prompt_config = shipped_params.prompt.model_copy(update={"max_tokens": limit})
    message = rf"query p00: .* 1 example\(s\) within prompt\.max_tokens \({limit}\).* raise prompt\.max_tokens"
    with pytest.raises(ValueError, match=message):
        search_beams(TASK, *network, RECORDS[:1], {"p00": RECORDS[1:7]}, config, prompt_config)


def test_a_query_whose_prompt_cannot_hold_shot_num_examples_raises(
    network: tuple[Any, Any], config: SelectorsConfig, shipped_params: Params
) -> None:
    """The first query has room for two examples, the second for one."""
    pool = RECORDS[1:7]
    queries = [RECORDS[0], RECORDS[0].model_copy(update={"id": "long", "prompt": f"copy{' a' * 20}"})]
    limit = min(len(encode_prompt(network[1], TASK.prompt(queries[1], [example]), {})) for example in pool)
    prompt_config = shipped_params.prompt.model_copy(update={"max_tokens": limit})
    pools = {query.id: pool for query in queries}
    [row] = search_beams(TASK, *network, queries[:1], pools, config, prompt_config)
    assert len(row.beams[0].examples) == 2
    message = rf"query long: .* 2 example\(s\) within prompt\.max_tokens \({limit}\), but .* lower shot_num"
    with pytest.raises(ValueError, match=message):
        search_beams(TASK, *network, queries, pools, config, prompt_config)
