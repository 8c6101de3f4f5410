"""The documentation: what its tutorials tell the reader to do works; the site is whole and loads nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from planward.params import load_params
from project import ROOT, Project, tutorial

SMALLER = [
    ("epochs: 6", "epochs: 1"),
    ("evaluate:", "grpo: {steps: 1, num_generations: 2}\nvalidation: {steps: 0}\nevaluate:"),
]


def test_a_domain_of_ones_own_goes_from_the_first_file_to_a_judged_model(tmp_path: Path) -> None:
    """The commands of the other tutorial are run by test_pipeline.py."""
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
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_every_parameter_and_command(site: Path) -> None:
    params, commands = ((site / f"reference/{name}.html").read_text() for name in ("params", "cli"))
    for section, values in yaml.safe_load((ROOT / "params.yaml").read_text()).items():
        assert f'id="{section}"' in params or f"<code>{section}</code>" in params
        for key in values if isinstance(values, dict) and section not in ("difficulty",) else ():
            assert re.search(rf"<code>{key}(\.\w+)?</code>", params), f"{section}.{key}"
    help_text = subprocess.run([sys.executable, "-m", "planward", "--help"], capture_output=True, text=True).stdout
    for command in re.findall(r"^│ ([a-z]+) ", help_text, re.MULTILINE):
        assert f"planward {command}</code>" in commands, command


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="((?:https?:)?//[^"]*)"')
    found = {page.name: loads.findall(page.read_text()) for page in site.rglob("*.html")}
    assert len(found) > 30
    assert not {name: addresses for name, addresses in found.items() if addresses}


def test_the_figure_of_the_curriculum_shows_the_phases_of_params_yaml() -> None:
    figure = (ROOT / "docs/figures/curriculum.svg").read_text()
    phases = load_params(ROOT / "params.yaml").curriculum
    shown = re.findall(r">(easy|medium|hard) (\d+) %<", figure)
    assert shown == [(bucket, f"{100 * share:.0f}") for phase in phases for bucket, share in phase.shares.items()]
    assert all(f">{phase.until:g}<" in figure for phase in phases)
