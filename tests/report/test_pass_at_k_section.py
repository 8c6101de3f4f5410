"""Section "Best of several samples" of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from planward.analysis.pass_at_k import COLUMNS
from planward.core.registry import load_params
from planward.report.sections.pass_at_k import build_pass_at_k_section
from planward.stages import compare, report
from result_trees import DOMAINS, select_section, write_params, write_predictions
from support import ROOT


def build_row(method: str, k: int, rate: float, tokens: float, domain: str = "all") -> dict[str, Any]:
    row = {"method": method, "dataset_size": 0 if method == "base" else 200, "shot_num": 0, "domain": domain, "k": k}
    row |= {"seeds": 1, "n": 40, "samples": 8, "pass_at_k": rate, "ci_low": rate - 0.1, "ci_high": rate + 0.1}
    return row | {"tokens": tokens}


def build_table(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS)


ROWS = [
    *(build_row("base", k, rate, 20 * k) for k, rate in ((1, 0.2), (8, 0.5))),
    *(build_row("grpo", k, rate, 10 * k) for k, rate in ((1, 0.6), (8, 0.7))),
]


def test_section_says_what_samples_gain_and_cost() -> None:
    section = build_pass_at_k_section(build_table(*ROWS))
    assert section is not None
    assert section.finding == (
        "GRPO at N = 200 solves 60.0 [50.0, 70.0] % of 40 problems with one sample and 70.0 [60.0, 80.0] % with up to "
        "8, for 8.0 times as many tokens."
    )
    assert section.table.head == ["method", "n", "k = 1", "k = 8", "tokens, k = 1", "tokens, k = 8"]
    assert section.table.rows[0] == ["base", 40, "20.0 [10.0, 30.0]", "50.0 [40.0, 60.0]", "20", "160"]
    assert [row[0] for row in section.table.rows] == ["base", "GRPO, N = 200"]
    assert section.panels[1].rows[0][:4] == ("base", "mean", 20, 0.2)
    assert build_pass_at_k_section(build_table()) is None


def test_page_shows_the_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_params(tmp_path)
    write_predictions(tmp_path, (100, 200), DOMAINS, 10, (0, 1, 4))
    monkeypatch.chdir(tmp_path)
    params = load_params(root=ROOT)
    compare.run(params)
    report.run(params)
    page = Path("results/report.html")
    assert "No plans were sampled" in select_section(page.read_text(), "pass-at-k")
    build_table(*ROWS, *(build_row("base", k, 0.3, 9, "a<b") for k in (1, 8))).to_csv(
        "results/tables/pass-at-k.csv", index=False
    )
    report.run(params)
    section = select_section(page.read_text(), "pass-at-k")
    assert "8 plans of each test problem were\nsampled (0 shots)" in section
    assert "a&lt;b" in section
    assert section.count("<svg") == 2
    assert 'href="#pass-at-k"' in page.read_text()
