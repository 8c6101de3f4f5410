"""A copy of this repository to run commands in, and the tutorials as lists of things to do there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from crashes import copy_project
from repository import Repository
from support import ROOT

FENCE = re.compile(r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.M | re.S)


class Project(Repository):
    """A copy of this repository without results, as a git repository of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        copy_project(folder)
        self.run("git", "init", "--quiet")
        self.commit()

    def snakemake(self) -> str:
        return self.run("snakemake", "--cores", "2", "results/report.html")

    def stale(self) -> set[str]:
        """The stages that DVC finds out of date."""
        return set(json.loads(self.run("dvc", "status", "--json").splitlines()[-1]))

    def lay_over(self, text: str) -> None:
        (self.folder / "recipe.yaml").write_text(text)
        self.run("planward", "params", "recipe.yaml")

    def locked(self) -> dict[str, object]:
        """What dvc.lock and workflow/*/dvc.lock record, by the addresses of the stages."""
        stages_by_address = dict(yaml.safe_load((self.folder / "dvc.lock").read_text())["stages"])
        for lock in sorted(self.folder.glob("workflow/*/dvc.lock")):
            pipeline = lock.relative_to(self.folder).with_suffix(".yaml")
            stages = yaml.safe_load(lock.read_text())["stages"]
            stages_by_address |= {f"{pipeline}:{name}": stage for name, stage in stages.items()}
        return stages_by_address

    def edit(self, old: str, new: str, name: str = "params.yaml") -> None:
        text = (self.folder / name).read_text()
        assert old in text
        (self.folder / name).write_text(text.replace(old, new))

    def follow(self, block: Block) -> None:
        """Do what a block of a tutorial says, and see what it shows."""
        if block.title:
            file = self.folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.language == "sh":
            self.run("bash", "-e", "-o", "pipefail", "-c", block.text)
        elif block.language == "console":
            for command, shown_lines in block.commands():
                compare(shown_lines, self.run("bash", "-e", "-c", command), command)


@dataclass(frozen=True)
class Block:
    """A fenced block: with a title, a file to save; `sh`, commands; `console`, commands and what they print.

    Any other is something to read. `shell` is what a test must not do, which is to set up the environment it runs in.
    """

    section: str
    language: str
    title: str
    text: str

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command of a `console` block, with the lines that are shown below it."""
        for part in re.split(r"^\$ ", self.text, flags=re.M)[1:]:
            command, *shown_lines = part.splitlines()
            yield command, shown_lines


def tutorial(name: str) -> list[Block]:
    """The blocks of docs/tutorial/NAME.md, in order."""
    text, section, blocks = (ROOT / f"docs/tutorial/{name}.md").read_text(), "", list[Block]()
    for match in re.finditer(rf"^## (?P<section>[^\n]+)$|{FENCE.pattern}", text, re.M | re.S):
        section = match["section"] or section
        if match["language"]:
            blocks.append(Block(section, match["language"], match["title"] or "", match["text"]))
    return blocks


def compare(shown_lines: list[str], output: str, command: str) -> None:
    """Each line shown must be printed, in this order; `...` stands for anything."""
    lines = iter(re.split(r"[\r\n]+", output))
    for line in shown_lines:
        pattern = ".*".join(map(re.escape, line.rstrip().split("...")))
        is_printed = line == "..." or any(re.fullmatch(pattern, output_line.rstrip()) for output_line in lines)
        assert is_printed, f"$ {command}\nprints no {line!r} here:\n{output}"
