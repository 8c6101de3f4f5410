"""The way out to verl on Ray. What needs verl or Ray runs where the extra `cluster` is installed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pickle
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, get_scheduler
from typer.testing import CliRunner

from conftest import ROOT, laid_over
from planward.cli import app
from planward.clusters.verl import jobs, rewards
from planward.clusters.verl.export import FolderTaken, exported, overrides
from planward.clusters.verl.optimizers import LinearAdamW
from planward.clusters.verl.rewards import NotOurs, compute_score
from planward.clusters.verl.settings import _hydra, hydra_lines, settings
from planward.curriculum.sampling import sampler_of
from planward.curriculum.sets import balanced, training_set
from planward.params import Params, ParamsError, load_params
from planward.pddl.expressions import PddlError
from planward.records import Record, Run, VerifierError, read_records
from planward.stages import problems, schedule, score, split
from planward.tasks import load_task
from planward.tasks.base import Task
from planward.tasks.fitting import encode
from planward.training.rollouts import Rollouts, Slot


def missing(*packages: str) -> bool:
    return any(find_spec(package) is None for package in packages)


needs_verl = pytest.mark.skipif(missing("verl"), reason="verl is not installed (extra `cluster`)")
needs_ray = pytest.mark.skipif(missing("ray"), reason="Ray is not installed (extra `cluster`)")
needs_trainer = pytest.mark.skipif(
    missing("verl", "transfer_queue", "cachetools", "fastapi", "uvicorn"),
    reason="verl or what its trainer imports is not installed (extra `cluster`)",
)

SEED, SIZE = 5, 8
FEW = {
    "seeds": [SEED],
    "grpo": {"steps": 3, "batch_size": 4, "num_generations": 2, "micro_batch_size": 3, "shots": 1},
    "validation": {"steps": 2, "problems": 4},
    "cluster": {"gpus_per_node": 2, "checkpoints": "/nowhere/checkpoints"},
    "economy": {"problems": 60, "own": {"dataset_sizes": [SIZE], "grpo": {"steps": 3, "shots": 1}}},
}


@dataclass(frozen=True)
class Made:
    """A small run of a task: what the stages before GRPO wrote, and the exported folder."""

    project: Path
    params: Params  # the run's
    task: Task
    folder: Path

    @property
    def train(self) -> list[dict[str, Any]]:
        return pq.read_table(self.folder / "train.parquet").to_pylist()

    @property
    def records(self) -> list[Record]:
        return training_set(read_records(self.project / self.params.placed(score.OUT) / "train.jsonl"), SIZE)

    @property
    def schedule(self) -> list[dict[str, Any]]:
        return pq.read_table(
            self.project / self.params.placed(schedule.OUT) / f"grpo-{SIZE}-{SEED}.parquet"
        ).to_pylist()

    @property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(str(ROOT / "models/base"))


@pytest.fixture(scope="module", params=["planning", "economy"])
def made(
    request: pytest.FixtureRequest, small: Callable[..., Params], tmp_path_factory: pytest.TempPathFactory
) -> Made:
    return built(small(**FEW).of(request.param), tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def planning(small: Callable[..., Params], tmp_path_factory: pytest.TempPathFactory) -> Made:
    return built(small(**FEW), tmp_path_factory.mktemp("only"))


def built(params: Params, project: Path) -> Made:
    run = Run("grpo", SIZE, SEED)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        for stage in (problems, split, score):
            stage.run(params)
        schedule.run(params, run)
        model = params.placed(Path("results/models")) / f"sft-{SIZE}-{SEED}"
        shutil.copytree(ROOT / "models/base", model, ignore=shutil.ignore_patterns("*.md", "dvc.*", "params.yaml"))
        folder = exported(params, run).resolve()
    own = params.model_copy(update={"seed": SEED})
    return Made(project, own, load_task(own, folder / "problems"), folder)


def scored(made: Made, row: dict[str, Any], completion: str) -> dict[str, Any]:
    source, truth = row["data_source"], row["reward_model"]["ground_truth"]
    return compute_score(source, completion, truth, row["extra_info"], folder=made.folder)


def answers(made: Made, row: dict[str, Any]) -> list[str]:
    """Completions of a row: the right one, in the names of the prompt, and wrong ones."""
    record, alias = truth(row), json.loads(row["extra_info"]["alias"])
    right = made.task.answer(record, alias)
    return [right, right.partition("\n")[0], "(fly a b)", "", f"I say: {right}", made.task.answer(record)]


def truth(row: dict[str, Any]) -> Record:
    return Record.model_validate_json(row["reward_model"]["ground_truth"])


# The folder.


def test_rows_are_the_schedule_and_prompts_and_rewards_are_those_that_trl_gets(made: Made) -> None:
    rows, tokenizer, grpo = made.train, made.tokenizer, made.params.grpo
    assert [(r["extra_info"]["step"], r["extra_info"]["slot"], r["extra_info"]["id"]) for r in rows] == [
        (slot["step"], slot["slot"], slot["id"]) for slot in made.schedule
    ]
    assert [row["extra_info"]["index"] for row in rows] == list(range(grpo.steps * grpo.batch_size))
    sampler = sampler_of([Slot(**slot) for slot in made.schedule], made.records, made.params)
    rollouts = Rollouts(made.task, tokenizer, made.records, sampler, made.params, [], made.project / "case.json")
    for step in range(grpo.steps):
        due = [row for row in rows if row["extra_info"]["step"] == step]
        asked = rollouts.asked([{"step": step, "slot": slot} for slot in range(grpo.batch_size)])
        for row, trl in zip(due, asked, strict=True):
            assert row["prompt"] == [{"role": "user", "content": trl["prompt"]}]
            assert json.loads(row["extra_info"]["alias"]) == dict(trl["alias"])
            assert row["extra_info"]["prompt_tokens"] == trl["prompt_tokens"]
        texts = [answers(made, row)[:: 1 + step][: grpo.num_generations] for row in due]
        columns = {
            name: [row[name] for row in asked for _ in range(grpo.num_generations)]
            for name in asked[0]
            if name != "prompt"
        }
        flat = [text for group in texts for text in group]
        given = rollouts(
            flat,
            trainer_state=SimpleNamespace(global_step=step),
            completion_ids=[tokenizer(text)["input_ids"] for text in flat],
            **columns,
        )
        ours = [scored(made, row, text)["score"] for row, group in zip(due, texts, strict=True) for text in group]
        assert ours == given
        assert len(set(ours)) > 1


def test_validation_rows_are_the_problems_that_trl_validates_on(made: Made) -> None:
    rows = pq.read_table(made.folder / "validation.parquet").to_pylist()
    everything = read_records(made.project / made.params.placed(score.OUT) / "validation.jsonl")
    wanted = balanced(everything, made.params.validation.problems)
    assert [row["extra_info"]["id"] for row in rows] == [record.id for record in wanted]
    for row, record in zip(rows, wanted, strict=True):
        assert row["prompt"][0]["content"] == made.task.prompt(record, [])
        assert scored(made, row, made.task.answer(record))["acc"] == 1.0


def test_the_folder_stands_alone(made: Made, tmp_path: Path) -> None:
    elsewhere = shutil.copytree(made.folder, tmp_path / "elsewhere")
    assert load_params(elsewhere / "params.yaml") == made.params
    code = (
        "import json, pathlib, sys, pyarrow.parquet as pq\n"
        "sys.modules.update(ray=None, verl=None)  # neither can be imported\n"
        "import reward\n"
        "rows = pq.read_table('train.parquet').to_pylist()\n"
        "print(json.dumps([reward.compute_score(r['data_source'], t, r['reward_model']['ground_truth'],"
        " r['extra_info'])['score'] for r, t in zip(rows, json.load(sys.stdin))]))\n"
        "assert 'torch' not in sys.modules"
    )
    texts = [answers(made, row)[index % 4] for index, row in enumerate(made.train)]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=elsewhere, env=env, input=json.dumps(texts), text=True, capture_output=True
    )
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == [
        scored(made, row, text)["score"] for row, text in zip(made.train, texts, strict=True)
    ]


def test_the_same_run_is_the_same_folder(planning: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(planning.project)
    again = exported(planning.params, Run("grpo", SIZE, SEED), tmp_path / "again")
    assert files(again) == files(planning.folder)
    assert exported(planning.params, Run("grpo", SIZE, SEED), again) == again  # takes its own place
    warmer = Params.model_validate(laid_over(planning.params.model_dump(mode="json"), {"grpo": {"temperature": 0.9}}))
    other = exported(warmer, Run("grpo", SIZE, SEED), tmp_path / "other")
    assert checkpoints(other) != checkpoints(again)
    sooner = Params.model_validate(laid_over(planning.params.model_dump(mode="json"), {"grpo": {"save_steps": 7}}))
    assert checkpoints(exported(sooner, Run("grpo", SIZE, SEED), other)) == checkpoints(again)


def test_what_is_in_the_way_stays(planning: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(planning.project)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FolderTaken, match="no exported run"):
        exported(planning.params, Run("grpo", SIZE, SEED), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"grpo-8-6\.parquet"):
        exported(planning.params, Run("grpo", SIZE, 6), tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoints(folder: Path) -> str:
    return str(json.loads((folder / "manifest.json").read_text())["checkpoints"])


def test_nothing_of_it_needs_ray_or_verl_to_be_imported() -> None:
    names = ("export", "jobs", "rewards", "rows", "settings")
    code = "import sys; sys.modules.update(ray=None, verl=None)\n"
    code += "\n".join(f"import planward.clusters.verl.{name}" for name in names)
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True)


# Rewards.


def test_rewards_are_sparse_or_dense_as_asked(planning: Made, tmp_path: Path) -> None:
    row = planning.train[0]
    right, first, *_ = answers(planning, row)
    verdict = planning.task.verify(truth(row), planning.task.original(first, json.loads(row["extra_info"]["alias"])))
    assert -1 < verdict.reward < 1
    assert scored(planning, row, right) == {
        "score": 1.0,
        "acc": 1.0,
        "verdict": 1.0,
        "label": planning.task.labels[0],
    }
    told = {"acc": 0.0, "verdict": verdict.reward, "label": verdict.label}
    assert scored(planning, row, first) == {"score": -1.0} | told
    dense = copied(planning, tmp_path / "dense", "reward: sparse", "reward: dense")
    assert scored(dense, row, first) == {"score": verdict.reward} | told


def copied(made: Made, folder: Path, old: str, new: str) -> Made:
    """The folder with another word in its params.yaml."""
    shutil.copytree(made.folder, folder)
    text = (folder / "params.yaml").read_text()
    assert old in text
    (folder / "params.yaml").write_text(text.replace(old, new))
    return Made(made.project, made.params, made.task, folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data_source": "openai/gsm8k"}, "exported for planward/planning"),
        ({"data_source": "planward/economy"}, "exported for planward/planning"),
        ({"ground_truth": "{"}, "ground_truth is no record"),
        ({"ground_truth": '{"prompt": "x"}'}, "meta"),
        ({"ground_truth": ""}, "ground_truth is no record"),
        ({"extra_info": None}, "alias"),
        ({"extra_info": {"alias": "[]"}}, "alias"),
        ({"extra_info": {"alias": "b1"}}, "alias"),
    ],
)
def test_a_row_that_is_not_ours_is_an_error_not_a_reward(planning: Made, changes: dict[str, Any], said: str) -> None:
    row = planning.train[0]
    asked = {
        "data_source": row["data_source"],
        "ground_truth": row["reward_model"]["ground_truth"],
        "extra_info": row["extra_info"],
    }
    with pytest.raises(NotOurs, match=said):
        compute_score(**asked | changes, solution_str="(fly a b)", folder=planning.folder)


def test_a_missing_problem_is_an_error_not_a_reward(planning: Made, tmp_path: Path) -> None:
    broken = copied(planning, tmp_path / "broken", "reward: sparse", "reward: sparse")
    shutil.rmtree(broken.folder / "problems")
    with pytest.raises(PddlError, match="no such file"):
        scored(broken, planning.train[0], "(fly a b)")


def test_audits_need_the_judge_and_only_in_training(
    planning: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited = copied(planning, tmp_path / "audited", "audit_share: 0.01", "audit_share: 1.0")
    row = planning.train[0]
    right = answers(planning, row)[0]
    assert scored(audited, row, right)["score"] == 1.0
    judge = rewards._judge(audited.folder.resolve())
    monkeypatch.setattr(judge.task, "judge", lambda pairs: [planning.task.verify(pairs[0][0], "")])
    with pytest.raises(VerifierError, match="judge says"):
        scored(audited, row, right)
    monkeypatch.setattr(judge.task, "judge", lambda _: pytest.fail("a validation problem was audited"))
    row["extra_info"]["split"] = "validation"
    assert scored(audited, row, right)["score"] == 1.0


def test_the_reward_function_can_be_sent_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(compute_score)) is compute_score


# Settings.


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("grpo.replay", {"grpo": {"replay": True}}),
        ("grpo.adaptive.curriculum", {"grpo": {"adaptive": {"curriculum": True}}}),
        (
            "grpo.adaptive.domain_weights",
            {"grpo": {"adaptive": {"domain_weights": True}}},
        ),
        ("grpo.adaptive.dynamic_sampling", {"grpo": {"adaptive": {"dynamic_sampling": True}}}),
        ("grpo.temperatures", {"grpo": {"temperatures": {"easy": 0.8, "medium": 1.0, "hard": 1.2}}}),
        ("grpo.loss_type", {"grpo": {"loss_type": "bnpo"}}),
        ("grpo.entropy_coef", {"grpo": {"loss_type": "dr_grpo", "entropy_coef": 0.1}}),
        ("grpo.scale_rewards", {"grpo": {"scale_rewards": "batch"}}),
        ("model.backend", {"model": {"backend": "unsloth"}}),
        ("model.load_in_4bit", {"model": {"load_in_4bit": True}}),
        (
            "model.lora.dropout",
            {"model": {"lora": {"r": 8, "alpha": 16, "dropout": 0.1, "target_modules": "all-linear", "merge": True}}},
        ),
        ("cluster.gpus_per_node", {"cluster": {"gpus_per_node": 7}}),
    ],
)
def test_what_verl_cannot_do_is_named(small: Callable[..., Params], key: str, changes: dict[str, Any]) -> None:
    raw = laid_over(small(**FEW).model_dump(mode="json"), changes)
    raw["ablations"]["variants"] = {}  # some would not go with the changes
    params = Params.model_validate(raw)
    with pytest.raises(ParamsError, match=key.replace(".", r"\.")):
        settings(params, model="m", plain=True, name="n", checkpoints=Path("/c"))


@pytest.mark.parametrize("schedule_type", ["linear", "cosine", "constant"])
def test_learning_rates_are_those_of_trl(small: Callable[..., Params], schedule_type: str) -> None:
    grpo = {"steps": 7, "lr_scheduler_type": schedule_type, "extendable": False}
    optim = optimizer_settings(small(**laid_over(FEW, {"grpo": grpo})))
    theirs = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=0.1, weight_decay=0.0)
    wanted = get_scheduler(schedule_type, theirs, num_warmup_steps=0, num_training_steps=7)
    if optim.get("optimizer") != "LinearAdamW":
        assert optim["lr_scheduler_type"] == schedule_type  # verl's own; what that computes is tested below
        return
    weight = torch.nn.Parameter(torch.ones(2))
    ours = LinearAdamW([weight], lr=0.1, weight_decay=0.0, **optim["override_optimizer_config"])
    for step in range(7):
        if step == 4:  # from a checkpoint
            again = LinearAdamW([weight], lr=0.1, weight_decay=0.0, **optim["override_optimizer_config"])
            again.load_state_dict(ours.state_dict())
            ours = again
        assert 0.1 * ours.share() == pytest.approx(wanted.get_last_lr()[0])
        for optimizer in (ours, theirs):
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.grad = torch.tensor([1.0, -0.5 * step])
            optimizer.step()
        wanted.step()
        assert torch.equal(weight, theirs.param_groups[0]["params"][0])
    assert ours.share() == 0.0
    assert ours.param_groups[0]["lr"] == 0.1


def optimizer_settings(params: Params) -> dict[str, Any]:
    chosen = settings(params, model="m", plain=True, name="n", checkpoints=Path("/c"))
    prefix = "actor_rollout_ref.actor.optim."
    return {key.removeprefix(prefix): value for key, value in chosen.items() if key.startswith(prefix)}


@needs_verl
@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp", "Cs"), exclude_characters="$")))
def test_any_text_comes_through_hydras_grammar(text: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (parsed,) = OverridesParser.create().parse_overrides([f"key={_hydra(text)}"])
    assert parsed.value() == text


def composed(folder: Path, extra: tuple[str, ...] = ()) -> Any:
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", [*overrides(folder), *extra])


@needs_verl
def test_verl_takes_the_settings(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra.errors import ConfigCompositionException
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    monkeypatch.chdir(made.folder)
    with pytest.raises(ConfigCompositionException):  # so an unknown key among ours would not pass either
        composed(made.folder, ("trainer.no_such_key=1",))
    config, grpo = composed(made.folder), made.params.grpo
    OmegaConf.to_container(config.actor_rollout_ref, resolve=True, throw_on_missing=True)
    sglang = composed(made.folder, ("actor_rollout_ref.rollout.name=sglang",))  # of vLLM it would ask its version
    validate_config(sglang, need_reference_policy(config), need_critic(config))
    assert not need_critic(config)
    assert need_reference_policy(config) == (grpo.beta > 0)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert actor.optim.lr == grpo.learning_rate
    assert actor.entropy_coeff == grpo.entropy_coef
    assert actor.ppo_mini_batch_size == config.data.train_batch_size == grpo.batch_size
    assert grpo.batch_size * grpo.num_generations // 2 % actor.ppo_micro_batch_size_per_gpu == 0
    assert (rollout.n, rollout.temperature, rollout.top_k) == (grpo.num_generations, grpo.temperature, -1)
    assert config.data.train_batch_size * config.trainer.total_training_steps == len(made.train)
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (1, 2)
    assert config.trainer.default_local_dir.startswith("/nowhere/checkpoints/")
    assert not config.data.shuffle
    model = made.params.model
    assert config.actor_rollout_ref.model.lora_rank == (model.lora.r if model.lora else 0)


@needs_verl
def test_verl_takes_lora_and_every_loss(small: Callable[..., Params], tmp_path: Path) -> None:
    lora = {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": ["q_proj", "v_proj"], "merge": True}
    wanted = {"dapo": "token-mean", "grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
    for loss, mode in wanted.items():
        changes = {
            "model": {"lora": lora},
            "grpo": {"loss_type": loss, "scale_rewards": "group", "beta": 0.02, "top_k": 50},
        }
        params = small(**laid_over(FEW, changes))
        chosen = settings(params, model="m", plain=False, name="n", checkpoints=Path("/c"))
        (tmp_path / "overrides.txt").write_text("\n".join(hydra_lines(chosen)))
        config = composed(tmp_path)
        actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
        assert actor.loss_agg_mode == mode
        assert (actor.use_kl_loss, actor.kl_loss_coef, config.algorithm.norm_adv_by_std_in_grpo) == (True, 0.02, True)
        assert (model.lora_rank, model.lora_alpha, list(model.target_modules)) == (8, 16, ["q_proj", "v_proj"])
        assert (config.actor_rollout_ref.rollout.top_k, model.custom_chat_template) == (50, None)


@needs_verl
@pytest.mark.parametrize(
    ("loss", "mask"),
    [("dapo", [3, 1, 2]), ("grpo", [3, 1, 2]), ("dr_grpo", [3, 1, 2])],
    ids=["dapo", "grpo", "dr_grpo"],
)
def test_losses_are_aggregated_as_trl_does(small: Callable[..., Params], loss: str, mask: list[int]) -> None:
    from verl.trainer.ppo.core_algos import agg_loss

    params = small(**laid_over(FEW, {"grpo": {"loss_type": loss}, "prompt": {"max_completion_tokens": 5}}))
    chosen = settings(params, model="m", plain=True, name="n", checkpoints=Path("/c"))
    mode, factor = (chosen[f"actor_rollout_ref.actor.{key}"] for key in ("loss_agg_mode", "loss_scale_factor"))
    each, kept = torch.rand(3, 4), (torch.arange(4) < torch.tensor(mask)[:, None]).float()
    sums = (each * kept).sum(1)
    trl = {  # trl.GRPOTrainer._compute_loss, of one process and one forward pass
        "dapo": sums.sum() / kept.sum(),
        "grpo": (sums / kept.sum(1)).mean(),
        "dr_grpo": sums.sum() / (3 * 5),
    }[loss]
    assert agg_loss(each, kept, mode, loss_scale_factor=factor) == pytest.approx(trl.item())


@needs_verl
def test_verls_cosine_is_that_of_trl() -> None:
    from verl.utils.torch_functional import get_cosine_schedule_with_warmup

    first, second = (torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2))
    theirs, ours = get_scheduler("cosine", first, 0, 9), get_cosine_schedule_with_warmup(second, 0, 9, min_lr_ratio=0.0)
    for _ in range(9):
        assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr())
        for optimizer, rate in ((first, theirs), (second, ours)):
            optimizer.step()
            rate.step()


# verl's own classes on our files.


@needs_verl
def test_verls_dataset_gives_the_schedule_with_the_tokens_that_trl_trains_on(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    from torch.utils.data import DataLoader
    from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.dataset.rl_dataset import collate_fn
    from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

    monkeypatch.chdir(made.folder)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    config = composed(made.folder)
    tokenizer = omega_conf_to_dataclass(config.actor_rollout_ref.model).tokenizer
    own, builder = made.tokenizer, ContinuousTokenBuilder(tokenizer)
    data = create_rl_dataset(config.data.train_files, config.data, tokenizer, None)
    batches = DataLoader(
        data,
        batch_size=config.data.train_batch_size,
        sampler=create_rl_sampler(config.data, data),
        collate_fn=collate_fn,
        drop_last=True,
    )
    seen = list[tuple[int, int, str]]()
    for step, batch in enumerate(batches):
        for info, prompt in zip(batch["extra_info"], batch["raw_prompt"], strict=True):
            assert info["step"] == step
            seen.append((info["step"], info["slot"], info["id"]))
            ids = builder.build_initial_tokens(list(prompt))
            assert ids == encode(own, prompt[0]["content"])
            assert len(ids) == info["prompt_tokens"] <= config.actor_rollout_ref.rollout.prompt_length
    assert seen == [(slot["step"], slot["slot"], slot["id"]) for slot in made.schedule]
    held_out = create_rl_dataset(config.data.val_files, config.data, tokenizer, None, is_train=False)
    assert len(held_out) == pq.read_metadata(made.folder / "validation.parquet").num_rows


@needs_verl
def test_verls_reward_worker_gives_our_rewards(planning: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    from verl import DataProto
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    monkeypatch.chdir(planning.folder)
    tokenizer = planning.tokenizer
    asked = [(row, text) for row in planning.train for text in answers(planning, row)[:4]]
    ids = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for _, text in asked]
    longest = max(map(len, ids))
    responses = torch.tensor([[*own, *[tokenizer.pad_token_id] * (longest - len(own))] for own in ids])
    prompts = torch.zeros(len(ids), 1, dtype=torch.long)
    seen = torch.tensor([[1, *[1] * len(own), *[0] * (longest - len(own))] for own in ids])
    columns = {name: [row[name] for row, _ in asked] for name in ("data_source", "reward_model", "extra_info")}
    batch = DataProto.from_dict(
        tensors={"prompts": prompts, "responses": responses, "attention_mask": seen},
        non_tensors={name: np.array(values, dtype=object) for name, values in columns.items()},
    )

    async def told() -> list[dict[str, Any]]:
        return list(await RewardLoopWorker(composed(planning.folder)).compute_score_batch(batch))

    wanted = [
        scored(planning, row, tokenizer.decode(own, skip_special_tokens=True))
        for (row, _), own in zip(asked, ids, strict=True)
    ]
    given = asyncio.run(told())
    assert [answer["reward_score"] for answer in given] == [answer["score"] for answer in wanted]
    assert [answer["reward_extra_info"] for answer in given] == wanted
    assert {answer["acc"] for answer in wanted} == {0.0, 1.0}


@needs_verl
def test_verl_makes_success_its_chief_curve(planning: Made) -> None:
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    row = planning.train[0]
    told = [scored(planning, row, text) for text in answers(planning, row)[:2]]
    columns = {name: [each[name] for each in told] for name in told[0]}
    found = process_validation_metrics([row["data_source"]] * 2, ["a", "b"], columns)[row["data_source"]]
    assert found["acc"]["mean@1"] == 0.5
    assert "label" not in found


@needs_trainer
def test_a_completion_that_cannot_be_judged_stops_the_run(planning: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.v1 import replay_buffer
    from verl.utils.import_utils import load_extern_type

    sampler = composed(planning.folder).trainer.v1.sampler
    ours = load_extern_type(sampler.custom_sampler.path, sampler.custom_sampler.name)
    whole = {f"p{i}": {"is_prompt": True, "status": "finished", "global_steps": 1} for i in range(2)}
    parts = {f"p{i}_{j}_0": {"status": "success", "global_steps": 1} for i in range(2) for j in range(2)}
    stored = {"train": {**whole, **parts}}
    monkeypatch.setattr(replay_buffer.tq, "kv_list", lambda: stored)
    monkeypatch.setattr(replay_buffer.tq, "kv_clear", lambda **_: None)

    def sample(buffer: type) -> Any:
        made = buffer(
            "sync", {}, sampler.max_off_policy_threshold, sampler.max_off_policy_strategy, {}, poll_interval=0.01
        )
        return made.sample(global_steps=1, partition_id="train", batch_size=2)[0].keys

    assert sorted(sample(ours)) == sorted(parts)
    whole["p1"]["status"], stored["train"] = "failure", {**whole, **{key: parts[key] for key in list(parts)[:3]}}
    assert len(sample(replay_buffer.ReplayBuffer)) == 3  # verl itself trains on what is left
    with pytest.raises(RuntimeError, match="1 of train"):
        sample(ours)


# A real Ray cluster.


@dataclass(frozen=True)
class Head:
    address: str
    env: dict[str, str]  # of who may use it


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A Ray head of its own, with a token of its own; ended with all its processes, whatever happens."""
    folder = Path(tmp_path_factory.mktemp("r"))
    temp = Path(f"/tmp/planward-{secrets.token_hex(4)}")  # short: sockets have short names
    ports = free_ports(4)
    names = ("--port", "--dashboard-port", "--ray-client-server-port", "--dashboard-agent-listen-port")
    own = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path and Path(path) != ROOT / "src"]
    token = secrets.token_hex(32)
    env = dict(os.environ) | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "OMP_NUM_THREADS": "1"}
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"),
        *("--dashboard-host", "127.0.0.1", "--node-ip-address", "127.0.0.1", "--temp-dir", str(temp)),
        *("--num-cpus", "24", "--resources", '{"judge": 2}', "--object-store-memory", str(128 << 20)),
        *(word for pair in zip(names, map(str, ports), strict=True) for word in pair),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
    ]
    with (folder / "head.log").open("w") as log:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where jobs find their python
        bare = env | {"PYTHONPATH": ":".join(own), "PATH": path}  # they bring planward with them
        process = subprocess.Popen(command, env=bare, stdout=log, stderr=log, start_new_session=True)
        try:
            address = f"http://127.0.0.1:{ports[1]}"
            answers_within(60, address, token, process, folder / "head.log")
            yield Head(address, env | {"PYTHONPATH": ":".join([str(ROOT / "src"), *own])})
        finally:
            process.terminate()  # --block: it ends the processes of its node
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            shutil.rmtree(temp, ignore_errors=True)


LAUNCH = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores, with all it starts
from planward.clusters.verl.jobs import launched
sys.exit(launched(Path(sys.argv[1]), sys.argv[2], entrypoint=sys.argv[3:] or None))
"""


def launching(folder: Path, head: Head, *entrypoint: str) -> subprocess.Popen[str]:
    """`planward launch verl` as a process: Ray reads whom to be once, when it is imported."""
    command = [sys.executable, "-u", "-c", LAUNCH, str(folder), head.address, *entrypoint]
    return subprocess.Popen(command, env=head.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def launched(folder: Path, head: Head, *entrypoint: str) -> tuple[int, str]:
    process = launching(folder, head, *entrypoint)
    text, _ = process.communicate(timeout=240)
    return process.returncode, text


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, from among those that the system hands out itself."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def answers_within(seconds: float, address: str, token: str, process: subprocess.Popen[bytes], log: Path) -> None:
    asked, end = urllib.request.Request(f"{address}/api/version"), time.monotonic() + seconds
    asked.add_header("Authorization", f"Bearer {token}")
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(asked, timeout=5):
            return
        time.sleep(0.5)
    pytest.fail(f"Ray's head did not come up: {log.read_text()[-3000:]}")


JUDGED = """
import hashlib, json
import pyarrow.parquet as pq
import ray
import reward

def digest(start):
    rows, texts = pq.read_table("train.parquet").to_pylist(), json.load(open("texts.json"))
    pairs = [(rows[i % len(rows)], texts[i]) for i in range(start, len(texts), BATCHES)]
    scores = [reward.compute_score(row["data_source"], text, row["reward_model"]["ground_truth"], row["extra_info"])
              for row, text in pairs]
    return hashlib.sha256(json.dumps(scores).encode()).hexdigest()

@ray.remote(resources={"judge": 1}, num_cpus=0)
def task(start):
    return ray.get_runtime_context().get_worker_id(), digest(start)

ray.init(logging_level="ERROR", log_to_driver=False)
print("judging", flush=True)
done = [task.remote(start) for start in range(BATCHES)]
print("JUDGED " + json.dumps([ray.get(done), digest(0)]), flush=True)
"""


COMPLETIONS, BATCHES = 10_000, 20


@needs_ray
def test_a_job_is_submitted_and_followed_and_workers_give_the_same_rewards(
    made: Made, head: Head, tmp_path: Path
) -> None:
    folder = shutil.copytree(made.folder, tmp_path / "job")
    rows = made.train
    kinds = [answers(made, row) for row in rows]
    texts = [kinds[index % len(rows)][index % 4] for index in range(COMPLETIONS)]
    (folder / "texts.json").write_text(json.dumps(texts))
    (folder / "judged.py").write_text(f"BATCHES = {BATCHES}\n{JUDGED}")
    status, text = launched(folder, head, "python", "judged.py")
    assert status == 0, text
    assert "succeeded" in text.splitlines()[-1]
    (line,) = [line for line in text.splitlines() if line.startswith("JUDGED ")]
    done, driver = json.loads(line.removeprefix("JUDGED "))
    wanted = [scored(made, rows[index % len(rows)], text) for index, text in enumerate(texts)]
    digests = [hashlib.sha256(json.dumps(wanted[i::BATCHES]).encode()).hexdigest() for i in range(BATCHES)]
    assert [each for _, each in done] == digests
    assert driver == digests[0]
    assert len({json.dumps(each) for each in wanted}) >= 3
    assert len({worker for worker, _ in done}) == 2


@needs_ray
def test_a_job_that_fails_says_so(planning: Made, head: Head) -> None:
    status, text = launched(planning.folder, head, "python", "-c", "raise SystemExit('no' * 2)")
    assert status == 1
    assert "nono" in text
    assert "failed (Job entrypoint command failed with exit code 1)" in text.splitlines()[-1]


@needs_ray
def test_an_interrupt_leaves_the_job_alone_and_says_how_to_stop_it(planning: Made, head: Head) -> None:
    code = "import time; print('re' + 'ady', flush=True); time.sleep(600)"
    process = launching(planning.folder, head, "python", "-c", code)
    assert process.stdout is not None
    next(line for line in process.stdout if line.strip() == "ready")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    text = process.stdout.read()
    (stop,) = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("Stop it: ")]
    words = shlex.split(stop)
    ray, job = str(Path(sys.executable).with_name("ray")), words[-1]
    assert words == ["ray", "job", "stop", "--address", head.address, job]

    def told(verb: str) -> str:
        asked = [ray, "job", verb, "--address", head.address, job]
        return subprocess.run(asked, env=head.env, capture_output=True, text=True, check=True).stdout

    assert "RUNNING" in told("status")
    told("stop")
    assert "was stopped" in told("status")


@needs_trainer
@needs_ray
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, so training would begin")
def test_verls_trainer_starts_on_the_folder_and_misses_nothing_but_gpus(planning: Made, head: Head) -> None:
    status, text = launched(planning.folder, head)
    assert status == 1
    assert "Total available GPUs 0 is less than total desired GPUs 2" in text, text[-4000:]


@needs_ray
def test_another_token_is_not_let_in(planning: Made, head: Head) -> None:
    stranger = Head(head.address, head.env | {"RAY_AUTH_TOKEN": secrets.token_hex(32)})
    status, text = launched(planning.folder, stranger, "python", "-c", "print('in')")
    assert status != 0
    assert "NoCluster" in text
    assert "token" in text


@needs_ray
def test_where_no_cluster_is_the_error_says_so(planning: Made) -> None:
    (port,) = free_ports(1)
    with pytest.raises(jobs.NoCluster, match=f"127.0.0.1:{port}"):
        jobs.launched(planning.folder, f"http://127.0.0.1:{port}")


def test_a_dry_run_shows_the_command(planning: Made, tmp_path: Path) -> None:
    log = list[str]()
    assert jobs.launched(planning.folder, "http://head:8265", dry_run=True, say=log.append) == 0
    assert "python -m verl.trainer.main_ppo" in log[0]
    assert "trainer.total_training_steps=3" in log[0]
    with pytest.raises(FileNotFoundError, match="planward export verl"):
        jobs.launched(tmp_path, "http://head:8265")


def test_the_commands_export_a_run_and_show_what_they_would_submit(
    planning: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planning.project)
    Path("params.yaml").write_text(planning.params.model_dump_json(exclude={"task"}))  # JSON is YAML
    run = ["--size", str(SIZE), "--seed", str(SEED)]
    done = CliRunner().invoke(app, ["export", "verl", *run, "--out", "again"])
    assert done.exit_code == 0, done.output
    assert "planward launch verl again" in done.output
    assert (Path("again") / "train.parquet").read_bytes() == (planning.folder / "train.parquet").read_bytes()
    done = CliRunner().invoke(app, ["launch", "verl", "again", "--address", "http://head:8265", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "verl.trainer.main_ppo" in done.output
    done = CliRunner().invoke(app, ["launch", "verl", "nowhere", "--address", "http://head:8265"])
    assert done.exit_code == 2
    assert "planward export verl" in done.output
