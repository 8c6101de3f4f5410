"""A Git repository to run commands in."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import copy
from pathlib import Path
from typing import Self


class Repository:
    """A folder with a project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def clone(self, folder: Path) -> Self:
        """The last commit, as somebody else gets it: without results and DVC's cache."""
        self.run("git", "clone", "--quiet", ".", str(folder))
        clone = copy(self)
        clone.folder = folder
        return clone

    def run(self, *command: str) -> str:
        """What a command prints; a failure shows it all."""
        bin_folder = str(Path(sys.executable).parent)
        paths = [str(self.folder / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
        environment["PYTHONPATH"] = os.pathsep.join(paths)  # so that no stage has to restart with it
        environment |= {
            f"GIT_{role}_{field}": "tester@example.org"
            for role in ("AUTHOR", "COMMITTER")
            for field in ("NAME", "EMAIL")
        }
        process = subprocess.run(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.returncode == 0, process.stdout
        return process.stdout

    def commit(self) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", "state")
