"""Parameter files, models and tables: aliases that multiply, pickles, code of others, formulas, HTML."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from planward.cli import app
from planward.core.model_folders import check_model_folder
from planward.core.tables import escape_formula, write_table
from planward.inference.models import load_weights
from planward.params import ParamsError, read_yaml
from planward.report.downloads import format_csv
from planward.tasks.planning.domains import load_domain_text
from support import ROOT, read_rows, write_lines

MAX_MEMORY_BYTES = 1 << 30
MAX_SECONDS = 120  # many times what reading takes
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>"
FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "+x")
PLAIN = ("ferry", "a=b", "", " =1", "-1", "+2.5", "-1e-5", "1e5", "'=1")


def _chain(link: str, start: str) -> str:
    """Forty levels of aliases, each nine times in the next: 9 to the power of 40 values."""
    rows = [link.format(i=i, aliases=", ".join([f"*a{i - 1}"] * 9)) for i in range(1, 40)]
    return "\n".join([f"a0: &a0 {start}", *rows, ""])


BOMBS: dict[str, tuple[str, str]] = {
    "aliases": (_chain("a{i}: &a{i} [{aliases}]", "[x]"), "more than 100,000 values"),
    "merged aliases": (_chain("a{i}: &a{i}\n  <<: [{aliases}]", "{k: 1}"), "more than 100,000 values"),
    "circle": ("seed: &a [*a]\n", "more than 100,000 values"),
    "depth": ("[" * 5_000, "not YAML: nested too deeply"),
    "length": ("a: 1\n" * 300_000, "1,500,000 characters; at most 1,000,000 are read"),
    "NUL": ("seed: \0\n", "not YAML"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_parameters_that_explode_are_refused_with_the_file_named(tmp_path: Path, name: str) -> None:
    text, reason = BOMBS[name]
    (tmp_path / "params.yaml").write_text(text)
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MAX_MEMORY_BYTES}, -1))\n"
        "from planward.core.registry import load_params\nload_params()"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=MAX_SECONDS
    )
    assert re.search(rf"ParamsError: params\.yaml: {reason}", process.stderr), process.stderr[-2000:]


def test_a_few_aliases_are_read(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: *a\n")
    assert read_yaml(tmp_path / "params.yaml") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": {"x": 1}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "models/base", tmp_path / "model"))


@pytest.fixture
def adapter(tmp_path: Path, model: Path) -> Path:
    """A LoRA adapter that names `model` as its base."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    network = get_peft_model(AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=2, target_modules=["q_proj"]))
    network.save_pretrained(tmp_path / "adapter")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(model / name, tmp_path / "adapter" / name)
    return tmp_path / "adapter"


def _turn_into_pickle(folder: Path, name: str, pickle: str) -> None:
    import torch

    torch.save(load_file(folder / name), folder / pickle)
    (folder / name).unlink()


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt"])
def test_a_model_that_is_a_pickle_is_refused(model: Path, pickle: str) -> None:
    _turn_into_pickle(model, "model.safetensors", pickle)
    with pytest.raises(ParamsError, match=rf"{re.escape(pickle)}: a pickle, .*; fix: .*save_pretrained"):
        load_weights(str(model), None)  # type: ignore[arg-type]


def test_an_adapter_that_is_a_pickle_is_refused(adapter: Path) -> None:
    import torch

    load_weights(str(adapter), torch.float32)
    _turn_into_pickle(adapter, "adapter_model.safetensors", "adapter_model.bin")
    save_file({"x": torch.zeros(1)}, adapter / "other.safetensors")
    with pytest.raises(ParamsError, match=r"adapter_model\.bin: a pickle, .*; fix: .*save_pretrained"):
        load_weights(str(adapter), torch.float32)


def test_an_adapter_of_a_model_that_is_a_pickle_is_refused(adapter: Path, model: Path) -> None:
    import torch

    _turn_into_pickle(model, "model.safetensors", "pytorch_model.bin")
    with pytest.raises(ParamsError, match=r"pytorch_model\.bin: a pickle"):
        load_weights(str(adapter), torch.float32)


def test_code_of_a_model_is_not_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    config = json.loads((model / "config.json").read_text())
    (model / "own.py").write_text(f"import pathlib; pathlib.Path({str(model / 'pwned')!r}).touch()\n")
    config |= {"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "tokenizer_config.json").write_text(
        json.dumps(
            json.loads((model / "tokenizer_config.json").read_text()) | {"auto_map": {"AutoTokenizer": ["own.T", None]}}
        )
    )
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(model / "modules"))
    load_weights(str(model), torch.float32)  # a type that Transformers knows: its own class is taken
    (model / "config.json").write_text(json.dumps(config | {"model_type": "own"}))
    with pytest.raises(ParamsError, match=r"config\.json: auto_map asks for code .* 'own'; fix: "):
        check_model_folder(str(model))
    assert not (model / "pwned").exists()


def test_cells_of_text_are_no_formulas(tmp_path: Path) -> None:
    assert [escape_formula(cell) for cell in FORMULAS] == [f"'{cell}" for cell in FORMULAS]
    assert [escape_formula(cell) for cell in (*PLAIN, -1, -1.5, None)] == [*PLAIN, -1, -1.5, None]
    names = [cell for cell in FORMULAS if "\r" not in cell]
    table = pd.DataFrame({"model": names, "difference": range(-3, 4), "note": [None, *names[1:]]})
    write_table(tmp_path / "table.csv", table)
    written_table = pd.read_csv(tmp_path / "table.csv", keep_default_na=False)
    assert list(written_table["difference"]) == list(range(-3, 4))
    assert all(cell.startswith("'") for cell in written_table["model"])
    assert list(table["model"]) == names  # the table itself is as it was
    assert format_csv(["a", "b"], [["=1", -1.5]]) == "a,b\n'=1,-1.5\n"


def test_names_of_others_are_text_in_what_judge_writes(project: Path) -> None:
    name = "=1+1<script>alert</script>"
    (project / "d.pddl").write_text(load_domain_text("blocksworld").replace("(domain blocksworld)", f"(domain {name})"))
    (project / "p.pddl").write_text(
        f"(define (problem p) (:domain {name}) (:objects a b) (:init (handempty) (clear a) (clear b) (ontable a)"
        " (ontable b)) (:goal (on a b)))"
    )
    files = {"domain_file": "d.pddl", "problem_file": "p.pddl"}
    plan = f"{MARKUP}\n(pick-up a)\n(stack a b)\n{MARKUP}"
    lines = [{**files, "completion": plan, "model": model} for model in (f"=1+1{MARKUP}", "@x", "plain")]
    write_lines(Path("answers.jsonl"), [*lines, {**files, "completion": plan, "id": MARKUP}])
    result = CliRunner().invoke(
        app, ["judge", "answers.jsonl", "--workers", "1", "--verifier", "fast", "--audit-share", "0"]
    )
    assert result.exit_code == 0, result.output
    folder = Path("answers-judged")
    assert len(read_rows(folder / "verdicts.jsonl")) + len(read_rows(folder / "quarantine.jsonl")) == 4
    page = (folder / "page.html").read_text()
    assert "=1+1&lt;script&gt;" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    for table in ("success.csv", "labels.csv", "paired.csv"):
        with (folder / table).open(newline="") as rows:
            cells = [cell for row in csv.reader(rows) for cell in row]
        assert any(cell.startswith("'=1+1<script>") for cell in cells), table
        assert not [cell for cell in cells if cell != escape_formula(cell)], table
