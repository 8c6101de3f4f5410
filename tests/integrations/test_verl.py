"""Exports to verl and jobs on Ray. Tests that need verl or Ray run only with the extra `cluster`."""

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
from contextlib import ExitStack, suppress
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
from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler
from typer.testing import CliRunner

from planward.cli import app
from planward.core import paths
from planward.core.prompts import encode_prompt
from planward.core.records import Record, read_records
from planward.core.registry import load_task, parse_params
from planward.core.runs import Run
from planward.core.tasks import Task
from planward.core.verdicts import VerifierError
from planward.curriculum.draws import Slot
from planward.curriculum.samplers import build_sampler
from planward.curriculum.training_sets import select_balanced, select_training_set
from planward.integrations.verl import jobs, rewards
from planward.integrations.verl.config import CLUSTER_FILE, ClusterConfig, load_cluster_config
from planward.integrations.verl.export import FolderInUse, export_run, read_overrides
from planward.integrations.verl.optimizers import LinearAdamW
from planward.integrations.verl.rewards import InvalidRow, compute_score
from planward.integrations.verl.settings import _format_value, build_settings, format_overrides
from planward.params import Params, ParamsError, read_yaml
from planward.pddl.expressions import PddlError
from planward.stages import problems, schedule, score, split
from planward.tasks.economy.environment.config import EconomyParams
from planward.training.rollouts import Rollouts
from support import ROOT, merge_values


def is_missing(*packages: str) -> bool:
    return any(find_spec(package) is None for package in packages)


needs_verl = pytest.mark.skipif(is_missing("verl"), reason="verl is not installed (extra `cluster`)")
needs_ray = pytest.mark.skipif(is_missing("ray"), reason="Ray is not installed (extra `cluster`)")
needs_trainer = pytest.mark.skipif(
    is_missing("verl", "transfer_queue", "cachetools", "fastapi", "uvicorn"),
    reason="verl or what its trainer imports is not installed (extra `cluster`)",
)

SEED, SIZE = 5, 8
RUN = Run("grpo", SIZE, SEED)
PLANNING: dict[str, Any] = {
    "seeds": [SEED],
    "grpo": {"steps": 3, "batch_size": 4, "num_generations": 2, "micro_batch_size": 3, "shots": 1, "renaming": True},
    "validation": {"steps": 2, "problems": 4},
}
ECONOMY: dict[str, Any] = {
    "seeds": [SEED],
    "dataset_sizes": [SIZE],
    "grpo": {"steps": 3, "shots": 1},
    "validation": {"steps": 3},
    "economy": {"problems": 60},
}
LORA = {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": ["q_proj", "v_proj"], "merge": True}
CLUSTER = load_cluster_config(ROOT).model_copy(update={"gpus_per_node": 2, "checkpoints": Path("/nowhere/checkpoints")})


@dataclass(frozen=True)
class ExportedRun:
    """A small run: the project in which the stages before GRPO ran, and the exported folder."""

    project: Path
    params: Params  # the run's
    task: Task
    folder: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        return pq.read_table(self.folder / "train.parquet").to_pylist()

    @property
    def results(self) -> paths.Results:
        return paths.Results(self.project / paths.results(self.params.task).root)

    @property
    def records(self) -> list[Record]:
        return select_training_set(read_records(self.results.score / "train.jsonl"), SIZE)

    @property
    def schedule(self) -> list[dict[str, Any]]:
        return pq.read_table(self.results.schedule(RUN)).to_pylist()

    @property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(str(ROOT / "models/base"))


@pytest.fixture(scope="module", params=["planning", "economy"])
def exported_run(
    request: pytest.FixtureRequest,
    small: Callable[..., Params],
    shipped_economy: EconomyParams,
    tmp_path_factory: pytest.TempPathFactory,
) -> ExportedRun:
    if request.param == "planning":
        params = small(**PLANNING)
    else:
        params = EconomyParams.model_validate(merge_values(shipped_economy.model_dump(mode="json"), ECONOMY))
    return build_exported_run(params, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def planning(small: Callable[..., Params], tmp_path_factory: pytest.TempPathFactory) -> ExportedRun:
    return build_exported_run(small(**PLANNING), tmp_path_factory.mktemp("only"))


def build_exported_run(params: Params, project: Path) -> ExportedRun:
    """Run the stages before GRPO in `project`, with models/base as the SFT model, and export the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        for stage in (problems, split, score):
            stage.run(params)
        schedule.run(params, RUN)
        model = paths.results(params.task).model(Run("sft", SIZE, SEED))
        shutil.copytree(ROOT / "models/base", model, ignore=shutil.ignore_patterns("*.md"))
        folder = export_run(params, RUN, CLUSTER).resolve()
    params = params.model_copy(update={"seed": SEED})
    return ExportedRun(project, params, load_task(params, folder / "problems"), folder)


def score_completion(run: ExportedRun, row: dict[str, Any], completion: str) -> dict[str, Any]:
    source, parse_record = row["data_source"], row["reward_model"]["ground_truth"]
    return compute_score(source, completion, parse_record, row["extra_info"], folder=run.folder)


def build_completions(run: ExportedRun, row: dict[str, Any]) -> list[str]:
    """Completions of a row: the correct one, in the names of the prompt, and wrong ones."""
    record, renaming = parse_record(row), json.loads(row["extra_info"]["alias"])
    correct = run.task.reference_completion(record, renaming)
    original = run.task.reference_completion(record)
    return [correct, correct.partition("\n")[0], "(fly a b)", "", f"I say: {correct}", original]


def parse_record(row: dict[str, Any]) -> Record:
    return Record.model_validate_json(row["reward_model"]["ground_truth"])


# Exported folders.


def test_prompts_and_rewards_equal_those_of_trl(exported_run: ExportedRun) -> None:
    rows, tokenizer, grpo = exported_run.rows, exported_run.tokenizer, exported_run.params.grpo
    assert [(r["extra_info"]["step"], r["extra_info"]["slot"], r["extra_info"]["id"]) for r in rows] == [
        (slot["step"], slot["slot"], slot["id"]) for slot in exported_run.schedule
    ]
    assert [row["extra_info"]["index"] for row in rows] == list(range(grpo.steps * grpo.batch_size))
    sampler = build_sampler([Slot(**slot) for slot in exported_run.schedule], exported_run.records, exported_run.params)
    disagreement = exported_run.project / "disagreement.json"
    rollouts = Rollouts(
        exported_run.task, tokenizer, exported_run.records, sampler, exported_run.params, [], disagreement
    )
    for step in range(grpo.steps):
        step_rows = [row for row in rows if row["extra_info"]["step"] == step]
        prompts = rollouts.build_prompts([{"step": step, "slot": slot} for slot in range(grpo.batch_size)])
        for row, trl in zip(step_rows, prompts, strict=True):
            assert row["prompt"] == [{"role": "user", "content": trl["prompt"]}]
            assert json.loads(row["extra_info"]["alias"]) == dict(trl["renaming"])
            assert row["extra_info"]["prompt_tokens"] == trl["prompt_tokens"]
        groups = [build_completions(exported_run, row)[:: 1 + step][: grpo.num_generations] for row in step_rows]
        columns = {
            name: [row[name] for row in prompts for _ in range(grpo.num_generations)]
            for name in prompts[0]
            if name != "prompt"
        }
        completions = [text for group in groups for text in group]
        trl_rewards = rollouts(
            completions,
            trainer_state=SimpleNamespace(global_step=step),
            completion_ids=[tokenizer(text)["input_ids"] for text in completions],
            **columns,
        )
        verl_rewards = [
            score_completion(exported_run, row, text)["score"]
            for row, group in zip(step_rows, groups, strict=True)
            for text in group
        ]
        assert verl_rewards == trl_rewards
        assert len(set(verl_rewards)) > 1


def test_validation_problems_equal_those_of_trl(exported_run: ExportedRun) -> None:
    rows = pq.read_table(exported_run.folder / "validation.parquet").to_pylist()
    records = read_records(exported_run.results.score / "validation.jsonl")
    expected = select_balanced(records, exported_run.params.validation.problems)
    assert [row["extra_info"]["id"] for row in rows] == [record.id for record in expected]
    for row, record in zip(rows, expected, strict=True):
        assert row["prompt"][0]["content"] == exported_run.task.prompt(record, [])
        assert score_completion(exported_run, row, exported_run.task.reference_completion(record))["acc"] == 1.0


def test_rewards_need_only_the_exported_folder(exported_run: ExportedRun, tmp_path: Path) -> None:
    copy = shutil.copytree(exported_run.folder, tmp_path / "copy")
    ablations = exported_run.params.ablations.model_copy(update={"run": [], "variants": {}})
    params = exported_run.params.model_copy(update={"ablations": ablations})
    assert parse_params(read_yaml(copy / "params.yaml"), "copy") == params
    code = (
        "import json, pathlib, sys, pyarrow.parquet as pq\n"
        "sys.modules.update(ray=None, verl=None)  # neither can be imported\n"
        "import reward\n"
        "rows = pq.read_table('train.parquet').to_pylist()\n"
        "print(json.dumps([reward.compute_score(r['data_source'], t, r['reward_model']['ground_truth'],"
        " r['extra_info'])['score'] for r, t in zip(rows, json.load(sys.stdin))]))\n"
        "assert 'torch' not in sys.modules"
    )
    texts = [build_completions(exported_run, row)[index % 4] for index, row in enumerate(exported_run.rows)]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=copy, env=env, input=json.dumps(texts), text=True, capture_output=True
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == [
        score_completion(exported_run, row, text)["score"] for row, text in zip(exported_run.rows, texts, strict=True)
    ]


def test_the_manifest_holds_the_runs_identity(exported_run: ExportedRun) -> None:
    manifest = json.loads((exported_run.folder / "manifest.json").read_text())
    assert manifest["run"] == {"task": exported_run.task.name, "method": "grpo", "size": SIZE, "seed": SEED}
    assert manifest["rows"] == {
        "train.parquet": len(exported_run.rows),
        "validation.parquet": manifest["rows"]["validation.parquet"],
    }
    digest = hashlib.sha256((exported_run.folder / "train.parquet").read_bytes()).hexdigest()
    assert manifest["sha256"]["train.parquet"] == digest


def test_exports_of_a_run_are_identical(planning: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(planning.project)
    raw = planning.params.model_dump(mode="json")
    again = export_run(planning.params, RUN, CLUSTER, tmp_path / "again")
    assert read_files(again) == read_files(planning.folder)
    assert export_run(planning.params, RUN, CLUSTER, again) == again  # replaces itself
    warmer = parse_params(merge_values(raw, {"grpo": {"temperature": 0.9}}), "warmer")
    other = export_run(warmer, RUN, CLUSTER, tmp_path / "other")
    assert read_checkpoints(other) != read_checkpoints(again)
    saved_more = parse_params(merge_values(raw, {"grpo": {"save_steps": 7}}), "saved more")
    assert read_checkpoints(export_run(saved_more, RUN, CLUSTER, other)) == read_checkpoints(again)


def test_other_files_are_not_overwritten(
    planning: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planning.project)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FolderInUse, match="not an exported run"):
        export_run(planning.params, RUN, CLUSTER, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"grpo-8-6\.parquet"):
        export_run(planning.params, Run("grpo", SIZE, 6), CLUSTER, tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_run_without_validation_problems_is_refused(
    planning: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(planning.project, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    validation = paths.results("planning").score / "validation.jsonl"
    validation.write_text("")
    with pytest.raises(ValueError, match=f"{validation}: verl needs a problem in it; fix: split.validation"):
        export_run(planning.params, RUN, CLUSTER, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_checkpoints(folder: Path) -> str:
    return str(json.loads((folder / "manifest.json").read_text())["checkpoints"])


def test_modules_are_imported_without_ray_or_verl() -> None:
    names = ("config", "export", "jobs", "rewards", "rows", "settings")
    code = "import sys; sys.modules.update(ray=None, verl=None)\n"
    code += "\n".join(f"import planward.integrations.verl.{name}" for name in names)
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True)


# Rewards.


def test_rewards_are_sparse_or_dense(planning: ExportedRun, tmp_path: Path) -> None:
    row = planning.rows[0]
    correct, partial, *_ = build_completions(planning, row)
    verdict = planning.task.verify(parse_record(row), partial, json.loads(row["extra_info"]["alias"]))
    assert -1 < verdict.reward < 1
    assert score_completion(planning, row, correct) == {
        "score": 1.0,
        "acc": 1.0,
        "verdict": 1.0,
        "label": planning.task.labels[0],
    }
    expected = {"acc": 0.0, "verdict": verdict.reward, "label": verdict.label}
    assert score_completion(planning, row, partial) == {"score": -1.0} | expected
    dense = copy_with_params(planning, tmp_path / "dense", "reward: sparse", "reward: dense")
    assert score_completion(dense, row, partial) == {"score": verdict.reward} | expected


def copy_with_params(run: ExportedRun, folder: Path, old: str, new: str) -> ExportedRun:
    """Copy the exported folder and replace a text in its params.yaml."""
    shutil.copytree(run.folder, folder)
    text = (folder / "params.yaml").read_text()
    assert old in text
    (folder / "params.yaml").write_text(text.replace(old, new))
    return ExportedRun(run.project, run.params, run.task, folder)


@pytest.mark.parametrize(
    ("changes", "message"),
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
def test_an_invalid_row_is_an_error_not_a_reward(planning: ExportedRun, changes: dict[str, Any], message: str) -> None:
    row = planning.rows[0]
    arguments = {
        "data_source": row["data_source"],
        "ground_truth": row["reward_model"]["ground_truth"],
        "extra_info": row["extra_info"],
    }
    with pytest.raises(InvalidRow, match=message):
        compute_score(**arguments | changes, solution_str="(fly a b)", folder=planning.folder)


def test_a_missing_problem_is_an_error_not_a_reward(planning: ExportedRun, tmp_path: Path) -> None:
    run = copy_with_params(planning, tmp_path / "broken", "reward: sparse", "reward: sparse")
    shutil.rmtree(run.folder / "problems")
    with pytest.raises(PddlError, match="no such file"):
        score_completion(run, planning.rows[0], "(fly a b)")


def test_only_training_verdicts_are_audited(
    planning: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited_run = copy_with_params(planning, tmp_path / "audited", "audit_share: 0.01", "audit_share: 1.0")
    row = planning.rows[0]
    correct = build_completions(planning, row)[0]
    assert score_completion(audited_run, row, correct)["score"] == 1.0
    judge = rewards._load_judge(audited_run.folder.resolve())
    monkeypatch.setattr(judge.task, "judge", lambda pairs: [planning.task.verify(pairs[0][0], "")])
    with pytest.raises(VerifierError, match=r"verify returns .*, judge "):
        score_completion(audited_run, row, correct)
    monkeypatch.setattr(judge.task, "judge", lambda _: pytest.fail("a validation problem was audited"))
    row["extra_info"]["split"] = "validation"
    assert score_completion(audited_run, row, correct)["score"] == 1.0


def test_the_reward_function_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(compute_score)) is compute_score


# Settings.


def build_test_settings(params: Params, cluster: ClusterConfig = CLUSTER, plain: bool = True) -> dict[str, Any]:
    return build_settings(params, cluster, model="m", plain=plain, name="n", checkpoints=Path("/c"))


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("grpo.replay", {"grpo": {"replay": True}}),
        ("grpo.adaptive.curriculum", {"grpo": {"adaptive": {"curriculum": True}}}),
        ("grpo.adaptive.domain_weights", {"grpo": {"adaptive": {"domain_weights": True}}}),
        ("grpo.adaptive.dynamic_sampling", {"grpo": {"adaptive": {"dynamic_sampling": True}}}),
        ("grpo.temperatures", {"grpo": {"temperatures": {"easy": 0.8, "medium": 1.0, "hard": 1.2}}}),
        ("grpo.loss_type", {"grpo": {"loss_type": "bnpo"}}),
        ("grpo.entropy_coef", {"grpo": {"loss_type": "dr_grpo", "entropy_coef": 0.1}}),
        ("grpo.scale_rewards", {"grpo": {"scale_rewards": "batch"}}),
        ("grpo.warmup_ratio", {"grpo": {"warmup_ratio": 0.1}}),
        ("validation.patience", {"validation": {"patience": 2}}),
        ("model.backend", {"model": {"backend": "unsloth"}}),
        ("model.load_in_4bit", {"model": {"load_in_4bit": True}}),
        ("model.precision", {"model": {"precision": "float32"}}),
        (
            "model.lora.dropout",
            {"model": {"lora": {"r": 8, "alpha": 16, "dropout": 0.1, "target_modules": "all-linear", "merge": True}}},
        ),
    ],
)
def test_unsupported_parameters_are_named(small: Callable[..., Params], key: str, changes: dict[str, Any]) -> None:
    raw = merge_values(small(**PLANNING).model_dump(mode="json"), changes)
    raw["ablations"]["variants"] = {}  # some do not go with the changes
    with pytest.raises(ParamsError, match=key.replace(".", r"\.")):
        build_test_settings(parse_params(raw, "test"))


def test_completions_must_divide_by_the_gpus(small: Callable[..., Params]) -> None:
    with pytest.raises(ParamsError, match=r"cluster\.gpus_per_node = 7 GPUs"):
        build_test_settings(small(**PLANNING), CLUSTER.model_copy(update={"gpus_per_node": 7}))


@pytest.mark.parametrize("schedule_type", ["linear", "cosine", "constant"])
def test_learning_rates_equal_those_of_trl(small: Callable[..., Params], schedule_type: str) -> None:
    grpo = {"steps": 7, "lr_scheduler_type": schedule_type, "extendable": False}
    prefix = "actor_rollout_ref.actor.optim."
    settings = build_test_settings(small(**merge_values(PLANNING, {"grpo": grpo})))
    optim = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
    trl_optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=0.1, weight_decay=0.0)
    trl_scheduler = get_scheduler(schedule_type, trl_optimizer, num_warmup_steps=0, num_training_steps=7)
    if optim.get("optimizer") != "LinearAdamW":
        assert optim["lr_scheduler_type"] == schedule_type  # verl's own; its values are tested below
        return
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = LinearAdamW([weight], lr=0.1, weight_decay=0.0, **optim["override_optimizer_config"])
    for step in range(7):
        if step == 4:  # resume from a checkpoint
            resumed_optimizer = LinearAdamW([weight], lr=0.1, weight_decay=0.0, **optim["override_optimizer_config"])
            resumed_optimizer.load_state_dict(optimizer.state_dict())
            optimizer = resumed_optimizer
        assert 0.1 * optimizer.compute_factor() == pytest.approx(trl_scheduler.get_last_lr()[0])
        for each in (optimizer, trl_optimizer):
            for parameter in each.param_groups[0]["params"]:
                parameter.grad = torch.tensor([1.0, -0.5 * step])
            each.step()
        trl_scheduler.step()
        assert torch.equal(weight, trl_optimizer.param_groups[0]["params"][0])
    assert optimizer.compute_factor() == 0.0
    assert optimizer.param_groups[0]["lr"] == 0.1


@needs_verl
@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp", "Cs"), exclude_characters="$")))
def test_text_survives_hydras_grammar(text: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (override,) = OverridesParser.create().parse_overrides([f"key={_format_value(text)}"])
    assert override.value() == text


def compose_config(folder: Path, overrides: tuple[str, ...] = ()) -> Any:
    """verl's configuration with the overrides of an exported folder."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", [*read_overrides(folder), *overrides])


@needs_verl
def test_verl_accepts_the_settings(exported_run: ExportedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra.errors import ConfigCompositionException
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    monkeypatch.chdir(exported_run.folder)
    with pytest.raises(ConfigCompositionException):  # so every key of the overrides is one of verl's
        compose_config(exported_run.folder, ("trainer.no_such_key=1",))
    config, grpo = compose_config(exported_run.folder), exported_run.params.grpo
    OmegaConf.to_container(config.actor_rollout_ref, resolve=True, throw_on_missing=True)
    # needs no installed engine
    sglang = compose_config(exported_run.folder, ("actor_rollout_ref.rollout.name=sglang",))
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
    assert config.data.train_batch_size * config.trainer.total_training_steps == len(exported_run.rows)
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (1, 2)
    assert config.trainer.default_local_dir.startswith("/nowhere/checkpoints/")
    assert not config.data.shuffle
    model = exported_run.params.model
    assert config.actor_rollout_ref.model.lora_rank == (model.lora.r if model.lora else 0)


@needs_verl
def test_verl_accepts_lora_chat_options_and_every_loss(small: Callable[..., Params], tmp_path: Path) -> None:
    modes = {"dapo": "token-mean", "grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
    for loss, mode in modes.items():
        changes = {
            "model": {"lora": LORA},
            "prompt": {"chat_template_options": {"enable_thinking": False}},
            "grpo": {"loss_type": loss, "scale_rewards": "group", "beta": 0.02, "top_k": 50},
        }
        settings = build_test_settings(small(**merge_values(PLANNING, changes)), plain=False)
        (tmp_path / "overrides.txt").write_text("\n".join(format_overrides(settings)))
        config = compose_config(tmp_path)
        actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
        assert actor.loss_agg_mode == mode
        assert (actor.use_kl_loss, actor.kl_loss_coef, config.algorithm.norm_adv_by_std_in_grpo) == (True, 0.02, True)
        assert (model.lora_rank, model.lora_alpha, list(model.target_modules)) == (8, 16, ["q_proj", "v_proj"])
        assert (config.actor_rollout_ref.rollout.top_k, model.custom_chat_template) == (50, None)
        assert config.data.apply_chat_template_kwargs == {"enable_thinking": False}


@needs_trainer
def test_verl_trains_adapters_in_float32(small: Callable[..., Params]) -> None:
    from verl.utils.torch_dtypes import PrecisionType
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    settings = build_test_settings(small(**merge_values(PLANNING, {"model": {"lora": LORA}})))
    dtype = PrecisionType.to_dtype(settings["actor_rollout_ref.actor.fsdp_config.model_dtype"])
    network = AutoModelForCausalLM.from_pretrained(str(ROOT / "models/base"), dtype=dtype)
    keys = ("lora_rank", "lora_alpha", "target_modules")
    values = {key: settings[f"actor_rollout_ref.model.{key}"] for key in keys}
    config = SimpleNamespace(**values, target_parameters=None, exclude_modules=None)
    network = FSDPEngine._build_lora_module(SimpleNamespace(model_config=config), network)
    assert {weight.dtype for weight in network.parameters() if weight.requires_grad} == {torch.float32}


@needs_verl
@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo"])
def test_losses_are_aggregated_as_in_trl(small: Callable[..., Params], loss: str) -> None:
    from verl.trainer.ppo.core_algos import agg_loss

    params = small(**merge_values(PLANNING, {"grpo": {"loss_type": loss}, "prompt": {"max_completion_tokens": 5}}))
    settings = build_test_settings(params)
    mode, factor = (settings[f"actor_rollout_ref.actor.{key}"] for key in ("loss_agg_mode", "loss_scale_factor"))
    lengths = torch.tensor([3, 1, 2])
    losses, mask = torch.rand(3, 4), (torch.arange(4) < lengths[:, None]).float()
    sums = (losses * mask).sum(1)
    trl = {  # trl.GRPOTrainer._compute_loss, of one process and one forward pass
        "dapo": sums.sum() / mask.sum(),
        "grpo": (sums / mask.sum(1)).mean(),
        "dr_grpo": sums.sum() / (3 * 5),
    }[loss]
    assert agg_loss(losses, mask, mode, loss_scale_factor=factor) == pytest.approx(trl.item())


@needs_verl
def test_verls_cosine_schedule_equals_that_of_trl() -> None:
    from verl.utils.torch_functional import get_cosine_schedule_with_warmup

    first, second = (torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2))
    trl, verl = get_scheduler("cosine", first, 0, 9), get_cosine_schedule_with_warmup(second, 0, 9, min_lr_ratio=0.0)
    for _ in range(9):
        assert verl.get_last_lr() == pytest.approx(trl.get_last_lr())
        for optimizer, scheduler in ((first, trl), (second, verl)):
            optimizer.step()
            scheduler.step()


# verl's own classes on an exported folder.


@needs_verl
def test_verls_dataset_follows_the_schedule_with_trls_tokens(
    exported_run: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    from torch.utils.data import DataLoader
    from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.dataset.rl_dataset import collate_fn
    from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder

    monkeypatch.chdir(exported_run.folder)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    config = compose_config(exported_run.folder)
    verl_tokenizer = omega_conf_to_dataclass(config.actor_rollout_ref.model).tokenizer
    tokenizer, builder = exported_run.tokenizer, ContinuousTokenBuilder(verl_tokenizer)
    data = create_rl_dataset(config.data.train_files, config.data, verl_tokenizer, None)
    batches = DataLoader(
        data,
        batch_size=config.data.train_batch_size,
        sampler=create_rl_sampler(config.data, data),
        collate_fn=collate_fn,
        drop_last=True,
    )
    slots = list[tuple[int, int, str]]()
    for step, batch in enumerate(batches):
        for info, prompt in zip(batch["extra_info"], batch["raw_prompt"], strict=True):
            assert info["step"] == step
            slots.append((info["step"], info["slot"], info["id"]))
            ids = builder.build_initial_tokens(list(prompt))
            assert ids == encode_prompt(tokenizer, prompt[0]["content"], {})
            assert len(ids) == info["prompt_tokens"] <= config.actor_rollout_ref.rollout.prompt_length
    assert slots == [(slot["step"], slot["slot"], slot["id"]) for slot in exported_run.schedule]
    validation = create_rl_dataset(config.data.val_files, config.data, verl_tokenizer, None, is_train=False)
    assert len(validation) == pq.read_metadata(exported_run.folder / "validation.parquet").num_rows


@needs_verl
def test_verls_reward_worker_returns_our_rewards(planning: ExportedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    from verl import DataProto
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    monkeypatch.chdir(planning.folder)
    tokenizer = planning.tokenizer
    pairs = [(row, text) for row in planning.rows for text in build_completions(planning, row)[:4]]
    completions = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for _, text in pairs]
    longest = max(map(len, completions))
    padding = [longest - len(ids) for ids in completions]
    responses = [[*ids, *[tokenizer.pad_token_id] * pad] for ids, pad in zip(completions, padding, strict=True)]
    mask = [[1, *[1] * len(ids), *[0] * pad] for ids, pad in zip(completions, padding, strict=True)]
    columns = {name: [row[name] for row, _ in pairs] for name in ("data_source", "reward_model", "extra_info")}
    batch = DataProto.from_dict(
        tensors={
            "prompts": torch.zeros(len(completions), 1, dtype=torch.long),
            "responses": torch.tensor(responses),
            "attention_mask": torch.tensor(mask),
        },
        non_tensors={name: np.array(values, dtype=object) for name, values in columns.items()},
    )

    async def compute_scores() -> list[dict[str, Any]]:
        return list(await RewardLoopWorker(compose_config(planning.folder)).compute_score_batch(batch))

    expected = [
        score_completion(planning, row, tokenizer.decode(ids, skip_special_tokens=True))
        for (row, _), ids in zip(pairs, completions, strict=True)
    ]
    scores = asyncio.run(compute_scores())
    assert [score["reward_score"] for score in scores] == [score["score"] for score in expected]
    assert [score["reward_extra_info"] for score in scores] == expected
    assert {score["acc"] for score in expected} == {0.0, 1.0}


@needs_verl
def test_success_is_verls_main_validation_metric(planning: ExportedRun) -> None:
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    row = planning.rows[0]
    scores = [score_completion(planning, row, text) for text in build_completions(planning, row)[:2]]
    columns = {name: [score[name] for score in scores] for name in scores[0]}
    metrics = process_validation_metrics([row["data_source"]] * 2, ["a", "b"], columns)[row["data_source"]]
    assert metrics["acc"]["mean@1"] == 0.5
    assert "label" not in metrics


@needs_trainer
def test_an_incomplete_group_stops_the_run(planning: ExportedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.v1 import replay_buffer
    from verl.utils.import_utils import load_extern_type

    config = compose_config(planning.folder).trainer.v1.sampler
    buffer_class = load_extern_type(config.custom_sampler.path, config.custom_sampler.name)
    prompts = {f"p{i}": {"is_prompt": True, "status": "finished", "global_steps": 1} for i in range(2)}
    completions = {f"p{i}_{j}_0": {"status": "success", "global_steps": 1} for i in range(2) for j in range(2)}
    queue = {"train": {**prompts, **completions}}
    monkeypatch.setattr(replay_buffer.tq, "kv_list", lambda: queue)
    monkeypatch.setattr(replay_buffer.tq, "kv_clear", lambda **_: None)

    def sample(buffer_class: type) -> Any:
        buffer = buffer_class(
            "sync", {}, config.max_off_policy_threshold, config.max_off_policy_strategy, {}, poll_interval=0.01
        )
        return buffer.sample(global_steps=1, partition_id="train", batch_size=2)[0].keys

    assert sorted(sample(buffer_class)) == sorted(completions)
    prompts["p1"]["status"] = "failure"
    queue["train"] = {**prompts, **{key: completions[key] for key in list(completions)[:3]}}
    assert len(sample(replay_buffer.ReplayBuffer)) == 3  # verl itself trains on the rest
    with pytest.raises(RuntimeError, match="1 of train"):
        sample(buffer_class)


# A real Ray cluster.


@dataclass(frozen=True)
class Head:
    address: str
    env: dict[str, str]  # with the token


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A Ray head node with a token; it is ended with all its processes."""
    folder = Path(tmp_path_factory.mktemp("r"))
    python_path = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path and Path(path) != ROOT / "src"]
    token = secrets.token_hex(32)
    env = dict(os.environ) | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "OMP_NUM_THREADS": "1"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # jobs start `python`
    head_env = env | {"PYTHONPATH": ":".join(python_path), "PATH": path}  # without planward, which jobs upload
    with ExitStack() as stack:
        for attempt in range(3):  # Ray gives its node 30 seconds to register, which a busy machine can exceed
            address = start_head(folder / f"head-{attempt}.log", head_env, stack)
            if address is not None:
                break
            stack.close()
        else:
            pytest.fail(f"Ray's head did not come up: {(folder / 'head-2.log').read_text()[-3000:]}")
        yield Head(address, env | {"PYTHONPATH": ":".join([str(ROOT / "src"), *python_path])})


def start_head(log_path: Path, env: dict[str, str], stack: ExitStack) -> str | None:
    """Start a head node, ended by `stack`: its address, or None if it does not answer."""
    temp = Path(f"/tmp/planward-{secrets.token_hex(4)}")  # short, since Ray's sockets are below it
    ports = find_free_ports(4)
    names = ("--port", "--dashboard-port", "--ray-client-server-port", "--dashboard-agent-listen-port")
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"),
        *("--dashboard-host", "127.0.0.1", "--node-ip-address", "127.0.0.1", "--temp-dir", str(temp)),
        *("--num-cpus", "24", "--resources", '{"judge": 2}', "--object-store-memory", str(128 << 20)),
        *(word for pair in zip(names, map(str, ports), strict=True) for word in pair),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
    ]
    log = stack.enter_context(log_path.open("w"))
    stack.callback(shutil.rmtree, temp, ignore_errors=True)
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    stack.callback(end_head, process)
    address = f"http://127.0.0.1:{ports[1]}"
    agent = f"http://127.0.0.1:{ports[3]}"  # starts jobs, and comes up after the dashboard
    urls = (f"{address}/api/version", f"{agent}/api/local_raylet_healthz")
    return address if all(is_head_up(url, env["RAY_AUTH_TOKEN"], process) for url in urls) else None


def end_head(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # with --block, this ends the node's processes
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    process.kill()


LAUNCH = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it, and so do its children
from planward.integrations.verl.jobs import launch_job
sys.exit(launch_job(Path(sys.argv[1]), sys.argv[2], entrypoint=sys.argv[3:] or None))
"""


def start_launch(folder: Path, head: Head, *entrypoint: str) -> subprocess.Popen[str]:
    """`planward launch verl` as a process, since Ray reads the token only once, at import."""
    command = [sys.executable, "-u", "-c", LAUNCH, str(folder), head.address, *entrypoint]
    return subprocess.Popen(command, env=head.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_launch(folder: Path, head: Head, *entrypoint: str) -> tuple[int, str]:
    process = start_launch(folder, head, *entrypoint)
    text, _ = process.communicate(timeout=240)
    return process.returncode, text


def find_free_ports(count: int) -> list[int]:
    """Ports on which nothing listens, chosen by the operating system."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def is_head_up(url: str, token: str, process: subprocess.Popen[bytes], timeout_s: float = 60) -> bool:
    """Whether `url` answers within `timeout_s` while `process` runs."""
    request, end = urllib.request.Request(url), time.monotonic() + timeout_s
    request.add_header("Authorization", f"Bearer {token}")
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(request, timeout=5):
            return True
        time.sleep(0.5)
    return False


SCORE_COMPLETIONS = """
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
print("scoring", flush=True)
references = [task.remote(start) for start in range(BATCHES)]
print("DIGESTS " + json.dumps([ray.get(references), digest(0)]), flush=True)
"""


COMPLETIONS, BATCHES = 10_000, 20


@pytest.mark.integration
@needs_ray
def test_workers_of_a_job_compute_the_same_rewards(exported_run: ExportedRun, head: Head, tmp_path: Path) -> None:
    folder = shutil.copytree(exported_run.folder, tmp_path / "job")
    rows = exported_run.rows
    completions = [build_completions(exported_run, row) for row in rows]
    texts = [completions[index % len(rows)][index % 4] for index in range(COMPLETIONS)]
    (folder / "texts.json").write_text(json.dumps(texts))
    (folder / "score.py").write_text(f"BATCHES = {BATCHES}\n{SCORE_COMPLETIONS}")
    status, text = run_launch(folder, head, "python", "score.py")
    assert status == 0, text
    assert "succeeded" in text.splitlines()[-1]
    (line,) = [line for line in text.splitlines() if line.startswith("DIGESTS ")]
    remote, local = json.loads(line.removeprefix("DIGESTS "))
    expected = [score_completion(exported_run, rows[index % len(rows)], text) for index, text in enumerate(texts)]
    digests = [hashlib.sha256(json.dumps(expected[i::BATCHES]).encode()).hexdigest() for i in range(BATCHES)]
    assert [digest for _, digest in remote] == digests
    assert local == digests[0]
    assert len({json.dumps(score) for score in expected}) >= 3
    assert len({worker for worker, _ in remote}) == 2


@pytest.mark.integration
@needs_ray
def test_the_command_of_a_dry_run_brings_planward(planning: ExportedRun, head: Head) -> None:
    log = list[str]()
    entrypoint = ["python", "-c", "import reward, planward; print(planward.__file__)"]
    jobs.launch_job(planning.folder, head.address, entrypoint=entrypoint, dry_run=True, print_text=log.append)
    ray, *arguments = shlex.split(log[0])
    command = [str(Path(sys.executable).with_name(ray)), *arguments]
    process = subprocess.run(command, env=head.env, capture_output=True, text=True)
    assert "/py_modules_files/" in process.stdout, process.stdout + process.stderr


@pytest.mark.integration
@needs_ray
def test_a_failed_job_is_reported(planning: ExportedRun, head: Head) -> None:
    status, text = run_launch(planning.folder, head, "python", "-c", "raise SystemExit('no' * 2)")
    assert status == 1
    assert "nono" in text
    assert "failed (Job entrypoint command failed with exit code 1)" in text.splitlines()[-1]


@pytest.mark.integration
@needs_ray
def test_an_interrupt_leaves_the_job_running_and_shows_how_to_stop_it(planning: ExportedRun, head: Head) -> None:
    code = "import time; print('re' + 'ady', flush=True); time.sleep(600)"
    process = start_launch(planning.folder, head, "python", "-c", code)
    assert process.stdout is not None
    next(line for line in process.stdout if line.strip() == "ready")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    text = process.stdout.read()
    (stop,) = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("Stop it: ")]
    words = shlex.split(stop)
    ray, job = str(Path(sys.executable).with_name("ray")), words[-1]
    assert words == ["ray", "job", "stop", "--address", head.address, job]

    def run_ray_job(verb: str) -> str:
        command = [ray, "job", verb, "--address", head.address, job]
        return subprocess.run(command, env=head.env, capture_output=True, text=True, check=True).stdout

    assert "RUNNING" in run_ray_job("status")
    run_ray_job("stop")
    assert "was stopped" in run_ray_job("status")


@pytest.mark.integration
@needs_trainer
@needs_ray
@pytest.mark.skipif(torch.cuda.is_available(), reason="training would begin on this GPU")
def test_verls_trainer_starts_and_lacks_only_gpus(planning: ExportedRun, head: Head) -> None:
    status, text = run_launch(planning.folder, head)
    assert status == 1
    assert "Total available GPUs 0 is less than total desired GPUs 2" in text, text[-4000:]


@needs_ray
def test_a_wrong_token_is_rejected(planning: ExportedRun, head: Head) -> None:
    stranger = Head(head.address, head.env | {"RAY_AUTH_TOKEN": secrets.token_hex(32)})
    status, text = run_launch(planning.folder, stranger, "python", "-c", "print('in')")
    assert status != 0
    assert "ClusterUnavailable" in text
    assert "token" in text


@needs_ray
def test_a_wrong_address_is_named(planning: ExportedRun) -> None:
    (port,) = find_free_ports(1)
    with pytest.raises(jobs.ClusterUnavailable, match=f"127.0.0.1:{port}"):
        jobs.launch_job(planning.folder, f"http://127.0.0.1:{port}")


def test_a_dry_run_prints_the_command(planning: ExportedRun, tmp_path: Path) -> None:
    log = list[str]()
    assert jobs.launch_job(planning.folder, "http://head:8265", dry_run=True, print_text=log.append) == 0
    assert "python -m verl.trainer.main_ppo" in log[0]
    assert "trainer.total_training_steps=3" in log[0]
    words = shlex.split(log[0])
    assert words[words.index("--working-dir") + 1] == str(planning.folder)
    modules = json.loads(words[words.index("--runtime-env-json") + 1])["py_modules"]
    assert modules == [str(Path(jobs.__file__).parents[2])]
    assert words[words.index("--") + 1 :] == jobs.build_command(planning.folder)
    with pytest.raises(FileNotFoundError, match="planward export verl"):
        jobs.launch_job(tmp_path, "http://head:8265")


def test_commands_export_a_run_and_print_its_submission(planning: ExportedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(planning.project)
    Path("params.yaml").write_text(planning.params.model_dump_json(exclude={"task"}))  # JSON is YAML
    CLUSTER_FILE.parent.mkdir(parents=True, exist_ok=True)
    CLUSTER_FILE.write_text(CLUSTER.model_dump_json())
    run = ["--size", str(SIZE), "--seed", str(SEED)]
    result = CliRunner().invoke(app, ["export", "verl", *run, "--out", "again"])
    assert result.exit_code == 0, result.output
    assert "planward launch verl again" in result.output
    assert (Path("again") / "train.parquet").read_bytes() == (planning.folder / "train.parquet").read_bytes()
    result = CliRunner().invoke(app, ["launch", "verl", "again", "--address", "http://head:8265", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "verl.trainer.main_ppo" in result.output
    result = CliRunner().invoke(app, ["launch", "verl", "nowhere", "--address", "http://head:8265"])
    assert result.exit_code == 2
    assert "planward export verl" in result.output
