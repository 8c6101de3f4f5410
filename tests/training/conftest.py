"""Where training runs of tests take place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import letters


@pytest.fixture
def project_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a base model; one thread."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    letters.write_base(tmp_path / "base")
    return tmp_path
