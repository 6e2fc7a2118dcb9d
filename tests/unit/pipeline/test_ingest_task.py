"""What a task of a table reports when it cannot read."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from chronik.pipeline.positions import DataLoss
from chronik.pipeline.tables import ingest_task
from chronik.pipeline.tables.ingest_task import TaskReport, TaskSpec, run_task
from chronik.pipeline.tables.layout import schema_to_text


def test_a_table_that_lost_offsets_while_they_were_read_names_the_option_of_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise DataLoss("offsets 1 to 2 of t-0 are not there")

    monkeypatch.setattr(ingest_task, "Cluster", nullcontext)
    monkeypatch.setattr(ingest_task, "read_range", gone)
    columns = schema_to_text(pa.schema([]))
    spec = TaskSpec(
        bootstrap="h:1",
        topic="t",
        topic_id="id",
        folder=str(tmp_path),
        dead_letter_folder=str(tmp_path),
        value_format="string",
        on_error="skip",
        typed=columns,
        settled=True,
        ranges=[(0, 1, 3)],
        dead_letters_from={},
    )
    report = msgspec.json.decode(run_task(msgspec.json.encode(spec)), type=TaskReport)
    assert report.error == "offsets 1 to 2 of t-0 are not there. Start with --allow-gaps to go on without them"
