"""Section "Transfer" of the page: its sentences follow the numbers, and what was not evaluated is not shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from planward.analysis.transfer import COLUMNS
from planward.core.registry import load_params
from planward.report.sections.transfer import build_transfer_section
from planward.stages import compare, report
from result_trees import DOMAINS, select_section, write_params, write_predictions
from support import ROOT


def build_row(kind: str, method: str, shot_num: int, successes: int, **changes: Any) -> dict[str, Any]:
    """A row of 50 problems whose interval is the rate ± 10 points."""
    rate = successes / 50
    row: dict[str, Any] = {"kind": kind, "domain": "all", "known_to_base": kind != "unseen", "method": method}
    row |= {"dataset_size": 0 if method == "base" else 200, "shot_num": shot_num, "seeds": 1, "n": 50}
    row |= {"successes": successes, "success_rate": rate, "ci_low": max(rate - 0.1, 0), "ci_high": min(rate + 0.1, 1)}
    row |= {"interval": "wilson", "detectable_difference": 9.0}
    if kind == "renamed":
        row |= {
            "original_success_rate": 0.6,
            "both": 28,
            "only_original": 2,
            "only_renamed": 1,
            "p": 0.5,
            "p_holm": 1.0,
        }
        row |= {"difference": -2.0, "difference_low": -6.0, "difference_high": 2.5, "test": "mcnemar"}
        row |= {"result": "undecided"}
    return row | changes


def build_table(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        ("equivalent", "within ±2 points, so names make no difference"),
        ("undecided", "includes 0 and ends outside ±2 points, so nothing is shown"),
        ("lower", "below 0, so success depends on names"),
        ("higher", "above 0, so success depends on names"),
    ],
)
def test_finding_on_renamed_problems_is_about_the_last_method_without_examples(result: str, verdict: str) -> None:
    grpo = [build_row("renamed", "grpo", 0, 29, result=result), build_row("renamed", "grpo", 4, 30)]
    section = build_transfer_section(build_table(build_row("renamed", "base", 0, 5), *grpo), 2.0)
    assert section is not None
    assert section.renamed is not None
    finding = section.renamed.finding
    assert finding.startswith("With 0 shots, GRPO at N = 200 solves 58.0 [48.0, 68.0] % of 50 problems with a new name")
    assert "60.0 % of the same problems with their own names: -2.0 [-6.0, +2.5] points" in finding
    assert verdict in finding
    assert "Of all 3 cells" in finding
    assert (f"{result} in 1" in finding) == (result != "undecided")
    assert ("undecided in 3" in finding) == (result == "undecided")
    assert section.larger is section.unseen is None


def test_finding_on_unseen_domains_says_where_success_is_above_zero() -> None:
    def describe(*successes: int, known_to_base: bool = False) -> str:
        rows = [
            build_row("unseen", "grpo", k, count, domain=domain, known_to_base=known_to_base)
            for domain in ("all", "elevator")
            for k, count in enumerate(successes)
        ]
        section = build_transfer_section(build_table(*rows), 2.0)
        assert section is not None
        assert section.unseen is not None
        assert [row[0] for row in section.unseen.tables[0].rows] == ["elevator"]  # `all` would say it again
        return section.unseen.finding

    start = "With 0 shots, GRPO at N = 200 solves 0.0 [0.0, 10.0] % of 50 problems of elevator"
    assert describe(0) == f"{start}: no success is shown."
    assert describe(0, 5) == f"{start}, with 1 shot 10.0 [0.0, 20.0] %: no success is shown."
    assert describe(0, 6, 20).endswith("with 2 shots 40.0 [30.0, 50.0] %: success is above 0 with 1, 2 shots.")
    assert describe(10, known_to_base=True).endswith(
        "but models/base has tokens for this domain and was pretrained on it."
    )


def test_finding_on_larger_problems_names_base_too() -> None:
    rows = [
        build_row("larger", method, 0, count, domain=domain)
        for domain in ("all", "ferry", "blocksworld")
        for method, count in (("base", 10), ("sft", 12), ("grpo", 20))
    ]
    section = build_transfer_section(build_table(*rows), 2.0)
    assert section is not None
    assert section.larger is not None
    assert section.larger.finding == (
        "With 0 shots, GRPO at N = 200 solves 40.0 [30.0, 50.0] % of 50 problems beyond the sizes of training, "
        "base 20.0 [10.0, 30.0] %."
    )
    table = section.larger.tables[0]
    assert [row[0] for row in table.rows] == ["all", "blocksworld", "ferry"]
    assert table.rows[0][1:] == [50, "20.0 [10.0, 30.0]", "24.0 [14.0, 34.0]", "40.0 [30.0, 50.0]"]


def test_page_shows_the_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_params(tmp_path)
    write_predictions(tmp_path, (100, 200), DOMAINS, 10, (0, 1, 4))
    monkeypatch.chdir(tmp_path)
    params = load_params(root=ROOT)
    compare.run(params)
    report.run(params)
    page = Path("results/report.html")
    assert "No such problems were evaluated" in select_section(page.read_text(), "transfer")
    rows = [
        build_row(kind, "grpo", 0, 30, domain=domain) for kind in ("renamed", "unseen") for domain in ("all", "a<b")
    ]
    build_table(*rows).to_csv("results/tables/transfer.csv", index=False)
    report.run(params)
    section = select_section(page.read_text(), "transfer")
    assert 'id="renamed"' in section
    assert 'id="unseen"' in section
    assert 'id="larger"' not in section
    assert "a&lt;b" in section
    assert "-2.0 <small>[-6.0, +2.5]</small>" in section
    assert 'href="#transfer"' in page.read_text()
