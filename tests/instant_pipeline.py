"""A project with this repository's rules, and a pipeline of stages that take no time."""

from __future__ import annotations

import shutil
from pathlib import Path

from repository import Repository
from support import ROOT

PIPELINE = """\
stages:
  base:
    cmd: mkdir -p results && cp source.txt results/base.txt && echo base >> ran.txt
    outs: [results/base.txt]
  data:
    cmd: mkdir -p results && cp source.txt results/data.txt && echo data >> ran.txt
    deps: [source.txt]
    outs: [results/data.txt]
  train:
    matrix: {seed: [1, 2]}
    cmd: >-
      mkdir -p results/models && cp results/data.txt results/models/m-${item.seed}.txt
      && echo answer >> results/kept-${item.seed}.txt && echo train-${item.seed} >> ran.txt
    deps: [results/base.txt, results/data.txt]
    outs:
      - results/models/m-${item.seed}.txt
      - results/kept-${item.seed}.txt: {persist: true}
  report:
    cmd: cat results/models/*.txt > results/report.html && echo report >> ran.txt
    deps: [results/models]
    outs: [results/report.html]
    meta: {snakemake: {resources: {gpu: 1}}}
"""


class Pipeline(Repository):
    """The project, finished and committed."""

    def __init__(self, folder: Path, stages: str = PIPELINE) -> None:
        super().__init__(folder)
        for name in ("Snakefile", ".dvcignore", "params.yaml"):
            shutil.copy(ROOT / name, folder / name)
        for name in ("workflow/rules", "profiles/default"):
            shutil.copytree(ROOT / name, folder / name)
        (folder / "dvc.yaml").write_text(stages)
        (folder / "source.txt").write_text("text")
        (folder / ".gitignore").write_text("/.snakemake/\n/logs/\n/results/\n/ran.txt\n")
        self.run("git", "init", "--quiet")
        self.run("dvc", "init", "--quiet")
        self.commit()
        self.run("dvc", "repro", "--quiet", "base")
        self.run("dvc", "freeze", "base")
        self.snakemake("--cores", "2")
        self.commit()

    def snakemake(self, *options: str) -> str:
        return self.run("snakemake", *options)

    def list_new_runs(self, *command: str) -> set[str]:
        """The stages whose commands ran, not those that DVC skipped or took from its cache."""
        log = self.folder / "ran.txt"
        before = len(log.read_text().split())
        self.run(*command)
        return set(log.read_text().split()[before:])

    def check_finished(self) -> None:
        assert "up to date" in self.run("dvc", "status")
        assert (self.folder / "results/report.html").read_text() == "texttext"
