"""Chat prompts in training: what the model is given is what `encode_prompt` says, and lengths are shown first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import letters
from planward.core.prompts import ChatTemplateError, encode_prompt
from planward.core.records import Record
from planward.core.tasks import NO_RENAMING, Messages, Renaming
from planward.params import Params, ParamsError, PromptConfig, validate_section
from planward.training import grpo, sft
from planward.training.lengths import measure_lengths
from training_runs import RECORDS, read_metrics, run_grpo, run_sft

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} ; {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %} silent{% endif %}"
)
REFUSING = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHAT_TEMPLATE
SILENT = {"enable_thinking": False}


class ChatTask(letters.LettersTask):
    """Worked examples are earlier turns; the system turn names the domain."""

    def prompt(self, problem: Record, examples: Sequence[Record], renaming: Renaming = NO_RENAMING) -> Messages:
        turns = [{"role": "system", "content": problem.domain}]
        for example in examples:
            turns.append({"role": "user", "content": example.prompt})
            turns.append({"role": "assistant", "content": self.reference_completion(example)})
        return [*turns, {"role": "user", "content": letters.rename(problem.prompt, renaming)}]


TASK = ChatTask()


@pytest.fixture(autouse=True)
def chat_model(project_root: Path) -> None:
    """A base model with a chat template, in the working directory."""
    words = [*letters.DOMAINS, *letters.LETTERS, ";", "system", "user", "assistant", "silent"]
    letters.write_model(project_root / "base", words)
    save_chat_template(CHAT_TEMPLATE)


def save_chat_template(template: str) -> Any:
    tokenizer = AutoTokenizer.from_pretrained("base")
    tokenizer.chat_template = template
    tokenizer.save_pretrained("base")
    return tokenizer


def build_params(options: dict[str, Any], **prompt: Any) -> Params:
    prompt = {"style": "full", "template": None, "chat_template_options": options} | prompt
    small = {"steps": 2, "shots": 1, "save_steps": 9}
    return letters.build_params(prompt={"max_tokens": 48, "max_completion_tokens": 8} | prompt, grpo=small)


@pytest.mark.parametrize("options", [{}, SILENT])
def test_grpo_generates_from_the_tokens_of_encode_prompt(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    generator_inputs: list[list[int]] = []
    prompts: list[str | Messages] = []
    generate, build = grpo.RolloutTrainer._generate_single_turn, grpo.Rollouts.build_prompts

    def record_ids(trainer: Any, prompt_ids: list[list[int]], *rest: Any) -> Any:
        generator_inputs.extend(map(list, prompt_ids))
        return generate(trainer, prompt_ids, *rest)

    def record_prompts(rollouts: Any, batch: Any) -> Any:
        rows = build(rollouts, batch)
        prompts.extend(row["prompt"] for row in rows)
        return rows

    monkeypatch.setattr(grpo.RolloutTrainer, "_generate_single_turn", record_ids)
    monkeypatch.setattr(grpo.Rollouts, "build_prompts", record_prompts)
    run_grpo("model", build_params(options), task=TASK)
    tokenizer = AutoTokenizer.from_pretrained("base")
    assert generator_inputs == [encode_prompt(tokenizer, prompt, options) for prompt in prompts]
    assert len(generator_inputs) == 2 * 8 * 4  # steps, prompts and generations
    silent = tokenizer.convert_tokens_to_ids("silent")
    assert {silent in ids for ids in generator_inputs} == {bool(options)}


def test_sft_trains_on_the_options_of_the_chat_template() -> None:
    tokenizer = AutoTokenizer.from_pretrained("base")
    silent = tokenizer.convert_tokens_to_ids("silent")
    for options in ({}, SILENT):
        rows, _ = sft._build_rows(TASK, tokenizer, RECORDS, build_params(options))
        assert {silent in row["input_ids"] for row in rows} == {bool(options)}


def test_a_refused_system_role_names_the_parameter() -> None:
    tokenizer = save_chat_template(REFUSING)
    prompt = TASK.prompt(RECORDS[0], [])
    with pytest.raises(ChatTemplateError, match=r"refuses .*: no system role; fix: prompt\.system_turn: false"):
        encode_prompt(tokenizer, prompt, {})
    assert encode_prompt(tokenizer, prompt[1:], {})


def test_a_model_without_a_chat_template_names_the_parameter() -> None:
    tokenizer = AutoTokenizer.from_pretrained("base")
    tokenizer.chat_template = None
    with pytest.raises(ChatTemplateError, match=r"no chat template; fix: set prompt\.style"):
        encode_prompt(tokenizer, TASK.prompt(RECORDS[0], []), {})


def test_options_that_the_pipeline_sets_are_refused() -> None:
    values = {
        "style": "full",
        "max_tokens": 9,
        "max_completion_tokens": 9,
        "chat_template_options": {"tokenize": False},
    }
    with pytest.raises(ParamsError, match=r"chat_template_options: .*tokenize: an argument of apply_chat_template"):
        validate_section(PromptConfig, values, "params.yaml")


def test_lengths_are_those_of_the_tokens() -> None:
    tokenizer, params = AutoTokenizer.from_pretrained("base"), build_params(SILENT)
    lengths = measure_lengths(TASK, tokenizer, RECORDS, RECORDS, params, 2)
    for row, record in zip(lengths, RECORDS, strict=True):
        assert row.prompt == len(encode_prompt(tokenizer, TASK.prompt(record, []), SILENT))
        examples = TASK.select_examples(record, RECORDS, 2, str(params.seed))
        assert row.full_prompt == len(encode_prompt(tokenizer, TASK.prompt(record, examples), SILENT))
        assert row.reference == len((record.response or "").split()) + 1


def test_training_shows_lengths_and_counts_unreachable_references(capsys: pytest.CaptureFixture[str]) -> None:
    params = build_params({}, max_completion_tokens=4)
    too_long = [record for record in RECORDS if len((record.response or "").split()) >= 4]
    assert too_long
    params = params.model_copy(update={"sft": params.sft.model_copy(update={"epochs": 1})})
    run_sft("sft", params, task=TASK)
    run_grpo("grpo", params, task=TASK)
    output = capsys.readouterr().err
    assert output.count("Tokens: median/95 %/maximum") == 2
    assert f"{len(too_long)} reference completion(s) exceed prompt.max_completion_tokens" in output
    assert too_long[0].id in output
    for run in ("sft", "grpo"):
        assert read_metrics(run)["references_too_long"] == len(too_long)


def test_a_checkpoint_belongs_to_the_template_it_was_made_with() -> None:
    template = Path("own.jinja")
    params = build_params({}, template=str(template))

    def compute_fingerprints() -> tuple[str, str]:
        return (
            sft._compute_fingerprint(RECORDS, params, "base", 1),
            grpo._compute_fingerprint(RECORDS, [], params, "base", 1),
        )

    template.write_text("{% block user %}{{ problem }}{% endblock %}")
    before = compute_fingerprints()
    template.write_text("{% block user %}Solve {{ problem }}{% endblock %}")
    assert not set(before) & set(compute_fingerprints())
