"""benchmarks/gpu.py at its tiny shape, on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from support import ROOT

COMMAND = [sys.executable, "benchmarks/gpu.py", "--shape", "tiny", "--engines", "TRL", "vLLM", "--phases", "grpo"]


@pytest.mark.skipif(
    find_spec("vllm") is not None, reason="vLLM is installed, so there is no row of a missing engine to test"
)
def test_each_measurement_is_a_row_even_if_it_cannot_run() -> None:
    process = subprocess.run([*COMMAND, "--json"], cwd=ROOT, capture_output=True, text=True, check=True)
    report = json.loads(process.stdout)
    row, missing_row = report["rows"]
    assert (row["engine"], row["phase"], row["processes"]) == ("TRL", "grpo", 1)
    assert row["seconds"] > 0
    completions = report["shape"]["prompts"] * report["shape"]["generations"]
    tokens = completions * report["shape"]["completion_tokens"]
    assert row["tokens_per_s"] == pytest.approx(tokens / row["seconds"])
    assert row["peak_gb"] > 0
    assert missing_row == {"engine": "vLLM", "phase": "grpo", "processes": 1, "error": "vllm is not installed"}
