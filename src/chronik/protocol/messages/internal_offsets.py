"""Records of committed offsets in `__consumer_offsets`. Keys of version 0 and 1 are offsets, and are written as 1."""

from typing import Annotated, ClassVar

from chronik.protocol.wire import ZERO_UUID, Int32, Int64, Message, String, Uuid, V


class OffsetCommitKey(Message):
    VERSIONS: ClassVar[str] = "0-1"

    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class OffsetCommitValue(Message):
    VERSIONS: ClassVar[str] = "0-4"
    FLEXIBLE: ClassVar[str] = "4+"

    offset: Int64 = 0
    leader_epoch: Annotated[Int32, V("3+")] = -1
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Annotated[Int64, V("1")] = -1
    topic_id: Annotated[Uuid, V("4+", tag=0)] = ZERO_UUID
