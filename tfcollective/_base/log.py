"""Logging: one logger a module below ``tfcollective``; only entry points configure."""

from __future__ import annotations

import logging
import sys

LEVELS = ("debug", "info", "warning", "error")
HOROVOD_LEVELS = {"trace": "debug", "fatal": "error"}  # the two more that Horovod has, and what they mean here
_ROOT = "tfcollective"
_FORMAT = "%(asctime)s tfcollective %(levelname)s: %(message)s"


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; pass ``__name__``."""
    return logging.getLogger(name)


def say(text: str) -> None:
    """Tells people something that no level hides: a line on stderr."""
    sys.stderr.write(f"tfcollective: {text}\n")
    sys.stderr.flush()


class _ToStderr(logging.Handler):
    """Writes records until the program sets up logging itself, which may be after ``init()``."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        if logging.getLogger().handlers:
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # closed, or full
            self.handleError(record)


def configure(level: str) -> None:
    """Sends tfcollective's records of ``level`` and above to stderr.

    A program that has set up handlers of its own (on the root logger or on ``tfcollective``) keeps them; then only
    the level is set. Calling it again changes the level.
    """
    logger = logging.getLogger(_ROOT)
    logger.setLevel(level.upper())
    if logger.hasHandlers():
        return
    handler = _ToStderr()
    handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%H:%M:%S"))
    logger.addHandler(handler)
