"""Error codes: Kafka's numbers, Kafka's names, and which of them clients may retry."""

from kio.schema.errors import ErrorCode as KioErrorCode

from chronik.protocol.errors import ErrorCode, KafkaError


def test_codes_names_and_retriability_are_those_of_kio() -> None:
    ours = {(code.value, code.name, code.retriable) for code in ErrorCode}
    theirs = {(code.value, code.name.upper(), code.retriable) for code in KioErrorCode}
    assert ours == theirs


def test_an_error_says_its_code_and_what_happened() -> None:
    error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "1 of 2 required replicas is in sync")
    assert str(error) == "NOT_ENOUGH_REPLICAS: 1 of 2 required replicas is in sync"
    assert error.retriable
    assert error.code == 19


def test_an_error_without_a_message_has_one_made_of_its_name() -> None:
    assert KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE).message == "offset out of range"
