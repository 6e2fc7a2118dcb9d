"""Addresses of brokers as people write them: `host:port`, `host`, `[::1]:9092`, and comma-separated lists of those."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_PORT = 9092


def parse_bootstrap(text: str | Sequence[str]) -> list[tuple[str, int]]:
    """The addresses in a bootstrap list, in order. ValueError with the part that is wrong."""
    parts = text.split(",") if isinstance(text, str) else [piece for item in text for piece in item.split(",")]
    addresses = [parse_address(part.strip()) for part in parts if part.strip()]
    if not addresses:
        raise ValueError("the list of brokers is empty; name at least one, such as localhost:9092")
    return addresses


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of one address; the port is 9092 when it is left out."""
    if text.startswith("["):
        host, closing, rest = text[1:].partition("]")
        if not closing or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not an address; write an IPv6 address as [::1]:{DEFAULT_PORT}")
        port = rest[1:]
    elif text.count(":") > 1:
        host, port = text, ""  # a bare IPv6 address
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise ValueError(f"{text!r} is not an address; write host:port, such as localhost:{DEFAULT_PORT}")
    return host, int(port) if port else DEFAULT_PORT
