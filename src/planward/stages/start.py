"""Stage `start`: list the weights that GRPO starts from by content, whichever `grpo.from` names."""

from __future__ import annotations

from pathlib import Path

from planward.core import paths
from planward.core.files import write_json
from planward.core.hashing import compute_md5, list_files
from planward.core.model_folders import check_model_folder, find_start_weights
from planward.core.runs import Run
from planward.params import Params

UNLISTED = "README.md"  # no weights


def run(params: Params, run: Run) -> None:
    """Write starts/SIZE-SEED.json: `grpo.from`, the folder, and the MD5 of its files.

    Raises:
        ParamsError: there is no such folder.
    """
    folder = find_start_weights(params, run)
    check_model_folder(folder, f"{paths.params_file(params.task)}: grpo.from")
    files = {
        path.relative_to(folder).as_posix(): compute_md5(path)
        for path in list_files(Path(folder))
        if path.name != UNLISTED
    }
    document = {"run": run.as_dict(params.task), "from": params.grpo.start, "folder": folder, "files": files}
    write_json(paths.results(params.task).start(run), document)
