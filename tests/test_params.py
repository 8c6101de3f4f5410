"""params.yaml: what is wrong with it is named by file and key; profiles lay over it and keep its comments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conftest import ROOT
from planward.params import ParamsError, load_params, merged_params

PROFILES = sorted((ROOT / "profiles").glob("*.yaml"))

RUN = "  run: [uniform]"  # as in the shipped params.yaml


@pytest.fixture
def params_file(tmp_path: Path) -> Path:
    return Path(shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml"))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("seed: 3407", "sede: 3407", "sede: unknown key"),
        ("seed: 3407", "sede: 3407", "seed: missing"),
        ("  beta: 0.0", "  betta: 0.0", "grpo.betta: unknown key"),
        ("  steps: 100", "  steps: many", "grpo.steps: Input should be a valid integer"),
        ("  steps: 100", "  steps: 0", "grpo.steps: Input should be greater than 0"),
        (
            "  source: generated",
            "  source: internet",
            "problems.source: Input should be 'generated', 'jsonl'",
        ),
        ("[100, 200, 400]", "[100, 400, 200]", "dataset_sizes: .*rising"),
        ("[100, 200, 400]", "[100, 100]", "dataset_sizes: .*rising"),
        ("[100, 200, 400]", "[0, 100]", "dataset_sizes: .*rising"),
        ("[100, 200, 400]", "[]", "dataset_sizes: "),
        ("easy: 0.70, medium", "easy: 0.75, medium", r"curriculum\.0: .*until 0.3 do not sum to 1"),
        ("{until: 0.7", "{until: 0.2", "curriculum: .*must rise from phase to phase and end at 1.0"),
        ("{until: 1.0", "{until: 0.9", "curriculum: .*end at 1.0"),
        ("  test: 0.3", "  test: 0.95", "split: .*leave nothing to train on"),
        ("blocks: [3, 6]", "blocks: [6, 3]", r"problems\.generated: .*blocksworld.blocks must be"),
        ("blocks: [3, 6]", "blocks: 4", r"problems\.generated: .*blocksworld.blocks must be"),
        ("{count: 240, blocks", "{blocks", r"problems\.generated: .*blocksworld.count must be"),
        ("weights: {n: 5}", "weights: {blocks: 5}", r"difficulty\.blocksworld: .*no \(\?P<blocks>"),
        (r"bw_ops\d+", r"(bw_ops\d+", r"difficulty\.blocksworld: .*not a regular expression"),
        ("  ferry:\n    pattern", "  fery:\n    pattern", r"no entry under `difficulty` for ferry"),
        ("  shots: [0, 1, 2, 3, 4]", "  shots: [0, -1]", r"evaluate\.shots"),
        ("  shots: [0, 4]", "  shots: [4, 0]", r"sft\.shots: "),
        ("  shot_num: 4", "  shot_num: 65", r"demonstrations: .*pool \(64\) holds fewer examples than shot_num \(65\)"),
        ("  embeddings: model", "  embeddings: file", r"demonstrations: .*embeddings_file: name the file"),
        ("hidden: 256, layers", "hidden: 255, layers", r"demonstrations\.pointer: .*hidden \(255\) must be a multiple"),
        ("temperature: [2.0, 0.5]", "temperature: [0.5, 2.0]", r"demonstrations\.rce\.temperature"),
        ("kl_target: [0.01, 0.1]", "kl_target: [0.1, 0.01]", r"demonstrations\.grpo\.kl_target"),
        ("seed: 3407", "seed: [3407", "not YAML"),
        ("seed: 3407", "seed: 1\nseed: 2", "duplicate key .*seed"),
    ],
)
def test_a_mistake_is_named_with_file_and_key(params_file: Path, old: str, new: str, complaint: str) -> None:
    text = params_file.read_text()
    assert old in text
    params_file.write_text(text.replace(old, new, 1))
    with pytest.raises(ParamsError, match=rf"(?s){complaint}") as caught:
        load_params(params_file)
    assert str(params_file) in str(caught.value)


def test_all_mistakes_are_told_at_once(params_file: Path) -> None:
    params_file.write_text(params_file.read_text().replace("  beta: 0.0 ", "  betta: 0.0 ").replace("seed:", "sede:"))
    with pytest.raises(ParamsError, match=r"4 mistake\(s\)"):
        load_params(params_file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"params\.yaml: no such file"):
        load_params(tmp_path / "params.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"seed: 1 # caf\xe9")
    with pytest.raises(ParamsError, match=r"latin\.yaml: not UTF-8"):
        load_params(tmp_path / "latin.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ParamsError, match=r"empty\.yaml"):
        load_params(tmp_path / "empty.yaml")


def test_what_another_task_lays_over_is_checked_and_named(params_file: Path, tmp_path: Path) -> None:
    own = load_params(params_file).of("economy")
    assert (own.task, own.placed(Path("results/score"))) == ("economy", Path("results/economy/score"))
    assert own.grpo.batch_size == 4
    assert own.ablations.variants == {}
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("economy: {own: {grpo: {stepz: 3}}}")
    with pytest.raises(ParamsError, match=r"economy\.own\.grpo\.stepz: unknown key"):
        merged_params(params_file, overlay)
    params_file.write_text(params_file.read_text() + "\ntask: economy\n")
    with pytest.raises(ParamsError, match="leave the key out"):
        load_params(params_file).of("planning")


def test_a_profile_changes_values_and_keeps_comments(params_file: Path, tmp_path: Path) -> None:
    before = params_file.read_text()
    overlay = tmp_path / "profile.yaml"
    overlay.write_text("seed: 5  # mine\ngrpo: {beta: 0.02, steps: 7}\nmodel:\n  lora: {r: 8, alpha: 16, dropout: 0.0,"
                       " target_modules: all-linear, merge: true}\n")  # fmt: skip
    merged_params(params_file, overlay)
    params = load_params(params_file)
    assert (params.seed, params.grpo.beta, params.grpo.steps) == (5, 0.02, 7)
    assert params.model.lora is not None
    assert params.grpo.batch_size == load_params(ROOT / "params.yaml").grpo.batch_size  # the profile does not name it
    after = params_file.read_text()
    assert comments(after) == comments(before)
    unchanged = [line for line in before.splitlines() if line in after.splitlines()]
    assert len(before.splitlines()) - len(unchanged) == 4


def test_an_empty_list_is_filled_and_emptied_on_its_line(params_file: Path, tmp_path: Path) -> None:
    before = params_file.read_text()
    overlay = tmp_path / "profile.yaml"
    for run in (["uniform", "dense"], ["dense"], []):
        overlay.write_text(f"ablations: {{run: [{', '.join(run)}]}}\n")
        merged_params(params_file, overlay)
        assert load_params(params_file).ablations.run == run
        assert f"run: [{', '.join(run)}] " in params_file.read_text()
    assert comments(params_file.read_text()) == comments(before)


def comments(text: str) -> list[str]:
    return [line.partition("#")[2].strip() for line in text.splitlines() if "#" in line]


@pytest.mark.parametrize(
    ("overlay", "complaint"),
    [
        ("grpo: {betta: 1}", "grpo.betta: unknown key"),
        ("grpo: {beta: -1}", "grpo.beta: "),
        ("- 1", "expected keys and values"),
        ("", "expected keys and values"),
        ("grpo: [", "not YAML"),
    ],
)
def test_a_bad_profile_changes_nothing(params_file: Path, tmp_path: Path, overlay: str, complaint: str) -> None:
    before = params_file.read_bytes()
    profile = tmp_path / "profile.yaml"
    profile.write_text(overlay)
    with pytest.raises(ParamsError, match=complaint) as caught:
        merged_params(params_file, profile)
    assert str(profile) in str(caught.value)
    assert params_file.read_bytes() == before


def test_every_profile_lays_over_params_cleanly(params_file: Path) -> None:
    shipped = params_file.read_text()
    for profile in PROFILES:
        params_file.write_text(shipped)
        merged_params(params_file, profile)
        assert params_file.read_text() != shipped, profile
        load_params(params_file)
        assert len(comments(params_file.read_text())) >= len(comments(shipped)), profile


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("seeds: [3407]", "seeds: [1, 1]", "seeds: .*different numbers, none negative"),
        ("seeds: [3407]", "seeds: [-1]", "seeds: .*different numbers, none negative"),
        ("seeds: [3407]", "seeds: []", "seeds: "),
        (RUN, "  run: [unknown]", "ablations: .*run: no entry under `variants` for unknown"),
        (RUN, "  run: [uniform, uniform]", "ablations: .*run: names a variant twice"),
        ("reward: dense}}", "rewards: dense}}", r"ablations\.variants\.dense\.grpo\.rewards: unknown key"),
        ("reward: dense}}", "reward: rare}}", r"ablations\.variants\.dense\.grpo\.reward: Input should be 'dense'"),
        ("dense: {grpo:", "dense: {sft:", r"variants\.dense: may change curriculum, .* \(got sft\)"),
        ("    dense:", "    sft:", r"variants\.sft: a name is small letters"),
        ("    dense:", "    not-so-dense:", r"variants\.not-so-dense: a name is small letters"),
    ],
)
def test_a_mistake_in_seeds_or_ablations_is_named(params_file: Path, old: str, new: str, complaint: str) -> None:
    text = params_file.read_text()
    assert old in text
    params_file.write_text(text.replace(old, new, 1))
    with pytest.raises(ParamsError, match=rf"(?s){complaint}"):
        load_params(params_file)


def test_variants_are_trained_at_one_of_the_sizes(params_file: Path) -> None:
    text = params_file.read_text().replace("[100, 200, 400]", "[100, 200]")
    params_file.write_text(text.replace(RUN, "  run: []"))
    load_params(params_file)  # nothing is to be trained at 400
    params_file.write_text(text)
    with pytest.raises(ParamsError, match=r"ablations\.dataset_size: 400 is none of dataset_sizes"):
        load_params(params_file)


def test_a_variant_is_the_parameters_with_its_keys_laid_over() -> None:
    params = load_params(ROOT / "params.yaml")
    assert params.variant("grpo") == params
    for name in params.ablations.variants:
        own = params.variant(name)
        assert own != params, name
        untouched = {"curriculum": params.curriculum, "curriculum_by_domain": {}, "grpo": params.grpo}
        assert own.model_copy(update=untouched) == params, name
    assert params.variant("dense").grpo == params.grpo.model_copy(update={"reward": "dense"})
    assert len(params.variant("uniform").curriculum) == 1
    with pytest.raises(ParamsError, match="no entry thin; there are: uniform, "):
        params.variant("thin")


def test_only_results_of_this_runs_sizes_seeds_and_variants_concern_it() -> None:
    shipped = load_params(ROOT / "params.yaml")
    params = shipped.model_copy(update={"ablations": shipped.ablations.model_copy(update={"run": []})})
    two = params.model_copy(update={"seeds": [3407, 1]})
    asked = params.model_copy(update={"ablations": params.ablations.model_copy(update={"run": ["dense"]})})
    names = ("split", "metrics", "base-0", "evaluate-base", "sft-200-3407", "grpo-400-3407", "grpo@400-3407")
    assert all(params.concerns(name) for name in names)
    assert params.concerns("evaluate@sft-100-3407")
    assert not any(params.concerns(name) for name in ("300", "sft-200", "grpo@400", "sft-300-3407", "grpo@50-3407"))
    assert [each.concerns("grpo-400-1") for each in (params, two)] == [False, True]
    for name in ("dense-400-3407", "grpo-ablation@dense-400-3407"):
        assert [each.concerns(name) for each in (params, asked)] == [False, True]
    assert not asked.concerns("dense-200-3407")
    assert not asked.concerns("uniform-400-3407")
