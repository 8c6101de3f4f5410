"""Stage `track`: list the results of a further track by content, so that the report depends on the tracks it shows."""

from __future__ import annotations

from planward.core import paths
from planward.core.files import write_json
from planward.core.hashing import compute_md5, list_files

UNLISTED = ("models", "timing")  # the page shows no weights, and times differ between equal runs


def run(track: str) -> None:
    """Write results/tables/tracks/TRACK.json: the MD5 of every file below results/TRACK that the report may read.

    A track that has not run has no files.
    """
    root = paths.RESULTS / track
    files = {
        path.as_posix(): compute_md5(path)
        for path in list_files(root)
        if path.relative_to(root).parts[0] not in UNLISTED
    }
    write_json(paths.results().tracks / f"{track}.json", {"track": track, "files": files})
