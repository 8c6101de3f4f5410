"""Files that cannot be written are named, and no others in their place."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from planward.core.files import CannotWriteError, open_atomic, replace_atomic
from planward.val.known_problem import check_known_verdicts
from support import mount

FULL = OSError(errno.ENOSPC, "No space left on device")  # as of a write: without a file


def test_an_error_of_another_file_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space") as error, open_atomic(tmp_path / "quarantine.jsonl"):
        raise FULL
    assert not isinstance(error.value, CannotWriteError)
    assert not list(tmp_path.iterdir())
    with pytest.raises(CannotWriteError, match="quarantine"), replace_atomic(tmp_path / "quarantine.jsonl"):
        raise FULL  # of a library that writes the file


def test_a_full_disk_names_the_file_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        mount("results", "size=4k"),
        pytest.raises(CannotWriteError, match=r"^cannot write results/rows\.jsonl: No space left on device; fix: free"),
        open_atomic(Path("results/rows.jsonl")) as out,
    ):
        out.write("x" * 100_000)


def test_a_full_folder_of_temporary_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mount(str(tmp_path / "tmp"), "size=4k"):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
        (tmp_path / "tmp/full").write_bytes(b"x" * 4096)
        with (
            pytest.raises(
                CannotWriteError, match=rf"^cannot write temporary files in {tmp_path}/tmp: No space .*TMPDIR"
            ),
            open_atomic(tmp_path / "quarantine.jsonl"),
        ):
            check_known_verdicts()


def test_tensors_get_the_permissions_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    with replace_atomic(tmp_path / "tensors") as partial:
        save_file({"a": torch.zeros(1)}, partial)
    assert (tmp_path / "tensors").stat().st_mode == (tmp_path / "text").stat().st_mode
