"""Kills at chosen moments; `python benchmarks/crashes.py` draws many at random."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import crashes
from crashes import Campaign, Trial


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """With SFT alone, through Snakemake and through DVC, which must give the same hashes."""
    campaign = Campaign(tmp_path_factory.mktemp("campaign"))
    campaign.measure("snakemake-sft")
    campaign.hashes["sft"] = campaign.hashes["snakemake-sft"]
    return campaign


@pytest.mark.parametrize(
    ("command", "victim", "number"),
    [
        ("snakemake-sft", "snakemake", signal.SIGKILL),
        ("snakemake-sft", "all", signal.SIGTERM),
        ("snakemake-sft", "dvc", signal.SIGKILL),
        ("sft", "dvc", signal.SIGTERM),
        ("sft", "stage", signal.SIGKILL),
        ("sft", "stage", signal.SIGTERM),
    ],
)
def test_one_rerun_after_a_kill_gives_the_hashes_of_a_whole_run(
    campaign: Campaign, command: str, victim: str, number: signal.Signals
) -> None:
    assert not campaign.run(Trial(command, victim, number, delay=0, since="checkpoint"))


def test_a_process_that_outlives_its_run_is_reported(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        process = crashes.start("sleep 60", tmp_path, log)
    assert [each.pid for each in crashes.find_processes(tmp_path)] == [process.pid]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not crashes.find_processes(tmp_path)
