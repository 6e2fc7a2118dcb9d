"""The configuration of a node: where values come from, and what is refused with which advice."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from chronik.cli.start import start
from chronik.config import DEFAULTS, Address, ConfigError, load_config, parse_address, parse_voters


def test_defaults_bind_to_loopback_and_form_a_group_of_one() -> None:
    config = load_config(environment={})
    assert (str(config.kafka), str(config.peer), str(config.http)) == (
        "127.0.0.1:9092",
        "127.0.0.1:9192",
        "127.0.0.1:6092",
    )
    assert [voter.node_id for voter in config.voters] == [1]
    assert config.advertise == config.kafka


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "chronik.toml"
    file.write_text(
        'node-id = 2\nkafka = "127.0.0.1:1"\nrack = "file"\n[broker]\nnum.partitions = 7\n"log.retention.ms" = 5\n'
    )
    environment = {"CHRONIK_KAFKA": "127.0.0.1:2", "CHRONIK_RACK": "env", "CHRONIK_BROKER_NUM_PARTITIONS": "8"}
    config = load_config(file, environment, {"rack": "flag", "kafka": None}, {"log.retention.ms": "6"})
    assert (config.node_id, config.kafka.port, config.rack) == (2, 2, "flag")
    assert config.broker == {"num.partitions": "8", "log.retention.ms": "6"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9092", Address("localhost", 9092)),
        ("[::1]:9092", Address("::1", 9092)),
        ("broker1", Address("broker1", 1234)),
        ("::1", Address("::1", 1234)),
        ("[fe80::1]", Address("fe80::1", 1234)),
    ],
)
def test_address_forms(text: str, expected: Address) -> None:
    assert parse_address(text, "advertise", default_port=1234) == expected


def test_an_ipv6_address_is_written_with_brackets() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        ({"kafka": "0.0.0.0:9092"}, "set advertise to a"),
        ({"kafka": "[::]:9092"}, "set advertise to a"),
        ({"advertise": "0.0.0.0"}, "set advertise to a"),
        ({"peer": "0.0.0.0:9192"}, "set advertise_peer to a"),
        ({"kafka": "9092"}, "write it as HOST:PORT"),
        ({"kafka": "host:port"}, "number from 0 to 65535"),
        ({"kafka": "host:70000"}, "number from 0 to 65535"),
        ({"node_id": "0"}, "whole number from 1"),
        ({"node_id": "x"}, "whole number from 1"),
        ({"voters": "1@h"}, "has no port"),
        ({"voters": "h:1"}, "is not ID@HOST:PORT"),
        ({"voters": "1@h:1,1@h:2"}, "an id of its own"),
        ({"voters": "2@h:1"}, "not among the voters"),
        ({"voters": "1@h:1", "join": "h:1"}, "exclude each other"),
        ({"log_format": "xml"}, "not one of text, json"),
    ],
)
def test_a_bad_value_is_refused_with_advice(flags: dict[str, str], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice.replace("[", r"\[")):
        load_config(environment={}, flags=flags)


def test_an_unspecified_listener_with_a_real_advertised_address_is_fine() -> None:
    config = load_config(environment={}, flags={"kafka": "0.0.0.0:9092", "advertise": "broker1"})
    assert str(config.advertise) == "broker1:9092"


def test_an_unknown_key_in_the_file_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "chronik.toml"
    file.write_text("nodeid = 2\n")
    with pytest.raises(ConfigError, match="unknown key 'nodeid'"):
        load_config(file, {})


def test_voters_are_read_in_order() -> None:
    assert [(voter.node_id, str(voter.address)) for voter in parse_voters("1@a:1, 2@[::1]:2")] == [
        (1, "a:1"),
        (2, "[::1]:2"),
    ]


EVERY_OPTION = {
    "node_id": "2",
    "data_dir": "/var/lib/chronik",
    "kafka": "10.0.0.2:19092",
    "advertise": "two.example:29092",
    "peer": "10.0.0.2:19192",
    "advertise_peer": "two.example:29192",
    "http": "10.0.0.2:16092",
    "voters": "1@one.example:9192,2@two.example:9192",
    "join": "",
    "rack": "b",
    "host_name": "two",
    "log_format": "json",
    "log_level": "debug",
}


def test_every_option_is_a_flag_a_key_and_a_variable(tmp_path: Path) -> None:
    assert EVERY_OPTION.keys() == DEFAULTS.keys()
    assert inspect.signature(start).parameters.keys() - {"config", "set_"} == DEFAULTS.keys()
    for option, value in EVERY_OPTION.items():
        others = {name: other for name, other in EVERY_OPTION.items() if name != option}
        file = tmp_path / f"{option}.toml"
        file.write_text(f'{option.replace("_", "-")} = "{value}"\n')
        by_flag = load_config(flags=EVERY_OPTION, environment={})
        assert load_config(file, flags=others, environment={}) == by_flag, f"{option} in a file"
        variable = {f"CHRONIK_{option.upper()}": value}
        assert load_config(flags=others, environment=variable) == by_flag, f"{option} in the environment"
        if value:
            assert load_config(flags=others, environment={}) != by_flag, f"{option} changes nothing"
