"""Stage `endpoints-evaluate` against `transformers serve`: the served base has the predictions of base."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

pytest.importorskip("openai", reason="needs the extra `endpoints`")

from transformers import AutoTokenizer

import chat_runs
from endpoint_server import Reply, forward_requests, serve_replies
from planward.core.registry import load_task
from planward.core.runs import BASE
from planward.params import ParamsError
from planward.stages import evaluate, problems, score, split
from planward.stages.endpoints import evaluate as evaluate_endpoint
from planward.stages.evaluate import build_test_prompts
from planward.tasks.planning.config import PlanningParams
from support import ROOT, merge_values, read_rows

MODEL = str(ROOT / "models/base")
KEY = "sk-never-shown-4711"
START_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`transformers serve`, which loads the model that a request names."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from transformers.cli.transformers import main; main()"
    command = [sys.executable, "-c", code, "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--device", "cpu", "--dtype", "float32"]
    folder = tmp_path_factory.mktemp("server")
    with (folder / "log").open("wb") as log, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as server:
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def wait_for(health: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and server.poll() is None:
        try:
            with urlopen(health, timeout=5):
                return
        except (URLError, ConnectionError):
            time.sleep(0.2)
    pytest.fail("transformers serve does not start")


@pytest.fixture(scope="module")
def prepared_project(
    small: Callable[..., PlanningParams], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, PlanningParams]:
    """A folder with the problems and the predictions of base, and its parameters."""
    params = small(model={"path": MODEL}, evaluate={"shots": [0, 1]})
    folder, before = tmp_path_factory.mktemp("project"), Path.cwd()
    os.chdir(folder)
    try:
        for stage in (problems, split, score):
            stage.run(params)
        evaluate.run(params, BASE)
    finally:
        os.chdir(before)
    return folder, params


def lay_over(params: PlanningParams, url: str, **access: object) -> PlanningParams:
    """The parameters with the endpoint `served`."""
    model = {"url": f"{url}/v1", "model": MODEL, "api": "completions"}
    section = {"run": ["served"], "models": {"served": model}, "access": {"served": access}}
    return PlanningParams.model_validate(merge_values(params.model_dump(mode="json"), {"endpoints": section}))


def list_endpoint_rows(folder: Path) -> list[dict[str, object]]:
    return read_rows(folder / "results/predictions/served-0.jsonl")


def test_killed_run_is_continued_and_its_predictions_are_those_of_base(
    prepared_project: tuple[Path, PlanningParams], url: str
) -> None:
    folder, params = prepared_project
    file = folder / "results/endpoints/served.jsonl"
    with forward_requests(url) as proxy:
        params = lay_over(params, proxy.url.removesuffix("/v1"), concurrency=2)
        (folder / "params.yaml").write_text(yaml.safe_dump(params.model_dump(mode="json", exclude={"task"})))
        command = [sys.executable, "-m", "planward", "endpoints", "evaluate", "served"]
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as run:
            while run.poll() is None and not (file.exists() and len(file.read_bytes().splitlines()) >= 3):
                time.sleep(0.01)
            run.send_signal(signal.SIGKILL)
        first_lines = file.read_bytes().splitlines(keepends=True)
        assert not (folder / "results/predictions/served-0.jsonl").exists()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        num_prompts = len(read_rows(folder / "results/predictions/base-0.jsonl"))
        assert 3 <= len(first_lines) < num_prompts
        requests = [json.dumps(body) for body in proxy.bodies]
        assert len(set(requests)) == num_prompts
        assert len(requests) - num_prompts <= 2  # at most the two that were under way when it was killed
        content = file.read_bytes()
        assert content.startswith(b"".join(line for line in first_lines if line.endswith(b"\n")))
        assert len({row["digest"] for row in read_rows(file)}) == num_prompts == len(content.splitlines())
    base = read_rows(folder / "results/predictions/base-0.jsonl")
    identity = {"method": "served", "dataset_size": 0}
    assert list_endpoint_rows(folder) == [row | identity for row in base]
    assert any(row["success"] for row in base)


def test_table_is_made_again_without_a_server(prepared_project: tuple[Path, PlanningParams]) -> None:
    folder, _ = prepared_project
    before = list_endpoint_rows(folder)
    (folder / "results/predictions/served-0.jsonl").unlink()
    command = [sys.executable, "-m", "planward", "endpoints", "evaluate", "served"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    assert list_endpoint_rows(folder) == before


def test_chat_model_answers_the_messages_of_the_task(
    project: Path, small: Callable[..., PlanningParams], url: str
) -> None:
    model = project / "model"
    params = small(**merge_values(chat_runs.SECTIONS, {"model": {"path": str(model)}, "evaluate": {"shots": [0, 1]}}))
    chat_runs.prepare(params, model)
    endpoint = {"url": f"{url}/v1", "model": str(model)}
    raw = merge_values(params.model_dump(mode="json"), {"endpoints": {"run": ["gpt"], "models": {"gpt": endpoint}}})
    params = PlanningParams.model_validate(raw)
    evaluate.run(params, BASE)
    evaluate_endpoint.run(params, "gpt")
    base_rows, served_rows = (read_rows(Path(f"results/predictions/{name}-0.jsonl")) for name in ("base", "gpt"))
    assert served_rows == [row | {"method": "gpt"} for row in base_rows]
    metrics = json.loads(Path("results/predictions/gpt-0.json").read_text())
    assert metrics["run"] == {"task": "planning", "method": "gpt", "size": 0, "seed": 0}
    assert metrics["completion_tokens"] >= len(served_rows)


def test_prompts_that_differ_in_unknown_words_are_requests_of_their_own(
    prepared_project: tuple[Path, PlanningParams], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, params = prepared_project
    project = Path(shutil.copytree(folder, tmp_path / "project"))
    monkeypatch.chdir(project)
    shutil.copytree(MODEL, "model")
    file = Path("model/tokenizer.json")
    content = json.loads(file.read_text())
    content["pre_tokenizer"] = None  # a prompt is one word, which the vocabulary lacks
    file.write_text(json.dumps(content))
    params = params.model_copy(update={"model": params.model.model_copy(update={"path": "model"})})
    with serve_replies(*(Reply(body=json.dumps({"choices": [{"text": f"answer {i}"}]})) for i in range(99))) as server:
        params = lay_over(params, server.url.removesuffix("/v1"), concurrency=1)
        evaluate_endpoint.run(params, "served")
    tokenizer = AutoTokenizer.from_pretrained("model")
    prompts = build_test_prompts(load_task(params), tokenizer, params.evaluate.shots, params)
    answers = {body["prompt"]: f"answer {i}" for i, body in enumerate(server.bodies)}
    rows = list_endpoint_rows(project)
    assert len({row["prompt"] for row in rows}) < len({prompt.prompt for prompt in prompts}) == len(server.bodies)
    assert [row["completion"] for row in rows] == [answers[str(prompt.prompt)] for prompt in prompts]


def test_key_is_in_no_file_and_no_output(prepared_project: tuple[Path, PlanningParams]) -> None:
    folder, params = prepared_project
    with serve_replies(Reply(), default=Reply(401, f"bad key {KEY}")) as server:
        params = lay_over(params, server.url.removesuffix("/v1"), key_env="PLANWARD_TEST_KEY", concurrency=1)
        (folder / "params.yaml").write_text(yaml.safe_dump(params.model_dump(mode="json", exclude={"task"})))
        command = [sys.executable, "-m", "planward", "endpoints", "evaluate", "served"]
        environment = os.environ | {"PLANWARD_TEST_KEY": KEY, "PLANWARD_TRACEBACK": "1", "OPENAI_LOG": "debug"}
        process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert process.returncode != 0
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert "bad key ***" in process.stderr
    assert KEY not in process.stdout + process.stderr
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_stage_runs_only_endpoints_that_params_ask_for(prepared_project: tuple[Path, PlanningParams]) -> None:
    with pytest.raises(ParamsError, match=r"endpoints\.run: does not name other"):
        evaluate_endpoint.run(lay_over(prepared_project[1], "http://127.0.0.1:9"), "other")
