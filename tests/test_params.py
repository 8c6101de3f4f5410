"""params.yaml: what is wrong with it is named by file and key; profiles lay over it and keep its comments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conftest import ROOT
from planward.params import ParamsError, load_params, merged_params

PROFILES = sorted((ROOT / "profiles").glob("*.yaml"))


@pytest.fixture
def params_file(tmp_path: Path) -> Path:
    return Path(shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml"))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("seed: 3407", "sede: 3407", "sede: unknown key"),
        ("seed: 3407", "sede: 3407", "seed: missing"),
        ("  beta: 0.0", "  betta: 0.0", "grpo.betta: unknown key"),
        ("  steps: 45", "  steps: many", "grpo.steps: Input should be a valid integer"),
        ("  steps: 45", "  steps: 0", "grpo.steps: Input should be greater than 0"),
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
    params_file.write_text(params_file.read_text().replace("beta:", "betta:").replace("seed:", "sede:"))
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


def test_a_profile_changes_values_and_keeps_comments(params_file: Path, tmp_path: Path) -> None:
    before = params_file.read_text()
    overlay = tmp_path / "profile.yaml"
    overlay.write_text("seed: 5  # mine\ngrpo: {beta: 0.02, steps: 7}\nmodel:\n  lora: {r: 8, alpha: 16, dropout: 0.0,"
                       " target_modules: all-linear}\n")  # fmt: skip
    merged_params(params_file, overlay)
    params = load_params(params_file)
    assert (params.seed, params.grpo.beta, params.grpo.steps) == (5, 0.02, 7)
    assert params.model.lora is not None
    assert params.grpo.batch_size == load_params(ROOT / "params.yaml").grpo.batch_size  # the profile does not name it
    after = params_file.read_text()
    assert comments(after) == comments(before)
    unchanged = [line for line in before.splitlines() if line in after.splitlines()]
    assert len(before.splitlines()) - len(unchanged) == 4


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


def test_results_of_other_sizes_are_no_concern_of_this_run() -> None:
    params = load_params(ROOT / "params.yaml")
    names = ("split", "200", "sft-200", "grpo@400", "base-0", "evaluate-base")
    assert all(params.concerns(name) for name in names)
    assert not any(params.concerns(name) for name in ("300", "sft-300", "grpo@50"))
