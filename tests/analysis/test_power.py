"""Power of the tests: formulas against simulation, and `planward power` on results."""

from __future__ import annotations

import json
import math
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from typer.testing import CliRunner

from planward.analysis.cells import Uncertainty, compute_differences, compute_largest_detectable
from planward.analysis.names import format_detectable_note
from planward.analysis.power import (
    VarianceComponents,
    approximate_problems,
    compute_exact_detectable,
    compute_exact_power,
    compute_problems_needed,
    compute_seeds_needed,
    compute_settings_power,
    estimate_components,
)
from planward.analysis.statistics import compute_detectable_difference, compute_sign_flip_p
from planward.analysis.success_arrays import Successes
from planward.cli import app
from planward.core.files import write_json, write_jsonl
from planward.core.runs import BASE, Run
from support import ROOT

PARAMS = ROOT / "params.yaml"
BY = Uncertainty(0.95, 100, 1)
discordances, alphas = st.floats(0.02, 0.9), st.sampled_from([0.05, 0.01, 0.05 / 15])


@given(st.integers(2, 5), st.integers(1, 3), st.integers(5, 40), st.integers(0, 2**32 - 1))
def test_largest_detectable_difference_is_that_of_all_pairs(rows: int, seeds: int, problems: int, seed: int) -> None:
    cells: list[Successes] = list(np.random.default_rng(seed).random((rows, seeds, 1, problems)) < 0.6)
    pairs = list(combinations(cells, 2))
    each = [row["detectable_difference"] for row in compute_differences(pairs, ["d"] * problems, BY)]
    assert compute_largest_detectable(np.stack([cell.mean(axis=(0, 1)) for cell in cells]), 0.95) == pytest.approx(
        max(each)
    )
    assert math.isnan(compute_largest_detectable(np.ones((1, problems)), 0.95))


def test_detectable_note_gives_one_number_or_the_range() -> None:
    assert format_detectable_note([math.nan]) == ""
    assert " rows: 7.5 points (80 %" in format_detectable_note([7.46, 7.51, math.nan])
    assert " rows: 3.0 to 7.5 points, depending on the column (80 %" in format_detectable_note([7.5, 3.0, 4.0])
    assert " rows: 0.016 units of reward (80 %" in format_detectable_note([0.016], "units of reward")


@pytest.mark.parametrize(
    ("difference", "discordance", "problems", "alpha"),
    [(0.1, 0.2, 150, 0.05), (0.05, 0.3, 371, 0.05), (0.08, 0.1, 60, 0.01), (0.0, 0.4, 40, 0.05), (0.3, 0.2, 20, 0.05)],
)
def test_exact_power_equals_simulation(difference: float, discordance: float, problems: int, alpha: float) -> None:
    rng, draws, s = np.random.default_rng(1), 4000, max(difference, discordance)
    counts = rng.multinomial(problems, [(s - difference) / 2, (s + difference) / 2, 1 - s], size=draws)
    rejections = [compute_sign_flip_p([-1] * a + [1] * b) < alpha for a, b, _ in counts]
    power = compute_exact_power(difference, discordance, problems, alpha)
    assert np.mean(rejections) == pytest.approx(power, abs=4 * math.sqrt(max(power * (1 - power), 1e-4) / draws))


@given(discordances, st.integers(1, 3000), alphas)
def test_without_a_difference_the_error_rate_is_at_most_alpha(s: float, problems: int, alpha: float) -> None:
    assert compute_exact_power(0.0, s, problems, alpha) <= alpha


@settings(max_examples=25)
@given(st.floats(0.03, 0.3), discordances, alphas, st.sampled_from([0.8, 0.9]))
def test_problems_needed_are_the_fewest(d: float, s: float, alpha: float, power: float) -> None:
    n = compute_problems_needed(d, s, alpha, power)
    assert n is not None
    assert all(compute_exact_power(d, s, more, alpha) >= power for more in (n, n + 1, n + 7, 2 * n))
    assert compute_exact_power(d, s, n - 1, alpha) < power
    larger = compute_problems_needed(1.5 * d, s, alpha, power)
    assert larger is not None
    assert larger <= n
    # the exact test is conservative; the formula is a normal limit, and far off where all wins are on one side
    assert s < 2 * d or 1 <= n / approximate_problems(d, s, alpha, power) < 1.05 + 5 / (n * s)


@given(discordances, st.integers(30, 3000))
def test_exact_detectable_difference_is_close_to_that_of_the_tables(s: float, problems: int) -> None:
    exact, approximate = (
        compute_exact_detectable(s, problems, 0.05, 0.8),
        compute_detectable_difference(s, problems, 0.95),
    )
    assert exact == 1 or compute_exact_power(exact, s, problems, 0.05) == pytest.approx(0.8, abs=1e-3)
    assert approximate * 0.99 < exact <= approximate * 1.1 + 6 / problems
    assert approximate_problems(approximate, s, 0.05, 0.8) == pytest.approx(problems, rel=1e-3) or approximate == 1


def draw_differences(
    seeds: int, problems: int, parts: tuple[float, float, float], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Differences [seeds, problems] around 0.05 with these variances: of seeds, of problems, of both."""
    shapes = ((seeds, 1), (1, problems), (seeds, problems))
    total = sum(rng.normal(0, math.sqrt(part), shape) for part, shape in zip(parts, shapes, strict=True))
    return np.asarray(0.05 + total)


def test_variance_components_are_unbiased() -> None:
    rng, truth = np.random.default_rng(2), (0.002, 0.05, 0.1)
    estimates = [estimate_components([draw_differences(4, 200, truth, rng)], 0.95) for _ in range(400)]
    means = [np.mean([getattr(parts, name) for parts in estimates]) for name in ("seed", "problem", "both")]
    assert means == pytest.approx(truth, rel=0.1)
    bounds = [parts.seed_bounds for parts in estimates if parts]
    assert 0.9 < np.mean([low <= truth[0] <= high for low, high in bounds]) < 0.99
    assert estimate_components([draw_differences(1, 200, truth, rng)], 0.95) is None


@pytest.mark.parametrize(("seeds", "problems"), [(3, 100), (6, 400)])
def test_settings_power_equals_simulated_t_tests_over_seeds(seeds: int, problems: int) -> None:
    parts = VarianceComponents(seed=0.001, problem=0.0, both=0.1, seeds=3, seed_bounds=(0, 0))
    rng, critical = np.random.default_rng(3), {3: 4.302653, 6: 2.570582}[seeds]
    means = np.stack([draw_differences(seeds, problems, (0.001, 0, 0.1), rng).mean(axis=1) for _ in range(3000)])
    t = means.mean(axis=1) / (means.std(axis=1, ddof=1) / math.sqrt(seeds))
    assert compute_settings_power(0.05, parts, seeds, problems, 0.05) == pytest.approx((t > critical).mean(), abs=0.03)


def test_more_problems_do_not_replace_seeds() -> None:
    parts = VarianceComponents(seed=0.03**2, problem=0.05, both=0.1, seeds=3, seed_bounds=(0, 0))
    fewest_seeds, seeds_now = (compute_seeds_needed(0.03, parts, n, 0.05, 0.8) for n in (math.inf, 2000))
    assert fewest_seeds is not None
    assert seeds_now is not None
    assert 8 < fewest_seeds < seeds_now
    assert compute_settings_power(0.03, parts, 3, 10**9, 0.05) < 0.4
    assert compute_seeds_needed(0.03, parts, 100, 0.05, 0.8) is None  # nor seeds for problems
    constant = VarianceComponents(seed=0.0, problem=0.0, both=0.0, seeds=3, seed_bounds=(0, 0))
    assert compute_seeds_needed(0.01, constant, 371, 0.05, 0.8) == 2


def build_prediction(run: Run, i: int, shot_num: int, success: bool) -> dict[str, object]:
    return {
        "id": f"p{i:03}",
        "domain": "ferry",
        "bucket": "easy",
        "score": 1.0,
        "method": run.method,
        "dataset_size": run.size,
        "seed": run.seed,
        "shot_num": shot_num,
        "shot_ids": [],
        "prompt": "q",
        "completion": "",
        "plan": "",
        "label": "success_plans" if success else "plan_format_error",
        "success": success,
        "reward": 0.0,
        "detail": "",
        "plan_size": 0,
        "failing_step": None,
        "goals_satisfied": None,
        "goals_total": None,
    }


def write_results(root: Path, seeds: tuple[int, ...]) -> None:
    """Write predictions of base, SFT and GRPO on 200 problems of different difficulty."""
    rng = np.random.default_rng(4)
    ease = rng.normal(0, 1.5, 200)
    runs = [BASE, *(Run(m, n, seed) for m in ("sft", "grpo") for n in (100, 200) for seed in seeds)]
    for run in runs:
        level = {"base": 0, "sft": 0.3, "grpo": 0.6}[run.method] + rng.normal(0, 0.1)
        rows = [
            build_prediction(run, i, k, bool(ease[i] + level + rng.normal(0, 0.7) > 0))
            for k in (0, 1)
            for i in range(200)
        ]
        write_jsonl(root / f"results/predictions/{run.name}.jsonl", rows)
        write_json(root / f"results/predictions/{run.name}.json", {"run": run.as_dict("planning")})
    text = PARAMS.read_text(encoding="utf-8").replace("seeds: [3407]", f"seeds: {list(seeds)}")
    text = text.replace("dataset_sizes: [100, 200, 400]", "dataset_sizes: [100, 200]")
    text = text.replace("dataset_size: 400 ", "dataset_size: 200 ").replace("run: [uniform]", "run: []")
    (root / "params.yaml").write_text(text, encoding="utf-8")


def test_power_with_one_seed_computes_problems_only(project: Path) -> None:
    write_results(project, (3407,))
    result = CliRunner().invoke(app, ["power"])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "What 200 problems and 1 seed can find, GRPO, N = 200 minus SFT, N = 200" in text
    assert "cannot be told from one seed" in text
    assert "dvc exp run -S 'seeds=[3407,1,2]'" in text
    analysis = json.loads(CliRunner().invoke(app, ["power", "--difference", "5", "--json"]).output)
    [row] = analysis["needed"]
    assert analysis["discordance"] == max(analysis["evidence"]["discordance"].values())
    assert row["problems"] == compute_problems_needed(0.05, analysis["discordance"], 0.05, 0.8)
    assert (row["seeds"], row["problems_by_seeds"]) == (None, {})
    stricter = json.loads(
        CliRunner().invoke(app, ["power", "--difference", "5", "--json", "--comparisons", "10"]).output
    )
    assert stricter["alpha"] == pytest.approx(0.005)
    assert stricter["needed"][0]["problems"] > row["problems"]


def test_power_with_several_seeds_computes_seeds_needed(project: Path) -> None:
    write_results(project, (3407, 1, 2))
    analysis = json.loads(CliRunner().invoke(app, ["power", "--json"]).output)
    assert analysis["evidence"]["seeds"] == 3
    for row in analysis["needed"]:
        assert row["seeds_at_most_problems"] is not None
        assert row["seeds_at_worst"] is None or row["seeds_at_worst"] >= row["seeds_at_most_problems"]
        assert row["seeds"] is None or row["seeds"] >= row["seeds_at_most_problems"]
        counts = list(row["problems_by_seeds"].values())
        assert counts == sorted(counts, reverse=True)
    text = " ".join(CliRunner().invoke(app, ["power", "--a", "base"]).output.split())
    assert "GRPO, N = 200 minus base" in text
    assert "Seeds needed to find that the settings differ" in text
    assert "3 seeds show it no better than between" in text


def test_power_without_results_needs_a_discordance(project: Path) -> None:
    (project / "params.yaml").write_bytes(PARAMS.read_bytes())
    result = CliRunner().invoke(app, ["power", "--discordance", "0.2", "--difference", "5", "--problems", "371"])
    assert result.exit_code == 0
    assert str(compute_problems_needed(0.05, 0.2, 0.05, 0.8)) in result.output
    assert f"{100 * compute_exact_detectable(0.2, 371, 0.05, 0.8):.1f}" in result.output
    result = CliRunner().invoke(app, ["power"])
    assert result.exit_code == 2
    assert "run `evaluate` first" in result.output
    write_results(project, (3407,))
    result = CliRunner().invoke(app, ["power", "--a", "qlora"])
    assert (result.exit_code, "no predictions of qlora" in result.output) == (2, True)
    result = CliRunner().invoke(app, ["power", "--a", "sft", "--b", "sft"])
    assert (result.exit_code, "sft cannot be compared with itself" in result.output) == (2, True)


def test_power_compares_endpoints(project: Path) -> None:
    write_results(project, (3407,))
    text = re.sub(r"(\nendpoints:.*\n  run: )\[\]", r"\1[gpt]", (project / "params.yaml").read_text(encoding="utf-8"))
    endpoint = "{gpt: {url: 'http://localhost:1/v1', model: m, api: completions}}"
    (project / "params.yaml").write_text(text.replace("  models: {} ", f"  models: {endpoint} "), encoding="utf-8")
    run = Run("gpt", 0, 0)
    rows = [build_prediction(run, i, k, i % 2 == 0) for k in (0, 1) for i in range(200)]
    write_jsonl(project / "results/predictions/gpt-0.jsonl", rows)
    write_json(project / "results/predictions/gpt-0.json", {"run": run.as_dict("planning")})
    result = CliRunner().invoke(app, ["power", "--a", "sft", "--b", "gpt"])
    assert result.exit_code == 0, result.output
    assert "gpt minus SFT, N = 200" in " ".join(result.output.split())
