"""The record of a run's rollouts: a part per optimizer step beside the checkpoints, joined into one file at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from accelerate import PartialState

from planward.core.files import replace_atomic
from planward.curriculum.draws import Slot
from planward.training.checkpoints import Journal

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("slot", pa.int64()),
        ("id", pa.string()),
        ("domain", pa.string()),
        ("bucket", pa.string()),
        ("completion_index", pa.int64()),
        ("plan", pa.string()),
        ("completion", pa.string()),
        ("label", pa.string()),
        ("failing_step", pa.int64()),
        ("reward", pa.float64()),
        ("num_tokens", pa.int64()),
        ("truncated", pa.bool_()),
        ("replayed", pa.bool_()),
    ]
)
BYTES_PER_MB = 10**6
STEPS_PER_ROW_GROUP = 50
PREFIX = "rollouts-"  # of the parts' names


class RolloutRecord:
    """Keeps the completions of a run's first steps, as many steps as fit into `limit_mb`.

    The journal names the parts, so a resumed run has those of the steps before its checkpoint. The main process writes.

    Args:
        folder: of the checkpoints.
        limit_mb: of all parts together; the joined file is smaller. 0: nothing is kept.
    """

    def __init__(self, folder: Path, journal: Journal, limit_mb: float) -> None:
        self.folder, self.journal, self.limit_bytes = folder, journal, limit_mb * BYTES_PER_MB

    def append(self, step: int, slots: Sequence[Slot], groups: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Keep a step's completions, a group for each slot, unless this or an earlier step does not fit."""
        parts = self._list_parts()
        if not self.limit_bytes or len(parts) < step or not PartialState().is_main_process:
            return
        rows = [
            {name: getattr(slot, name) for name in ("step", "slot", "id", "domain", "bucket")}
            | {"completion_index": index}
            | {name: row[name] for name in SCHEMA.names[6:]}
            | {"completion": None if row["completion"].strip() == row["plan"] else row["completion"]}
            for slot, group in zip(slots, groups, strict=True)
            for index, row in enumerate(group)
        ]
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), buffer, compression="zstd")
        data = buffer.getvalue().to_pybytes()
        if sum(part.stat().st_size for part in parts) + len(data) > self.limit_bytes:
            return
        part = self.folder / f"{PREFIX}{step:06}.parquet"
        with replace_atomic(part) as partial:
            partial.write_bytes(data)
        self.journal.files.append(part.name)

    def write(self, path: Path) -> int:
        """Join the parts into `path`; return the number of completions in it."""
        parts = self._list_parts()
        with replace_atomic(path) as partial:
            with pq.ParquetWriter(partial, SCHEMA, compression="zstd") as out:
                for start in range(0, len(parts), STEPS_PER_ROW_GROUP):
                    tables = map(pq.read_table, parts[start : start + STEPS_PER_ROW_GROUP])
                    out.write_table(pa.concat_tables(tables))
            return int(pq.read_metadata(partial).num_rows)

    def _list_parts(self) -> list[Path]:
        return [self.folder / name for name in self.journal.files if name.startswith(PREFIX)]
