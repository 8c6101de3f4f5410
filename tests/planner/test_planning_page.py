"""docs/how-to/planning.md works as written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planward.cli import app
from project import FENCE, Block, compare
from support import ROOT

PAGE = ROOT / "docs/how-to/planning.md"


def test_page_shows_what_command_and_python_print(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("src", "models"):
        (project / folder).symlink_to(ROOT / folder)
    output, languages = "", []
    for match in FENCE.finditer(PAGE.read_text()):
        block = Block("", match["language"], match["title"] or "", match["text"])
        if block.title:
            (project / block.title).write_text(block.text)
        elif block.language == "console":
            for command, shown_lines in block.commands():
                result = CliRunner().invoke(app, shlex.split(command)[1:])
                compare(shown_lines, result.output, command)
        elif block.language == "python":
            exec(compile(block.text, str(PAGE), "exec"), {})
            output = capsys.readouterr().out
        elif block.language == "text":
            assert output == block.text
        else:
            continue
        languages.append(block.language)
    assert languages == ["lisp", "console", "python", "text"]
