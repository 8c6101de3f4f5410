"""Checkpoints that are damaged or of another run are set aside, and a run goes on from the one before."""

from __future__ import annotations

import errno
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback

import letters
from planward.core.files import CannotWriteError
from planward.inference import models
from planward.pretraining import adapter
from planward.pretraining.config import AdapterTrainingConfig
from planward.training.checkpoints import JOURNAL, CheckpointCallback, Journal, restore_checkpoint
from support import mount
from training_runs import KillAfter, Killed, StepRecorder, are_equal, load_weights, read_files, run_grpo, run_sft

pytestmark = pytest.mark.usefixtures("project_root")

PARAMS = letters.build_params(sft={"epochs": 3, "save_steps": 2}, grpo={"steps": 6, "save_steps": 2})
ADAPTER = AdapterTrainingConfig.model_validate(
    {
        "base": "base",
        "seed": 1,
        "steps": 6,
        "batch_size": 4,
        "examples": 3,
        "learning_rate": 3e-2,
        "warmup_ratio": 0.0,
        "lora": {"r": 8, "alpha": 16, "dropout": 0.1, "target_modules": "all-linear", "merge": False},
        "save_steps": 2,
        "validation": 1,
    }
)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def flip_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def flip_number(file: Path) -> None:
    """Leave JSON that can be read."""
    content = json.loads(file.read_text())
    content["journal"]["curves"][0]["step"] ^= 1
    file.write_text(json.dumps(content))


def add_file(file: Path) -> None:
    file.with_name("adapter_model.safetensors").write_bytes(b"of somebody else")


def list_checkpoints() -> list[str]:
    (folder,) = Path(".checkpoints").iterdir()
    return sorted(path.name for path in folder.glob("*checkpoint*"))


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `straight`, and checkpoints of the run `resumed`, which was killed."""
    folder = tmp_path_factory.mktemp("killed")
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        letters.write_base(folder / "base")
        run_sft("straight", PARAMS)
        with pytest.raises(Killed):
            run_sft("resumed", PARAMS, [KillAfter(5)])
        assert list_checkpoints() == ["checkpoint-2", "checkpoint-4"]
    return folder


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("model.safetensors", truncate, r"model.safetensors has \d+ bytes, not \d+;"),
        ("optimizer.pt", empty, r"optimizer.pt has 0 bytes, not \d+;"),
        ("model.safetensors", flip_bit, "model.safetensors is damaged;"),
        ("rng_state.pth", Path.unlink, "rng_state.pth is missing;"),
        ("trainer_state.json", add_file, "adapter_model.safetensors is none of its files;"),
        (JOURNAL, Path.unlink, f"it has no {JOURNAL},"),
        (JOURNAL, empty, f"{JOURNAL} is damaged;"),
        (JOURNAL, truncate, f"{JOURNAL} is damaged;"),
        (JOURNAL, flip_number, f"{JOURNAL} is damaged;"),
    ],
)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(
    name: str,
    damage: Callable[[Path], object],
    reason: str,
    killed_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(killed_run, tmp_path, dirs_exist_ok=True)
    (checkpoint,) = Path(".checkpoints").glob("*/checkpoint-4")
    damage(checkpoint / name)
    restored_checkpoint, journal = restore_checkpoint(checkpoint.parent)
    assert restored_checkpoint == checkpoint.with_name("checkpoint-2")
    assert max(row["step"] for row in journal.curves) == 1
    assert list_checkpoints() == ["checkpoint-2", "unusable-checkpoint-4"]
    [warning] = capsys.readouterr().out.splitlines()
    assert re.match(rf"warning: {checkpoint} is not used: .*{reason}", warning)


def test_a_run_that_skips_a_damaged_checkpoint_equals_an_uninterrupted_one(killed_run: Path, tmp_path: Path) -> None:
    shutil.copytree(killed_run, tmp_path, dirs_exist_ok=True)
    (checkpoint,) = Path(".checkpoints").glob("*/checkpoint-4")
    flip_bit(checkpoint / "optimizer.pt")
    recorder = StepRecorder()
    run_sft("resumed", PARAMS, [recorder])
    assert recorder.steps[0] == 3
    assert are_equal(load_weights("straight"), load_weights("resumed"))
    assert read_files("training/straight") == read_files("training/resumed")
    assert not list(Path(".checkpoints").iterdir())


def test_another_interval_of_checkpoints_applies_to_a_resumed_run() -> None:
    with pytest.raises(Killed):
        run_sft("model", PARAMS, [KillAfter(3)])
    sft = PARAMS.sft.model_copy(update={"save_steps": 1})
    with pytest.raises(Killed):
        run_sft("model", PARAMS.model_copy(update={"sft": sft}), [KillAfter(6)])
    assert list_checkpoints() == ["checkpoint-5"]


def test_a_checkpoint_of_another_run_is_set_aside(capsys: pytest.CaptureFixture[str]) -> None:
    straight = run_grpo("straight", PARAMS)
    with pytest.raises(Killed):
        run_grpo("other", PARAMS.model_copy(update={"seed": 1}), callbacks=[KillAfter(5)])
    (other,) = Path(".checkpoints").iterdir()
    with pytest.raises(Killed):
        run_grpo("resumed", PARAMS, callbacks=[KillAfter(3)])
    (folder,) = set(Path(".checkpoints").iterdir()) - {other}
    shutil.copytree(other / "checkpoint-4", folder / "checkpoint-4")
    shutil.copytree(folder / "checkpoint-2", folder / "checkpoint-5")
    (folder / "checkpoint-best").mkdir()
    recorder = StepRecorder()
    assert run_grpo("resumed", PARAMS, callbacks=[recorder]) == straight
    assert recorder.steps == [3, 4, 5, 6]
    assert are_equal(load_weights("straight"), load_weights("resumed"))
    output = capsys.readouterr().out
    assert f"checkpoint-4 is not used: it is a copy of {other.name}/checkpoint-4;" in output
    assert f"checkpoint-5 is not used: it is a copy of {folder.name}/checkpoint-2;" in output


def test_two_checkpoints_are_kept_with_the_files_that_they_need() -> None:
    with pytest.raises(Killed):
        run_grpo("model", PARAMS, callbacks=[KillAfter(5)])
    assert list_checkpoints() == ["checkpoint-2", "checkpoint-4"]
    (folder,) = Path(".checkpoints").iterdir()
    (folder / "rollouts-000003.parquet").unlink()
    checkpoint, journal = restore_checkpoint(folder)
    assert checkpoint == folder / "checkpoint-2"
    assert sorted(file.name for file in folder.glob("*.parquet")) == journal.files
    assert len(journal.files) == 2


def save_checkpoint(callback: CheckpointCallback, step: int) -> None:
    """What a trainer does at the end of a step after which it saves."""
    control = SimpleNamespace(should_save=True)
    callback.on_step_end(None, None, control)
    checkpoint = callback.folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text(str(step))
    callback.on_save(None, SimpleNamespace(global_step=step), control)


def test_the_newest_checkpoint_is_that_of_the_largest_step() -> None:
    callback = CheckpointCallback(Path("run"), Journal())
    for step in (8, 10):
        save_checkpoint(callback, step)
    shutil.copytree("run", "copy/run")
    assert restore_checkpoint(Path("run"))[0] == Path("run/checkpoint-10")
    assert restore_checkpoint(Path("copy/run"), max_steps=9)[0] == Path("copy/run/checkpoint-8")


def test_a_continued_run_keeps_the_checkpoint_that_it_goes_on_from() -> None:
    callback = CheckpointCallback(Path("run"), Journal(files=["rows-8"]))
    Path("run").mkdir()
    Path("run/rows-8").touch()
    save_checkpoint(callback, 8)
    checkpoint, journal = restore_checkpoint(Path("run"))
    assert checkpoint == Path("run/checkpoint-8")

    second_callback = CheckpointCallback(Path("run"), journal)
    journal.files = ["rows-10"]
    Path("run/rows-10").touch()
    save_checkpoint(second_callback, 10)
    names = {path.name for path in Path("run").iterdir()}
    assert names == {"checkpoint-8", "rows-8", "checkpoint-10", "rows-10"}


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt"])
def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(file: str, killed_run: Path, tmp_path: Path) -> None:
    shutil.copytree(killed_run, tmp_path, dirs_exist_ok=True)
    (checkpoint,) = Path(".checkpoints").glob("*/checkpoint-2")
    sizes = {path.name: path.stat().st_size for path in checkpoint.iterdir()}
    space = sum(sizes.values()) + sizes["model.safetensors"] // 2
    if file == "optimizer.pt":
        space += sizes["model.safetensors"]
    shutil.rmtree(".checkpoints")
    with mount(".checkpoints", f"size={space}"):
        with pytest.raises(CannotWriteError, match=r"cannot write \.checkpoints/sft-.*/checkpoint-4: .*; fix: free"):
            run_sft("resumed", PARAMS)
        assert list_checkpoints() == ["checkpoint-2"]
        subprocess.run(["mount", "-o", "remount,size=100m", ".checkpoints"], check=True)
        recorder = StepRecorder()
        run_sft("resumed", PARAMS, [recorder])
        assert recorder.steps[0] == 3
        assert are_equal(load_weights("straight"), load_weights("resumed"))
        assert read_files("training/straight") == read_files("training/resumed")


def test_curves_that_do_not_fit_name_their_folder() -> None:
    with (
        mount("training", "size=12k"),
        pytest.raises(CannotWriteError, match=r"^cannot write training/model: No space left on device; fix: "),
    ):
        run_sft("model", PARAMS)


def test_weights_that_do_not_fit_name_their_folder() -> None:
    network, tokenizer = models.load_model(PARAMS.model, "base", 40, 0)
    for options, reason in (("size=64k", "No space left on device"), ("ro", "Read-only file system")):
        with (
            mount("results", options),
            pytest.raises(CannotWriteError, match=f"^cannot write results/model: {reason}; fix: free space"),
        ):
            models.save_model(network, tokenizer, Path("results/model"))


def test_a_model_folder_is_complete_or_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    network, tokenizer = models.load_model(PARAMS.model, "base", 40, 0)
    Path("models/model.partial").mkdir(parents=True)  # of a killed run
    Path("models/model.partial/weights").touch()
    models.save_model(network, tokenizer, Path("models/model"))
    before = read_files("models/model")
    assert "weights" not in map(str, before)
    assert len({path.stat().st_mode for path in Path("models/model").iterdir()}) == 1  # others may load it as well

    def fail(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tokenizer, "save_pretrained", fail)
    with pytest.raises(CannotWriteError, match=r"^cannot write models/model: No space left on device"):
        models.save_model(network, tokenizer, Path("models/model"))
    assert read_files("models/model") == before
    assert [path.name for path in Path("models").iterdir()] == ["model"]


def train_adapter(name: str, config: AdapterTrainingConfig, *callbacks: TrainerCallback) -> None:
    pairs = [(f"copy {word}", ("plus", "minus")[index % 2]) for index, word in enumerate(letters.LETTERS)]
    network, tokenizer = adapter.train_adapter(
        [pairs], ["plus", "minus"], config, Path(".checkpoints", "letters"), callbacks
    )
    models.save_model(network, tokenizer, Path(name), adapter=True)


@pytest.mark.parametrize(("kill_after", "first"), [(3, 3), (5, 5)])
def test_an_adapter_resumes_to_the_same_weights(kill_after: int, first: int) -> None:
    train_adapter("straight", ADAPTER)
    shutil.rmtree(".checkpoints")  # as the stage does
    with pytest.raises(Killed):
        train_adapter("resumed", ADAPTER, KillAfter(kill_after))
    recorder = StepRecorder()
    train_adapter("resumed", ADAPTER, recorder)
    assert recorder.steps == list(range(first, 7))
    assert read_files("straight") == read_files("resumed")


def test_an_adapter_that_was_killed_at_its_end_resumes_without_a_step() -> None:
    train_adapter("straight", ADAPTER)  # its checkpoints stay, as the stage deletes them
    recorder = StepRecorder()
    train_adapter("resumed", ADAPTER, recorder)
    assert recorder.steps == []
    assert read_files("straight") == read_files("resumed")


def test_an_adapter_of_other_settings_starts_anew() -> None:
    config, recorder = ADAPTER.model_copy(update={"learning_rate": 1e-2}), StepRecorder()
    with pytest.raises(Killed):
        train_adapter("model", ADAPTER, KillAfter(5))
    train_adapter("model", config, recorder)
    assert recorder.steps[0] == 1
    shutil.rmtree(".checkpoints")
    train_adapter("straight", config)
    assert read_files("straight") == read_files("model")
