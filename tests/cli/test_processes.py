"""A stage runs once at a time and ends with DVC."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from planward.cli.processes import DVC_VARIABLE, StageIsRunning, lock_stage
from support import ROOT

HOLD = """
import pathlib, time
from planward.cli.processes import lock_stage
with lock_stage(pathlib.Path("stage")):
    print("held", flush=True)
    time.sleep(60)
"""
STAGE = """
import os, time
from planward.cli.processes import end_with_parent
end_with_parent()
print(os.getpid(), flush=True)
time.sleep(60)
"""
DVC = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.run([sys.argv[1], "-c", f"{sys.executable} stage.py"])
time.sleep(60)
"""  # as the rules start it: SIGTERM is left to the stage


def test_a_stage_runs_once_at_a_time_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(StageIsRunning, match=f"^process {holder.pid} on .* runs this stage"),
        lock_stage(tmp_path / "stage"),
    ):
        pass
    holder.kill()
    holder.wait()
    with lock_stage(tmp_path / "stage"):
        assert f"process {os.getpid()} on" in (tmp_path / "stage").read_text()
    assert (tmp_path / "stage").read_text() == ""


@pytest.fixture(params=["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def without_flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        number = getattr(errno, request.param)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)


@pytest.mark.usefixtures("without_flock")
def test_a_stage_runs_without_a_lock_where_the_file_system_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_stage(tmp_path / "stage"):
        assert capsys.readouterr().err.startswith(f"warning: the file system of {tmp_path} has no flock (")
        assert f"process {os.getpid()} on" in (tmp_path / "stage").read_text()
    assert not capsys.readouterr().err


@pytest.mark.usefixtures("without_flock")
def test_snakemake_runs_without_a_lock_where_the_file_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    lock = tmp_path / ".snakemake/locks/0.input.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    rules: dict[str, Any] = {"workflow": SimpleNamespace(is_main_process=True), "os": os}
    with caplog.at_level(logging.WARNING, "snakemake.logging"):
        exec((ROOT / "workflow/rules/locks.smk").read_text(), rules)
    [record] = caplog.records
    assert record.getMessage().startswith(f"The file system of {tmp_path}/.snakemake has no flock (")
    assert lock.exists()
    rules["run_lock"].close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a process with its parent (prctl)")
@pytest.mark.parametrize("slurm", [False, True])
@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
def test_a_stage_ends_with_dvc_and_on_sigterm_unless_slurm_decides(shell: str, slurm: bool, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
    environment |= {DVC_VARIABLE: "sft", "SHELL": shell} | ({"SLURM_JOB_ID": "1"} if slurm else {})
    (tmp_path / "stage.py").write_text(STAGE)
    command = [sys.executable, "-c", DVC, shell]
    dvc = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert dvc.stdout is not None
    stage = psutil.Process(int(dvc.stdout.readline()))
    stage.send_signal(signal.SIGTERM)
    ended = psutil.wait_procs([stage], timeout=2 if slurm else 30)[0]
    assert bool(ended) != slurm
    dvc.kill()
    dvc.wait()
    assert psutil.wait_procs([stage], timeout=10)[0]
