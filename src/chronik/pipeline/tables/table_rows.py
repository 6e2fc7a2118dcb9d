"""From records to rows of a table: the same rules for what is landed and for what SQL reads from the live log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from chronik.pipeline.tables.json_rows import Misfits, decode_exactly, record_fitter
from chronik.pipeline.tables.json_shape import Shape
from chronik.pipeline.tables.layout import (
    BINARY,
    JSON,
    OWN_COLUMNS,
    READ_COLUMNS,
    STOP,
    STRING,
    dead_letter_columns,
    table_columns,
)

_REASON_BYTES = 500

_MAY_BE_INEXACT = r"[0-9.]{17}|[0-9][eE]"
"""What a value must have in it for one of its numbers to be none that a double holds: many digits, or an exponent."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Converted(NamedTuple):
    """What became of a batch of records; `stopped_at` is the offset of the record that ended it, if one did."""

    rows: pa.RecordBatch
    dead_letters: pa.RecordBatch
    rescued: int
    stopped_at: int | None
    reason: str | None


class RowMaker:
    """Makes rows of one table. With `unknown`, shapes of fields without a column are gathered there."""

    def __init__(
        self,
        value_format: str,
        typed: pa.Schema,
        on_error: str,
        *,
        unknown: Shape | None = None,
        keep_bad: bool = False,
    ) -> None:
        self.value_format = value_format
        self.schema = table_columns(value_format, typed)
        self.unknown = unknown
        self._typed = typed
        self._on_error = on_error
        self._keep_bad = keep_bad
        self._fit = record_fitter(typed, OWN_COLUMNS) if value_format == JSON else None

    def convert(self, records: pa.RecordBatch) -> Converted:
        """Rows for records, which have READ_COLUMNS. Bad ones are left out, and told of as dead letters."""
        if self.value_format == BINARY:
            return self._finish(records, {}, [], [], 0)
        if self.value_format == STRING:
            return self._texts(records)
        return self._json(records)

    # -- texts --------------------------------------------------------------------------------------------------------

    def _texts(self, records: pa.RecordBatch) -> Converted:
        try:
            texts = records.column("value").cast(pa.string())
        except pa.ArrowInvalid:
            return self._texts_one_by_one(records)
        return self._finish(records, {"value": texts}, [], [], 0)

    def _texts_one_by_one(self, records: pa.RecordBatch) -> Converted:
        texts: list[str | None] = []
        bad: list[int] = []
        reasons: list[str] = []
        for index, value in enumerate(records.column("value").to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError as error:
                texts.append(None)
                bad.append(index)
                reasons.append(f"the value is no UTF-8 text: {error.reason} at byte {error.start}")
        return self._finish(records, {"value": pa.array(texts, pa.string())}, bad, reasons, 0)

    # -- JSON ---------------------------------------------------------------------------------------------------------

    def _json(self, records: pa.RecordBatch) -> Converted:
        assert self._fit is not None
        fitted: list[dict[str, Any]] = []
        rescued: list[str | None] = []
        bad: list[int] = []
        reasons: list[str] = []
        nothing: dict[str, Any] = {}
        values = records.column("value")
        inexact = pc.match_substring_regex(values, _MAY_BE_INEXACT).to_pylist()  # looking at every number takes longer
        for index, value in enumerate(values.to_pylist()):
            kept, row = None, nothing
            if value is not None:
                try:
                    document = decode_exactly(value) if inexact[index] else _decode(value)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    bad.append(index)
                    reasons.append(f"the value is no JSON: {error}"[:_REASON_BYTES])
                else:
                    misfits = Misfits(self.unknown)
                    if type(document) is dict:
                        row = self._fit(document, (), misfits)
                    else:
                        misfits.add(("value",), document)
                    if misfits.values:
                        kept = _encode(misfits.values).decode()
            fitted.append(row)
            rescued.append(kept)
        columns: dict[str, pa.Array] = {"_rescued": pa.array(rescued, pa.string())}
        if len(self._typed):
            struct = pa.array(fitted, pa.struct(list(self._typed)))
            columns.update(zip(self._typed.names, struct.flatten(), strict=True))
        return self._finish(records, columns, bad, reasons, len(rescued) - rescued.count(None))

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _finish(
        self, records: pa.RecordBatch, made: dict[str, pa.Array], bad: list[int], reasons: list[str], rescued: int
    ) -> Converted:
        given = {**{name: records.column(name) for name in READ_COLUMNS}, **made}
        # A topic whose values were JSON before has columns that its values of today have nothing for.
        arrays = [
            given[field.name] if field.name in given else pa.nulls(len(records), field.type) for field in self.schema
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if not bad or self._keep_bad:
            return Converted(rows, _dead_letters(records, [], []), rescued, None, None)
        if self._on_error == STOP:
            first = bad[0]
            return Converted(
                rows.slice(0, first),
                _dead_letters(records, [], []),
                rescued,
                records.column("offset")[first].as_py(),
                reasons[0],
            )
        good = pc.invert(pc.is_in(pa.array(range(len(rows))), value_set=pa.array(bad)))
        return Converted(rows.filter(good), _dead_letters(records, bad, reasons), rescued, None, None)


def _dead_letters(records: pa.RecordBatch, bad: Sequence[int], reasons: Sequence[str]) -> pa.RecordBatch:
    chosen = records.select(READ_COLUMNS).take(pa.array(bad, pa.int64()))
    arrays = [*chosen.columns, pa.array(reasons, pa.string())]
    return pa.RecordBatch.from_arrays(arrays, schema=dead_letter_columns())
