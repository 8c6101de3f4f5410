"""A stage runs once at a time and ends with DVC."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from planward.cli.processes import DVC_VARIABLE, StageIsRunning, lock_stage
from planward.core.files import CannotWriteError
from support import ROOT, mount

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a process with its parent (prctl)")

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
LATE_STAGE = """
import os, pathlib, time
print(os.getpid(), flush=True)
while not pathlib.Path("killed").exists():
    time.sleep(0.01)
from planward.cli.processes import end_with_parent
end_with_parent()
time.sleep(60)
"""  # as one that Python takes a second to start
FORK = """
import os, pathlib, time
from planward.cli.processes import lock_stage
with lock_stage(pathlib.Path("stage")):
    if not os.fork():
        print(os.getpid(), flush=True)  # by the child: it has closed the lock then
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


def test_a_forked_child_does_not_hold_the_lock_of_a_killed_stage(tmp_path: Path) -> None:
    stage = subprocess.Popen([sys.executable, "-c", FORK], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert stage.stdout is not None
    child = psutil.Process(int(stage.stdout.readline()))
    stage.kill()
    stage.wait()
    with lock_stage(tmp_path / "stage"):
        assert child.is_running()
    child.kill()


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with mount("locks", "size=4k,nr_inodes=10"):
        Path("locks/stage").touch()
        with Path("locks/full").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        with (
            pytest.raises(CannotWriteError, match=r"^cannot write locks/stage: No space left on device; fix: free"),
            lock_stage(Path("locks/stage")),
        ):
            pass


@needs_linux
@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
@pytest.mark.parametrize("is_stage", [True, False])
def test_a_stage_whose_dvc_was_killed_before_it_could_ask_ends_at_once(
    shell: str, is_stage: bool, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != DVC_VARIABLE}
    environment |= {"SHELL": shell} | ({DVC_VARIABLE: "sft"} if is_stage else {})
    (tmp_path / "stage.py").write_text(LATE_STAGE)
    command = [sys.executable, "-c", DVC, shell]
    dvc = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert dvc.stdout is not None
    stage = psutil.Process(int(dvc.stdout.readline()))
    dvc.kill()
    dvc.wait()
    (tmp_path / "killed").touch()
    dead_processes = psutil.wait_procs([stage], timeout=30 if is_stage else 3)[0]
    assert bool(dead_processes) == is_stage  # one that DVC did not start runs on
    if not is_stage:
        stage.kill()


@needs_linux
@pytest.mark.parametrize("command", [["setsid"], ["nohup"], ["setsid", "nohup", "sh", "-c", '"$0" "$@" & wait']])
def test_a_stage_in_a_session_of_its_own_runs(command: list[str], tmp_path: Path) -> None:
    code = "from planward.cli.processes import end_with_parent; end_with_parent(); print('runs')"
    for environment in (os.environ, os.environ | {DVC_VARIABLE: "sft"}):
        result = subprocess.run(
            [*command, sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True
        )
        assert result.stdout == b"runs\n", result.stderr


@needs_linux
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
    dead_processes = psutil.wait_procs([stage], timeout=2 if slurm else 30)[0]
    assert bool(dead_processes) != slurm
    dvc.kill()
    dvc.wait()
    assert psutil.wait_procs([stage], timeout=10)[0]
