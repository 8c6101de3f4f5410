"""Which source code a stage runs: a copy of the project brings its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import ROOT

COPY = """\
import sys
from pathlib import Path
Path("who.txt").write_text(" ".join([str(Path(__file__).parents[2]), *sys.argv[1:]]))
"""  # in place of the whole package
PIPELINE = """\
stages:
  who:
    cmd: planward score
    deps: [src/planward]
    outs: [who.txt: {cache: false}]
"""


def test_an_experiment_in_a_temporary_folder_runs_its_own_source(tmp_path: Path) -> None:
    package = tmp_path / "project/src/planward"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(COPY)
    (tmp_path / "project/dvc.yaml").write_text(PIPELINE)
    variables = [f"{role}_{name}" for role in ("AUTHOR", "COMMITTER") for name in ("NAME", "EMAIL")]
    environment = os.environ | {f"GIT_{name}": "tester@example.org" for name in variables}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),  # what an editable installation of the original does
    }

    def run(*command: str) -> str:
        process = subprocess.run(
            command, cwd=tmp_path / "project", env=environment, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    assert "Usage: planward score" in run("planward", "score", "--help")  # by hand: what is installed
    run("git", "init", "--quiet")
    run("dvc", "init", "--quiet")
    run("git", "add", ".")
    run("git", "commit", "--quiet", "-m", "state")
    run("dvc", "exp", "run", "--temp", "--name", "trial")
    reference = run("git", "for-each-ref", "--format=%(refname)", "refs/exps/*/*/trial").strip()
    folder, *arguments = run("git", "show", f"{reference}:who.txt").split()
    assert Path(folder).is_relative_to(tmp_path / "project/.dvc/tmp/exps")
    assert arguments == ["score"]
