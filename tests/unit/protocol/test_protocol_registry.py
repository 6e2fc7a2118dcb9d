"""The table of APIs, and what importing the codec costs."""

import inspect
import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest
from kio.schema.index import api_key_map

from chronik.protocol import codec, messages
from chronik.protocol.api import APIS, ApiKey, request_class, response_class
from chronik.protocol.schema import message_versions
from chronik.protocol.wire import Message
from oracles.random_messages import MessageGenerator


def test_every_key_has_an_entry_and_its_messages_name_it() -> None:
    assert set(APIS) == set(ApiKey)
    for key in ApiKey:
        for cls in (request_class(key), response_class(key)):
            assert cls.__dict__["API"] is key


def test_the_names_of_the_apis_are_kafkas() -> None:
    for key in set(ApiKey) - {ApiKey.ADMINISTER}:  # that one is Chronik's own
        assert api_key_map[key] == key.name.lower()
        assert APIS[key].name.lower() == key.name.replace("_", "").lower()


def test_importing_the_codec_imports_no_messages() -> None:
    script = "import sys, chronik.protocol.codec; print([m for m in sys.modules if 'protocol.messages' in m])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def _top_level_messages() -> list[type[Message]]:
    found = []
    for module in iter_modules(messages.__path__):
        loaded = import_module(f"{messages.__name__}.{module.name}")
        for _, cls in inspect.getmembers(loaded, inspect.isclass):
            if cls.__module__ == loaded.__name__ and {"API", "VERSIONS"} & set(vars(cls)):
                found.append(cls)
    return found


@pytest.mark.parametrize("cls", [c for c in _top_level_messages() if "VERSIONS" in vars(c)])
def test_what_is_kept_in_internal_topics_survives_a_round_trip(cls: type[Message]) -> None:
    low, high, _ = message_versions(cls)
    for version in range(low, high + 1):
        generator = MessageGenerator((cls.__name__, version), tame=False)
        for _ in range(10):
            message = generator.message(cls, version)
            assert codec.decode(cls, version, codec.encode(message, version)) == message


def test_every_message_can_be_built_without_arguments() -> None:
    """So that a handler sets only what it means to say."""
    for cls in _top_level_messages():
        low, high, _ = message_versions(cls)
        for version in (low, high):
            assert codec.decode(cls, version, codec.encode(cls(), version)) == cls()
