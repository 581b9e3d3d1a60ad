"""Asking a coordinator again: one answer that was lost or late is no reason to do without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tfcollective.errors import CoordinatorError
from tfcollective.log import get_logger

__all__ = ["patiently"]

_LOG = get_logger(__name__)
_T = TypeVar("_T")
_RETRY_S = 0.5
_LONGEST_S = 30.0
_LEAST_TRIES = 5


def patiently(ask: Callable[[], _T], enough: Callable[[], bool] = lambda: False) -> _T:
    """What ``ask`` returns. It is asked again for 30 seconds, and 5 times however long an answer takes, or until it is
    ``enough()``; then its CoordinatorError is raised."""
    give_up, tries = time.monotonic() + _LONGEST_S, 0
    while True:
        try:
            return ask()
        except CoordinatorError as error:
            tries += 1
            if enough() or (tries >= _LEAST_TRIES and time.monotonic() > give_up):
                raise
            _LOG.info("launcher: %s", error)
        time.sleep(_RETRY_S)  # nobody tells when the coordinator is back
