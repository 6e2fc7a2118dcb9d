"""What consumers of the classic protocol put into JoinGroup and SyncGroup: subscription and assignment.

Both begin with an int16 version. Read a newer version than is known here as the newest known one, and allow trailing
bytes: fields are only ever added at the end.
"""

# ruff: noqa: RUF012  (msgspec gives every instance its own empty list)

from typing import Annotated, ClassVar

from chronik.protocol.wire import Bytes, Int32, Message, String, V


class TopicPartitions(Message):
    topic: String = ""
    partitions: list[Int32] = []


class ConsumerProtocolSubscription(Message):
    VERSIONS: ClassVar[str] = "0-3"

    topics: list[String] = []
    user_data: Bytes | None = None
    owned_partitions: Annotated[list[TopicPartitions], V("1+")] = []
    generation_id: Annotated[Int32, V("2+")] = -1
    rack_id: Annotated[String | None, V("3+")] = None


class ConsumerProtocolAssignment(Message):
    VERSIONS: ClassVar[str] = "0-3"

    assigned_partitions: list[TopicPartitions] = []
    user_data: Bytes | None = None
