"""Which batches a reader of committed data is shown."""

from __future__ import annotations

from chronik.client.fetched import visible_batches
from chronik.protocol.records import Record, build_batch, parse_batches
from chronik.protocol.records.control import build_end_transaction_marker


def test_aborted_batches_are_hidden_up_to_their_marker_and_emptied_markers_say_nothing() -> None:
    def data(offset: int) -> bytearray:
        records = [Record(offset, 0, b"k", b"v")]
        return build_batch(records, base_offset=offset, producer_id=7, producer_epoch=0, transactional=True)

    def marker(offset: int, *, committed: bool) -> bytearray:
        return build_end_transaction_marker(
            committed=committed, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=offset
        )

    emptied = build_batch(
        [],
        base_offset=1,
        producer_id=7,
        producer_epoch=0,
        transactional=True,
        control=True,
        last_offset_delta=0,
    )
    log = b"".join([data(0), emptied, data(2), marker(3, committed=False), data(4), marker(5, committed=True)])
    shown = visible_batches(log, parse_batches(log), [(7, 0)])
    assert [info.base_offset for info in shown] == [4]
