"""Histories in which nodes fail on purpose log millions of lines; here they do not."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import structlog


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False
    )
    try:
        yield
    finally:
        structlog.configure(**before)
