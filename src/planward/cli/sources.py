"""Which source code runs a stage: the project's own, whose hashes dvc.lock records."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import planward
from planward.cli.processes import DVC_VARIABLE


def use_project_sources() -> None:
    """Restart a stage that DVC runs with src/ of its working folder, if `planward` was imported from elsewhere.

    `dvc exp run --queue` and `--temp` run stages in a copy of the project, while `planward` on PATH may be an editable
    installation of the original, whose files can change meanwhile. Does nothing outside a checkout.
    """
    sources = Path("src").resolve()
    origin = Path(planward.__file__).resolve().parents[1]
    if DVC_VARIABLE not in os.environ or origin == sources or not (sources / "planward/__init__.py").is_file():
        return
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if paths[:1] == [str(sources)]:  # already restarted
        sys.exit(f"planward is imported from {origin}, not from {sources}; fix: pip install -e . again")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(sources), *paths])
    os.execv(sys.executable, [sys.executable, "-P", "-m", "planward", *sys.argv[1:]])
