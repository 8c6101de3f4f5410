"""Parameter files: mistakes are named by file and key; recipes change values and keep comments."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from planward.core import paths
from planward.core.recipes import apply_recipes, check_params, list_changes, resolve_recipes
from planward.core.registry import load_params, parse_params
from planward.core.runs import BASE, Run, is_requested
from planward.integrations.verl.config import load_cluster_config
from planward.params import ParamsError, read_yaml, validate_section
from planward.selectors.config import load_selectors_config
from planward.tasks.planning.config import PlanningParams
from support import ROOT

RECIPES = sorted((ROOT / "workflow/recipes").glob("*.yaml"))
ABLATIONS = "  run: [uniform]"  # in the shipped params.yaml


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the shipped parameter files of all tracks."""
    for track in paths.list_tracks(ROOT):
        file = paths.params_file(track)
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def replace_text(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def read_files(root: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in root.rglob("params.yaml")}


def list_comments(text: str) -> list[str]:
    return [line.partition("#")[2].strip() for line in text.splitlines() if "#" in line]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed: 3407", "sede: 3407", "sede: unknown key"),
        ("seed: 3407", "sede: 3407", "seed: missing"),
        ("seed: 3407", "seed: 3407\ntask: planning", "task: unknown key"),
        ("  beta: 0.0", "  betta: 0.0", "grpo.betta: unknown key"),
        ("  steps: 60", "  steps: many", "grpo.steps: Input should be a valid integer"),
        ("  steps: 60", "  steps: 0", "grpo.steps: Input should be greater than 0"),
        ("  attention: null", "  attention: flash_attn_2", "model.attention: Input should be 'eager', 'sdpa'"),
        ("  source: generated", "  source: internet", "problems.source: Input should be 'generated', 'jsonl'"),
        ("[100, 200, 400]", "[100, 400, 200]", "dataset_sizes: .*rising"),
        ("[100, 200, 400]", "[100, 100]", "dataset_sizes: .*rising"),
        ("[100, 200, 400]", "[0, 100]", "dataset_sizes: .*rising"),
        ("[100, 200, 400]", "[]", "dataset_sizes: "),
        ("tracks: [selectors, economy]", "tracks: [economy, economy]", "tracks: .*different names of folders"),
        ("tracks: [selectors, economy]", "tracks: [../x]", "tracks: .*different names of folders"),
        ("easy: 0.70, medium", "easy: 0.75, medium", r"curriculum\.0: .*until 0.3 do not sum to 1"),
        ("{until: 0.7", "{until: 0.2", "curriculum: .*must rise from phase to phase and end at 1.0"),
        ("{until: 1.0", "{until: 0.9", "curriculum: .*end at 1.0"),
        ("  test: 0.3", "  test: 0.95", "split: .*leave nothing to train on"),
        ("blocks: [3, 9]", "blocks: [6, 3]", r"problems\.generated: .*blocksworld.blocks must be"),
        ("blocks: [3, 9]", "blocks: 4", r"problems\.generated: .*blocksworld.blocks must be"),
        ("{count: 240, blocks", "{blocks", r"problems\.generated: .*blocksworld.count must be"),
        ("weights: {n: 5}", "weights: {blocks: 5}", r"difficulty\.blocksworld: .*no group \(\?P<blocks>"),
        (r"bw_ops\d+", r"(bw_ops\d+", r"difficulty\.blocksworld: .*not a regular expression"),
        ("  ferry:\n    pattern", "  fery:\n    pattern", r"no entry under `difficulty` for ferry"),
        ("  shots: [0, 1, 2, 3, 4]", "  shots: [0, -1]", r"evaluate\.shots"),
        ("  shots: [0, 1] ", "  shots: [1, 0] ", r"sft\.shots: "),
        ("seeds: [3407]", "seeds: [1, 1]", "seeds: .*different numbers, none negative"),
        ("seeds: [3407]", "seeds: [-1]", "seeds: .*different numbers, none negative"),
        ("seeds: [3407]", "seeds: []", "seeds: "),
        ("{renamed: [0]", "{renamed: [0, 5]", r"transfer\.shots\.renamed: 5 not in evaluate\.shots"),
        ("unseen: [0, 2, 4]}", "unseen: []}", r"transfer\.shots\.unseen"),
        ("blocksworld: {count: 24,", "harbour: {count: 24,", r"transfer\.larger: no entry .* for harbour"),
        (
            "  lora: null                     # of GRPO",
            "  lora: {r: 8, alpha: 8, dropout: 0.0, target_modules: all-linear, merge: false} #",
            r"grpo\.lora: .*merge must be true",
        ),
        (ABLATIONS, "  run: [unknown]", "ablations: .*run: no entry under `variants` for unknown"),
        (ABLATIONS, "  run: [uniform, uniform]", "ablations: .*run: names a variant twice"),
        ("reward: dense}}", "rewards: dense}}", r"ablations\.variants\.dense\.grpo\.rewards: unknown key"),
        ("reward: dense}}", "reward: rare}}", r"ablations\.variants\.dense\.grpo\.reward: Input should be 'dense'"),
        ("dense: {grpo:", "dense: {sft:", r"variants\.dense: may change curriculum, .* \(got sft\)"),
        ("    dense:", "    sft:", r"variants\.sft: a name is small letters"),
        ("    dense:", "    not-so-dense:", r"variants\.not-so-dense: a name is small letters"),
        ("report_to: []", "report_to: [wandb, wandb]", r"logging\.report_to: .*names a logger twice"),
        ("report_to: []", "report_to: [aim]", r"logging\.report_to\.0: Input should be 'wandb', 'tensorboard'"),
        ("project: planward", "project: a/b", r"logging\.project: "),
        ("seed: 3407", "seed: [3407", "not YAML"),
        ("seed: 3407", "seed: 1\nseed: 2", "duplicate key .*seed"),
    ],
)
def test_mistakes_name_file_and_key(root: Path, old: str, new: str, message: str) -> None:
    file = root / "params.yaml"
    replace_text(file, old, new)
    with pytest.raises(ParamsError, match=rf"(?s){message}") as error:
        load_params(root=root)
    assert str(file) in str(error.value)


def test_a_domain_with_count_0_is_left_out(root: Path) -> None:
    replace_text(root / "params.yaml", "ferry: {count: 240,", "ferry: {count: 0,")
    replace_text(root / "params.yaml", "ferry: {count: 24,", "ferry: {count: 0,")
    params = load_params(root=root)
    assert "ferry" in params.difficulty
    assert list(params.problems.generated) == ["blocksworld", "grippers", "spanner", "delivery", "elevator"]
    assert "ferry" not in params.transfer.larger


@pytest.mark.parametrize(
    ("track", "old", "new", "message"),
    [
        ("selectors", "shot_num: 4", "shot_num: 65", r"pool \(64\) holds fewer examples than shot_num \(65\)"),
        ("selectors", "embeddings: model", "embeddings: file", "embeddings_file: "),
        ("selectors", "hidden: 256, layers", "hidden: 255, layers", r"pointer: .*hidden \(255\) must be a multiple"),
        ("selectors", "temperature: [2.0, 0.5]", "temperature: [0.5, 2.0]", r"rce\.temperature"),
        ("selectors", "kl_target: [0.01, 0.1]", "kl_target: [0.1, 0.01]", r"grpo\.kl_target"),
        (
            "cluster",
            "tensor_parallel: 1",
            "tensor_parallel: 3",
            "tensor_parallel .3. must divide nodes x gpus.* = 8",
        ),
        ("cluster", "checkpoints: /var", "checkpoints: var", "checkpoints: .*must be an absolute path"),
        ("cluster", "nodes: 1", "knots: 1", "knots: unknown key"),
        ("economy", "  steps: 100", "  stepz: 100", r"grpo\.stepz: unknown key"),
        ("economy", "dataset_sizes:", "problems: 3\ndataset_sizes:", "problems: unknown key"),
        ("economy", "dataset_sizes:", "seed: -1\ndataset_sizes:", "seed: "),
    ],
)
def test_mistakes_in_a_track_name_file_and_key(root: Path, track: str, old: str, new: str, message: str) -> None:
    file = root / paths.params_file(track)
    replace_text(file, old, new)
    loaders = {"selectors": load_selectors_config, "cluster": load_cluster_config}
    with pytest.raises(ParamsError, match=rf"(?s){message}") as load_error:
        loaders[track](root) if track in loaders else load_params(track, root)
    assert str(file) in str(load_error.value)
    with pytest.raises(ParamsError) as check_error:
        check_params(track, root)
    assert str(check_error.value) == str(load_error.value)


def test_all_mistakes_are_reported_together(root: Path) -> None:
    file = root / "params.yaml"
    file.write_text(file.read_text().replace("  beta: 0.0 ", "  betta: 0.0 ").replace("seed:", "sede:"))
    with pytest.raises(ParamsError, match=r"4 mistake\(s\)"):
        load_params(root=root)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"params\.yaml: no such file"):
        load_params(root=tmp_path)
    (tmp_path / "params.yaml").write_bytes(b"seed: 1 # caf\xe9")
    with pytest.raises(ParamsError, match=r"params\.yaml: not UTF-8"):
        load_params(root=tmp_path)
    (tmp_path / "params.yaml").write_text("")
    with pytest.raises(ParamsError, match=r"params\.yaml: expected keys and values"):
        load_params(root=tmp_path)


def test_another_task_has_its_own_parameters_and_shares_some(root: Path) -> None:
    replace_text(root / "params.yaml", "seed: 3407", "seed: 11")
    replace_text(root / "params.yaml", "report_to: []", "report_to: [mlflow]")
    params = load_params("economy", root)
    assert (params.task, params.seed, params.ablations.variants) == ("economy", 11, {})
    assert params.grpo.batch_size != load_params(root=root).grpo.batch_size
    assert params.evaluate == load_params(root=root).evaluate
    assert params.logging.report_to == ["mlflow"]


@pytest.mark.parametrize("key", ["compare", "evaluate", "seed", "split", "ablations", "tracks"])
def test_another_task_cannot_set_what_it_shares(root: Path, key: str) -> None:
    """DVC would not track it there."""
    file = root / paths.params_file("economy")
    file.write_text(f"{file.read_text()}\n{key}: {json.dumps(read_yaml(root / 'params.yaml')[key])}\n")
    with pytest.raises(ParamsError, match=rf"{file}: {key}: belongs to params\.yaml"):
        load_params("economy", root)


def test_weights_outside_the_project_are_no_start_of_grpo(root: Path) -> None:
    """Of variants they are: dvc.yaml names these otherwise."""
    replace_text(root / "params.yaml", "path: models/base ", "path: /weights/base ")
    assert load_params(root=root).variant("from_base").grpo.start == "base"
    replace_text(root / "params.yaml", "from: sft ", "from: base ")
    with pytest.raises(ParamsError, match=r"grpo\.from: base: DVC cannot track /weights/base.*model\.path: models/"):
        load_params(root=root)


@pytest.mark.parametrize("task", ["planning", "economy"])
def test_dumped_parameters_are_parsed_by_their_task(task: str) -> None:
    params = load_params(task, ROOT)
    assert parse_params(params.model_dump(mode="json"), "dump") == params
    with pytest.raises(ParamsError, match="task letters: unknown"):
        parse_params(params.model_dump(mode="json") | {"task": "letters"}, "dump")


# Recipes.


def test_a_recipe_changes_values_and_keeps_comments(root: Path, tmp_path: Path) -> None:
    before, others = (root / "params.yaml").read_text(), read_files(root / "workflow")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("seed: 5  # mine\ngrpo: {beta: 0.02, steps: 7}\nmodel:\n  lora: {r: 8, alpha: 16, dropout: 0.0,"
                      " target_modules: all-linear, merge: true}\n")  # fmt: skip
    assert apply_recipes([recipe], root) == [root / "params.yaml"]
    params = load_params(root=root)
    assert (params.seed, params.grpo.beta, params.grpo.steps) == (5, 0.02, 7)
    assert params.model.lora is not None
    assert params.grpo.batch_size == load_params(root=ROOT).grpo.batch_size  # not in the recipe
    after = (root / "params.yaml").read_text()
    assert list_comments(after) == list_comments(before)
    unchanged_lines = [line for line in before.splitlines() if line in after.splitlines()]
    assert len(before.splitlines()) - len(unchanged_lines) == 4
    assert read_files(root / "workflow") == others


def test_a_recipe_changes_the_files_of_tracks(root: Path, tmp_path: Path) -> None:
    before = read_files(root)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "selectors: {shot_num: 2, sft: {epochs: 1}}\ncluster: {nodes: 4}\n"
        "economy: {grpo: {steps: 75}, economy: {problems: 60}}\n"
    )
    assert set(apply_recipes([recipe], root)) == {
        root / paths.params_file(track) for track in ("selectors", "cluster", "economy")
    }
    assert (root / "params.yaml").read_bytes() == before[root / "params.yaml"]
    assert load_cluster_config(root).nodes == 4
    selectors, shipped_selectors = load_selectors_config(root), load_selectors_config(ROOT)
    assert (selectors.shot_num, selectors.sft.epochs, selectors.rce) == (2, 1, shipped_selectors.rce)
    economy = load_params("economy", root)
    assert (economy.grpo.steps, economy.model_dump()["economy"]["problems"]) == (75, 60)
    for file, content in before.items():
        assert list_comments(file.read_text()) == list_comments(content.decode())


def test_lists_stay_on_one_line(root: Path, tmp_path: Path) -> None:
    file, recipe = root / "params.yaml", tmp_path / "recipe.yaml"
    before = file.read_text()
    for variants in (["uniform", "dense"], ["dense"], []):
        recipe.write_text(f"ablations: {{run: [{', '.join(variants)}]}}\n")
        apply_recipes([recipe], root)
        assert load_params(root=root).ablations.run == variants
        assert f"run: [{', '.join(variants)}] " in file.read_text()
    assert list_comments(file.read_text()) == list_comments(before)


def test_a_recipe_is_laid_over_those_it_extends(root: Path, tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text("seed: 5\ngrpo: {beta: 0.02, steps: 7}\neconomy: {grpo: {steps: 8}}")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/second.yaml").write_text(
        "extends: ../first.yaml\ngrpo: {beta: 0.03}\nevaluate: {shots: [0, 2, 4]}"
    )
    recipe = tmp_path / "third.yaml"
    recipe.write_text("extends: sub/second.yaml\nseed: 6\neconomy: {grpo: {steps: 75}}")
    apply_recipes([recipe], root)
    params = load_params(root=root)
    assert (params.seed, params.grpo.beta, params.grpo.steps, params.evaluate.shots) == (6, 0.03, 7, [0, 2, 4])
    assert load_params("economy", root).grpo.steps == 75


def test_values_of_planning_are_at_the_top_of_a_recipe(root: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("planning: {seed: 1}")
    with pytest.raises(ParamsError, match="planning: unknown key"):
        apply_recipes([recipe], root)


def test_recipes_do_not_extend_each_other_in_a_circle(root: Path, tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.yaml").write_text(f"extends: {other}.yaml\nseed: 1")
    with pytest.raises(ParamsError, match=r"a\.yaml: extends: leads back"):
        apply_recipes([tmp_path / "a.yaml"], root)


def test_recipes_are_resolved_in_order_without_writing(root: Path, tmp_path: Path) -> None:
    before = read_files(root)
    for name, text in {"a": "seed: 5\ngrpo: {steps: 7}", "b": "seed: 6\nmodel: {vllm: {mode: server}}"}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    recipes = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    documents = resolve_recipes(recipes, root)
    assert read_files(root) == before
    changes = {file: list(list_changes(read_yaml(root / file), document)) for file, document in documents.items()}
    assert changes.pop(Path("params.yaml")) == [
        ("seed", 3407, 6),
        ("model.vllm.mode", "colocate", "server"),
        ("grpo.steps", 60, 7),
    ]
    assert list(changes.values()) == [[], [], []]
    apply_recipes(recipes, root)
    assert {file: read_yaml(root / file) for file in documents} == documents


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grpo: {betta: 1}", r"params\.yaml with .*grpo.betta: unknown key"),
        ("grpo: {beta: -1}", r"params\.yaml with .*grpo.beta: "),
        ("seed: 1\neconomy: {grpo: {stepz: 3}}", r"workflow/economy/params\.yaml with .*grpo\.stepz: unknown key"),
        ("seed: 1\nselectors: {pool: 1}", r"workflow/selectors/params\.yaml with .*pool \(1\)"),
        ("seed: 1\ncluster: {gpus: 1}", r"workflow/cluster/params\.yaml with .*gpus: unknown key"),
        ("seed: 1\ncluster: 3", "cluster: expected keys and values"),
        ("trams: {grpo: {}}", "trams: unknown key"),
        ("- 1", "expected keys and values"),
        ("", "expected keys and values"),
        ("grpo: [", "not YAML"),
        ("extends: none.yaml", r"extends: no recipe .*none\.yaml"),
    ],
)
def test_a_wrong_recipe_changes_nothing(root: Path, tmp_path: Path, text: str, message: str) -> None:
    before = read_files(root)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    with pytest.raises(ParamsError, match=rf"(?s){message}") as error:
        apply_recipes([recipe], root)
    assert str(recipe) in str(error.value)
    assert read_files(root) == before


def test_a_wrong_recipe_among_others_changes_nothing(root: Path, tmp_path: Path) -> None:
    before = read_files(root)
    for name, text in {"a": "seed: 5", "b": "seeed: 6"}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(ParamsError, match=r"seeed: unknown key"):
        apply_recipes([tmp_path / "a.yaml", tmp_path / "b.yaml"], root)
    assert read_files(root) == before


def test_a_recipe_needs_valid_files(root: Path, tmp_path: Path) -> None:
    replace_text(root / "workflow/economy/params.yaml", "  steps: 100", "  stepz: 100")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("seed: 1")
    with pytest.raises(ParamsError, match=r"stepz: unknown key") as error:
        apply_recipes([recipe], root)
    assert str(recipe) not in str(error.value)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(root: Path, recipe: Path) -> None:
    before = read_files(root)
    changed_files = apply_recipes([recipe], root)
    for file, content in before.items():
        assert (file.read_bytes() != content) == (file in changed_files)
        assert len(list_comments(file.read_text())) >= len(list_comments(content.decode()))
    assert root / "params.yaml" in changed_files
    for track in paths.list_tracks(root):
        check_params(track, root)


# Ablations.


def test_ablations_are_trained_at_one_of_the_sizes(root: Path) -> None:
    file = root / "params.yaml"
    replace_text(file, "[100, 200, 400]", "[100, 200]")
    with pytest.raises(ParamsError, match=r"ablations\.dataset_size: 400 is none of dataset_sizes"):
        load_params(root=root)
    replace_text(file, ABLATIONS, "  run: []")
    with pytest.raises(ParamsError, match=r"evaluate\.samples\.dataset_size: 400 is none of .*take one of 100, 200,"):
        load_params(root=root)
    replace_text(file, "methods: [sft, grpo]         #", "methods: [] #")
    with pytest.raises(ParamsError, match=r"transfer\.dataset_size: 400 is none of .*take one of 100, 200,"):
        load_params(root=root)
    replace_text(file, "methods: [sft, grpo]           #", "methods: [] #")
    load_params(root=root)  # no variant is trained, and only base is judged on the transfer problems


def test_a_variant_changes_only_its_keys() -> None:
    params = load_params(root=ROOT)
    assert params.variant("grpo") == params
    for name in params.ablations.variants:
        variant = params.variant(name)
        assert variant != params, name
        sections = {"curriculum": params.curriculum, "curriculum_by_domain": {}, "grpo": params.grpo}
        assert variant.model_copy(update=sections) == params, name
    assert params.variant("dense").grpo == params.grpo.model_copy(update={"reward": "dense"})
    assert len(params.variant("uniform").curriculum) == 1
    with pytest.raises(ParamsError, match="no entry thin; there are: uniform, "):
        params.variant("thin")


def test_requested_runs_have_a_listed_size_seed_and_variant() -> None:
    shipped_params = load_params(root=ROOT)
    params = shipped_params.model_copy(update={"ablations": shipped_params.ablations.model_copy(update={"run": []})})
    two_seeds = params.model_copy(update={"seeds": [3407, 1]})
    dense_params = params.model_copy(update={"ablations": params.ablations.model_copy(update={"run": ["dense"]})})
    assert all(is_requested(run, params) for run in (BASE, Run("sft", 200, 3407), Run("grpo", 400, 3407)))
    assert not any(is_requested(run, params) for run in (Run("sft", 300, 3407), Run("grpo", 50, 3407)))
    assert [is_requested(Run("grpo", 400, 1), each) for each in (params, two_seeds)] == [False, True]
    assert [is_requested(Run("dense", 400, 3407), each) for each in (params, dense_params)] == [False, True]
    assert not is_requested(Run("dense", 200, 3407), dense_params)
    assert not is_requested(Run("uniform", 400, 3407), dense_params)
    assert not is_requested(Run("pointer-sft", 400, 3407), params)
    assert is_requested(Run("pointer-sft", 400, 3407), params, methods=("pointer-sft",))


def test_lora_of_grpo_is_for_sft_of_all_weights(root: Path) -> None:
    lora = "  lora: {r: 8, alpha: 16, dropout: 0.0, target_modules: all-linear, merge: true} #"
    file = root / "params.yaml"
    replace_text(file, "  lora: null                     # of GRPO", lora)
    params = load_params(root=root)
    assert params.model.lora is None
    assert params.move_grpo_lora().model.lora == params.grpo.lora
    assert params.move_grpo_lora().move_grpo_lora() == params.move_grpo_lora()
    replace_text(file, "  lora: null  ", lora)
    with pytest.raises(ParamsError, match=r"grpo\.lora: is for GRPO after SFT of all weights; fix: model\.lora: null"):
        load_params(root=root)


CHAT = {"url": "https://example.org/v1", "model": "m"}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"run": ["gpt-x"]}, "run: no entry under `models` for gpt-x"),
        (
            {"run": ["gpt-x"], "models": {"gpt-x": CHAT}},
            "models.gpt-x.api: chat, but prompt.style is compact",
        ),
        ({"models": {"grpo-100": CHAT}}, "endpoints.models.grpo-100: begins like another method"),
        ({"models": {"uniform": CHAT}}, "endpoints.models.uniform: begins like another method"),
        ({"models": {"../x": CHAT}}, "models.../x: a name is small letters"),
        ({"models": {"gpt": CHAT | {"options": {"stream": True}}}}, "stream: a field of the request"),
        *(
            (
                {"models": {"gpt": CHAT | {"options": {"max_tokens": limit}}}},
                "max_tokens: must be a whole number above 0",
            )
            for limit in ("100", 1.5, True, 0)
        ),
        (
            {"models": {"gpt": CHAT | {"options": {"max_tokens": None}}}, "access": {"gpt": {"token_budget": 100}}},
            "access.gpt.token_budget: needs a limit for each completion; fix: models.gpt.options.max_completion_tokens",
        ),
        ({"models": {"gpt": CHAT}, "access": {"gpt": {"concurrency": 0}}}, "endpoints.access.gpt.concurrency"),
        ({"models": {"gpt": CHAT}, "access": {"gtp": {}}}, "access: no entry under `models` for gtp"),
    ],
)
def test_wrong_endpoints_are_named_by_key(
    shipped_params: PlanningParams, section: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParamsError, match=re.escape(message)):
        validate_section(PlanningParams, shipped_params.model_dump(mode="json") | {"endpoints": section}, "params.yaml")


def test_token_budget_takes_a_limit_under_either_name(shipped_params: PlanningParams) -> None:
    for limits in ({}, {"max_tokens": 9}, {"max_tokens": None, "max_completion_tokens": 9}):
        section = {"models": {"gpt": CHAT | {"options": limits}}, "access": {"gpt": {"token_budget": 100}}}
        validate_section(PlanningParams, shipped_params.model_dump(mode="json") | {"endpoints": section}, "params.yaml")


def test_page_about_endpoints_has_parameters_that_are_valid(root: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/endpoints.md").read_text()
    for name, text in re.findall(r"```yaml title=\"(.*?)\"\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(text)
    commands = re.findall(r"^planward params (\S+)", page, re.MULTILINE)
    shutil.copytree(ROOT / "workflow/recipes", tmp_path / "workflow/recipes")
    chat = resolve_recipes([tmp_path / name for name in commands], root)[Path("params.yaml")]
    assert chat["endpoints"]["run"] == ["gpt-x"]
    server_params = resolve_recipes([tmp_path / "served.yaml"], root)[Path("params.yaml")]
    assert server_params["endpoints"]["run"] == ["served"]


@pytest.mark.parametrize(
    "section",
    [
        {"models": {"gpt": CHAT | {"url": "https://user:sk-4711@example.org/v1"}}},
        {"models": {"gpt": CHAT | {"url": "https://example.org/v1?key=sk-4711"}}},
        {"models": {"gpt": CHAT}, "access": {"gpt": {"key_env": "sk-4711"}}},
    ],
)
def test_key_in_the_wrong_place_is_not_shown(shipped_params: PlanningParams, section: dict[str, Any]) -> None:
    with pytest.raises(ParamsError, match="endpoints") as error:
        validate_section(PlanningParams, shipped_params.model_dump(mode="json") | {"endpoints": section}, "params.yaml")
    assert "sk-4711" not in str(error.value)


def test_an_extendable_run_ends_with_a_validation_of_the_longer_one(root: Path) -> None:
    file = root / paths.params_file("economy")
    replace_text(file, "  steps: 100", "  steps: 110")
    with pytest.raises(ParamsError, match=r"grpo\.steps: 110 .*validation\.steps: 25.* fix: grpo\.steps: 100 or 125; "):
        load_params("economy", root)
    replace_text(file, "  steps: 25", "  steps: 0")
    assert load_params("economy", root).grpo.steps == 110


def test_easy_problems_are_below_medium_ones(root: Path) -> None:
    replace_text(root / "params.yaml", "{easy: 40, medium: 80}", "{easy: 80, medium: 40}")
    with pytest.raises(ParamsError, match=r"buckets: .*easy: 80 is above medium: 40"):
        load_params(root=root)
