"""The command line as a user meets it: exit status, words, and what is left behind when it fails."""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from planward.cli import app
from planward.cli.processes import lock_stage
from planward.tasks.planning.domains import load_domain_text
from support import ROOT

PROBLEM = """(define (problem p) (:domain blocksworld) (:objects a b)
 (:init (handempty) (clear a) (clear b) (ontable a) (ontable b)) (:goal (and (on a b))))
"""
PLAN = "(pick-up a)\n(stack a b)\n"
SCHEDULE = ["schedule", "--size", "2", "--seed", "5"]
TRAIN = ["selectors", "train", "--method", "pointer-sft", "--size", "2", "--seed", "5"]
BEAMS = ["selectors", "beams", "--split", "train"]
TRACK = [["selectors", "dialects"], ["selectors", "embed"], BEAMS, TRAIN, ["selectors", "evaluate"]]
PARAMS_OUTPUT = """params.yaml: updated from mine.yaml
params.yaml: valid
workflow/cluster/params.yaml: valid
workflow/economy/params.yaml: valid
workflow/selectors/params.yaml: valid
"""
GENERATED = {
    "blocksworld": {"count": 8, "blocks": [3, 4]},
    "ferry": {"count": 8, "locations": [3, 4], "cars": [2, 3]},
}


@pytest.fixture
def files(project: Path) -> Path:
    """A folder with domain.pddl, problem.pddl and plan.txt."""
    (project / "domain.pddl").write_text(load_domain_text("blocksworld"))
    (project / "problem.pddl").write_text(PROBLEM)
    (project / "plan.txt").write_text(PLAN)
    return project


@pytest.fixture
def quick(project: Path) -> Path:
    """A project with few and small problems."""
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    raw["dataset_sizes"] = [2, 4]
    raw["problems"]["generated"] = GENERATED
    raw["grpo"] |= {"steps": 6, "batch_size": 4}
    raw["ablations"]["run"] = []
    raw["split"]["held_out_domains"] = []
    raw["transfer"]["methods"] = raw["evaluate"]["samples"]["methods"] = []
    (project / "params.yaml").write_text(yaml.safe_dump(raw))
    shutil.copytree(ROOT / "workflow", project / "workflow")
    return project


def validate(*arguments: str, text: str | None = None) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `planward validate`."""
    names = [*arguments] if arguments else ["domain.pddl", "problem.pddl", "plan.txt"]
    result = CliRunner().invoke(app, ["validate", *names], input=text)
    return result.exit_code, result.stdout, result.stderr


def planward(*arguments: str, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program; with `limit` no file may grow beyond so many bytes, as on a full disk."""

    def fill_the_disk() -> None:
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    program = [sys.executable, "-c", "from planward.cli import main; main()", *arguments]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(Path.cwd())}
    return subprocess.run(
        program, capture_output=True, text=True, preexec_fn=fill_the_disk, env=environment, check=False
    )


def test_a_plan_that_works(files: Path) -> None:
    status, out, _ = validate()
    assert status == 0
    assert out.splitlines()[:5] == [
        "label: success_plans",
        "reward: 1.0",
        "plan size: 2",
        "failing step: -",
        "goals satisfied: 1",
    ]
    assert files.exists()


@pytest.mark.parametrize(
    ("text", "label", "reward", "step"),
    [
        ("(pick-up a)\n(pick-up b)", "precondition_violation", -0.3, 2),
        ("(pick-up a)\n(put-down a)", "goal_not_satisfied", -0.3, None),
        ("(fly a)", "plan_format_error", -1.0, None),
        ("", "plan_format_error", -1.0, None),
        ("I cannot do it.", "plan_format_error", -1.0, None),
        (f"<think>hm</think>\nHere:\n```\n{PLAN}```", "success_plans", 1.0, None),
    ],
)
@pytest.mark.usefixtures("files")
def test_json_says_it_all(text: str, label: str, reward: float, step: int | None) -> None:
    status, out, _ = validate("domain.pddl", "problem.pddl", "-", "--json", text=text)
    verdict = json.loads(out)
    assert status == (0 if reward == 1 else 1)
    assert set(verdict) == {
        "label", "reward", "plan_size", "failing_step", "goals_satisfied", "goals_total", "detail"
    }  # fmt: skip
    assert (verdict["label"], verdict["failing_step"], verdict["goals_total"]) == (label, step, 1)
    assert verdict["reward"] == pytest.approx(reward)


@pytest.mark.parametrize(
    ("file_name", "content", "complaint"),
    [
        ("domain.pddl", "(define (domain blocksworld)", "domain.pddl: 1 closing bracket(s) missing"),
        ("domain.pddl", load_domain_text("blocksworld").replace(":effect", ":efect", 1), "domain.pddl: line"),
        ("problem.pddl", "nonsense", "problem.pddl: not one (define (problem"),
        ("problem.pddl", PROBLEM.replace("(:goal", "(:gaol"), "problem.pddl: needs one :goal"),
        ("domain.pddl", None, "domain.pddl: No such file"),
        ("problem.pddl", None, "problem.pddl: No such file"),
        ("plan.txt", None, "plan.txt"),
    ],
)
@pytest.mark.parametrize("plan", [PLAN, "no plan at all"])
def test_files_that_cannot_be_used_are_named(
    files: Path, file_name: str, content: str | None, complaint: str, plan: str
) -> None:
    (files / "plan.txt").write_text(plan)
    (files / file_name).unlink() if content is None else (files / file_name).write_text(content)
    status, out, err = validate()
    assert (status, out) == (2, "")
    assert complaint in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("files")
def test_a_missing_val_is_told_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAL_BINARY", "nowhere/Validate")
    status, out, err = validate()
    assert (status, out) == (2, "")
    assert "VerifierError: " in err
    assert "VAL is missing: no file nowhere/Validate; fix: set VAL_BINARY to VAL's Validate" in err


@pytest.mark.usefixtures("files")
def test_bytes_that_are_no_text_are_no_plan() -> None:
    Path("plan.txt").write_bytes(b"\xff\xfe\x00(pick-up a)")
    assert validate()[0] == 1


def test_params_lays_recipes_over_and_checks(quick: Path) -> None:
    recipe = quick / "mine.yaml"
    recipe.write_text("seed: 11\n")
    result = CliRunner().invoke(app, ["params", "mine.yaml"])
    assert (result.exit_code, result.stdout) == (0, PARAMS_OUTPUT)
    assert yaml.safe_load((quick / "params.yaml").read_text())["seed"] == 11
    recipe.write_text("sede: 12\n")
    result = CliRunner().invoke(app, ["params", "mine.yaml"])
    assert result.exit_code == 2
    assert "sede: unknown key" in result.stderr


def test_params_shows_what_a_recipe_changes(quick: Path) -> None:
    recipe, before = quick / "mine.yaml", (quick / "params.yaml").read_text()
    recipe.write_text("seed: 11\nmodel: {lora: null, path: models/mine}\n")
    result = CliRunner().invoke(app, ["params", "mine.yaml", "--show"])
    assert (result.exit_code, result.stdout) == (
        0,
        'params.yaml: model.path: "models/base" -> "models/mine"\nparams.yaml: seed: 3407 -> 11\n',
    )
    result = CliRunner().invoke(app, ["params", "mine.yaml", "--json"])
    documents = json.loads(result.stdout)
    assert (documents["params.yaml"]["seed"], documents["params.yaml"]["model"]["path"]) == (11, "models/mine")
    assert {"params.yaml", "workflow/economy/params.yaml", "workflow/selectors/params.yaml"} <= documents.keys()
    assert (quick / "params.yaml").read_text() == before


def test_an_empty_section_replaces_the_whole(quick: Path) -> None:
    (quick / "mine.yaml").write_text("difficulty: {ferry: {}}\n")
    old = yaml.safe_load((quick / "params.yaml").read_text())["difficulty"]["ferry"]
    result = CliRunner().invoke(app, ["params", "mine.yaml", "--show"])
    assert result.stdout == f"params.yaml: difficulty.ferry: {json.dumps(old)} -> {{}}\n"
    assert CliRunner().invoke(app, ["params", "mine.yaml"]).stdout == PARAMS_OUTPUT
    new = yaml.safe_load((quick / "params.yaml").read_text())["difficulty"]
    assert new["ferry"] == {}
    assert new["blocksworld"]


def test_a_misspelt_key_stops_every_stage(quick: Path) -> None:
    (quick / "params.yaml").write_text((quick / "params.yaml").read_text().replace("beta:", "betta:"))
    for command in (["problems"], ["split"], ["score"], SCHEDULE, ["evaluate", "--method", "base"], *TRACK):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert "params.yaml" in result.stderr
        assert "grpo.betta: unknown key" in result.stderr
    assert not (quick / "results").exists()


def test_stages_run_in_order_and_leave_their_times(quick: Path) -> None:
    for command in (["problems"], ["split"], ["score"], SCHEDULE, ["selectors", "dialects"]):
        process = planward(*command)
        assert process.returncode == 0, process.stderr
    assert (quick / "results/selectors/timing/dialects.json").exists()
    timing = json.loads((quick / "results/timing/schedule@2-5.json").read_text())
    assert timing["stage"] == "schedule@2-5"
    assert timing["wall_s"] > 0
    assert (quick / "results/schedules/grpo-2-5.parquet").exists()


def test_a_variant_has_a_schedule_of_its_own(quick: Path) -> None:
    for command in (["problems"], ["split"], ["score"], SCHEDULE, [*SCHEDULE, "--method", "uniform"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    assert (quick / "results/timing/schedule-ablation@uniform-2-5.json").exists()
    plain, uniform = (pd.read_parquet(quick / f"results/schedules/{name}-2-5.parquet") for name in ("grpo", "uniform"))
    assert list(plain["wanted_bucket"]) != list(uniform["wanted_bucket"])
    result = CliRunner().invoke(app, [*SCHEDULE, "--method", "uniforms"])
    assert result.exit_code == 2
    assert "ablations.variants: no entry uniforms; there are: " in result.stderr


def test_lengths_are_shown_without_training(quick: Path) -> None:
    for command in (["problems"], ["split"], ["score"]):
        assert CliRunner().invoke(app, command).exit_code == 0
    raw = yaml.safe_load((quick / "params.yaml").read_text())
    raw["model"]["path"] = str(ROOT / "models/base")
    raw["prompt"]["max_completion_tokens"] = 1
    (quick / "params.yaml").write_text(yaml.safe_dump(raw))
    result = CliRunner().invoke(app, ["lengths"])
    assert result.exit_code == 0, result.output
    rows = {words[0]: words[1:] for line in result.stderr.splitlines() if (words := line.split())}
    assert rows["all"][0] == rows["all"][-1] == "16"  # problems, all with longer references
    assert {"blocksworld", "ferry"} < rows.keys()
    assert "16 reference completion(s) exceed prompt.max_completion_tokens" in result.stderr


def test_a_trained_model_is_named_with_its_seed(quick: Path) -> None:
    result = CliRunner().invoke(app, ["evaluate", "--method", "sft", "--size", "2"])
    assert result.exit_code == 2
    assert "--seed" in result.stderr
    assert not (quick / "results").exists()


@pytest.mark.parametrize("options", [["--size", "2"], ["--seed", "5"]])
def test_pointers_are_named_with_size_and_seed_and_rules_with_neither(quick: Path, options: list[str]) -> None:
    result = CliRunner().invoke(app, ["selectors", "evaluate", *options])
    assert result.exit_code == 2
    assert "pointers have a size and a seed, rules have neither" in " ".join(result.stderr.replace("│", "").split())
    assert not (quick / "results").exists()


def test_an_unknown_method_or_split_is_refused_with_those_that_exist(quick: Path) -> None:
    result = CliRunner().invoke(app, [*TRAIN[:3], "pointer-dpo", *TRAIN[4:]])
    assert result.exit_code == 2
    assert "unknown method pointer-dpo; fix: choose one of pointer-sft, pointer-rce, pointer-grpo" in result.stderr
    result = CliRunner().invoke(app, [*BEAMS[:3], "validation"])
    assert result.exit_code == 2
    assert "'train', 'test'" in result.stderr
    assert not (quick / "results").exists()


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("problems", "results/problems"),
        ("split", "results/split"),
        ("score", "results/score"),
        (" ".join(SCHEDULE), "results/schedules"),
        ("selectors dialects", "results/selectors/dialects"),
    ],
)
def test_a_folder_that_cannot_be_written_is_named(quick: Path, command: str, output: str) -> None:
    order = ["problems", "split", "score", " ".join(SCHEDULE), "selectors dialects"]
    for earlier in order[: order.index(command)]:
        assert CliRunner().invoke(app, earlier.split()).exit_code == 0
    (quick / output).parent.mkdir(exist_ok=True)
    (quick / output).write_text("a file where the folder should be")
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 2, result.output
    assert f"cannot write {output}/" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(quick.rglob("*.partial"))
    assert (quick / output).read_text() == "a file where the folder should be"


@pytest.mark.parametrize(
    ("command", "path", "limit"),
    [
        ("problems", "results/problems/", 300),
        ("split", "results/split/", 9000),
        ("score", "results/score/", 500),
        (" ".join(SCHEDULE), "results/schedules/grpo-2-5.parquet", 100),
        ("selectors dialects", "results/selectors/dialects/", 500),
    ],
)
def test_a_full_disk_leaves_no_half_written_file(quick: Path, command: str, path: str, limit: int) -> None:
    order = ["problems", "split", "score", " ".join(SCHEDULE), "selectors dialects"]
    for earlier in order[: order.index(command)]:
        assert CliRunner().invoke(app, earlier.split()).exit_code == 0
    process = planward(*command.split(), limit=limit)
    assert process.returncode == 2, process.stderr
    assert f"cannot write {path}" in process.stderr
    assert "File too large" in process.stderr
    assert "Traceback" not in process.stderr
    assert not list(quick.rglob("*.partial"))
    leftover_files = [file for file in (quick / Path(path).parts[0] / Path(path).parts[1]).rglob("*") if file.is_file()]
    assert all(file.stat().st_size == 0 or file.read_bytes().endswith(b"\n") for file in leftover_files)
    assert not (quick / path.rstrip("/") / "train.jsonl").exists() or command == "score"
    assert CliRunner().invoke(app, command.split()).exit_code == 0


def test_a_stage_whose_input_is_missing_names_it(quick: Path) -> None:
    (quick / "models").symlink_to(ROOT / "models")
    inputs = (
        "results/split/train.jsonl",
        "results/score",
        "results/score/train.jsonl",
        *["results/selectors/dialects/"] * 4,
    )
    for command, missing in zip((["score"], SCHEDULE, *TRACK), inputs, strict=True):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert missing in result.stderr
        assert "cannot write" not in result.stderr
    assert not list(quick.rglob("*.partial"))


GROUPS = ("endpoints", "selectors", "transfer")  # of commands


def test_every_stage_is_a_command_a_module_and_an_entry_of_a_pipeline() -> None:
    files = [ROOT / "dvc.yaml", *sorted(ROOT.glob("workflow/*/dvc.yaml")), ROOT / "models/dvc.yaml"]
    stage_commands = set()
    for file in files:
        for name, stage in yaml.safe_load(file.read_text())["stages"].items():
            _, *words = (stage.get("do") or stage)["cmd"].split()
            command = " ".join(words[: 2 if words[0] in GROUPS else 1])
            stage_commands.add(command)
            phases = {"sft", "rce", "grpo"} if command == "selectors train" else {command.rpartition(" ")[2]}
            family = name.removeprefix("transfer-").removeprefix("endpoints-").partition("-")[0]
            assert family in phases, (file, name)
    app_commands = get_command(app).commands  # type: ignore[attr-defined]
    commands = {name: each for name, each in app_commands.items() if name in stage_commands}
    commands |= {f"{group} {name}": each for group in GROUPS for name, each in app_commands[group].commands.items()}
    stages = ROOT / "src/planward/stages"
    modules = {path.stem for path in stages.glob("*.py")}
    modules |= {f"{group} {path.stem}" for group in GROUPS for path in stages.glob(f"{group}/*.py")}
    modules = {name for name in modules if not name.endswith("__init__")}
    assert set(commands) == modules == stage_commands
    for name, command in commands.items():
        assert command.help, name
        module = importlib.import_module(f"planward.stages.{name.replace(' ', '.')}")
        stage = "sft" if name == "selectors train" else name.removeprefix("selectors ").replace(" ", "-")
        assert f"`{stage}`" in (module.__doc__ or ""), name
        assert CliRunner().invoke(app, [*name.split(), "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("command", "lock"),
    [
        (["report"], "planning-report"),
        (["track", "economy"], "planning-track@economy"),
        (["start", "--size", "4", "--seed", "5"], "planning-start@4-5"),
        (["adapter", "--task", "economy"], "models-economy"),
    ],
)
def test_stages_without_a_timing_run_once_at_a_time(quick: Path, command: list[str], lock: str) -> None:
    for pipeline in ("dvc.yaml", "models/dvc.yaml"):
        (quick / pipeline).parent.mkdir(exist_ok=True)
        (quick / pipeline).touch()
    with lock_stage(quick / ".locks" / lock):
        result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert f"process {os.getpid()} on" in result.stderr
    assert "runs this stage" in result.stderr


def test_a_reader_that_stops_early_sees_no_error() -> None:
    program = Path(sys.executable).parent / "planward"
    command = f"{program} params --json | true; echo"
    process = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (process.stdout, process.stderr) == ("\n", "")


def test_the_installed_program_is_this_one() -> None:
    program = shutil.which("planward", path=str(Path(sys.executable).parent))
    assert program is not None
    process = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
    assert "validate" in process.stdout
