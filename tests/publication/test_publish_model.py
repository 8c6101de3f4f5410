"""Published models: folders that load without the project, complete as evaluation did, and say what they are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from dvc.cli import main as run_dvc
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig
from typer.testing import CliRunner

import chat_runs
from planward.cli import app
from planward.core.files import write_json
from planward.core.paths import results
from planward.core.prompt_templates import read_template
from planward.core.registry import load_params
from planward.core.runs import BASE, Run
from planward.inference.models import load_model
from planward.params import AdapterConfig
from planward.publication.folders import read_origin
from planward.publication.model_card import Tables, list_settings
from planward.publication.models import ModelOptions, publish_model
from planward.publication.provenance import PublicationError, compute_folder_md5, find_provenance
from planward.stages import compare, evaluate, problems, score, sft, split
from planward.tasks.planning.config import PlanningParams
from result_trees import DOMAINS, write_predictions, write_run
from support import ROOT, read_rows

Small = Callable[..., PlanningParams]
RUN = Run("sft", 4, 3407)
NAME = RUN.name
CONVERTER = """import pathlib, sys
model, _, out, _, name = sys.argv[1:]
if "fail" in name:
    sys.exit("unknown tokenizer")
pathlib.Path(out).write_text(name + " " + ",".join(sorted(path.name for path in pathlib.Path(model).iterdir())))
"""


@pytest.fixture(scope="module")
def compact(tmp_path_factory: pytest.TempPathFactory, small: Small) -> tuple[Path, PlanningParams]:
    """A project with tables of the shipped model, which stands for a trained one too."""
    folder, base = tmp_path_factory.mktemp("compact"), str(ROOT / "models/base")
    params = small(dataset_sizes=[4], model={"path": base}, evaluate={"shots": [0, 1]}, compare={"resamples": 100})
    torch.set_num_threads(1)
    with chdir(folder):
        for stage in (problems, split, score):
            stage.run(params)
        shutil.copytree(base, results().model(RUN))
        write_json(results().curves(RUN) / "metrics.json", {"run": RUN.as_dict("planning")})
        for run in (BASE, RUN):
            evaluate.run(params, run)
        compare.run(params)
    return folder, params


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory, small: Small) -> tuple[Path, PlanningParams]:
    """A project with a chat model, a LoRA adapter on it that SFT trained, a prompt template, and their tables."""
    folder = tmp_path_factory.mktemp("chat")
    template = ROOT / "workflow/prompts/facts.jinja"
    lora = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear", "merge": False}
    params = small(
        **chat_runs.SECTIONS | {"prompt": chat_runs.SECTIONS["prompt"] | {"template": str(template)}},
        dataset_sizes=[4],
        model={"path": chat_runs.BASE, "lora": lora},
        compare={"resamples": 100},
    )
    torch.set_num_threads(1)
    with chdir(folder):
        chat_runs.prepare(params)
        sft.run(params, RUN)
        for run in (BASE, RUN):
            evaluate.run(params, run)
        compare.run(params)
    return folder, params


@pytest.fixture
def project(compact: tuple[Path, PlanningParams]) -> Iterator[PlanningParams]:
    with chdir(compact[0]):
        yield compact[1]


@pytest.fixture
def chat_project(chat: tuple[Path, PlanningParams]) -> Iterator[PlanningParams]:
    with chdir(chat[0]):
        yield chat[1]


def write_yaml(name: str, content: dict[str, Any]) -> None:
    Path(name).write_text(yaml.safe_dump(content))


def publish(params: PlanningParams, target: Path, **options: Any) -> tuple[int, int]:
    """Publish the run; returns how many completions were equal, of how many."""
    check = publish_model(params, RUN, target, ModelOptions(**options))
    return check.equal, check.total


def run_card(card: str, folder: Path) -> tuple[str, str]:
    """Run the card's program outside of the project; returns its output and the card's."""
    program = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    answer = re.search(r"Its answer, .*?:\n\n```\n(.*?)\n```", card, re.DOTALL)
    assert program
    assert answer
    with chdir(folder), redirect_stdout(StringIO()) as output:
        exec(program[1], {})
    return output.getvalue().strip("\n"), answer[1]


def test_folder_completes_as_evaluation_did(project: PlanningParams, tmp_path: Path) -> None:
    target = tmp_path / NAME
    assert publish(project, target) == (4, 4)
    card = ModelCard.load(target / "README.md")
    assert card.data.license == "apache-2.0"
    output, answer = run_card(card.content, tmp_path)
    assert output == answer
    assert answer in {row["completion"].strip() for row in read_rows(results().answers(RUN))}


def test_folder_says_how_it_is_prompted_and_decoded(project: PlanningParams, tmp_path: Path) -> None:
    publish(project, tmp_path / "out", check=0)
    description = json.loads((tmp_path / "out/planward.json").read_text())
    assert description["task"] == "planning"
    assert description["run"] == RUN.as_dict("planning")
    assert description["prompt"] == project.prompt.model_dump(mode="json")
    assert description["template"] is None
    settings = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert settings["do_sample"] is False
    assert settings["max_new_tokens"] == project.prompt.max_completion_tokens
    assert settings["eos_token_id"] == load_model(project.model, str(tmp_path / "out"), 0, 0)[1].eos_token_id
    params = PlanningParams.model_validate(yaml.safe_load((tmp_path / "out/params.yaml").read_text()))
    assert params == project


def test_card_has_the_rates_of_the_tables(project: PlanningParams, tmp_path: Path) -> None:
    publish(project, tmp_path / "out", check=0)
    card = ModelCard.load(tmp_path / "out/README.md")
    rows = read_rows(results().answers(RUN))
    for result in card.data.eval_results:
        cell = [row["success"] for row in rows if row["shot_num"] == result.dataset_args["num_few_shot"]]
        assert result.metric_value == pytest.approx(sum(cell) / len(cell), abs=1e-4)
        assert result.metric_args["n"] == len(cell)
    for domain in ("blocksworld", "ferry"):
        cell = [row["success"] for row in rows if row["shot_num"] == 0 and row["domain"] == domain]
        assert f"| {domain} | {len(cell)} | " in card.text
        assert f"| {100 * sum(cell) / len(cell):.1f} [" in card.text
    assert "were not compared" in card.text
    assert "not recorded in dvc.lock" in card.text


def test_card_counts_problems_not_the_predictions_of_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_predictions(tmp_path, (100,), DOMAINS, 10, (0,))
    for method in ("sft", "grpo"):
        write_run(tmp_path, Run(method, 100, 1), DOMAINS, 10, (0,))
    params = load_params(root=ROOT)
    comparison = params.compare.model_copy(update={"resamples": 100})
    params = params.model_copy(update={"seeds": [3407, 1], "compare": comparison})
    compare.run(params)
    write_json(results().split / "metrics.json", {"kept_by_domain": {}})
    tables = Tables(params, Run("sft", 100, 3407))
    assert (tables.seeds, tables.num_problems) == (2, 10 * len(DOMAINS))


def test_card_of_grpo_from_a_folder_names_that_folder(project: PlanningParams, tmp_path: Path) -> None:
    run = Run("grpo", 4, 3407)
    write_json(Path("start/config.json"), {})
    Path("start/README.md").write_text(
        "---\nlicense: mit\n---\nFetched by `planward fetch-model org/start` from a hub.\n"
    )
    grpo = project.grpo.model_copy(update={"start": "start"})
    params = project.model_copy(update={"grpo": grpo})
    shutil.copytree(ROOT / "models/base", results().model(run))
    try:
        evaluate.run(params, run)
        compare.run(params)
        publish_model(params, run, tmp_path / "out", ModelOptions(check=0))
    finally:
        shutil.rmtree("start")
        shutil.rmtree(results().model(run))
        for suffix in (".jsonl", ".json"):
            results().answers(run).with_suffix(suffix).unlink(missing_ok=True)
        compare.run(project)
    card = ModelCard.load(tmp_path / "out/README.md")
    assert (card.data.base_model, card.data.license) == ("org/start", "mit")
    assert "Planward trained it from `org/start` by GRPO with" in card.text
    assert f"that of `{params.model.path}`" in card.text
    assert f"`base` is `{params.model.path}`;" in card.text
    assert "- Base: `org/start`, in the project's folder `start`." in card.text
    assert "| `grpo.from` | `start` |" in card.text


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: Apache-2.0\ntags: [a]\n---\n# Model\n\nLicense: MIT\n", "apache-2.0"),
        ("---\nlicense:\n- llama3\n- mit\n---\n", "llama3"),
        ("---\nlicense: other\n---\n", "other"),
        ("---\ntags: [a]\n---\n**License**: [BSD-3-Clause](LICENSE).\n", "bsd-3-clause"),
        ("---\ntags: [: a\n---\nlicense: mit\n", "mit"),
        ("Licence: Apache-2.0.\n", "apache-2.0"),
        ("Published at <https://org>; licence: CC-BY-NC-4.0.\n", "cc-by-nc-4.0"),
        ("- Licence: `gpl-3.0-or-later`.\n", "gpl-3.0-or-later"),
        ("- Licence: not stated; the base's terms apply.\n", None),
        ("LICENSE: https://example.org/mit\n", None),
        ("License: see LICENSE. License: MIT is that of the code.\n", None),
        ("License: MIT-like terms\n", None),
        ("# Model\n", None),
    ],
)
def test_licence_is_that_of_the_metadata_or_an_identifier(tmp_path: Path, card: str, licence: str | None) -> None:
    (tmp_path / "README.md").write_text(card)
    assert read_origin(tmp_path) == (None, licence)


def test_licence_of_a_silent_adapter_is_that_of_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert read_origin(Path("models/economy")) == (None, "apache-2.0")


def test_other_weights_are_noticed(project: PlanningParams, tmp_path: Path) -> None:
    file = results().model(RUN) / "model.safetensors"
    original = file.read_bytes()
    try:
        save_file({name: torch.zeros_like(tensor) for name, tensor in load_file(file).items()}, file, {"format": "pt"})
        assert publish(project, tmp_path / "out", check=2) == (0, 2)
    finally:
        file.write_bytes(original)
    assert "0 of 2 greedy completions" in (tmp_path / "out/README.md").read_text()


def test_card_lists_the_lora_of_grpo(project: PlanningParams) -> None:
    lora = AdapterConfig(r=32, alpha=64, dropout=0.0, target_modules="all-linear", merge=True)
    params = project.model_copy(update={"grpo": project.grpo.model_copy(update={"lora": lora})})
    settings = dict(list_settings(params, Run("grpo", 4, 3407)))
    assert settings["`grpo.lora.r`"] == "`32`"
    assert settings["`grpo.lora.target_modules`"] == "`all-linear`"
    assert not any(key.startswith("`grpo.lora") for key in dict(list_settings(params, RUN)))


def test_weights_that_dvc_records_with_other_parameters_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = Path("results/models") / NAME
    weights.mkdir(parents=True)
    (weights / "model.safetensors").write_text("weights")
    stage = {"cmd": "true", "params": ["sft.epochs"], "outs": [str(weights)]}
    outs = [{"path": str(weights), "hash": "md5", "md5": compute_folder_md5(weights)}]
    record = {"cmd": "true", "params": {"params.yaml": {"sft.epochs": 2}}, "outs": outs}
    write_yaml("dvc.yaml", {"stages": {"train": stage}})
    write_yaml("dvc.lock", {"schema": "2.0", "stages": {"train": record}})
    write_yaml("params.yaml", {"sft": {"epochs": 2}})
    subprocess.run(["git", "init", "--quiet"], check=True)
    assert run_dvc(["init", "--quiet"]) == 0
    assert find_provenance(weights).stage == "train"
    write_yaml("params.yaml", {"sft": {"epochs": 3}})
    with pytest.raises(PublicationError, match=r"sft\.epochs was 2 and is 3 in params\.yaml .*fix: `dvc repro`"):
        find_provenance(weights)
    (weights / "model.safetensors").write_text("other weights")
    assert find_provenance(weights).stage is None


def test_what_cannot_be_published_is_refused(project: PlanningParams, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").touch()
    with pytest.raises(PublicationError, match="exists already"):
        publish(project, tmp_path / "full", check=0)
    with pytest.raises(PublicationError, match="holds full weights, no adapter"):
        publish(project, tmp_path / "out", adapter=True)
    with pytest.raises(PublicationError, match="no file and no command nowhere"):
        publish(project, tmp_path / "out", converter="nowhere.py")
    with pytest.raises(PublicationError, match="no such folder"):
        publish_model(project, Run("other", 4, 3407), tmp_path / "out", ModelOptions())
    assert not (tmp_path / "out").exists()


def test_gguf_is_written_by_the_converter(project: PlanningParams, tmp_path: Path) -> None:
    converter = tmp_path / "convert_hf_to_gguf.py"
    converter.write_text(CONVERTER)
    publish(project, tmp_path / "out", check=0, converter=str(converter))
    assert (tmp_path / f"out/{NAME}.gguf").read_text().startswith(f"{NAME} README.md,config.json,")
    converter.write_text(CONVERTER.replace('"fail" in name', "name"))
    with pytest.raises(PublicationError, match="unknown tokenizer"):
        publish(project, tmp_path / "again", check=0, converter=str(converter))
    assert not (tmp_path / "again").exists()


def test_adapter_is_merged_or_published_alone(chat_project: PlanningParams, tmp_path: Path) -> None:
    merged_folder, adapter_folder = tmp_path / NAME, tmp_path / "alone"
    assert publish(chat_project, merged_folder, check=2) == (2, 2)
    assert publish(chat_project, adapter_folder, check=2, adapter=True) == (2, 2)
    assert (merged_folder / "model.safetensors").exists()
    assert not (adapter_folder / "model.safetensors").exists()
    assert f"Its base is `{chat_runs.BASE}`" in (adapter_folder / "README.md").read_text()
    publish(chat_project, tmp_path / "named", adapter=True, base="org/chat")
    card = ModelCard.load(tmp_path / "named/README.md")
    assert (card.data.base_model, card.data.library_name) == ("org/chat", "peft")
    config = json.loads((tmp_path / "named/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "org/chat"


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_published_settings_are_those_of_evaluation(chat_project: PlanningParams, tmp_path: Path, file: str) -> None:
    """Whether the adapter is merged or not, and wherever its base has settings and further end tokens."""
    base = Path(chat_runs.BASE)
    originals = {name: (base / name).read_text() for name in ("generation_config.json", "config.json")}
    end = json.loads(originals["config.json"])["eos_token_id"]
    try:
        (base / "generation_config.json").unlink()
        further_settings = {"repetition_penalty": 1.3, "eos_token_id": [end, end + 3]}
        write_json(base / file, json.loads(originals[file]) | further_settings)
        network, _ = load_model(chat_project.model, str(results().model(RUN)), 0, 0, training=False)
        publish(chat_project, tmp_path / "merged", check=0)
        publish(chat_project, tmp_path / "adapter", check=0, adapter=True)
        publish(chat_project, tmp_path / "named", adapter=True, base="org/chat")
    finally:
        for name, text in originals.items():
            (base / name).write_text(text)
    evaluated_settings = network.generation_config
    assert evaluated_settings.eos_token_id == [end, end + 3]
    for name in ("merged", "adapter", "named"):
        settings = GenerationConfig.from_pretrained(tmp_path / name)
        assert settings.repetition_penalty == evaluated_settings.repetition_penalty == 1.3
        assert settings.eos_token_id == evaluated_settings.eos_token_id
        assert settings.pad_token_id == evaluated_settings.pad_token_id


@pytest.mark.parametrize(("rank", "option"), [(4, ""), (17, " --max-lora-rank 32"), (32, " --max-lora-rank 32")])
def test_card_serves_an_adapter_with_its_rank(
    chat_project: PlanningParams, tmp_path: Path, rank: int, option: str
) -> None:
    file = results().model(RUN) / "adapter_config.json"
    original = file.read_text()
    try:
        write_json(file, json.loads(original) | {"r": rank})
        publish(chat_project, tmp_path / "out", check=0, adapter=True)
    finally:
        file.write_text(original)
    command = f"`vllm serve {chat_runs.BASE} --enable-lora{option} --lora-modules planward=out`"
    assert f"Serve it (not tried): {command}" in (tmp_path / "out/README.md").read_text()


def test_chat_model_keeps_its_templates(chat_project: PlanningParams, tmp_path: Path) -> None:
    target = tmp_path / NAME
    publish(chat_project, target, check=0, base="org/chat", licence="mit")
    card = ModelCard.load(target / "README.md")
    assert (card.data.base_model, card.data.license) == ("org/chat", "mit")
    output, answer = run_card(card.content, tmp_path)
    assert output == answer
    text = read_template(ROOT / "workflow/prompts/facts.jinja")
    assert json.loads((target / "planward.json").read_text())["template"] == text
    assert (target / "prompt.jinja").read_text() == text


def test_folder_is_a_model_path(project: PlanningParams, tmp_path: Path) -> None:
    publish(project, tmp_path / "out", check=0)
    model = project.model.model_copy(update={"path": str(tmp_path / "out")})
    evaluate.run(project.model_copy(update={"model": model}), BASE)
    rows = zip(read_rows(results().answers(BASE)), read_rows(results().answers(RUN)), strict=True)
    assert all(first["completion"] == second["completion"] for first, second in rows)


def test_folder_plans(project: PlanningParams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(project, tmp_path / "out", check=0)
    row = next(row for row in read_rows(results().answers(RUN)) if row["success"] and row["shot_num"] == 0)
    meta = {record["id"]: record["meta"] for record in read_rows(results().score / "test.jsonl")}[row["id"]]
    files = [str((results().problems / meta[key]).resolve()) for key in ("domain_file", "problem_file")]
    monkeypatch.chdir(tmp_path)  # without params.yaml
    result = CliRunner().invoke(app, ["plan", *files, "--model", "out"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:-1] == row["plan"].splitlines()


@pytest.mark.usefixtures("project")
def test_command_names_the_runs_that_there_are(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["publish", "grpo-9-9", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert f"there are: {NAME}" in result.output
