"""Training on real TRL: a random Llama of two layers learns to repeat letters (tests/letters.py)."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

import letters
import planward
from planward.curriculum.decks import Slot
from planward.curriculum.sampling import Adaptive, Fixed, Result
from planward.curriculum.schedule import build_schedule
from planward.params import Params
from planward.records import Label, Outcome, Record, Verdict, VerifierError
from planward.tasks.base import AS_IS, Alias, Messages
from planward.tasks.fitting import PromptTooLong, fit
from planward.tasks.visits import draw_shots, visit
from planward.training import checkpoints, examples, grpo, models, sft
from planward.training.batching import Batching
from planward.training.checkpoints import JOURNAL
from planward.training.rollouts import Disagreement, Rollouts, ScheduleViolated

TASK = letters.Letters()
RECORDS = letters.problems(24)


class Killed(Exception):
    """Stands for the power cut."""


class KillAfter(TrainerCallback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == self.steps:
            raise Killed


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's root of its own, with a base model in it, on one thread."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    letters.write_base(tmp_path / "base")
    return tmp_path


def run_grpo(
    name: str,
    params: Params,
    task: Any = TASK,
    callbacks: Sequence[TrainerCallback] = (),
    base: str = "base",
    validation: Sequence[Record] = (),
) -> list[dict[str, Any]]:
    """Train; return the consumed rows."""
    schedule = letters.schedule(RECORDS, params.grpo.steps, params.grpo.batch_size)
    places = {"base": base, "model": Path(name), "training": Path("training", name)}
    grpo.train(task, RECORDS, schedule, params, callbacks=callbacks, validation=validation, **places)
    return pq.read_table(Path("training", name, "consumed.parquet")).to_pylist()


def run_sft(name: str, params: Params, callbacks: Sequence[TrainerCallback] = ()) -> None:
    sft.train(
        TASK, RECORDS, params, base="base", model=Path(name), training=Path("training", name), callbacks=callbacks
    )


def weights(name: str) -> dict[str, torch.Tensor]:
    return load_file(Path(name, "model.safetensors"))


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def files(folder: str) -> dict[str, bytes]:
    root = Path(folder)
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def curve(name: str, quantity: str) -> list[tuple[int, float]]:
    lines = Path("training", name, "curves", f"{quantity}.tsv").read_text().splitlines()
    assert lines[0] == f"step\t{quantity.rpartition('/')[2]}"
    return [(int(step), float(value)) for step, value in (line.split("\t") for line in lines[1:])]


# Supervised fine-tuning


def test_sft_teaches_the_answers_and_where_they_end() -> None:
    params = letters.params(
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
    right = 0
    for record in RECORDS:
        prompt = tokenizer(TASK.prompt(record, []), return_tensors="pt", return_token_type_ids=False)
        ids = model.generate(**prompt, max_new_tokens=8)[0, prompt["input_ids"].shape[1] :]
        right += (
            ids[-1] == tokenizer.eos_token_id
            and TASK.verify(record, tokenizer.decode(ids, skip_special_tokens=True)).success
        )
    assert right > 0.9 * len(RECORDS)
    losses = curve("model", "loss")
    assert [step for step, _ in losses] == list(range(60))
    assert losses[-1][1] < losses[0][1] / 4


@pytest.mark.parametrize("renaming", [False, True])
def test_sft_visits_each_problem_once_an_epoch_and_learns_nothing_but_the_answer(renaming: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained("base")
    params = letters.params(sft={"shots": [2, 2], "epochs": 3, "renaming": renaming})
    rows, _ = sft._examples(TASK, tokenizer, RECORDS, params)
    assert rows == sft._examples(TASK, tokenizer, RECORDS, params)[0]
    answers = sorted(f"{record.prompt} : {record.response} </s>" for record in RECORDS)
    epochs, prompts = [], Counter[str]()
    for start in range(0, len(rows), len(RECORDS)):
        visited = []
        for row in rows[start : start + len(RECORDS)]:
            learnt = [label for label in row["labels"] if label != sft.IGNORED]
            assert row["input_ids"][-len(learnt) :] == learnt
            text = tokenizer.decode(row["input_ids"])
            assert text.count(";") == 2
            query = text.rpartition("; ")[2]
            prompts[text] += 1
            visited.append(query)
            domain, word, answer = query.split(" ")[0], query.split(" ")[1 : query.split(" ").index(":")], learnt
            wanted = {"copy": word, "double": word * 2, "first": word[:1], "last": word[-1:]}[domain]
            assert tokenizer.decode(answer) == " ".join([*wanted, "</s>"])
        epochs.append(visited)
    assert len(epochs) == 3
    assert all((sorted(epoch) == answers) is not renaming for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]  # another order, or other names
    assert len(prompts) > 2 * len(RECORDS)  # other worked examples


def test_sft_consumes_the_visits_in_their_order() -> None:
    seen: list[list[int]] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, *_: Any, model: Any = None, **__: Any) -> None:
            model.get_input_embeddings().register_forward_hook(lambda _, ids, __: seen.extend(ids[0].tolist()))

    params = letters.params(sft={"epochs": 2, "batch_size": 8, "micro_batch_size": 4})
    run_sft("model", params, [Watch()])
    rows, _ = sft._examples(TASK, AutoTokenizer.from_pretrained("base"), RECORDS, params)
    stripped = [[token for token in ids if token] for ids in seen]  # 0 pads
    assert stripped == [row["input_ids"] for row in rows]


def test_sft_resumes_to_the_same_weights_and_curves() -> None:
    params = letters.params(sft={"micro_batch_size": 3})
    run_sft("straight", params)
    with pytest.raises(Killed):
        run_sft("resumed", params, [KillAfter(5)])
    assert not Path("resumed").exists()
    run_sft("resumed", params)
    assert equal(weights("straight"), weights("resumed"))
    assert files("training/straight") == files("training/resumed")
    assert not list(Path(".checkpoints").iterdir())


def asked(problem: Record, tokenizer: Any) -> examples.Visit:
    return visit(TASK, tokenizer, problem, RECORDS, "0", shots=(0, 0), renaming=False, limit=32)


def test_an_answer_outside_the_vocabulary_is_named() -> None:
    odd = RECORDS[0].model_copy(update={"response": "zebra"})
    tokenizer = AutoTokenizer.from_pretrained("base")
    with pytest.raises(ValueError, match=r"p00.*vocabulary"):
        examples.answer_ids(TASK, tokenizer, odd, asked(odd, tokenizer))


def test_an_answer_that_melts_into_the_prompt_is_named() -> None:
    tokenizer = AutoTokenizer.from_pretrained("base")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split("|", "removed")  # words no longer end at spaces
    with pytest.raises(ValueError, match=r"p02.*joined"):
        examples.answer_ids(TASK, tokenizer, RECORDS[2], asked(RECORDS[2], tokenizer))


# Fitting


@given(st.integers(0, 5), st.integers(2, 40))
def test_shots_are_dropped_from_the_far_end_only_as_needed(count: int, limit: int) -> None:
    shots = RECORDS[1 : 1 + count]

    def length(prompt: str | Messages) -> int:
        return len(str(prompt).split())

    query = length(TASK.prompt(RECORDS[0], []))
    if query > limit:
        with pytest.raises(PromptTooLong, match="p00"):
            fit(TASK, RECORDS[0], shots, length, limit)
        return
    prompt, kept = fit(TASK, RECORDS[0], shots, length, limit)
    assert kept == shots[count - len(kept) :]
    assert length(prompt) <= limit
    if len(kept) < count:
        assert length(TASK.prompt(RECORDS[0], shots[count - len(kept) - 1 :])) > limit


def test_dropped_shots_are_a_metric_and_a_query_that_does_not_fit_an_error() -> None:
    run_sft("model", letters.params(prompt={"max_tokens": 12}, sft={"epochs": 1, "shots": [3, 3]}))
    assert json.loads(Path("training/model/metrics.json").read_text())["shots_dropped"] > 0
    with pytest.raises(PromptTooLong, match="letters-"):
        run_sft("model", letters.params(prompt={"max_tokens": 3}))


@given(st.integers(0, 23), st.integers(0, 3), st.integers(0, 3), st.integers().map(str))
def test_shots_are_seeded_others_of_the_same_domain(index: int, least: int, extra: int, seed: str) -> None:
    problem = RECORDS[index]
    shots = draw_shots(TASK, problem, RECORDS, (least, least + extra), seed)
    assert shots == draw_shots(TASK, problem, RECORDS, (least, least + extra), seed)
    assert least <= len(shots) <= least + extra
    assert len({shot.id for shot in shots}) == len(shots)
    assert all(shot.domain == problem.domain and shot.id != problem.id for shot in shots)


# GRPO


def test_grpo_consumes_the_schedule_and_raises_the_reward() -> None:
    params = letters.params(
        grpo={"steps": 30, "learning_rate": 3e-3, "beta": 0.001, "save_steps": 100, "scale_rewards": "group"}
    )
    rows = run_grpo("model", params)
    schedule = letters.schedule(RECORDS, 30, 8)
    assert [(row["step"], row["slot"], row["id"]) for row in rows] == [
        (row["step"], row["slot"], row["id"]) for row in schedule
    ]
    assert all(len(row["rewards"]) == len(row["labels"]) == 4 for row in rows)
    rewards = curve("model", "reward")
    assert [step for step, _ in rewards] == list(range(30))
    for step, reward in rewards:
        given_out = [value for row in rows if row["step"] == step for value in row["rewards"]]
        assert reward == pytest.approx(sum(given_out) / len(given_out), abs=1e-5)
    assert sum(value for _, value in rewards[-5:]) > sum(value for _, value in rewards[:5])
    assert curve("model", "share_domain/copy") == [(step, 0.25) for step in range(30)]
    assert len(curve("model", "kl")) == 30
    metrics = json.loads(Path("training/model/metrics.json").read_text())
    assert (metrics["prompts"], metrics["completions"]) == (240, 960)
    AutoModelForCausalLM.from_pretrained("model", use_safetensors=True)


def test_grpo_resumes_at_the_right_row_to_the_same_weights_even_past_a_torn_checkpoint() -> None:
    params = letters.params(grpo={"steps": 6, "micro_batch_size": 8, "save_steps": 2})
    straight = run_grpo("straight", params)
    with pytest.raises(Killed):
        run_grpo("resumed", params, callbacks=[KillAfter(3)])
    (folder,) = Path(".checkpoints").iterdir()
    assert [checkpoint.name for checkpoint in folder.iterdir()] == ["checkpoint-2"]
    for torn in ("checkpoint-4", "checkpoint-5"):
        shutil.copytree(folder / "checkpoint-2", folder / torn)
    (folder / "checkpoint-4" / JOURNAL).unlink()  # killed while it saved
    (folder / "checkpoint-5" / "model.safetensors").write_bytes(b"half")  # lost on the way to the disk
    shutil.rmtree("training/resumed")  # as DVC does before a run
    resumed = run_grpo("resumed", params)
    assert resumed == straight
    assert equal(weights("straight"), weights("resumed"))
    assert files("training/straight") == files("training/resumed")
    assert not list(Path(".checkpoints").iterdir())


def test_a_finished_run_that_gets_more_steps_goes_on_as_if_it_had_never_stopped() -> None:
    def extendable(steps: int) -> Params:
        grpo = {"steps": steps, "lr_scheduler_type": "constant", "extendable": True, "save_steps": 2}
        return letters.params(grpo=grpo, curriculum=[{"until": 1.0, "easy": 1.0, "medium": 0.0, "hard": 0.0}])

    straight = run_grpo("straight", extendable(6))
    run_grpo("longer", extendable(3))
    assert equal(weights("straight"), weights("longer")) is False
    steps: list[int] = []

    class Seen(TrainerCallback):
        def on_step_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            steps.append(state.global_step)

    assert run_grpo("longer", extendable(6), callbacks=[Seen()]) == straight
    assert steps == [4, 5, 6]  # the first three are not run again
    assert equal(weights("straight"), weights("longer"))
    assert files("training/straight") == files("training/longer")
    with pytest.raises(ValueError, match=r"grpo\.extendable"):
        letters.params(grpo={"extendable": True})


def test_a_checkpoint_of_other_code_is_not_gone_on_from(monkeypatch: pytest.MonkeyPatch, workplace: Path) -> None:
    grpo = {"steps": 2, "lr_scheduler_type": "constant", "extendable": True, "save_steps": 1}
    params = letters.params(grpo=grpo, curriculum=[{"until": 1.0, "easy": 1.0, "medium": 0.0, "hard": 0.0}])
    steps: list[int] = []

    class Seen(TrainerCallback):
        def on_step_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            steps.append(state.global_step)

    run_grpo("model", params)
    run_grpo("model", params, callbacks=[Seen()])
    assert steps == []

    package = shutil.copytree(Path(planward.__file__).parent, workplace / "planward")
    monkeypatch.setattr(planward, "__file__", str(package / "__init__.py"))
    checkpoints.code_digest.cache_clear()
    run_grpo("model", params, callbacks=[Seen()])
    assert steps == []  # the same code, elsewhere
    with (package / "tasks/base.py").open("a") as file:
        file.write("# another line\n")
    checkpoints.code_digest.cache_clear()
    run_grpo("model", params, callbacks=[Seen()])
    assert steps == [1, 2]
    monkeypatch.undo()
    checkpoints.code_digest.cache_clear()


def test_grpo_killed_after_its_last_step_only_writes_its_outputs() -> None:
    class KillAtTheEnd(TrainerCallback):
        def on_train_end(self, *_: Any, **__: Any) -> None:
            raise Killed

    params = letters.params()
    straight = run_grpo("straight", params)
    with pytest.raises(Killed):
        run_grpo("resumed", params, callbacks=[KillAtTheEnd()])
    assert run_grpo("resumed", params) == straight
    assert equal(weights("straight"), weights("resumed"))


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    first = run_grpo("first", letters.params())
    second = run_grpo("second", letters.params())
    other = run_grpo("other", letters.params().model_copy(update={"seed": 1}))
    assert first == second
    assert equal(weights("first"), weights("second"))
    assert files("training/first") == files("training/second")
    assert [row["id"] for row in other] == [row["id"] for row in first]
    assert not equal(weights("first"), weights("other"))


def test_lora_ends_in_plain_full_weights() -> None:
    lora = {"lora": {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", "merge": True}}
    params = letters.params(model=lora, grpo={"beta": 0.01, "shots": 1, "save_steps": 1})
    with pytest.raises(Killed):
        run_grpo("adapted", params, callbacks=[KillAfter(2)])
    run_grpo("adapted", params)
    run_grpo("straight", params)
    assert equal(weights("adapted"), weights("straight"))
    assert weights("adapted").keys() == weights("base").keys()
    assert not equal(weights("adapted"), weights("base"))


def test_chat_models_are_trained_through_their_own_template() -> None:
    class Chat(letters.Letters):
        def prompt(self, problem: Record, shots: Sequence[Record], alias: Alias = AS_IS) -> Messages:
            turns = [
                {"role": role, "content": content}
                for shot in shots
                for role, content in (("user", shot.prompt), ("assistant", self.answer(shot)))
            ]
            return [*turns, {"role": "user", "content": letters.renamed(problem.prompt, alias)}]

    tokenizer = AutoTokenizer.from_pretrained("base")
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.content }} {{ ': ' if message.role == 'user' else '; ' }}{% endfor %}"
    )
    tokenizer.save_pretrained("base")
    rows, _ = sft._examples(Chat(), tokenizer, RECORDS, letters.params(sft={"shots": [1, 1]}))
    plain, _ = sft._examples(TASK, tokenizer, RECORDS, letters.params(sft={"shots": [1, 1]}))
    assert rows == plain
    chat = run_grpo("chat", letters.params(grpo={"steps": 2, "shots": 1}), Chat())
    text = run_grpo("text", letters.params(grpo={"steps": 2, "shots": 1}))
    assert chat == text
    assert equal(weights("chat"), weights("text"))


def two_processes(folder: Path, steps: int, **grpo: Any) -> list[dict[str, Any]]:
    """Train in two processes; return the consumed rows."""
    script = Path(__file__).parent / "two_process_run.py"
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    launch += [str(script), "base", json.dumps({"steps": steps, "micro_batch_size": 8, "audit_share": 0.5} | grpo)]
    done = subprocess.run(launch, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(Path("training/curves/loss.tsv").read_text().splitlines()) == 1 + steps
    assert not equal(weights("out"), weights("base"))
    validated = Path("training/curves/validation_success.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in validated] == ["step", "0", str(steps)]  # written once
    return pq.read_table("training/consumed.parquet").to_pylist()


def test_two_processes_with_accumulation_keep_balance_and_order(workplace: Path) -> None:
    rows = two_processes(workplace, 3)
    schedule = letters.schedule(letters.problems(16), 3, 8)
    assert [(row["step"], row["index"], row["id"]) for row in rows] == [
        (row["step"], row["slot"], row["id"]) for row in schedule
    ]
    for step in range(3):
        consumed = [row for row in rows if row["step"] == step]
        assert len(consumed) == 8
        assert Counter(row["domain"] for row in consumed) == dict.fromkeys(letters.DOMAINS, 2)
        assert all(len(row["rewards"]) == 4 for row in consumed)


def test_two_processes_draw_by_the_success_of_both(workplace: Path) -> None:
    switches = EVERY_SWITCH | {"steps": 4, "reward": "dense"}  # a base that never succeeds learns by that
    rows, params = two_processes(workplace, **switches), letters.params(grpo=switches)
    sampler = Adaptive(letters.problems(16), params)
    for step in range(4):
        consumed = [row for row in rows if row["step"] == step]
        assert [(row["slot"], row["id"]) for row in consumed] == [(slot.slot, slot.id) for slot in sampler.due()]
        sampler.observe(
            [
                Result(
                    row["id"],
                    row["domain"],
                    row["rewards"].count(1) - row["replayed"],
                    4 - row["replayed"],
                    len(set(row["rewards"])) > 1,
                )
                for row in consumed
            ]
        )


# Names, rewards, replay and what is drawn by success

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


def rollouts_of(params: Params, schedule: Sequence[dict[str, Any]], log: list[dict[str, Any]]) -> Rollouts:
    sampler = Fixed([Slot(**row) for row in schedule], params.grpo.batch_size)
    tokenizer = AutoTokenizer.from_pretrained("base")
    return Rollouts(TASK, tokenizer, RECORDS, sampler, params, log, Path("disagreement.json"))


def rolled_out(rollouts: Rollouts, schedule: Sequence[dict[str, Any]], step: int, texts: Sequence[str]) -> list[float]:
    """What the trainer is given for a step whose completions are, in each group, these; they are in the asked words."""
    rows = rollouts.asked([row for row in schedule if row["step"] == step for _ in texts])
    written = [
        text if text != "answer" else TASK.answer(rollouts.records[row["id"]], row["alias"])
        for row, text in zip(rows, list(texts) * (len(rows) // len(texts)), strict=True)
    ]
    tokenizer = rollouts.tokenizer
    ids = [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in written]
    ids = rollouts.written(rows, ids)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    return rollouts(
        completions=[tokenizer.decode(tokens, skip_special_tokens=True) for tokens in ids],
        completion_ids=ids,
        trainer_state=type("State", (), {"global_step": step}),
        log_metric=lambda *_: None,
        **columns,
    )


def test_every_visit_has_other_names_and_rewards_are_those_of_the_problem() -> None:
    params = letters.params(grpo={"steps": 2, "shots": 1})
    schedule = letters.schedule(RECORDS, 1, 8)
    schedule += [row | {"step": 1} for row in schedule]  # the same problems again
    rollouts = rollouts_of(params, schedule, [])
    prompts = []
    for step in range(2):
        rows = rollouts.asked(schedule[8 * step : 8 * step + 8])
        prompts.append([row["prompt"].rpartition("; ")[2] for row in rows])
        assert [row["prompt"].count(";") for row in rows] == [1] * 8
        given = rolled_out(rollouts, schedule, step, ["answer", "", "answer", ""])
        assert given == [1, -1, 1, -1] * 8
    assert all(one != other for one, other in zip(*prompts, strict=True))
    again = rollouts_of(params, schedule, [])
    assert [row["prompt"].rpartition("; ")[2] for row in again.asked(schedule[:8])] == prompts[0]
    plain = rollouts_of(letters.params(grpo={"steps": 2, "renaming": False}), schedule, [])
    assert [row["prompt"] for row in plain.asked(schedule[:8])] == [
        TASK.prompt(plain.records[row["id"]], []) for row in schedule[:8]
    ]


def test_a_sparse_reward_is_the_trainers_alone() -> None:
    schedule = letters.schedule(RECORDS, 2, 8)
    given, kept, spread = {}, {}, {}
    for reward in ("dense", "sparse"):
        log: list[dict[str, Any]] = []
        rollouts = rollouts_of(letters.params(grpo={"reward": reward}), schedule, log)
        given[reward] = rolled_out(rollouts, schedule, 0, ["answer", "a b c d e f", "", "answer answer"])
        kept[reward] = [row["rewards"] for row in log]
        rolled_out(rollouts, schedule, 1, ["a b c d e f", "", "", ""])
        spread[reward] = rollouts.measured(1)["zero_spread/all_fail"]
    assert given["sparse"] == [1.0 if value == 1 else -1.0 for value in given["dense"]]
    assert given["sparse"] != given["dense"]
    assert kept["sparse"] == kept["dense"]
    assert spread == {"dense": 0.0, "sparse": 1.0}


def test_an_earlier_success_stands_in_where_all_fail_and_bears_the_present_names() -> None:
    params = letters.params(grpo={"replay": True})
    schedule = letters.schedule(RECORDS, 1, 8)
    schedule += [row | {"step": step} for step in (1, 2, 3) for row in schedule]
    log: list[dict[str, Any]] = []
    rollouts = rollouts_of(params, schedule, log)
    assert (
        rolled_out(rollouts, schedule, 0, ["", "", "", ""]) == [-1] * 32
    )  # nothing is known: not the reference either
    rolled_out(rollouts, schedule, 1, ["", "answer", "", ""])
    for known in (rollouts, rollouts_of(params, schedule, list(log))):  # and a run that is taken up knows as much
        assert rolled_out(known, schedule, 2, ["", "", "", ""]) == [-1, -1, -1, 1] * 8
        assert known.measured(2)["replayed"] == 8
        assert rolled_out(known, schedule, 3, ["answer", "", "", ""]) == [1, -1, -1, -1] * 8
    assert [row["replayed"] for row in log] == [0] * 16 + [1] * 8 + [0] * 8


@pytest.fixture
def fair() -> str:
    """A model that succeeds now and then."""
    run_sft("fair", letters.params(sft={"epochs": 12, "learning_rate": 1e-2, "shots": [0, 0]}))
    return "fair"


def test_with_every_switch_on_a_run_resumes_exactly_and_logs_what_it_did(fair: str) -> None:
    params = letters.params(grpo=EVERY_SWITCH)
    straight = run_grpo("straight", params, base=fair)
    with pytest.raises(Killed):
        run_grpo("resumed", params, callbacks=[KillAfter(5)], base=fair)
    assert run_grpo("resumed", params, base=fair) == straight
    assert equal(weights("straight"), weights("resumed"))
    assert files("training/straight") == files("training/resumed")

    known = {record.id: record for record in RECORDS}
    assert [(row["step"], row["slot"]) for row in straight] == [(step, slot) for step in range(8) for slot in range(8)]
    assert all((known[row["id"]].domain, known[row["id"]].bucket) == (row["domain"], row["bucket"]) for row in straight)
    schedule = letters.schedule(RECORDS, 8, 8)
    assert [row["id"] for row in straight] != [row["id"] for row in schedule]
    for step, replayed in curve("straight", "replayed"):
        assert replayed == sum(row["replayed"] for row in straight if row["step"] == step)
    assert sum(row["replayed"] for row in straight) > 0
    assert max(value for _, value in curve("straight", "phase/copy")) > 0
    assert sum(value for _, value in curve("straight", "lost_turns")) > 0
    shares = [dict(curve("straight", f"weight/{domain}")) for domain in letters.DOMAINS]
    assert [sum(share[step] for share in shares) for step in range(8)] == pytest.approx([1] * 8)


def solved(model: str, problems: Sequence[Record]) -> float:
    """The share of problems that a model on disk solves, greedy."""
    network = AutoModelForCausalLM.from_pretrained(model, use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained(model)
    hits = 0
    for problem in problems:
        prompt = tokenizer(TASK.prompt(problem, []), return_tensors="pt", return_token_type_ids=False)
        ids = network.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        hits += TASK.verify(problem, tokenizer.decode(ids, skip_special_tokens=True)).success
    return hits / len(problems)


def test_validation_is_one_more_curve_and_changes_nothing_else(fair: str) -> None:
    held_out = [record.model_copy(update={"id": f"held-out-{record.id}"}) for record in letters.problems(40)]
    settings = {"steps": 5, "learning_rate": 3e-3}
    without = letters.params(grpo=settings, validation={"steps": 0, "problems": 10})
    params = letters.params(grpo=settings, validation={"steps": 2, "problems": 10})
    plain = run_grpo("plain", without, base=fair, validation=held_out)
    assert run_grpo("straight", params, base=fair, validation=held_out) == plain
    assert run_grpo("empty", params, base=fair) == plain
    assert equal(weights("plain"), weights("straight"))
    assert files("training/plain") == files("training/empty")

    copies = {domain: [record for record in held_out if record.domain == domain] for domain in letters.DOMAINS}
    chosen = [copies[domain][place] for place in range(3) for domain in letters.DOMAINS][:10]
    values = curve("straight", "validation_success")
    assert [step for step, _ in values] == [0, 2, 4, 5]
    assert (values[0][1], values[-1][1]) == (solved(fair, chosen), solved("straight", chosen))
    assert len({value for _, value in values}) > 1
    kept, added = (json.loads(Path("training", name, "metrics.json").read_text()) for name in ("plain", "straight"))
    best = max(value for _, value in values)
    assert added.pop("validation_success") == {"first": values[0][1], "best": best, "last": values[-1][1]}
    assert added == kept

    with pytest.raises(Killed):
        run_grpo("resumed", params, callbacks=[KillAfter(3)], base=fair, validation=held_out)
    run_grpo("resumed", params, base=fair, validation=held_out)
    assert equal(weights("straight"), weights("resumed"))
    assert files("training/straight") == files("training/resumed")


def test_equal_temperatures_are_one_temperature(fair: str) -> None:
    one = run_grpo("one", letters.params(grpo={"temperature": 0.7, "beta": 0.01}), base=fair)
    own = dict.fromkeys(("easy", "medium", "hard"), 0.7)
    assert run_grpo("own", letters.params(grpo={"temperatures": own, "beta": 0.01}), base=fair) == one
    assert equal(weights("own"), weights("one"))
    assert files("training/own") == files("training/one")


def test_a_run_without_regard_to_domains_takes_any_number_of_prompts() -> None:
    params = letters.params(grpo={"steps": 2, "batch_size": 6, "balanced": False})
    schedule = [vars(slot) for slot in build_schedule(RECORDS, params.curriculum, 2, 6, 1, balanced=False)]
    grpo.train(TASK, RECORDS, schedule, params, base="base", model=Path("model"), training=Path("training"))
    rows = pq.read_table("training/consumed.parquet").to_pylist()
    assert [row["id"] for row in rows] == [row["id"] for row in schedule]


# What stops a run


def test_a_wrong_reference_stops_the_run_before_it_starts() -> None:
    records = [RECORDS[0].model_copy(update={"response": ""}), *RECORDS[1:]]

    class Strict(letters.Letters):
        def verify(self, problem: Record, completion: str, alias: Alias = AS_IS) -> Verdict:
            return super().verify(problem, completion or "nothing", alias)

    with pytest.raises(examples.WrongReferences, match=r"p00.*verify says wrong"):
        examples.check_references(Strict(), records)


def test_a_broken_verifier_stops_the_run() -> None:
    class Broken(letters.Letters):
        def verify(self, problem: Record, completion: str) -> Verdict:
            if completion != self.answer(problem):
                raise VerifierError("no verdict")
            return super().verify(problem, completion)

    with pytest.raises(VerifierError):
        run_grpo("model", letters.params(), Broken())
    assert not Path("model").exists()


@pytest.mark.parametrize("differ", ["label", "failing_step"])
def test_a_disagreement_stops_the_run_and_keeps_the_case(differ: str) -> None:
    class TwoMinded(letters.Letters):
        def judge(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
            return [self.second(record, text) for record, text in pairs]

        def second(self, record: Record, text: str) -> Verdict:
            verdict = self.verify(record, text)
            if verdict.success:
                return verdict
            if differ == "label":
                return dataclasses.replace(verdict, label="empty")
            return dataclasses.replace(verdict, outcome=Outcome(Label.PRECONDITION, 2, failing_step=2))

    with pytest.raises(Disagreement, match=r"disagreement.json"):
        run_grpo("model", letters.params(grpo={"audit_share": 1.0}), TwoMinded())
    case = json.loads(Path("training/model/disagreement.json").read_text())
    assert case["verify"] != case["judge"]
    assert case["problem"]["id"] in {record.id for record in RECORDS}
    run_grpo("model", letters.params(grpo={"audit_share": 0.0}), TwoMinded())


def test_a_batch_that_is_not_the_schedules_stops_the_run() -> None:
    params = letters.params(grpo={"report_to": ["wandb"], "renaming": False})  # outside trackers hear through TRL
    schedule = [Slot(**row) for row in letters.schedule(RECORDS, 1, 8)]
    logged: dict[str, float] = {}

    def rollouts(log: list[dict[str, Any]]) -> Rollouts:
        tokenizer = AutoTokenizer.from_pretrained("base")
        return Rollouts(TASK, tokenizer, RECORDS, Fixed(schedule, 8), params, log, Path("disagreement.json"))

    def consume(names: list[str], global_step: int = 0) -> list[dict[str, Any]]:
        log: list[dict[str, Any]] = []
        rollouts(log)(
            completions=["a"] * len(names),
            completion_ids=[[1]] * len(names),
            trainer_state=type("State", (), {"global_step": global_step}),
            id=names,
            step=[0] * len(names),
            slot=[index // 4 for index in range(len(names))],
            prompt_tokens=[3] * len(names),
            shots_dropped=[0] * len(names),
            alias=[{}] * len(names),
            log_metric=logged.__setitem__,
        )
        return log

    due = [slot.id for slot in schedule for _ in range(4)]
    log = consume(due)
    assert logged["prompt_length"] == 3
    assert logged["share_domain/copy"] == 0.25
    for wrong, step in ((due[:8], 0), (due[4:] + due[:4], 0), (due, 1)):
        with pytest.raises(ScheduleViolated):
            consume(wrong, step)
    with pytest.raises(ScheduleViolated, match="none was due"):
        rollouts(log + log)
    with pytest.raises(ScheduleViolated, match=r"\(1, 0\) came"):
        rollouts([]).asked([{"step": 1, "slot": 0}])


def test_a_schedule_made_for_other_parameters_is_refused() -> None:
    schedule = letters.schedule(RECORDS, 4, 8)
    params = letters.params(grpo={"steps": 5})
    places = {"base": "base", "model": Path("model"), "training": Path("training")}
    with pytest.raises(ValueError, match="5 steps of 8 prompts"):
        grpo.train(TASK, RECORDS, schedule, params, **places)
    with pytest.raises(ValueError, match="outside the set"):
        grpo.train(TASK, RECORDS[:4], schedule, letters.params(), **places)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(2, 8), st.integers(1, 200))
def test_an_optimizer_step_is_cut_up_exactly(
    share: int, domains: int, processes: int, generations: int, limit: int
) -> None:
    prompts = share * domains * processes
    cut = Batching.of("grpo.batch_size", prompts, generations, limit, processes, domains)
    assert cut.processes * cut.micro_batch * cut.accumulation == prompts * generations
    assert cut.micro_batch <= limit


@pytest.mark.parametrize(
    ("prompts", "processes", "domains", "neighbours"),
    [(10, 1, 4, "8 or 12"), (6, 1, 4, "4 or 8"), (12, 8, 4, "8 or 16"), (3, 1, 4, "take 4")],
)
def test_a_batch_that_cannot_be_shared_names_its_neighbours(
    prompts: int, processes: int, domains: int, neighbours: str
) -> None:
    with pytest.raises(ValueError, match=neighbours):
        Batching.of("grpo.batch_size", prompts, 4, 16, processes, domains)


def test_a_backend_that_cannot_run_says_what_it_needs() -> None:
    model = letters.params().model
    with pytest.raises(models.BackendError, match="extra `gpu`"):
        models.choose_backend(model.model_copy(update={"backend": "unsloth"}))
    with pytest.raises(models.BackendError, match="unsloth"):
        models.choose_backend(model.model_copy(update={"backend": "transformers", "load_in_4bit": True}))
