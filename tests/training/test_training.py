"""SFT and GRPO on real TRL: a random two-layer Llama learns to repeat letters (tests/letters.py)."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

import letters
import planward
from planward.core import fingerprints
from planward.core.prompts import PromptTooLong, fit_prompt
from planward.core.records import Record
from planward.core.tasks import NO_RENAMING, Messages, Renaming
from planward.core.training_prompts import TrainingPrompt, draw_examples, sample_training_prompt
from planward.core.verdicts import Label, Outcome, Verdict, VerifierError
from planward.curriculum.draws import Slot
from planward.curriculum.samplers import AdaptiveSampler, FixedSampler, GroupResult
from planward.curriculum.schedule import build_schedule
from planward.inference import models
from planward.params import Params
from planward.training import grpo, sft
from planward.training.batching import Batching
from planward.training.checkpoints import JOURNAL, restore_checkpoint
from planward.training.references import InvalidReferences, check_references, encode_reference
from planward.training.rollouts import Rollouts, ScheduleError, VerifierDisagreement
from planward.training.termination import Terminated
from support import ROOT
from training_runs import (
    RECORDS,
    RUN,
    TASK,
    KillAfter,
    KillAtEnd,
    Killed,
    StepRecorder,
    TerminateIn,
    are_equal,
    load_weights,
    read_curve,
    read_files,
    read_metrics,
    read_rows,
    run_grpo,
    run_sft,
)

pytestmark = pytest.mark.usefixtures("project_root")


# Supervised fine-tuning.


def test_sft_teaches_completions_and_their_end() -> None:
    params = letters.build_params(
        sft={
            "epochs": 60,
            "learning_rate": 1e-2,
            "shots": [0, 0],
            "batch_size": 24,
            "micro_batch_size": 24,
            "renaming": False,
        }
    )
    run_sft("model", params)
    model = AutoModelForCausalLM.from_pretrained("model", use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained("model")
    num_correct = 0
    for record in RECORDS:
        prompt = tokenizer(TASK.prompt(record, []), return_tensors="pt", return_token_type_ids=False)
        ids = model.generate(**prompt, max_new_tokens=8)[0, prompt["input_ids"].shape[1] :]
        num_correct += (
            ids[-1] == tokenizer.eos_token_id
            and TASK.verify(record, tokenizer.decode(ids, skip_special_tokens=True)).success
        )
    assert num_correct > 0.9 * len(RECORDS)
    losses = read_curve("model", "loss")
    assert [step for step, _ in losses] == list(range(60))
    assert losses[-1][1] < losses[0][1] / 4


@pytest.mark.parametrize("renaming", [False, True])
def test_sft_has_each_problem_once_per_epoch_and_loss_on_completions_only(renaming: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained("base")
    params = letters.build_params(sft={"shots": [2, 2], "epochs": 3, "renaming": renaming})
    rows, _ = sft._build_rows(TASK, tokenizer, RECORDS, params)
    assert rows == sft._build_rows(TASK, tokenizer, RECORDS, params)[0]
    references = sorted(f"{record.prompt} : {record.response} </s>" for record in RECORDS)
    epochs, prompts = [], Counter[str]()
    for start in range(0, len(rows), len(RECORDS)):
        problems = []
        for row in rows[start : start + len(RECORDS)]:
            completion = [label for label in row["labels"] if label != sft.IGNORED_LABEL]
            assert row["input_ids"][-len(completion) :] == completion
            text = tokenizer.decode(row["input_ids"])
            assert text.count(";") == 2
            problem = text.rpartition("; ")[2]
            prompts[text] += 1
            problems.append(problem)
            domain, *words = problem.split(" ")
            word = words[: words.index(":")]
            expected = {"copy": word, "double": word * 2, "first": word[:1], "last": word[-1:]}[domain]
            assert tokenizer.decode(completion) == " ".join([*expected, "</s>"])
        epochs.append(problems)
    assert len(epochs) == 3
    assert all((sorted(epoch) == references) is not renaming for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]  # different order or names
    assert len(prompts) > 2 * len(RECORDS)  # different worked examples


def test_sft_consumes_rows_in_order() -> None:
    token_rows: list[list[int]] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, *_: Any, model: Any = None, **__: Any) -> None:
            model.get_input_embeddings().register_forward_hook(lambda _, ids, __: token_rows.extend(ids[0].tolist()))

    params = letters.build_params(sft={"epochs": 2, "batch_size": 8, "micro_batch_size": 4})
    run_sft("model", params, [Watch()])
    rows, _ = sft._build_rows(TASK, AutoTokenizer.from_pretrained("base"), RECORDS, params)
    id_rows = [[token for token in ids if token] for ids in token_rows]  # 0 pads
    assert id_rows == [row["input_ids"] for row in rows]


def test_sft_resumes_to_the_same_weights_and_curves() -> None:
    params = letters.build_params(sft={"micro_batch_size": 3})
    run_sft("straight", params)
    with pytest.raises(Killed):
        run_sft("resumed", params, [KillAfter(5)])
    assert not Path("resumed").exists()
    run_sft("resumed", params)
    assert are_equal(load_weights("straight"), load_weights("resumed"))
    assert read_files("training/straight") == read_files("training/resumed")
    assert not list(Path(".checkpoints").iterdir())


def build_prompt(problem: Record, tokenizer: Any) -> TrainingPrompt:
    return sample_training_prompt(
        TASK, tokenizer, problem, RECORDS, "0", shot_range=(0, 0), rename=False, config=letters.build_params().prompt
    )


def test_reference_with_unknown_word_raises() -> None:
    unknown = RECORDS[0].model_copy(update={"response": "zebra"})
    tokenizer = AutoTokenizer.from_pretrained("base")
    with pytest.raises(ValueError, match=r"p00.*vocabulary"):
        encode_reference(TASK, tokenizer, unknown, build_prompt(unknown, tokenizer))


def test_reference_that_merges_with_the_prompt_raises() -> None:
    tokenizer = AutoTokenizer.from_pretrained("base")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split("|", "removed")  # words no longer end at spaces
    with pytest.raises(ValueError, match=r"p02.*joined"):
        encode_reference(TASK, tokenizer, RECORDS[2], build_prompt(RECORDS[2], tokenizer))


# Prompts.


@given(st.integers(0, 5), st.integers(2, 40))
def test_first_examples_are_dropped_only_as_needed(count: int, limit: int) -> None:
    examples = RECORDS[1 : 1 + count]

    def count_tokens(prompt: str | Messages) -> int:
        return len(str(prompt).split())

    if count_tokens(TASK.prompt(RECORDS[0], [])) > limit:
        with pytest.raises(PromptTooLong, match="p00"):
            fit_prompt(TASK, RECORDS[0], examples, count_tokens, limit)
        return
    prompt, last_examples = fit_prompt(TASK, RECORDS[0], examples, count_tokens, limit)
    assert last_examples == examples[count - len(last_examples) :]
    assert count_tokens(prompt) <= limit
    if len(last_examples) < count:
        assert count_tokens(TASK.prompt(RECORDS[0], examples[count - len(last_examples) - 1 :])) > limit


def test_dropped_examples_are_counted_and_a_problem_that_does_not_fit_raises() -> None:
    run_sft("model", letters.build_params(prompt={"max_tokens": 12}, sft={"epochs": 1, "shots": [3, 3]}))
    assert read_metrics("model")["shots_dropped"] > 0
    with pytest.raises(PromptTooLong, match="letters-"):
        run_sft("model", letters.build_params(prompt={"max_tokens": 3}))


@given(st.integers(0, 23), st.integers(0, 3), st.integers(0, 3), st.integers().map(str))
def test_examples_are_seeded_and_of_the_same_domain(index: int, fewest: int, spread: int, seed: str) -> None:
    problem = RECORDS[index]
    examples = draw_examples(TASK, problem, RECORDS, (fewest, fewest + spread), seed)
    assert examples == draw_examples(TASK, problem, RECORDS, (fewest, fewest + spread), seed)
    assert fewest <= len(examples) <= fewest + spread
    assert len({example.id for example in examples}) == len(examples)
    assert all(example.domain == problem.domain and example.id != problem.id for example in examples)


# GRPO.


def test_grpo_consumes_the_schedule_and_raises_the_reward() -> None:
    params = letters.build_params(
        grpo={"steps": 30, "learning_rate": 3e-3, "beta": 0.001, "save_steps": 100, "scale_rewards": "group"}
    )
    rows = run_grpo("model", params)
    schedule = letters.build_schedule(RECORDS, 30, 8)
    assert [(row["step"], row["slot"], row["id"]) for row in rows] == [
        (row["step"], row["slot"], row["id"]) for row in schedule
    ]
    assert all(len(row["rewards"]) == len(row["labels"]) == 4 for row in rows)
    rewards = read_curve("model", "reward")
    assert [step for step, _ in rewards] == list(range(30))
    for step, reward in rewards:
        values = [value for row in rows if row["step"] == step for value in row["rewards"]]
        assert reward == pytest.approx(sum(values) / len(values), abs=1e-5)
    assert sum(value for _, value in rewards[-5:]) > sum(value for _, value in rewards[:5])
    assert read_curve("model", "share_domain/copy") == [(step, 0.25) for step in range(30)]
    assert len(read_curve("model", "kl")) == 30
    metrics = read_metrics("model")
    assert (metrics["prompts"], metrics["completions"]) == (240, 960)
    assert metrics["run"] == {"task": "letters", "method": "grpo", "size": 24, "seed": 3407}
    AutoModelForCausalLM.from_pretrained("model", use_safetensors=True)


@pytest.mark.parametrize(("scheduler", "factors"), [("linear", [0, 0.5, 1, 0.5]), ("constant", [0, 0.5, 1, 1])])
def test_learning_rate_rises_in_the_first_steps(scheduler: str, factors: list[float]) -> None:
    settings = {"steps": 4, "lr_scheduler_type": scheduler, "warmup_ratio": 0.5, "learning_rate": 1e-3}
    run_grpo("model", letters.build_params(grpo=settings))
    assert [rate for _, rate in read_curve("model", "learning_rate")] == pytest.approx([1e-3 * f for f in factors])
    phases = [{"until": 1.0, "easy": 1.0, "medium": 0.0, "hard": 0.0}]
    with pytest.raises(ValueError, match=r"grpo\.extendable.*warmup_ratio 0"):
        letters.build_params(grpo=settings | {"extendable": True}, curriculum=phases)


def test_grpo_resumes_to_the_same_weights_and_skips_incomplete_checkpoints() -> None:
    params = letters.build_params(grpo={"steps": 6, "micro_batch_size": 8, "save_steps": 2})
    straight_rows = run_grpo("straight", params)
    with pytest.raises(Killed):
        run_grpo("resumed", params, callbacks=[KillAfter(3)])
    (folder,) = Path(".checkpoints").iterdir()
    assert [checkpoint.name for checkpoint in folder.glob("checkpoint-*")] == ["checkpoint-2"]
    for incomplete in ("checkpoint-4", "checkpoint-5"):
        shutil.copytree(folder / "checkpoint-2", folder / incomplete)
    (folder / "checkpoint-4" / JOURNAL).unlink()  # killed while saving
    (folder / "checkpoint-5" / "model.safetensors").write_bytes(b"half")  # truncated
    shutil.rmtree("training/resumed")  # as DVC does before a run
    resumed_rows = run_grpo("resumed", params)
    assert resumed_rows == straight_rows
    assert are_equal(load_weights("straight"), load_weights("resumed"))
    assert read_files("training/straight") == read_files("training/resumed")
    assert not list(Path(".checkpoints").iterdir())


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_sigterm_ends_training_with_a_checkpoint_of_its_step(method: str) -> None:
    params = letters.build_params(grpo={"steps": 6, "save_steps": 50}, sft={"save_steps": 50})

    def train(name: str, *callbacks: TrainerCallback) -> None:
        if method == "grpo":
            run_grpo(name, params, callbacks=callbacks)
        else:
            run_sft(name, params, callbacks)

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as in a job of Slurm
    train("straight")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    with pytest.raises(Terminated, match="after step 3"):
        train("resumed", TerminateIn(3))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # a second one ends the process
    recorder = StepRecorder()
    train("resumed", recorder)
    assert recorder.steps[0] == 4
    assert are_equal(load_weights("straight"), load_weights("resumed"))
    assert read_files("training/straight") == read_files("training/resumed")


def test_extended_run_equals_an_uninterrupted_one() -> None:
    def build_extendable(steps: int) -> Params:
        grpo = {"steps": steps, "lr_scheduler_type": "constant", "extendable": True, "save_steps": 2}
        phases = [{"until": 1.0, "easy": 1.0, "medium": 0.0, "hard": 0.0}]
        return letters.build_params(grpo=grpo, curriculum=phases, validation={"steps": 0})

    straight = run_grpo("straight", build_extendable(6))
    run_grpo("longer", build_extendable(3))
    assert are_equal(load_weights("straight"), load_weights("longer")) is False
    recorder = StepRecorder()
    assert run_grpo("longer", build_extendable(6), callbacks=[recorder]) == straight
    assert recorder.steps == [4, 5, 6]  # the first three are not repeated
    assert are_equal(load_weights("straight"), load_weights("longer"))
    assert read_files("training/straight") == read_files("training/longer")
    with pytest.raises(ValueError, match=r"grpo\.extendable"):
        letters.build_params(grpo={"extendable": True})


def test_checkpoints_of_different_code_are_not_resumed(monkeypatch: pytest.MonkeyPatch, project_root: Path) -> None:
    grpo = {"steps": 2, "lr_scheduler_type": "constant", "extendable": True, "save_steps": 1}
    phases = [{"until": 1.0, "easy": 1.0, "medium": 0.0, "hard": 0.0}]
    params = letters.build_params(grpo=grpo, curriculum=phases, validation={"steps": 0})
    recorder = StepRecorder()
    run_grpo("model", params)
    run_grpo("model", params, callbacks=[recorder])
    assert recorder.steps == []

    package = shutil.copytree(Path(planward.__file__).parent, project_root / "planward")
    monkeypatch.setattr(planward, "__file__", str(package / "__init__.py"))
    fingerprints.compute_code_digest.cache_clear()
    run_grpo("model", params, callbacks=[recorder])
    assert recorder.steps == []  # the same code in another folder
    with (package / "core/tasks.py").open("a") as file:
        file.write("# another line\n")
    fingerprints.compute_code_digest.cache_clear()
    run_grpo("model", params, callbacks=[recorder])
    assert recorder.steps == [1, 2]
    monkeypatch.undo()
    fingerprints.compute_code_digest.cache_clear()


def test_grpo_killed_after_the_last_step_resumes_to_its_outputs() -> None:
    params = letters.build_params()
    straight = run_grpo("straight", params)
    with pytest.raises(Killed):
        run_grpo("resumed", params, callbacks=[KillAtEnd()])
    assert run_grpo("resumed", params) == straight
    assert are_equal(load_weights("straight"), load_weights("resumed"))


def test_equal_seeds_give_equal_runs() -> None:
    first = run_grpo("first", letters.build_params())
    second = run_grpo("second", letters.build_params())
    other = run_grpo("other", letters.build_params().model_copy(update={"seed": 1}))
    assert first == second
    assert are_equal(load_weights("first"), load_weights("second"))
    assert read_files("training/first") == read_files("training/second")
    assert [row["id"] for row in other] == [row["id"] for row in first]
    assert not are_equal(load_weights("first"), load_weights("other"))


def test_lora_is_merged_into_full_weights() -> None:
    lora = {"lora": {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", "merge": True}}
    params = letters.build_params(model=lora, grpo={"beta": 0.01, "shots": 1, "save_steps": 1})
    with pytest.raises(Killed):
        run_grpo("adapted", params, callbacks=[KillAfter(2)])
    run_grpo("adapted", params)
    run_grpo("straight", params)
    assert are_equal(load_weights("adapted"), load_weights("straight"))
    assert load_weights("adapted").keys() == load_weights("base").keys()
    assert not are_equal(load_weights("adapted"), load_weights("base"))


def test_chat_template_is_used_for_messages() -> None:
    class ChatTask(letters.LettersTask):
        def prompt(self, problem: Record, examples: Sequence[Record], renaming: Renaming = NO_RENAMING) -> Messages:
            turns = [
                {"role": role, "content": content}
                for example in examples
                for role, content in (("user", example.prompt), ("assistant", self.reference_completion(example)))
            ]
            return [*turns, {"role": "user", "content": letters.rename(problem.prompt, renaming)}]

    tokenizer = AutoTokenizer.from_pretrained("base")
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.content }} {{ ': ' if message.role == 'user' else '; ' }}{% endfor %}"
    )
    tokenizer.save_pretrained("base")
    rows, _ = sft._build_rows(ChatTask(), tokenizer, RECORDS, letters.build_params(sft={"shots": [1, 1]}))
    plain, _ = sft._build_rows(TASK, tokenizer, RECORDS, letters.build_params(sft={"shots": [1, 1]}))
    assert rows == plain
    chat = run_grpo("chat", letters.build_params(grpo={"steps": 2, "shots": 1}), ChatTask())
    text = run_grpo("text", letters.build_params(grpo={"steps": 2, "shots": 1}))
    assert chat == text
    assert are_equal(load_weights("chat"), load_weights("text"))


def run_two_processes(folder: Path, sections: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--rdzv_backend", "c10d"]
    launch += ["--rdzv_endpoint", "localhost:0"]  # any free port
    sections = sections | {"logging": {"report_to": ["tensorboard"]}}
    script = ROOT / "tests" / "two_process_run.py"
    command = [*launch, str(script), "base", json.dumps(sections), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def train_in_two_processes(
    folder: Path, steps: int, validation: dict[str, Any] | None = None, last_step: int | None = None, **grpo: Any
) -> list[dict[str, Any]]:
    """Train in two processes; return the rows of consumed.parquet."""
    last_step = last_step or steps
    sections = {"grpo": {"steps": steps, "micro_batch_size": 8, "audit_share": 0.5} | grpo}
    process = run_two_processes(folder, sections | {"validation": validation or {}})
    assert process.returncode == 0, process.stderr[-4000:]
    assert len(Path("training/curves/loss.tsv").read_text().splitlines()) == 1 + last_step
    assert not are_equal(load_weights("out"), load_weights("base"))
    curve = Path("training/curves/validation_success.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in curve] == ["step", "0", str(last_step)]  # by one process
    assert len(list(Path("runs").glob("planward/letters-grpo-16-*/*"))) == 2  # parameters and curves, by one process
    rows, rollouts = (pq.read_table(f"training/{name}.parquet").to_pylist() for name in ("consumed", "rollouts"))
    assert [label for row in rows for label in row["labels"]] == [row["label"] for row in rollouts]
    return rows


def test_two_processes_with_accumulation_keep_balance_and_order(project_root: Path) -> None:
    rows = train_in_two_processes(project_root, 3)
    schedule = letters.build_schedule(letters.build_problems(16), 3, 8)
    assert [(row["step"], row["index"], row["id"]) for row in rows] == [
        (row["step"], row["slot"], row["id"]) for row in schedule
    ]
    for step in range(3):
        step_rows = [row for row in rows if row["step"] == step]
        assert len(step_rows) == 8
        assert Counter(row["domain"] for row in step_rows) == dict.fromkeys(letters.DOMAINS, 2)
        assert all(len(row["rewards"]) == 4 for row in step_rows)


def test_sigterm_to_one_process_ends_both_with_a_checkpoint(project_root: Path) -> None:
    sections = {"grpo": {"steps": 4, "micro_batch_size": 8, "save_steps": 50}, "validation": {}}
    process = run_two_processes(project_root, sections, "3")
    assert process.returncode
    assert process.stderr.count("Terminated: ended by SIGTERM after step 3") == 2
    (folder,) = Path(".checkpoints").iterdir()
    checkpoint, _ = restore_checkpoint(folder)  # torch cannot load one in two processes without GPU ("cpu:0")
    assert checkpoint == folder / "checkpoint-3"
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}


def test_early_stop_ends_both_processes(project_root: Path) -> None:
    settings = {"steps": 2, "patience": 1}  # the base never succeeds, so the second validation is no better
    rows = train_in_two_processes(project_root, 5, settings, last_step=2)
    assert [row["step"] for row in rows] == [0] * 8 + [1] * 8


def test_adaptive_sampling_uses_results_of_both_processes(project_root: Path) -> None:
    switches = EVERY_SWITCH | {"steps": 4, "reward": "dense"}  # the base never succeeds
    rows, params = train_in_two_processes(project_root, **switches), letters.build_params(grpo=switches)
    sampler = AdaptiveSampler(letters.build_problems(16), params)
    for step in range(4):
        step_rows = [row for row in rows if row["step"] == step]
        assert [(row["slot"], row["id"]) for row in step_rows] == [(slot.slot, slot.id) for slot in sampler.slots]
        sampler.update(
            [
                GroupResult(
                    row["id"],
                    row["domain"],
                    row["rewards"].count(1) - row["replayed"],
                    4 - row["replayed"],
                    len(set(row["rewards"])) > 1,
                )
                for row in step_rows
            ]
        )


# Renaming, rewards, replay and adaptive sampling.

EVERY_SWITCH: dict[str, Any] = {
    "steps": 8,
    "temperatures": {"easy": 0.7, "medium": 1.0, "hard": 1.3},
    "replay": True,
    "reward": "sparse",
    "adaptive": {
        "curriculum": True,
        "domain_weights": True,
        "dynamic_sampling": True,
        "window": 1,
        "target": 0.2,
        "floor": 0.4,
        "missed_turns": 1,
    },
}


def build_rollouts(params: Params, schedule: Sequence[dict[str, Any]], log: list[dict[str, Any]]) -> Rollouts:
    sampler = FixedSampler([Slot(**row) for row in schedule], params.grpo.batch_size)
    tokenizer = AutoTokenizer.from_pretrained("base")
    return Rollouts(TASK, tokenizer, RECORDS, sampler, params, log, Path("disagreement.json"))


def run_step(rollouts: Rollouts, schedule: Sequence[dict[str, Any]], step: int, texts: Sequence[str]) -> list[float]:
    """Return the trainer's rewards of a step in which each group has these completions; `answer` is the reference."""
    rows = rollouts.build_prompts([row for row in schedule if row["step"] == step for _ in texts])
    completions = [
        text if text != "answer" else TASK.reference_completion(rollouts.records[row["id"]], row["renaming"])
        for row, text in zip(rows, list(texts) * (len(rows) // len(texts)), strict=True)
    ]
    tokenizer = rollouts.tokenizer
    ids = [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in completions]
    ids = rollouts.insert_replays(rows, ids)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    return rollouts(
        completions=[tokenizer.decode(tokens, skip_special_tokens=True) for tokens in ids],
        completion_ids=ids,
        trainer_state=type("State", (), {"global_step": step}),
        log_metric=lambda *_: None,
        **columns,
    )


def test_every_prompt_is_renamed_and_rewards_are_not_affected() -> None:
    params = letters.build_params(grpo={"steps": 2, "shots": 1})
    schedule = letters.build_schedule(RECORDS, 1, 8)
    schedule += [row | {"step": 1} for row in schedule]  # the same problems again
    rollouts = build_rollouts(params, schedule, [])
    prompts = []
    for step in range(2):
        rows = rollouts.build_prompts(schedule[8 * step : 8 * step + 8])
        prompts.append([row["prompt"].rpartition("; ")[2] for row in rows])
        assert [row["prompt"].count(";") for row in rows] == [1] * 8
        assert run_step(rollouts, schedule, step, ["answer", "", "answer", ""]) == [1, -1, 1, -1] * 8
    assert all(first != second for first, second in zip(*prompts, strict=True))
    second_rollouts = build_rollouts(params, schedule, [])
    assert [row["prompt"].rpartition("; ")[2] for row in second_rollouts.build_prompts(schedule[:8])] == prompts[0]
    plain = build_rollouts(letters.build_params(grpo={"steps": 2, "renaming": False}), schedule, [])
    assert [row["prompt"] for row in plain.build_prompts(schedule[:8])] == [
        TASK.prompt(plain.records[row["id"]], []) for row in schedule[:8]
    ]


def test_sparse_reward_is_given_to_the_trainer_only() -> None:
    schedule = letters.build_schedule(RECORDS, 2, 8)
    rewards, log_rewards, zero_spread = {}, {}, {}
    for reward in ("dense", "sparse"):
        log: list[dict[str, Any]] = []
        rollouts = build_rollouts(letters.build_params(grpo={"reward": reward}), schedule, log)
        rewards[reward] = run_step(rollouts, schedule, 0, ["answer", "a b c d e f", "", "answer answer"])
        log_rewards[reward] = [row["rewards"] for row in log]
        run_step(rollouts, schedule, 1, ["a b c d e f", "", "", ""])
        zero_spread[reward] = rollouts.pop_metrics(1)["zero_spread/all_fail"]
    assert rewards["sparse"] == [1.0 if value == 1 else -1.0 for value in rewards["dense"]]
    assert rewards["sparse"] != rewards["dense"]
    assert log_rewards["sparse"] == log_rewards["dense"]
    assert zero_spread == {"dense": 0.0, "sparse": 1.0}


def test_stored_success_replaces_a_failed_completion_in_the_current_names() -> None:
    params = letters.build_params(grpo={"replay": True})
    schedule = letters.build_schedule(RECORDS, 1, 8)
    schedule += [row | {"step": step} for step in (1, 2, 3) for row in schedule]
    log: list[dict[str, Any]] = []
    rollouts = build_rollouts(params, schedule, log)
    assert run_step(rollouts, schedule, 0, ["", "", "", ""]) == [-1] * 32  # nothing stored, not the reference either
    run_step(rollouts, schedule, 1, ["", "answer", "", ""])
    for current in (rollouts, build_rollouts(params, schedule, list(log))):  # the second one is resumed
        assert run_step(current, schedule, 2, ["", "", "", ""]) == [-1, -1, -1, 1] * 8
        metrics = current.pop_metrics(2)
        assert metrics["replayed"] == 8
        assert (metrics["success"], metrics["reward"], metrics["label/right"], metrics["label/empty"]) == (0, -1, 0, 1)
        assert metrics["completion_length"] == 1  # the end
        assert run_step(current, schedule, 3, ["answer", "", "", ""]) == [1, -1, -1, -1] * 8
    assert [row["replayed"] for row in log] == [0] * 16 + [1] * 8 + [0] * 8


@pytest.fixture
def sft_model() -> str:
    """A model that sometimes succeeds."""
    run_sft("fair", letters.build_params(sft={"epochs": 12, "learning_rate": 1e-2, "shots": [0, 0]}))
    return "fair"


def test_run_with_every_option_resumes_exactly_and_logs_its_metrics(sft_model: str) -> None:
    params = letters.build_params(grpo=EVERY_SWITCH)
    straight = run_grpo("straight", params, base=sft_model)
    with pytest.raises(Killed):
        run_grpo("resumed", params, callbacks=[KillAfter(5)], base=sft_model)
    assert run_grpo("resumed", params, base=sft_model) == straight
    assert are_equal(load_weights("straight"), load_weights("resumed"))
    assert read_files("training/straight") == read_files("training/resumed")

    records = {record.id: record for record in RECORDS}
    assert [(row["step"], row["slot"]) for row in straight] == [(step, slot) for step in range(8) for slot in range(8)]
    for row in straight:
        assert (records[row["id"]].domain, records[row["id"]].bucket) == (row["domain"], row["bucket"])
    schedule = letters.build_schedule(RECORDS, 8, 8)
    assert [row["id"] for row in straight] != [row["id"] for row in schedule]
    for step, replay_num in read_curve("straight", "replayed"):
        assert replay_num == sum(row["replayed"] for row in straight if row["step"] == step)
    rollouts = read_rows("straight", "rollouts")
    assert [row["replayed"] for row in straight] == [
        sum(row["replayed"] for row in rollouts[start : start + 4]) for start in range(0, len(rollouts), 4)
    ]
    assert sum(row["replayed"] for row in straight) > 0
    assert max(value for _, value in read_curve("straight", "phase/copy")) > 0
    assert sum(value for _, value in read_curve("straight", "lost_turns")) > 0
    shares = [dict(read_curve("straight", f"weight/{domain}")) for domain in letters.DOMAINS]
    assert [sum(share[step] for share in shares) for step in range(8)] == pytest.approx([1] * 8)


def compute_success(model: str, problems: Sequence[Record]) -> float:
    """Return the greedy success rate of a model on disk."""
    network = AutoModelForCausalLM.from_pretrained(model, use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained(model)
    hits = 0
    for problem in problems:
        prompt = tokenizer(TASK.prompt(problem, []), return_tensors="pt", return_token_type_ids=False)
        ids = network.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        hits += TASK.verify(problem, tokenizer.decode(ids, skip_special_tokens=True)).success
    return hits / len(problems)


def test_validation_adds_a_curve_and_changes_nothing_else(sft_model: str) -> None:
    held_out = [record.model_copy(update={"id": f"held-out-{record.id}"}) for record in letters.build_problems(40)]
    settings = {"steps": 5, "learning_rate": 3e-3}
    without_validation = letters.build_params(grpo=settings, validation={"steps": 0, "problems": 10})
    params = letters.build_params(grpo=settings, validation={"steps": 2, "problems": 10, "keep": "last"})
    plain = run_grpo("plain", without_validation, base=sft_model, validation=held_out)
    assert run_grpo("straight", params, base=sft_model, validation=held_out) == plain
    assert run_grpo("empty", params, base=sft_model) == plain
    assert are_equal(load_weights("plain"), load_weights("straight"))
    assert read_files("training/plain") == read_files("training/empty")

    by_domain = {domain: [record for record in held_out if record.domain == domain] for domain in letters.DOMAINS}
    selection = [by_domain[domain][rank] for rank in range(3) for domain in letters.DOMAINS][:10]
    values = read_curve("straight", "validation_success")
    assert [step for step, _ in values] == [0, 2, 4, 5]
    assert (values[0][1], values[-1][1]) == (
        compute_success(sft_model, selection),
        compute_success("straight", selection),
    )
    assert len({value for _, value in values}) > 1
    plain_metrics, metrics = read_metrics("plain"), read_metrics("straight")
    best = max(value for _, value in values)
    assert metrics.pop("validation_success") == {"first": values[0][1], "best": best, "last": values[-1][1]}
    assert metrics == plain_metrics

    with pytest.raises(Killed):
        run_grpo("resumed", params, callbacks=[KillAfter(3)], base=sft_model, validation=held_out)
    run_grpo("resumed", params, base=sft_model, validation=held_out)
    assert are_equal(load_weights("straight"), load_weights("resumed"))
    assert read_files("training/straight") == read_files("training/resumed")


def test_equal_temperatures_by_bucket_equal_one_temperature(sft_model: str) -> None:
    one = run_grpo("one", letters.build_params(grpo={"temperature": 0.7, "beta": 0.01}), base=sft_model)
    temperatures = dict.fromkeys(("easy", "medium", "hard"), 0.7)
    params = letters.build_params(grpo={"temperatures": temperatures, "beta": 0.01})
    assert run_grpo("by_bucket", params, base=sft_model) == one
    assert are_equal(load_weights("by_bucket"), load_weights("one"))
    assert read_files("training/by_bucket") == read_files("training/one")


def test_unbalanced_run_takes_any_batch_size() -> None:
    params = letters.build_params(grpo={"steps": 2, "batch_size": 6, "balanced": False})
    schedule = [vars(slot) for slot in build_schedule(RECORDS, params.curriculum, 2, 6, 1, balanced=False)]
    outputs = {"model": Path("model"), "training": Path("training")}
    grpo.train(TASK, RECORDS, schedule, params, base="base", run=RUN, **outputs)
    rows = pq.read_table("training/consumed.parquet").to_pylist()
    assert [row["id"] for row in rows] == [row["id"] for row in schedule]


# Errors.


def test_rejected_reference_stops_the_run_before_it_starts() -> None:
    records = [RECORDS[0].model_copy(update={"response": ""}), *RECORDS[1:]]

    class StrictTask(letters.LettersTask):
        def verify(self, problem: Record, completion: str, renaming: Renaming = NO_RENAMING) -> Verdict:
            return super().verify(problem, completion or "nothing", renaming)

    with pytest.raises(InvalidReferences, match=r"p00.*verify says wrong"):
        check_references(StrictTask(), records)


def test_verifier_error_stops_the_run() -> None:
    class BrokenTask(letters.LettersTask):
        def verify(self, problem: Record, completion: str, renaming: Renaming = NO_RENAMING) -> Verdict:
            if completion != self.reference_completion(problem):
                raise VerifierError("no verdict")
            return super().verify(problem, completion, renaming)

    with pytest.raises(VerifierError):
        run_grpo("model", letters.build_params(), BrokenTask())
    assert not Path("model").exists()


@pytest.mark.parametrize("differ", ["label", "failing_step"])
def test_verifier_disagreement_stops_the_run_and_saves_the_case(differ: str) -> None:
    class ContradictoryTask(letters.LettersTask):
        def judge(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
            return [self.contradict(record, text) for record, text in pairs]

        def contradict(self, record: Record, text: str) -> Verdict:
            verdict = self.verify(record, text)
            if verdict.success:
                return verdict
            if differ == "label":
                return replace(verdict, label="empty")
            return replace(verdict, outcome=Outcome(Label.PRECONDITION, 2, failing_step=2))

    with pytest.raises(VerifierDisagreement, match=r"disagreement.json"):
        run_grpo("model", letters.build_params(grpo={"audit_share": 1.0}), ContradictoryTask())
    case = json.loads(Path("training/model/disagreement.json").read_text())
    assert case["verify"] != case["judge"]
    assert case["problem"]["id"] in {record.id for record in RECORDS}
    run_grpo("model", letters.build_params(grpo={"audit_share": 0.0}), ContradictoryTask())


def test_batch_other_than_scheduled_stops_the_run() -> None:
    params = letters.build_params(grpo={"renaming": False})
    schedule = [Slot(**row) for row in letters.build_schedule(RECORDS, 1, 8)]

    def build(log: list[dict[str, Any]]) -> Rollouts:
        tokenizer = AutoTokenizer.from_pretrained("base")
        return Rollouts(TASK, tokenizer, RECORDS, FixedSampler(schedule, 8), params, log, Path("disagreement.json"))

    def consume(ids: list[str], global_step: int = 0) -> list[dict[str, Any]]:
        log: list[dict[str, Any]] = []
        build(log)(
            completions=["a"] * len(ids),
            completion_ids=[[1]] * len(ids),
            trainer_state=type("State", (), {"global_step": global_step}),
            id=ids,
            step=[0] * len(ids),
            slot=[index // 4 for index in range(len(ids))],
            prompt_tokens=[3] * len(ids),
            shots_dropped=[0] * len(ids),
            renaming=[{}] * len(ids),
        )
        return log

    schedule_ids = [slot.id for slot in schedule for _ in range(4)]
    log = consume(schedule_ids)
    for ids, step in ((schedule_ids[:8], 0), (schedule_ids[4:] + schedule_ids[:4], 0), (schedule_ids, 1)):
        with pytest.raises(ScheduleError):
            consume(ids, step)
    with pytest.raises(ScheduleError, match="scheduled is none"):
        build(log + log)
    with pytest.raises(ScheduleError, match=r"asked for \(step, slot\) \(1, 0\)"):
        build([]).build_prompts([{"step": 1, "slot": 0}])


def test_schedule_made_for_other_parameters_is_rejected() -> None:
    schedule = letters.build_schedule(RECORDS, 4, 8)
    params = letters.build_params(grpo={"steps": 5})
    outputs = {"base": "base", "model": Path("model"), "training": Path("training"), "run": RUN}
    with pytest.raises(ValueError, match="5 steps of 8 prompts"):
        grpo.train(TASK, RECORDS, schedule, params, **outputs)
    with pytest.raises(ValueError, match="outside the training set"):
        grpo.train(TASK, RECORDS[:4], schedule, letters.build_params(), **outputs)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(2, 8), st.integers(1, 200))
def test_optimizer_step_is_divided_exactly(
    share: int, domains: int, processes: int, generations: int, limit: int
) -> None:
    prompts = share * domains * processes
    batching = Batching.compute("grpo.batch_size", prompts, generations, limit, processes, domains)
    assert batching.processes * batching.micro_batch * batching.accumulation == prompts * generations
    assert batching.micro_batch <= limit


@pytest.mark.parametrize(
    ("prompts", "processes", "domains", "neighbours"),
    [(10, 1, 4, "8 or 12"), (6, 1, 4, "4 or 8"), (12, 8, 4, "8 or 16"), (3, 1, 4, "use 4")],
)
def test_batch_that_cannot_be_divided_names_valid_sizes(
    prompts: int, processes: int, domains: int, neighbours: str
) -> None:
    with pytest.raises(ValueError, match=neighbours):
        Batching.compute("grpo.batch_size", prompts, 4, 16, processes, domains)


def test_unavailable_backend_names_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda _: None)  # no optional package is installed
    model = letters.build_params().model
    with pytest.raises(models.BackendError, match="extra `gpu`"):
        models.choose_backend(model.model_copy(update={"backend": "unsloth"}))
    with pytest.raises(models.BackendError, match=r"needs model\.lora"):
        models.choose_backend(model.model_copy(update={"backend": "transformers", "load_in_4bit": True}))
    lora = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", "merge": True}
    model_4bit = letters.build_params(model={"backend": "transformers", "load_in_4bit": True, "lora": lora}).model
    with pytest.raises(models.BackendError, match="extra `4bit`"):
        models.choose_backend(model_4bit)
