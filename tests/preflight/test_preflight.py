"""Stages that cannot run say so before they load a model, with all that is wrong."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from endpoint_server import serve_replies
from planward.cli import app
from planward.inference import precision
from planward.inference.models import load_weights
from planward.params import LoggingConfig, ParamsError
from planward.preflight import resources
from planward.preflight.checks import find_faults
from planward.preflight.resources import measure_folders, measure_free_memory
from planward.preflight.services import list_logger_faults
from planward.preflight.stages import StageNeeds
from planward.tasks.planning.config import PlanningParams
from support import ROOT, list_command_as_user, mount, write_lines

BASE = ("evaluate", "--method", "base")
SFT = ("sft", "--size", "8", "--seed", "5")
UNLOADABLE = "no_such_network"  # the type of the model: the error of whoever loads it
WriteParams = Callable[..., None]
NEEDS_LOGGERS = pytest.mark.skipif(
    find_spec("wandb") is None or find_spec("mlflow") is None, reason="the extra `loggers` is not installed"
)
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture
def write_params(project: Path, small: Callable[..., PlanningParams]) -> WriteParams:
    """A project whose model cannot be loaded; the function writes its parameters."""
    shutil.copytree(ROOT / "models/base", project / "model")
    change_json(Path("model/config.json"), model_type=UNLOADABLE)

    def write(**sections: Any) -> None:
        sections = {"model": {"path": "model"} | sections.pop("model", {})} | sections
        document = small(**sections).model_dump(mode="json", exclude={"task"})
        Path("params.yaml").write_text(yaml.safe_dump(document))

    write()
    return write


def change_json(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def list_faults(*command: str) -> list[str]:
    """Run a stage that must stop before it loads a model; its faults."""
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2, result.output
    return parse_faults(result.output)


def parse_faults(output: str) -> list[str]:
    assert UNLOADABLE not in output
    head, *lines, end = output.strip().splitlines()
    assert head.startswith("PreflightError: ")
    assert f"cannot run: {len(lines)} fault" in head
    assert end.startswith("(PLANWARD_TRACEBACK")
    assert all(line.startswith("  ") and "; fix: " in line for line in lines), output
    return [line.strip() for line in lines]


def run_process(*command: str, **environment: str) -> str:
    """Run a stage that fails in a process of its own, with a home that has no keys; what it prints.

    Permissions of files hold for it, also where the tests run as root.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    home = {"HOME": str(Path.cwd()), "NETRC": str(Path("netrc").absolute())}
    command = (*list_command_as_user(), sys.executable, "-m", "planward", *command)
    process = subprocess.run(command, capture_output=True, text=True, env=variables | home | environment)
    assert process.returncode == 2, process.stderr
    return process.stderr


@contextmanager
def reserve_port() -> Iterator[str]:
    """The URL of a port at which nothing listens."""
    with socket.socket() as reserved_socket:
        reserved_socket.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{reserved_socket.getsockname()[1]}"


@pytest.mark.usefixtures("write_params")
def test_a_stage_without_faults_goes_on_to_load_its_model() -> None:
    result = CliRunner().invoke(app, BASE)
    assert result.exit_code == 2
    assert UNLOADABLE in result.output


@NEEDS_LOGGERS
def test_all_faults_are_listed_at_once_before_torch_is_imported(write_params: WriteParams, project: Path) -> None:
    write_params(logging={"report_to": ["wandb", "mlflow"]}, dataset_sizes=[8, 30])
    Path("model/tokenizer.json").unlink()
    weights = Path("model/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    Path("results").mkdir()
    Path("results/models").write_text("")
    (project / "torch.py").write_text("raise ImportError('torch was imported')\n")
    with reserve_port() as url:
        command = ("sft", "--size", "30", "--seed", "5")
        output = run_process(*command, PYTHONPATH=f"{project}{os.pathsep}{ROOT / 'src'}", MLFLOW_TRACKING_URI=url)
    assert "torch was imported" not in output
    starts = [
        "params.yaml: dataset_sizes: 30 needs 15 training problems of blocksworld, and there are 12 at most",
        "params.yaml: dataset_sizes: 30 needs 15 training problems of ferry",
        "params.yaml: logging.report_to: wandb has no API key",
        f"params.yaml: logging.report_to: mlflow: MLFLOW_TRACKING_URI: {url} does not answer",
        "model: has no tokenizer",
        "model/model.safetensors: cut off",
        "results/models: a file, where a folder is to be written",
    ]
    faults = parse_faults(output)
    assert len(faults) == len(starts), output
    for fault, start in zip(faults, starts, strict=True):
        assert fault.startswith(start)


@NEEDS_LOGGERS
def test_wandb_needs_a_key_and_its_server_unless_offline(write_params: WriteParams) -> None:
    write_params(logging={"report_to": ["wandb"]})
    [fault] = parse_faults(run_process(*SFT))
    assert "wandb has no API key" in fault
    assert "WANDB_MODE=offline" in fault
    with reserve_port() as url:
        Path("netrc").write_text(f"machine {url.removeprefix('http://')} login user password {'k' * 40}\n")
        Path("netrc").chmod(0o600)
        [fault] = parse_faults(run_process(*SFT, WANDB_BASE_URL=url))
        assert f"{url} does not answer" in fault
        [fault] = parse_faults(run_process(*SFT, WANDB_BASE_URL=url, NETRC="none", WANDB_API_KEY="k" * 40))
        assert f"{url} does not answer" in fault
    Path("model/tokenizer.json").unlink()
    [fault] = parse_faults(run_process(*SFT, WANDB_MODE="offline"))
    assert "has no tokenizer" in fault


@NEEDS_LOGGERS
def test_folders_of_loggers_must_be_writable(write_params: WriteParams, monkeypatch: pytest.MonkeyPatch) -> None:
    write_params(logging={"report_to": ["wandb"]})
    Path("logs").write_text("")
    fault = "logs: a file, where a folder is to be written"
    assert fault in parse_faults(run_process(*SFT, WANDB_MODE="offline", WANDB_DIR="logs"))[0]
    config = LoggingConfig(report_to=["mlflow"], project="project")
    for uri in ("sqlite:///logs/mlflow.db", "file:logs/mlruns", "logs/mlruns"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert fault in list_logger_faults(config)[0]
    for uri in ("sqlite:///mlflow.db", "postgresql://host/logs"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert not list_logger_faults(config)


def test_the_folder_of_trackio_is_in_the_cache_of_the_hub_and_its_server_must_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRACKIO_DIR", "TRACKIO_SERVER_URL", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "hub"
    home.write_text("")
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(home))
    config = LoggingConfig(report_to=["trackio"], project="project")
    assert list_logger_faults(config)[-1].startswith(f"{home}: a file, where a folder is to be written")
    with reserve_port() as url:
        monkeypatch.setenv("TRACKIO_SERVER_URL", url)
        assert f"trackio: TRACKIO_SERVER_URL: {url} does not answer" in list_logger_faults(config)[-1]


def test_a_missing_package_of_a_logger_is_named(write_params: WriteParams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    write_params(logging={"report_to": ["trackio"]})
    assert list_faults(*SFT) == ["params.yaml: logging.report_to: no package trackio; fix: pip install -e '.[loggers]'"]


def test_an_endpoint_needs_its_package_its_key_and_an_answer(
    write_params: WriteParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(url: str) -> None:
        endpoint = {"url": url, "model": "m", "api": "completions"}
        write_params(
            endpoints={"run": ["here"], "models": {"here": endpoint}, "access": {"here": {"key_env": "MY_KEY"}}}
        )

    monkeypatch.delenv("MY_KEY", raising=False)
    monkeypatch.setitem(sys.modules, "openai", None)
    with reserve_port() as url:
        write(f"{url}/v1")
        package, key, address = list_faults("endpoints", "evaluate", "here")
    assert "endpoints.models.here: needs openai" in package
    assert "endpoints.access.here.key_env: the environment variable MY_KEY is not set" in key
    assert f"endpoints.models.here.url: {url}/v1 does not answer" in address
    monkeypatch.setenv("MY_KEY", "secret")
    with serve_replies() as server:
        write(f"{server.url}/v1")
        assert len(list_faults("endpoints", "evaluate", "here")) == 1
        assert not server.bodies


def test_an_endpoint_whose_answers_are_stored_needs_nothing(write_params: WriteParams) -> None:
    pytest.importorskip("openai", reason="the extra `endpoints` is not installed")
    Path("model/tokenizer.json").unlink()
    write_lines(Path("results/score/test.jsonl"), [{}, {}])
    with reserve_port() as url:
        endpoint = {"url": url, "model": "m", "api": "completions"}
        write_params(endpoints={"run": ["here"], "models": {"here": endpoint}}, evaluate={"shots": [0, 2]})
        write_lines(Path("results/endpoints/here.jsonl"), [{}] * 3)  # of 2 problems with 0 and with 2 examples
        assert len(list_faults("endpoints", "evaluate", "here")) == 2
        write_lines(Path("results/endpoints/here.jsonl"), [{}] * 4)
        [fault] = list_faults("endpoints", "evaluate", "here")
        assert "has no tokenizer" in fault


@without_gpu
@pytest.mark.parametrize("has_instructions", [True, False])
def test_a_processor_without_bfloat16_is_warned_of(
    write_params: WriteParams, monkeypatch: pytest.MonkeyPatch, has_instructions: bool
) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda _: has_instructions)
    write_params(model={"precision": "bfloat16"})
    output = CliRunner().invoke(app, BASE).output
    assert UNLOADABLE in output
    warning = "warning: params.yaml: model.precision: this processor has no instructions for bfloat16"
    assert output.count(warning) == (not has_instructions)
    write_params()
    assert "warning" not in CliRunner().invoke(app, BASE).output


@pytest.mark.usefixtures("write_params")
def test_a_read_only_folder_is_named() -> None:
    with mount("results", "ro"):
        [fault] = list_faults(*BASE)
    assert "results: cannot be written" in fault


@pytest.mark.usefixtures("write_params")
def test_folders_without_permission_are_named() -> None:
    for name in ("results", ".checkpoints"):
        Path(name).mkdir()
        Path(name).chmod(0o500)
    results, checkpoints = parse_faults(run_process(*SFT))
    assert results.startswith("results: cannot be written by ")
    assert results.endswith("; fix: chmod or chown it, or mount it writable")
    assert checkpoints.startswith(".checkpoints: cannot be written by ")


@pytest.mark.usefixtures("write_params")
def test_a_file_that_may_not_be_read_is_named() -> None:
    Path("model/config.json").chmod(0)
    [fault] = parse_faults(run_process(*BASE))
    assert fault.startswith("model/config.json: ")
    assert "Permission denied" in fault


def test_files_that_vanish_meanwhile_count_as_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run may remove its old checkpoints."""
    checkpoints, list_files = tmp_path / "checkpoints", os.walk

    def remove_one(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for entry in list_files(folder):
            (checkpoints / "old").unlink(missing_ok=True)
            yield entry

    checkpoints.mkdir()
    (checkpoints / "old").write_bytes(b"123")
    (checkpoints / "new").write_bytes(b"12345")
    assert measure_folders(checkpoints) == 8
    monkeypatch.setattr(os, "walk", remove_one)
    assert measure_folders(checkpoints) == 5


@pytest.mark.usefixtures("write_params")
def test_checkpoints_must_fit_on_the_disk() -> None:
    with mount(".checkpoints", "size=4m"):
        [fault] = list_faults(*SFT)
    assert fault.startswith(".checkpoints: 4.0 MiB free on their disk; models and checkpoints take at least")


@without_gpu
def test_backends_that_need_a_gpu_and_packages_say_so(
    write_params: WriteParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("vllm", "unsloth", "bitsandbytes"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delenv("UNSLOTH_ALLOW_CPU", raising=False)
    write_params(model={"generation": "vllm"})
    package, gpu = list_faults(*BASE)
    assert "params.yaml: model.generation is vllm, which is not installed" in package
    assert "params.yaml: model.vllm.mode: colocate needs CUDA, and torch finds no GPU" in gpu
    with reserve_port() as url:
        write_params(model={"generation": "vllm", "vllm": {"mode": "server", "url": url}})
        [fault] = list_faults(*BASE)
        assert f"params.yaml: model.vllm.url: {url} does not answer" in fault
    write_params(model={"backend": "unsloth"})
    package, gpu = list_faults(*BASE)
    assert "model.backend: unsloth is not installed" in package
    assert "model.backend: unsloth needs CUDA, and torch finds no GPU" in gpu
    temperatures = {"easy": 0.8, "medium": 1.0, "hard": 1.2}
    write_params(model={"backend": "unsloth"}, grpo={"from": "base", "temperatures": temperatures})
    faults = list_faults("grpo", "--size", "8", "--seed", "5")
    assert "model.backend: unsloth needs grpo.temperatures: null" in faults[2]
    write_params(model={"load_in_4bit": True})
    lora, package = list_faults(*BASE)
    assert "fix: set model.lora" in lora
    assert "model.load_in_4bit: needs bitsandbytes, which is not installed" in package


@pytest.mark.usefixtures("write_params")
def test_weights_that_cannot_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planward.preflight.resources.has_cuda", lambda: False)
    parameters = 10**12  # four terabytes in 32 bits
    header = json.dumps({"w": {"dtype": "F16", "shape": [10**6, 10**6], "data_offsets": [0, 2 * parameters]}}).encode()
    with Path("model/model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + 2 * parameters)  # no block is written
    [fault] = list_faults(*BASE)
    assert fault.startswith("params.yaml: model.path: ")
    assert "weights and optimizer take at least 3725.3 GiB" in fault


@without_gpu
def test_flash_attention_needs_its_package_and_a_gpu(
    write_params: WriteParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flash_attn", "flash_attn_interface", "kernels"):
        monkeypatch.setitem(sys.modules, name, None)
    write_params(model={"attention": "flash_attention_2", "backend": "transformers"})
    package, gpu = list_faults(*BASE)
    start = "params.yaml: model.attention: flash_attention_2 needs"
    assert package.startswith(f"{start} flash_attn or kernels, of which none is installed; fix: pip install flash-attn")
    assert gpu.startswith(f"{start} CUDA, and torch finds no GPU; fix: model.attention: sdpa")
    write_params(model={"attention": "flash_attention_3", "backend": "transformers"})
    assert "flash_attn_interface or kernels" in list_faults(*BASE)[0]
    write_params(model={"attention": "sdpa"})
    assert UNLOADABLE in CliRunner().invoke(app, BASE).output


@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_within_every_control_group_and_slurms_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.delenv("SLURM_MEM_PER_NODE", raising=False)
    files, line, cache_key = ("max current stat", "0::", "inactive_file")
    mount = tmp_path / "sys/fs/cgroup"
    if version == 1:
        files, line, cache_key = ("limit_in_bytes usage_in_bytes stat", "4:cpu,memory:", "total_inactive_file")
        mount /= "memory"
    job = mount / "slurm/job_1"
    (job / "step_0").mkdir(parents=True)
    for folder, texts in {
        job / "step_0": ("max" if version == 2 else str(2**63 - 4096), "30", f"{cache_key} 0"),
        job: ("1000", "400", f"anon 1\n{cache_key} 100\n"),
        mount / "slurm": ("5000", "400", ""),
    }.items():
        for name, text in zip(files.split(), texts, strict=True):
            (folder / f"memory.{name}").write_text(f"{text}\n")
    process = tmp_path / "proc/self"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(f"1:name=systemd:/init\n{line}/slurm/job_1/step_0\n")
    assert measure_free_memory(tmp_path) == 700
    (process / "cgroup").write_text("0::/../elsewhere\n")
    assert measure_free_memory(tmp_path) > 5000
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "3")
    assert measure_free_memory(tmp_path) == 3 * 2**20


def test_a_model_must_be_complete(write_params: WriteParams) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    Path("model/model.safetensors.index.json").write_text(json.dumps(index))
    Path("model/model.safetensors").rename("model/model-1.safetensors")
    Path("model/tokenizer.json").write_text("{}")
    Path("model/config.json").write_text("{")
    tokenizer, config, weights = list_faults(*BASE)
    assert tokenizer.startswith("model/tokenizer.json: no tokenizer")
    assert config.startswith("model/config.json: not JSON")
    assert weights.startswith("model/model-2.safetensors: missing")
    for empty in ({}, []):
        Path("model/model.safetensors.index.json").write_text(json.dumps({"weight_map": empty}))
        assert list_faults(*BASE)[-1].startswith("model/model.safetensors.index.json: names no weights")
    shutil.rmtree("model")
    [fault] = list_faults(*BASE)
    assert fault.startswith("params.yaml: model.path: no folder model")
    Path("model").mkdir()
    Path("model/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "nowhere"}))
    tokenizer, weights, base = list_faults(*BASE)
    assert "has no tokenizer" in tokenizer
    assert weights.startswith("model/adapter_model.safetensors: missing")
    assert base.startswith("model/adapter_config.json: base_model_name_or_path: no folder nowhere")
    Path("model/adapter_config.json").write_text("{}")
    assert list_faults(*BASE)[-1].startswith("model/adapter_config.json: names no base_model_name_or_path")
    write_params(grpo={"from": "elsewhere"})
    assert list_faults("grpo", "--size", "8", "--seed", "5")[0].startswith(
        "params.yaml: grpo.from: no folder elsewhere"
    )


@pytest.mark.usefixtures("write_params")
@pytest.mark.parametrize("names", [["model"], ["model", "other"]])
def test_a_circle_of_adapters_is_named(names: list[str]) -> None:
    shutil.rmtree("model")
    for name, base in zip(names, [*names[1:], str(Path("model").resolve())], strict=True):
        Path(name).mkdir()
        Path(name, "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    [fault] = list_faults(*BASE)
    assert fault.startswith(f"{names[-1]}/adapter_config.json: base_model_name_or_path: a circle of adapters, model on")
    with pytest.raises(ParamsError, match="a circle of adapters"):
        load_weights("model", torch.float32)


def test_chat_prompts_need_a_template_and_a_chat_template_that_takes_their_turns(write_params: WriteParams) -> None:
    write_params(prompt={"style": "full", "template": "prompt.jinja"})
    template, chat = list_faults(*BASE)
    assert template.startswith("prompt.template: prompt.jinja: No such file or directory; fix: ")
    assert chat.startswith("model: the tokenizer has no chat template; fix: set prompt.style: compact")
    Path("prompt.jinja").write_text("{% block system %}Plan.{% endblock %}{% block user %}{{ problem }}{% endblock %}")
    chat_template = (
        "{% for turn in messages %}{% if turn.role == 'system' %}{{ raise_exception('No system.') }}{% endif %}"
    )
    Path("model/chat_template.jinja").write_text(f"{chat_template}{{{{ turn.content }}}}{{% endfor %}}")
    [fault] = list_faults(*BASE)
    assert "the chat template refuses the turns system, user: No system.; fix: prompt.system_turn: false" in fault
    write_params(prompt={"style": "full", "template": "prompt.jinja", "system_turn": False})
    assert UNLOADABLE in CliRunner().invoke(app, BASE).output
    Path("model/chat_template.jinja").write_text("{% for turn in messages %}")
    [fault] = list_faults(*BASE)
    assert "the chat template is faulty: line 1" in fault
    Path("model/chat_template.jinja").write_text("{% for turn in messages %}{{ turn.content }}{% endfor %}")
    Path("prompt.jinja").write_text("{% block user %}{{ problem }{% endblock %}")
    write_params(prompt={"style": "full", "template": "prompt.jinja"})
    assert list_faults(*BASE) == ["prompt.jinja:1: unexpected '}'; fix: correct the template"]


def test_weights_on_a_server_take_no_memory_here(write_params: WriteParams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "measure_free_memory", lambda: 1)
    monkeypatch.setattr(resources, "has_cuda", lambda: False)
    assert any("of memory are free" in fault for fault in list_faults(*BASE))
    with serve_replies() as server:
        write_params(model={"generation": "vllm", "vllm": {"mode": "server", "url": server.url}})
        lines = CliRunner().invoke(app, BASE).output.splitlines()  # a logged stack may show the lines of this test
        assert not any(line.startswith("PreflightError: ") for line in lines)
        assert any("of memory are free" in fault for fault in list_faults(*SFT))


def test_stages_that_need_nothing_have_no_parameters_of_a_task() -> None:
    assert not find_faults([StageNeeds("base", "models")])


def test_without_val_no_verdict_is_promised(write_params: WriteParams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAL_BINARY", "nowhere")
    monkeypatch.setitem(sys.modules, "up_fast_downward", None)
    assert "VAL is missing: no file nowhere" in list_faults(*BASE)[0]
    write_params(problems={"planner": "fast-downward"})
    assert "problems.planner: needs up-fast-downward" in list_faults("problems")[0]
