"""Warnings begin with our name, unless the program sets up logging in its own way."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pytest

from tfcollective._base import log


@contextlib.contextmanager
def no_handlers() -> Iterator[None]:
    """pytest's own handlers come between a fixture and its test."""
    root, ours = logging.getLogger(), logging.getLogger("tfcollective")
    before = root.handlers[:], ours.handlers[:], ours.level
    root.handlers, ours.handlers = [], []
    try:
        yield
    finally:
        root.handlers, ours.handlers = before[:2]
        ours.setLevel(before[2])


def test_a_warning_has_our_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    with no_handlers():
        log.configure("warning")
        log.configure("warning")
        log.get_logger("tfcollective.some.module").warning("rank 1 is late")
    written = capsys.readouterr().err
    assert written.endswith(" tfcollective WARNING: rank 1 is late\n")
    assert written.count("rank 1 is late") == 1


def test_a_later_logging_setup_takes_over(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    with no_handlers():
        log.configure("warning")
        logging.getLogger().addHandler(Own())
        log.get_logger("tfcollective.some.module").warning("rank 1 is late")
    assert seen == ["rank 1 is late"]
    assert capsys.readouterr().err == ""
