"""What .dvc/config sets for everybody."""

from __future__ import annotations

import os
import subprocess

from support import ROOT


def test_no_command_starts_a_process_that_contacts_the_makers_of_dvc() -> None:
    """Without network DVC starts one for each command, that is for each stage, and they take a second each."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "DVC_GLOBAL_CONFIG_DIR")}
    process = subprocess.run(
        ["dvc", "version", "--verbose"], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert "Analytics is disabled" in process.stdout + process.stderr
    assert "Trying to spawn" not in process.stdout + process.stderr
