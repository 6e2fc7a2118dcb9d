"""Rows of an answer as JSON values, and for people: bytes as text where they are text, times in UTC.

Times, dates, intervals and variants are made into texts by Spark: Python's own cannot hold all of them, and would show
times in the zone of the machine.
"""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


def shown(frame: DataFrame) -> DataFrame:
    """A frame with texts in place of what Python cannot hold as it is."""
    from pyspark.sql.functions import col

    kinds = [field.dataType for field in frame.schema.fields]
    targets = [shown_type(kind) for kind in kinds]
    if kinds == targets:
        return frame
    places = [f"c{index}" for index in range(len(kinds))]  # two columns of an answer may have one name
    named = zip(places, kinds, targets, strict=True)
    return frame.toDF(*places).select(
        *(col(place) if kind == target else col(place).cast(target) for place, kind, target in named)
    )


def shown_type(kind: DataType) -> DataType:
    """The type that a column is sent as."""
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        fields = [types.StructField(field.name, shown_type(field.dataType), field.nullable) for field in kind.fields]
        return types.StructType(fields)
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(shown_type(kind.elementType), kind.containsNull)
    if isinstance(kind, types.MapType):
        return types.MapType(shown_type(kind.keyType), shown_type(kind.valueType), kind.valueContainsNull)
    held = types.NumericType, types.BooleanType, types.StringType, types.BinaryType, types.NullType
    return kind if isinstance(kind, held) else types.StringType()


def plain(value: Any) -> Any:
    """A value of Spark's as one that JSON has."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, bytes | bytearray):
        return readable(bytes(value))
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "asDict"):
        return {name: plain(content) for name, content in value.asDict().items()}
    if isinstance(value, dict):
        return {str(plain(name)): plain(content) for name, content in value.items()}
    if isinstance(value, list | tuple):
        return [plain(content) for content in value]
    return str(value)


def readable(value: bytes) -> str:
    """Bytes as the text they are, or as `base64:…` where they are none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()
