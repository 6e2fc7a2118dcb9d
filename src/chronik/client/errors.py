"""What can go wrong between this client and a cluster, beside the errors that brokers answer with (`KafkaError`)."""

from __future__ import annotations

from collections.abc import Mapping

from chronik.protocol.errors import ErrorCode, KafkaError


class ClientError(Exception):
    """Base of the failures that no broker named. The text says what happened and what to do next."""


class ConnectionFailed(ClientError):
    """A broker could not be reached, or the connection broke; what was asked may or may not have been done."""


class RequestTimedOut(ConnectionFailed):
    """A broker took longer to answer than the caller wanted to wait. The connection is closed."""


class UnsupportedByBroker(ClientError):
    """The broker offers no version of an API that this client speaks."""


class NoBrokerReachable(ClientError):
    """None of the known addresses answered."""

    def __init__(self, attempts: Mapping[str, Exception], *, reached_before: bool) -> None:
        self.attempts = dict(attempts)
        self.reached_before = reached_before
        tried = "; ".join(f"{address}: {error}" for address, error in attempts.items())
        super().__init__(
            f"no broker of the cluster could be reached ({tried}). Check that it runs and that the address is right"
        )


class GaveUp(ClientError):
    """Brokers could not be reached until the time for it was over; `__cause__` is the last failure."""


class OffsetOutOfRange(KafkaError):
    """A read asked for an offset that the log no longer has, or does not have yet."""

    def __init__(self, topic: str, partition: int, offset: int, earliest: int, latest: int) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.earliest = earliest
        self.latest = latest
        if offset < earliest:
            happened = f"was removed ({earliest - offset} offsets are gone, by retention or DeleteRecords)"
        else:
            happened = "does not exist (the log is shorter: the topic was re-created, or lost its end)"
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {topic}-{partition} {happened}; the log holds {earliest} to {latest}. "
            "Read from an offset in that range, or choose earliest or latest",
        )


def raise_for_code(code: int, what: str, message: str | None = None) -> None:
    """Raise the KafkaError for an error code in a response, or do nothing when it is 0.

    `what` names what was asked for; `message` is what the broker said, where the response has room for that.
    """
    if code:
        raise error_for_code(code, what, message)


def error_for_code(code: int, what: str, message: str | None = None) -> KafkaError:
    try:
        known = ErrorCode(code)
    except ValueError:
        return KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"{what}: the broker answered error {code}, which this client does not know"
        )
    said = message or known.name.lower().replace("_", " ")
    return KafkaError(known, f"{what}: {said}")
