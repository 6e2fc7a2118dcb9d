"""The vocabulary in which Kafka messages are declared: wire types, version ranges, and the base class of all messages.

A message is a ``Message`` subclass whose annotations carry everything the compiled codec must know::

    class PartitionData(Message):
        index: Int32 = 0                                        # in every version
        error_message: Annotated[String | None, V("8+")] = None  # from version 8, null allowed whenever it is there
        rack: Annotated[String | None, V("0+", nullable="1+")] = None  # null allowed only from version 1
        leader: Annotated[Leader | None, V("10+", tag=0)] = None       # a tagged field

Rules that hold for every message:

- The default is Kafka's default, except that a nullable name or message that means "none" is null and not "". Encoding
  a version that lacks a field drops the field's value without complaint.
- A *tagged* struct is ``None`` when it is absent (with ``nullable=`` it has Kafka's presence byte as well); every other
  tagged field takes its default when it is absent, and a tagged field that has its default value is not written.
- Tagged fields this release does not know are kept in ``unknown_tags`` and written back in flexible versions.
- A uuid is 16 raw bytes. ``Records`` decode to a memoryview of the frame, never a copy.

Reading these annotations is `schema`, turning them into code is `decoder` and `encoder`.
"""

from typing import Annotated, TypeAlias

from msgspec import Struct

Buffer: TypeAlias = bytes | bytearray | memoryview

ZERO_UUID = bytes(16)
MAX_INT64 = (1 << 63) - 1
NEWEST = 0x7FFF
"""Upper end of an open version range: the wire carries versions as int16."""


class DecodeError(ValueError):
    """The bytes are not what the message and version say they should be."""


class EncodeError(ValueError):
    """The message has a value that its version cannot carry."""


class Wire:
    """A wire type: its name, and for fixed-size types the `struct` letter and size in bytes."""

    __slots__ = ("letter", "name", "size")

    def __init__(self, name: str, letter: str = "", size: int = 0) -> None:
        self.name = name
        self.letter = letter
        self.size = size

    def __repr__(self) -> str:
        return f"Wire({self.name})"


Bool = Annotated[bool, Wire("bool", "?", 1)]
Int8 = Annotated[int, Wire("int8", "b", 1)]
Int16 = Annotated[int, Wire("int16", "h", 2)]
UInt16 = Annotated[int, Wire("uint16", "H", 2)]
Int32 = Annotated[int, Wire("int32", "i", 4)]
UInt32 = Annotated[int, Wire("uint32", "I", 4)]
Int64 = Annotated[int, Wire("int64", "q", 8)]
Float64 = Annotated[float, Wire("float64", "d", 8)]
Uuid = Annotated[bytes, Wire("uuid", "16s", 16)]
String = Annotated[str, Wire("string")]
Bytes = Annotated[bytes, Wire("bytes")]
Records = Annotated[bytes | bytearray | memoryview | list[Buffer], Wire("records")]


class V:
    """Where a field exists: its versions, the versions in which it may be null, and its tag if it is a tagged field."""

    __slots__ = ("nullable", "tag", "versions")

    def __init__(self, versions: str, *, nullable: str | None = None, tag: int | None = None) -> None:
        self.versions = versions
        self.nullable = nullable
        self.tag = tag

    def __repr__(self) -> str:
        return f"V({self.versions!r}, nullable={self.nullable!r}, tag={self.tag!r})"


def version_range(text: str) -> tuple[int, int]:
    """Lowest and highest version of ``"3"``, ``"3-7"`` or ``"3+"``; ``"none"`` is an empty range."""
    if text == "none":
        return 1, 0
    if text.endswith("+"):
        return int(text[:-1]), NEWEST
    low, _, high = text.partition("-")
    return int(low), int(high or low)


class Message(Struct, gc=False, kw_only=True, repr_omit_defaults=True):
    """Base of every message and of every struct inside one. Messages are trees, so the cycle collector skips them."""

    unknown_tags: dict[int, bytes] | None = None
