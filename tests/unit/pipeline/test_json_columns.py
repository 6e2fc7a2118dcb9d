"""JSON into typed columns: what columns follow from values, and that nothing is changed on the way in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.pipeline.arrow_schema import HEADERS, TIMESTAMP
from chronik.pipeline.tables.json_rows import exact_number
from chronik.pipeline.tables.json_shape import MAX_COLUMNS, Shape, with_new_fields
from chronik.pipeline.tables.layout import OWN_COLUMNS, schema_of_text, schema_to_text
from chronik.pipeline.tables.table_rows import RowMaker

NOTHING = pa.schema([])


def columns_for(*documents: Any, columns: pa.Schema = NOTHING) -> pa.Schema:
    shape = Shape()
    for document in documents:
        one = Shape()
        one.observe(document)
        shape.merge(Shape.of_document(json.loads(json.dumps(one.to_document()))))
    return with_new_fields(columns, shape, OWN_COLUMNS)


def records(*values: bytes | None) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(["t"] * count, pa.string()),
            pa.array([0] * count, pa.int32()),
            pa.array(range(10, 10 + count), pa.int64()),
            pa.array([1_000_000] * count, TIMESTAMP),
            pa.array([None] * count, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([[]] * count, HEADERS),
        ],
        names=["topic", "partition", "offset", "timestamp", "key", "value", "headers"],
    )


def rows_of(typed: pa.Schema, *documents: Any) -> list[dict[str, Any]]:
    maker = RowMaker("json", typed, "dead-letter")
    return maker.convert(records(*(json.dumps(d).encode() for d in documents))).rows.to_pylist()


def test_whole_numbers_are_bigint_other_numbers_double_and_objects_structs() -> None:
    found = columns_for({"id": 1, "total": 1.5, "city": "Ulm", "paid": True, "a": {"zip": "1", "n": [1, 2]}})
    assert found == pa.schema(
        [
            ("id", pa.int64()),
            ("total", pa.float64()),
            ("city", pa.string()),
            ("paid", pa.bool_()),
            ("a", pa.struct([("zip", pa.string()), ("n", pa.list_(pa.field("element", pa.int64())))])),
        ]
    )


def test_a_field_with_both_kinds_of_numbers_is_double_and_other_mixtures_follow_the_majority() -> None:
    assert columns_for({"n": 1}, {"n": 1.5}).field("n").type == pa.float64()
    assert columns_for({"n": 1}, {"n": "one"}, {"n": "two"}).field("n").type == pa.string()


def test_new_fields_add_columns_and_no_type_ever_changes() -> None:
    before = columns_for({"id": 1, "a": {"x": 1}})
    after = columns_for({"id": "text", "a": {"x": "text", "y": True}, "new": 2.5}, columns=before)
    assert after == pa.schema(
        [
            ("id", pa.int64()),
            ("a", pa.struct([("x", pa.int64()), ("y", pa.bool_())])),
            ("new", pa.float64()),
        ]
    )


def test_fields_without_a_value_or_with_a_name_that_no_column_can_have_make_no_column() -> None:
    assert columns_for({"n": None, "e": {}, "l": [], "a b": 1, "": 2, "huge": 2**70}) == NOTHING
    assert columns_for({"a\0b": 1, "a\x1fb": 2, "c": {"\r": 3}}) == NOTHING
    assert columns_for({"Id": 1, "id": 2}).names == ["Id"]


def test_a_field_named_as_a_column_of_the_table_gets_a_name_of_its_own() -> None:
    typed = columns_for({"timestamp": "soon", "Offset": 5})
    assert typed.names == ["value_timestamp", "value_Offset"]
    (row,) = rows_of(typed, {"timestamp": "soon", "Offset": 5})
    assert (row["value_timestamp"], row["value_Offset"], row["offset"], row["_rescued"]) == ("soon", 5, 10, None)


def test_two_fields_never_share_a_column() -> None:
    document = {"timestamp": 1, "value_timestamp": 2, "Value_Key": 3, "value_city": 4}
    typed = columns_for(document)
    assert typed.names == ["value_timestamp", "value_value_timestamp", "value_Value_Key", "value_city"]
    (row,) = rows_of(typed, document)
    assert [row[name] for name in typed.names] == [1, 2, 3, 4] and row["_rescued"] is None


def test_columns_are_counted_with_those_of_nested_objects() -> None:
    wide = {f"a{i}": {f"b{j}": [{"c": 1}] for j in range(10)} for i in range(100)}
    found = columns_for(wide)
    assert 0 < len(found) < 100
    assert fields_in(found) == MAX_COLUMNS
    assert columns_for({"one_more": 1}, columns=found) == found


def fields_in(fields: Iterable[pa.Field]) -> int:
    count = 0
    for field in fields:
        kind = field.type.value_type if pa.types.is_list(field.type) else field.type
        count += 1 + fields_in(kind.field(index) for index in range(kind.num_fields))
    return count


def test_names_with_dots_and_stars_are_told_apart_among_what_is_rescued() -> None:
    typed = pa.schema([("a", pa.struct([("b", pa.int64())])), ("a.b", pa.int64())])
    (row,) = rows_of(typed, {"a": {"b": "in a"}, "a.b": "outside", "*": 1, "c`.d": 2})
    assert json.loads(row["_rescued"]) == {"a.b": "in a", "`a.b`": "outside", "*": 1, "`c``.d`": 2}
    assert columns_for({"*": 1, "a": {"*": 2, "c": 3}}) == pa.schema([("a", pa.struct([("c", pa.int64())]))])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int64(), 1.0),
        (pa.int64(), "1"),
        (pa.int64(), True),
        (pa.int64(), 2**63),
        (pa.int16(), 40_000),
        (pa.float64(), 2**53 + 1),
        (pa.float64(), "1.5"),
        (pa.string(), 7),
        (pa.string(), {"a": 1}),
        (pa.bool_(), 1),
        (pa.date32(), "2026-02-30"),
        (TIMESTAMP, "2026-01-31T12:00:00"),
        (TIMESTAMP, "2026-01-31T12:00:00.1234567Z"),
        (TIMESTAMP, "0001-01-01T00:00:00+23:00"),
        (TIMESTAMP, "9999-12-31T23:59:59-01:00"),
        (pa.list_(pa.field("element", pa.int64())), [1, "two"]),
        (pa.struct([("x", pa.int64())]), [1]),
    ],
)
def test_what_does_not_fit_exactly_is_rescued_by_its_name(kind: pa.DataType, value: Any) -> None:
    (row,) = rows_of(pa.schema([("f", kind)]), {"f": value})
    assert row["f"] is None
    assert json.loads(row["_rescued"]) == {"f": value}


@pytest.mark.parametrize(
    "number",
    ["1e400", "-1E+400", "1e-400", "12345678901234567890.125", "9007199254740993.0", "0.1234567890123456789"],
)
def test_a_number_that_no_double_holds_is_rescued_as_it_is_written(number: str) -> None:
    document = b'{"f":' + number.encode() + b',"n":1}'
    shape = Shape()
    maker = RowMaker("json", columns_for({"n": 1}), "dead-letter", unknown=shape)
    found = maker.convert(records(document))
    assert found.rows.column("_rescued").to_pylist() == ['{"f":' + number + "}"] and not found.dead_letters.num_rows
    assert with_new_fields(NOTHING, shape) == NOTHING, "no column follows from it"
    maker = RowMaker("json", pa.schema([("f", pa.float64())]), "dead-letter")
    assert maker.convert(records(document)).rows.column("f").to_pylist() == [None]


@pytest.mark.parametrize(
    "number",
    [
        "0.1",
        "1.0",
        "100.50",
        "-0.0",
        "0e999",
        "1E5",
        "1e22",
        "5e-324",
        "1.7976931348623157e308",
        "0.30000000000000004",
        "0.10000000000000001",
        "0.1000000000000000055511151231257827021181583404541015625",
        "123456.7890123450000000",
    ],
)
def test_a_number_that_a_double_prints_as_is_that_double(number: str) -> None:
    maker = RowMaker("json", pa.schema([("f", pa.float64())]), "dead-letter")
    (row,) = maker.convert(records(b'{"f":' + number.encode() + b"}")).rows.to_pylist()
    assert (row["f"], row["_rescued"]) == (float(number), None)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_is_read_back_however_it_is_printed(number: float) -> None:
    for text in (repr(number), f"{number:.17g}", f"{number:.17e}"):
        assert exact_number(text) == number


def test_what_fits_is_not_rescued() -> None:
    typed = pa.schema([("n", pa.float64()), ("d", pa.date32()), ("t", TIMESTAMP), ("s", pa.int8())])
    (row,) = rows_of(typed, {"n": 3, "d": "2026-01-31", "t": "2026-01-31T12:00:00+01:00", "s": -128})
    assert (row["n"], str(row["d"]), row["t"].isoformat(), row["s"], row["_rescued"]) == (
        3.0,
        "2026-01-31",
        "2026-01-31T11:00:00+00:00",
        -128,
        None,
    )


def test_a_part_of_an_object_that_does_not_fit_is_rescued_and_the_rest_is_kept() -> None:
    typed = pa.schema([("a", pa.struct([("x", pa.int64()), ("y", pa.string())]))])
    (row,) = rows_of(typed, {"a": {"x": "no", "y": "yes", "z": 1}})
    assert row["a"] == {"x": None, "y": "yes"}
    assert json.loads(row["_rescued"]) == {"a.x": "no", "a.z": 1}


def test_what_is_no_json_is_a_dead_letter_with_its_coordinates_and_what_is_no_object_is_rescued() -> None:
    maker = RowMaker("json", NOTHING, "dead-letter")
    found = maker.convert(records(b'{"a":1}', b"{broken", None, b"[1]"))
    assert found.rows.column("offset").to_pylist() == [10, 12, 13]
    assert found.rows.column("_rescued").to_pylist() == ['{"a":1}', None, '{"value":[1]}']
    (letter,) = found.dead_letters.to_pylist()
    assert (letter["offset"], letter["value"]) == (11, b"{broken")
    assert letter["reason"].startswith("the value is no JSON")


def test_stop_ends_before_the_bad_record() -> None:
    found = RowMaker("json", NOTHING, "stop").convert(records(b"{}", b"no", b"{}"))
    assert (found.rows.num_rows, found.stopped_at) == (1, 11)


def test_a_text_that_is_no_utf8_is_a_dead_letter() -> None:
    found = RowMaker("string", NOTHING, "dead-letter").convert(records("ä".encode(), b"\xff", None))
    assert found.rows.column("value").to_pylist() == ["ä", None]
    assert found.dead_letters.column("offset").to_pylist() == [11]


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(["a", "b", "c", "A", "key", "x y"]), values, max_size=4)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(content) for name, content in value.items() if content is not None}
    return value


@settings(max_examples=150, deadline=None)
@given(st.lists(objects, min_size=1, max_size=5))
def test_every_value_is_in_its_column_or_rescued_and_never_changed(documents: list[dict[str, Any]]) -> None:
    typed = columns_for(*documents)
    assert schema_of_text(schema_to_text(typed)) == typed
    for document, row in zip(documents, rows_of(typed, *documents), strict=True):
        rescued = json.loads(row["_rescued"]) if row["_rescued"] else {}
        for name, value in document.items():
            column = "value_key" if name == "key" else name
            held = row.get(column) if column in typed.names else None
            if isinstance(value, dict) and held is not None:
                continue  # its parts may be in either place
            if value is None:
                assert held is None
            elif name in rescued:
                assert rescued[name] == value and held is None
            elif isinstance(value, list):
                assert held is not None
            else:
                assert held == value and type(held) in (type(value), float)
