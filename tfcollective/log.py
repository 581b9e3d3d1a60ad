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


def configure(level: str) -> None:
    """Sends tfcollective's records of ``level`` and above to stderr.

    A program that has set up handlers of its own (on the root logger or on ``tfcollective``) keeps them; then only
    the level is set. Calling it again changes the level.
    """
    logger = logging.getLogger(_ROOT)
    logger.setLevel(level.upper())
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%H:%M:%S"))
    logger.addHandler(handler)
    logger.propagate = False
