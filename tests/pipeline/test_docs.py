"""The documentation: tutorials work as written; the site is complete and loads nothing from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from planward.core.registry import load_params
from project import ROOT, Project, tutorial

TRACKS = ("selectors", "economy", "cluster")
SMALLER = [
    ("epochs: 6", "epochs: 1"),
    ("evaluate:", "grpo: {steps: 1, num_generations: 2}\nvalidation: {steps: 0}\nevaluate:"),
]


def test_own_domain_tutorial_leads_to_a_judged_model(tmp_path: Path) -> None:
    """test_pipeline.py runs the other tutorial."""
    project = Project(tmp_path)
    for block in tutorial("own-domain"):
        project.follow(block)
        if block.title == "own/training.yaml":
            for old, new in SMALLER:
                project.edit(old, new, block.title)
    answers = (tmp_path / "results/predictions/grpo-200-3407.jsonl").read_text().splitlines()
    assert {json.loads(answer)["domain"] for answer in answers} == {"sweeping"}
    assert len(answers) == 117


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    build = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert build.returncode == 0, build.stderr
    return folder


@pytest.mark.parametrize("file", ["params.yaml", *(f"workflow/{track}/params.yaml" for track in TRACKS)])
def test_site_has_every_parameter(site: Path, file: str) -> None:
    _, _, page = (
        (site / "reference/params.html").read_text().partition(f'<h3 id="{file.replace("/", "").replace(".", "")}"')
    )
    assert page, f"no heading {file}"
    page = page.partition("<h3 ")[0]
    for section, values in yaml.safe_load((ROOT / file).read_text()).items():
        assert re.search(rf'<h4 id="{section}[-_"]|<code>{section}</code>', page), section
        for key in values if isinstance(values, dict) and section not in ("difficulty", "curriculum_by_domain") else ():
            assert re.search(rf"<code>{key}(\.\w+)?</code>", page), f"{section}.{key}"


def test_site_has_every_command(site: Path) -> None:
    page = (site / "reference/cli.html").read_text()
    help_text = subprocess.run([sys.executable, "-m", "planward", "--help"], capture_output=True, text=True).stdout
    commands = re.findall(r"^│ ([a-z]+) ", help_text, re.MULTILINE)
    assert commands
    assert all(f"planward {command}</code>" in page for command in commands)


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="((?:https?:)?//[^"]*)"')
    addresses = {page.name: loads.findall(page.read_text()) for page in site.rglob("*.html")}
    assert len(addresses) > 30
    assert not any(addresses.values()), addresses


def test_figure_of_the_curriculum_shows_the_phases_of_params_yaml() -> None:
    figure = (ROOT / "docs/figures/curriculum.svg").read_text()
    phases = load_params(root=ROOT).curriculum
    shares = re.findall(r">(easy|medium|hard) (\d+) %<", figure)
    assert shares == [(bucket, f"{100 * share:.0f}") for phase in phases for bucket, share in phase.shares.items()]
    assert all(f">{phase.until:g}<" in figure for phase in phases)
