"""Targets of the Makefile, with a `dvc` that notes what it is called for and takes its time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support import ROOT

DVC = """#!/bin/sh
echo "$1" >> calls.txt
if [ "$1" = repro ]; then sleep "$PAUSE"; fi
"""


@pytest.mark.parametrize("target", ["base", "adapter"])
@pytest.mark.parametrize("end", [None, signal.SIGINT, signal.SIGTERM])
def test_a_shipped_model_is_frozen_again_however_its_training_ends(
    tmp_path: Path, target: str, end: signal.Signals | None
) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("requirements.lock", "pyproject.toml", ".venv/ready"):  # the last is the newest: all is installed
        (tmp_path / name).touch()
    (tmp_path / ".venv/bin/dvc").write_text(DVC)
    (tmp_path / ".venv/bin/dvc").chmod(0o755)
    calls = tmp_path / "calls.txt"
    environment = os.environ | {"PAUSE": "30" if end else "0"}
    process = subprocess.Popen(
        ["make", target],
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a shell's background jobs ignore
    )
    if end:
        while not calls.exists() or "repro" not in calls.read_text():
            time.sleep(0.05)
        os.killpg(process.pid, end)
    assert (process.wait() == 0) == (end is None)
    deadline = time.monotonic() + 60  # make may end before its shell
    while end and "freeze" not in calls.read_text().split() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert calls.read_text().split() == ["unfreeze", "repro", "freeze"]
